/* SPDX-License-Identifier: Apache-2.0 */
/* The ladder for transition: guards, order-free bits, rerun, threads, row chunks, layouts, bound against float64,
 * refusals. */
#define _DEFAULT_SOURCE /* MAP_NORESERVE */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "ladder.h"
#include "opt_core/transition.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
static const oc_dtype stored[] = {OC_F32, OC_BF16, OC_F16};
static const oc_dtype mask_dtypes[] = {OC_F32, OC_BOOL, OC_U8, OC_BF16, OC_I32, OC_I64, OC_F16};
static const oc_member *members[4];
static int member_count;

/* The operands of a call, in the order of names below. */
enum { X, Y, MASK, RESIDUAL, NORM_WEIGHT, NORM_BIAS, UP, UP_BIAS, GATE, GATE_BIAS, DOWN, DOWN_BIAS, OPERANDS };

typedef struct fixture {
  tensor t[OPERANDS];
  oc_transition call;
} fixture;

typedef struct shape_case {
  int32_t rank;
  int64_t shape[5], hidden;
  oc_activation activation;
  oc_dtype x, y, residual, mask, weights; /* OC_DTYPE_NONE: absent (residual, mask) */
  layout_kind x_layout, y_layout, weight_layout;
  int without_bias, without_norm;
} shape_case;

static oc_view *operand(oc_transition *call, int i) {
  oc_view *const views[OPERANDS] = {&call->x,           &call->y,         &call->mask,        &call->residual,
                                    &call->norm.weight, &call->norm.bias, &call->up.weight,   &call->up.bias,
                                    &call->gate.weight, &call->gate.bias, &call->down.weight, &call->down.bias};
  return views[i];
}

static void add(fixture *f, int i, oc_dtype dtype, int32_t rank, const int64_t *shape, layout_kind layout) {
  f->t[i] = tensor_make(dtype, rank, shape, layout);
  *operand(&f->call, i) = f->t[i].view;
}

static fixture make(const shape_case *c) {
  fixture f = {.call = {.activation = c->activation, .norm_absent = c->without_norm, .norm = {.eps = 1e-5f}}};
  const int64_t columns = c->shape[c->rank - 1], up[2] = {c->hidden, columns}, down[2] = {columns, c->hidden};
  add(&f, X, c->x, c->rank, c->shape, c->x_layout);
  add(&f, Y, c->y, c->rank, c->shape, c->y_layout);
  if (c->mask)
    add(&f, MASK, c->mask, c->rank - 1, c->shape, c->y_layout == LAYOUT_DENSE ? LAYOUT_STEP2 : LAYOUT_OFFSET);
  if (c->residual) add(&f, RESIDUAL, c->residual, c->rank, c->shape, c->y_layout);
  if (!c->without_norm) {
    add(&f, NORM_WEIGHT, c->weights, 1, &columns, LAYOUT_STEP2);
    add(&f, NORM_BIAS, c->weights, 1, &columns, LAYOUT_OFFSET);
  }
  add(&f, UP, c->weights, 2, up, c->weight_layout);
  add(&f, DOWN, c->weights, 2, down, c->weight_layout);
  if (!c->without_bias) add(&f, UP_BIAS, c->weights, 1, &c->hidden, LAYOUT_OFFSET);
  if (!c->without_bias) add(&f, DOWN_BIAS, c->weights, 1, &columns, LAYOUT_STEP2);
  if (c->activation == OC_ACTIVATION_RELU) return f;
  add(&f, GATE, c->weights, 2, up, c->weight_layout);
  if (!c->without_bias) add(&f, GATE_BIAS, c->weights, 1, &c->hidden, LAYOUT_DENSE);
  return f;
}

static void release(fixture *f) {
  for (int i = 0; i < OPERANDS; i++) tensor_free(&f->t[i]);
}

static void fill(fixture *f, int i, double mean, double width) {
  for (int64_t k = 0; k < oc_view_count(&f->t[i].view) && f->t[i].storage; k++)
    view_put(&f->t[i].view, k, mean + width * random_normal());
}

static void fill_random(fixture *f) {
  const double columns = (double)f->call.up.weight.shape[1], hidden = (double)f->call.up.weight.shape[0];
  fill(f, X, 0.3, 2.0);
  fill(f, RESIDUAL, 0.0, 1.0);
  fill(f, NORM_WEIGHT, 1.0, 0.3);
  fill(f, NORM_BIAS, 0.0, 0.3);
  fill(f, UP, 0.0, 1.0 / sqrt(columns + 1.0));
  fill(f, GATE, 0.0, 1.0 / sqrt(columns + 1.0));
  fill(f, DOWN, 0.0, 1.0 / sqrt(hidden + 1.0));
  fill(f, UP_BIAS, 0.0, 0.5);
  fill(f, GATE_BIAS, 0.0, 0.5);
  fill(f, DOWN_BIAS, 0.0, 0.5);
  for (int64_t k = 0; f->t[MASK].storage && k < oc_view_count(&f->t[MASK].view); k++)
    view_put(&f->t[MASK].view, k, k % 5 == 3 ? 0.0 : 1.0);
}

/* ---- order-free data --------------------------------------------------------------------------------------------- */

/* About `wanted` of a row's values are +-1 or +-2, the rest 0. */
static void fill_sparse(fixture *f, int i, double wanted) {
  const oc_view *v = &f->t[i].view;
  if (!f->t[i].storage) return;
  for (int64_t k = 0; k < oc_view_count(v); k++) {
    const double value = (double)(1 + random_below(2)) * (random_below(2) ? 1.0 : -1.0);
    view_put(v, k, random_unit() * (double)v->shape[1] < wanted ? value : 0.0);
  }
}

static void fill_integers(fixture *f, int i, int reach) {
  for (int64_t k = 0; f->t[i].storage && k < oc_view_count(&f->t[i].view); k++)
    view_put(&f->t[i].view, k, (double)(random_below(2 * reach + 1) - reach));
}

/* Balanced rows of +-1 (one 0 where the length is odd), shuffled; eps makes the scale exactly 1/2. */
static void fill_balanced(fixture *f) {
  const oc_view *x = &f->t[X].view;
  const int64_t n = x->shape[x->rank - 1], rows = oc_view_count(x) / n;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < n; c++) view_put(x, r * n + c, n % 2 == 1 && c == n - 1 ? 0.0 : c % 2 == 0 ? 1.0 : -1.0);
    for (int64_t c = n - 1; c > 0; c--) {
      const int64_t other = random_below(c + 1);
      const double a = view_get(x, r * n + c), b = view_get(x, r * n + other);
      view_put(x, r * n + c, b);
      view_put(x, r * n + other, a);
    }
  }
  f->call.norm.eps = 4.0f - (float)(n - n % 2) / (float)n;
}

/* Every partial sum is exact and every gate is exactly open or shut (|gate| > 90), so all members must agree bit for
 * bit. */
static void fill_order_free(fixture *f) {
  fill_balanced(f);
  fill_integers(f, RESIDUAL, 9);
  for (int64_t k = 0; f->t[NORM_WEIGHT].storage && k < f->t[NORM_WEIGHT].view.shape[0]; k++)
    view_put(&f->t[NORM_WEIGHT].view, k, ldexp(k % 3 == 1 ? -1.0 : 1.0, (int)(k % 2)));
  fill_integers(f, NORM_BIAS, 1);
  fill_sparse(f, UP, 4.0);
  fill_sparse(f, GATE, 3.0);
  fill_sparse(f, DOWN, 12.0);
  fill_integers(f, UP_BIAS, 3);
  fill_integers(f, DOWN_BIAS, 9);
  for (int64_t k = 0; f->t[GATE_BIAS].storage && k < f->t[GATE_BIAS].view.shape[0]; k++)
    view_put(&f->t[GATE_BIAS].view, k, random_below(3) ? 160.0 : -160.0);
  for (int64_t k = 0; f->t[MASK].storage && k < oc_view_count(&f->t[MASK].view); k++)
    view_put(&f->t[MASK].view, k, (double)random_below(2));
}

static void run_reference(const oc_transition *call) {
  oc_err err = {0};
  if (member_run(reference_of(OC_FAMILY_TRANSITION), call, 1, &err) != OC_OK) fail_msg("reference: %s", err.detail);
}

static void run_member(const oc_member *member, const oc_transition *call, int threads) {
  oc_err err = {0};
  if (member_run(member, call, threads, &err) != OC_OK) fail_msg("%s: %s", member->name, err.detail);
}

static int compare_with_reference(fixture *f, const char *what) {
  tensor want = tensor_make(f->call.y.dtype, f->call.y.rank, f->call.y.shape, LAYOUT_DENSE);
  oc_transition reference = f->call;
  reference.y = want.view;
  run_reference(&reference);
  for (int m = 0; m < member_count; m++) {
    char label[96];
    snprintf(label, sizeof label, "%s, %s", members[m]->name, what);
    tensor_poison(&f->t[Y]);
    run_member(members[m], &f->call, 1 + m % 2);
    assert_same_bits(&f->call.y, &want.view, label);
    assert_only_elements_written(&f->t[Y]);
  }
  tensor_free(&want);
  return member_count;
}

static void test_order_free(void **state) {
  (void)state;
  static const int64_t columns[] = {1, 2, 15, 16, 17, 33, 64, 65, 100, 101, 127, 128, 129, 130, 257};
  static const int64_t hiddens[] = {1, 6, 11, 12, 13, 17, 64, 65, 239, 240, 241, 257};
  static const int64_t row_counts[] = {1, 7, 15, 16, 17, 31, 32, 33, 65, 100, 101, 127, 128, 129, 130};
  int executed = 0;
  random_state = 21;
  for (int c = 0; c < COUNT(columns); c++)
    for (int h = 0; h < COUNT(hiddens); h++) {
      const int k = c * COUNT(hiddens) + h;
      const shape_case sc = {.rank = 2,
                             .shape = {row_counts[(k * 7) % COUNT(row_counts)], columns[c]},
                             .hidden = hiddens[h],
                             .activation = (oc_activation)(k % 3),
                             .x = stored[k % 3],
                             .y = stored[k / 3 % 3],
                             .residual = k % 4 == 0 ? OC_DTYPE_NONE : stored[k / 2 % 3],
                             .mask = k % 5 == 0 ? OC_DTYPE_NONE : mask_dtypes[k % COUNT(mask_dtypes)],
                             .weights = k % 4 == 3    ? OC_BF16
                                        : k % 11 == 5 ? OC_F16
                                                      : OC_F32,
                             .x_layout = (layout_kind)(k / 2 % LAYOUT_INPUT_COUNT),
                             .y_layout = (layout_kind)(k / 3 % LAYOUT_COUNT),
                             .weight_layout = (layout_kind)(k / 4 % LAYOUT_INPUT_COUNT),
                             .without_norm = k % 7 == 0};
      fixture f = make(&sc);
      fill_order_free(&f);
      char what[96];
      snprintf(what, sizeof what, "rows %lld C=%lld Hid=%lld case %d", (long long)sc.shape[0], (long long)columns[c],
               (long long)hiddens[h], k);
      executed += compare_with_reference(&f, what);
      release(&f);
    }
  assert_int_equal(executed, COUNT(columns) * COUNT(hiddens) * member_count);
}

/* Ranks 3 to 5, pair-like views, absent biases, hidden layers of several slices. */
static void test_ranks(void **state) {
  (void)state;
  static const shape_case cases[] = {
      {3,
       {17, 19, 32},
       128,
       OC_ACTIVATION_RELU,
       OC_F32,
       OC_F32,
       OC_F32,
       OC_F32,
       OC_F32,
       LAYOUT_SWAPPED,
       LAYOUT_SWAPPED,
       LAYOUT_DENSE,
       0,
       0},
      {3,
       {17, 19, 32},
       128,
       OC_ACTIVATION_RELU,
       OC_F32,
       OC_F32,
       OC_F32,
       OC_BOOL,
       OC_F32,
       LAYOUT_COLUMNS,
       LAYOUT_DENSE,
       LAYOUT_DENSE,
       1,
       0},
      {4,
       {1, 16, 17, 24},
       96,
       OC_ACTIVATION_SIGMOID_GLU,
       OC_F32,
       OC_BF16,
       OC_F32,
       OC_F32,
       OC_BF16,
       LAYOUT_DENSE,
       LAYOUT_COLUMNS,
       LAYOUT_PADDED,
       0,
       0},
      {4,
       {2, 9, 17, 24},
       300,
       OC_ACTIVATION_RELU,
       OC_BF16,
       OC_BF16,
       OC_BF16,
       OC_DTYPE_NONE,
       OC_F32,
       LAYOUT_SWAPPED,
       LAYOUT_DENSE,
       LAYOUT_COLUMNS,
       0,
       1},
      {5,
       {2, 1, 3, 41, 20},
       500,
       OC_ACTIVATION_SWIGLU,
       OC_F32,
       OC_F32,
       OC_DTYPE_NONE,
       OC_U8,
       OC_F32,
       LAYOUT_NEGATIVE,
       LAYOUT_STEP2,
       LAYOUT_OFFSET,
       0,
       0},
      {3,
       {3, 300, 40},
       80,
       OC_ACTIVATION_RELU,
       OC_F32,
       OC_F32,
       OC_F32,
       OC_F32,
       OC_F32,
       LAYOUT_BROADCAST,
       LAYOUT_DENSE,
       LAYOUT_DENSE,
       0,
       0},
      {2,
       {60, 1040},
       700,
       OC_ACTIVATION_RELU,
       OC_F32,
       OC_F32,
       OC_F32,
       OC_F32,
       OC_F32,
       LAYOUT_DENSE,
       LAYOUT_DENSE,
       LAYOUT_DENSE,
       0,
       0},
  };
  int executed = 0;
  random_state = 22;
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

/* A packed weight [2 Hid, C]: gate first, or the two interleaved; both are views of one tensor. */
static void test_packed_weights(void **state) {
  (void)state;
  int executed = 0;
  random_state = 23;
  for (int interleaved = 0; interleaved < 2; interleaved++) {
    const shape_case sc = {2,      {45, 40}, 77,           OC_ACTIVATION_SWIGLU, OC_F32,       OC_F32, OC_F32,
                           OC_F32, OC_F32,   LAYOUT_DENSE, LAYOUT_DENSE,         LAYOUT_DENSE, 0,      0};
    fixture f = make(&sc);
    fill_order_free(&f);
    const int64_t both[2] = {2 * sc.hidden, 40};
    tensor packed = tensor_make(OC_F32, 2, both, LAYOUT_DENSE);
    oc_view gate = packed.view, up = packed.view;
    gate.shape[0] = up.shape[0] = sc.hidden;
    if (interleaved) gate.stride[0] = up.stride[0] = 80;
    up.data = (float *)up.data + (interleaved ? 40 : sc.hidden * 40);
    for (int64_t i = 0; i < sc.hidden * 40; i++) {
      view_put(&gate, i, view_get(&f.call.gate.weight, i));
      view_put(&up, i, view_get(&f.call.up.weight, i));
    }
    tensor want = tensor_make(OC_F32, 2, sc.shape, LAYOUT_DENSE);
    oc_transition reference = f.call;
    reference.y = want.view;
    run_reference(&reference);
    f.call.gate.weight = gate;
    f.call.up.weight = up;
    for (int m = 0; m < member_count; m++, executed++) {
      run_member(members[m], &f.call, 2);
      assert_same_bits(&f.call.y, &want.view, members[m]->name);
    }
    tensor_free(&want);
    tensor_free(&packed);
    release(&f);
  }
  assert_int_equal(executed, 2 * member_count);
}

/* ---- invariance -------------------------------------------------------------------------------------------------- */

static void test_threads_and_rerun(void **state) {
  (void)state;
  static const int threads[] = {1, 2, 3, 7, 0};
  int executed = 0;
  random_state = 24;
  for (int a = 0; a < 3; a++) {
    const shape_case sc = {3,
                           {19, 23, 65},
                           250,
                           (oc_activation)a,
                           OC_F32,
                           OC_F32,
                           OC_F32,
                           OC_F32,
                           a == 1 ? OC_BF16 : OC_F32,
                           LAYOUT_DENSE,
                           LAYOUT_DENSE,
                           LAYOUT_DENSE,
                           0,
                           0};
    fixture f = make(&sc);
    fill_random(&f);
    for (int m = 0; m < member_count; m++) {
      run_member(members[m], &f.call, 1);
      for (int t = 0; t < COUNT(threads); t++, executed++) {
        tensor again = tensor_make(OC_F32, 3, sc.shape, (layout_kind)t);
        oc_transition call = f.call;
        call.y = again.view;
        run_member(members[m], &call, threads[t]);
        assert_same_bits(&again.view, &f.call.y, members[m]->name);
        tensor_free(&again);
      }
    }
    release(&f);
  }
  assert_int_equal(executed, 3 * 5 * member_count);
}

static void move_rows(oc_view *view, int64_t first, int64_t count) {
  view->data = (char *)view->data + first * view->stride[0] * (int64_t)oc_dtype_bytes(view->dtype);
  view->shape[0] = count;
}

static oc_transition rows_of(const oc_transition *call, const oc_view *y, int64_t first, int64_t count) {
  oc_transition part = *call;
  part.y = *y;
  move_rows(&part.x, first, count);
  move_rows(&part.y, first, count);
  move_rows(&part.mask, first, count);
  move_rows(&part.residual, first, count);
  return part;
}

static void test_chunks(void **state) {
  (void)state;
  static const int64_t cuts[] = {1, 31, 32, 33, 128, 150};
  int executed = 0;
  random_state = 25;
  for (int a = 0; a < 3; a++) {
    const shape_case sc = {2,      {170, 100}, 259,          (oc_activation)a, OC_F32,       OC_F32, OC_F32,
                           OC_F32, OC_F32,     LAYOUT_DENSE, LAYOUT_DENSE,     LAYOUT_DENSE, 0,      0};
    fixture f = make(&sc);
    fill_random(&f);
    for (int m = 0; m < member_count; m++) {
      run_member(members[m], &f.call, 2);
      for (int k = 0; k < COUNT(cuts); k++, executed++) {
        tensor parts = tensor_make(OC_F32, 2, sc.shape, LAYOUT_DENSE);
        oc_transition low = rows_of(&f.call, &parts.view, 0, cuts[k]);
        oc_transition high = rows_of(&f.call, &parts.view, cuts[k], sc.shape[0] - cuts[k]);
        run_member(members[m], &low, 1);
        run_member(members[m], &high, 2);
        assert_same_bits(&parts.view, &f.call.y, members[m]->name);
        tensor_free(&parts);
      }
    }
    release(&f);
  }
  assert_int_equal(executed, 3 * COUNT(cuts) * member_count);
}

/* y is x, y is the residual, and all three are one. */
static void test_in_place(void **state) {
  (void)state;
  int executed = 0;
  random_state = 26;
  for (int form = 0; form < 3; form++) {
    const shape_case sc = {2,      {140, 33}, 90,           OC_ACTIVATION_RELU, OC_F32,       OC_F32, OC_F32,
                           OC_F32, OC_F32,    LAYOUT_DENSE, LAYOUT_DENSE,       LAYOUT_DENSE, 0,      0};
    fixture f = make(&sc);
    fill_random(&f);
    if (form == 2) f.call.residual = f.call.x;
    const oc_member *all[5] = {reference_of(OC_FAMILY_TRANSITION), members[0], members[1], members[2], members[3]};
    for (int m = 0; m <= member_count; m++, executed++) {
      run_member(all[m], &f.call, 2);
      tensor both = tensor_make(OC_F32, 2, sc.shape, LAYOUT_DENSE);
      const oc_view *from = form == 1 ? &f.call.residual : &f.call.x;
      for (int64_t i = 0; i < oc_view_count(from); i++) view_put(&both.view, i, view_get(from, i));
      oc_transition call = f.call;
      call.y = both.view;
      if (form != 1) call.x = both.view;
      if (form != 0) call.residual = both.view;
      const oc_choice choice = {.member = all[m]};
      const size_t bytes = oc_member_workspace(all[m], &call, 2);
      const oc_exec exec = {.workspace = malloc(bytes), .workspace_bytes = bytes, .threads = 2};
      assert_int_equal(oc_transition_serve(&call, &choice, &exec, NULL), OC_OK);
      assert_same_bits(&both.view, &f.call.y, all[m]->name);
      free(exec.workspace);
      tensor_free(&both);
    }
    release(&f);
  }
  assert_int_equal(executed, 3 * (member_count + 1));
}

static void test_nan_stays_in_its_row(void **state) {
  (void)state;
  int executed = 0;
  random_state = 27;
  for (int a = 0; a < 3; a++) {
    const shape_case sc = {2,      {70, 33},     50,           (oc_activation)a, OC_F32, OC_F32, OC_F32, OC_DTYPE_NONE,
                           OC_F32, LAYOUT_DENSE, LAYOUT_DENSE, LAYOUT_DENSE,     0,      0};
    fixture f = make(&sc);
    fill_random(&f);
    for (int m = 0; m < member_count; m++, executed++) {
      run_member(members[m], &f.call, 1);
      tensor clean = tensor_f64(&f.call.y);
      const double kept = view_get(&f.call.x, 40 * 33 + 5);
      view_put(&f.call.x, 40 * 33 + 5, NAN);
      run_member(members[m], &f.call, 1);
      for (int64_t i = 0; i < oc_view_count(&f.call.y); i++) {
        if (i / 33 == 40)
          assert_true(isnan(view_get(&f.call.y, i)));
        else
          assert_true(view_get(&f.call.y, i) == view_get(&clean.view, i));
      }
      view_put(&f.call.x, 40 * 33 + 5, kept);
      tensor_free(&clean);
    }
    release(&f);
  }
  assert_int_equal(executed, 3 * member_count);
}

/* ---- bound ------------------------------------------------------------------------------------------------------- */

enum { KINDS = 6 };

static void fill_kind(fixture *f, int kind) {
  fill_random(f);
  switch (kind) {
  case 1:
    fill(f, X, 2000.0, 1.0);
    break;
  case 2: /* huge biases: the products must not be added to them one by one */
    fill(f, UP_BIAS, 0.0, 1e4);
    fill(f, DOWN_BIAS, 0.0, 1e4);
    break;
  case 3:
    fill(f, GATE_BIAS, 0.0, 60.0);
    break; /* gates from shut to open */
  case 4:
    fill(f, X, 0.0, 1e12);
    break;
  case 5:
    fill(f, RESIDUAL, 0.0, 1e4);
    break;
  default:
    break;
  }
}

static tensor truth_of(const fixture *f) {
  fixture wide = {.call = f->call};
  for (int i = 0; i < OPERANDS; i++) {
    if (!f->t[i].storage || i == MASK) continue;
    wide.t[i] = tensor_f64(&f->t[i].view);
    *operand(&wide.call, i) = wide.t[i].view;
  }
  run_reference(&wide.call);
  tensor y = wide.t[Y];
  memset(&wide.t[Y], 0, sizeof wide.t[Y]);
  release(&wide);
  return y;
}

static void test_bound(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{15, 128, 512}, {33, 65, 200}, {3, 384, 1536}, {130, 17, 64}};
  int executed = 0;
  random_state = 28;
  for (int kind = 0; kind < KINDS; kind++)
    for (int s = 0; s < COUNT(shapes); s++)
      for (int a = 0; a < 3; a++)
        for (int d = 0; d < 2; d++) {
          const shape_case sc = {2,
                                 {shapes[s][0], shapes[s][1]},
                                 shapes[s][2],
                                 (oc_activation)a,
                                 stored[d],
                                 stored[d],
                                 s % 2 ? OC_DTYPE_NONE : stored[d],
                                 OC_F32,
                                 stored[d],
                                 LAYOUT_DENSE,
                                 LAYOUT_DENSE,
                                 LAYOUT_DENSE,
                                 0,
                                 0};
          fixture f = make(&sc);
          fill_kind(&f, kind);
          tensor truth = truth_of(&f);
          run_reference(&f.call);
          const error_sum reference = error_against(&f.call.y, &truth.view);
          for (int m = 0; m < member_count; m++, executed++) {
            char what[80];
            snprintf(what, sizeof what, "%s kind %d shape %d activation %d dtype %d", members[m]->name, kind, s, a, d);
            tensor_poison(&f.t[Y]);
            run_member(members[m], &f.call, 2);
            assert_bound(error_against(&f.call.y, &truth.view), reference, stored[d], what);
          }
          tensor_free(&truth);
          release(&f);
        }
  assert_int_equal(executed, KINDS * COUNT(shapes) * 3 * 2 * member_count);
}

/* ---- edges ------------------------------------------------------------------------------------------------------- */

static char serve_workspace[1 << 20];

static oc_status serve(const oc_transition *call, const oc_member *member, size_t workspace_bytes, oc_err *err) {
  const oc_choice choice = {.member = member};
  const oc_exec exec = {.workspace = serve_workspace, .workspace_bytes = workspace_bytes, .threads = 1};
  return oc_transition_serve(call, &choice, &exec, err);
}

/* No rows, no columns: nothing is written. No hidden layer: the down bias, mask and residual remain. */
static void test_empty(void **state) {
  (void)state;
  static const int64_t shapes[][4] = {{0, 5, 16, 8}, {5, 0, 16, 8}, {5, 3, 0, 8}, {5, 0, 0, 0}};
  const oc_member *all[5] = {reference_of(OC_FAMILY_TRANSITION), members[0], members[1], members[2], members[3]};
  int executed = 0;
  random_state = 29;
  for (int s = 0; s < COUNT(shapes); s++)
    for (int m = 0; m <= member_count; m++, executed++) {
      shape_case sc = {3,
                       {shapes[s][0], shapes[s][1], shapes[s][2]},
                       shapes[s][3],
                       OC_ACTIVATION_SWIGLU,
                       OC_F32,
                       OC_F32,
                       OC_F32,
                       OC_F32,
                       OC_F32,
                       LAYOUT_DENSE,
                       LAYOUT_DENSE,
                       LAYOUT_DENSE,
                       0,
                       0};
      fixture f = make(&sc);
      oc_err err = {0};
      assert_int_equal(serve(&f.call, all[m], sizeof serve_workspace, &err), OC_OK);
      assert_untouched(&f.t[Y]);
      release(&f);
    }
  const shape_case sc = {2,      {35, 20}, 0,      OC_ACTIVATION_RELU, OC_F32,       OC_F32,
                         OC_F32, OC_F32,   OC_F32, LAYOUT_DENSE,       LAYOUT_DENSE, LAYOUT_DENSE,
                         0,      0};
  fixture f = make(&sc);
  fill_random(&f);
  executed += compare_with_reference(&f, "Hid=0");
  assert_true(view_get(&f.call.y, 1) ==
              (double)((float)view_get(&f.call.down.bias, 1) + (float)view_get(&f.call.residual, 1)));
  release(&f);
  assert_int_equal(executed, 4 * (member_count + 1) + member_count);
}

/* Rows, columns and weight rows that lie more than 2^31 elements apart: addresses are reserved, a few pages touched. */
static void test_64_bit_offsets(void **state) {
  (void)state;
  static const int far_operands[][3] = {{X, Y, RESIDUAL}, {UP, DOWN, UP}, {MASK, Y, MASK}};
  const int64_t far_apart = ((int64_t)1 << 31) + 77;
  const size_t bytes = (size_t)(far_apart + 4096) * sizeof(float);
  const shape_case sc = {2,      {2, 2}, 2,      OC_ACTIVATION_RELU, OC_F32,       OC_F32,
                         OC_F32, OC_F32, OC_F32, LAYOUT_DENSE,       LAYOUT_DENSE, LAYOUT_DENSE,
                         0,      0};
  random_state = 30;
  for (int axis = 0; axis < 2; axis++)
    for (int set = 0; set < COUNT(far_operands); set++)
      for (int m = 0; m < member_count; m++) {
        fixture f = make(&sc);
        fill_random(&f);
        run_member(members[m], &f.call, 1);
        oc_transition call = f.call;
        void *memory[3] = {NULL};
        for (int i = 0; i < 3; i++) {
          oc_view *view = operand(&call, far_operands[set][i]);
          const oc_view *near_view = &f.t[far_operands[set][i]].view;
          memory[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
          if (memory[i] == MAP_FAILED) skip();
          view->data = memory[i];
          view->stride[0] = view->rank == 1 || axis == 0 ? far_apart : 1;
          if (view->rank > 1) view->stride[1] = axis == 0 ? 1 : far_apart;
          for (int64_t k = 0; k < oc_view_count(view); k++) view_put(view, k, view_get(near_view, k));
        }
        run_member(members[m], &call, 1);
        assert_same_bits(&call.y, &f.call.y, members[m]->name);
        for (int i = 0; i < 3; i++) munmap(memory[i], bytes);
        release(&f);
      }
}

/* ---- refusals and wrong calls ------------------------------------------------------------------------------------ */

static void expect(const oc_transition *call, const oc_member *member, oc_status status, oc_reason reason,
                   const char *detail) {
  oc_err err = {0};
  assert_int_equal(serve(call, member, sizeof serve_workspace, &err), status);
  assert_int_equal(err.reason, reason);
  if (!strstr(err.detail, detail)) fail_msg("detail is \"%s\", wanted \"%s\" in it", err.detail, detail);
}

static const shape_case small = {2,      {6, 20}, 40,           OC_ACTIVATION_SWIGLU, OC_F32,       OC_F32, OC_F32,
                                 OC_F32, OC_F32,  LAYOUT_DENSE, LAYOUT_DENSE,         LAYOUT_DENSE, 0,      0};
static const char *const names[OPERANDS] = {"x",           "y",         "mask",        "residual",
                                            "norm.weight", "norm.bias", "up.weight",   "up.bias",
                                            "gate.weight", "gate.bias", "down.weight", "down.bias"};

static void test_refusals(void **state) {
  (void)state;
  int executed = 0;
  random_state = 31;
  fixture f = make(&small);
  fill_random(&f);
  for (int m = 0; m < member_count; m++) {
    for (int i = 0; i < OPERANDS; i++) {
      if (i == MASK) continue;
      char detail[32];
      oc_transition call = f.call;
      tensor wide = tensor_f64(&f.t[i].view);
      *operand(&call, i) = wide.view;
      snprintf(detail, sizeof detail, "%s=f64", names[i]);
      expect(&call, members[m], OC_REFUSED, OC_REASON_DTYPE, detail);
      call = f.call;
      operand(&call, i)->dtype = OC_I32;
      snprintf(detail, sizeof detail, "%s=i32", names[i]);
      expect(&call, members[m], OC_REFUSED, OC_REASON_DTYPE, detail);
      tensor_free(&wide);
      executed++;
    }
    oc_transition call = f.call;
    call.norm.round = OC_I64;
    expect(&call, members[m], OC_REFUSED, OC_REASON_DIALECT, "norm.round=i64");
    call = f.call;
    call.y.stride[0] = 19;
    expect(&call, members[m], OC_REFUSED, OC_REASON_LAYOUT, "y:");
    assert_untouched(&f.t[Y]);
  }
  release(&f);
  assert_int_equal(executed, (OPERANDS - 1) * member_count);
}

static void test_bad_arguments(void **state) {
  (void)state;
  random_state = 32;
  fixture f = make(&small);
  fill_random(&f);
  const oc_member *member = members[0];
  for (int i = 1; i < OPERANDS; i++) { /* x is what the others are measured by */
    oc_transition call = f.call;
    oc_view *view = operand(&call, i);
    view->shape[view->rank - 1] += 1;
    expect(&call, member, OC_BAD_ARG, OC_REASON_NONE, i == UP ? "up.weight" : i == DOWN ? "down.weight" : names[i]);
    call = f.call;
    view->data = NULL;
    expect(&call, member, OC_BAD_ARG, OC_REASON_NONE, names[i]);
  }
  static const int inputs[] = {X,       MASK, RESIDUAL,  NORM_WEIGHT, NORM_BIAS, UP,
                               UP_BIAS, GATE, GATE_BIAS, DOWN,        DOWN_BIAS};
  for (int i = 0; i < COUNT(inputs); i++) { /* every input inside y */
    oc_transition call = f.call;
    char detail[32];
    tensor large = tensor_make(OC_F32, 1, (const int64_t[]){2000}, LAYOUT_DENSE);
    call.y.data = large.view.data;
    operand(&call, inputs[i])->data = (float *)large.view.data + 1;
    snprintf(detail, sizeof detail, "overlaps %s", names[inputs[i]]);
    expect(&call, member, OC_BAD_ARG, OC_REASON_NONE, detail);
    assert_untouched(&large);
    tensor_free(&large);
  }
  oc_transition call = f.call;
  call.x.rank = 1;
  expect(&call, member, OC_BAD_ARG, OC_REASON_NONE, "x: rank 1");
  call = f.call;
  call.activation = (oc_activation)3;
  expect(&call, member, OC_BAD_ARG, OC_REASON_NONE, "activation: 3");
  call = f.call;
  call.activation = OC_ACTIVATION_RELU;
  expect(&call, member, OC_BAD_ARG, OC_REASON_NONE, "gate: present");
  call = f.call;
  memset(&call.gate.weight, 0, sizeof call.gate.weight);
  expect(&call, member, OC_BAD_ARG, OC_REASON_NONE, "gate.weight");
  call = f.call;
  call.norm.eps = INFINITY;
  expect(&call, member, OC_BAD_ARG, OC_REASON_NONE, "norm.eps");
  call = f.call;
  call.y.stride[0] = 0;
  expect(&call, member, OC_BAD_ARG, OC_REASON_NONE, "stride[0] is 0");
  const oc_member *all[5] = {reference_of(OC_FAMILY_TRANSITION), members[0], members[1], members[2], members[3]};
  for (int m = 0; m <= member_count; m++) {
    oc_err err = {0};
    assert_int_equal(serve(&f.call, all[m], oc_member_workspace(all[m], &f.call, 1) - 1, &err), OC_BAD_ARG);
    assert_non_null(strstr(err.detail, "workspace"));
  }
  expect(NULL, member, OC_BAD_ARG, OC_REASON_NONE, "call is NULL");
  expect(&f.call, NULL, OC_BAD_ARG, OC_REASON_NONE, "no member");
  const oc_member other = {.row = "cpu", .name = "other", .family = OC_FAMILY_LN};
  expect(&f.call, &other, OC_BAD_ARG, OC_REASON_NONE, "member other");
  const oc_choice choice = {.member = member};
  assert_int_equal(oc_transition_serve(&f.call, &choice, NULL, NULL), OC_BAD_ARG);
  assert_int_equal(oc_transition_class(&f.call, OC_TIER_FAST, NULL, NULL), OC_BAD_ARG);
  assert_untouched(&f.t[Y]);
  release(&f);
}

static void test_class(void **state) {
  (void)state;
  static const struct {
    oc_activation activation;
    oc_dtype residual, mask;
    int without_bias;
    const char *form;
  } cases[] = {
      {OC_ACTIVATION_SWIGLU, OC_F32, OC_F32, 0, "biased+mask+residual+swiglu"},
      {OC_ACTIVATION_SIGMOID_GLU, OC_F32, OC_DTYPE_NONE, 1, "residual+sigmoid_glu"},
      {OC_ACTIVATION_RELU, OC_F32, OC_DTYPE_NONE, 0, "biased+relu+residual"},
      {OC_ACTIVATION_RELU, OC_F32, OC_BOOL, 0, "biased+mask+relu+residual"},
      {OC_ACTIVATION_SWIGLU, OC_DTYPE_NONE, OC_DTYPE_NONE, 1, "swiglu"},
      {OC_ACTIVATION_RELU, OC_DTYPE_NONE, OC_U8, 1, "mask+relu"},
  };
  for (int i = 0; i < COUNT(cases); i++) {
    const shape_case sc = {3,
                           {3, 5, 20},
                           48,
                           cases[i].activation,
                           OC_BF16,
                           OC_F32,
                           cases[i].residual,
                           cases[i].mask,
                           OC_F32,
                           LAYOUT_DENSE,
                           LAYOUT_DENSE,
                           LAYOUT_DENSE,
                           cases[i].without_bias,
                           0};
    fixture f = make(&sc);
    oc_class cls;
    assert_int_equal(oc_transition_class(&f.call, OC_TIER_FAST, &cls, NULL), OC_OK);
    assert_string_equal(cls.form, cases[i].form);
    assert_int_equal(cls.family, OC_FAMILY_TRANSITION);
    assert_int_equal(cls.tier, OC_TIER_FAST);
    assert_int_equal(cls.dtype, OC_BF16);
    assert_memory_equal(cls.device, "cpu-", 4);
    const int64_t want[OC_DIM_COUNT] = {[OC_DIM_N] = 15, [OC_DIM_C] = 20, [OC_DIM_D] = 48};
    assert_memory_equal(cls.dim, want, sizeof want);
    release(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order_free),
      cmocka_unit_test(test_ranks),
      cmocka_unit_test(test_packed_weights),
      cmocka_unit_test(test_threads_and_rerun),
      cmocka_unit_test(test_chunks),
      cmocka_unit_test(test_in_place),
      cmocka_unit_test(test_nan_stays_in_its_row),
      cmocka_unit_test(test_bound),
      cmocka_unit_test(test_empty),
      cmocka_unit_test(test_64_bit_offsets),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_bad_arguments),
      cmocka_unit_test(test_class),
  };
  member_count = members_here(OC_FAMILY_TRANSITION, "cpu", members);
  if (member_count == 0) return 1;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
