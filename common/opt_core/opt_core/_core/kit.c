/* SPDX-License-Identifier: Apache-2.0 */
/* Kit: a checked mode table, and the list of levers that the user switched off. */
#include "core.h"

typedef struct kit_object {
  PyObject_HEAD oc_kit *kit;
} kit_object;

const oc_kit *oc__kit_of(PyObject *self) { return ((kit_object *)self)->kit; }

static PyObject *kit_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"json_text", NULL};
  const char *json;
  Py_ssize_t bytes;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "s#:Kit", names, &json, &bytes)) return NULL;
  oc_err err = {0};
  oc_kit *kit = NULL;
  if (oc_kit_parse(json, (size_t)bytes, &kit, &err) != OC_OK) return oc__raise(PyType_GetModuleState(type), &err);
  PyObject *self = oc__instance_new(type);
  if (self) {
    ((kit_object *)self)->kit = kit;
  } else {
    oc_kit_free(kit);
  }
  return self;
}

static void kit_dealloc(PyObject *self) {
  oc_kit_free(((kit_object *)self)->kit);
  oc__instance_free(self);
}

static PyObject *kit_text(PyObject *self, void *which) {
  static const char *(*const getters[])(const oc_kit *) = {oc_kit_engine, oc_kit_variable, oc_kit_version};
  return oc__text(getters[(intptr_t)which](oc__kit_of(self)));
}

static PyObject *text_tuple(const oc_kit *kit, int count, const char *(*at)(const oc_kit *, int)) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; ++i) {
    PyObject *text = oc__text(at(kit, i));
    if (!text || PyTuple_SetItem(tuple, i, text) != 0) Py_CLEAR(tuple);
  }
  return tuple;
}

static PyObject *kit_triggers(PyObject *self, void *ignored) {
  (void)ignored;
  return text_tuple(oc__kit_of(self), oc_kit_trigger_count(oc__kit_of(self)), oc_kit_trigger);
}

static PyObject *kit_levers(PyObject *self, void *ignored) {
  (void)ignored;
  return text_tuple(oc__kit_of(self), oc_kit_lever_count(oc__kit_of(self)), oc_kit_lever_name);
}

/* A lever by name or by index; -1 with ValueError. */
static int kit_lever(const oc_kit *kit, PyObject *lever) {
  if (PyLong_Check(lever)) {
    const long index = PyLong_AsLong(lever);
    if (index >= 0 && index < oc_kit_lever_count(kit)) return (int)index;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "lever %ld of %d", index, oc_kit_lever_count(kit));
    return -1;
  }
  const char *name = PyUnicode_AsUTF8AndSize(lever, NULL);
  const int index = name ? oc_kit_lever_find(kit, name) : -1;
  if (index < 0 && !PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "no lever '%s'", name);
  return index;
}

static PyObject *kit_family(PyObject *self, PyObject *lever) {
  const int index = kit_lever(oc__kit_of(self), lever);
  return index < 0 ? NULL : oc__text(oc_kit_lever_family(oc__kit_of(self), index));
}

static PyObject *kit_policy(PyObject *self, PyObject *args) {
  static const char *const words[] = {
      [OC_POLICY_ABSENT] = "absent", [OC_POLICY_RECORD] = "record", [OC_POLICY_REQUIRE] = "require"};
  PyObject *lever;
  const char *mode_text;
  if (!PyArg_ParseTuple(args, "Os:policy", &lever, &mode_text)) return NULL;
  const int index = kit_lever(oc__kit_of(self), lever);
  if (index < 0) return NULL;
  oc_err err = {0};
  oc_mode mode;
  if (oc_mode_parse(mode_text, &mode, &err) != OC_OK) return oc__raise(oc__state_of_instance(self), &err);
  return oc__text(words[oc_kit_lever_policy(oc__kit_of(self), index, mode)]);
}

static PyGetSetDef kit_fields[] = {
    {"engine", kit_text, NULL, "the engine's word", (void *)0},
    {"variable", kit_text, NULL, "the environment variable that names the mode", (void *)1},
    {"version", kit_text, NULL, "the kit's version", (void *)2},
    {"triggers", kit_triggers, NULL, "modules whose import activates the kit", NULL},
    {"levers", kit_levers, NULL, "names of the levers, in order", NULL},
    {0}};
static PyMethodDef kit_methods[] = {
    {"family", kit_family, METH_O, "family(lever) -> word, '' when the lever binds none"},
    {"policy", kit_policy, METH_VARARGS, "policy(lever, mode) -> 'absent' | 'record' | 'require'"},
    {0}};
static PyType_Slot kit_slots[] = {
    {Py_tp_doc, "Kit(json_text): a kit's checked mode table. Refused kit_table when it breaks its schema."},
    {Py_tp_new, (void *)kit_new},
    {Py_tp_dealloc, (void *)kit_dealloc},
    {Py_tp_getset, kit_fields},
    {Py_tp_methods, kit_methods},
    {0, NULL}};
PyType_Spec oc__kit_spec = {"opt_core._core.Kit", sizeof(kit_object), 0, Py_TPFLAGS_DEFAULT, kit_slots};

PyObject *oc__py_levers_off_check(PyObject *module, PyObject *args) {
  PyObject *kit, *text = NULL;
  const oc__state *state = oc__state_of(module);
  if (!PyArg_ParseTuple(args, "O!O&:levers_off_check", state->kit_type, &kit, oc__native_text, &text)) return NULL;
  oc_err err = {0};
  const oc_status status = oc_levers_off_check(oc__kit_of(kit), oc__native(text), &err);
  Py_XDECREF(text);
  return oc__none_or_raise(state, status, &err);
}

PyObject *oc__py_levers_off_has(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *text = NULL;
  const char *lever, *row = NULL;
  if (!PyArg_ParseTuple(args, "O&s|z:levers_off_has", oc__native_text, &text, &lever, &row)) return NULL;
  const int has = oc_levers_off_has(oc__native(text), lever, row);
  Py_XDECREF(text);
  return PyBool_FromLong(has);
}
