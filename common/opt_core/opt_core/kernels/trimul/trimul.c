/* SPDX-License-Identifier: Apache-2.0 */
#include "trimul/trimul_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "devices/place.h"

#define WORKSPACE_LIMIT ((int64_t)1 << 60) /* floats; more cannot be addressed */

oc__trimul_sizes oc__trimul_sizes_of(const oc_trimul *call) {
  oc__trimul_sizes sizes = {call->x.shape[0], call->x.shape[1], call->x.shape[3], call->a_proj.weight.shape[0]};
  return sizes;
}

const oc_linear *oc__trimul_linear(const oc_trimul *call, int which) {
  const int swapped = call->operands_swapped != 0;
  switch (which) {
  case OC__LEFT_GATE:
    return swapped ? &call->b_gate : &call->a_gate;
  case OC__LEFT_PROJ:
    return swapped ? &call->b_proj : &call->a_proj;
  case OC__RIGHT_GATE:
    return swapped ? &call->a_gate : &call->b_gate;
  case OC__RIGHT_PROJ:
    return swapped ? &call->a_proj : &call->b_proj;
  case OC__OUT_PROJ:
    return &call->out_proj;
  default:
    return &call->out_gate;
  }
}

float oc__trimul_scale(const oc_trimul *call, int right) {
  const int is_b = right != (call->operands_swapped != 0);
  return is_b ? call->right_scale : 1.0f;
}

int oc__trimul_add(int64_t *sum, int64_t f0, int64_t f1, int64_t f2) {
  int64_t product;
  if (__builtin_mul_overflow(f0, f1, &product) || __builtin_mul_overflow(product, f2, &product)) return 0;
  return !__builtin_add_overflow(*sum, product, sum) && *sum <= WORKSPACE_LIMIT;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static int is_real(oc_dtype dtype) { return dtype == OC_F32 || dtype == OC_BF16 || dtype == OC_F16 || dtype == OC_F64; }

static oc_status check_real(const oc_view *view, const char *name, int32_t rank, oc_err *err) {
  OC_TRY(oc_view_check(view, name, err));
  if (view->rank != rank)
    return OC_FAIL(err, BAD_ARG, 0, "%s: rank %" PRId32 ", needs %" PRId32, name, view->rank, rank);
  if (!is_real(view->dtype))
    return OC_FAIL(err, BAD_ARG, 0, "%s: dtype %s, needs f32, bf16, f16 or f64", name, oc_dtype_word(view->dtype));
  return OC_OK;
}

static oc_status check_axis(const oc_view *view, const char *name, int32_t axis, int64_t size, oc_err *err) {
  if (view->shape[axis] == size) return OC_OK;
  return OC_FAIL(err, BAD_ARG, 0, "%s: shape[%" PRId32 "] is %" PRId64 ", needs %" PRId64, name, axis,
                 view->shape[axis], size);
}

static oc_status check_like_x(const oc_trimul *call, const oc_view *view, const char *name, oc_err *err) {
  OC_TRY(check_real(view, name, 4, err));
  for (int32_t axis = 0; axis < 4; axis++) OC_TRY(check_axis(view, name, axis, call->x.shape[axis], err));
  return OC_OK;
}

static oc_status check_vector(const oc_view *view, const char *name, int64_t size, oc_err *err) {
  if (!oc_view_is_present(view)) return OC_OK;
  OC_TRY(check_real(view, name, 1, err));
  return check_axis(view, name, 0, size, err);
}

static oc_status check_linear(const oc_linear *linear, const char *name, int64_t out, int64_t in, oc_err *err) {
  OC_TRY(check_real(&linear->weight, name, 2, err));
  OC_TRY(check_axis(&linear->weight, name, 0, out, err));
  OC_TRY(check_axis(&linear->weight, name, 1, in, err));
  return check_vector(&linear->bias, name, out, err);
}

static oc_status check_norm(const oc_norm *norm, const char *name, int64_t size, oc_err *err) {
  OC_TRY(check_vector(&norm->weight, name, size, err));
  OC_TRY(check_vector(&norm->bias, name, size, err));
  if (!(norm->eps >= 0.0f) || isinf(norm->eps))
    return OC_FAIL(err, BAD_ARG, 0, "%s: eps %g, needs 0 or more", name, (double)norm->eps);
  if (norm->round != OC_DTYPE_NONE && !is_real(norm->round))
    return OC_FAIL(err, BAD_ARG, 0, "%s: round dtype %d is no arithmetic dtype", name, (int)norm->round);
  return OC_OK;
}

static oc_status check_pair(const oc_trimul *call, oc_err *err) {
  OC_TRY(check_real(&call->x, "x", 4, err));
  OC_TRY(check_axis(&call->x, "x", 2, call->x.shape[1], err));
  if (call->x.shape[3] < 1) return OC_FAIL(err, BAD_ARG, 0, "x: C is %" PRId64 ", needs 1 or more", call->x.shape[3]);
  OC_TRY(check_like_x(call, &call->y, "y", err));
  for (int32_t axis = 0; axis < 4; axis++)
    if (call->y.shape[axis] > 1 && call->y.stride[axis] < 1)
      return OC_FAIL(err, BAD_ARG, 0, "y: stride[%" PRId32 "] is %" PRId64 ", an output needs 1 or more", axis,
                     call->y.stride[axis]);
  if (oc_view_is_present(&call->residual)) OC_TRY(check_like_x(call, &call->residual, "residual", err));
  if (!oc_view_is_present(&call->mask)) return OC_OK;
  OC_TRY(oc_view_check(&call->mask, "mask", err));
  if (call->mask.rank != 3) return OC_FAIL(err, BAD_ARG, 0, "mask: rank %" PRId32 ", needs 3", call->mask.rank);
  for (int32_t axis = 0; axis < 3; axis++) OC_TRY(check_axis(&call->mask, "mask", axis, call->x.shape[axis], err));
  return OC_OK;
}

static oc_status check_parameters(const oc_trimul *call, oc_err *err) {
  const int64_t c = call->x.shape[3];
  OC_TRY(check_real(&call->a_proj.weight, "a_proj", 2, err));
  const int64_t d = call->a_proj.weight.shape[0];
  if (d < 1) return OC_FAIL(err, BAD_ARG, 0, "a_proj: Ch is %" PRId64 ", needs 1 or more", d);
  OC_TRY(check_linear(&call->a_proj, "a_proj", d, c, err));
  OC_TRY(check_linear(&call->a_gate, "a_gate", d, c, err));
  OC_TRY(check_linear(&call->b_proj, "b_proj", d, c, err));
  OC_TRY(check_linear(&call->b_gate, "b_gate", d, c, err));
  OC_TRY(check_linear(&call->out_proj, "out_proj", c, d, err));
  OC_TRY(check_linear(&call->out_gate, "out_gate", c, c, err));
  OC_TRY(check_norm(&call->norm_in, "norm_in", c, err));
  return check_norm(&call->norm_out, "norm_out", d, err);
}

static oc_status check_places(const oc_trimul *call, oc_err *err) {
  static const char *const names[OC__LINEAR_COUNT] = {"a_gate", "a_proj", "b_gate", "b_proj", "out_proj", "out_gate"};
  const oc_linear *linears[OC__LINEAR_COUNT] = {&call->a_gate, &call->a_proj,   &call->b_gate,
                                                &call->b_proj, &call->out_proj, &call->out_gate};
  OC_TRY(oc__place_check(&call->x, "x", &call->y, "y", err));
  OC_TRY(oc__place_check(&call->x, "x", &call->residual, "residual", err));
  OC_TRY(oc__place_check(&call->x, "x", &call->mask, "mask", err));
  OC_TRY(oc__place_check(&call->x, "x", &call->norm_in.weight, "norm_in", err));
  OC_TRY(oc__place_check(&call->x, "x", &call->norm_in.bias, "norm_in", err));
  OC_TRY(oc__place_check(&call->x, "x", &call->norm_out.weight, "norm_out", err));
  OC_TRY(oc__place_check(&call->x, "x", &call->norm_out.bias, "norm_out", err));
  for (int i = 0; i < OC__LINEAR_COUNT; i++) {
    OC_TRY(oc__place_check(&call->x, "x", &linears[i]->weight, names[i], err));
    OC_TRY(oc__place_check(&call->x, "x", &linears[i]->bias, names[i], err));
  }
  return OC_OK;
}

static oc_status check_options(const oc_trimul *call, oc_err *err) {
  if (call->direction != OC_OUTGOING && call->direction != OC_INCOMING)
    return OC_FAIL(err, BAD_ARG, 0, "direction: %d is neither outgoing (0) nor incoming (1)", (int)call->direction);
  if (call->operands_swapped && call->direction == OC_OUTGOING)
    return OC_FAIL(err, BAD_ARG, 0, "operands_swapped: %d, incoming only", call->operands_swapped);
  if (!isfinite(call->right_scale) || call->right_scale == 0.0f)
    return OC_FAIL(err, BAD_ARG, 0, "right_scale: %g, needs a finite number other than 0", (double)call->right_scale);
  if (call->product != OC_DTYPE_NONE && !is_real(call->product))
    return OC_FAIL(err, BAD_ARG, 0, "product: dtype %d is no arithmetic dtype", (int)call->product);
  return OC_OK;
}

static int is_same_view(const oc_view *a, const oc_view *b) {
  if (a->data != b->data || a->dtype != b->dtype || a->rank != b->rank) return 0;
  for (int32_t axis = 0; axis < a->rank; axis++)
    if (a->shape[axis] != b->shape[axis] || (a->shape[axis] > 1 && a->stride[axis] != b->stride[axis])) return 0;
  return 1;
}

static oc_status check_overlap(const oc_trimul *call, const oc_view *input, const char *name, int may_be_y,
                               oc_err *err) {
  if (!oc_view_is_present(input) || !oc_view_may_overlap(&call->y, input)) return OC_OK;
  if (may_be_y && is_same_view(&call->y, input)) return OC_OK;
  return OC_FAIL(err, BAD_ARG, 0, "y overlaps %s%s", name, may_be_y ? " without being the same view" : "");
}

static oc_status check_overlaps(const oc_trimul *call, oc_err *err) {
  static const char *const names[OC__LINEAR_COUNT] = {"a_gate", "a_proj", "b_gate", "b_proj", "out_proj", "out_gate"};
  const oc_linear *linears[OC__LINEAR_COUNT] = {&call->a_gate, &call->a_proj,   &call->b_gate,
                                                &call->b_proj, &call->out_proj, &call->out_gate};
  OC_TRY(check_overlap(call, &call->x, "x", 1, err));
  OC_TRY(check_overlap(call, &call->residual, "residual", 1, err));
  OC_TRY(check_overlap(call, &call->mask, "mask", 0, err));
  OC_TRY(check_overlap(call, &call->norm_in.weight, "norm_in", 0, err));
  OC_TRY(check_overlap(call, &call->norm_in.bias, "norm_in", 0, err));
  OC_TRY(check_overlap(call, &call->norm_out.weight, "norm_out", 0, err));
  OC_TRY(check_overlap(call, &call->norm_out.bias, "norm_out", 0, err));
  for (int i = 0; i < OC__LINEAR_COUNT; i++) {
    OC_TRY(check_overlap(call, &linears[i]->weight, names[i], 0, err));
    OC_TRY(check_overlap(call, &linears[i]->bias, names[i], 0, err));
  }
  return OC_OK;
}

oc_status oc__trimul_check(const oc_trimul *call, oc_err *err) {
  OC_TRY(check_pair(call, err));
  OC_TRY(check_parameters(call, err));
  OC_TRY(check_options(call, err));
  OC_TRY(check_places(call, err));
  return check_overlaps(call, err);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static oc_status admit_dtype(const oc_view *view, const char *name, oc_err *err) {
  if (!oc_view_is_present(view) || view->dtype != OC_F64) return OC_OK;
  return OC_REFUSE(err, DTYPE, "%s is f64, served are f32 bf16 f16", name);
}

static oc_status admit_narrow(const oc_trimul *call, oc_err *err) {
  OC_TRY(admit_dtype(&call->x, "x", err));
  OC_TRY(admit_dtype(&call->y, "y", err));
  OC_TRY(admit_dtype(&call->residual, "residual", err));
  for (int i = 0; i < OC__LINEAR_COUNT; i++) {
    OC_TRY(admit_dtype(&oc__trimul_linear(call, i)->weight, "a weight", err));
    OC_TRY(admit_dtype(&oc__trimul_linear(call, i)->bias, "a bias", err));
  }
  OC_TRY(admit_dtype(&call->norm_in.weight, "norm_in", err));
  OC_TRY(admit_dtype(&call->norm_in.bias, "norm_in", err));
  OC_TRY(admit_dtype(&call->norm_out.weight, "norm_out", err));
  OC_TRY(admit_dtype(&call->norm_out.bias, "norm_out", err));
  if (call->product == OC_F64) return OC_REFUSE(err, DIALECT, "product f64, served are f32 bf16 f16");
  if (call->norm_in.round == OC_F64 || call->norm_out.round == OC_F64)
    return OC_REFUSE(err, DIALECT, "norm rounded to f64, served are f32 bf16 f16");
  return OC_OK;
}

/* Elements of y that share memory would be written by two threads. Axes sorted by stride must each clear the span of
 * the smaller ones; that is sufficient, and necessary for every layout that a framework makes. */
static oc_status admit_output(const oc_view *y, oc_err *err) {
  int order[4] = {0, 1, 2, 3};
  for (int i = 1; i < 4; i++)
    for (int j = i; j > 0 && y->stride[order[j]] < y->stride[order[j - 1]]; j--) {
      int t = order[j];
      order[j] = order[j - 1];
      order[j - 1] = t;
    }
  int64_t span = 0; /* the farthest element of the axes seen so far; oc_view_check keeps it within 64 bits */
  for (int i = 0; i < 4; i++) {
    const int axis = order[i];
    if (y->shape[axis] < 2) continue;
    if (y->stride[axis] <= span)
      return OC_REFUSE(err, LAYOUT, "y: stride[%d] is %" PRId64 ", elements overlap below %" PRId64, axis,
                       y->stride[axis], span + 1);
    span += (y->shape[axis] - 1) * y->stride[axis];
  }
  return OC_OK;
}

oc_status oc__trimul_admit(const oc_trimul *call, int is_wide, oc_err *err) {
  if (!is_wide) OC_TRY(admit_narrow(call, err));
  return oc_view_count(&call->y) == 0 ? OC_OK : admit_output(&call->y, err);
}

oc_status oc__trimul_room(const oc_trimul *call, const oc_exec *exec, size_t need, oc_err *err) {
  if (need == SIZE_MAX)
    return OC_REFUSE(err, SHAPE, "N %" PRId64 " C %" PRId64 " Ch %" PRId64 " need more scratch than 2^60 floats",
                     call->x.shape[1], call->x.shape[3], call->a_proj.weight.shape[0]);
  if (need == 0) return OC_OK;
  if (!exec->workspace || exec->workspace_bytes < need)
    return OC_FAIL(err, BAD_ARG, 0, "workspace: %zu bytes, needs %zu", exec->workspace ? exec->workspace_bytes : 0,
                   need);
  if ((uintptr_t)exec->workspace % 64 != 0)
    return OC_FAIL(err, BAD_ARG, 0, "workspace: address is %d past a multiple of 64",
                   (int)((uintptr_t)exec->workspace % 64));
  return OC_OK;
}

/* ---- class and serving ------------------------------------------------------------------------------------------- */

static int has_bias(const oc_trimul *call) {
  for (int i = 0; i < OC__LINEAR_COUNT; i++)
    if (oc_view_is_present(&oc__trimul_linear(call, i)->bias)) return 1;
  return 0;
}

/* The words in alphabetical order; all that can be on together are 44 bytes. */
static void form_of(const oc_trimul *call, char *form, size_t form_bytes) {
  const struct {
    const char *word;
    int is_on;
  } words[] = {{"biased", has_bias(call)},
               {"incoming", call->direction == OC_INCOMING},
               {"mask", oc_view_is_present(&call->mask)},
               {"outgoing", call->direction == OC_OUTGOING},
               {"residual", oc_view_is_present(&call->residual)},
               {"scaled", call->right_scale != 1.0f},
               {"swapped", call->operands_swapped != 0}};
  size_t used = 0;
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (words[i].is_on)
      used += (size_t)snprintf(form + used, form_bytes - used, "%s%s", used ? "+" : "", words[i].word);
}

oc_status oc_trimul_class(const oc_trimul *call, oc_tier tier, oc_class *out, oc_err *err) {
  if (!call || !out) return OC_FAIL(err, BAD_ARG, 0, "trimul: %s is NULL", call ? "out" : "call");
  if ((int)tier < 0 || tier >= OC_TIER_COUNT)
    return OC_FAIL(err, BAD_ARG, 0, "tier: %d is outside 0..%d", (int)tier, OC_TIER_COUNT - 1);
  OC_TRY(oc__trimul_check(call, err));
  const oc__trimul_sizes sizes = oc__trimul_sizes_of(call);
  memset(out, 0, sizeof *out);
  out->family = OC_FAMILY_TRIMUL;
  out->tier = tier;
  out->dtype = call->x.dtype;
  form_of(call, out->form, sizeof out->form);
  out->dim[OC_DIM_B] = sizes.b;
  out->dim[OC_DIM_N] = sizes.n;
  out->dim[OC_DIM_C] = sizes.c;
  out->dim[OC_DIM_D] = sizes.d;
  return oc__place_class(&call->x, out->device, err);
}

oc_status oc_trimul_serve(const oc_trimul *call, const oc_choice *choice, const oc_exec *exec, oc_err *err) {
  if (!call || !exec) return OC_FAIL(err, BAD_ARG, 0, "trimul: %s is NULL", call ? "exec" : "call");
  if (!choice || !choice->member) return OC_FAIL(err, BAD_ARG, 0, "trimul: no member was chosen");
  if (choice->member->family != OC_FAMILY_TRIMUL)
    return OC_FAIL(err, BAD_ARG, 0, "trimul: member %s is of family %d", choice->member->name,
                   (int)choice->member->family);
  OC_TRY(oc__trimul_check(call, err));
  OC_TRY(oc__place_serve(choice->member, exec, &call->x, "x", err));
  return oc_member_run(choice->member, call, exec, err);
}
