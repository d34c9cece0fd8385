/* SPDX-License-Identifier: Apache-2.0 */
#include "util/words.h"

#include <stdio.h>
#include <string.h>

/* ASCII only: tolower() follows the locale. */
static char lower(char c) { return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); }

static int least(int a, int b) { return a < b ? a : b; }

int oc__edit_distance(const char *a, size_t a_bytes, const char *b) {
  size_t b_bytes = strlen(b);
  if (a_bytes > OC__WORD_MAX) a_bytes = OC__WORD_MAX;
  if (b_bytes > OC__WORD_MAX) b_bytes = OC__WORD_MAX;
  int row[OC__WORD_MAX + 1]; /* row[j]: distance between a[0, i) and b[0, j) */
  for (size_t j = 0; j <= b_bytes; j++) row[j] = (int)j;
  for (size_t i = 1; i <= a_bytes; i++) {
    int diagonal = row[0];
    row[0] = (int)i;
    for (size_t j = 1; j <= b_bytes; j++) {
      int replaced = diagonal + (lower(a[i - 1]) != lower(b[j - 1]));
      diagonal = row[j];
      row[j] = least(replaced, least(row[j], row[j - 1]) + 1);
    }
  }
  return row[b_bytes];
}

void oc__nearest_offer(oc__nearest *nearest, const char *typed, size_t typed_bytes, const char *known) {
  int distance = oc__edit_distance(typed, typed_bytes, known);
  if (!nearest->word[0] || distance < nearest->distance[0]) {
    nearest->word[1] = nearest->word[0];
    nearest->distance[1] = nearest->distance[0];
    nearest->word[0] = known;
    nearest->distance[0] = distance;
  } else if (!nearest->word[1] || distance < nearest->distance[1]) {
    nearest->word[1] = known;
    nearest->distance[1] = distance;
  }
}

const char *oc__word_escape(const char *typed, size_t typed_bytes, char out[OC__ESCAPED_MAX]) {
  size_t shown = typed_bytes > 40 ? 40 : typed_bytes;
  char *to = out;
  for (size_t i = 0; i < shown; i++) {
    unsigned char byte = (unsigned char)typed[i];
    if (byte >= 0x21 && byte <= 0x7e) {
      *to++ = (char)byte;
    } else {
      snprintf(to, 5, "\\x%02X", byte);
      to += 4;
    }
  }
  memcpy(to, typed_bytes > shown ? "..." : "", typed_bytes > shown ? 4 : 1);
  return out;
}

static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

size_t oc__word_trim(const char **text, size_t bytes) {
  while (bytes && is_space(**text)) {
    (*text)++;
    bytes--;
  }
  while (bytes && is_space((*text)[bytes - 1])) bytes--;
  return bytes;
}
