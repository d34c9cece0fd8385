/* SPDX-License-Identifier: Apache-2.0 */
/* opt_core compare A B */
#define _GNU_SOURCE
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 20 /* fields listed without --all */

enum { KEY_ABS = 256, KEY_REL, KEY_RULES, KEY_JSON, KEY_ALL };

static const struct argp_option options[] = {
    {"abs", KEY_ABS, "X", 0, "absolute tolerance of fields that no rule names (default 0)", 0},
    {"rel", KEY_REL, "X", 0,
     "relative tolerance, of the number in A (default 0; both 0: exact, the bytes of the numbers)", 0},
    {"rules", KEY_RULES, "FILE", 0,
     "JSON: {\"FILE GLOB\": {\"FIELD GLOB\": {\"abs\": X, \"rel\": X} | \"exact\" | \"ignore\"}}", 0},
    {"json", KEY_JSON, NULL, 0, "print the result as JSON, every difference in it", 0},
    {"all", KEY_ALL, NULL, 0, "list every field that is not equal, not the first 20", 0},
    {0}};

typedef struct request {
  const char *a, *b;
  oc_tolerance tolerance;
  char *rules;
  int as_json, all;
  int64_t heard;
  json_t *list; /* of differences, with --json */
} request;

static double read_bound(struct argp_state *state, const char *option, const char *text) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value) || value < 0)
    argp_error(state, "--%s=%s is not a number >= 0", option, text);
  return value;
}

static char *read_all(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  char *text = NULL;
  size_t size = 0;
  ssize_t bytes = getdelim(&text, &size, 0, file); /* a rule file holds no NUL: this reads it whole */
  int failed = ferror(file);
  fclose(file);
  if (bytes >= 0 && !failed) return text;
  free(text);
  return failed ? NULL : strdup("");
}

static char *read_rules(struct argp_state *state, const char *path) {
  char *text = read_all(path);
  if (!text) argp_error(state, "--rules=%s: %s", path, strerror(errno));
  return text;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
  request *r = state->input;
  switch (key) {
  case KEY_ABS:
    r->tolerance.absolute = read_bound(state, "abs", argument);
    return 0;
  case KEY_REL:
    r->tolerance.relative = read_bound(state, "rel", argument);
    return 0;
  case KEY_RULES:
    free(r->rules);
    r->rules = read_rules(state, argument);
    return 0;
  case KEY_JSON:
    r->as_json = 1;
    return 0;
  case KEY_ALL:
    r->all = 1;
    return 0;
  case ARGP_KEY_ARG:
    if (state->arg_num > 1) argp_error(state, "too many arguments: `%s`", argument);
    *(state->arg_num ? &r->b : &r->a) = argument;
    return 0;
  case ARGP_KEY_END:
    if (state->arg_num < 2) argp_error(state, "two files or two folders are wanted");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

const struct argp cli_compare_argp = {
    .options = options,
    .parser = parse,
    .args_doc = "A B",
    .doc =
        "Compare two output trees (or two files), number by number: JSON, NPY, NPZ, safetensors, PDB, mmCIF, text."
        "\vA run record (opt_manifest*.json) is not compared, but a tree whose record says that the run did not end, "
        "or is "
        "older than the files beside it, is `unfinished`. Exit status 0: equal or within tolerance; 1: anything else."};

/* ---- people ------------------------------------------------------------------------------------------------------ */

static const char *verdict_colour(oc_verdict verdict) {
  return cli_colour(stdout, verdict == OC_VERDICT_EQUAL    ? "\033[32m"
                            : verdict == OC_VERDICT_WITHIN ? "\033[33m"
                                                           : "\033[31m");
}

/* Names come from files: control characters stay out of the terminal. */
static void print_name(const char *text) {
  for (; *text; text++) {
    if ((unsigned char)*text < 0x20 || *text == 0x7f)
      printf("\\x%02x", (unsigned char)*text);
    else
      putchar(*text);
  }
}

static void print_pair(const oc_difference *d) {
  printf(": %.9g against %.9g", d->a, d->b);
  if (d->ulps >= 0) printf(" (%lld ulp)", (long long)d->ulps);
  printf(", %lld of %lld beyond tolerance, largest difference %.3g", (long long)d->count, (long long)d->of, d->largest);
}

static void print_difference(const oc_difference *d) {
  printf("%s%-10s%s ", verdict_colour(d->verdict), oc_verdict_word(d->verdict), cli_colour(stdout, "\033[0m"));
  print_name(d->file);
  printf(": ");
  print_name(d->field);
  int has_pair = !isnan(d->a) || !isnan(d->b);
  if (has_pair)
    print_pair(d);
  else if (d->count > 1)
    printf(", %lld of %lld differ", (long long)d->count, (long long)d->of);
  putchar('\n');
}

static void print_result(const request *r, const oc_compare_result *result) {
  if (!r->all && r->heard > SHOWN_MAX)
    printf("... and %lld fields more (--all lists them)\n", (long long)(r->heard - SHOWN_MAX));
  printf("%s%s%s: %lld files, %lld fields, %lld numbers, %lld beyond tolerance, largest difference %.3g\n",
         verdict_colour(result->verdict), oc_verdict_word(result->verdict), cli_colour(stdout, "\033[0m"),
         (long long)result->files, (long long)result->fields, (long long)result->numbers, (long long)result->differing,
         result->largest);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* Names of files may hold any byte; JSON holds UTF-8. */
static json_t *text_value(const char *text) {
  json_t *value = json_string(text);
  if (value) return value;
  size_t bytes = strlen(text), used = 0;
  char *escaped = malloc(bytes * 4 + 1);
  if (!escaped) return NULL;
  for (size_t i = 0; i < bytes; i++) {
    unsigned char c = (unsigned char)text[i];
    used += (size_t)(c < 0x80 ? sprintf(escaped + used, "%c", c) : sprintf(escaped + used, "\\x%02x", c));
  }
  value = json_string(escaped);
  free(escaped);
  return value;
}

static json_t *difference_value(const oc_difference *d) {
  return json_pack("{s:o, s:o, s:s, s:o, s:o, s:o, s:I, s:I, s:I}", "file", text_value(d->file), "field",
                   text_value(d->field), "verdict", oc_verdict_word(d->verdict), "a", cli_number(d->a), "b",
                   cli_number(d->b), "largest", cli_number(d->largest), "count", (json_int_t)d->count, "of",
                   (json_int_t)d->of, "ulps", (json_int_t)d->ulps);
}

static int print_json(const request *r, const oc_compare_result *result) {
  return cli_print_json(json_pack("{s:i, s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:o, s:O}", "schema", 1, "a",
                                  text_value(r->a), "b", text_value(r->b), "verdict", oc_verdict_word(result->verdict),
                                  "files", (json_int_t)result->files, "fields", (json_int_t)result->fields, "numbers",
                                  (json_int_t)result->numbers, "differing", (json_int_t)result->differing, "largest",
                                  cli_number(result->largest), "differences", r->list));
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void listen(const oc_difference *difference, void *context) {
  request *r = context;
  r->heard++;
  if (r->as_json)
    json_array_append_new(r->list, difference_value(difference));
  else if (r->all || r->heard <= SHOWN_MAX)
    print_difference(difference);
}

static int compare(request *r) {
  oc_compare_options wanted = {
      .struct_bytes = sizeof wanted, .tolerance = r->tolerance, .rules_json = r->rules, .ignore_record = 1};
  oc_compare_result result;
  oc_err err = {0};
  if (oc_compare_trees(r->a, r->b, &wanted, listen, r, &result, &err) != OC_OK) return cli_failed("compare", &err);
  int printed = CLI_OK;
  if (r->as_json)
    printed = print_json(r, &result);
  else
    print_result(r, &result);
  return printed ? printed : result.verdict <= OC_VERDICT_WITHIN ? CLI_OK : CLI_DIFFERENT;
}

int cli_compare(int argc, char **argv) {
  request r = {.list = json_array()};
  argp_parse(&cli_compare_argp, argc, argv, 0, NULL, &r);
  int status = compare(&r);
  json_decref(r.list);
  free(r.rules);
  return status;
}
