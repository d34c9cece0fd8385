/* SPDX-License-Identifier: Apache-2.0 */
/* The driver is played by fake_cuda.c, found by LD_LIBRARY_PATH, which the loader reads at program start only, and bound
 * once a process: each case is a child, this program run again. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "opt_core/device.h"
#include "scratch.h"

static const char *self;

/* What a child prints: the status word, the error text, and the facts. */
static int child(int ordinal) {
  oc_cuda_device device;
  oc_err err = {0};
  char text[256];
  memset(&device, 0, sizeof device);
  oc_status status = oc_cuda_device_facts(ordinal, &device, &err);
  oc_err_text(&err, text, sizeof text);
  printf("%s|%s|%lld|%d|%d|%s|%s|%lld\n", oc_status_word(status), status == OC_OK ? "" : text, (long long)err.native,
         device.ordinal, device.sm, device.name, device.uuid, (long long)device.memory_bytes);
  return 0;
}

static void expect(const char *environment, const char *directory, int ordinal, const char *want) {
  char command[1024], line[512] = "";
  snprintf(command, sizeof command, "%s LD_LIBRARY_PATH='%s' '%s' %d", environment, directory, self, ordinal);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  assert_non_null(fgets(line, sizeof line, pipe));
  assert_int_equal(pclose(pipe), 0);
  line[strcspn(line, "\n")] = '\0';
  assert_string_equal(line, want);
}

static int setup(void **state) {
  if (scratch_make(state) != 0) return -1;
  scratch_write("libcuda.so.1", "not a library", 13); /* hides a real driver of the machine */
  return 0;
}

static void test_good_devices(void **state) {
  (void)state;
  expect("OC_FAKE_COUNT=2", OC_TEST_FAKE_CUDA, 0,
         "ok||0|0|90|First|GPU-00102030-4050-6070-8090-a0b0c0d0e0f0|161061273600");
  expect("OC_FAKE_COUNT=2", OC_TEST_FAKE_CUDA, 1,
         "ok||0|1|121|Second|GPU-01112131-4151-6171-8191-a1b1c1d1e1f1|161061273600");
}

static void test_no_library(void **state) {
  (void)state;
  expect("", scratch_dir, 0, "refused|no_device:libcuda|0|0|0|||0");
}

static void test_no_device(void **state) {
  (void)state;
  expect("OC_FAKE_COUNT=0", OC_TEST_FAKE_CUDA, 0, "refused|no_device:0 devices|0|0|0|||0");
  expect("OC_FAKE_COUNT=2", OC_TEST_FAKE_CUDA, 2, "refused|no_device:2 devices, asked for ordinal 2|0|0|0|||0");
  expect("OC_FAKE_FAIL=cuInit OC_FAKE_CODE=100", OC_TEST_FAKE_CUDA, 0, "refused|no_device:0 devices|0|0|0|||0");
  expect("OC_FAKE_FAIL=cuDeviceGetCount OC_FAKE_CODE=100", OC_TEST_FAKE_CUDA, 0,
         "refused|no_device:0 devices|0|0|0|||0");
}

static void test_each_call_fails(void **state) {
  (void)state;
  static const char *const calls[] = {"cuInit",          "cuDeviceGetCount",     "cuDeviceGet",
                                      "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceGetUuid",
                                      "cuDeviceTotalMem"};
  int cases = 0;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++, cases++) {
    char environment[128], want[128];
    int code = 800 + (int)i; /* a code that the driver has no name for */
    snprintf(environment, sizeof environment, "OC_FAKE_COUNT=1 OC_FAKE_FAIL=%s OC_FAKE_CODE=%d", calls[i], code);
    snprintf(want, sizeof want, "refused|driver:%d from %s|%d|0|0|||0", code, calls[i], code);
    expect(environment, OC_TEST_FAKE_CUDA, 0, want);
  }
  assert_int_equal(cases, 7);
}

static void test_symbol_missing(void **state) {
  (void)state;
  expect("OC_FAKE_LACKS=cuDeviceTotalMem", OC_TEST_FAKE_CUDA, 0,
         "refused|driver:libcuda.so.1 has no cuDeviceTotalMem of CUDA 3.2|0|0|0|||0");
  expect("OC_FAKE_LACKS=cuTensorMapEncodeTiled", OC_TEST_FAKE_CUDA, 0,
         "refused|driver:libcuda.so.1 has no cuTensorMapEncodeTiled of CUDA 12.0|0|0|0|||0");
}

static void test_code_with_a_name(void **state) {
  (void)state;
  expect("OC_FAKE_FAIL=cuDeviceGetName OC_FAKE_CODE=700", OC_TEST_FAKE_CUDA, 0,
         "refused|driver:700 from cuDeviceGetName: CUDA_ERROR_ILLEGAL_ADDRESS|700|0|0|||0");
}

static void test_negative_ordinal(void **state) {
  (void)state;
  expect("OC_FAKE_COUNT=1", OC_TEST_FAKE_CUDA, -1, "bad_arg|bad_arg:device ordinal -1 is below 0|0|0|0|||0");
}

int main(int argc, char **argv) {
  if (argc == 2) return child(atoi(argv[1]));
  self = realpath("/proc/self/exe", NULL);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_good_devices),     cmocka_unit_test(test_no_library),
                                     cmocka_unit_test(test_no_device),        cmocka_unit_test(test_each_call_fails),
                                     cmocka_unit_test(test_code_with_a_name), cmocka_unit_test(test_symbol_missing),
                                     cmocka_unit_test(test_negative_ordinal)};
  int failed = cmocka_run_group_tests(tests, setup, scratch_remove);
  free((void *)(uintptr_t)self);
  return failed;
}
