/* SPDX-License-Identifier: Apache-2.0 */
/* opt_core._core: the C library for Python. Converts arguments and results; decides nothing.
 * Here: the exceptions, the table of functions, the module's life.
 */
#include "core.h"

#include <stdio.h>
#include <string.h>

/* ---- exceptions ---------------------------------------------------------------------------------------------- */

static int exception_init(PyObject *self, PyObject *first, PyObject *second) {
  PyObject *args = second ? PyTuple_Pack(2, first, second) : PyTuple_Pack(1, first);
  const int failed = args ? PyObject_SetAttrString(self, "args", args) : -1;
  Py_XDECREF(args);
  return failed;
}

static int refused_init(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"word", "detail", NULL};
  PyObject *word, *detail = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "U|U:Refused", names, &word, &detail)) return -1;
  if (detail) return exception_init(self, word, detail);
  PyObject *empty = PyUnicode_FromString("");
  const int failed = empty ? exception_init(self, word, empty) : -1;
  Py_XDECREF(empty);
  return failed;
}

static int closed_init(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"detail", NULL};
  PyObject *detail;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "U:AccountingClosed", names, &detail)) return -1;
  return exception_init(self, detail, NULL);
}

/* `position` is the index in args, so that pickling and copying need nothing of their own. */
static PyObject *exception_argument(PyObject *self, void *position) {
  PyObject *args = PyObject_GetAttrString(self, "args");
  PyObject *value = args ? PySequence_GetItem(args, (Py_ssize_t)(intptr_t)position) : NULL;
  Py_XDECREF(args);
  return value;
}

static PyObject *refused_text(PyObject *self) {
  PyObject *word = exception_argument(self, (void *)0), *detail = exception_argument(self, (void *)1), *text = NULL;
  if (word && detail) text = PyUnicode_FromFormat(PyObject_IsTrue(detail) > 0 ? "%S:%S" : "%S", word, detail);
  Py_XDECREF(word);
  Py_XDECREF(detail);
  return text;
}

static PyGetSetDef refused_fields[] = {
    {"word", exception_argument, NULL, "the reason's word", (void *)0},
    {"detail", exception_argument, NULL, "the offending value and the limit", (void *)1},
    {0}};
static PyType_Slot refused_slots[] = {
    {Py_tp_doc, "A named no: the caller serves the stock op, or stops. str() is word:detail."},
    {Py_tp_init, (void *)refused_init},
    {Py_tp_str, (void *)refused_text},
    {Py_tp_getset, refused_fields},
    {0, NULL}};
static PyType_Spec refused_spec = {"opt_core.Refused", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, refused_slots};

static PyGetSetDef closed_fields[] = {{"detail", exception_argument, NULL, "what did not add up", (void *)0}, {0}};
static PyType_Slot closed_slots[] = {{Py_tp_doc, "An accounting check failed: the run is to end with status 4."},
                                     {Py_tp_init, (void *)closed_init},
                                     {Py_tp_getset, closed_fields},
                                     {0, NULL}};
static PyType_Spec closed_spec = {"opt_core.AccountingClosed", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                  closed_slots};

static PyObject *new_exception(const oc__state *state, const oc_err *err) {
  PyObject *detail = oc__text(err->detail);
  if (!detail) return NULL;
  switch (err->status) {
  case OC_REFUSED:
    return PyObject_CallFunction(state->refused, "sN", oc_reason_word(err->reason), detail);
  case OC_CLOSED:
    return PyObject_CallFunction(state->closed, "N", detail);
  case OC_NO_MEM:
    return PyObject_CallFunction(PyExc_MemoryError, "N", detail);
  case OC_IO:
    return PyObject_CallFunction(PyExc_OSError, "iN", (int)err->native, detail);
  case OC_DEVICE:
    return PyObject_CallFunction(PyExc_RuntimeError, "N", detail);
  default:
    return PyObject_CallFunction(PyExc_ValueError, "N", detail);
  }
}

PyObject *oc__raise(const oc__state *state, const oc_err *err) {
  if (PyErr_Occurred()) return NULL;
  PyObject *exception = new_exception(state, err);
  if (exception) PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
  Py_XDECREF(exception);
  return NULL;
}

PyObject *oc__none_or_raise(const oc__state *state, oc_status status, const oc_err *err) {
  return status == OC_OK ? Py_BuildValue("") : oc__raise(state, err);
}

/* ---- the module ---------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"version", oc__py_version, METH_NOARGS, "version() -> 'MAJOR.MINOR.PATCH' of the library"},
    {"abi_version", oc__py_abi_version, METH_NOARGS, "abi_version() -> int"},
    {"build_parts", oc__py_build_parts, METH_NOARGS, "build_parts() -> list of words"},
    {"reasons", oc__py_reasons, METH_NOARGS, "reasons() -> {word: help}, every refusal word"},
    {"mode_parse", oc__py_mode_parse, METH_VARARGS, "mode_parse(text | None) -> 'off' | 'exact' | 'fast' | 'big'"},
    {"levers_off_check", oc__py_levers_off_check, METH_VARARGS,
     "levers_off_check(kit, text | None): Refused for an unknown word"},
    {"levers_off_has", oc__py_levers_off_has, METH_VARARGS, "levers_off_has(text, lever, row=None) -> bool"},
    {"environment_check", oc__py_environment_check, METH_NOARGS,
     "environment_check(): Refused for an unknown OPT_CORE_* variable"},
    {"gate_pin", oc__py_gate_pin, METH_VARARGS, "gate_pin(package, have | None, need): Refused pin"},
    {"gate_arch", oc__py_gate_arch, METH_VARARGS, "gate_arch(sm, need): Refused arch"},
    {"gate_host_floor", oc__py_gate_host_floor, METH_VARARGS,
     "gate_host_floor(path) -> what the file needs; Refused host_floor"},
    {"digest_file", oc__py_digest_file, METH_VARARGS, "digest_file(path) -> SHA-256, 64 hex digits"},
    {"prebuilt_read", oc__py_prebuilt_read, METH_VARARGS,
     "prebuilt_read(dir, key) -> bytes; Refused no_prebuilt, digest"},
    {"version_compare", oc__py_version_compare, METH_VARARGS, "version_compare(a, b) -> < 0, 0, > 0"},
    {"exit_status_guard", oc__py_exit_status_guard, METH_VARARGS,
     "exit_status_guard(run): closes the run at process exit; its verdict becomes the exit status"},
    {"line_write", oc__py_line_write, METH_VARARGS, "line_write(kind, words, pairs=None)"},
    {"line_parse", oc__py_line_parse, METH_VARARGS, "line_parse(text) -> (kind, [words], {pairs})"},
    {"set_sink", oc__py_set_sink, METH_O, "set_sink(callable | None): where lines go; None is standard error"},
    {"select", KEYWORDS(oc__py_select), METH_VARARGS | METH_KEYWORDS,
     "select(family, tier, device, dtype, form, dims, stack='') -> (cell, row, member, fallback). Pure."},
    {"cells", oc__py_cells, METH_VARARGS, "cells(family) -> list of dicts, the table in force"},
    {"members", oc__py_members, METH_VARARGS, "members(family) -> list of dicts row, name, device, isa, flags"},
    {"cells_overlay_digest", oc__py_cells_overlay_digest, METH_NOARGS, "cells_overlay_digest() -> 64 hex digits or ''"},
    {"cpu_facts", oc__py_cpu_facts, METH_NOARGS, "cpu_facts() -> dict"},
    {"cpu_isa", oc__py_cpu_isa, METH_NOARGS, "cpu_isa() -> the level in use"},
    {"device_below", oc__py_device_below, METH_VARARGS,
     "device_below(device) -> the device whose cells count where this one has none, or None"},
    {"cpu_threads", oc__py_cpu_threads, METH_NOARGS, "cpu_threads() -> threads that a member would use now"},
    {"cuda_facts", oc__py_cuda_facts, METH_VARARGS, "cuda_facts(ordinal=0) -> dict; Refused no_device, driver"},
    {"cuda_prepare", oc__py_cuda_prepare, METH_VARARGS,
     "cuda_prepare(device, family): loads what the family may launch there, so that a capture finds it loaded"},
    {"cuda_modules", oc__py_cuda_modules, METH_NOARGS,
     "cuda_modules() -> list of dicts device, package, key, sha256: the binaries that are loaded"},
    {"cuda_libraries", oc__py_cuda_libraries, METH_NOARGS,
     "cuda_libraries() -> {word: path} of the CUDA libraries that the process has loaded"},
    {"bind_torch", oc__py_bind_torch, METH_VARARGS, "bind_torch(capsule, tensor_type, parameter_type)"},
    {"call_fields", oc__py_call_fields, METH_VARARGS,
     "call_fields(family) -> ((views...), (scalars...)), the order serve takes"},
    {"serve", KEYWORDS(oc__py_serve), METH_FASTCALL | METH_KEYWORDS,
     "serve(family, tier, tensors, scalars, row=None, stack='', hosted=False, rows_off=(), threads=0) -> (cell, row, "
     "member); the GIL is released. hosted: a member flagged hosted is named and left to the caller to run; else it is "
     "Refused not_built. rows_off: a row of these is Refused off_by_user once chosen. threads: fewer than "
     "cpu_threads()"},
    {"trimul_gate_planes", oc__py_trimul_gate_planes, METH_VARARGS,
     "trimul_gate_planes(gate, proj, mask | None, out, threads=0)"},
    {"malloc_keep", oc__py_malloc_keep, METH_O,
     "malloc_keep(bytes): freed blocks of up to that size stay in the process"},
    {"scratch_trim", oc__py_scratch_trim, METH_NOARGS, "scratch_trim() -> bytes freed"},
    {"scratch_kept_bytes", oc__py_scratch_kept_bytes, METH_NOARGS, "scratch_kept_bytes() -> bytes held between calls"},
    {"compare", KEYWORDS(oc__py_compare), METH_VARARGS | METH_KEYWORDS,
     "compare(a, b, abs=0.0, rel=0.0, rules=None, ignore_record=True) -> dict; rules is JSON text"},
    {0}};

static PyObject *add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject *base) {
  PyObject *bases = base ? PyTuple_Pack(1, base) : NULL;
  PyObject *type = base && !bases ? NULL : PyType_FromModuleAndSpec(module, spec, bases);
  Py_XDECREF(bases);
  if (type && PyModule_AddObjectRef(module, name, type) != 0) Py_CLEAR(type);
  return type;
}

/* Structs are passed by address: the library must be the one that this file was compiled for. */
static int library_fits(void) {
  char wanted[32];
  (void)snprintf(wanted, sizeof wanted, "%d.%d.", OC_VERSION_MAJOR, OC_VERSION_MINOR);
  if (strncmp(oc_version(), wanted, strlen(wanted)) == 0) return 1;
  PyErr_Format(PyExc_ImportError, "libopt_core %s was loaded, opt_core._core was built for %s", oc_version(),
               OC_VERSION_TEXT);
  return 0;
}

static int module_exec(PyObject *module) {
  oc__state *state = oc__state_of(module);
  if (!library_fits()) return -1;
  state->refused = add_type(module, "Refused", &refused_spec, PyExc_Exception);
  state->closed = state->refused ? add_type(module, "AccountingClosed", &closed_spec, PyExc_Exception) : NULL;
  state->kit_type = state->closed ? add_type(module, "Kit", &oc__kit_spec, NULL) : NULL;
  state->run_type = state->kit_type ? add_type(module, "Run", &oc__run_spec, NULL) : NULL;
  return state->run_type ? 0 : -1;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
  const oc__state *state = oc__state_of(module);
  if (!state) return 0;
  Py_VISIT(state->refused);
  Py_VISIT(state->closed);
  Py_VISIT(state->kit_type);
  Py_VISIT(state->run_type);
  Py_VISIT(state->sink);
  Py_VISIT(state->torch.tensor);
  Py_VISIT(state->torch.parameter);
  Py_VISIT(state->torch.function);
  Py_VISIT(state->torch.disabled_function);
  Py_VISIT(state->torch.dispatch);
  for (int i = 0; i < OC__ANSWERS; ++i) Py_VISIT(state->answer[i].tuple);
  return 0;
}

static int module_clear(PyObject *module) {
  oc__state *state = oc__state_of(module);
  if (!state) return 0;
  if (state->sink) oc_line_set_sink(NULL, NULL); /* before the state that the sink reads goes away */
  Py_CLEAR(state->sink);
  state->torch.api = NULL;
  Py_CLEAR(state->refused);
  Py_CLEAR(state->closed);
  Py_CLEAR(state->kit_type);
  Py_CLEAR(state->run_type);
  Py_CLEAR(state->torch.tensor);
  Py_CLEAR(state->torch.parameter);
  Py_CLEAR(state->torch.function);
  Py_CLEAR(state->torch.disabled_function);
  Py_CLEAR(state->torch.dispatch);
  for (int i = 0; i < OC__ANSWERS; ++i) Py_CLEAR(state->answer[i].tuple);
  return 0;
}

static void module_free(void *module) { (void)module_clear(module); }

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "opt_core._core", "libopt_core for Python.",
                                        sizeof(oc__state),     functions,        module_slots,
                                        module_traverse,       module_clear,     module_free};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&module_def); }
