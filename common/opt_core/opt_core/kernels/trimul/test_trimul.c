/* SPDX-License-Identifier: Apache-2.0 */
/* The ladder of the family trimul: guards, order-free bits, rerun and thread invariance, error bound, refusals. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "devices/cpu/rows.h"
#include "opt_core/trimul.h"

/* ---- memory: every tensor in a block of its own, poisoned, with guards that are checked when it is given back ---- */

enum { GUARD = 256, POISON = 0xa7, MAX_BLOCKS = 256 };

static struct {
  unsigned char *raw;
  size_t bytes;
} blocks[MAX_BLOCKS];
static int block_count;

static void *reserve(size_t bytes) {
  assert_true(block_count < MAX_BLOCKS);
  size_t rounded = (bytes + 2 * GUARD + 63) / 64 * 64;
  unsigned char *raw = aligned_alloc(64, rounded);
  assert_non_null(raw);
  memset(raw, POISON, rounded);
  blocks[block_count].raw = raw;
  blocks[block_count++].bytes = bytes;
  return raw + GUARD;
}

static void check_guards(void) {
  for (int i = 0; i < block_count; i++)
    for (int k = 0; k < GUARD; k++) {
      assert_int_equal(blocks[i].raw[k], POISON);
      assert_int_equal(blocks[i].raw[GUARD + blocks[i].bytes + (size_t)k], POISON);
    }
}

static void release_to(int mark) {
  check_guards();
  while (block_count > mark) free(blocks[--block_count].raw);
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

static uint64_t state = 88172645463325252u;
static uint64_t next(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}
static int pick(int n) { return (int)(next() % (uint64_t)n); }
static double uniform(void) { return (double)(next() >> 11) * 0x1p-53; }
static double normal(void) { return sqrt(-2.0 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform()); }

/* ---- views ------------------------------------------------------------------------------------------------------- */

typedef enum layout {
  DENSE,
  ODD,       /* dense, three elements past an aligned address */
  TURNED,    /* axes 1 and 2 exchanged in memory (weights: 0 and 1) */
  SPACED,    /* every second element, rows five elements further apart */
  BROADCAST, /* axis 0 has stride 0 (inputs) */
  REVERSED,  /* last axis runs backwards (inputs) */
  LAYOUT_COUNT
} layout;

static oc_view shaped(oc_dtype dtype, int rank, const int64_t *shape, layout how) {
  oc_view v = {.dtype = dtype, .rank = rank};
  int order[4] = {0, 1, 2, 3};
  int64_t step = how == SPACED ? 2 : 1, low = 0;
  if (how == TURNED && rank > 1) {
    const int a = rank == 2 ? 0 : 1;
    order[a] = a + 1;
    order[a + 1] = a;
  }
  for (int i = rank - 1; i >= 0; i--) {
    const int axis = order[i];
    v.shape[axis] = shape[axis];
    v.stride[axis] = step;
    step = step * (shape[axis] > 0 ? shape[axis] : 1) + (how == SPACED && i == rank - 1 ? 5 : 0);
  }
  if (how == BROADCAST && rank > 1) v.stride[0] = 0;
  if (how == REVERSED && shape[rank - 1] > 0) {
    v.stride[rank - 1] = -v.stride[rank - 1];
    low = shape[rank - 1] - 1;
  }
  if (how == ODD) low = 3;
  const size_t size = oc_dtype_bytes(dtype);
  v.data = (char *)reserve((size_t)(step + 8) * size) + (size_t)low * size;
  return v;
}

static int64_t offset_of(const oc_view *v, int64_t linear) {
  int64_t offset = 0;
  for (int axis = v->rank - 1; axis >= 0; axis--) {
    offset += linear % v->shape[axis] * v->stride[axis];
    linear /= v->shape[axis];
  }
  return offset;
}

static double get(const oc_view *v, int64_t linear) {
  const int64_t at = offset_of(v, linear);
  return v->dtype == OC_F64 ? ((const double *)v->data)[at] : (double)oc__load1(v->data, v->dtype, at);
}

static void set(const oc_view *v, int64_t linear, double value) {
  const int64_t at = offset_of(v, linear);
  switch (v->dtype) {
  case OC_F64:
    ((double *)v->data)[at] = value;
    break;
  case OC_F32:
    ((float *)v->data)[at] = (float)value;
    break;
  case OC_BF16:
    ((uint16_t *)v->data)[at] = oc__to_bf16((float)value);
    break;
  case OC_F16:
    ((uint16_t *)v->data)[at] = oc__to_f16((float)value);
    break;
  case OC_I32:
    ((int32_t *)v->data)[at] = (int32_t)value;
    break;
  case OC_I64:
    ((int64_t *)v->data)[at] = (int64_t)value;
    break;
  default:
    ((uint8_t *)v->data)[at] = (uint8_t)value;
    break;
  }
}

/* A dense copy in another dtype; absent stays absent. */
static oc_view copy_as(const oc_view *v, oc_dtype dtype) {
  if (!oc_view_is_present(v)) return *v;
  oc_view copy = shaped(dtype, v->rank, v->shape, DENSE);
  for (int64_t i = 0; i < oc_view_count(v); i++) set(&copy, i, get(v, i));
  return copy;
}

/* Nothing but the elements of y was written: the bytes between them still hold the poison. */
static void check_gaps(const oc_view *y) {
  const char *low, *end;
  oc_view_extent(y, &low, &end);
  const size_t size = oc_dtype_bytes(y->dtype), bytes = (size_t)(end - low);
  unsigned char *owned = calloc(1, bytes + 1);
  assert_non_null(owned);
  for (int64_t i = 0; i < oc_view_count(y); i++)
    memset(owned + ((char *)y->data - low) + offset_of(y, i) * (int64_t)size, 1, size);
  for (size_t i = 0; i < bytes; i++)
    if (!owned[i]) assert_int_equal((unsigned char)low[i], POISON);
  free(owned);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

typedef enum data { ORDER_FREE, RANDOM, ADVERSARIAL } data;

typedef struct kase {
  int64_t b, n, c, d;
  oc_direction direction;
  int swapped, biased, residual; /* residual: 0 none, 1 its own, 2 x */
  oc_dtype mask;                 /* NONE: absent */
  oc_dtype x, weights, product;
  layout x_layout, weight_layout;
  int in_place, rms, fast_variance;
  oc_dtype round;
  float right_scale;
  data data;
} kase;

static const kase plain = {.b = 1,
                           .n = 5,
                           .c = 6,
                           .d = 4,
                           .biased = 1,
                           .residual = 1,
                           .mask = OC_F32,
                           .x = OC_F32,
                           .weights = OC_F32,
                           .right_scale = 1.0f};

static void fill_x(const kase *k, const oc_view *x) {
  const int64_t c_count = k->c;
  for (int64_t row = 0; row < oc_view_count(x) / c_count; row++) {
    const double size = (double)(1 << pick(3));
    const int kind = pick(8);
    int sign = 1;
    for (int64_t c = 0; c < c_count; c++) {
      double value = normal();
      if (k->data == ADVERSARIAL) switch (kind) {
        case 0:
          value += 2000.0;
          break;
        case 1:
          value = 3.0;
          break;
        case 2:
          value = 0.0;
          break;
        case 3:
          value *= 1e12;
          break;
        case 4:
          value = c == 1 ? 6e4 : 0.01 * value;
          break;
        case 5:
          value *= 1e-20;
          break;
        default:
          value = 100.0 + 0.01 * value;
          break;
        }
      if (k->data == ORDER_FREE) { /* pairs of +size, -size: mean 0, variance size^2, both exact */
        sign = c % 2 == 0 ? (pick(2) ? 1 : -1) : -sign;
        value = sign * size;
      }
      set(x, row * c_count + c, value);
    }
  }
}

/* order-free gates are 0, a half or 1: one weight of 128 a row, biases of 0 or 128. Projections are sums of three. */
static void fill_linear(const kase *k, oc_linear *l, int64_t out, int64_t in, int is_gate, int is_out) {
  l->weight = shaped(k->weights, 2, (int64_t[]){out, in}, k->weight_layout);
  if (k->biased) l->bias = shaped(k->weights, 1, &out, k->weight_layout == SPACED ? SPACED : ODD);
  for (int64_t o = 0; o < out; o++) {
    for (int64_t i = 0; i < in; i++)
      set(&l->weight, o * in + i, k->data == ORDER_FREE ? 0.0 : normal() / sqrt((double)in));
    for (int i = 0; k->data == ORDER_FREE && i < (is_gate || is_out ? 1 : 3); i++)
      set(&l->weight, o * in + pick((int)in), (pick(2) ? 1 : -1) * (is_gate ? 128.0 : is_out ? 2.0 : 1.0));
    if (!k->biased) continue;
    const double whole = (double)(pick(3) - 1), huge = pick(9) ? 1.0 : 1e4;
    set(&l->bias, o,
        k->data == ORDER_FREE               ? whole * (is_gate ? 128.0 : 1.0)
        : k->data == ADVERSARIAL && is_gate ? normal() * huge
                                            : normal());
  }
}

static void fill_norm(const kase *k, oc_norm *norm, int64_t n, int is_out) {
  norm->weight = shaped(k->weights, 1, &n, ODD);
  norm->bias = shaped(k->weights, 1, &n, SPACED);
  for (int64_t c = 0; c < n; c++) {
    const int free = k->data == ORDER_FREE;
    set(&norm->weight, c, free ? (is_out ? 0x1p30 : 1.0) * (1 << pick(2)) : 1.0 + 0.2 * normal());
    set(&norm->bias, c, free ? (is_out ? 0.0 : (double)(pick(3) - 1)) : 0.2 * normal());
  }
  /* Order-free: the scale of the second norm is 2^-30 whatever the variance, which is not a sum of few bits. */
  norm->eps = k->data == ORDER_FREE ? (is_out ? 0x1p60f : 0.0f) : 1e-5f;
  norm->rms = k->rms;
  norm->fast_variance = k->fast_variance;
  norm->round = k->round;
}

static void fill_mask(const kase *k, const oc_view *mask) {
  const int64_t count = oc_view_count(mask);
  for (int64_t i = 0; i < count; i++) {
    double value = (double)pick(2);
    if (k->mask == OC_F32 || k->mask == OC_BF16) value *= k->data == ORDER_FREE ? 0.5 * (1 + pick(2)) : uniform();
    if (k->n > 2 && i % (k->n * k->n) / k->n == 1) value = 0.0; /* one row of nothing */
    set(mask, i, value);
  }
}

static layout for_output(layout how) { return how == BROADCAST || how == REVERSED ? SPACED : how; }

static oc_trimul build(const kase *k) {
  const int64_t pair[4] = {k->b, k->n, k->n, k->c};
  oc_trimul call = {
      .direction = k->direction, .operands_swapped = k->swapped, .right_scale = k->right_scale, .product = k->product};
  call.x = shaped(k->x, 4, pair, k->in_place ? for_output(k->x_layout) : k->x_layout);
  fill_x(k, &call.x);
  if (k->mask != OC_DTYPE_NONE) {
    call.mask = shaped(k->mask, 3, pair, k->x_layout);
    fill_mask(k, &call.mask);
  }
  if (k->residual == 1) {
    call.residual = shaped(k->x, 4, pair, k->x_layout == DENSE ? DENSE : ODD);
    for (int64_t i = 0; i < oc_view_count(&call.residual); i++)
      set(&call.residual, i, k->data == ORDER_FREE ? (double)(pick(9) - 4) : normal());
  }
  if (k->residual == 2) call.residual = call.x;
  fill_linear(k, &call.a_proj, k->d, k->c, 0, 0);
  fill_linear(k, &call.a_gate, k->d, k->c, 1, 0);
  fill_linear(k, &call.b_proj, k->d, k->c, 0, 0);
  fill_linear(k, &call.b_gate, k->d, k->c, 1, 0);
  fill_linear(k, &call.out_proj, k->c, k->d, 0, 1);
  fill_linear(k, &call.out_gate, k->c, k->c, 1, 0);
  fill_norm(k, &call.norm_in, k->c, 0);
  fill_norm(k, &call.norm_out, k->d, 1);
  call.y = k->in_place ? call.x : shaped(k->x, 4, pair, for_output(k->x_layout));
  return call;
}

/* The call in double, on copies; its y is new. */
static oc_trimul wide(const oc_trimul *call) {
  oc_trimul w = *call;
  oc_linear *from[] = {&w.a_proj, &w.a_gate, &w.b_proj, &w.b_gate, &w.out_proj, &w.out_gate};
  w.x = copy_as(&call->x, OC_F64);
  w.y = shaped(OC_F64, 4, call->x.shape, DENSE);
  w.mask = copy_as(&call->mask, OC_F64);
  w.residual = copy_as(&call->residual, OC_F64);
  for (int i = 0; i < 6; i++) {
    from[i]->weight = copy_as(&from[i]->weight, OC_F64);
    from[i]->bias = copy_as(&from[i]->bias, OC_F64);
  }
  w.norm_in.weight = copy_as(&w.norm_in.weight, OC_F64);
  w.norm_in.bias = copy_as(&w.norm_in.bias, OC_F64);
  w.norm_out.weight = copy_as(&w.norm_out.weight, OC_F64);
  w.norm_out.bias = copy_as(&w.norm_out.bias, OC_F64);
  return w;
}

static const oc_member *member_named(const char *name) {
  int count;
  const oc_member *members = oc_family_members(OC_FAMILY_TRIMUL, &count);
  for (int i = 0; i < count; i++)
    if (strcmp(members[i].name, name) == 0) return &members[i];
  return NULL;
}

static oc_status run(const oc_member *member, const oc_trimul *call, int threads, oc_err *err) {
  const int mark = block_count;
  oc_exec exec = {.threads = threads, .workspace_bytes = member->workspace(call, threads)};
  const oc_choice choice = {NULL, member};
  assert_true(exec.workspace_bytes < (size_t)1 << 32);
  exec.workspace = reserve(exec.workspace_bytes + 64);
  exec.workspace = (void *)(((uintptr_t)exec.workspace + 63) / 64 * 64);
  const oc_status status = oc_trimul_serve(call, &choice, &exec, err);
  release_to(mark);
  return status;
}

/* A new y like the call's; for a call in place x (and the residual that is x) are copied first. */
static oc_trimul fresh(const oc_trimul *call, const kase *k) {
  oc_trimul f = *call;
  f.y = shaped(k->x, 4, call->y.shape, for_output(k->x_layout));
  if (!k->in_place) return f;
  for (int64_t i = 0; i < oc_view_count(&f.y); i++) set(&f.y, i, get(&call->x, i));
  f.x = f.y;
  if (k->residual == 2) f.residual = f.y;
  return f;
}

static void serve(const oc_member *member, const oc_trimul *call, int threads) {
  oc_err err = {0};
  if (run(member, call, threads, &err) != OC_OK) fail_msg("%s: %s", member->name, err.detail);
  check_gaps(&call->y);
}

static void assert_same_bits(const oc_view *a, const oc_view *b, const char *who, const kase *k) {
  int64_t different = 0, first = -1;
  for (int64_t i = 0; i < oc_view_count(a); i++) {
    const double x = get(a, i), y = get(b, i);
    if (memcmp(&x, &y, sizeof x) == 0) continue;
    if (first < 0) first = i;
    different++;
  }
  if (different)
    fail_msg("%s: b %d n %d c %d d %d direction %d: %lld of %lld differ, first at %lld: %a, expected %a", who,
             (int)k->b, (int)k->n, (int)k->c, (int)k->d, (int)k->direction, (long long)different,
             (long long)oc_view_count(a), (long long)first, get(a, first), get(b, first));
}

/* Members in C beside the reference that this machine runs. */
static int runnable(const oc_member **out) {
  int count, used = 0;
  const oc_member *members = oc_family_members(OC_FAMILY_TRIMUL, &count);
  for (int i = 0; i < count; i++) {
    if ((members[i].flags & OC_MEMBER_REFERENCE) || !members[i].run || strcmp(members[i].row, "cpu") != 0) continue;
    if (members[i].isa > oc_cpu_facts()->isa)
      print_message("skipped: %s needs %s\n", members[i].name, oc_isa_word(members[i].isa));
    else
      out[used++] = &members[i];
  }
  assert_true(used >= 1);
  return used;
}

/* ---- order-free: bits equal to the reference --------------------------------------------------------------------- */

static int executed, paired;

static void order_free(const kase *wanted) {
  const oc_member *members[8];
  const int count = runnable(members), mark = block_count;
  kase k = *wanted;
  k.data = ORDER_FREE;
  const oc_trimul call = build(&k), truth = fresh(&call, &k);
  /* products of bf16 have operands in bf16: what leaves a norm is rounded, whether the call says so or not */
  oc_trimul narrow = fresh(&call, &k);
  narrow.norm_in.round = narrow.norm_out.round = OC_BF16;
  serve(member_named("reference"), &truth, 1);
  serve(member_named("reference"), &narrow, 1);
  for (int i = 0; i < count; i++) {
    const int has_pairs = members[i]->isa == OC_ISA_AVX512_BF16 && k.x == OC_BF16 && k.weights == OC_BF16;
    const oc_trimul own = fresh(&call, &k);
    serve(members[i], &own, 1 + pick(3));
    assert_same_bits(&own.y, has_pairs ? &narrow.y : &truth.y, members[i]->name, &k);
    paired += has_pairs;
  }
  release_to(mark);
  executed++;
}

static void test_order_free_sizes(void **unused) {
  static const int sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 65, 100, 101, 127, 128, 129, 130};
  static const int64_t channels[][2] = {{2, 1}, {6, 4}, {18, 33}, {34, 17}, {40, 52}};
  (void)unused;
  executed = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int direction = 0; direction < 2; direction++) {
      kase k = plain;
      const int pair = (int)(i + (size_t)direction) % 5;
      k.n = sizes[i];
      k.c = channels[pair][0];
      k.d = channels[pair][1];
      k.direction = (oc_direction)direction;
      order_free(&k);
    }
  assert_int_equal(executed, 30);
}

static void test_order_free_large(void **unused) {
  /* past one block of rows of t, past one block of k, and around 256 */
  static const int64_t sizes[][3] = {{255, 2, 2}, {256, 4, 3}, {257, 2, 2}, {520, 2, 1}, {3, 1040, 4}, {3, 6, 1040}};
  (void)unused;
  executed = 0;
  for (int i = 0; i < 6; i++) {
    kase k = plain;
    k.n = sizes[i][0];
    k.c = sizes[i][1];
    k.d = sizes[i][2];
    k.direction = i % 2 ? OC_INCOMING : OC_OUTGOING;
    order_free(&k);
  }
  assert_int_equal(executed, 6);
}

static void test_order_free_dialects(void **unused) {
  static const oc_dtype masks[] = {OC_DTYPE_NONE, OC_BOOL, OC_U8, OC_I32, OC_I64, OC_F32, OC_BF16, OC_F64};
  (void)unused;
  executed = paired = 0;
  for (int form = 0; form < 3; form++) /* outgoing, incoming, incoming with operands swapped */
    for (int i = 0; i < 8; i++)
      for (int how = 0; how < 6; how++) {
        kase k = plain;
        k.direction = form ? OC_INCOMING : OC_OUTGOING;
        k.swapped = form == 2;
        k.mask = masks[i];
        k.x_layout = (layout)how;
        k.weight_layout = (layout)((how + i) % LAYOUT_COUNT);
        if (k.weight_layout == BROADCAST) k.weight_layout = TURNED;
        k.b = 1 + (how + i) % 3;
        k.n = 3 + 7 * i + how;
        k.c = 2 + 2 * ((i * 5 + how * 3) % 11);
        k.d = 1 + (i * 7 + how) % 19;
        k.biased = (i + how) % 2;
        k.residual = (i + how + form) % 3;
        k.in_place = (i + how) % 4 == 1;
        k.x = how % 3 == 1 ? OC_BF16 : how % 3 == 2 && i % 2 ? OC_F16 : OC_F32;
        k.weights = i % 3 == 1 ? OC_BF16 : i % 3 == 2 ? OC_F16 : OC_F32;
        if (k.weights == OC_F16) k.weights = OC_BF16; /* 2^30 of the second norm is no f16 */
        k.product = (i + form) % 3 == 1 ? OC_BF16 : OC_DTYPE_NONE;
        k.right_scale = (i + how) % 3 == 2 ? 0.25f : 1.0f;
        k.fast_variance = i % 2;
        k.rms = how == 3;
        k.round = i == 4 ? OC_BF16 : i == 5 ? OC_F16 : OC_DTYPE_NONE;
        if (k.round == OC_F16) k.round = OC_F32;
        order_free(&k);
      }
  assert_int_equal(executed, 144);
  assert_true(paired > 0 || oc_cpu_facts()->isa < OC_ISA_AVX512_BF16);
}

/* ---- bits do not depend on threads, address or run --------------------------------------------------------------- */

static void test_threads_and_reruns(void **unused) {
  static const int threads[] = {1, 2, 3, 7, 2};
  static const int sizes[] = {17, 65, 130};
  const oc_member *members[8];
  const int count = runnable(members);
  (void)unused;
  executed = 0;
  for (int s = 0; s < 3; s++)
    for (int direction = 0; direction < 2; direction++) {
      kase k = plain;
      k.n = sizes[s];
      k.b = 3 - s;
      k.c = 34;
      k.d = 37;
      k.direction = (oc_direction)direction;
      k.data = RANDOM;
      for (int i = 0; i < count; i++) {
        const int mark = block_count;
        const oc_trimul call = build(&k);
        serve(members[i], &call, 1);
        for (int t = 0; t < 5; t++) {
          const oc_trimul again = fresh(&call, &k);
          serve(members[i], &again, threads[t]);
          assert_same_bits(&again.y, &call.y, members[i]->name, &k);
        }
        release_to(mark);
        executed++;
      }
    }
  assert_int_equal(executed, 6 * count);
}

/* ---- error against double ---------------------------------------------------------------------------------------- */

typedef struct distance {
  double largest, mean_square, scale;
} distance;

static distance distance_of(const oc_view *y, const oc_view *truth) {
  distance d = {0};
  for (int64_t i = 0; i < oc_view_count(y); i++) {
    const double t = get(truth, i), e = fabs(get(y, i) - t);
    assert_true(isfinite(t) && isfinite(e));
    d.largest = e > d.largest ? e : d.largest;
    d.mean_square += e * e;
    d.scale = fabs(t) > d.scale ? fabs(t) : d.scale;
  }
  d.mean_square = sqrt(d.mean_square / (double)oc_view_count(y));
  return d;
}

/* Root mean square at most 1.5 times, largest at most 2 times that of the f32 reference (one element is one draw). For
 * products of bf16 the reference rounds what leaves a norm, as the stock op does. */
static void bound(const kase *k) {
  const oc_member *members[8];
  const int count = runnable(members), mark = block_count;
  const oc_trimul call = build(k), exact = wide(&call), stock = fresh(&call, k);
  serve(member_named("reference"), &exact, 1);
  serve(member_named("reference"), &stock, 1);
  oc_trimul narrow = fresh(&call, k);
  narrow.norm_in.round = narrow.norm_out.round = OC_BF16;
  serve(member_named("reference"), &narrow, 1);
  for (int i = 0; i < count; i++) {
    const int has_pairs = members[i]->isa == OC_ISA_AVX512_BF16 && k->x == OC_BF16 && k->weights == OC_BF16;
    const distance allowed = distance_of(has_pairs ? &narrow.y : &stock.y, &exact.y);
    const double grain = allowed.scale * 0x1p-24;
    const oc_trimul own = fresh(&call, k);
    serve(members[i], &own, 2);
    const distance d = distance_of(&own.y, &exact.y);
    if (d.mean_square > 1.5 * allowed.mean_square + 0.01 * grain || d.largest > 2.0 * allowed.largest + grain)
      fail_msg("%s: n %d c %d d %d data %d: rms %g (reference %g), largest %g (%g)", members[i]->name, (int)k->n,
               (int)k->c, (int)k->d, (int)k->data, d.mean_square, allowed.mean_square, d.largest, allowed.largest);
  }
  release_to(mark);
  executed++;
}

static void test_bound(void **unused) {
  static const int64_t sizes[][3] = {{1, 5, 3},    {15, 32, 32},  {33, 128, 100},
                                     {65, 64, 24}, {101, 33, 16}, {130, 24, 8}};
  (void)unused;
  executed = 0;
  for (int i = 0; i < 6; i++)
    for (int form = 0; form < 8; form++) {
      kase k = plain;
      k.n = sizes[i][0];
      k.c = sizes[i][1];
      k.d = sizes[i][2];
      k.direction = form & 1 ? OC_INCOMING : OC_OUTGOING;
      k.data = form & 2 ? ADVERSARIAL : RANDOM;
      k.x = k.weights = form & 4 ? OC_BF16 : OC_F32;
      k.mask = form == 0 ? OC_DTYPE_NONE : OC_F32;
      k.product = form == 5 ? OC_BF16 : OC_DTYPE_NONE;
      k.right_scale = form == 1 ? 1.0f / (float)k.n : 1.0f;
      k.residual = form % 3;
      k.biased = form != 4;
      bound(&k);
    }
  assert_int_equal(executed, 48);
}

/* A NaN in x[i, k] reaches row i (outgoing: and column i) of y and stays away from the rest. */
static void test_nan_stays(void **unused) {
  const oc_member *members[8];
  const int count = runnable(members), mark = block_count;
  (void)unused;
  executed = 0;
  for (int i = 0; i < count; i++) {
    kase k = plain;
    k.n = 35;
    k.data = RANDOM;
    k.mask = OC_DTYPE_NONE;
    const oc_trimul call = build(&k);
    set(&call.x, (7 * k.n + 33) * k.c + 2, NAN);
    serve(members[i], &call, 2);
    for (int64_t at = 0; at < oc_view_count(&call.y); at++) {
      const int64_t row = at / k.c / k.n, column = at / k.c % k.n;
      assert_int_equal(isnan(get(&call.y, at)) != 0, row == 7 || column == 7);
    }
    executed++;
  }
  release_to(mark);
  assert_int_equal(executed, count);
}

/* ---- empty, far apart, refused ----------------------------------------------------------------------------------- */

static void test_empty(void **unused) {
  const oc_member *members[8];
  const int count = runnable(members);
  (void)unused;
  for (int i = 0; i < count; i++)
    for (int which = 0; which < 2; which++) {
      const int mark = block_count;
      kase k = plain;
      if (which)
        k.n = 0;
      else
        k.b = 0;
      const oc_trimul call = build(&k);
      oc_err err = {0};
      assert_int_equal(members[i]->workspace(&call, 1), 0);
      assert_int_equal(run(members[i], &call, 2, &err), OC_OK);
      release_to(mark);
    }
}

/* Rows of x and y more than 2^31 elements apart: 34 GB of addresses, a few pages of memory. */
static void test_offsets_in_64_bits(void **unused) {
  const oc_member *members[8];
  const int count = runnable(members), mark = block_count;
  const int64_t far = ((int64_t)1 << 31) + 5;
  const size_t bytes = (size_t)(2 * far) * sizeof(float);
  (void)unused;
  float *space = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) {
    print_message("skipped: %zu bytes of addresses are not to be had\n", 2 * bytes);
    return;
  }
  kase k = plain;
  k.n = 2;
  k.residual = 2;
  k.data = ORDER_FREE;
  const oc_trimul call = build(&k);
  oc_trimul spread = call;
  spread.x.data = space;
  spread.y.data = (char *)space + bytes;
  spread.x.stride[1] = spread.y.stride[1] = far;
  for (int64_t i = 0; i < oc_view_count(&call.x); i++) set(&spread.x, i, get(&call.x, i));
  spread.residual = spread.x;
  serve(member_named("reference"), &call, 1);
  for (int i = 0; i < count; i++) {
    oc_err err = {0};
    for (int64_t e = 0; e < oc_view_count(&call.y); e++) set(&spread.y, e, -77.0);
    assert_int_equal(run(members[i], &spread, 2, &err), OC_OK);
    assert_same_bits(&spread.y, &call.y, members[i]->name, &k);
  }
  munmap(space, 2 * bytes);
  release_to(mark);
}

static void expect(const oc_member *member, const oc_trimul *call, const oc_exec *exec, oc_status status,
                   oc_reason reason, const char *part) {
  oc_err err = {0};
  const oc_choice choice = {NULL, member};
  assert_int_equal(oc_trimul_serve(call, &choice, exec, &err), status);
  assert_int_equal(err.status, status);
  assert_int_equal(err.reason, reason);
  if (!strstr(err.detail, part)) fail_msg("detail \"%s\" does not name \"%s\"", err.detail, part);
  executed++;
}

/* Every refusal and every BAD_ARG leaves y as it was: poisoned. */
static void refusals_of(const oc_member *member) {
  const int mark = block_count;
  kase k = plain;
  const oc_trimul good = build(&k);
  oc_exec exec = {.threads = 1, .workspace_bytes = member->workspace(&good, 1)};
  exec.workspace = (void *)(((uintptr_t)reserve(exec.workspace_bytes + 128) + 63) / 64 * 64);
  const oc_exec full = exec;
  const int is_narrow = !(member->flags & OC_MEMBER_REFERENCE);
  oc_trimul c;
#define EXPECT(change, status, reason, part)                                                                           \
  do {                                                                                                                 \
    c = good;                                                                                                          \
    exec = full;                                                                                                       \
    change;                                                                                                            \
    expect(member, &c, &exec, OC_##status, OC_REASON_##reason, part);                                                  \
  } while (0)
  if (is_narrow) {
    EXPECT(c.x = copy_as(&good.x, OC_F64), REFUSED, DTYPE, "x is f64");
    EXPECT(c.y = shaped(OC_F64, 4, good.y.shape, DENSE), REFUSED, DTYPE, "y is f64");
    EXPECT(c.a_gate.weight = copy_as(&good.a_gate.weight, OC_F64), REFUSED, DTYPE, "f64");
    EXPECT(c.norm_out.bias = copy_as(&good.norm_out.bias, OC_F64), REFUSED, DTYPE, "norm_out");
    EXPECT(c.product = OC_F64, REFUSED, DIALECT, "product f64");
    EXPECT(c.norm_in.round = OC_F64, REFUSED, DIALECT, "norm");
  }
  EXPECT(c.y.stride[2] = k.c - 1, REFUSED, LAYOUT, "y: stride[2]");
  EXPECT(exec.workspace_bytes--, BAD_ARG, NONE, "workspace");
  EXPECT(exec.workspace = NULL, BAD_ARG, NONE, "workspace: 0");
  EXPECT(exec.workspace = (char *)exec.workspace + 4, BAD_ARG, NONE, "multiple of 64");
  EXPECT(c.y.data = (char *)c.x.data + 4, BAD_ARG, NONE, "overlaps x");
  EXPECT(c.residual = c.y; c.residual.stride[1]++, BAD_ARG, NONE, "overlaps residual");
  EXPECT(c.mask.data = c.y.data, BAD_ARG, NONE, "overlaps mask");
  EXPECT(c.b_gate.bias.data = c.y.data, BAD_ARG, NONE, "overlaps b_gate");
  EXPECT(c.y.stride[3] = -1, BAD_ARG, NONE, "stride[3] is -1");
  EXPECT(c.x.shape[2] = 4, BAD_ARG, NONE, "x: shape[2] is 4");
  EXPECT(c.mask.shape[1] = 6, BAD_ARG, NONE, "mask: shape[1] is 6");
  EXPECT(c.mask.rank = 2, BAD_ARG, NONE, "mask: rank 2");
  EXPECT(c.b_proj.weight.shape[0] = 3, BAD_ARG, NONE, "b_proj: shape[0] is 3");
  EXPECT(c.out_gate.bias.shape[0] = 3, BAD_ARG, NONE, "out_gate: shape[0] is 3");
  EXPECT(c.norm_out.weight.shape[0] = 9, BAD_ARG, NONE, "norm_out: shape[0] is 9");
  EXPECT(c.norm_in.eps = -1.0f, BAD_ARG, NONE, "eps -1");
  EXPECT(c.right_scale = 0.0f, BAD_ARG, NONE, "right_scale: 0");
  EXPECT(c.product = OC_I32, BAD_ARG, NONE, "product");
  EXPECT(c.operands_swapped = 1, BAD_ARG, NONE, "incoming only");
  EXPECT(c.direction = (oc_direction)2, BAD_ARG, NONE, "direction: 2");
  EXPECT(c.x.dtype = OC_I32, BAD_ARG, NONE, "x: dtype i32");
  EXPECT(c.out_proj.weight.data = NULL, BAD_ARG, NONE, "out_proj: data is NULL");
#undef EXPECT
  for (int64_t i = 0; i < oc_view_count(&good.y); i++)
    assert_int_equal(((unsigned char *)good.y.data)[offset_of(&good.y, i) * 4], POISON);
  release_to(mark);
}

static void test_refusals(void **unused) {
  const oc_member *members[8];
  const int count = runnable(members);
  (void)unused;
  executed = 0;
  for (int i = 0; i < count; i++) refusals_of(members[i]);
  refusals_of(member_named("reference"));
  assert_int_equal(executed, 28 * count + 22);
}

/* N of 2^26 with Ch of 2^20 needs 2^74 floats. Inputs repeat one element; nothing is touched. */
static void test_shape_is_refused(void **unused) {
  const oc_member *members[8];
  const int count = runnable(members);
  static float one[2] = {1.0f, 5.0f}; /* y starts at the second and claims all that follows */
  const int64_t n = (int64_t)1 << 26, d = (int64_t)1 << 20;
  (void)unused;
  oc_trimul c = {.right_scale = 1.0f};
  oc_linear *projections[] = {&c.a_proj, &c.a_gate, &c.b_proj, &c.b_gate};
  c.x = (oc_view){one, OC_F32, 4, 0, {1, n, n, 1}, {0, 0, 0, 0}};
  c.y = oc_view_dense(&one[1], OC_F32, 4, c.x.shape);
  for (int i = 0; i < 4; i++) projections[i]->weight = (oc_view){one, OC_F32, 2, 0, {d, 1}, {0, 0}};
  c.out_proj.weight = (oc_view){one, OC_F32, 2, 0, {1, d}, {0, 0}};
  c.out_gate.weight = (oc_view){one, OC_F32, 2, 0, {1, 1}, {0, 0}};
  for (int i = 0; i < count; i++) {
    oc_err err = {0};
    const oc_exec exec = {.threads = 1};
    const oc_choice choice = {NULL, members[i]};
    assert_int_equal(oc_trimul_serve(&c, &choice, &exec, &err), OC_REFUSED);
    assert_int_equal(err.reason, OC_REASON_SHAPE);
    assert_non_null(strstr(err.detail, "67108864"));
  }
  assert_true(one[1] == 5.0f);
}

static void test_class(void **unused) {
  const int mark = block_count;
  kase k = plain;
  oc_class cls;
  oc_err err = {0};
  (void)unused;
  oc_trimul call = build(&k);
  assert_int_equal(oc_trimul_class(&call, OC_TIER_FAST, &cls, &err), OC_OK);
  assert_string_equal(cls.form, "biased+mask+outgoing+residual");
  assert_int_equal(cls.dim[OC_DIM_B], 1);
  assert_int_equal(cls.dim[OC_DIM_N], 5);
  assert_int_equal(cls.dim[OC_DIM_C], 6);
  assert_int_equal(cls.dim[OC_DIM_D], 4);
  assert_int_equal(cls.dtype, OC_F32);
  assert_int_equal(strncmp(cls.device, "cpu-", 4), 0);
  call.direction = OC_INCOMING;
  call.operands_swapped = 1;
  call.right_scale = 0.2f;
  assert_int_equal(oc_trimul_class(&call, OC_TIER_FAST, &cls, &err), OC_OK);
  assert_string_equal(cls.form, "biased+incoming+mask+residual+scaled+swapped");
  k.biased = k.residual = 0;
  k.mask = OC_DTYPE_NONE;
  call = build(&k);
  assert_int_equal(oc_trimul_class(&call, OC_TIER_BIG, &cls, &err), OC_OK);
  assert_string_equal(cls.form, "outgoing");
  call.x.shape[3] = 0;
  assert_int_equal(oc_trimul_class(&call, OC_TIER_FAST, &cls, &err), OC_BAD_ARG);
  release_to(mark);
}

/* ---- gate_planes ------------------------------------------------------------------------------------------------- */

static const float specials[] = {0.0f, -0.0f, 1e-40f, -1e-45f, INFINITY, -INFINITY, NAN, 3.4e38f, 1.0f, -1.5f, 1e-20f};

static void planes_case(int64_t n, int64_t c, oc_dtype mask_dtype, layout how, int threads, int outer_turn) {
  const int mark = block_count;
  const int64_t pair[3] = {n, n, c}, out_shape[3] = {c, n, n};
  const oc_view gate = shaped(OC_F32, 3, pair, how), proj = shaped(OC_F32, 3, pair, how == DENSE ? ODD : DENSE);
  oc_view mask = {0}, out = shaped(OC_F32, 3, outer_turn ? (int64_t[3]){n, c, n} : out_shape, ODD);
  if (outer_turn) out = oc_view_swap(out, 0, 1); /* planes interleaved row by row */
  if (mask_dtype != OC_DTYPE_NONE) mask = shaped(mask_dtype, 2, pair, how == SPACED ? SPACED : DENSE);
  for (int64_t i = 0; i < n * n * c; i++) {
    set(&gate, i, pick(5) ? normal() : specials[pick(11)]);
    set(&proj, i, pick(5) ? normal() : specials[pick(11)]);
  }
  for (int64_t i = 0; oc_view_is_present(&mask) && i < n * n; i++)
    set(&mask, i, mask_dtype == OC_F32 ? normal() : pick(2));
  oc_err err = {0};
  assert_int_equal(oc_trimul_gate_planes(&gate, &proj, oc_view_is_present(&mask) ? &mask : NULL, &out, threads, &err),
                   OC_OK);
  for (int64_t r = 0; r < n; r++)
    for (int64_t s = 0; s < n; s++)
      for (int64_t ch = 0; ch < c; ch++) {
        volatile float want = (float)get(&gate, (r * n + s) * c + ch);
        if (oc_view_is_present(&mask)) want = (float)get(&mask, r * n + s) * want;
        want = want * (float)get(&proj, (r * n + s) * c + ch);
        const float got = (float)get(&out, (ch * n + r) * n + s), expected = want;
        if (isnan(expected))
          assert_true(isnan(got));
        else
          assert_memory_equal(&got, &expected, sizeof got);
      }
  check_gaps(&out);
  release_to(mark);
  executed++;
}

static void test_gate_planes(void **unused) {
  static const int sizes[] = {1, 3, 4, 17, 64, 65, 101};
  (void)unused;
  executed = 0;
  for (int i = 0; i < 7; i++)
    for (int how = 0; how < 6; how++)
      planes_case(sizes[i], (const int64_t[]){1, 5, 16, 19, 32, 36, 4}[(i + how) % 7],
                  (const oc_dtype[]){OC_DTYPE_NONE, OC_F32, OC_BOOL, OC_BF16}[how % 4], (layout)how, 1 + how % 3,
                  (i + how) % 2);
  assert_int_equal(executed, 42);
}

static void test_gate_planes_refuses(void **unused) {
  const int mark = block_count;
  const int64_t pair[3] = {4, 4, 6}, planes[3] = {6, 4, 4};
  const oc_view gate = shaped(OC_F32, 3, pair, DENSE), proj = shaped(OC_F32, 3, pair, DENSE),
                out = shaped(OC_F32, 3, planes, DENSE);
  const oc_view half = shaped(OC_BF16, 3, pair, DENSE);
  oc_err err = {0};
  oc_view bad = out;
  (void)unused;
  assert_int_equal(oc_trimul_gate_planes(&half, &proj, NULL, &out, 1, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_DTYPE);
  err = (oc_err){0};
  bad.stride[2] = 2;
  assert_int_equal(oc_trimul_gate_planes(&gate, &proj, NULL, &bad, 1, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_LAYOUT);
  err = (oc_err){0};
  bad = out;
  bad.stride[1] = 3;
  assert_int_equal(oc_trimul_gate_planes(&gate, &proj, NULL, &bad, 1, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_LAYOUT);
  bad = out;
  bad.data = gate.data;
  assert_int_equal(oc_trimul_gate_planes(&gate, &proj, NULL, &bad, 1, NULL), OC_BAD_ARG);
  bad = gate;
  bad.shape[2] = 5;
  assert_int_equal(oc_trimul_gate_planes(&bad, &proj, NULL, &out, 1, NULL), OC_BAD_ARG);
  assert_int_equal(oc_trimul_gate_planes(&gate, &proj, &gate, &out, 1, NULL), OC_BAD_ARG);
  for (int i = 0; i < 6 * 16 * 4; i++) assert_int_equal(((unsigned char *)out.data)[i], POISON);
  release_to(mark);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_order_free_sizes),
                                     cmocka_unit_test(test_order_free_large),
                                     cmocka_unit_test(test_order_free_dialects),
                                     cmocka_unit_test(test_threads_and_reruns),
                                     cmocka_unit_test(test_bound),
                                     cmocka_unit_test(test_nan_stays),
                                     cmocka_unit_test(test_empty),
                                     cmocka_unit_test(test_offsets_in_64_bits),
                                     cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_shape_is_refused),
                                     cmocka_unit_test(test_class),
                                     cmocka_unit_test(test_gate_planes),
                                     cmocka_unit_test(test_gate_planes_refuses)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
