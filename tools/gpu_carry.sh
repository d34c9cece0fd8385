#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_carry.sh [core] [peers] [mutants]  Makes what a machine with a GPU and without network or compiler needs, in build/carry and build/carry-peers (both
# are ignored by git; carry them by name):
#   core     the wheel of opt_core, cubins inside. CUBINS=DEV takes the kernels as they are, without the committed digests
#   peers    cuEquivariance 0.13.0 and trifast 0.1.13 for Python 3.12 and CUDA 13, as two archives of 28 MB in all (their wheels are 74 MB)
#   mutants  cubins with a fault each, for tools/mutants_gpu.py --run build/carry/mutants
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-build/venv/bin/python}
[ $# -gt 0 ] || set -- core peers
mkdir -p build/carry build/carry-peers

core() {
  rm -f build/carry/opt_core-*.whl
  SKBUILD_CMAKE_DEFINE="OPT_CORE_CUBINS=${CUBINS:-ON}" nice "$python" -m pip wheel -q --no-deps --no-build-isolation -w build/carry common/opt_core
  git rev-parse --short HEAD >build/carry/commit
  git diff --quiet HEAD || sed -i 's/$/+changes/' build/carry/commit
}

peers() {
  local at=build/carry-peers/unpacked list=(cuequivariance==0.13.0 cuequivariance_torch==0.13.0 cuequivariance_ops_cu13==0.13.0 cuequivariance_ops_torch_cu13==0.13.0
    trifast==0.1.13 platformdirs)
  local platforms=(); for tag in 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${tag}_x86_64"); done
  rm -rf "$at" && mkdir -p "$at/wheels" "$at/site"
  "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 -d "$at/wheels" "${list[@]}"
  for wheel in "$at"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$at/site"; done
  tar cf - -C "$at/site" cuequivariance_ops | nice xz -6 -T2 >build/carry-peers/ops.tar.xz
  tar cf - -C "$at/site" --exclude=./cuequivariance_ops . | nice xz -6 -T2 >build/carry-peers/rest.tar.xz
  rm -rf "$at"
}

mutants() { rm -rf build/carry/mutants && nice "$python" tools/mutants_gpu.py --build build/carry/mutants; }

for part in "$@"; do "$part"; done
du -sh build/carry build/carry-peers
