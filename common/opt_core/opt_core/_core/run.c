/* SPDX-License-Identifier: Apache-2.0 */
/* Run: one activation and its accounting, and the verdict at process exit. */
#include "core.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run_object {
  PyObject_HEAD oc_run *run;
  PyObject *kit; /* the kit must outlive the run */
  int lever_count;
  int slot_end; /* one past the highest slot handed out */
} run_object;

static run_object *run_of(PyObject *self) { return (run_object *)self; }

/* Wraps a run that was just opened; the run is freed when that fails. */
static PyObject *run_wrap(PyTypeObject *type, oc_run *run, PyObject *kit) {
  PyObject *self = oc__instance_new(type);
  if (!self) {
    oc_run_free(run);
    return NULL;
  }
  Py_INCREF(kit);
  run_of(self)->run = run;
  run_of(self)->kit = kit;
  run_of(self)->lever_count = oc_kit_lever_count(oc__kit_of(kit));
  return self;
}

static PyObject *run_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"kit", "mode", "levers_off", "core_dir", "manifest", "census", "is_child", NULL};
  const oc__state *state = PyType_GetModuleState(type);
  PyObject *kit, *mode = NULL, *levers_off = NULL, *core_dir = NULL, *manifest = NULL, *census = NULL;
  int is_child = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O&|O&O&O&O&p:Run", names, state->kit_type, &kit, oc__native_text,
                                   &mode, oc__native_text, &levers_off, oc__native_text, &core_dir, oc__native_text,
                                   &manifest, oc__native_text, &census, &is_child)) {
    return NULL;
  }
  oc_run_options options = {.struct_bytes = sizeof options,
                            .kit = oc__kit_of(kit),
                            .levers_off = oc__native(levers_off),
                            .core_dir = oc__native(core_dir),
                            .manifest = oc__native(manifest),
                            .census = oc__native(census),
                            .is_child = is_child};
  oc_err err = {0};
  oc_run *run = NULL;
  oc_status status = oc_mode_parse(oc__native(mode), &options.mode, &err);
  if (status == OC_OK) NO_GIL(status = oc_run_open(&options, &run, &err));
  PyObject *const texts[] = {mode, levers_off, core_dir, manifest, census};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) Py_XDECREF(texts[i]);
  return status == OC_OK ? run_wrap(type, run, kit) : oc__raise(state, &err);
}

static void run_dealloc(PyObject *self) {
  oc_run *const run = run_of(self)->run;
  NO_GIL(oc_run_free(run));
  Py_XDECREF(run_of(self)->kit);
  oc__instance_free(self);
}

/* The library trusts a lever's index; Python's are checked here. */
static int lever_is_known(PyObject *self, int lever) {
  if (lever >= 0 && lever < run_of(self)->lever_count) return 1;
  PyErr_Format(PyExc_ValueError, "lever %d of %d", lever, run_of(self)->lever_count);
  return 0;
}

static int lever_index(PyObject *self, PyObject *number) {
  const long index = PyLong_AsLong(number);
  if (index == -1 && PyErr_Occurred()) return -1;
  const int lever = index < 0 || index > INT_MAX ? -1 : (int)index;
  return lever_is_known(self, lever) ? lever : -1;
}

static PyObject *run_manifest_path(PyObject *self, void *ignored) {
  (void)ignored;
  const char *path = oc_run_manifest_path(run_of(self)->run);
  return path ? PyUnicode_DecodeFSDefault(path) : Py_BuildValue("");
}

static PyObject *run_fact(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"key", "value", "on_active_line", NULL};
  const char *key;
  PyObject *value = NULL;
  int on_active_line = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "sO&|p:fact", names, &key, oc__native_text, &value, &on_active_line))
    return NULL;
  oc_err err = {0};
  oc_status status;
  NO_GIL(status = oc_run_fact(run_of(self)->run, key, oc__native(value), on_active_line, &err));
  Py_XDECREF(value);
  return oc__none_or_raise(oc__state_of_instance(self), status, &err);
}

static PyObject *run_binary(PyObject *self, PyObject *args) {
  PyObject *path = NULL;
  const char *sha256;
  if (!PyArg_ParseTuple(args, "O&s:binary", PyUnicode_FSConverter, &path, &sha256)) return NULL;
  oc_err err = {0};
  oc_status status;
  NO_GIL(status = oc_run_binary(run_of(self)->run, oc__native(path), sha256, &err));
  Py_DECREF(path);
  return oc__none_or_raise(oc__state_of_instance(self), status, &err);
}

static PyObject *run_lever_begin(PyObject *self, PyObject *number) {
  const int lever = lever_index(self, number);
  if (lever < 0) return NULL;
  oc_err err = {0};
  oc_status status;
  NO_GIL(status = oc_run_lever_begin(run_of(self)->run, lever, &err));
  return oc__none_or_raise(oc__state_of_instance(self), status, &err);
}

static PyObject *run_lever_active(PyObject *self, PyObject *args) {
  int lever;
  const char *row;
  if (!PyArg_ParseTuple(args, "is:lever_active", &lever, &row) || !lever_is_known(self, lever)) return NULL;
  oc_err err = {0};
  oc_status status;
  NO_GIL(status = oc_run_lever_active(run_of(self)->run, lever, row, &err));
  return oc__none_or_raise(oc__state_of_instance(self), status, &err);
}

/* An oc_err that says `word:detail`; -1 with ValueError for a word outside the list. */
static int refusal(const char *word, const char *detail, oc_err *why) {
  const oc_reason reason = oc_reason_find(word, strlen(word));
  if (reason == OC_REASON_NONE) {
    PyErr_Format(PyExc_ValueError, "'%s' is no reason word", word);
    return -1;
  }
  memset(why, 0, sizeof *why);
  (void)oc_err_set(why, OC_REFUSED, reason, 0, __FILE__, __LINE__, "%s", detail);
  return 0;
}

static PyObject *run_lever_refused(PyObject *self, PyObject *args) {
  int lever;
  const char *word, *detail;
  oc_err why, err = {0};
  if (!PyArg_ParseTuple(args, "iss:lever_refused", &lever, &word, &detail) || !lever_is_known(self, lever)) return NULL;
  if (refusal(word, detail, &why) != 0) return NULL;
  oc_status status;
  NO_GIL(status = oc_run_lever_refused(run_of(self)->run, lever, &why, &err));
  if (status == OC_OK || status == OC_REFUSED) return PyBool_FromLong(status == OC_REFUSED);
  return oc__raise(oc__state_of_instance(self), &err);
}

typedef oc_status instances_function(oc_run *, int, const char *, int64_t, oc_err *);

static PyObject *run_instances(PyObject *self, PyObject *args, instances_function *note) {
  int lever;
  const char *what;
  long long count;
  if (!PyArg_ParseTuple(args, "isL", &lever, &what, &count) || !lever_is_known(self, lever)) return NULL;
  oc_err err = {0};
  oc_status status;
  NO_GIL(status = note(run_of(self)->run, lever, what, (int64_t)count, &err));
  return oc__none_or_raise(oc__state_of_instance(self), status, &err);
}
static PyObject *run_patched(PyObject *self, PyObject *args) { return run_instances(self, args, oc_run_patched); }
static PyObject *run_still_patched(PyObject *self, PyObject *args) {
  return run_instances(self, args, oc_run_still_patched);
}

static PyObject *run_activated(PyObject *self, PyObject *ignored) {
  (void)ignored;
  oc_err err = {0};
  oc_status status;
  NO_GIL(status = oc_run_activated(run_of(self)->run, &err));
  return oc__none_or_raise(oc__state_of_instance(self), status, &err);
}

static PyObject *run_refuse(PyObject *self, PyObject *args) {
  const char *name, *word, *detail;
  oc_err why, err = {0};
  if (!PyArg_ParseTuple(args, "sss:refuse", &name, &word, &detail) || refusal(word, detail, &why) != 0) return NULL;
  oc_status status;
  NO_GIL(status = oc_run_refuse(run_of(self)->run, name, &why, &err));
  return oc__none_or_raise(oc__state_of_instance(self), status, &err);
}

static int slot_kind(const char *word, oc_slot_kind *kind) {
  static const char *const words[] = {
      [OC_SLOT_HIT] = "hit", [OC_SLOT_FALLBACK] = "fallback", [OC_SLOT_STOCK] = "stock"};
  for (int i = 0; i < OC_SLOT_KIND_COUNT; ++i) {
    if (strcmp(words[i], word) == 0) {
      *kind = (oc_slot_kind)i;
      return 0;
    }
  }
  PyErr_Format(PyExc_ValueError, "slot kind '%s' is not hit, fallback or stock", word);
  return -1;
}

static PyObject *run_slot(PyObject *self, PyObject *args) {
  int lever, slot = -1;
  const char *word, *family, *name, *detail;
  oc_slot_kind kind;
  if (!PyArg_ParseTuple(args, "issss:slot", &lever, &word, &family, &name, &detail)) return NULL;
  if (!lever_is_known(self, lever) || slot_kind(word, &kind) != 0) return NULL;
  oc_err err = {0};
  oc_status status;
  NO_GIL(status = oc_run_slot(run_of(self)->run, lever, kind, family, name, detail, &slot, &err));
  if (status != OC_OK) return oc__raise(oc__state_of_instance(self), &err);
  if (slot >= run_of(self)->slot_end) run_of(self)->slot_end = slot + 1;
  return PyLong_FromLong(slot);
}

static PyObject *run_call(PyObject *self, PyObject *number) {
  const int lever = lever_index(self, number);
  if (lever < 0) return NULL;
  oc_run_call(run_of(self)->run, lever);
  return Py_BuildValue("");
}

static PyObject *run_claim(PyObject *self, PyObject *number) {
  const int lever = lever_index(self, number);
  if (lever < 0) return NULL;
  oc_run_claim(run_of(self)->run, lever);
  return Py_BuildValue("");
}

static PyObject *run_settle(PyObject *self, PyObject *number) {
  const long slot = PyLong_AsLong(number);
  if (slot == -1 && PyErr_Occurred()) return NULL;
  if (slot < 0 || slot >= run_of(self)->slot_end) {
    PyErr_Format(PyExc_ValueError, "slot %ld of %d", slot, run_of(self)->slot_end);
    return NULL;
  }
  oc_run_settle(run_of(self)->run, (int)slot);
  return Py_BuildValue("");
}

static PyObject *run_counts(PyObject *self, PyObject *number) {
  const int lever = lever_index(self, number);
  if (lever < 0) return NULL;
  const oc_lever_counts counts = oc_run_counts(run_of(self)->run, lever);
  return Py_BuildValue("{sLsLsLsLsL}", "calls", (long long)counts.calls, "claims", (long long)counts.claims, "hits",
                       (long long)counts.hits, "fallbacks", (long long)counts.fallbacks, "stock",
                       (long long)counts.stock);
}

static PyObject *run_close(PyObject *self, PyObject *args) {
  int engine_status = 0, exit_status = 0;
  if (!PyArg_ParseTuple(args, "|i:close", &engine_status)) return NULL;
  oc_err err = {0};
  oc_status status;
  NO_GIL(status = oc_run_close(run_of(self)->run, engine_status, &exit_status, &err));
  if (status == OC_OK || status == OC_REFUSED || status == OC_CLOSED) return PyLong_FromLong(exit_status);
  return oc__raise(oc__state_of_instance(self), &err);
}

static PyGetSetDef run_fields[] = {{"manifest_path", run_manifest_path, NULL, "the manifest's file", NULL}, {0}};
static PyMethodDef run_methods[] = {
    {"fact", KEYWORDS(run_fact), METH_VARARGS | METH_KEYWORDS, "fact(key, value, on_active_line=False)"},
    {"binary", run_binary, METH_VARARGS, "binary(path, sha256): a binary was loaded"},
    {"lever_begin", run_lever_begin, METH_O, "lever_begin(i): Refused off_by_user when the user switched it off"},
    {"lever_active", run_lever_active, METH_VARARGS, "lever_active(i, row)"},
    {"lever_refused", run_lever_refused, METH_VARARGS,
     "lever_refused(i, word, detail) -> True: the process is to end with 3"},
    {"patched", run_patched, METH_VARARGS, "patched(i, what, n): n objects were patched"},
    {"still_patched", run_still_patched, METH_VARARGS,
     "still_patched(i, what, n): n of them were found patched at exit"},
    {"activated", run_activated, METH_NOARGS, "activated(): prints ACTIVE, writes the manifest"},
    {"refuse", run_refuse, METH_VARARGS, "refuse(name, word, detail): the run as a whole is refused"},
    {"slot", run_slot, METH_VARARGS, "slot(i, kind, family, name, detail) -> int; kind 'hit' | 'fallback' | 'stock'"},
    {"call", run_call, METH_O, "call(i): one call was made"},
    {"claim", run_claim, METH_O, "claim(i): the lever took the call"},
    {"settle", run_settle, METH_O, "settle(slot): how the call ended"},
    {"counts", run_counts, METH_O, "counts(i) -> dict of calls, claims, hits, fallbacks, stock"},
    {"close", run_close, METH_VARARGS, "close(status=0) -> exit status; a second call changes nothing"},
    {0}};
static PyType_Slot run_slots[] = {
    {Py_tp_doc,
     "Run(kit, mode, levers_off=None, core_dir=None, manifest=None, census=None, is_child=False): one activation."},
    {Py_tp_new, (void *)run_new},
    {Py_tp_dealloc, (void *)run_dealloc},
    {Py_tp_getset, run_fields},
    {Py_tp_methods, run_methods},
    {0, NULL}};
PyType_Spec oc__run_spec = {"opt_core._core.Run", sizeof(run_object), 0, Py_TPFLAGS_DEFAULT, run_slots};

/* ---- the verdict at exit ------------------------------------------------------------------------------------- */

/* One a kit of the process. Their Run objects are kept for ever: exit handlers run after the interpreter is gone. */
enum { GUARDED_MAX = 16 };
static oc_run *guarded[GUARDED_MAX];
static int guarded_count;

#ifdef __GLIBC__
static void close_at_exit(int status, void *ignored) {
  (void)ignored;
  const int seen = status & 0xff; /* what the parent process will see */
  int verdict = seen;
  oc_line_set_sink(NULL, NULL); /* a Python sink may be gone */
  for (int i = 0; i < guarded_count; ++i) {
    int own = seen;
    (void)oc_run_close(guarded[i], seen, &own, NULL);
    if (verdict == 0) verdict = own;
  }
  if (verdict == seen) return;
  (void)fflush(NULL);
  _exit(verdict);
}

static int register_close(void) {
  static int registered;
  if (!registered) registered = on_exit(close_at_exit, NULL) == 0;
  return registered;
}
#else
static int register_close(void) { return 0; }
#endif

PyObject *oc__py_exit_status_guard(PyObject *module, PyObject *args) {
  const oc__state *state = oc__state_of(module);
  PyObject *run;
  if (!PyArg_ParseTuple(args, "O!:exit_status_guard", state->run_type, &run)) return NULL;
  for (int i = 0; i < guarded_count; ++i)
    if (guarded[i] == run_of(run)->run) return Py_BuildValue("");
  if (guarded_count == GUARDED_MAX) {
    PyErr_Format(PyExc_ValueError, "exit_status_guard: %d runs are guarded in this process, no more", GUARDED_MAX);
    return NULL;
  }
  if (!register_close()) {
    oc_err err = {0};
    (void)OC_REFUSE(&err, NOT_BUILT, "on_exit");
    return oc__raise(state, &err);
  }
  Py_INCREF(run);
  guarded[guarded_count++] = run_of(run)->run;
  return Py_BuildValue("");
}
