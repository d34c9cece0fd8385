/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of a CUDA device from the driver library, without a context and without the management library, which fails in
 * MIG slices, containers and WSL where the driver itself works. The ordinal counts visible devices, as the driver does.
 */
#include "opt_core/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The driver's C interface, as far as it is used here; its types are plain integers. */
typedef int cu_result;
typedef int cu_device;
typedef struct cu_uuid {
  unsigned char bytes[16];
} cu_uuid;

enum { CU_SUCCESS = 0, CU_ERROR_NO_DEVICE = 100, CU_ATTRIBUTE_MAJOR = 75, CU_ATTRIBUTE_MINOR = 76 };

typedef struct cu_driver {
  cu_result (*init)(unsigned flags);
  cu_result (*count)(int *count);
  cu_result (*get)(cu_device *device, int ordinal);
  cu_result (*name)(char *name, int bytes, cu_device device);
  cu_result (*attribute)(int *value, int attribute, cu_device device);
  cu_result (*uuid)(cu_uuid *uuid, cu_device device);
  cu_result (*memory)(size_t *bytes, cu_device device);
} cu_driver;

/* A data pointer turned into a function pointer by way of memory: ISO C has no cast for it. */
static oc_status bind_symbol(void *library, const char *name, void *slot, oc_err *err) {
  void *symbol = dlsym(library, name);
  if (!symbol) return OC_REFUSE(err, DRIVER, "libcuda.so.1 has no %s", name);
  memcpy(slot, &symbol, sizeof symbol);
  return OC_OK;
}

/* The library stays open: unloading a driver that a framework is using is never right. */
static oc_status open_driver(cu_driver *driver, oc_err *err) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return OC_REFUSE(err, NO_DEVICE, "libcuda");
  OC_TRY(bind_symbol(library, "cuInit", &driver->init, err));
  OC_TRY(bind_symbol(library, "cuDeviceGetCount", &driver->count, err));
  OC_TRY(bind_symbol(library, "cuDeviceGet", &driver->get, err));
  OC_TRY(bind_symbol(library, "cuDeviceGetName", &driver->name, err));
  OC_TRY(bind_symbol(library, "cuDeviceGetAttribute", &driver->attribute, err));
  OC_TRY(bind_symbol(library, "cuDeviceGetUuid", &driver->uuid, err));
  return bind_symbol(library, "cuDeviceTotalMem_v2", &driver->memory, err);
}

static oc_status check(cu_result code, const char *call, oc_err *err) {
  if (code == CU_SUCCESS) return OC_OK;
  return oc_err_set(err, OC_REFUSED, OC_REASON_DRIVER, code, __FILE__, __LINE__, "%d from %s", code, call);
}

static oc_status find_device(const cu_driver *driver, int ordinal, cu_device *device, oc_err *err) {
  int count = 0;
  cu_result code = driver->init(0);
  if (code == CU_ERROR_NO_DEVICE) return OC_REFUSE(err, NO_DEVICE, "0 devices");
  OC_TRY(check(code, "cuInit", err));
  code = driver->count(&count);
  if (code != CU_ERROR_NO_DEVICE) OC_TRY(check(code, "cuDeviceGetCount", err));
  if (count <= 0) return OC_REFUSE(err, NO_DEVICE, "0 devices");
  if (ordinal >= count) return OC_REFUSE(err, NO_DEVICE, "%d devices, asked for ordinal %d", count, ordinal);
  return check(driver->get(device, ordinal), "cuDeviceGet", err);
}

static void write_uuid(const cu_uuid *uuid, oc_cuda_device *out) {
  const unsigned char *u = uuid->bytes;
  snprintf(out->uuid, sizeof out->uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

oc_status oc_cuda_device_facts(int ordinal, oc_cuda_device *out, oc_err *err) {
  if (ordinal < 0) return OC_FAIL(err, BAD_ARG, 0, "device ordinal %d is below 0", ordinal);
  cu_driver driver = {0};
  cu_device device = 0;
  cu_uuid uuid = {{0}};
  int major = 0, minor = 0;
  size_t memory = 0;
  oc_cuda_device found = {.ordinal = ordinal};
  OC_TRY(open_driver(&driver, err));
  OC_TRY(find_device(&driver, ordinal, &device, err));
  OC_TRY(check(driver.name(found.name, (int)sizeof found.name - 1, device), "cuDeviceGetName", err));
  OC_TRY(check(driver.attribute(&major, CU_ATTRIBUTE_MAJOR, device), "cuDeviceGetAttribute", err));
  OC_TRY(check(driver.attribute(&minor, CU_ATTRIBUTE_MINOR, device), "cuDeviceGetAttribute", err));
  OC_TRY(check(driver.uuid(&uuid, device), "cuDeviceGetUuid", err));
  OC_TRY(check(driver.memory(&memory, device), "cuDeviceTotalMem_v2", err));
  found.sm = 10 * major + minor;
  found.memory_bytes = (int64_t)memory;
  write_uuid(&uuid, &found);
  *out = found;
  return OC_OK;
}
