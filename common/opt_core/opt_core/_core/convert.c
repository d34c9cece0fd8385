/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors to views, Python values to descriptors. Tables, no arithmetic. */
#include "core.h"

#include <stdio.h>
#include <string.h>

/* ---- the framework's table ----------------------------------------------------------------------------------- */

static const oc_dl_api *find_major(const oc_dl_api *api) {
  const oc_dl_header *header = &api->header;
  while (header && header->version.major != OC_DL_MAJOR) header = header->previous;
  return (const oc_dl_api *)header; /* the header is the table's first member */
}

static PyObject *own_function(PyObject *type) {
  PyObject *bound = PyObject_GetAttrString(type, "__torch_function__");
  PyObject *function = bound ? PyObject_GetAttrString(bound, "__func__") : NULL;
  if (bound && !function) { /* not a class method: the object itself is what classes share */
    PyErr_Clear();
    return bound;
  }
  Py_XDECREF(bound);
  return function;
}

static void torch_swap(PyObject **slot, PyObject *value) {
  PyObject *old = *slot;
  *slot = value;
  Py_XDECREF(old);
}

int oc__torch_bind(oc__torch *torch, PyObject *capsule, PyObject *tensor_type, PyObject *parameter_type) {
  if (!PyCapsule_IsValid(capsule, OC_DL_CAPSULE)) {
    PyErr_SetString(PyExc_TypeError, "bind_torch: not a capsule named " OC_DL_CAPSULE);
    return -1;
  }
  if (!PyType_Check(tensor_type) || !PyType_Check(parameter_type)) {
    PyErr_SetString(PyExc_TypeError, "bind_torch: tensor_type and parameter_type are types");
    return -1;
  }
  const oc_dl_api *given = PyCapsule_GetPointer(capsule, OC_DL_CAPSULE);
  const oc_dl_api *api = given ? find_major(given) : NULL;
  if (!api || !api->borrow) {
    PyErr_Format(PyExc_ValueError, "bind_torch: exchange table version %u.%u, need major %u with a borrow entry",
                 given->header.version.major, given->header.version.minor, OC_DL_MAJOR);
    return -1;
  }
  PyObject *function = own_function(tensor_type), *disabled = function ? own_function(parameter_type) : NULL;
  PyObject *dispatch = disabled ? PyObject_GetAttrString(tensor_type, "__torch_dispatch__") : NULL;
  if (!dispatch) {
    Py_XDECREF(function);
    Py_XDECREF(disabled);
    return -1;
  }
  torch->api = api;
  torch->has_streams = api->header.version.minor >= OC_DL_MINOR && api->allocate && api->current_stream;
  torch_swap(&torch->function, function);
  torch_swap(&torch->disabled_function, disabled);
  torch_swap(&torch->dispatch, dispatch);
  Py_INCREF(tensor_type);
  torch_swap(&torch->tensor, tensor_type);
  Py_INCREF(parameter_type);
  torch_swap(&torch->parameter, parameter_type);
  return 0;
}

/* ---- one tensor ---------------------------------------------------------------------------------------------- */

/* Only failures are worth the text. */
typedef struct spot_text {
  char text[64];
} spot_text;
static spot_text name_spot(const oc__spot *spot) {
  spot_text out;
  if (spot->position < 0)
    (void)snprintf(out.text, sizeof out.text, "%s", spot->name);
  else
    (void)snprintf(out.text, sizeof out.text, "tensors[%d] (%s)", spot->position, spot->name);
  return out;
}
#define SPOT(spot) (name_spot(spot).text)

typedef struct device_text {
  char text[24];
} device_text;
static device_text name_device(int32_t device) {
  device_text out = {"cpu"};
  if (device != OC_DEVICE_HOST) (void)snprintf(out.text, sizeof out.text, "cuda:%d", (int)device - 1);
  return out;
}
#define DEVICE(device) (name_device(device).text)

/* 1 when the type adds nothing to the plain tensor that would have to see the call; -1 on error. */
static int subclass_is_plain(const oc__torch *torch, PyObject *type) {
  if (!PyType_IsSubtype((PyTypeObject *)type, (PyTypeObject *)torch->tensor)) return 0;
  PyObject *dispatch = PyObject_GetAttrString(type, "__torch_dispatch__");
  PyObject *function = dispatch ? own_function(type) : NULL;
  const int known =
      function ? (dispatch == torch->dispatch && (function == torch->function || function == torch->disabled_function))
               : -1;
  Py_XDECREF(dispatch);
  Py_XDECREF(function);
  return known;
}

static int is_plain_tensor(const oc__torch *torch, PyObject *object, const oc__spot *spot) {
  PyObject *type = (PyObject *)Py_TYPE(object);
  if (type == torch->tensor || type == torch->parameter) return 1;
  const int plain = subclass_is_plain(torch, type);
  if (plain > 0) return 1;
  PyObject *name = plain == 0 ? PyObject_GetAttrString(type, "__name__") : NULL;
  if (name) PyErr_Format(PyExc_TypeError, "%s: need a plain torch.Tensor, not %S", SPOT(spot), name);
  Py_XDECREF(name);
  return 0;
}

static oc_dtype element_dtype(uint8_t code, uint8_t bits) {
  static const struct {
    uint8_t code, bits;
    oc_dtype dtype;
  } known[] = {{OC_DL_FLOAT, 32, OC_F32}, {OC_DL_BFLOAT, 16, OC_BF16}, {OC_DL_FLOAT, 16, OC_F16},
               {OC_DL_FLOAT, 64, OC_F64}, {OC_DL_BOOL, 8, OC_BOOL},    {OC_DL_UINT, 8, OC_U8},
               {OC_DL_INT, 32, OC_I32},   {OC_DL_INT, 64, OC_I64}};
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
    if (known[i].code == code && known[i].bits == bits) return known[i].dtype;
  }
  return OC_DTYPE_NONE;
}

static oc_status device_from_dl(const oc_dl_tensor *tensor, const oc__spot *spot, int32_t *out, oc_err *err) {
  *out = OC_DEVICE_HOST;
  if (tensor->device.type == OC_DL_CPU) return OC_OK;
  if (tensor->device.type != OC_DL_CUDA || tensor->device.id < 0 || tensor->device.id >= OC__CUDA_DEVICES_MAX) {
    return OC_REFUSE(err, NO_DEVICE, "%s is on DLPack device %d:%d, rows run on cpu and cuda", SPOT(spot),
                     (int)tensor->device.type, (int)tensor->device.id);
  }
  *out = OC_DEVICE_CUDA(tensor->device.id);
  return OC_OK;
}

static oc_status view_from_dl(const oc_dl_tensor *tensor, const oc__spot *spot, oc_view *out, oc_err *err) {
  int32_t device;
  OC_TRY(device_from_dl(tensor, spot, &device, err));
  if (tensor->rank < 0 || tensor->rank > OC_MAX_RANK) {
    return OC_FAIL(err, BAD_ARG, 0, "%s: rank %d, at most %d", SPOT(spot), (int)tensor->rank, OC_MAX_RANK);
  }
  const oc_dtype dtype =
      tensor->element.lanes == 1 ? element_dtype(tensor->element.code, tensor->element.bits) : OC_DTYPE_NONE;
  if (dtype == OC_DTYPE_NONE) {
    return OC_REFUSE(err, DTYPE, "%s: DLPack element code %d of %d bits", SPOT(spot), (int)tensor->element.code,
                     (int)tensor->element.bits);
  }
  void *data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
  *out = oc_view_dense(data, dtype, tensor->rank, tensor->shape);
  out->device = device;
  for (int32_t i = 0; tensor->strides && i < tensor->rank; ++i) out->stride[i] = tensor->strides[i];
  return OC_OK;
}

/* A lazily negated view stores other numbers than it shows, and DLPack does not say so. Such views come from complex
 * tensors, so every stride along an axis longer than 1 is even; only then is the tensor asked. */
static oc_status check_lazy_sign(PyObject *object, const oc_view *view, const oc__spot *spot, oc_err *err) {
  for (int32_t i = 0; i < view->rank; ++i) {
    if (view->shape[i] > 1 && view->stride[i] % 2 != 0) return OC_OK;
  }
  PyObject *answer = PyObject_CallMethod(object, "is_neg", NULL);
  const int negated = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  if (negated < 0) return OC_BAD_ARG;
  return negated ? OC_REFUSE(err, LAYOUT, "%s is a lazily negated view", SPOT(spot)) : OC_OK;
}

/* The framework raises RuntimeError for a tensor without plain memory (sparse, meta, quantized, vmapped): a named no.
 */
static oc_status refuse_unlent(const oc__spot *spot, oc_err *err) {
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return OC_BAD_ARG;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject *message = value ? PyObject_Str(value) : NULL;
  const char *text = message ? PyUnicode_AsUTF8AndSize(message, NULL) : NULL;
  if (!text) PyErr_Clear();
  const char *why = text ? text : "no reason given";
  const oc_status status =
      OC_REFUSE(err, LAYOUT, "%s: torch lends no memory: %.*s", SPOT(spot), (int)strcspn(why, "\n"), why);
  Py_XDECREF(message);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return status;
}

oc_status oc__tensor_view(const oc__torch *torch, PyObject *object, oc__spot spot, oc_view *out, oc_err *err) {
  memset(out, 0, sizeof *out);
  if (object == Py_None) return OC_OK;
  if (!torch->api) {
    PyErr_SetString(PyExc_RuntimeError, "bind_torch has not been called");
    return OC_BAD_ARG;
  }
  if (!is_plain_tensor(torch, object, &spot)) return OC_BAD_ARG;
  oc_dl_tensor tensor = {0};
  if (torch->api->borrow(object, &tensor) != 0) return refuse_unlent(&spot, err);
  OC_TRY(view_from_dl(&tensor, &spot, out, err));
  return check_lazy_sign(object, out, &spot, err);
}

oc_status oc__tensor_on_host(const oc_view *view, oc__spot spot, oc_err *err) {
  if (!oc_view_is_present(view) || view->device == OC_DEVICE_HOST) return OC_OK;
  return OC_REFUSE(err, NO_DEVICE, "%s is a %s tensor, the row's device is cpu", SPOT(&spot), DEVICE(view->device));
}

/* ---- descriptors --------------------------------------------------------------------------------------------- */

typedef enum field_kind {
  FIELD_END,
  FIELD_VIEW,
  FIELD_FLOAT,
  FIELD_FLAG,
  FIELD_COUNT,
  FIELD_DTYPE,
  FIELD_WORD
} field_kind;

typedef struct field {
  const char *name;
  field_kind kind;
  size_t offset;
  const char *const *words; /* FIELD_WORD: the enum's words in its order, NULL-terminated */
} field;

static const char *const mask_words[] = {"none", "subtract", "fill", "zero", "add", NULL};
static const char *const direction_words[] = {"outgoing", "incoming", NULL};
static const char *const activation_words[] = {"swiglu", "sigmoid_glu", "relu", NULL};
_Static_assert(OC_MASK_NONE == 0 && OC_MASK_SUBTRACT == 1 && OC_MASK_FILL == 2 && OC_MASK_ZERO == 3 && OC_MASK_ADD == 4,
               "mask_words follow oc_mask_kind");
_Static_assert(OC_OUTGOING == 0 && OC_INCOMING == 1, "direction_words follow oc_direction");
_Static_assert(OC_ACTIVATION_SWIGLU == 0 && OC_ACTIVATION_SIGMOID_GLU == 1 && OC_ACTIVATION_RELU == 2,
               "activation_words follow oc_activation");
_Static_assert(sizeof(oc_mask_kind) == sizeof(int) && sizeof(oc_dtype) == sizeof(int), "enums are stored as int");

#define FIELD(type, member, kind, words)                                                                               \
  { #member, FIELD_##kind, offsetof(type, member), words }
#define VIEW(type, member) FIELD(type, member, VIEW, NULL)
#define NORM(type, member)                                                                                             \
  VIEW(type, member.weight), VIEW(type, member.bias), FIELD(type, member.eps, FLOAT, NULL),                            \
      FIELD(type, member.rms, FLAG, NULL), FIELD(type, member.fast_variance, FLAG, NULL),                              \
      FIELD(type, member.round, DTYPE, NULL)
#define LINEAR(type, member) VIEW(type, member.weight), VIEW(type, member.bias)
#define MASK(type) FIELD(type, mask_kind, WORD, mask_words), FIELD(type, mask_value, FLOAT, NULL)
#define END                                                                                                            \
  { NULL, FIELD_END, 0, NULL }

static const field ln_fields[] = {VIEW(oc_ln, x), VIEW(oc_ln, y), NORM(oc_ln, norm), END};

static const field trimul_fields[] = {VIEW(oc_trimul, x),
                                      VIEW(oc_trimul, y),
                                      VIEW(oc_trimul, mask),
                                      VIEW(oc_trimul, residual),
                                      NORM(oc_trimul, norm_in),
                                      NORM(oc_trimul, norm_out),
                                      LINEAR(oc_trimul, a_proj),
                                      LINEAR(oc_trimul, a_gate),
                                      LINEAR(oc_trimul, b_proj),
                                      LINEAR(oc_trimul, b_gate),
                                      LINEAR(oc_trimul, out_proj),
                                      LINEAR(oc_trimul, out_gate),
                                      FIELD(oc_trimul, direction, WORD, direction_words),
                                      FIELD(oc_trimul, operands_swapped, FLAG, NULL),
                                      FIELD(oc_trimul, right_scale, FLOAT, NULL),
                                      FIELD(oc_trimul, product, DTYPE, NULL),
                                      END};

static const field triattn_fields[] = {VIEW(oc_triattn, q),
                                       VIEW(oc_triattn, k),
                                       VIEW(oc_triattn, v),
                                       VIEW(oc_triattn, bias),
                                       VIEW(oc_triattn, mask),
                                       VIEW(oc_triattn, gate),
                                       VIEW(oc_triattn, out),
                                       VIEW(oc_triattn, lse),
                                       FIELD(oc_triattn, scale, FLOAT, NULL),
                                       MASK(oc_triattn),
                                       FIELD(oc_triattn, tf32, FLAG, NULL),
                                       END};

static const field triattn_module_fields[] = {VIEW(oc_triattn_module, x),
                                              VIEW(oc_triattn_module, y),
                                              VIEW(oc_triattn_module, mask),
                                              VIEW(oc_triattn_module, residual),
                                              NORM(oc_triattn_module, norm),
                                              LINEAR(oc_triattn_module, to_q),
                                              LINEAR(oc_triattn_module, to_k),
                                              LINEAR(oc_triattn_module, to_v),
                                              LINEAR(oc_triattn_module, to_bias),
                                              LINEAR(oc_triattn_module, to_gate),
                                              LINEAR(oc_triattn_module, out_proj),
                                              FIELD(oc_triattn_module, heads, COUNT, NULL),
                                              FIELD(oc_triattn_module, scale, FLOAT, NULL),
                                              FIELD(oc_triattn_module, bias_untransposed_end, FLAG, NULL),
                                              MASK(oc_triattn_module),
                                              FIELD(oc_triattn_module, tf32, FLAG, NULL),
                                              END};

static const field transition_fields[] = {VIEW(oc_transition, x),
                                          VIEW(oc_transition, y),
                                          VIEW(oc_transition, mask),
                                          VIEW(oc_transition, residual),
                                          NORM(oc_transition, norm),
                                          FIELD(oc_transition, norm_absent, FLAG, NULL),
                                          LINEAR(oc_transition, up),
                                          LINEAR(oc_transition, gate),
                                          LINEAR(oc_transition, down),
                                          FIELD(oc_transition, activation, WORD, activation_words),
                                          END};

static const field apb_fields[] = {VIEW(oc_apb, q),
                                   VIEW(oc_apb, k),
                                   VIEW(oc_apb, v),
                                   VIEW(oc_apb, bias),
                                   VIEW(oc_apb, mask),
                                   VIEW(oc_apb, gate),
                                   VIEW(oc_apb, out),
                                   FIELD(oc_apb, scale, FLOAT, NULL),
                                   MASK(oc_apb),
                                   FIELD(oc_apb, bias_first, FLAG, NULL),
                                   END};

static const field *const family_fields[OC_FAMILY_COUNT] = {
    [OC_FAMILY_LN] = ln_fields,
    [OC_FAMILY_TRIMUL] = trimul_fields,
    [OC_FAMILY_TRIATTN] = triattn_fields,
    [OC_FAMILY_TRIATTN_MODULE] = triattn_module_fields,
    [OC_FAMILY_TRANSITION] = transition_fields,
    [OC_FAMILY_APB] = apb_fields,
};

static oc_status find_word(const char *const *words, const char *text, const char *where, int *out, oc_err *err) {
  for (int i = 0; words[i]; ++i) {
    if (strcmp(words[i], text) == 0) {
      *out = i;
      return OC_OK;
    }
  }
  return OC_FAIL(err, BAD_ARG, 0, "%s: unknown word '%.40s', first known '%s'", where, text, words[0]);
}

static oc_status find_dtype(const char *text, const char *where, int *out, oc_err *err) {
  for (int i = OC_DTYPE_NONE + 1; i < OC_DTYPE_COUNT; ++i) {
    if (strcmp(oc_dtype_word((oc_dtype)i), text) == 0) {
      *out = i;
      return OC_OK;
    }
  }
  return OC_FAIL(err, BAD_ARG, 0, "%s: unknown dtype '%.40s'", where, text);
}

static oc_status pack_word(const field *f, PyObject *value, void *slot, oc_err *err) {
  int number = OC_DTYPE_NONE;
  if (!(f->kind == FIELD_DTYPE && value == Py_None)) {
    const char *text = PyUnicode_AsUTF8AndSize(value, NULL);
    if (!text) return OC_BAD_ARG;
    OC_TRY(f->kind == FIELD_DTYPE ? find_dtype(text, f->name, &number, err)
                                  : find_word(f->words, text, f->name, &number, err));
  }
  memcpy(slot, &number, sizeof number);
  return OC_OK;
}

static oc_status pack_scalar(const field *f, PyObject *value, void *slot, oc_err *err) {
  if (f->kind == FIELD_DTYPE || f->kind == FIELD_WORD) return pack_word(f, value, slot, err);
  if (f->kind == FIELD_FLOAT) {
    const float number = (float)PyFloat_AsDouble(value);
    memcpy(slot, &number, sizeof number);
  } else if (f->kind == FIELD_FLAG) {
    const int truth = PyObject_IsTrue(value);
    memcpy(slot, &truth, sizeof truth);
  } else {
    const int64_t number = PyLong_AsLongLong(value);
    memcpy(slot, &number, sizeof number);
  }
  return PyErr_Occurred() ? OC_BAD_ARG : OC_OK;
}

static void count_fields(const field *fields, Py_ssize_t *views, Py_ssize_t *scalars) {
  *views = *scalars = 0;
  for (const field *f = fields; f->kind != FIELD_END; ++f) ++*(f->kind == FIELD_VIEW ? views : scalars);
}

/* Every tensor of a call lies where the first one does. */
static oc_status check_device(const oc_view *view, const oc__spot *spot, oc__call *call, oc_err *err) {
  if (!oc_view_is_present(view)) return OC_OK;
  if (!call->first.name) {
    call->first = *spot;
    call->device = view->device;
  }
  if (view->device == call->device) return OC_OK;
  return OC_REFUSE(err, NO_DEVICE, "%s is on %s, %s on %s", SPOT(spot), DEVICE(view->device), SPOT(&call->first),
                   DEVICE(call->device));
}

oc_status oc__call_pack(const oc__torch *torch, oc_family family, PyObject *tensors, PyObject *scalars, oc__call *call,
                        oc_err *err) {
  const field *fields = family_fields[family];
  Py_ssize_t view_count, scalar_count, view = 0, scalar = 0;
  count_fields(fields, &view_count, &scalar_count);
  if (PyTuple_Size(tensors) != view_count || PyTuple_Size(scalars) != scalar_count) {
    if (PyErr_Occurred()) return OC_BAD_ARG; /* not tuples */
    return OC_FAIL(err, BAD_ARG, 0, "%s: %d tensors and %d scalars, need %d and %d", oc_family_word(family),
                   (int)PyTuple_Size(tensors), (int)PyTuple_Size(scalars), (int)view_count, (int)scalar_count);
  }
  memset(call, 0, sizeof *call);
  for (const field *f = fields; f->kind != FIELD_END; ++f) {
    void *slot = (char *)&call->of + f->offset;
    if (f->kind == FIELD_VIEW) {
      const oc__spot spot = {f->name, (int)view};
      OC_TRY(oc__tensor_view(torch, PyTuple_GetItem(tensors, view), spot, slot, err));
      OC_TRY(check_device(slot, &spot, call, err));
      ++view;
    } else {
      OC_TRY(pack_scalar(f, PyTuple_GetItem(scalars, scalar), slot, err));
      ++scalar;
    }
  }
  return OC_OK;
}

PyObject *oc__call_fields(oc_family family) {
  const field *fields = family_fields[family];
  Py_ssize_t view_count, scalar_count, view = 0, scalar = 0;
  count_fields(fields, &view_count, &scalar_count);
  PyObject *views = PyTuple_New(view_count), *scalars = PyTuple_New(scalar_count);
  for (const field *f = fields; views && scalars && f->kind != FIELD_END; ++f) {
    PyObject *name = PyUnicode_FromString(f->name);
    const int stored =
        f->kind == FIELD_VIEW ? PyTuple_SetItem(views, view++, name) : PyTuple_SetItem(scalars, scalar++, name);
    if (!name || stored != 0) break;
  }
  if (!PyErr_Occurred()) return Py_BuildValue("(NN)", views, scalars);
  Py_XDECREF(views);
  Py_XDECREF(scalars);
  return NULL;
}
