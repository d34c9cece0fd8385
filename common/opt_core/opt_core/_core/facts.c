/* SPDX-License-Identifier: Apache-2.0 */
/* Versions, gates, digests and machine facts; the tables of cells and members. Everything here only reads. */
#include "core.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

/* ---- versions, gates, digests -------------------------------------------------------------------------------- */

PyObject *oc__py_version(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  return oc__text(oc_version());
}

PyObject *oc__py_abi_version(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  return PyLong_FromLong(oc_abi_version());
}

PyObject *oc__py_build_parts(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  PyObject *list = PyList_New(0);
  int failed = !list;
  for (int i = 0; !failed && oc_build_part(i)[0]; ++i) failed = oc__list_add(list, oc__text(oc_build_part(i)));
  return oc__keep(list, failed);
}

PyObject *oc__py_reasons(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  PyObject *dict = PyDict_New();
  int failed = !dict;
  for (int i = OC_REASON_NONE + 1; !failed && i < OC_REASON_COUNT; ++i) {
    failed = oc__dict_add(dict, oc_reason_word((oc_reason)i), oc__text(oc_reason_help((oc_reason)i)));
  }
  return oc__keep(dict, failed);
}

PyObject *oc__py_mode_parse(PyObject *module, PyObject *args) {
  PyObject *text = NULL;
  if (!PyArg_ParseTuple(args, "O&:mode_parse", oc__native_text, &text)) return NULL;
  oc_err err = {0};
  oc_mode mode = OC_MODE_OFF;
  const oc_status status = oc_mode_parse(oc__native(text), &mode, &err);
  Py_XDECREF(text);
  return status == OC_OK ? oc__text(oc_mode_word(mode)) : oc__raise(oc__state_of(module), &err);
}

PyObject *oc__py_environment_check(PyObject *module, PyObject *ignored) {
  (void)ignored;
  oc_err err = {0};
  return oc__none_or_raise(oc__state_of(module), oc_environment_check(environ, &err), &err);
}

PyObject *oc__py_gate_pin(PyObject *module, PyObject *args) {
  const char *package, *have, *need;
  if (!PyArg_ParseTuple(args, "szs:gate_pin", &package, &have, &need)) return NULL;
  oc_err err = {0};
  return oc__none_or_raise(oc__state_of(module), oc_gate_pin(package, have, need, &err), &err);
}

PyObject *oc__py_gate_arch(PyObject *module, PyObject *args) {
  int sm;
  const char *need;
  if (!PyArg_ParseTuple(args, "is:gate_arch", &sm, &need)) return NULL;
  oc_err err = {0};
  return oc__none_or_raise(oc__state_of(module), oc_gate_arch(sm, need, &err), &err);
}

PyObject *oc__py_gate_host_floor(PyObject *module, PyObject *args) {
  PyObject *path = NULL;
  if (!PyArg_ParseTuple(args, "O&:gate_host_floor", PyUnicode_FSConverter, &path)) return NULL;
  oc_err err = {0};
  oc_host_floor need = {0}, have = {0};
  oc_status status;
  NO_GIL(status = oc_host_floor_read(oc__native(path), &need, &err);
         if (status == OC_OK) status = oc_host_floor_here(&have, &err));
  Py_DECREF(path);
  if (status == OC_OK) status = oc_gate_host_floor(&need, &have, &err);
  if (status != OC_OK) return oc__raise(oc__state_of(module), &err);
  return Py_BuildValue("{ssssss}", "glibc", need.glibc, "glibcxx", need.glibcxx, "cxxabi", need.cxxabi);
}

PyObject *oc__py_digest_file(PyObject *module, PyObject *args) {
  PyObject *path = NULL;
  if (!PyArg_ParseTuple(args, "O&:digest_file", PyUnicode_FSConverter, &path)) return NULL;
  oc_err err = {0};
  char digest[65];
  oc_status status;
  NO_GIL(status = oc_digest_file(oc__native(path), digest, &err));
  Py_DECREF(path);
  return status == OC_OK ? oc__text(digest) : oc__raise(oc__state_of(module), &err);
}

PyObject *oc__py_prebuilt_read(PyObject *module, PyObject *args) {
  PyObject *directory = NULL;
  const char *key;
  if (!PyArg_ParseTuple(args, "O&s:prebuilt_read", PyUnicode_FSConverter, &directory, &key)) return NULL;
  oc_err err = {0};
  unsigned char *bytes = NULL;
  size_t count = 0;
  oc_status status;
  NO_GIL(status = oc_prebuilt_read(oc__native(directory), key, &bytes, &count, &err));
  Py_DECREF(directory);
  if (status != OC_OK) return oc__raise(oc__state_of(module), &err);
  PyObject *result = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)count);
  oc_bytes_free(bytes);
  return result;
}

PyObject *oc__py_version_compare(PyObject *module, PyObject *args) {
  (void)module;
  const char *a, *b;
  if (!PyArg_ParseTuple(args, "ss:version_compare", &a, &b)) return NULL;
  return PyLong_FromLong(oc_version_compare(a, b));
}

PyObject *oc__py_cpu_facts(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  const oc_cpu *cpu = oc_cpu_facts();
  return Py_BuildValue("{ssssss sNsN}", "vendor", cpu->vendor, "model", cpu->model, "isa", oc_isa_word(cpu->isa),
                       "has_avx512_bf16", PyBool_FromLong(cpu->has_avx512_bf16), "has_amx_bf16",
                       PyBool_FromLong(cpu->has_amx_bf16));
}

PyObject *oc__py_cpu_isa(PyObject *module, PyObject *ignored) {
  (void)ignored;
  oc_err err = {0};
  oc_isa isa = OC_ISA_GENERIC;
  return oc_cpu_isa(&isa, &err) == OC_OK ? oc__text(oc_isa_word(isa)) : oc__raise(oc__state_of(module), &err);
}

PyObject *oc__py_device_below(PyObject *module, PyObject *args) {
  (void)module;
  const char *device;
  if (!PyArg_ParseTuple(args, "s:device_below", &device)) return NULL;
  const char *below = oc_device_below(device);
  if (below) return oc__text(below);
  Py_RETURN_NONE;
}

PyObject *oc__py_cpu_threads(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  return PyLong_FromLong(oc_cpu_threads());
}

PyObject *oc__py_cuda_facts(PyObject *module, PyObject *args) {
  int ordinal = 0;
  if (!PyArg_ParseTuple(args, "|i:cuda_facts", &ordinal)) return NULL;
  oc_err err = {0};
  oc_cuda_device device = {0};
  oc_status status;
  NO_GIL(status = oc_cuda_device_facts(ordinal, &device, &err));
  if (status != OC_OK) return oc__raise(oc__state_of(module), &err);
  return Py_BuildValue("{sisissss sL}", "ordinal", device.ordinal, "sm", device.sm, "name", device.name, "uuid",
                       device.uuid, "memory_bytes", (long long)device.memory_bytes);
}

PyObject *oc__py_cuda_prepare(PyObject *module, PyObject *args) {
  int device;
  const char *word;
  if (!PyArg_ParseTuple(args, "is:cuda_prepare", &device, &word)) return NULL;
  oc_err err = {0};
  oc_family family;
  oc_status status = oc_family_find(word, &family, &err);
  if (status == OC_OK) NO_GIL(status = oc_cuda_prepare(device, family, &err));
  return oc__none_or_raise(oc__state_of(module), status, &err);
}

static PyObject *module_dict(const oc_cuda_module *one) {
  return Py_BuildValue("{sissssss}", "device", one->device, "package", one->package, "key", one->key, "sha256",
                       one->sha256);
}

PyObject *oc__py_cuda_modules(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  enum { ROOM = 64 }; /* far above the modules of all families on one device; asked again where there are more */
  oc_cuda_module few[ROOM], *all = few;
  int count = oc_cuda_modules(few, ROOM);
  if (count > ROOM) {
    all = PyMem_Calloc((size_t)count, sizeof *all);
    if (!all) return PyErr_NoMemory();
    const int now = oc_cuda_modules(all, count); /* what others load meanwhile is for the next call */
    if (now < count) count = now;
  }
  PyObject *list = PyList_New(0);
  int failed = !list;
  for (int i = 0; !failed && i < count; ++i) failed = oc__list_add(list, module_dict(&all[i]));
  if (all != few) PyMem_Free(all);
  return oc__keep(list, failed);
}

PyObject *oc__py_cuda_libraries(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  PyObject *dict = PyDict_New();
  int failed = !dict;
  for (int i = 0; !failed && i < OC_CUDA_LIBRARY_COUNT; ++i) {
    char path[PATH_MAX];
    const oc_cuda_library_id library = (oc_cuda_library_id)i;
    if (oc_cuda_library(library, NULL, path, sizeof path, NULL) != OC_OK) continue;
    failed = oc__dict_add(dict, oc_cuda_library_word(library), PyUnicode_DecodeFSDefault(path));
  }
  return oc__keep(dict, failed);
}

/* ---- cells and members --------------------------------------------------------------------------------------- */

static int copy_text(char *out, size_t out_bytes, const char *text, const char *what) {
  const size_t bytes = strlen(text) + 1;
  if (bytes > out_bytes) {
    PyErr_Format(PyExc_ValueError, "%s of %zu bytes, at most %zu", what, bytes - 1, out_bytes - 1);
    return -1;
  }
  memcpy(out, text, bytes);
  return 0;
}

static int dtype_from_word(const char *word, oc_dtype *out) {
  for (int i = OC_DTYPE_NONE + 1; i < OC_DTYPE_COUNT; ++i) {
    if (strcmp(oc_dtype_word((oc_dtype)i), word) == 0) {
      *out = (oc_dtype)i;
      return 0;
    }
  }
  PyErr_Format(PyExc_ValueError, "unknown dtype '%s'", word);
  return -1;
}

#define X(id, letter) letter,
static const char *const dim_letters[] = {OC_DIM_LIST(X)};
#undef X

static int dims_from_items(PyObject *items, int64_t *dim) {
  for (Py_ssize_t i = 0; i < PyList_Size(items); ++i) {
    const char *letter;
    long long size;
    if (!PyArg_ParseTuple(PyList_GetItem(items, i), "sL;dims: letter and size", &letter, &size)) return -1;
    int at = 0;
    while (at < OC_DIM_COUNT && strcmp(dim_letters[at], letter) != 0) ++at;
    if (at == OC_DIM_COUNT || size < 0) {
      PyErr_Format(PyExc_ValueError, "dims: '%s' of size %lld", letter, size);
      return -1;
    }
    dim[at] = (int64_t)size;
  }
  return 0;
}

static int class_fill(const oc__state *state, oc_class *cls, const char *const text[6], PyObject *dims) {
  oc_err err = {0};
  if (oc_family_find(text[0], &cls->family, &err) != OC_OK || oc_tier_find(text[1], &cls->tier, &err) != OC_OK) {
    oc__raise(state, &err);
    return -1;
  }
  if (copy_text(cls->device, sizeof cls->device, text[2], "device") != 0 ||
      dtype_from_word(text[3], &cls->dtype) != 0 || copy_text(cls->form, sizeof cls->form, text[4], "form") != 0 ||
      copy_text(cls->stack, sizeof cls->stack, text[5], "stack") != 0) {
    return -1;
  }
  PyObject *items = PyMapping_Items(dims);
  const int failed = items ? dims_from_items(items, cls->dim) : -1;
  Py_XDECREF(items);
  return failed;
}

PyObject *oc__py_select(PyObject *module, PyObject *args, PyObject *keywords) {
  static char *names[] = {"family", "tier", "device", "dtype", "form", "dims", "stack", NULL};
  const char *text[6] = {NULL, NULL, NULL, NULL, NULL, ""};
  PyObject *dims;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "sssssO|s:select", names, &text[0], &text[1], &text[2], &text[3],
                                   &text[4], &dims, &text[5])) {
    return NULL;
  }
  oc_class cls = {0};
  if (class_fill(oc__state_of(module), &cls, text, dims) != 0) return NULL;
  oc_err err = {0};
  const oc_cells *cells = NULL;
  oc_choice choice = {0};
  oc_status status = oc_cells_in_force(cls.family, &cells, &err);
  if (status == OC_OK) status = oc_select(cells, &cls, &choice, &err);
  if (status != OC_OK) return oc__raise(oc__state_of(module), &err);
  return Py_BuildValue("(ssss)", choice.cell->id, choice.cell->row, choice.member->name, choice.cell->fallback);
}

int oc__family_argument(PyObject *module, PyObject *args, oc_family *family) {
  const char *word;
  oc_err err = {0};
  if (!PyArg_ParseTuple(args, "s", &word)) return -1;
  if (oc_family_find(word, family, &err) == OC_OK) return 0;
  oc__raise(oc__state_of(module), &err);
  return -1;
}

static PyObject *cell_ranges(const oc_cell *cell) {
  PyObject *dict = PyDict_New();
  int failed = !dict;
  for (int i = 0; !failed && i < OC_DIM_COUNT; ++i) {
    if (cell->low[i] <= 0 && cell->high[i] == INT64_MAX) continue;
    PyObject *end = cell->high[i] == INT64_MAX ? Py_BuildValue("") : PyLong_FromLongLong(cell->high[i]);
    failed = oc__dict_add(dict, dim_letters[i], end ? Py_BuildValue("(LN)", (long long)cell->low[i], end) : NULL);
  }
  return oc__keep(dict, failed);
}

static PyObject *cell_stacks(const oc_cell *cell) {
  PyObject *list = PyList_New(0);
  int failed = !list;
  for (int i = 0; !failed && cell->stacks && cell->stacks[i]; ++i)
    failed = oc__list_add(list, oc__text(cell->stacks[i]));
  return oc__keep(list, failed);
}

static int cell_texts(PyObject *dict, const oc_cell *cell) {
  const struct {
    const char *key, *text;
  } texts[] = {{"id", cell->id},
               {"tier", oc_tier_word(cell->tier)},
               {"device", cell->device},
               {"dtype", oc_dtype_word(cell->dtype)},
               {"form", cell->form},
               {"row", cell->row},
               {"fallback", cell->fallback},
               {"date", cell->date},
               {"machine", cell->machine},
               {"stack", cell->stack},
               {"command", cell->command},
               {"result", cell->result}};
  int failed = 0;
  for (size_t i = 0; !failed && i < sizeof texts / sizeof *texts; ++i) {
    failed = oc__dict_add(dict, texts[i].key, oc__text_or_none(texts[i].text));
  }
  return failed;
}

static int cell_numbers(PyObject *dict, const oc_cell *cell) {
  const struct {
    const char *key;
    double value;
  } numbers[] = {{"us", cell->us}, {"peer_us", cell->peer_us}, {"err", cell->err}, {"stock_err", cell->stock_err}};
  int failed = 0;
  for (size_t i = 0; !failed && i < sizeof numbers / sizeof *numbers; ++i) {
    failed = oc__dict_add(dict, numbers[i].key, PyFloat_FromDouble(numbers[i].value));
  }
  return failed;
}

static PyObject *cell_dict(const oc_cell *cell) {
  PyObject *dict = PyDict_New();
  int failed = !dict || cell_texts(dict, cell) || cell_numbers(dict, cell);
  if (!failed)
    failed = oc__dict_add(dict, "dims", cell_ranges(cell)) || oc__dict_add(dict, "stacks", cell_stacks(cell));
  return oc__keep(dict, failed);
}

PyObject *oc__py_cells(PyObject *module, PyObject *args) {
  oc_family family;
  oc_err err = {0};
  const oc_cells *table = NULL;
  if (oc__family_argument(module, args, &family) != 0) return NULL;
  if (oc_cells_in_force(family, &table, &err) != OC_OK) return oc__raise(oc__state_of(module), &err);
  PyObject *list = PyList_New(0);
  int failed = !list;
  for (int i = 0; !failed && i < oc_cells_count(table); ++i)
    failed = oc__list_add(list, cell_dict(oc_cells_at(table, i)));
  return oc__keep(list, failed);
}

static PyObject *member_flags(const oc_member *member) {
  static const struct {
    unsigned bit;
    const char *word;
  } known[] = {{OC_MEMBER_EXACT, "exact"},
               {OC_MEMBER_DETERMINISTIC, "deterministic"},
               {OC_MEMBER_ROWWISE, "rowwise"},
               {OC_MEMBER_REFERENCE, "reference"}};
  PyObject *list = PyList_New(0);
  int failed = !list;
  for (size_t i = 0; !failed && i < sizeof known / sizeof *known; ++i) {
    if (member->flags & known[i].bit) failed = oc__list_add(list, oc__text(known[i].word));
  }
  if (!failed && !member->run) failed = oc__list_add(list, oc__text("hosted"));
  return oc__keep(list, failed);
}

PyObject *oc__py_members(PyObject *module, PyObject *args) {
  oc_family family;
  if (oc__family_argument(module, args, &family) != 0) return NULL;
  int count = 0;
  const oc_member *all = oc_family_members(family, &count);
  PyObject *list = PyList_New(0);
  int failed = !list;
  for (int i = 0; !failed && i < count; ++i) {
    PyObject *flags = member_flags(&all[i]);
    failed =
        !flags || oc__list_add(list, Py_BuildValue("{sssssssssN}", "row", all[i].row, "name", all[i].name, "device",
                                                   all[i].device, "isa", oc_isa_word(all[i].isa), "flags", flags));
  }
  return oc__keep(list, failed);
}

PyObject *oc__py_cells_overlay_digest(PyObject *module, PyObject *ignored) {
  (void)module, (void)ignored;
  return oc__text(oc_cells_overlay_digest());
}
