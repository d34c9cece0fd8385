/* SPDX-License-Identifier: Apache-2.0 */
/* A descriptor to a served call: which row, where it runs, and what it runs in. */
#include "core.h"

#include <stdio.h>
#include <string.h>

/* Typed entry points behind one signature. */
#define ENTRY(word)                                                                                                    \
  static oc_status word##_class(const oc__call *call, oc_tier tier, oc_class *out, oc_err *err) {                      \
    return oc_##word##_class(&call->of.word, tier, out, err);                                                          \
  }                                                                                                                    \
  static oc_status word##_serve(const oc__call *call, const oc_choice *choice, const oc_exec *exec, oc_err *err) {     \
    return oc_##word##_serve(&call->of.word, choice, exec, err);                                                       \
  }
ENTRY(ln)
ENTRY(trimul)
ENTRY(triattn)
ENTRY(triattn_module)
ENTRY(transition)
ENTRY(apb)

static const struct family_entry {
  oc_status (*classify)(const oc__call *, oc_tier, oc_class *, oc_err *);
  oc_status (*serve)(const oc__call *, const oc_choice *, const oc_exec *, oc_err *);
} families[OC_FAMILY_COUNT] = {
    [OC_FAMILY_LN] = {ln_class, ln_serve},
    [OC_FAMILY_TRIMUL] = {trimul_class, trimul_serve},
    [OC_FAMILY_TRIATTN] = {triattn_class, triattn_serve},
    [OC_FAMILY_TRIATTN_MODULE] = {triattn_module_class, triattn_module_serve},
    [OC_FAMILY_TRANSITION] = {transition_class, transition_serve},
    [OC_FAMILY_APB] = {apb_class, apb_serve},
};

/* ---- which row ------------------------------------------------------------------------------------------------- */

/* A member of the family (of one row only unless `row` is NULL) on that kind of device; where there is none, the last
 * one on another, or NULL. */
static const oc_member *find_member(oc_family family, const char *row, int is_host, int *fits) {
  int count = 0;
  const oc_member *members = oc_family_members(family, &count), *found = NULL;
  *fits = 0;
  for (int i = 0; i < count && !*fits; ++i) {
    if (row && strcmp(members[i].row, row) != 0) continue;
    found = &members[i];
    *fits = (strcmp(found->device, "cpu") == 0) == is_host;
  }
  return found;
}

/* By name where the family, or the row that was asked for, has nothing for that kind of device. */
static oc_status check_device(const oc__request *request, const oc__call *call, oc_err *err) {
  int fits;
  const char *word = oc_family_word(request->family), *row = request->row;
  const oc_member *member = find_member(request->family, row, call->device == OC_DEVICE_HOST, &fits);
  if (fits) return OC_OK;
  if (!member) return OC_FAIL(err, BAD_ARG, 0, "%s has no row '%.60s'", word, row ? row : "");
  char here[24] = "cpu";
  if (call->device != OC_DEVICE_HOST) (void)snprintf(here, sizeof here, "cuda:%d", (int)call->device - 1);
  return OC_REFUSE(err, NO_DEVICE, "tensors[%d] (%s) is a %s tensor, %s%.60s of %s runs on %s", call->first.position,
                   call->first.name ? call->first.name : "none", here, row ? "row " : "every row", row ? row : "", word,
                   member->device);
}

static oc_status choose_row(const oc__request *request, const oc_class *cls, oc_choice *choice, oc_err *err) {
  *choice = (oc_choice){.cell = NULL, .member = oc_member_for_device(request->family, request->row, cls->device)};
  if (choice->member) return OC_OK;
  return OC_REFUSE(err, ARCH, "row %.60s has no member for %s", request->row, cls->device);
}

static oc_status choose(const oc__request *request, oc_class *cls, oc_choice *choice, oc_err *err) {
  if (request->row) return choose_row(request, cls, choice, err);
  if (strlen(request->stack) >= sizeof cls->stack) {
    return OC_FAIL(err, BAD_ARG, 0, "stack of %zu bytes, at most %zu", strlen(request->stack), sizeof cls->stack - 1);
  }
  memcpy(cls->stack, request->stack, strlen(request->stack) + 1);
  const oc_cells *cells = NULL;
  OC_TRY(oc_cells_in_force(request->family, &cells, err));
  return oc_select(cells, cls, choice, err);
}

static oc_status refuse_row_off(const oc__request *request, const char *row, oc_err *err) {
  for (const char *const *off = request->rows_off; *off; ++off) {
    if (strcmp(*off, row) == 0) return OC_REFUSE(err, OFF_BY_USER, "%s", row);
  }
  return OC_OK;
}

oc_status oc__call_choose(const oc__request *request, const oc__call *call, oc_choice *choice, oc_err *err) {
  oc_class cls = {0};
  OC_TRY(check_device(request, call, err));
  OC_TRY(families[request->family].classify(call, request->tier, &cls, err));
  OC_TRY(choose(request, &cls, choice, err));
  OC_TRY(refuse_row_off(request, choice->member->row, err));
  if (choice->member->run || request->takes_hosted) return OC_OK;
  /* hosted: the caller did not know that it might have to run it */
  return OC_REFUSE(err, NOT_BUILT, "%s runs in the host framework", choice->member->name);
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */

int oc__threads_granted(int wanted) {
  const int most = oc_cpu_threads();
  return wanted > 0 && wanted < most ? wanted : most;
}

static oc_status run_on_host(const oc__request *request, const oc__call *call, const oc_choice *choice, oc_err *err) {
  oc_exec exec = {.threads = oc__threads_granted(request->threads)};
  oc_scratch scratch;
  OC_TRY(oc_scratch_acquire(oc_member_workspace(choice->member, &call->of, exec.threads), &scratch, err));
  exec.workspace = scratch.data;
  exec.workspace_bytes = scratch.bytes;
  const oc_status status = families[request->family].serve(call, choice, &exec, err);
  oc_scratch_release(&scratch);
  return status;
}

static oc_status serve_on_host(const oc__request *request, const oc__call *call, oc_choice *choice, oc_err *err) {
  OC_TRY(oc__call_choose(request, call, choice, err));
  return choice->member->run ? run_on_host(request, call, choice, err) : OC_OK;
}

/* ---- on a CUDA device -------------------------------------------------------------------------------------------- */

static void keep_report(void *context, const char *kind, const char *message) {
  oc_err *const err = context;
  const int bytes = message ? (int)strcspn(message, "\n") : 0;
  if (kind && strcmp(kind, "MemoryError") == 0)
    (void)OC_FAIL(err, NO_MEM, 0, "scratch: %.*s", bytes, message ? message : "");
  else
    (void)OC_FAIL(err, DEVICE, 0, "scratch: %s: %.*s", kind ? kind : "torch", bytes, message ? message : "");
}

/* Memory of the framework's allocator, taken on the device's current stream. Giving it back right after the launch is
 * safe: the allocator keeps a free list a stream, so the next owner's work is enqueued behind ours on the same stream.
 * A stream that is captured takes from the graph's own pool, to which the same holds. */
static oc_status take_scratch(const oc__torch *torch, int32_t ordinal, size_t bytes, oc_dl_managed **out, oc_err *err) {
  int64_t shape[1] = {(int64_t)bytes};
  oc_dl_tensor prototype = {.device = {OC_DL_CUDA, ordinal}, .rank = 1, .element = {OC_DL_UINT, 8, 1}, .shape = shape};
  *out = NULL;
  if (torch->api->allocate(&prototype, out, err, keep_report) == 0 && *out) return OC_OK;
  return OC_FAIL(err, NO_MEM, 0, "scratch of %zu bytes on cuda:%d", bytes, (int)ordinal); /* unless reported */
}

static void give_scratch(oc_dl_managed *scratch) {
  if (scratch && scratch->release) scratch->release(scratch);
}

static oc_status run_on_cuda(const oc__torch *torch, const oc__request *request, const oc__call *call,
                             const oc_choice *choice, oc_err *err) {
  const int32_t ordinal = call->device - 1;
  oc_exec exec = {.device = call->device, .workspace_bytes = oc_member_workspace(choice->member, &call->of, 1)};
  oc_dl_managed *scratch = NULL;
  if (!torch->has_streams) {
    return OC_REFUSE(err, PIN, "torch's exchange table is DLPack 1.%u, streams and an allocator come with 1.%u",
                     torch->api->header.version.minor, OC_DL_MINOR);
  }
  if (torch->api->current_stream(OC_DL_CUDA, ordinal, &exec.stream) != 0) return OC_BAD_ARG; /* Python has raised */
  if (exec.workspace_bytes > 0) {
    OC_TRY(take_scratch(torch, ordinal, exec.workspace_bytes, &scratch, err));
    exec.workspace = (char *)scratch->tensor.data + scratch->tensor.byte_offset;
  }
  oc_status status;
  NO_GIL(status = families[request->family].serve(call, choice, &exec, err));
  give_scratch(scratch);
  return status;
}

oc_status oc__call_serve(const oc__torch *torch, const oc__request *request, const oc__call *call, oc_choice *choice,
                         oc_err *err) {
  oc_status status;
  if (call->device == OC_DEVICE_HOST) {
    NO_GIL(status = serve_on_host(request, call, choice, err));
    return status;
  }
  OC_TRY(oc__call_choose(request, call, choice, err));
  return choice->member->run ? run_on_cuda(torch, request, call, choice, err) : OC_OK;
}
