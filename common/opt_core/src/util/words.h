/* SPDX-License-Identifier: Apache-2.0 */
/* Words that people typed: hints for the nearest known word, and a form that is safe to print. */
#ifndef OC_UTIL_WORDS_H
#define OC_UTIL_WORDS_H
#include <stddef.h>

enum { OC__WORD_MAX = 64, OC__ESCAPED_MAX = 4 * 40 + 4 };

/* Levenshtein distance between a[0, a_bytes) and b, letter case ignored; only the first OC__WORD_MAX bytes count. */
int oc__edit_distance(const char *a, size_t a_bytes, const char *b);

/* The two known words nearest to a word; offer each known word once. Ties go to the word offered first. */
typedef struct oc__nearest {
  const char *word[2]; /* NULL where fewer were offered; borrowed from the caller */
  int distance[2];
} oc__nearest;
void oc__nearest_offer(oc__nearest *nearest, const char *typed, size_t typed_bytes, const char *known);

/* typed with bytes outside 0x21..0x7e as \xHH, cut to 40 bytes (then "..." follows). Returns out. */
const char *oc__word_escape(const char *typed, size_t typed_bytes, char out[OC__ESCAPED_MAX]);

/* Bytes of *text without ASCII white space at both ends; *text moves to the first. */
size_t oc__word_trim(const char **text, size_t bytes);
#endif
