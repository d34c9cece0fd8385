/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h, rows.h and gemm.h at AVX512. */
#define _GNU_SOURCE
#define LEVEL OC_ISA_AVX512
#include "simd_main.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#ifdef __AVX512F__
#include "simd_checks.h"
_Static_assert(OC_VL == 16, "this level has 16 lanes");
#else
SIMD_CHECKS_SKIPPED
#endif
