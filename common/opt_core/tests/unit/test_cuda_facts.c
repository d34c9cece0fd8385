/* SPDX-License-Identifier: Apache-2.0 */
/* The driver is played by a library that this program compiles into a directory and finds by LD_LIBRARY_PATH, which the
 * loader reads at program start only: each case is a child, this program run again. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "opt_core/device.h"
#include "scratch.h"

/* Fails the call that OC_FAKE_FAIL names, with the code OC_FAKE_CODE; OC_FAKE_COUNT is the number of devices. */
static const char fake_source[] =
    "#include <stdlib.h>\n#include <string.h>\n"
    "static int code(const char *call) {\n"
    "  const char *fails = getenv(\"OC_FAKE_FAIL\");\n"
    "  return fails && strcmp(fails, call) == 0 ? atoi(getenv(\"OC_FAKE_CODE\")) : 0;\n}\n"
    "#define FAIL(call) do { int c = code(call); if (c) return c; } while (0)\n"
    "static int inits;\n"
    "int cuInit(unsigned f) { FAIL(\"cuInit\"); inits++; return f == 0 ? 0 : 1; }\n"
    "int cuDeviceGetCount(int *n) { FAIL(\"cuDeviceGetCount\"); if (!inits) return 3;\n"
    "  *n = atoi(getenv(\"OC_FAKE_COUNT\")); return 0; }\n"
    "int cuDeviceGet(int *d, int i) { FAIL(\"cuDeviceGet\"); *d = 40 + i; return 0; }\n"
    "int cuDeviceGetName(char *s, int n, int d) { FAIL(\"cuDeviceGetName\");\n"
    "  strncpy(s, d == 41 ? \"Second\" : \"First\", (size_t)n); return 0; }\n"
    "int cuDeviceGetAttribute(int *v, int a, int d) { FAIL(\"cuDeviceGetAttribute\");\n"
    "  *v = a == 75 ? (d == 41 ? 12 : 9) : a == 76 ? (d == 41 ? 1 : 0) : -1; return 0; }\n"
    "int cuDeviceGetUuid(unsigned char *u, int d) { FAIL(\"cuDeviceGetUuid\");\n"
    "  for (int i = 0; i < 16; i++) u[i] = (unsigned char)(16 * i + d - 40); return 0; }\n"
    "#ifndef NO_MEMORY\n"
    "int cuDeviceTotalMem_v2(size_t *b, int d) { FAIL(\"cuDeviceTotalMem_v2\"); *b = (size_t)150 << 30; return d < 40; "
    "}\n"
    "#endif\n";

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
  snprintf(command, sizeof command, "%s LD_LIBRARY_PATH='%s' '%s' %d", environment, scratch_path(directory), self,
           ordinal);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  assert_non_null(fgets(line, sizeof line, pipe));
  assert_int_equal(pclose(pipe), 0);
  line[strcspn(line, "\n")] = '\0';
  assert_string_equal(line, want);
}

static int build_fake(const char *directory, const char *option) {
  char command[1024];
  mkdir(scratch_path(directory), 0755);
  snprintf(command, sizeof command, "${CC:-cc} -shared -fPIC %s -o '%s/libcuda.so.1' '%s'", option,
           scratch_path(directory), scratch_path("fake.c"));
  return system(command);
}

static int setup(void **state) {
  if (scratch_make(state) != 0) return -1;
  scratch_write("fake.c", fake_source, sizeof fake_source - 1);
  if (build_fake("good", "") != 0 || build_fake("lacking", "-DNO_MEMORY") != 0) return -1;
  mkdir(scratch_path("broken"), 0755);
  scratch_write("broken/libcuda.so.1", "not a library", 13); /* hides a real driver of the machine */
  return 0;
}

static void test_good_devices(void **state) {
  (void)state;
  expect("OC_FAKE_COUNT=2", "good", 0, "ok||0|0|90|First|GPU-00102030-4050-6070-8090-a0b0c0d0e0f0|161061273600");
  expect("OC_FAKE_COUNT=2", "good", 1, "ok||0|1|121|Second|GPU-01112131-4151-6171-8191-a1b1c1d1e1f1|161061273600");
}

static void test_no_library(void **state) {
  (void)state;
  expect("", "broken", 0, "refused|no_device:libcuda|0|0|0|||0");
}

static void test_no_device(void **state) {
  (void)state;
  expect("OC_FAKE_COUNT=0", "good", 0, "refused|no_device:0 devices|0|0|0|||0");
  expect("OC_FAKE_COUNT=2", "good", 2, "refused|no_device:2 devices, asked for ordinal 2|0|0|0|||0");
  expect("OC_FAKE_FAIL=cuInit OC_FAKE_CODE=100", "good", 0, "refused|no_device:0 devices|0|0|0|||0");
  expect("OC_FAKE_FAIL=cuDeviceGetCount OC_FAKE_CODE=100", "good", 0, "refused|no_device:0 devices|0|0|0|||0");
}

static void test_each_call_fails(void **state) {
  (void)state;
  static const char *const calls[] = {
      "cuInit",          "cuDeviceGetCount",   "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
      "cuDeviceGetUuid", "cuDeviceTotalMem_v2"};
  int cases = 0;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++, cases++) {
    char environment[128], want[128];
    int code = 700 + (int)i;
    snprintf(environment, sizeof environment, "OC_FAKE_COUNT=1 OC_FAKE_FAIL=%s OC_FAKE_CODE=%d", calls[i], code);
    snprintf(want, sizeof want, "refused|driver:%d from %s|%d|0|0|||0", code, calls[i], code);
    expect(environment, "good", 0, want);
  }
  assert_int_equal(cases, 7);
}

static void test_symbol_missing(void **state) {
  (void)state;
  expect("OC_FAKE_COUNT=1", "lacking", 0, "refused|driver:libcuda.so.1 has no cuDeviceTotalMem_v2|0|0|0|||0");
}

static void test_negative_ordinal(void **state) {
  (void)state;
  expect("OC_FAKE_COUNT=1", "good", -1, "bad_arg|bad_arg:device ordinal -1 is below 0|0|0|0|||0");
}

int main(int argc, char **argv) {
  if (argc == 2) return child(atoi(argv[1]));
  self = realpath("/proc/self/exe", NULL);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_good_devices),   cmocka_unit_test(test_no_library),
                                     cmocka_unit_test(test_no_device),      cmocka_unit_test(test_each_call_fails),
                                     cmocka_unit_test(test_symbol_missing), cmocka_unit_test(test_negative_ordinal)};
  int failed = cmocka_run_group_tests(tests, setup, scratch_remove);
  free((void *)(uintptr_t)self);
  return failed;
}
