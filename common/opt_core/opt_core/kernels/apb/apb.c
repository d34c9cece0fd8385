/* SPDX-License-Identifier: Apache-2.0 */
#include "apb/apb_internal.h"

static oc_status check_places(const oc_apb *call, oc_err *err) {
  const oc_view *const others[] = {&call->k, &call->v, &call->bias, &call->mask, &call->gate, &call->out};
  static const char *const names[] = {"k", "v", "bias", "mask", "gate", "out"};
  for (size_t n = 0; n < sizeof others / sizeof others[0]; n++)
    OC_TRY(oc__place_check(&call->q, "q", others[n], names[n], err));
  return OC_OK;
}

static oc_status check_call(const oc_apb *call, oc_err *err) {
  if (!call) return OC_FAIL(err, BAD_ARG, 0, "call: NULL");
  const int64_t *q = call->q.shape, *k = call->k.shape;
  if (!oc_view_is_present(&call->q) || call->q.rank != 4)
    return OC_FAIL(err, BAD_ARG, 0, "q: rank %d, not 4", call->q.rank);
  if (!oc_view_is_present(&call->k) || call->k.rank != 4)
    return OC_FAIL(err, BAD_ARG, 0, "k: rank %d, not 4", call->k.rank);
  const int64_t query_shape[4] = {q[0], q[1], q[2], q[3]}, key_shape[4] = {q[0], k[1], q[2], q[3]};
  const int64_t bias_shape[4] = {q[0], q[2], q[1], k[1]}, mask_shape[2] = {q[0], k[1]};
  OC_TRY(oc__shape_check(&call->q, "q", 4, query_shape, err));
  OC_TRY(oc__shape_check(&call->k, "k", 4, key_shape, err));
  OC_TRY(oc__shape_check(&call->v, "v", 4, key_shape, err));
  OC_TRY(oc__shape_check(&call->out, "out", 4, query_shape, err));
  OC_TRY(oc__shape_check_optional(&call->gate, "gate", 4, query_shape, err));
  OC_TRY(oc__shape_check_optional(&call->bias, "bias", 4, bias_shape, err));
  OC_TRY(oc__shape_check_optional(&call->mask, "mask", 2, mask_shape, err));
  OC_TRY(check_places(call, err));
  return oc__mask_check(&call->mask, call->mask_kind, call->mask_value, err);
}

static oc_status check_output(const oc_apb *call, oc_err *err) {
  const oc_view *const inputs[] = {&call->q, &call->k, &call->v, &call->bias, &call->mask, &call->gate};
  static const char *const names[] = {"q", "k", "v", "bias", "mask", "gate"};
  OC_TRY(oc__output_check(&call->out, "out", err));
  for (size_t n = 0; n < sizeof inputs / sizeof inputs[0]; n++)
    OC_TRY(oc__apart_check(&call->out, "out", inputs[n], names[n], err));
  return OC_OK;
}

oc_status oc_apb_class(const oc_apb *call, oc_tier tier, oc_class *out, oc_err *err) {
  OC_TRY(check_call(call, err));
  OC_TRY(oc__class_start(OC_FAMILY_APB, tier, &call->q, out, err));
  const int has_bias = oc_view_is_present(&call->bias);
  const int is_shared = has_bias && call->q.shape[0] > 1 && call->bias.stride[0] == 0;
  if (has_bias && !is_shared) oc__form_add(out, "bias");
  if (oc_view_is_present(&call->gate)) oc__form_add(out, "gate");
  oc__form_add(out, oc__mask_word(call->mask_kind));
  if (is_shared) oc__form_add(out, "shared_bias");
  if (!out->form[0]) oc__form_add(out, "plain");
  out->dim[OC_DIM_B] = call->q.shape[0];
  out->dim[OC_DIM_N] = call->q.shape[1] > call->k.shape[1] ? call->q.shape[1] : call->k.shape[1];
  out->dim[OC_DIM_H] = call->q.shape[2];
  out->dim[OC_DIM_D] = call->q.shape[3];
  return OC_OK;
}

oc_status oc_apb_serve(const oc_apb *call, const oc_choice *choice, const oc_exec *exec, oc_err *err) {
  OC_TRY(check_call(call, err));
  OC_TRY(check_output(call, err));
  OC_TRY(oc__choice_check(choice, exec, OC_FAMILY_APB, &call->q, "q", err));
  return oc_member_run(choice->member, call, exec, err);
}
