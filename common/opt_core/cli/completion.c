/* SPDX-License-Identifier: Apache-2.0 */
/* opt_core completion: the bash script, made from the tables of commands and options. */
#include "cli.h"

static error_t parse(int key, char *argument, struct argp_state *state) {
  if (key != ARGP_KEY_ARG) return ARGP_ERR_UNKNOWN;
  argp_error(state, "too many arguments: `%s`", argument);
  return 0;
}

const struct argp cli_completion_argp = {
    .parser = parse, .doc = "Print the completion script for bash.\vUse: source <(opt_core completion)"};

static void print_words(const cli_command *command) {
  for (const struct argp_option *option = command->argp->options; option && (option->name || option->key); option++)
    if (option->name && !(option->flags & OPTION_HIDDEN)) printf("--%s ", option->name);
  for (const char *const *word = command->words; word && *word; word++) printf("%s ", *word);
  printf("--help");
}

int cli_completion(int argc, char **argv) {
  argp_parse(&cli_completion_argp, argc, argv, 0, NULL, NULL);
  printf("# SPDX-License-Identifier: Apache-2.0\n# made by `opt_core completion`\n_opt_core() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} words=\n  case ${COMP_WORDS[1]} in\n");
  for (const cli_command *command = cli_commands; command->word; command++) {
    printf("    %s) words='", command->word);
    print_words(command);
    printf("' ;;\n");
  }
  printf("  esac\n  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words='");
  for (const cli_command *command = cli_commands; command->word; command++) printf("%s ", command->word);
  printf("--help --version'\n  fi\n  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
         "complete -o default -F _opt_core opt_core\n");
  return CLI_OK;
}
