/* SPDX-License-Identifier: Apache-2.0 */
/* The pin gate: is an installed package's version within the range that a kit or a binary was proven on? */
#include "opt_core/activation.h"
#include "opt_core/version.h"
#include "util/words.h"

#include <string.h>

typedef enum relation { EQUAL, NOT_EQUAL, AT_LEAST, AT_MOST, ABOVE, BELOW } relation;

static const struct {
  const char *sign;
  relation kind;
} relations[] = {{"==", EQUAL}, {"!=", NOT_EQUAL}, {">=", AT_LEAST}, {"<=", AT_MOST}, {">", ABOVE}, {"<", BELOW}};

enum { VERSION_MAX = 64 }; /* bytes of a version in a range, terminator included */

static int holds(relation kind, int order) {
  switch (kind) {
  case EQUAL:
    return order == 0;
  case NOT_EQUAL:
    return order != 0;
  case AT_LEAST:
    return order >= 0;
  case AT_MOST:
    return order <= 0;
  case ABOVE:
    return order > 0;
  case BELOW:
    return order < 0;
  }
  return 0;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* Digits joined by single dots, and nothing else: a suffix in a range would be silently ignored by the comparison. */
static int is_version(const char *text, size_t bytes) {
  int after_dot = 1;
  for (size_t i = 0; i < bytes; i++) {
    if (text[i] == '.' ? after_dot : !is_digit(text[i])) return 0;
    after_dot = text[i] == '.';
  }
  return bytes > 0 && bytes < VERSION_MAX && !after_dot;
}

/* Splits one part `>=1.2` of a range. 0 when malformed. */
static int read_part(const char *text, size_t bytes, relation *out, char version[VERSION_MAX]) {
  bytes = oc__word_trim(&text, bytes);
  for (size_t i = 0; i < sizeof relations / sizeof relations[0]; i++) {
    size_t sign = strlen(relations[i].sign);
    if (bytes < sign || memcmp(text, relations[i].sign, sign) != 0) continue;
    text += sign;
    bytes = oc__word_trim(&text, bytes - sign);
    if (!is_version(text, bytes)) return 0;
    memcpy(version, text, bytes);
    version[bytes] = '\0';
    *out = relations[i].kind;
    return 1;
  }
  return 0;
}

oc_status oc_gate_pin(const char *package, const char *have, const char *need, oc_err *err) {
  if (!package || !package[0] || !need) return OC_FAIL(err, BAD_ARG, 0, "package and need must be given");
  /* A version that does not start with a digit ("unknown") cannot be inside any range. */
  int inside = have && is_digit(have[0]);
  for (const char *part = need; part;) {
    size_t bytes = strcspn(part, ",");
    relation kind;
    char version[VERSION_MAX], shown[OC__ESCAPED_MAX];
    if (!read_part(part, bytes, &kind, version))
      return OC_FAIL(err, BAD_ARG, 0, "range of %s: `%s` is not <sign><digits>[.<digits>]", package,
                     oc__word_escape(part, bytes, shown));
    if (inside) inside = holds(kind, oc_version_compare(have, version));
    part = part[bytes] == ',' ? part + bytes + 1 : NULL;
  }
  if (inside) return OC_OK;
  char shown[OC__ESCAPED_MAX];
  return OC_REFUSE(err, PIN, "%s%s!%s", package, have ? oc__word_escape(have, strlen(have), shown) : "none", need);
}
