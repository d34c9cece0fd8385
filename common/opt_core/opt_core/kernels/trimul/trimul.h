/* SPDX-License-Identifier: Apache-2.0 */
/* trimul: triangle multiplication, LayerNorm-in to gated output (and residual).
 *
 * computes   h = norm_in(x)                                                         [B, N, N, C]
 *            a = mask * sigmoid(a_gate(h)) * a_proj(h);  b likewise, times right_scale
 *            outgoing  t[i,j,c] = sum_k a[i,k,c] * b[j,k,c]
 *            incoming  t[i,j,c] = sum_k a[k,i,c] * b[k,j,c];   operands swapped: sum_k a[k,j,c] * b[k,i,c]
 *            y = out_proj(norm_out(t)) * sigmoid(out_gate(h)) + residual
 *            The three stock orders of mask, gate and projection give the same bits for a {0,1} mask; other masks are
 *            multiplied as written here.
 * shapes     x, y, residual [B, N, N, C]; mask [B, N, N] or absent; a_*, b_* [Ch, C]; out_proj [C, Ch];
 *            out_gate [C, C]; norm_in over C, norm_out over Ch. Concatenated, interleaved, split and bundled packings
 *            are views.
 * types      x, y, residual, weights F32, BF16 or F16, independent of each other (F64 in the reference); mask any mask
 *            dtype; a, b, t are kept in f32 unless `product` names a narrower dtype that each of them is rounded to;
 *            every product accumulates in f32. Where x and all weights are BF16, cpu_avx512_bf16 rounds what leaves a
 *            norm to bf16, and contracts in bf16 where `product` says BF16
 * ownership  y may be x or the residual itself (same view); any other overlap with an input is BAD_ARG
 * threads    spread over exec.threads; bits do not depend on the count. Stream: none (CPU)
 * errors     BAD_ARG shapes or overlap; REFUSED dtype:, layout:, dialect:, shape:
 * exactness  none for `cpu`; the stock's bits come from the assembly described in README.md of this folder
 * source     Jumper et al. 2021 (AlphaFold 2), algorithms 11 and 12; Abramson et al. 2024, algorithms 12 and 13
 */
#ifndef OPT_CORE_TRIMUL_H
#define OPT_CORE_TRIMUL_H

#include "opt_core/module.h"
#include "opt_core/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oc_direction { OC_OUTGOING, OC_INCOMING } oc_direction;

typedef struct oc_trimul {
  oc_view x, y, mask, residual;
  oc_norm norm_in, norm_out;
  oc_linear a_proj, a_gate, b_proj, b_gate, out_proj, out_gate;
  oc_direction direction;
  int operands_swapped; /* incoming only */
  float right_scale;    /* 1, or 1/N (mean over k); finite and not 0 */
  oc_dtype product;     /* dtype of a and b in the contraction; NONE: f32 */
} oc_trimul;

/* dims b, n = N, c = C, d = Ch; form: "outgoing|incoming" + "biased" + "mask" + "residual" + "swapped" + "scaled". */
OC_API oc_status oc_trimul_class(const oc_trimul *call, oc_tier tier, oc_class *out, oc_err *err);
OC_API oc_status oc_trimul_serve(const oc_trimul *call, const oc_choice *choice, const oc_exec *exec, oc_err *err);

/* The elementwise half of the exact assembly (class E1): out[c, r, s] = (mask[r, s] * gate[r, s, c]) * proj[r, s, c],
 * each product rounded once in f32. gate is already a sigmoid. out is a view [C, N, N] with a unit stride in its last
 * axis; gate, proj [N, N, C] F32; mask [N, N] any mask dtype or absent. Exact for every input (IEEE products in this
 * order). */
OC_API oc_status oc_trimul_gate_planes(const oc_view *gate, const oc_view *proj, const oc_view *mask,
                                       const oc_view *out, int threads, oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
