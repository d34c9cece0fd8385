/* SPDX-License-Identifier: Apache-2.0 */
#include "opt_core/tensor.h"

#include <inttypes.h>

static const struct {
  const char *word;
  size_t bytes;
} dtypes[OC_DTYPE_COUNT] = {{"none", 0},
#define X(id, word, bytes) {word, bytes},
                            OC_DTYPE_LIST(X)
#undef X
};

static int dtype_is_known(oc_dtype dtype) { return (int)dtype >= 0 && dtype < OC_DTYPE_COUNT; }

const char *oc_dtype_word(oc_dtype dtype) { return dtype_is_known(dtype) ? dtypes[dtype].word : "unknown"; }

size_t oc_dtype_bytes(oc_dtype dtype) { return dtype_is_known(dtype) ? dtypes[dtype].bytes : 0; }

static const oc_view absent_view = {0};

oc_view oc_view_dense(void *data, oc_dtype dtype, int32_t rank, const int64_t *shape) {
  if (rank < 0 || rank > OC_MAX_RANK) return absent_view;
  oc_view view = {.data = data, .dtype = dtype, .rank = rank};
  int64_t step = 1;
  for (int32_t axis = rank - 1; axis >= 0; axis--) {
    view.shape[axis] = shape[axis];
    view.stride[axis] = step;
    /* An overflowing product is refused by oc_view_check; here it only has to be defined behaviour. */
    if (__builtin_mul_overflow(step, shape[axis], &step)) step = INT64_MAX;
  }
  return view;
}

oc_view oc_view_swap(oc_view view, int32_t a, int32_t b) {
  if (a < 0 || b < 0 || a >= view.rank || b >= view.rank) return view;
  int64_t shape = view.shape[a], stride = view.stride[a];
  view.shape[a] = view.shape[b];
  view.stride[a] = view.stride[b];
  view.shape[b] = shape;
  view.stride[b] = stride;
  return view;
}

/* False when the product leaves int64_t. A zero anywhere makes it 0, whatever the other sizes are. */
static int count_elements(const oc_view *view, int64_t *count) {
  int fits = 1;
  *count = 1;
  for (int32_t axis = 0; axis < view->rank; axis++) {
    if (view->shape[axis] == 0) {
      *count = 0;
      return 1;
    }
  }
  for (int32_t axis = 0; axis < view->rank; axis++)
    if (__builtin_mul_overflow(*count, view->shape[axis], count)) fits = 0;
  if (!fits) *count = INT64_MAX;
  return fits;
}

int64_t oc_view_count(const oc_view *view) {
  int64_t count;
  count_elements(view, &count);
  return count;
}

int64_t oc_view_offset(const oc_view *view, const int64_t *index) {
  int64_t offset = 0;
  for (int32_t axis = 0; axis < view->rank; axis++) offset += index[axis] * view->stride[axis];
  return offset;
}

/* Offsets in bytes of the first byte of the lowest and the first byte of the highest element of a view that is not
 * empty. False when one of them leaves int64_t. */
static int reach(const oc_view *view, int64_t *lowest, int64_t *highest) {
  int64_t low = 0, high = 0, span;
  for (int32_t axis = 0; axis < view->rank; axis++) {
    if (__builtin_mul_overflow(view->shape[axis] - 1, view->stride[axis], &span)) return 0;
    int64_t *side = span < 0 ? &low : &high;
    if (__builtin_add_overflow(*side, span, side)) return 0;
  }
  int64_t bytes = (int64_t)oc_dtype_bytes(view->dtype);
  return !__builtin_mul_overflow(low, bytes, lowest) && !__builtin_mul_overflow(high, bytes, highest) &&
         *highest <= INT64_MAX - bytes;
}

void oc_view_extent(const oc_view *view, const char **lowest, const char **end) {
  *lowest = *end = NULL;
  if (!view->data || !oc_view_is_present(view) || oc_view_count(view) == 0) return;
  int64_t low, high;
  if (!reach(view, &low, &high)) { /* no such memory can exist: claim everything, so that no overlap is missed */
    *end = (const char *)UINTPTR_MAX;
    return;
  }
  uintptr_t base = (uintptr_t)view->data;
  *lowest = (const char *)(base + (uintptr_t)low);
  *end = (const char *)(base + (uintptr_t)high + oc_dtype_bytes(view->dtype));
}

int oc_view_may_overlap(const oc_view *a, const oc_view *b) {
  const char *a_low, *a_end, *b_low, *b_end;
  oc_view_extent(a, &a_low, &a_end);
  oc_view_extent(b, &b_low, &b_end);
  return (uintptr_t)a_low < (uintptr_t)b_end && (uintptr_t)b_low < (uintptr_t)a_end;
}

oc_status oc_view_check(const oc_view *view, const char *name, oc_err *err) {
  if (view->rank < 0 || view->rank > OC_MAX_RANK)
    return OC_FAIL(err, BAD_ARG, 0, "%s: rank %" PRId32 " is outside 0..%d", name, view->rank, OC_MAX_RANK);
  if (!dtype_is_known(view->dtype) || view->dtype == OC_DTYPE_NONE)
    return OC_FAIL(err, BAD_ARG, 0, "%s: dtype %d is outside 1..%d", name, (int)view->dtype, OC_DTYPE_COUNT - 1);
  if (view->device < 0) return OC_FAIL(err, BAD_ARG, 0, "%s: device %" PRId32 " is below 0", name, view->device);
  for (int32_t axis = 0; axis < view->rank; axis++)
    if (view->shape[axis] < 0)
      return OC_FAIL(err, BAD_ARG, 0, "%s: shape[%" PRId32 "] is %" PRId64 ", below 0", name, axis, view->shape[axis]);
  int64_t count, low, high;
  if (!count_elements(view, &count))
    return OC_FAIL(err, BAD_ARG, 0, "%s: more than %" PRId64 " elements", name, INT64_MAX);
  if (count == 0) return OC_OK;
  if (!view->data) return OC_FAIL(err, BAD_ARG, 0, "%s: data is NULL, %" PRId64 " elements", name, count);
  if (!reach(view, &low, &high))
    return OC_FAIL(err, BAD_ARG, 0, "%s: the strides reach past %" PRId64 " bytes", name, INT64_MAX);
  return OC_OK;
}
