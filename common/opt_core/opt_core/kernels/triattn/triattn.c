/* SPDX-License-Identifier: Apache-2.0 */
#include "triattn/triattn_internal.h"

static oc_status check_core_places(const oc_triattn *call, oc_err *err) {
  const oc_view *const others[] = {&call->k, &call->v, &call->bias, &call->mask, &call->gate, &call->out, &call->lse};
  static const char *const names[] = {"k", "v", "bias", "mask", "gate", "out", "lse"};
  for (size_t n = 0; n < sizeof others / sizeof others[0]; n++)
    OC_TRY(oc__place_check(&call->q, "q", others[n], names[n], err));
  return OC_OK;
}

static oc_status check_core(const oc_triattn *call, oc_err *err) {
  if (!call) return OC_FAIL(err, BAD_ARG, 0, "call: NULL");
  const int64_t *q = call->q.shape, *k = call->k.shape;
  if (!oc_view_is_present(&call->q) || call->q.rank != 5)
    return OC_FAIL(err, BAD_ARG, 0, "q: rank %d, not 5", call->q.rank);
  if (!oc_view_is_present(&call->k) || call->k.rank != 5)
    return OC_FAIL(err, BAD_ARG, 0, "k: rank %d, not 5", call->k.rank);
  const int64_t query_shape[5] = {q[0], q[1], q[2], q[3], q[4]}, key_shape[5] = {q[0], q[1], k[2], q[3], q[4]};
  const int64_t bias_shape[4] = {q[0], q[3], q[2], k[2]}, mask_shape[3] = {q[0], q[1], k[2]};
  const int64_t lse_shape[4] = {q[0], q[1], q[3], q[2]};
  OC_TRY(oc__shape_check(&call->q, "q", 5, query_shape, err));
  OC_TRY(oc__shape_check(&call->k, "k", 5, key_shape, err));
  OC_TRY(oc__shape_check(&call->v, "v", 5, key_shape, err));
  OC_TRY(oc__shape_check(&call->out, "out", 5, query_shape, err));
  OC_TRY(oc__shape_check_optional(&call->gate, "gate", 5, query_shape, err));
  OC_TRY(oc__shape_check_optional(&call->bias, "bias", 4, bias_shape, err));
  OC_TRY(oc__shape_check_optional(&call->mask, "mask", 3, mask_shape, err));
  OC_TRY(oc__shape_check_optional(&call->lse, "lse", 4, lse_shape, err));
  OC_TRY(check_core_places(call, err));
  return oc__mask_check(&call->mask, call->mask_kind, call->mask_value, err);
}

static oc_status check_core_outputs(const oc_triattn *call, oc_err *err) {
  const oc_view *const inputs[] = {&call->q, &call->k, &call->v, &call->bias, &call->mask, &call->gate};
  static const char *const names[] = {"q", "k", "v", "bias", "mask", "gate"};
  const int has_lse = oc_view_is_present(&call->lse);
  OC_TRY(oc__output_check(&call->out, "out", err));
  if (has_lse) {
    OC_TRY(oc__output_check(&call->lse, "lse", err));
    OC_TRY(oc__apart_check(&call->out, "out", &call->lse, "lse", err));
  }
  for (size_t n = 0; n < sizeof inputs / sizeof inputs[0]; n++) {
    OC_TRY(oc__apart_check(&call->out, "out", inputs[n], names[n], err));
    if (has_lse) OC_TRY(oc__apart_check(&call->lse, "lse", inputs[n], names[n], err));
  }
  return OC_OK;
}

oc_status oc_triattn_class(const oc_triattn *call, oc_tier tier, oc_class *out, oc_err *err) {
  OC_TRY(check_core(call, err));
  OC_TRY(oc__class_start(OC_FAMILY_TRIATTN, tier, &call->q, out, err));
  if (oc_view_is_present(&call->bias)) oc__form_add(out, "bias");
  if (oc_view_is_present(&call->gate)) oc__form_add(out, "gate");
  if (oc_view_is_present(&call->lse)) oc__form_add(out, "lse");
  oc__form_add(out, oc__mask_word(call->mask_kind));
  if (call->tf32 && call->q.dtype == OC_F32) oc__form_add(out, "tf32");
  if (!out->form[0]) oc__form_add(out, "plain");
  out->dim[OC_DIM_B] = call->q.shape[0];
  out->dim[OC_DIM_S] = call->q.shape[1];
  out->dim[OC_DIM_N] = call->q.shape[2] > call->k.shape[2] ? call->q.shape[2] : call->k.shape[2];
  out->dim[OC_DIM_H] = call->q.shape[3];
  out->dim[OC_DIM_D] = call->q.shape[4];
  return OC_OK;
}

oc_status oc_triattn_serve(const oc_triattn *call, const oc_choice *choice, const oc_exec *exec, oc_err *err) {
  OC_TRY(check_core(call, err));
  OC_TRY(check_core_outputs(call, err));
  OC_TRY(oc__choice_check(choice, exec, OC_FAMILY_TRIATTN, &call->q, "q", err));
  return oc_member_run(choice->member, call, exec, err);
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

static oc_status check_linear(const oc_linear *linear, const char *name, int64_t out, int64_t in, oc_err *err) {
  const int64_t shape[2] = {out, in};
  char bias_name[32];
  (void)snprintf(bias_name, sizeof bias_name, "%s.bias", name);
  OC_TRY(oc__shape_check(&linear->weight, name, 2, shape, err));
  return oc__shape_check_optional(&linear->bias, bias_name, 1, shape, err);
}

static oc_status check_module_places(const oc_triattn_module *call, oc_err *err) {
  const oc_view *const others[] = {&call->y, &call->mask, &call->residual, &call->norm.weight, &call->norm.bias};
  static const char *const names[] = {"y", "mask", "residual", "norm.weight", "norm.bias"};
  const oc_linear *const linears[] = {&call->to_q,    &call->to_k,    &call->to_v,
                                      &call->to_bias, &call->to_gate, &call->out_proj};
  static const char *const linear_names[] = {"to_q", "to_k", "to_v", "to_bias", "to_gate", "out_proj"};
  for (size_t n = 0; n < sizeof others / sizeof others[0]; n++)
    OC_TRY(oc__place_check(&call->x, "x", others[n], names[n], err));
  for (size_t n = 0; n < sizeof linears / sizeof linears[0]; n++) {
    OC_TRY(oc__place_check(&call->x, "x", &linears[n]->weight, linear_names[n], err));
    OC_TRY(oc__place_check(&call->x, "x", &linears[n]->bias, linear_names[n], err));
  }
  return OC_OK;
}

static oc_status check_module_weights(const oc_triattn_module *call, oc_err *err) {
  const int64_t channels = call->x.shape[3], wide = call->to_q.weight.shape[0];
  if (!oc_view_is_present(&call->to_q.weight) || call->to_q.weight.rank != 2)
    return OC_FAIL(err, BAD_ARG, 0, "to_q: rank %d, not 2", call->to_q.weight.rank);
  if (call->heads < 1 || wide % call->heads != 0)
    return OC_FAIL(err, BAD_ARG, 0, "heads: %" PRId64 " does not divide to_q's %" PRId64 " rows", call->heads, wide);
  OC_TRY(check_linear(&call->to_q, "to_q", wide, channels, err));
  OC_TRY(check_linear(&call->to_k, "to_k", wide, channels, err));
  OC_TRY(check_linear(&call->to_v, "to_v", wide, channels, err));
  OC_TRY(check_linear(&call->to_bias, "to_bias", call->heads, channels, err));
  OC_TRY(check_linear(&call->out_proj, "out_proj", channels, wide, err));
  if (oc_view_is_present(&call->to_gate.weight)) return check_linear(&call->to_gate, "to_gate", wide, channels, err);
  if (oc_view_is_present(&call->to_gate.bias)) return OC_FAIL(err, BAD_ARG, 0, "to_gate.bias: present without to_gate");
  return OC_OK;
}

static oc_status check_module(const oc_triattn_module *call, oc_err *err) {
  if (!call) return OC_FAIL(err, BAD_ARG, 0, "call: NULL");
  if (!oc_view_is_present(&call->x) || call->x.rank != 4)
    return OC_FAIL(err, BAD_ARG, 0, "x: rank %d, not 4", call->x.rank);
  const int64_t *x = call->x.shape, shape[4] = {x[0], x[1], x[1], x[3]};
  OC_TRY(oc__shape_check(&call->x, "x", 4, shape, err));
  OC_TRY(oc__shape_check(&call->y, "y", 4, shape, err));
  OC_TRY(oc__shape_check_optional(&call->residual, "residual", 4, shape, err));
  OC_TRY(oc__shape_check_optional(&call->mask, "mask", 3, shape, err));
  OC_TRY(oc__shape_check_optional(&call->norm.weight, "norm.weight", 1, shape + 3, err));
  OC_TRY(oc__shape_check_optional(&call->norm.bias, "norm.bias", 1, shape + 3, err));
  if (!(call->norm.eps >= 0.0f)) return OC_FAIL(err, BAD_ARG, 0, "norm.eps: %g is below 0", (double)call->norm.eps);
  OC_TRY(check_module_weights(call, err));
  OC_TRY(check_module_places(call, err));
  return oc__mask_check(&call->mask, call->mask_kind, call->mask_value, err);
}

static oc_status check_module_output(const oc_triattn_module *call, oc_err *err) {
  const oc_linear *const linears[] = {&call->to_q,    &call->to_k,    &call->to_v,
                                      &call->to_bias, &call->to_gate, &call->out_proj};
  static const char *const names[] = {"to_q", "to_k", "to_v", "to_bias", "to_gate", "out_proj"};
  OC_TRY(oc__output_check(&call->y, "y", err));
  if (!oc__same_view(&call->y, &call->x)) OC_TRY(oc__apart_check(&call->y, "y", &call->x, "x", err));
  if (oc_view_is_present(&call->residual) && !oc__same_view(&call->y, &call->residual))
    OC_TRY(oc__apart_check(&call->y, "y", &call->residual, "residual", err));
  OC_TRY(oc__apart_check(&call->y, "y", &call->mask, "mask", err));
  OC_TRY(oc__apart_check(&call->y, "y", &call->norm.weight, "norm.weight", err));
  OC_TRY(oc__apart_check(&call->y, "y", &call->norm.bias, "norm.bias", err));
  for (size_t n = 0; n < sizeof linears / sizeof linears[0]; n++) {
    OC_TRY(oc__apart_check(&call->y, "y", &linears[n]->weight, names[n], err));
    OC_TRY(oc__apart_check(&call->y, "y", &linears[n]->bias, names[n], err));
  }
  return OC_OK;
}

static int is_biased(const oc_triattn_module *call) {
  return oc_view_is_present(&call->to_q.bias) || oc_view_is_present(&call->to_k.bias) ||
         oc_view_is_present(&call->to_v.bias) || oc_view_is_present(&call->to_bias.bias) ||
         oc_view_is_present(&call->to_gate.bias) || oc_view_is_present(&call->out_proj.bias);
}

oc_status oc_triattn_module_class(const oc_triattn_module *call, oc_tier tier, oc_class *out, oc_err *err) {
  OC_TRY(check_module(call, err));
  OC_TRY(oc__class_start(OC_FAMILY_TRIATTN_MODULE, tier, &call->x, out, err));
  if (is_biased(call)) oc__form_add(out, "biased");
  if (oc_view_is_present(&call->to_gate.weight)) oc__form_add(out, "gate");
  oc__form_add(out, oc__mask_word(call->mask_kind));
  if (oc_view_is_present(&call->residual)) oc__form_add(out, "residual");
  if (call->tf32 && call->x.dtype == OC_F32) oc__form_add(out, "tf32");
  if (call->bias_untransposed_end) oc__form_add(out, "untransposed");
  if (!out->form[0]) oc__form_add(out, "plain");
  out->dim[OC_DIM_B] = call->x.shape[0];
  out->dim[OC_DIM_N] = call->x.shape[1];
  out->dim[OC_DIM_H] = call->heads;
  out->dim[OC_DIM_D] = call->to_q.weight.shape[0] / call->heads;
  out->dim[OC_DIM_C] = call->x.shape[3];
  return OC_OK;
}

oc_status oc_triattn_module_serve(const oc_triattn_module *call, const oc_choice *choice, const oc_exec *exec,
                                  oc_err *err) {
  OC_TRY(check_module(call, err));
  OC_TRY(check_module_output(call, err));
  OC_TRY(oc__choice_check(choice, exec, OC_FAMILY_TRIATTN_MODULE, &call->x, "x", err));
  return oc_member_run(choice->member, call, exec, err);
}
