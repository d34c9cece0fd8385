/* SPDX-License-Identifier: Apache-2.0 */
/* apb by straight loops; see attention_reference.h for the order and the two precisions (F64 q: double). */
#include "apb/apb_internal.h"
#include "devices/cpu/attention_reference.h"

size_t oc__apb_reference_workspace(const void *call, int threads);
oc_status oc__apb_reference(const void *call, const oc_exec *exec, oc_err *err);

size_t oc__apb_reference_workspace(const void *call, int threads) {
  (void)threads;
  oc__apb_views views;
  oc__apb_views_make(call, &views);
  return oc__ref_attention_workspace(&views.attention);
}

oc_status oc__apb_reference(const void *call, const oc_exec *exec, oc_err *err) {
  OC_TRY(oc__apb_refuse(call, 1, err));
  oc__apb_views views;
  oc__apb_views_make(call, &views);
  OC_TRY(oc__workspace_check(exec, oc__ref_attention_workspace(&views.attention), err));
  oc__ref_attention(&views.attention, exec->workspace);
  return OC_OK;
}
