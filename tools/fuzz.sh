#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh BUILD_DIR CORPUS_DIR SECONDS  Builds every fuzzer with clang, ASan and UBSan and runs each for SECONDS. Inputs that
# reach new code are kept in CORPUS_DIR for the next time. Status 1 on a finding, and when no fuzzer was built.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 corpus=$2 seconds=$3
if ! command -v clang >/dev/null 2>&1; then
  echo "[fuzz] skipped: clang is not installed"
  exit 0
fi
mkdir -p "$build" "$corpus"
rm -f "$build"/fuzz_*
log=$build/fuzz.log
targets=""
for source in common/opt_core/tests/fuzz/fuzz_*.c; do targets="$targets $(basename "$source" .c)"; done
cmake -S common/opt_core -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DOPT_CORE_TESTS=ON -DOPT_CORE_FUZZ=ON \
  -DOPT_CORE_SANITIZE=address,undefined >"$log" 2>&1 &&
  cmake --build "$build" -j "$(nproc)" --target $targets >>"$log" 2>&1 || { tail -30 "$log"; exit 1; }
count=0
for fuzzer in "$build"/fuzz_*; do
  [ -f "$fuzzer" ] && [ -x "$fuzzer" ] || continue
  name=$(basename "$fuzzer")
  mkdir -p "$corpus/$name"
  "$fuzzer" -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$corpus/$name-" "$corpus/$name" >"$log" 2>&1 || { tail -40 "$log"; exit 1; }
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  [ "${runs:-0}" -gt 0 ] || { echo "[fuzz] $name executed nothing"; exit 1; }
  echo "[fuzz] $name: $runs inputs"
  count=$((count + 1))
done
[ "$count" -gt 0 ] || { echo "[fuzz] no fuzzer was built"; exit 1; }
echo "[fuzz] clean: $count fuzzers"
