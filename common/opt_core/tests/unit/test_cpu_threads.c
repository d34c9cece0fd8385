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

#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

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
  if (child == 0) _exit(body());
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* First of the pool's tests: it needs a process that has not used the pool. */
static void test_fork_before_use_keeps_threads(void **state) {
  (void)state;
  omp_set_num_threads(64);
  int in_fork = in_child(oc_cpu_threads);
  assert_int_equal(in_fork, oc_cpu_threads());
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

static int grandchild(void) { return in_child(oc_cpu_threads); }

static void test_fork_after_use(void **state) {
  (void)state;
  oc__cpu_pool_used();
  omp_set_num_threads(8);
  assert_int_equal(in_child(oc_cpu_threads), 1);
  assert_int_equal(in_child(grandchild), 1);
  assert_true(oc_cpu_threads() >= 1);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
#ifdef _OPENMP
      cmocka_unit_test(test_fork_before_use_keeps_threads),
      cmocka_unit_test(test_follows_the_framework),
      cmocka_unit_test(test_affinity_bounds),
      cmocka_unit_test(test_fork_after_use),
#endif
      cmocka_unit_test_setup_teardown(test_version_2, make_root, remove_root),
      cmocka_unit_test_setup_teardown(test_version_1, make_root, remove_root),
      cmocka_unit_test_setup_teardown(test_malformed, make_root, remove_root)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
