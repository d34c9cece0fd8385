/* SPDX-License-Identifier: Apache-2.0 */
/* The program `opt_core`: a table of sub-commands, each with its own options. */
#define _GNU_SOURCE
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const cli_command cli_commands[] = {
    {"run", "run a command with the import hook in place", &cli_run_argp, cli_run, NULL},
    {"compare", "compare two output trees, number by number", &cli_compare_argp, cli_compare, NULL},
    {"cells", "list or show the measured cells that selection reads", &cli_cells_argp, cli_cells, cli_cells_words},
    {"census", "print the cell census of a run record", &cli_census_argp, cli_census, NULL},
    {"doctor", "say what can serve here, what refuses and by which word", &cli_doctor_argp, cli_doctor, NULL},
    {"completion", "print the completion script for bash", &cli_completion_argp, cli_completion, NULL},
    {0},
};

/* ---- shared ------------------------------------------------------------------------------------------------------ */

static int status_of(oc_status status) {
  switch (status) {
  case OC_OK:
    return CLI_OK;
  case OC_REFUSED:
    return CLI_REFUSED;
  case OC_CLOSED:
    return CLI_CLOSED;
  default:
    return CLI_USAGE;
  }
}

int cli_failed(const char *name, const oc_err *err) {
  char text[OC_DETAIL_MAX + 64];
  oc_err_text(err, text, sizeof text);
  if (err->status == OC_REFUSED) {
    oc_line line = {.kind = OC_LINE_NOT_ACTIVE, .field_count = 2, .field = {{name, NULL}, {text, NULL}}};
    oc_line_write(&line, NULL);
  } else {
    fprintf(stderr, "opt_core: %s: %s\n", name, err->detail[0] ? err->detail : text);
  }
  return status_of(err->status);
}

const char *cli_colour(FILE *stream, const char *sequence) {
  const char *no_colour = getenv("NO_COLOR");
  return (no_colour && *no_colour) || !isatty(fileno(stream)) ? "" : sequence;
}

json_t *cli_number(double value) {
  if (isfinite(value)) return json_real(value);
  return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

int cli_print_json(json_t *value) {
  int failed = !value || json_dumpf(value, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII) != 0 || putchar('\n') == EOF;
  json_decref(value);
  if (failed) fprintf(stderr, "opt_core: cannot print JSON\n");
  return failed ? CLI_USAGE : CLI_OK;
}

/* ---- the program itself ------------------------------------------------------------------------------------------ */

static void print_version(FILE *stream, struct argp_state *state) {
  (void)state;
  fprintf(stream, "opt_core %s\n", oc_version());
}

/* argp finds it by name in the program, so it must not be hidden like the rest. */
__attribute__((visibility("default"))) void (*argp_program_version_hook)(FILE *, struct argp_state *) = print_version;

/* A term and what it means, wrapped at 79 columns: argp would wrap without the indent. */
static void print_entry(FILE *out, const char *term, const char *text) {
  enum { INDENT = 15, WIDTH = 78 };
  int column = fprintf(out, "  %-12s", term);
  if (strlen(term) > INDENT - 4) column = fprintf(out, "\n%*s", INDENT - 1, "") - 1;
  while (*text) {
    int bytes = (int)strcspn(text, " ");
    if (column + 1 + bytes > WIDTH) column = fprintf(out, "\n%*s", INDENT - 1, "") - 1;
    column += fprintf(out, " %.*s", bytes, text);
    text += bytes + (text[bytes] == ' ');
  }
  fputc('\n', out);
}

static char *list_everything(void) {
  static const struct {
    const char *name, *help;
  } variables[] = {
#define X(name, accepted, help) {#name, help},
      OC_ENVIRONMENT_LIST(X)
#undef X
  };
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) return NULL;
  fprintf(out, "Commands (each has its own --help):\n");
  for (const cli_command *command = cli_commands; command->word; command++)
    print_entry(out, command->word, command->summary);
  fprintf(out, "\nEnvironment:\n");
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
    print_entry(out, variables[i].name, variables[i].help);
  fprintf(out,
          "\nExit status:\n  0  success\n  1  a difference was found or a check failed\n  2  wrong usage\n"
          "  3  refused by name\n  4  accounting failed closed\nElse the status of the command that `run` started.\n");
  return fclose(out) == 0 ? text : NULL;
}

static char *help_filter(int key, const char *text, void *input) {
  (void)input;
  if (key != ARGP_KEY_HELP_POST_DOC) return (char *)(uintptr_t)text;
  char *list = list_everything();
  return list ? list : (char *)(uintptr_t)text;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
  switch (key) {
  case ARGP_KEY_ARG:
    argp_error(state, "unknown command `%s`", argument);
    return EINVAL;
  case ARGP_KEY_NO_ARGS:
    argp_error(state, "a command is missing");
    return EINVAL;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp main_argp = {.parser = parse,
                                      .args_doc = "COMMAND [ARGUMENT...]",
                                      .help_filter = help_filter,
                                      .doc = "The command line of opt_core: runs an engine with its kit switched on, "
                                             "compares what two runs left, and says what "
                                             "this machine can serve.\v "};

static int run_command(const cli_command *command, int argc, char **argv) {
  char name[64];
  snprintf(name, sizeof name, "opt_core %s", command->word);
  argv[0] = name; /* for argp's messages */
  return command->run(argc, argv);
}

static int dispatch(int argc, char **argv) {
  for (const cli_command *command = cli_commands; argc > 1 && command->word; command++)
    if (strcmp(argv[1], command->word) == 0) return run_command(command, argc - 1, argv + 1);
  char name[] = "opt_core";
  if (argc > 0) argv[0] = name;
  return argp_parse(&main_argp, argc, argv, ARGP_IN_ORDER, NULL, NULL) ? CLI_USAGE : CLI_OK;
}

int main(int argc, char **argv) {
  argp_err_exit_status = CLI_USAGE;
  int status = dispatch(argc, argv);
  if (fflush(stdout) != 0 || ferror(stdout)) { /* a full disk is not success */
    if (status == CLI_OK) status = CLI_USAGE;
    perror("opt_core: standard output");
  }
  return status;
}
