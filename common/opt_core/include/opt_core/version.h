/* SPDX-License-Identifier: Apache-2.0 */
/* Version of the library. The SONAME follows OC_VERSION_MAJOR; the Python module refuses another ABI. */
#ifndef OPT_CORE_VERSION_H
#define OPT_CORE_VERSION_H

#include "opt_core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OC_VERSION_MAJOR 0
#define OC_VERSION_MINOR 1
#define OC_VERSION_PATCH 0
#define OC_VERSION_TEXT "0.1.0"

/* "MAJOR.MINOR.PATCH" of the library that is loaded. Static text. */
OC_API const char *oc_version(void);
/* Number that changes when a public struct or function changes incompatibly. */
OC_API int oc_abi_version(void);
/* Compares dotted numeric versions ("0.10.2" > "0.9"; a missing part is 0; a suffix after the last digit is ignored).
 * Returns <0, 0, >0. Never fails: text without a leading digit counts as 0. */
OC_API int oc_version_compare(const char *a, const char *b);
/* Parts of the build, one word each, "" after the last: "json", "sodium", "openmp", "avx512", "avx2", ... */
OC_API const char *oc_build_part(int index);

#ifdef __cplusplus
}
#endif
#endif
