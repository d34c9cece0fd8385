/* SPDX-License-Identifier: Apache-2.0 */
/* What the members of trimul share: sizes and the questions that are asked before any arithmetic. */
#ifndef OC_TRIMUL_INTERNAL_H
#define OC_TRIMUL_INTERNAL_H

#include "opt_core/trimul.h"

/* The linears in the order in which the members keep them. left and right are the operands of the contraction
 * t[i,j] = sum_k left[i,k] * right[k,j]: a and b, exchanged where the call swaps its operands. */
enum { OC__LEFT_GATE, OC__LEFT_PROJ, OC__RIGHT_GATE, OC__RIGHT_PROJ, OC__OUT_PROJ, OC__OUT_GATE, OC__LINEAR_COUNT };

typedef struct oc__trimul_sizes {
  int64_t b, n, c, d; /* batch, N, C, Ch */
} oc__trimul_sizes;

oc__trimul_sizes oc__trimul_sizes_of(const oc_trimul *call);
const oc_linear *oc__trimul_linear(const oc_trimul *call, int which);
/* Factor of the left (0) or right (1) operand of the contraction: right_scale where that operand is b, else 1. */
float oc__trimul_scale(const oc_trimul *call, int right);

/* BAD_ARG unless the call keeps the promises of trimul.h: shapes, dtypes, finite numbers, overlap. */
oc_status oc__trimul_check(const oc_trimul *call, oc_err *err);
/* REFUSED dtype:, dialect: (narrow members only) and layout:, for what no member serves. is_wide: F64 is served. */
oc_status oc__trimul_admit(const oc_trimul *call, int is_wide, oc_err *err);
/* REFUSED shape: when `need` is SIZE_MAX (the sizes leave 64 bits); BAD_ARG when the workspace is too small or askew.
 */
oc_status oc__trimul_room(const oc_trimul *call, const oc_exec *exec, size_t need, oc_err *err);

/* Adds factor_0 * factor_1 * ... (all >= 0) to *sum; 0 when the sum leaves 2^60. */
int oc__trimul_add(int64_t *sum, int64_t f0, int64_t f1, int64_t f2);

#endif
