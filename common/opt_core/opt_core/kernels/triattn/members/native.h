/* SPDX-License-Identifier: Apache-2.0 */
/* What native.cu and native.c share. Plain types only: device code includes this file too. */
#ifndef OC_TRIATTN_NATIVE_H
#define OC_TRIATTN_NATIVE_H

/* A block of the packed bias: 64 queries x 64 keys, 16 bits a value, in the order in which the threads of a warpgroup
 * hold the scores. Blocks are ordered [b][h][query tile][key tile]. Thread t = 32 w + l of the warpgroup and vector
 * v = 0..3 own the 16 bytes at (128 v + t) * 16, four words. Word j is of query 16 w + l / 4 + 8 (j / 2) and of the
 * keys k = 16 v + 2 (l % 4) + j % 2 and k + 8. A value is bias * log2(e). That of k + 8 is a bf16 in the low half. The
 * whole word, read as an f32, is that of k: the low half is the end of its mantissa. -inf, and keys past the end, are
 * -3.38e38. */
enum {
  OC__NATIVE_TILE = 64,
  OC__NATIVE_BLOCK_BYTES = 8192,
  OC__NATIVE_DEPTH = 32,            /* the head width it is made for */
  OC__NATIVE_THREADS = 640,         /* 4 warpgroups that compute; of the fifth one warp loads, one scales q, two mask */
  OC__NATIVE_ROWS = 2,              /* rows i of a block; a cluster of two blocks takes four that share the bias */
  OC__NATIVE_QUERY_TILES = 4,       /* query tiles of an item */
  OC__NATIVE_STAGES = 3,            /* of 64 keys */
  OC__NATIVE_SHARED_BYTES = 230144, /* native.cu checks that it is enough */
  OC__NATIVE_PACK_THREADS = 256
};

typedef struct oc__native_map { /* a CUtensorMap */
  unsigned long long words[16];
} __attribute__((aligned(64))) oc__native_map;

typedef struct oc__native_params {
  oc__native_map q, k, v, out; /* axes d, n, h, i, b; boxes of 64 tokens, of 16 for out */
  const void *bias;            /* packed */
  const void *mask;            /* NULL: none */
  const void *gate;            /* NULL: none; last stride 1, 4-byte aligned rows */
  float *lse;                  /* NULL: none */
  unsigned char *flags;        /* [b][h][i][query tile][warp]: 1 where the result is to be computed again */
  long long mask_stride[3];    /* b, i, k; elements */
  long long gate_stride[4];    /* b, i, n, h; elements, multiples of 8 */
  long long lse_stride[4];     /* b, i, h, n */
  long long whole_items;       /* of four query tiles: batches x heads x row groups x whole groups */
  long long items;             /* and one for the tiles that are left of each row group */
  int rows, queries, keys, heads;
  int row_groups, whole_groups, query_tiles, key_tiles;
  int mask_dtype, mask_kind; /* oc_dtype, oc_mask_kind */
  float mask_value;
  float scale;
} oc__native_params;

typedef struct oc__native_pack_params {
  const void *bias; /* NULL: zeros */
  void *packed;
  long long stride[4]; /* b, h, q, k */
  long long blocks;    /* b x h x query tiles x key tiles */
  int heads, queries, keys, query_tiles, key_tiles;
  int dtype;
} oc__native_pack_params;

#ifndef __CUDACC__
#include "triattn/triattn.h"

/* The core on bf16 operands of width 32. `packed_bias`: made by the caller, or NULL: made here from call->bias. gate
 * may be out itself. Tiles whose logits leave the fast range are computed again by the general member in this call. */
oc_status oc__triattn_native_core(const oc_triattn *call, const void *packed_bias, void *workspace,
                                  size_t workspace_bytes, const oc_exec *exec, oc_err *err);
size_t oc__triattn_native_core_bytes(const oc_triattn *call, int has_packed_bias);
/* REFUSED dtype:, shape:, dialect:, layout: what the core does not take and the general member does. err may be NULL. */
oc_status oc__triattn_native_refuse(const oc_triattn *call, oc_err *err);
#endif
#endif
