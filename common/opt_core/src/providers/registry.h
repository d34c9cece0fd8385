/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OC_REGISTRY_H
#define OC_REGISTRY_H

#include "opt_core/provider.h"

/* True when the family's members.inc names the row, also when this build left the row's members out. */
int oc__family_has_row(oc_family family, const char *row);

/* True for "cpu-<level>", "sm_<digits>" and "sm_<digits><letter>". */
int oc__device_is_known(const char *device);

#endif
