# SPDX-License-Identifier: Apache-2.0
# made by `opt_core completion`
_opt_core() {
  local word=${COMP_WORDS[COMP_CWORD]} words=
  case ${COMP_WORDS[1]} in
    run) words='--help' ;;
    compare) words='--abs --rel --rules --json --all --help' ;;
    cells) words='--json list show ln trimul triattn triattn_module transition apb --help' ;;
    census) words='--help' ;;
    doctor) words='--json --help' ;;
    completion) words='--help' ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='run compare cells census doctor completion --help --version'
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _opt_core opt_core
