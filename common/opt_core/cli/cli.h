/* SPDX-License-Identifier: Apache-2.0 */
/* What the sub-commands of the program share. Data goes to standard output, lines and complaints to standard error. */
#ifndef OC_CLI_CLI_H
#define OC_CLI_CLI_H

#include <argp.h>
#include <jansson.h>
#include <stdio.h>

#include "opt_core/opt_core.h"

/* Exit statuses of the program. Anything else is the status of a command that `run` started. */
enum {
  CLI_OK = 0,
  CLI_DIFFERENT = 1,
  CLI_USAGE = 2,
  CLI_REFUSED = 3,
  CLI_CLOSED = 4,
  CLI_NOT_STARTED = 126,
  CLI_NOT_FOUND = 127
};

typedef struct cli_command {
  const char *word, *summary;
  const struct argp *argp;
  int (*run)(int argc, char **argv);
  const char *const *words; /* what may follow, for completion; NULL: file names */
} cli_command;

extern const cli_command cli_commands[]; /* the last has word NULL */
extern const struct argp cli_cells_argp, cli_census_argp, cli_compare_argp, cli_completion_argp, cli_doctor_argp,
    cli_run_argp;
extern const char *const cli_cells_words[];
int cli_cells(int argc, char **argv);
int cli_census(int argc, char **argv);
int cli_compare(int argc, char **argv);
int cli_completion(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_run(int argc, char **argv);

/* Prints why a call failed, as a NOT ACTIVE line where it is a refusal, and returns the exit status that belongs to it.
 */
int cli_failed(const char *name, const oc_err *err);
/* The escape sequence when the stream is a terminal and NO_COLOR is not set; "" otherwise. */
const char *cli_colour(FILE *stream, const char *sequence);
/* Prints and frees the value; a number that JSON cannot hold was made a string by cli_number. */
int cli_print_json(json_t *value);
json_t *cli_number(double value);

#endif
