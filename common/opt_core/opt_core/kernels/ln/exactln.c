/* SPDX-License-Identifier: Apache-2.0 */
/* exactln: the bits of torch.nn.functional.layer_norm for f32 on an x86 CPU, found by experiment (tests/contract/
 * test_exactln.py repeats it against the torch that is installed). What the stock op computes, in this order:
 *
 *   8 lanes run Welford's update over chunks of 16 vectors; the chunks are merged as a binary counter carries; the
 *   values past the last whole vector run Welford's update one by one; then the lanes are merged into that, lane 0
 *   first.
 *   y = fma((x + (-mean)) * rstd, weight, bias), rstd = 1 / sqrt(m2 / C + eps); absent bias 0; where the weight is
 *   absent, fma(x + (-mean), rstd, bias).
 *
 * Where a product and a sum are one operation there and where they are two is written out below as fmadd, or not: this
 * file is compiled with contraction off and must stay so. The stock op uses 8 lanes at its AVX2 and AVX-512 settings
 * alike.
 */
#include "opt_core/ln.h"

#include "devices/cpu/parallel.h"
#include "devices/cpu/rowset.h"

#if defined(__x86_64__)
#include <immintrin.h>

size_t oc__ln_exactln_avx2_workspace(const void *call, int threads);
oc_status oc__ln_exactln_avx2(const void *call, const oc_exec *exec, oc_err *err);

#define AT_AVX2 __attribute__((target("avx2,fma")))
/* Welford's update is one chain of dependent operations a row: ROWS rows at a time keep both FMA ports busy. What
 * follows the vectors of a row (tail, lanes) is done for the ROWS rows in the lanes of one __m128. No row sees another.
 */
enum { LANES = 8, ROWS = 4, CHUNK = 16, DEPTH_MAX = 56, BLOCK_VALUES = 32768, FETCH_COLUMNS = 512 };

typedef struct moments {
  int64_t count; /* values a lane */
  __m256 mean[ROWS], m2[ROWS];
} moments;

typedef struct work {
  const oc_ln *ln;
  oc__rowset x_rows, y_rows;
  int64_t rows, columns, per_block;
  int direct;
  int depth;                                 /* levels of the binary counter */
  float reciprocal[CHUNK];                   /* 1 / (j + 1) */
  float lane_share[LANES], lane_seen[LANES]; /* merging lane l: its share of the values so far; the values before it */
  const float *weight, *bias;                /* weight NULL: absent */
  float *scratch;                            /* ROWS rows a thread */
} work;

AT_AVX2 static inline void clear(moments *m, int64_t count) {
  m->count = count;
  for (int r = 0; r < ROWS; r++) m->mean[r] = m->m2[r] = _mm256_setzero_ps();
}

/* into += part. */
AT_AVX2 static inline void merge(const moments *part, moments *into) {
  const int64_t count = into->count + part->count;
  const __m256 share = _mm256_set1_ps(count == 0 ? 0.0f : (float)part->count / (float)count);
  const __m256 before = _mm256_set1_ps((float)into->count);
  for (int r = 0; r < ROWS; r++) {
    const __m256 delta = _mm256_sub_ps(part->mean[r], into->mean[r]), step = _mm256_mul_ps(delta, share);
    const __m256 m2 = _mm256_add_ps(into->m2[r], part->m2[r]);
    into->m2[r] = _mm256_fmadd_ps(step, _mm256_mul_ps(delta, before), m2);
    into->mean[r] = _mm256_add_ps(into->mean[r], step);
  }
  into->count = count;
}

/* One of Welford's updates. */
AT_AVX2 static inline void update(const float *x, __m256 reciprocal, __m256 *mean, __m256 *m2) {
  const __m256 v = _mm256_loadu_ps(x), delta = _mm256_sub_ps(v, *mean);
  *mean = _mm256_fmadd_ps(delta, reciprocal, *mean);
  *m2 = _mm256_fmadd_ps(delta, _mm256_sub_ps(v, *mean), *m2);
}

/* The rows by name: a compiler keeps these in registers, the elements of an array only sometimes. */
AT_AVX2 static inline void chunk_moments(const work *w, const float *const x[ROWS], int64_t at, int64_t vectors,
                                         moments *m) {
  const float *x0 = x[0] + at, *x1 = x[1] + at, *x2 = x[2] + at, *x3 = x[3] + at;
  const __m256 zero = _mm256_setzero_ps();
  __m256 a0 = zero, a1 = zero, a2 = zero, a3 = zero, b0 = zero, b1 = zero, b2 = zero, b3 = zero;
  for (int64_t j = 0; j < vectors; j++) {
    const __m256 reciprocal = _mm256_set1_ps(w->reciprocal[j]);
    update(x0 + j * LANES, reciprocal, &a0, &b0);
    update(x1 + j * LANES, reciprocal, &a1, &b1);
    update(x2 + j * LANES, reciprocal, &a2, &b2);
    update(x3 + j * LANES, reciprocal, &a3, &b3);
  }
  *m = (moments){vectors, {a0, a1, a2, a3}, {b0, b1, b2, b3}};
}

AT_AVX2 static inline void vector_moments(const work *w, const float *const x[ROWS], moments *all) {
  const int64_t vectors = w->columns / LANES, chunks = (vectors + CHUNK - 1) / CHUNK;
  moments level[DEPTH_MAX], chunk;
  for (int j = 0; j < w->depth || j == 0; j++) clear(&level[j], 0);
  for (int64_t i = 0; i < chunks; i++) {
    const int64_t left = vectors - i * CHUNK;
    chunk_moments(w, x, i * CHUNK * LANES, left < CHUNK ? left : CHUNK, &chunk);
    merge(&chunk, &level[0]);
    int64_t carry = i + 1;
    for (int j = 1; j < w->depth && (carry & 1) == 0; j++, carry >>= 1) {
      merge(&level[j - 1], &level[j]);
      clear(&level[j - 1], 0);
    }
  }
  for (int j = 1; j < w->depth; j++) merge(&level[j], &level[0]);
  *all = level[0];
}

/* lane[l] = lane l of the ROWS rows. */
AT_AVX2 static inline void transpose(const __m256 row[ROWS], __m128 lane[LANES]) {
  for (int half = 0; half < 2; half++) {
    __m128 part[ROWS];
    for (int r = 0; r < ROWS; r++) part[r] = half ? _mm256_extractf128_ps(row[r], 1) : _mm256_castps256_ps128(row[r]);
    _MM_TRANSPOSE4_PS(part[0], part[1], part[2], part[3]);
    for (int r = 0; r < ROWS; r++) lane[half * ROWS + r] = part[r];
  }
}

/* mean[r] and rstd[r] of row r. Not one of the products and sums of the tail is fused in the stock op. */
AT_AVX2 static inline void row_moments(const work *w, const float *const x[ROWS], float *mean, float *rstd) {
  moments all;
  __m128 lane_mean[LANES], lane_m2[LANES], m1 = _mm_setzero_ps(), m2 = _mm_setzero_ps();
  vector_moments(w, x, &all);
  transpose(all.mean, lane_mean);
  transpose(all.m2, lane_m2);
  int64_t seen = 0;
  for (int64_t c = w->columns / LANES * LANES; c < w->columns; c++) {
    const __m128 v = _mm_setr_ps(x[0][c], x[1][c], x[2][c], x[3][c]), delta = _mm_sub_ps(v, m1);
    m1 = _mm_add_ps(m1, _mm_div_ps(delta, _mm_set1_ps((float)++seen)));
    m2 = _mm_add_ps(m2, _mm_mul_ps(delta, _mm_sub_ps(v, m1)));
  }
  for (int l = 0; l < LANES; l++) {
    const __m128 delta = _mm_sub_ps(lane_mean[l], m1), share = _mm_set1_ps(w->lane_share[l]);
    const __m128 square = _mm_mul_ps(_mm_mul_ps(delta, delta), share);
    m1 = _mm_fmadd_ps(share, delta, m1);
    m2 = _mm_add_ps(m2, _mm_fmadd_ps(square, _mm_set1_ps(w->lane_seen[l]), lane_m2[l]));
  }
  const __m128 variance = _mm_div_ps(m2, _mm_set1_ps((float)w->columns));
  _mm_storeu_ps(mean, m1);
  _mm_storeu_ps(rstd, _mm_div_ps(_mm_set1_ps(1.0f), _mm_sqrt_ps(_mm_add_ps(variance, _mm_set1_ps(w->ln->norm.eps)))));
}

AT_AVX2 static inline void apply(const work *w, float mean, float rstd, const float *x, float *y) {
  const float *weight = w->weight,
              *bias = w->bias; /* here: a store through y could change *w, as far as a compiler sees */
  const int64_t columns = w->columns;
  int64_t c = 0;
  const __m256 minus = _mm256_set1_ps(-mean), scale = _mm256_set1_ps(rstd);
  if (!weight) {
    for (; c + LANES <= columns; c += LANES) {
      const __m256 v = _mm256_add_ps(_mm256_loadu_ps(x + c), minus);
      _mm256_storeu_ps(y + c, _mm256_fmadd_ps(v, scale, _mm256_loadu_ps(bias + c)));
    }
    for (; c < columns; c++) y[c] = __builtin_fmaf(x[c] + -mean, rstd, bias[c]);
    return;
  }
  for (; c + LANES <= columns; c += LANES) {
    const __m256 v = _mm256_mul_ps(_mm256_add_ps(_mm256_loadu_ps(x + c), minus), scale);
    _mm256_storeu_ps(y + c, _mm256_fmadd_ps(v, _mm256_loadu_ps(weight + c), _mm256_loadu_ps(bias + c)));
  }
  for (; c < columns; c++) y[c] = __builtin_fmaf((x[c] + -mean) * rstd, weight[c], bias[c]);
}

/* Asks for what lies ROWS rows behind this one in a dense tensor: the next group's row, which otherwise comes too late
 * for its chain; two groups of longer rows do not fit the first cache. A hint that never faults; addresses and no
 * pointers, because the last rows have nothing behind them. */
AT_AVX2 static inline void fetch_next(const work *w, const float *x) {
  const uintptr_t from = (uintptr_t)x + (uintptr_t)w->columns * ROWS * sizeof(float);
  for (uintptr_t byte = 0; byte < (uintptr_t)w->columns * sizeof(float); byte += 64)
    _mm_prefetch((const char *)(from + byte), _MM_HINT_T0);
}

/* The first `count` rows; those behind them repeat one of these and are only read. */
AT_AVX2 static void norm_rows(const work *w, const float *const x[ROWS], float *const y[ROWS], int64_t count) {
  float mean[ROWS], rstd[ROWS];
  row_moments(w, x, mean, rstd);
  for (int64_t r = 0; r < count; r++) {
    if (w->direct && w->columns <= FETCH_COLUMNS) fetch_next(w, x[r]);
    apply(w, mean[r], rstd[r], x[r], y[r]);
  }
}

static void norm_group(const work *w, int64_t row, int64_t count, float *scratch) {
  const oc_view *x = &w->ln->x, *y = &w->ln->y;
  const int64_t x_step = x->stride[x->rank - 1], y_step = y->stride[y->rank - 1], line = oc__line_floats(w->columns);
  const float *from[ROWS];
  float *to[ROWS];
  for (int64_t r = 0; r < ROWS; r++) {
    const int64_t in = row + (r < count ? r : 0);
    from[r] = w->direct ? (const float *)x->data + oc__rowset_offset(&w->x_rows, in) : scratch + r * line;
    to[r] = w->direct ? (float *)y->data + oc__rowset_offset(&w->y_rows, in) : scratch + r * line;
    if (!w->direct) oc__row_load(x, oc__rowset_offset(&w->x_rows, in), x_step, w->columns, scratch + r * line);
  }
  norm_rows(w, from, to, count);
  for (int64_t r = 0; r < count && !w->direct; r++)
    oc__row_store(y, oc__rowset_offset(&w->y_rows, row + r), y_step, w->columns, to[r]);
}

static void run_block(int64_t block, int thread, void *context) {
  const work *w = context;
  const int64_t first = block * w->per_block, end = first + w->per_block < w->rows ? first + w->per_block : w->rows;
  float *scratch = w->scratch + thread * ROWS * oc__line_floats(w->columns);
  for (int64_t row = first; row < end; row += ROWS) norm_group(w, row, end - row < ROWS ? end - row : ROWS, scratch);
}

/* ---- entry ------------------------------------------------------------------------------------------------------- */

static int64_t block_rows(int64_t columns) {
  const int64_t rows = BLOCK_VALUES / (columns > 0 ? columns : 1) / ROWS * ROWS;
  return rows < ROWS ? ROWS : rows > 512 ? 512 : rows;
}

static int64_t block_count(const oc_ln *ln) {
  const int64_t per_block = block_rows(ln->x.shape[ln->x.rank - 1]);
  return (oc__row_count(&ln->x, ln->x.rank - 1) + per_block - 1) / per_block;
}

static size_t workspace_bytes(int64_t columns, int threads) {
  return (size_t)((2 + threads * (int64_t)ROWS) * oc__line_floats(columns)) * sizeof(float);
}

size_t oc__ln_exactln_avx2_workspace(const void *call, int threads) {
  const oc_ln *ln = call;
  return workspace_bytes(ln->x.shape[ln->x.rank - 1], oc__thread_count(threads, block_count(ln)));
}

static oc_status refuse_dtype(const oc_view *view, const char *name, oc_err *err) {
  if (!oc_view_is_present(view) || view->dtype == OC_F32) return OC_OK;
  return OC_REFUSE(err, DTYPE, "%s=%s, served: f32", name, oc_dtype_word(view->dtype));
}

static oc_status refuse(const oc_ln *ln, oc_err *err) {
  OC_TRY(refuse_dtype(&ln->x, "x", err));
  OC_TRY(refuse_dtype(&ln->y, "y", err));
  OC_TRY(refuse_dtype(&ln->norm.weight, "norm.weight", err));
  OC_TRY(refuse_dtype(&ln->norm.bias, "norm.bias", err));
  if (ln->norm.rms) return OC_REFUSE(err, DIALECT, "norm.rms=1, served: 0");
  if (ln->norm.fast_variance) return OC_REFUSE(err, DIALECT, "norm.fast_variance=1, served: 0");
  if (ln->norm.round != OC_DTYPE_NONE && ln->norm.round != OC_F32)
    return OC_REFUSE(err, DIALECT, "norm.round=%s, served: f32", oc_dtype_word(ln->norm.round));
  return OC_OK;
}

/* What depends on the number of columns only. */
static void prepare_shares(work *w) {
  const int64_t vectors = w->columns / LANES, chunks = (vectors + CHUNK - 1) / CHUNK;
  while (((int64_t)1 << w->depth) < chunks) w->depth++;
  for (int j = 0; j < CHUNK; j++) w->reciprocal[j] = 1.0f / (float)(j + 1);
  int64_t seen = w->columns % LANES;
  for (int l = 0; l < LANES; l++, seen += vectors) {
    w->lane_seen[l] = (float)seen;
    w->lane_share[l] = seen + vectors == 0 ? 0.0f : (float)vectors / (float)(seen + vectors);
  }
}

oc_status oc__ln_exactln_avx2(const void *call, const oc_exec *exec, oc_err *err) {
  const oc_ln *ln = call;
  const int32_t last = ln->x.rank - 1;
  OC_TRY(refuse(ln, err));
  work w = {.ln = ln, .rows = oc__row_count(&ln->x, last), .columns = ln->x.shape[last]};
  if (w.rows == 0 || w.columns == 0) return OC_OK;
  const int threads = oc__thread_count(exec->threads, block_count(ln));
  const size_t need = workspace_bytes(w.columns, threads);
  if (!exec->workspace || exec->workspace_bytes < need)
    return OC_FAIL(err, BAD_ARG, 0, "workspace: %zu bytes, %zu needed", exec->workspace ? exec->workspace_bytes : 0,
                   need);
  float *weight = exec->workspace, *bias = weight + oc__line_floats(w.columns);
  oc__vector_load(&ln->norm.weight, w.columns, 1.0f, weight);
  oc__vector_load(&ln->norm.bias, w.columns, 0.0f, bias);
  w.weight = oc_view_is_present(&ln->norm.weight) ? weight : NULL;
  w.bias = bias;
  w.scratch = bias + oc__line_floats(w.columns);
  w.x_rows = oc__rowset_of(&ln->x, last);
  w.y_rows = oc__rowset_of(&ln->y, last);
  w.direct = w.columns == 1 || (ln->x.stride[last] == 1 && ln->y.stride[last] == 1);
  w.per_block = block_rows(w.columns);
  prepare_shares(&w);
  oc__parallel(block_count(ln), threads, run_block, &w);
  return OC_OK;
}
#endif
