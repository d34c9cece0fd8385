/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces that the descriptors of several families share. Arithmetic is f32 unless a field says otherwise; R_t(x) below
 * means "x rounded to dtype t, to nearest even". */
#ifndef OPT_CORE_MODULE_H
#define OPT_CORE_MODULE_H

#include "opt_core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* LayerNorm over the last axis: y = R_round((x - mean) * (1 / sqrt(var + eps)) * weight + bias), statistics in f32.
 * Absent weight is 1, absent bias 0. */
typedef struct oc_norm {
  oc_view weight, bias; /* [C] or absent */
  float eps;
  int rms;           /* 1: RMSNorm, mean taken as 0 */
  int fast_variance; /* 1: E[x^2] - E[x]^2 (JAX), 0: two passes (PyTorch) */
  oc_dtype round;    /* dtype that the normalised row is rounded to before it is used; OC_F32 (or NONE): kept */
} oc_norm;

/* y = x * weight^T + bias. A slice, a stride or an interleaving of a packed weight is just another view of it. */
typedef struct oc_linear {
  oc_view weight; /* [out, in] */
  oc_view bias;   /* [out] or absent */
} oc_linear;

/* What a mask does to the logits. The mask itself may be bool, u8, i32, i64, f32 or bf16; "kept" means not zero. */
typedef enum oc_mask_kind {
  OC_MASK_NONE,     /* the mask view is absent */
  OC_MASK_SUBTRACT, /* adds mask_value * (mask - 1), mask_value finite and positive (1e9, 1e6): a row with every key
                       masked gives softmax(fl(logit - mask_value)) as the stock op does */
  OC_MASK_FILL,     /* logit replaced by mask_value (-inf, finfo.min, ...) where not kept; -inf: a fully masked
                       row is NaN */
  OC_MASK_ZERO,     /* boolean flash form: not kept keys have weight 0, a fully masked row gives 0 */
  OC_MASK_ADD       /* the view holds the addend itself */
} oc_mask_kind;

#ifdef __cplusplus
}
#endif
#endif
