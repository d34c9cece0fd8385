/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/cpu/parallel.h"

#include <stdatomic.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "devices/cpu/threads.h"
#include "opt_core/device.h"

int oc__thread_count(int wanted, int64_t blocks) {
  int threads = wanted > 0 ? wanted : oc_cpu_threads();
  if (oc__is_forked()) return 1;
  if (threads > blocks) threads = (int)blocks;
  return threads < 1 ? 1 : threads;
}

void oc__parallel(int64_t blocks, int threads, void (*body)(int64_t block, int thread, void *context), void *context) {
#ifdef _OPENMP
  if (threads > 1 && !oc__is_forked()) {
    atomic_llong next = 0; /* blocks cost unequal time at the edges: hand them out one by one */
#pragma omp parallel num_threads(threads) shared(next)
    {
      const int thread = omp_get_thread_num();
      for (int64_t b = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed); b < blocks;
           b = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed))
        body(b, thread, context);
    }
    return;
  }
#else
  (void)threads;
#endif
  for (int64_t b = 0; b < blocks; b++) body(b, 0, context);
}
