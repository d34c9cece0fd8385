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

static const char table[] =
    "{\"schema\":1,\"engine\":\"e\",\"variable\":\"E_OPT\",\"version\":\"1\",\"triggers\":[\"m\"],\"levers\":["
    "{\"name\":\"triattn\",\"family\":\"triattn\",\"modes\":{\"fast\":\"require\"}},"
    "{\"name\":\"trimul\",\"family\":\"trimul\",\"modes\":{\"fast\":\"require\"}},"
    "{\"name\":\"mem\",\"modes\":{\"big\":\"record\"}}]}";

static oc_kit *kit;
static int open_kit(void **state) {
  (void)state;
  return oc_kit_parse(table, sizeof table - 1, &kit, NULL) == OC_OK ? 0 : -1;
}
static int close_kit(void **state) {
  (void)state;
  oc_kit_free(kit);
  return 0;
}

/* A row that the family's members really carry. */
static const char *row_of(oc_family family) {
  int count = 0;
  const oc_member *members = oc_family_members(family, &count);
  assert_true(members && count > 0);
  return members[0].row;
}

static void test_accepted(void **state) {
  (void)state;
  static const char *const good[] = {NULL, "", " ", "triattn", "triattn,trimul", " triattn , mem\n", "mem,mem"};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    oc_err err = {0};
    if (oc_levers_off_check(kit, good[i], &err) != OC_OK) fail_msg("%s: %s", good[i], err.detail);
  }
  char text[128];
  snprintf(text, sizeof text, "mem,triattn:%s", row_of(OC_FAMILY_TRIATTN));
  assert_int_equal(oc_levers_off_check(kit, text, NULL), OC_OK);
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *begin;
  } bad[] = {{"triatn", "unknown:triatn (nearest: triattn trimul)"},
             {"TRIMUL", "unknown:TRIMUL (nearest: trimul triattn)"},
             {"trimul,men", "unknown:men (nearest: mem "},
             {"mem:cpu", "unknown:mem:cpu (no row can be switched off there)"},
             {"triattn:no_such_row_at_all", "unknown:triattn:no_such_row_at_all (nearest: "},
             {"triattn:", "unknown:triattn: (nearest: "},
             {":cpu", "unknown::cpu (nearest: "},
             {",", "unknown: (nearest: "},
             {"mem,", "unknown: (nearest: "},
             {"mem;trimul", "unknown:mem;trimul (nearest: "},
             {"\xC3\xA9", "unknown:\\xC3\\xA9 (nearest: "}};
  int cases = 0;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++, cases++) {
    oc_err err = {0};
    assert_int_equal(oc_levers_off_check(kit, bad[i].text, &err), OC_REFUSED);
    assert_int_equal(err.reason, OC_REASON_LEVER);
    if (strncmp(err.detail, bad[i].begin, strlen(bad[i].begin)) != 0) fail_msg("%s", err.detail);
  }
  assert_int_equal(cases, 11);
  assert_int_equal(oc_levers_off_check(NULL, "mem", NULL), OC_BAD_ARG);
}

static void test_has(void **state) {
  (void)state;
  const char *text = " triattn:cpu , mem";
  assert_int_equal(oc_levers_off_has(text, "mem", NULL), 1);
  assert_int_equal(oc_levers_off_has(text, "mem", "any"), 1); /* a lever that is off is off with every row */
  assert_int_equal(oc_levers_off_has(text, "triattn", NULL), 0);
  assert_int_equal(oc_levers_off_has(text, "triattn", "cpu"), 1);
  assert_int_equal(oc_levers_off_has(text, "triattn", "cp"), 0);
  assert_int_equal(oc_levers_off_has(text, "triattn", "cpu2"), 0);
  assert_int_equal(oc_levers_off_has(text, "tri", NULL), 0);
  assert_int_equal(oc_levers_off_has(text, "me", NULL), 0);
  assert_int_equal(oc_levers_off_has(NULL, "mem", NULL), 0);
  assert_int_equal(oc_levers_off_has("", "mem", NULL), 0);
  assert_int_equal(oc_levers_off_has(text, NULL, NULL), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_accepted), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_has)};
  return cmocka_run_group_tests(tests, open_kit, close_kit);
}
