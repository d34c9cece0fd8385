/* SPDX-License-Identifier: Apache-2.0 */
/* NPY, versions 1 to 3: magic, version, header length, a Python dict literal, then the elements. */
#include "compare/compare.h"

#include <string.h>

typedef struct cursor {
  const char *at, *end;
} cursor;

typedef struct header {
  oc__slice descr; /* text inside the quotes, or a bracketed list for records */
  int is_list, fortran;
  int rank, seen; /* seen: bit for each key */
  int64_t shape[OC__ARRAY_MAX_RANK];
} header;

enum { SEEN_DESCR = 1, SEEN_ORDER = 2, SEEN_SHAPE = 4, SEEN_ALL = 7 };

static void skip_blanks(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) c->at++;
}

static int take(cursor *c, char wanted) {
  skip_blanks(c);
  if (c->at == c->end || *c->at != wanted) return 0;
  c->at++;
  return 1;
}

static int take_word(cursor *c, const char *word) {
  size_t bytes = strlen(word);
  skip_blanks(c);
  if ((size_t)(c->end - c->at) < bytes || memcmp(c->at, word, bytes) != 0) return 0;
  c->at += bytes;
  return 1;
}

static int take_string(cursor *c, oc__slice *out) {
  skip_blanks(c);
  if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return 0;
  char quote = *c->at++;
  const char *close = memchr(c->at, quote, (size_t)(c->end - c->at));
  if (!close) return 0;
  *out = (oc__slice){c->at, (size_t)(close - c->at)};
  c->at = close + 1;
  return 1;
}

/* A record type is a list: its text is kept whole, brackets balanced, quotes respected. */
static int take_list(cursor *c, oc__slice *out) {
  const char *from = c->at;
  int depth = 0;
  char quote = 0;
  for (; c->at < c->end; c->at++) {
    char ch = *c->at;
    if (quote) {
      if (ch == quote) quote = 0;
      continue;
    }
    if (ch == '\'' || ch == '"') quote = ch;
    if (ch == '[' || ch == '(') depth++;
    if ((ch == ']' || ch == ')') && --depth == 0) {
      c->at++;
      *out = (oc__slice){from, (size_t)(c->at - from)};
      return 1;
    }
  }
  return 0;
}

static int take_size(cursor *c, int64_t *out) {
  skip_blanks(c);
  const char *from = c->at;
  int64_t value = 0;
  while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
    if (c->at - from == 18) return 0; /* 10^18 elements are no array */
    value = value * 10 + (*c->at++ - '0');
  }
  if (c->at == from) return 0;
  if (c->at < c->end && *c->at == 'L') c->at++;
  *out = value;
  return 1;
}

static int take_shape(cursor *c, header *h) {
  if (!take(c, '(')) return 0;
  while (!take(c, ')')) {
    if (h->rank == OC__ARRAY_MAX_RANK || !take_size(c, &h->shape[h->rank])) return 0;
    h->rank++;
    if (!take(c, ',')) return take(c, ')');
  }
  return 1;
}

static int take_descr(cursor *c, header *h) {
  skip_blanks(c);
  h->is_list = c->at < c->end && *c->at == '[';
  return h->is_list ? take_list(c, &h->descr) : take_string(c, &h->descr);
}

static int take_order(cursor *c, header *h) {
  h->fortran = take_word(c, "True");
  return h->fortran || take_word(c, "False");
}

static int key_is(oc__slice key, const char *word) {
  return key.bytes == strlen(word) && memcmp(key.data, word, key.bytes) == 0;
}

static int take_entry(cursor *c, header *h) {
  oc__slice key;
  if (!take_string(c, &key) || !take(c, ':')) return 0;
  int bit = key_is(key, "descr")           ? SEEN_DESCR
            : key_is(key, "fortran_order") ? SEEN_ORDER
            : key_is(key, "shape")         ? SEEN_SHAPE
                                           : 0;
  if (!bit || (h->seen & bit)) return 0;
  h->seen |= bit;
  return bit == SEEN_DESCR ? take_descr(c, h) : bit == SEEN_ORDER ? take_order(c, h) : take_shape(c, h);
}

static int read_header(oc__slice text, header *h) {
  cursor c = {text.data, text.data + text.bytes};
  if (!take(&c, '{')) return 0;
  while (!take(&c, '}')) {
    if (!take_entry(&c, h)) return 0;
    if (!take(&c, ',')) {
      if (!take(&c, '}')) return 0;
      break;
    }
  }
  skip_blanks(&c);
  return c.at == c.end && h->seen == SEEN_ALL;
}

/* "<f4" and its like. Complex numbers are pairs of floats along one more axis, the fastest. */
static oc__element element_of(oc__slice descr, int *parts) {
  static const struct {
    const char *text;
    oc__element element;
    int parts;
  } known[] = {
      {"f8", OC__ELEMENT_F64, 1}, {"f4", OC__ELEMENT_F32, 1},  {"f2", OC__ELEMENT_F16, 1}, {"i8", OC__ELEMENT_I64, 1},
      {"i4", OC__ELEMENT_I32, 1}, {"i2", OC__ELEMENT_I16, 1},  {"i1", OC__ELEMENT_I8, 1},  {"u8", OC__ELEMENT_U64, 1},
      {"u4", OC__ELEMENT_U32, 1}, {"u2", OC__ELEMENT_U16, 1},  {"u1", OC__ELEMENT_U8, 1},  {"b1", OC__ELEMENT_BOOL, 1},
      {"c8", OC__ELEMENT_F32, 2}, {"c16", OC__ELEMENT_F64, 2},
  };
  *parts = 1;
  if (descr.bytes < 2) return OC__ELEMENT_RAW;
  oc__slice word = {descr.data + 1, descr.bytes - 1};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (key_is(word, known[i].text)) {
      *parts = known[i].parts;
      return known[i].element;
    }
  return OC__ELEMENT_RAW;
}

static void add_parts_axis(oc__array *array, int parts) {
  /* In column-major order the fastest axis is the first one. */
  if (array->fortran) memmove(array->shape + 1, array->shape, (size_t)array->rank * sizeof array->shape[0]);
  array->shape[array->fortran ? 0 : array->rank] = parts;
  array->rank++;
}

/* Items of a type without numbers: as long as the payload says, or a run of bytes when it does not divide (objects). */
static oc_status raw_items(oc__array *out, size_t payload, oc_err *err) {
  out->element_bytes = 1;
  OC_TRY(oc__array_count(out, err));
  uint64_t count = (uint64_t)out->count;
  if (count && payload >= count && payload % count == 0) {
    out->element_bytes = payload / count;
    return OC_OK;
  }
  out->rank = 1;
  out->shape[0] = out->count = (int64_t)payload;
  return OC_OK;
}

static oc_status fill(const header *h, oc__slice payload, oc__array *out, oc_err *err) {
  int parts = 1;
  *out = (oc__array){
      .data = (const unsigned char *)payload.data, .type_text = h->descr, .fortran = h->fortran, .rank = h->rank};
  out->element = h->is_list ? OC__ELEMENT_RAW : element_of(h->descr, &parts);
  out->big_endian = h->descr.bytes && h->descr.data[0] == '>';
  memcpy(out->shape, h->shape, sizeof out->shape);
  if (out->element == OC__ELEMENT_RAW) return raw_items(out, payload.bytes, err);
  out->element_bytes = oc__element_bytes(out->element);
  if (parts > 1 && out->rank == OC__ARRAY_MAX_RANK) return OC_FAIL(err, BAD_ARG, 0, "npy: rank %d", out->rank);
  if (parts > 1) add_parts_axis(out, parts);
  OC_TRY(oc__array_count(out, err));
  size_t wanted = (size_t)out->count * out->element_bytes;
  if (wanted != payload.bytes)
    return OC_FAIL(err, BAD_ARG, 0, "npy: %zu bytes of data, shape wants %zu", payload.bytes, wanted);
  return OC_OK;
}

oc_status oc__npy_parse(oc__slice bytes, oc__array *out, oc_err *err) {
  const unsigned char *p = (const unsigned char *)bytes.data;
  if (bytes.bytes < 10 || memcmp(p, "\x93NUMPY", 6) != 0) return OC_FAIL(err, BAD_ARG, 0, "npy: no magic");
  if (p[6] < 1 || p[6] > 3 || p[7] != 0)
    return OC_FAIL(err, BAD_ARG, 0, "npy: version %d.%d, known 1.0 to 3.0", p[6], p[7]);
  size_t width = p[6] == 1 ? 2 : 4, length = 0;
  if (bytes.bytes < 8 + width) return OC_FAIL(err, BAD_ARG, 0, "npy: cut in the header length");
  for (size_t i = width; i-- > 0;) length = length << 8 | p[8 + i];
  size_t from = 8 + width;
  if (length > bytes.bytes - from)
    return OC_FAIL(err, BAD_ARG, 0, "npy: header of %zu bytes in a file of %zu", length, bytes.bytes);
  header h = {0};
  if (!read_header((oc__slice){bytes.data + from, length}, &h))
    return OC_FAIL(err, BAD_ARG, 0, "npy: malformed header");
  from += length;
  return fill(&h, (oc__slice){bytes.data + from, bytes.bytes - from}, out, err);
}

oc_status oc__npy_compare(const oc__compare *compare, oc__slice a, oc__slice b, oc_err *err) {
  oc__array left, right;
  OC_TRY(oc__npy_parse(a, &left, err));
  OC_TRY(oc__npy_parse(b, &right, err));
  return oc__array_compare(compare, "array", &left, &right, err);
}
