/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of a CUDA device from the driver library, without a context and without the management library, which fails in
 * MIG slices, containers and WSL where the driver itself works. The ordinal counts visible devices, as the driver does.
 */
#include "devices/cuda/driver.h"

#include <stdio.h>

static void write_uuid(const oc__cu_uuid *uuid, oc_cuda_device *out) {
  const unsigned char *u = uuid->bytes;
  snprintf(out->uuid, sizeof out->uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

oc_status oc_cuda_device_facts(int ordinal, oc_cuda_device *out, oc_err *err) {
  if (ordinal < 0) return OC_FAIL(err, BAD_ARG, 0, "device ordinal %d is below 0", ordinal);
  const oc__cuda_api *api;
  oc__cu_uuid uuid = {{0}};
  int device = 0, major = 0, minor = 0;
  size_t memory = 0;
  oc_cuda_device found = {.ordinal = ordinal};
  OC_TRY(oc__cuda_driver(&api, err));
  OC_TRY(oc__cuda_handle(api, ordinal, &device, err));
  OC_TRY(oc__cuda_check(api, api->device_name(found.name, (int)sizeof found.name - 1, device), "cuDeviceGetName", err));
  OC_TRY(oc__cuda_check(api, api->device_attribute(&major, OC__CU_DEVICE_MAJOR, device), "cuDeviceGetAttribute", err));
  OC_TRY(oc__cuda_check(api, api->device_attribute(&minor, OC__CU_DEVICE_MINOR, device), "cuDeviceGetAttribute", err));
  OC_TRY(oc__cuda_check(api, api->device_uuid(&uuid, device), "cuDeviceGetUuid", err));
  OC_TRY(oc__cuda_check(api, api->device_memory(&memory, device), "cuDeviceTotalMem", err));
  found.sm = 10 * major + minor;
  found.memory_bytes = (int64_t)memory;
  write_uuid(&uuid, &found);
  *out = found;
  return OC_OK;
}
