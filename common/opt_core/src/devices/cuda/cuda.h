/* SPDX-License-Identifier: Apache-2.0 */
/* What a CUDA member needs: its kernel, a launch, a tensor map. No CUDA header is included: the driver's types that
 * cross this line are plain memory, so that the library builds where no toolkit is installed.
 *
 * device     0-based ordinal as the driver counts visible devices
 * context    the device's primary context, which the frameworks use. Each function makes it current for its own
 *            duration and puts back what was current before
 * stream     the caller's CUstream; NULL is the legacy default stream
 * threads    all functions are safe from any thread
 * capture    oc__cuda_kernel_find of a kernel that is already loaded, oc__cuda_launch and oc__cuda_tensor_map only
 *            enqueue or compute; a first load inside a stream capture is REFUSED capture: call oc_cuda_prepare before
 * errors     REFUSED no_device, driver:<code> from <call>, arch, no_prebuilt, digest, capture
 */
#ifndef OC_DEVICES_CUDA_H
#define OC_DEVICES_CUDA_H

#include "opt_core/device.h"
#include "opt_core/tensor.h"

/* A kernel of a cubin. Members declare it static and pass its address: the handle is cached in the library by (context,
 * package, module, symbol), the struct itself is never written. */
typedef struct oc__cuda_kernel {
  const char *package; /* family: "triattn" */
  const char *module;  /* key in the package's PREBUILT.json without the architecture: "native" */
  const char *arch;    /* "sm_80" or "sm_90a" */
  const char *symbol;  /* extern "C" name */
  int shared_bytes;    /* dynamic shared memory; above 48 KiB the opt-in limit is asked of the driver and set */
} oc__cuda_kernel;

typedef void *oc__cuda_function; /* a CUfunction */

/* A look-up in memory when the kernel is loaded on the device; else reads, verifies and loads its module. stream: the
 * one that the launch will go to. REFUSED arch: also when shared_bytes exceed what the device grants a block. */
oc_status oc__cuda_kernel_find(int device, void *stream, const oc__cuda_kernel *kernel, oc__cuda_function *out,
                               oc_err *err);

typedef struct oc__cuda_grid {
  unsigned grid[3], block[3];
  unsigned cluster;      /* blocks of a cluster along x; 0 or 1: none */
  unsigned shared_bytes; /* dynamic, at most the kernel's */
  int follows;           /* 1: may start while the kernel before it in the stream drains; the kernel itself waits */
} oc__cuda_grid;

/* Launches with one parameter, a struct that the kernel takes by value as __grid_constant__. Checks the driver's answer.
 * REFUSED shape: for a grid beyond 2^31 - 1 x 65535 x 65535, driver: with the kernel's name and the launch otherwise. */
oc_status oc__cuda_launch(int device, oc__cuda_function function, const oc__cuda_grid *grid, void *stream,
                          const void *params, size_t params_bytes, oc_err *err);

/* A tiled tensor map over global memory (128 bytes, what the kernel takes as CUtensorMap). Axis 0 is the fastest and has
 * stride 1; stride[] counts elements for axes 1.. (stride[0] is not read). Elements outside read as zero. */
typedef struct oc__cuda_map {
  _Alignas(64) unsigned char bytes[128];
} oc__cuda_map;
typedef enum oc__cuda_swizzle { OC__SWIZZLE_NONE, OC__SWIZZLE_32, OC__SWIZZLE_64, OC__SWIZZLE_128 } oc__cuda_swizzle;
/* 1 when the hardware takes the layout: data aligned to 16 bytes, each stride a multiple of 16 bytes below 2^40. */
int oc__cuda_map_fits(oc_dtype dtype, int rank, const void *data, const int64_t *shape, const int64_t *stride);
oc_status oc__cuda_tensor_map(oc__cuda_map *out, oc_dtype dtype, int rank, const void *data, const int64_t *shape,
                              const int64_t *stride, const unsigned *box, oc__cuda_swizzle swizzle, oc_err *err);

/* Facts that a launch plan needs, asked once a device and kept. */
typedef struct oc__cuda_limits {
  int sm;              /* 90 */
  int multiprocessors; /* 132 */
  int shared_bytes;    /* opt-in limit of a block: 232448 on sm_90 */
  int64_t l2_bytes;
} oc__cuda_limits;
oc_status oc__cuda_limits_of(int device, const oc__cuda_limits **out, oc_err *err);

#endif
