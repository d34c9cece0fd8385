/* SPDX-License-Identifier: Apache-2.0 */
/* Launches, tensor maps and limits on a driver without a device. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "scratch.h"
#include "cuda_package.h"

static const oc__cuda_kernel kernel = {"pkg", "native", "sm_90a", "attend_d32", 100000};
static oc__cuda_function function;
static unsigned char params[FAKE_PARAMS];

static int setup(void **state) {
  static const char *const keys[] = {"native.sm_90a", NULL};
  if (scratch_make(state) != 0) return -1;
  package_write("pkg", keys);
  oc__cuda_directory_set(scratch_dir);
  for (int i = 0; i < FAKE_PARAMS; i++) params[i] = (unsigned char)(3 * i + 1);
  return oc__cuda_kernel_find(0, NULL, &kernel, &function, NULL) == OC_OK ? 0 : -1;
}

static int before(void **state) {
  (void)state;
  fake_reset();
  fake_current(NULL);
  return 0;
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

static void test_what_the_driver_gets(void **state) {
  (void)state;
  static char stream;
  const oc__cuda_grid grid = {
      .grid = {12, 34, 56}, .block = {128, 2, 1}, .cluster = 2, .shared_bytes = 90000, .follows = 1};
  const fake_launch *seen = fake_last_launch();
  oc_err err = {0};
  assert_int_equal(oc__cuda_launch(0, function, &grid, &stream, params, sizeof params, &err), OC_OK);
  assert_memory_equal(seen->grid, grid.grid, sizeof grid.grid);
  assert_memory_equal(seen->block, grid.block, sizeof grid.block);
  assert_memory_equal(seen->params, params, sizeof params);
  assert_int_equal(seen->shared_bytes, 90000);
  assert_int_equal(seen->cluster, 2);
  assert_int_equal(seen->follows, 1);
  assert_int_equal(seen->attribute_count, 2);
  assert_ptr_equal(seen->stream, &stream);
  assert_ptr_equal(seen->context, fake_context(0));
  assert_string_equal(seen->symbol, "attend_d32");
  const oc__cuda_grid plain = {.grid = {1, 1, 1}, .block = {32, 1, 1}, .cluster = 1};
  assert_int_equal(oc__cuda_launch(0, function, &plain, NULL, params, sizeof params, &err), OC_OK);
  assert_int_equal(seen->attribute_count, 0);
  assert_null(seen->stream);
}

/* In the device's own context a launch is two driver calls; elsewhere the caller's context comes back. */
static void test_context(void **state) {
  (void)state;
  const oc__cuda_grid grid = {.grid = {1, 1, 1}, .block = {32, 1, 1}};
  int depth;
  fake_current(fake_context(0));
  assert_int_equal(oc__cuda_launch(0, function, &grid, NULL, params, sizeof params, NULL), OC_OK);
  assert_int_equal(fake_calls(NULL), 2);
  assert_int_equal(fake_calls("cuCtxGetCurrent"), 1);
  assert_int_equal(fake_calls("cuLaunchKernelEx"), 1);
  fake_current(fake_context(4));
  assert_int_equal(oc__cuda_launch(0, function, &grid, NULL, params, sizeof params, NULL), OC_OK);
  assert_ptr_equal(fake_current_is(&depth), fake_context(4));
  assert_int_equal(depth, 1);
  fake_fail("cuLaunchKernelEx", 700, 0);
  assert_int_equal(oc__cuda_launch(0, function, &grid, NULL, params, sizeof params, NULL), OC_REFUSED);
  assert_ptr_equal(fake_current_is(&depth), fake_context(4));
  assert_int_equal(depth, 1);
}

static void test_error_is_named(void **state) {
  (void)state;
  const oc__cuda_grid grid = {.grid = {7, 8, 9}, .block = {384, 1, 1}, .cluster = 7, .shared_bytes = 90000};
  oc_err err = {0};
  fake_fail("cuLaunchKernelEx", 701, 0);
  assert_int_equal(oc__cuda_launch(0, function, &grid, NULL, params, sizeof params, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_DRIVER);
  assert_int_equal(err.native, 701);
  assert_string_equal(err.detail,
                      "701 from cuLaunchKernelEx: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, attend_d32 grid 7x8x9 "
                      "block 384x1x1 cluster 7 shared 90000");
}

static void expect_grid(oc_status status, oc__cuda_grid grid, const char *detail) {
  oc_err err = {0};
  assert_int_equal(oc__cuda_launch(0, function, &grid, NULL, params, sizeof params, &err), status);
  assert_string_equal(err.detail, detail);
  assert_int_equal(err.reason, status == OC_REFUSED ? OC_REASON_SHAPE : OC_REASON_NONE);
  assert_int_equal(fake_calls("cuLaunchKernelEx"), 0);
}

static void test_grid_limits(void **state) {
  (void)state;
#define GRID(...) ((oc__cuda_grid){.grid = {__VA_ARGS__}, .block = {32, 1, 1}})
#define BLOCK(...) ((oc__cuda_grid){.grid = {1, 1, 1}, .block = {__VA_ARGS__}})
#define SERVED " blocks, served are 1..2147483647 x 1..65535 x 1..65535"
  expect_grid(OC_REFUSED, GRID(1, 65536, 1), "a grid of 1 x 65536 x 1" SERVED);
  expect_grid(OC_REFUSED, GRID(1, 1, 65536), "a grid of 1 x 1 x 65536" SERVED);
  expect_grid(OC_REFUSED, GRID(2147483648u, 1, 1), "a grid of 2147483648 x 1 x 1" SERVED);
  expect_grid(OC_REFUSED, GRID(0, 1, 1), "a grid of 0 x 1 x 1" SERVED);
  expect_grid(OC_BAD_ARG, BLOCK(0, 1, 1), "a block of 0 x 1 x 1 threads, at most 1024 in all and 64 along z");
  expect_grid(OC_BAD_ARG, BLOCK(512, 3, 1), "a block of 512 x 3 x 1 threads, at most 1024 in all and 64 along z");
  expect_grid(OC_BAD_ARG, BLOCK(1, 1, 65), "a block of 1 x 1 x 65 threads, at most 1024 in all and 64 along z");
  expect_grid(OC_BAD_ARG, BLOCK(1u << 31, 2, 1),
              "a block of 2147483648 x 2 x 1 threads, at most 1024 in all and 64 along z");
  oc__cuda_grid odd = GRID(5, 1, 1);
  odd.cluster = 2;
  expect_grid(OC_BAD_ARG, odd, "a cluster of 2 does not divide the grid's 5 blocks along x");
  const oc__cuda_grid most = GRID(2147483647, 65535, 65535);
  assert_int_equal(oc__cuda_launch(0, function, &most, NULL, params, sizeof params, NULL), OC_OK);
}

static void test_arguments(void **state) {
  (void)state;
  const oc__cuda_grid grid = {.grid = {1, 1, 1}, .block = {32, 1, 1}};
  assert_int_equal(oc__cuda_launch(0, NULL, &grid, NULL, params, 8, NULL), OC_BAD_ARG);
  assert_int_equal(oc__cuda_launch(0, function, NULL, NULL, params, 8, NULL), OC_BAD_ARG);
  assert_int_equal(oc__cuda_launch(0, function, &grid, NULL, NULL, 8, NULL), OC_BAD_ARG);
  assert_int_equal(oc__cuda_launch(0, function, &grid, NULL, params, 0, NULL), OC_BAD_ARG);
  assert_int_equal(oc__cuda_launch(0, function, &grid, NULL, params, 4097, NULL), OC_BAD_ARG);
  assert_int_equal(oc__cuda_launch(-1, function, &grid, NULL, params, 8, NULL), OC_BAD_ARG);
  assert_int_equal(oc__cuda_launch(64, function, &grid, NULL, params, 8, NULL), OC_REFUSED);
  assert_int_equal(fake_calls("cuLaunchKernelEx"), 0);
}

/* ---- tensor maps ------------------------------------------------------------------------------------------------ */

static _Alignas(64) char memory[256];

static void test_map(void **state) {
  (void)state;
  const int64_t shape[5] = {32, 4, 777, 1, 3}, stride[5] = {99, 32, 128, 7, 99456};
  const unsigned box[5] = {32, 1, 64, 1, 1};
  const fake_map *seen = fake_last_map();
  oc__cuda_map map = {{0}};
  oc_err err = {0};
  assert_true(oc__cuda_map_fits(OC_BF16, 5, memory, shape, stride));
  assert_int_equal(oc__cuda_tensor_map(&map, OC_BF16, 5, memory, shape, stride, box, OC__SWIZZLE_64, &err), OC_OK);
  assert_int_equal(seen->type, 9);
  assert_int_equal(seen->rank, 5);
  assert_int_equal(seen->swizzle, 2);
  assert_int_equal(seen->promotion, 3);
  assert_int_equal(seen->outside, 0);
  assert_int_equal(seen->interleave, 0);
  assert_ptr_equal(seen->data, memory);
  assert_ptr_equal(seen->context, fake_context(0)); /* this thread has none: any that is held */
  for (int axis = 0; axis < 5; axis++) assert_int_equal(seen->shape[axis], shape[axis]);
  assert_memory_equal(seen->box, box, sizeof box);
  const uint64_t bytes[4] = {64, 256, 16, 198912}; /* an axis of length 1 gets a legal number */
  assert_memory_equal(seen->stride, bytes, sizeof bytes);
  assert_int_equal(map.bytes[0], 0x5A);
  assert_int_equal(map.bytes[127], 0x5A);
  assert_null(fake_current_is(NULL));
  fake_current(fake_context(3)); /* the caller's own is left alone */
  assert_int_equal(oc__cuda_tensor_map(&map, OC_BF16, 5, memory, shape, stride, box, OC__SWIZZLE_64, &err), OC_OK);
  assert_ptr_equal(seen->context, fake_context(3));
  assert_ptr_equal(fake_current_is(NULL), fake_context(3));
}

static void expect_map(oc_status status, oc_dtype dtype, int rank, const void *data, const int64_t *shape,
                       const int64_t *stride, const char *detail) {
  const unsigned box[5] = {16, 1, 1, 1, 1};
  oc__cuda_map map;
  oc_err err = {0};
  assert_false(oc__cuda_map_fits(dtype, rank, data, shape, stride));
  assert_int_equal(oc__cuda_tensor_map(&map, dtype, rank, data, shape, stride, box, OC__SWIZZLE_NONE, &err), status);
  assert_string_equal(err.detail, detail);
  assert_int_equal(fake_calls("cuTensorMapEncodeTiled"), 0);
}

static void test_map_layouts(void **state) {
  (void)state;
#define I64(...) ((const int64_t[]){__VA_ARGS__})
#define STRIDES " bytes, served are multiples of 16 bytes from 16 to 2^40"
  expect_map(OC_REFUSED, OC_F16, 2, memory, I64(8, 4), I64(1, 9), "tensor map: stride[1] is 9 elements of 2" STRIDES);
  expect_map(OC_REFUSED, OC_F16, 2, memory, I64(8, 4), I64(1, 0), "tensor map: stride[1] is 0 elements of 2" STRIDES);
  expect_map(OC_REFUSED, OC_F32, 2, memory, I64(8, 4), I64(1, -8), "tensor map: stride[1] is -8 elements of 4" STRIDES);
  expect_map(OC_REFUSED, OC_F32, 2, memory, I64(8, 4), I64(1, (int64_t)1 << 38),
             "tensor map: stride[1] is 274877906944 elements of 4" STRIDES);
  expect_map(OC_REFUSED, OC_F32, 1, memory + 8, I64(8), I64(1),
             "tensor map: the data lies 8 bytes past a multiple of 16");
  expect_map(OC_REFUSED, OC_F32, 2, memory, I64(0, 4), I64(1, 8),
             "tensor map: shape[0] is 0, served are 1..4294967296");
  expect_map(OC_BAD_ARG, OC_F32, 6, memory, I64(1, 1, 1, 1, 1, 1), I64(1, 1, 1, 1, 1, 1),
             "tensor map: dtype f32, rank 6 (1..5), data there");
  expect_map(OC_BAD_ARG, OC_DTYPE_NONE, 1, memory, I64(1), I64(1), "tensor map: dtype none, rank 1 (1..5), data there");
  expect_map(OC_BAD_ARG, OC_F32, 1, NULL, I64(1), I64(1), "tensor map: dtype f32, rank 1 (1..5), data NULL");
}

static void expect_box(const unsigned *box, oc__cuda_swizzle swizzle, const char *detail) {
  oc__cuda_map map;
  oc_err err = {0};
  assert_int_equal(oc__cuda_tensor_map(&map, OC_BF16, 2, memory, I64(512, 4), I64(1, 512), box, swizzle, &err),
                   *detail ? OC_BAD_ARG : OC_OK);
  assert_string_equal(err.detail, detail);
}

static void test_map_boxes(void **state) {
  (void)state;
#define BOX(...) ((const unsigned[]){__VA_ARGS__})
  expect_box(BOX(64, 256), OC__SWIZZLE_128, "");
  expect_box(BOX(256, 1), OC__SWIZZLE_NONE, "");
  expect_box(BOX(257, 1), OC__SWIZZLE_NONE, "tensor map: box[0] is 257, served are 1..256");
  expect_box(BOX(64, 0), OC__SWIZZLE_NONE, "tensor map: box[1] is 0, served are 1..256");
  expect_box(BOX(65, 1), OC__SWIZZLE_128, "tensor map: box[0] takes 130 bytes, served are multiples of 16 up to 128");
  expect_box(BOX(32, 1), OC__SWIZZLE_32, "tensor map: box[0] takes 64 bytes, served are multiples of 16 up to 32");
  expect_box(BOX(72, 1), OC__SWIZZLE_128, "tensor map: box[0] takes 144 bytes, served are multiples of 16 up to 128");
  expect_box(BOX(32, 1), (oc__cuda_swizzle)4, "tensor map: swizzle 4 is outside 0..3");
}

static void test_map_error(void **state) {
  (void)state;
  const unsigned box[1] = {16};
  oc__cuda_map map;
  fake_fail("cuTensorMapEncodeTiled", 1, 0);
  EXPECT_REFUSED(oc__cuda_tensor_map(&map, OC_F32, 1, memory, I64(64), I64(1), box, OC__SWIZZLE_NONE, &err), DRIVER,
                 "1 from cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE");
  assert_null(fake_current_is(NULL));
}

/* ---- limits ----------------------------------------------------------------------------------------------------- */

static void test_limits(void **state) {
  (void)state;
  const oc__cuda_limits *limits = NULL, *again = NULL;
  fake_fail("cuDeviceGetAttribute", 701, 3);
  EXPECT_REFUSED(oc__cuda_limits_of(2, &limits, &err), DRIVER,
                 "701 from cuDeviceGetAttribute: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES");
  fake_reset();
  assert_int_equal(oc__cuda_limits_of(2, &limits, NULL), OC_OK);
  assert_int_equal(limits->sm, 86);
  assert_int_equal(limits->multiprocessors, 132);
  assert_int_equal(limits->shared_bytes, 101376);
  assert_int_equal(limits->l2_bytes, 60 << 20);
  assert_int_equal(fake_calls("cuDevicePrimaryCtxRetain"), 0); /* asking makes no context */
  const int calls = fake_calls(NULL);
  assert_int_equal(oc__cuda_limits_of(2, &again, NULL), OC_OK);
  assert_ptr_equal(again, limits);
  assert_int_equal(fake_calls(NULL), calls);
  EXPECT_REFUSED(oc__cuda_limits_of(8, &limits, &err), NO_DEVICE, "8 devices, asked for ordinal 8");
}

#define CASE(name) cmocka_unit_test_setup(name, before)

int main(void) {
  const struct CMUnitTest tests[] = {CASE(test_what_the_driver_gets),
                                     CASE(test_context),
                                     CASE(test_error_is_named),
                                     CASE(test_grid_limits),
                                     CASE(test_arguments),
                                     CASE(test_map),
                                     CASE(test_map_layouts),
                                     CASE(test_map_boxes),
                                     CASE(test_map_error),
                                     CASE(test_limits)};
  return cmocka_run_group_tests(tests, setup, scratch_remove);
}
