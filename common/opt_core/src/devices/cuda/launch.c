/* SPDX-License-Identifier: Apache-2.0 */
/* One launch: what can be checked without the driver first, then the call, then its answer in words. */
#include "devices/cuda/driver.h"

#include <limits.h>

enum { GRID_X_MAX = INT_MAX, GRID_MAX = 65535, BLOCK_MAX = 1024, BLOCK_Z_MAX = 64, PARAMS_MAX = 4096 };

static oc_status check_grid(const oc__cuda_grid *g, oc_err *err) {
  const unsigned *grid = g->grid, *block = g->block;
  if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[0] > GRID_X_MAX || grid[1] > GRID_MAX || grid[2] > GRID_MAX)
    return OC_REFUSE(err, SHAPE, "a grid of %u x %u x %u blocks, served are 1..%d x 1..%d x 1..%d", grid[0], grid[1],
                     grid[2], GRID_X_MAX, GRID_MAX, GRID_MAX);
  if (block[0] < 1 || block[1] < 1 || block[2] < 1 || block[0] > BLOCK_MAX || block[1] > BLOCK_MAX ||
      block[2] > BLOCK_Z_MAX || block[0] * block[1] * block[2] > BLOCK_MAX)
    return OC_FAIL(err, BAD_ARG, 0, "a block of %u x %u x %u threads, at most %d in all and %d along z", block[0],
                   block[1], block[2], BLOCK_MAX, BLOCK_Z_MAX);
  if (g->cluster > 1 && grid[0] % g->cluster != 0)
    return OC_FAIL(err, BAD_ARG, 0, "a cluster of %u does not divide the grid's %u blocks along x", g->cluster,
                   grid[0]);
  return OC_OK;
}

static oc_status refuse_launch(const oc__cuda_api *api, int code, int device, oc__cuda_function function,
                               const oc__cuda_grid *g, oc_err *err) {
  const oc__cuda_kernel *kernel = oc__cuda_kernel_of(device, function);
  return oc_err_set(err, OC_REFUSED, OC_REASON_DRIVER, code, __FILE__, __LINE__,
                    "%d from cuLaunchKernelEx: %.60s, %.40s grid %ux%ux%u block %ux%ux%u cluster %u shared %u", code,
                    oc__cuda_error_name(api, code), kernel ? kernel->symbol : "a kernel unknown here", g->grid[0],
                    g->grid[1], g->grid[2], g->block[0], g->block[1], g->block[2], g->cluster, g->shared_bytes);
}

static int launch(const oc__cuda_api *api, oc__cuda_function function, const oc__cuda_grid *g, void *stream,
                  const void *params) {
  oc__cu_launch_attribute attributes[2];
  oc__cu_launch config = {.grid = {g->grid[0], g->grid[1], g->grid[2]},
                          .block = {g->block[0], g->block[1], g->block[2]},
                          .shared_bytes = g->shared_bytes,
                          .stream = stream,
                          .attributes = attributes};
  if (g->cluster > 1)
    attributes[config.attribute_count++] =
        (oc__cu_launch_attribute){.id = OC__CU_LAUNCH_CLUSTER, .value.cluster = {g->cluster, 1, 1}};
  if (g->follows)
    attributes[config.attribute_count++] = (oc__cu_launch_attribute){.id = OC__CU_LAUNCH_FOLLOWS, .value.flag = 1};
  void *one[] = {(void *)(uintptr_t)params}; /* read by the driver before the call returns */
  return api->launch(&config, function, one, NULL);
}

oc_status oc__cuda_launch(int device, oc__cuda_function function, const oc__cuda_grid *grid, void *stream,
                          const void *params, size_t params_bytes, oc_err *err) {
  const oc__cuda_api *api;
  oc__cu_context context;
  oc__cuda_scope scope;
  if (!function || !grid || !params)
    return OC_FAIL(err, BAD_ARG, 0, "launch: %s is NULL", !function ? "function" : !grid ? "grid" : "params");
  if (params_bytes < 1 || params_bytes > PARAMS_MAX)
    return OC_FAIL(err, BAD_ARG, 0, "launch: %zu bytes of parameters, served are 1..%d", params_bytes, PARAMS_MAX);
  OC_TRY(check_grid(grid, err));
  OC_TRY(oc__cuda_driver(&api, err));
  OC_TRY(oc__cuda_context(device, &context, err));
  OC_TRY(oc__cuda_enter(api, context, &scope, err));
  const int code = launch(api, function, grid, stream, params);
  oc__cuda_leave(&scope);
  return code == 0 ? OC_OK : refuse_launch(api, code, device, function, grid, err);
}
