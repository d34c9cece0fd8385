/* SPDX-License-Identifier: Apache-2.0 */
/* Triangle attention on mma.sync (mma.cu): which entry serves a call, its parameters, its launch. No workspace. */
#include "mma.h"

#include <limits.h>

#include "devices/cuda/cuda.h"
#include "triattn/triattn_internal.h"

size_t oc__triattn_mma_sm80_workspace(const void *call, int threads);
oc_status oc__triattn_mma_sm80(const void *call, const oc_exec *exec, oc_err *err);
extern const oc__cuda_kernel *const oc__triattn_mma_kernels[];

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

enum {
#define X(operands, wide, ...) ENTRY_##operands##_##wide,
  OC__TRIATTN_MMA_LIST(X)
#undef X
      ENTRY_FIXUP,
  ENTRY_COUNT
};
enum { ARCH_SM80, ARCH_SM90A, ARCH_COUNT };

#define WIDEST 128

typedef struct entry {
  int operands, wide, rows, warps;
} entry;

static const entry entries[ENTRY_COUNT] = {
#define X(operands, wide, rows, warps, ...) {OC__MMA_##operands, wide, rows, warps},
    OC__TRIATTN_MMA_LIST(X) OC__TRIATTN_MMA_FIXUP(X)
#undef X
};

#define SHARED(operands, wide, rows, warps, keys) OC__TRIATTN_MMA_SHARED(OC__MMA_##operands, wide, rows, warps, keys)
#define FIXUP_SHARED(operands, wide, rows, warps, keys)                                                                \
  OC__TRIATTN_MMA_FIXUP_SHARED(OC__MMA_##operands, wide, rows, warps, keys)
#define KERNEL(arch, prefix, operands, wide, more)                                                                     \
  { "triattn", "mma", arch, "triattn_mma_" prefix #operands "_d" #wide, more }
#define X80(operands, wide, rows, warps, keys, blocks)                                                                 \
  KERNEL("sm_80", "", operands, wide, SHARED(operands, wide, rows, warps, keys)),
#define X90(operands, wide, rows, warps, keys, blocks)                                                                 \
  KERNEL("sm_90a", "", operands, wide, SHARED(operands, wide, rows, warps, keys)),
#define FIXUP80(operands, wide, rows, warps, keys, blocks)                                                             \
  KERNEL("sm_80", "fixup_", operands, wide, FIXUP_SHARED(operands, wide, rows, warps, keys)),
#define FIXUP90(operands, wide, rows, warps, keys, blocks)                                                             \
  KERNEL("sm_90a", "fixup_", operands, wide, FIXUP_SHARED(operands, wide, rows, warps, keys)),

static const oc__cuda_kernel kernels[ARCH_COUNT][ENTRY_COUNT] = {
    {OC__TRIATTN_MMA_LIST(X80) OC__TRIATTN_MMA_FIXUP(FIXUP80)},
    {OC__TRIATTN_MMA_LIST(X90) OC__TRIATTN_MMA_FIXUP(FIXUP90)}};

const oc__cuda_kernel *const oc__triattn_mma_kernels[] = {
#define X(operands, wide, ...) &kernels[ARCH_SM80][ENTRY_##operands##_##wide],
    OC__TRIATTN_MMA_LIST(X)
#undef X
#define X(operands, wide, ...) &kernels[ARCH_SM90A][ENTRY_##operands##_##wide],
            OC__TRIATTN_MMA_LIST(X)
#undef X
        & kernels[ARCH_SM80][ENTRY_FIXUP],
    &kernels[ARCH_SM90A][ENTRY_FIXUP], NULL};

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static int float_code(oc_dtype dtype) {
  return dtype == OC_F32 ? OC__MMA_F32 : dtype == OC_BF16 ? OC__MMA_BF16 : dtype == OC_F16 ? OC__MMA_F16 : 0;
}

static int mask_code(oc_dtype dtype) {
  return dtype == OC_BOOL || dtype == OC_U8 ? OC__MMA_BYTE
         : dtype == OC_I32                  ? OC__MMA_I32
         : dtype == OC_I64                  ? OC__MMA_I64
                                            : float_code(dtype);
}

static oc_status refuse(const oc_triattn *call, const unsigned char *flags, oc_err *err) {
  const int64_t *q = call->q.shape, sizes[] = {q[0], q[1], q[2], q[3], call->k.shape[2]};
  static const char *const names[] = {"b", "s", "nq", "h", "nk"};
  OC_TRY(oc__triattn_refuse(call, 0, err));
  if (oc_view_is_present(&call->mask) && !mask_code(call->mask.dtype))
    return OC_REFUSE(err, DTYPE, "mask=%s", oc_dtype_word(call->mask.dtype));
  if (q[4] > WIDEST) return OC_REFUSE(err, SHAPE, "d=%" PRId64 " is outside 1..%d", q[4], WIDEST);
  for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) /* a tile may end beyond the last query or key */
    if (sizes[n] > INT_MAX - 1024)
      return OC_REFUSE(err, SHAPE, "%s=%" PRId64 " is above %d", names[n], sizes[n], INT_MAX - 1024);
  if (flags && (call->q.dtype != OC_BF16 || q[4] > entries[ENTRY_FIXUP].wide))
    return OC_REFUSE(err, DIALECT, "flags with q=%s d=%" PRId64, oc_dtype_word(call->q.dtype), q[4]);
  return OC_OK;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* An axis of length 1 gets stride 0: its stride says nothing about alignment. */
static void strides(const oc_view *view, int rank, long long *out) {
  for (int axis = 0; oc_view_is_present(view) && axis < rank; axis++)
    out[axis] = view->shape[axis] > 1 ? view->stride[axis] : 0;
}

/* 1 when elements along the last axis can be moved `bytes` at a time: they lie side by side, and the data and every
 * step to another row are multiples of bytes. */
static int moves(const oc_view *view, int64_t bytes) {
  const int last = view->rank - 1;
  const int64_t size = (int64_t)oc_dtype_bytes(view->dtype);
  if (!oc_view_is_present(view) || (uintptr_t)view->data % (uintptr_t)bytes != 0) return 0;
  if (view->shape[last] > 1 && view->stride[last] != 1) return 0;
  for (int axis = 0; axis < last; axis++)
    if (view->shape[axis] > 1 && view->stride[axis] * size % bytes != 0) return 0;
  return 1;
}

static int paths_of(const oc_triattn *call) {
  const int64_t size = (int64_t)oc_dtype_bytes(call->q.dtype), depth = call->q.shape[4];
  const int64_t bias_size = (int64_t)oc_dtype_bytes(call->bias.dtype);
  int paths = 0;
  if (depth * size % 16 == 0 && moves(&call->k, 16) && moves(&call->v, 16)) paths |= OC__MMA_VEC_KV;
  if (depth % 2 == 0) {
    if (moves(&call->q, 2 * size)) paths |= OC__MMA_PAIR_Q;
    if (moves(&call->gate, 2 * size)) paths |= OC__MMA_PAIR_GATE;
    if (moves(&call->out, 2 * size)) paths |= OC__MMA_PAIR_OUT;
  }
  if (moves(&call->bias, 2 * bias_size)) paths |= OC__MMA_PAIR_BIAS;
  if (call->bias.dtype == OC_F32 && moves(&call->bias, 16)) paths |= OC__MMA_QUAD_BIAS;
  return paths;
}

static oc__triattn_mma_params params_of(const oc_triattn *call, const void *packed, const unsigned char *flags) {
  const int64_t *q = call->q.shape;
  oc__triattn_mma_params p = {.q = call->q.data,
                              .k = call->k.data,
                              .v = call->v.data,
                              .bias = packed ? packed : call->bias.data,
                              .mask = call->mask.data,
                              .gate = call->gate.data,
                              .out = call->out.data,
                              .lse = call->lse.data,
                              .flags = flags,
                              .batches = (int)q[0],
                              .rows = (int)q[1],
                              .queries = (int)q[2],
                              .keys = (int)call->k.shape[2],
                              .heads = (int)q[3],
                              .depth = (int)q[4],
                              .bias_type = packed ? OC__MMA_PACKED : float_code(call->bias.dtype),
                              .mask_type = mask_code(call->mask.dtype),
                              .mask_kind = (int)call->mask_kind,
                              .paths = paths_of(call),
                              .key_tiles = (int)oc__triattn_pieces(call->k.shape[2], 64),
                              .scale = call->scale,
                              .mask_value = call->mask_value};
  strides(&call->q, 5, p.q_stride);
  strides(&call->k, 5, p.k_stride);
  strides(&call->v, 5, p.v_stride);
  strides(&call->gate, 5, p.gate_stride);
  strides(&call->out, 5, p.out_stride);
  strides(&call->bias, 4, p.bias_stride);
  strides(&call->mask, 3, p.mask_stride);
  strides(&call->lse, 4, p.lse_stride);
  return p;
}

/* ---- the member -------------------------------------------------------------------------------------------------- */

static int entry_of(const oc_triattn *call) {
  const int operands = call->q.dtype == OC_BF16  ? OC__MMA_bf16
                       : call->q.dtype == OC_F16 ? OC__MMA_f16
                       : call->tf32              ? OC__MMA_tf32
                                                 : OC__MMA_f32;
  for (int n = 0; n < ENTRY_FIXUP; n++) /* widths ascend */
    if (entries[n].operands == operands && entries[n].wide >= call->q.shape[4]) return n;
  return ENTRY_COUNT; /* refuse() lets no width beyond the last one through */
}

/* 0: more blocks than a grid has. */
static unsigned blocks_of(const oc_triattn *call, const entry *e) {
  const int64_t *q = call->q.shape;
  int64_t blocks = oc__triattn_pieces(q[2], 16 * e->warps);
  const int64_t more[] = {oc__triattn_pieces(q[1], e->rows), q[3], q[0]};
  for (int n = 0; n < 3; n++) {
    if (blocks > INT_MAX / more[n]) return 0;
    blocks *= more[n];
  }
  return (unsigned)blocks;
}

/* A thread reads the flags of 4 tiles at a time, two threads a block at least. */
static unsigned fixup_blocks(const oc_triattn *call, const oc__cuda_limits *limits) {
  const int64_t *q = call->q.shape;
  const int64_t pairs = oc__triattn_pieces(q[0] * q[1] * q[3] * oc__triattn_pieces(q[2], 64), 8),
                resident = 2 * limits->multiprocessors;
  return (unsigned)(pairs < resident ? pairs : resident);
}

static oc_status enqueue(const oc_triattn *call, const void *packed, const oc_exec *exec, const unsigned char *flags,
                         oc_err *err) {
  const oc__cuda_limits *limits;
  oc__cuda_function function;
  OC_TRY(refuse(call, flags, err));
  if (oc_view_count(&call->q) == 0) return OC_OK; /* nothing to write, lse neither: D is at least 1 */
  if (exec->device < 1 || exec->device != call->q.device)
    return OC_FAIL(err, BAD_ARG, 0, "device: %d, q lies on %d", (int)exec->device, (int)call->q.device);
  const int device = exec->device - 1, at = flags ? ENTRY_FIXUP : entry_of(call);
  const unsigned blocks = blocks_of(call, &entries[at]);
  if (blocks == 0)
    return OC_REFUSE(err, SHAPE, "b=%" PRId64 " s=%" PRId64 " nq=%" PRId64 " h=%" PRId64 ": more than 2^31 - 1 blocks",
                     call->q.shape[0], call->q.shape[1], call->q.shape[2], call->q.shape[3]);
  OC_TRY(oc__cuda_limits_of(device, &limits, err));
  const oc__cuda_kernel *const kernel = &kernels[limits->sm == 90 ? ARCH_SM90A : ARCH_SM80][at];
  OC_TRY(oc__cuda_kernel_find(device, exec->stream, kernel, &function, err));
  const oc__cuda_grid grid = {.grid = {flags ? fixup_blocks(call, limits) : blocks, 1, 1},
                              .block = {32u * (unsigned)entries[at].warps, 1, 1},
                              .shared_bytes = (unsigned)kernel->shared_bytes,
                              .follows = flags && limits->sm >= 90};
  const oc__triattn_mma_params params = params_of(call, packed, flags);
  return oc__cuda_launch(device, function, &grid, exec->stream, &params, sizeof params, err);
}

oc_status oc__triattn_mma_run(const oc_triattn *call, const oc_exec *exec, const unsigned char *flags, oc_err *err) {
  return enqueue(call, NULL, exec, flags, err);
}

oc_status oc__triattn_mma_fixup(const oc_triattn *call, const void *packed, const oc_exec *exec,
                                const unsigned char *flags, oc_err *err) {
  if (!flags || (uintptr_t)flags % 16 != 0 || (uintptr_t)packed % 16 != 0)
    return OC_FAIL(err, BAD_ARG, 0, "flags: %p, packed: %p, need 16-byte alignment", (const void *)flags, packed);
  return enqueue(call, packed, exec, flags, err);
}

size_t oc__triattn_mma_sm80_workspace(const void *call, int threads) {
  (void)call;
  (void)threads;
  return 0;
}

oc_status oc__triattn_mma_sm80(const void *call, const oc_exec *exec, oc_err *err) {
  return oc__triattn_mma_run(call, exec, NULL, err);
}
