/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "cell_text.h"
#include "providers/cells.h"

static oc_cells *parse(const char *text) {
  oc_cells *cells = NULL;
  oc_err err = {0};
  if (oc_cells_parse(text, strlen(text), &cells, &err) != OC_OK) fail_msg("%s", err.detail);
  return cells;
}

static void test_a_cell(void **state) {
  (void)state;
  oc_cells *cells = parse(TABLE(
      "trimul",
      CELL("one", "\"form\":[\"mask+biased+outgoing\",\"incoming\"],\"n\":[64,512],\"c\":[128,129]") "," EXACT_CELL(
          "two", "\"form\":\"\"", "[\"a\",\"b\"]")));
  assert_int_equal(oc_cells_count(cells), 2);
  const oc_cell *cell = oc_cells_at(cells, 0);
  assert_string_equal(cell->id, "one");
  assert_int_equal(cell->tier, OC_TIER_FAST);
  assert_string_equal(cell->device, "cpu-avx512");
  assert_int_equal(cell->dtype, OC_F32);
  assert_string_equal(cell->row, "cpu");
  assert_string_equal(cell->fallback, "stock");
  assert_string_equal(cell->form, "biased+mask+outgoing|incoming");
  assert_int_equal(cell->low[OC_DIM_N], 64);
  assert_int_equal(cell->high[OC_DIM_N], 512);
  assert_int_equal(cell->low[OC_DIM_C], 128);
  assert_int_equal(cell->high[OC_DIM_C], 129);
  assert_int_equal(cell->low[OC_DIM_B], 0);
  assert_true(cell->high[OC_DIM_B] == INT64_MAX);
  assert_true(cell->us == 2.5 && cell->peer_us == 5.0 && cell->err == 0.0 && cell->stock_err == 1e-7);
  assert_string_equal(cell->date, "2026-12-01");
  assert_string_equal(cell->machine, "m");
  assert_string_equal(cell->stack, "s");
  assert_string_equal(cell->command, "c");
  assert_string_equal(cell->result, "r.json");
  assert_null(cell->stacks);
  cell = oc_cells_at(cells, 1);
  assert_int_equal(cell->tier, OC_TIER_EXACT);
  assert_string_equal(cell->form, "");
  assert_string_equal(cell->stacks[0], "a");
  assert_string_equal(cell->stacks[1], "b");
  assert_null(cell->stacks[2]);
  assert_null(oc_cells_at(cells, 2));
  assert_null(oc_cells_at(cells, -1));
  oc_cells_free(cells);
  oc_cells_free(NULL);
  cells = parse(TABLE("apb", ""));
  assert_int_equal(oc_cells_count(cells), 0);
  oc_cells_free(cells);
}

static void check_refused(const char *text, const char *part) {
  oc_cells *cells = (oc_cells *)(uintptr_t)1;
  oc_err err = {0};
  assert_int_equal(oc_cells_parse(text, strlen(text), &cells, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_CELLS);
  assert_null(cells);
  if (!strstr(err.detail, part)) fail_msg("'%s' does not hold '%s'", err.detail, part);
}

/* A good cell, written key by key so that each can be changed. */
static const struct {
  const char *key, *value;
} good[] = {
    {"id", "\"x\""},
    {"tier", "\"fast\""},
    {"device", "\"cpu-avx2\""},
    {"dtype", "\"bf16\""},
    {"form", "\"*\""},
    {"row", "\"cpu\""},
    {"fallback", "\"stock\""},
    {"us", "1"},
    {"peer_us", "2"},
    {"err", "0"},
    {"stock_err", "0"},
    {"evidence", "{\"date\":\"2026-12-01\",\"machine\":\"m\",\"stack\":\"s\",\"command\":\"c\",\"result\":\"r\"}"}};
enum { GOOD_KEYS = sizeof good / sizeof *good };

/* The good cell with `key` set to value (NULL: left out), inside a table of ln. */
static const char *changed(const char *key, const char *value) {
  static char text[4096];
  int length = snprintf(text, sizeof text, "{\"schema\":1,\"family\":\"ln\",\"cells\":[{\"n\":[1,9]");
  for (int i = 0; i < GOOD_KEYS; i++) {
    const char *v = strcmp(good[i].key, key) == 0 ? value : good[i].value;
    if (v) length += snprintf(text + length, sizeof text - (size_t)length, ",\"%s\":%s", good[i].key, v);
    if (strcmp(good[i].key, key) == 0) key = "";
  }
  if (*key) length += snprintf(text + length, sizeof text - (size_t)length, ",\"%s\":%s", key, value);
  snprintf(text + length, sizeof text - (size_t)length, "}]}");
  return text;
}

static void test_each_key_is_required(void **state) {
  (void)state;
  int cases = 0;
  oc_cells_free(parse(changed("id", "\"x\"")));
  for (int i = 0; i < GOOD_KEYS; i++, cases++) {
    check_refused(changed(good[i].key, NULL), good[i].key);
    check_refused(changed(good[i].key, "null"), good[i].key);
  }
  assert_int_equal(cases, 12);
}

#define EVIDENCE(date, machine, stack, command, result)                                                                \
  "{\"date\":" date ",\"machine\":" machine ",\"stack\":" stack ",\"command\":" command ",\"result\":" result "}"

static void test_bad_values(void **state) {
  (void)state;
  static const struct {
    const char *key, *value, *part;
  } rows[] = {
      {"id", "\"\"", "id is no text"},
      {"tier", "\"off\"", "unknown tier off"},
      {"device", "\"cpu\"", "unknown device cpu"},
      {"device", "\"cpu-neon\"", "unknown device cpu-neon"},
      {"device", "\"gpu\"", "unknown device gpu"},
      {"dtype", "\"fp32\"", "unknown dtype fp32"},
      {"dtype", "\"none\"", "unknown dtype none"},
      {"form", "3", "form"},
      {"form", "[]", "form is missing or has 0 entries"},
      {"form", "\"a++b\"", "form a++b"},
      {"form", "\"a b\"", "form a b"},
      {"form", "\"+\"", "form +"},
      {"form", "\"A\"", "form A"},
      {"form", "\"a+a\"", "form a+a"},
      {"form", "[\"a\",\"*\"]", "form *"},
      {"form", "[\"a\",3]", "form (no text)"},
      {"form", "\"aaaaaaaaaaaaaaaaaaaaaaaa+bbbbbbbbbbbbbbbbbbbbbbb\"", "form aaaa"},
      {"b", "[1]", "b is no [low, high)"},
      {"c", "[1,2,3]", "c is no [low, high)"},
      {"c", "4", "c is no [low, high)"},
      {"c", "[1.0,2]", "c is no [low, high)"},
      {"c", "[5,5]", "[5, 5) is empty"},
      {"c", "[6,5]", "[6, 5) is empty"},
      {"c", "[-1,5]", "[-1, 5) is empty or negative"},
      {"h", "{}", "h is no [low, high)"},
      {"row", "\"cpux\"", "row cpux has no member"},
      {"row", "\"stock\"", "row stock has no member"},
      {"fallback", "\"cpu\"", "fallback cpu is not stock"},
      {"fallback", "\"none\"", "fallback none is not stock"},
      {"fallback", "\"exact\"", "fallback exact is not stock"},
      {"us", "0", "us is 0"},
      {"us", "-1", "us is -1"},
      {"us", "\"1\"", "us is no number"},
      {"peer_us", "0", "peer_us is 0"},
      {"err", "-1e-9", "err is -1e-09"},
      {"stock_err", "true", "stock_err is no number"},
      {"evidence", "{}", "date is no text"},
      {"evidence", "[]", "no evidence"},
      {"evidence", EVIDENCE("\"\"", "\"m\"", "\"s\"", "\"c\"", "\"r\""), "date is no text"},
      {"evidence", EVIDENCE("\"1.12.2026\"", "\"m\"", "\"s\"", "\"c\"", "\"r\""), "date 1.12.2026"},
      {"evidence", EVIDENCE("\"2026-12-011\"", "\"m\"", "\"s\"", "\"c\"", "\"r\""), "date 2026-12-011"},
      {"evidence", EVIDENCE("\"2026-12-01\"", "\"\"", "\"s\"", "\"c\"", "\"r\""), "machine is no text"},
      {"evidence", EVIDENCE("\"2026-12-01\"", "\"m\"", "1", "\"c\"", "\"r\""), "stack is no text"},
      {"evidence", EVIDENCE("\"2026-12-01\"", "\"m\"", "\"s\"", "null", "\"r\""), "command is no text"},
      {"evidence", EVIDENCE("\"2026-12-01\"", "\"m\"", "\"s\"", "\"c\"", "\"\""), "result is no text"},
      {"evidence", EVIDENCE("\"2026-12-01\"", "\"m\"", "\"s\"", "\"c\"", "\"r\",\"card\":\"x\""), "unknown key card"},
      {"stacks", "[\"a\"]", "stacks belong to the exact tier"},
      {"w", "[1,2]", "unknown key w"},
      {"N", "[1,2]", "unknown key N"},
      {"comment", "\"\"", "unknown key comment"}};
  int cases = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, cases++)
    check_refused(changed(rows[i].key, rows[i].value), rows[i].part);
  assert_int_equal(cases, 50);
}

static void test_bad_tables(void **state) {
  (void)state;
  static const struct {
    const char *text, *part;
  } rows[] = {{"", "line "},
              {"{", "line 1"},
              {"[]", "table: "},
              {"{}", "Object item not found: schema"},
              {"{\"schema\":1,\"family\":\"ln\",\"cells\":[],\"x\":1}", "1 object item(s) left unpacked: x"},
              {"{\"schema\":2,\"family\":\"ln\",\"cells\":[]}", "schema is 2"},
              {"{\"schema\":1,\"family\":\"lm\",\"cells\":[]}", "unknown family lm"},
              {"{\"schema\":1,\"family\":\"ln\",\"cells\":{}}", "cells is no list"},
              {"{\"schema\":1,\"family\":\"ln\",\"family\":\"ln\",\"cells\":[]}", "duplicate"},
              {TABLE("ln", "7"), "cell 0 (?): no object"},
              {TABLE("ln", CELL("a", "\"form\":\"*\",\"form\":\"*\"")), "duplicate"},
              {TABLE("ln", EXACT_CELL("a", "\"form\":\"*\"", "[]")), "no proven stack"},
              {TABLE("ln", EXACT_CELL("a", "\"form\":\"*\"", "\"torch\"")), "no proven stack"},
              {TABLE("ln", EXACT_CELL("a", "\"form\":\"*\"", "[\"\"]")), "stacks[0] is no text"},
              {TABLE("ln", EXACT_CELL("a", "\"form\":\"*\"", "[\"t\",1]")), "stacks[1] is no text"}};
  int cases = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, cases++) check_refused(rows[i].text, rows[i].part);
  assert_int_equal(cases, 15);
}

static void test_overlaps(void **state) {
  (void)state;
  check_refused(TABLE("ln", CELL("a", "\"form\":\"*\",\"n\":[1,10]") "," CELL("a", "\"form\":\"*\",\"n\":[10,20]")),
                "cell 0 has this id too");
  check_refused(TABLE("ln", CELL("a", "\"form\":\"*\",\"n\":[1,10]") "," CELL("b", "\"form\":\"*\",\"n\":[9,20]")),
                "cell 1 (b): overlaps cell 0 (a)");
  check_refused(TABLE("ln", CELL("a", "\"form\":\"*\"") "," CELL("b", "\"form\":\"p+q\",\"c\":[1,2]")), "overlaps");
  check_refused(TABLE("ln", CELL("a", "\"form\":[\"x\",\"p+q\"]") "," CELL("b", "\"form\":[\"y\",\"q+p\"]")),
                "overlaps");
  check_refused(TABLE("ln", CELL("a", "\"form\":\"\"") "," CELL("b", "\"form\":[\"\",\"z\"]")), "overlaps");
  check_refused(TABLE("ln", CELL("a", "\"form\":\"*\",\"n\":[1,9]") "," CELL("b", "\"form\":\"*\",\"c\":[1,9]")),
                "overlaps");
  static const char *const apart[] = {
      TABLE("ln", CELL("a", "\"form\":\"*\",\"n\":[1,10]") "," CELL("b", "\"form\":\"*\",\"n\":[10,20]")),
      TABLE("ln", CELL("a", "\"form\":\"*\",\"n\":[10,20]") "," CELL("b", "\"form\":\"*\",\"n\":[1,10]")),
      TABLE("ln", CELL("a", "\"form\":\"p\"") "," CELL("b", "\"form\":\"p+q\"")),
      TABLE("ln", CELL("a", "\"form\":[\"p\",\"q\"]") "," CELL("b", "\"form\":[\"p+q\",\"\"]")),
      TABLE("ln", CELL("a", "\"form\":\"*\"") "," EXACT_CELL("b", "\"form\":\"*\"", "[\"s\"]")),
      TABLE("ln", CELL("a", "\"form\":\"*\"") "," CELL_ON("b", "cpu-avx2", "\"form\":\"*\"")),
      TABLE("ln", CELL("a", "\"form\":\"*\",\"n\":[1,9],\"c\":[1,9]") "," CELL(
                      "b", "\"form\":\"*\",\"n\":[1,9],\"c\":[9,10]"))};
  int cases = 0;
  for (size_t i = 0; i < sizeof apart / sizeof *apart; i++, cases++) {
    oc_cells *cells = parse(apart[i]);
    assert_int_equal(oc_cells_count(cells), 2);
    oc_cells_free(cells);
  }
  assert_int_equal(cases, 7);
}

static void test_form_sort(void **state) {
  (void)state;
  char out[OC__FORM_BYTES];
  assert_true(oc__form_sort("outgoing+mask+biased", out));
  assert_string_equal(out, "biased+mask+outgoing");
  assert_true(oc__form_sort("ab+a+abc", out)); /* a prefix goes first */
  assert_string_equal(out, "a+ab+abc");
  assert_true(oc__form_sort("", out));
  assert_string_equal(out, "");
  assert_true(oc__form_sort("q+p+o+n+m+l+k+j+i+h+g+f+e+d+c+b", out));
  assert_string_equal(out, "b+c+d+e+f+g+h+i+j+k+l+m+n+o+p+q");
  assert_false(oc__form_sort("a+b+c+d+e+f+g+h+i+j+k+l+m+n+o+p+q", out));
  assert_false(oc__form_sort("a|b", out));
  assert_false(oc__form_sort("a+", out));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_cell),     cmocka_unit_test(test_each_key_is_required),
                                     cmocka_unit_test(test_bad_values), cmocka_unit_test(test_bad_tables),
                                     cmocka_unit_test(test_overlaps),   cmocka_unit_test(test_form_sort)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
