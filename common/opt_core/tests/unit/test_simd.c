/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h, rows.h and gemm.h at the level that the test itself is compiled for: the portable one. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "simd_checks.h"

int main(void) { return run_checks(); }
