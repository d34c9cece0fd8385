/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "record_fixture.h"

static void settle(oc_run *run, oc_slot_kind kind, const char *name, const char *detail, int count) {
  int slot;
  assert_int_equal(oc_run_slot(run, ATTN, kind, "triattn", name, detail, &slot, NULL), OC_OK);
  for (int i = 0; i < count; i++) {
    oc_run_call(run, ATTN);
    if (kind != OC_SLOT_STOCK) oc_run_claim(run, ATTN);
    oc_run_settle(run, slot);
  }
}

static oc_run *open_census(const char *census) {
  oc_run_options options = fixture_options(OC_MODE_FAST);
  options.census = census;
  oc_run *run = fixture_open(options);
  oc_run_lever_active(run, ATTN, "", NULL);
  fixture_bytes = 0;
  fixture_lines[0] = '\0';
  return run;
}

static void test_tokens(void **state) {
  (void)state;
  oc_run *run = open_census(NULL);
  settle(run, OC_SLOT_HIT, "row_b", "cell1", 2);
  settle(run, OC_SLOT_HIT, "row_a", "cell1", 1);
  settle(run, OC_SLOT_HIT, "row_b", "cell2", 40); /* another cell of the same row: one token */
  settle(run, OC_SLOT_FALLBACK, "row_b", "dtype:f64", 3);
  settle(run, OC_SLOT_STOCK, "row_c", "proof", 5); /* stock by another word than uncovered_cell is a named fallback */
  settle(run, OC_SLOT_STOCK, "class1", "uncovered_cell", 6);
  settle(run, OC_SLOT_STOCK, "never", "uncovered_cell", 0);
  oc_run_close(run, 0, NULL, NULL);
  assert_true(said("CELLS UNCOVERED_CELL:triattn:class1=6 NAMED_FALLBACK:triattn:row_b:dtype:f64=3 "
                   "NAMED_FALLBACK:triattn:row_c:proof=5 CELL_HIT:triattn:row_a=1 CELL_HIT:triattn:row_b=42\n"));
  char *text = NULL;
  assert_int_equal(oc_manifest_census(oc_run_manifest_path(run), &text, NULL), OC_OK);
  assert_non_null(strstr(fixture_lines, text)); /* the same from the file */
  oc_text_free(text);
  oc_run_free(run);
}

static void test_when_it_is_printed(void **state) {
  (void)state;
  static const struct {
    const char *census;
    int uncovered, printed;
  } table[] = {{NULL, 0, 1}, {"", 0, 1},  {"1", 0, 1},         {"1", 1, 1},
               {"0", 0, 0},  {"0", 1, 0}, {"uncovered", 0, 0}, {"uncovered", 1, 1}};
  int cases = 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++, cases++) {
    oc_run *run = open_census(table[i].census);
    settle(run, OC_SLOT_HIT, "row", "cell", 1);
    settle(run, OC_SLOT_STOCK, "class", "uncovered_cell", table[i].uncovered);
    oc_run_close(run, 0, NULL, NULL);
    assert_int_equal(said("CELLS "), table[i].printed);
    assert_true(said("EXIT "));
    oc_run_free(run);
  }
  assert_int_equal(cases, 8);
}

/* What does not fit the line is counted there and whole in the manifest. */
static void test_too_many_tokens(void **state) {
  (void)state;
  enum { CLASSES = 300 };
  oc_run *run = open_census("1");
  char name[64];
  for (int i = 0; i < CLASSES; i++) {
    snprintf(name, sizeof name, "triattn.fast.cpu-avx2.f32.form.n<=%d.c=128", i);
    settle(run, OC_SLOT_STOCK, name, "uncovered_cell", i + 1);
  }
  settle(run, OC_SLOT_HIT, "row", "cell", 1);
  oc_run_close(run, 0, NULL, NULL);
  const char *at = strstr(fixture_lines, "[opt_core] CELLS");
  size_t bytes = strcspn(at, "\n") + 1;
  oc_line line;
  assert_true(bytes <= OC_LINE_MAX && bytes > OC_LINE_MAX - 100);
  assert_int_equal(oc_line_parse(at, bytes, &line, NULL), OC_OK);
  const oc_line_field *last = &line.field[line.field_count - 1];
  assert_string_equal(last->key, "MORE");
  assert_int_equal(atoi(last->value), CLASSES + 1 - (line.field_count - 1));
  assert_null(strstr(at + bytes, "CELLS")); /* one line */
  char *text = NULL;
  assert_int_equal(oc_manifest_census(oc_run_manifest_path(run), &text, NULL), OC_OK);
  int64_t sum = 0, tokens = 0;
  for (const char *next = text; *next; next = strchr(next, '\n') + 1) {
    assert_int_equal(oc_line_parse(next, strcspn(next, "\n") + 1, &line, NULL), OC_OK);
    assert_int_equal(line.kind, OC_LINE_CELLS);
    for (int i = 0; i < line.field_count; i++, tokens++) sum += atoi(line.field[i].value);
  }
  assert_int_equal(tokens, CLASSES + 1);
  assert_int_equal(sum, CLASSES * (CLASSES + 1) / 2 + 1);
  oc_text_free(text);
  oc_run_free(run);
}

static oc_status census_of(const char *json, char **text, oc_err *err) {
  char path[PATH_MAX + 300];
  snprintf(path, sizeof path, "%s/m.json", fixture_dir);
  FILE *file = fopen(path, "w");
  fputs(json, file);
  fclose(file);
  return oc_manifest_census(path, text, err);
}

#define CALL(count) "{\"kind\":\"hit\",\"family\":\"f\",\"name\":\"n\",\"detail\":\"d\",\"count\":" count "}"
#define FILE_WITH(calls) "{\"schema\":1,\"state\":\"finished\",\"calls\":[" calls "]}"

static void test_malformed_manifests(void **state) {
  (void)state;
  static const char *const bad[] = {
      "",
      "{",
      "[]",
      "3",
      "{}",
      "{\"schema\":1}",
      "{\"schema\":\"1\",\"state\":\"finished\",\"calls\":[]}",
      "{\"schema\":2,\"state\":\"finished\",\"calls\":[]}",
      "{\"schema\":1,\"state\":\"done\",\"calls\":[]}",
      "{\"schema\":1,\"state\":\"finished\"}",
      "{\"schema\":1,\"state\":\"finished\",\"calls\":{}}",
      "{\"schema\":1,\"schema\":1,\"state\":\"finished\",\"calls\":[]}",
      FILE_WITH("3"),
      FILE_WITH("{}"),
      FILE_WITH(CALL("-1")),
      FILE_WITH(CALL("1.5")),
      FILE_WITH(CALL("\"1\"")),
      FILE_WITH(CALL("99999999999999999999")),
      FILE_WITH(CALL("1") ",null"),
      FILE_WITH("{\"kind\":\"miss\",\"family\":\"f\",\"name\":\"n\",\"detail\":\"d\",\"count\":1}"),
      FILE_WITH("") "x"};
  int cases = 0;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++, cases++) {
    oc_err err = {0};
    char *text = NULL;
    if (census_of(bad[i], &text, &err) != OC_BAD_ARG) fail_msg("accepted: %s", bad[i]);
    assert_null(text);
    assert_non_null(strstr(err.detail, "m.json"));
  }
  assert_int_equal(cases, 21);
  char *text = NULL;
  assert_int_equal(oc_manifest_census("/no/such", &text, NULL), OC_IO);
  assert_int_equal(oc_manifest_census(NULL, &text, NULL), OC_BAD_ARG);
}

static void test_odd_but_good_manifests(void **state) {
  (void)state;
  char *text = NULL;
  assert_int_equal(census_of(FILE_WITH(""), &text, NULL), OC_OK);
  assert_string_equal(text, "[opt_core] CELLS\n");
  oc_text_free(text);
  assert_int_equal(census_of(FILE_WITH(CALL("9223372036854775807") "," CALL("5")), &text, NULL),
                   OC_OK); /* no overflow */
  assert_string_equal(text, "[opt_core] CELLS CELL_HIT:f:n=9223372036854775807\n");
  oc_text_free(text);
  char *json = malloc(3 * OC_LINE_MAX), *to = json; /* a token that fits no line is counted */
  to += sprintf(to, "{\"schema\":1,\"state\":\"running\",\"calls\":[{\"kind\":\"hit\",\"family\":\"f\",\"name\":\"");
  memset(to, 'n', 2 * OC_LINE_MAX);
  to += 2 * OC_LINE_MAX;
  sprintf(to, "\",\"detail\":\"d\",\"count\":1}," CALL("2") "]}");
  assert_int_equal(census_of(json, &text, NULL), OC_OK);
  assert_string_equal(text, "[opt_core] CELLS CELL_HIT:f:n=2\n[opt_core] CELLS MORE=1\n");
  oc_text_free(text);
  free(json);
}

int main(void) {
  const struct CMUnitTest tests[] = {FIXTURE_TEST(test_tokens), FIXTURE_TEST(test_when_it_is_printed),
                                     FIXTURE_TEST(test_too_many_tokens), FIXTURE_TEST(test_malformed_manifests),
                                     FIXTURE_TEST(test_odd_but_good_manifests)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
