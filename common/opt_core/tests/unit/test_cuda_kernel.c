/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of kernels on a driver without a device. Kernels stay loaded for a process's life, so each test has kernels
 * of its own. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>

#include "scratch.h"
#include "cuda_package.h"

static oc_err ignored;

static int setup(void **state) {
  static const char *const keys[] = {"native.sm_90a", "mma.sm_80", "other.sm_90a", "spoilt.sm_90a", NULL};
  if (scratch_make(state) != 0) return -1;
  package_write("pkg", keys);
  oc__cuda_directory_set(scratch_dir);
  return 0;
}

static int before(void **state) {
  (void)state;
  fake_reset();
  fake_current(NULL);
  return 0;
}

static void test_warm_asks_nothing(void **state) {
  (void)state;
  static const oc__cuda_kernel kernel = {"pkg", "native", "sm_90a", "warm", 0};
  oc__cuda_function first = NULL, second = NULL;
  oc_err err = {0};
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernel, &first, &err), OC_OK);
  assert_non_null(first);
  assert_string_equal(fake_last_image(), "pkg/native.sm_90a");
  const int calls = fake_calls(NULL);
  for (int i = 0; i < 1000; i++) assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernel, &second, &err), OC_OK);
  assert_ptr_equal(first, second);
  assert_int_equal(fake_calls(NULL), calls);
  assert_ptr_equal(oc__cuda_kernel_of(0, first), &kernel);
  assert_null(oc__cuda_kernel_of(1, first));
  assert_null(oc__cuda_kernel_of(-1, first));
}

/* One module a device, whatever the number of its kernels; tables grow without losing one. */
static void test_many_kernels(void **state) {
  (void)state;
  enum { COUNT = 300 };
  static oc__cuda_kernel kernels[COUNT];
  static oc__cuda_function found[COUNT];
  for (int i = 0; i < COUNT; i++) kernels[i] = (oc__cuda_kernel){"pkg", "native", "sm_90a", i % 2 ? "odd" : "even", 0};
  for (int i = 0; i < COUNT; i++) assert_int_equal(oc__cuda_kernel_find(4, NULL, &kernels[i], &found[i], NULL), OC_OK);
  assert_int_equal(fake_calls("cuModuleLoadData"), 1);
  assert_int_equal(fake_calls("cuDevicePrimaryCtxRetain"), 1);
  const int calls = fake_calls(NULL);
  for (int i = 0; i < COUNT; i++) {
    oc__cuda_function again;
    assert_int_equal(oc__cuda_kernel_find(4, NULL, &kernels[i], &again, NULL), OC_OK);
    assert_ptr_equal(again, found[i]);
    assert_ptr_equal(again, found[i % 2]);
  }
  assert_ptr_not_equal(found[0], found[1]);
  assert_int_equal(fake_calls(NULL), calls);
}

enum { THREADS = 4 };
static const oc__cuda_kernel raced = {"pkg", "other", "sm_90a", "raced", 0};

static void *find_raced(void *out) {
  (void)oc__cuda_kernel_find(5, NULL, &raced, out, NULL);
  return NULL;
}

static void test_threads_load_once(void **state) {
  (void)state;
  pthread_t threads[THREADS];
  oc__cuda_function found[THREADS] = {NULL};
  fake_slow(50);
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, find_raced, &found[i]), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  assert_int_equal(fake_calls("cuModuleLoadData"), 1);
  assert_int_equal(fake_calls("cuModuleGetFunction"), 1);
  assert_int_equal(fake_calls("cuDevicePrimaryCtxRetain"), 1);
  for (int i = 0; i < THREADS; i++) assert_ptr_equal(found[i], found[0]);
  assert_non_null(found[0]);
}

static void test_digest_before_driver(void **state) {
  (void)state;
  static const oc__cuda_kernel kernel = {"pkg", "spoilt", "sm_90a", "k", 0};
  static const char spoilt[] = "pkg/spoilt.sm_90b"; /* as many bytes */
  oc__cuda_function function;
  oc_err err = {0};
  scratch_write("pkg/pkg.spoilt.sm_90a.cubin", spoilt, sizeof spoilt);
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernel, &function, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_DIGEST);
  assert_non_null(strstr(err.detail, "pkg@spoilt.sm_90a: "));
  assert_null(function);
  assert_int_equal(fake_calls("cuModuleLoadData"), 0);
}

static void test_wrong_architecture(void **state) {
  (void)state;
  static const oc__cuda_kernel hopper = {"pkg", "native", "sm_90a", "k", 0}, ampere = {"pkg", "mma", "sm_80", "k", 0};
  oc__cuda_function function;
  EXPECT_REFUSED(oc__cuda_kernel_find(2, NULL, &hopper, &function, &err), ARCH, "sm_86!=sm_90a");
  EXPECT_REFUSED(oc__cuda_kernel_find(1, NULL, &hopper, &function, &err), ARCH, "sm_121!=sm_90a");
  EXPECT_REFUSED(oc__cuda_kernel_find(0, NULL, &ampere, &function, &err), ARCH, "sm_90!=sm_80");
  EXPECT_REFUSED(oc__cuda_kernel_find(7, NULL, &ampere, &function, &err), ARCH, "sm_75!=sm_80");
  assert_int_equal(fake_calls("cuDevicePrimaryCtxRetain"), 0);
  assert_int_equal(fake_calls("cuModuleLoadData"), 0);
  assert_int_equal(oc__cuda_kernel_find(2, NULL, &ampere, &function, NULL), OC_OK);
  assert_int_equal(oc__cuda_kernel_find(3, NULL, &ampere, &function, NULL), OC_OK);
  assert_string_equal(fake_last_image(), "pkg/mma.sm_80");
}

static void test_devices(void **state) {
  (void)state;
  static const oc__cuda_kernel kernel = {"pkg", "native", "sm_90a", "k", 0};
  oc__cuda_function function;
  EXPECT_REFUSED(oc__cuda_kernel_find(8, NULL, &kernel, &function, &err), NO_DEVICE, "8 devices, asked for ordinal 8");
  EXPECT_REFUSED(oc__cuda_kernel_find(64, NULL, &kernel, &function, &err), NO_DEVICE, "ordinal 64, served are 0..63");
  assert_int_equal(oc__cuda_kernel_find(-1, NULL, &kernel, &function, &ignored), OC_BAD_ARG);
  assert_null(function);
}

static void test_missing_binary(void **state) {
  (void)state;
  static const oc__cuda_kernel no_module = {"pkg", "none", "sm_90a", "k", 0},
                               no_package = {"away", "m", "sm_90a", "k", 0};
  static const oc__cuda_kernel no_symbol = {"pkg", "native", "sm_90a", "absent", 0};
  oc__cuda_function function;
  EXPECT_REFUSED(oc__cuda_kernel_find(0, NULL, &no_module, &function, &err), NO_PREBUILT, "pkg@none.sm_90a");
  EXPECT_REFUSED(oc__cuda_kernel_find(0, NULL, &no_package, &function, &err), NO_PREBUILT, "away@m.sm_90a");
  EXPECT_REFUSED(oc__cuda_kernel_find(0, NULL, &no_symbol, &function, &err), DRIVER, "500 from cuModuleGetFunction");
  assert_null(function);
}

/* Beside the library, when nothing else is set: this program has no such folder. */
static void test_own_directory(void **state) {
  (void)state;
  static const oc__cuda_kernel kernel = {"pkg_that_is_nowhere", "native", "sm_90a", "k", 0};
  oc__cuda_function function;
  oc__cuda_directory_set(NULL);
  EXPECT_REFUSED(oc__cuda_kernel_find(0, NULL, &kernel, &function, &err), NO_PREBUILT,
                 "pkg_that_is_nowhere@native.sm_90a");
  oc__cuda_directory_set(scratch_dir);
}

static void test_context_is_put_back(void **state) {
  (void)state;
  static const oc__cuda_kernel kernels[] = {{"pkg", "native", "sm_90a", "context_a", 0},
                                            {"pkg", "native", "sm_90a", "context_b", 0},
                                            {"pkg", "native", "sm_90a", "context_c", 0},
                                            {"pkg", "native", "sm_90a", "absent_context", 0}};
  oc__cuda_function function;
  int depth;
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernels[0], &function, NULL), OC_OK); /* none was current */
  assert_null(fake_current_is(&depth));
  assert_int_equal(depth, 0);
  fake_current(fake_context(3)); /* another device's */
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernels[1], &function, NULL), OC_OK);
  assert_ptr_equal(fake_current_is(&depth), fake_context(3));
  assert_int_equal(depth, 1);
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernels[3], &function, NULL), OC_REFUSED);
  assert_ptr_equal(fake_current_is(&depth), fake_context(3));
  assert_int_equal(depth, 1);
  fake_reset();
  fake_current(fake_context(0)); /* the right one: nothing to push */
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernels[2], &function, NULL), OC_OK);
  assert_int_equal(fake_calls("cuCtxPushCurrent"), 0);
  assert_ptr_equal(fake_current_is(&depth), fake_context(0));
  assert_int_equal(depth, 1);
}

static void test_capture(void **state) {
  (void)state;
  static const oc__cuda_kernel kernel = {"pkg", "other", "sm_90a", "captured", 0};
  static char stream;
  oc__cuda_function function;
  fake_current(fake_context(0));
  for (int status = 1; status <= 2; status++) { /* active, invalidated */
    fake_capture(&stream, status);
    EXPECT_REFUSED(oc__cuda_kernel_find(0, &stream, &kernel, &function, &err), CAPTURE,
                   "pkg.other.captured is not loaded; call oc_cuda_prepare before");
  }
  fake_fail("cuStreamIsCapturing", 906, 0); /* the legacy stream, while another captures */
  EXPECT_REFUSED(oc__cuda_kernel_find(0, NULL, &kernel, &function, &err), CAPTURE,
                 "pkg.other.captured is not loaded; call oc_cuda_prepare before");
  fake_fail("cuStreamIsCapturing", 0, 0);
  assert_int_equal(fake_calls("cuModuleLoadData"), 0);
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernel, &function, NULL), OC_OK); /* another stream, before */
  const int calls = fake_calls(NULL);
  assert_int_equal(oc__cuda_kernel_find(0, &stream, &kernel, &function, NULL), OC_OK); /* then the capture may */
  assert_int_equal(fake_calls(NULL), calls);
}

/* A capture of another thread forbids unsafe calls to all threads whose mode is not relaxed. */
static void test_capture_mode(void **state) {
  (void)state;
  static const oc__cuda_kernel kernel = {"pkg", "other", "sm_90a", "mode", 0};
  static const oc__cuda_kernel failing = {"pkg", "none", "sm_90a", "mode", 0};
  oc__cuda_function function;
  assert_int_equal(fake_capture_mode(), 0);
  assert_int_equal(oc__cuda_kernel_find(6, NULL, &kernel, &function, NULL), OC_OK);
  assert_int_equal(fake_load_mode(), 2);
  assert_int_equal(fake_capture_mode(), 0);
  assert_int_equal(oc__cuda_kernel_find(6, NULL, &failing, &function, NULL), OC_REFUSED);
  assert_int_equal(fake_capture_mode(), 0);
}

static void test_shared_memory(void **state) {
  (void)state;
  static const oc__cuda_kernel plain = {"pkg", "native", "sm_90a", "plain", 48 << 10};
  static const oc__cuda_kernel wide = {"pkg", "native", "sm_90a", "wide", 200000};
  static const oc__cuda_kernel less = {"pkg", "native", "sm_90a", "wide", 100000};
  static const oc__cuda_kernel all = {"pkg", "native", "sm_90a", "all", 232448};
  static const oc__cuda_kernel over = {"pkg", "native", "sm_90a", "over", 232449};
  static const oc__cuda_kernel fixed = {"pkg", "native", "sm_90a", "fixed", 48 << 10};
  static const oc__cuda_kernel fixed_over = {"pkg", "native", "sm_90a", "fixed_over", 232000};
  static const oc__cuda_kernel small_chip = {"pkg", "mma", "sm_80", "small_chip", 150000};
  oc__cuda_function function;
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &plain, &function, NULL), OC_OK);
  assert_int_equal(fake_dynamic_shared(function), 0);
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &wide, &function, NULL), OC_OK);
  assert_int_equal(fake_dynamic_shared(function), 200000);
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &less, &function, NULL), OC_OK); /* not lowered */
  assert_int_equal(fake_dynamic_shared(function), 200000);
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &all, &function, NULL), OC_OK);
  assert_int_equal(fake_dynamic_shared(function), 232448);
  EXPECT_REFUSED(oc__cuda_kernel_find(0, NULL, &over, &function, &err), ARCH,
                 "over needs 232449 + 0 bytes of shared memory a block, sm_90 grants 232448");
  EXPECT_REFUSED(oc__cuda_kernel_find(2, NULL, &small_chip, &function, &err), ARCH,
                 "small_chip needs 150000 + 0 bytes of shared memory a block, sm_86 grants 101376");
  fake_static_shared(1024);
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &fixed, &function, NULL), OC_OK);
  assert_int_equal(fake_dynamic_shared(function), 48 << 10);
  EXPECT_REFUSED(oc__cuda_kernel_find(0, NULL, &fixed_over, &function, &err), ARCH,
                 "fixed_over needs 232000 + 1024 bytes of shared memory a block, sm_90 grants 232448");
}

/* Whatever call fails, it is named, nothing is kept, and the next try succeeds. */
static void test_each_call_fails(void **state) {
  (void)state;
  static const char *const calls[] = {
      "cuCtxGetCurrent",     "cuCtxPushCurrent",   "cuStreamIsCapturing", "cuModuleLoadData",
      "cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncSetAttribute",  "cuThreadExchangeStreamCaptureMode"};
  static const oc__cuda_kernel kernel = {"pkg", "flaky", "sm_90a", "flaky", 100000};
  static const char *const keys[] = {"flaky.sm_90a", "native.sm_90a", "mma.sm_80", "other.sm_90a", NULL};
  oc__cuda_function function;
  package_write("pkg", keys);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    char want[128];
    fake_reset();
    fake_fail(calls[i], 701, 0);
    snprintf(want, sizeof want, "701 from %s: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", calls[i]);
    oc_err err = {0};
    assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernel, &function, &err), OC_REFUSED);
    assert_int_equal(err.reason, OC_REASON_DRIVER);
    assert_int_equal(err.native, 701);
    assert_string_equal(err.detail, want);
    assert_null(fake_current_is(NULL));
    assert_int_equal(fake_capture_mode(), 0);
  }
  fake_reset();
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernel, &function, NULL), OC_OK);
}

static void test_loaded_modules(void **state) {
  (void)state;
  static const oc__cuda_kernel kernel = {"listed", "one", "sm_90a", "k", 0};
  static const char *const keys[] = {"one.sm_90a", NULL};
  oc_cuda_module seen[32];
  oc__cuda_function function;
  char digest[65];
  package_write("listed", keys);
  const int count = oc_cuda_modules(NULL, 0);
  assert_int_equal(oc__cuda_kernel_find(6, NULL, &kernel, &function, NULL), OC_OK);
  assert_int_equal(oc_cuda_modules(seen, 32), count + 1);
  assert_string_equal(seen[count].package, "listed");
  assert_string_equal(seen[count].key, "one.sm_90a");
  assert_int_equal(seen[count].device, 6);
  oc_digest_bytes("listed/one.sm_90a", sizeof "listed/one.sm_90a", digest, NULL);
  assert_string_equal(seen[count].sha256, digest);
}

static void test_long_names(void **state) {
  (void)state;
  static const oc__cuda_kernel kernel = {"a_package_with_a_name_that_has_no_room", "m", "sm_90a", "k", 0};
  oc__cuda_function function;
  oc_err err = {0};
  assert_int_equal(oc__cuda_kernel_find(0, NULL, &kernel, &function, &err), OC_BAD_ARG);
  assert_non_null(strstr(err.detail, "a_package_with_a_name_that_has_no_room"));
}

static void test_libraries(void **state) {
  (void)state;
  char path[256] = "unset";
  oc_err err = {0};
  for (int i = 0; i < OC_CUDA_LIBRARY_COUNT; i++) { /* this process has a framework's library in no way */
    oc_err refusal = {0};
    assert_int_equal(oc_cuda_library((oc_cuda_library_id)i, NULL, path, sizeof path, &refusal), OC_REFUSED);
    assert_int_equal(refusal.reason, OC_REASON_NOT_BUILT);
  }
  assert_int_equal(oc_cuda_library(OC_CUDA_LIBRARY_NVRTC, NULL, path, sizeof path, &err), OC_REFUSED);
  assert_string_equal(err.detail, "libnvrtc.so.13: the framework has loaded none");
  assert_string_equal(path, "unset");
  assert_int_equal(oc_cuda_library(OC_CUDA_LIBRARY_COUNT, NULL, path, sizeof path, NULL), OC_BAD_ARG);
  assert_string_equal(oc_cuda_library_word(OC_CUDA_LIBRARY_CUBLASLT), "cublasLt");
  assert_string_equal(oc_cuda_library_word(OC_CUDA_LIBRARY_COUNT), "unknown");
}

/* A library of that soname, made here and loaded under another name, as a framework does. */
static void test_library_found(void **state) {
  (void)state;
  char command[512], path[256], resolved[256];
  void *handle = NULL;
  oc_err err = {0};
  scratch_write("nccl.c", "int an_entry(void) { return 7; }\n", 33);
  snprintf(command, sizeof command, "${CC:-cc} -shared -fPIC -Wl,-soname,libnccl.so.2 -o '%s' '%s'",
           scratch_path("their_nccl.so"), scratch_path("nccl.c"));
  assert_int_equal(system(command), 0);
  void *theirs = dlopen(scratch_path("their_nccl.so"), RTLD_NOW | RTLD_LOCAL);
  assert_non_null(theirs);
  assert_int_equal(oc_cuda_library(OC_CUDA_LIBRARY_NCCL, &handle, path, sizeof path, &err), OC_OK);
  assert_non_null(realpath(scratch_path("their_nccl.so"), resolved));
  assert_string_equal(path, resolved);
  assert_non_null(dlsym(handle, "an_entry"));
  assert_int_equal(oc_cuda_library(OC_CUDA_LIBRARY_NCCL, NULL, path, 4, &err), OC_BAD_ARG);
  dlclose(handle);
  dlclose(theirs);
}

/* A family without CUDA modules asks nothing; the others load what the device takes, or say which binary is not there
 * (here: none is). */
static void test_prepare(void **state) {
  (void)state;
  for (int family = 0; family < OC_FAMILY_COUNT; family++) {
    oc_err err = {0};
    fake_reset();
    const oc_status status = oc_cuda_prepare(6, (oc_family)family, &err);
    if (fake_calls("cuStreamIsCapturing") == 0) {
      assert_int_equal(status, OC_OK);
      continue;
    }
    assert_int_equal(status, OC_REFUSED);
    assert_int_equal(err.reason, OC_REASON_NO_PREBUILT);
    oc_err capture = {0};
    fake_fail("cuStreamIsCapturing", 906, 0);
    assert_int_equal(oc_cuda_prepare(6, (oc_family)family, &capture), OC_REFUSED);
    assert_int_equal(capture.reason, OC_REASON_CAPTURE);
  }
  fake_reset();
  assert_int_equal(oc_cuda_prepare(7, OC_FAMILY_TRIATTN, NULL), OC_OK); /* sm_75: nothing is built for it */
  assert_int_equal(fake_calls("cuModuleLoadData"), 0);
  assert_int_equal(oc_cuda_prepare(0, OC_FAMILY_COUNT, NULL), OC_BAD_ARG);
}

#define CASE(function) cmocka_unit_test_setup(function, before)

int main(void) {
  const struct CMUnitTest tests[] = {CASE(test_warm_asks_nothing),   CASE(test_many_kernels),
                                     CASE(test_threads_load_once),   CASE(test_digest_before_driver),
                                     CASE(test_wrong_architecture),  CASE(test_devices),
                                     CASE(test_missing_binary),      CASE(test_own_directory),
                                     CASE(test_context_is_put_back), CASE(test_capture),
                                     CASE(test_capture_mode),        CASE(test_shared_memory),
                                     CASE(test_each_call_fails),     CASE(test_loaded_modules),
                                     CASE(test_long_names),          CASE(test_libraries),
                                     CASE(test_library_found),       CASE(test_prepare)};
  return cmocka_run_group_tests(tests, setup, scratch_remove);
}
