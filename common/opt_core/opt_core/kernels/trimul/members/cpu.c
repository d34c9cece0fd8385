/* SPDX-License-Identifier: Apache-2.0 */
/* trimul on the CPU: three passes over planes that are channel-major, so that no product needs a permuted copy.
 *
 * panel    OC_NR pair positions side by side, channel after channel: panel[c * OC_NR + lane]. It is the packed right
 *          operand of a product whose left operand is a weight matrix; the result is channel-major again, and LayerNorm
 *          over c needs no sum across lanes
 * project  panels of x, normalised, times the four weights; sigmoid, mask, scale; `left` planes are written [i][k],
 *          `right` planes as the packed panels [j / OC_NR][k][OC_NR] that the contraction reads. Either side walks x in
 *          the order that makes its stores contiguous, so each direction costs one gather of whole rows of x
 * contract t[c] = left[c] * right[c], one product a channel
 * finish   panels of t (already channel-major), normalised, times out_proj; panels of x again for the gate; rows of y
 *
 * Strides of rows and planes are an odd number of cache lines: no N makes neighbours fall into one cache set.
 * With products of bf16 (gemm.h; x and the weights are bf16) the weights' rows and the panels hold pairs, and where the
 * stock op contracts in bf16 the planes do too, from the first touch of a channel in `contract` on.
 *
 * A lane never meets another lane, and sums run in the order of c or k: bits do not depend on how work is cut.
 */
#include <stdint.h>

#include "devices/cpu/gemm.h"
#include "devices/cpu/parallel.h"
#include "devices/cpu/transpose.h"
#include "trimul/trimul_internal.h"

#include "opt_core/device.h"

#ifndef OC_MUTANT
#define OC_MUTANT 0 /* 1..4 plant a fault that the tests must find; see test_trimul.c */
#endif

#define CHUNK (4 * OC_MR) /* channels between two visits to the sigmoid: both products stay in L1 */
#define BLOCK_PANELS 4    /* panels that a thread takes at a time */
#define BLOCK_ROWS 384    /* rows of t at a time, at most */
#define DEPTH 256         /* of k at a time: a panel of right is 32 KB at AVX-512, 16 KB at AVX2 */

/* Offsets into the workspace, in floats; each is a multiple of 16. */
typedef struct layout {
  oc__trimul_sizes size;
  int64_t panels;                 /* of right: ceil(N / OC_NR) */
  int64_t ld, plane, right_plane; /* row and plane strides of left and t; plane stride of right */
  int64_t ld_in, ld_mid;          /* row strides of weights over C and over Ch */
  int64_t weight[OC__LINEAR_COUNT], bias[OC__LINEAR_COUNT], norm_in, norm_out;
  int64_t left, right, t, scratch, scratch_floats;
} layout;

typedef struct job {
  const oc_trimul *call;
  layout at;
  float *base;
  int64_t batch, row_blocks;
  int threads;
  int has_pairs, contracts_pairs; /* bf16: the products with weights; the contraction */
} job;

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* The least odd number of cache lines that holds `floats`. */
static int64_t odd_lines(int64_t floats) {
  const int64_t whole = oc__line_floats(floats);
  return whole % 32 == 0 ? whole + 16 : whole;
}

static int take(int64_t *total, int64_t *at, int64_t count, int64_t floats) {
  *at = *total;
  return oc__trimul_add(total, count, floats, 1);
}

static int plan_weights(layout *l, int64_t *total) {
  const int64_t c = l->size.c, d = l->size.d;
  int fits = 1;
  for (int i = 0; i < OC__LINEAR_COUNT; i++) {
    const int64_t out = i < OC__OUT_PROJ ? d : c;
    fits = fits && take(total, &l->weight[i], out, i == OC__OUT_PROJ ? l->ld_mid : l->ld_in);
    fits = fits && take(total, &l->bias[i], 1, oc__line_floats(out));
  }
  fits = fits && take(total, &l->norm_in, 2, oc__line_floats(c));
  return fits && take(total, &l->norm_out, 2, oc__line_floats(d));
}

/* 0 when the sizes leave 2^60 floats. Sums that are not checked stay within 64 bits: the first test bounds rounding up,
 * the weights (at least 64 * Ch and C * C floats) bound the scratch of a thread. */
static int plan(const oc_trimul *call, int threads, layout *l, int64_t *total) {
  *total = 0;
  l->size = oc__trimul_sizes_of(call);
  const int64_t n = l->size.n, c = l->size.c, d = l->size.d, widest = c > d ? c : d;
  if (n > INT64_MAX / 256 || widest > INT64_MAX / 256) return 0;
  l->panels = oc__panels(n);
  l->ld = odd_lines(l->panels * OC_NR);
  l->ld_in = odd_lines(c);
  l->ld_mid = odd_lines(d);
  if (!plan_weights(l, total)) return 0;
  l->plane = l->right_plane = 0;
  if (!oc__trimul_add(&l->plane, n, l->ld, 1) || !oc__trimul_add(&l->right_plane, l->panels * OC_NR, n, 1)) return 0;
  l->plane = odd_lines(l->plane);
  l->right_plane = odd_lines(l->right_plane);
  if (!take(total, &l->left, d, l->plane) || !take(total, &l->right, d, l->right_plane) ||
      !take(total, &l->t, d, l->plane))
    return 0;
  /* Panels of x and t, OC_NR rows and one more, a chunk of gates, a chunk of products for each panel. */
  l->scratch_floats = BLOCK_PANELS * OC_NR * (c + d) + (OC_NR + 1) * l->ld_in + (1 + BLOCK_PANELS) * CHUNK * OC_NR;
  return take(total, &l->scratch, threads, oc__line_floats(l->scratch_floats));
}

static int is_empty(const oc_trimul *call) { return call->x.shape[0] <= 0 || call->x.shape[1] <= 0; }

size_t OC_JOIN(OC_MEMBER_FN(oc__trimul_cpu), workspace)(const void *descriptor, int threads);
size_t OC_JOIN(OC_MEMBER_FN(oc__trimul_cpu), workspace)(const void *descriptor, int threads) {
  const oc_trimul *call = descriptor;
  layout l;
  int64_t total;
  if (is_empty(call)) return 0;
  if (!plan(call, threads > 0 ? threads : oc_cpu_threads(), &l, &total)) return SIZE_MAX;
  return (size_t)total * sizeof(float);
}

/* 1 / (1 + exp(-x)), 0 below -88 where it leaves the normal numbers. AVX-512 divides at a quarter of the speed of this
 * estimate of 14 bits and one Newton step (28 bits, then rounded). */
static vf sigmoid(vf x) {
#if OC_VL == 16
  const vf one = vf_set(1.0f), sum = vf_add(one, vf_exp(vf_sub(vf_zero(), x))), estimate = _mm512_rcp14_ps(sum);
  return _mm512_maskz_fmadd_ps(_mm512_cmp_ps_mask(x, vf_set(-88.0f), _CMP_NLT_UQ), vf_fnma(sum, estimate, one),
                               estimate, estimate);
#else
  return vf_sigmoid(x);
#endif
}

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* A walk over pair positions, row by row, `columns` a row; `first` and `total` count positions. */
typedef struct walk {
  int64_t columns, first, total;
} walk;

/* What a panel holds of one row of a walk: lanes [lane, lane + lanes) are columns [column, column + lanes). */
typedef struct segment {
  int64_t row, column;
  int lane, lanes;
} segment;

static int cut(const walk *w, segment *segments) {
  int64_t row = w->first / w->columns, column = w->first % w->columns;
  int64_t left = w->total - w->first < OC_NR ? w->total - w->first : OC_NR;
  int count = 0, lane = 0;
  while (left > 0) {
    const int64_t lanes = w->columns - column < left ? w->columns - column : left;
    segments[count++] = (segment){row, column, lane, (int)lanes};
    lane += (int)lanes;
    left -= lanes;
    column = 0;
    row++;
  }
  return count;
}

/* Element offsets of positions in a pair tensor: origin + row * row_step + column * column_step. */
typedef struct place {
  int64_t origin, row_step, column_step;
} place;

static place place_of(const oc_view *view, int64_t batch, int is_turned) {
  const place p = {batch * view->stride[0], view->stride[is_turned ? 2 : 1], view->stride[is_turned ? 1 : 2]};
  return p;
}

static int offsets(const segment *segments, int count, const place *p, int64_t *offset) {
  int lanes = 0;
  for (int s = 0; s < count; s++)
    for (int i = 0; i < segments[s].lanes; i++)
      offset[lanes++] = p->origin + segments[s].row * p->row_step + (segments[s].column + i) * p->column_step;
  return lanes;
}

/* panel[c][lane] = rows[lane][c]. */
static void panel_from_rows(const float *const *rows, int64_t n, float *panel) {
  vf square[OC_VL];
  int64_t c = 0;
  for (; c + OC_VL <= n; c += OC_VL)
    for (int half = 0; half < OC_NR; half += OC_VL) {
      for (int i = 0; i < OC_VL; i++) square[i] = vf_load(rows[half + i] + c);
      vf_transpose(square);
      for (int i = 0; i < OC_VL; i++) vf_store(panel + (c + i) * OC_NR + half, square[i]);
    }
#if OC_MUTANT != 3
  for (; c < n; c++)
    for (int lane = 0; lane < OC_NR; lane++) panel[c * OC_NR + lane] = rows[lane][c];
#endif
}

/* rows[lane][c] = panel[c][lane]. */
static void rows_from_panel(const float *panel, int64_t n, float *rows, int64_t ld) {
  vf square[OC_VL];
  int64_t c = 0;
  for (; c + OC_VL <= n; c += OC_VL)
    for (int half = 0; half < OC_NR; half += OC_VL) {
      for (int i = 0; i < OC_VL; i++) square[i] = vf_load(panel + (c + i) * OC_NR + half);
      vf_transpose(square);
      for (int i = 0; i < OC_VL; i++) vf_store(rows + (half + i) * ld + c, square[i]);
    }
  for (; c < n; c++)
    for (int lane = 0; lane < OC_NR; lane++) rows[lane * ld + c] = panel[c * OC_NR + lane];
}

/* The row of `view` at `offset` as f32: in place where memory has it so, else copied to `spare`. */
static const float *row_of(const oc_view *view, int64_t offset, float *spare) {
  const int64_t n = view->shape[3], stride = view->stride[3];
  if (view->dtype == OC_F32 && (stride == 1 || n == 1)) return (const float *)view->data + offset;
  oc__row_load(view, offset, stride, n, spare);
  return spare;
}

/* Lanes past the end repeat lane 0: numbers like the others, never stored. */
static void gather(const oc_view *view, const int64_t *offset, int lanes, float *panel, float *spare, int64_t ld) {
  const float *rows[OC_NR];
  rows[0] = row_of(view, offset[0], spare);
  for (int lane = 1; lane < OC_NR; lane++)
    rows[lane] = lane < lanes ? row_of(view, offset[lane], spare + lane * ld) : rows[0];
  panel_from_rows(rows, view->shape[3], panel);
}

static void round_lanes(float *lanes, int64_t n, oc_dtype dtype) {
#if OC_HAS_PAIRS
  for (int64_t i = 0; dtype == OC_BF16 && i < n; i += OC_VL) /* n is a multiple of OC_NR */
    vf_store(lanes + i, _mm512_castsi512_ps(_mm512_slli_epi32(oc__narrow(vf_load(lanes + i)), 16)));
  if (dtype == OC_BF16) return;
#endif
  if (dtype == OC_BF16)
    for (int64_t i = 0; i < n; i++) lanes[i] = oc__from_bf16(oc__to_bf16(lanes[i]));
  else if (dtype == OC_F16)
    for (int64_t i = 0; i < n; i++) lanes[i] = oc__from_f16(oc__to_f16(lanes[i]));
}

/* Sum over c of (panel[c] - shift)^power for OC_VL lanes, in four partial sums: c mod 4 each, then across. */
static vf column_sum(const float *panel, int64_t n, vf shift, int squared) {
  vf part[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  for (int64_t c = 0; c < n; c += 4) {
    const int count = n - c < 4 ? (int)(n - c) : 4;
    for (int i = 0; i < count; i++) {
      const vf x = vf_sub(vf_load(panel + (c + i) * OC_NR), shift);
      part[i] = squared ? vf_fma(x, x, part[i]) : vf_add(x, part[i]);
    }
  }
  return vf_add(vf_add(part[0], part[1]), vf_add(part[2], part[3]));
}

/* weight[0, n) and bias[line(n) ...): the norm's affine. */
static void norm_panel(float *panel, int64_t n, const oc_norm *norm, const float *affine) {
  const float *weight = affine, *bias = affine + oc__line_floats(n);
  const vf count = vf_set((float)n);
  for (int half = 0; half < OC_NR; half += OC_VL) {
    float *p = panel + half, lane[OC_VL];
    const vf mean = norm->rms ? vf_zero() : vf_div(column_sum(p, n, vf_zero(), 0), count);
    const int is_one_pass = norm->fast_variance || norm->rms;
    vf variance = vf_div(column_sum(p, n, is_one_pass ? vf_zero() : mean, 1), count);
    if (is_one_pass) variance = vf_fnma(mean, mean, variance);
    vf_store(lane, variance);
    for (int i = 0; i < OC_VL; i++) lane[i] = 1.0f / sqrtf(lane[i] + norm->eps);
    const vf scale = vf_load(lane);
    for (int64_t c = 0; c < n; c++) {
      const vf x = vf_mul(vf_sub(vf_load(p + c * OC_NR), mean), scale);
      vf_store(p + c * OC_NR, vf_fma(x, vf_set(weight[c]), vf_set(bias[c])));
    }
  }
  round_lanes(panel, n * OC_NR, norm->round);
}

/* out[m, OC_NR] = weight rows [first, first + m) times a panel of k channels. */
static void product(const job *j, int linear, int64_t first, int64_t m, const float *panel, float *out) {
  const int64_t k = linear == OC__OUT_PROJ ? j->at.size.d : j->at.size.c;
  const int64_t ld = linear == OC__OUT_PROJ ? j->at.ld_mid : j->at.ld_in;
  oc__gemm(j->has_pairs, m, OC_NR, k, j->base + j->at.weight[linear] + first * ld, ld, panel, out, OC_NR, NULL, 0);
}

/* ---- project ----------------------------------------------------------------------------------------------------- */

typedef struct strip {
  walk w;
  int is_right, is_turned;
  int64_t column0;       /* first j of a panel of right */
  int64_t plane, at, ld; /* plane stride, offset of the strip in a plane, row stride */
} strip;

static int64_t blocks_of(int64_t positions) { return (positions + BLOCK_PANELS * OC_NR - 1) / (BLOCK_PANELS * OC_NR); }

static int64_t project_blocks(const layout *l) {
  return blocks_of(l->size.n * l->size.n) + l->panels * blocks_of(l->size.n * OC_NR);
}

/* Left: rows i, columns k. Right, a panel of columns j at a time: rows k. The first axis of x is i (outgoing: left) or
 * k (incoming), so outgoing turns right and incoming turns left. */
static strip strip_of(const job *j, int64_t block) {
  const int64_t n = j->at.size.n, left_blocks = blocks_of(n * n), right_blocks = blocks_of(n * OC_NR);
  const int outgoing = j->call->direction == OC_OUTGOING;
  strip s = {.is_right = block >= left_blocks};
  s.is_turned = s.is_right == outgoing;
  if (!s.is_right) {
    s.w = (walk){n, block * BLOCK_PANELS * OC_NR, n * n};
    s.plane = j->at.plane;
    s.ld = j->at.ld;
    return s;
  }
  const int64_t panel = (block - left_blocks) / right_blocks, width = n - panel * OC_NR;
  s.w.columns = width < OC_NR ? width : OC_NR;
  s.w.first = (block - left_blocks) % right_blocks * BLOCK_PANELS * OC_NR;
  s.w.total = n * s.w.columns;
  s.column0 = panel * OC_NR;
  s.plane = j->at.right_plane;
  s.at = panel * OC_NR * n;
  s.ld = OC_NR;
  return s;
}

/* One channel of a panel into its plane; a panel of right that is narrower than OC_NR is filled up with zeros. */
static void put(const strip *s, const segment *segments, int count, float *plane, const float *lanes) {
  for (int i = 0; i < count; i++) {
    const segment *g = &segments[i];
    float *to = plane + g->row * s->ld + g->column;
    if (g->lanes == OC_NR) {
      vf_store(to, vf_load(lanes));
      vf_store(to + OC_VL, vf_load(lanes + OC_VL));
      continue;
    }
    memcpy(to, lanes + g->lane, (size_t)g->lanes * sizeof(float));
    if (s->is_right && g->column + g->lanes == s->w.columns && s->w.columns < OC_NR)
      memset(to + g->lanes, 0, (size_t)(OC_NR - s->w.columns) * sizeof(float));
  }
}

/* proj = mask * sigmoid(gate + gate_bias) * (proj + proj_bias), times scale. */
static void gate_lanes(const float *gate, float *proj, float gate_bias, float proj_bias, const float *mask,
                       float scale) {
  for (int half = 0; half < OC_NR; half += OC_VL) {
    vf v = sigmoid(vf_add(vf_load(gate + half), vf_set(gate_bias)));
    if (mask) v = vf_mul(vf_load(mask + half), v);
    v = vf_mul(v, vf_add(vf_load(proj + half), vf_set(proj_bias)));
    if (scale != 1.0f) v = vf_mul(v, vf_set(scale));
    vf_store(proj + half, v);
  }
}

static const float *load_mask(const job *j, const strip *s, const segment *segments, int count, float *lanes) {
  const oc_view *mask = &j->call->mask;
  int64_t offset[OC_NR];
  if (!oc_view_is_present(mask) || OC_MUTANT == 4) return NULL;
  place p = place_of(mask, j->batch, s->is_turned);
  p.origin += s->column0 * p.column_step;
  const int used = offsets(segments, count, &p, offset);
  for (int lane = 0; lane < OC_NR; lane++)
    lanes[lane] =
        lane < used ? oc__load1(mask->data, mask->dtype, offset[OC_MUTANT == 2 ? (lane + 1) % used : lane]) : 0.0f;
  return lanes;
}

/* The panels of a block, at most BLOCK_PANELS, and what they hold of each row of the walk. */
typedef struct run {
  int panels, lanes[BLOCK_PANELS], count[BLOCK_PANELS];
  segment segments[BLOCK_PANELS][OC_NR];
} run;

static void run_of(walk w, run *r) {
  for (r->panels = 0; r->panels < BLOCK_PANELS && w.first < w.total; r->panels++, w.first += OC_NR) {
    r->lanes[r->panels] = (int)(w.total - w.first < OC_NR ? w.total - w.first : OC_NR);
    r->count[r->panels] = cut(&w, r->segments[r->panels]);
  }
}

/* Memory that the thread will need next, asked for a few cache lines at a time between products: rows of x lie too far
 * apart for the processor to guess. `rows` rows of `bytes` bytes, listed, or `stride` bytes apart from base on. */
typedef struct ahead {
  const char *listed[BLOCK_PANELS * OC_NR], *base;
  int64_t rows, stride, bytes, row, byte, step;
} ahead;

OC_INLINE void ask_for(ahead *a, int is_output) {
  for (int64_t i = 0; i < a->step && a->row < a->rows; i++) {
    const char *line = (a->base ? a->base + a->row * a->stride : a->listed[a->row]) + a->byte;
    if (is_output)
      __builtin_prefetch(line, 1, 3);
    else
      __builtin_prefetch(line, 0, 2);
    a->byte += 64;
    if (a->byte < a->bytes) continue;
    a->byte = 0;
    a->row++;
  }
}

static void ask(ahead *a) { ask_for(a, 0); }
static void ask_output(ahead *a) { ask_for(a, 1); }

/* Spreads what is to be asked for over `calls` calls. */
static void pace(ahead *a, int64_t calls) { a->step = a->rows * ((a->bytes + 63) / 64) / (calls > 0 ? calls : 1) + 1; }

/* The rows of x or y that a block names. */
static void ahead_of_rows(const oc_view *x, const run *next, const place *p, ahead *a) {
  const int64_t size = (int64_t)oc_dtype_bytes(x->dtype);
  int64_t offset[OC_NR];
  *a = (ahead){.bytes = x->shape[3] * size};
  for (int i = 0; x->stride[3] == 1 && i < next->panels; i++) {
    const int lanes = offsets(next->segments[i], next->count[i], p, offset);
    for (int lane = 0; lane < lanes; lane++) a->listed[a->rows++] = (const char *)x->data + offset[lane] * size;
  }
}

/* Panels of x, normalised, each n * OC_NR floats after the one before. */
static void load_x(const job *j, const run *r, const place *p, float *panels, float *spare) {
  const int64_t c = j->at.size.c;
  int64_t offset[OC_NR];
  for (int i = 0; i < r->panels; i++) {
    offsets(r->segments[i], r->count[i], p, offset);
    gather(&j->call->x, offset, r->lanes[i], panels + i * c * OC_NR, spare, odd_lines(c));
    norm_panel(panels + i * c * OC_NR, c, &j->call->norm_in, j->base + j->at.norm_in);
    oc__pair_panels(j->has_pairs, OC_NR, c, panels + i * c * OC_NR);
  }
}

/* Channels [d0, d0 + m) of one panel: products, gate, mask, scale; the result is in proj. The place in the planes where
 * it will go is fetched meanwhile: stores to memory that no cache holds would wait for it. */
static void project_chunk(const job *j, int is_right, int64_t d0, int64_t m, const float *panel, const float *mask,
                          float *gate, float *proj, const float *to, int64_t plane, ahead *next) {
  const int gate_at = is_right ? OC__RIGHT_GATE : OC__LEFT_GATE, proj_at = gate_at + 1;
  const float *gate_bias = j->base + j->at.bias[gate_at] + d0, *proj_bias = j->base + j->at.bias[proj_at] + d0;
  const float scale = oc__trimul_scale(j->call, is_right);
  product(j, gate_at, d0, m, panel, gate);
  product(j, proj_at, d0, m, panel, proj);
  for (int64_t r = 0; r < m; r++) {
    ask(next);
    for (int lane = 0; lane < OC_NR; lane += 16) __builtin_prefetch(to + r * plane + lane, 1, 3);
    gate_lanes(gate + r * OC_NR, proj + r * OC_NR, gate_bias[r], proj_bias[r], mask, scale);
  }
  if (!j->contracts_pairs) round_lanes(proj, m * OC_NR, j->call->product); /* else the pairs are rounded */
}

static place place_in_x(const job *j, const strip *s) {
  place p = place_of(&j->call->x, j->batch, s->is_turned);
  p.origin += s->column0 * p.column_step;
  return p;
}

/* The block that this thread will most likely get next. */
static void ahead_of_project(const job *j, int64_t block, ahead *a) {
  run r = {0};
  if (block >= project_blocks(&j->at)) return;
  const strip s = strip_of(j, block);
  const place p = place_in_x(j, &s);
  run_of(s.w, &r);
  ahead_of_rows(&j->call->x, &r, &p, a);
}

/* Channels outside, panels inside: the stores of a channel to its plane come in one run of the whole block. */
static void project_block(int64_t block, int thread, void *context) {
  const job *j = context;
  const layout *l = &j->at;
  const strip s = strip_of(j, block);
  const place p = place_in_x(j, &s);
  float *panels = j->base + l->scratch + thread * oc__line_floats(l->scratch_floats);
  float *spare = panels + BLOCK_PANELS * OC_NR * l->size.c, *gate = spare + OC_NR * odd_lines(l->size.c);
  float *proj = gate + CHUNK * OC_NR, *plane = j->base + (s.is_right ? l->right : l->left) + s.at;
  float mask_lanes[BLOCK_PANELS][OC_NR];
  const float *mask[BLOCK_PANELS];
  ahead next = {.rows = 0};
  run r;
  run_of(s.w, &r);
  load_x(j, &r, &p, panels, spare);
  ahead_of_project(j, block + j->threads, &next);
  pace(&next, r.panels * l->size.d);
  for (int i = 0; i < r.panels; i++) mask[i] = load_mask(j, &s, r.segments[i], r.count[i], mask_lanes[i]);
  for (int64_t d0 = 0; d0 < l->size.d; d0 += CHUNK) {
    const int64_t m = l->size.d - d0 < CHUNK ? l->size.d - d0 : CHUNK;
    for (int i = 0; i < r.panels; i++) {
      const float *to = plane + d0 * s.plane + r.segments[i][0].row * s.ld + r.segments[i][0].column;
      project_chunk(j, s.is_right, d0, m, panels + i * l->size.c * OC_NR, mask[i], gate, proj + i * CHUNK * OC_NR, to,
                    s.plane, &next);
    }
    for (int64_t c = 0; c < m; c++)
      for (int i = 0; i < r.panels; i++)
        put(&s, r.segments[i], r.count[i], plane + (d0 + c) * s.plane, proj + (i * CHUNK + c) * OC_NR);
  }
}

/* ---- contract ---------------------------------------------------------------------------------------------------- */

/* The planes of a channel to pairs, in place. */
static void pair_channel(int64_t channel, int thread, void *context) {
  const job *j = context;
  const layout *l = &j->at;
  (void)thread;
  oc__pair_rows(j->contracts_pairs, l->size.n, l->size.n, l->ld, j->base + l->left + channel * l->plane);
  oc__pair_panels(j->contracts_pairs, l->panels * OC_NR, l->size.n, j->base + l->right + channel * l->right_plane);
}

/* rows of left times right into t, as oc__gemm runs it, while the planes of another channel come into the cache. */
static void contract_rows(int pairs, int64_t m, int64_t n, const float *left, int64_t ld, const float *right, float *t,
                          ahead *next) {
  const int64_t all = oc__steps(pairs, n);
  for (int64_t k0 = 0; k0 < all; k0 += DEPTH) {
    const int64_t steps = all - k0 < DEPTH ? all - k0 : DEPTH;
    for (int64_t p = 0; p < oc__panels(n); p++)
      for (int64_t r = 0; r < m; r += OC_MR) {
        const int rows = (int)(m - r < OC_MR ? m - r : OC_MR);
        float *tile = t + r * ld + p * OC_NR;
        for (int i = 0; i < rows; i++) {
          __builtin_prefetch(tile + i * ld, 1, 3);
          __builtin_prefetch(tile + i * ld + OC_NR - 1, 1, 3);
        }
        ask(&next[0]);
        ask(&next[1]);
        oc__tile_any(pairs, rows, steps, left + r * ld + k0, ld, right + (p * n + k0) * OC_NR, tile, ld, NULL, k0 > 0);
      }
  }
}

static void contract_block(int64_t block, int thread, void *context) {
  const job *j = context;
  const layout *l = &j->at;
  const int64_t n = l->size.n, channel = block / j->row_blocks, part = block % j->row_blocks;
  const int64_t rows = ((n + j->row_blocks - 1) / j->row_blocks + OC_MR - 1) / OC_MR * OC_MR, first = part * rows;
  const int64_t m = n - first < rows ? n - first : rows, later = (block + j->threads) / j->row_blocks;
  ahead next[2] = {{.rows = 0}, {.rows = 0}};
  if (first >= n) return;
  if (later < l->size.d && later != channel && n <= BLOCK_ROWS) {
    next[0] = (ahead){.base = (const char *)(j->base + l->left + later * l->plane), .rows = 1, .bytes = l->plane * 4};
    next[1] = (ahead){
        .base = (const char *)(j->base + l->right + later * l->right_plane), .rows = 1, .bytes = l->right_plane * 4};
  }
  for (int i = 0; i < 2; i++) pace(&next[i], (m + OC_MR - 1) / OC_MR * l->panels);
  if (j->row_blocks == 1) pair_channel(channel, thread, context);
  contract_rows(j->contracts_pairs, m, n, j->base + l->left + channel * l->plane + first * l->ld, l->ld,
                j->base + l->right + channel * l->right_plane, j->base + l->t + channel * l->plane + first * l->ld,
                next);
}

/* ---- finish ------------------------------------------------------------------------------------------------------ */

/* Channel c of t: the lanes of one panel. */
static void take_lanes(const job *j, const float *plane, const segment *segments, int count, int lanes, float *to) {
  if (segments[0].lanes == OC_NR) {
    const float *from = plane + segments[0].row * j->at.ld + segments[0].column;
    vf_store(to, vf_load(from));
    vf_store(to + OC_VL, vf_load(from + OC_VL));
    return;
  }
  for (int i = 0; i < count; i++)
    memcpy(to + segments[i].lane, plane + segments[i].row * j->at.ld + segments[i].column,
           (size_t)segments[i].lanes * sizeof(float));
  for (int lane = lanes; lane < OC_NR; lane++) to[lane] = 0.0f;
}

/* Panels of t, normalised. */
static void load_t(const job *j, const run *r, float *panels) {
  const layout *l = &j->at;
  const int64_t d = l->size.d;
  for (int64_t c = 0; c < d; c++)
    for (int i = 0; i < r->panels; i++)
      take_lanes(j, j->base + l->t + c * l->plane, r->segments[i], r->count[i], r->lanes[i],
                 panels + (i * d + c) * OC_NR);
  round_lanes(panels, r->panels * d * OC_NR, j->call->product);
  for (int i = 0; i < r->panels; i++) {
    norm_panel(panels + i * d * OC_NR, d, &j->call->norm_out, j->base + l->norm_out);
    oc__pair_panels(j->has_pairs, OC_NR, d, panels + i * d * OC_NR);
  }
}

/* z = (z + bias) * sigmoid(gate + gate_bias). */
static void finish_lanes(float *z, const float *gate, float bias, float gate_bias) {
  for (int half = 0; half < OC_NR; half += OC_VL) {
    const vf g = sigmoid(vf_add(vf_load(gate + half), vf_set(gate_bias)));
    vf_store(z + half, vf_mul(vf_add(vf_load(z + half), vf_set(bias)), g));
  }
}

static void store_row(const job *j, int64_t y_offset, int64_t residual_offset, float *row, float *spare) {
  const oc_trimul *call = j->call;
  const int64_t n = j->at.size.c;
  if (oc_view_is_present(&call->residual)) {
    const float *add = row_of(&call->residual, residual_offset, spare);
    for (int64_t c = 0; c < n; c++) row[c] = OC_MUTANT == 1 ? row[c] - add[c] : row[c] + add[c];
  }
  oc__row_store(&call->y, y_offset, call->y.stride[3], n, row);
}

static void store_rows(const job *j, const segment *segments, int count, float *rows, int64_t ld, float *spare) {
  const place y = place_of(&j->call->y, j->batch, 0), residual = place_of(&j->call->residual, j->batch, 0);
  int64_t to[OC_NR], add[OC_NR];
  const int lanes = offsets(segments, count, &y, to);
  offsets(segments, count, &residual, add);
  for (int lane = 0; lane < lanes; lane++) store_row(j, to[lane], add[lane], rows + lane * ld, spare);
}

/* Rows of one panel of y, before the residual. */
static void finish_panel(const job *j, const float *x, const float *t, float *gate, float *z, float *rows,
                         ahead *next) {
  const layout *l = &j->at;
  const float *bias = j->base + l->bias[OC__OUT_PROJ], *gate_bias = j->base + l->bias[OC__OUT_GATE];
  for (int64_t c0 = 0; c0 < l->size.c; c0 += CHUNK) {
    const int64_t m = l->size.c - c0 < CHUNK ? l->size.c - c0 : CHUNK;
    product(j, OC__OUT_PROJ, c0, m, t, z);
    product(j, OC__OUT_GATE, c0, m, x, gate);
    for (int64_t r = 0; r < m; r++) {
      ask(&next[0]);
      ask(&next[1]);
      ask_output(&next[2]);
      finish_lanes(z + r * OC_NR, gate + r * OC_NR, bias[c0 + r], gate_bias[c0 + r]);
    }
    rows_from_panel(z, m, rows + c0, odd_lines(l->size.c));
  }
}

/* x, and the runs of t, of the block that this thread will most likely get next. */
static void ahead_of_finish(const job *j, int64_t block, ahead next[2]) {
  const layout *l = &j->at;
  const place p = place_of(&j->call->x, j->batch, 0);
  run r;
  if (block >= blocks_of(l->size.n * l->size.n)) return;
  run_of((walk){l->size.n, block * BLOCK_PANELS * OC_NR, l->size.n * l->size.n}, &r);
  ahead_of_rows(&j->call->x, &r, &p, &next[0]);
  const segment *first = &r.segments[0][0];
  next[1] = (ahead){.base = (const char *)(j->base + l->t + first->row * l->ld + first->column),
                    .rows = l->size.d,
                    .stride = l->plane * (int64_t)sizeof(float),
                    .bytes = r.panels * OC_NR * (int64_t)sizeof(float)};
}

/* y may be x: every row of x that the block needs has been read before the first row of y is written. */
static void finish_block(int64_t block, int thread, void *context) {
  const job *j = context;
  const layout *l = &j->at;
  const int64_t n = l->size.n, c = l->size.c, d = l->size.d;
  float *x = j->base + l->scratch + thread * oc__line_floats(l->scratch_floats), *t = x + BLOCK_PANELS * OC_NR * c;
  float *rows = t + BLOCK_PANELS * OC_NR * d, *spare = rows + OC_NR * odd_lines(c), *gate = spare + odd_lines(c);
  float *z = gate + CHUNK * OC_NR;
  const place p = place_of(&j->call->x, j->batch, 0);
  const place q = place_of(&j->call->y, j->batch, 0);
  ahead next[3] = {{.rows = 0}, {.rows = 0}, {.rows = 0}};
  run r;
  run_of((walk){n, block * BLOCK_PANELS * OC_NR, n * n}, &r);
  load_x(j, &r, &p, x, rows);
  load_t(j, &r, t);
  ahead_of_finish(j, block + j->threads, next);
  ahead_of_rows(&j->call->y, &r, &q, &next[2]);
  for (int i = 0; i < 3; i++) pace(&next[i], r.panels * c);
  for (int i = 0; i < r.panels; i++) {
    finish_panel(j, x + i * c * OC_NR, t + i * d * OC_NR, gate, z, rows, next);
    store_rows(j, r.segments[i], r.count[i], rows, odd_lines(c), spare);
  }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static void load_parameters(const job *j) {
  const layout *l = &j->at;
  for (int i = 0; i < OC__LINEAR_COUNT; i++) {
    const oc_linear *linear = oc__trimul_linear(j->call, i);
    const oc_view *w = &linear->weight;
    const int64_t ld = i == OC__OUT_PROJ ? l->ld_mid : l->ld_in;
    for (int64_t r = 0; r < w->shape[0]; r++)
      oc__row_load(w, r * w->stride[0], w->stride[1], w->shape[1], j->base + l->weight[i] + r * ld);
    oc__pair_rows(j->has_pairs, w->shape[0], w->shape[1], ld, j->base + l->weight[i]);
    oc__vector_load(&linear->bias, w->shape[0], 0.0f, j->base + l->bias[i]);
  }
  const int64_t c = l->size.c, d = l->size.d;
  oc__vector_load(&j->call->norm_in.weight, c, 1.0f, j->base + l->norm_in);
  oc__vector_load(&j->call->norm_in.bias, c, 0.0f, j->base + l->norm_in + oc__line_floats(c));
  oc__vector_load(&j->call->norm_out.weight, d, 1.0f, j->base + l->norm_out);
  oc__vector_load(&j->call->norm_out.bias, d, 0.0f, j->base + l->norm_out + oc__line_floats(d));
}

static int makes_pairs(const oc_trimul *call) {
  int all = OC_HAS_PAIRS && call->x.dtype == OC_BF16;
  for (int i = 0; i < OC__LINEAR_COUNT; i++) all = all && oc__trimul_linear(call, i)->weight.dtype == OC_BF16;
  return all;
}

static void spread(job *j, int64_t blocks, int threads, void (*body)(int64_t, int, void *)) {
  j->threads = oc__thread_count(threads, blocks);
  oc__parallel(blocks, j->threads, body, j);
}

oc_status OC_MEMBER_FN(oc__trimul_cpu)(const void *descriptor, const oc_exec *exec, oc_err *err);
oc_status OC_MEMBER_FN(oc__trimul_cpu)(const void *descriptor, const oc_exec *exec, oc_err *err) {
  const oc_trimul *call = descriptor;
  const int threads = exec->threads > 0 ? exec->threads : oc_cpu_threads();
  int64_t total;
  OC_TRY(oc__trimul_admit(call, 0, err));
  OC_TRY(oc__trimul_room(call, exec, OC_JOIN(OC_MEMBER_FN(oc__trimul_cpu), workspace)(call, threads), err));
  if (is_empty(call)) return OC_OK;
  job j = {.call = call, .base = exec->workspace, .has_pairs = makes_pairs(call)};
  j.contracts_pairs = j.has_pairs && call->product == OC_BF16;
  plan(call, threads, &j.at, &total);
  load_parameters(&j);
  const int64_t n = j.at.size.n;
  j.row_blocks = (n + BLOCK_ROWS - 1) / BLOCK_ROWS;
  for (j.batch = 0; j.batch < j.at.size.b; j.batch++) {
    spread(&j, project_blocks(&j.at), threads, project_block);
    if (j.contracts_pairs && j.row_blocks > 1) spread(&j, j.at.size.d, threads, pair_channel);
    spread(&j, j.at.size.d * j.row_blocks, threads, contract_block);
    spread(&j, blocks_of(n * n), threads, finish_block);
  }
  return OC_OK;
}
