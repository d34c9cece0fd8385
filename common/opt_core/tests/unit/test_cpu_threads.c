/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "devices/cpu/parallel.h"
#include "devices/cpu/threads.h"
#include "opt_core/device.h"

static char root[64];

static void put(const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", root, name);
  for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
    *slash = '\0';
    mkdir(path, 0700);
  }
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static int processors(const char *proc_text) {
  char proc[128];
  put("proc", proc_text);
  snprintf(proc, sizeof proc, "%s/proc", root);
  return oc__cgroup_processors(proc, root);
}

static int make_root(void **state) {
  (void)state;
  strcpy(root, "/tmp/oc_threads_XXXXXX");
  return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command) == 0 ? 0 : -1;
}

static void test_version_2(void **state) {
  (void)state;
  put("cpu.max", "max 100000\n");
  assert_int_equal(processors("0::/\n"), 0);
  put("a/b/cpu.max", "150000 100000\n");
  assert_int_equal(processors("0::/a/b\n"), 2); /* 1.5 rounded up */
  assert_int_equal(processors("0::/a\n"), 0);
  put("a/cpu.max", "100000 100000\n"); /* the parent is stricter */
  assert_int_equal(processors("0::/a/b\n"), 1);
  put("a/cpu.max", "900000 100000\n"); /* the child is */
  assert_int_equal(processors("0::/a/b\n"), 2);
  put("cpu.max", "300000 100000\n");
  assert_int_equal(processors("0::/not/mounted/here\n"), 3);
  assert_int_equal(processors("0::/../outside\n"), 3);
  put("cpu.max", "1000 100000\n");
  assert_int_equal(processors("0::/\n"), 1);
}

static void test_version_1(void **state) {
  (void)state;
  put("cpu,cpuacct/g/cpu.cfs_quota_us", "250000\n");
  put("cpu,cpuacct/g/cpu.cfs_period_us", "100000\n");
  assert_int_equal(processors("5:memory:/g\n4:cpu,cpuacct:/g\n"), 3);
  put("cpu,cpuacct/g/cpu.cfs_quota_us", "-1\n");
  assert_int_equal(processors("4:cpu,cpuacct:/g\n"), 0);
  put("cpu/g/cpu.cfs_quota_us", "400000\n");
  put("cpu/g/cpu.cfs_period_us", "100000\n");
  assert_int_equal(processors("4:cpu:/g\n"), 4);
  assert_int_equal(processors("4:cpuset:/g\n"), 0);
  assert_int_equal(processors("4:cpuacct,cpu:/g\n"), 4); /* mounted as cpu */
}

static void test_malformed(void **state) {
  (void)state;
  assert_int_equal(oc__cgroup_processors("/nonexistent/cgroup", root), 0);
  assert_int_equal(processors(""), 0);
  assert_int_equal(processors("0\n"), 0);
  assert_int_equal(processors("0:\n::\n"), 0);
  put("x/cpu.max", "");
  assert_int_equal(processors("0::/x\n"), 0);
  put("x/cpu.max", "many of them\n");
  assert_int_equal(processors("0::/x\n"), 0);
  put("x/cpu.max", "100000 0\n");
  assert_int_equal(processors("0::/x\n"), 0);
  put("x/cpu.max", "9223372036854775807 1\n");
  assert_int_equal(processors("0::/x\n"), INT32_MAX);
}

#ifdef _OPENMP
static int in_child(int (*body)(void)) {
  pid_t child = fork();
  if (child == 0) {
    alarm(60); /* a region on a pool whose threads are gone waits for ever */
    _exit(body());
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static int grandchild(void) { return in_child(oc_cpu_threads); }

enum { BLOCKS = 1000 };

typedef struct shares {
  atomic_int blocks, others; /* blocks run; those among them that another thread than the caller's ran */
} shares;

static pthread_t caller;

static void take_block(int64_t block, int thread, void *context) {
  (void)block;
  shares *work = context;
  atomic_fetch_add(&work->blocks, 1);
  if (thread != 0 || !pthread_equal(pthread_self(), caller)) atomic_fetch_add(&work->others, 1);
}

/* 0 when neither an explicit nor the default count starts a thread, and all blocks run. */
static int run_regions(void) {
  shares work = {0};
  caller = pthread_self();
  if (oc__thread_count(4, 100) != 1 || oc__thread_count(0, 100) != 1 || oc__thread_count(4, 0) != 1) return 1;
  oc__parallel(BLOCKS, oc__thread_count(4, BLOCKS), take_block, &work);
  oc__parallel(BLOCKS, 4, take_block, &work); /* a count from before the fork */
  return atomic_load(&work.blocks) == 2 * BLOCKS && atomic_load(&work.others) == 0 ? 0 : 2;
}

static int processors_granted(void) {
  cpu_set_t mask;
  int limit = oc__cgroup_processors("/proc/self/cgroup", "/sys/fs/cgroup");
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 0;
  return limit > 0 && limit < CPU_COUNT(&mask) ? limit : CPU_COUNT(&mask);
}

/* First of the pool's tests: this process has not used the pool, and the library cannot know that. */
static void test_fork_without_a_region(void **state) {
  (void)state;
  omp_set_num_threads(64);
  assert_int_equal(in_child(oc_cpu_threads), 1);
  assert_int_equal(in_child(grandchild), 1);
  assert_int_equal(in_child(run_regions), 0);
  assert_false(oc__is_forked());
}

static void test_follows_the_framework(void **state) {
  (void)state;
  cpu_set_t mask;
  assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
  omp_set_num_threads(1);
  assert_int_equal(oc_cpu_threads(), 1);
  omp_set_num_threads(2);
  int two = oc_cpu_threads();
  assert_in_range(two, 1, 2);
  if (CPU_COUNT(&mask) >= 2 && oc__cgroup_processors("/proc/self/cgroup", "/sys/fs/cgroup") != 1)
    assert_int_equal(two, 2);
  omp_set_num_threads(100000);
  assert_in_range(oc_cpu_threads(), 1, CPU_COUNT(&mask));
}

static void test_affinity_bounds(void **state) {
  (void)state;
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &all) && CPU_COUNT(&one) == 0) CPU_SET(cpu, &one);
  omp_set_num_threads(8);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(oc_cpu_threads(), 1);
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

/* The pool's user here is this test, as a framework is elsewhere: the library has no part in it. */
static void test_fork_after_a_foreign_region(void **state) {
  (void)state;
  int members = 0;
#pragma omp parallel num_threads(4)
#pragma omp atomic
  members++;
  assert_in_range(members, 1, 4);
  omp_set_num_threads(8);
  assert_int_equal(in_child(oc_cpu_threads), 1);
  assert_int_equal(in_child(grandchild), 1);
  assert_int_equal(in_child(run_regions), 0);
  assert_false(oc__is_forked());
  assert_int_equal(oc__thread_count(4, 100), 4); /* the parent keeps what it asked for */
}

static void test_fork_after_our_region(void **state) {
  (void)state;
  shares work = {0};
  oc__parallel(BLOCKS, 4, take_block, &work);
  assert_int_equal(work.blocks, BLOCKS);
  omp_set_num_threads(8);
  assert_int_equal(in_child(oc_cpu_threads), 1);
  assert_int_equal(in_child(run_regions), 0);
  assert_true(oc_cpu_threads() >= 1);
}

/* A child that execs is a new process: it has what this one has under the same setting. */
static int exec_self(void) {
  setenv("OMP_NUM_THREADS", "2", 1);
  execl("/proc/self/exe", "test_cpu_threads", "count", (char *)NULL);
  return 99;
}

static void test_fork_and_exec(void **state) {
  (void)state;
  omp_set_num_threads(2);
  int here = oc_cpu_threads();
  assert_int_equal(in_child(exec_self), here);
  if (processors_granted() >= 2) assert_int_equal(here, 2);
}
#endif

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "count") == 0) return oc_cpu_threads(); /* exec_self */
  const struct CMUnitTest tests[] = {
#ifdef _OPENMP
      cmocka_unit_test(test_fork_without_a_region),
      cmocka_unit_test(test_follows_the_framework),
      cmocka_unit_test(test_affinity_bounds),
      cmocka_unit_test(test_fork_after_a_foreign_region),
      cmocka_unit_test(test_fork_after_our_region),
      cmocka_unit_test(test_fork_and_exec),
#endif
      cmocka_unit_test_setup_teardown(test_version_2, make_root, remove_root),
      cmocka_unit_test_setup_teardown(test_version_1, make_root, remove_root),
      cmocka_unit_test_setup_teardown(test_malformed, make_root, remove_root)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
