/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* sched_getaffinity */
#include "devices/cpu/threads.h"

#include "opt_core/device.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* ---- fork ------------------------------------------------------------------------------------------------------- */

static atomic_int is_forked;

static void after_fork_in_child(void) { atomic_store_explicit(&is_forked, 1, memory_order_relaxed); }

/* At load, and not at the first parallel region: whoever shares the pool may have run one before this library did. */
__attribute__((constructor)) static void watch_forks(void) { (void)pthread_atfork(NULL, NULL, after_fork_in_child); }

int oc__is_forked(void) { return atomic_load_explicit(&is_forked, memory_order_relaxed); }

/* ---- cgroup quotas ---------------------------------------------------------------------------------------------- */

/* Reads "<quota> <period>" (v2: one file) or two files (v1); 0 for "max", -1, a missing or a malformed file. */
static int quota_processors(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  long long count = quota / period + (quota % period != 0);
  return count > INT_MAX ? INT_MAX : (int)count;
}

static long long read_number(const char *path) {
  long long value = 0;
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  if (fscanf(file, "%lld", &value) != 1) value = 0;
  fclose(file);
  return value;
}

static int v2_processors(const char *directory) {
  char path[PATH_MAX];
  long long quota = 0, period = 0;
  if (snprintf(path, sizeof path, "%s/cpu.max", directory) >= (int)sizeof path) return 0;
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  if (fscanf(file, "%lld %lld", &quota, &period) != 2) quota = 0; /* "max 100000" too */
  fclose(file);
  return quota_processors(quota, period);
}

static int v1_processors(const char *directory) {
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory) >= (int)sizeof path) return 0;
  long long quota = read_number(path);
  if (snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory) >= (int)sizeof path) return 0;
  return quota_processors(quota, read_number(path));
}

static int lesser_limit(int a, int b) { return a == 0 || (b != 0 && b < a) ? b : a; }

/* The strictest limit from mount/group up to mount. In a container the group's path may lie outside what is mounted;
 * then the mount itself is the group. */
static int walk_up(const char *mount, const char *group, int (*processors)(const char *)) {
  char path[PATH_MAX];
  size_t mount_bytes = strlen(mount);
  int limit = 0;
  if (snprintf(path, sizeof path, "%s%s", mount, group) >= (int)sizeof path) return processors(mount);
  for (;;) {
    limit = lesser_limit(limit, processors(path));
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) < mount_bytes) return limit;
    *slash = '\0';
  }
}

static int names_cpu_controller(const char *controllers) {
  size_t bytes;
  for (; *controllers; controllers += bytes + (controllers[bytes] == ',')) {
    bytes = strcspn(controllers, ",");
    if (bytes == 3 && memcmp(controllers, "cpu", 3) == 0) return 1;
  }
  return 0;
}

/* One line of /proc/self/cgroup: `0::/group` (v2) or `3:cpu,cpuacct:/group` (v1). */
static int line_processors(char *line, const char *sys_root) {
  char mount[PATH_MAX];
  line[strcspn(line, "\n")] = '\0';
  char *controllers = strchr(line, ':');
  char *group = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!group) return 0;
  *group++ = '\0';
  controllers++;
  if (*controllers == '\0') return walk_up(sys_root, group, v2_processors);
  if (!names_cpu_controller(controllers)) return 0;
  if (snprintf(mount, sizeof mount, "%s/%s", sys_root, controllers) >= (int)sizeof mount) return 0;
  int limit = walk_up(mount, group, v1_processors);
  if (snprintf(mount, sizeof mount, "%s/cpu", sys_root) >= (int)sizeof mount) return limit;
  return lesser_limit(limit, walk_up(mount, group, v1_processors));
}

int oc__cgroup_processors(const char *proc_cgroup, const char *sys_root) {
  char line[PATH_MAX];
  int limit = 0;
  FILE *file = fopen(proc_cgroup, "re");
  if (!file) return 0;
  while (fgets(line, sizeof line, file)) limit = lesser_limit(limit, line_processors(line, sys_root));
  fclose(file);
  return limit;
}

/* ---- the answer ------------------------------------------------------------------------------------------------- */

#ifdef _OPENMP
static int cgroup_limit;
static pthread_once_t cgroup_once = PTHREAD_ONCE_INIT;

static void read_cgroup(void) { cgroup_limit = oc__cgroup_processors("/proc/self/cgroup", "/sys/fs/cgroup"); }

/* The kernel answers EINVAL while the mask is too small for the machine: the mask grows until it fits. */
static int affinity_processors(void) {
  cpu_set_t fixed;
  if (sched_getaffinity(0, sizeof fixed, &fixed) == 0) return CPU_COUNT(&fixed);
  for (int cpus = 4096; errno == EINVAL && cpus <= 1 << 18; cpus *= 4) {
    cpu_set_t *mask = CPU_ALLOC((size_t)cpus);
    if (!mask) return 0;
    size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
    int count = sched_getaffinity(0, bytes, mask) == 0 ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (count > 0) return count;
    errno = EINVAL;
  }
  return 0;
}

int oc_cpu_threads(void) {
  if (oc__is_forked()) return 1;
  pthread_once(&cgroup_once, read_cgroup);
  int threads = omp_get_max_threads();
  int granted = lesser_limit(affinity_processors(), cgroup_limit);
  if (granted > 0 && threads > granted) threads = granted;
  return threads <= 1 ? 1 : threads;
}
#else
int oc_cpu_threads(void) { return 1; }
#endif
