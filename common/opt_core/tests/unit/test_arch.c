/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "opt_core/activation.h"

static void test_table(void **state) {
  (void)state;
  static const struct {
    int have;
    const char *need;
    int runs;
  } rows[] = {{90, "sm_90a", 1},  {90, "sm_90", 1},    {90, "sm_80", 0},   {86, "sm_80", 1},
              {89, "sm_86", 1},   {80, "sm_86", 0},    {100, "sm_90a", 0}, {100, "sm_100", 1},
              {103, "sm_100", 1}, {103, "sm_100a", 0}, {120, "sm_100", 0}, {75, "sm_75", 1},
              {121, "sm_120", 1}, {0, "sm_80", 0},     {80, "sm_90a", 0},  {89, "sm_80a", 0}};
  int cases = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, cases++) {
    char want[64];
    oc_err err = {0};
    oc_status status = oc_gate_arch(rows[i].have, rows[i].need, &err);
    assert_int_equal(status, rows[i].runs ? OC_OK : OC_REFUSED);
    if (rows[i].runs) continue;
    snprintf(want, sizeof want, "sm_%d!=%s", rows[i].have, rows[i].need);
    assert_int_equal(err.reason, OC_REASON_ARCH);
    assert_string_equal(err.detail, want);
  }
  assert_int_equal(cases, 16);
}

static void test_malformed(void **state) {
  (void)state;
  static const char *const texts[] = {"",        "90",    "sm_",  "sm_a",   "sm_90b", "sm_90aa",
                                      "sm_1000", "SM_90", "sm_0", "sm_90 ", NULL};
  for (int i = 0; texts[i]; i++) assert_int_equal(oc_gate_arch(90, texts[i], NULL), OC_BAD_ARG);
  assert_int_equal(oc_gate_arch(90, NULL, NULL), OC_BAD_ARG);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_malformed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
