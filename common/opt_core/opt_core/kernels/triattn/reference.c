/* SPDX-License-Identifier: Apache-2.0 */
/* triattn and triattn_module by straight loops; see attention_reference.h for the order of the attention and the two
 * precisions (F64 q or x: double, else f32 in every step). */
#include "devices/cpu/attention_reference.h"
#include "triattn/triattn_internal.h"

size_t oc__triattn_reference_workspace(const void *call, int threads);
oc_status oc__triattn_reference(const void *call, const oc_exec *exec, oc_err *err);
size_t oc__triattn_module_reference_workspace(const void *call, int threads);
oc_status oc__triattn_module_reference(const void *call, const oc_exec *exec, oc_err *err);

size_t oc__triattn_reference_workspace(const void *call, int threads) {
  const oc__attention attention = oc__triattn_attention(call);
  (void)threads;
  return oc__ref_attention_workspace(&attention);
}

oc_status oc__triattn_reference(const void *call, const oc_exec *exec, oc_err *err) {
  OC_TRY(oc__triattn_refuse(call, 1, err));
  const oc__attention attention = oc__triattn_attention(call);
  OC_TRY(oc__workspace_check(exec, oc__ref_attention_workspace(&attention), err));
  oc__ref_attention(&attention, exec->workspace);
  return OC_OK;
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

/* bias [H, N, N]; one row of x: normed [N, C]; q, k, v, gate, o [N, H * D]; mask, weight [N]; head [D]; line [C]. */
typedef struct module_scratch {
  double *bias, *x, *q, *k, *v, *gate, *o, *mask, *weight, *head, *line;
} module_scratch;

static int64_t module_scratch_count(const oc_triattn_module *call) {
  const int64_t n = call->x.shape[1], channels = call->x.shape[3], inner = call->to_q.weight.shape[0];
  return call->heads * n * n + n * channels + 5 * n * inner + 2 * n + inner + channels;
}

static module_scratch module_scratch_make(const oc_triattn_module *call, double *base) {
  const int64_t n = call->x.shape[1], channels = call->x.shape[3], inner = call->to_q.weight.shape[0];
  module_scratch s = {.bias = base};
  s.x = s.bias + call->heads * n * n;
  s.q = s.x + n * channels;
  s.k = s.q + n * inner;
  s.v = s.k + n * inner;
  s.gate = s.v + n * inner;
  s.o = s.gate + n * inner;
  s.mask = s.o + n * inner;
  s.weight = s.mask + n;
  s.head = s.weight + n;
  s.line = s.head + inner;
  return s;
}

static double vector_at(const oc_view *vector, int64_t index, double absent) {
  return oc_view_is_present(vector) ? oc__ref_load(vector, index * vector->stride[0]) : absent;
}

/* The norm of module.h: sums in index order. */
static void norm_row(const oc_norm *norm, int64_t n, int wide, double *row) {
  double mean = 0.0, squares = 0.0, variance;
  for (int64_t c = 0; !norm->rms && c < n; c++) mean = oc__ref_round(mean + row[c], wide);
  mean = oc__ref_round(mean / (double)n, wide);
  const int one_pass = norm->fast_variance || norm->rms;
  for (int64_t c = 0; c < n; c++) {
    const double d = one_pass ? row[c] : oc__ref_round(row[c] - mean, wide);
    squares = oc__ref_round(squares + oc__ref_round(d * d, wide), wide);
  }
  variance = oc__ref_round(squares / (double)n, wide);
  if (one_pass) variance = oc__ref_round(variance - oc__ref_round(mean * mean, wide), wide);
  const double root = oc__ref_round(sqrt(oc__ref_round(variance + (double)norm->eps, wide)), wide);
  const double scale = oc__ref_round(1.0 / root, wide);
  for (int64_t c = 0; c < n; c++) {
    double y = oc__ref_round(oc__ref_round(row[c] - mean, wide) * scale, wide);
    y = oc__ref_round(y * vector_at(&norm->weight, c, 1.0), wide);
    y = oc__ref_round(y + vector_at(&norm->bias, c, 0.0), wide);
    if (norm->round == OC_BF16 || norm->round == OC_F16) y = (double)oc__round_to((float)y, norm->round);
    row[c] = y;
  }
}

static void load_normed(const oc_triattn_module *call, int64_t b, int64_t i, int64_t j, double *row) {
  int64_t at[4] = {b, i, j, 0};
  for (at[3] = 0; at[3] < call->x.shape[3]; at[3]++) row[at[3]] = oc__ref_load(&call->x, oc_view_offset(&call->x, at));
  norm_row(&call->norm, call->x.shape[3], call->x.dtype == OC_F64, row);
}

/* One output of a linear layer; the bias comes last. */
static double linear_at(const oc_linear *linear, const double *x, int64_t out, int wide) {
  double sum = 0.0;
  for (int64_t c = 0; c < linear->weight.shape[1]; c++) {
    const double w = oc__ref_load(&linear->weight, out * linear->weight.stride[0] + c * linear->weight.stride[1]);
    sum = oc__ref_round(sum + oc__ref_round(x[c] * w, wide), wide);
  }
  return oc__ref_round(sum + vector_at(&linear->bias, out, 0.0), wide);
}

static void make_bias(const oc_triattn_module *call, int64_t b, const module_scratch *s) {
  const int64_t n = call->x.shape[1];
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) {
      load_normed(call, b, i, j, s->line);
      for (int64_t h = 0; h < call->heads; h++)
        s->bias[call->bias_untransposed_end ? (h * n + j) * n + i : (h * n + i) * n + j] =
            linear_at(&call->to_bias, s->line, h, call->x.dtype == OC_F64);
    }
}

static void project_row(const oc_triattn_module *call, int64_t b, int64_t i, const module_scratch *s) {
  const int64_t n = call->x.shape[1], channels = call->x.shape[3], inner = call->to_q.weight.shape[0];
  const int wide = call->x.dtype == OC_F64, has_gate = oc_view_is_present(&call->to_gate.weight);
  for (int64_t j = 0; j < n; j++) {
    double *x = s->x + j * channels;
    const int64_t at[3] = {b, i, j};
    load_normed(call, b, i, j, x);
    for (int64_t e = 0; e < inner; e++) {
      s->q[j * inner + e] = oc__ref_round((double)call->scale * linear_at(&call->to_q, x, e, wide), wide);
      s->k[j * inner + e] = linear_at(&call->to_k, x, e, wide);
      s->v[j * inner + e] = linear_at(&call->to_v, x, e, wide);
      if (has_gate) s->gate[j * inner + e] = linear_at(&call->to_gate, x, e, wide);
    }
    if (oc_view_is_present(&call->mask)) s->mask[j] = oc__ref_load(&call->mask, oc_view_offset(&call->mask, at));
  }
}

static void attend_row(const oc_triattn_module *call, const module_scratch *s) {
  const int64_t n = call->x.shape[1], inner = call->to_q.weight.shape[0], depth = inner / call->heads;
  const int wide = call->x.dtype == OC_F64;
  for (int64_t h = 0; h < call->heads; h++)
    for (int64_t query = 0; query < n; query++) {
      const int64_t at = query * inner + h * depth;
      const oc__ref_query t = {.q = s->q + at,
                               .k = s->k + h * depth,
                               .v = s->v + h * depth,
                               .bias = s->bias + (h * n + query) * n,
                               .mask = oc_view_is_present(&call->mask) ? s->mask : NULL,
                               .keys = n,
                               .depth = depth,
                               .ld = inner,
                               .scale = 1.0,
                               .mask_value = (double)call->mask_value,
                               .mask_kind = call->mask_kind,
                               .wide = wide};
      double lse;
      oc__ref_attend(&t, s->weight, s->head, &lse);
      for (int64_t d = 0; d < depth; d++)
        s->o[at + d] =
            oc_view_is_present(&call->to_gate.weight) ? oc__ref_gated(s->head[d], s->gate[at + d], wide) : s->head[d];
    }
}

static void write_row(const oc_triattn_module *call, int64_t b, int64_t i, const module_scratch *s) {
  const int64_t inner = call->to_q.weight.shape[0];
  const int wide = call->x.dtype == OC_F64;
  for (int64_t j = 0; j < call->x.shape[1]; j++)
    for (int64_t c = 0; c < call->x.shape[3]; c++) {
      const int64_t at[4] = {b, i, j, c};
      double y = linear_at(&call->out_proj, s->o + j * inner, c, wide);
      if (oc_view_is_present(&call->residual))
        y = oc__ref_round(y + oc__ref_load(&call->residual, oc_view_offset(&call->residual, at)), wide);
      oc__ref_store(&call->y, oc_view_offset(&call->y, at), y);
    }
}

size_t oc__triattn_module_reference_workspace(const void *call, int threads) {
  (void)threads;
  return (size_t)module_scratch_count(call) * sizeof(double);
}

oc_status oc__triattn_module_reference(const void *call, const oc_exec *exec, oc_err *err) {
  const oc_triattn_module *module = call;
  OC_TRY(oc__triattn_module_refuse(module, 1, err));
  OC_TRY(oc__workspace_check(exec, oc__triattn_module_reference_workspace(call, 1), err));
  const module_scratch s = module_scratch_make(module, exec->workspace);
  for (int64_t b = 0; b < module->x.shape[0]; b++) {
    make_bias(module, b, &s);
    for (int64_t i = 0; i < module->x.shape[1]; i++) {
      project_row(module, b, i, &s);
      attend_row(module, &s);
      write_row(module, b, i, &s);
    }
  }
  return OC_OK;
}
