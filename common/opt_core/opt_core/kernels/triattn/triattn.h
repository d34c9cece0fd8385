/* SPDX-License-Identifier: Apache-2.0 */
/* triattn: triangle attention with a pair bias and a key mask; the core, and the whole module.
 *
 * computes   s[i,h,q,k] = fl(scale * sum_d q[i,q,h,d] * k[i,k,h,d]); mask applied to s (module.h); s += bias[h,q,k]
 *            p = softmax over k; o[i,q,h,d] = sum_k p * v[i,k,h,d];  gate present: o *= sigmoid(gate)
 *            lse present: lse[i,h,q] = log sum_k exp(s)
 * shapes     q, k, v, gate, out [B, I, N, H, D] (q, gate and out may have Nq queries, k and v Nk keys);
 *            bias [B, H, Nq, Nk] or absent; mask [B, I, Nk] or absent; lse [B, I, H, Nq] or absent. The ending node and
 *            either orientation of the bias are strides of the views.
 *            D from 1 to 256; CUDA members 1 to 128
 * types      q, k, v, gate, out F32, BF16 or F16 (one dtype); bias F32, BF16 or F16; lse F32; logits, softmax and
 *            sums f32. The reference also takes F64 everywhere and then computes in double. CUDA members round p to the
 *            operands' dtype before its product with v (F32: to 21 bits, with tf32 to TF32). On BF16 of D = 32,
 *            native_sm90a and cuda_sm90a also round scale * q and the bias, to 8 bits. On BF16 cpu_avx512_bf16 rounds
 *            p before that product
 * ownership  out and lse must not overlap an input or each other (BAD_ARG)
 * threads    CPU members spread over exec.threads. CUDA members enqueue on exec.stream, wait for nothing and leave the
 *            current context as it was. Bits depend on neither
 * errors     BAD_ARG shapes, overlap, operands in two places or a bad workspace; REFUSED dtype:, shape: (D), layout:
 *            (strides of an output that may lead two elements to one place), no_device: (a row of another device); CUDA
 *            members also arch:, no_prebuilt:, digest:, driver:, capture: (opt_core/cuda.h); the row cuda_sm90a and the
 *            module also dialect:
 * exactness  none. Nk = 0 gives zeros and lse = -inf. OC_MASK_ZERO acts after the bias; a key without weight still
 *            multiplies its value by 0, so a NaN there shows
 * source     Jumper et al. 2021 (AlphaFold 2), algorithms 13 and 14; Dao et al. 2022 (online softmax)
 */
#ifndef OPT_CORE_TRIATTN_H
#define OPT_CORE_TRIATTN_H

#include "opt_core/module.h"
#include "opt_core/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oc_triattn {
  oc_view q, k, v, bias, mask, gate, out, lse;
  float scale; /* of the product; 1 when q is already scaled */
  oc_mask_kind mask_kind;
  float mask_value;
  int tf32; /* 1: f32 operands may be rounded to TF32 (10 bits of fraction) in the products; CPU members never do */
} oc_triattn;

/* dims b, s = I, n = max(Nq, Nk), h, d; form: "bias" + "gate" + "lse" + "mask_<kind>" + "tf32" (f32 q only) of those
 * that are there, or "plain". */
OC_API oc_status oc_triattn_class(const oc_triattn *call, oc_tier tier, oc_class *out, oc_err *err);
OC_API oc_status oc_triattn_serve(const oc_triattn *call, const oc_choice *choice, const oc_exec *exec, oc_err *err);

/* triattn_module: y = out_proj(core(norm(x))) (+ residual), for one orientation.
 * x, y, residual [B, N, N, C]; for the ending node pass all of them (and mask) with axes 1 and 2 exchanged.
 * h = norm(x); q, k, v, gate = to_q(h), ...; bias[h,q,k] = to_bias(h)[q,k,h], or [k,q,h] when bias_untransposed_end
 * (AlphaFold 3: on the exchanged views this restores the orientation of the unexchanged tensor).
 * to_q, to_k, to_v, to_gate [H*D, C]; to_bias [H, C]; out_proj [C, H*D]. scale multiplies q. mask [B, N, N] or absent.
 * x, y, residual and weights F32, BF16 or F16, each on its own; f32 inside, one rounding at the end. y may be x or the
 * residual itself (same view); any other overlap with an input is BAD_ARG. Scratch of the CPU members: H * N * N floats
 * for the bias of one batch, plus about 6 * N * max(C, H * D) floats a thread. Where x and all weights but to_bias are
 * BF16, cpu_avx512_bf16 rounds what enters a product (h, q * scale, k, v, p, o) to bf16, but for the bias.
 * The CUDA member (sm_90a) takes H = 4, D = 32 and C = 64, 128 or 256, with x BF16, or F32 where every weight is BF16:
 * its products have bf16 operands and f32 sums. Scratch: four bf16 planes of B * N * N * 128, the bias in 16 bits, and
 * four bytes for each 64 queries of a row and head. */
typedef struct oc_triattn_module {
  oc_view x, y, mask, residual;
  oc_norm norm;
  oc_linear to_q, to_k, to_v, to_bias, to_gate, out_proj; /* to_gate.weight absent: no gate */
  int64_t heads;
  float scale;
  int bias_untransposed_end;
  oc_mask_kind mask_kind; /* NONE, SUBTRACT, FILL or ZERO */
  float mask_value;
  int tf32; /* as in oc_triattn, for every product of the module */
} oc_triattn_module;

/* dims b, n, h, d, c; form: "biased" + "gate" + "mask_<kind>" + "residual" + "tf32" (f32 x only) + "untransposed" of
 * those that are there, or "plain". */
OC_API oc_status oc_triattn_module_class(const oc_triattn_module *call, oc_tier tier, oc_class *out, oc_err *err);
OC_API oc_status oc_triattn_module_serve(const oc_triattn_module *call, const oc_choice *choice, const oc_exec *exec,
                                         oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
