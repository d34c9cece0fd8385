#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# environment.sh VENV [test]  Makes the virtual environment: build tools, torch, transformers, opt_core and the first kit.
# An installed torch >= 2.11 is used (the environment then sees the system's packages); otherwise torch comes from PyPI: about 2.5 GB to
# download with its CUDA libraries, 5 GB on disk. Without network: builds from what is there, or takes wheels from dist/.
# Each step is done once; a stamp in the environment remembers the versions that it was made for.
set -eu
venv=$1
kind=${2:-run}
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
torch_pin="torch>=2.11,<2.12"
engine_pin="transformers>=5.17,<6"

say() { echo "[setup] $*"; }
here() { "$venv/bin/python" "$@"; }

"$python" - <<'P' || { say "python 3.11 or later is needed (found: $("$python" --version 2>&1)); set PYTHON=/path/to/python"; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
P

if [ ! -x "$venv/bin/python" ]; then
  system=""
  if "$python" -c 'import torch, sys; sys.exit(tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 11))' 2>/dev/null; then
    system="--system-site-packages"
    say "using the installed torch"
  fi
  say "creating $venv"
  "$python" -m venv $system "$venv"
fi

# have "requirement"...: are they all installed in a fitting version?
have() {
  here - "$@" <<'P'
import sys
from importlib.metadata import PackageNotFoundError, version
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
for text in sys.argv[1:]:
    need = Requirement(text)
    try:
        if not need.specifier.contains(version(need.name), prereleases=True):
            sys.exit(1)
    except PackageNotFoundError:
        sys.exit(1)
P
}
need() { # need "what for" requirement...
  what=$1
  shift
  have "$@" && return 0
  say "$what: pip install $*"
  here -m pip install -q --disable-pip-version-check "$@" && return 0
  say "no network? $what could not be installed: $*"
  return 1
}

need "build" "scikit-build-core>=1.1" "cmake>=3.18" "ninja>=1.11"
have "$torch_pin" || say "torch is not there: about 2.5 GB to download, 5 GB on disk, two to five minutes"
need "the engine" "$torch_pin" "$engine_pin" "numpy>=1.26" "safetensors>=0.4"
[ "$kind" = test ] && need "tests" "pytest>=8" "hypothesis>=6" "jsonschema>=4"

if ls "$root"/dist/opt_core-*.whl >/dev/null 2>&1 && [ "${OPT_CORE_FROM_WHEEL:-0}" = 1 ]; then
  say "installing opt_core and esmfold-opt from dist/"
  here -m pip install -q --disable-pip-version-check --no-index --find-links "$root/dist" --force-reinstall --no-deps opt-core esmfold-opt
else
  # One stamp over everything that the compiled parts are made from: nothing is rebuilt when nothing changed.
  digest=$(cd "$root" && find common/opt_core esmfold/opt -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name 'CMakeLists.txt' -o -name '*.cmake' \
    -o -name '*.toml' -o -name '*_CELLS.json' -o -name '*.map' -o -name '_build_backend.py' -o -name '*.pth' -o -name '*.start' \) \
    ! -path '*/tests/*' ! -path '*/build/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-64)
  stamp=$venv/.opt_core-$digest
  if [ ! -e "$stamp" ]; then
    say "building opt_core (C) and the kit into $venv"
    here -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e "$root/common/opt_core" -e "$root/esmfold/opt"
    rm -f "$venv"/.opt_core-*
    : >"$stamp"
  fi
fi
say "environment ready: $venv"
