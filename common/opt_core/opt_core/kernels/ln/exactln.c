/* SPDX-License-Identifier: Apache-2.0 */
/* exactln: the bits of torch.nn.functional.layer_norm for f32 on an x86 CPU, found by experiment (tests/contract/
 * test_exactln.py repeats it against the torch that is installed). What the stock op computes, in this order:
 *
 *   8 lanes run Welford's update over chunks of 16 vectors; the chunks are merged as a binary counter carries; the values
 *   past the last whole vector run Welford's update one by one; then the lanes are merged into that, lane 0 first.
 *   y = fma((x + (-mean)) * rstd, weight, bias), rstd = 1 / sqrt(m2 / C + eps); absent bias 0; where the weight is
 *   absent, fma(x + (-mean), rstd, bias).
 *
 * Where a product and a sum are one operation there and where they are two is written out below as fmadd, or not: this
 * file is compiled with contraction off and must stay so. The stock op uses 8 lanes at its AVX2 and AVX-512 settings alike.
 */
#include "opt_core/ln.h"

#include "devices/cpu/parallel.h"
#include "devices/cpu/rowset.h"

#if defined(__x86_64__)
#include <immintrin.h>

size_t oc__ln_exactln_avx2_workspace(const void *call, int threads);
oc_status oc__ln_exactln_avx2(const void *call, const oc_exec *exec, oc_err *err);

#define AT_AVX2 __attribute__((target("avx2,fma")))
enum { LANES = 8, CHUNK = 16, DEPTH_MAX = 56, BLOCK_VALUES = 32768 };

typedef struct moments {
  int64_t count; /* values a lane */
  __m256 mean, m2;
} moments;

typedef struct work {
  const oc_ln *ln;
  oc__rowset x_rows, y_rows;
  int64_t rows, columns, per_block;
  int direct;
  int depth;                               /* levels of the binary counter */
  float reciprocal[CHUNK];                 /* 1 / (j + 1) */
  float lane_share[LANES], lane_seen[LANES]; /* merging lane l: its share of the values so far; the values before it */
  const float *weight, *bias;              /* weight NULL: absent */
  float *scratch;                          /* a row a thread */
} work;

/* into += part. */
AT_AVX2 static inline void merge(const moments *part, moments *into) {
  const int64_t count = into->count + part->count;
  const __m256 share = _mm256_set1_ps(count == 0 ? 0.0f : (float)part->count / (float)count);
  const __m256 delta = _mm256_sub_ps(part->mean, into->mean), step = _mm256_mul_ps(delta, share);
  const __m256 m2 = _mm256_add_ps(into->m2, part->m2);
  into->m2 = _mm256_fmadd_ps(step, _mm256_mul_ps(delta, _mm256_set1_ps((float)into->count)), m2);
  into->mean = _mm256_add_ps(into->mean, step);
  into->count = count;
}

AT_AVX2 static inline moments chunk_moments(const work *w, const float *x, int64_t vectors) {
  moments m = {vectors, _mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int64_t j = 0; j < vectors; j++) {
    const __m256 v = _mm256_loadu_ps(x + j * LANES), delta = _mm256_sub_ps(v, m.mean);
    m.mean = _mm256_fmadd_ps(delta, _mm256_set1_ps(w->reciprocal[j]), m.mean);
    m.m2 = _mm256_fmadd_ps(delta, _mm256_sub_ps(v, m.mean), m.m2);
  }
  return m;
}

AT_AVX2 static inline moments vector_moments(const work *w, const float *x) {
  const int64_t vectors = w->columns / LANES, chunks = (vectors + CHUNK - 1) / CHUNK;
  moments level[DEPTH_MAX];
  const moments none = {0, _mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int j = 0; j < w->depth || j == 0; j++) level[j] = none;
  for (int64_t i = 0; i < chunks; i++) {
    const int64_t left = vectors - i * CHUNK;
    const moments chunk = chunk_moments(w, x + i * CHUNK * LANES, left < CHUNK ? left : CHUNK);
    merge(&chunk, &level[0]);
    int64_t carry = i + 1;
    for (int j = 1; j < w->depth && (carry & 1) == 0; j++, carry >>= 1) {
      merge(&level[j - 1], &level[j]);
      level[j - 1] = none;
    }
  }
  for (int j = 1; j < w->depth; j++) merge(&level[j], &level[0]);
  return level[0];
}

AT_AVX2 static inline void row_moments(const work *w, const float *x, float *mean, float *rstd) {
  const moments all = vector_moments(w, x);
  float lane_mean[LANES], lane_m2[LANES], m1 = 0.0f, m2 = 0.0f;
  _mm256_storeu_ps(lane_mean, all.mean);
  _mm256_storeu_ps(lane_m2, all.m2);
  int64_t seen = 0;
  for (int64_t c = w->columns / LANES * LANES; c < w->columns; c++) {
    const float delta = x[c] - m1;
    m1 += delta / (float)++seen;
    m2 += delta * (x[c] - m1);
  }
  for (int l = 0; l < LANES; l++) {
    const float delta = lane_mean[l] - m1;
    m1 = __builtin_fmaf(w->lane_share[l], delta, m1);
    m2 += __builtin_fmaf(delta * delta * w->lane_share[l], w->lane_seen[l], lane_m2[l]);
  }
  *mean = m1;
  *rstd = 1.0f / sqrtf(m2 / (float)w->columns + w->ln->norm.eps);
}

AT_AVX2 static void norm_row(const work *w, const float *x, float *y) {
  float mean, rstd;
  int64_t c = 0;
  row_moments(w, x, &mean, &rstd);
  const __m256 minus = _mm256_set1_ps(-mean), scale = _mm256_set1_ps(rstd);
  if (!w->weight) {
    for (; c + LANES <= w->columns; c += LANES) {
      const __m256 v = _mm256_add_ps(_mm256_loadu_ps(x + c), minus);
      _mm256_storeu_ps(y + c, _mm256_fmadd_ps(v, scale, _mm256_loadu_ps(w->bias + c)));
    }
    for (; c < w->columns; c++) y[c] = __builtin_fmaf(x[c] + -mean, rstd, w->bias[c]);
    return;
  }
  for (; c + LANES <= w->columns; c += LANES) {
    const __m256 v = _mm256_mul_ps(_mm256_add_ps(_mm256_loadu_ps(x + c), minus), scale);
    _mm256_storeu_ps(y + c, _mm256_fmadd_ps(v, _mm256_loadu_ps(w->weight + c), _mm256_loadu_ps(w->bias + c)));
  }
  for (; c < w->columns; c++) y[c] = __builtin_fmaf((x[c] + -mean) * rstd, w->weight[c], w->bias[c]);
}

static void run_block(int64_t block, int thread, void *context) {
  const work *w = context;
  const oc_view *x = &w->ln->x, *y = &w->ln->y;
  const int32_t last = x->rank - 1;
  const int64_t first = block * w->per_block, end = first + w->per_block < w->rows ? first + w->per_block : w->rows;
  float *scratch = w->scratch + thread * oc__line_floats(w->columns);
  for (int64_t r = first; r < end; r++) {
    const int64_t from = oc__rowset_offset(&w->x_rows, r), to = oc__rowset_offset(&w->y_rows, r);
    if (w->direct) {
      norm_row(w, (const float *)x->data + from, (float *)y->data + to);
      continue;
    }
    oc__row_load(x, from, x->stride[last], w->columns, scratch);
    norm_row(w, scratch, scratch);
    oc__row_store(y, to, y->stride[last], w->columns, scratch);
  }
}

/* ---- entry --------------------------------------------------------------------------------------------------------- */

static int64_t block_rows(int64_t columns) {
  const int64_t rows = BLOCK_VALUES / (columns > 0 ? columns : 1);
  return rows < 1 ? 1 : rows > 512 ? 512 : rows;
}

static int64_t block_count(const oc_ln *ln) {
  const int64_t per_block = block_rows(ln->x.shape[ln->x.rank - 1]);
  return (oc__row_count(&ln->x, ln->x.rank - 1) + per_block - 1) / per_block;
}

static size_t workspace_bytes(int64_t columns, int threads) {
  return (size_t)((2 + threads) * oc__line_floats(columns)) * sizeof(float);
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
    return OC_FAIL(err, BAD_ARG, 0, "workspace: %zu bytes, %zu needed", exec->workspace ? exec->workspace_bytes : 0, need);
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
