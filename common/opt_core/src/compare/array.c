/* SPDX-License-Identifier: Apache-2.0 */
/* Two arrays of numbers, element by element, whatever their byte order and axis order. */
#include "compare/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)1 << 16) /* equal blocks are passed over with memcmp */

const char *oc__element_word(oc__element element) {
  static const char *const words[] = {
#define X(id, word, bytes) word,
      OC__ELEMENT_LIST(X)
#undef X
  };
  return words[element];
}

size_t oc__element_bytes(oc__element element) {
  static const size_t bytes_of[] = {
#define X(id, word, bytes) bytes,
      OC__ELEMENT_LIST(X)
#undef X
  };
  return bytes_of[element];
}

oc_status oc__array_count(oc__array *array, oc_err *err) {
  uint64_t count = 1, limit = INT64_MAX / (array->element_bytes ? array->element_bytes : 1);
  for (int axis = 0; axis < array->rank; axis++) {
    int64_t size = array->shape[axis];
    if (size < 0) return OC_FAIL(err, BAD_ARG, 0, "axis %d has size %lld", axis, (long long)size);
    if (size && count > limit / (uint64_t)size)
      return OC_FAIL(err, BAD_ARG, 0, "axis %d: more than %llu elements", axis, (unsigned long long)limit);
    count *= (uint64_t)size;
  }
  array->count = (int64_t)count;
  return OC_OK;
}

/* ---- one number -------------------------------------------------------------------------------------------------- */

static uint64_t load_bits(const oc__array *array, int64_t at) {
  const unsigned char *p = array->data + (size_t)at * array->element_bytes;
  uint64_t bits = 0;
  for (size_t i = 0; i < array->element_bytes; i++) {
    size_t byte = array->big_endian ? i : array->element_bytes - 1 - i;
    bits = bits << 8 | p[byte];
  }
  return bits;
}

static double from_f16(uint64_t bits) {
  int exponent = (int)(bits >> 10 & 31);
  double mantissa = (double)(bits & 1023);
  double value = exponent == 31 ? (bits & 1023 ? NAN : INFINITY)
                 : exponent     ? ldexp(mantissa + 1024, exponent - 25)
                                : ldexp(mantissa, -24);
  return bits >> 15 ? -value : value;
}

static double from_f32(uint64_t bits) {
  uint32_t pattern = (uint32_t)bits;
  float value;
  memcpy(&value, &pattern, sizeof value);
  return (double)value;
}

static double from_f64(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static int is_signed_integer(oc__element e) { return e >= OC__ELEMENT_I64 && e <= OC__ELEMENT_I8; }

static int is_integer(oc__element e) { return e >= OC__ELEMENT_I64 && e <= OC__ELEMENT_BOOL; }

static int64_t sign_extend(uint64_t bits, size_t bytes) {
  uint64_t sign = (uint64_t)1 << (bytes * 8 - 1);
  return (int64_t)((bits ^ sign) - sign);
}

static double to_double(oc__element element, uint64_t bits, size_t bytes) {
  if (is_signed_integer(element)) return (double)sign_extend(bits, bytes);
  switch (element) {
  case OC__ELEMENT_F64:
    return from_f64(bits);
  case OC__ELEMENT_F32:
    return from_f32(bits);
  case OC__ELEMENT_F16:
    return from_f16(bits);
  case OC__ELEMENT_BF16:
    return from_f32(bits << 16);
  default:
    return (double)bits;
  }
}

/* |a-b| of two integers of one type, rounded once: their doubles may be equal where they are not. */
static double integer_difference(oc__element element, uint64_t a, uint64_t b, size_t bytes) {
  if (!is_signed_integer(element)) return (double)(a > b ? a - b : b - a);
  int64_t x = sign_extend(a, bytes), y = sign_extend(b, bytes);
  return (double)(x > y ? (uint64_t)x - (uint64_t)y : (uint64_t)y - (uint64_t)x);
}

/* Steps between two float32 numbers; -1 when one is NaN. Patterns are mapped so that order of integers is order of
 * numbers. */
static int64_t ulps_between(uint64_t a, uint64_t b) {
  if (isnan(from_f32(a)) || isnan(from_f32(b))) return -1;
  int64_t x = a >> 31 ? -(int64_t)(a & 0x7fffffff) : (int64_t)a;
  int64_t y = b >> 31 ? -(int64_t)(b & 0x7fffffff) : (int64_t)b;
  return x > y ? x - y : y - x;
}

/* ---- where ------------------------------------------------------------------------------------------------------- */

/* Coordinates of element `at` of an array walked in row-major order, or column-major when `fortran`. */
static void coordinates(const oc__array *array, int64_t at, int fortran, int64_t *index) {
  for (int step = 0; step < array->rank; step++) {
    int axis = fortran ? step : array->rank - 1 - step;
    index[axis] = at % array->shape[axis];
    at /= array->shape[axis];
  }
}

/* Position in memory of coordinates. */
static int64_t position(const oc__array *array, const int64_t *index) {
  int64_t at = 0;
  for (int step = 0; step < array->rank; step++) {
    int axis = array->fortran ? array->rank - 1 - step : step;
    at = at * array->shape[axis] + index[axis];
  }
  return at;
}

static oc_status locate(oc__field *field, const oc__array *array, int64_t at, int fortran, oc_err *err) {
  int64_t index[OC__ARRAY_MAX_RANK];
  char text[OC__ARRAY_MAX_RANK * 21 + 1];
  size_t used = 0;
  coordinates(array, at, fortran, index);
  text[0] = 0;
  for (int axis = 0; axis < array->rank; axis++)
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", axis ? "," : "", (long long)index[axis]);
  if (array->rank == 0) return OC_OK;
  return oc__field_locate(field, err, "%s[%s]", field->name, text);
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

typedef struct walk {
  oc__field *field;
  const oc__array *a, *b;
  int fortran; /* walk in column-major order: both arrays lie so */
} walk;

static oc_status one_number(const walk *w, int64_t at, int64_t at_a, int64_t at_b, oc_err *err) {
  const oc__array *a = w->a, *b = w->b;
  uint64_t bits_a = load_bits(a, at_a), bits_b = load_bits(b, at_b);
  double x = to_double(a->element, bits_a, a->element_bytes), y = to_double(b->element, bits_b, b->element_bytes);
  int same_type = a->element == b->element;
  double difference = same_type && is_integer(a->element)
                          ? integer_difference(a->element, bits_a, bits_b, a->element_bytes)
                          : fabs(x - y);
  if (!oc__field_pair(w->field, x, y, difference, same_type && bits_a == bits_b)) return OC_OK;
  w->field->ulps = same_type && a->element == OC__ELEMENT_F32 ? ulps_between(bits_a, bits_b) : -1;
  return locate(w->field, a, at, w->fortran, err);
}

static oc_status one_raw(const walk *w, int64_t at, int64_t at_a, int64_t at_b, oc_err *err) {
  size_t bytes = w->a->element_bytes;
  int same = memcmp(w->a->data + (size_t)at_a * bytes, w->b->data + (size_t)at_b * bytes, bytes) == 0;
  return oc__field_text(w->field, same) ? locate(w->field, w->a, at, w->fortran, err) : OC_OK;
}

static oc_status one(const walk *w, int64_t at, int64_t at_a, int64_t at_b, oc_err *err) {
  return w->a->element == OC__ELEMENT_RAW ? one_raw(w, at, at_a, at_b, err) : one_number(w, at, at_a, at_b, err);
}

/* Same type, byte order and axis order: memory is compared block by block, and only unequal blocks are looked into. */
static oc_status walk_blocks(const walk *w, oc_err *err) {
  size_t bytes = w->a->element_bytes;
  int64_t step = (int64_t)(bytes < BLOCK_BYTES ? BLOCK_BYTES / bytes : 1);
  for (int64_t from = 0; from < w->a->count; from += step) {
    int64_t to = w->a->count - from < step ? w->a->count : from + step;
    if (memcmp(w->a->data + (size_t)from * bytes, w->b->data + (size_t)from * bytes, (size_t)(to - from) * bytes) ==
        0) {
      if (w->a->element == OC__ELEMENT_RAW)
        w->field->of += to - from;
      else
        oc__field_same(w->field, to - from);
      continue;
    }
    for (int64_t at = from; at < to; at++) OC_TRY(one(w, at, at, at, err));
  }
  return OC_OK;
}

static oc_status walk_elements(const walk *w, oc_err *err) {
  int64_t index[OC__ARRAY_MAX_RANK];
  for (int64_t at = 0; at < w->a->count; at++) {
    coordinates(w->a, at, w->fortran, index);
    OC_TRY(one(w, at, position(w->a, index), position(w->b, index), err));
  }
  return OC_OK;
}

static int same_shape(const oc__array *a, const oc__array *b) {
  return a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof a->shape[0]) == 0;
}

static void shape_text(const oc__array *array, char *out, size_t out_bytes) {
  size_t used = (size_t)snprintf(out, out_bytes, "(");
  for (int axis = 0; axis < array->rank && used + 24 < out_bytes; axis++)
    used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld", axis ? "," : "", (long long)array->shape[axis]);
  snprintf(out + used, out_bytes - used, ")");
}

static oc_status shapes_differ(oc__field *field, const oc__array *a, const oc__array *b, oc_err *err) {
  char left[128], right[128];
  shape_text(a, left, sizeof left);
  shape_text(b, right, sizeof right);
  if (!oc__field_text(field, 0)) return OC_OK;
  return oc__field_locate(field, err, "%s shape %s, not %s", field->name, right, left);
}

static oc_status types_differ(oc__field *field, const oc__array *a, const oc__array *b, oc_err *err) {
  if (!oc__field_text(field, 0)) return OC_OK;
  return oc__field_locate(field, err, "%s type %.*s, not %.*s", field->name, (int)(b->type_text.bytes & 63),
                          b->type_text.data, (int)(a->type_text.bytes & 63), a->type_text.data);
}

static oc_status compare_values(oc__field *field, const oc__array *a, const oc__array *b, oc_err *err) {
  int raw = a->element == OC__ELEMENT_RAW || b->element == OC__ELEMENT_RAW;
  int same_type = a->element == b->element &&
                  (!raw || (oc__slice_equal(a->type_text, b->type_text) && a->element_bytes == b->element_bytes));
  if (!same_type && (raw || field->rule.kind == OC__CLASS_EXACT)) return types_differ(field, a, b, err);
  walk w = {.field = field, .a = a, .b = b, .fortran = a->fortran && b->fortran};
  int same_layout = same_type && a->big_endian == b->big_endian && (a->fortran == b->fortran || a->rank < 2);
  return same_layout ? walk_blocks(&w, err) : walk_elements(&w, err);
}

oc_status oc__array_compare(const oc__compare *compare, const char *name, const oc__array *a, const oc__array *b,
                            oc_err *err) {
  oc__field field;
  OC_TRY(oc__field_open(compare, name, &field, err));
  oc_status status = OC_OK;
  if (field.rule.kind != OC__CLASS_IGNORE)
    status = same_shape(a, b) ? compare_values(&field, a, b, err) : shapes_differ(&field, a, b, err);
  oc__field_close(compare, &field);
  return status;
}
