/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses, refusal words and the error record that every fallible call fills.
 *
 * A status tells the caller what to do next; a reason (a word from OC_REASON_LIST) tells a person why.
 * `oc_err *` is the last parameter of every fallible function: owned by the caller, may be NULL, never allocates,
 * and keeps the first failure only (a later failure does not overwrite it). Threads: an oc_err belongs to one thread.
 */
#ifndef OPT_CORE_STATUS_H
#define OPT_CORE_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define OC_API __attribute__((visibility("default")))
#else
#define OC_API
#endif

/* X(identifier, word, what the caller does next) */
#define OC_STATUS_LIST(X)                                                                                              \
  X(OK, "ok", "the call did what its header says")                                                                     \
  X(REFUSED, "refused", "serve the stock op or stop; err.reason is the word")                                          \
  X(CLOSED, "closed", "an accounting check failed; end the run with status 4")                                         \
  X(BAD_ARG, "bad_arg", "mend the call; err.detail names the value")                                                   \
  X(NO_MEM, "no_mem", "free memory and call again")                                                                    \
  X(IO, "io", "a file or stream failed; err.native is errno")                                                          \
  X(DEVICE, "device", "the driver failed; err.native is its code")

typedef enum oc_status {
#define X(id, word, help) OC_##id,
  OC_STATUS_LIST(X)
#undef X
      OC_STATUS_COUNT
} oc_status;

/* The refusal words. X(identifier, word, what it says). A reason is printed as `word` or `word:detail`.
 * tests/contract holds one test a word that provokes it; a word without a way to provoke it leaves the list. */
#define OC_REASON_LIST(X)                                                                                              \
  X(MODE, "mode", "the mode word is not one of off, exact, fast, big")                                                 \
  X(LEVER, "lever", "a word in MODEL_OPT_LEVERS_OFF names no lever and no row")                                        \
  X(ENVIRONMENT, "environment", "an OPT_CORE_* variable is unknown or has a bad value")                                \
  X(KIT_TABLE, "kit_table", "the kit's mode table breaks its schema")                                                  \
  X(CORE_MISSING, "core_missing", "no importable core")                                                                \
  X(CORE_TOO_OLD, "core_too_old", "the core is older than the kit's floor")                                            \
  X(CORE_WRONG_PATH, "core_wrong_path", "the core comes from a directory not pinned")                                  \
  X(OFF_BY_USER, "off_by_user", "named in MODEL_OPT_LEVERS_OFF")                                                       \
  X(PIN, "pin", "a package's version is outside the pinned range")                                                     \
  X(ENGINE_LAYOUT, "engine_layout", "the engine's classes are not where the kit expects")                              \
  X(HOOK, "hook", "the import hook was absent, removed, or could not act")                                             \
  X(HOST_FLOOR, "host_floor", "the host's C library is older than the binary needs")                                   \
  X(NO_PREBUILT, "no_prebuilt", "the package holds no binary for this key")                                            \
  X(DIGEST, "digest", "a binary's SHA-256 is not the recorded one")                                                    \
  X(NO_DEVICE, "no_device", "no usable device of that kind")                                                           \
  X(DRIVER, "driver", "the device driver reported an error")                                                           \
  X(ARCH, "arch", "the processor lacks what the member was built for")                                                 \
  X(CELLS, "cells", "a cell table breaks its schema or overlaps")                                                      \
  X(UNCOVERED_CELL, "uncovered_cell", "no measured cell covers the call class")                                        \
  X(PROOF, "proof", "bit-identity is not proven on this stack")                                                        \
  X(DTYPE, "dtype", "the element type is not served by this row")                                                      \
  X(LAYOUT, "layout", "the strides or the overlap are not served by this row")                                         \
  X(SHAPE, "shape", "the sizes are outside the row's range")                                                           \
  X(DIALECT, "dialect", "an option of the descriptor is not served by this row")                                       \
  X(GRAD, "grad", "the call asks for gradients, the row has none")                                                     \
  X(NOT_BUILT, "not_built", "this part was left out of the build")                                                     \
  X(CAPTURE, "capture", "inside a stream capture; call oc_cuda_prepare before")

typedef enum oc_reason {
  OC_REASON_NONE,
#define X(id, word, help) OC_REASON_##id,
  OC_REASON_LIST(X)
#undef X
      OC_REASON_COUNT
} oc_reason;

#define OC_DETAIL_MAX 192 /* bytes, terminator included */

typedef struct oc_err {
  oc_status status;
  oc_reason reason; /* OC_REASON_NONE unless status is OC_REFUSED */
  int64_t native;   /* errno or driver code, 0 where neither applies */
  const char *file; /* static text */
  int line;
  char detail[OC_DETAIL_MAX]; /* the offending value and the limit, UTF-8, cut at the end if too long */
} oc_err;

/* Word of a status / a reason. Static text, never NULL; "none" for OC_REASON_NONE, "unknown" outside the list. */
OC_API const char *oc_status_word(oc_status status);
OC_API const char *oc_status_help(oc_status status);
OC_API const char *oc_reason_word(oc_reason reason);
OC_API const char *oc_reason_help(oc_reason reason);
/* The reason whose word is text[0, bytes); OC_REASON_NONE when no word matches. */
OC_API oc_reason oc_reason_find(const char *text, size_t bytes);

/* Writes `word:detail` (or `word` when detail is empty) and a terminator into out[0, out_bytes), cutting at the end.
 * For a status other than OC_REFUSED the word is the status word. Returns the bytes of the uncut text. */
OC_API size_t oc_err_text(const oc_err *err, char *out, size_t out_bytes);

/* Fills err (when not NULL and still OC_OK) and returns status. For kits in C; the library uses OC_REFUSE, OC_FAIL. */
OC_API oc_status oc_err_set(oc_err *err, oc_status status, oc_reason reason, int64_t native, const char *file, int line,
                            const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 7, 8)))
#endif
    ;

/* A static analyzer reads one file at a time; without this it would follow paths on which OC_FAIL returned OC_OK. */
#ifdef __clang_analyzer__
static inline oc_status oc_err_known(oc_status set, oc_status status) {
  (void)set;
  return status;
}
#else
#define oc_err_known(set, status) (set)
#endif

#define OC_REFUSE(err, reason_id, ...)                                                                                 \
  oc_err_known(oc_err_set((err), OC_REFUSED, OC_REASON_##reason_id, 0, __FILE__, __LINE__, __VA_ARGS__), OC_REFUSED)
#define OC_FAIL(err, status_id, native, ...)                                                                           \
  oc_err_known(oc_err_set((err), OC_##status_id, OC_REASON_NONE, (native), __FILE__, __LINE__, __VA_ARGS__),           \
               OC_##status_id)
#define OC_TRY(expr)                                                                                                   \
  do {                                                                                                                 \
    oc_status oc_try_status = (expr);                                                                                  \
    if (oc_try_status != OC_OK) return oc_try_status;                                                                  \
  } while (0)

#ifdef __cplusplus
}
#endif
#endif
