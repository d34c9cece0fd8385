/* SPDX-License-Identifier: Apache-2.0 */
/* The ladder for apb: guards, order-free bits, rerun, threads, chunks, bound, masks, refusals. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <sys/mman.h>

#include "apb/apb.h"
#include "attention_case.h"

static const oc_member *members[8], *reference;
static int member_count;

static int setup(void **state) {
  (void)state;
  member_count = members_here(OC_FAMILY_APB, members, &reference);
  return 0;
}

static oc_status serve(const void *call, const oc_choice *choice, const oc_exec *exec, oc_err *err) {
  return oc_apb_serve(call, choice, exec, err);
}

static void must(oc_status status, const oc_err *err) {
  if (status != OC_OK) fail_msg("%s: %s", oc_status_word(status), err->detail);
}

/* How the bias lies: [B, H, q, k] by layout; one bias for the whole batch; and the [i, j, h] order of a pair tensor. */
typedef enum bias_form { NO_BIAS, OWN_BIAS, SHARED_BIAS, SHARED_IJH_BIAS, OWN_IJH_BIAS, BIAS_FORMS } bias_form;

typedef struct spec {
  int64_t b, nq, nk, h, d;
  oc_dtype dtype, bias_dtype, mask_dtype, out_dtype;
  oc_mask_kind mask;
  float mask_value;
  bias_form bias;
  int has_gate, bias_first;
  layout how;
  double bias_size;
} spec;

typedef struct data {
  tensor q, k, v, bias, mask, gate, out;
  oc_apb call;
} data;

static void data_free(data *x) {
  tensor *const all[] = {&x->q, &x->k, &x->v, &x->bias, &x->mask, &x->gate, &x->out};
  for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) tensor_free(all[n]);
}

/* The family's view [B, H, Nq, Nk] of a bias that is stored as its form says. */
static oc_view bias_view(const spec *s, const oc_view *stored) {
  oc_view v = *stored;
  if (s->bias == SHARED_IJH_BIAS || s->bias == OWN_IJH_BIAS) { /* stored [B, Nq, Nk, H] */
    v = oc_view_swap(v, 2, 3);
    v = oc_view_swap(v, 1, 2);
  }
  v.shape[0] = s->b;
  if (s->bias == SHARED_BIAS || s->bias == SHARED_IJH_BIAS) v.stride[0] = 0;
  return v;
}

static tensor bias_make(const spec *s, int is_order_free) {
  const int64_t batches = s->bias == SHARED_BIAS || s->bias == SHARED_IJH_BIAS ? 1 : s->b;
  const int is_ijh = s->bias == SHARED_IJH_BIAS || s->bias == OWN_IJH_BIAS;
  const int64_t bhqk[4] = {batches, s->h, s->nq, s->nk}, bqkh[4] = {batches, s->nq, s->nk, s->h};
  if (is_order_free) return filled_integers(s->bias_dtype, 4, is_ijh ? bqkh : bhqk, s->how, -3, 3, 128.0);
  return filled(s->bias_dtype, 4, is_ijh ? bqkh : bhqk, s->how, -s->bias_size, s->bias_size);
}

/* Batch 0 of the mask keeps nothing when there is another one. */
static data data_make(const spec *s, int is_order_free) {
  const int64_t qs[4] = {s->b, s->nq, s->h, s->d}, ks[4] = {s->b, s->nk, s->h, s->d}, ms[2] = {s->b, s->nk};
  data x = {0};
  if (is_order_free) { /* logits are multiples of 128: every weight is 1 or 0; values are small integers */
    x.q = filled_integers(s->dtype, 4, qs, s->how, -2, 2, 1.0);
    x.k = filled_integers(s->dtype, 4, ks, s->how, -2, 2, 1.0);
    x.v = filled_integers(s->dtype, 4, ks, s->how, -8, 8, 1.0);
    if (s->has_gate) x.gate = filled_integers(s->dtype, 4, qs, s->how, -1, 1, 200.0);
  } else {
    x.q = filled(s->dtype, 4, qs, s->how, -2.0, 2.0);
    x.k = filled(s->dtype, 4, ks, s->how, -2.0, 2.0);
    x.v = filled(s->dtype, 4, ks, s->how, -1.0, 1.0);
    if (s->has_gate) x.gate = filled(s->dtype, 4, qs, s->how, -4.0, 4.0);
  }
  if (s->mask != OC_MASK_NONE) {
    x.mask = tensor_make(s->mask_dtype, 2, ms, s->how);
    for (int64_t n = 0; n < s->b * s->nk; n++)
      set(&x.mask.view, n,
          s->mask == OC_MASK_ADD ? (is_order_free ? 128.0 : 1.0) * integer(-2, 2)
                                 : (double)((s->b == 1 || n >= s->nk) && integer(0, 3) != 0));
  }
  if (s->bias != NO_BIAS) {
    x.bias = bias_make(s, is_order_free);
    x.call.bias = bias_view(s, &x.bias.view);
  }
  x.out = tensor_make(s->out_dtype, 4, qs, s->how);
  x.call.q = x.q.view;
  x.call.k = x.k.view;
  x.call.v = x.v.view;
  x.call.gate = x.gate.view;
  x.call.mask = x.mask.view;
  x.call.out = x.out.view;
  x.call.scale = is_order_free ? 128.0f : 0.7f / sqrtf((float)s->d);
  x.call.mask_kind = s->mask;
  x.call.mask_value = s->mask_value;
  x.call.bias_first = s->bias_first;
  return x;
}

static const struct {
  oc_mask_kind kind;
  float value;
  oc_dtype dtype;
} masks[] = {
    {OC_MASK_NONE, 0.0f, OC_F32},       {OC_MASK_SUBTRACT, 1e9f, OC_F32}, {OC_MASK_SUBTRACT, 1048576.0f, OC_BOOL},
    {OC_MASK_FILL, -INFINITY, OC_BOOL}, {OC_MASK_FILL, -FLT_MAX, OC_I64}, {OC_MASK_ZERO, 0.0f, OC_U8},
    {OC_MASK_ADD, 0.0f, OC_F32}};
enum { MASKS = sizeof masks / sizeof masks[0] };

static void test_order_free(void **state) {
  static const int64_t sizes[] = {1, 15, 17, 33, 65, 100, 101, 127, 128, 129, 130, 255, 256, 257};
  static const int64_t depths[] = {1, 4, 24, 32, 48, 16, 64, 33, 8, 40, 129, 256};
  int executed = 0, cases = 0;
  (void)state;
  random_seed(1);
  for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
    for (int m = 0; m < MASKS; m++)
      for (int first = 0; first < 2; first++, cases++) {
        const spec s = {.b = sizes[n] < 130 ? 1 + cases % 3 : 1,
                        .nq = m % 2 ? sizes[n] : sizes[(n + 3) % 8],
                        .nk = sizes[n],
                        .h = 1 + cases % 4,
                        .d = sizes[n] < 102 ? depths[cases % 12] : depths[cases % 9],
                        .dtype = cases % 4 == 3    ? OC_BF16
                                 : cases % 11 == 5 ? OC_F16
                                                   : OC_F32,
                        .out_dtype = cases % 5 == 2 ? OC_BF16 : OC_F32,
                        .bias_dtype = cases % 3 == 1 ? OC_BF16 : OC_F32,
                        .mask_dtype = masks[m].dtype,
                        .mask = masks[m].kind,
                        .mask_value = masks[m].value,
                        .bias = (bias_form)((cases + cases / 7) % BIAS_FORMS),
                        .has_gate = cases % 3 != 0,
                        .bias_first = first,
                        .how = (layout)(cases / 2 % LAYOUTS)};
        oc_err err;
        data x = data_make(&s, 1);
        oc_apb r = x.call;
        tensor want = tensor_make(s.out_dtype, 4, x.q.view.shape, DENSE);
        r.out = want.view;
        must(serve_with(serve, reference, &r, 1, &err), &err);
        for (int e = 0; e < member_count; e++, executed++) {
          poison(&x.out);
          must(serve_with(serve, members[e], &x.call, 1 + e, &err), &err);
          if (bits_differ(&x.out.view, &want.view, members[e]->name))
            fail_msg("b%" PRId64 " nq%" PRId64 " nk%" PRId64 " h%" PRId64 " d%" PRId64 " mask %d bias %d layout %d",
                     s.b, s.nq, s.nk, s.h, s.d, (int)s.mask, (int)s.bias, (int)s.how);
          assert_int_equal(guards_broken(&x.out), 0);
        }
        tensor_free(&want);
        data_free(&x);
      }
  assert_int_equal(cases, 14 * MASKS * 2);
  assert_int_equal(executed, cases * member_count);
}

static void test_bound(void **state) {
  static const int64_t sizes[][3] = {{1, 1, 32},    {17, 33, 24},   {65, 127, 48},
                                     {33, 257, 24}, {100, 101, 64}, {13, 700, 16}};
  int executed = 0, cases = 0;
  (void)state;
  random_seed(2);
  for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
    for (int v = 0; v < 6; v++, cases++) {
      const spec s = {.b = 2,
                      .nq = sizes[n][0],
                      .nk = sizes[n][1],
                      .h = 3,
                      .d = sizes[n][2],
                      .dtype = v == 3 ? OC_BF16 : OC_F32,
                      .out_dtype = v == 4 ? OC_BF16 : OC_F32,
                      .bias_dtype = v == 3 ? OC_BF16 : OC_F32,
                      .bias = (bias_form)(v % BIAS_FORMS),
                      .has_gate = v % 2,
                      .mask = v == 1   ? OC_MASK_ADD
                              : v == 2 ? OC_MASK_FILL
                                       : OC_MASK_NONE,
                      .mask_value = -20.0f,
                      .mask_dtype = OC_F32,
                      .bias_first = v == 1,
                      .bias_size = v == 3 ? 1e4 : 4.0,
                      .how = (layout)(v % LAYOUTS)};
      oc_err err;
      data x = data_make(&s, 0);
      tensor q = widened(&x.q), k = widened(&x.k), y = widened(&x.v), g = widened(&x.gate), b = widened(&x.bias);
      tensor truth = tensor_make(OC_F64, 4, x.q.view.shape, DENSE),
             own_out = tensor_make(s.out_dtype, 4, x.q.view.shape, DENSE);
      oc_apb wide = x.call, r = x.call;
      wide.q = q.view;
      wide.k = k.view;
      wide.v = y.view;
      wide.gate = g.view;
      if (s.bias != NO_BIAS) wide.bias = bias_view(&s, &b.view);
      wide.out = truth.view;
      r.out = own_out.view;
      must(serve_with(serve, reference, &wide, 1, &err), &err);
      must(serve_with(serve, reference, &r, 1, &err), &err);
      const double own = error_of(&own_out.view, &truth.view), unit = 4.0 * 0x1p-24 * magnitude(&truth.view);
      /* products of bf16 round the weights, as the stock op does, whose result is bf16 too: at least that error */
      tensor rounded = tensor_make(OC_BF16, 4, x.q.view.shape, DENSE);
      r.out = rounded.view;
      must(serve_with(serve, reference, &r, 1, &err), &err);
      const double own_bf16 = error_of(&rounded.view, &truth.view);
      assert_true(isfinite(own) && magnitude(&truth.view) > 0.0);
      for (int e = 0; e < member_count; e++, executed++) {
        must(serve_with(serve, members[e], &x.call, 2, &err), &err);
        const double error = error_of(&x.out.view, &truth.view);
        const int has_pairs = s.dtype == OC_BF16 && members[e]->isa == OC_ISA_AVX512_BF16;
        /* logits of 1e4 are rounded alike in both; a tie may fall apart */
        if (!(error <= (has_pairs ? 1.5 * own_bf16 : (v == 3 ? 2.0 : 1.5) * own) + unit))
          fail_msg("%s: error %g, reference %g (nk %" PRId64 " variant %d)", members[e]->name, error, own, s.nk, v);
      }
      tensor *const all[] = {&q, &k, &y, &g, &b, &truth, &own_out, &rounded};
      for (int t = 0; t < 8; t++) tensor_free(all[t]);
      data_free(&x);
    }
  assert_int_equal(cases, 36);
  assert_int_equal(executed, cases * member_count);
}

/* Batch 0 has every key masked. With bias_first a fill replaces the bias too: the mean of v, whatever the bias is. */
static void test_fully_masked(void **state) {
  static const struct {
    oc_mask_kind kind;
    float value;
    int bias_first, expect; /* 0 zeros, 1 mean of v, 2 NaN, 3 softmax of what f32 leaves of the logits */
  } rows[] = {{OC_MASK_SUBTRACT, 1e9f, 0, 1}, {OC_MASK_SUBTRACT, 1e6f, 1, 3}, {OC_MASK_FILL, -INFINITY, 0, 2},
              {OC_MASK_FILL, -1e6f, 1, 1},    {OC_MASK_FILL, 0.0f, 0, 3},     {OC_MASK_FILL, -FLT_MAX, 0, 1},
              {OC_MASK_ZERO, 0.0f, 0, 0},     {OC_MASK_ZERO, 0.0f, 1, 0}};
  int executed = 0;
  (void)state;
  for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++)
    for (int m = 0; m < member_count; m++, executed++) {
      const spec s = {.b = 3,
                      .nq = 19,
                      .nk = 17,
                      .h = 4,
                      .d = 24,
                      .dtype = OC_F32,
                      .out_dtype = OC_F32,
                      .bias_dtype = OC_F32,
                      .bias = SHARED_BIAS,
                      .mask_dtype = OC_F32,
                      .mask = rows[n].kind,
                      .mask_value = rows[n].value,
                      .bias_first = rows[n].bias_first,
                      .bias_size = 2.0};
      const int64_t per_batch = 19 * 96;
      oc_err err;
      random_seed(3);
      data x = data_make(&s, 0);
      oc_apb r = x.call;
      tensor want = tensor_make(OC_F32, 4, x.q.view.shape, DENSE);
      r.out = want.view;
      must(serve_with(serve, members[m], &x.call, 2, &err), &err);
      must(serve_with(serve, reference, &r, 1, &err), &err);
      assert_true(error_of(&x.out.view, &want.view) <= 2e-6);
      for (int64_t e = 0; e < per_batch; e++) {
        double mean = 0.0;
        for (int64_t key = 0; key < 17; key++) mean += get(&x.v.view, key * 96 + e % 96) / 17.0;
        const double o = get(&x.out.view, e);
        if (rows[n].expect == 0) assert_true(o == 0.0);
        if (rows[n].expect == 1) assert_true(fabs(o - mean) < 1e-6);
        if (rows[n].expect == 2) assert_true(isnan(o));
        if (rows[n].expect == 3) assert_true(isfinite(o));
      }
      for (int64_t e = per_batch; e < 3 * per_batch; e++) assert_true(isfinite(get(&x.out.view, e)));
      tensor_free(&want);
      data_free(&x);
    }
  assert_int_equal(executed, 8 * member_count);
}

/* Bits do not depend on the thread count, on a rerun, on the batch around a sample, nor on how queries are cut. */
static void test_invariance(void **state) {
  static const int threads[] = {1, 2, 3, 7, 2};
  int executed = 0;
  (void)state;
  for (int form = 0; form < BIAS_FORMS; form++) {
    const spec s = {.b = 2,
                    .nq = 230,
                    .nk = 45,
                    .h = 3,
                    .d = 24,
                    .dtype = OC_F32,
                    .out_dtype = OC_F32,
                    .bias_dtype = OC_F32,
                    .bias = (bias_form)form,
                    .has_gate = 1,
                    .mask = OC_MASK_SUBTRACT,
                    .mask_value = 1e9f,
                    .mask_dtype = OC_BOOL,
                    .bias_size = 3.0};
    random_seed(4);
    data x = data_make(&s, 0);
    tensor first = tensor_make(OC_F32, 4, x.q.view.shape, DENSE);
    for (int m = 0; m < member_count; m++) {
      oc_err err;
      oc_apb one = x.call;
      one.out = first.view;
      must(serve_with(serve, members[m], &one, 1, &err), &err);
      for (int t = 0; t < 5; t++, executed++) {
        poison(&x.out);
        must(serve_with(serve, members[m], &x.call, threads[t], &err), &err);
        assert_int_equal(bits_differ(&x.out.view, &first.view, members[m]->name), 0);
      }
      oc_apb part = x.call; /* queries from 100 on of batch 1 alone */
      oc_view *const moved[] = {&part.q, &part.gate, &part.out, &part.bias, &part.k, &part.v, &part.mask};
      for (int v = 0; v < 7; v++) {
        if (!oc_view_is_present(moved[v])) continue;
        const int axis = v < 3 ? 1 : v == 3 ? 2 : -1;
        const int64_t skip = moved[v]->stride[0] + (axis < 0 ? 0 : 100 * moved[v]->stride[axis]);
        moved[v]->shape[0] = 1;
        if (axis >= 0) moved[v]->shape[axis] -= 100;
        moved[v]->data = (char *)moved[v]->data + skip * (int64_t)oc_dtype_bytes(moved[v]->dtype);
      }
      poison(&x.out);
      must(serve_with(serve, members[m], &part, 3, &err), &err);
      for (int64_t n = 0; n < 2 * 230 * 72; n++) {
        const int inside = n >= 330 * 72;
        assert_true(inside ? get(&x.out.view, n) == get(&first.view, n) : isnan(get(&x.out.view, n)));
      }
      executed++;
    }
    tensor_free(&first);
    data_free(&x);
  }
  assert_int_equal(executed, BIAS_FORMS * member_count * 6);
}

static void test_empty(void **state) {
  static const int64_t shapes[][5] = {{0, 3, 3, 2, 4}, {2, 0, 3, 2, 4}, {2, 3, 3, 0, 4}, {2, 3, 0, 2, 4}};
  int executed = 0;
  (void)state;
  for (int n = 0; n < 4; n++)
    for (int form = 0; form < BIAS_FORMS; form++)
      for (int m = -1; m < member_count; m++, executed++) {
        const int64_t *d = shapes[n];
        const spec s = {.b = d[0],
                        .nq = d[1],
                        .nk = d[2],
                        .h = d[3],
                        .d = d[4],
                        .dtype = OC_F32,
                        .out_dtype = OC_F32,
                        .bias_dtype = OC_F32,
                        .bias = (bias_form)form,
                        .has_gate = 1,
                        .mask = OC_MASK_SUBTRACT,
                        .mask_value = 1e9f,
                        .mask_dtype = OC_F32};
        oc_err err;
        data x = data_make(&s, 0);
        must(serve_with(serve, m < 0 ? reference : members[m], &x.call, 2, &err), &err);
        assert_int_equal(guards_broken(&x.out), 0);
        for (int64_t e = 0; e < oc_view_count(&x.out.view); e++) assert_true(get(&x.out.view, e) == 0.0);
        data_free(&x);
      }
  assert_int_equal(executed, 4 * BIAS_FORMS * (member_count + 1));
}

/* Offsets past 2^32 elements in sparse memory; keys and the bias columns lie far apart. */
static void test_wide_offsets(void **state) {
  const int64_t far = ((int64_t)1 << 30) + 3, keys = 5, depth = 8;
  const size_t bytes = (size_t)(far * keys) * sizeof(float);
  int executed = 0;
  (void)state;
  float *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    print_message("skipped: no sparse mapping of %zu bytes\n", bytes);
    skip();
  }
  const spec s = {.b = 1,
                  .nq = keys,
                  .nk = keys,
                  .h = 1,
                  .d = depth,
                  .dtype = OC_F32,
                  .out_dtype = OC_F32,
                  .bias_dtype = OC_F32,
                  .bias = OWN_BIAS,
                  .bias_size = 2.0};
  random_seed(5);
  data x = data_make(&s, 0);
  for (int m = -1; m < member_count; m++, executed++) {
    const oc_member *member = m < 0 ? reference : members[m];
    oc_err err;
    oc_apb wide = x.call;
    must(serve_with(serve, member, &x.call, 1, &err), &err);
    oc_view *const views[] = {&wide.k, &wide.v};
    for (int v = 0; v < 2; v++) {
      const oc_view old = *views[v];
      views[v]->data = memory + v * 16;
      views[v]->stride[1] = far;
      for (int64_t n = 0; n < keys * depth; n++) set(views[v], n, get(&old, n));
    }
    wide.bias.data = memory + 64;
    wide.bias.stride[2] = 1;
    wide.bias.stride[3] = far;
    for (int64_t n = 0; n < keys * keys; n++) set(&wide.bias, n, get(&x.call.bias, n));
    tensor out = tensor_make(OC_F32, 4, x.q.view.shape, DENSE);
    wide.out = out.view;
    must(serve_with(serve, member, &wide, 1, &err), &err);
    assert_int_equal(bits_differ(&out.view, &x.out.view, member->name), 0);
    tensor_free(&out);
  }
  data_free(&x);
  munmap(memory, bytes);
  assert_int_equal(executed, member_count + 1);
}

static void expect(const oc_member *member, const oc_apb *call, const data *x, oc_status status, oc_reason reason,
                   const char *word) {
  oc_err err;
  assert_int_equal(serve_with(serve, member, call, 1, &err), status);
  assert_int_equal(err.reason, reason);
  if (!strstr(err.detail, word)) fail_msg("detail '%s' lacks '%s'", err.detail, word);
  assert_true(is_untouched(&x->out));
}

static void test_refusals_and_bad_arguments(void **state) {
  const spec s = {.b = 2,
                  .nq = 5,
                  .nk = 6,
                  .h = 2,
                  .d = 4,
                  .dtype = OC_F32,
                  .out_dtype = OC_F32,
                  .bias_dtype = OC_F32,
                  .bias = OWN_BIAS,
                  .has_gate = 1,
                  .mask = OC_MASK_SUBTRACT,
                  .mask_value = 1e9f,
                  .mask_dtype = OC_F32};
  int executed = 0;
  (void)state;
  for (int m = 0; m < member_count; m++) {
    data x = data_make(&s, 0);
#define EXPECT(change, status, reason, word)                                                                           \
  do {                                                                                                                 \
    oc_apb call = x.call;                                                                                              \
    change;                                                                                                            \
    expect(members[m], &call, &x, status, reason, word);                                                               \
    executed++;                                                                                                        \
  } while (0)
    EXPECT(call.q.dtype = OC_I32, OC_REFUSED, OC_REASON_DTYPE, "q=i32");
    EXPECT(call.gate.dtype = OC_I32, OC_REFUSED, OC_REASON_DTYPE, "gate=i32");
    EXPECT(call.bias.dtype = OC_I32, OC_REFUSED, OC_REASON_DTYPE, "bias=i32");
    EXPECT(call.out = call.q, OC_BAD_ARG, OC_REASON_NONE, "out overlaps q");
    EXPECT(call.out.data = (char *)call.bias.data - 4, OC_BAD_ARG, OC_REASON_NONE, "out overlaps bias");
    EXPECT(call.out.stride[2] = -4, OC_BAD_ARG, OC_REASON_NONE, "stride[2] of an output is -4");
    EXPECT(call.out.stride[2] = 3, OC_REFUSED, OC_REASON_LAYOUT, "out: strides");
    EXPECT(call.out.stride[1] = call.out.stride[2], OC_REFUSED, OC_REASON_LAYOUT, "out: strides");
    EXPECT(call.out.stride[0] = 39, OC_REFUSED, OC_REASON_LAYOUT, "out: strides");
    EXPECT(call.k.shape[0] = 1, OC_BAD_ARG, OC_REASON_NONE, "k: shape[0] is 1, not 2");
    EXPECT(call.bias.shape[2] = 6, OC_BAD_ARG, OC_REASON_NONE, "bias: shape[2] is 6, not 5");
    EXPECT(call.mask.rank = 1, OC_BAD_ARG, OC_REASON_NONE, "mask: rank 1, not 2");
    EXPECT(call.out = (oc_view){0}, OC_BAD_ARG, OC_REASON_NONE, "out: absent");
    EXPECT(call.mask_kind = OC_MASK_NONE, OC_BAD_ARG, OC_REASON_NONE, "mask: present");
    EXPECT(call.mask_value = 0.0f, OC_BAD_ARG, OC_REASON_NONE, "mask_value: 0");
    data_free(&x);
    spec wide = s;
    wide.d = 257;
    x = data_make(&wide, 0);
    EXPECT((void)0, OC_REFUSED, OC_REASON_SHAPE, "d=257 is outside 1..256");
    data_free(&x);
    wide.d = 4;
    wide.dtype = OC_F64;
    x = data_make(&wide, 0);
    EXPECT((void)0, OC_REFUSED, OC_REASON_DTYPE, "q=f64");
    data_free(&x);
  }
  assert_int_equal(executed, 17 * member_count);
}

static void test_class(void **state) {
  spec s = {.b = 2,
            .nq = 5,
            .nk = 6,
            .h = 3,
            .d = 4,
            .dtype = OC_F32,
            .out_dtype = OC_F32,
            .bias_dtype = OC_F32,
            .bias = SHARED_IJH_BIAS,
            .has_gate = 1,
            .mask = OC_MASK_FILL,
            .mask_value = -INFINITY,
            .mask_dtype = OC_BOOL};
  oc_class cls;
  oc_err err = {0};
  (void)state;
  data x = data_make(&s, 0);
  must(oc_apb_class(&x.call, OC_TIER_BIG, &cls, &err), &err);
  assert_string_equal(cls.form, "gate+mask_fill+shared_bias");
  assert_int_equal(cls.tier, OC_TIER_BIG);
  assert_int_equal(cls.dim[OC_DIM_B], 2);
  assert_int_equal(cls.dim[OC_DIM_N], 6);
  assert_int_equal(cls.dim[OC_DIM_H], 3);
  assert_int_equal(cls.dim[OC_DIM_D], 4);
  data_free(&x);
  s.bias = OWN_BIAS;
  x = data_make(&s, 0);
  must(oc_apb_class(&x.call, OC_TIER_FAST, &cls, &err), &err);
  assert_string_equal(cls.form, "bias+gate+mask_fill");
  data_free(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order_free),
      cmocka_unit_test(test_bound),
      cmocka_unit_test(test_fully_masked),
      cmocka_unit_test(test_invariance),
      cmocka_unit_test(test_empty),
      cmocka_unit_test(test_wide_offsets),
      cmocka_unit_test(test_refusals_and_bad_arguments),
      cmocka_unit_test(test_class),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
