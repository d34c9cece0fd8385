/* SPDX-License-Identifier: Apache-2.0 */
/* Where a call's operands lie, as the families ask it: all in one place, named in the class, and the member's own. */
#ifndef OC_DEVICES_PLACE_H
#define OC_DEVICES_PLACE_H

#include "opt_core/provider.h"

/* BAD_ARG naming both places unless `other` is absent or lies where `view` does. */
oc_status oc__place_check(const oc_view *view, const char *name, const oc_view *other, const char *other_name,
                          oc_err *err);

/* oc_class.device of a call whose operands lie where `view` does: "cpu-<level in use>", "sm_90a", "sm_86". */
oc_status oc__place_class(const oc_view *view, char device[24], oc_err *err);

/* REFUSED no_device:, arch: unless the member runs where `view` lies; BAD_ARG unless exec names that place. */
oc_status oc__place_serve(const oc_member *member, const oc_exec *exec, const oc_view *view, const char *name,
                          oc_err *err);

#endif
