/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on tensors, and the comparison of two output trees. */
#include "core.h"

#include <limits.h>
#include <string.h>

/* ---- tensors ------------------------------------------------------------------------------------------------- */

PyObject *oc__py_bind_torch(PyObject *module, PyObject *args) {
  PyObject *capsule, *tensor, *parameter;
  if (!PyArg_ParseTuple(args, "OOO:bind_torch", &capsule, &tensor, &parameter)) return NULL;
  return oc__torch_bind(&oc__state_of(module)->torch, capsule, tensor, parameter) == 0 ? Py_BuildValue("") : NULL;
}

PyObject *oc__py_call_fields(PyObject *module, PyObject *args) {
  oc_family family;
  return oc__family_argument(module, args, &family) == 0 ? oc__call_fields(family) : NULL;
}

/* 1, or 0 with a Python error set. The texts belong to the tuple's strings. */
static int take_rows_off(PyObject *rows, oc__request *request) {
  const Py_ssize_t count = rows ? PyTuple_Size(rows) : 0;
  if (count > OC__ROWS_OFF_MAX) {
    PyErr_Format(PyExc_ValueError, "rows_off: %zd rows, at most %d", count, OC__ROWS_OFF_MAX);
    return 0;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    request->rows_off[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(rows, i), NULL);
    if (!request->rows_off[i]) return 0;
  }
  return 1;
}

/* Serve's arguments. Read by hand: the parser of format strings takes longer than the rest of a small call. */
enum { FAMILY, TIER, TENSORS, SCALARS, ROW, STACK, HOSTED, ROWS_OFF, THREADS, SERVE_ARGUMENTS };
static const char *const serve_names[SERVE_ARGUMENTS] = {"family", "tier",   "tensors",  "scalars", "row",
                                                         "stack",  "hosted", "rows_off", "threads"};

static int serve_index(PyObject *name) {
  for (int i = 0; i < SERVE_ARGUMENTS; ++i) {
    if (PyUnicode_CompareWithASCIIString(name, serve_names[i]) == 0) return i;
  }
  PyErr_Format(PyExc_TypeError, "serve: unknown argument %R", name);
  return -1;
}

/* 1, or 0 with a Python error set; an argument that is not given is NULL. */
static int take_arguments(PyObject *const *args, Py_ssize_t count, PyObject *keywords, PyObject **out) {
  if (count > SERVE_ARGUMENTS) {
    PyErr_Format(PyExc_TypeError, "serve: %zd arguments, at most %d", count, SERVE_ARGUMENTS);
    return 0;
  }
  for (int i = 0; i < SERVE_ARGUMENTS; ++i) out[i] = i < count ? args[i] : NULL;
  const Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    const int at = serve_index(PyTuple_GetItem(keywords, i));
    if (at < 0) return 0;
    if (out[at]) {
      PyErr_Format(PyExc_TypeError, "serve: %s is given twice", serve_names[at]);
      return 0;
    }
    out[at] = args[count + i];
  }
  for (int i = 0; i <= SCALARS; ++i) {
    if (out[i]) continue;
    PyErr_Format(PyExc_TypeError, "serve: %s is missing", serve_names[i]);
    return 0;
  }
  return 1;
}

static int take_tuple(PyObject *value, int at) {
  if (!value || PyTuple_Check(value)) return 1;
  PyErr_Format(PyExc_TypeError, "serve: %s is no tuple", serve_names[at]);
  return 0;
}

/* NULL with a Python error set when the value is no string, or holds a null character. */
static const char *take_text(PyObject *value) {
  Py_ssize_t bytes;
  const char *text = PyUnicode_AsUTF8AndSize(value, &bytes);
  if (!text || (Py_ssize_t)strlen(text) == bytes) return text;
  PyErr_SetString(PyExc_ValueError, "serve: a text with a null character");
  return NULL;
}

static int take_threads(PyObject *value, int *out) {
  const long threads = PyLong_AsLong(value);
  if (threads == -1 && PyErr_Occurred()) return 0;
  *out = threads < 0 ? 0 : threads < INT_MAX ? (int)threads : INT_MAX;
  return 1;
}

/* All but the family and the tier. 1, or 0 with a Python error set. */
static int take_request(PyObject *const *given, oc__request *request) {
  for (int i = TENSORS; i <= SCALARS; ++i)
    if (!take_tuple(given[i], i)) return 0;
  if (!take_tuple(given[ROWS_OFF], ROWS_OFF) || !take_rows_off(given[ROWS_OFF], request)) return 0;
  if (given[ROW] && given[ROW] != Py_None && !(request->row = take_text(given[ROW]))) return 0;
  if (given[STACK] && !(request->stack = take_text(given[STACK]))) return 0;
  if (given[THREADS] && !take_threads(given[THREADS], &request->threads)) return 0;
  request->takes_hosted = given[HOSTED] ? PyObject_IsTrue(given[HOSTED]) : 0;
  return request->takes_hosted >= 0;
}

/* A new reference to (cell, row, member). */
static PyObject *answer(oc__state *state, const oc_choice *choice) {
  const uintptr_t key = ((uintptr_t)choice->cell >> 4) ^ ((uintptr_t)choice->member >> 4);
  oc__answer *kept = &state->answer[(key ^ key >> 4) % OC__ANSWERS];
  if (!kept->tuple || kept->cell != choice->cell || kept->member != choice->member) {
    PyObject *made =
        Py_BuildValue("(sss)", choice->cell ? choice->cell->id : "", choice->member->row, choice->member->name);
    PyObject *old = kept->tuple;
    if (!made) return NULL;
    *kept = (oc__answer){choice->cell, choice->member, made};
    Py_XDECREF(old);
  }
  Py_INCREF(kept->tuple);
  return kept->tuple;
}

PyObject *oc__py_serve(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  oc__state *state = oc__state_of(module);
  PyObject *given[SERVE_ARGUMENTS];
  oc__request request = {.row = NULL, .stack = ""};
  if (!take_arguments(args, count, keywords, given) || !take_request(given, &request)) return NULL;
  const char *family = take_text(given[FAMILY]), *tier = family ? take_text(given[TIER]) : NULL;
  if (!tier) return NULL;
  oc_err err = {0};
  oc__call call;
  oc_choice choice = {0};
  if (oc_family_find(family, &request.family, &err) != OC_OK || oc_tier_find(tier, &request.tier, &err) != OC_OK ||
      oc__call_pack(&state->torch, request.family, given[TENSORS], given[SCALARS], &call, &err) != OC_OK ||
      oc__call_serve(&state->torch, &request, &call, &choice, &err) != OC_OK) {
    return oc__raise(state, &err);
  }
  return answer(state, &choice);
}

PyObject *oc__py_trimul_gate_planes(PyObject *module, PyObject *args) {
  static const char *const where[] = {"gate", "proj", "mask", "out"};
  const oc__state *state = oc__state_of(module);
  PyObject *object[4];
  int threads = 0;
  if (!PyArg_ParseTuple(args, "OOOO|i:trimul_gate_planes", &object[0], &object[1], &object[2], &object[3], &threads)) {
    return NULL;
  }
  oc_err err = {0};
  oc_view view[4];
  for (int i = 0; i < 4; ++i) {
    const oc__spot spot = {where[i], -1};
    if (oc__tensor_view(&state->torch, object[i], spot, &view[i], &err) != OC_OK ||
        oc__tensor_on_host(&view[i], spot, &err) != OC_OK) {
      return oc__raise(state, &err);
    }
  }
  oc_status status;
  NO_GIL(status = oc_trimul_gate_planes(&view[0], &view[1], &view[2], &view[3], oc__threads_granted(threads), &err));
  return oc__none_or_raise(state, status, &err);
}

PyObject *oc__py_malloc_keep(PyObject *module, PyObject *bytes) {
  const size_t wanted = PyLong_AsSize_t(bytes);
  if (PyErr_Occurred()) return NULL;
  oc_err err = {0};
  if (oc_malloc_keep(wanted, &err) != OC_OK) return oc__raise(oc__state_of(module), &err);
  return Py_BuildValue("");
}

PyObject *oc__py_scratch_trim(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  size_t freed;
  NO_GIL(freed = oc_scratch_trim());
  return PyLong_FromSize_t(freed);
}

PyObject *oc__py_scratch_kept_bytes(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  return PyLong_FromSize_t(oc_scratch_kept_bytes());
}

/* ---- compare ------------------------------------------------------------------------------------------------- */

typedef struct difference_list {
  PyThreadState *released; /* the caller's thread state while the comparison runs */
  PyObject *list;
  int failed;
} difference_list;

static void add_difference(const oc_difference *difference, void *context) {
  difference_list *differences = context;
  PyEval_RestoreThread(differences->released);
  if (!differences->failed) {
    PyObject *file = oc__text_or_none(difference->file), *field = oc__text_or_none(difference->field);
    PyObject *item = file && field
                         ? Py_BuildValue("{sOsOsssdsdsdsLsLsL}", "file", file, "field", field, "verdict",
                                         oc_verdict_word(difference->verdict), "a", difference->a, "b", difference->b,
                                         "largest", difference->largest, "count", (long long)difference->count, "of",
                                         (long long)difference->of, "ulps", (long long)difference->ulps)
                         : NULL;
    Py_XDECREF(file);
    Py_XDECREF(field);
    differences->failed = oc__list_add(differences->list, item) != 0;
  }
  differences->released = PyEval_SaveThread();
}

static PyObject *compare_trees(const oc__state *state, const char *a, const char *b,
                               const oc_compare_options *options) {
  difference_list differences = {.list = PyList_New(0)};
  if (!differences.list) return NULL;
  oc_err err = {0};
  oc_compare_result result = {0};
  differences.released = PyEval_SaveThread();
  const oc_status status = oc_compare_trees(a, b, options, add_difference, &differences, &result, &err);
  PyEval_RestoreThread(differences.released);
  if (status == OC_OK && !differences.failed) {
    return Py_BuildValue("{sssLsLsLsLsdsN}", "verdict", oc_verdict_word(result.verdict), "files",
                         (long long)result.files, "fields", (long long)result.fields, "numbers",
                         (long long)result.numbers, "differing", (long long)result.differing, "largest", result.largest,
                         "differences", differences.list);
  }
  Py_DECREF(differences.list);
  return oc__raise(state, &err);
}

PyObject *oc__py_compare(PyObject *module, PyObject *args, PyObject *keywords) {
  static char *names[] = {"a", "b", "abs", "rel", "rules", "ignore_record", NULL};
  PyObject *a = NULL, *b = NULL;
  oc_compare_options options = {.struct_bytes = sizeof options, .ignore_record = 1};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O&|ddzp:compare", names, PyUnicode_FSConverter, &a,
                                   PyUnicode_FSConverter, &b, &options.tolerance.absolute, &options.tolerance.relative,
                                   &options.rules_json, &options.ignore_record)) {
    return NULL;
  }
  PyObject *result = compare_trees(oc__state_of(module), oc__native(a), oc__native(b), &options);
  Py_DECREF(a);
  Py_DECREF(b);
  return result;
}
