/* SPDX-License-Identifier: Apache-2.0 */
/* The specification of transition: straight loops in order, one row at a time. Arithmetic is double where x is F64,
 * float elsewhere. The workspace holds one row: C normalised values, Hid hidden values, C results. */
#include "opt_core/transition.h"

#include "devices/cpu/rowset.h"

#include <inttypes.h>
#include <math.h>

size_t oc__transition_reference_workspace(const void *call, int threads);
oc_status oc__transition_reference(const void *call, const oc_exec *exec, oc_err *err);

static double at(const oc_view *vector, int64_t i, double absent) {
  return oc_view_is_present(vector) ? oc__load1_f64(vector, i * vector->stride[0]) : absent;
}

/* ---- double ------------------------------------------------------------------------------------------------------ */

static void norm_f64(const oc_norm *norm, int64_t n, double *row) {
  double mean = 0.0, variance = 0.0;
  for (int64_t c = 0; c < n && !norm->rms; c++) mean += row[c];
  mean /= (double)n;
  const double center = norm->fast_variance || norm->rms ? 0.0 : mean;
  for (int64_t c = 0; c < n; c++) variance += (row[c] - center) * (row[c] - center);
  variance /= (double)n;
  if (norm->fast_variance && !norm->rms) variance -= mean * mean;
  const double scale = 1.0 / sqrt(variance + (double)norm->eps);
  for (int64_t c = 0; c < n; c++) {
    row[c] = (row[c] - mean) * scale * at(&norm->weight, c, 1.0) + at(&norm->bias, c, 0.0);
    if (norm->round == OC_BF16 || norm->round == OC_F16) row[c] = (double)oc__round_to((float)row[c], norm->round);
  }
}

static double dot_f64(const oc_linear *linear, int64_t out, int64_t n, const double *row) {
  const oc_view *w = &linear->weight;
  double sum = 0.0;
  for (int64_t k = 0; k < n; k++) sum += row[k] * oc__load1_f64(w, out * w->stride[0] + k * w->stride[1]);
  return sum + at(&linear->bias, out, 0.0);
}

static double sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }

static double hidden_f64(const oc_transition *call, int64_t h, int64_t n, const double *row) {
  const double u = dot_f64(&call->up, h, n, row);
  if (call->activation == OC_ACTIVATION_RELU) return u < 0.0 ? 0.0 : u; /* NaN stays */
  const double g = dot_f64(&call->gate, h, n, row);
  return call->activation == OC_ACTIVATION_SWIGLU ? g * sigmoid_f64(g) * u : sigmoid_f64(g) * u;
}

static void row_f64(const oc_transition *call, const int64_t offset[4], double *row) {
  const int32_t last = call->x.rank - 1;
  const int64_t n = call->x.shape[last], hidden_count = call->up.weight.shape[0];
  double *hidden = row + n, *result = hidden + hidden_count;
  for (int64_t c = 0; c < n; c++) row[c] = oc__load1_f64(&call->x, offset[0] + c * call->x.stride[last]);
  if (!call->norm_absent) norm_f64(&call->norm, n, row);
  for (int64_t h = 0; h < hidden_count; h++) hidden[h] = hidden_f64(call, h, n, row);
  for (int64_t c = 0; c < n; c++) {
    result[c] = dot_f64(&call->down, c, hidden_count, hidden);
    if (oc_view_is_present(&call->mask)) result[c] *= oc__load1_f64(&call->mask, offset[2]);
    if (oc_view_is_present(&call->residual))
      result[c] += oc__load1_f64(&call->residual, offset[3] + c * call->residual.stride[last]);
  }
  for (int64_t c = 0; c < n; c++) oc__store1_f64(&call->y, offset[1] + c * call->y.stride[last], result[c]);
}

/* ---- float ------------------------------------------------------------------------------------------------------- */

static void norm_f32(const oc_norm *norm, int64_t n, float *row) {
  float mean = 0.0f, variance = 0.0f;
  for (int64_t c = 0; c < n && !norm->rms; c++) mean += row[c];
  mean /= (float)n;
  const float center = norm->fast_variance || norm->rms ? 0.0f : mean;
  for (int64_t c = 0; c < n; c++) variance += (row[c] - center) * (row[c] - center);
  variance /= (float)n;
  if (norm->fast_variance && !norm->rms) variance -= mean * mean;
  const float scale = 1.0f / sqrtf(variance + norm->eps);
  for (int64_t c = 0; c < n; c++) {
    row[c] = (row[c] - mean) * scale * (float)at(&norm->weight, c, 1.0) + (float)at(&norm->bias, c, 0.0);
    if (norm->round == OC_BF16 || norm->round == OC_F16) row[c] = oc__round_to(row[c], norm->round);
  }
}

static float dot_f32(const oc_linear *linear, int64_t out, int64_t n, const float *row) {
  const oc_view *w = &linear->weight;
  float sum = 0.0f;
  for (int64_t k = 0; k < n; k++) sum += row[k] * oc__load1(w->data, w->dtype, out * w->stride[0] + k * w->stride[1]);
  return sum + (float)at(&linear->bias, out, 0.0);
}

static float sigmoid_f32(float x) { return 1.0f / (1.0f + expf(-x)); }

static float hidden_f32(const oc_transition *call, int64_t h, int64_t n, const float *row) {
  const float u = dot_f32(&call->up, h, n, row);
  if (call->activation == OC_ACTIVATION_RELU) return u < 0.0f ? 0.0f : u;
  const float g = dot_f32(&call->gate, h, n, row);
  return call->activation == OC_ACTIVATION_SWIGLU ? g * sigmoid_f32(g) * u : sigmoid_f32(g) * u;
}

static void row_f32(const oc_transition *call, const int64_t offset[4], float *row) {
  const int32_t last = call->x.rank - 1;
  const int64_t n = call->x.shape[last], hidden_count = call->up.weight.shape[0];
  float *hidden = row + n, *result = hidden + hidden_count;
  for (int64_t c = 0; c < n; c++) row[c] = oc__load1(call->x.data, call->x.dtype, offset[0] + c * call->x.stride[last]);
  if (!call->norm_absent) norm_f32(&call->norm, n, row);
  for (int64_t h = 0; h < hidden_count; h++) hidden[h] = hidden_f32(call, h, n, row);
  for (int64_t c = 0; c < n; c++) {
    result[c] = dot_f32(&call->down, c, hidden_count, hidden);
    if (oc_view_is_present(&call->mask)) result[c] *= oc__load1(call->mask.data, call->mask.dtype, offset[2]);
    if (oc_view_is_present(&call->residual))
      result[c] += oc__load1(call->residual.data, call->residual.dtype, offset[3] + c * call->residual.stride[last]);
  }
  for (int64_t c = 0; c < n; c++) oc__store1_f64(&call->y, offset[1] + c * call->y.stride[last], (double)result[c]);
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

size_t oc__transition_reference_workspace(const void *call, int threads) {
  const oc_transition *t = call;
  (void)threads;
  return (size_t)(2 * t->x.shape[t->x.rank - 1] + t->up.weight.shape[0]) * sizeof(double);
}

oc_status oc__transition_reference(const void *call, const oc_exec *exec, oc_err *err) {
  const oc_transition *t = call;
  const int32_t axes = t->x.rank - 1;
  const size_t need = oc__transition_reference_workspace(call, 1);
  const int64_t rows = oc__row_count(&t->x, axes);
  if (rows == 0 || t->x.shape[axes] == 0) return OC_OK;
  if (!exec->workspace || exec->workspace_bytes < need)
    return OC_FAIL(err, BAD_ARG, 0, "workspace: %zu bytes, %zu needed", exec->workspace ? exec->workspace_bytes : 0,
                   need);
  const oc__rowset x = oc__rowset_of(&t->x, axes), y = oc__rowset_of(&t->y, axes), mask = oc__rowset_of(&t->mask, axes),
                   residual = oc__rowset_of(&t->residual, axes);
  for (int64_t r = 0; r < rows; r++) {
    int64_t offset[4] = {oc__rowset_offset(&x, r), oc__rowset_offset(&y, r), 0, 0};
    if (oc_view_is_present(&t->mask)) offset[2] = oc__rowset_offset(&mask, r);
    if (oc_view_is_present(&t->residual)) offset[3] = oc__rowset_offset(&residual, r);
    if (t->x.dtype == OC_F64)
      row_f64(t, offset, exec->workspace);
    else
      row_f32(t, offset, exec->workspace);
  }
  return OC_OK;
}
