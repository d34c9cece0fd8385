/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the DLPack 1.x binary interface that the extension reads: the table that a framework publishes in a
 * capsule named "dlpack_exchange_api", and what its entries take and give. Declared here so that building needs no
 * framework. The table may be longer. Check version.major before anything else: a minor version only adds fields at the
 * end.
 * source: https://dmlc.github.io/dlpack/latest/c_api.html
 */
#ifndef OPT_CORE_DLPACK_ABI_H
#define OPT_CORE_DLPACK_ABI_H

#include <stdint.h>

#define OC_DL_CAPSULE "dlpack_exchange_api"
#define OC_DL_MAJOR 1u
#define OC_DL_MINOR 2u /* the first with all entries below */

enum { OC_DL_CPU = 1, OC_DL_CUDA = 2 };                                                    /* device types */
enum { OC_DL_INT = 0, OC_DL_UINT = 1, OC_DL_FLOAT = 2, OC_DL_BFLOAT = 4, OC_DL_BOOL = 6 }; /* element codes */

typedef struct oc_dl_tensor {
  void *data;
  struct {
    int32_t type, id;
  } device;
  int32_t rank;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } element;
  int64_t *shape;   /* borrowed from the tensor object, valid while it lives and is not resized */
  int64_t *strides; /* in elements; NULL: dense row-major */
  uint64_t byte_offset;
} oc_dl_tensor;

typedef struct oc_dl_header {
  struct {
    uint32_t major, minor;
  } version;
  const struct oc_dl_header *previous; /* an older table by the same framework, or NULL */
} oc_dl_header;

/* A tensor with its owner. Whoever got it calls release once, with any thread's state. */
typedef struct oc_dl_managed {
  struct {
    uint32_t major, minor;
  } version;
  void *owner;
  void (*release)(struct oc_dl_managed *self); /* may be NULL */
  uint64_t flags;
  oc_dl_tensor tensor;
} oc_dl_managed;

/* Told once when an allocation fails; kind names a Python exception, "MemoryError". */
typedef void oc_dl_report(void *context, const char *kind, const char *message);

typedef struct oc_dl_api {
  oc_dl_header header;
  /* New memory on prototype->device, on its current stream where it has streams; of the prototype only element, rank,
   * shape and device are read. 0, or -1 after a call of report. */
  int (*allocate)(oc_dl_tensor *prototype, oc_dl_managed **out, void *context, oc_dl_report *report);
  void (*managed_from_object)(void); /* these two are not called; their types do not matter here */
  void (*managed_to_object)(void);
  /* 0, or -1 with a Python error set; may be NULL. No ownership passes. */
  int (*borrow)(void *object, oc_dl_tensor *out);
  /* The stream that the framework's own work on the device goes to now, in this thread. 0, or -1 with a Python error
   * set. */
  int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
} oc_dl_api;

#endif
