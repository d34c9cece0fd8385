/* SPDX-License-Identifier: Apache-2.0 */
/* The process's scratch buffer. State is three words; `holder` guards the other two. */
#define _DEFAULT_SOURCE
#include "opt_core/mem.h"

#include <limits.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* From this size on the kernel is asked for huge pages, and the start is aligned to one. */
static const size_t huge_page_bytes = (size_t)2 << 20;

/* 0, or the process that has borrowed the buffer. A pid and no flag: after fork the parent's loan is recognisable in
 * the child, where nobody is left to end it. */
static _Atomic int64_t holder;
static void *kept;               /* touched by the holder only */
static _Atomic size_t kept_size; /* written by the holder only, read by anyone */

static void *allocate(size_t *bytes) {
  const size_t align = *bytes >= huge_page_bytes ? huge_page_bytes : (size_t)OC_SCRATCH_ALIGN;
  if (*bytes > (size_t)PTRDIFF_MAX - align) return NULL; /* no object is larger, and the rounding cannot overflow */
  const size_t rounded = (*bytes + align - 1) / align * align;
  void *data = NULL;
  if (posix_memalign(&data, align, rounded) != 0) return NULL;
  if (align == huge_page_bytes) (void)madvise(data, rounded, MADV_HUGEPAGE); /* advice: refusal costs speed only */
  *bytes = rounded;
  return data;
}

/* 1 when the caller now holds the buffer. */
static int take(void) {
  const int64_t self = (int64_t)getpid();
  int64_t seen = 0;
  if (atomic_compare_exchange_strong_explicit(&holder, &seen, self, memory_order_acquire, memory_order_relaxed))
    return 1;
  if (seen == self) return 0;
  if (!atomic_compare_exchange_strong_explicit(&holder, &seen, self, memory_order_acquire, memory_order_relaxed))
    return 0;
  kept = NULL; /* lent when the parent forked, perhaps in the middle of growing: not to be trusted, not to be freed */
  atomic_store(&kept_size, 0);
  return 1;
}

static void give(void) { atomic_store_explicit(&holder, 0, memory_order_release); }

/* Called by the holder. 1 when the kept buffer holds `bytes`. */
static int grow(size_t bytes) {
  if (bytes <= atomic_load(&kept_size)) return 1;
  free(kept); /* first free, then allocate: the peak is the larger one, not their sum */
  atomic_store(&kept_size, 0);
  kept = allocate(&bytes);
  if (!kept) return 0;
  atomic_store(&kept_size, bytes);
  return 1;
}

oc_status oc_scratch_acquire(size_t bytes, oc_scratch *out, oc_err *err) {
  if (!out) return OC_FAIL(err, BAD_ARG, 0, "scratch: out is NULL");
  const size_t wanted = bytes;
  memset(out, 0, sizeof *out);
  if (bytes == 0) return OC_OK;
  if (take()) {
    if (grow(bytes)) {
      *out = (oc_scratch){.data = kept, .bytes = atomic_load(&kept_size), .is_kept = 1};
      return OC_OK;
    }
    give();
  } else {
    out->data = allocate(&bytes);
    out->bytes = out->data ? bytes : 0;
    if (out->data) return OC_OK;
  }
  return OC_FAIL(err, NO_MEM, 0, "scratch: %zu bytes", wanted);
}

void oc_scratch_release(oc_scratch *scratch) {
  if (!scratch || !scratch->data) return;
  if (scratch->is_kept) {
    give();
  } else {
    free(scratch->data);
  }
  memset(scratch, 0, sizeof *scratch);
}

size_t oc_scratch_trim(void) {
  if (!take()) return 0;
  const size_t freed = atomic_load(&kept_size);
  free(kept);
  kept = NULL;
  atomic_store(&kept_size, 0);
  give();
  return freed;
}

size_t oc_scratch_kept_bytes(void) { return atomic_load(&kept_size); }

/* ---- the allocator's own memory ---------------------------------------------------------------------------------- */

oc_status oc_malloc_keep(size_t bytes, oc_err *err) {
  if (bytes == 0 || bytes > INT_MAX)
    return OC_FAIL(err, BAD_ARG, 0, "%zu bytes to keep, the range is 1..%d", bytes, INT_MAX);
#ifdef __GLIBC__
  const int trim = bytes > INT_MAX / 2 ? INT_MAX : (int)(2 * bytes);
  if (mallopt(M_MMAP_THRESHOLD, (int)bytes) && mallopt(M_TRIM_THRESHOLD, trim)) return OC_OK;
#endif
  return OC_REFUSE(err, NOT_BUILT, "mallopt");
}
