#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the manual page opt_core.1 and the completion script beside this file from the program's own help.
#   cli/make_man.sh PATH/TO/opt_core          (needs help2man)
set -eu
program=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
COLUMNS=80
export COLUMNS
{
  printf '[NAME]\nopt_core \\- run an engine with its kit switched on, and check what the run left\n\n[COMMANDS IN FULL]\n'
  for command in run compare cells census doctor completion; do
    printf '.SS "opt_core %s"\n.nf\n' "$command"
    "$program" "$command" --help | sed -e 's/\\/\\e/g' -e "s/^\([.']\)/\\\\\&\1/" -e 's/-/\\-/g'
    printf '.fi\n'
  done
} >"$work/opt_core.h2m"
SOURCE_DATE_EPOCH=1767225600 help2man --no-info --section=1 --include="$work/opt_core.h2m" --output="$here/opt_core.1" "$program"
{ printf '.\\" SPDX-License-Identifier: Apache-2.0\n'; cat "$here/opt_core.1"; } >"$work/page"
cat "$work/page" >"$here/opt_core.1"
"$program" completion >"$here/completion.bash"
