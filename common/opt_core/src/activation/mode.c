/* SPDX-License-Identifier: Apache-2.0 */
#include "opt_core/activation.h"
#include "util/words.h"

#include <string.h>

static const char *const mode_words[OC_MODE_COUNT] = {"off", "exact", "fast", "big"};

const char *oc_mode_word(oc_mode mode) {
  int64_t index = (int64_t)mode;
  return index >= 0 && index < OC_MODE_COUNT ? mode_words[index] : "unknown";
}

static int is_word(const char *text, size_t bytes, const char *word) {
  return strlen(word) == bytes && memcmp(text, word, bytes) == 0;
}

static oc_status refuse_unknown(const char *word, size_t bytes, oc_err *err) {
  oc__nearest nearest = {0};
  for (int i = 0; i < OC_MODE_COUNT; i++) oc__nearest_offer(&nearest, word, bytes, mode_words[i]);
  char shown[OC__ESCAPED_MAX];
  oc__word_escape(word, bytes, shown);
  /* A hint is given only where most of the word is right: for `1` or `true` it would be a guess. */
  if (nearest.distance[0] <= 2 && (size_t)nearest.distance[0] < bytes)
    return OC_REFUSE(err, MODE, "unknown:%s (accepted: off exact fast big; nearest: %s)", shown, nearest.word[0]);
  return OC_REFUSE(err, MODE, "unknown:%s (accepted: off exact fast big)", shown);
}

oc_status oc_mode_parse(const char *text, oc_mode *out, oc_err *err) {
  if (!out) return OC_FAIL(err, BAD_ARG, 0, "out is NULL");
  size_t bytes = text ? strlen(text) : 0;
  bytes = oc__word_trim(&text, bytes);
  if (bytes == 0 || is_word(text, bytes, "0")) {
    *out = OC_MODE_OFF;
    return OC_OK;
  }
  for (int i = 0; i < OC_MODE_COUNT; i++) {
    if (!is_word(text, bytes, mode_words[i])) continue;
    *out = (oc_mode)i;
    return OC_OK;
  }
  return refuse_unknown(text, bytes, err);
}
