/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels by device. Warm: one look-up in a table that readers take no lock for. Cold, under the lock: the architecture
 * is gated, the stream asked whether it captures, the module's bytes read, verified and loaded, once for all kernels of
 * the module. Nothing is ever unloaded: a framework may hold graphs that launch the kernels. */
#define _GNU_SOURCE
#include "devices/cuda/driver.h"
#include "opt_core/activation.h"
#include "opt_core/cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN_SHARED_BYTES = 48 << 10, FIRST_CAPACITY = 128 };

/* ---- the table of kernels --------------------------------------------------------------------------------------- */

typedef struct entry {
  oc__cuda_function function;              /* written before the kernel, never after */
  _Atomic(const oc__cuda_kernel *) kernel; /* NULL: the entry is free */
} entry;

/* Open addressing, at most half full. A full table is replaced by one twice as large; readers may still be in the old
 * one, so it is kept: all old ones together are smaller than the newest. */
typedef struct table {
  struct table *older;
  size_t capacity, count; /* a power of two */
  entry entries[];
} table;

static _Atomic(table *) tables[OC__CUDA_DEVICES_MAX];

static size_t first_place(const table *t, const oc__cuda_kernel *kernel) {
  return (size_t)(((uint64_t)(uintptr_t)kernel * 0x9E3779B97F4A7C15u) >> 32) & (t->capacity - 1);
}

static oc__cuda_function look_up(const table *t, const oc__cuda_kernel *kernel) {
  for (size_t at = t ? first_place(t, kernel) : 0; t; at = (at + 1) & (t->capacity - 1)) {
    const oc__cuda_kernel *there = atomic_load_explicit(&t->entries[at].kernel, memory_order_acquire);
    if (there == kernel) return t->entries[at].function;
    if (!there) return NULL;
  }
  return NULL;
}

static void put(table *t, const oc__cuda_kernel *kernel, oc__cuda_function function) {
  size_t at = first_place(t, kernel);
  while (atomic_load_explicit(&t->entries[at].kernel, memory_order_relaxed)) at = (at + 1) & (t->capacity - 1);
  t->entries[at].function = function;
  atomic_store_explicit(&t->entries[at].kernel, kernel, memory_order_release);
  t->count++;
}

static table *grow(table *old, oc_err *err) {
  const size_t capacity = old ? 2 * old->capacity : FIRST_CAPACITY;
  table *t = calloc(1, sizeof *t + capacity * sizeof(entry));
  if (!t) {
    (void)OC_FAIL(err, NO_MEM, 0, "a table of %zu kernels", capacity);
    return NULL;
  }
  t->older = old;
  t->capacity = capacity;
  for (size_t i = 0; old && i < old->capacity; i++)
    if (old->entries[i].kernel) put(t, old->entries[i].kernel, old->entries[i].function);
  return t;
}

/* Under the lock. */
static oc_status remember(int device, const oc__cuda_kernel *kernel, oc__cuda_function function, oc_err *err) {
  table *t = atomic_load_explicit(&tables[device], memory_order_relaxed);
  if (!t || 2 * (t->count + 1) > t->capacity) {
    t = grow(t, err);
    if (!t) return OC_NO_MEM;
    put(t, kernel, function);
    atomic_store_explicit(&tables[device], t, memory_order_release);
    return OC_OK;
  }
  put(t, kernel, function);
  return OC_OK;
}

const oc__cuda_kernel *oc__cuda_kernel_of(int device, oc__cuda_function function) {
  if (device < 0 || device >= OC__CUDA_DEVICES_MAX) return NULL;
  const table *t = atomic_load_explicit(&tables[device], memory_order_acquire);
  for (size_t i = 0; t && i < t->capacity; i++) {
    const oc__cuda_kernel *kernel = atomic_load_explicit(&t->entries[i].kernel, memory_order_acquire);
    if (kernel && t->entries[i].function == function) return kernel;
  }
  return NULL;
}

/* ---- modules ---------------------------------------------------------------------------------------------------- */

typedef struct module {
  struct module *next;
  oc__cu_module handle;
  oc_cuda_module facts;
} module;

static module *modules, **modules_end = &modules; /* under the lock */
static const char *directory;                     /* under the lock; NULL: beside the library */

void oc__cuda_directory_set(const char *given) {
  oc__cuda_lock();
  directory = given;
  oc__cuda_unlock();
}

int oc_cuda_modules(oc_cuda_module *out, int capacity) {
  int count = 0;
  oc__cuda_lock();
  for (const module *m = modules; m; m = m->next, count++)
    if (count < capacity) out[count] = m->facts;
  oc__cuda_unlock();
  return count;
}

/* The directory that holds this library, found by the address of one of its objects. */
static oc_status own_directory(char out[PATH_MAX], oc_err *err) {
  static const char here = 0;
  Dl_info info;
  if (dladdr(&here, &info) == 0 || !info.dli_fname || !realpath(info.dli_fname, out))
    return OC_FAIL(err, IO, 0, "the library's own file was not found");
  char *slash = strrchr(out, '/');
  if (slash) *slash = '\0';
  return OC_OK;
}

static oc_status package_directory(const char *package, char out[PATH_MAX], oc_err *err) {
  char own[PATH_MAX];
  if (!directory) OC_TRY(own_directory(own, err));
  const int bytes =
      snprintf(out, PATH_MAX, "%s%s/%s", directory ? directory : own, directory ? "" : "/opt_core/cubin", package);
  if (bytes >= PATH_MAX) return OC_FAIL(err, BAD_ARG, 0, "a path of %d bytes, at most %d", bytes, PATH_MAX - 1);
  return OC_OK;
}

static module *find_module(int device, const char *package, const char *key) {
  for (module *m = modules; m; m = m->next)
    if (m->facts.device == device && strcmp(m->facts.package, package) == 0 && strcmp(m->facts.key, key) == 0) return m;
  return NULL;
}

static oc_status fill_facts(oc_cuda_module *facts, int device, const char *package, const char *key, oc_err *err) {
  facts->device = device;
  const int package_bytes = snprintf(facts->package, sizeof facts->package, "%s", package);
  const int key_bytes = snprintf(facts->key, sizeof facts->key, "%s", key);
  if (package_bytes >= (int)sizeof facts->package || key_bytes >= (int)sizeof facts->key)
    return OC_FAIL(err, BAD_ARG, 0, "package %.40s, key %.70s: longer than %zu and %zu bytes", package, key,
                   sizeof facts->package - 1, sizeof facts->key - 1);
  return OC_OK;
}

/* The bytes that were verified are the bytes that are loaded. */
static oc_status load_bytes(const oc__cuda_api *api, module *m, oc_err *err) {
  char path[PATH_MAX];
  unsigned char *bytes;
  size_t count;
  OC_TRY(package_directory(m->facts.package, path, err));
  OC_TRY(oc_prebuilt_read(path, m->facts.key, &bytes, &count, err));
  oc_status status = oc_digest_bytes(bytes, count, m->facts.sha256, err);
  if (status == OC_OK) status = oc__cuda_check(api, api->module_load(&m->handle, bytes), "cuModuleLoadData", err);
  oc_bytes_free(bytes); /* the driver keeps a copy of its own */
  return status;
}

static oc_status load_module(const oc__cuda_api *api, int device, const char *package, const char *key, module **out,
                             oc_err *err) {
  module *m = calloc(1, sizeof *m);
  if (!m) return OC_FAIL(err, NO_MEM, 0, "%zu bytes", sizeof *m);
  oc_status status = fill_facts(&m->facts, device, package, key, err);
  if (status == OC_OK) status = load_bytes(api, m, err);
  if (status != OC_OK) {
    free(m);
    return status;
  }
  *modules_end = *out = m;
  modules_end = &m->next;
  return OC_OK;
}

/* ---- one kernel ------------------------------------------------------------------------------------------------- */

/* Dynamic shared memory beyond what every launch may have is granted by function. Never lowered: another kernel struct
 * may name the same function with more. */
static oc_status opt_in(const oc__cuda_api *api, const oc__cuda_kernel *kernel, oc__cuda_function function,
                        const oc__cuda_limits *limits, oc_err *err) {
  int fixed = 0, granted = 0;
  OC_TRY(oc__cuda_check(api, api->function_get(&fixed, OC__CU_FUNCTION_STATIC_SHARED, function), "cuFuncGetAttribute",
                        err));
  if (kernel->shared_bytes < 0 || kernel->shared_bytes > limits->shared_bytes - fixed)
    return OC_REFUSE(err, ARCH, "%.64s needs %d + %d bytes of shared memory a block, sm_%d grants %d", kernel->symbol,
                     kernel->shared_bytes, fixed, limits->sm, limits->shared_bytes);
  if (kernel->shared_bytes <= PLAIN_SHARED_BYTES - fixed) return OC_OK;
  OC_TRY(oc__cuda_check(api, api->function_get(&granted, OC__CU_FUNCTION_DYNAMIC_SHARED, function),
                        "cuFuncGetAttribute", err));
  if (granted >= kernel->shared_bytes) return OC_OK;
  return oc__cuda_check(api, api->function_set(function, OC__CU_FUNCTION_DYNAMIC_SHARED, kernel->shared_bytes),
                        "cuFuncSetAttribute", err);
}

static oc_status refuse_capture(const oc__cuda_kernel *kernel, oc_err *err) {
  return OC_REFUSE(err, CAPTURE, "%.32s.%.32s.%.64s is not loaded; call oc_cuda_prepare before", kernel->package,
                   kernel->module, kernel->symbol);
}

/* Loading may synchronise, which would break the capture. */
static oc_status check_capture(const oc__cuda_api *api, void *stream, const oc__cuda_kernel *kernel, oc_err *err) {
  int capturing = 0;
  const int code = api->is_capturing(stream, &capturing);
  if (code >= OC__CU_ERROR_CAPTURE_FIRST && code <= OC__CU_ERROR_CAPTURE_LAST) return refuse_capture(kernel, err);
  OC_TRY(oc__cuda_check(api, code, "cuStreamIsCapturing", err));
  return capturing ? refuse_capture(kernel, err) : OC_OK;
}

static oc_status load_kernel(const oc__cuda_api *api, int device, const oc__cuda_kernel *kernel,
                             const oc__cuda_limits *limits, oc__cuda_function *out, oc_err *err) {
  char key[128];
  (void)snprintf(key, sizeof key, "%.60s.%.60s", kernel->module, kernel->arch);
  module *m = find_module(device, kernel->package, key);
  if (!m) OC_TRY(load_module(api, device, kernel->package, key, &m, err));
  OC_TRY(oc__cuda_check(api, api->module_function(out, m->handle, kernel->symbol), "cuModuleGetFunction", err));
  return opt_in(api, kernel, *out, limits, err);
}

/* In the context. A capture that runs in another thread, in the mode that forbids every thread's unsafe calls, does not
 * concern a load here: the mode is relaxed for its duration. */
static oc_status load_relaxed(const oc__cuda_api *api, int device, void *stream, const oc__cuda_kernel *kernel,
                              const oc__cuda_limits *limits, oc__cuda_function *out, oc_err *err) {
  int mode = OC__CU_CAPTURE_RELAXED;
  OC_TRY(check_capture(api, stream, kernel, err));
  OC_TRY(oc__cuda_check(api, api->capture_mode(&mode), "cuThreadExchangeStreamCaptureMode", err));
  const oc_status status = load_kernel(api, device, kernel, limits, out, err);
  (void)api->capture_mode(&mode); /* puts back what it gave */
  return status;
}

/* Two threads may come here for one kernel: the second finds it loaded. */
static oc_status load_once(const oc__cuda_api *api, int device, void *stream, const oc__cuda_kernel *kernel,
                           const oc__cuda_limits *limits, oc__cuda_function *out, oc_err *err) {
  oc__cuda_lock();
  oc_status status = OC_OK;
  *out = look_up(atomic_load_explicit(&tables[device], memory_order_relaxed), kernel);
  if (!*out) {
    status = load_relaxed(api, device, stream, kernel, limits, out, err);
    if (status == OC_OK) status = remember(device, kernel, *out, err);
  }
  oc__cuda_unlock();
  return status;
}

static oc_status find_cold(int device, void *stream, const oc__cuda_kernel *kernel, oc__cuda_function *out,
                           oc_err *err) {
  const oc__cuda_api *api;
  const oc__cuda_limits *limits;
  oc__cu_context context;
  oc__cuda_scope scope;
  OC_TRY(oc__cuda_driver(&api, err));
  OC_TRY(oc__cuda_limits_of(device, &limits, err));
  OC_TRY(oc_gate_arch(limits->sm, kernel->arch, err));
  OC_TRY(oc__cuda_context(device, &context, err));
  OC_TRY(oc__cuda_enter(api, context, &scope, err));
  const oc_status status = load_once(api, device, stream, kernel, limits, out, err);
  oc__cuda_leave(&scope);
  if (status != OC_OK) *out = NULL;
  return status;
}

oc_status oc__cuda_kernel_find(int device, void *stream, const oc__cuda_kernel *kernel, oc__cuda_function *out,
                               oc_err *err) {
  if (device >= 0 && device < OC__CUDA_DEVICES_MAX) {
    *out = look_up(atomic_load_explicit(&tables[device], memory_order_acquire), kernel);
    if (*out) return OC_OK;
  }
  *out = NULL;
  return find_cold(device, stream, kernel, out, err);
}
