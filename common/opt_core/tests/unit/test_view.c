/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "opt_core/tensor.h"

static float memory[4096];

static void test_dtypes(void **state) {
  (void)state;
  static const struct {
    oc_dtype dtype;
    const char *word;
    size_t bytes;
  } want[] = {{OC_F32, "f32", 4}, {OC_BF16, "bf16", 2}, {OC_F16, "f16", 2},
              {OC_F64, "f64", 8}, {OC_BOOL, "bool", 1}, {OC_U8, "u8", 1},
              {OC_I32, "i32", 4}, {OC_I64, "i64", 8},   {OC_DTYPE_NONE, "none", 0}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    assert_string_equal(oc_dtype_word(want[i].dtype), want[i].word);
    assert_int_equal(oc_dtype_bytes(want[i].dtype), want[i].bytes);
  }
  assert_int_equal(sizeof want / sizeof *want, OC_DTYPE_COUNT);
  assert_string_equal(oc_dtype_word((oc_dtype)-1), "unknown");
  assert_string_equal(oc_dtype_word(OC_DTYPE_COUNT), "unknown");
  assert_int_equal(oc_dtype_bytes((oc_dtype)99), 0);
}

static void test_dense(void **state) {
  (void)state;
  const int64_t shape[3] = {2, 3, 5};
  oc_view v = oc_view_dense(memory, OC_F32, 3, shape);
  assert_int_equal(v.stride[0], 15);
  assert_int_equal(v.stride[1], 5);
  assert_int_equal(v.stride[2], 1);
  assert_int_equal(oc_view_count(&v), 30);
  assert_int_equal(oc_view_offset(&v, (int64_t[]){1, 2, 4}), 29);
  assert_true(oc_view_is_present(&v));
  v = oc_view_dense(memory, OC_F32, 0, NULL);
  assert_int_equal(oc_view_count(&v), 1);
  v = oc_view_dense(memory, OC_F32, OC_MAX_RANK + 1, shape);
  assert_false(oc_view_is_present(&v));
  v = oc_view_dense(memory, OC_F32, -1, shape);
  assert_false(oc_view_is_present(&v));
}

/* N = 5000 tokens with C = 128 pass 2^31 elements: the offset has to be right there too. */
static void test_offsets_are_64_bit(void **state) {
  (void)state;
  const int64_t shape[4] = {1, 5000, 5000, 128};
  oc_view v = oc_view_dense(memory, OC_F32, 4, shape);
  assert_true(oc_view_count(&v) == INT64_C(3200000000));
  assert_true(oc_view_offset(&v, (int64_t[]){0, 4999, 4999, 127}) == INT64_C(3199999999));
}

static void test_swap(void **state) {
  (void)state;
  const int64_t shape[3] = {2, 3, 5};
  oc_view v = oc_view_swap(oc_view_dense(memory, OC_F32, 3, shape), 0, 2);
  assert_int_equal(v.shape[0], 5);
  assert_int_equal(v.shape[2], 2);
  assert_int_equal(v.stride[0], 1);
  assert_int_equal(v.stride[2], 15);
  assert_int_equal(oc_view_offset(&v, (int64_t[]){4, 2, 1}), 29);
  oc_view same = oc_view_swap(v, 0, 3);
  assert_memory_equal(&same, &v, sizeof v);
  same = oc_view_swap(v, -1, 1);
  assert_memory_equal(&same, &v, sizeof v);
}

static void check_extent(oc_view v, const void *lowest, const void *end) {
  const char *low, *stop;
  oc_view_extent(&v, &low, &stop);
  assert_ptr_equal(low, lowest);
  assert_ptr_equal(stop, end);
}

static void test_extent(void **state) {
  (void)state;
  const int64_t shape[2] = {4, 8}, empty[2] = {0, 8};
  oc_view v = oc_view_dense(memory + 100, OC_F32, 2, shape);
  check_extent(v, memory + 100, memory + 132);
  v.stride[0] = -8;
  check_extent(v, memory + 76, memory + 108);
  v.stride[0] = 0;
  check_extent(v, memory + 100, memory + 108);
  check_extent(oc_view_dense(memory, OC_F32, 2, empty), NULL, NULL);
  check_extent(oc_view_dense(NULL, OC_F32, 2, shape), NULL, NULL);
  check_extent((oc_view){0}, NULL, NULL);
  check_extent(oc_view_dense(memory, OC_BF16, 2, shape), memory, memory + 16);
}

static void test_overlap(void **state) {
  (void)state;
  const int64_t shape[2] = {4, 8}, empty[2] = {0, 8};
  oc_view a = oc_view_dense(memory, OC_F32, 2, shape);
  oc_view next = oc_view_dense(memory + 32, OC_F32, 2, shape), last = oc_view_dense(memory + 31, OC_F32, 2, shape);
  oc_view nothing = oc_view_dense(memory, OC_F32, 2, empty), absent = {0};
  assert_true(oc_view_may_overlap(&a, &a));
  assert_false(oc_view_may_overlap(&a, &next));
  assert_false(oc_view_may_overlap(&next, &a));
  assert_true(oc_view_may_overlap(&a, &last));
  assert_true(oc_view_may_overlap(&last, &a));
  assert_false(oc_view_may_overlap(&a, &nothing));
  assert_false(oc_view_may_overlap(&nothing, &nothing));
  assert_false(oc_view_may_overlap(&a, &absent));
  oc_view wild = a;
  wild.stride[0] = INT64_MAX;
  assert_true(oc_view_may_overlap(&wild, &next));
}

/* Extent against the set of bytes that the elements really touch, over random small views. */
static void test_extent_against_elements(void **state) {
  (void)state;
  unsigned seed = 12345;
  int cases = 0;
  for (int round = 0; round < 2000; round++) {
    oc_view v = {.data = memory + 2048, .dtype = OC_F32, .rank = 3};
    for (int axis = 0; axis < 3; axis++) {
      seed = seed * 1664525u + 1013904223u;
      v.shape[axis] = 1 + (seed >> 16) % 4;
      v.stride[axis] = (int64_t)((seed >> 20) % 41) - 20;
    }
    int64_t low = INT64_MAX, high = INT64_MIN, at[3];
    for (at[0] = 0; at[0] < v.shape[0]; at[0]++)
      for (at[1] = 0; at[1] < v.shape[1]; at[1]++)
        for (at[2] = 0; at[2] < v.shape[2]; at[2]++) {
          int64_t offset = oc_view_offset(&v, at);
          low = offset < low ? offset : low;
          high = offset > high ? offset : high;
        }
    check_extent(v, memory + 2048 + low, memory + 2048 + high + 1);
    cases++;
  }
  assert_int_equal(cases, 2000);
}

static void check_refused(oc_view v, const char *part) {
  oc_err err = {0};
  assert_int_equal(oc_view_check(&v, "operand", &err), OC_BAD_ARG);
  assert_int_equal(err.status, OC_BAD_ARG);
  assert_non_null(strstr(err.detail, "operand"));
  if (!strstr(err.detail, part)) fail_msg("%s is not in %s", part, err.detail);
}

static void test_check(void **state) {
  (void)state;
  const int64_t shape[2] = {4, 8};
  oc_view good = oc_view_dense(memory, OC_F32, 2, shape), v;
  assert_int_equal(oc_view_check(&good, "x", NULL), OC_OK);
  v = good, v.rank = 7, check_refused(v, "rank 7 is outside 0..6");
  v = good, v.rank = -1, check_refused(v, "rank -1");
  v = good, v.shape[1] = -3, check_refused(v, "shape[1] is -3");
  v = good, v.dtype = OC_DTYPE_NONE, check_refused(v, "dtype 0");
  v = good, v.dtype = OC_DTYPE_COUNT, check_refused(v, "dtype 9");
  v = good, v.data = NULL, check_refused(v, "data is NULL, 32 elements");
  v = good, v.shape[0] = v.shape[1] = INT64_C(1) << 40, check_refused(v, "more than");
  v = good, v.stride[0] = INT64_MAX / 2, check_refused(v, "strides reach");
  v = good, v.data = NULL, v.shape[0] = 0;
  assert_int_equal(oc_view_check(&v, "x", NULL), OC_OK);
  v.shape[1] = INT64_MAX; /* still empty */
  assert_int_equal(oc_view_check(&v, "x", NULL), OC_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_dtypes),
                                     cmocka_unit_test(test_dense),
                                     cmocka_unit_test(test_offsets_are_64_bit),
                                     cmocka_unit_test(test_swap),
                                     cmocka_unit_test(test_extent),
                                     cmocka_unit_test(test_overlap),
                                     cmocka_unit_test(test_extent_against_elements),
                                     cmocka_unit_test(test_check)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
