/* SPDX-License-Identifier: Apache-2.0 */
/* The process's scratch buffer: kept, grown, lent once, and never inherited by a child as lent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opt_core/mem.h"

static void keeps_and_grows(void **state) {
  (void)state;
  oc_scratch a = {0};
  (void)oc_scratch_trim();
  assert_int_equal(oc_scratch_acquire(1000, &a, NULL), OC_OK);
  assert_true(a.is_kept && a.bytes >= 1000 && (uintptr_t)a.data % OC_SCRATCH_ALIGN == 0);
  void *const first = a.data;
  memset(a.data, 1, a.bytes);
  oc_scratch_release(&a);
  assert_null(a.data);
  oc_scratch_release(&a); /* a cleared one is left alone */
  assert_int_equal(oc_scratch_acquire(500, &a, NULL), OC_OK);
  assert_ptr_equal(a.data, first);
  oc_scratch_release(&a);
  assert_int_equal(oc_scratch_acquire((size_t)5 << 20, &a, NULL), OC_OK);
  assert_int_equal((uintptr_t)a.data % ((size_t)2 << 20), 0);
  memset(a.data, 2, a.bytes);
  oc_scratch_release(&a);
  assert_int_equal(oc_scratch_kept_bytes(), (size_t)6 << 20);
  assert_int_equal(oc_scratch_trim(), (size_t)6 << 20);
  assert_int_equal(oc_scratch_kept_bytes(), 0);
  assert_int_equal(oc_scratch_trim(), 0);
}

static void second_loan_is_a_temporary(void **state) {
  (void)state;
  oc_scratch a = {0}, b = {0};
  assert_int_equal(oc_scratch_acquire(100, &a, NULL), OC_OK);
  assert_int_equal(oc_scratch_acquire(300, &b, NULL), OC_OK);
  assert_true(a.is_kept && !b.is_kept && a.data != b.data && b.bytes >= 300);
  memset(b.data, 3, b.bytes);
  assert_int_equal(oc_scratch_trim(), 0); /* lent */
  oc_scratch_release(&b);
  oc_scratch_release(&a);
  assert_true(oc_scratch_trim() >= 100);
}

static void nothing_asked_nothing_lent(void **state) {
  (void)state;
  oc_scratch a = {.data = &a, .bytes = 1, .is_kept = 1};
  assert_int_equal(oc_scratch_acquire(0, &a, NULL), OC_OK);
  assert_null(a.data);
  oc_scratch_release(&a);
  oc_scratch_release(NULL);
  oc_err err = {0};
  assert_int_equal(oc_scratch_acquire(1, NULL, &err), OC_BAD_ARG);
}

static void too_much_is_no_mem_with_the_bytes(void **state) {
  (void)state;
  oc_scratch a = {0}, b = {0};
  oc_err err = {0};
  assert_int_equal(oc_scratch_acquire(SIZE_MAX - 5, &a, &err), OC_NO_MEM);
  assert_non_null(strstr(err.detail, "18446744073709551610"));
  assert_null(a.data);
  assert_int_equal(oc_scratch_acquire(64, &a, NULL), OC_OK); /* the buffer was given back */
  assert_true(a.is_kept);
  assert_int_equal(oc_scratch_acquire(SIZE_MAX / 2, &b, NULL), OC_NO_MEM); /* a temporary fails alike */
  oc_scratch_release(&a);
}

static void a_child_does_not_wait_for_its_parents_loan(void **state) {
  (void)state;
  oc_scratch lent = {0};
  assert_int_equal(oc_scratch_acquire(4096, &lent, NULL), OC_OK);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    oc_scratch own = {0}, next = {0};
    const int taken = oc_scratch_acquire(4096, &own, NULL) == OC_OK && own.is_kept && own.data != lent.data;
    oc_scratch_release(&own);
    const int again = oc_scratch_acquire(100, &next, NULL) == OC_OK && next.is_kept;
    _exit(taken && again ? 0 : 1);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  oc_scratch_release(&lent);
}

enum { WORKERS = 4, ROUNDS = 3000 };

/* Fills its loan with its own number and finds it unchanged; returns the number of loans. */
static void *work(void *number) {
  const unsigned char mine = (unsigned char)(uintptr_t)number;
  intptr_t done = 0;
  for (int i = 0; i < ROUNDS; ++i) {
    oc_scratch s = {0};
    const size_t bytes = (size_t)(64 + 512 * (i % 7));
    if (oc_scratch_acquire(bytes, &s, NULL) != OC_OK) break;
    memset(s.data, mine, bytes);
    const unsigned char *p = s.data;
    size_t same = 0;
    while (same < bytes && p[same] == mine) ++same;
    oc_scratch_release(&s);
    if (same != bytes) break;
    ++done;
  }
  return (void *)done;
}

static void loans_of_many_threads_never_share(void **state) {
  (void)state;
  pthread_t thread[WORKERS];
  for (uintptr_t i = 0; i < WORKERS; ++i) assert_int_equal(pthread_create(&thread[i], NULL, work, (void *)(i + 1)), 0);
  for (int i = 0; i < WORKERS; ++i) {
    void *done = NULL;
    assert_int_equal(pthread_join(thread[i], &done), 0);
    assert_int_equal((intptr_t)done, ROUNDS);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(keeps_and_grows),
      cmocka_unit_test(second_loan_is_a_temporary),
      cmocka_unit_test(nothing_asked_nothing_lent),
      cmocka_unit_test(too_much_is_no_mem_with_the_bytes),
      cmocka_unit_test(a_child_does_not_wait_for_its_parents_loan),
      cmocka_unit_test(loans_of_many_threads_never_share),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
