/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <cmocka.h>

#include "opt_core/activation.h"
#include "scratch.h"

/* FIPS 180-4 examples: the empty message, "abc", and a million times 'a'. */
static const char *const empty_digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
static const char *const abc_digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
static const char *const million_digest = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

static void check_file(const char *bytes, size_t count, const char *want) {
  char digest[65], from_bytes[65];
  scratch_write("data", bytes, count);
  assert_int_equal(oc_digest_file(scratch_path("data"), digest, NULL), OC_OK);
  assert_string_equal(digest, want);
  assert_int_equal(oc_digest_bytes(bytes, count, from_bytes, NULL), OC_OK);
  assert_string_equal(from_bytes, want);
}

static void test_known_answers(void **state) {
  (void)state;
  char *million = malloc(1000000);
  memset(million, 'a', 1000000);
  check_file("", 0, empty_digest);
  check_file("abc", 3, abc_digest);
  check_file(million, 1000000, million_digest);
  free(million);
}

static void test_failures(void **state) {
  (void)state;
  char digest[65];
  oc_err err = {0};
  assert_int_equal(oc_digest_file(scratch_path("absent"), digest, &err), OC_IO);
  assert_int_equal(err.native, ENOENT);
  assert_non_null(strstr(err.detail, "absent"));
  err = (oc_err){0};
  assert_int_equal(oc_digest_file(scratch_dir, digest, &err), OC_IO);
  assert_int_equal(err.native, EISDIR);
  assert_int_equal(oc_digest_bytes(NULL, 5, digest, NULL), OC_BAD_ARG);
  assert_int_equal(oc_digest_bytes(NULL, 0, digest, NULL), OC_OK);
  assert_string_equal(digest, empty_digest);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_known_answers), cmocka_unit_test(test_failures)};
  return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
