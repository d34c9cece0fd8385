/* SPDX-License-Identifier: Apache-2.0 */
/* The ladder for triattn and triattn_module: guards, order-free bits, rerun, threads, chunks, bound, refusals. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <sys/mman.h>

#include "attention_case.h"
#include "triattn/triattn.h"

static const oc_member *members[8], *module_members[8], *reference, *module_reference;
static int member_count, module_member_count;

static int setup(void **state) {
  (void)state;
  member_count = members_here(OC_FAMILY_TRIATTN, members, &reference);
  module_member_count = members_here(OC_FAMILY_TRIATTN_MODULE, module_members, &module_reference);
  return 0;
}

static oc_status serve_core(const void *call, const oc_choice *choice, const oc_exec *exec, oc_err *err) {
  return oc_triattn_serve(call, choice, exec, err);
}
static oc_status serve_module(const void *call, const oc_choice *choice, const oc_exec *exec, oc_err *err) {
  return oc_triattn_module_serve(call, choice, exec, err);
}

static void must(oc_status status, const oc_err *err) {
  if (status != OC_OK) fail_msg("%s: %s", oc_status_word(status), err->detail);
}

/* ---- the core ---- */

typedef struct spec {
  int64_t b, i, nq, nk, h, d;
  oc_dtype dtype, bias_dtype, mask_dtype;
  oc_mask_kind mask;
  float mask_value;
  int has_bias, has_gate, has_lse;
  layout how;
  double bias_size;
} spec;

typedef struct data {
  tensor q, k, v, bias, mask, gate, out, lse;
  oc_triattn call;
} data;

static void data_link(data *x) {
  x->call.q = x->q.view;
  x->call.k = x->k.view;
  x->call.v = x->v.view;
  x->call.bias = x->bias.view;
  x->call.mask = x->mask.view;
  x->call.gate = x->gate.view;
  x->call.out = x->out.view;
  x->call.lse = x->lse.view;
}

static void data_free(data *x) {
  tensor *const all[] = {&x->q, &x->k, &x->v, &x->bias, &x->mask, &x->gate, &x->out, &x->lse};
  for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) tensor_free(all[n]);
}

/* Row (0, 0) of the mask keeps nothing, the others about three keys in four. */
static void fill_mask(const oc_view *mask, oc_mask_kind kind, double unit) {
  for (int64_t n = 0; n < oc_view_count(mask); n++) {
    const int keep = n >= mask->shape[mask->rank - 1] && integer(0, 3) != 0;
    set(mask, n, kind == OC_MASK_ADD ? unit * integer(-2, 2) : (double)keep);
  }
}

static data data_make(const spec *s, int is_order_free) {
  const int64_t qs[5] = {s->b, s->i, s->nq, s->h, s->d}, ks[5] = {s->b, s->i, s->nk, s->h, s->d};
  const int64_t bs[4] = {s->b, s->h, s->nq, s->nk}, ms[3] = {s->b, s->i, s->nk}, ls[4] = {s->b, s->i, s->h, s->nq};
  data x = {0};
  if (is_order_free) { /* logits are multiples of 128: every weight is 1 or 0; values are small integers */
    x.q = filled_integers(s->dtype, 5, qs, s->how, -2, 2, 1.0);
    x.k = filled_integers(s->dtype, 5, ks, s->how, -2, 2, 1.0);
    x.v = filled_integers(s->dtype, 5, ks, s->how, -8, 8, 1.0);
    if (s->has_bias) x.bias = filled_integers(s->bias_dtype, 4, bs, s->how, -3, 3, 128.0);
    if (s->has_gate) x.gate = filled_integers(s->dtype, 5, qs, s->how, -1, 1, 200.0);
    x.call.scale = 128.0f;
  } else {
    x.q = filled(s->dtype, 5, qs, s->how, -2.0, 2.0);
    x.k = filled(s->dtype, 5, ks, s->how, -2.0, 2.0);
    x.v = filled(s->dtype, 5, ks, s->how, -1.0, 1.0);
    if (s->has_bias) x.bias = filled(s->bias_dtype, 4, bs, s->how, -s->bias_size, s->bias_size);
    if (s->has_gate) x.gate = filled(s->dtype, 5, qs, s->how, -4.0, 4.0);
    x.call.scale = 0.7f / sqrtf((float)s->d);
  }
  if (s->mask != OC_MASK_NONE) {
    x.mask = tensor_make(s->mask_dtype, 3, ms, s->how);
    fill_mask(&x.mask.view, s->mask, is_order_free ? 128.0 : 1.0);
  }
  x.call.mask_kind = s->mask;
  x.call.mask_value = s->mask_value;
  x.out = tensor_make(s->dtype, 5, qs, s->how);
  if (s->has_lse) x.lse = tensor_make(OC_F32, 4, ls, s->how);
  data_link(&x);
  return x;
}

/* The same call on other outputs. */
static void with_outputs(data *x, tensor out, tensor lse) {
  x->out = out;
  x->lse = lse;
  data_link(x);
}

static double lse_tolerance(const oc_view *truth) { return 4e-7 * (magnitude(truth) + 1.0); }

/* Runs the reference and every member on one case of order-free data; returns the members run. */
static int check_order_free(const spec *s) {
  oc_err err;
  data x = data_make(s, 1), r = x;
  with_outputs(&r, tensor_make(s->dtype, 5, x.q.view.shape, DENSE),
               s->has_lse ? tensor_make(OC_F32, 4, x.lse.view.shape, DENSE) : (tensor){0});
  must(serve_with(serve_core, reference, &r.call, 1, &err), &err);
  for (int m = 0; m < member_count; m++) {
    poison(&x.out);
    if (s->has_lse) poison(&x.lse);
    must(serve_with(serve_core, members[m], &x.call, 1 + m, &err), &err);
    if (bits_differ(&x.out.view, &r.out.view, members[m]->name))
      fail_msg("b%" PRId64 " i%" PRId64 " nq%" PRId64 " nk%" PRId64 " h%" PRId64 " d%" PRId64 " mask %d layout %d",
               s->b, s->i, s->nq, s->nk, s->h, s->d, (int)s->mask, (int)s->how);
    assert_int_equal(guards_broken(&x.out), 0);
    if (s->has_lse) {
      assert_true(error_of(&x.lse.view, &r.lse.view) <= lse_tolerance(&r.lse.view));
      assert_int_equal(guards_broken(&x.lse), 0);
    }
  }
  tensor_free(&r.out);
  tensor_free(&r.lse);
  data_free(&x);
  return member_count;
}

static const struct {
  oc_mask_kind kind;
  float value;
  oc_dtype dtype;
} masks[] = {
    {OC_MASK_NONE, 0.0f, OC_F32},           {OC_MASK_SUBTRACT, 1e9f, OC_F32},   {OC_MASK_SUBTRACT, 1e9f, OC_BOOL},
    {OC_MASK_SUBTRACT, 1048576.0f, OC_I64}, {OC_MASK_FILL, -INFINITY, OC_BOOL}, {OC_MASK_FILL, -FLT_MAX, OC_U8},
    {OC_MASK_ZERO, 0.0f, OC_BF16},          {OC_MASK_ADD, 0.0f, OC_F32},        {OC_MASK_ZERO, 0.0f, OC_I32}};
enum { MASKS = sizeof masks / sizeof masks[0] };

static void test_order_free(void **state) {
  static const int64_t sizes[] = {1, 15, 17, 33, 65, 100, 101, 127, 128, 129, 130, 255, 256, 257};
  static const int64_t depths[] = {1, 4, 8, 16, 24, 31, 32, 33, 40, 48, 64, 66, 129, 256};
  int executed = 0, cases = 0;
  (void)state;
  random_seed(1);
  for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
    for (int m = 0; m < MASKS; m++, cases++) {
      const spec s = {.b = sizes[n] < 40 ? 2 : 1,
                      .i = 2,
                      .nq = m % 2 ? sizes[n] : sizes[(n + 3) % 8],
                      .nk = sizes[n],
                      .h = 1 + cases % 3,
                      .d = sizes[n] < 102 ? depths[cases % 14] : depths[cases % 9],
                      .dtype = cases % 4 == 3   ? OC_BF16
                               : cases % 7 == 5 ? OC_F16
                                                : OC_F32,
                      .bias_dtype = cases % 5 == 1 ? OC_BF16 : OC_F32,
                      .mask_dtype = masks[m].dtype,
                      .mask = masks[m].kind,
                      .mask_value = masks[m].value,
                      .has_bias = cases % 6 != 0,
                      .has_gate = cases % 3 != 0,
                      .has_lse = cases % 2,
                      .how = (layout)(cases % LAYOUTS)};
      executed += check_order_free(&s);
    }
  assert_int_equal(cases, 14 * MASKS);
  assert_int_equal(executed, cases * member_count);
}

/* Error against a double truth, beside the f32 reference's own error. */
static int check_bound(const spec *s, double factor) {
  oc_err err;
  data x = data_make(s, 0), wide = x, r = x;
  wide.q = widened(&x.q);
  wide.k = widened(&x.k);
  wide.v = widened(&x.v);
  wide.bias = widened(&x.bias);
  wide.gate = widened(&x.gate);
  with_outputs(&wide, tensor_make(OC_F64, 5, x.q.view.shape, DENSE),
               tensor_make(OC_F64, 4, (int64_t[]){s->b, s->i, s->h, s->nq}, DENSE));
  must(serve_with(serve_core, reference, &wide.call, 1, &err), &err);
  with_outputs(&r, tensor_make(s->dtype, 5, x.q.view.shape, DENSE), (tensor){0});
  must(serve_with(serve_core, reference, &r.call, 1, &err), &err);
  const double own = error_of(&r.out.view, &wide.out.view);
  const double unit = 4.0 * 0x1p-24 * magnitude(&wide.out.view);
  assert_true(isfinite(own) && magnitude(&wide.out.view) > 0.0);
  for (int m = 0; m < member_count; m++) {
    poison(&x.out);
    must(serve_with(serve_core, members[m], &x.call, 2, &err), &err);
    const double error = error_of(&x.out.view, &wide.out.view);
    if (!(error <= factor * own + unit))
      fail_msg("%s: error %g, reference %g (nq %" PRId64 " nk %" PRId64 " d %" PRId64 ")", members[m]->name, error, own,
               s->nq, s->nk, s->d);
    if (s->has_lse) assert_true(error_of(&x.lse.view, &wide.lse.view) <= lse_tolerance(&wide.lse.view));
  }
  tensor_free(&wide.q);
  tensor_free(&wide.k);
  tensor_free(&wide.v);
  tensor_free(&wide.bias);
  tensor_free(&wide.gate);
  tensor_free(&wide.out);
  tensor_free(&wide.lse);
  tensor_free(&r.out);
  data_free(&x);
  return member_count;
}

static void test_bound(void **state) {
  static const int64_t sizes[][3] = {{1, 1, 32},     {17, 33, 32}, {65, 127, 24}, {33, 130, 48},
                                     {100, 101, 64}, {40, 257, 8}, {13, 700, 16}};
  int executed = 0, cases = 0;
  (void)state;
  random_seed(2);
  for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
    for (int v = 0; v < 6; v++, cases++) {
      const spec s = {.b = 1,
                      .i = 2,
                      .nq = sizes[n][0],
                      .nk = sizes[n][1],
                      .h = 2,
                      .d = sizes[n][2],
                      .dtype = v == 3   ? OC_BF16
                               : v == 4 ? OC_F16
                                        : OC_F32,
                      .bias_dtype = v == 3 ? OC_BF16 : OC_F32,
                      .has_bias = v != 1,
                      .mask_dtype = OC_BOOL,
                      .mask = v == 1   ? OC_MASK_ZERO
                              : v == 2 ? OC_MASK_FILL
                              : v == 5 ? OC_MASK_ADD
                                       : OC_MASK_NONE,
                      .mask_value = -30.0f,
                      .has_gate = v % 2,
                      .has_lse = v != 3,
                      .how = (layout)(v % LAYOUTS),
                      .bias_size = v == 2 ? 1e4 : 3.0};
      spec t = s;
      if (v == 5) t.mask_dtype = OC_F32;
      executed +=
          check_bound(&t, v == 2 ? 2.0 : 1.5); /* logits of 1e4 are rounded alike in both; a tie may fall apart */
    }
  assert_int_equal(cases, 42);
  assert_int_equal(executed, cases * member_count);
}

/* Rows in which every key is masked: finite masks give what f32 arithmetic gives (the mean of v where the mask swallows
 * the logits), -Inf gives NaN, the boolean form gives 0 and lse -Inf; the other rows do not change. */
static void test_fully_masked_rows(void **state) {
  static const struct {
    oc_mask_kind kind;
    float value;
    int expect; /* 0 zeros, 1 mean of v, 2 NaN, 3 softmax of logits cut at the mask's unit */
  } rows[] = {{OC_MASK_SUBTRACT, 1e9f, 1}, {OC_MASK_SUBTRACT, 1e6f, 3},       {OC_MASK_FILL, -INFINITY, 2},
              {OC_MASK_FILL, -FLT_MAX, 1}, {OC_MASK_FILL, -3.3895314e38f, 1}, {OC_MASK_ZERO, 0.0f, 0}};
  int executed = 0;
  (void)state;
  for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++)
    for (int m = 0; m < member_count; m++, executed++) {
      const spec s = {.b = 1,
                      .i = 3,
                      .nq = 17,
                      .nk = 17,
                      .h = 4,
                      .d = 32,
                      .dtype = OC_F32,
                      .bias_dtype = OC_F32,
                      .has_bias = 1,
                      .mask_dtype = OC_F32,
                      .mask = rows[n].kind,
                      .mask_value = rows[n].value,
                      .has_lse = 1,
                      .bias_size = 2.0};
      oc_err err;
      random_seed(3);
      data x = data_make(&s, 0), r = x;
      const int64_t per_row = 17 * 4 * 32;
      must(serve_with(serve_core, members[m], &x.call, 2, &err), &err);
      with_outputs(&r, tensor_make(OC_F32, 5, x.q.view.shape, DENSE), tensor_make(OC_F32, 4, x.lse.view.shape, DENSE));
      must(serve_with(serve_core, reference, &r.call, 1, &err), &err);
      assert_true(error_of(&x.out.view, &r.out.view) <= 2e-6);
      assert_true(rows[n].expect == 2 || error_of(&x.lse.view, &r.lse.view) <= lse_tolerance(&r.lse.view));
      for (int64_t e = 0; e < per_row; e++) {
        double mean = 0.0;
        for (int64_t key = 0; key < 17; key++) mean += get(&x.v.view, key * 128 + e % 128) / 17.0;
        const double o = get(&x.out.view, e);
        if (rows[n].expect == 0) assert_true(o == 0.0);
        if (rows[n].expect == 1) assert_true(fabs(o - mean) < 1e-6);
        if (rows[n].expect == 2) assert_true(isnan(o));
        if (rows[n].expect == 3) assert_true(isfinite(o));
      }
      for (int64_t e = per_row; e < 3 * per_row; e++) assert_true(isfinite(get(&x.out.view, e)));
      if (rows[n].expect == 0) assert_true(isinf(get(&x.lse.view, 0)) && get(&x.lse.view, 0) < 0.0);
      tensor_free(&r.out);
      tensor_free(&r.lse);
      data_free(&x);
    }
  assert_int_equal(executed, 6 * member_count);
}

/* Known answers: softmax of the bias alone; scale 0 and negative; a NaN stays in its row. */
static void test_known_answers(void **state) {
  (void)state;
  const spec s = {.b = 1,
                  .i = 2,
                  .nq = 3,
                  .nk = 2,
                  .h = 1,
                  .d = 1,
                  .dtype = OC_F32,
                  .bias_dtype = OC_F32,
                  .has_bias = 1,
                  .has_lse = 1};
  int executed = 0;
  for (int m = -1; m < member_count; m++, executed++) {
    const oc_member *member = m < 0 ? reference : members[m];
    oc_err err;
    data x = data_make(&s, 0);
    for (int64_t n = 0; n < 6; n++) {
      set(&x.q.view, n, n == 4 ? 1.0 : 0.0);
      set(&x.bias.view, n, n % 2 ? log(3.0) : 0.0);
    }
    for (int64_t n = 0; n < 4; n++) {
      set(&x.k.view, n, n % 2 ? 2.0 : 0.0);
      set(&x.v.view, n, n % 2 ? 8.0 : 4.0);
    }
    x.call.scale = -log(3.0) / 2.0; /* query 1 of row 1: the product undoes the bias */
    must(serve_with(serve_core, member, &x.call, 1, &err), &err);
    for (int64_t n = 0; n < 6; n++) {
      assert_true(fabs(get(&x.out.view, n) - (n == 4 ? 6.0 : 7.0)) < 2e-6);
      assert_true(fabs(get(&x.lse.view, n) - log(n == 4 ? 2.0 : 4.0)) < 1e-6);
    }
    set(&x.q.view, 4, NAN);
    must(serve_with(serve_core, member, &x.call, 1, &err), &err);
    for (int64_t n = 0; n < 6; n++) assert_int_equal(isnan(get(&x.out.view, n)), n == 4);
    data_free(&x);
  }
  assert_int_equal(executed, member_count + 1);
}

/* Bits do not depend on the thread count, on a rerun, nor on how rows and queries are cut. */
static void test_invariance(void **state) {
  static const int threads[] = {1, 2, 3, 7, 2};
  const spec s = {.b = 2,
                  .i = 5,
                  .nq = 70,
                  .nk = 77,
                  .h = 3,
                  .d = 20,
                  .dtype = OC_F32,
                  .bias_dtype = OC_BF16,
                  .has_bias = 1,
                  .has_gate = 1,
                  .has_lse = 1,
                  .mask = OC_MASK_SUBTRACT,
                  .mask_value = 1e9f,
                  .mask_dtype = OC_BOOL,
                  .bias_size = 3.0};
  int executed = 0;
  (void)state;
  random_seed(4);
  for (int m = 0; m < member_count; m++) {
    oc_err err;
    data x = data_make(&s, 0), first = x;
    with_outputs(&first, tensor_make(OC_F32, 5, x.q.view.shape, DENSE),
                 tensor_make(OC_F32, 4, x.lse.view.shape, DENSE));
    must(serve_with(serve_core, members[m], &first.call, 1, &err), &err);
    for (int t = 0; t < 5; t++, executed++) {
      poison(&x.out);
      must(serve_with(serve_core, members[m], &x.call, threads[t], &err), &err);
      assert_int_equal(bits_differ(&x.out.view, &first.out.view, members[m]->name), 0);
      assert_int_equal(bits_differ(&x.lse.view, &first.lse.view, members[m]->name), 0);
    }
    for (int64_t cut = 1; cut < 70; cut += 23, executed++) { /* queries [cut, 70) of rows [1, 4) of batch 1 */
      oc_triattn part = x.call;
      oc_view *const moved[] = {&part.q, &part.gate, &part.out, &part.k, &part.v, &part.mask, &part.bias, &part.lse};
      poison(&x.out);
      poison(&x.lse);
      for (int n = 0; n < 8; n++) {
        const int query_axis = n < 3 ? 2 : n == 6 ? 2 : n == 7 ? 3 : -1;
        int64_t skip = moved[n]->stride[0];
        moved[n]->shape[0] = 1;
        if (n != 6) {
          skip += moved[n]->stride[1];
          moved[n]->shape[1] = 3;
        }
        if (query_axis >= 0) {
          skip += cut * moved[n]->stride[query_axis];
          moved[n]->shape[query_axis] -= cut;
        }
        moved[n]->data = (char *)moved[n]->data + skip * (int64_t)oc_dtype_bytes(moved[n]->dtype);
      }
      must(serve_with(serve_core, members[m], &part, 2, &err), &err);
      for (int64_t n = 0; n < oc_view_count(&x.out.view); n++) {
        const int64_t query = n / 60 % 70, row = n / 60 / 70 % 5, batch = n / 60 / 70 / 5;
        const int inside = batch == 1 && row >= 1 && row < 4 && query >= cut;
        assert_true(inside ? get(&x.out.view, n) == get(&first.out.view, n) : isnan(get(&x.out.view, n)));
      }
    }
    tensor_free(&first.out);
    tensor_free(&first.lse);
    data_free(&x);
  }
  assert_int_equal(executed, member_count * (5 + 3));
}

/* Broadcast and negative strides of inputs give the bits of their dense copies. */
static void test_broadcast_and_negative_strides(void **state) {
  const spec s = {.b = 2,
                  .i = 3,
                  .nq = 20,
                  .nk = 37,
                  .h = 2,
                  .d = 8,
                  .dtype = OC_F32,
                  .bias_dtype = OC_F32,
                  .has_bias = 1,
                  .has_gate = 1,
                  .mask = OC_MASK_SUBTRACT,
                  .mask_value = 1e9f,
                  .mask_dtype = OC_F32,
                  .bias_size = 3.0};
  int executed = 0;
  (void)state;
  for (int m = 0; m < member_count; m++, executed++) {
    oc_err err;
    random_seed(5);
    data x = data_make(&s, 0), y = data_make(&s, 0);
    x.call.bias.stride[0] = 0;
    x.call.mask.stride[1] = 0;
    x.call.gate.stride[3] = 0;
    x.call.k.data = (float *)x.call.k.data + 36 * x.call.k.stride[2];
    x.call.k.stride[2] = -x.call.k.stride[2];
    oc_view *const from[] = {&x.call.q, &x.call.k, &x.call.v, &x.call.bias, &x.call.mask, &x.call.gate};
    oc_view *const to[] = {&y.call.q, &y.call.k, &y.call.v, &y.call.bias, &y.call.mask, &y.call.gate};
    for (int v = 0; v < 6; v++)
      for (int64_t n = 0; n < oc_view_count(from[v]); n++) set(to[v], n, get(from[v], n));
    must(serve_with(serve_core, members[m], &x.call, 2, &err), &err);
    must(serve_with(serve_core, members[m], &y.call, 2, &err), &err);
    assert_int_equal(bits_differ(&x.out.view, &y.out.view, members[m]->name), 0);
    data_free(&x);
    data_free(&y);
  }
  assert_int_equal(executed, member_count);
}

static void test_empty(void **state) {
  static const int64_t shapes[][6] = {
      {0, 2, 3, 3, 2, 4}, {1, 0, 3, 3, 2, 4}, {1, 2, 0, 3, 2, 4}, {1, 2, 3, 3, 0, 4}, {1, 2, 3, 0, 2, 4}};
  int executed = 0;
  (void)state;
  for (int n = 0; n < 5; n++)
    for (int m = -1; m < member_count; m++, executed++) {
      const int64_t *d = shapes[n];
      const spec s = {.b = d[0],
                      .i = d[1],
                      .nq = d[2],
                      .nk = d[3],
                      .h = d[4],
                      .d = d[5],
                      .dtype = OC_F32,
                      .bias_dtype = OC_F32,
                      .has_bias = 1,
                      .has_gate = 1,
                      .has_lse = 1,
                      .mask = OC_MASK_SUBTRACT,
                      .mask_value = 1e9f,
                      .mask_dtype = OC_F32};
      oc_err err;
      data x = data_make(&s, 0);
      must(serve_with(serve_core, m < 0 ? reference : members[m], &x.call, 2, &err), &err);
      assert_int_equal(guards_broken(&x.out), 0);
      for (int64_t e = 0; e < oc_view_count(&x.out.view); e++) assert_true(get(&x.out.view, e) == 0.0);
      for (int64_t e = 0; e < oc_view_count(&x.lse.view); e++)
        assert_true(isinf(get(&x.lse.view, e)) && get(&x.lse.view, e) < 0);
      data_free(&x);
    }
  assert_int_equal(executed, 5 * (member_count + 1));
}

/* Sparse address space: offsets past 2^32 elements with a handful of touched pages. NULL where the machine will not
 * lend it. */
static float *sparse(size_t floats) {
  void *p =
      mmap(NULL, floats * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) print_message("skipped: no sparse mapping of %zu bytes\n", floats * sizeof(float));
  return p == MAP_FAILED ? NULL : p;
}

static void test_wide_offsets(void **state) {
  const int64_t far = ((int64_t)1 << 30) + 3, keys = 5, depth = 8;
  const size_t floats = (size_t)(far * keys);
  (void)state;
  float *memory = sparse(floats);
  if (!memory) skip();
  const spec s = {.b = 1,
                  .i = 1,
                  .nq = keys,
                  .nk = keys,
                  .h = 1,
                  .d = depth,
                  .dtype = OC_F32,
                  .has_bias = 1,
                  .bias_dtype = OC_F32,
                  .bias_size = 1.0};
  int executed = 0;
  for (int m = -1; m < member_count; m++, executed++) {
    oc_err err;
    random_seed(6);
    data x = data_make(&s, 0);
    must(serve_with(serve_core, m < 0 ? reference : members[m], &x.call, 1, &err), &err);
    oc_triattn wide = x.call;
    oc_view *const views[] = {&wide.q, &wide.k, &wide.v, &wide.out};
    for (int v = 0; v < 4; v++) {
      oc_view old = *views[v];
      views[v]->data = memory + v * 16;
      views[v]->stride[2] = far;
      for (int64_t n = 0; v < 3 && n < keys * depth; n++) set(views[v], n, get(&old, n));
    }
    wide.bias.data = memory + 64; /* [1, 1, q, k]: k far apart */
    wide.bias.stride[2] = 1;
    wide.bias.stride[3] = far;
    for (int64_t n = 0; n < keys * keys; n++) set(&wide.bias, n, get(&x.call.bias, n));
    /* extents interleave, elements do not: serve would see an overlap, so the member runs itself */
    const oc_member *member = m < 0 ? reference : members[m];
    const size_t bytes = oc_member_workspace(member, &wide, 1);
    const oc_exec exec = {
        .workspace = aligned_alloc(64, (bytes + 63) / 64 * 64), .workspace_bytes = bytes, .threads = 1};
    must(member->run(&wide, &exec, &err), &err);
    free(exec.workspace);
    assert_int_equal(bits_differ(&wide.out, &x.call.out, member->name), 0);
    data_free(&x);
  }
  munmap(memory, floats * sizeof(float));
  assert_int_equal(executed, member_count + 1);
}

/* ---- refusals and bad arguments of the core ---- */

static void expect_core(const oc_member *member, const oc_triattn *call, const data *x, oc_status status,
                        oc_reason reason, const char *word) {
  oc_err err;
  assert_int_equal(serve_with(serve_core, member, call, 1, &err), status);
  assert_int_equal(err.reason, reason);
  if (!strstr(err.detail, word)) fail_msg("detail '%s' lacks '%s'", err.detail, word);
  assert_true(is_untouched(&x->out));
}

static void test_refusals(void **state) {
  const spec s = {.b = 1,
                  .i = 2,
                  .nq = 5,
                  .nk = 5,
                  .h = 2,
                  .d = 4,
                  .dtype = OC_F32,
                  .bias_dtype = OC_F32,
                  .has_bias = 1,
                  .has_lse = 1};
  int executed = 0;
  (void)state;
  for (int m = 0; m < member_count; m++) {
    spec changed = s;
    changed.dtype = OC_F64;
    data x = data_make(&changed, 0);
    expect_core(members[m], &x.call, &x, OC_REFUSED, OC_REASON_DTYPE, "q=f64");
    data_free(&x);
    changed = s;
    changed.bias_dtype = OC_F64;
    x = data_make(&changed, 0);
    expect_core(members[m], &x.call, &x, OC_REFUSED, OC_REASON_DTYPE, "bias=f64");
    data_free(&x);
    changed = s;
    changed.d = 257;
    x = data_make(&changed, 0);
    expect_core(members[m], &x.call, &x, OC_REFUSED, OC_REASON_SHAPE, "d=257 is outside 1..256");
    data_free(&x);
    x = data_make(&s, 0);
    x.call.k.dtype = OC_BF16;
    expect_core(members[m], &x.call, &x, OC_REFUSED, OC_REASON_DTYPE, "k=bf16, q=f32");
    data_free(&x);
    executed += 4;
  }
  assert_int_equal(executed, 4 * member_count);
}

/* Needs no GPU: what the wgmma core does not take is named before the device is looked at. The plain call gets as far
 * as the device. */
static void test_cuda_sm90a_names_what_it_does_not_take(void **state) {
  const oc_member *const member = oc_member_for_device(OC_FAMILY_TRIATTN, "cuda_sm90a", "sm_90a");
  const spec plain = {.b = 1, .i = 2, .nq = 5, .nk = 5, .h = 2, .d = 32, .dtype = OC_BF16, .bias_dtype = OC_F32};
  spec f16 = plain, wide = plain, no_key = plain, add = plain, weak = plain, f64 = plain, odd = plain;
  const oc_exec exec = {.device = OC_DEVICE_HOST};
  (void)state;
  f16.dtype = OC_F16;
  wide.d = 64;
  no_key.nk = 0;
  add.mask = OC_MASK_ADD, add.mask_dtype = OC_F32;
  weak.mask = OC_MASK_FILL, weak.mask_dtype = OC_BOOL, weak.mask_value = -1e4f;
  f64.mask = OC_MASK_ZERO, f64.mask_dtype = OC_F64;
  odd.how = ODD;
  const struct {
    const spec *of;
    oc_status status;
    oc_reason reason;
    const char *text;
  } cases[] = {{&plain, OC_BAD_ARG, OC_REASON_NONE, "device: 0"},
               {&f16, OC_REFUSED, OC_REASON_DTYPE, "q=f16"},
               {&f64, OC_REFUSED, OC_REASON_DTYPE, "mask=f64"},
               {&wide, OC_REFUSED, OC_REASON_SHAPE, "d=64"},
               {&no_key, OC_REFUSED, OC_REASON_SHAPE, "no query or no key"},
               {&add, OC_REFUSED, OC_REASON_DIALECT, "mask_kind="},
               {&weak, OC_REFUSED, OC_REASON_DIALECT, "mask_value=-10000"},
               {&odd, OC_REFUSED, OC_REASON_LAYOUT, "q: last stride 1"}};
  assert_non_null(member);
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    oc_err err = {0};
    data x = data_make(cases[n].of, 0);
    poison(&x.out);
    assert_int_equal(member->run(&x.call, &exec, &err), cases[n].status);
    assert_int_equal(err.reason, cases[n].reason);
    if (!strstr(err.detail, cases[n].text)) fail_msg("'%s' without '%s'", err.detail, cases[n].text);
    assert_int_equal(guards_broken(&x.out), 0);
    data_free(&x);
  }
}

static void test_bad_arguments(void **state) {
  const spec s = {.b = 1,
                  .i = 2,
                  .nq = 5,
                  .nk = 6,
                  .h = 2,
                  .d = 4,
                  .dtype = OC_F32,
                  .bias_dtype = OC_F32,
                  .has_bias = 1,
                  .has_lse = 1,
                  .has_gate = 1,
                  .mask = OC_MASK_SUBTRACT,
                  .mask_value = 1e9f,
                  .mask_dtype = OC_F32};
  int executed = 0;
  (void)state;
  data x = data_make(&s, 0);
#define EXPECT_BAD(change, word)                                                                                       \
  do {                                                                                                                 \
    oc_triattn call = x.call;                                                                                          \
    change;                                                                                                            \
    expect_core(members[0], &call, &x, OC_BAD_ARG, OC_REASON_NONE, word);                                              \
    executed++;                                                                                                        \
  } while (0)
  EXPECT_BAD(call.out = call.q, "out overlaps q");
  EXPECT_BAD(call.lse.data = call.v.data, "lse overlaps v");
  EXPECT_BAD(call.out.data = call.gate.data, "out overlaps gate");
  EXPECT_BAD(call.k.shape[4] = 3, "k: shape[4] is 3, not 4");
  EXPECT_BAD(call.v.shape[2] = 5, "v: shape[2] is 5, not 6");
  EXPECT_BAD(call.bias.shape[3] = 5, "bias: shape[3] is 5, not 6");
  EXPECT_BAD(call.lse.shape[3] = 6, "lse: shape[3] is 6, not 5");
  EXPECT_BAD(call.q.rank = 4, "q: rank 4, not 5");
  EXPECT_BAD(call.v = (oc_view){0}, "v: absent");
  EXPECT_BAD(call.mask = (oc_view){0}, "mask: absent");
  EXPECT_BAD(call.mask_kind = OC_MASK_NONE, "mask: present");
  EXPECT_BAD(call.mask_kind = (oc_mask_kind)9, "mask_kind: 9 is outside 0..4");
  EXPECT_BAD(call.mask_value = -1e9f, "mask_value: -1e+09");
  EXPECT_BAD(call.mask_value = INFINITY, "mask_value: inf");
  EXPECT_BAD(call.out.stride[1] = 0, "stride[1] of an output is 0");
  EXPECT_BAD(call.q.data = NULL, "q: data is NULL");
  for (int m = -1; m < member_count; m++) { /* strides that lead two elements of an output to one place */
    const oc_member *member = m < 0 ? reference : members[m];
    const char *const words[] = {"out: strides", "out: strides", "out: strides", "lse: strides", "lse: strides"};
    for (int n = 0; n < 5; n++, executed++) {
      oc_triattn call = x.call;
      if (n == 0) call.out.stride[2] = call.out.stride[3]; /* queries on top of heads */
      if (n == 1) call.out.stride[3] = 3;                  /* heads of 4 values, 3 apart */
      if (n == 2) call.out.stride[4] = call.out.stride[1]; /* two axes with one stride */
      if (n == 3) call.lse.stride[2] = 4;                  /* heads of 5 queries, 4 apart */
      if (n == 4) call.lse.stride[1] = call.lse.stride[3];
      expect_core(member, &call, &x, OC_REFUSED, OC_REASON_LAYOUT, words[n]);
    }
  }
  for (int m = -1; m < member_count; m++, executed++) { /* a workspace that is too small, and one that is not aligned */
    const oc_member *member = m < 0 ? reference : members[m];
    const size_t bytes = oc_member_workspace(member, &x.call, 2);
    oc_exec exec = {
        .workspace = aligned_alloc(64, (bytes + 127) / 64 * 64), .workspace_bytes = bytes - 1, .threads = 2};
    void *memory = exec.workspace;
    oc_choice choice = {.member = member};
    oc_err err = {0};
    assert_int_equal(oc_triattn_serve(&x.call, &choice, &exec, &err), OC_BAD_ARG);
    assert_non_null(strstr(err.detail, "workspace"));
    exec.workspace_bytes = bytes;
    exec.workspace = (char *)memory + 4;
    err = (oc_err){0};
    assert_int_equal(oc_triattn_serve(&x.call, &choice, &exec, &err), OC_BAD_ARG);
    assert_non_null(strstr(err.detail, "64"));
    choice.member = module_members[0];
    err = (oc_err){0};
    assert_int_equal(oc_triattn_serve(&x.call, &choice, &exec, &err), OC_BAD_ARG);
    assert_true(is_untouched(&x.out));
    free(memory);
  }
  assert_int_equal(executed, 22 + 6 * member_count);
  data_free(&x);
}

static void test_class(void **state) {
  const spec s = {.b = 3,
                  .i = 2,
                  .nq = 5,
                  .nk = 6,
                  .h = 2,
                  .d = 4,
                  .dtype = OC_BF16,
                  .bias_dtype = OC_F32,
                  .has_bias = 1,
                  .has_lse = 1,
                  .has_gate = 1,
                  .mask = OC_MASK_SUBTRACT,
                  .mask_value = 1e9f,
                  .mask_dtype = OC_F32};
  oc_class cls;
  oc_err err = {0};
  (void)state;
  data x = data_make(&s, 0);
  must(oc_triattn_class(&x.call, OC_TIER_FAST, &cls, &err), &err);
  assert_string_equal(cls.form, "bias+gate+lse+mask_subtract");
  assert_int_equal(cls.family, OC_FAMILY_TRIATTN);
  assert_int_equal(cls.dtype, OC_BF16);
  assert_true(strncmp(cls.device, "cpu-", 4) == 0);
  assert_int_equal(cls.dim[OC_DIM_B], 3);
  assert_int_equal(cls.dim[OC_DIM_S], 2);
  assert_int_equal(cls.dim[OC_DIM_N], 6);
  assert_int_equal(cls.dim[OC_DIM_H], 2);
  assert_int_equal(cls.dim[OC_DIM_D], 4);
  x.call.bias = x.call.gate = x.call.lse = x.call.mask = (oc_view){0};
  x.call.mask_kind = OC_MASK_NONE;
  must(oc_triattn_class(&x.call, OC_TIER_FAST, &cls, &err), &err);
  assert_string_equal(cls.form, "plain");
  x.call.k = (oc_view){0};
  assert_int_equal(oc_triattn_class(&x.call, OC_TIER_FAST, &cls, &err), OC_BAD_ARG);
  data_free(&x);
}

/* ---- the module ---- */

typedef struct module_spec {
  int64_t b, n, h, d, c;
  oc_dtype dtype, weight_dtype;
  oc_mask_kind mask;
  float mask_value;
  int is_biased, has_gate, has_residual, has_affine, is_untransposed, is_ending, is_in_place, is_rms, is_fast;
  layout how;
  oc_dtype round;
} module_spec;

enum { WEIGHTS = 14 }; /* norm w, b; then weight, bias of q, k, v, bias, gate, out */

typedef struct module_data {
  tensor x, y, mask, residual, weight[WEIGHTS];
  oc_triattn_module call;
} module_data;

static void module_link(module_data *m) {
  oc_view *const views[WEIGHTS] = {&m->call.norm.weight,     &m->call.norm.bias,      &m->call.to_q.weight,
                                   &m->call.to_q.bias,       &m->call.to_k.weight,    &m->call.to_k.bias,
                                   &m->call.to_v.weight,     &m->call.to_v.bias,      &m->call.to_bias.weight,
                                   &m->call.to_bias.bias,    &m->call.to_gate.weight, &m->call.to_gate.bias,
                                   &m->call.out_proj.weight, &m->call.out_proj.bias};
  m->call.x = m->x.view;
  m->call.y = m->y.view;
  m->call.mask = m->mask.view;
  m->call.residual = m->residual.view;
  for (int n = 0; n < WEIGHTS; n++) *views[n] = m->weight[n].view;
}

/* For the ending node: the same memory with axes 1 and 2 exchanged. */
static void module_turn(oc_triattn_module *call) {
  call->x = oc_view_swap(call->x, 1, 2);
  call->y = oc_view_swap(call->y, 1, 2);
  call->mask = oc_view_swap(call->mask, 1, 2);
  call->residual = oc_view_swap(call->residual, 1, 2);
}

static void module_free(module_data *m) {
  tensor_free(&m->x);
  tensor_free(&m->y);
  tensor_free(&m->mask);
  tensor_free(&m->residual);
  for (int n = 0; n < WEIGHTS; n++) tensor_free(&m->weight[n]);
}

/* Order-free: rows of x hold as many 1 as -1, so that the norm leaves them alone; projected logits are multiples of
 * 128, values multiples of 840, which every number of equal keys up to 8 divides. */
static void fill_signs(const oc_view *x) {
  const int64_t channels = x->shape[3];
  for (int64_t row = 0; row < oc_view_count(x) / (channels ? channels : 1); row++) {
    for (int64_t c = 0; c < channels; c++) set(x, row * channels + c, c % 2 ? 1.0 : -1.0);
    for (int64_t c = channels - 1; c > 0; c--) {
      const int64_t other = (int64_t)(random_bits() % (uint64_t)(c + 1)), a = row * channels + c,
                    b = row * channels + other;
      const double kept = get(x, a);
      set(x, a, get(x, b));
      set(x, b, kept);
    }
  }
}

static module_data module_make(const module_spec *s, int is_order_free) {
  const int64_t hd = s->h * s->d, xs[4] = {s->b, s->n, s->n, s->c};
  const int64_t outs[7] = {0, hd, hd, hd, s->h, hd, s->c}, ins[7] = {s->c, s->c, s->c, s->c, s->c, s->c, hd};
  module_data m = {0};
  m.x = is_order_free ? tensor_make(s->dtype, 4, xs, s->how) : filled(s->dtype, 4, xs, s->how, -3.0, 4.0);
  if (is_order_free) fill_signs(&m.x.view);
  if (s->has_residual)
    m.residual = is_order_free ? filled_integers(s->dtype, 4, xs, s->how, -9, 9, 1.0)
                               : filled(s->dtype, 4, xs, s->how, -1.0, 1.0);
  if (s->mask != OC_MASK_NONE) {
    m.mask = tensor_make(OC_BOOL, 3, xs, s->how);
    fill_mask(&m.mask.view, s->mask, 1.0);
  }
  m.y = tensor_make(s->dtype, 4, xs, s->how);
  for (int l = 0; l < 7; l++) {
    const int64_t ws[2] = {l ? outs[l] : s->c, ins[l]};
    const int32_t rank = l ? 2 : 1;
    const double size = l == 0 ? 1.5 : 1.0 / sqrt((double)ins[l]), unit = l == 3 ? 840.0 : l == 5 ? 200.0 : 1.0;
    if ((l == 0 && !s->has_affine) || (l == 5 && !s->has_gate)) continue;
    m.weight[2 * l] = is_order_free ? filled_integers(s->weight_dtype, rank, ws, s->how, l == 0, 1, l ? unit : 1.0)
                                    : filled(s->weight_dtype, rank, ws, s->how, l ? -size : 0.5, size);
    if (is_order_free && l > 0)
      for (int64_t n = 0; n < oc_view_count(&m.weight[2 * l].view); n++)
        set(&m.weight[2 * l].view, n, unit * integer(-1, 1) * (l == 4 ? 128.0 : 1.0));
    if (is_order_free && l == 0)
      for (int64_t n = 0; n < s->c; n++) set(&m.weight[0].view, n, n % 3 ? 1.0 : -2.0);
    if (l == 0 || s->is_biased)
      m.weight[2 * l + 1] = is_order_free
                                ? filled_integers(s->weight_dtype, 1, ws, s->how, -2, 2, l == 4 ? 128.0 : unit)
                                : filled(s->weight_dtype, 1, ws, s->how, -0.3, 0.3);
  }
  m.call = (oc_triattn_module){.heads = s->h,
                               .scale = is_order_free ? 128.0f : 1.0f / sqrtf((float)s->d),
                               .mask_kind = s->mask,
                               .mask_value = s->mask_value,
                               .bias_untransposed_end = s->is_untransposed};
  m.call.norm =
      (oc_norm){.eps = is_order_free ? 0.0f : 1e-5f, .rms = s->is_rms, .fast_variance = s->is_fast, .round = s->round};
  module_link(&m);
  if (s->is_ending) module_turn(&m.call);
  return m;
}

/* Calls with y replaced by a dense tensor of dtype; x's memory is not touched. */
static oc_triattn_module module_into(const module_data *m, const module_spec *s, tensor *y, oc_dtype dtype) {
  oc_triattn_module call = m->call;
  *y = tensor_make(dtype, 4, m->x.view.shape, DENSE);
  call.y = s->is_ending ? oc_view_swap(y->view, 1, 2) : y->view;
  return call;
}

static int check_module_order_free(const module_spec *s) {
  oc_err err;
  module_data m = module_make(s, 1);
  tensor want;
  const oc_triattn_module r = module_into(&m, s, &want, s->dtype);
  must(serve_with(serve_module, module_reference, &r, 1, &err), &err);
  for (int e = 0; e < module_member_count; e++) {
    oc_triattn_module call = m.call;
    tensor x = {0};
    if (s->is_in_place) { /* y is a copy of x that is read and written */
      x = tensor_make(s->dtype, 4, m.x.view.shape, s->how);
      for (int64_t n = 0; n < oc_view_count(&x.view); n++) set(&x.view, n, get(&m.x.view, n));
      call.x = call.y = s->is_ending ? oc_view_swap(x.view, 1, 2) : x.view;
      if (s->has_residual) call.residual = m.call.residual;
    } else {
      poison(&m.y);
    }
    must(serve_with(serve_module, module_members[e], &call, 1 + e, &err), &err);
    if (bits_differ(s->is_in_place ? &x.view : &m.y.view, &want.view, module_members[e]->name))
      fail_msg("n%" PRId64 " h%" PRId64 " d%" PRId64 " c%" PRId64 " mask %d layout %d", s->n, s->h, s->d, s->c,
               (int)s->mask, (int)s->how);
    assert_int_equal(guards_broken(s->is_in_place ? &x : &m.y), 0);
    tensor_free(&x);
  }
  assert_true(s->n == 1 || magnitude(&want.view) > 0.0); /* the only row of n = 1 is the masked one */
  tensor_free(&want);
  module_free(&m);
  return module_member_count;
}

static void test_module_order_free(void **state) {
  static const int64_t shapes[][4] = {{1, 1, 4, 16},    {15, 2, 8, 32},  {17, 4, 32, 64}, {33, 3, 24, 20},
                                      {34, 1, 40, 128}, {26, 5, 12, 48}, {65, 2, 16, 32}, {47, 34, 2, 8}};
  int executed = 0, cases = 0;
  (void)state;
  random_seed(7);
  for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
    for (int v = 0; v < 8; v++, cases++) {
      const module_spec s = {.b = shapes[n][0] < 16 ? 2 : 1,
                             .n = shapes[n][0],
                             .h = shapes[n][1],
                             .d = shapes[n][2],
                             .c = shapes[n][3],
                             .dtype = OC_F32,
                             .weight_dtype = v == 3 ? OC_BF16 : OC_F32,
                             .mask = v < 2   ? OC_MASK_SUBTRACT
                                     : v < 4 ? OC_MASK_ZERO
                                     : v < 6 ? OC_MASK_NONE
                                             : OC_MASK_FILL,
                             .mask_value = v < 2 ? 1e9f : -INFINITY,
                             .is_biased = cases % 2,
                             .has_gate = v % 3 != 1,
                             .has_residual = v % 2,
                             .has_affine = v % 4 == 2,
                             .is_untransposed = cases % 3 == 1,
                             .is_ending = v % 2,
                             .is_in_place = cases % 3 == 2,
                             .is_rms = v == 4,
                             .is_fast = v == 5,
                             .how = (layout)(v % LAYOUTS)};
      executed += check_module_order_free(&s);
    }
  assert_int_equal(cases, 64);
  assert_int_equal(executed, cases * module_member_count);
}

static int check_module_bound(const module_spec *s, double factor) {
  oc_err err;
  module_data m = module_make(s, 0), wide = {0};
  tensor truth, own_y;
  wide = m;
  wide.x = widened(&m.x);
  wide.residual = widened(&m.residual);
  for (int n = 0; n < WEIGHTS; n++) wide.weight[n] = widened(&m.weight[n]);
  module_link(&wide);
  if (s->is_ending) module_turn(&wide.call);
  wide.call.y = (oc_view){0};
  const oc_triattn_module t = module_into(&wide, s, &truth, OC_F64);
  must(serve_with(serve_module, module_reference, &t, 1, &err), &err);
  const oc_triattn_module r = module_into(&m, s, &own_y, s->dtype);
  must(serve_with(serve_module, module_reference, &r, 1, &err), &err);
  const double own = error_of(&own_y.view, &truth.view), unit = 4.0 * 0x1p-24 * magnitude(&truth.view);
  assert_true(isfinite(own) && magnitude(&truth.view) > 0.0);
  for (int e = 0; e < module_member_count; e++) {
    poison(&m.y);
    must(serve_with(serve_module, module_members[e], &m.call, 2, &err), &err);
    const double error = error_of(&m.y.view, &truth.view);
    if (!(error <= factor * own + unit))
      fail_msg("%s: error %g, reference %g (n %" PRId64 " c %" PRId64 ")", module_members[e]->name, error, own, s->n,
               s->c);
    assert_int_equal(guards_broken(&m.y), 0);
  }
  tensor_free(&wide.x);
  tensor_free(&wide.residual);
  for (int n = 0; n < WEIGHTS; n++) tensor_free(&wide.weight[n]);
  tensor_free(&truth);
  tensor_free(&own_y);
  module_free(&m);
  return module_member_count;
}

static void test_module_bound(void **state) {
  static const int64_t shapes[][4] = {{1, 1, 4, 5}, {17, 4, 32, 128}, {33, 4, 16, 64}, {40, 3, 24, 30}};
  int executed = 0, cases = 0;
  (void)state;
  random_seed(8);
  for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
    for (int v = 0; v < 6; v++, cases++) {
      const module_spec s = {.b = 1,
                             .n = shapes[n][0],
                             .h = shapes[n][1],
                             .d = shapes[n][2],
                             .c = shapes[n][3],
                             .dtype = v == 2 ? OC_BF16 : OC_F32,
                             .weight_dtype = v == 2 ? OC_BF16 : OC_F32,
                             .mask = v == 1 ? OC_MASK_ZERO : OC_MASK_NONE,
                             .is_biased = v % 2,
                             .has_gate = v != 3,
                             .has_residual = v % 2 == 0,
                             .has_affine = v != 4,
                             .is_untransposed = v == 5,
                             .is_ending = v % 2,
                             .is_fast = v == 3,
                             .how = (layout)(v % LAYOUTS),
                             .round = OC_DTYPE_NONE};
      executed += check_module_bound(&s, 1.5);
    }
  assert_int_equal(cases, 24);
  assert_int_equal(executed, cases * module_member_count);
}

/* Rows that are hard for a norm: each against the f32 reference. */
static void test_module_norm_rows(void **state) {
  const module_spec s = {.b = 1,
                         .n = 9,
                         .h = 2,
                         .d = 8,
                         .c = 37,
                         .dtype = OC_F32,
                         .weight_dtype = OC_F32,
                         .is_biased = 1,
                         .has_gate = 1,
                         .has_affine = 1};
  int executed = 0;
  (void)state;
  random_seed(9);
  module_data m = module_make(&s, 0);
  for (int64_t n = 0; n < 81 * 37; n++) {
    const int64_t kind = n / 37 % 9;
    const double r = uniform(-1.0, 1.0);
    const double values[9] = {2000.0 + r, 1e4 + (double)(n % 4), 0.0, 3.0, n % 37 == 5 ? 6e4 : r, 1e15 * r, 1e-20 * r,
                              r,          100.0 + 0.01 * r};
    set(&m.x.view, n, values[kind]);
  }
  tensor want;
  oc_err err;
  const oc_triattn_module r = module_into(&m, &s, &want, OC_F32);
  must(serve_with(serve_module, module_reference, &r, 1, &err), &err);
  for (int e = 0; e < module_member_count; e++, executed++) {
    must(serve_with(serve_module, module_members[e], &m.call, 2, &err), &err);
    /* the mean of row kind 0 carries 2000 * 2^-24: after scaling about 2e-4 in both */
    assert_true(error_of(&m.y.view, &want.view) < 5e-3);
  }
  set(&m.x.view, 0,
      NAN); /* poisons row 0 of the output and, through the bias, query 0 of head rows: nothing else may be NaN */
  must(serve_with(serve_module, module_reference, &r, 1, &err), &err);
  for (int e = 0; e < module_member_count; e++) {
    must(serve_with(serve_module, module_members[e], &m.call, 2, &err), &err);
    for (int64_t n = 0; n < oc_view_count(&want.view); n++)
      assert_int_equal(isnan(get(&m.y.view, n)), isnan(get(&want.view, n)));
  }
  assert_int_equal(executed, module_member_count);
  tensor_free(&want);
  module_free(&m);
}

static void test_module_rounded_norm(void **state) {
  const module_spec s = {.b = 1,
                         .n = 12,
                         .h = 2,
                         .d = 8,
                         .c = 32,
                         .dtype = OC_BF16,
                         .weight_dtype = OC_BF16,
                         .has_gate = 1,
                         .has_affine = 1,
                         .round = OC_BF16};
  module_data m;
  tensor want, plain;
  oc_err err;
  (void)state;
  random_seed(10);
  m = module_make(&s, 0);
  oc_triattn_module r = module_into(&m, &s, &want, OC_F32), p = module_into(&m, &s, &plain, OC_F32);
  p.norm.round = OC_F32;
  must(serve_with(serve_module, module_reference, &r, 1, &err), &err);
  must(serve_with(serve_module, module_reference, &p, 1, &err), &err);
  assert_true(error_of(&plain.view, &want.view) > 1e-4); /* rounding shows */
  tensor stored;
  const oc_triattn_module narrow = module_into(&m, &s, &stored, OC_BF16);
  must(serve_with(serve_module, module_reference, &narrow, 1, &err), &err);
  for (int e = 0; e < module_member_count; e++) {
    tensor y;
    const oc_triattn_module call = module_into(&m, &s, &y, OC_F32);
    must(serve_with(serve_module, module_members[e], &call, 2, &err), &err);
    /* products of bf16 round q, k, v and the weights as well: near the stored form, not near the f32 one */
    if (module_members[e]->isa == OC_ISA_AVX512_BF16)
      assert_true(error_of(&y.view, &want.view) < 1.5 * error_of(&stored.view, &want.view));
    else
      assert_true(error_of(&y.view, &want.view) < 0.2 * error_of(&plain.view, &want.view));
    tensor_free(&y);
  }
  tensor_free(&want);
  tensor_free(&plain);
  tensor_free(&stored);
  module_free(&m);
}

static void test_module_threads(void **state) {
  static const int threads[] = {2, 3, 7, 1};
  const module_spec s = {.b = 2,
                         .n = 29,
                         .h = 3,
                         .d = 20,
                         .c = 44,
                         .dtype = OC_F32,
                         .weight_dtype = OC_F32,
                         .mask = OC_MASK_SUBTRACT,
                         .mask_value = 1e9f,
                         .is_biased = 1,
                         .has_gate = 1,
                         .has_residual = 1,
                         .has_affine = 1};
  int executed = 0;
  (void)state;
  random_seed(11);
  module_data m = module_make(&s, 0);
  for (int e = 0; e < module_member_count; e++) {
    tensor first;
    oc_err err;
    const oc_triattn_module one = module_into(&m, &s, &first, OC_F32);
    must(serve_with(serve_module, module_members[e], &one, 1, &err), &err);
    for (int t = 0; t < 4; t++, executed++) {
      poison(&m.y);
      must(serve_with(serve_module, module_members[e], &m.call, threads[t], &err), &err);
      assert_int_equal(bits_differ(&m.y.view, &first.view, module_members[e]->name), 0);
    }
    tensor_free(&first);
  }
  assert_int_equal(executed, 4 * module_member_count);
  module_free(&m);
}

static void test_module_wide_offsets(void **state) {
  const int64_t far = ((int64_t)1 << 30) + 8, n = 5, channels = 8;
  const size_t floats = (size_t)(far * n);
  const module_spec s = {
      .b = 1, .n = n, .h = 2, .d = 4, .c = channels, .dtype = OC_F32, .weight_dtype = OC_F32, .has_gate = 1};
  int executed = 0;
  (void)state;
  float *memory = sparse(floats);
  if (!memory) skip();
  random_seed(12);
  module_data m = module_make(&s, 0);
  for (int e = -1; e < module_member_count; e++, executed++) {
    const oc_member *member = e < 0 ? module_reference : module_members[e];
    oc_err err;
    must(serve_with(serve_module, member, &m.call, 1, &err), &err);
    oc_triattn_module wide = m.call; /* in place, rows of x far apart */
    wide.x.data = memory;
    wide.x.stride[1] = far;
    wide.x.stride[2] = channels;
    for (int64_t k = 0; k < n * n * channels; k++) set(&wide.x, k, get(&m.x.view, k));
    wide.y = wide.x;
    must(serve_with(serve_module, member, &wide, 1, &err), &err);
    assert_int_equal(bits_differ(&wide.y, &m.y.view, member->name), 0);
  }
  munmap(memory, floats * sizeof(float));
  assert_int_equal(executed, module_member_count + 1);
  module_free(&m);
}

static void expect_module(const oc_member *member, const oc_triattn_module *call, const module_data *m,
                          oc_status status, oc_reason reason, const char *word) {
  oc_err err;
  assert_int_equal(serve_with(serve_module, member, call, 1, &err), status);
  assert_int_equal(err.reason, reason);
  if (!strstr(err.detail, word)) fail_msg("detail '%s' lacks '%s'", err.detail, word);
  assert_true(is_untouched(&m->y));
}

static void test_module_refusals(void **state) {
  const module_spec s = {.b = 1,
                         .n = 5,
                         .h = 2,
                         .d = 4,
                         .c = 6,
                         .dtype = OC_F32,
                         .weight_dtype = OC_F32,
                         .is_biased = 1,
                         .has_gate = 1,
                         .has_residual = 1,
                         .has_affine = 1,
                         .mask = OC_MASK_SUBTRACT,
                         .mask_value = 1e9f};
  int executed = 0;
  (void)state;
  module_data m = module_make(&s, 0);
#define EXPECT_MODULE(change, status, reason, word)                                                                    \
  do {                                                                                                                 \
    oc_triattn_module call = m.call;                                                                                   \
    change;                                                                                                            \
    expect_module(module_members[0], &call, &m, status, reason, word);                                                 \
    executed++;                                                                                                        \
  } while (0)
  EXPECT_MODULE(call.mask_kind = OC_MASK_ADD, OC_REFUSED, OC_REASON_DIALECT, "mask_kind=add");
  EXPECT_MODULE(call.norm.round = OC_F64, OC_REFUSED, OC_REASON_DIALECT, "norm.round=f64");
  EXPECT_MODULE(call.to_k.weight.dtype = OC_I32, OC_REFUSED, OC_REASON_DTYPE, "to_k.weight=i32");
  EXPECT_MODULE(call.y.data = (char *)call.x.data + 8, OC_BAD_ARG, OC_REASON_NONE, "y overlaps x");
  EXPECT_MODULE(call.y = oc_view_swap(call.x, 1, 2), OC_BAD_ARG, OC_REASON_NONE, "y overlaps x");
  /* y is larger than a weight and reaches whatever lies behind it: the name that is found first may be another one */
  EXPECT_MODULE(call.y.data = call.out_proj.weight.data, OC_BAD_ARG, OC_REASON_NONE, "y overlaps ");
  EXPECT_MODULE(call.heads = 3, OC_BAD_ARG, OC_REASON_NONE, "heads: 3");
  EXPECT_MODULE(call.heads = 0, OC_BAD_ARG, OC_REASON_NONE, "heads: 0");
  EXPECT_MODULE(call.x.shape[2] = 4, OC_BAD_ARG, OC_REASON_NONE, "x: shape[2] is 4, not 5");
  EXPECT_MODULE(call.to_bias.weight.shape[0] = 1, OC_BAD_ARG, OC_REASON_NONE, "to_bias: shape[0] is 1, not 2");
  EXPECT_MODULE(call.out_proj.bias.shape[0] = 5, OC_BAD_ARG, OC_REASON_NONE, "out_proj.bias: shape[0] is 5, not 6");
  EXPECT_MODULE(call.to_gate.weight = (oc_view){0}, OC_BAD_ARG, OC_REASON_NONE, "to_gate.bias");
  EXPECT_MODULE(call.norm.eps = -1.0f, OC_BAD_ARG, OC_REASON_NONE, "norm.eps: -1");
  EXPECT_MODULE(call.mask = (oc_view){0}, OC_BAD_ARG, OC_REASON_NONE, "mask: absent");
  EXPECT_MODULE(call.y.stride[2] = 5, OC_REFUSED, OC_REASON_LAYOUT, "y: strides");
  EXPECT_MODULE(call.y.stride[1] = call.y.stride[2], OC_REFUSED, OC_REASON_LAYOUT, "y: strides");
  EXPECT_MODULE(call.y.stride[3] = 2, OC_REFUSED, OC_REASON_LAYOUT, "y: strides");
  assert_int_equal(executed, 17);
  oc_class cls;
  oc_err err = {0};
  m.call.bias_untransposed_end = 1;
  must(oc_triattn_module_class(&m.call, OC_TIER_FAST, &cls, &err), &err);
  assert_string_equal(cls.form, "biased+gate+mask_subtract+residual+untransposed");
  assert_int_equal(cls.dim[OC_DIM_N], 5);
  assert_int_equal(cls.dim[OC_DIM_C], 6);
  assert_int_equal(cls.dim[OC_DIM_H], 2);
  assert_int_equal(cls.dim[OC_DIM_D], 4);
  module_free(&m);
  const module_spec wide = {.b = 1, .n = 2, .h = 1, .d = 257, .c = 6, .dtype = OC_F32, .weight_dtype = OC_F32};
  m = module_make(&wide, 0);
  expect_module(module_members[0], &m.call, &m, OC_REFUSED, OC_REASON_SHAPE, "d=257");
  module_free(&m);
  for (int64_t b = 0; b < 2; b++) { /* empty: no batch, no token */
    const module_spec empty = {
        .b = b, .n = b ? 0 : 3, .h = 2, .d = 4, .c = 6, .dtype = OC_F32, .weight_dtype = OC_F32, .has_gate = 1};
    m = module_make(&empty, 0);
    for (int e = 0; e < module_member_count; e++)
      must(serve_with(serve_module, module_members[e], &m.call, 2, &err), &err);
    must(serve_with(serve_module, module_reference, &m.call, 1, &err), &err);
    assert_true(is_untouched(&m.y));
    module_free(&m);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_known_answers),
      cmocka_unit_test(test_order_free),
      cmocka_unit_test(test_bound),
      cmocka_unit_test(test_fully_masked_rows),
      cmocka_unit_test(test_invariance),
      cmocka_unit_test(test_broadcast_and_negative_strides),
      cmocka_unit_test(test_empty),
      cmocka_unit_test(test_wide_offsets),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_cuda_sm90a_names_what_it_does_not_take),
      cmocka_unit_test(test_bad_arguments),
      cmocka_unit_test(test_class),
      cmocka_unit_test(test_module_order_free),
      cmocka_unit_test(test_module_bound),
      cmocka_unit_test(test_module_norm_rows),
      cmocka_unit_test(test_module_rounded_norm),
      cmocka_unit_test(test_module_threads),
      cmocka_unit_test(test_module_wide_offsets),
      cmocka_unit_test(test_module_refusals),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
