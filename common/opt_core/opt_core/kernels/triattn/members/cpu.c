/* SPDX-License-Identifier: Apache-2.0 */
/* CPU members of triattn and triattn_module, compiled once an instruction set. */
#include "devices/cpu/attention.h"
#include "triattn/triattn_internal.h"

size_t OC_JOIN(OC_MEMBER_FN(oc__triattn_cpu), workspace)(const void *call, int threads);
oc_status OC_MEMBER_FN(oc__triattn_cpu)(const void *call, const oc_exec *exec, oc_err *err);
size_t OC_JOIN(OC_MEMBER_FN(oc__triattn_module_cpu), workspace)(const void *call, int threads);
oc_status OC_MEMBER_FN(oc__triattn_module_cpu)(const void *call, const oc_exec *exec, oc_err *err);

/* ---- the core ---------------------------------------------------------------------------------------------------- */

size_t OC_JOIN(OC_MEMBER_FN(oc__triattn_cpu), workspace)(const void *call, int threads) {
  const oc__attention attention = oc__triattn_attention(call);
  const oc__attention_plan plan = oc__attention_plan_make(&attention);
  return oc__attention_workspace(&plan, oc__thread_count(threads, oc__attention_units(&plan)));
}

oc_status OC_MEMBER_FN(oc__triattn_cpu)(const void *call, const oc_exec *exec, oc_err *err) {
  OC_TRY(oc__triattn_refuse(call, 0, err));
  const oc__attention attention = oc__triattn_attention(call);
  oc__attention_plan plan = oc__attention_plan_make(&attention);
  const int threads = oc__thread_count(exec->threads, oc__attention_units(&plan));
  OC_TRY(oc__workspace_check(exec, oc__attention_workspace(&plan, threads), err));
  oc__attention_run(&plan, threads, exec->workspace);
  return OC_OK;
}

/* ---- the module ----------------------------------------------------------------------------------------------------
 * Pass 1 makes bias[h][q][k] of one batch from every row of x. Pass 2 takes a row i at a time through normalisation,
 * projections, attention, gate and out_proj without leaving the thread's cache: row i of y is written after the last
 * read of row i of x, and no other row of x is read in pass 2, so y may be x. */

/* Keys that pass 1 projects at once: a cache line of a bias row. */
enum { BIAS_KEYS = 16 };
/* Rows that out_proj takes at once: four register blocks, so that a packed panel is read from L2 a quarter as often. */
enum { OUT_ROWS = 4 * OC_MR };

typedef struct module_plan {
  const oc_triattn_module *call;
  int64_t n, channels, heads, depth, inner; /* N, C, H, D, H * D */
  int64_t width, lds, bias_ld;              /* panels(D) * OC_NR; a logit row; a bias row */
  int64_t bias_width, out_width;            /* panels(H) * OC_NR; panels(C) * OC_NR */
  int has_gate;
  int has_pairs; /* products of bf16 (gemm.h), but for the pair bias */
  /* shared part of the workspace, in floats */
  int64_t at_norm, at_linear[4], at_linear_bias[4], at_to_bias, at_to_bias_bias, at_out, at_out_bias, at_pair_bias,
      shared;
  /* a thread's part */
  int64_t at_x, at_q, at_k, at_v, at_g, at_lanes, at_keys, at_logits, at_head, at_o, at_y, at_add, at_low, at_high,
      thread_floats;
  float *base;
  int64_t batch;
} module_plan;

static module_plan module_plan_make(const oc_triattn_module *call) {
  module_plan p = {.call = call,
                   .n = call->x.shape[1],
                   .channels = call->x.shape[3],
                   .heads = call->heads,
                   .inner = call->to_q.weight.shape[0],
                   .has_gate = oc_view_is_present(&call->to_gate.weight)};
  p.has_pairs = OC_HAS_PAIRS && call->x.dtype == OC_BF16 && call->to_q.weight.dtype == OC_BF16 &&
                call->to_k.weight.dtype == OC_BF16 && call->to_v.weight.dtype == OC_BF16 &&
                call->out_proj.weight.dtype == OC_BF16 && (!p.has_gate || call->to_gate.weight.dtype == OC_BF16);
  p.depth = p.heads > 0 ? p.inner / p.heads : 0; /* the workspace may be asked for before the call is checked */
  p.width = oc__panels(p.depth) * OC_NR;
  p.lds = oc__logit_ld(p.n);
  p.bias_ld = oc__line_floats(p.n) + 16;
  p.bias_width = oc__panels(p.heads) * OC_NR;
  p.out_width = oc__panels(p.channels) * OC_NR;
  int64_t used = 0;
  p.at_norm = oc__take(&used, 2 * p.channels);
  for (int m = 0; m < 4; m++) {
    p.at_linear[m] = oc__take(&used, p.heads * p.width * p.channels);
    p.at_linear_bias[m] = oc__take(&used, p.heads * p.width);
  }
  p.at_to_bias = oc__take(&used, p.bias_width * p.channels);
  p.at_to_bias_bias = oc__take(&used, p.bias_width);
  p.at_out = oc__take(&used, p.out_width * p.inner);
  p.at_out_bias = oc__take(&used, p.out_width);
  p.at_pair_bias = oc__take(&used, p.heads * p.n * p.bias_ld);
  p.shared = used;
  const int64_t queries = (p.n + OC_MR - 1) / OC_MR * OC_MR; /* oc__attend reads whole blocks */
  used = 0;
  p.at_x = oc__take(&used, p.n * p.channels);
  p.at_q = oc__take(&used, queries * p.width);
  p.at_k = oc__take(&used, p.n * p.width);
  p.at_lanes = oc__take(&used, BIAS_KEYS * p.bias_width);
  p.at_v = oc__take(&used, p.n * p.width);
  p.at_g = oc__take(&used, p.n * p.width);
  p.at_keys = oc__take(&used, oc__packed_floats(p.depth, p.n));
  p.at_logits = oc__take(&used, OC_MR * p.lds);
  p.at_head = oc__take(&used, OC_MR * p.width);
  p.at_o = oc__take(&used, p.n * p.inner);
  p.at_y = oc__take(&used, OUT_ROWS * p.out_width);
  p.at_add = oc__take(&used, p.lds);
  p.at_low = oc__take(&used, p.lds);
  p.at_high = oc__take(&used, p.lds);
  p.thread_floats = used;
  return p;
}

/* ---- packing the weights ---- */

/* heads x [C, width] panels: every head starts a panel, so that its columns are a panel of their own. */
static void pack_heads(const module_plan *p, const oc_linear *linear, float *packed, float *bias) {
  for (int64_t h = 0; h < p->heads; h++) {
    oc_view rows = linear->weight;
    rows.shape[0] = p->depth;
    rows.data = (char *)rows.data + h * p->depth * rows.stride[0] * (int64_t)oc_dtype_bytes(rows.dtype);
    oc__pack_linear(&rows, packed + h * p->width * p->channels);
    oc__pair_panels(p->has_pairs, p->width, p->channels, packed + h * p->width * p->channels);
    memset(bias + h * p->width, 0, (size_t)p->width * sizeof(float));
    if (oc_view_is_present(&linear->bias))
      oc__row_load(&linear->bias, h * p->depth * linear->bias.stride[0], linear->bias.stride[0], p->depth,
                   bias + h * p->width);
  }
}

static void pack_plain(const oc_linear *linear, int64_t width, float *packed, float *bias) {
  oc__pack_linear(&linear->weight, packed);
  memset(bias, 0, (size_t)width * sizeof(float));
  oc__vector_load(&linear->bias, linear->weight.shape[0], 0.0f, bias);
}

static void pack_weights(const module_plan *p) {
  const oc_linear *const linears[4] = {&p->call->to_q, &p->call->to_k, &p->call->to_v, &p->call->to_gate};
  oc__vector_load(&p->call->norm.weight, p->channels, 1.0f, p->base + p->at_norm);
  oc__vector_load(&p->call->norm.bias, p->channels, 0.0f, p->base + p->at_norm + p->channels);
  for (int m = 0; m < (p->has_gate ? 4 : 3); m++)
    pack_heads(p, linears[m], p->base + p->at_linear[m], p->base + p->at_linear_bias[m]);
  pack_plain(&p->call->to_bias, p->bias_width, p->base + p->at_to_bias, p->base + p->at_to_bias_bias);
  pack_plain(&p->call->out_proj, p->out_width, p->base + p->at_out, p->base + p->at_out_bias);
  oc__pair_panels(p->has_pairs, p->out_width, p->inner, p->base + p->at_out);
}

/* ---- pass 1 ---- */

/* rows[count, C] = norm(x[batch, i, j ...]), the step along x being `step` elements. */
static void load_normed(const module_plan *p, int64_t offset, int64_t step, int64_t count, float *rows) {
  const float *weight = p->base + p->at_norm;
  for (int64_t r = 0; r < count; r++) {
    oc__row_load(&p->call->x, offset + r * step, p->call->x.stride[3], p->channels, rows + r * p->channels);
    oc__row_norm(rows + r * p->channels, p->channels, &p->call->norm, weight, weight + p->channels);
  }
}

/* Work unit: the bias rows of one query, all heads. */
static void bias_unit(int64_t query, int thread, void *context) {
  const module_plan *p = context;
  const oc_view *x = &p->call->x;
  float *part = p->base + p->shared + thread * p->thread_floats, *rows = part + p->at_x, *lanes = part + p->at_lanes;
  const int64_t query_step = x->stride[p->call->bias_untransposed_end ? 2 : 1];
  const int64_t key_step = x->stride[p->call->bias_untransposed_end ? 1 : 2];
  for (int64_t key = 0; key < p->n; key += BIAS_KEYS) {
    const int64_t count = p->n - key < BIAS_KEYS ? p->n - key : BIAS_KEYS;
    load_normed(p, p->batch * x->stride[0] + query * query_step + key * key_step, key_step, count, rows);
    oc__gemm(0, count, p->heads, p->channels, rows, p->channels, p->base + p->at_to_bias, lanes, p->bias_width, NULL,
             0);
    for (int64_t h = 0; h < p->heads; h++) {
      float *out = p->base + p->at_pair_bias + (h * p->n + query) * p->bias_ld + key;
      const float add = p->base[p->at_to_bias_bias + h];
      for (int64_t j = 0; j < count; j++) out[j] = lanes[j * p->bias_width + h] + add;
    }
  }
}

/* ---- pass 2 ---- */

/* c[N, columns] = x * panels + bias. The bias comes last: starting from it would round every partial sum to its size.
 */
static void project(const module_plan *p, const float *x, int64_t columns, const float *panels,
                    const oc_view *bias_view, const float *bias, float *c) {
  oc__gemm(p->has_pairs, p->n, columns, p->channels, x, p->channels, panels, c, columns, NULL, 0);
  if (!oc_view_is_present(bias_view)) return;
  for (int64_t e = 0; e < columns; e += OC_VL) {
    const vf add = vf_load(bias + e);
    for (int64_t j = 0; j < p->n; j++) vf_store(c + j * columns + e, vf_add(vf_load(c + j * columns + e), add));
  }
}

/* Projects the normalised row for one head and packs keys and values. */
static void project_head(const module_plan *p, int64_t h, float *part) {
  const oc_triattn_module *call = p->call;
  const int64_t weights = h * p->width * p->channels, bias = h * p->width, size = p->width;
  const float *base = p->base, *x = part + p->at_x;
  float *q = part + p->at_q, *k = part + p->at_k;
  const vf scale = vf_set(call->scale);
  const int64_t queries = (p->n + OC_MR - 1) / OC_MR * OC_MR;
  project(p, x, size, base + p->at_linear[0] + weights, &call->to_q.bias, base + p->at_linear_bias[0] + bias, q);
  for (int64_t e = 0; e < p->n * size; e += OC_VL) vf_store(q + e, vf_rounded(vf_mul(vf_load(q + e), scale)));
  memset(q + p->n * size, 0, (size_t)((queries - p->n) * size) * sizeof(float));
  oc__pair_rows(p->has_pairs, p->n, p->depth, size, q);
  project(p, x, size, base + p->at_linear[1] + weights, &call->to_k.bias, base + p->at_linear_bias[1] + bias, k);
  for (int64_t key = 0; key < p->n; key += OC_NR)
    oc__key_panel(k + key * size, size, p->n - key < OC_NR ? p->n - key : OC_NR, p->depth,
                  part + p->at_keys + key * p->depth);
  oc__pair_panels(p->has_pairs, oc__panels(p->n) * OC_NR, p->depth, part + p->at_keys);
  for (int64_t d = 0; d < size; d += OC_NR)
    project(p, x, OC_NR, base + p->at_linear[2] + weights + d * p->channels, &call->to_v.bias,
            base + p->at_linear_bias[2] + bias + d, part + p->at_v + d * p->n);
  oc__pair_panels(p->has_pairs, size, p->n, part + p->at_v);
  if (p->has_gate)
    project(p, x, size, base + p->at_linear[3] + weights, &call->to_gate.bias, base + p->at_linear_bias[3] + bias,
            part + p->at_g);
}

/* o[:, head h] = sigmoid(gate) * attention of row i. */
static void attend_head(const module_plan *p, int64_t h, const oc__key_mask *mask, float *part) {
  oc__head head = {.keys = p->n,
                   .depth = p->depth,
                   .key_panels = part + p->at_keys,
                   .value_panels = part + p->at_v,
                   .bias_ld = p->bias_ld,
                   .mask = mask,
                   .scale = 1.0f, /* q carries the scale */
                   .bias_first = p->call->mask_kind == OC_MASK_ZERO,
                   .has_pairs = p->has_pairs};
  for (int64_t query = 0; query < p->n; query += OC_MR) {
    const int rows = (int)(p->n - query < OC_MR ? p->n - query : OC_MR);
    head.bias = p->base + p->at_pair_bias + (h * p->n + query) * p->bias_ld;
    oc__attend(&head, rows, part + p->at_q + query * p->width, p->width, part + p->at_logits, part + p->at_head,
               p->width, NULL);
    for (int r = 0; r < rows; r++) {
      float *o = part + p->at_head + r * p->width;
      if (p->has_gate) oc__gate_row(o, part + p->at_g + (query + r) * p->width, p->depth);
      memcpy(part + p->at_o + (query + r) * p->inner + h * p->depth, o, (size_t)p->depth * sizeof(float));
    }
  }
}

/* row[0, n) += add[0, n). */
static void add_row(float *row, const float *add, int64_t n) {
  int64_t c = 0;
  for (; c + OC_VL <= n; c += OC_VL) vf_store(row + c, vf_add(vf_load(row + c), vf_load(add + c)));
  for (; c < n; c++) row[c] += add[c];
}

/* y[i] = out_proj(o) + residual, rounded once. */
static void write_row(const module_plan *p, int64_t i, float *part) {
  const oc_view *y = &p->call->y, *residual = &p->call->residual;
  const int64_t channels = p->channels, inner = p->inner;
  float *block = part + p->at_y, *old = part + p->at_x; /* the normalised row is not needed any more */
  for (int64_t j0 = 0; j0 < p->n; j0 += OUT_ROWS) {
    const int64_t count = p->n - j0 < OUT_ROWS ? p->n - j0 : OUT_ROWS;
    oc__pair_rows(p->has_pairs, count, inner, inner, part + p->at_o + j0 * inner);
    oc__gemm(p->has_pairs, count, channels, inner, part + p->at_o + j0 * inner, inner, p->base + p->at_out, block,
             p->out_width, NULL, 0);
    for (int64_t r = 0; r < count; r++) {
      const int64_t at[4] = {p->batch, i, j0 + r, 0};
      float *row = block + r * p->out_width;
      if (oc_view_is_present(&p->call->out_proj.bias)) add_row(row, p->base + p->at_out_bias, channels);
      if (oc_view_is_present(residual)) {
        oc__row_load(residual, oc_view_offset(residual, at), residual->stride[3], channels, old);
        if (OC_MUTANT == 1) row[0] -= 2.0f * old[0];
        add_row(row, old, channels);
      }
      oc__row_store(y, oc_view_offset(y, at), y->stride[3], channels, row);
    }
  }
}

/* Work unit: row i of y. */
static void row_unit(int64_t i, int thread, void *context) {
  const module_plan *p = context;
  const oc_view *x = &p->call->x, *mask_view = &p->call->mask;
  float *part = p->base + p->shared + thread * p->thread_floats;
  oc__key_mask mask = {.add = part + p->at_add, .low = part + p->at_low, .high = part + p->at_high};
  oc__key_mask_load(&mask, p->call->mask_kind, p->call->mask_value, mask_view,
                    p->batch * mask_view->stride[0] + i * mask_view->stride[1], mask_view->stride[2], p->n);
  load_normed(p, p->batch * x->stride[0] + i * x->stride[1], x->stride[2], p->n, part + p->at_x);
  oc__pair_rows(p->has_pairs, p->n, p->channels, p->channels, part + p->at_x);
  for (int64_t h = 0; h < p->heads; h++) {
    project_head(p, h, part);
    attend_head(p, h, &mask, part);
  }
  write_row(p, i, part);
}

size_t OC_JOIN(OC_MEMBER_FN(oc__triattn_module_cpu), workspace)(const void *call, int threads) {
  const module_plan plan = module_plan_make(call);
  return (size_t)(plan.shared + plan.thread_floats * oc__thread_count(threads, plan.n)) * sizeof(float);
}

oc_status OC_MEMBER_FN(oc__triattn_module_cpu)(const void *call, const oc_exec *exec, oc_err *err) {
  OC_TRY(oc__triattn_module_refuse(call, 0, err));
  module_plan plan = module_plan_make(call);
  const int threads = oc__thread_count(exec->threads, plan.n);
  OC_TRY(oc__workspace_check(exec, (size_t)(plan.shared + plan.thread_floats * threads) * sizeof(float), err));
  if (plan.n == 0 || plan.channels == 0 || plan.call->x.shape[0] == 0) return OC_OK;
  plan.base = exec->workspace;
  pack_weights(&plan);
  for (plan.batch = 0; plan.batch < plan.call->x.shape[0]; plan.batch++) {
    oc__parallel(plan.n, threads, bias_unit, &plan);
    oc__parallel(plan.n, threads, row_unit, &plan);
  }
  return OC_OK;
}
