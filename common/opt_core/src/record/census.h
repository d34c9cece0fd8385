/* SPDX-License-Identifier: Apache-2.0 */
/* The cell census: counts by token, sorted, as lines. */
#ifndef OC_RECORD_CENSUS_H
#define OC_RECORD_CENSUS_H
#include "opt_core/record.h"
#include "util/text.h"

typedef struct oc__token {
  char *text;
  int64_t count;
  char digits[24];
  int order; /* uncovered, fallback, hit */
} oc__token;

typedef struct oc__census {
  oc__token *token;
  size_t count, capacity;
  int failed, has_uncovered;
} oc__census;

/* Adds count (> 0) calls of one slot; slots with the same token are summed. */
void oc__census_add(oc__census *census, oc_slot_kind kind, const char *family, const char *name, const char *detail,
                    int64_t count);
/* Sorts, so that the same counts give the same text. After it nothing may be added. */
void oc__census_sort(oc__census *census);
/* One CELLS line; what does not fit is counted in MORE=<k>. */
void oc__census_line(const oc__census *census, oc__text *out);
/* As many CELLS lines as it takes. */
void oc__census_lines(const oc__census *census, oc__text *out);
void oc__census_free(oc__census *census);
const char *oc__slot_kind_word(oc_slot_kind kind);
#endif
