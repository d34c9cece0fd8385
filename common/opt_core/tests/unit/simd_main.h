/* SPDX-License-Identifier: Apache-2.0 */
/* main of test_simd_<level>.c, which defines LEVEL. It stands before the pragma that sets the level: it must run on a
 * processor without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "opt_core/device.h"

static int run_checks(void);

int main(void) {
  if (oc_cpu_facts()->isa < LEVEL) {
    printf("skipped: the processor lacks %s\n", oc_isa_word(LEVEL));
    return 0;
  }
  return run_checks();
}

/* Instead of simd_checks.h where the pragma had no effect. */
#define SIMD_CHECKS_SKIPPED                                                                                            \
  static int run_checks(void) {                                                                                        \
    printf("skipped: this compiler sets no level within a file\n");                                                    \
    return 0;                                                                                                          \
  }
