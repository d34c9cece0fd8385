/* SPDX-License-Identifier: Apache-2.0 */
/* The driver library, bound once, and the primary context of each device. The library is opened by name and stays open:
 * unloading a driver that a framework is using is never right. A failure is not kept: the next call asks again. */
#include "devices/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* Legacy: a NULL stream is the legacy default stream in every function. */
enum { LEGACY_STREAM = 1, FOUND = 0 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static oc__cuda_api api_table;
static _Atomic(const oc__cuda_api *) bound;

static struct {
  _Atomic(oc__cu_context) context;
  atomic_int has_limits;
  oc__cuda_limits limits;
} devices[OC__CUDA_DEVICES_MAX];

static void watch_fork(void) { (void)pthread_atfork(oc__cuda_lock, oc__cuda_unlock, oc__cuda_unlock); }

void oc__cuda_lock(void) { pthread_mutex_lock(&lock); }

void oc__cuda_unlock(void) { pthread_mutex_unlock(&lock); }

/* ---- binding ---------------------------------------------------------------------------------------------------- */

typedef int (*find_function)(const char *name, void **function, int version, uint64_t flags, int *found);

/* A data pointer becomes a function pointer by way of memory: ISO C has no cast for it. */
static oc_status bind(find_function find, const char *name, int version, void *slot, oc_err *err) {
  void *function = NULL;
  int found = FOUND;
  const int code = find(name, &function, version, LEGACY_STREAM, &found);
  if (code != 0 || found != FOUND || !function)
    return OC_REFUSE(err, DRIVER, "libcuda.so.1 has no %s of CUDA %d.%d", name, version / 1000, version % 1000 / 10);
  memcpy(slot, &function, sizeof function);
  return OC_OK;
}

static oc_status bind_all(oc__cuda_api *api, oc_err *err) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return OC_REFUSE(err, NO_DEVICE, "libcuda");
  void *symbol = dlsym(library, "cuGetProcAddress_v2");
  if (!symbol) return OC_REFUSE(err, DRIVER, "libcuda.so.1 has no cuGetProcAddress_v2 of CUDA 12.0");
  find_function find;
  memcpy(&find, &symbol, sizeof find);
#define X(slot, name, version, parameters) OC_TRY(bind(find, name, version, &api->slot, err));
  OC__CUDA_SYMBOLS(X)
#undef X
  return OC_OK;
}

static oc_status start(oc__cuda_api *api, oc_err *err) {
  OC_TRY(bind_all(api, err));
  const int code = api->init(0);
  if (code == OC__CU_ERROR_NO_DEVICE) return OC_REFUSE(err, NO_DEVICE, "0 devices");
  return oc__cuda_check(api, code, "cuInit", err);
}

oc_status oc__cuda_driver(const oc__cuda_api **out, oc_err *err) {
  *out = atomic_load_explicit(&bound, memory_order_acquire);
  if (*out) return OC_OK;
  pthread_once(&fork_once, watch_fork);
  oc__cuda_lock();
  oc_status status = OC_OK;
  if (!atomic_load(&bound)) {
    status = start(&api_table, err);
    if (status == OC_OK) atomic_store_explicit(&bound, &api_table, memory_order_release);
  }
  oc__cuda_unlock();
  if (status == OC_OK) *out = &api_table;
  return status;
}

/* ---- errors ----------------------------------------------------------------------------------------------------- */

const char *oc__cuda_error_name(const oc__cuda_api *api, int code) {
  const char *name = NULL;
  return api->error_name(code, &name) == 0 && name ? name : "";
}

oc_status oc__cuda_check(const oc__cuda_api *api, int code, const char *call, oc_err *err) {
  if (code == 0) return OC_OK;
  const char *name = oc__cuda_error_name(api, code);
  return oc_err_set(err, OC_REFUSED, OC_REASON_DRIVER, code, __FILE__, __LINE__, "%d from %s%s%s", code, call,
                    *name ? ": " : "", name);
}

/* ---- devices ---------------------------------------------------------------------------------------------------- */

oc_status oc__cuda_handle(const oc__cuda_api *api, int ordinal, int *handle, oc_err *err) {
  int count = 0;
  if (ordinal < 0) return OC_FAIL(err, BAD_ARG, 0, "device ordinal %d is below 0", ordinal);
  const int code = api->device_count(&count);
  if (code != OC__CU_ERROR_NO_DEVICE) OC_TRY(oc__cuda_check(api, code, "cuDeviceGetCount", err));
  if (count <= 0) return OC_REFUSE(err, NO_DEVICE, "0 devices");
  if (ordinal >= count) return OC_REFUSE(err, NO_DEVICE, "%d devices, asked for ordinal %d", count, ordinal);
  return oc__cuda_check(api, api->device_get(handle, ordinal), "cuDeviceGet", err);
}

static oc_status check_ordinal(int device, oc_err *err) {
  if (device < 0) return OC_FAIL(err, BAD_ARG, 0, "device ordinal %d is below 0", device);
  if (device >= OC__CUDA_DEVICES_MAX)
    return OC_REFUSE(err, NO_DEVICE, "ordinal %d, served are 0..%d", device, OC__CUDA_DEVICES_MAX - 1);
  return OC_OK;
}

static oc_status retain(const oc__cuda_api *api, int device, oc__cu_context *out, oc_err *err) {
  int handle = 0;
  OC_TRY(oc__cuda_handle(api, device, &handle, err));
  return oc__cuda_check(api, api->context_retain(out, handle), "cuDevicePrimaryCtxRetain", err);
}

oc_status oc__cuda_context(int device, oc__cu_context *out, oc_err *err) {
  const oc__cuda_api *api;
  OC_TRY(check_ordinal(device, err));
  *out = atomic_load_explicit(&devices[device].context, memory_order_acquire);
  if (*out) return OC_OK;
  OC_TRY(oc__cuda_driver(&api, err));
  oc__cuda_lock();
  oc_status status = OC_OK;
  *out = atomic_load(&devices[device].context);
  if (!*out) {
    status = retain(api, device, out, err);
    if (status == OC_OK) atomic_store_explicit(&devices[device].context, *out, memory_order_release);
  }
  oc__cuda_unlock();
  return status;
}

oc__cu_context oc__cuda_any_context(void) {
  for (int device = 0; device < OC__CUDA_DEVICES_MAX; device++) {
    const oc__cu_context context = atomic_load_explicit(&devices[device].context, memory_order_acquire);
    if (context) return context;
  }
  return NULL;
}

oc_status oc__cuda_enter(const oc__cuda_api *api, oc__cu_context context, oc__cuda_scope *scope, oc_err *err) {
  oc__cu_context current = NULL;
  *scope = (oc__cuda_scope){.api = api};
  OC_TRY(oc__cuda_check(api, api->context_current(&current), "cuCtxGetCurrent", err));
  if (current == context) return OC_OK;
  OC_TRY(oc__cuda_check(api, api->context_push(context), "cuCtxPushCurrent", err));
  scope->is_pushed = 1;
  return OC_OK;
}

void oc__cuda_leave(const oc__cuda_scope *scope) {
  oc__cu_context popped;
  if (scope->is_pushed) (void)scope->api->context_pop(&popped); /* fails only when what was pushed is gone already */
}

/* ---- limits ----------------------------------------------------------------------------------------------------- */

static oc_status ask(const oc__cuda_api *api, int handle, int attribute, int *out, oc_err *err) {
  return oc__cuda_check(api, api->device_attribute(out, attribute, handle), "cuDeviceGetAttribute", err);
}

static oc_status read_limits(int device, oc__cuda_limits *out, oc_err *err) {
  const oc__cuda_api *api;
  int handle = 0, major = 0, minor = 0, l2_bytes = 0;
  OC_TRY(oc__cuda_driver(&api, err));
  OC_TRY(oc__cuda_handle(api, device, &handle, err));
  OC_TRY(ask(api, handle, OC__CU_DEVICE_MAJOR, &major, err));
  OC_TRY(ask(api, handle, OC__CU_DEVICE_MINOR, &minor, err));
  OC_TRY(ask(api, handle, OC__CU_DEVICE_MULTIPROCESSORS, &out->multiprocessors, err));
  OC_TRY(ask(api, handle, OC__CU_DEVICE_SHARED_OPT_IN, &out->shared_bytes, err));
  OC_TRY(ask(api, handle, OC__CU_DEVICE_L2_BYTES, &l2_bytes, err));
  out->sm = 10 * major + minor;
  out->l2_bytes = l2_bytes;
  return OC_OK;
}

oc_status oc__cuda_limits_of(int device, const oc__cuda_limits **out, oc_err *err) {
  OC_TRY(check_ordinal(device, err));
  *out = &devices[device].limits;
  if (atomic_load_explicit(&devices[device].has_limits, memory_order_acquire)) return OC_OK;
  oc__cuda_limits limits = {0};
  OC_TRY(read_limits(device, &limits, err));
  oc__cuda_lock();
  if (!atomic_load(&devices[device].has_limits)) {
    devices[device].limits = limits;
    atomic_store_explicit(&devices[device].has_limits, 1, memory_order_release);
  }
  oc__cuda_unlock();
  return OC_OK;
}
