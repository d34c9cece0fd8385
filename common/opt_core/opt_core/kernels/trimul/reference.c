/* SPDX-License-Identifier: Apache-2.0 */
/* trimul spelled out: the specification of the family. Every operation is rounded once, to f32, or not at all beyond
 * double where x is F64; every sum runs in the order of its index from 0, a bias is added last.
 *
 * Values are held in double and rounded by `fl` after each operation. For f32 that is the f32 operation itself: double
 * has more than 2 * 24 + 2 bits, so rounding twice is rounding once for +, -, *, / and sqrt.
 */
#include <math.h>

#include "devices/cpu/rows.h"
#include "trimul/trimul_internal.h"

typedef struct truth {
  const oc_trimul *call;
  oc__trimul_sizes size;
  int is_wide;
  /* In the workspace. weight[i]: [in][out], bias[i], affine: weight then bias of a norm. left [i][k][c], right
   * [j][k][c]. */
  double *weight[OC__LINEAR_COUNT], *bias[OC__LINEAR_COUNT], *affine_in, *affine_out, *left, *right;
  double *h, *t, *gate, *value, *row; /* one row each */
} truth;

static double fl(const truth *f, double value) { return f->is_wide ? value : (double)(float)value; }

static double round_to(const truth *f, double value, oc_dtype dtype) {
  return dtype == OC_BF16 || dtype == OC_F16 ? (double)oc__round_to((float)value, dtype) : fl(f, value);
}

static double load(const oc_view *view, int64_t offset) {
  if (view->dtype == OC_F64) return ((const double *)view->data)[offset];
  return (double)oc__load1(view->data, view->dtype, offset);
}

static void store(const oc_view *view, int64_t offset, double value) {
  switch (view->dtype) {
  case OC_F64:
    ((double *)view->data)[offset] = value;
    break;
  case OC_F32:
    ((float *)view->data)[offset] = (float)value;
    break;
  case OC_BF16:
    ((uint16_t *)view->data)[offset] = oc__to_bf16((float)value);
    break;
  default:
    ((uint16_t *)view->data)[offset] = oc__to_f16((float)value);
    break;
  }
}

static double sigmoid(const truth *f, double x) { return fl(f, 1.0 / fl(f, 1.0 + fl(f, exp(-x)))); }

/* row = norm(row), n values; affine: weight[n], bias[n]. */
static void normalise(const truth *f, double *row, int64_t n, const oc_norm *norm, const double *affine) {
  double mean = 0.0, variance = 0.0;
  if (!norm->rms)
    for (int64_t c = 0; c < n; c++) mean = fl(f, mean + row[c]);
  mean = fl(f, mean / (double)n);
  const int is_one_pass = norm->fast_variance || norm->rms;
  for (int64_t c = 0; c < n; c++) {
    const double x = is_one_pass ? row[c] : fl(f, row[c] - mean);
    variance = fl(f, variance + fl(f, x * x));
  }
  variance = fl(f, variance / (double)n);
  if (is_one_pass) variance = fl(f, variance - fl(f, mean * mean));
  const double scale = fl(f, 1.0 / fl(f, sqrt(fl(f, variance + (double)norm->eps))));
  for (int64_t c = 0; c < n; c++) {
    const double x = fl(f, fl(f, row[c] - mean) * scale);
    row[c] = round_to(f, fl(f, fl(f, x * affine[c]) + affine[n + c]), norm->round);
  }
}

/* sum[o] += a * b[o], each of the two operations rounded. */
static void add_products(const truth *f, int64_t n, double a, const double *b, double *sum) {
  if (f->is_wide)
    for (int64_t o = 0; o < n; o++) sum[o] += a * b[o];
  else
    for (int64_t o = 0; o < n; o++) sum[o] = (double)(float)(sum[o] + (double)(float)(a * b[o]));
}

static void linear(const truth *f, int which, const double *in, int64_t in_count, int64_t out_count, double *out) {
  for (int64_t o = 0; o < out_count; o++) out[o] = 0.0;
  for (int64_t k = 0; k < in_count; k++) add_products(f, out_count, in[k], f->weight[which] + k * out_count, out);
  for (int64_t o = 0; o < out_count; o++) out[o] = fl(f, out[o] + f->bias[which][o]);
}

static void load_normed(const truth *f, int64_t b, int64_t r, int64_t s, double *h) {
  const oc_view *x = &f->call->x;
  for (int64_t c = 0; c < f->size.c; c++)
    h[c] = load(x, b * x->stride[0] + r * x->stride[1] + s * x->stride[2] + c * x->stride[3]);
  normalise(f, h, f->size.c, &f->call->norm_in, f->affine_in);
}

/* out = R_product(((mask * sigmoid(gate(h))) * proj(h)) * scale) */
static void operand(const truth *f, int gate, double mask, double scale, double *out) {
  linear(f, gate, f->h, f->size.c, f->size.d, f->gate);
  linear(f, gate + 1, f->h, f->size.c, f->size.d, f->value);
  for (int64_t c = 0; c < f->size.d; c++) {
    const double gated = fl(f, fl(f, mask * sigmoid(f, f->gate[c])) * f->value[c]);
    out[c] = round_to(f, fl(f, gated * scale), f->call->product);
  }
}

/* x[r, s] feeds left[i, k] and right[j, k]: (i, k) = (r, s) outgoing, (s, r) incoming; (j, k) likewise. */
static void project(const truth *f, int64_t b) {
  const int64_t n = f->size.n, d = f->size.d;
  const oc_view *mask = &f->call->mask;
  for (int64_t r = 0; r < n; r++)
    for (int64_t s = 0; s < n; s++) {
      const int64_t at = f->call->direction == OC_OUTGOING ? r * n + s : s * n + r;
      double m = 1.0;
      if (oc_view_is_present(mask)) m = load(mask, b * mask->stride[0] + r * mask->stride[1] + s * mask->stride[2]);
      load_normed(f, b, r, s, f->h);
      operand(f, OC__LEFT_GATE, m, (double)oc__trimul_scale(f->call, 0), f->left + at * d);
      operand(f, OC__RIGHT_GATE, m, (double)oc__trimul_scale(f->call, 1), f->right + at * d);
    }
}

static void contract(const truth *f, const double *left, const double *right, double *t) {
  const int64_t d = f->size.d;
  for (int64_t c = 0; c < d; c++) t[c] = 0.0;
  for (int64_t k = 0; k < f->size.n; k++)
    for (int64_t c = 0; c < d; c++) t[c] = fl(f, t[c] + fl(f, left[k * d + c] * right[k * d + c]));
  for (int64_t c = 0; c < d; c++) t[c] = round_to(f, t[c], f->call->product);
}

static void finish(const truth *f, int64_t b, int64_t i, int64_t j) {
  const oc_view *y = &f->call->y, *residual = &f->call->residual;
  const int64_t c_count = f->size.c, d = f->size.d, n = f->size.n;
  contract(f, f->left + i * n * d, f->right + j * n * d, f->t);
  normalise(f, f->t, d, &f->call->norm_out, f->affine_out);
  linear(f, OC__OUT_PROJ, f->t, d, c_count, f->row);
  load_normed(f, b, i, j, f->h);
  linear(f, OC__OUT_GATE, f->h, c_count, c_count, f->gate);
  for (int64_t c = 0; c < c_count; c++) {
    double value = fl(f, f->row[c] * sigmoid(f, f->gate[c]));
    if (oc_view_is_present(residual)) {
      const int64_t at =
          b * residual->stride[0] + i * residual->stride[1] + j * residual->stride[2] + c * residual->stride[3];
      value = fl(f, value + load(residual, at));
    }
    store(y, b * y->stride[0] + i * y->stride[1] + j * y->stride[2] + c * y->stride[3], value);
  }
}

/* ---- the workspace ----------------------------------------------------------------------------------------------- */

static double *take(double **next, int64_t count) {
  double *at = *next;
  *next += count;
  return at;
}

static void load_linear(truth *f, int which, double **next) {
  const oc_linear *l = oc__trimul_linear(f->call, which);
  const oc_view *w = &l->weight;
  const int64_t out = w->shape[0], in = w->shape[1];
  f->weight[which] = take(next, out * in);
  f->bias[which] = take(next, out);
  for (int64_t o = 0; o < out; o++) {
    for (int64_t k = 0; k < in; k++) f->weight[which][k * out + o] = load(w, o * w->stride[0] + k * w->stride[1]);
    f->bias[which][o] = oc_view_is_present(&l->bias) ? load(&l->bias, o * l->bias.stride[0]) : 0.0;
  }
}

static double *load_norm(const oc_norm *norm, int64_t n, double **next) {
  double *affine = take(next, 2 * n);
  for (int64_t c = 0; c < n; c++) {
    affine[c] = oc_view_is_present(&norm->weight) ? load(&norm->weight, c * norm->weight.stride[0]) : 1.0;
    affine[n + c] = oc_view_is_present(&norm->bias) ? load(&norm->bias, c * norm->bias.stride[0]) : 0.0;
  }
  return affine;
}

static void lay_out(truth *f, double *next) {
  const int64_t n = f->size.n, c = f->size.c, d = f->size.d, widest = c > d ? c : d;
  for (int i = 0; i < OC__LINEAR_COUNT; i++) load_linear(f, i, &next);
  f->affine_in = load_norm(&f->call->norm_in, c, &next);
  f->affine_out = load_norm(&f->call->norm_out, d, &next);
  f->left = take(&next, n * n * d);
  f->right = take(&next, n * n * d);
  f->h = take(&next, widest);
  f->t = take(&next, widest);
  f->gate = take(&next, widest);
  f->value = take(&next, widest);
  f->row = take(&next, widest);
}

size_t oc__trimul_reference_workspace(const void *descriptor, int threads);
size_t oc__trimul_reference_workspace(const void *descriptor, int threads) {
  const oc_trimul *call = descriptor;
  const oc__trimul_sizes s = oc__trimul_sizes_of(call);
  const int64_t widest = s.c > s.d ? s.c : s.d;
  int64_t doubles = 0, plane = 0;
  (void)threads;
  if (s.b <= 0 || s.n <= 0) return 0;
  if (!oc__trimul_add(&doubles, 5, s.c, s.d) || !oc__trimul_add(&doubles, 1, s.c, s.c) ||
      !oc__trimul_add(&doubles, 16, widest, 1) || !oc__trimul_add(&plane, s.n, s.n, s.d) ||
      !oc__trimul_add(&doubles, 2, plane, 1))
    return SIZE_MAX;
  return (size_t)doubles * sizeof(double);
}

oc_status oc__trimul_reference(const void *descriptor, const oc_exec *exec, oc_err *err);
oc_status oc__trimul_reference(const void *descriptor, const oc_exec *exec, oc_err *err) {
  const oc_trimul *call = descriptor;
  truth f = {.call = call, .size = oc__trimul_sizes_of(call), .is_wide = call->x.dtype == OC_F64};
  OC_TRY(oc__trimul_admit(call, 1, err));
  OC_TRY(oc__trimul_room(call, exec, oc__trimul_reference_workspace(call, 1), err));
  if (f.size.b == 0 || f.size.n == 0) return OC_OK;
  lay_out(&f, exec->workspace);
  for (int64_t b = 0; b < f.size.b; b++) {
    project(&f, b);
    for (int64_t i = 0; i < f.size.n; i++)
      for (int64_t j = 0; j < f.size.n; j++) finish(&f, b, i, j);
  }
  return OC_OK;
}
