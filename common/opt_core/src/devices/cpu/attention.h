/* SPDX-License-Identifier: Apache-2.0 */
/* The inner part of every attention member: a block of OC_MR queries against all keys of one head, in f32.
 *
 *   keys    packed as panels [panels(Nk)][D][OC_NR]: S = Q K^T is register tiles over D
 *   values  packed as panels [panels(D)][Nk][OC_NR]: O = P V is register tiles over the keys, in order
 *   logits  OC_MR rows of scratch. The softmax needs three walks over them (largest, exp and sum, product); they stay
 *           in L1 up to about 700 keys and in L2 to about 20 000, so nothing is rescaled as in the online form
 * A query row's bits depend on its own data, Nk and D only: not on the block, the chunk or the thread.
 *
 * With products of bf16 (gemm.h; q, k and v are bf16) the queries, both panels and the weights hold pairs. The weights
 * are rounded to bf16 for the second product; their sum is taken before.
 */
#ifndef OC_ATTENTION_H
#define OC_ATTENTION_H

#include "devices/cpu/attention_call.h"
#include "devices/cpu/gemm.h"
#include "devices/cpu/parallel.h"

/* Deliberate faults, for the test that the tests bite: 1 wrong sign, 2 shifted index, 3 dropped tail, 4 lost mask. */
#ifndef OC_MUTANT
#define OC_MUTANT 0
#endif

/* Stops the compiler from contracting a product with the sum behind it where the product must be rounded first. */
OC_INLINE vf vf_rounded(vf a) {
#if defined(__x86_64__)
#if OC_VL == 16
  __asm__("" : "+v"(a));
#else
  __asm__("" : "+x"(a));
#endif
#elif defined(__aarch64__)
  __asm__("" : "+w"(a));
#endif
  return a;
}

/* What one key row of a mask does to the logits; vectors of panels(Nk) * OC_NR floats. */
typedef struct oc__key_mask {
  float *add;        /* SUBTRACT, ADD: the addend */
  float *low, *high; /* FILL, ZERO: max(min(s, high), low) leaves a kept logit alone and gives the fill elsewhere */
  int is_add, is_clamp;
  int nothing_kept; /* ZERO: no key has weight; also set when there is no key */
} oc__key_mask;

typedef struct oc__head {
  int64_t keys, depth;
  const float *key_panels, *value_panels;
  const float *bias; /* row of the block's first query, unit stride, or NULL */
  int64_t bias_ld;
  const oc__key_mask *mask;
  float scale;
  int bias_first;
  int has_pairs; /* queries are rows of bf16, the panels hold pairs; each in the place of its floats */
} oc__head;

/* Leading dimension of a logit row. The odd cache line keeps OC_MR rows out of one cache set when Nk is a power of two.
 */
OC_INLINE int64_t oc__logit_ld(int64_t keys) { return oc__panels(keys) * OC_NR + 16; }

/* Fills mask from keys values at element `offset` of view, `stride` apart. An effect that changes no logit is switched
 * off. */
OC_INLINE void oc__key_mask_load(oc__key_mask *mask, oc_mask_kind kind, float value, const oc_view *view,
                                 int64_t offset, int64_t stride, int64_t keys) {
  const int64_t padded = oc__panels(keys) * OC_NR;
  int64_t kept = 0, changed = 0;
  mask->is_add = mask->is_clamp = 0;
  mask->nothing_kept = keys == 0;
  if (kind == OC_MASK_NONE || OC_MUTANT == 4 || keys == 0) return;
  oc__row_load(view, offset, stride, keys, mask->add);
  if (kind == OC_MASK_SUBTRACT || kind == OC_MASK_ADD) {
    for (int64_t k = 0; k < keys; k++) {
      if (kind == OC_MASK_SUBTRACT) mask->add[k] = value * (mask->add[k] - 1.0f);
      changed += mask->add[k] != 0.0f; /* a NaN counts */
    }
    for (int64_t k = keys; k < padded; k++) mask->add[k] = 0.0f;
    mask->is_add = changed > 0;
    return;
  }
  const float fill = kind == OC_MASK_ZERO ? -INFINITY : value;
  for (int64_t k = 0; k < padded; k++) {
    const int keep = k >= keys || mask->add[k] != 0.0f;
    kept += keep && k < keys;
    mask->low[k] = keep ? -INFINITY : fill;
    mask->high[k] = keep ? INFINITY : fill;
  }
  mask->is_clamp = kept < keys;
  mask->nothing_kept = kind == OC_MASK_ZERO && kept == 0;
}

/* Packs `keys` rows of depth values into key panels; row j starts at rows + j * ld. Missing keys are zero. */
OC_INLINE void oc__key_panel(const float *rows, int64_t ld, int64_t count, int64_t depth, float *panel) {
  for (int64_t d = 0; d < depth; d++) {
    for (int64_t j = 0; j < count; j++) panel[d * OC_NR + j] = rows[(OC_MUTANT == 2 ? (j + 1) % count : j) * ld + d];
    for (int64_t j = count; j < OC_NR; j++) panel[d * OC_NR + j] = 0.0f;
  }
}

/* s[OC_MR, panels(keys) * OC_NR] = products of the queries and the keys; missing keys give 0. */
OC_INLINE void oc__products(const oc__head *head, const float *q, int64_t ldq, float *s, int64_t lds) {
  const int64_t steps = oc__steps(head->has_pairs, head->depth);
  for (int64_t key = 0; key < head->keys; key += OC_NR)
    oc__tile_any(head->has_pairs, OC_MR, steps, q, ldq, head->key_panels + key * head->depth, s + key, lds, NULL, 0);
}

typedef enum oc__logit_mask { OC_LOGIT_PLAIN, OC_LOGIT_ADD, OC_LOGIT_CLAMP } oc__logit_mask;

/* The mask at one vector of keys. min gives its second operand for a NaN: high, so that a kept NaN spoils its row as
 * +Inf does. */
OC_INLINE vf oc__masked(const oc__key_mask *mask, const int kind, int64_t key, vf s) {
  if (kind == OC_LOGIT_ADD) s = vf_add(s, vf_load(mask->add + key));
  if (kind == OC_LOGIT_CLAMP) s = vf_max(vf_min(s, vf_load(mask->high + key)), vf_load(mask->low + key));
  return s;
}

OC_INLINE vf oc__biased(vf s, vf bias) { return OC_MUTANT == 1 ? vf_sub(s, bias) : vf_add(s, bias); }

/* One row, products to logits in place; columns past the last key become -Inf. Returns the largest lanes. kind,
 * has_bias and bias_first are constants: one loop without branches each. */
OC_INLINE vf oc__logit_row(const oc__head *head, const int kind, const int has_bias, const int bias_first,
                           const float *bias, float *s) {
  const int64_t keys = head->keys, padded = oc__panels(keys) * OC_NR;
  const vf scale = vf_set(head->scale);
  vf largest = vf_set(-INFINITY);
  int64_t k = 0;
  for (; k + OC_VL <= keys; k += OC_VL) {
    vf x = vf_rounded(vf_mul(vf_load(s + k), scale));
    if (!bias_first) x = oc__masked(head->mask, kind, k, x);
    if (has_bias) x = oc__biased(x, vf_load(bias + k));
    if (bias_first) x = oc__masked(head->mask, kind, k, x);
    vf_store(s + k, x);
    largest = vf_max(largest, x);
  }
  if (k < keys) {
    vf x = vf_rounded(vf_mul(vf_load(s + k), scale));
    if (!bias_first) x = oc__masked(head->mask, kind, k, x);
    if (has_bias) x = oc__biased(x, vf_load_n(bias + k, (int)(keys - k)));
    if (bias_first) x = oc__masked(head->mask, kind, k, x);
    vf_store_n(s + k, x, (int)(keys - k));
  }
  for (int64_t j = keys; j < padded; j++) s[j] = -INFINITY;
  return k < keys ? vf_max(largest, vf_load(s + k)) : largest;
}

OC_INLINE vf oc__logit_row_any(const oc__head *head, int row, float *s) {
  const float *bias = head->bias ? head->bias + row * head->bias_ld : NULL;
  const int kind = head->mask->is_add ? OC_LOGIT_ADD : head->mask->is_clamp ? OC_LOGIT_CLAMP : OC_LOGIT_PLAIN;
  const int order = !bias ? 0 : head->bias_first ? 2 : 1;
  /* clang-format off */
  switch (kind * 3 + order) {
#define OC_CASE(kind, order) \
  case kind * 3 + order: return oc__logit_row(head, kind, order > 0, order == 2, bias, s);
    OC_CASE(OC_LOGIT_ADD, 0)
    OC_CASE(OC_LOGIT_ADD, 1)
    OC_CASE(OC_LOGIT_ADD, 2)
    OC_CASE(OC_LOGIT_CLAMP, 0)
    OC_CASE(OC_LOGIT_CLAMP, 1)
    OC_CASE(OC_LOGIT_CLAMP, 2)
#undef OC_CASE
    case 0: return oc__logit_row(head, OC_LOGIT_PLAIN, 0, 0, bias, s);
    default: return oc__logit_row(head, OC_LOGIT_PLAIN, 1, 0, bias, s);
  }
  /* clang-format on */
}

/* In place: s = exp(s - largest), as f32 or, narrow, as bf16; returns the sum. The order of additions depends on Nk
 * only. */
OC_INLINE float oc__exp_row(int narrow, float *s, int64_t padded, float largest) {
  const vf m = vf_set(largest);
  vf sum = vf_zero();
  for (int64_t k = 0; k < padded; k += OC_VL) {
    const vf e = vf_exp(vf_sub(vf_load(s + k), m));
#if OC_HAS_PAIRS
    if (narrow)
      _mm256_storeu_si256((__m256i *)((uint16_t *)s + k), (__m256i)_mm512_cvtneps_pbh(e));
    else
#endif
      vf_store(s + k, e);
    sum = vf_add(sum, e);
  }
  (void)narrow;
  return vf_sum(sum);
}

/* out[rows, panels(D) * OC_NR] = softmax(logits) V. q: OC_MR readable rows. s: OC_MR * oc__logit_ld floats of scratch.
 * out: OC_MR rows. lse: `rows` values or NULL. */
static inline __attribute__((unused)) void oc__attend(const oc__head *head, int rows, const float *q, int64_t ldq,
                                                      float *s, float *out, int64_t ldo, float *lse) {
  const int64_t lds = oc__logit_ld(head->keys), width = oc__panels(head->depth) * OC_NR;
  float sum[OC_MR];
  if (head->mask->nothing_kept) {
    for (int r = 0; r < rows; r++) {
      memset(out + r * ldo, 0, (size_t)width * sizeof(float));
      if (lse) lse[r] = -INFINITY;
    }
    return;
  }
  oc__products(head, q, ldq, s, lds);
  for (int r = 0; r < rows;
       r++) { /* rows past the last keep their products: finite or not, nobody reads what they give */
    const float largest = vf_largest(oc__logit_row_any(head, r, s + r * lds));
    sum[r] = oc__exp_row(head->has_pairs, s + r * lds, oc__panels(head->keys) * OC_NR, largest);
    if (lse) lse[r] = largest + logf(sum[r]);
  }
  const int64_t counted = OC_MUTANT == 3 ? head->keys / OC_VL * OC_VL : head->keys;
  const int64_t steps = oc__steps(head->has_pairs, counted); /* a weight past the last key is 0 */
  for (int64_t p = 0; p < width; p += OC_NR)
    oc__tile_any(head->has_pairs, OC_MR, steps, s, lds, head->value_panels + p * head->keys, out + p, ldo, NULL, 0);
  for (int r = 0; r < rows; r++)
    for (int64_t d = 0; d < width; d += OC_VL)
      vf_store(out + r * ldo + d, vf_div(vf_load(out + r * ldo + d), vf_set(sum[r])));
}

/* row[0, n) *= sigmoid(gate[0, n)). */
OC_INLINE void oc__gate_row(float *row, const float *gate, int64_t n) {
  int64_t i = 0;
  for (; i + OC_VL <= n; i += OC_VL) vf_store(row + i, vf_mul(vf_load(row + i), vf_sigmoid(vf_load(gate + i))));
  if (i < n) {
    const int left = (int)(n - i);
    vf_store_n(row + i, vf_mul(vf_load_n(row + i, left), vf_sigmoid(vf_load_n(gate + i, left))), left);
  }
}

/* Carving: the place of `floats` floats in a scratch area of which *used are taken. */
OC_INLINE int64_t oc__take(int64_t *used, int64_t floats) {
  const int64_t at = *used;
  *used += oc__line_floats(floats);
  return at;
}

/* ---- a whole call on views --------------------------------------------------------------------------------------- */

typedef struct oc__attention_plan {
  oc__attention call;
  int64_t batches, rows, queries, keys, heads, depth;
  int64_t width, lds;    /* panels(D) * OC_NR; oc__logit_ld(Nk) */
  int64_t chunk, chunks; /* queries of one unit of work; units a head */
  int bias_is_direct;    /* f32 with a unit stride: read where it lies */
  int has_pairs;         /* products of bf16 */
  int64_t bias_copies;   /* batches held as f32 in the workspace; 0: direct, absent or converted block by block */
  int64_t bias_floats;   /* shared part of the workspace */
  int64_t at_row, at_keys, at_values, at_logits, at_out, at_query, at_bias, at_add, at_low,
      at_high; /* within a thread's part */
  int64_t thread_floats;
  float *shared, *private_parts;
} oc__attention_plan;

OC_INLINE oc__attention_plan oc__attention_plan_make(const oc__attention *call) {
  oc__attention_plan p = {.call = *call};
  p.batches = call->q->shape[0];
  p.rows = call->q->shape[1];
  p.queries = call->q->shape[2];
  p.heads = call->q->shape[3];
  p.depth = call->q->shape[4];
  p.keys = call->k->shape[2];
  p.width = oc__panels(p.depth) * OC_NR;
  p.lds = oc__logit_ld(p.keys);
  /* Few heads: cut the queries, 16 blocks a unit, so that packing keys and values again costs about a percent. */
  p.chunk = p.batches * p.rows * p.heads < 64 ? 16 * OC_MR : p.queries;
  if (p.chunk < 1) p.chunk = 1;
  p.chunks = (p.queries + p.chunk - 1) / p.chunk;
  p.has_pairs = OC_HAS_PAIRS && call->q->dtype == OC_BF16 && call->k->dtype == OC_BF16 && call->v->dtype == OC_BF16;
  if (call->bias) {
    const int is_shared = call->bias->stride[0] == 0 || p.batches == 1;
    const int bias_is_strided = call->bias->stride[3] != 1 && p.keys > 1;
    p.bias_is_direct = call->bias->dtype == OC_F32 && !bias_is_strided;
    /* A strided layout is converted whole even when it is used once: all heads of a query share its cache lines. */
    const int pays = p.rows > 1 || (is_shared && p.batches > 1) || bias_is_strided;
    if (!p.bias_is_direct && pays) p.bias_copies = is_shared ? 1 : p.batches;
    p.bias_floats = p.bias_copies * p.heads * p.queries * p.lds;
  }
  int64_t used = 0;
  p.at_row = oc__take(&used, OC_NR * p.depth);
  p.at_keys = oc__take(&used, oc__packed_floats(p.depth, p.keys));
  p.at_values = oc__take(&used, p.keys * p.width);
  p.at_logits = oc__take(&used, OC_MR * p.lds);
  p.at_out = oc__take(&used, OC_MR * p.width);
  p.at_query = oc__take(&used, OC_MR * p.depth);
  p.at_bias = oc__take(&used, OC_MR * p.lds);
  p.at_add = oc__take(&used, p.lds);
  p.at_low = oc__take(&used, p.lds);
  p.at_high = oc__take(&used, p.lds);
  p.thread_floats = used;
  return p;
}

OC_INLINE int64_t oc__attention_units(const oc__attention_plan *p) {
  return p->batches * p->rows * p->heads * p->chunks;
}

OC_INLINE size_t oc__attention_workspace(const oc__attention_plan *p, int threads) {
  return (size_t)(oc__line_floats(p->bias_floats) + p->thread_floats * threads) * sizeof(float);
}

/* Work unit: the bias rows of one query, all heads (an [i, j, h] layout is read while its lines are in L1). */
static inline __attribute__((unused)) void oc__attention_bias_unit(int64_t unit, int thread, void *context) {
  const oc__attention_plan *p = context;
  const oc_view *bias = p->call.bias;
  const int64_t b = unit / p->queries, query = unit % p->queries;
  (void)thread;
  for (int64_t h = 0; h < p->heads; h++)
    oc__row_load(bias, b * bias->stride[0] + h * bias->stride[1] + query * bias->stride[2], bias->stride[3], p->keys,
                 p->shared + ((b * p->heads + h) * p->queries + query) * p->lds);
}

OC_INLINE void oc__attention_pack(const oc__attention_plan *p, int64_t b, int64_t i, int64_t h, float *scratch) {
  const oc_view *k = p->call.k, *v = p->call.v;
  const int64_t k0 = b * k->stride[0] + i * k->stride[1] + h * k->stride[3];
  const int64_t v0 = b * v->stride[0] + i * v->stride[1] + h * v->stride[3];
  float *row = scratch + p->at_row;
  for (int64_t key = 0; key < p->keys; key += OC_NR) {
    const int64_t count = p->keys - key < OC_NR ? p->keys - key : OC_NR;
    for (int64_t j = 0; j < count; j++)
      oc__row_load(k, k0 + (key + j) * k->stride[2], k->stride[4], p->depth, row + j * p->depth);
    oc__key_panel(row, p->depth, count, p->depth, scratch + p->at_keys + key * p->depth);
    oc__pair_panels(p->has_pairs, OC_NR, p->depth, scratch + p->at_keys + key * p->depth);
  }
  for (int64_t d = 0; d < p->width; d += OC_NR) {
    const int64_t count = p->depth - d < OC_NR ? p->depth - d : OC_NR;
    float *panel = scratch + p->at_values + d * p->keys;
    for (int64_t key = 0; key < p->keys; key++) {
      oc__row_load(v, v0 + key * v->stride[2] + d * v->stride[4], v->stride[4], count, panel + key * OC_NR);
      for (int64_t j = count; j < OC_NR; j++) panel[key * OC_NR + j] = 0.0f;
    }
    oc__pair_panels(p->has_pairs, OC_NR, p->keys, panel);
  }
}

/* head->bias for the block of `rows` queries from `query` on. */
OC_INLINE void oc__attention_bias(const oc__attention_plan *p, int64_t b, int64_t h, int64_t query, int rows,
                                  float *scratch, oc__head *head) {
  const oc_view *bias = p->call.bias;
  if (!bias) return;
  const int64_t at = b * bias->stride[0] + h * bias->stride[1] + query * bias->stride[2];
  if (p->bias_is_direct) {
    head->bias = (const float *)bias->data + at;
    head->bias_ld = bias->stride[2];
    return;
  }
  head->bias_ld = p->lds;
  if (p->bias_copies > 0) {
    head->bias = p->shared + (((p->bias_copies > 1 ? b : 0) * p->heads + h) * p->queries + query) * p->lds;
    return;
  }
  for (int r = 0; r < rows; r++)
    oc__row_load(bias, at + r * bias->stride[2], bias->stride[3], p->keys, scratch + p->at_bias + r * p->lds);
  head->bias = scratch + p->at_bias;
}

/* Gates and writes `rows` rows of one head from scratch. */
OC_INLINE void oc__attention_write(const oc__attention_plan *p, int64_t b, int64_t i, int64_t h, int64_t query,
                                   int rows, float *scratch) {
  const oc_view *gate = p->call.gate, *out = p->call.out;
  for (int r = 0; r < rows; r++) {
    float *o = scratch + p->at_out + r * p->width, *g = scratch + p->at_query;
    const int64_t index[5] = {b, i, query + r, h, 0};
    if (gate) {
      oc__row_load(gate, oc_view_offset(gate, index), gate->stride[4], p->depth, g);
      oc__gate_row(o, g, p->depth);
    }
    oc__row_store(out, oc_view_offset(out, index), out->stride[4], p->depth, o);
  }
}

/* Work unit: a chunk of queries of one (batch, row, head). */
static inline __attribute__((unused)) void oc__attention_unit(int64_t unit, int thread, void *context) {
  const oc__attention_plan *p = context;
  const int64_t chunk = unit % p->chunks, h = unit / p->chunks % p->heads;
  const int64_t i = unit / p->chunks / p->heads % p->rows, b = unit / p->chunks / p->heads / p->rows;
  const int64_t end = (chunk + 1) * p->chunk < p->queries ? (chunk + 1) * p->chunk : p->queries;
  const oc_view *q = p->call.q, *lse = p->call.lse, *mask_view = p->call.mask;
  float *scratch = p->private_parts + thread * p->thread_floats, *query_rows = scratch + p->at_query;
  oc__key_mask mask = {.add = scratch + p->at_add, .low = scratch + p->at_low, .high = scratch + p->at_high};
  oc__head head = {.keys = p->keys,
                   .depth = p->depth,
                   .key_panels = scratch + p->at_keys,
                   .mask = &mask,
                   .value_panels = scratch + p->at_values,
                   .scale = p->call.scale,
                   .bias_first = p->call.bias_first || p->call.mask_kind == OC_MASK_ZERO,
                   .has_pairs = p->has_pairs};
  if (mask_view)
    oc__key_mask_load(&mask, p->call.mask_kind, p->call.mask_value, mask_view,
                      b * mask_view->stride[0] + i * mask_view->stride[1], mask_view->stride[2], p->keys);
  else
    oc__key_mask_load(&mask, OC_MASK_NONE, 0.0f, NULL, 0, 0, p->keys);
  oc__attention_pack(p, b, i, h, scratch);
  for (int64_t query = chunk * p->chunk; query < end; query += OC_MR) {
    const int rows = (int)(end - query < OC_MR ? end - query : OC_MR);
    const int64_t q0 = b * q->stride[0] + i * q->stride[1] + query * q->stride[2] + h * q->stride[3];
    float lse_rows[OC_MR];
    for (int r = 0; r < OC_MR; r++) {
      if (r < rows)
        oc__row_load(q, q0 + r * q->stride[2], q->stride[4], p->depth, query_rows + r * p->depth);
      else
        memset(query_rows + r * p->depth, 0, (size_t)p->depth * sizeof(float));
    }
    oc__pair_rows(p->has_pairs, OC_MR, p->depth, p->depth, query_rows);
    oc__attention_bias(p, b, h, query, rows, scratch, &head);
    oc__attend(&head, rows, query_rows, p->depth, scratch + p->at_logits, scratch + p->at_out, p->width,
               lse ? lse_rows : NULL);
    oc__attention_write(p, b, i, h, query, rows, scratch);
    if (lse)
      for (int r = 0; r < rows; r++)
        ((float *)
             lse->data)[b * lse->stride[0] + i * lse->stride[1] + h * lse->stride[2] + (query + r) * lse->stride[3]] =
            lse_rows[r];
  }
}

/* Runs the plan; the workspace holds oc__attention_workspace(p, threads) bytes. */
OC_INLINE void oc__attention_run(oc__attention_plan *p, int threads, float *workspace) {
  p->shared = workspace;
  p->private_parts = workspace + oc__line_floats(p->bias_floats);
  if (p->bias_copies > 0)
    oc__parallel(p->bias_copies * p->queries, oc__thread_count(threads, p->bias_copies * p->queries),
                 oc__attention_bias_unit, p);
  oc__parallel(oc__attention_units(p), threads, oc__attention_unit, p);
}

#endif
