/* SPDX-License-Identifier: Apache-2.0 */
/* What the other files make Python values with: texts, containers, instances. */
#include "core.h"

#include <string.h>

PyObject *oc__text(const char *text) { return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"); }
PyObject *oc__text_or_none(const char *text) { return text ? oc__text(text) : Py_BuildValue(""); }

int oc__native_text(PyObject *object, void *out) {
  PyObject **bytes = out;
  if (!object) { /* a later argument failed: the converter is called again to clean up */
    Py_CLEAR(*bytes);
    return 1;
  }
  if (object != Py_None) return PyUnicode_FSConverter(object, bytes);
  *bytes = NULL;
  return Py_CLEANUP_SUPPORTED;
}
const char *oc__native(PyObject *bytes) { return bytes ? PyBytes_AsString(bytes) : NULL; }

int oc__list_add(PyObject *list, PyObject *item) {
  const int failed = item ? PyList_Append(list, item) : -1;
  Py_XDECREF(item);
  return failed;
}

int oc__dict_add(PyObject *dict, const char *key, PyObject *value) {
  const int failed = value ? PyDict_SetItemString(dict, key, value) : -1;
  Py_XDECREF(value);
  return failed;
}

PyObject *oc__keep(PyObject *container, int failed) {
  if (!failed) return container;
  Py_XDECREF(container);
  return NULL;
}

PyObject *oc__instance_new(PyTypeObject *type) {
  const allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  return allocate(type, 0);
}

void oc__instance_free(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  const freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}
