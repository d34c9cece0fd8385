/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OC_HOST_H
#define OC_HOST_H

#include "opt_core/activation.h"

/* GLIBCXX and CXXABI of the first readable libstdc++.so.6 in a ':'-separated list of directories; 1 when there is one.
 */
int oc__host_cxx_in(const char *directories, oc_host_floor *out);

#endif
