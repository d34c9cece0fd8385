/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a view: all axes but the last, numbered in row-major order, whatever the strides are. */
#ifndef OC_ROWSET_H
#define OC_ROWSET_H

#include "devices/cpu/gemm.h"

/* Leading axes with neighbours merged where one stride covers both; a dense tensor has one axis. */
typedef struct oc__rowset {
  int axes;
  int64_t shape[OC_MAX_RANK], stride[OC_MAX_RANK];
} oc__rowset;

/* The first `axes` axes of the view. */
OC_INLINE oc__rowset oc__rowset_of(const oc_view *view, int32_t axes) {
  oc__rowset set = {0};
  for (int32_t a = 0; a < axes && a < OC_MAX_RANK; a++) {
    if (view->shape[a] == 1) continue;
    if (set.axes > 0 && set.stride[set.axes - 1] == view->shape[a] * view->stride[a]) {
      set.shape[set.axes - 1] *= view->shape[a];
      set.stride[set.axes - 1] = view->stride[a];
      continue;
    }
    set.shape[set.axes] = view->shape[a];
    set.stride[set.axes++] = view->stride[a];
  }
  return set;
}

/* Element offset of row `row`. */
OC_INLINE int64_t oc__rowset_offset(const oc__rowset *set, int64_t row) {
  int64_t offset = 0;
  for (int a = set->axes - 1; a > 0; a--) {
    offset += row % set->shape[a] * set->stride[a];
    row /= set->shape[a];
  }
  return set->axes > 0 ? offset + row * set->stride[0] : 0;
}

OC_INLINE int64_t oc__row_count(const oc_view *view, int32_t axes) {
  int64_t rows = 1;
  for (int32_t a = 0; a < axes; a++) rows *= view->shape[a];
  return rows;
}

/* True where the last axis lies far apart and the rows close together: then whole columns are copied. */
OC_INLINE int oc__is_channel_major(const oc_view *view, const oc__rowset *set) {
  return view->dtype == OC_F32 && view->stride[view->rank - 1] != 1 && set->axes == 1 && set->stride[0] == 1;
}

/* out[r * ld + c] = row row0 + r of the view as f32, for r in [0, count). */
OC_INLINE void oc__rows_load(const oc_view *view, const oc__rowset *set, int64_t row0, int64_t count, float *out,
                             int64_t ld) {
  const int64_t n = view->shape[view->rank - 1], stride = view->stride[view->rank - 1];
  if (oc__is_channel_major(view, set)) {
    oc__transpose(n, count, (const float *)view->data + row0, stride, out, ld);
    return;
  }
  for (int64_t r = 0; r < count; r++) oc__row_load(view, oc__rowset_offset(set, row0 + r), stride, n, out + r * ld);
}

/* The way back: each value is rounded once to the view's dtype. */
OC_INLINE void oc__rows_store(const oc_view *view, const oc__rowset *set, int64_t row0, int64_t count, const float *in,
                              int64_t ld) {
  const int64_t n = view->shape[view->rank - 1], stride = view->stride[view->rank - 1];
  if (oc__is_channel_major(view, set)) {
    oc__transpose(count, n, in, ld, (float *)view->data + row0, stride);
    return;
  }
  for (int64_t r = 0; r < count; r++) oc__row_store(view, oc__rowset_offset(set, row0 + r), stride, n, in + r * ld);
}

/* ---- the specification's loads and stores: one value, double or float -------------------------------------------- */

OC_INLINE double oc__load1_f64(const oc_view *view, int64_t offset) {
  if (view->dtype == OC_F64) return ((const double *)view->data)[offset];
  return (double)oc__load1(view->data, view->dtype, offset);
}

/* F64 keeps the double; a narrower dtype rounds from f32. */
OC_INLINE void oc__store1_f64(const oc_view *view, int64_t offset, double value) {
  switch (view->dtype) {
  case OC_F64:
    ((double *)view->data)[offset] = value;
    break;
  case OC_F32:
    ((float *)view->data)[offset] = (float)value;
    break;
  case OC_BF16:
    ((uint16_t *)view->data)[offset] = oc__to_bf16((float)value);
    break;
  case OC_F16:
    ((uint16_t *)view->data)[offset] = oc__to_f16((float)value);
    break;
  default:
    break;
  }
}

/* ---- checks that families with one row of output per row of input share ------------------------------------------ */

/* True when no two elements of an output can be the same memory: every stride steps over all that the smaller ones
 * reach. (Some harmless interleavings fail too; no caller makes them.) */
OC_INLINE int oc__is_one_to_one(const oc_view *view) {
  int64_t reach = 0; /* highest offset that the axes seen so far can make */
  int seen[OC_MAX_RANK] = {0};
  for (int32_t step = 0; step < view->rank; step++) {
    int32_t least = -1;
    for (int32_t a = 0; a < view->rank; a++)
      if (!seen[a] && (least < 0 || view->stride[a] < view->stride[least])) least = a;
    seen[least] = 1;
    if (view->shape[least] <= 1) continue;
    if (view->stride[least] <= reach) return 0;
    reach += (view->shape[least] - 1) * view->stride[least];
  }
  return 1;
}

OC_INLINE int oc__is_same_view(const oc_view *a, const oc_view *b) {
  if (a->data != b->data || a->dtype != b->dtype || a->rank != b->rank) return 0;
  for (int32_t i = 0; i < a->rank; i++)
    if (a->shape[i] != b->shape[i] || (a->shape[i] > 1 && a->stride[i] != b->stride[i])) return 0;
  return 1;
}

OC_INLINE int oc__is_arithmetic(oc_dtype dtype) {
  return dtype == OC_F32 || dtype == OC_BF16 || dtype == OC_F16 || dtype == OC_F64;
}

#endif
