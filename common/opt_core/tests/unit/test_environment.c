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

static oc_status check(const char *entry, oc_err *err) {
  char *environment[] = {"PATH=/bin", "OPT_CORE=1", "XOPT_CORE_ISA=1", (char *)entry, "HOME=/", NULL};
  return oc_environment_check(environment, err);
}

static void test_accepted(void **state) {
  (void)state;
  static const char *const good[] = {"OPT_CORE_AUTOLOAD=0",
                                     "OPT_CORE_AUTOLOAD=1",
                                     "OPT_CORE_AUTOLOAD=",
                                     "OPT_CORE_AUTOLOAD",
                                     "OPT_CORE_CELL_CENSUS_PRINT=uncovered",
                                     "OPT_CORE_CELLS=/any/\xFFwhere",
                                     "OPT_CORE_ISA=avx2",
                                     "OPT_CORE_ISA=generic",
                                     "OPT_CORE_MANIFEST=a=b",
                                     "OPT_CORE_PARENT=123",
                                     "OPT_CORE_RANK=0",
                                     "OPT_CORE_RANK=999999999",
                                     "opt_core_x=1",
                                     "=odd",
                                     ""};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    oc_err err = {0};
    if (check(good[i], &err) != OC_OK) fail_msg("%s: %s", good[i], err.detail);
  }
  assert_int_equal(oc_environment_check(NULL, NULL), OC_OK);
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    const char *entry, *said;
  } bad[] = {{"OPT_CORE_AUTOLOD=0", "environment:OPT_CORE_AUTOLOD is unknown (nearest: OPT_CORE_AUTOLOAD)"},
             {"OPT_CORE_CELL=x", "environment:OPT_CORE_CELL is unknown (nearest: OPT_CORE_CELLS)"},
             {"OPT_CORE_=", "environment:OPT_CORE_ is unknown (nearest: OPT_CORE_ISA)"},
             {"OPT_CORE_AUTOLOAD=yes", "environment:OPT_CORE_AUTOLOAD=yes (accepted: 0|1)"},
             {"OPT_CORE_AUTOLOAD=0|1", "environment:OPT_CORE_AUTOLOAD=0|1 (accepted: 0|1)"},
             {"OPT_CORE_CELL_CENSUS_PRINT=2", "environment:OPT_CORE_CELL_CENSUS_PRINT=2 (accepted: 0|1|uncovered)"},
             {"OPT_CORE_CELL_CENSUS_PRINT=uncover",
              "environment:OPT_CORE_CELL_CENSUS_PRINT=uncover (accepted: 0|1|uncovered)"},
             {"OPT_CORE_ISA=AVX2", "environment:OPT_CORE_ISA=AVX2 (accepted: generic|avx2|avx512|avx512_bf16)"},
             {"OPT_CORE_RANK=-1", "environment:OPT_CORE_RANK=-1 (accepted: <n>)"},
             {"OPT_CORE_RANK=1 ", "environment:OPT_CORE_RANK=1\\x20 (accepted: <n>)"},
             {"OPT_CORE_RANK=1234567890", "environment:OPT_CORE_RANK=1234567890 (accepted: <n>)"}};
  int cases = 0;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++, cases++) {
    oc_err err = {0};
    char text[256];
    assert_int_equal(check(bad[i].entry, &err), OC_REFUSED);
    oc_err_text(&err, text, sizeof text);
    assert_string_equal(text, bad[i].said);
  }
  assert_int_equal(cases, 11);
}

static void test_the_list_knows_the_levels(void **state) {
  (void)state;
  int cases = 0;
  for (int isa = 0; isa < OC_ISA_COUNT; isa++, cases++) {
    static const char *const words[] = {
#define X(id, word, needs) word,
        OC_ISA_LIST(X)
#undef X
    };
    char entry[64];
    snprintf(entry, sizeof entry, "OPT_CORE_ISA=%s", words[isa]);
    assert_int_equal(check(entry, NULL), OC_OK);
  }
  assert_int_equal(cases, OC_ISA_COUNT);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_accepted), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_the_list_knows_the_levels)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
