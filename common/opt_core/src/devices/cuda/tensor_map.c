/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps. The bounds are those of the driver's cuTensorMapEncodeTiled; checked here so that a plan can ask first
 * and an error can name the axis. */
#include "devices/cuda/driver.h"

#include <inttypes.h>

enum { RANK_MAX = 5, ALIGNMENT = 16, BOX_MAX = 256, PROMOTE_256 = 3, OUTSIDE_ZERO = 0, NOT_INTERLEAVED = 0 };

#define SHAPE_MAX ((int64_t)1 << 32)
#define STRIDE_BYTES_MAX ((int64_t)1 << 40)

/* The driver's CUtensorMapDataType; -1 where it has none. */
static int type_of(oc_dtype dtype) {
  switch (dtype) {
  case OC_F32:
    return 7;
  case OC_BF16:
    return 9;
  case OC_F16:
    return 6;
  case OC_F64:
    return 8;
  case OC_BOOL:
  case OC_U8:
    return 0;
  case OC_I32:
    return 3;
  case OC_I64:
    return 5;
  default:
    return -1;
  }
}

/* Strides of axes 1.. in bytes. An axis of length 1 is never stepped along: any legal number stands for its stride, so
 * that a broadcast or odd one does not stand in the way. 0 where the hardware does not take a stride. */
static int64_t stride_bytes(oc_dtype dtype, int axis, const int64_t *shape, const int64_t *stride) {
  const int64_t bytes = (int64_t)oc_dtype_bytes(dtype);
  if (shape[axis] == 1) return ALIGNMENT;
  if (stride[axis] < 1 || stride[axis] >= STRIDE_BYTES_MAX / bytes) return 0;
  return stride[axis] * bytes % ALIGNMENT == 0 ? stride[axis] * bytes : 0;
}

int oc__cuda_map_fits(oc_dtype dtype, int rank, const void *data, const int64_t *shape, const int64_t *stride) {
  if (type_of(dtype) < 0 || rank < 1 || rank > RANK_MAX || !data || (uintptr_t)data % ALIGNMENT != 0) return 0;
  for (int axis = 0; axis < rank; axis++) {
    if (shape[axis] < 1 || shape[axis] > SHAPE_MAX) return 0;
    if (axis > 0 && stride_bytes(dtype, axis, shape, stride) == 0) return 0;
  }
  return 1;
}

static oc_status refuse_layout(oc_dtype dtype, int rank, const void *data, const int64_t *shape, const int64_t *stride,
                               oc_err *err) {
  if (type_of(dtype) < 0 || rank < 1 || rank > RANK_MAX || !data)
    return OC_FAIL(err, BAD_ARG, 0, "tensor map: dtype %s, rank %d (1..%d), data %s", oc_dtype_word(dtype), rank,
                   RANK_MAX, data ? "there" : "NULL");
  for (int axis = 0; axis < rank; axis++) {
    if (shape[axis] < 1 || shape[axis] > SHAPE_MAX)
      return OC_REFUSE(err, SHAPE, "tensor map: shape[%d] is %" PRId64 ", served are 1..%" PRId64, axis, shape[axis],
                       SHAPE_MAX);
    if (axis > 0 && stride_bytes(dtype, axis, shape, stride) == 0)
      return OC_REFUSE(err, LAYOUT,
                       "tensor map: stride[%d] is %" PRId64 " elements of %zu bytes, served are multiples of %d bytes "
                       "from %d to 2^40",
                       axis, stride[axis], oc_dtype_bytes(dtype), ALIGNMENT, ALIGNMENT);
  }
  return OC_REFUSE(err, LAYOUT, "tensor map: the data lies %d bytes past a multiple of %d",
                   (int)((uintptr_t)data % ALIGNMENT), ALIGNMENT);
}

static oc_status check_box(oc_dtype dtype, int rank, const unsigned *box, oc__cuda_swizzle swizzle, oc_err *err) {
  static const unsigned spans[] = {UINT32_MAX, 32, 64, 128};
  if ((int)swizzle < 0 || swizzle > OC__SWIZZLE_128)
    return OC_FAIL(err, BAD_ARG, 0, "tensor map: swizzle %d is outside 0..%d", (int)swizzle, OC__SWIZZLE_128);
  for (int axis = 0; axis < rank; axis++)
    if (box[axis] < 1 || box[axis] > BOX_MAX)
      return OC_FAIL(err, BAD_ARG, 0, "tensor map: box[%d] is %u, served are 1..%d", axis, box[axis], BOX_MAX);
  const unsigned row = box[0] * (unsigned)oc_dtype_bytes(dtype);
  if (row % ALIGNMENT != 0 || row > spans[swizzle])
    return OC_FAIL(err, BAD_ARG, 0, "tensor map: box[0] takes %u bytes, served are multiples of %d up to %u", row,
                   ALIGNMENT, spans[swizzle]);
  return OC_OK;
}

/* The driver asks the current context whether the device has tensor maps; a thread that never used CUDA has none. */
static oc_status enter_some(const oc__cuda_api *api, oc__cuda_scope *scope, oc_err *err) {
  oc__cu_context current = NULL;
  *scope = (oc__cuda_scope){.api = api};
  OC_TRY(oc__cuda_check(api, api->context_current(&current), "cuCtxGetCurrent", err));
  const oc__cu_context any = current ? NULL : oc__cuda_any_context();
  return any ? oc__cuda_enter(api, any, scope, err) : OC_OK;
}

oc_status oc__cuda_tensor_map(oc__cuda_map *out, oc_dtype dtype, int rank, const void *data, const int64_t *shape,
                              const int64_t *stride, const unsigned *box, oc__cuda_swizzle swizzle, oc_err *err) {
  static const unsigned steps[RANK_MAX] = {1, 1, 1, 1, 1};
  const oc__cuda_api *api;
  oc__cuda_scope scope;
  uint64_t sizes[RANK_MAX], bytes[RANK_MAX - 1] = {0};
  if (!oc__cuda_map_fits(dtype, rank, data, shape, stride)) return refuse_layout(dtype, rank, data, shape, stride, err);
  OC_TRY(check_box(dtype, rank, box, swizzle, err));
  for (int axis = 0; axis < rank; axis++) {
    sizes[axis] = (uint64_t)shape[axis];
    if (axis > 0) bytes[axis - 1] = (uint64_t)stride_bytes(dtype, axis, shape, stride);
  }
  OC_TRY(oc__cuda_driver(&api, err));
  OC_TRY(enter_some(api, &scope, err));
  const int code = api->tensor_map(out->bytes, type_of(dtype), (unsigned)rank, (void *)(uintptr_t)data, sizes, bytes,
                                   box, steps, NOT_INTERLEAVED, (int)swizzle, PROMOTE_256, OUTSIDE_ZERO);
  oc__cuda_leave(&scope);
  return oc__cuda_check(api, code, "cuTensorMapEncodeTiled", err);
}
