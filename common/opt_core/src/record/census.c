/* SPDX-License-Identifier: Apache-2.0 */
#include "record/census.h"
#include "record/line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *oc__slot_kind_word(oc_slot_kind kind) {
  static const char *const words[OC_SLOT_KIND_COUNT] = {"hit", "fallback", "stock"};
  int64_t index = (int64_t)kind;
  return index >= 0 && index < OC_SLOT_KIND_COUNT ? words[index] : "unknown";
}

/* Stock calls are uncovered cells, unless another word (proof, off_by_user, ...) kept the row from serving: then the
 * name is the row, as for a fallback. */
static char *token_text(oc_slot_kind kind, const char *family, const char *name, const char *detail, int *order) {
  oc__text text = {0};
  if (!family[0]) family = "-";
  if (kind == OC_SLOT_HIT) {
    *order = 2;
    oc__text_format(&text, "CELL_HIT:%s:%s", family, name);
  } else if (kind == OC_SLOT_STOCK && strcmp(detail, oc_reason_word(OC_REASON_UNCOVERED_CELL)) == 0) {
    *order = 0;
    oc__text_format(&text, "UNCOVERED_CELL:%s:%s", family, name);
  } else {
    *order = 1;
    oc__text_format(&text, "NAMED_FALLBACK:%s:%s:%s", family, name, detail);
  }
  return oc__text_take(&text);
}

static int64_t sum(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

static int grow(oc__census *census) {
  if (census->count < census->capacity) return 1;
  size_t capacity = census->capacity ? census->capacity * 2 : 32;
  oc__token *token = realloc(census->token, capacity * sizeof *token);
  if (!token) return 0;
  census->token = token;
  census->capacity = capacity;
  return 1;
}

void oc__census_add(oc__census *census, oc_slot_kind kind, const char *family, const char *name, const char *detail,
                    int64_t count) {
  if (count <= 0) return;
  int order;
  char *text = token_text(kind, family, name, detail, &order);
  if (!text || !grow(census)) {
    free(text);
    census->failed = 1;
    return;
  }
  if (order == 0) census->has_uncovered = 1;
  census->token[census->count++] = (oc__token){.text = text, .count = count, .order = order};
}

static int by_token(const void *a, const void *b) {
  const oc__token *left = a, *right = b;
  if (left->order != right->order) return left->order < right->order ? -1 : 1;
  return strcmp(left->text, right->text);
}

void oc__census_sort(oc__census *census) {
  if (!census->count) return;
  qsort(census->token, census->count, sizeof *census->token, by_token);
  size_t kept = 0;
  for (size_t i = 1; i < census->count; i++) {
    if (by_token(&census->token[kept], &census->token[i]) == 0) {
      census->token[kept].count = sum(census->token[kept].count, census->token[i].count);
      free(census->token[i].text);
    } else {
      census->token[++kept] = census->token[i];
    }
  }
  census->count = kept + 1;
  for (size_t i = 0; i < census->count; i++)
    snprintf(census->token[i].digits, sizeof census->token[i].digits, "%jd", (intmax_t)census->token[i].count);
}

/* Adds tokens from index on until the line is full. Returns the index behind the last added. */
static size_t fill(const oc__census *census, size_t index, oc_line *line) {
  oc__line_start(line, OC_LINE_CELLS);
  /* One field stays free for MORE. */
  while (index < census->count && line->field_count < OC_LINE_FIELDS - 1) {
    oc__line_add(line, census->token[index].text, census->token[index].digits);
    index++;
  }
  return index;
}

void oc__census_line(const oc__census *census, oc__text *out) {
  oc_line line;
  char text[OC_LINE_MAX + 1];
  size_t end = fill(census, 0, &line);
  size_t bytes = oc__line_fit(&line, (int64_t)(census->count - end), text);
  oc__text_add_bytes(out, text, bytes);
}

void oc__census_lines(const oc__census *census, oc__text *out) {
  oc_line line;
  char text[OC_LINE_MAX + 1];
  int64_t too_long = 0; /* tokens that fit no line at all */
  size_t index = 0;
  do {
    size_t end = fill(census, index, &line), bytes = 0;
    while (end > index && oc_line_format(&line, text, sizeof text, &bytes, NULL) != OC_OK) {
      line.field_count--;
      end--;
    }
    if (end == index && index < census->count) {
      too_long++;
      index++;
      continue;
    }
    if (end == index) oc_line_format(&line, text, sizeof text, &bytes, NULL); /* an empty census is a bare CELLS */
    oc__text_add_bytes(out, text, bytes);
    index = end;
  } while (index < census->count);
  if (!too_long) return;
  oc__line_start(&line, OC_LINE_CELLS);
  oc__text_add_bytes(out, text, oc__line_fit(&line, too_long, text));
}

void oc__census_free(oc__census *census) {
  for (size_t i = 0; i < census->count; i++) free(census->token[i].text);
  free(census->token);
  *census = (oc__census){0};
}
