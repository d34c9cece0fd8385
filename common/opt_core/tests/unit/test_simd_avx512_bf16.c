/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h, rows.h and gemm.h at AVX512_BF16: products of pairs too. main stands before the pragma: it must run on a processor without the level. */
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
  if (oc_cpu_facts()->isa < OC_ISA_AVX512_BF16) {
    printf("skipped: the processor lacks avx512_bf16\n");
    return 0;
  }
  return run_checks();
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#endif
#ifdef __AVX512BF16__
#include "simd_checks.h"
_Static_assert(OC_VL == 16, "this level has 16 lanes");
#else
static int run_checks(void) {
  printf("skipped: this compiler sets no level within a file\n");
  return 0;
}
#endif
