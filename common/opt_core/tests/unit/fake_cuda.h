/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 without a device behind it: keeps the driver's rules that the library relies on, records calls, fails
 * on demand. Programs link it; its soname makes dlopen("libcuda.so.1") find the copy that is loaded already. By
 * environment, for programs that are started with it on their library path:
 *   OC_FAKE_COUNT=<n>    devices, 8 where unset
 *   OC_FAKE_FAIL=<name>  this function fails with OC_FAKE_CODE
 *   OC_FAKE_LACKS=<name> cuGetProcAddress does not know it */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

enum { FAKE_DEVICES = 8, FAKE_PARAMS = 64 };

typedef struct fake_launch {
  unsigned grid[3], block[3], shared_bytes, cluster;
  int follows, attribute_count;
  void *stream, *context; /* context: current at the launch */
  const char *symbol;
  unsigned char params[FAKE_PARAMS];
} fake_launch;

typedef struct fake_map {
  int type, interleave, swizzle, promotion, outside;
  unsigned rank, box[5];
  void *data, *context;
  uint64_t shape[5], stride[4];
} fake_map;

/* Calls of a function so far, failed ones included; NULL: of all functions. */
int fake_calls(const char *name);
/* The function fails with the code from now on, after it has let `after` calls pass; code 0: no more. */
void fake_fail(const char *name, int code, int after);
void fake_reset(void); /* no failure, no capture, calls at 0, one shared memory for all kernels */

const fake_launch *fake_last_launch(void);
const fake_map *fake_last_map(void);
const char *fake_last_image(void); /* the first bytes of the module that was loaded last, as text */
int fake_load_mode(void);          /* capture mode of the thread that loaded it */

void *fake_context(int device);    /* the primary context of a device */
void fake_current(void *context);  /* of the calling thread, alone on its stack; NULL: none */
void *fake_current_is(int *depth); /* what is current, and how much is stacked */
void fake_capture(void *stream, int status);
int fake_capture_mode(void);             /* of the calling thread */
void fake_static_shared(int bytes);      /* of the functions found from now on */
int fake_dynamic_shared(void *function); /* the attribute as last set */
void fake_slow(int milliseconds);        /* cuModuleLoadData takes as long */

#endif
