/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA road as seen from outside: loading kernels ahead of a stream capture, and what is loaded, for records.
 *
 * device     0-based ordinal as the driver counts visible devices
 * context    the device's primary context, the one that frameworks use; retained at the first need and kept. What was
 *            current on the calling thread is current again when a function returns
 * threads    every function is safe from any thread
 * ownership  results are copied into the caller's memory
 * kernels    a family's folder lists its CUDA modules in cuda_modules.inc, one line OC_CUDA_MODULE(<module>) each; the
 *            module's member file exports `const oc__cuda_kernel *const oc__<folder>_<module>_kernels[]`,
 *            NULL-terminated, with every kernel that the member may launch (src/devices/cuda/cuda.h)
 * binaries   <directory of libopt_core.so>/opt_core/cubin/<folder>/, with their PREBUILT.json
 * capture    a kernel that is loaded can be launched inside a stream capture; loading one there is refused
 */
#ifndef OPT_CORE_CUDA_H
#define OPT_CORE_CUDA_H

#include "opt_core/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads every kernel of the family's folder that runs on the device's architecture; those already loaded cost a
 * look-up. Call it before a capture, not inside one. A family without CUDA members has nothing to load: OC_OK.
 * REFUSED no_device, driver, no_prebuilt, digest, capture (seen where the legacy stream takes part in one). */
OC_API oc_status oc_cuda_prepare(int device, oc_family family, oc_err *err);

/* A binary that was verified and loaded. */
typedef struct oc_cuda_module {
  int device;
  char package[32]; /* "triattn" */
  char key[64];     /* in the package's PREBUILT.json: "native.sm_90a" */
  char sha256[65];  /* of the bytes that were loaded */
} oc_cuda_module;

/* Writes up to `capacity` of the loaded binaries into out, in the order of loading. Returns how many there are. */
OC_API int oc_cuda_modules(oc_cuda_module *out, int capacity);

/* X(identifier, word, sonames to look for, newest first) */
#define OC_CUDA_LIBRARY_LIST(X)                                                                                        \
  X(CUBLAS, "cublas", "libcublas.so.13", "libcublas.so.12")                                                            \
  X(CUBLASLT, "cublasLt", "libcublasLt.so.13", "libcublasLt.so.12")                                                    \
  X(NVRTC, "nvrtc", "libnvrtc.so.13", "libnvrtc.so.12")                                                                \
  X(NCCL, "nccl", "libnccl.so.2")

typedef enum oc_cuda_library_id {
#define X(id, ...) OC_CUDA_LIBRARY_##id,
  OC_CUDA_LIBRARY_LIST(X)
#undef X
      OC_CUDA_LIBRARY_COUNT
} oc_cuda_library_id;

OC_API const char *oc_cuda_library_word(oc_cuda_library_id library);

/* The copy of a library that the process has loaded already (a framework brings its own); never loads one. path[0,
 * path_bytes) gets the file's resolved path. *handle, where not NULL, is for dlsym and stays valid: the library is kept
 * open. REFUSED not_built:<soname> ... when none of the sonames is loaded; BAD_ARG when the path does not fit. */
OC_API oc_status oc_cuda_library(oc_cuda_library_id library, void **handle, char *path, size_t path_bytes, oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
