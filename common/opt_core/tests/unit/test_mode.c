/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opt_core/activation.h"
#include "util/words.h"

static void test_accepted(void **state) {
  (void)state;
  static const struct {
    const char *text;
    oc_mode mode;
  } table[] = {{NULL, OC_MODE_OFF},      {"", OC_MODE_OFF},        {"0", OC_MODE_OFF},
               {"off", OC_MODE_OFF},     {"  \t\n", OC_MODE_OFF},  {" 0 ", OC_MODE_OFF},
               {"exact", OC_MODE_EXACT}, {"fast", OC_MODE_FAST},   {"big", OC_MODE_BIG},
               {" big ", OC_MODE_BIG},   {"fast\n", OC_MODE_FAST}, {"\texact\r\n", OC_MODE_EXACT}};
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    oc_mode mode = OC_MODE_COUNT;
    oc_err err = {0};
    assert_int_equal(oc_mode_parse(table[i].text, &mode, &err), OC_OK);
    assert_int_equal(mode, table[i].mode);
    assert_int_equal(err.status, OC_OK);
  }
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *said;
  } table[] = {{"BIG", "mode:unknown:BIG (accepted: off exact fast big; nearest: big)"},
               {"fats", "mode:unknown:fats (accepted: off exact fast big; nearest: fast)"},
               {"exakt", "mode:unknown:exakt (accepted: off exact fast big; nearest: exact)"},
               {"1", "mode:unknown:1 (accepted: off exact fast big)"},
               {"true", "mode:unknown:true (accepted: off exact fast big)"},
               {"big,unknown", "mode:unknown:big,unknown (accepted: off exact fast big)"},
               {"big fast", "mode:unknown:big\\x20fast (accepted: off exact fast big)"},
               {"\xC3\xA9\n\x01x", "mode:unknown:\\xC3\\xA9\\x0A\\x01x (accepted: off exact fast big)"},
               {"00", "mode:unknown:00 (accepted: off exact fast big)"},
               {"ofF.", "mode:unknown:ofF. (accepted: off exact fast big; nearest: off)"}};
  int cases = 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++, cases++) {
    oc_mode mode = OC_MODE_COUNT;
    oc_err err = {0};
    char text[256];
    assert_int_equal(oc_mode_parse(table[i].text, &mode, &err), OC_REFUSED);
    assert_int_equal(mode, OC_MODE_COUNT); /* not written */
    assert_int_equal(err.reason, OC_REASON_MODE);
    oc_err_text(&err, text, sizeof text);
    assert_string_equal(text, table[i].said);
  }
  assert_int_equal(cases, 10);
  assert_int_equal(oc_mode_parse("fast", NULL, NULL), OC_BAD_ARG);
}

static void test_a_long_word_is_cut(void **state) {
  (void)state;
  enum { BYTES = 100000 };
  char *text = malloc(BYTES + 1);
  memset(text, 'x', BYTES);
  text[BYTES] = '\0';
  oc_err err = {0};
  oc_mode mode;
  assert_int_equal(oc_mode_parse(text, &mode, &err), OC_REFUSED);
  assert_string_equal(err.detail, "unknown:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (accepted: off exact fast big)");
  memset(text, ' ', BYTES);
  memcpy(text + BYTES / 2, "fast", 4);
  assert_int_equal(oc_mode_parse(text, &mode, NULL), OC_OK);
  assert_int_equal(mode, OC_MODE_FAST);
  free(text);
}

static void test_words(void **state) {
  (void)state;
  assert_string_equal(oc_mode_word(OC_MODE_OFF), "off");
  assert_string_equal(oc_mode_word(OC_MODE_BIG), "big");
  assert_string_equal(oc_mode_word(OC_MODE_COUNT), "unknown");
  assert_string_equal(oc_mode_word((oc_mode)-1), "unknown");
}

static void test_edit_distance(void **state) {
  (void)state;
  static const struct {
    const char *a, *b;
    int distance;
  } table[] = {
      {"", "", 0},         {"", "abc", 3},      {"abc", "", 3}, {"kitten", "sitting", 3}, {"Saturday", "Sunday", 3},
      {"FAST", "fast", 0}, {"flaw", "lawn", 2}, {"ab", "ba", 2}};
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    assert_int_equal(oc__edit_distance(table[i].a, strlen(table[i].a), table[i].b), table[i].distance);
    assert_int_equal(oc__edit_distance(table[i].b, strlen(table[i].b), table[i].a), table[i].distance);
  }
  oc__nearest nearest = {{NULL, NULL}, {0, 0}};
  oc__nearest_offer(&nearest, "trim", 4, "ln");
  assert_null(nearest.word[1]);
  oc__nearest_offer(&nearest, "trim", 4, "triattn");
  oc__nearest_offer(&nearest, "trim", 4, "trimul");
  assert_string_equal(nearest.word[0], "trimul");
  assert_string_equal(nearest.word[1], "ln");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_accepted), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_a_long_word_is_cut), cmocka_unit_test(test_words),
                                     cmocka_unit_test(test_edit_distance)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
