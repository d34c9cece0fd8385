/* SPDX-License-Identifier: Apache-2.0 */
/* What module.cu and module.c share. Plain types only: device code includes this file too. */
#ifndef OC_TRIATTN_MODULE_H
#define OC_TRIATTN_MODULE_H

enum {
  OC__MODULE_INNER = 128,         /* H * D */
  OC__MODULE_TILE = 64,           /* pixels that a warpgroup takes at a time */
  OC__MODULE_GROUP = 128,         /* output columns of a product */
  OC__MODULE_HEADS_MAX = 8,       /* columns of the pair bias's product */
  OC__MODULE_PANEL_BYTES = 16384, /* a group's weights for 64 channels */
  OC__MODULE_STAGES = 3,          /* results of a warp on their way out, eight rows of at most 256 bytes each */
  OC__MODULE_STAGE_BYTES = 2048
};

/* Threads of a block: three warpgroups of at most 168 registers a thread; a row of 256 channels needs more. */
#define OC__MODULE_THREADS(channels) ((channels) == 256 ? 256 : 384)
/* Projections (of q, k, v, gate) that a block of the prologue holds: four of 256 channels do not fit. */
#define OC__MODULE_GROUPS(channels) ((channels) == 256 ? 2 : 4)
#define OC__MODULE_STAGES_BYTES(channels)                                                                              \
  (OC__MODULE_THREADS(channels) / 32 * OC__MODULE_STAGES * OC__MODULE_STAGE_BYTES)
/* Dynamic shared memory; 1024: the panels start at a multiple of it. */
#define OC__MODULE_PROLOGUE_SHARED(channels)                                                                           \
  (OC__MODULE_GROUPS(channels) * ((channels) / 64) * OC__MODULE_PANEL_BYTES + (channels) / 64 * 1024 + (channels)*8 +  \
   OC__MODULE_GROUPS(channels) * OC__MODULE_GROUP * 4 + OC__MODULE_HEADS_MAX * 4 + OC__MODULE_STAGES_BYTES(channels) + \
   1024)
#define OC__MODULE_EPILOGUE_SHARED(channels)                                                                           \
  ((channels) / 256 * 2 * OC__MODULE_PANEL_BYTES + 2 * OC__MODULE_PANEL_BYTES + (channels)*4 +                         \
   OC__MODULE_STAGES_BYTES(channels) + 1024)

/* Strides in bytes; data NULL: absent; dtype: oc_dtype. */
typedef struct oc__module_vector {
  const char *data;
  long long stride, dtype;
} oc__module_vector;
typedef struct oc__module_matrix {
  const char *data;
  long long row, column, dtype;
} oc__module_matrix;
typedef struct oc__module_linear {
  oc__module_matrix weight;
  oc__module_vector bias;
} oc__module_linear;

/* fill: oc_dtype of all weights where their rows are contiguous and aligned to 16 bytes; 0: anything else. */
typedef struct oc__module_prologue_params {
  const char *x;
  long long x_stride[3];  /* b, i, j */
  unsigned short *out[4]; /* q, k, v, gate: dense [B, N, N, 128] bf16 */
  unsigned short *pair;   /* packed as native.h says */
  oc__module_linear to[4], to_pair;
  oc__module_vector norm_weight, norm_bias;
  float eps;
  int rms, fast_variance;
  int n, heads;
  int exchanged;          /* bias[h,q,k] = to_pair(h)[k,q]: keys are i, queries j */
  int groups;             /* 4, or 3 without a gate */
  unsigned pixels, tiles; /* B * N * N; those over OC__MODULE_TILE */
  int batch, fill;
} oc__module_prologue_params;

typedef struct oc__module_epilogue_params {
  const char *o; /* dense [B, N, N, 128] bf16 */
  char *y;
  const char *residual; /* NULL: none; may be y */
  long long y_stride[3], residual_stride[3];
  oc__module_linear out[2]; /* columns from 0 and from 128 */
  int y_dtype, residual_dtype;
  unsigned n, pixels, tiles;
  int fill;
} oc__module_epilogue_params;

#endif
