/* SPDX-License-Identifier: Apache-2.0 */
/* transition: checks of a call, its class, and serving. No arithmetic. */
#include "opt_core/transition.h"

#include "devices/cpu/rowset.h"
#include "devices/place.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const activation_words[] = {"swiglu", "sigmoid_glu", "relu"};

static int has_gate(const oc_transition *call) { return call->activation != OC_ACTIVATION_RELU; }

static oc_status check_arithmetic(const oc_view *view, const char *name, oc_err *err) {
  OC_TRY(oc_view_check(view, name, err));
  if (!oc__is_arithmetic(view->dtype))
    return OC_REFUSE(err, DTYPE, "%s=%s, served: f32 bf16 f16 f64", name, oc_dtype_word(view->dtype));
  return OC_OK;
}

static oc_status check_vector(const oc_view *view, const char *name, int64_t length, oc_err *err) {
  if (!oc_view_is_present(view)) return OC_OK;
  OC_TRY(check_arithmetic(view, name, err));
  if (view->rank != 1 || view->shape[0] != length)
    return OC_FAIL(err, BAD_ARG, 0, "%s: rank %" PRId32 ", length %" PRId64 "; wanted rank 1, length %" PRId64, name,
                   view->rank, view->rank > 0 ? view->shape[0] : 1, length);
  return OC_OK;
}

static oc_status check_linear(const oc_linear *linear, const char *weight, const char *bias, int64_t out, int64_t in,
                              oc_err *err) {
  const oc_view *w = &linear->weight;
  OC_TRY(check_arithmetic(w, weight, err));
  if (w->rank != 2 || w->shape[0] != out || w->shape[1] != in)
    return OC_FAIL(err, BAD_ARG, 0,
                   "%s: rank %" PRId32 ", [%" PRId64 ", %" PRId64 "]; wanted [%" PRId64 ", %" PRId64 "]", weight,
                   w->rank, w->shape[0], w->shape[1], out, in);
  return check_vector(&linear->bias, bias, out, err);
}

static oc_status check_shape(const oc_view *view, const char *name, const oc_view *x, int32_t axes, oc_err *err) {
  if (view->rank != axes)
    return OC_FAIL(err, BAD_ARG, 0, "%s: rank %" PRId32 ", wanted %" PRId32, name, view->rank, axes);
  for (int32_t a = 0; a < axes; a++)
    if (view->shape[a] != x->shape[a])
      return OC_FAIL(err, BAD_ARG, 0, "%s: shape[%" PRId32 "] is %" PRId64 ", x has %" PRId64, name, a, view->shape[a],
                     x->shape[a]);
  return OC_OK;
}

static oc_status check_rows(const oc_transition *call, oc_err *err) {
  const oc_view *x = &call->x;
  OC_TRY(check_arithmetic(x, "x", err));
  if (x->rank < 2 || x->rank > 5) return OC_FAIL(err, BAD_ARG, 0, "x: rank %" PRId32 " is outside 2..5", x->rank);
  OC_TRY(check_arithmetic(&call->y, "y", err));
  OC_TRY(check_shape(&call->y, "y", x, x->rank, err));
  if (oc_view_is_present(&call->residual)) {
    OC_TRY(check_arithmetic(&call->residual, "residual", err));
    OC_TRY(check_shape(&call->residual, "residual", x, x->rank, err));
  }
  if (oc_view_is_present(&call->mask)) {
    OC_TRY(oc_view_check(&call->mask, "mask", err));
    OC_TRY(check_shape(&call->mask, "mask", x, x->rank - 1, err));
  }
  return OC_OK;
}

static oc_status check_norm(const oc_norm *norm, int64_t length, oc_err *err) {
  OC_TRY(check_vector(&norm->weight, "norm.weight", length, err));
  OC_TRY(check_vector(&norm->bias, "norm.bias", length, err));
  if (!(norm->eps >= 0.0f) || isinf(norm->eps))
    return OC_FAIL(err, BAD_ARG, 0, "norm.eps: %g is not a finite number from 0 on", (double)norm->eps);
  if (norm->round != OC_DTYPE_NONE && norm->round != OC_F32 && norm->round != OC_BF16 && norm->round != OC_F16)
    return OC_REFUSE(err, DIALECT, "norm.round=%s, served: f32 bf16 f16", oc_dtype_word(norm->round));
  return OC_OK;
}

static oc_status check_weights(const oc_transition *call, oc_err *err) {
  const int64_t c = call->x.shape[call->x.rank - 1];
  if ((int)call->activation < 0 || call->activation > OC_ACTIVATION_RELU)
    return OC_FAIL(err, BAD_ARG, 0, "activation: %d is outside 0..%d", (int)call->activation, (int)OC_ACTIVATION_RELU);
  if (!call->norm_absent) OC_TRY(check_norm(&call->norm, c, err));
  const int64_t hidden = call->up.weight.rank > 0 ? call->up.weight.shape[0] : 0;
  OC_TRY(check_linear(&call->up, "up.weight", "up.bias", hidden, c, err));
  OC_TRY(check_linear(&call->down, "down.weight", "down.bias", c, hidden, err));
  if (has_gate(call)) return check_linear(&call->gate, "gate.weight", "gate.bias", hidden, c, err);
  if (oc_view_is_present(&call->gate.weight) || oc_view_is_present(&call->gate.bias))
    return OC_FAIL(err, BAD_ARG, 0, "gate: present, relu has none");
  return OC_OK;
}

static oc_status check_apart(const oc_view *input, const char *name, const oc_view *y, int may_be_same, oc_err *err) {
  if (!oc_view_is_present(input) || !oc_view_may_overlap(input, y)) return OC_OK;
  if (may_be_same && oc__is_same_view(input, y)) return OC_OK;
  return OC_FAIL(err, BAD_ARG, 0, "y: overlaps %s%s", name, may_be_same ? " and is not the same view" : "");
}

static oc_status check_output(const oc_transition *call, oc_err *err) {
  const oc_view *y = &call->y;
  for (int32_t a = 0; a < y->rank; a++)
    if (y->shape[a] > 1 && y->stride[a] <= 0)
      return OC_FAIL(err, BAD_ARG, 0, "y: stride[%" PRId32 "] is %" PRId64 ", below 1", a, y->stride[a]);
  if (!oc__is_one_to_one(y)) return OC_REFUSE(err, LAYOUT, "y: strides may lead two elements to one place");
  OC_TRY(check_apart(&call->x, "x", y, 1, err));
  OC_TRY(check_apart(&call->residual, "residual", y, 1, err));
  OC_TRY(check_apart(&call->mask, "mask", y, 0, err));
  OC_TRY(check_apart(&call->up.weight, "up.weight", y, 0, err));
  OC_TRY(check_apart(&call->up.bias, "up.bias", y, 0, err));
  OC_TRY(check_apart(&call->gate.weight, "gate.weight", y, 0, err));
  OC_TRY(check_apart(&call->gate.bias, "gate.bias", y, 0, err));
  OC_TRY(check_apart(&call->down.weight, "down.weight", y, 0, err));
  OC_TRY(check_apart(&call->down.bias, "down.bias", y, 0, err));
  if (call->norm_absent) return OC_OK;
  OC_TRY(check_apart(&call->norm.weight, "norm.weight", y, 0, err));
  return check_apart(&call->norm.bias, "norm.bias", y, 0, err);
}

static oc_status check_places(const oc_transition *call, oc_err *err) {
  const oc_view *const others[] = {&call->y,         &call->residual,    &call->mask,      &call->up.weight,
                                   &call->up.bias,   &call->gate.weight, &call->gate.bias, &call->down.weight,
                                   &call->down.bias, &call->norm.weight, &call->norm.bias};
  static const char *const names[] = {"y",         "residual",    "mask",      "up.weight",   "up.bias",  "gate.weight",
                                      "gate.bias", "down.weight", "down.bias", "norm.weight", "norm.bias"};
  const size_t count = sizeof others / sizeof others[0] - (call->norm_absent ? 2 : 0);
  for (size_t n = 0; n < count; n++) OC_TRY(oc__place_check(&call->x, "x", others[n], names[n], err));
  return OC_OK;
}

static oc_status check(const oc_transition *call, oc_err *err) {
  if (!call) return OC_FAIL(err, BAD_ARG, 0, "transition: call is NULL");
  OC_TRY(check_rows(call, err));
  OC_TRY(check_weights(call, err));
  OC_TRY(check_places(call, err));
  return oc_view_count(&call->y) == 0 ? OC_OK : check_output(call, err);
}

/* Words in alphabetical order. */
static void write_form(const oc_transition *call, char *out, size_t out_bytes) {
  const int biased = oc_view_is_present(&call->up.bias) || oc_view_is_present(&call->gate.bias) ||
                     oc_view_is_present(&call->down.bias);
  const char *mask = oc_view_is_present(&call->mask) ? "mask+" : "", *bias = biased ? "biased+" : "";
  const char *activation = activation_words[call->activation];
  if (!oc_view_is_present(&call->residual))
    snprintf(out, out_bytes, "%s%s%s", bias, mask, activation);
  else if (call->activation == OC_ACTIVATION_RELU)
    snprintf(out, out_bytes, "%s%srelu+residual", bias, mask);
  else
    snprintf(out, out_bytes, "%s%sresidual+%s", bias, mask, activation);
}

oc_status oc_transition_class(const oc_transition *call, oc_tier tier, oc_class *out, oc_err *err) {
  if (!out) return OC_FAIL(err, BAD_ARG, 0, "transition: out is NULL");
  OC_TRY(check(call, err));
  oc_class cls = {.family = OC_FAMILY_TRANSITION, .tier = tier, .dtype = call->x.dtype};
  OC_TRY(oc__place_class(&call->x, cls.device, err));
  write_form(call, cls.form, sizeof cls.form);
  cls.dim[OC_DIM_N] = oc__row_count(&call->x, call->x.rank - 1);
  cls.dim[OC_DIM_C] = call->x.shape[call->x.rank - 1];
  cls.dim[OC_DIM_D] = call->up.weight.shape[0];
  *out = cls;
  return OC_OK;
}

oc_status oc_transition_serve(const oc_transition *call, const oc_choice *choice, const oc_exec *exec, oc_err *err) {
  if (!choice || !choice->member) return OC_FAIL(err, BAD_ARG, 0, "transition: no member chosen");
  if (choice->member->family != OC_FAMILY_TRANSITION)
    return OC_FAIL(err, BAD_ARG, 0, "transition: member %s is of family %d", choice->member->name,
                   (int)choice->member->family);
  if (!exec) return OC_FAIL(err, BAD_ARG, 0, "transition: exec is NULL");
  OC_TRY(check(call, err));
  OC_TRY(oc__place_serve(choice->member, exec, &call->x, "x", err));
  return oc_member_run(choice->member, call, exec, err);
}
