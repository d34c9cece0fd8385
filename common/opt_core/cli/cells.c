/* SPDX-License-Identifier: Apache-2.0 */
/* opt_core cells list | show [FAMILY] */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_JSON = 256 };

static const struct argp_option options[] = {{"json", KEY_JSON, NULL, 0, "print as JSON", 0}, {0}};
const char *const cli_cells_words[] = {"list", "show",
#define X(id, word, folder) word,
                                       OC_FAMILY_LIST(X)
#undef X
                                           NULL};

typedef struct request {
  int show, as_json;
  int family; /* -1: all */
} request;

static void read_family(request *r, const char *word, struct argp_state *state) {
  oc_family family;
  oc_err err = {0};
  if (oc_family_find(word, &family, &err) != OC_OK) argp_error(state, "%s", err.detail);
  r->family = (int)family;
}

static void read_word(request *r, const char *word, struct argp_state *state) {
  if (state->arg_num == 1)
    read_family(r, word, state);
  else if (state->arg_num > 1)
    argp_error(state, "too many arguments: `%s`", word);
  else if (strcmp(word, "show") == 0)
    r->show = 1;
  else if (strcmp(word, "list") != 0)
    argp_error(state, "`%s` is not list or show", word);
}

static error_t parse(int key, char *argument, struct argp_state *state) {
  request *r = state->input;
  switch (key) {
  case KEY_JSON:
    r->as_json = 1;
    return 0;
  case ARGP_KEY_ARG:
    read_word(r, argument, state);
    return 0;
  case ARGP_KEY_NO_ARGS:
    argp_error(state, "list or show is wanted");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

const struct argp cli_cells_argp = {
    .options = options,
    .parser = parse,
    .args_doc = "list|show [FAMILY]",
    .doc = "List the families with the number of their measured cells, or show the cells, one line a cell."
           "\vThe tables are the built-in ones, overlaid by the file that OPT_CORE_CELLS names."};

/* ---- one cell ---------------------------------------------------------------------------------------------------- */

static const char *dim_letter(int dim) {
  static const char *const letters[] = {
#define X(id, letter) letter,
      OC_DIM_LIST(X)
#undef X
  };
  return letters[dim];
}

static int is_limited(const oc_cell *cell, int dim) { return cell->low[dim] > 0 || cell->high[dim] < INT64_MAX; }

static json_t *ranges_value(const oc_cell *cell) {
  json_t *ranges = json_object();
  for (int dim = 0; dim < OC_DIM_COUNT; dim++)
    if (is_limited(cell, dim))
      json_object_set_new(ranges, dim_letter(dim),
                          json_pack("[I, I]", (json_int_t)cell->low[dim], (json_int_t)cell->high[dim]));
  return ranges;
}

static json_t *stacks_value(const oc_cell *cell) {
  json_t *stacks = json_array();
  for (const char *const *stack = cell->stacks; stack && *stack; stack++)
    json_array_append_new(stacks, json_string(*stack));
  return stacks;
}

static const char *or_empty(const char *text) { return text ? text : ""; }

static json_t *cell_value(const oc_cell *cell) {
  return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:s, s:s, s:s, s:s, s:s, s:o}", "id",
                   cell->id, "tier", oc_tier_word(cell->tier), "device", or_empty(cell->device), "dtype",
                   oc_dtype_word(cell->dtype), "form", or_empty(cell->form), "row", or_empty(cell->row), "fallback",
                   or_empty(cell->fallback), "range", ranges_value(cell), "us", cli_number(cell->us), "peer_us",
                   cli_number(cell->peer_us), "err", cli_number(cell->err), "stock_err", cli_number(cell->stock_err),
                   "date", or_empty(cell->date), "machine", or_empty(cell->machine), "stack", or_empty(cell->stack),
                   "command", or_empty(cell->command), "result", or_empty(cell->result), "stacks", stacks_value(cell));
}

static void print_cell(const oc_cell *cell) {
  printf("%-40s %-5s %-11s %-5s %-28s", cell->id, oc_tier_word(cell->tier), or_empty(cell->device),
         oc_dtype_word(cell->dtype), or_empty(cell->form));
  for (int dim = 0; dim < OC_DIM_COUNT; dim++) {
    if (!is_limited(cell, dim)) continue;
    printf(" %s=%lld..", dim_letter(dim), (long long)cell->low[dim]);
    if (cell->high[dim] < INT64_MAX) printf("%lld", (long long)cell->high[dim]);
  }
  printf(" -> %s (else %s) %.1f us, peer %.1f us, err %.2g, stock %.2g, %s %s\n", or_empty(cell->row),
         or_empty(cell->fallback), cell->us, cell->peer_us, cell->err, cell->stock_err, or_empty(cell->date),
         or_empty(cell->machine));
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static json_t *table_value(const oc_cells *cells, int show) {
  int count = oc_cells_count(cells);
  if (!show) return json_integer(count);
  json_t *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, cell_value(oc_cells_at(cells, i)));
  return list;
}

static void print_table(oc_family family, const oc_cells *cells, int show) {
  int count = oc_cells_count(cells);
  if (!show) printf("%-16s %d cells\n", oc_family_word(family), count);
  for (int i = 0; show && i < count; i++) print_cell(oc_cells_at(cells, i));
}

static int each_family(const request *r, json_t *families) {
  for (int family = 0; family < OC_FAMILY_COUNT; family++) {
    const oc_cells *cells;
    oc_err err = {0};
    if (r->family >= 0 && family != r->family) continue;
    if (oc_cells_in_force((oc_family)family, &cells, &err) != OC_OK) return cli_failed("cells", &err);
    if (r->as_json)
      json_object_set_new(families, oc_family_word((oc_family)family), table_value(cells, r->show));
    else
      print_table((oc_family)family, cells, r->show);
  }
  return CLI_OK;
}

int cli_cells(int argc, char **argv) {
  request r = {.family = -1};
  argp_parse(&cli_cells_argp, argc, argv, 0, NULL, &r);
  json_t *families = json_object();
  int status = each_family(&r, families);
  if (status || !r.as_json) {
    json_decref(families);
    return status;
  }
  return cli_print_json(
      json_pack("{s:i, s:s, s:o}", "schema", 1, "overlay", oc_cells_overlay_digest(), "families", families));
}
