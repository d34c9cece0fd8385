/* SPDX-License-Identifier: Apache-2.0 */
/* opt_core census MANIFEST */
#include "cli.h"

static error_t parse(int key, char *argument, struct argp_state *state) {
  const char **path = state->input;
  switch (key) {
  case ARGP_KEY_ARG:
    if (state->arg_num > 0) argp_error(state, "too many arguments: `%s`", argument);
    *path = argument;
    return 0;
  case ARGP_KEY_NO_ARGS:
    argp_error(state, "a run record is wanted, e.g. opt_manifest.json");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

const struct argp cli_census_argp = {
    .parser = parse,
    .args_doc = "MANIFEST",
    .doc = "Print the cell census of a run record: which calls were served by which row, and which no cell covered."};

int cli_census(int argc, char **argv) {
  const char *path = NULL;
  argp_parse(&cli_census_argp, argc, argv, 0, NULL, &path);
  char *text;
  oc_err err = {0};
  if (oc_manifest_census(path, &text, &err) != OC_OK) return cli_failed("census", &err);
  fputs(text, stdout);
  oc_text_free(text);
  return CLI_OK;
}
