/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the row families share: guarded, poisoned tensors of any layout, and members run with a guarded,
 * poisoned workspace of exactly the size that they ask for. Include after cmocka.h. */
#ifndef OC_LADDER_H
#define OC_LADDER_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "devices/cpu/rowset.h"
#include "opt_core/provider.h"

#define UNUSED __attribute__((unused))
enum { POISON = 0xA5, GUARD_BYTES = 256 };

/* ---- random numbers: the same on every machine ------------------------------------------------------------------- */

static uint64_t random_state = 1;

static UNUSED uint64_t random_u64(void) { /* splitmix64 */
  uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static UNUSED double random_unit(void) { return (double)(random_u64() >> 11) * 0x1p-53; }

/* Sum of four uniforms, scaled to variance 1: near enough to normal. */
static UNUSED double random_normal(void) {
  return (random_unit() + random_unit() + random_unit() + random_unit() - 2.0) * 1.7320508075688772;
}

static UNUSED int64_t random_below(int64_t n) { return (int64_t)(random_u64() % (uint64_t)n); }

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

typedef enum layout_kind {
  LAYOUT_DENSE,
  LAYOUT_OFFSET,  /* starts one element into the storage */
  LAYOUT_PADDED,  /* rows lie further apart than they are long */
  LAYOUT_SWAPPED, /* the first two axes exchanged in memory (rank 3 on) */
  LAYOUT_COLUMNS, /* the last axis is the slowest: channel-major */
  LAYOUT_STEP2,   /* every second value of the last axis */
  LAYOUT_COUNT,
  LAYOUT_BROADCAST = LAYOUT_COUNT, /* inputs only: stride 0 along the first axis */
  LAYOUT_NEGATIVE,                 /* inputs only: the first axis runs backwards */
  LAYOUT_INPUT_COUNT
} layout_kind;

typedef struct tensor {
  oc_view view;
  unsigned char *storage; /* guards included */
  size_t bytes;
} tensor;

static UNUSED int64_t index_offset(const oc_view *view, int64_t i) {
  int64_t offset = 0;
  for (int32_t a = view->rank - 1; a >= 0; a--) {
    offset += i % view->shape[a] * view->stride[a];
    i /= view->shape[a];
  }
  return offset;
}

static UNUSED tensor tensor_make(oc_dtype dtype, int32_t rank, const int64_t *shape, layout_kind layout) {
  tensor t = {.view = {.dtype = dtype, .rank = rank}};
  int32_t order[OC_MAX_RANK]; /* slowest axis first */
  const int64_t front = layout == LAYOUT_OFFSET ? 1 : 0;
  int64_t step = layout == LAYOUT_STEP2 ? 2 : 1, lowest = 0;
  for (int32_t a = 0; a < rank; a++) order[a] = a;
  if (layout == LAYOUT_SWAPPED && rank >= 3) order[0] = 1, order[1] = 0;
  if (layout == LAYOUT_COLUMNS)
    for (int32_t a = 0; a < rank; a++) order[a] = a == 0 ? rank - 1 : a - 1;
  for (int32_t i = rank - 1; i >= 0; i--) {
    const int32_t a = order[i];
    t.view.shape[a] = shape[a];
    t.view.stride[a] = step;
    step *= shape[a] > 0 ? shape[a] : 1;
    if (layout == LAYOUT_PADDED && i == rank - 1) step += 3;
  }
  if (layout == LAYOUT_BROADCAST && rank > 1) t.view.stride[0] = 0;
  if (layout == LAYOUT_NEGATIVE && rank > 1) {
    lowest = (shape[0] > 0 ? shape[0] - 1 : 0) * t.view.stride[0];
    t.view.stride[0] = -t.view.stride[0];
  }
  t.bytes = (size_t)(step + front + 4) * oc_dtype_bytes(dtype) + 2 * GUARD_BYTES;
  t.storage = malloc(t.bytes);
  assert_non_null(t.storage);
  memset(t.storage, POISON, t.bytes);
  t.view.data = t.storage + GUARD_BYTES + (size_t)(front + lowest) * oc_dtype_bytes(dtype);
  return t;
}

static UNUSED void tensor_free(tensor *t) {
  free(t->storage);
  memset(t, 0, sizeof *t);
}

static UNUSED void view_put(const oc_view *view, int64_t i, double value) {
  const int64_t o = index_offset(view, i);
  switch (view->dtype) {
  case OC_BOOL:
  case OC_U8:
    ((uint8_t *)view->data)[o] = (uint8_t)value;
    break;
  case OC_I32:
    ((int32_t *)view->data)[o] = (int32_t)value;
    break;
  case OC_I64:
    ((int64_t *)view->data)[o] = (int64_t)value;
    break;
  default:
    oc__store1_f64(view, o, value);
    break;
  }
}

static UNUSED double view_get(const oc_view *view, int64_t i) { return oc__load1_f64(view, index_offset(view, i)); }

static UNUSED uint64_t view_bits(const oc_view *view, int64_t i) {
  uint64_t bits = 0;
  const size_t bytes = oc_dtype_bytes(view->dtype);
  memcpy(&bits, (const char *)view->data + index_offset(view, i) * (int64_t)bytes, bytes);
  return bits;
}

/* Dense double copy of a tensor: the same values, for the float64 truth. */
static UNUSED tensor tensor_f64(const oc_view *view) {
  tensor t = tensor_make(OC_F64, view->rank, view->shape, LAYOUT_DENSE);
  for (int64_t i = 0; i < oc_view_count(view); i++) view_put(&t.view, i, view_get(view, i));
  return t;
}

/* Every byte that belongs to no element still holds the poison. */
static UNUSED void assert_only_elements_written(const tensor *t) {
  unsigned char *copy = malloc(t->bytes);
  const size_t element = oc_dtype_bytes(t->view.dtype), base = (size_t)((unsigned char *)t->view.data - t->storage);
  assert_non_null(copy);
  memcpy(copy, t->storage, t->bytes);
  for (int64_t i = 0; i < oc_view_count(&t->view); i++)
    memset(copy + (int64_t)base + index_offset(&t->view, i) * (int64_t)element, POISON, element);
  for (size_t i = 0; i < t->bytes; i++)
    if (copy[i] != POISON) fail_msg("byte %zu of %zu outside every element was written", i, t->bytes);
  free(copy);
}

static UNUSED void assert_untouched(const tensor *t) {
  for (size_t i = 0; i < t->bytes; i++)
    if (t->storage[i] != POISON) fail_msg("byte %zu of %zu was written", i, t->bytes);
}

static UNUSED void tensor_poison(tensor *t) { memset(t->storage, POISON, t->bytes); }

static UNUSED void assert_same_bits(const oc_view *got, const oc_view *want, const char *what) {
  int64_t differ = 0, first = -1;
  for (int64_t i = 0; i < oc_view_count(want); i++) {
    if (view_bits(got, i) == view_bits(want, i)) continue;
    if (isnan(view_get(got, i)) && isnan(view_get(want, i))) continue; /* which NaN is nobody's promise */
    if (differ++ == 0) first = i;
  }
  if (differ)
    fail_msg("%s: %lld of %lld differ, first at %lld: got %.9g (%#llx), wanted %.9g (%#llx)", what, (long long)differ,
             (long long)oc_view_count(want), (long long)first, view_get(got, first),
             (unsigned long long)view_bits(got, first), view_get(want, first),
             (unsigned long long)view_bits(want, first));
}

typedef struct error_sum {
  double largest, rms; /* of the absolute difference; NaN on one side only gives Inf, on both sides nothing */
  double value;        /* largest magnitude of the truth */
} error_sum;

static UNUSED error_sum error_against(const oc_view *got, const oc_view *truth) {
  const int64_t n = oc_view_count(truth);
  error_sum e = {0};
  for (int64_t i = 0; i < n; i++) {
    const double g = view_get(got, i), t = view_get(truth, i);
    if (fabs(t) > e.value) e.value = fabs(t);
    if ((isnan(g) && isnan(t)) || g == t) continue; /* equal infinities too */
    const double d = isnan(g) || isnan(t) ? (double)INFINITY : fabs(g - t);
    if (d > e.largest) e.largest = d;
    e.rms += d * d;
  }
  e.rms = n ? sqrt(e.rms / (double)n) : 0.0;
  return e;
}

static UNUSED double unit_roundoff(oc_dtype dtype) {
  return dtype == OC_BF16 ? 0x1p-8 : dtype == OC_F16 ? 0x1p-11 : dtype == OC_F64 ? 0x1p-53 : 0x1p-24;
}

/* The bound of the ladder: root mean square of the error at most 1.5 times the f32 reference's own, the largest error
 * (one element's luck) at most 3 times; below two units of the last place of the largest value nothing is asked. */
static UNUSED void assert_bound(error_sum got, error_sum reference, oc_dtype dtype, const char *what) {
  const double floor = 4.0 * unit_roundoff(dtype) * reference.value;
  assert_true(isfinite(reference.largest));
  if (!(got.rms <= fmax(1.5 * reference.rms, 0.25 * floor)) || !(got.largest <= fmax(3.0 * reference.largest, floor)))
    fail_msg("%s: rms %g, largest %g; reference: rms %g, largest %g, values up to %g", what, got.rms, got.largest,
             reference.rms, reference.largest, reference.value);
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

/* Runs a member with a workspace of exactly what it asks for, full of NaN, between guards. */
static UNUSED oc_status member_run(const oc_member *member, const void *call, int threads, oc_err *err) {
  const size_t bytes = oc_member_workspace(member, call, threads);
  const size_t total = (bytes + 63) / 64 * 64 + 2 * GUARD_BYTES;
  unsigned char *memory = aligned_alloc(64, total);
  assert_non_null(memory);
  memset(memory, POISON, total);
  memset(memory + GUARD_BYTES, 0xff, bytes);
  const oc_exec exec = {.workspace = memory + GUARD_BYTES, .workspace_bytes = bytes, .threads = threads};
  const oc_status status = member->run(call, &exec, err);
  for (size_t i = 0; i < total; i++)
    if ((i < GUARD_BYTES || i >= GUARD_BYTES + bytes) && memory[i] != POISON)
      fail_msg("%s wrote byte %lld of a workspace of %zu", member->name, (long long)i - GUARD_BYTES, bytes);
  free(memory);
  return status;
}

/* The family's members of `row` that this machine can run, in members[]; skipped levels are named on stdout. */
static UNUSED int members_here(oc_family family, const char *row, const oc_member *members[4]) {
  int count, found = 0;
  const oc_member *all = oc_family_members(family, &count);
  for (int i = 0; i < count; i++) {
    if (strcmp(all[i].row, row) != 0 || strcmp(all[i].device, "cpu") != 0) continue;
    if (all[i].isa > oc_cpu_facts()->isa)
      print_message("skipped: %s, the processor lacks it\n", all[i].name);
    else if (found < 4)
      members[found++] = &all[i];
  }
  return found;
}

static UNUSED const oc_member *reference_of(oc_family family) {
  const oc_member *members[4] = {0};
  assert_int_equal(members_here(family, "reference", members), 1);
  return members[0];
}

#endif
