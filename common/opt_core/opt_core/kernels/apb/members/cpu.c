/* SPDX-License-Identifier: Apache-2.0 */
/* CPU members of apb, compiled once an instruction set. */
#include "apb/apb_internal.h"
#include "devices/cpu/attention.h"

size_t OC_JOIN(OC_MEMBER_FN(oc__apb_cpu), workspace)(const void *call, int threads);
oc_status OC_MEMBER_FN(oc__apb_cpu)(const void *call, const oc_exec *exec, oc_err *err);

size_t OC_JOIN(OC_MEMBER_FN(oc__apb_cpu), workspace)(const void *call, int threads) {
  oc__apb_views views;
  oc__apb_views_make(call, &views);
  const oc__attention_plan plan = oc__attention_plan_make(&views.attention);
  return oc__attention_workspace(&plan, oc__thread_count(threads, oc__attention_units(&plan)));
}

oc_status OC_MEMBER_FN(oc__apb_cpu)(const void *call, const oc_exec *exec, oc_err *err) {
  OC_TRY(oc__apb_refuse(call, 0, err));
  oc__apb_views views;
  oc__apb_views_make(call, &views);
  oc__attention_plan plan = oc__attention_plan_make(&views.attention);
  const int threads = oc__thread_count(exec->threads, oc__attention_units(&plan));
  OC_TRY(oc__workspace_check(exec, oc__attention_workspace(&plan, threads), err));
  oc__attention_run(&plan, threads, exec->workspace);
  return OC_OK;
}
