/* SPDX-License-Identifier: Apache-2.0 */
#include "opt_core/activation.h"
#include "util/words.h"

#include <string.h>

static const struct variable {
  const char *name, *accepted;
} variables[] = {
#define X(name, accepted, help) {#name, accepted},
    OC_ENVIRONMENT_LIST(X)
#undef X
};
enum { VARIABLE_COUNT = sizeof variables / sizeof variables[0] };

static const char prefix[] = "OPT_CORE_";

static int all_digits(const char *value) {
  size_t digits = strspn(value, "0123456789");
  return digits > 0 && digits <= 9 && value[digits] == '\0';
}

/* accepted is `word|word`, "<n>" or "*". */
static int value_accepted(const char *accepted, const char *value) {
  if (value[0] == '\0' || strcmp(accepted, "*") == 0) return 1;
  if (strcmp(accepted, "<n>") == 0) return all_digits(value);
  size_t bytes = strlen(value);
  for (const char *word = accepted; word; word = strchr(word, '|')) {
    if (*word == '|') word++;
    if (strcspn(word, "|") == bytes && memcmp(word, value, bytes) == 0) return 1;
  }
  return 0;
}

static oc_status refuse_unknown(const char *name, size_t bytes, oc_err *err) {
  oc__nearest nearest = {0};
  for (int i = 0; i < VARIABLE_COUNT; i++) oc__nearest_offer(&nearest, name, bytes, variables[i].name);
  char shown[OC__ESCAPED_MAX];
  return OC_REFUSE(err, ENVIRONMENT, "%s is unknown (nearest: %s)", oc__word_escape(name, bytes, shown),
                   nearest.word[0]);
}

static oc_status check(const char *entry, oc_err *err) {
  size_t bytes = strcspn(entry, "=");
  for (int i = 0; i < VARIABLE_COUNT; i++) {
    if (strlen(variables[i].name) != bytes || memcmp(variables[i].name, entry, bytes) != 0) continue;
    const char *value = entry[bytes] ? entry + bytes + 1 : "";
    if (value_accepted(variables[i].accepted, value)) return OC_OK;
    char shown[OC__ESCAPED_MAX];
    return OC_REFUSE(err, ENVIRONMENT, "%s=%s (accepted: %s)", variables[i].name,
                     oc__word_escape(value, strlen(value), shown), variables[i].accepted);
  }
  return refuse_unknown(entry, bytes, err);
}

oc_status oc_environment_check(char *const *environment, oc_err *err) {
  for (size_t i = 0; environment && environment[i]; i++)
    if (strncmp(environment[i], prefix, sizeof prefix - 1) == 0) OC_TRY(check(environment[i], err));
  return OC_OK;
}
