/* SPDX-License-Identifier: Apache-2.0 */
/* ln: LayerNorm / RMSNorm over the last axis.
 *
 * computes   y[..., c] = R_y(norm(x)[..., c]), norm as in module.h; norm.round is applied before R_y
 * shapes     x, y: the same shape [..., C], rank 1..5, any strides (channel-major input is a view); weight, bias [C]
 * types      x, y: F32, BF16, F16 (F64 in the reference); weight, bias: F32, BF16, F16 independent of x; statistics f32
 * ownership  the caller owns everything; y may be x itself (same data, shape and strides), any other overlap is BAD_ARG
 * threads    rows are spread over exec.threads; bits do not depend on the count. Stream: none (CPU)
 * errors     BAD_ARG shapes or overlap; REFUSED dtype:, layout:, dialect:, shape:
 * exactness  members flagged EXACT equal torch.nn.functional.layer_norm on the stacks in LN_CELLS.json
 * source     Ba, Kiros, Hinton 2016, "Layer Normalization"; Zhang, Sennrich 2019, "RMSNorm"
 */
#ifndef OPT_CORE_LN_H
#define OPT_CORE_LN_H

#include "opt_core/module.h"
#include "opt_core/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oc_ln {
  oc_view x, y;
  oc_norm norm;
} oc_ln;

/* The call class of a call: dims n = rows, c = C; form "affine|plain" + "rms". BAD_ARG for a malformed call. */
OC_API oc_status oc_ln_class(const oc_ln *call, oc_tier tier, oc_class *out, oc_err *err);
/* Checks the call, then runs the chosen member. */
OC_API oc_status oc_ln_serve(const oc_ln *call, const oc_choice *choice, const oc_exec *exec, oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
