/* SPDX-License-Identifier: Apache-2.0 */
/* transition on a CPU. The products are computed transposed: a tile is OC_MR weight rows (read where they lie, one
 * value broadcast at a time) times OC_NR data rows (lanes). So no weight is ever packed, the hidden layer comes out in
 * the very form in which the down product wants it, and it never leaves the cache:
 *
 *   x rows -> norm -> panels x[c][row] -> up, gate for SLICE hidden units -> activation -> panels h[unit][row]
 *     -> y[c][row] += down -> transposed back -> bias, mask, residual -> y rows
 *
 * Each element's sum runs over k in order, whatever the block, the tile or the thread.
 *
 * At the level avx512_bf16, where x and all weights are bf16, panels hold pairs: two values of k as bf16 in the place of
 * one float. The norm's result and the hidden layer are rounded to bf16, as the stock op rounds them; sums stay f32.
 */
#include "opt_core/transition.h"

#include "devices/cpu/parallel.h"
#include "devices/cpu/rowset.h"

#include <inttypes.h>

size_t OC_JOIN(OC_MEMBER_FN(oc__transition_cpu), workspace)(const void *call, int threads);
oc_status OC_MEMBER_FN(oc__transition_cpu)(const void *call, const oc_exec *exec, oc_err *err);

#ifndef OC_MUTANT
#define OC_MUTANT 0 /* 1 swapped add, 2 shifted index, 3 dropped tail, 4 lost mask: a test must see each */
#endif

/* A block is up to BLOCK_LANES data rows; SLICE hidden units of it are 128 KB, their weights at C = 128 another 128 KB.
 * DEPTH bounds the part of k that a tile sums before it adds to what is there: OC_MR weight rows of 1 KB stay in L1
 * while the panels pass, and the error of a long product is that of its blocks (as in gemm.h). */
enum { BLOCK_LANES = 128, SLICE = 240, DEPTH = 256 };

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* out[r][lane] (+)= sum over k of w[r * ldw + k] * panel[k][lane]. pairs, rows and accumulate are constants: a choice at
 * run time would send the accumulators through memory. */
OC_INLINE void tile(const int pairs, const int rows, const int accumulate, int64_t steps, const float *w, int64_t ldw,
                    const float *panel, float *out) {
  vf acc0[OC_MR], acc1[OC_MR];
  for (int r = 0; r < rows; r++) acc0[r] = acc1[r] = vf_zero();
  for (int64_t k = 0; k < steps; k++) {
    const vf b0 = vf_load(panel + k * OC_NR), b1 = vf_load(panel + k * OC_NR + OC_VL);
    for (int r = 0; r < rows; r++) {
      const vf x = vf_set(w[r * ldw + k]);
      acc0[r] = oc__multiply_add(pairs, x, b0, acc0[r]);
      acc1[r] = oc__multiply_add(pairs, x, b1, acc1[r]);
    }
  }
  for (int r = 0; r < rows; r++) {
    float *target = out + r * OC_NR;
    vf_store(target, accumulate ? vf_add(acc0[r], vf_load(target)) : acc0[r]);
    vf_store(target + OC_VL, accumulate ? vf_add(acc1[r], vf_load(target + OC_VL)) : acc1[r]);
  }
}

OC_INLINE void tile_rows(const int pairs, int rows, int accumulate, int64_t steps, const float *w, int64_t ldw,
                         const float *panel, float *out) {
  /* clang-format off */
  switch (2 * rows + accumulate) {
#define CASE(r) \
  case 2 * r: tile(pairs, r, 0, steps, w, ldw, panel, out); break; \
  case 2 * r + 1: tile(pairs, r, 1, steps, w, ldw, panel, out); break;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if OC_MR > 6
    CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
  default: break;
  }
  /* clang-format on */
}

/* A weight as rows with unit stride along k, of floats or of pairs (gemm.h). */
typedef struct matrix {
  const float *data;
  int64_t ld;
} matrix;

/* out panel p [m][OC_NR] (+)= w[m, k] * panel p [k][OC_NR], for every panel. in_step, out_step: floats from panel to
 * panel. */
static void multiply(int pairs, int64_t m, int64_t k, matrix w, int64_t panels, const float *in, int64_t in_step,
                     float *out, int64_t out_step, int accumulate) {
  const int64_t all = oc__steps(pairs, k);
  for (int64_t k0 = 0; k0 < all; k0 += DEPTH) {
    const int64_t steps = all - k0 < DEPTH ? all - k0 : DEPTH;
    const int add = accumulate || k0 > 0;
    for (int64_t r = 0; r < m; r += OC_MR) {
      const float *rows = w.data + r * w.ld + k0;
      const int count = (int)(m - r < OC_MR ? m - r : OC_MR);
      for (int64_t p = 0; p < panels; p++) {
        const float *panel = in + p * in_step + k0 * OC_NR;
        float *target = out + p * out_step + r * OC_NR;
        if (OC_HAS_PAIRS && pairs)
          tile_rows(1, count, add, steps, rows, w.ld, panel, target);
        else
          tile_rows(0, count, add, steps, rows, w.ld, panel, target);
      }
    }
  }
}

/* ---- activation -------------------------------------------------------------------------------------------------- */

/* u[unit][lane] = activation of (u + bias, g + gate_bias), in place; units rows of one panel. */
static void activate(oc_activation activation, int64_t units, float *u, const float *g, const float *bias,
                     const float *gate_bias) {
  for (int64_t h = 0; h < units; h++) {
#if OC_MUTANT == 1
    const vf b = vf_set(-bias[h]);
#else
    const vf b = vf_set(bias[h]);
#endif
    for (int64_t lane = h * OC_NR; lane < (h + 1) * OC_NR; lane += OC_VL) {
      const vf v = vf_add(vf_load(u + lane), b);
      if (activation == OC_ACTIVATION_RELU) {
        vf_store(u + lane, vf_max(vf_zero(), v)); /* NaN is the second operand: it stays */
        continue;
      }
      const vf gate = vf_add(vf_load(g + lane), vf_set(gate_bias[h]));
      const vf open = vf_sigmoid(gate);
      vf_store(u + lane, vf_mul(activation == OC_ACTIVATION_SWIGLU ? vf_mul(gate, open) : open, v));
    }
  }
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

typedef struct work {
  const oc_transition *call;
  oc__rowset x_rows, y_rows, mask_rows, residual_rows;
  int64_t rows, columns, hidden, lanes; /* lanes: data rows a block, a multiple of OC_NR */
  matrix up, gate, down;
  const float *norm_weight, *norm_bias, *up_bias, *gate_bias, *down_bias;
  float *scratch;
  int64_t scratch_floats; /* a thread */
  int has_pairs;          /* panels hold pairs of bf16 */
} work;

/* Scratch of a thread, in floats: x panels, y panels, u panels, gate panels, then OC_NR rows and one residual row. */
typedef struct layout {
  int64_t y, u, g, rows, residual, total;
} layout;

static int64_t row_ld(int64_t columns) { return oc__line_floats(columns) + 16; } /* off the power of two: cache sets */

static layout layout_of(int64_t lanes, int64_t columns) {
  layout l = {.y = lanes * columns};
  l.u = 2 * l.y;
  l.g = l.u + lanes * SLICE;
  l.rows = l.g + lanes * SLICE;
  l.residual = l.rows + OC_NR * row_ld(columns);
  l.total = oc__line_floats(l.residual + columns);
  return l;
}

static void load_panel(const work *w, int64_t first, int64_t count, float *rows, float *panel) {
  const int64_t ld = row_ld(w->columns);
  oc__rows_load(&w->call->x, &w->x_rows, first, count, rows, ld);
  if (!w->call->norm_absent)
    for (int64_t r = 0; r < count; r++)
      oc__row_norm(rows + r * ld, w->columns, &w->call->norm, w->norm_weight, w->norm_bias);
  for (int64_t r = count; r < OC_NR; r++) memset(rows + r * ld, 0, (size_t)w->columns * sizeof(float));
  oc__transpose(OC_NR, w->columns, rows, ld, panel, OC_NR);
  oc__pair_panels(w->has_pairs, OC_NR, w->columns, panel);
}

static void finish_row(const work *w, int64_t row, float *values, float *residual) {
  const oc_transition *call = w->call;
  const int64_t n = w->columns;
  float mask = 1.0f;
  if (oc_view_is_present(&call->mask) && OC_MUTANT != 4)
    mask = oc__load1(call->mask.data, call->mask.dtype, oc__rowset_offset(&w->mask_rows, row));
  if (oc_view_is_present(&call->residual))
    oc__row_load(&call->residual, oc__rowset_offset(&w->residual_rows, row), call->residual.stride[call->x.rank - 1], n,
                 residual);
  for (int64_t c = 0; c < n; c++) {
    const float v = (values[c] + w->down_bias[c]) * mask;
    values[c] = oc_view_is_present(&call->residual) ? v + residual[c] : v;
  }
}

static void store_panel(const work *w, int64_t first, int64_t count, const float *panel, float *rows, float *residual) {
  const int64_t ld = row_ld(w->columns);
  oc__transpose(w->columns, OC_NR, panel, OC_NR, rows, ld);
  for (int64_t r = 0; r < count; r++) finish_row(w, first + r, rows + r * ld, residual);
  oc__rows_store(&w->call->y, &w->y_rows, first, count, rows, ld);
}

/* The part of a matrix from a row and a step on. */
static matrix part_of(matrix m, int64_t row, int64_t step) { return (matrix){m.data + row * m.ld + step, m.ld}; }

static void run_block(int64_t block, int thread, void *context) {
  const work *w = context;
  const layout l = layout_of(w->lanes, w->columns);
  const int64_t first = block * w->lanes, step = w->columns * OC_NR, slice_step = SLICE * OC_NR;
  const int64_t count = w->rows - first < w->lanes ? w->rows - first : w->lanes;
  const int64_t panels = (count + OC_NR - 1) / OC_NR;
  float *base = w->scratch + thread * w->scratch_floats;
  for (int64_t p = 0; p < panels; p++) {
    const int64_t left = count - p * OC_NR;
    load_panel(w, first + p * OC_NR, left < OC_NR ? left : OC_NR, base + l.rows, base + p * step);
  }
  if (w->hidden == 0) memset(base + l.y, 0, (size_t)(panels * step) * sizeof(float));
  for (int64_t h = 0; h < w->hidden; h += SLICE) {
    const int64_t units = w->hidden - h < SLICE ? w->hidden - h : SLICE;
    multiply(w->has_pairs, units, w->columns, part_of(w->up, h, 0), panels, base, step, base + l.u, slice_step, 0);
    if (w->gate.data)
      multiply(w->has_pairs, units, w->columns, part_of(w->gate, h, 0), panels, base, step, base + l.g, slice_step, 0);
    for (int64_t p = 0; p < panels; p++) {
      activate(w->call->activation, units, base + l.u + p * slice_step, base + l.g + p * slice_step, w->up_bias + h,
               w->gate_bias + h);
      oc__pair_panels(w->has_pairs, OC_NR, units, base + l.u + p * slice_step);
    }
    multiply(w->has_pairs, w->columns, units, part_of(w->down, 0, oc__steps(w->has_pairs, h)), panels, base + l.u,
             slice_step, base + l.y, step, h > 0);
  }
  for (int64_t p = 0; p < panels; p++) {
    const int64_t left = count - p * OC_NR;
    store_panel(w, first + p * OC_NR, left < OC_NR ? left : OC_NR, base + l.y + p * step, base + l.rows,
                base + l.residual);
  }
}

/* ---- weights that cannot be read where they lie ------------------------------------------------------------------ */

static int makes_pairs(const oc_transition *call) {
  return OC_HAS_PAIRS && call->x.dtype == OC_BF16 && call->up.weight.dtype == OC_BF16 &&
         call->down.weight.dtype == OC_BF16 &&
         (!oc_view_is_present(&call->gate.weight) || call->gate.weight.dtype == OC_BF16);
}

/* Rows of pairs have to be whole words: an even length, an even step, an address of 4 bytes. */
static int is_direct(const oc_view *weight, int pairs) {
  if (weight->stride[1] != 1 && weight->shape[1] > 1) return 0;
  if (!pairs) return weight->dtype == OC_F32;
  return weight->shape[1] % 2 == 0 && weight->stride[0] % 2 == 0 && (uintptr_t)weight->data % 4 == 0;
}

static int64_t copy_ld(const oc_view *weight) { return oc__line_floats(weight->shape[1]) + 16; }

static int64_t copy_floats(const oc_view *weight, int pairs) {
  return oc_view_is_present(weight) && !is_direct(weight, pairs) ? weight->shape[0] * copy_ld(weight) : 0;
}

typedef struct copy_work {
  const oc_view *weight;
  int pairs;
  float *out;
} copy_work;

enum { COPY_ROWS = 16 };

static void copy_block(int64_t block, int thread, void *context) {
  const copy_work *w = context;
  const oc__rowset set = oc__rowset_of(w->weight, 1);
  const int64_t first = block * COPY_ROWS, left = w->weight->shape[0] - first, ld = copy_ld(w->weight);
  const int64_t count = left < COPY_ROWS ? left : COPY_ROWS;
  (void)thread;
  oc__rows_load(w->weight, &set, first, count, w->out + first * ld, ld);
  oc__pair_rows(w->pairs, count, w->weight->shape[1], ld, w->out + first * ld);
}

/* The weight itself, or a copy of it at *next, which moves on. */
static matrix matrix_of(const oc_view *weight, int pairs, int threads, float **next) {
  if (!oc_view_is_present(weight)) return (matrix){NULL, 0};
  if (is_direct(weight, pairs)) return (matrix){weight->data, pairs ? weight->stride[0] / 2 : weight->stride[0]};
  copy_work w = {weight, pairs, *next};
  const int64_t blocks = (weight->shape[0] + COPY_ROWS - 1) / COPY_ROWS;
  oc__parallel(blocks, (int)(blocks < threads ? blocks : threads), copy_block, &w);
  *next += copy_floats(weight, pairs);
  return (matrix){w.out, copy_ld(weight)};
}

static const float *vector_of(const oc_view *vector, int64_t n, float absent, float **next) {
  float *out = *next;
  oc__vector_load(vector, n, absent, out);
  *next += oc__line_floats(n);
  return out;
}

/* ---- entry ------------------------------------------------------------------------------------------------------- */

/* Lanes a block: as many as BLOCK_LANES, fewer where the rows would not give every thread a block. */
static int64_t lanes_of(int64_t rows, int threads) {
  const int64_t share = (rows + threads - 1) / threads, lanes = oc__panels(share) * OC_NR;
  return lanes < BLOCK_LANES ? lanes : BLOCK_LANES;
}

static int thread_count(const oc_transition *call, int wanted) {
  return oc__thread_count(wanted, oc__panels(oc__row_count(&call->x, call->x.rank - 1)));
}

static size_t workspace_bytes(const oc_transition *call, int threads) {
  const int64_t columns = call->x.shape[call->x.rank - 1], hidden = call->up.weight.shape[0];
  const int64_t rows = oc__row_count(&call->x, call->x.rank - 1);
  const int pairs = makes_pairs(call);
  const int64_t shared = 3 * oc__line_floats(columns) + 2 * oc__line_floats(hidden) +
                         copy_floats(&call->up.weight, pairs) + copy_floats(&call->gate.weight, pairs) +
                         copy_floats(&call->down.weight, pairs);
  return (size_t)(shared + threads * layout_of(lanes_of(rows, threads), columns).total) * sizeof(float);
}

size_t OC_JOIN(OC_MEMBER_FN(oc__transition_cpu), workspace)(const void *call, int threads) {
  return workspace_bytes(call, thread_count(call, threads));
}

static oc_status refuse_dtype(const oc_view *view, const char *name, oc_err *err) {
  if (view->dtype == OC_DTYPE_NONE || view->dtype == OC_F32 || view->dtype == OC_BF16 || view->dtype == OC_F16)
    return OC_OK;
  return OC_REFUSE(err, DTYPE, "%s=%s, served: f32 bf16 f16", name, oc_dtype_word(view->dtype));
}

static oc_status refuse(const oc_transition *call, oc_err *err) {
  const oc_view *const views[] = {&call->x,         &call->y,           &call->residual,  &call->up.weight,
                                  &call->up.bias,   &call->gate.weight, &call->gate.bias, &call->down.weight,
                                  &call->down.bias, &call->norm.weight, &call->norm.bias};
  static const char *const names[] = {"x",         "y",           "residual",  "up.weight",   "up.bias",  "gate.weight",
                                      "gate.bias", "down.weight", "down.bias", "norm.weight", "norm.bias"};
  const int count = call->norm_absent ? 9 : 11;
  for (int i = 0; i < count; i++) OC_TRY(refuse_dtype(views[i], names[i], err));
  return OC_OK;
}

static void prepare(work *w, int threads, float *next) {
  const oc_transition *call = w->call;
  const int32_t axes = call->x.rank - 1;
  const oc_view none = {0};
  w->norm_weight = vector_of(call->norm_absent ? &none : &call->norm.weight, w->columns, 1.0f, &next);
  w->norm_bias = vector_of(call->norm_absent ? &none : &call->norm.bias, w->columns, 0.0f, &next);
  w->down_bias = vector_of(&call->down.bias, w->columns, 0.0f, &next);
  w->up_bias = vector_of(&call->up.bias, w->hidden, 0.0f, &next);
  w->gate_bias = vector_of(&call->gate.bias, w->hidden, 0.0f, &next);
  w->has_pairs = makes_pairs(call);
  w->up = matrix_of(&call->up.weight, w->has_pairs, threads, &next);
  w->gate = matrix_of(&call->gate.weight, w->has_pairs, threads, &next);
  w->down = matrix_of(&call->down.weight, w->has_pairs, threads, &next);
  w->scratch = next;
  w->scratch_floats = layout_of(w->lanes, w->columns).total;
  w->x_rows = oc__rowset_of(&call->x, axes);
  w->y_rows = oc__rowset_of(&call->y, axes);
  w->mask_rows = oc__rowset_of(&call->mask, oc_view_is_present(&call->mask) ? axes : 0);
  w->residual_rows = oc__rowset_of(&call->residual, oc_view_is_present(&call->residual) ? axes : 0);
#if OC_MUTANT == 2
  w->down_bias -= w->columns > 1;
#elif OC_MUTANT == 3
  w->hidden -= w->hidden > 1 ? w->hidden % OC_MR : 0;
#endif
}

oc_status OC_MEMBER_FN(oc__transition_cpu)(const void *call, const oc_exec *exec, oc_err *err) {
  const oc_transition *t = call;
  const int32_t last = t->x.rank - 1;
  work w = {
      .call = t, .rows = oc__row_count(&t->x, last), .columns = t->x.shape[last], .hidden = t->up.weight.shape[0]};
  OC_TRY(refuse(t, err));
  if (w.rows == 0 || w.columns == 0) return OC_OK;
  const int threads = thread_count(t, exec->threads);
  const size_t need = workspace_bytes(t, threads);
  if (!exec->workspace || exec->workspace_bytes < need)
    return OC_FAIL(err, BAD_ARG, 0, "workspace: %zu bytes, %zu needed", exec->workspace ? exec->workspace_bytes : 0,
                   need);
  w.lanes = lanes_of(w.rows, threads);
  prepare(&w, threads, exec->workspace);
  const int64_t blocks = (w.rows + w.lanes - 1) / w.lanes;
  oc__parallel(blocks, (int)(blocks < threads ? blocks : threads), run_block, &w);
  return OC_OK;
}
