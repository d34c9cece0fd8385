/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OC_CPU_THREADS_H
#define OC_CPU_THREADS_H

/* True in a process that was forked, and did not exec, since the library was loaded: its OpenMP pool is not to be used.
 */
int oc__is_forked(void);

/* Processors that cgroup quotas grant, rounded up; 0 when nothing limits them. proc_cgroup is the text file that
 * /proc/self/cgroup is, sys_root the directory where /sys/fs/cgroup is. */
int oc__cgroup_processors(const char *proc_cgroup, const char *sys_root);

#endif
