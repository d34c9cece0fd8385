/* SPDX-License-Identifier: Apache-2.0 */
/* apb: attention with a pair bias that may be shared across a batch.
 *
 * computes   s[b,h,q,k] = sum_d q[b,q,h,d] * k[b,k,h,d] * scale; mask applied to s (module.h); s += bias[b,h,q,k]
 *            (bias_first: the bias is added before the mask is applied)
 *            p = softmax over k; o[b,q,h,d] = sum_k p * v[b,k,h,d];  gate present: o *= sigmoid(gate)
 * shapes     q, gate, out [B, Nq, H, D]; k, v [B, Nk, H, D]; bias [B, H, Nq, Nk], batch stride 0 when shared
 *            ([i,j,h] layouts are strides); mask [B, Nk] or absent. D from 1 to 256.
 * types      q, k, v, gate, out, bias F32, BF16 or F16, each on its own; logits, softmax and sums f32. The reference
 *            also takes F64 (F64 q: it computes in double). Where q, k and v are BF16, cpu_avx512_bf16 rounds the
 *            softmax weights to bf16 before their product with v
 * ownership  out must not overlap an input (BAD_ARG)
 * threads    spread over exec.threads; bits do not depend on the count. Stream: none (CPU)
 * errors     BAD_ARG shapes, overlap or a bad workspace; REFUSED dtype:, shape: (D), layout: (strides of out that may
 *            lead two elements to one place)
 * exactness  none. Nk = 0 gives zeros. OC_MASK_ZERO acts after the bias
 * source     Abramson et al. 2024 (AlphaFold 3), algorithm 24
 */
#ifndef OPT_CORE_APB_H
#define OPT_CORE_APB_H

#include "opt_core/module.h"
#include "opt_core/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oc_apb {
  oc_view q, k, v, bias, mask, gate, out;
  float scale;
  oc_mask_kind mask_kind;
  float mask_value;
  int bias_first;
} oc_apb;

/* dims b, n = max(Nq, Nk), h, d; form: "bias" or "shared_bias" (batch stride 0, B > 1) + "gate" + "mask_<kind>" of
 * those that are there, sorted, or "plain". */
OC_API oc_status oc_apb_class(const oc_apb *call, oc_tier tier, oc_class *out, oc_err *err);
OC_API oc_status oc_apb_serve(const oc_apb *call, const oc_choice *choice, const oc_exec *exec, oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
