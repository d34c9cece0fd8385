/* SPDX-License-Identifier: Apache-2.0 */
#include "opt_core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
  const char *word, *help;
} statuses[OC_STATUS_COUNT] = {
#define X(id, text, meaning) [OC_##id] = {text, meaning},
    OC_STATUS_LIST(X)
#undef X
};

static const struct {
  const char *word, *help;
} reasons[OC_REASON_COUNT] = {[OC_REASON_NONE] = {"none", "no refusal"},
#define X(id, text, meaning) [OC_REASON_##id] = {text, meaning},
                              OC_REASON_LIST(X)
#undef X
};

/* An enum from foreign code may hold any value; compared as int64_t so that both signs are caught. */
static int in_list(int64_t value, int count) { return value >= 0 && value < count; }

const char *oc_status_word(oc_status status) {
  return in_list((int64_t)status, OC_STATUS_COUNT) ? statuses[status].word : "unknown";
}

const char *oc_status_help(oc_status status) {
  return in_list((int64_t)status, OC_STATUS_COUNT) ? statuses[status].help : "unknown";
}

const char *oc_reason_word(oc_reason reason) {
  return in_list((int64_t)reason, OC_REASON_COUNT) ? reasons[reason].word : "unknown";
}

const char *oc_reason_help(oc_reason reason) {
  return in_list((int64_t)reason, OC_REASON_COUNT) ? reasons[reason].help : "unknown";
}

oc_reason oc_reason_find(const char *text, size_t bytes) {
  if (!text) return OC_REASON_NONE;
  for (int i = OC_REASON_NONE + 1; i < OC_REASON_COUNT; i++)
    if (strlen(reasons[i].word) == bytes && memcmp(reasons[i].word, text, bytes) == 0) return (oc_reason)i;
  return OC_REASON_NONE;
}

size_t oc_err_text(const oc_err *err, char *out, size_t out_bytes) {
  const char *word = !err                        ? "none"
                     : err->status == OC_REFUSED ? oc_reason_word(err->reason)
                                                 : oc_status_word(err->status);
  const char *detail = err ? err->detail : "";
  int count = snprintf(out, out ? out_bytes : 0, "%s%s%s", word, detail[0] ? ":" : "", detail);
  return count < 0 ? 0 : (size_t)count;
}

/* Cuts an unfinished UTF-8 sequence at the end of text: what is kept of a cut detail stays valid. */
static void trim_sequence(char *text) {
  size_t bytes = strlen(text), back = 0;
  while (back < 3 && back < bytes && ((unsigned char)text[bytes - 1 - back] & 0xC0) == 0x80) back++;
  if (back == bytes) return;
  unsigned char lead = (unsigned char)text[bytes - 1 - back];
  size_t need = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
  if (need > back) text[bytes - 1 - back] = '\0';
}

oc_status oc_err_set(oc_err *err, oc_status status, oc_reason reason, int64_t native, const char *file, int line,
                     const char *format, ...) {
  if (!err || err->status != OC_OK || status == OC_OK) return status;
  err->status = status;
  err->reason = status == OC_REFUSED ? reason : OC_REASON_NONE;
  err->native = native;
  err->file = file;
  err->line = line;
  va_list args;
  va_start(args, format);
  int count = vsnprintf(err->detail, sizeof err->detail, format, args);
  va_end(args);
  if (count < 0) err->detail[0] = '\0';
  if (count >= (int)sizeof err->detail) trim_sequence(err->detail);
  return status;
}
