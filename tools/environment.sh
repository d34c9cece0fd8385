#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# environment.sh VENV [test]  Makes the virtual environment: build tools, torch, transformers, opt_core and the first kit.
# An installed torch >= 2.11 is used (the environment then sees the system's packages); otherwise torch comes from PyPI: about 2.5 GB to
# download with its CUDA libraries, 5 GB on disk. Without network, what the system's Python has is used (build tools, torch, ...).
# Where the core cannot be built, or with OPT_CORE_FROM_WHEEL=1, dist/opt_core-*.whl and dist/esmfold_opt-*.whl are installed.
# OPT_CORE_CUBINS=AUTO|ON|OFF|DEV: whether the binaries of the CUDA members are built (common/opt_core/cmake/opt_core_cubins.cmake); AUTO, the
# default, builds them only where there is an NVIDIA GPU.
# Each step is done once; a stamp in the environment remembers what it was made from. Docs: docs/install.md.
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
  if "$python" - <<'P'
import sys
from importlib.metadata import PackageNotFoundError, version
try:
    sys.exit(tuple(map(int, version("torch").split("+")[0].split(".")[:2])) < (2, 11))
except PackageNotFoundError:
    sys.exit(1)
P
  then
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
# Lets the environment see what the system's Python has; 1 when it does already.
see_system() {
  grep -q '^include-system-site-packages = false' "$venv/pyvenv.cfg" || return 1
  sed -i 's/^include-system-site-packages = false/include-system-site-packages = true/' "$venv/pyvenv.cfg"
}
# get "what for" requirement...: from PyPI (or what pip is configured for), else from the system's Python.
get() {
  what=$1
  shift
  have "$@" && return 0
  say "$what: pip install $*"
  here -m pip install -q --disable-pip-version-check "$@" && return 0
  if see_system; then
    have "$@" && { say "$what: pip could not install it; the system's Python has it"; return 0; }
    here -m pip install -q --disable-pip-version-check "$@" 2>/dev/null && return 0 # a part from here, a part from there
  fi
  return 1
}
need() {
  get "$@" && return 0
  shift
  for text in "$@"; do have "$text" || missing="$missing $text"; done
  say "no network? missing:$missing. Install these for $python, or make a wheelhouse and set PIP_NO_INDEX=1 PIP_FIND_LINKS=/its/path"
  exit 1
}

# ---- source or wheel ---------------------------------------------------------------------------------------------------
wheels_there() { ls "$root"/dist/opt_core-*.whl >/dev/null 2>&1 && ls "$root"/dist/esmfold_opt-*.whl >/dev/null 2>&1; }
missing=""
find_missing_to_compile() {
  cc=${CC:-cc}
  command -v "$cc" >/dev/null 2>&1 || { missing="$missing a-C-compiler"; return; }
  command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
  for header in jansson sodium; do
    echo "#include <$header.h>" | "$cc" -E - >/dev/null 2>&1 || missing="$missing $header.h"
  done
}
find_missing_to_build() {
  get "build" "scikit-build-core>=1.1" "cmake>=3.18" "ninja>=1.11" && return
  have "scikit-build-core>=1.1" || missing="$missing scikit-build-core"
  have "cmake>=3.18" || command -v cmake >/dev/null 2>&1 || missing="$missing cmake"
  have "ninja>=1.11" || command -v ninja >/dev/null 2>&1 || command -v make >/dev/null 2>&1 || missing="$missing ninja"
}
if [ "${OPT_CORE_FROM_WHEEL:-0}" = 1 ]; then
  wheels_there || { say "OPT_CORE_FROM_WHEEL=1, but dist/ holds no opt_core-*.whl and esmfold_opt-*.whl (make wheels writes them)"; exit 1; }
  from=wheel
else
  from=source
  find_missing_to_compile
  if [ -n "$missing" ] && wheels_there; then :; else find_missing_to_build; fi
  if [ -n "$missing" ]; then
    wheels_there || { say "cannot build opt_core here: missing$missing; and dist/ holds no wheels (make wheels on another machine writes them)"; exit 1; }
    say "cannot build opt_core here: missing$missing; taking the wheels in dist/"
    from=wheel
  fi
fi
missing=""

have "$torch_pin" || say "torch is not there: about 2.5 GB to download, 5 GB on disk, two to five minutes"
need "the engine" "$torch_pin" "$engine_pin" "numpy>=1.26" "safetensors>=0.4"
[ "$kind" = test ] && need "tests" "pytest>=8" "hypothesis>=6" "jsonschema>=4"

if [ "$from" = wheel ]; then
  stamp=$venv/.opt_core-wheel-$(cat "$root"/dist/opt_core-*.whl "$root"/dist/esmfold_opt-*.whl | sha256sum | cut -c1-64)
  if [ ! -e "$stamp" ]; then
    say "installing opt_core and esmfold-opt from dist/"
    here -m pip install -q --disable-pip-version-check --no-index --find-links "$root/dist" --force-reinstall --no-deps opt-core esmfold-opt
    rm -f "$venv"/.opt_core-*
    : >"$stamp"
  fi
else
  # One stamp over everything that the compiled parts are made from: nothing is rebuilt when nothing changed.
  digest=$(cd "$root" && find common/opt_core esmfold/opt -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name 'CMakeLists.txt' -o -name '*.cmake' \
    -o -name '*.toml' -o -name '*_CELLS.json' -o -name '*.map' -o -name '*.cu' -o -name '*.cuh' -o -name 'PREBUILT*.json' -o -name 'build_prebuilt.py' \
    -o -name '_build_backend.py' -o -name '*.pth' -o -name '*.start' \) \
    ! -path '*/tests/*' ! -path '*/build/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-64)
  cubins=${OPT_CORE_CUBINS:-AUTO}
  stamp=$venv/.opt_core-$digest-$cubins
  if [ ! -e "$stamp" ] && ! { [ "$cubins" = AUTO ] && [ -e "$venv/.opt_core-$digest-ON" ]; }; then
    say "building opt_core (C) and the kit into $venv"
    case $cubins in
      AUTO) ls /dev/nvidia* >/dev/null 2>&1 || command -v nvidia-smi >/dev/null 2>&1 ||
        say "no NVIDIA GPU here: the binaries of the CUDA members are not built (OPT_CORE_CUBINS=ON builds them)" ;;
      OFF) why=$(here "$root/common/opt_core/build_prebuilt.py" --find 2>&1 >/dev/null) || say "the binaries of the CUDA members are not built: ${why#\[cubins] }" ;;
      *) say "with the binaries of the CUDA members" ;;
    esac
    SKBUILD_CMAKE_DEFINE="OPT_CORE_CUBINS=$cubins" here -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e "$root/common/opt_core" -e "$root/esmfold/opt"
    rm -f "$venv"/.opt_core-*
    : >"$stamp"
  fi
fi
say "environment ready: $venv"
