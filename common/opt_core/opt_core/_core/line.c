/* SPDX-License-Identifier: Apache-2.0 */
/* Lines: writing, reading, and the callable that gets them. */
#include "core.h"

#include <string.h>

static const char *const line_words[] = {[OC_LINE_ACTIVE] = "ACTIVE",
                                         [OC_LINE_LEVER] = "LEVER",
                                         [OC_LINE_NOT_ACTIVE] = "NOT ACTIVE",
                                         [OC_LINE_ACCOUNTING] = "ACCOUNTING",
                                         [OC_LINE_CELLS] = "CELLS",
                                         [OC_LINE_EXIT] = "EXIT",
                                         [OC_LINE_NOTE] = "NOTE"};
_Static_assert(sizeof line_words / sizeof *line_words == OC_LINE_KIND_COUNT, "one word a kind of line");

static int line_kind(const char *word, oc_line_kind *kind) {
  for (int i = 0; i < OC_LINE_KIND_COUNT; ++i) {
    if (strcmp(line_words[i], word) == 0) {
      *kind = (oc_line_kind)i;
      return 0;
    }
  }
  PyErr_Format(PyExc_ValueError, "unknown kind of line '%s'", word);
  return -1;
}

static int line_put(oc_line *line, const char *key, PyObject *value) {
  const char *text = PyUnicode_AsUTF8AndSize(value, NULL);
  if (!text) return -1;
  if (line->field_count == OC_LINE_FIELDS) {
    PyErr_Format(PyExc_ValueError, "more than %d fields in a line", OC_LINE_FIELDS);
    return -1;
  }
  line->field[line->field_count++] = key ? (oc_line_field){key, text} : (oc_line_field){text, NULL};
  return 0;
}

/* words: sequence of str; pairs: list of (key, value). The line borrows their text. */
static int line_fill(oc_line *line, PyObject *words, PyObject *pairs) {
  for (Py_ssize_t i = 0; i < PyList_Size(words); ++i) {
    if (line_put(line, NULL, PyList_GetItem(words, i)) != 0) return -1;
  }
  for (Py_ssize_t i = 0; i < PyList_Size(pairs); ++i) {
    PyObject *pair = PyList_GetItem(pairs, i);
    PyObject *key = PyTuple_GetItem(pair, 0), *value = key ? PyTuple_GetItem(pair, 1) : NULL;
    const char *text = value ? PyUnicode_AsUTF8AndSize(key, NULL) : NULL;
    if (!text || line_put(line, text, value) != 0) return -1;
  }
  return 0;
}

PyObject *oc__py_line_write(PyObject *module, PyObject *args) {
  const char *kind;
  PyObject *words, *pairs = NULL;
  if (!PyArg_ParseTuple(args, "sO|O:line_write", &kind, &words, &pairs)) return NULL;
  oc_line line;
  line.field_count = 0;
  if (line_kind(kind, &line.kind) != 0) return NULL;
  PyObject *word_list = PySequence_List(words);
  PyObject *pair_list = !word_list ? NULL : pairs && pairs != Py_None ? PyMapping_Items(pairs) : PyList_New(0);
  PyObject *result = NULL;
  if (pair_list && line_fill(&line, word_list, pair_list) == 0) {
    oc_err err = {0};
    oc_status status;
    NO_GIL(status = oc_line_write(&line, &err));
    result = oc__none_or_raise(oc__state_of(module), status, &err);
  }
  Py_XDECREF(word_list);
  Py_XDECREF(pair_list);
  return result;
}

PyObject *oc__py_line_parse(PyObject *module, PyObject *args) {
  const char *text;
  Py_ssize_t bytes;
  if (!PyArg_ParseTuple(args, "s#:line_parse", &text, &bytes)) return NULL;
  oc_err err = {0};
  oc_line line;
  if (oc_line_parse(text, (size_t)bytes, &line, &err) != OC_OK) return oc__raise(oc__state_of(module), &err);
  PyObject *words = PyList_New(0), *pairs = PyDict_New();
  int failed = !words || !pairs;
  for (int i = 0; !failed && i < line.field_count; ++i) {
    const oc_line_field *field = &line.field[i];
    failed = field->value ? oc__dict_add(pairs, field->key, oc__text(field->value))
                          : oc__list_add(words, oc__text(field->key));
  }
  if (!failed) return Py_BuildValue("(sNN)", line_words[line.kind], words, pairs);
  Py_XDECREF(words);
  Py_XDECREF(pairs);
  return NULL;
}

/* Any thread, GIL held or not. The callable is looked up here, under the GIL, so that replacing it never frees one in
 * use. */
static void sink_line(const char *text, size_t bytes, void *context) {
  const oc__state *state = context;
  if (!Py_IsInitialized()) return;
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *type, *value, *trace; /* a line may be written while an exception is on its way */
  PyErr_Fetch(&type, &value, &trace);
  PyObject *sink = state->sink;
  if (sink) {
    Py_INCREF(sink);
    PyObject *line = PyUnicode_DecodeUTF8(text, (Py_ssize_t)bytes, "replace");
    PyObject *answer = line ? PyObject_CallFunctionObjArgs(sink, line, NULL) : NULL;
    if (!answer) PyErr_WriteUnraisable(sink);
    Py_XDECREF(answer);
    Py_XDECREF(line);
    Py_DECREF(sink);
  }
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
}

PyObject *oc__py_set_sink(PyObject *module, PyObject *callable) {
  oc__state *state = oc__state_of(module);
  if (callable != Py_None && !PyCallable_Check(callable)) {
    PyErr_SetString(PyExc_TypeError, "set_sink: a callable or None");
    return NULL;
  }
  PyObject *old = state->sink;
  state->sink = callable == Py_None ? NULL : callable;
  Py_XINCREF(state->sink);
  oc_line_sink *const sink = state->sink ? sink_line : NULL;
  NO_GIL(oc_line_set_sink(sink, state));
  Py_XDECREF(old);
  return Py_BuildValue("");
}
