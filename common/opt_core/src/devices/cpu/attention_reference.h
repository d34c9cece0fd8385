/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by straight loops: the specification of the attention families, in one of two precisions.
 *
 * Values are held as double. `wide` (F64 tensors) computes in double; otherwise every result is rounded to f32 as it is
 * made, which gives the bits of f32 arithmetic: a double holds more than twice an f32's digits, so the second rounding
 * of a sum, product or quotient is harmless. exp and log are the C library's in double, rounded once. Sums run in index
 * order.
 */
#ifndef OC_ATTENTION_REFERENCE_H
#define OC_ATTENTION_REFERENCE_H

#include "devices/cpu/attention_call.h"
#include "devices/cpu/rows.h"

OC_CHECK_FN double oc__ref_round(double x, int wide) { return wide ? x : (double)(float)x; }

OC_CHECK_FN double oc__ref_load(const oc_view *view, int64_t offset) {
  if (view->dtype == OC_F64) return ((const double *)view->data)[offset];
  if (view->dtype == OC_I64) return (double)((const int64_t *)view->data)[offset];
  if (view->dtype == OC_I32) return (double)((const int32_t *)view->data)[offset];
  return (double)oc__load1(view->data, view->dtype, offset);
}

OC_CHECK_FN void oc__ref_store(const oc_view *view, int64_t offset, double x) {
  const float f = (float)x;
  if (view->dtype == OC_F64)
    ((double *)view->data)[offset] = x;
  else
    oc__row_store(view, offset, 1, 1, &f);
}

/* One query of one head; rows of k and v are `ld` apart. mask, bias: Nk values or NULL. */
typedef struct oc__ref_query {
  const double *q, *k, *v, *bias, *mask;
  int64_t keys, depth, ld;
  double scale, mask_value;
  oc_mask_kind mask_kind;
  int bias_first, wide;
} oc__ref_query;

OC_CHECK_FN double oc__ref_masked(const oc__ref_query *t, int64_t key, double s) {
  if (!t->mask) return s;
  const double m = t->mask[key];
  switch (t->mask_kind) {
  case OC_MASK_SUBTRACT:
    return oc__ref_round(s + oc__ref_round(t->mask_value * oc__ref_round(m - 1.0, t->wide), t->wide), t->wide);
  case OC_MASK_ADD:
    return oc__ref_round(s + m, t->wide);
  case OC_MASK_FILL:
    return m != 0.0 ? s : t->mask_value;
  default:
    return s;
  }
}

OC_CHECK_FN double oc__ref_logit(const oc__ref_query *t, int64_t key) {
  double s = 0.0;
  for (int64_t d = 0; d < t->depth; d++)
    s = oc__ref_round(s + oc__ref_round(t->q[d] * t->k[key * t->ld + d], t->wide), t->wide);
  s = oc__ref_round(t->scale * s, t->wide);
  if (!t->bias_first) s = oc__ref_masked(t, key, s);
  if (t->bias) s = oc__ref_round(s + t->bias[key], t->wide);
  return t->bias_first ? oc__ref_masked(t, key, s) : s;
}

OC_CHECK_FN int oc__ref_has_weight(const oc__ref_query *t, int64_t key) {
  return t->mask_kind != OC_MASK_ZERO || !t->mask || t->mask[key] != 0.0;
}

/* out[0, D) and *lse. weight: Nk values of scratch. A key without weight still multiplies its value by 0, so that a NaN
 * there shows as it does in a matrix product. */
OC_CHECK_FN void oc__ref_attend(const oc__ref_query *t, double *weight, double *out, double *lse) {
  double largest = -INFINITY, sum = 0.0;
  int64_t counted = 0;
  for (int64_t key = 0; key < t->keys; key++) {
    if (!oc__ref_has_weight(t, key)) continue;
    weight[key] = oc__ref_logit(t, key);
    if (weight[key] > largest || weight[key] != weight[key]) largest = weight[key];
    counted++;
  }
  for (int64_t d = 0; d < t->depth; d++) out[d] = 0.0;
  *lse = -INFINITY;
  if (counted == 0) return;
  for (int64_t key = 0; key < t->keys; key++) {
    weight[key] =
        oc__ref_has_weight(t, key) ? oc__ref_round(exp(oc__ref_round(weight[key] - largest, t->wide)), t->wide) : 0.0;
    sum = oc__ref_round(sum + weight[key], t->wide);
  }
  for (int64_t d = 0; d < t->depth; d++) {
    double o = 0.0;
    for (int64_t key = 0; key < t->keys; key++)
      o = oc__ref_round(o + oc__ref_round(weight[key] * t->v[key * t->ld + d], t->wide), t->wide);
    out[d] = oc__ref_round(o / sum, t->wide);
  }
  *lse = oc__ref_round(largest + oc__ref_round(log(sum), t->wide), t->wide);
}

OC_CHECK_FN double oc__ref_gated(double o, double gate, int wide) {
  const double e = oc__ref_round(exp(-gate), wide);
  return oc__ref_round(o * oc__ref_round(1.0 / oc__ref_round(1.0 + e, wide), wide), wide);
}

/* k, v [Nk, D], q and out [D], mask, bias, weight [Nk]. */
OC_CHECK_FN size_t oc__ref_attention_workspace(const oc__attention *call) {
  const int64_t keys = call->k->shape[2], depth = call->q->shape[4];
  return (size_t)(2 * keys * depth + 2 * depth + 3 * keys) * sizeof(double);
}

OC_CHECK_FN void oc__ref_head(const oc__attention *call, int64_t b, int64_t i, int64_t h, oc__ref_query *t,
                              double *scratch) {
  const int64_t keys = t->keys, depth = t->depth;
  double *k = scratch, *v = k + keys * depth, *q = v + keys * depth, *out = q + depth;
  double *mask = out + depth, *bias = mask + keys, *weight = bias + keys, lse;
  for (int64_t key = 0; key < keys; key++) {
    for (int64_t d = 0; d < depth; d++) {
      const int64_t index[5] = {b, i, key, h, d};
      k[key * depth + d] = oc__ref_load(call->k, oc_view_offset(call->k, index));
      v[key * depth + d] = oc__ref_load(call->v, oc_view_offset(call->v, index));
    }
    const int64_t index[3] = {b, i, key};
    if (call->mask) mask[key] = oc__ref_load(call->mask, oc_view_offset(call->mask, index));
  }
  t->k = k;
  t->v = v;
  t->q = q;
  t->ld = depth;
  t->mask = call->mask ? mask : NULL;
  t->bias = call->bias ? bias : NULL;
  for (int64_t query = 0; query < call->q->shape[2]; query++) {
    for (int64_t key = 0; call->bias && key < keys; key++) {
      const int64_t index[4] = {b, h, query, key};
      bias[key] = oc__ref_load(call->bias, oc_view_offset(call->bias, index));
    }
    int64_t index[5] = {b, i, query, h, 0};
    for (index[4] = 0; index[4] < depth; index[4]++)
      q[index[4]] = oc__ref_load(call->q, oc_view_offset(call->q, index));
    oc__ref_attend(t, weight, out, &lse);
    for (index[4] = 0; index[4] < depth; index[4]++) {
      double o = out[index[4]];
      if (call->gate) o = oc__ref_gated(o, oc__ref_load(call->gate, oc_view_offset(call->gate, index)), t->wide);
      oc__ref_store(call->out, oc_view_offset(call->out, index), o);
    }
    const int64_t lse_index[4] = {b, i, h, query};
    if (call->lse) oc__ref_store(call->lse, oc_view_offset(call->lse, lse_index), lse);
  }
}

/* One thread, in order. */
OC_CHECK_FN void oc__ref_attention(const oc__attention *call, double *workspace) {
  oc__ref_query t = {.keys = call->k->shape[2],
                     .depth = call->q->shape[4],
                     .scale = (double)call->scale,
                     .mask_value = (double)call->mask_value,
                     .mask_kind = call->mask_kind,
                     .bias_first = call->bias_first,
                     .wide = call->q->dtype == OC_F64};
  for (int64_t b = 0; b < call->q->shape[0]; b++)
    for (int64_t i = 0; i < call->q->shape[1]; i++)
      for (int64_t h = 0; h < call->q->shape[3]; h++) oc__ref_head(call, b, i, h, &t, workspace);
}

#endif
