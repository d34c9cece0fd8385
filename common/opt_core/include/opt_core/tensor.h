/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and strided views. A view borrows memory: it owns nothing and allocates nothing. */
#ifndef OPT_CORE_TENSOR_H
#define OPT_CORE_TENSOR_H

#include "opt_core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(identifier, word, bytes). Masks may have any of these; arithmetic tensors are F32, BF16, F16 or F64. */
#define OC_DTYPE_LIST(X)                                                                                               \
  X(F32, "f32", 4)                                                                                                     \
  X(BF16, "bf16", 2)                                                                                                   \
  X(F16, "f16", 2)                                                                                                     \
  X(F64, "f64", 8)                                                                                                     \
  X(BOOL, "bool", 1)                                                                                                   \
  X(U8, "u8", 1)                                                                                                       \
  X(I32, "i32", 4)                                                                                                     \
  X(I64, "i64", 8)

typedef enum oc_dtype {
  OC_DTYPE_NONE, /* the dtype of an absent view */
#define X(id, word, bytes) OC_##id,
  OC_DTYPE_LIST(X)
#undef X
      OC_DTYPE_COUNT
} oc_dtype;

OC_API const char *oc_dtype_word(oc_dtype dtype);
OC_API size_t oc_dtype_bytes(oc_dtype dtype);

#define OC_MAX_RANK 6

/* Where memory lies: 0 for the host, n > 0 for the CUDA device that the driver counts as n - 1. */
#define OC_DEVICE_HOST 0
#define OC_DEVICE_CUDA(ordinal) ((ordinal) + 1)

/* A tensor somewhere in memory. `data` NULL with dtype OC_DTYPE_NONE is an absent operand.
 * shape and stride count elements, 64-bit; a stride may be 0 (broadcast) or negative in an input, never in an output.
 */
typedef struct oc_view {
  void *data;
  oc_dtype dtype;
  int32_t rank;
  int32_t device; /* OC_DEVICE_HOST or OC_DEVICE_CUDA(ordinal) */
  int64_t shape[OC_MAX_RANK];
  int64_t stride[OC_MAX_RANK];
} oc_view;

/* True when the operand is there (an empty tensor is there, with a zero in its shape). */
static inline int oc_view_is_present(const oc_view *view) { return view->dtype != OC_DTYPE_NONE; }

/* Ordinal of the CUDA device that holds the view; -1 for host memory. */
static inline int oc_view_cuda_ordinal(const oc_view *view) { return view->device - 1; }

/* Dense row-major view over data in host memory. rank <= OC_MAX_RANK, else an absent view is returned. */
OC_API oc_view oc_view_dense(void *data, oc_dtype dtype, int32_t rank, const int64_t *shape);
/* The same memory with axes a and b exchanged. Axes outside the rank leave the view as it is. */
OC_API oc_view oc_view_swap(oc_view view, int32_t a, int32_t b);
/* Product of the shape; 1 for rank 0. */
OC_API int64_t oc_view_count(const oc_view *view);
/* Offset in elements of index[0, rank), in 64 bits. */
OC_API int64_t oc_view_offset(const oc_view *view, const int64_t *index);
/* Lowest and one past the highest byte that the view touches; both NULL when it touches none. */
OC_API void oc_view_extent(const oc_view *view, const char **lowest, const char **end);
/* True when the two views may share a byte (by extent; exact for dense views). */
OC_API int oc_view_may_overlap(const oc_view *a, const oc_view *b);
/* OC_BAD_ARG unless: rank within 0..OC_MAX_RANK, device and shape not negative, dtype known, data not NULL when not empty. */
OC_API oc_status oc_view_check(const oc_view *view, const char *name, oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
