/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of opt_core._core share.
 *
 * The GIL is released round everything that runs a kernel, reads files or may take the run's lock: a line sink is a
 * Python callable, so a thread may hold that lock while it waits for the GIL. Counting calls takes no lock and keeps
 * the GIL.
 */
#ifndef OPT_CORE_CORE_H
#define OPT_CORE_CORE_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include "dlpack_abi.h"
#include "opt_core/opt_core.h"

/* The framework's tensor types and its table, as bind_torch got them. Strong references. */
typedef struct oc__torch {
  const oc_dl_api *api;                              /* NULL until bind_torch */
  int has_streams;                                   /* the table reaches current_stream, and it and allocate are set */
  PyObject *tensor, *parameter;                      /* accepted as exact types */
  PyObject *function, *disabled_function, *dispatch; /* what a subclass must have inherited to be accepted */
} oc__torch;

/* What serve answered last, so that a warm call makes no strings. Keyed by addresses of structs that are never freed. */
enum { OC__ANSWERS = 16 }; /* a power of two; more choices in turn than that only cost time */
typedef struct oc__answer {
  const oc_cell *cell;
  const oc_member *member;
  PyObject *tuple; /* (cell, row, member); NULL: free */
} oc__answer;

typedef struct oc__state {
  PyObject *refused, *closed;
  PyObject *kit_type, *run_type;
  PyObject *sink; /* callable that gets every line, or NULL */
  oc__torch torch;
  oc__answer answer[OC__ANSWERS];
} oc__state;

#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function)) /* of METH_FASTCALL functions too */
#define NO_GIL(statement)                                                                                              \
  do {                                                                                                                 \
    PyThreadState *const saved = PyEval_SaveThread();                                                                  \
    statement;                                                                                                         \
    PyEval_RestoreThread(saved);                                                                                       \
  } while (0)

static inline oc__state *oc__state_of(PyObject *module) { return PyModule_GetState(module); }
static inline const oc__state *oc__state_of_instance(PyObject *self) { return PyType_GetModuleState(Py_TYPE(self)); }

/* ---- module.c ------------------------------------------------------------------------------------------------ */

/* Sets the Python exception that err stands for, unless one is set already. Returns NULL. */
PyObject *oc__raise(const oc__state *state, const oc_err *err);
/* None for OC_OK, else as oc__raise. */
PyObject *oc__none_or_raise(const oc__state *state, oc_status status, const oc_err *err);

/* The functions that Python sees; module.c lists them with their help, so that one table shows the whole interface.
 * Only those with keywords need the cast of KEYWORDS: for the others the compiler checks the signature. */
typedef PyObject *oc__py_function(PyObject *module, PyObject *args);
typedef PyObject *oc__py_keyword_function(PyObject *module, PyObject *args, PyObject *keywords);
/* `keywords` names the last arguments, or is NULL. */
typedef PyObject *oc__py_fast_function(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords);

/* ---- values.c ------------------------------------------------------------------------------------------------ */

PyObject *oc__text(const char *text);         /* invalid UTF-8 is replaced: what the library says is always shown */
PyObject *oc__text_or_none(const char *text); /* None for NULL */

/* "O&" converter: str, bytes, path or None to bytes or NULL. Values of environment variables and paths need not be
 * UTF-8. */
int oc__native_text(PyObject *object, void *out);
const char *oc__native(PyObject *bytes); /* borrowed from bytes; NULL for NULL */

/* Both consume the new reference, also when they fail; a NULL one counts as a failure. 0, or nonzero with a Python
 * error set. */
int oc__list_add(PyObject *list, PyObject *item);
int oc__dict_add(PyObject *dict, const char *key, PyObject *value);
/* The container when nothing failed; else it is released and NULL returned. */
PyObject *oc__keep(PyObject *container, int failed);

/* tp_alloc and tp_free of a heap type: the limited API hides the type's struct. */
PyObject *oc__instance_new(PyTypeObject *type);
void oc__instance_free(PyObject *self);

/* ---- facts.c ------------------------------------------------------------------------------------------------- */

/* The only argument, a family's word. -1 with a Python error set. */
int oc__family_argument(PyObject *module, PyObject *args, oc_family *family);

oc__py_function oc__py_version, oc__py_abi_version, oc__py_build_parts, oc__py_reasons, oc__py_mode_parse;
oc__py_function oc__py_environment_check, oc__py_gate_pin, oc__py_gate_arch, oc__py_gate_host_floor;
oc__py_function oc__py_digest_file, oc__py_prebuilt_read, oc__py_version_compare;
oc__py_function oc__py_cpu_facts, oc__py_cpu_isa, oc__py_device_below, oc__py_cpu_threads, oc__py_cuda_facts,
    oc__py_cuda_prepare;
oc__py_function oc__py_cuda_modules, oc__py_cuda_libraries;
oc__py_function oc__py_cells, oc__py_members, oc__py_cells_overlay_digest;
oc__py_keyword_function oc__py_select;

/* ---- line.c -------------------------------------------------------------------------------------------------- */

oc__py_function oc__py_line_write, oc__py_line_parse, oc__py_set_sink;

/* ---- kit.c --------------------------------------------------------------------------------------------------- */

extern PyType_Spec oc__kit_spec;
const oc_kit *oc__kit_of(PyObject *self); /* self is a Kit; borrowed */

oc__py_function oc__py_levers_off_check, oc__py_levers_off_has;

/* ---- run.c --------------------------------------------------------------------------------------------------- */

extern PyType_Spec oc__run_spec;

oc__py_function oc__py_exit_status_guard;

/* ---- call.c -------------------------------------------------------------------------------------------------- */

oc__py_function oc__py_bind_torch, oc__py_call_fields, oc__py_trimul_gate_planes;
oc__py_function oc__py_malloc_keep, oc__py_scratch_trim, oc__py_scratch_kept_bytes;
oc__py_fast_function oc__py_serve;
oc__py_keyword_function oc__py_compare;

/* ---- convert.c ----------------------------------------------------------------------------------------------- */

/* Looks the table up in the capsule and remembers the types. -1 with a Python error set. */
int oc__torch_bind(oc__torch *torch, PyObject *capsule, PyObject *tensor_type, PyObject *parameter_type);

/* Which argument, for errors: by its name, and by its place among the tensors unless that is -1. */
typedef struct oc__spot {
  const char *name;
  int position;
} oc__spot;

enum { OC__CUDA_DEVICES_MAX = 1 << 16 }; /* ordinals below it; far above any machine */

/* Borrows a CPU or CUDA tensor as a view; `object` None gives an absent view.
 * A failure that Python has already raised is OC_BAD_ARG with err untouched; oc__raise keeps that exception. */
oc_status oc__tensor_view(const oc__torch *torch, PyObject *object, oc__spot spot, oc_view *out, oc_err *err);
/* REFUSED no_device for a view that is not in host memory. */
oc_status oc__tensor_on_host(const oc_view *view, oc__spot spot, oc_err *err);

typedef struct oc__call {
  union {
    oc_ln ln;
    oc_trimul trimul;
    oc_triattn triattn;
    oc_triattn_module triattn_module;
    oc_transition transition;
    oc_apb apb;
  } of;
  oc__spot first; /* the first tensor that is there; name NULL when there is none */
  int32_t device; /* of all tensors, as oc_view.device */
} oc__call;

/* Fills the descriptor of `family`: views in depth-first order from `tensors`, the other fields in order from
 * `scalars`. REFUSED no_device when two tensors are on different devices. */
oc_status oc__call_pack(const oc__torch *torch, oc_family family, PyObject *tensors, PyObject *scalars, oc__call *call,
                        oc_err *err);
/* Names of the fields in that order, as ((views...), (scalars...)). */
PyObject *oc__call_fields(oc_family family);

/* ---- serve.c ------------------------------------------------------------------------------------------------- */

enum { OC__ROWS_OFF_MAX = 31 }; /* no family has so many rows */

typedef struct oc__request {
  oc_family family;
  oc_tier tier;
  const char *row;   /* NULL: chosen by the table in force */
  const char *stack; /* "" unless exact proofs are asked for */
  int takes_hosted;  /* 1: a hosted member is chosen and left to the caller to run */
  int threads;       /* wanted; 0: as many as oc_cpu_threads grants, which is also the most that a call gets */
  const char *rows_off[OC__ROWS_OFF_MAX + 1]; /* switched off by the user, NULL-terminated; borrowed from the caller */
} oc__request;

/* Which member would run. Needs no GIL. REFUSED off_by_user when the choice is switched off. */
oc_status oc__call_choose(const oc__request *request, const oc__call *call, oc_choice *choice, oc_err *err);
/* Chooses and runs. Called with the GIL, which is released while the member runs: on a CUDA device that is a launch of
 * microseconds, but it blocks when the driver's queue is full, and what the queue waits for may be Python (letting go
 * and taking back costs 0.2 us when nobody else wants it). There the work is enqueued on the framework's current
 * stream of the tensors' device, whatever the current device is. */
oc_status oc__call_serve(const oc__torch *torch, const oc__request *request, const oc__call *call, oc_choice *choice,
                         oc_err *err);
/* What a call gets that wants so many threads (0: no wish). */
int oc__threads_granted(int wanted);

#endif
