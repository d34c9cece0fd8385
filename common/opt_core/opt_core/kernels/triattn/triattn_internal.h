/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this family. */
#ifndef OC_TRIATTN_INTERNAL_H
#define OC_TRIATTN_INTERNAL_H

#include "devices/cpu/attention_call.h"
#include "triattn/triattn.h"

static inline oc__attention oc__triattn_attention(const oc_triattn *call) {
  return (oc__attention){.q = &call->q,
                         .k = &call->k,
                         .v = &call->v,
                         .bias = oc__view_or_null(&call->bias),
                         .mask = oc__view_or_null(&call->mask),
                         .gate = oc__view_or_null(&call->gate),
                         .out = &call->out,
                         .lse = oc__view_or_null(&call->lse),
                         .scale = call->scale,
                         .mask_value = call->mask_value,
                         .mask_kind = call->mask_kind};
}

/* How many pieces of `size` cover `count`. */
static inline int64_t oc__triattn_pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* REFUSED: what none of the CPU rows serves; takes_f64: the reference also takes F64 tensors. */
static inline oc_status oc__triattn_refuse(const oc_triattn *call, int takes_f64, oc_err *err) {
  const oc_view *const same[] = {&call->k, &call->v, &call->gate, &call->out};
  static const char *const names[] = {"k", "v", "gate", "out"};
  OC_TRY(oc__float_check(&call->q, "q", takes_f64, err));
  for (size_t n = 0; n < sizeof same / sizeof same[0]; n++)
    if (oc_view_is_present(same[n]) && same[n]->dtype != call->q.dtype)
      return OC_REFUSE(err, DTYPE, "%s=%s, q=%s", names[n], oc_dtype_word(same[n]->dtype),
                       oc_dtype_word(call->q.dtype));
  OC_TRY(oc__float_check(&call->bias, "bias", takes_f64, err));
  if (oc_view_is_present(&call->lse) && call->lse.dtype != OC_F32 && !(takes_f64 && call->lse.dtype == OC_F64))
    return OC_REFUSE(err, DTYPE, "lse=%s", oc_dtype_word(call->lse.dtype));
  return oc__depth_check(call->q.shape[4], err);
}

static inline oc_status oc__triattn_module_refuse(const oc_triattn_module *call, int takes_f64, oc_err *err) {
  const oc_view *const views[] = {&call->x,
                                  &call->y,
                                  &call->residual,
                                  &call->norm.weight,
                                  &call->norm.bias,
                                  &call->to_q.weight,
                                  &call->to_q.bias,
                                  &call->to_k.weight,
                                  &call->to_k.bias,
                                  &call->to_v.weight,
                                  &call->to_v.bias,
                                  &call->to_bias.weight,
                                  &call->to_bias.bias,
                                  &call->to_gate.weight,
                                  &call->to_gate.bias,
                                  &call->out_proj.weight,
                                  &call->out_proj.bias};
  static const char *const names[] = {"x",
                                      "y",
                                      "residual",
                                      "norm.weight",
                                      "norm.bias",
                                      "to_q.weight",
                                      "to_q.bias",
                                      "to_k.weight",
                                      "to_k.bias",
                                      "to_v.weight",
                                      "to_v.bias",
                                      "to_bias.weight",
                                      "to_bias.bias",
                                      "to_gate.weight",
                                      "to_gate.bias",
                                      "out_proj.weight",
                                      "out_proj.bias"};
  for (size_t n = 0; n < sizeof views / sizeof views[0]; n++)
    OC_TRY(oc__float_check(views[n], names[n], takes_f64, err));
  if (call->mask_kind == OC_MASK_ADD) return OC_REFUSE(err, DIALECT, "mask_kind=add");
  if (call->norm.round != OC_DTYPE_NONE && !oc__is_narrow_float(call->norm.round))
    return OC_REFUSE(err, DIALECT, "norm.round=%s", oc_dtype_word(call->norm.round));
  return oc__depth_check(call->to_q.weight.shape[0] / call->heads, err);
}

#endif
