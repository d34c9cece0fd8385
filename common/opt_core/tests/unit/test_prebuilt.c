/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "opt_core/activation.h"
#include "scratch.h"

enum { BYTES = 1000 };
static unsigned char first[BYTES], second[BYTES];

static void write_index(const char *text) { scratch_write("PREBUILT.json", text, strlen(text)); }

static void write_package(void) {
  char a[65], b[65], index[1024];
  for (int i = 0; i < BYTES; i++) first[i] = (unsigned char)i, second[i] = (unsigned char)(i * 7 + 1);
  oc_digest_bytes(first, BYTES, a, NULL);
  oc_digest_bytes(second, BYTES, b, NULL);
  snprintf(index, sizeof index,
           "{\"schema\": 1, \"package\": \"pkg\", \"binaries\": {"
           "\"sm_90a\": {\"file\": \"one.cubin\", \"sha256\": \"%s\", \"bytes\": 1000},"
           "\"sm_80\": {\"file\": \"two.cubin\", \"sha256\": \"%s\", \"bytes\": 1000},"
           "\"gone\": {\"file\": \"gone.cubin\", \"sha256\": \"%s\", \"bytes\": 1000}}}",
           a, b, b);
  write_index(index);
  scratch_write("one.cubin", first, BYTES);
  scratch_write("two.cubin", second, BYTES);
}

static void check_fails(const char *dir, const char *key, oc_status status, oc_reason reason, const char *detail) {
  unsigned char *bytes = first;
  size_t count = 5;
  oc_err err = {0};
  assert_int_equal(oc_prebuilt_read(dir, key, &bytes, &count, &err), status);
  assert_int_equal(err.reason, reason);
  if (strncmp(err.detail, detail, strlen(detail)) != 0) fail_msg("'%s' does not start with '%s'", err.detail, detail);
  assert_null(bytes);
  assert_int_equal(count, 0);
}

static void check_refused(const char *key, oc_reason reason, const char *detail) {
  check_fails(scratch_dir, key, OC_REFUSED, reason, detail);
}

static void test_good(void **state) {
  (void)state;
  unsigned char *bytes;
  size_t count;
  write_package();
  assert_int_equal(oc_prebuilt_read(scratch_dir, "sm_90a", &bytes, &count, NULL), OC_OK);
  assert_int_equal(count, BYTES);
  assert_memory_equal(bytes, first, BYTES);
  oc_bytes_free(bytes);
  assert_int_equal(oc_prebuilt_read(scratch_dir, "sm_80", &bytes, &count, NULL), OC_OK);
  assert_memory_equal(bytes, second, BYTES);
  oc_bytes_free(bytes);
  oc_bytes_free(NULL);
}

/* Whatever the bytes on disk became, they are refused and stay as they are. */
static void check_changed(const unsigned char *bytes, size_t count, const char *detail) {
  unsigned char after[2 * BYTES];
  scratch_write("one.cubin", bytes, count);
  check_refused("sm_90a", OC_REASON_DIGEST, detail);
  FILE *file = fopen(scratch_path("one.cubin"), "rb");
  assert_non_null(file);
  assert_int_equal(fread(after, 1, sizeof after, file), count);
  fclose(file);
  if (count) assert_memory_equal(after, bytes, count);
}

static void test_changed_files(void **state) {
  (void)state;
  unsigned char copy[BYTES + 1] = {0};
  write_package();
  memcpy(copy, first, BYTES);
  check_changed(copy, 0, "pkg@sm_90a: 0 bytes!=1000");
  check_changed(copy, 1, "pkg@sm_90a: 1 bytes!=1000");
  check_changed(copy, BYTES - 1, "pkg@sm_90a: 999 bytes!=1000");
  check_changed(copy, BYTES + 1, "pkg@sm_90a: more than 1000 bytes");
  int flips = 0;
  for (int at = 0; at < BYTES; at += 111, flips++) {
    copy[at] ^= 1;
    check_changed(copy, BYTES, "pkg@sm_90a: ");
    copy[at] ^= 1;
  }
  assert_int_equal(flips, 10);
  check_changed(second, BYTES, "pkg@sm_90a: ");
}

static void test_swapped_files(void **state) {
  (void)state;
  write_package();
  assert_int_equal(rename(scratch_path("one.cubin"), scratch_path("x")), 0);
  assert_int_equal(rename(scratch_path("two.cubin"), scratch_path("one.cubin")), 0);
  assert_int_equal(rename(scratch_path("x"), scratch_path("two.cubin")), 0);
  check_refused("sm_90a", OC_REASON_DIGEST, "pkg@sm_90a");
  check_refused("sm_80", OC_REASON_DIGEST, "pkg@sm_80");
}

static void test_missing(void **state) {
  (void)state;
  write_package();
  check_refused("sm_100", OC_REASON_NO_PREBUILT, "pkg@sm_100");
  check_refused("gone", OC_REASON_NO_PREBUILT, "pkg@gone");
  check_fails("/nonexistent/some_package", "sm_80", OC_REFUSED, OC_REASON_NO_PREBUILT, "some_package@sm_80");
  check_fails(NULL, "k", OC_BAD_ARG, OC_REASON_NONE, "dir is NULL");
  check_fails(scratch_dir, NULL, OC_BAD_ARG, OC_REASON_NONE, "key is NULL");
}

/* Root reads everything, so the reader is a child that gives root up. */
static int read_as_nobody(const char *key, oc_err *err) {
  unsigned char *bytes;
  size_t count;
  if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return -1;
  return oc_prebuilt_read(scratch_dir, key, &bytes, &count, err);
}

static void check_forbidden(const char *name) {
  assert_int_equal(chmod(scratch_path(name), 0), 0);
  pid_t child = fork();
  if (child == 0) {
    oc_err err = {0};
    int status = read_as_nobody("sm_90a", &err);
    _exit(status == OC_IO && err.native == EACCES && strstr(err.detail, name) ? 0 : 1);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  assert_int_equal(chmod(scratch_path(name), 0644), 0);
}

static void test_no_permission(void **state) {
  (void)state;
  write_package();
  check_forbidden("one.cubin");
  check_forbidden("PREBUILT.json");
}

static void test_directory_in_place_of_file(void **state) {
  (void)state;
  write_package();
  assert_int_equal(unlink(scratch_path("one.cubin")), 0);
  assert_int_equal(mkdir(scratch_path("one.cubin"), 0755), 0);
  check_fails(scratch_dir, "sm_90a", OC_IO, OC_REASON_NONE, scratch_dir);
  assert_int_equal(rmdir(scratch_path("one.cubin")), 0);
}

#define SHA "0000000000000000000000000000000000000000000000000000000000000000"
#define INDEX(entry) "{\"schema\": 1, \"package\": \"p\", \"binaries\": {\"k\": " entry "}}"

static void test_broken_index(void **state) {
  (void)state;
  static const struct {
    const char *text, *detail;
  } rows[] = {
      {"", "PREBUILT.json: line "},
      {"{\"schema\": 1", "PREBUILT.json: line 1"},
      {"[]", "PREBUILT.json: "},
      {"{\"schema\": 2, \"package\": \"p\", \"binaries\": {}}", "PREBUILT.json: schema is 2"},
      {"{\"schema\": 1, \"package\": \"p\", \"binaries\": []}", "PREBUILT.json: binaries is no object"},
      {"{\"schema\": 1, \"package\": \"p\", \"binaries\": {}, \"more\": 1}", "PREBUILT.json: 1 object item(s) left"},
      {"{\"schema\": 1, \"binaries\": {}}", "PREBUILT.json: Object item not found: package"},
      {INDEX("3"), "PREBUILT.json: binaries.k: "},
      {INDEX("{\"file\": \"f\", \"sha256\": \"" SHA "\"}"), "PREBUILT.json: binaries.k: Object item not found: bytes"},
      {INDEX("{\"file\": \"../f\", \"sha256\": \"" SHA "\", \"bytes\": 3}"), "PREBUILT.json: binaries.k.file: ../f"},
      {INDEX("{\"file\": \"/etc/passwd\", \"sha256\": \"" SHA "\", \"bytes\": 3}"), "PREBUILT.json: binaries.k.file"},
      {INDEX("{\"file\": \"\", \"sha256\": \"" SHA "\", \"bytes\": 3}"), "PREBUILT.json: binaries.k.file"},
      {INDEX("{\"file\": \"..\", \"sha256\": \"" SHA "\", \"bytes\": 3}"), "PREBUILT.json: binaries.k.file"},
      {INDEX("{\"file\": \"f\", \"sha256\": \"00\", \"bytes\": 3}"), "PREBUILT.json: binaries.k.sha256"},
      {INDEX("{\"file\": \"f\", \"sha256\": \"" SHA "\", \"bytes\": 0}"),
       "PREBUILT.json: binaries.k.bytes: 0 is outside"},
      {INDEX("{\"file\": \"f\", \"sha256\": \"" SHA "\", \"bytes\": -7}"), "PREBUILT.json: binaries.k.bytes: -7"},
      {INDEX("{\"file\": \"f\", \"sha256\": \"" SHA "\", \"bytes\": 9999999999}"), "PREBUILT.json: binaries.k.bytes"},
      {INDEX("{\"file\": \"f\", \"file\": \"g\", \"sha256\": \"" SHA "\", \"bytes\": 3}"),
       "PREBUILT.json: line 1: dupl"}};
  int cases = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, cases++) {
    write_index(rows[i].text);
    check_refused("k", OC_REASON_KIT_TABLE, rows[i].detail);
  }
  assert_int_equal(cases, 18);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good),          cmocka_unit_test(test_changed_files),
      cmocka_unit_test(test_swapped_files), cmocka_unit_test(test_missing),
      cmocka_unit_test(test_no_permission), cmocka_unit_test(test_directory_in_place_of_file),
      cmocka_unit_test(test_broken_index)};
  return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
