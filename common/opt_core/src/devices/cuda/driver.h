/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's C interface as far as it is used here, and the state that the files of this folder share. */
#ifndef OC_DEVICES_CUDA_DRIVER_H
#define OC_DEVICES_CUDA_DRIVER_H

#include "devices/cuda/cuda.h"

typedef void *oc__cu_context, *oc__cu_module, *oc__cu_function, *oc__cu_stream;

typedef struct oc__cu_uuid {
  unsigned char bytes[16];
} oc__cu_uuid;

typedef struct oc__cu_launch_attribute { /* CUlaunchAttribute: a tag, padding to 8 bytes, a union of 64 */
  int id;
  int padding;
  union {
    uint64_t words[8];
    unsigned cluster[3];
    int flag;
  } value;
} oc__cu_launch_attribute;

typedef struct oc__cu_launch { /* CUlaunchConfig */
  unsigned grid[3], block[3], shared_bytes;
  oc__cu_stream stream;
  oc__cu_launch_attribute *attributes;
  unsigned attribute_count;
} oc__cu_launch;

enum {
  OC__CU_ERROR_NO_DEVICE = 100,
  OC__CU_ERROR_CAPTURE_FIRST = 900, /* the codes that speak of a stream capture */
  OC__CU_ERROR_CAPTURE_LAST = 906,
  OC__CU_DEVICE_MULTIPROCESSORS = 16,
  OC__CU_DEVICE_L2_BYTES = 38,
  OC__CU_DEVICE_MAJOR = 75,
  OC__CU_DEVICE_MINOR = 76,
  OC__CU_DEVICE_SHARED_OPT_IN = 97,
  OC__CU_FUNCTION_STATIC_SHARED = 1,
  OC__CU_FUNCTION_DYNAMIC_SHARED = 8,
  OC__CU_LAUNCH_CLUSTER = 4,
  OC__CU_LAUNCH_FOLLOWS = 6,
  OC__CU_CAPTURE_RELAXED = 2
};

/* X(slot, name, version, parameters): the version is the CUDA release whose form of the function is meant. */
#define OC__CUDA_SYMBOLS(X)                                                                                            \
  X(init, "cuInit", 2000, (unsigned flags))                                                                            \
  X(error_name, "cuGetErrorName", 6000, (int code, const char **name))                                                 \
  X(device_count, "cuDeviceGetCount", 2000, (int *count))                                                              \
  X(device_get, "cuDeviceGet", 2000, (int *device, int ordinal))                                                       \
  X(device_name, "cuDeviceGetName", 2000, (char *name, int bytes, int device))                                         \
  X(device_attribute, "cuDeviceGetAttribute", 2000, (int *value, int attribute, int device))                           \
  X(device_uuid, "cuDeviceGetUuid", 11040, (oc__cu_uuid * uuid, int device))                                           \
  X(device_memory, "cuDeviceTotalMem", 3020, (size_t * bytes, int device))                                             \
  X(context_retain, "cuDevicePrimaryCtxRetain", 7000, (oc__cu_context * context, int device))                          \
  X(context_current, "cuCtxGetCurrent", 4000, (oc__cu_context * context))                                              \
  X(context_push, "cuCtxPushCurrent", 4000, (oc__cu_context context))                                                  \
  X(context_pop, "cuCtxPopCurrent", 4000, (oc__cu_context * context))                                                  \
  X(module_load, "cuModuleLoadData", 2000, (oc__cu_module * module, const void *image))                                \
  X(module_function, "cuModuleGetFunction", 2000,                                                                      \
    (oc__cu_function * function, oc__cu_module module, const char *name))                                              \
  X(function_get, "cuFuncGetAttribute", 2020, (int *value, int attribute, oc__cu_function function))                   \
  X(function_set, "cuFuncSetAttribute", 9000, (oc__cu_function function, int attribute, int value))                    \
  X(launch, "cuLaunchKernelEx", 11060,                                                                                 \
    (const oc__cu_launch *launch, oc__cu_function function, void **params, void **extra))                              \
  X(is_capturing, "cuStreamIsCapturing", 10000, (oc__cu_stream stream, int *status))                                   \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", 10010, (int *mode))                                             \
  X(tensor_map, "cuTensorMapEncodeTiled", 12000,                                                                       \
    (void *map, int type, unsigned rank, void *data, const uint64_t *shape, const uint64_t *stride_bytes,              \
     const unsigned *box, const unsigned *element_stride, int interleave, int swizzle, int promotion, int outside))

typedef struct oc__cuda_api {
/* A declarator takes no more brackets. NOLINTNEXTLINE(bugprone-macro-parentheses) */
#define X(slot, name, version, parameters) int(*slot) parameters;
  OC__CUDA_SYMBOLS(X)
#undef X
} oc__cuda_api;

enum { OC__CUDA_DEVICES_MAX = 64 };

/* The bound table, after a successful cuInit. Read without a lock once it is there.
 * REFUSED no_device:libcuda, no_device:0 devices, driver:libcuda.so.1 has no <name>... */
oc_status oc__cuda_driver(const oc__cuda_api **out, oc_err *err);
/* REFUSED driver:<code> from <call>: <the driver's name of the code>; OC_OK for 0. */
oc_status oc__cuda_check(const oc__cuda_api *api, int code, const char *call, oc_err *err);
/* The driver's name of a code, "" when it has none. */
const char *oc__cuda_error_name(const oc__cuda_api *api, int code);
/* The driver's handle of an ordinal. REFUSED no_device:<n> devices... */
oc_status oc__cuda_handle(const oc__cuda_api *api, int ordinal, int *handle, oc_err *err);

/* The device's primary context, retained at the first call. */
oc_status oc__cuda_context(int device, oc__cu_context *out, oc_err *err);
/* Any primary context that was retained; NULL when there is none. */
oc__cu_context oc__cuda_any_context(void);

/* Makes context current, unless it is; leave puts back what was. */
typedef struct oc__cuda_scope {
  const oc__cuda_api *api;
  int is_pushed;
} oc__cuda_scope;
oc_status oc__cuda_enter(const oc__cuda_api *api, oc__cu_context context, oc__cuda_scope *scope, oc_err *err);
void oc__cuda_leave(const oc__cuda_scope *scope);

/* One lock for all that is done once: binding, contexts, modules. Taken before a fork and let go on both sides. */
void oc__cuda_lock(void);
void oc__cuda_unlock(void);

/* The kernel whose handle this is; NULL when it is none of the device's. For the text of an error. */
const oc__cuda_kernel *oc__cuda_kernel_of(int device, oc__cuda_function function);

/* Where packages of binaries lie; NULL: beside the library. For tests. The text is kept by the caller. */
void oc__cuda_directory_set(const char *directory);

#endif
