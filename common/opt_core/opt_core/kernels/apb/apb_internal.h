/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this family. */
#ifndef OC_APB_INTERNAL_H
#define OC_APB_INTERNAL_H

#include "apb/apb.h"
#include "devices/cpu/attention_call.h"

/* The call as attention with one row (I = 1): the views of the longer rank live here. */
typedef struct oc__apb_views {
  oc_view q, k, v, gate, out, mask;
  oc__attention attention; /* points at the views beside it: do not copy */
} oc__apb_views;

/* The view with an axis of length 1 put at position 1. */
static inline oc_view oc__apb_raise(const oc_view *view) {
  oc_view raised = *view;
  if (!oc_view_is_present(view)) return raised;
  for (int32_t axis = view->rank; axis > 1; axis--) {
    raised.shape[axis] = view->shape[axis - 1];
    raised.stride[axis] = view->stride[axis - 1];
  }
  raised.shape[1] = 1;
  raised.stride[1] = 0;
  raised.rank = view->rank + 1;
  return raised;
}

static inline void oc__apb_views_make(const oc_apb *call, oc__apb_views *views) {
  *views = (oc__apb_views){.q = oc__apb_raise(&call->q),
                           .k = oc__apb_raise(&call->k),
                           .v = oc__apb_raise(&call->v),
                           .gate = oc__apb_raise(&call->gate),
                           .out = oc__apb_raise(&call->out),
                           .mask = oc__apb_raise(&call->mask)};
  views->attention = (oc__attention){.q = &views->q,
                                     .k = &views->k,
                                     .v = &views->v,
                                     .bias = oc__view_or_null(&call->bias),
                                     .mask = oc__view_or_null(&views->mask),
                                     .gate = oc__view_or_null(&views->gate),
                                     .out = &views->out,
                                     .scale = call->scale,
                                     .mask_value = call->mask_value,
                                     .mask_kind = call->mask_kind,
                                     .bias_first = call->bias_first};
}

/* REFUSED: what none of the CPU rows serves; takes_f64: the reference also takes F64 tensors. */
static inline oc_status oc__apb_refuse(const oc_apb *call, int takes_f64, oc_err *err) {
  OC_TRY(oc__float_check(&call->q, "q", takes_f64, err));
  OC_TRY(oc__float_check(&call->k, "k", takes_f64, err));
  OC_TRY(oc__float_check(&call->v, "v", takes_f64, err));
  OC_TRY(oc__float_check(&call->gate, "gate", takes_f64, err));
  OC_TRY(oc__float_check(&call->out, "out", takes_f64, err));
  OC_TRY(oc__float_check(&call->bias, "bias", takes_f64, err));
  return oc__depth_check(call->q.shape[3], err);
}

#endif
