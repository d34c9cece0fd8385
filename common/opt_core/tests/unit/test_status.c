/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opt_core/status.h"
#include "opt_core/version.h"
#include "util/text.h"

static void test_words_are_unique_and_found(void **state) {
  (void)state;
  int found = 0;
  for (int i = OC_REASON_NONE + 1; i < OC_REASON_COUNT; i++) {
    const char *word = oc_reason_word((oc_reason)i);
    assert_int_equal(oc_reason_find(word, strlen(word)), i); /* a twin earlier in the list would be found instead */
    assert_true(strlen(oc_reason_help((oc_reason)i)) > 5);
    assert_int_equal(strspn(word, "abcdefghijklmnopqrstuvwxyz_"), strlen(word));
    found++;
  }
  assert_int_equal(found, OC_REASON_COUNT - 1);
  for (int i = 0; i < OC_STATUS_COUNT; i++)
    for (int j = 0; j < i; j++) assert_string_not_equal(oc_status_word((oc_status)i), oc_status_word((oc_status)j));
}

static void test_words_outside_the_list(void **state) {
  (void)state;
  assert_string_equal(oc_reason_word(OC_REASON_NONE), "none");
  assert_string_equal(oc_reason_word((oc_reason)OC_REASON_COUNT), "unknown");
  assert_string_equal(oc_reason_word((oc_reason)-1), "unknown");
  assert_string_equal(oc_status_word((oc_status)OC_STATUS_COUNT), "unknown");
  assert_string_equal(oc_status_help((oc_status)-7), "unknown");
  assert_int_equal(oc_reason_find("arch", 3), OC_REASON_NONE);
  assert_int_equal(oc_reason_find("archx", 5), OC_REASON_NONE);
  assert_int_equal(oc_reason_find("archx", 4), OC_REASON_ARCH);
  assert_int_equal(oc_reason_find("none", 4), OC_REASON_NONE);
  assert_int_equal(oc_reason_find(NULL, 0), OC_REASON_NONE);
}

static void test_first_failure_wins(void **state) {
  (void)state;
  oc_err err = {0};
  assert_int_equal(OC_REFUSE(&err, SHAPE, "n=%d", 7), OC_REFUSED);
  assert_int_equal(OC_FAIL(&err, IO, 5, "later"), OC_IO);
  assert_int_equal(err.status, OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_SHAPE);
  assert_string_equal(err.detail, "n=7");
  assert_int_equal(err.native, 0);
  assert_true(err.line > 0);
  assert_non_null(strstr(err.file, "test_status.c"));
  assert_int_equal(OC_FAIL(NULL, NO_MEM, 0, "nobody listens"), OC_NO_MEM);
  oc_err io = {0};
  OC_FAIL(&io, IO, 13, "path");
  assert_int_equal(io.native, 13);
  assert_int_equal(io.reason, OC_REASON_NONE);
}

static void test_text_of_an_error(void **state) {
  (void)state;
  oc_err err = {0};
  char out[64], tiny[6];
  OC_REFUSE(&err, ARCH, "80!=sm_90a");
  assert_int_equal(oc_err_text(&err, out, sizeof out), 15);
  assert_string_equal(out, "arch:80!=sm_90a");
  assert_int_equal(oc_err_text(&err, tiny, sizeof tiny), 15); /* the uncut length */
  assert_string_equal(tiny, "arch:");
  assert_int_equal(oc_err_text(&err, NULL, 0), 15);
  oc_err bare = {0};
  OC_REFUSE(&bare, GRAD, "%s", "");
  oc_err_text(&bare, out, sizeof out);
  assert_string_equal(out, "grad");
  oc_err io = {0};
  OC_FAIL(&io, IO, 2, "x");
  oc_err_text(&io, out, sizeof out);
  assert_string_equal(out, "io:x");
}

static void test_detail_is_cut_between_characters(void **state) {
  (void)state;
  int cases = 0;
  for (int lead = 0; lead < 4; lead++) { /* three-byte characters at every phase of the cut */
    char text[OC_DETAIL_MAX * 2];
    int at = lead;
    memset(text, 'a', (size_t)lead);
    for (; at + 3 < (int)sizeof text - 4; at += 3) memcpy(text + at, "\xE2\x82\xAC", 3);
    text[at] = '\0';
    oc_err err = {0};
    OC_REFUSE(&err, SHAPE, "%s", text);
    size_t bytes = strlen(err.detail);
    assert_true(bytes >= OC_DETAIL_MAX - 4 && bytes < OC_DETAIL_MAX);
    assert_int_equal((bytes - (size_t)lead) % 3, 0);
    assert_memory_equal(err.detail, text, bytes);
    cases++;
  }
  assert_int_equal(cases, 4);
  oc_err err = {0};
  char text[OC_DETAIL_MAX + 50];
  memset(text, 'b', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  OC_REFUSE(&err, SHAPE, "%s", text);
  assert_int_equal(strlen(err.detail), OC_DETAIL_MAX - 1);
}

static int sign(int value) { return (value > 0) - (value < 0); }

static void test_versions(void **state) {
  (void)state;
  static const struct {
    const char *a, *b;
    int order;
  } table[] = {{"0.10.2", "0.9", 1},
               {"1.0", "1", 0},
               {"1.0.0.0", "1", 0},
               {"1.0.1", "1", 1},
               {"2.11.0+cu130", "2.11", 0},
               {"2.11.0rc1", "2.11.0", 0},
               {"1.2.post1", "1.2", 0},
               {"", "0", 0},
               {"abc", "0.0", 0},
               {"abc", "0.0.1", -1},
               {"007", "7", 0},
               {"99999999999999999999999", "99999999999999999999998", 1},
               {"1.10", "1.9", 1},
               {"3", "10", -1},
               {"1..2", "1", 0},
               {".5", "0", 0},
               {"2.36", "2.4", 1},
               {"3.4.32", "3.4.30", 1},
               {"0.0", "", 0},
               {"1.a", "1.0", 0}};
  int cases = 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++, cases++) {
    assert_int_equal(sign(oc_version_compare(table[i].a, table[i].b)), table[i].order);
    assert_int_equal(sign(oc_version_compare(table[i].b, table[i].a)), -table[i].order);
    assert_int_equal(oc_version_compare(table[i].a, table[i].a), 0);
  }
  assert_int_equal(cases, 20);
  assert_int_equal(oc_version_compare(NULL, "0"), 0);
  char expect[32];
  snprintf(expect, sizeof expect, "%d.%d.%d", OC_VERSION_MAJOR, OC_VERSION_MINOR, OC_VERSION_PATCH);
  assert_string_equal(oc_version(), expect);
  assert_int_equal(oc_abi_version(), 1);
}

static void test_build_parts_end(void **state) {
  (void)state;
  int count = 0;
  while (oc_build_part(count)[0]) count++;
  assert_in_range(count, 2, 16);
  assert_string_equal(oc_build_part(0), "json");
  assert_string_equal(oc_build_part(count + 5), "");
  assert_string_equal(oc_build_part(-1), "");
}

static void test_text_buffer(void **state) {
  (void)state;
  oc__text text = {0};
  for (int i = 0; i < 1000; i++) oc__text_format(&text, "%d,", i);
  assert_int_equal(text.bytes, 10 * 2 + 90 * 3 + 900 * 4);
  assert_memory_equal(text.data + text.bytes - 4, "999,", 5);
  char *taken = oc__text_take(&text);
  assert_memory_equal(taken, "0,1,2,", 6);
  free(taken);
  assert_null(text.data);
  char *empty = oc__text_take(&text);
  assert_string_equal(empty, "");
  free(empty);
  oc__text_add_bytes(&text, "x", SIZE_MAX / 2); /* no such room: sticks, reads nothing */
  oc__text_add(&text, "later");
  assert_int_equal(text.failed, 1);
  assert_null(oc__text_take(&text));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_words_are_unique_and_found),
                                     cmocka_unit_test(test_words_outside_the_list),
                                     cmocka_unit_test(test_first_failure_wins),
                                     cmocka_unit_test(test_text_of_an_error),
                                     cmocka_unit_test(test_detail_is_cut_between_characters),
                                     cmocka_unit_test(test_versions),
                                     cmocka_unit_test(test_build_parts_end),
                                     cmocka_unit_test(test_text_buffer)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
