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

static void test_inside_and_outside(void **state) {
  (void)state;
  static const struct {
    const char *have, *need;
    int inside;
  } table[] = {{"2.11.0", ">=2.11,<2.12", 1},
               {"2.11.0+cu130", ">=2.11,<2.12", 1},
               {"2.12", ">=2.11,<2.12", 0},
               {"2.10.9", ">=2.11,<2.12", 0},
               {"2.11", "==2.11", 1},
               {"2.11.0", "==2.11", 1},
               {"2.11.1", "==2.11", 0},
               {"2.11", "!=2.11", 0},
               {"2.12", "!=2.11", 1},
               {"1", "<=1.0", 1},
               {"1.0.1", "<=1.0", 0},
               {"1.0.1", ">1.0", 1},
               {"1.0", ">1.0", 0},
               {"0.9", "<1", 1},
               {"1", "<1", 0},
               {"1.5", " >=1 , < 2 ", 1},
               {"0.10", ">=0.9", 1},
               {"unknown", "<9", 0},
               {"", ">=0", 0},
               {NULL, ">=0", 0}};
  int cases = 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++, cases++) {
    oc_err err = {0};
    oc_status status = oc_gate_pin("torch", table[i].have, table[i].need, &err);
    assert_int_equal(status, table[i].inside ? OC_OK : OC_REFUSED);
    assert_int_equal(err.reason, table[i].inside ? OC_REASON_NONE : OC_REASON_PIN);
  }
  assert_int_equal(cases, 20);
}

static void test_the_words_of_a_refusal(void **state) {
  (void)state;
  oc_err err = {0}, none = {0}, odd = {0};
  char text[256];
  oc_gate_pin("torch", "2.10.0", ">=2.11,<2.12", &err);
  oc_err_text(&err, text, sizeof text);
  assert_string_equal(text, "pin:torch2.10.0!>=2.11,<2.12");
  oc_gate_pin("torch", NULL, ">=2.11", &none);
  assert_string_equal(none.detail, "torchnone!>=2.11");
  oc_gate_pin("torch", "\n\xFF", ">=2", &odd);
  assert_string_equal(odd.detail, "torch\\x0A\\xFF!>=2");
}

static void test_malformed_ranges(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    ",",
                                    ">=1,",
                                    ",>=1",
                                    ">=1,,<2",
                                    "1.0",
                                    ">=",
                                    "=1",
                                    "~=1.0",
                                    ">=1.*",
                                    ">=1.",
                                    ">=.1",
                                    ">=1..2",
                                    ">=a",
                                    ">=1.0rc1",
                                    ">= 1 2",
                                    "=>1",
                                    ">==1",
                                    ">=1111111111111111111111111111111111111111111111111111111111111111111111"};
  int cases = 0;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++, cases++) {
    oc_err err = {0};
    if (oc_gate_pin("p", "1.0", bad[i], &err) != OC_BAD_ARG) fail_msg("accepted: %s", bad[i]);
    assert_int_equal(oc_gate_pin("p", NULL, bad[i], NULL), OC_BAD_ARG); /* the range is read whatever is installed */
  }
  assert_int_equal(cases, 19);
  assert_int_equal(oc_gate_pin("p", "0.1", ">=1,x", NULL), OC_BAD_ARG); /* also behind a part that refuses */
  assert_int_equal(oc_gate_pin(NULL, "1", ">=1", NULL), OC_BAD_ARG);
  assert_int_equal(oc_gate_pin("", "1", ">=1", NULL), OC_BAD_ARG);
  assert_int_equal(oc_gate_pin("p", "1", NULL, NULL), OC_BAD_ARG);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_inside_and_outside),
                                     cmocka_unit_test(test_the_words_of_a_refusal),
                                     cmocka_unit_test(test_malformed_ranges)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
