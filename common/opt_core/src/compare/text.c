/* SPDX-License-Identifier: Apache-2.0 */
/* Text, line by line and token by token. Numbers are compared as numbers, words and punctuation as they stand. How much
 * white space separates two tokens does not matter; whether there is any does, except before a number, where columns
 * are aligned. White space at the end of a line and the kind of line end do not matter. */
#include "compare/compare.h"

#include <string.h>
#include <strings.h>

int oc__slice_equal(oc__slice a, oc__slice b) { return a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0; }

int oc__line_next(oc__slice *rest, oc__slice *line) {
  if (rest->bytes == 0) return 0;
  const char *end = memchr(rest->data, '\n', rest->bytes);
  size_t bytes = end ? (size_t)(end - rest->data) : rest->bytes;
  *line = (oc__slice){rest->data, bytes};
  size_t step = bytes + (end != NULL);
  *rest = (oc__slice){rest->data + step, rest->bytes - step};
  if (line->bytes && line->data[line->bytes - 1] == '\r') line->bytes--;
  return 1;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

static int is_digit(char c) { return c >= '0' && c <= '9'; }

static int is_word(char c) { /* bytes of UTF-8 sequences belong to words */
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static size_t digits(oc__slice t, size_t at) {
  size_t from = at;
  while (at < t.bytes && is_digit(t.data[at])) at++;
  return at - from;
}

/* Length of an exponent at `at`, 0 when there is none. */
static size_t exponent(oc__slice t, size_t at) {
  if (at >= t.bytes || (t.data[at] != 'e' && t.data[at] != 'E')) return 0;
  size_t sign = at + 1 < t.bytes && (t.data[at + 1] == '-' || t.data[at + 1] == '+');
  size_t count = digits(t, at + 1 + sign);
  return count ? 1 + sign + count : 0;
}

static size_t special(oc__slice t, size_t at) {
  static const char *const words[] = {"infinity", "inf", "nan"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    size_t bytes = strlen(words[i]);
    if (t.bytes - at >= bytes && strncasecmp(t.data + at, words[i], bytes) == 0) return bytes;
  }
  return 0;
}

/* Length of the number at the start of t; 0 when there is none or a word goes on behind it ("3abc"). */
static size_t number_length(oc__slice t) {
  size_t at = t.bytes && (t.data[0] == '-' || t.data[0] == '+');
  size_t whole = digits(t, at), part = 0;
  size_t point = at + whole < t.bytes && t.data[at + whole] == '.';
  if (point) part = digits(t, at + whole + 1);
  if (whole + part) {
    at += whole + point + part;
    at += exponent(t, at);
  } else {
    size_t bytes = special(t, at);
    if (!bytes) return 0;
    at += bytes;
  }
  return at < t.bytes && is_word(t.data[at]) ? 0 : at;
}

int oc__is_number(oc__slice text) { return text.bytes && number_length(text) == text.bytes; }

typedef struct token {
  oc__slice text; /* empty at the end of the line */
  int is_number, is_spaced;
} token;

static token take(oc__slice *rest) {
  size_t at = 0;
  while (at < rest->bytes && is_blank(rest->data[at])) at++;
  token t = {.is_spaced = at > 0};
  oc__slice here = {rest->data + at, rest->bytes - at};
  size_t bytes = number_length(here);
  t.is_number = bytes > 0;
  if (!bytes && here.bytes) {
    while (bytes < here.bytes && is_word(here.data[bytes])) bytes++;
    if (!bytes) bytes = 1;
  }
  t.text = (oc__slice){here.data, bytes};
  *rest = (oc__slice){here.data + bytes, here.bytes - bytes};
  return t;
}

/* 1 when this token pair is now the one reported. *same is 0 when the text of the lines parts here. */
static int compare_tokens(oc__field *field, token a, token b, int *same) {
  if (a.is_number && b.is_number) return oc__field_literal(field, a.text, b.text);
  *same = oc__slice_equal(a.text, b.text) && (a.is_spaced == b.is_spaced || a.text.bytes == 0);
  return *same ? 0 : oc__field_text(field, 0);
}

oc_status oc__line_compare(oc__field *field, oc__slice a, oc__slice b, int64_t number, oc_err *err) {
  int same = 1;
  oc__field_text(field, 1); /* a line without numbers was compared too */
  while (same) {
    token left = take(&a), right = take(&b);
    if (compare_tokens(field, left, right, &same))
      OC_TRY(oc__field_locate(field, err, "%s line %lld", field->name, (long long)number));
    if (left.text.bytes == 0 || right.text.bytes == 0) break;
  }
  return OC_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static oc_status lines_differ(oc__field *field, int64_t number, int missing, oc_err *err) {
  if (!oc__field_text(field, 0)) return OC_OK;
  return oc__field_locate(field, err, "%s ends at line %lld, %s", field->name, (long long)number,
                          missing ? "too early" : "not there");
}

static oc_status compare_lines(oc__field *field, oc__slice a, oc__slice b, oc_err *err) {
  for (int64_t number = 1;; number++) {
    oc__slice left, right;
    int has_left = oc__line_next(&a, &left), has_right = oc__line_next(&b, &right);
    if (!has_left && !has_right) return OC_OK;
    if (!has_left || !has_right) return lines_differ(field, number, has_left, err);
    OC_TRY(oc__line_compare(field, left, right, number, err));
  }
}

oc_status oc__text_compare(const oc__compare *compare, oc__slice a, oc__slice b, oc_err *err) {
  oc__field field;
  OC_TRY(oc__field_open(compare, "text", &field, err));
  oc_status status = compare_lines(&field, a, b, err);
  oc__field_close(compare, &field);
  return status;
}

oc_status oc__bytes_compare(const oc__compare *compare, oc__slice a, oc__slice b, oc_err *err) {
  oc__field field;
  OC_TRY(oc__field_open(compare, "bytes", &field, err));
  size_t shorter = a.bytes < b.bytes ? a.bytes : b.bytes, at = 0;
  int same = oc__slice_equal(a, b);
  while (!same && at < shorter && a.data[at] == b.data[at]) at++;
  oc_status status = OC_OK;
  if (oc__field_text(&field, same)) status = oc__field_locate(&field, err, "bytes differ at %zu", at);
  oc__field_close(compare, &field);
  return status;
}
