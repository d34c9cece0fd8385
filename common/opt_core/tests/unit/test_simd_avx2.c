/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h, rows.h and gemm.h at AVX2. */
#define _GNU_SOURCE
#define LEVEL OC_ISA_AVX2
#include "simd_main.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif
#ifdef __AVX2__
#include "simd_checks.h"
_Static_assert(OC_VL == 8, "this level has 8 lanes");
#else
SIMD_CHECKS_SKIPPED
#endif
