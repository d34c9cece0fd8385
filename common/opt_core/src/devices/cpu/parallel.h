/* SPDX-License-Identifier: Apache-2.0 */
/* Spreads blocks of work over threads. Which thread runs a block never changes a bit: a block's result depends on its
 * index only. One thread, and any number in a forked process, runs in the
 * caller without touching the OpenMP pool. */
#ifndef OC_PARALLEL_H
#define OC_PARALLEL_H

#include <stdint.h>

/* body(block, thread, context) for every block in [0, blocks); thread in [0, threads). Blocks are handed out in order.
 */
void oc__parallel(int64_t blocks, int threads, void (*body)(int64_t block, int thread, void *context), void *context);

/* exec.threads, or oc_cpu_threads() when that is 0, at most `blocks` and at least 1; 1 in a forked process. */
int oc__thread_count(int wanted, int64_t blocks);

#endif
