/* SPDX-License-Identifier: Apache-2.0 */
/* The ladder for ln: guards, order-free bits, rerun, threads, row chunks, layouts, bound against float64, refusals. */
#define _DEFAULT_SOURCE /* MAP_NORESERVE */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "ladder.h"
#include "opt_core/ln.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
static const int64_t columns_list[] = {1,  2,   3,   5,   15,  16,  17,  31,  32,  33,  64,
                                       65, 100, 101, 127, 128, 129, 130, 255, 256, 257, 384};
static const oc_dtype stored[] = {OC_F32, OC_BF16, OC_F16};
static const oc_member *members[4];
static int member_count;

typedef struct fixture {
  tensor x, y, weight, bias;
  oc_ln ln;
} fixture;

typedef struct shape_case {
  int32_t rank;
  int64_t shape[5];
  oc_dtype x, y, parameter;
  layout_kind x_layout, y_layout;
} shape_case;

static fixture make(const shape_case *c) {
  fixture f = {0};
  const int64_t columns = c->shape[c->rank - 1];
  f.x = tensor_make(c->x, c->rank, c->shape, c->x_layout);
  f.y = tensor_make(c->y, c->rank, c->shape, c->y_layout);
  f.weight = tensor_make(c->parameter, 1, &columns, LAYOUT_OFFSET);
  f.bias = tensor_make(c->parameter, 1, &columns, LAYOUT_STEP2);
  f.ln = (oc_ln){.x = f.x.view, .y = f.y.view, .norm = {.weight = f.weight.view, .bias = f.bias.view, .eps = 1e-5f}};
  return f;
}

static void release(fixture *f) {
  tensor_free(&f->x);
  tensor_free(&f->y);
  tensor_free(&f->weight);
  tensor_free(&f->bias);
}

static void fill_random(fixture *f, double mean, double width) {
  for (int64_t i = 0; i < oc_view_count(&f->x.view); i++) view_put(&f->x.view, i, mean + width * random_normal());
  for (int64_t i = 0; i < f->weight.view.shape[0]; i++) {
    view_put(&f->weight.view, i, 1.0 + 0.3 * random_normal());
    view_put(&f->bias.view, i, 0.5 * random_normal());
  }
}

/* Rows of 0, +-1, +-2 that add up to 0: sums are exact in any order, products by powers of two too, so every member has
 * to give the reference's bits. Weight and bias differ from column to column. */
static void fill_order_free(fixture *f) {
  const int64_t n = f->x.view.shape[f->x.view.rank - 1], rows = n ? oc_view_count(&f->x.view) / n : 0;
  for (int64_t r = 0; r < rows; r++) {
    double sum = 0.0;
    for (int64_t c = 0; c < n; c++) {
      double v = (double)(random_below(5) - 2);
      if (n - c <= 2 && fabs(sum) > 0.0)
        v = sum > 0 ? fmax(-sum, -2.0) : fmin(-sum, 2.0);
      else if (fabs(sum + v) > 4.0 || c == n - 1)
        v = 0.0;
      if (c == n - 1 && sum == 0.0) v = 0.0;
      sum += v;
      view_put(&f->x.view, r * n + c, v);
    }
  }
  for (int64_t c = 0; c < n; c++) {
    view_put(&f->weight.view, c, ldexp(c % 3 == 0 ? -1.0 : 1.0, (int)(c % 5) - 2));
    view_put(&f->bias.view, c, (double)(c % 7) - 3.0);
  }
}

static void run_reference(const oc_ln *ln) {
  oc_err err = {0};
  if (member_run(reference_of(OC_FAMILY_LN), ln, 1, &err) != OC_OK) fail_msg("reference: %s", err.detail);
}

static void run_member(const oc_member *member, const oc_ln *ln, int threads) {
  oc_err err = {0};
  if (member_run(member, ln, threads, &err) != OC_OK) fail_msg("%s: %s", member->name, err.detail);
}

/* Runs every member and compares its bits with the reference's. Returns the comparisons made. */
static int compare_with_reference(fixture *f, const char *what) {
  tensor want = tensor_make(f->y.view.dtype, f->y.view.rank, f->y.view.shape, LAYOUT_DENSE);
  oc_ln reference = f->ln;
  reference.y = want.view;
  run_reference(&reference);
  for (int m = 0; m < member_count; m++) {
    char label[96];
    snprintf(label, sizeof label, "%s, %s", members[m]->name, what);
    tensor_poison(&f->y);
    run_member(members[m], &f->ln, 1 + m % 2);
    assert_same_bits(&f->y.view, &want.view, label);
    assert_only_elements_written(&f->y);
  }
  tensor_free(&want);
  return member_count;
}

static void test_order_free(void **state) {
  (void)state;
  int executed = 0;
  random_state = 11;
  for (int c = 0; c < COUNT(columns_list); c++)
    for (int xl = 0; xl < LAYOUT_COUNT; xl++)
      for (int t = 0; t < COUNT(stored); t++) {
        const shape_case sc = {3,
                               {3, 13, columns_list[c]},
                               stored[t],
                               stored[(t + xl) % 3],
                               stored[(t + c) % 3],
                               (layout_kind)xl,
                               (layout_kind)((xl + c) % LAYOUT_COUNT)};
        fixture f = make(&sc);
        fill_order_free(&f);
        f.ln.norm.rms = c % 4 == 1;
        f.ln.norm.fast_variance = c % 4 == 2;
        if (c % 5 == 1) memset(&f.ln.norm.weight, 0, sizeof f.ln.norm.weight);
        if (c % 5 == 2) memset(&f.ln.norm.bias, 0, sizeof f.ln.norm.bias);
        f.ln.norm.round = c % 3 == 0 ? OC_BF16 : c % 3 == 1 ? OC_DTYPE_NONE : OC_F16;
        char what[64];
        snprintf(what, sizeof what, "C=%lld layout %d dtype %d", (long long)columns_list[c], xl, t);
        executed += compare_with_reference(&f, what);
        release(&f);
      }
  assert_int_equal(executed, COUNT(columns_list) * LAYOUT_COUNT * 3 * member_count);
}

/* Many rows: block tails, broadcast and reversed inputs, ranks 1 to 5. */
static void test_row_counts(void **state) {
  (void)state;
  static const shape_case cases[] = {
      {1, {33}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE, LAYOUT_DENSE},
      {2, {1, 128}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE, LAYOUT_DENSE},
      {2, {255, 128}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE, LAYOUT_DENSE},
      {2, {257, 128}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE, LAYOUT_COLUMNS},
      {2, {513, 17}, OC_F32, OC_F32, OC_BF16, LAYOUT_COLUMNS, LAYOUT_DENSE},
      {2, {1025, 3}, OC_BF16, OC_BF16, OC_F32, LAYOUT_DENSE, LAYOUT_PADDED},
      {3, {5, 129, 32}, OC_F32, OC_F32, OC_F32, LAYOUT_SWAPPED, LAYOUT_SWAPPED},
      {3, {4, 33, 65}, OC_F32, OC_F32, OC_F32, LAYOUT_BROADCAST, LAYOUT_DENSE},
      {3, {4, 33, 65}, OC_BF16, OC_F32, OC_F32, LAYOUT_NEGATIVE, LAYOUT_SWAPPED},
      {4, {2, 3, 17, 40}, OC_F32, OC_BF16, OC_F32, LAYOUT_SWAPPED, LAYOUT_COLUMNS},
      {5, {2, 1, 3, 7, 31}, OC_F32, OC_F32, OC_F16, LAYOUT_COLUMNS, LAYOUT_STEP2},
      {2, {3, 70001}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE, LAYOUT_DENSE},
  };
  int executed = 0;
  random_state = 12;
  for (int i = 0; i < COUNT(cases); i++) {
    fixture f = make(&cases[i]);
    fill_order_free(&f);
    char what[32];
    snprintf(what, sizeof what, "case %d", i);
    executed += compare_with_reference(&f, what);
    release(&f);
  }
  assert_int_equal(executed, COUNT(cases) * member_count);
}

static void test_threads_and_rerun(void **state) {
  (void)state;
  static const int threads[] = {1, 2, 3, 7, 0};
  int executed = 0;
  random_state = 13;
  for (int d = 0; d < COUNT(stored); d++) {
    const shape_case sc = {
        3, {37, 41, 130}, stored[d], stored[d], OC_F32, d == 1 ? LAYOUT_COLUMNS : LAYOUT_DENSE, LAYOUT_DENSE};
    fixture f = make(&sc);
    fill_random(&f, 0.5, 2.0);
    for (int m = 0; m < member_count; m++) {
      tensor first = tensor_make(sc.y, 3, sc.shape, LAYOUT_DENSE);
      oc_ln call = f.ln;
      call.y = first.view;
      run_member(members[m], &call, 1);
      for (int t = 0; t < COUNT(threads); t++, executed++) {
        tensor again = tensor_make(sc.y, 3, sc.shape, (layout_kind)t); /* another address and layout */
        call.y = again.view;
        run_member(members[m], &call, threads[t]);
        assert_same_bits(&again.view, &first.view, members[m]->name);
        tensor_free(&again);
      }
      tensor_free(&first);
    }
    release(&f);
  }
  assert_int_equal(executed, 3 * 5 * member_count);
}

/* Rows 0..k and k.. in two calls, and in place: the same bits. */
static void test_chunks_and_in_place(void **state) {
  (void)state;
  static const int64_t cuts[] = {1, 15, 16, 17, 100};
  int executed = 0;
  random_state = 14;
  const shape_case sc = {2, {301, 127}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE, LAYOUT_DENSE};
  fixture f = make(&sc);
  fill_random(&f, -1.0, 3.0);
  for (int m = 0; m < member_count; m++) {
    run_member(members[m], &f.ln, 2);
    for (int k = 0; k < COUNT(cuts); k++, executed++) {
      tensor parts = tensor_make(OC_F32, 2, sc.shape, LAYOUT_DENSE);
      oc_ln call = f.ln;
      call.y = parts.view;
      call.x.shape[0] = call.y.shape[0] = cuts[k];
      run_member(members[m], &call, 1);
      call.x.shape[0] = call.y.shape[0] = sc.shape[0] - cuts[k];
      call.x.data = (float *)call.x.data + cuts[k] * 127;
      call.y.data = (float *)call.y.data + cuts[k] * 127;
      run_member(members[m], &call, 2);
      assert_same_bits(&parts.view, &f.y.view, members[m]->name);
      tensor_free(&parts);
    }
    for (int layout = 0; layout < LAYOUT_COUNT; layout++, executed++) {
      tensor both = tensor_make(OC_F32, 2, sc.shape, (layout_kind)layout);
      for (int64_t i = 0; i < oc_view_count(&both.view); i++) view_put(&both.view, i, view_get(&f.x.view, i));
      oc_ln call = f.ln;
      call.x = call.y = both.view;
      run_member(members[m], &call, 2);
      assert_same_bits(&both.view, &f.y.view, members[m]->name);
      tensor_free(&both);
    }
  }
  release(&f);
  assert_int_equal(executed, (COUNT(cuts) + LAYOUT_COUNT) * member_count);
}

/* ---- bound ------------------------------------------------------------------------------------------------------- */

enum { KINDS = 11 };

static double value_of(int kind, int64_t row, int64_t c) {
  switch (kind) {
  case 0:
    return random_normal();
  case 1:
    return 2000.0 + random_normal();
  case 2:
    return 1e4 + (double)random_below(4);
  case 3:
    return 100.0 + 0.01 * random_normal();
  case 4:
    return 0.0;
  case 5:
    return 3.0;
  case 6:
    return c == 7 ? 6e4 : random_normal();
  case 7:
    return random_normal() * (row & 1 ? 1e10 : 1e18); /* squares stay finite */
  case 8:
    return 1e-40 * random_normal();
  case 9:
    return 40000.0 + (double)(c & 3);
  default:
    return ldexp(random_normal(), (int)random_below(20) - 10);
  }
}

static tensor truth_of(const fixture *f) {
  tensor x = tensor_f64(&f->x.view), weight = tensor_f64(&f->weight.view), bias = tensor_f64(&f->bias.view);
  tensor y = tensor_make(OC_F64, x.view.rank, x.view.shape, LAYOUT_DENSE);
  oc_ln call = f->ln;
  call.x = x.view;
  call.y = y.view;
  call.norm.weight = weight.view;
  call.norm.bias = bias.view;
  run_reference(&call);
  tensor_free(&x);
  tensor_free(&weight);
  tensor_free(&bias);
  return y;
}

static void test_bound(void **state) {
  (void)state;
  static const int64_t columns[] = {5, 33, 128, 267, 384, 4096};
  int executed = 0;
  random_state = 15;
  for (int kind = 0; kind < KINDS; kind++)
    for (int n = 0; n < COUNT(columns); n++)
      for (int d = 0; d < COUNT(stored); d++) {
        if (stored[d] == OC_F16 && (kind == 7 || kind == 8)) continue; /* outside the dtype's range */
        const shape_case sc = {2, {24, columns[n]}, stored[d], stored[d], OC_F32, LAYOUT_DENSE, LAYOUT_DENSE};
        fixture f = make(&sc);
        fill_random(&f, 0.0, 1.0);
        for (int64_t i = 0; i < oc_view_count(&f.x.view); i++)
          view_put(&f.x.view, i, value_of(kind, i / columns[n], i % columns[n]));
        f.ln.norm.rms = kind == 0 && n % 2 == 1;
        f.ln.norm.fast_variance = kind == 10;
        tensor truth = truth_of(&f);
        run_reference(&f.ln);
        const error_sum reference = error_against(&f.y.view, &truth.view);
        for (int m = 0; m < member_count; m++, executed++) {
          char what[64];
          snprintf(what, sizeof what, "%s kind %d C=%lld dtype %d", members[m]->name, kind, (long long)columns[n], d);
          tensor_poison(&f.y);
          run_member(members[m], &f.ln, 2);
          assert_bound(error_against(&f.y.view, &truth.view), reference, stored[d], what);
        }
        tensor_free(&truth);
        release(&f);
      }
  assert_int_equal(executed, (KINDS * 3 - 2) * COUNT(columns) * member_count);
}

/* A constant row gives the bias, whatever the constant; a NaN stays in its own row. */
static void test_constant_rows_and_nan(void **state) {
  (void)state;
  static const double constants[] = {0.0, 3.0, -1e4, 0.1, 1e30, 1e-40};
  int executed = 0;
  random_state = 16;
  for (int n = 0; n < COUNT(columns_list); n++) {
    const int64_t columns = columns_list[n];
    const shape_case sc = {2, {COUNT(constants), columns}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE, LAYOUT_DENSE};
    fixture f = make(&sc);
    fill_random(&f, 0.0, 1.0);
    for (int64_t i = 0; i < oc_view_count(&f.x.view); i++) view_put(&f.x.view, i, constants[i / columns]);
    for (int m = 0; m < member_count; m++) {
      run_member(members[m], &f.ln, 1);
      for (int64_t i = 0; i < oc_view_count(&f.y.view); i++) {
        const double want = view_get(&f.bias.view, i % columns), got = view_get(&f.y.view, i);
        if (!(fabs(got - want) <= 1e-6))
          fail_msg("%s C=%lld: %g, wanted the bias %g", members[m]->name, (long long)columns, got, want);
      }
      view_put(&f.x.view, 2 * columns + columns / 2, NAN);
      tensor clean = tensor_f64(&f.y.view);
      run_member(members[m], &f.ln, 1);
      for (int64_t i = 0; i < oc_view_count(&f.y.view); i++) {
        if (i / columns == 2)
          assert_true(isnan(view_get(&f.y.view, i)));
        else
          assert_true(view_get(&f.y.view, i) == view_get(&clean.view, i));
      }
      tensor_free(&clean);
      view_put(&f.x.view, 2 * columns + columns / 2, constants[2]);
      executed++;
    }
    release(&f);
  }
  assert_int_equal(executed, COUNT(columns_list) * member_count);
}

/* ---- edges ------------------------------------------------------------------------------------------------------- */

static void test_empty(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{0, 5, 16}, {5, 0, 16}, {5, 3, 0}, {0, 0, 0}};
  const oc_member *all[5] = {reference_of(OC_FAMILY_LN)};
  int executed = 0;
  for (int m = 0; m < member_count; m++) all[m + 1] = members[m];
  for (int s = 0; s < COUNT(shapes); s++)
    for (int m = 0; m <= member_count; m++, executed++) {
      shape_case sc = {3,           {shapes[s][0], shapes[s][1], shapes[s][2]}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE,
                       LAYOUT_DENSE};
      fixture f = make(&sc);
      const oc_choice choice = {.member = all[m]};
      char workspace[4096];
      const oc_exec exec = {.workspace = workspace, .workspace_bytes = sizeof workspace, .threads = 1};
      oc_err err = {0};
      assert_int_equal(oc_ln_serve(&f.ln, &choice, &exec, &err), OC_OK);
      assert_untouched(&f.y);
      release(&f);
    }
  assert_int_equal(executed, 4 * (member_count + 1));
}

/* Offsets past 2^31 elements, in rows and in columns: addresses are reserved, a few pages are touched. */
static void test_64_bit_offsets(void **state) {
  (void)state;
  const int64_t far_apart = ((int64_t)1 << 31) + 77;
  const size_t bytes = (size_t)(far_apart + 4096) * sizeof(float);
  for (int axis = 0; axis < 2; axis++)
    for (int m = 0; m < member_count; m++) {
      float *x = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      float *y = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (x == MAP_FAILED || y == MAP_FAILED) {
        print_message("skipped: no %zu bytes of address space\n", bytes);
        skip();
      }
      const int64_t shape[2] = {axis == 0 ? 2 : 3, axis == 0 ? 16 : 2};
      oc_ln call = {
          .x = oc_view_dense(x, OC_F32, 2, shape), .y = oc_view_dense(y, OC_F32, 2, shape), .norm = {.eps = 1e-5f}};
      call.x.stride[axis] = call.y.stride[axis] = far_apart;
      call.x.stride[1 - axis] = call.y.stride[1 - axis] = 1;
      for (int64_t i = 0; i < shape[0] * shape[1]; i++) view_put(&call.x, i, (double)(i * i % 11));
      run_member(members[m], &call, 2);
      tensor x_near = tensor_make(OC_F32, 2, shape, LAYOUT_DENSE), y_near = tensor_make(OC_F32, 2, shape, LAYOUT_DENSE);
      for (int64_t i = 0; i < shape[0] * shape[1]; i++) view_put(&x_near.view, i, view_get(&call.x, i));
      oc_ln near_call = {.x = x_near.view, .y = y_near.view, .norm = call.norm};
      run_member(members[m], &near_call, 1);
      assert_same_bits(&call.y, &y_near.view, members[m]->name);
      tensor_free(&x_near);
      tensor_free(&y_near);
      munmap(x, bytes);
      munmap(y, bytes);
    }
}

/* ---- refusals and wrong calls ------------------------------------------------------------------------------------ */

static void expect(const oc_ln *call, const oc_member *member, size_t workspace_bytes, oc_status status,
                   oc_reason reason, const char *detail) {
  static char workspace[65536];
  const oc_choice choice = {.member = member};
  const oc_exec exec = {.workspace = workspace, .workspace_bytes = workspace_bytes, .threads = 1};
  oc_err err = {0};
  assert_int_equal(oc_ln_serve(call, &choice, &exec, &err), status);
  assert_int_equal(err.reason, reason);
  if (!strstr(err.detail, detail)) fail_msg("detail is \"%s\", wanted \"%s\" in it", err.detail, detail);
}

static void test_refusals(void **state) {
  (void)state;
  const shape_case sc = {2, {6, 20}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE, LAYOUT_DENSE};
  fixture f = make(&sc);
  fill_random(&f, 0.0, 1.0);
  for (int m = 0; m < member_count; m++) {
    oc_ln call = f.ln;
    tensor wide = tensor_make(OC_F64, 2, sc.shape, LAYOUT_DENSE);
    call.x = wide.view;
    expect(&call, members[m], 65536, OC_REFUSED, OC_REASON_DTYPE, "x=f64");
    call = f.ln;
    call.y = wide.view;
    expect(&call, members[m], 65536, OC_REFUSED, OC_REASON_DTYPE, "y=f64");
    assert_untouched(&wide);
    call = f.ln;
    call.x.dtype = OC_I32;
    expect(&call, members[m], 65536, OC_REFUSED, OC_REASON_DTYPE, "x=i32");
    call = f.ln;
    call.norm.weight.dtype = OC_I32;
    expect(&call, members[m], 65536, OC_REFUSED, OC_REASON_DTYPE, "norm.weight=i32");
    call = f.ln;
    call.norm.round = OC_F64;
    expect(&call, members[m], 65536, OC_REFUSED, OC_REASON_DIALECT, "norm.round=f64");
    call = f.ln;
    call.y.stride[0] = 10;
    expect(&call, members[m], 65536, OC_REFUSED, OC_REASON_LAYOUT, "y:");
    assert_untouched(&f.y);
    tensor_free(&wide);
  }
  release(&f);
}

static void test_bad_arguments(void **state) {
  (void)state;
  const shape_case sc = {2, {6, 20}, OC_F32, OC_F32, OC_F32, LAYOUT_DENSE, LAYOUT_DENSE};
  fixture f = make(&sc);
  fill_random(&f, 0.0, 1.0);
  const oc_member *member = members[0];
  oc_ln call = f.ln;
  call.y.shape[1] = 19;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "shape[1] is 19, x has 20");
  call = f.ln;
  call.y.rank = 1;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "y: rank 1");
  call = f.ln;
  call.x.rank = call.y.rank = 0;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "x: rank 0");
  call = f.ln;
  call.norm.bias.shape[0] = 21;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "norm.bias: rank 1, length 21");
  call = f.ln;
  call.norm.eps = -1e-5f;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "norm.eps: -1e-05");
  call = f.ln;
  call.norm.eps = NAN;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "norm.eps");
  call = f.ln;
  call.y.stride[0] = 0;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "stride[0] is 0");
  call = f.ln;
  call.y.stride[1] = -1;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "stride[1] is -1");
  call = f.ln;
  call.x.data = NULL;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "x: data is NULL");
  assert_untouched(&f.y);
  call = f.ln;
  call.y.data = (float *)f.x.view.data + 1;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "overlaps x");
  call = f.ln;
  call.norm.weight = f.y.view;
  call.norm.weight.rank = 1;
  call.norm.weight.shape[0] = 20;
  call.norm.weight.stride[0] = 1;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "overlaps norm.weight");
  call.norm.bias = call.norm.weight;
  call.norm.weight = f.ln.norm.weight;
  expect(&call, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "overlaps norm.bias");
  for (int m = 0; m < member_count; m++) {
    const size_t need = oc_member_workspace(members[m], &f.ln, 1);
    expect(&f.ln, members[m], need - 1, OC_BAD_ARG, OC_REASON_NONE, "workspace");
  }
  expect(NULL, member, 65536, OC_BAD_ARG, OC_REASON_NONE, "call is NULL");
  expect(&f.ln, NULL, 65536, OC_BAD_ARG, OC_REASON_NONE, "no member");
  const oc_member other = {.row = "cpu", .name = "other", .family = OC_FAMILY_APB};
  expect(&f.ln, &other, 65536, OC_BAD_ARG, OC_REASON_NONE, "member other");
  const oc_choice choice = {.member = member};
  oc_err err = {0};
  assert_int_equal(oc_ln_serve(&f.ln, &choice, NULL, &err), OC_BAD_ARG);
  assert_int_equal(oc_ln_class(&f.ln, OC_TIER_FAST, NULL, NULL), OC_BAD_ARG);
  assert_untouched(&f.y);
  release(&f);
}

static void test_class(void **state) {
  (void)state;
  const shape_case sc = {4, {2, 3, 5, 20}, OC_BF16, OC_F32, OC_F32, LAYOUT_SWAPPED, LAYOUT_DENSE};
  fixture f = make(&sc);
  oc_class cls;
  oc_isa isa;
  char device[24];
  assert_int_equal(oc_cpu_isa(&isa, NULL), OC_OK);
  snprintf(device, sizeof device, "cpu-%s", oc_isa_word(isa));
  assert_int_equal(oc_ln_class(&f.ln, OC_TIER_BIG, &cls, NULL), OC_OK);
  assert_int_equal(cls.family, OC_FAMILY_LN);
  assert_int_equal(cls.tier, OC_TIER_BIG);
  assert_int_equal(cls.dtype, OC_BF16);
  assert_string_equal(cls.device, device);
  assert_string_equal(cls.form, "affine");
  assert_string_equal(cls.stack, "");
  const int64_t want[OC_DIM_COUNT] = {[OC_DIM_N] = 30, [OC_DIM_C] = 20};
  assert_memory_equal(cls.dim, want, sizeof want);
  f.ln.norm.rms = 1;
  assert_int_equal(oc_ln_class(&f.ln, OC_TIER_FAST, &cls, NULL), OC_OK);
  assert_string_equal(cls.form, "affine+rms");
  memset(&f.ln.norm.weight, 0, sizeof f.ln.norm.weight);
  memset(&f.ln.norm.bias, 0, sizeof f.ln.norm.bias);
  assert_int_equal(oc_ln_class(&f.ln, OC_TIER_FAST, &cls, NULL), OC_OK);
  assert_string_equal(cls.form, "plain+rms");
  f.ln.norm.rms = 0;
  assert_int_equal(oc_ln_class(&f.ln, OC_TIER_FAST, &cls, NULL), OC_OK);
  assert_string_equal(cls.form, "plain");
  release(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order_free),
      cmocka_unit_test(test_row_counts),
      cmocka_unit_test(test_threads_and_rerun),
      cmocka_unit_test(test_chunks_and_in_place),
      cmocka_unit_test(test_bound),
      cmocka_unit_test(test_constant_rows_and_nan),
      cmocka_unit_test(test_empty),
      cmocka_unit_test(test_64_bit_offsets),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_bad_arguments),
      cmocka_unit_test(test_class),
  };
  member_count = members_here(OC_FAMILY_LN, "cpu", members);
  if (member_count == 0) return 1;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
