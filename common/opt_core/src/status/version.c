/* SPDX-License-Identifier: Apache-2.0 */
#include "opt_core/version.h"

#include <string.h>

const char *oc_version(void) { return OC_VERSION_TEXT; }

int oc_abi_version(void) { return 1; }

/* One dotted part: its digits without leading zeros. Numbers stay text, so that no length overflows. */
static const char *next_part(const char **at, size_t *digits) {
  const char *text = *at;
  while (*text == '0' && text[1] >= '0' && text[1] <= '9') text++;
  const char *end = text;
  while (*end >= '0' && *end <= '9') end++;
  *digits = (size_t)(end - text);
  if (*digits == 1 && *text == '0') *digits = 0; /* "0" equals a missing part */
  const char *start = text;
  /* A part follows only after a dot and with a digit; anything else is the suffix that is ignored. */
  *at = end > text && *end == '.' && end[1] >= '0' && end[1] <= '9' ? end + 1 : "";
  return start;
}

int oc_version_compare(const char *a, const char *b) {
  if (!a) a = "";
  if (!b) b = "";
  while (*a || *b) {
    size_t a_digits, b_digits;
    const char *a_part = next_part(&a, &a_digits), *b_part = next_part(&b, &b_digits);
    if (a_digits != b_digits) return a_digits < b_digits ? -1 : 1;
    int order = memcmp(a_part, b_part, a_digits);
    if (order) return order < 0 ? -1 : 1;
  }
  return 0;
}

const char *oc_build_part(int index) {
  static const char *const parts[] = {
      "json",        "sodium",
#ifdef _OPENMP
      "openmp",
#endif
#ifdef OPT_CORE_HAS_AVX512_BF16
      "avx512_bf16",
#endif
#ifdef OPT_CORE_HAS_AVX512
      "avx512",
#endif
#ifdef OPT_CORE_HAS_AVX2
      "avx2",
#endif
  };
  int count = (int)(sizeof parts / sizeof parts[0]);
  return index >= 0 && index < count ? parts[index] : "";
}
