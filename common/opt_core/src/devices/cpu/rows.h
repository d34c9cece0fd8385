/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of strided, typed memory to and from f32 scratch. `stride` counts elements. */
#ifndef OC_ROWS_H
#define OC_ROWS_H

#include "devices/cpu/simd.h"
#include "opt_core/module.h"

OC_INLINE const char *oc__at(const oc_view *view, int64_t offset) {
  return (const char *)view->data + offset * (int64_t)oc_dtype_bytes(view->dtype);
}

/* One value as f32; any dtype of OC_DTYPE_LIST (masks included). */
OC_INLINE float oc__load1(const void *base, oc_dtype dtype, int64_t offset) {
  switch (dtype) {
  case OC_F32:
    return ((const float *)base)[offset];
  case OC_BF16:
    return oc__from_bf16(((const uint16_t *)base)[offset]);
  case OC_F16:
    return oc__from_f16(((const uint16_t *)base)[offset]);
  case OC_F64:
    return (float)((const double *)base)[offset];
  case OC_BOOL:
    return ((const uint8_t *)base)[offset] != 0 ? 1.0f : 0.0f;
  case OC_U8:
    return (float)((const uint8_t *)base)[offset];
  case OC_I32:
    return (float)((const int32_t *)base)[offset];
  case OC_I64:
    return (float)((const int64_t *)base)[offset];
  default:
    return 0.0f;
  }
}

/* out[0, n) = row of n values starting at element `offset` of view's memory, `stride` elements apart. */
OC_INLINE void oc__row_load(const oc_view *view, int64_t offset, int64_t stride, int64_t n, float *out) {
  int64_t i = 0;
  if (stride == 1 && view->dtype == OC_F32) {
    memcpy(out, (const float *)view->data + offset, (size_t)n * sizeof(float));
    return;
  }
  if (stride == 1 && view->dtype == OC_BF16) {
    const uint16_t *p = (const uint16_t *)view->data + offset;
    for (; i + OC_VL <= n; i += OC_VL) vf_store(out + i, vf_bf16(p + i));
    for (; i < n; i++) out[i] = oc__from_bf16(p[i]);
    return;
  }
  if (stride == 1 && view->dtype == OC_F16) {
    const uint16_t *p = (const uint16_t *)view->data + offset;
    for (; i + OC_VL <= n; i += OC_VL) vf_store(out + i, vf_f16(p + i));
    for (; i < n; i++) out[i] = oc__from_f16(p[i]);
    return;
  }
  for (; i < n; i++) out[i] = oc__load1(view->data, view->dtype, offset + i * stride);
}

OC_INLINE float oc__round_to(float value, oc_dtype dtype) {
  if (dtype == OC_BF16) return oc__from_bf16(oc__to_bf16(value));
  if (dtype == OC_F16) return oc__from_f16(oc__to_f16(value));
  return value;
}

/* Writes n f32 values as a row of view's dtype (F32, BF16 or F16), each rounded once. */
OC_INLINE void oc__row_store(const oc_view *view, int64_t offset, int64_t stride, int64_t n, const float *in) {
  if (view->dtype == OC_F32) {
    float *p = (float *)view->data + offset;
    if (stride == 1)
      memcpy(p, in, (size_t)n * sizeof(float));
    else
      for (int64_t i = 0; i < n; i++) p[i * stride] = in[i];
    return;
  }
  uint16_t *p = (uint16_t *)view->data + offset;
  if (view->dtype == OC_BF16 && stride == 1)
    for (int64_t i = 0; i < n; i++) p[i] = oc__to_bf16(in[i]);
  else if (view->dtype == OC_BF16)
    for (int64_t i = 0; i < n; i++) p[i * stride] = oc__to_bf16(in[i]);
  else
    for (int64_t i = 0; i < n; i++) p[i * stride] = oc__to_f16(in[i]);
}

/* A vector parameter (weight or bias of length n) as f32; `absent` where the view is. */
OC_INLINE void oc__vector_load(const oc_view *view, int64_t n, float absent, float *out) {
  if (!oc_view_is_present(view)) {
    for (int64_t i = 0; i < n; i++) out[i] = absent;
    return;
  }
  oc__row_load(view, 0, view->stride[0], n, out);
}

/* out = normalised row of n f32 values (out may be row itself): passes over registers or L1, or the one-pass statistics
 * where the dialect asks. weight and bias are f32 vectors. Sums run in OC_VL lanes, then across lanes: the order
 * depends on n only. The second pass also corrects the mean, so that a constant row gives the bias exactly. */
OC_INLINE void oc__row_norm_into(const float *row, float *out, int64_t n, const oc_norm *norm, const float *weight,
                                 const float *bias) {
  const float count = (float)n;
  vf sum = vf_zero(), squares = vf_zero();
  float mean = 0.0f, variance;
  int64_t i;
  if (!norm->rms) {
    for (i = 0; i + OC_VL <= n; i += OC_VL) sum = vf_add(sum, vf_load(row + i));
    if (i < n) sum = vf_add(sum, vf_load_n(row + i, (int)(n - i)));
    mean = vf_sum(sum) / count;
  }
  if (norm->fast_variance || norm->rms) {
    for (i = 0; i + OC_VL <= n; i += OC_VL) squares = vf_fma(vf_load(row + i), vf_load(row + i), squares);
    if (i < n) {
      vf x = vf_load_n(row + i, (int)(n - i));
      squares = vf_fma(x, x, squares);
    }
    variance = vf_sum(squares) / count - mean * mean;
  } else {
    const vf m = vf_set(mean);
    float rest = 0.0f, rest_squares = 0.0f;
    sum = vf_zero();
    for (i = 0; i + OC_VL <= n; i += OC_VL) {
      const vf d = vf_sub(vf_load(row + i), m);
      sum = vf_add(sum, d);
      squares = vf_fma(d, d, squares);
    }
    for (; i < n; i++) {
      const float d = row[i] - mean;
      rest += d;
      rest_squares += d * d;
    }
    const float shift = (vf_sum(sum) + rest) / count; /* what rounding left in the mean */
    const float excess = shift * shift;
    variance = (vf_sum(squares) + rest_squares) / count;
    if (excess < variance)
      variance -= excess;
    else if (excess < INFINITY)
      variance = 0.0f; /* all values equal, or nearly; a NaN stays */
    mean += shift;
  }
  const float scale = 1.0f / sqrtf(variance + norm->eps);
  const vf m = vf_set(mean), s = vf_set(scale);
  for (i = 0; i + OC_VL <= n; i += OC_VL) {
    vf y = vf_mul(vf_sub(vf_load(row + i), m), s);
    vf_store(out + i, vf_fma(y, vf_load(weight + i), vf_load(bias + i)));
  }
  for (; i < n; i++) out[i] = (row[i] - mean) * scale * weight[i] + bias[i];
  if (norm->round == OC_BF16 || norm->round == OC_F16)
    for (i = 0; i < n; i++) out[i] = oc__round_to(out[i], norm->round);
}

/* The same in place. */
OC_INLINE void oc__row_norm(float *row, int64_t n, const oc_norm *norm, const float *weight, const float *bias) {
  oc__row_norm_into(row, row, n, norm, weight, bias);
}

#endif
