/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch memory for members that need a workspace.
 *
 * Page faults of fresh memory cost as much as many kernels, so one buffer is kept for the whole process and only grows.
 * It is lent to one call at a time; a call that finds it lent gets memory of its own, freed on release.
 *
 * units      bytes
 * ownership  the library owns the memory; the borrower may use it from acquire to release, from any thread. Contents
 *            are undefined on acquire. Every successful acquire needs exactly one release
 * threads    safe from any thread; never waits
 * fork       a child does not inherit a loan: what its parent had lent stays out of use in the child
 * errors     NO_MEM with the bytes asked for
 */
#ifndef OPT_CORE_MEM_H
#define OPT_CORE_MEM_H

#include "opt_core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OC_SCRATCH_ALIGN 64 /* bytes; what oc_exec.workspace asks for */

typedef struct oc_scratch {
  void *data;   /* aligned to OC_SCRATCH_ALIGN; NULL for 0 bytes */
  size_t bytes; /* at least what was asked for */
  int is_kept;  /* 1: the process's buffer, 0: memory of this loan alone */
} oc_scratch;

OC_API oc_status oc_scratch_acquire(size_t bytes, oc_scratch *out, oc_err *err);
/* Gives the memory back and clears *scratch. A cleared one is left alone. */
OC_API void oc_scratch_release(oc_scratch *scratch);
/* Frees the kept buffer unless it is lent. Returns the bytes freed. */
OC_API size_t oc_scratch_trim(void);
/* Size of the kept buffer: what a record counts as held between calls. */
OC_API size_t oc_scratch_kept_bytes(void);

/* Process-wide: blocks of up to `bytes` come from the heap of malloc and stay there when they are freed, for the next
 * block of their size; without it glibc maps and unmaps every block above its threshold, and each new one pays for page
 * faults. Larger blocks are mapped as before. At most twice `bytes` of free memory are kept at the heap's end.
 * REFUSED not_built:mallopt where the C library has no such setting; BAD_ARG for 0 or more than INT_MAX bytes. */
OC_API oc_status oc_malloc_keep(size_t bytes, oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
