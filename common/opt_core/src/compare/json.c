/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: every number has a path. Indices are left out of the name of a field (`chains.plddt`) and kept in the locator
 * of the pair reported (`chains[2].plddt[17]`), so that a matrix of a million numbers is one field.
 *
 * Python writes NaN, Infinity and -Infinity, which are no JSON. They are read too: each bare word becomes a string that
 * begins with a NUL, which no string of the file can be, because a file that spells a NUL is refused beforehand. */
#define _POSIX_C_SOURCE 200809L
#include "compare/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOT_NAME "$"

/* ---- bare words -------------------------------------------------------------------------------------------------- */

static const struct {
  const char *word, *text;
  double value;
} bare_words[] = {
    {"-Infinity", "\"\\u0000-\"", -INFINITY}, {"Infinity", "\"\\u0000+\"", INFINITY}, {"NaN", "\"\\u0000?\"", NAN}};
#define BARE_COUNT (sizeof bare_words / sizeof bare_words[0])

static int bare_at(const char *p, const char *end) {
  for (size_t i = 0; i < BARE_COUNT; i++) {
    size_t bytes = strlen(bare_words[i].word);
    if ((size_t)(end - p) >= bytes && memcmp(p, bare_words[i].word, bytes) == 0) return (int)i;
  }
  return -1;
}

/* One past a string that starts at the quote p. */
static const char *string_end(const char *p, const char *end) {
  for (p++; p < end && *p != '"'; p++)
    if (*p == '\\' && p + 1 < end) p++;
  return p < end ? p + 1 : end;
}

/* Writes the text with bare words replaced to out (NULL: only counts); returns the bytes. *words: how many there are.
 */
static size_t replace_bare(oc__slice text, char *out, size_t *words) {
  const char *p = text.data, *end = text.data + text.bytes;
  size_t used = 0;
  *words = 0;
  while (p < end) {
    const char *from = p;
    int word = *p == 'N' || *p == 'I' || *p == '-' ? bare_at(p, end) : -1;
    p = *p == '"' ? string_end(p, end) : p + (word < 0 ? 1 : strlen(bare_words[word].word));
    const char *source = word < 0 ? from : bare_words[word].text;
    size_t bytes = word < 0 ? (size_t)(p - from) : strlen(source);
    if (out) memcpy(out + used, source, bytes); /* counted text. NOLINT(bugprone-not-null-terminated-result) */
    used += bytes;
    *words += word >= 0;
  }
  return used;
}

static int spells_nul(oc__slice text) {
  const char *end = text.data + text.bytes;
  for (const char *p = text.data; (p = memchr(p, '\\', (size_t)(end - p))); p++)
    if (end - p >= 6 && memcmp(p, "\\u0000", 6) == 0) return 1;
  return 0;
}

static json_t *load_with_bare(oc__slice text) {
  if (spells_nul(text)) return NULL;
  size_t words, bytes = replace_bare(text, NULL, &words);
  char *copy = words ? malloc(bytes) : NULL;
  if (!copy) return NULL;
  replace_bare(text, copy, &words);
  json_t *root = json_loadb(copy, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
  free(copy);
  return root;
}

static oc_status load(oc__slice text, json_t **out, oc_err *err) {
  json_error_t why;
  *out = json_loadb(text.data, text.bytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
  if (!*out) *out = load_with_bare(text);
  return *out ? OC_OK : OC_FAIL(err, BAD_ARG, 0, "json: line %d column %d: %.100s", why.line, why.column, why.text);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* 1 for a number, bare words included. */
static int as_number(const json_t *value, double *out) {
  if (json_is_number(value)) {
    *out = json_number_value(value);
    return 1;
  }
  if (!json_is_string(value) || json_string_length(value) != 2 || json_string_value(value)[0]) return 0;
  for (size_t i = 0; i < BARE_COUNT; i++) { /* the character after the NUL and before the closing quote */
    const char *text = bare_words[i].text;
    if (text[strlen(text) - 2] != json_string_value(value)[1]) continue;
    *out = bare_words[i].value;
    return 1;
  }
  return 0;
}

static int compare_scalar(oc__field *field, const json_t *a, const json_t *b) {
  double x, y;
  if (json_is_integer(a) && json_is_integer(b))
    return oc__field_integer(field, json_integer_value(a), json_integer_value(b));
  if (as_number(a, &x) && as_number(b, &y)) return oc__field_number(field, x, y);
  return oc__field_text(field, json_equal(a, b));
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

typedef struct path {
  char *text;
  size_t bytes, capacity;
} path;

typedef struct walk {
  const oc__compare *compare;
  oc__fields fields;
  path name, where; /* without and with indices */
} walk;

static oc_status push(path *p, const char *text, oc_err *err) {
  size_t bytes = strlen(text);
  if (p->bytes + bytes + 1 > p->capacity) {
    size_t capacity = (p->bytes + bytes + 1) * 2;
    char *grown = realloc(p->text, capacity);
    if (!grown) return OC_FAIL(err, NO_MEM, 0, "json: path of %zu bytes", capacity);
    p->text = grown;
    p->capacity = capacity;
  }
  memcpy(p->text + p->bytes, text, bytes + 1);
  p->bytes += bytes;
  return OC_OK;
}

static void cut(path *p, size_t bytes) {
  p->bytes = bytes;
  if (p->text) p->text[bytes] = 0;
}

static oc_status push_key(path *p, const char *key, oc_err *err) {
  if (p->bytes) OC_TRY(push(p, ".", err));
  return push(p, key, err);
}

static const char *text_of(const path *p) { return p->bytes ? p->text : ROOT_NAME; }

static oc_status field_here(walk *w, size_t *index, oc_err *err) {
  return oc__fields_find(w->compare, &w->fields, text_of(&w->name), index, err);
}

static oc_status locate_here(walk *w, size_t index, const char *more, oc_err *err) {
  return oc__field_locate(&w->fields.items[index], err, "%s%s", text_of(&w->where), more);
}

static oc_status visit(walk *w, const json_t *a, const json_t *b, oc_err *err);

static int is_container(const json_t *value) { return json_is_object(value) || json_is_array(value); }

static oc_status visit_scalar(walk *w, const json_t *a, const json_t *b, oc_err *err) {
  size_t index;
  OC_TRY(field_here(w, &index, err));
  if (compare_scalar(&w->fields.items[index], a, b)) return locate_here(w, index, "", err);
  return OC_OK;
}

/* A key or item on one side only. */
static oc_status visit_lone(walk *w, oc_verdict verdict, oc_err *err) {
  size_t index;
  OC_TRY(field_here(w, &index, err));
  oc__field *field = &w->fields.items[index];
  if (verdict <= field->verdict) return OC_OK;
  field->verdict = verdict;
  return locate_here(w, index, "", err);
}

static oc_status visit_key(walk *w, const char *key, const json_t *a, const json_t *b, oc_err *err) {
  size_t name = w->name.bytes, where = w->where.bytes;
  OC_TRY(push_key(&w->name, key, err));
  OC_TRY(push_key(&w->where, key, err));
  OC_TRY(!b ? visit_lone(w, OC_VERDICT_MISSING, err) : !a ? visit_lone(w, OC_VERDICT_EXTRA, err) : visit(w, a, b, err));
  cut(&w->name, name);
  cut(&w->where, where);
  return OC_OK;
}

static oc_status visit_object(walk *w, const json_t *a, const json_t *b, oc_err *err) {
  json_t *left = (json_t *)(uintptr_t)a, *right = (json_t *)(uintptr_t)b;
  for (void *at = json_object_iter(left); at; at = json_object_iter_next(left, at))
    OC_TRY(visit_key(w, json_object_iter_key(at), json_object_iter_value(at),
                     json_object_get(b, json_object_iter_key(at)), err));
  for (void *at = json_object_iter(right); at; at = json_object_iter_next(right, at))
    if (!json_object_get(a, json_object_iter_key(at)))
      OC_TRY(visit_key(w, json_object_iter_key(at), NULL, json_object_iter_value(at), err));
  return OC_OK;
}

static oc_status visit_item(walk *w, size_t field, size_t at, const json_t *a, const json_t *b, oc_err *err) {
  char text[32];
  if (!is_container(a) && !is_container(b)) { /* the short way: no path is built for a number that is equal */
    if (!compare_scalar(&w->fields.items[field], a, b)) return OC_OK;
    snprintf(text, sizeof text, "[%zu]", at);
    return locate_here(w, field, text, err);
  }
  size_t where = w->where.bytes;
  snprintf(text, sizeof text, "[%zu]", at);
  OC_TRY(push(&w->where, text, err));
  OC_TRY(visit(w, a, b, err));
  cut(&w->where, where);
  return OC_OK;
}

static oc_status lengths_differ(walk *w, size_t field, size_t a, size_t b, oc_err *err) {
  char text[64];
  if (!oc__field_text(&w->fields.items[field], 0)) return OC_OK;
  snprintf(text, sizeof text, " length %zu, not %zu", b, a);
  return locate_here(w, field, text, err);
}

static oc_status visit_array(walk *w, const json_t *a, const json_t *b, oc_err *err) {
  size_t count_a = json_array_size(a), count_b = json_array_size(b), field;
  OC_TRY(field_here(w, &field, err));
  for (size_t i = 0; i < count_a && i < count_b; i++)
    OC_TRY(visit_item(w, field, i, json_array_get(a, i), json_array_get(b, i), err));
  return count_a == count_b ? OC_OK : lengths_differ(w, field, count_a, count_b, err);
}

static oc_status visit(walk *w, const json_t *a, const json_t *b, oc_err *err) {
  if (json_is_object(a) && json_is_object(b)) return visit_object(w, a, b, err);
  if (json_is_array(a) && json_is_array(b)) return visit_array(w, a, b, err);
  return visit_scalar(w, a, b, err);
}

static oc_status compare_roots(const oc__compare *compare, const json_t *a, const json_t *b, oc_err *err) {
  walk w = {.compare = compare};
  OC_TRY(oc__fields_open(&w.fields, err));
  oc_status status = visit(&w, a, b, err);
  oc__fields_close(compare, &w.fields, status == OC_OK);
  free(w.name.text);
  free(w.where.text);
  return status;
}

oc_status oc__json_compare(const oc__compare *compare, oc__slice a, oc__slice b, oc_err *err) {
  json_t *left, *right;
  OC_TRY(load(a, &left, err));
  oc_status status = load(b, &right, err);
  if (status == OC_OK) {
    status = compare_roots(compare, left, right, err);
    json_decref(right);
  }
  json_decref(left);
  return status;
}
