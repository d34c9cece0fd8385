/* SPDX-License-Identifier: Apache-2.0 */
/* The mma.sync core of triangle attention: what its device code (mma.cu) and its launches (mma.c) share.
 *
 * One entry a class of operands and a padded head width; everything else (strides, mask kind and dtype, bias dtype,
 * gate, lse) is read from the parameter struct and decided by branches that a whole block takes alike.
 */
#ifndef OC_TRIATTN_MMA_H
#define OC_TRIATTN_MMA_H

/* Classes of operands. tf32 and f32: F32 tensors, products of values rounded to TF32 or of f32 quality. */
enum { OC__MMA_bf16, OC__MMA_f16, OC__MMA_tf32, OC__MMA_f32 };

/* Codes of oc__triattn_mma_params.bias_type and .mask_type. */
enum {
  OC__MMA_ABSENT,
  OC__MMA_F32,
  OC__MMA_BF16,
  OC__MMA_F16,
  OC__MMA_BYTE, /* bool or u8 */
  OC__MMA_I32,
  OC__MMA_I64,
  OC__MMA_PACKED /* fix-up only: the blocks of native.h, bias * log2(e) */
};

/* Bits of oc__triattn_mma_params.paths: what alignment and strides allow. */
enum {
  OC__MMA_VEC_KV = 1,    /* 16-byte pieces of a row of k and of v */
  OC__MMA_PAIR_Q = 2,    /* two neighbours in d at once, 4 bytes (16-bit operands) */
  OC__MMA_PAIR_GATE = 4, /* two neighbours in d, 4 or 8 bytes */
  OC__MMA_PAIR_OUT = 8,
  OC__MMA_PAIR_BIAS = 16, /* two neighbours in k */
  OC__MMA_QUAD_BIAS = 32  /* four of them, 16 bytes (F32 bias) */
};

/* Strides count elements, 0 for an axis of length 1. Axes: q, k, v, gate, out {b, i, n, h, d}; bias {b, h, q, k};
 * mask {b, i, k}; lse {b, i, h, q}. mask_kind is an oc_mask_kind. */
typedef struct oc__triattn_mma_params {
  const void *q, *k, *v, *bias, *mask, *gate; /* bias: also the packed one */
  void *out;
  float *lse;
  /* fix-up only: a word, a byte a warp of 16 queries, for tile ((b * heads + h) * rows + i) * ceil(queries / 64) +
   * query / 64; 16-byte aligned */
  const unsigned char *flags;
  long long q_stride[5], k_stride[5], v_stride[5], gate_stride[5], out_stride[5];
  long long bias_stride[4], mask_stride[3], lse_stride[4];
  int batches, rows, heads, queries, keys, depth;
  int bias_type, mask_type, mask_kind, paths;
  int key_tiles; /* of the packed bias: ceil(keys / 64) */
  float scale, mask_value;
} oc__triattn_mma_params;

/* X(operands, wide, rows, warps, keys, blocks): an entry triattn_mma_<operands>_d<wide>. A block serves `rows` rows i
 * of one head at 16 * warps queries and goes through the keys in tiles of `keys`; at least `blocks` blocks share a
 * multiprocessor. Rows beyond the first share the bias in registers, warps share k and v in shared memory: both cut
 * what is read from L2, which binds before the arithmetic does at small widths. */
#define OC__TRIATTN_MMA_LIST(X)                                                                                        \
  X(bf16, 16, 2, 8, 32, 2)                                                                                             \
  X(bf16, 32, 2, 8, 32, 2)                                                                                             \
  X(bf16, 64, 1, 8, 32, 2)                                                                                             \
  X(bf16, 128, 1, 4, 64, 2)                                                                                            \
  X(f16, 16, 2, 8, 32, 2)                                                                                              \
  X(f16, 32, 2, 8, 32, 2)                                                                                              \
  X(f16, 64, 1, 8, 32, 2)                                                                                              \
  X(f16, 128, 1, 4, 64, 2)                                                                                             \
  X(tf32, 16, 2, 8, 32, 2)                                                                                             \
  X(tf32, 32, 2, 8, 32, 2)                                                                                             \
  X(tf32, 64, 1, 4, 32, 3)                                                                                             \
  X(tf32, 128, 1, 4, 32, 2)                                                                                            \
  X(f32, 16, 2, 4, 32, 3)                                                                                              \
  X(f32, 32, 2, 4, 32, 3)                                                                                              \
  X(f32, 64, 1, 4, 32, 2)                                                                                              \
  X(f32, 128, 1, 4, 32, 2)

/* triattn_mma_fixup_bf16_d32: 64 queries of one row a tile, only the tiles whose flag word is not zero. */
#define OC__TRIATTN_MMA_FIXUP(X) X(bf16, 32, 1, 4, 32, 3)

#define OC__TRIATTN_MMA_GROUP 16 /* blocks along i that run side by side at one query tile; see mma.cu */
#define OC__TRIATTN_MMA_BYTES(operands) ((operands) <= OC__MMA_f16 ? 2 : 4)
/* Parts of q that are kept in shared memory: 2 the TF32 parts, 1 the values, 0 none (q stays in registers). */
#define OC__TRIATTN_MMA_Q_PARTS(operands, wide)                                                                        \
  ((operands) == OC__MMA_f32 && (wide) <= 64 ? 2 : (operands) >= OC__MMA_tf32 && (wide) != 64 ? 1 : 0)
/* Two stages of a k and a v panel a row (16 bytes more than a row keep its pieces in different banks), and q. */
#define OC__TRIATTN_MMA_PANELS(operands, wide, rows, warps, keys)                                                      \
  (2 * 2 * (rows) * (keys) * ((wide)*OC__TRIATTN_MMA_BYTES(operands) + 16) +                                           \
   OC__TRIATTN_MMA_Q_PARTS(operands, wide) * (rows)*16 * (warps) * (wide)*4)
/* And the block's place, the mask as bits of so many keys, and two sums a thread and row where registers are short. */
#define OC__TRIATTN_MMA_SUMS(operands, rows, warps)                                                                    \
  ((operands) == OC__MMA_f32 && (rows) > 1 ? 2 * 4 * 32 * (rows) * (warps) : 0)
#define OC__TRIATTN_MMA_SPAN 1024
#define OC__TRIATTN_MMA_SHARED(operands, wide, rows, warps, keys)                                                      \
  (OC__TRIATTN_MMA_PANELS(operands, wide, rows, warps, keys) + 32 + (rows)*OC__TRIATTN_MMA_SPAN / 4 +                  \
   OC__TRIATTN_MMA_SUMS(operands, rows, warps))

/* The fix-up also notes which tiles of 4 a thread are flagged: a bit a thread and place. */
#define OC__TRIATTN_MMA_FIXUP_SHARED(operands, wide, rows, warps, keys)                                                \
  (OC__TRIATTN_MMA_SHARED(operands, wide, rows, warps, keys) + 16 * (warps))

#ifndef OC__TRIATTN_DEVICE_CODE
#include "opt_core/provider.h"
#include "triattn/triattn.h"

/* Enqueues the core for a checked call on a device with mma.sync (sm_80 and later). flags NULL: every tile; else what
 * oc__triattn_mma_fixup does with the call's own bias. REFUSED dtype:, shape:, dialect: before anything is enqueued. */
oc_status oc__triattn_mma_run(const oc_triattn *call, const oc_exec *exec, const unsigned char *flags, oc_err *err);

/* Computes the tiles of 64 queries again that have a byte other than 0 among their four flags (BF16, D <= 32). flags:
 * device memory, 16-byte aligned, order above. packed: device memory, 16-byte aligned, the bias as blocks of
 * bias * log2(e) (native.h), read instead of the call's bias; NULL: the call's bias, if any. May start while the kernel
 * before it in the stream drains; reads nothing before that kernel's writes are there. Errors as above. */
oc_status oc__triattn_mma_fixup(const oc_triattn *call, const void *packed, const oc_exec *exec,
                                const unsigned char *flags, oc_err *err);
#endif
#endif
