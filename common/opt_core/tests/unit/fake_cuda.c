/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAMES = 32, STACK = 8, FUNCTIONS = 64, FUNCTION_NAME = 64 };
enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE_CODE = 100, INVALID_CONTEXT = 201, NOT_FOUND_CODE = 500 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  const char *name;
  int calls, code, after;
} functions[NAMES];
static int total_calls, inits;

static int find(const char *name) {
  int at = 0;
  while (at < NAMES - 1 && functions[at].name && strcmp(functions[at].name, name) != 0) at++;
  functions[at].name = name;
  return at;
}

/* Counts the call; the code that it fails with, or 0. */
static int enter(const char *name) {
  pthread_mutex_lock(&lock);
  const int at = find(name);
  functions[at].calls++;
  total_calls++;
  int code = functions[at].after > 0 ? 0 : functions[at].code;
  if (functions[at].after > 0) functions[at].after--;
  pthread_mutex_unlock(&lock);
  const char *fails = getenv("OC_FAKE_FAIL");
  return code ? code : fails && strcmp(fails, name) == 0 ? atoi(getenv("OC_FAKE_CODE")) : 0;
}

#define ENTER()                                                                                                        \
  do {                                                                                                                 \
    const int fails = enter(__func__);                                                                                 \
    if (fails) return fails;                                                                                           \
  } while (0)

int fake_calls(const char *name) {
  pthread_mutex_lock(&lock);
  const int calls = name ? functions[find(name)].calls : total_calls;
  pthread_mutex_unlock(&lock);
  return calls;
}

void fake_fail(const char *name, int code, int after) {
  pthread_mutex_lock(&lock);
  const int at = find(name);
  functions[at].code = code;
  functions[at].after = after;
  pthread_mutex_unlock(&lock);
}

/* ---- devices ---------------------------------------------------------------------------------------------------- */

static const struct {
  int sm, shared;
} chips[FAKE_DEVICES] = {{90, 232448}, {121, 101376}, {86, 101376}, {80, 166912},
                         {90, 232448}, {90, 232448},  {90, 232448}, {75, 65536}};

enum { FIRST_HANDLE = 40 };

static int device_count(void) {
  const char *text = getenv("OC_FAKE_COUNT");
  return text ? atoi(text) : FAKE_DEVICES;
}

static int cuInit(unsigned flags) {
  ENTER();
  inits++;
  return flags == 0 ? 0 : INVALID_VALUE;
}

static int cuGetErrorName(int code, const char **name) {
  ENTER();
  static const struct {
    int code;
    const char *name;
  } names[] = {{1, "CUDA_ERROR_INVALID_VALUE"},
               {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
               {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}};
  *name = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].code == code) *name = names[i].name;
  return *name ? 0 : INVALID_VALUE;
}

static int cuDeviceGetCount(int *count) {
  ENTER();
  if (!inits) return NOT_INITIALIZED;
  *count = device_count();
  return 0;
}

static int cuDeviceGet(int *device, int ordinal) {
  ENTER();
  *device = FIRST_HANDLE + ordinal;
  return ordinal >= 0 && ordinal < device_count() ? 0 : 101;
}

static int cuDeviceGetName(char *name, int bytes, int device) {
  ENTER();
  strncpy(name, device == FIRST_HANDLE + 1 ? "Second" : "First", (size_t)bytes);
  return 0;
}

static int cuDeviceGetAttribute(int *value, int attribute, int device) {
  ENTER();
  const int at = device - FIRST_HANDLE;
  *value = attribute == 75   ? chips[at].sm / 10
           : attribute == 76 ? chips[at].sm % 10
           : attribute == 97 ? chips[at].shared
           : attribute == 16 ? 132
           : attribute == 38 ? 60 << 20
                             : -1;
  return *value < 0 ? INVALID_VALUE : 0;
}

static int cuDeviceGetUuid(unsigned char *uuid, int device) {
  ENTER();
  for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(16 * i + device - FIRST_HANDLE);
  return 0;
}

static int cuDeviceTotalMem(size_t *bytes, int device) {
  ENTER();
  *bytes = (size_t)150 << 30;
  return device < FIRST_HANDLE;
}

/* ---- contexts --------------------------------------------------------------------------------------------------- */

static char contexts[FAKE_DEVICES];
static __thread void *stack[STACK];
static __thread int depth;
static __thread int mode; /* 0: global */

void *fake_context(int device) { return &contexts[device]; }

void fake_current(void *context) {
  depth = context != NULL;
  stack[0] = context;
}

void *fake_current_is(int *stacked) {
  if (stacked) *stacked = depth;
  return depth ? stack[depth - 1] : NULL;
}

static int cuDevicePrimaryCtxRetain(void **context, int device) {
  ENTER();
  *context = &contexts[device - FIRST_HANDLE];
  return 0;
}

static int cuCtxGetCurrent(void **context) {
  ENTER();
  *context = fake_current_is(NULL);
  return 0;
}

static int cuCtxPushCurrent(void *context) {
  ENTER();
  if (depth == STACK) return INVALID_VALUE;
  stack[depth++] = context;
  return 0;
}

static int cuCtxPopCurrent(void **context) {
  ENTER();
  if (!depth) return INVALID_CONTEXT;
  *context = stack[--depth];
  return 0;
}

/* ---- capture ---------------------------------------------------------------------------------------------------- */

static void *captured;
static int capture_status;

void fake_capture(void *stream, int status) {
  captured = stream;
  capture_status = status;
}

int fake_capture_mode(void) { return mode; }

static int cuStreamIsCapturing(void *stream, int *status) {
  ENTER();
  if (!depth) return INVALID_CONTEXT;
  *status = stream == captured ? capture_status : 0;
  return 0;
}

static int cuThreadExchangeStreamCaptureMode(int *wanted) {
  ENTER();
  const int was = mode;
  mode = *wanted;
  *wanted = was;
  return 0;
}

/* ---- modules ---------------------------------------------------------------------------------------------------- */

typedef struct function {
  char name[FUNCTION_NAME];
  void *module, *context;
  int fixed, dynamic;
} function;

static function table[FUNCTIONS];
static int function_count, static_shared, load_mode, slow_milliseconds;
static char image_text[64];

const char *fake_last_image(void) { return image_text; }
int fake_load_mode(void) { return load_mode; }
void fake_static_shared(int bytes) { static_shared = bytes; }
void fake_slow(int milliseconds) { slow_milliseconds = milliseconds; }
int fake_dynamic_shared(void *f) { return ((const function *)f)->dynamic; }

static int cuModuleLoadData(void **module, const void *image) {
  ENTER();
  if (!depth) return INVALID_CONTEXT;
  if (slow_milliseconds) usleep((useconds_t)slow_milliseconds * 1000);
  strncpy(image_text, image, sizeof image_text - 1);
  load_mode = mode;
  *module = strdup(image_text);
  return 0;
}

static int cuModuleGetFunction(void **out, void *module, const char *name) {
  ENTER();
  if (!depth) return INVALID_CONTEXT;
  if (strncmp(name, "absent", 6) == 0) return NOT_FOUND_CODE;
  pthread_mutex_lock(&lock);
  int at = 0;
  while (at < function_count && (table[at].module != module || strcmp(table[at].name, name) != 0)) at++;
  if (at == function_count) {
    function_count++;
    table[at] = (function){.module = module, .context = stack[depth - 1], .fixed = static_shared};
    strncpy(table[at].name, name, FUNCTION_NAME - 1);
  }
  pthread_mutex_unlock(&lock);
  *out = &table[at];
  return 0;
}

static int cuFuncGetAttribute(int *value, int attribute, void *given) {
  ENTER();
  const function *f = given;
  *value = attribute == 1 ? f->fixed : attribute == 8 ? f->dynamic : -1;
  return *value < 0 ? INVALID_VALUE : 0;
}

static int cuFuncSetAttribute(void *given, int attribute, int value) {
  ENTER();
  function *f = given;
  if (attribute != 8 || value < 0) return INVALID_VALUE;
  f->dynamic = value;
  return 0;
}

/* ---- launches and maps ------------------------------------------------------------------------------------------ */

typedef struct attribute {
  int id, padding;
  union {
    unsigned cluster[3];
    int flag;
    uint64_t words[8];
  } value;
} attribute;

typedef struct config {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  const attribute *attributes;
  unsigned count;
} config;

static fake_launch last_launch;
static fake_map last_map;

const fake_launch *fake_last_launch(void) { return &last_launch; }
const fake_map *fake_last_map(void) { return &last_map; }

static int cuLaunchKernelEx(const config *c, void *given, void **params, void **extra) {
  ENTER();
  const function *f = given;
  if (extra || fake_current_is(NULL) != f->context) return INVALID_CONTEXT;
  fake_launch seen = {.shared_bytes = c->shared_bytes,
                      .stream = c->stream,
                      .context = f->context,
                      .symbol = f->name,
                      .attribute_count = (int)c->count};
  memcpy(seen.grid, c->grid, sizeof seen.grid);
  memcpy(seen.block, c->block, sizeof seen.block);
  for (unsigned i = 0; i < c->count; i++) {
    if (c->attributes[i].id == 4) seen.cluster = c->attributes[i].value.cluster[0];
    if (c->attributes[i].id == 6) seen.follows = c->attributes[i].value.flag;
  }
  memcpy(seen.params, params[0], sizeof seen.params);
  last_launch = seen;
  return 0;
}

static int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *data, const uint64_t *shape,
                                  const uint64_t *stride, const unsigned *box, const unsigned *steps, int interleave,
                                  int swizzle, int promotion, int outside) {
  ENTER();
  fake_map seen = {.type = type,
                   .interleave = interleave,
                   .swizzle = swizzle,
                   .promotion = promotion,
                   .outside = outside,
                   .rank = rank,
                   .data = data,
                   .context = fake_current_is(NULL)};
  for (unsigned axis = 0; axis < rank; axis++) {
    if (steps[axis] != 1) return INVALID_VALUE;
    seen.shape[axis] = shape[axis];
    seen.box[axis] = box[axis];
    if (axis > 0) seen.stride[axis - 1] = stride[axis - 1];
  }
  last_map = seen;
  memset(map, 0x5A, 128);
  return 0;
}

/* ---- the entry -------------------------------------------------------------------------------------------------- */

#define ROW(name, version)                                                                                             \
  { #name, version, (void *)name }

int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found);
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found) {
  static const struct {
    const char *name;
    int version; /* the release whose form of the function this file plays */
    void *function;
  } rows[] = {ROW(cuInit, 2000),
              ROW(cuGetErrorName, 6000),
              ROW(cuDeviceGetCount, 2000),
              ROW(cuDeviceGet, 2000),
              ROW(cuDeviceGetName, 2000),
              ROW(cuDeviceGetAttribute, 2000),
              ROW(cuDeviceGetUuid, 11040),
              ROW(cuDeviceTotalMem, 3020),
              ROW(cuDevicePrimaryCtxRetain, 7000),
              ROW(cuCtxGetCurrent, 4000),
              ROW(cuCtxPushCurrent, 4000),
              ROW(cuCtxPopCurrent, 4000),
              ROW(cuModuleLoadData, 2000),
              ROW(cuModuleGetFunction, 2000),
              ROW(cuFuncGetAttribute, 2020),
              ROW(cuFuncSetAttribute, 9000),
              ROW(cuLaunchKernelEx, 11060),
              ROW(cuStreamIsCapturing, 10000),
              ROW(cuThreadExchangeStreamCaptureMode, 10010),
              ROW(cuTensorMapEncodeTiled, 12000)};
  const char *lacks = getenv("OC_FAKE_LACKS");
  *out = NULL;
  *found = 1;
  if (flags != 1) return INVALID_VALUE;
  if (lacks && strcmp(lacks, name) == 0) return 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (strcmp(rows[i].name, name) != 0) continue;
    *found = version == rows[i].version ? 0 : 2;
    *out = *found == 0 ? rows[i].function : NULL;
    return 0;
  }
  return NOT_FOUND_CODE;
}

void fake_reset(void) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < NAMES; i++) functions[i].calls = functions[i].code = functions[i].after = 0;
  total_calls = 0;
  pthread_mutex_unlock(&lock);
  fake_capture(NULL, 0);
  static_shared = slow_milliseconds = 0;
}
