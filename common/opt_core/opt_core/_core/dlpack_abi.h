/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the DLPack 1.x binary interface that the extension reads: the table that a framework publishes in a
 * capsule named "dlpack_exchange_api", and the tensor description that it fills. Declared here so that building needs
 * no framework. Only the first fields that are used are declared; the table may be longer. Check version.major before
 * anything else.
 * source: https://dmlc.github.io/dlpack/latest/c_api.html
 */
#ifndef OPT_CORE_DLPACK_ABI_H
#define OPT_CORE_DLPACK_ABI_H

#include <stdint.h>

#define OC_DL_CAPSULE "dlpack_exchange_api"
#define OC_DL_MAJOR 1u

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

typedef struct oc_dl_api {
  oc_dl_header header;
  void (*managed_allocator)(void); /* the first three entries are not called; their types do not matter here */
  void (*managed_from_object)(void);
  void (*managed_to_object)(void);
  int (*borrow)(void *object,
                oc_dl_tensor *out); /* 0, or -1 with a Python error set; may be NULL. No ownership passes */
} oc_dl_api;

#endif
