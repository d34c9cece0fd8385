/* SPDX-License-Identifier: Apache-2.0 */
/* The specification of ln: straight loops in order. Arithmetic is double where x is F64, float elsewhere. */
#include "opt_core/ln.h"

#include "devices/cpu/rowset.h"

#include <math.h>

size_t oc__ln_reference_workspace(const void *call, int threads);
oc_status oc__ln_reference(const void *call, const oc_exec *exec, oc_err *err);

static double value_or(const oc_view *vector, int64_t c, double absent) {
  return oc_view_is_present(vector) ? oc__load1_f64(vector, c * vector->stride[0]) : absent;
}

static void row_f64(const oc_ln *call, int64_t x_offset, int64_t y_offset) {
  const oc_view *x = &call->x, *y = &call->y;
  const oc_norm *norm = &call->norm;
  const int32_t last = x->rank - 1;
  const int64_t n = x->shape[last], step = x->stride[last];
  double mean = 0.0, variance = 0.0;
  if (!norm->rms) {
    for (int64_t c = 0; c < n; c++) mean += oc__load1_f64(x, x_offset + c * step);
    mean /= (double)n;
  }
  const double center = norm->fast_variance || norm->rms ? 0.0 : mean;
  for (int64_t c = 0; c < n; c++) {
    const double d = oc__load1_f64(x, x_offset + c * step) - center;
    variance += d * d;
  }
  variance /= (double)n;
  if (norm->fast_variance && !norm->rms) variance -= mean * mean;
  const double scale = 1.0 / sqrt(variance + (double)norm->eps);
  for (int64_t c = 0; c < n; c++) {
    double v = (oc__load1_f64(x, x_offset + c * step) - mean) * scale;
    v = v * value_or(&norm->weight, c, 1.0) + value_or(&norm->bias, c, 0.0);
    if (norm->round == OC_BF16 || norm->round == OC_F16) v = (double)oc__round_to((float)v, norm->round);
    oc__store1_f64(y, y_offset + c * y->stride[last], v);
  }
}

static void row_f32(const oc_ln *call, int64_t x_offset, int64_t y_offset) {
  const oc_view *x = &call->x, *y = &call->y;
  const oc_norm *norm = &call->norm;
  const int32_t last = x->rank - 1;
  const int64_t n = x->shape[last], step = x->stride[last];
  float mean = 0.0f, variance = 0.0f;
  if (!norm->rms) {
    for (int64_t c = 0; c < n; c++) mean += oc__load1(x->data, x->dtype, x_offset + c * step);
    mean /= (float)n;
  }
  const float center = norm->fast_variance || norm->rms ? 0.0f : mean;
  for (int64_t c = 0; c < n; c++) {
    const float d = oc__load1(x->data, x->dtype, x_offset + c * step) - center;
    variance += d * d;
  }
  variance /= (float)n;
  if (norm->fast_variance && !norm->rms) variance -= mean * mean;
  const float scale = 1.0f / sqrtf(variance + norm->eps);
  for (int64_t c = 0; c < n; c++) {
    float v = (oc__load1(x->data, x->dtype, x_offset + c * step) - mean) * scale;
    v = v * (float)value_or(&norm->weight, c, 1.0) + (float)value_or(&norm->bias, c, 0.0);
    if (norm->round == OC_BF16 || norm->round == OC_F16) v = oc__round_to(v, norm->round);
    oc__store1_f64(y, y_offset + c * y->stride[last], (double)v);
  }
}

size_t oc__ln_reference_workspace(const void *call, int threads) {
  (void)call, (void)threads;
  return 0;
}

/* y may be x: a row's statistics are taken before its first value is written, and each value is read before it is. */
oc_status oc__ln_reference(const void *call, const oc_exec *exec, oc_err *err) {
  const oc_ln *ln = call;
  (void)exec, (void)err;
  const int32_t axes = ln->x.rank - 1;
  const oc__rowset x_rows = oc__rowset_of(&ln->x, axes), y_rows = oc__rowset_of(&ln->y, axes);
  const int64_t rows = oc__row_count(&ln->x, axes);
  if (ln->x.shape[axes] == 0) return OC_OK;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t x_offset = oc__rowset_offset(&x_rows, r), y_offset = oc__rowset_offset(&y_rows, r);
    if (ln->x.dtype == OC_F64)
      row_f64(ln, x_offset, y_offset);
    else
      row_f32(ln, x_offset, y_offset);
  }
  return OC_OK;
}
