/* SPDX-License-Identifier: Apache-2.0 */
#include "opt_core/activation.h"

#include <string.h>

/* "sm_<1 to 3 digits>" with an optional 'a'; 0 for any other text. */
static int parse_sm(const char *text, int *sm, int *is_specific) {
  if (strncmp(text, "sm_", 3) != 0) return 0;
  const char *digits = text + 3;
  size_t count = strspn(digits, "0123456789");
  if (count < 1 || count > 3) return 0;
  *sm = 0;
  for (size_t i = 0; i < count; i++) *sm = 10 * *sm + (digits[i] - '0');
  *is_specific = digits[count] == 'a';
  return *sm > 0 && digits[count + (size_t)*is_specific] == '\0';
}

oc_status oc_gate_arch(int have_sm, const char *need, oc_err *err) {
  int sm, is_specific;
  if (!need || !parse_sm(need, &sm, &is_specific))
    return OC_FAIL(err, BAD_ARG, 0, "architecture %.32s is not sm_<number> or sm_<number>a", need ? need : "NULL");
  int runs = is_specific ? have_sm == sm : have_sm / 10 == sm / 10 && have_sm >= sm;
  if (!runs) return OC_REFUSE(err, ARCH, "sm_%d!=%s", have_sm, need);
  return OC_OK;
}
