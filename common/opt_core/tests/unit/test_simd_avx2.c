/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h, rows.h and gemm.h at AVX2. main stands before the pragma: it must run on a processor without the level. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "opt_core/device.h"

static int run_checks(void);

int main(void) {
  if (oc_cpu_facts()->isa < OC_ISA_AVX2) {
    printf("skipped: the processor lacks avx2\n");
    return 0;
  }
  return run_checks();
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif
#ifdef __AVX2__
#include "simd_checks.h"
_Static_assert(OC_VL == 8, "this level has 8 lanes");
#else
static int run_checks(void) {
  printf("skipped: this compiler sets no level within a file\n");
  return 0;
}
#endif
