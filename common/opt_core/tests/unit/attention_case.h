/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors with guards, data and comparison for the tests of the attention families. Include after cmocka.h. */
#ifndef OC_TEST_ATTENTION_CASE_H
#define OC_TEST_ATTENTION_CASE_H

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "devices/cpu/rows.h"
#include "opt_core/provider.h"

enum { GUARD = 128, POISON = 0xFF }; /* 0xFF bytes are a NaN in every float type */

typedef enum layout { DENSE, ODD, REVERSED, WIDE, LAYOUTS } layout;

/* A view into a block of its own; every byte of the block that is no element of the view stays POISON. */
typedef struct tensor {
  oc_view view;
  unsigned char *block;
  size_t bytes;
} tensor;

static tensor tensor_make(oc_dtype dtype, int32_t rank, const int64_t *shape, layout how) {
  tensor t = {.view = oc_view_dense(NULL, dtype, rank, shape)};
  const size_t size = oc_dtype_bytes(dtype);
  int64_t step = how == WIDE ? 2 : 1;
  for (int32_t n = 0; n < rank; n++) {
    const int32_t axis = how == REVERSED ? n : rank - 1 - n;
    t.view.stride[axis] = step;
    step *= shape[axis] > 0 ? shape[axis] + (how == WIDE && n == 0 ? 3 : 0) : 1;
  }
  const size_t offset = how == DENSE ? 0 : 3 * size;
  t.bytes = 2 * GUARD + offset + (size_t)step * size;
  t.block = malloc(t.bytes);
  assert_non_null(t.block);
  memset(t.block, POISON, t.bytes);
  t.view.data = t.block + GUARD + offset;
  return t;
}

static void tensor_free(tensor *t) {
  free(t->block);
  memset(t, 0, sizeof *t);
}

/* Offset of element number n in row-major order. */
static int64_t at(const oc_view *view, int64_t n) {
  int64_t offset = 0;
  for (int32_t axis = view->rank - 1; axis >= 0; axis--) {
    offset += n % view->shape[axis] * view->stride[axis];
    n /= view->shape[axis];
  }
  return offset;
}

static double get(const oc_view *view, int64_t n) {
  if (view->dtype == OC_F64) return ((const double *)view->data)[at(view, n)];
  return (double)oc__load1(view->data, view->dtype, at(view, n));
}

static void set(const oc_view *view, int64_t n, double x) {
  const int64_t o = at(view, n);
  switch (view->dtype) {
  case OC_F32:
    ((float *)view->data)[o] = (float)x;
    break;
  case OC_BF16:
    ((uint16_t *)view->data)[o] = oc__to_bf16((float)x);
    break;
  case OC_F16:
    ((uint16_t *)view->data)[o] = oc__to_f16((float)x);
    break;
  case OC_F64:
    ((double *)view->data)[o] = x;
    break;
  case OC_I32:
    ((int32_t *)view->data)[o] = (int32_t)x;
    break;
  case OC_I64:
    ((int64_t *)view->data)[o] = (int64_t)x;
    break;
  default:
    ((uint8_t *)view->data)[o] = (uint8_t)x;
    break;
  }
}

static void poison(const tensor *t) { memset(t->block, POISON, t->bytes); }

/* Number of bytes outside the view's elements that are no longer POISON. */
static int guards_broken(const tensor *t) {
  unsigned char *mine = calloc(t->bytes, 1);
  const size_t size = oc_dtype_bytes(t->view.dtype);
  int broken = 0;
  assert_non_null(mine);
  for (int64_t n = 0; n < oc_view_count(&t->view); n++)
    memset(mine + ((unsigned char *)t->view.data - t->block) + at(&t->view, n) * (int64_t)size, 1, size);
  for (size_t b = 0; b < t->bytes; b++) broken += !mine[b] && t->block[b] != POISON;
  free(mine);
  return broken;
}

static int is_untouched(const tensor *t) {
  for (size_t b = 0; b < t->bytes; b++)
    if (t->block[b] != POISON) return 0;
  return 1;
}

/* A dense F64 tensor with the same values; masks and absent views stay as they are. */
static tensor widened(const tensor *t) {
  if (!oc_view_is_present(&t->view)) return *t;
  tensor wide = tensor_make(OC_F64, t->view.rank, t->view.shape, DENSE);
  for (int64_t n = 0; n < oc_view_count(&t->view); n++) set(&wide.view, n, get(&t->view, n));
  return wide;
}

/* ---- data ---- */

static uint64_t random_state;
static void random_seed(uint64_t seed) { random_state = seed * 0x9E3779B97F4A7C15u + 0x1234567u; }
static uint64_t random_bits(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}
static double uniform(double low, double high) { return low + (high - low) * (double)(random_bits() >> 11) * 0x1p-53; }
static double integer(int low, int high) {
  return (double)(low + (int)((random_bits() >> 20) % (uint64_t)(high - low + 1)));
}

static tensor filled(oc_dtype dtype, int32_t rank, const int64_t *shape, layout how, double low, double high) {
  tensor t = tensor_make(dtype, rank, shape, how);
  for (int64_t n = 0; n < oc_view_count(&t.view); n++) set(&t.view, n, uniform(low, high));
  return t;
}

/* Integers times unit. */
static tensor filled_integers(oc_dtype dtype, int32_t rank, const int64_t *shape, layout how, int low, int high,
                              double unit) {
  tensor t = tensor_make(dtype, rank, shape, how);
  for (int64_t n = 0; n < oc_view_count(&t.view); n++) set(&t.view, n, unit * integer(low, high));
  return t;
}

/* ---- comparison ---- */

/* Largest |got - truth|; Inf where one is NaN or infinite and the other is not the same. */
static double error_of(const oc_view *got, const oc_view *truth) {
  double largest = 0.0;
  assert_int_equal(oc_view_count(got), oc_view_count(truth));
  for (int64_t n = 0; n < oc_view_count(got); n++) {
    const double a = get(got, n), b = get(truth, n);
    if (isnan(a) && isnan(b)) continue;
    if (isnan(a) || isnan(b) || ((isinf(a) || isinf(b)) && a != b)) return INFINITY;
    if (!isinf(a) && fabs(a - b) > largest) largest = fabs(a - b);
  }
  return largest;
}

static double magnitude(const oc_view *view) {
  double largest = 0.0;
  for (int64_t n = 0; n < oc_view_count(view); n++)
    if (isfinite(get(view, n)) && fabs(get(view, n)) > largest) largest = fabs(get(view, n));
  return largest;
}

/* Elements whose bits differ; the first is printed. A NaN equals a NaN, and -0 is not +0. */
static int64_t bits_differ(const oc_view *got, const oc_view *want, const char *what) {
  int64_t differ = 0;
  for (int64_t n = 0; n < oc_view_count(got); n++) {
    const double a = get(got, n), b = get(want, n);
    if ((isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b))) continue;
    if (differ++ == 0) print_message("%s: element %" PRId64 " is %a, not %a\n", what, n, a, b);
  }
  return differ;
}

/* ---- members ---- */

static int member_runs_here(const oc_member *member) {
  if (member->isa <= oc_cpu_facts()->isa) return 1;
  print_message("skipped %s: this machine has %s\n", member->name, oc_isa_word(oc_cpu_facts()->isa));
  return 0;
}

/* CPU members of the family that run here, without the reference and without those that the host framework runs (no
 * function); *reference gets the reference. */
static int members_here(oc_family family, const oc_member **out, const oc_member **reference) {
  int count, kept = 0;
  const oc_member *members = oc_family_members(family, &count);
  *reference = NULL;
  for (int m = 0; m < count; m++) {
    if (members[m].flags & OC_MEMBER_REFERENCE)
      *reference = &members[m];
    else if (members[m].run && strcmp(members[m].device, "cpu") == 0 && member_runs_here(&members[m]))
      out[kept++] = &members[m];
  }
  assert_non_null(*reference);
  assert_true(kept >= 1);
  return kept;
}

typedef oc_status (*serve_fn)(const void *call, const oc_choice *choice, const oc_exec *exec, oc_err *err);

/* Serves with a poisoned workspace of exactly the size asked for, and checks that nothing behind it was written. */
static oc_status serve_with(serve_fn serve, const oc_member *member, const void *call, int threads, oc_err *err) {
  const size_t bytes = oc_member_workspace(member, call, threads);
  unsigned char *block = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
  assert_non_null(block);
  memset(block, POISON, bytes + GUARD);
  const oc_exec exec = {.workspace = block, .workspace_bytes = bytes, .threads = threads};
  const oc_choice choice = {.member = member};
  memset(err, 0, sizeof *err);
  const oc_status status = serve(call, &choice, &exec, err);
  if (status != OC_OK && status != OC_REFUSED && status != OC_BAD_ARG)
    print_message("%s: %s\n", member->name, err->detail);
  for (size_t b = bytes; b < bytes + GUARD; b++) assert_int_equal(block[b], POISON);
  free(block);
  return status;
}

#endif
