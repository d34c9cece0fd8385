/* SPDX-License-Identifier: Apache-2.0 */
/* transition: LayerNorm, one or two projections up, activation, projection down, mask, residual.
 *
 * computes   h = norm(x); u = up(h); g = gate(h)
 *            SWIGLU        y = down(silu(g) * u) * mask + residual
 *            SIGMOID_GLU   y = down(sigmoid(g) * u) * mask + residual
 *            RELU          y = down(max(u, 0)) * mask + residual          (gate absent)
 * shapes     x, y, residual [..., C] of one shape, rank 2..5; up, gate [Hid, C] (+ bias [Hid]);
 *            down [C, Hid] (+ bias [C]); mask [...] (x's shape without C) or absent; residual absent or present (often
 *            x itself)
 * types      x, y, residual F32 or BF16; weights F32 or BF16; mask any mask dtype. Every product accumulates in f32,
 *            the hidden layer stays f32, one rounding at the end (a bf16 stock op rounds four times). Where x and all
 *            weights are BF16, cpu_avx512_bf16 also rounds the norm's result and the hidden layer: its products have
 *            bf16 operands
 * ownership  y may be x or the residual itself (same view); any other overlap with an input is BAD_ARG
 * threads    rows are spread over exec.threads; bits do not depend on the count. Stream: none (CPU)
 * errors     BAD_ARG shapes or overlap; REFUSED dtype:, layout:, dialect:, shape:
 * exactness  none
 * source     Abramson et al. 2024 (AlphaFold 3), algorithm 11; Jumper et al. 2021 (AlphaFold 2), algorithm 15
 */
#ifndef OPT_CORE_TRANSITION_H
#define OPT_CORE_TRANSITION_H

#include "opt_core/module.h"
#include "opt_core/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oc_activation { OC_ACTIVATION_SWIGLU, OC_ACTIVATION_SIGMOID_GLU, OC_ACTIVATION_RELU } oc_activation;

typedef struct oc_transition {
  oc_view x, y, mask, residual;
  oc_norm norm;
  int norm_absent; /* 1: x is taken as it is (already normalised by the caller) */
  oc_linear up, gate, down;
  oc_activation activation;
} oc_transition;

/* dims n = rows, c = C, d = Hid; form: "swiglu|sigmoid_glu|relu" + "biased" + "mask" + "residual". */
OC_API oc_status oc_transition_class(const oc_transition *call, oc_tier tier, oc_class *out, oc_err *err);
OC_API oc_status oc_transition_serve(const oc_transition *call, const oc_choice *choice, const oc_exec *exec,
                                     oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
