/* SPDX-License-Identifier: Apache-2.0 */
/* ln: checks of a call, its class, and serving. No arithmetic. */
#include "opt_core/ln.h"

#include "devices/cpu/rowset.h"
#include "devices/place.h"

#include <inttypes.h>
#include <stdio.h>

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

static oc_status check_same_shape(const oc_view *x, const oc_view *y, oc_err *err) {
  if (x->rank < 1 || x->rank > 5) return OC_FAIL(err, BAD_ARG, 0, "x: rank %" PRId32 " is outside 1..5", x->rank);
  if (y->rank != x->rank) return OC_FAIL(err, BAD_ARG, 0, "y: rank %" PRId32 ", x has %" PRId32, y->rank, x->rank);
  for (int32_t a = 0; a < x->rank; a++)
    if (y->shape[a] != x->shape[a])
      return OC_FAIL(err, BAD_ARG, 0, "y: shape[%" PRId32 "] is %" PRId64 ", x has %" PRId64, a, y->shape[a],
                     x->shape[a]);
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

static oc_status check_output(const oc_ln *call, oc_err *err) {
  const oc_view *y = &call->y;
  for (int32_t a = 0; a < y->rank; a++)
    if (y->shape[a] > 1 && y->stride[a] <= 0)
      return OC_FAIL(err, BAD_ARG, 0, "y: stride[%" PRId32 "] is %" PRId64 ", below 1", a, y->stride[a]);
  if (!oc__is_one_to_one(y)) return OC_REFUSE(err, LAYOUT, "y: strides may lead two elements to one place");
  if (oc_view_may_overlap(&call->x, y) && !oc__is_same_view(&call->x, y))
    return OC_FAIL(err, BAD_ARG, 0, "y: overlaps x and is not x itself");
  if (oc_view_is_present(&call->norm.weight) && oc_view_may_overlap(&call->norm.weight, y))
    return OC_FAIL(err, BAD_ARG, 0, "y: overlaps norm.weight");
  if (oc_view_is_present(&call->norm.bias) && oc_view_may_overlap(&call->norm.bias, y))
    return OC_FAIL(err, BAD_ARG, 0, "y: overlaps norm.bias");
  return OC_OK;
}

static oc_status check(const oc_ln *call, oc_err *err) {
  if (!call) return OC_FAIL(err, BAD_ARG, 0, "ln: call is NULL");
  OC_TRY(check_arithmetic(&call->x, "x", err));
  OC_TRY(check_arithmetic(&call->y, "y", err));
  OC_TRY(check_same_shape(&call->x, &call->y, err));
  OC_TRY(check_norm(&call->norm, call->x.shape[call->x.rank - 1], err));
  OC_TRY(oc__place_check(&call->x, "x", &call->y, "y", err));
  OC_TRY(oc__place_check(&call->x, "x", &call->norm.weight, "norm.weight", err));
  OC_TRY(oc__place_check(&call->x, "x", &call->norm.bias, "norm.bias", err));
  return oc_view_count(&call->y) == 0 ? OC_OK : check_output(call, err);
}

oc_status oc_ln_class(const oc_ln *call, oc_tier tier, oc_class *out, oc_err *err) {
  if (!out) return OC_FAIL(err, BAD_ARG, 0, "ln: out is NULL");
  OC_TRY(check(call, err));
  oc_class cls = {.family = OC_FAMILY_LN, .tier = tier, .dtype = call->x.dtype};
  const int affine = oc_view_is_present(&call->norm.weight) || oc_view_is_present(&call->norm.bias);
  OC_TRY(oc__place_class(&call->x, cls.device, err));
  snprintf(cls.form, sizeof cls.form, "%s%s", affine ? "affine" : "plain", call->norm.rms ? "+rms" : "");
  cls.dim[OC_DIM_N] = oc__row_count(&call->x, call->x.rank - 1);
  cls.dim[OC_DIM_C] = call->x.shape[call->x.rank - 1];
  *out = cls;
  return OC_OK;
}

oc_status oc_ln_serve(const oc_ln *call, const oc_choice *choice, const oc_exec *exec, oc_err *err) {
  if (!choice || !choice->member) return OC_FAIL(err, BAD_ARG, 0, "ln: no member chosen");
  if (choice->member->family != OC_FAMILY_LN)
    return OC_FAIL(err, BAD_ARG, 0, "ln: member %s is of family %d", choice->member->name, (int)choice->member->family);
  if (!exec) return OC_FAIL(err, BAD_ARG, 0, "ln: exec is NULL");
  OC_TRY(check(call, err));
  OC_TRY(oc__place_serve(choice->member, exec, &call->x, "x", err));
  return oc_member_run(choice->member, call, exec, err);
}
