#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sanitize_gpu.sh PYTHON [SIZE...]  The CUDA members under compute-sanitizer: memcheck, racecheck and initcheck, each over
# common/opt_core/tests/gpu/sanitize_*.py, which run every member once at the sizes given (33 and 130). All tools run; status 1 when one finds
# something. racecheck leaves triattn_native out: it does not follow stages that another block of the cluster fills and both release (it
# reports every read of the multicast bias), and its shared memory is checked by the rerun rung instead. The framework's caching of memory is off, so that each tensor is an allocation of its own and its end is watched.
set -eu
python=$1
shift
[ $# -gt 0 ] || set -- 33 130
root=$(cd "$(dirname "$0")/.." && pwd)
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda/compute-sanitizer/compute-sanitizer 2>/dev/null | head -1) || true
[ -n "$sanitizer" ] || { echo "[sanitize-gpu] skipped: compute-sanitizer is not installed (it comes with the CUDA toolkit)"; exit 0; }
programs=$(ls "$root"/common/opt_core/tests/gpu/sanitize_*.py 2>/dev/null) || { echo "[sanitize-gpu] no program in common/opt_core/tests/gpu"; exit 1; }
status=0
for program in $programs; do
  for tool in ${SANITIZER_TOOLS:-memcheck racecheck initcheck}; do
    echo "[sanitize-gpu] $tool: $(basename "$program") $*"
    leave_out=""
    [ "$tool" = racecheck ] && leave_out="--kernel-name-exclude kernel_substring=triattn_native"
    # shellcheck disable=SC2086
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool "$tool" --error-exitcode 9 $leave_out ${SANITIZER_OPTIONS:-} "$python" "$program" "$@" || status=1
  done
done
[ $status = 0 ] && echo "[sanitize-gpu] clean"
exit $status
