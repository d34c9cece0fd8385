/* SPDX-License-Identifier: Apache-2.0 */
/* ln on a CPU. Dense f32 rows go straight from x to y; anything else passes through a block of rows in scratch.
 * Both ways run the same row function, so layout and blocking never change a bit. */
#include "opt_core/ln.h"

#include "devices/cpu/parallel.h"
#include "devices/cpu/rowset.h"

#include <inttypes.h>

size_t OC_JOIN(OC_MEMBER_FN(oc__ln_cpu), workspace)(const void *call, int threads);
oc_status OC_MEMBER_FN(oc__ln_cpu)(const void *call, const oc_exec *exec, oc_err *err);

#ifndef OC_MUTANT
#define OC_MUTANT 0 /* 1 swapped add, 2 shifted index, 3 dropped tail, 4 lost bias: a test must see each */
#endif

/* A block holds about this many values (128 KB of f32: both views of it stay in L2), in whole groups of 16 rows. */
enum { BLOCK_VALUES = 32768, BLOCK_ROWS_MAX = 512, GROUP_ROWS = 16 };

static int64_t block_rows(int64_t columns) {
  int64_t rows = BLOCK_VALUES / (columns > 0 ? columns : 1) / GROUP_ROWS * GROUP_ROWS;
  if (rows < GROUP_ROWS) rows = GROUP_ROWS;
  return rows > BLOCK_ROWS_MAX ? BLOCK_ROWS_MAX : rows;
}

/* Leading dimension of the scratch: 16 floats past the row keep power-of-two rows out of the same cache sets. */
static int64_t scratch_ld(int64_t columns) { return oc__line_floats(columns) + 16; }

typedef struct work {
  const oc_ln *ln;
  oc__rowset x_rows, y_rows;
  int64_t rows, columns, per_block;
  int direct;
  const float *weight, *bias;
  float *scratch; /* GROUP_ROWS * scratch_ld floats a thread */
} work;

static void norm_direct(const work *w, int64_t row, int64_t end) {
  const float *x = w->ln->x.data;
  float *y = w->ln->y.data;
  for (; row < end; row++)
    oc__row_norm_into(x + oc__rowset_offset(&w->x_rows, row), y + oc__rowset_offset(&w->y_rows, row), w->columns,
                      &w->ln->norm, w->weight, w->bias);
}

static void norm_group(const work *w, int64_t row, int64_t count, float *scratch) {
  const int64_t ld = scratch_ld(w->columns);
  oc__rows_load(&w->ln->x, &w->x_rows, row, count, scratch, ld);
  for (int64_t r = 0; r < count; r++) oc__row_norm(scratch + r * ld, w->columns, &w->ln->norm, w->weight, w->bias);
  oc__rows_store(&w->ln->y, &w->y_rows, row, count, scratch, ld);
}

static void run_block(int64_t block, int thread, void *context) {
  const work *w = context;
  const int64_t first = block * w->per_block;
  const int64_t end = first + w->per_block < w->rows ? first + w->per_block : w->rows;
  if (w->direct) {
    norm_direct(w, first, end);
    return;
  }
  float *scratch = w->scratch + thread * GROUP_ROWS * scratch_ld(w->columns);
  for (int64_t row = first; row < end; row += GROUP_ROWS)
    norm_group(w, row, end - row < GROUP_ROWS ? end - row : GROUP_ROWS, scratch);
}

static size_t workspace_bytes(int64_t columns, int threads) {
  return (size_t)(2 * oc__line_floats(columns) + threads * GROUP_ROWS * scratch_ld(columns)) * sizeof(float);
}

static int64_t block_count(const oc_ln *ln) {
  const int64_t per_block = block_rows(ln->x.shape[ln->x.rank - 1]);
  return (oc__row_count(&ln->x, ln->x.rank - 1) + per_block - 1) / per_block;
}

size_t OC_JOIN(OC_MEMBER_FN(oc__ln_cpu), workspace)(const void *call, int threads) {
  const oc_ln *ln = call;
  return workspace_bytes(ln->x.shape[ln->x.rank - 1], oc__thread_count(threads, block_count(ln)));
}

static int is_stored(oc_dtype dtype) { return dtype == OC_F32 || dtype == OC_BF16 || dtype == OC_F16; }

static oc_status refuse_dtype(const oc_view *view, const char *name, oc_err *err) {
  if (!oc_view_is_present(view) || is_stored(view->dtype)) return OC_OK;
  return OC_REFUSE(err, DTYPE, "%s=%s, served: f32 bf16 f16", name, oc_dtype_word(view->dtype));
}

static oc_status refuse(const oc_ln *ln, oc_err *err) {
  OC_TRY(refuse_dtype(&ln->x, "x", err));
  OC_TRY(refuse_dtype(&ln->y, "y", err));
  OC_TRY(refuse_dtype(&ln->norm.weight, "norm.weight", err));
  return refuse_dtype(&ln->norm.bias, "norm.bias", err);
}

oc_status OC_MEMBER_FN(oc__ln_cpu)(const void *call, const oc_exec *exec, oc_err *err) {
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
  w.weight = weight;
  w.bias = bias;
  w.scratch = bias + oc__line_floats(w.columns);
  w.x_rows = oc__rowset_of(&ln->x, last);
  w.y_rows = oc__rowset_of(&ln->y, last);
  w.direct = ln->x.dtype == OC_F32 && ln->y.dtype == OC_F32 &&
             (w.columns == 1 || (ln->x.stride[last] == 1 && ln->y.stride[last] == 1));
  w.per_block = block_rows(w.columns);
#if OC_MUTANT == 1
  for (int64_t c = 0; c < w.columns; c++) bias[c] = -bias[c];
#elif OC_MUTANT == 2
  memmove(weight + 1, weight, (size_t)(w.columns - 1) * sizeof(float));
#elif OC_MUTANT == 3
  if (w.rows > w.per_block)
    w.rows -= w.rows % w.per_block;
  else
    w.rows -= w.rows % GROUP_ROWS;
#elif OC_MUTANT == 4
  memset(bias, 0, (size_t)w.columns * sizeof(float));
#endif
  oc__parallel((w.rows + w.per_block - 1) / w.per_block, threads, run_block, &w);
  return OC_OK;
}
