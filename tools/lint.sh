#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh BUILD_DIR  Checks that need no run: format, clang-tidy (with the compile commands of BUILD_DIR), lines of CUDA sources,
# SPDX lines, no engine's name in the core, no unfinished marks. Says what it skips.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
fail=0
sources=$(git ls-files -co --exclude-standard '*.c' '*.h' | grep -v '/golden/' || true)

if command -v clang-format >/dev/null 2>&1; then
  clang-format --dry-run -Werror $sources || { echo "[lint] run: make fmt"; fail=1; }
else
  echo "[lint] skipped: clang-format is not installed"
fi

# One file a process: the analyzer of clang 14 carries its idea of va_list over to the next file. What clang-tidy says is kept
# and shown when it fails, whether it found something or broke; its count of suppressed warnings in system headers is not.
if command -v clang-tidy >/dev/null 2>&1 && [ -f "$build/compile_commands.json" ]; then
  library=$(echo "$sources" | grep '\.c$' | grep -E 'common/opt_core/(src|cli)/|kernels/[a-z]+/(members/)?[a-z_0-9]+\.c$' | grep -v -E '/test_|/members/cpu\.c')
  [ -n "$library" ] || { echo "[lint] no source for clang-tidy"; exit 1; }
  log=$build/clang-tidy.log
  if ! echo "$library" | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build" >"$log" 2>&1; then
    echo "[lint] clang-tidy:"
    grep -v -E '^[0-9]+ warnings? (generated|treated as errors)|^$' "$log" | head -80
    fail=1
  fi
  echo "[lint] clang-tidy: $(echo "$library" | wc -l) files"
else
  echo "[lint] skipped: clang-tidy is not installed or $build is not configured"
fi

# clang-format 14 breaks the instruction strings of inline assembly in the middle: CUDA sources are checked for what can be counted.
cuda=$(git ls-files -co --exclude-standard '*.cu' '*.cuh')
wide=$([ -z "$cuda" ] || grep -n -E '.{121}|[[:blank:]]$|[[:cntrl:]]' $cuda /dev/null || true)
[ -z "$wide" ] || { echo "[lint] more than 120 columns, a tab, or a space at the end of a line:"; echo "$wide" | cut -c1-160 | head; fail=1; }

for file in $(git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.py' '*.sh' '*.cmake' Makefile CMakeLists.txt); do
  [ -s "$file" ] || continue
  head -3 "$file" | grep -q "SPDX-License-Identifier: Apache-2.0" || { echo "[lint] no SPDX line: $file"; fail=1; }
done

names='\b(boltz|protenix|openfold3?|chai|esmfold|alphafold3?|rosettafold)\b'
hits=$(git ls-files -co --exclude-standard common/opt_core | xargs grep -n -i -I -E "$names" 2>/dev/null |
  grep -v -E '(AlphaFold [23]|algorithms? [0-9]+)' || true)
[ -z "$hits" ] || { echo "[lint] an engine's name inside the core:"; echo "$hits" | head; fail=1; }

marks=$(git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.py' '*.sh' | grep -v tools/lint.sh | xargs grep -n -E '\b(TODO|FIXME|XXX|HACK)\b' || true)
[ -z "$marks" ] || { echo "[lint] unfinished marks:"; echo "$marks" | head; fail=1; }
[ $fail = 0 ] && echo "[lint] clean"
exit $fail
