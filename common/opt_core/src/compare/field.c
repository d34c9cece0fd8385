/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict of one field, pair by pair. */
#define _POSIX_C_SOURCE 200809L
#include "compare/compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LITERAL_MAX 512 /* longer spellings of a number are compared as text */

oc_status oc__field_open(const oc__compare *compare, const char *name, oc__field *out, oc_err *err) {
  *out = (oc__field){.ulps = -1, .a = NAN, .b = NAN};
  out->name = strdup(name);
  if (!out->name) return OC_FAIL(err, NO_MEM, 0, "name of a field");
  out->rule = oc__rules_find(compare->rules, compare->tolerance, compare->file, name);
  return OC_OK;
}

static void raise_verdict(oc__field *field, oc_verdict verdict) {
  if (verdict > field->verdict) field->verdict = verdict;
}

/* The pair reported is the first one beyond tolerance, or the first unequal one while there is none. */
static int takes_report(oc__field *field, int rank) {
  if (field->has_pair >= rank) return 0;
  field->has_pair = rank;
  return 1;
}

void oc__field_same(oc__field *field, int64_t count) {
  field->of += count;
  field->numbers += count;
}

int oc__field_pair(oc__field *field, double a, double b, double difference, int same_bits) {
  oc__field_same(field, 1);
  if (same_bits) return 0;
  int both_nan = isnan(a) && isnan(b);
  /* a - b says nothing where one side is NaN or infinite: such a pair is either the same or infinitely far apart. */
  if (both_nan)
    difference = 0;
  else if (isnan(a) || isnan(b))
    difference = INFINITY;
  else if (isinf(a) || isinf(b))
    difference = a == b ? 0 : INFINITY; /* NOLINT: equality of infinities is meant */
  if (difference > field->largest) field->largest = difference;
  double allowed = field->rule.tolerance.absolute + field->rule.tolerance.relative * (isfinite(a) ? fabs(a) : 0);
  int within = field->rule.kind == OC__CLASS_TOLERANCE && isfinite(difference) && difference <= allowed;
  raise_verdict(field, within ? OC_VERDICT_WITHIN : OC_VERDICT_DIFFERENT);
  if (!within) field->count++;
  if (!takes_report(field, within ? 1 : 2)) return 0;
  field->a = a;
  field->b = b;
  return 1;
}

static int same_double(double a, double b) {
  uint64_t bits_a, bits_b;
  memcpy(&bits_a, &a, sizeof a);
  memcpy(&bits_b, &b, sizeof b);
  return bits_a == bits_b;
}

int oc__field_number(oc__field *field, double a, double b) {
  return oc__field_pair(field, a, b, fabs(a - b), same_double(a, b));
}

int oc__field_integer(oc__field *field, int64_t a, int64_t b) {
  uint64_t difference = a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
  return oc__field_pair(field, (double)a, (double)b, (double)difference, a == b);
}

int oc__field_text(oc__field *field, int same) {
  field->of++;
  if (same) return 0;
  raise_verdict(field, OC_VERDICT_DIFFERENT);
  field->count++;
  return takes_report(field, 2);
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* An integer of at most 18 digits that is not zero (-0 is a double). */
static int read_integer(oc__slice text, int64_t *out) {
  size_t i = text.bytes && (text.data[0] == '-' || text.data[0] == '+');
  if (i == text.bytes || text.bytes - i > 18) return 0;
  int64_t value = 0;
  for (; i < text.bytes; i++) {
    if (!is_digit(text.data[i])) return 0;
    value = value * 10 + (text.data[i] - '0');
  }
  *out = text.data[0] == '-' ? -value : value;
  return value != 0;
}

/* 0 when the spelling is too long or a finite spelling overflows: then only equal text is equal. */
static int read_double(oc__slice text, double *out) {
  char buffer[LITERAL_MAX + 1];
  if (text.bytes > LITERAL_MAX) return 0;
  memcpy(buffer, text.data, text.bytes);
  buffer[text.bytes] = 0;
  *out = strtod(buffer, NULL); /* the comparison runs in the C locale */
  int has_digit = strpbrk(buffer, "0123456789") != NULL;
  return !(has_digit && isinf(*out));
}

/* Two integers with more digits than a double holds are not equal because their doubles are. */
static int is_long_integer(oc__slice text) {
  for (size_t i = 0; i < text.bytes; i++)
    if (!is_digit(text.data[i]) && text.data[i] != '-' && text.data[i] != '+') return 0;
  return text.bytes > 15;
}

int oc__field_literal(oc__field *field, oc__slice a, oc__slice b) {
  if (oc__slice_equal(a, b)) {
    oc__field_same(field, 1);
    return 0;
  }
  int64_t integer_a, integer_b;
  if (read_integer(a, &integer_a) && read_integer(b, &integer_b)) return oc__field_integer(field, integer_a, integer_b);
  double number_a, number_b;
  if (!read_double(a, &number_a) || !read_double(b, &number_b)) return oc__field_text(field, 0);
  int same = same_double(number_a, number_b) && !(is_long_integer(a) && is_long_integer(b));
  return oc__field_pair(field, number_a, number_b, fabs(number_a - number_b), same);
}

oc_status oc__field_locate(oc__field *field, oc_err *err, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int bytes = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  char *text = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
  va_start(arguments, format);
  if (text) vsnprintf(text, (size_t)bytes + 1, format, arguments);
  va_end(arguments);
  if (!text) return OC_FAIL(err, NO_MEM, 0, "locator in field %s", field->name);
  free(field->where);
  field->where = text;
  return OC_OK;
}

static void tell(const oc__compare *compare, const oc__field *field) {
  if (!compare->sink || field->verdict == OC_VERDICT_EQUAL) return;
  oc_difference difference = {.file = compare->file,
                              .field = field->where ? field->where : field->name,
                              .verdict = field->verdict,
                              .a = field->a,
                              .b = field->b,
                              .largest = field->largest,
                              .count = field->count,
                              .of = field->of,
                              .ulps = field->ulps};
  compare->sink(&difference, compare->context);
}

void oc__field_close(const oc__compare *compare, oc__field *field) {
  oc_compare_result *result = compare->result;
  if (field->name && field->rule.kind != OC__CLASS_IGNORE) {
    result->fields++;
    result->numbers += field->numbers;
    result->differing += field->count;
    if (field->largest > result->largest) result->largest = field->largest;
    if (field->verdict > result->verdict) result->verdict = field->verdict;
    tell(compare, field);
  }
  free(field->name);
  free(field->where);
  *field = (oc__field){0};
}

oc_status oc__field_report(const oc__compare *compare, const char *name, const char *where, oc_verdict verdict,
                           oc_err *err) {
  oc__field field;
  OC_TRY(oc__field_open(compare, name, &field, err));
  field.verdict = verdict;
  oc_status status = where ? oc__field_locate(&field, err, "%s", where) : OC_OK;
  if (status == OC_OK) oc__field_close(compare, &field);
  free(field.name);
  free(field.where);
  return status;
}

oc_status oc__fields_open(oc__fields *fields, oc_err *err) {
  *fields = (oc__fields){.index = json_object()};
  return fields->index ? OC_OK : OC_FAIL(err, NO_MEM, 0, "index of fields");
}

static oc_status grow(oc__fields *fields, oc_err *err) {
  if (fields->count < fields->capacity) return OC_OK;
  size_t capacity = fields->capacity ? fields->capacity * 2 : 16;
  oc__field *items = realloc(fields->items, capacity * sizeof *items);
  if (!items) return OC_FAIL(err, NO_MEM, 0, "%zu fields", capacity);
  fields->items = items;
  fields->capacity = capacity;
  return OC_OK;
}

oc_status oc__fields_find(const oc__compare *compare, oc__fields *fields, const char *name, size_t *index,
                          oc_err *err) {
  const json_t *known = json_object_get(fields->index, name);
  if (known) {
    *index = (size_t)json_integer_value(known);
    return OC_OK;
  }
  OC_TRY(grow(fields, err));
  /* _nocheck: a name may hold bytes that are not UTF-8 */
  if (json_object_set_new_nocheck(fields->index, name, json_integer((json_int_t)fields->count)))
    return OC_FAIL(err, NO_MEM, 0, "index of fields");
  OC_TRY(oc__field_open(compare, name, &fields->items[fields->count], err));
  *index = fields->count++;
  return OC_OK;
}

void oc__fields_close(const oc__compare *compare, oc__fields *fields, int report) {
  for (size_t i = 0; i < fields->count; i++) {
    if (report) {
      oc__field_close(compare, &fields->items[i]);
      continue;
    }
    free(fields->items[i].name);
    free(fields->items[i].where);
  }
  free(fields->items);
  json_decref(fields->index);
  *fields = (oc__fields){0};
}
