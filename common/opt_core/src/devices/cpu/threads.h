/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OC_CPU_THREADS_H
#define OC_CPU_THREADS_H

/* Says that a parallel region of this library has run or is about to: a child forked later stays on one thread. */
void oc__cpu_pool_used(void);

/* Processors that cgroup quotas grant, rounded up; 0 when nothing limits them. proc_cgroup is the text file that
 * /proc/self/cgroup is, sys_root the directory where /sys/fs/cgroup is. */
int oc__cgroup_processors(const char *proc_cgroup, const char *sys_root);

#endif
