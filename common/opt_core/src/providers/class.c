/* SPDX-License-Identifier: Apache-2.0 */
#include "providers/cells.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const tier_words[OC_TIER_COUNT] = {"exact", "fast", "big"};

const char *oc_tier_word(oc_tier tier) { return (int)tier >= 0 && tier < OC_TIER_COUNT ? tier_words[tier] : "unknown"; }

oc_status oc_tier_find(const char *word, oc_tier *out, oc_err *err) {
  for (int i = 0; word && i < OC_TIER_COUNT; i++) {
    if (strcmp(word, tier_words[i]) != 0) continue;
    *out = (oc_tier)i;
    return OC_OK;
  }
  return OC_FAIL(err, BAD_ARG, 0, "tier %.32s is not one of exact, fast, big", word ? word : "NULL");
}

/* ---- forms ------------------------------------------------------------------------------------------------------ */

static int is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Order of two words that end at '+' or at the end of the text. */
static int compare_words(const char *a, const char *b) {
  while (is_word_character(*a) && *a == *b) a++, b++;
  int left = is_word_character(*a) ? *a : 0, right = is_word_character(*b) ? *b : 0;
  return left - right;
}

/* Splits at '+'; -1 for an empty word, a foreign character or more than FORM_WORDS words. */
static int split_words(const char *text, const char *words[OC__FORM_WORDS]) {
  int count = 0;
  for (const char *at = text;; at++) {
    if (count == OC__FORM_WORDS || !is_word_character(*at)) return -1;
    words[count++] = at;
    while (is_word_character(*at)) at++;
    if (*at == '\0') return count;
    if (*at != '+') return -1;
  }
}

int oc__form_sort(const char *text, char out[OC__FORM_BYTES]) {
  const char *words[OC__FORM_WORDS];
  *out = '\0';
  if (*text == '\0') return 1;
  if (strlen(text) >= OC__FORM_BYTES) return 0;
  int count = split_words(text, words);
  if (count < 0) return 0;
  for (int i = 1; i < count; i++) {
    const char *word = words[i];
    int at = i;
    for (; at > 0 && compare_words(words[at - 1], word) > 0; at--) words[at] = words[at - 1];
    words[at] = word;
  }
  for (int i = 0; i < count; i++) {
    if (i > 0 && compare_words(words[i - 1], words[i]) == 0) return 0; /* a set holds a word once */
    for (const char *c = words[i]; is_word_character(*c); c++) *out++ = *c;
    *out++ = i + 1 < count ? '+' : '\0'; /* as many bytes as text had */
  }
  return 1;
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

typedef struct writer {
  char *out;
  size_t capacity, length; /* length is that of the uncut text */
} writer;

/* Spaces and ':' would end a token of the run record; no class made by a family has them. */
static void put(writer *w, const char *text, size_t limit) {
  for (size_t i = 0; i < limit && text[i]; i++, w->length++) {
    char c = text[i] > ' ' && text[i] < 0x7f && text[i] != ':' ? text[i] : '_';
    if (w->length + 1 < w->capacity) w->out[w->length] = c;
  }
}

static void put_dim(writer *w, const char *letter, oc_dim dim, int64_t value) {
  char text[40];
  uint64_t bucket = 1;
  while (dim == OC_DIM_N && value > 0 && bucket < (uint64_t)value) bucket *= 2;
  if (dim == OC_DIM_N && value > 0)
    snprintf(text, sizeof text, ".%s<=%" PRIu64, letter, bucket);
  else
    snprintf(text, sizeof text, ".%s=%" PRId64, letter, value);
  put(w, text, sizeof text);
}

size_t oc_class_text(const oc_class *cls, char *out, size_t out_bytes) {
  static const char *const letters[OC_DIM_COUNT] = {
#define X(id, letter) letter,
      OC_DIM_LIST(X)
#undef X
  };
  writer w = {out, out_bytes, 0};
  put(&w, oc_family_word(cls->family), SIZE_MAX);
  put(&w, ".", 1);
  put(&w, oc_tier_word(cls->tier), SIZE_MAX);
  put(&w, ".", 1);
  put(&w, cls->device, sizeof cls->device);
  put(&w, ".", 1);
  put(&w, oc_dtype_word(cls->dtype), SIZE_MAX);
  put(&w, ".", 1);
  if (cls->form[0])
    put(&w, cls->form, sizeof cls->form);
  else
    put(&w, "-", 1);
  for (int i = 0; i < OC_DIM_COUNT; i++)
    if (cls->dim[i] != 0) put_dim(&w, letters[i], (oc_dim)i, cls->dim[i]);
  if (out_bytes > 0) out[w.length < out_bytes ? w.length : out_bytes - 1] = '\0';
  return w.length;
}
