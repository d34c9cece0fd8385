/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/place.h"

#include "devices/cuda/cuda.h"
#include "opt_core/activation.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PLACE_BYTES = 24 };

static const char *place_text(int32_t device, char out[PLACE_BYTES]) {
  if (device == OC_DEVICE_HOST) return "cpu";
  (void)snprintf(out, PLACE_BYTES, "cuda:%" PRId32, device - 1);
  return out;
}

oc_status oc__place_check(const oc_view *view, const char *name, const oc_view *other, const char *other_name,
                          oc_err *err) {
  char here[PLACE_BYTES], there[PLACE_BYTES];
  if (other->device == view->device || !oc_view_is_present(other)) return OC_OK;
  return OC_FAIL(err, BAD_ARG, 0, "%s: on %s, %s is on %s", other_name, place_text(other->device, there), name,
                 place_text(view->device, here));
}

static oc_status cpu_class(char device[24], oc_err *err) {
  oc_isa isa;
  OC_TRY(oc_cpu_isa(&isa, err));
  (void)snprintf(device, 24, "cpu-%s", oc_isa_word(isa));
  return OC_OK;
}

oc_status oc__place_class(const oc_view *view, char device[24], oc_err *err) {
  const oc__cuda_limits *limits;
  if (view->device == OC_DEVICE_HOST) return cpu_class(device, err);
  OC_TRY(oc__cuda_limits_of(oc_view_cuda_ordinal(view), &limits, err));
  (void)snprintf(device, 24, "sm_%d%s", limits->sm, limits->sm == 90 ? "a" : "");
  return OC_OK;
}

static oc_status check_member(const oc_member *member, const oc_view *view, const char *name, oc_err *err) {
  char here[PLACE_BYTES];
  const oc__cuda_limits *limits;
  const int is_host = strcmp(member->device, "cpu") == 0;
  if (is_host != (view->device == OC_DEVICE_HOST))
    return OC_REFUSE(err, NO_DEVICE, "%s is a %s tensor, the row's device is %s", name, place_text(view->device, here),
                     member->device);
  if (is_host) return OC_OK;
  OC_TRY(oc__cuda_limits_of(oc_view_cuda_ordinal(view), &limits, err));
  return oc_gate_arch(limits->sm, member->device, err);
}

oc_status oc__place_serve(const oc_member *member, const oc_exec *exec, const oc_view *view, const char *name,
                          oc_err *err) {
  char here[PLACE_BYTES], wanted[PLACE_BYTES];
  OC_TRY(check_member(member, view, name, err));
  if (exec->device != view->device)
    return OC_FAIL(err, BAD_ARG, 0, "exec: device %s, %s is on %s", place_text(exec->device, wanted), name,
                   place_text(view->device, here));
  return OC_OK;
}
