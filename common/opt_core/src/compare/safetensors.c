/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: 8 bytes little-endian header length, a JSON header, then the tensors, row-major and little-endian. */
#include "compare/compare.h"

#include <stdlib.h>
#include <string.h>

static const struct {
  const char *word;
  oc__element element;
  size_t raw_bytes;
} dtypes[] = {
    {"F64", OC__ELEMENT_F64, 0},     {"F32", OC__ELEMENT_F32, 0},     {"F16", OC__ELEMENT_F16, 0},
    {"BF16", OC__ELEMENT_BF16, 0},   {"I64", OC__ELEMENT_I64, 0},     {"I32", OC__ELEMENT_I32, 0},
    {"I16", OC__ELEMENT_I16, 0},     {"I8", OC__ELEMENT_I8, 0},       {"U64", OC__ELEMENT_U64, 0},
    {"U32", OC__ELEMENT_U32, 0},     {"U16", OC__ELEMENT_U16, 0},     {"U8", OC__ELEMENT_U8, 0},
    {"BOOL", OC__ELEMENT_BOOL, 0},   {"F8_E4M3", OC__ELEMENT_RAW, 1}, {"F8_E5M2", OC__ELEMENT_RAW, 1},
    {"F8_E8M0", OC__ELEMENT_RAW, 1}, {"C64", OC__ELEMENT_RAW, 8},
};

typedef struct tensors {
  json_t *header;
  oc__slice data;
} tensors;

static oc_status read_dtype(const char *name, const json_t *entry, oc__array *out, oc_err *err) {
  const char *word = json_string_value(json_object_get(entry, "dtype"));
  for (size_t i = 0; word && i < sizeof dtypes / sizeof dtypes[0]; i++) {
    if (strcmp(word, dtypes[i].word) != 0) continue;
    out->element = dtypes[i].element;
    out->element_bytes = dtypes[i].raw_bytes ? dtypes[i].raw_bytes : oc__element_bytes(out->element);
    out->type_text = (oc__slice){word, strlen(word)};
    return OC_OK;
  }
  return OC_FAIL(err, BAD_ARG, 0, "safetensors: %.60s: dtype %.20s", name, word ? word : "none");
}

static oc_status read_shape(const char *name, const json_t *entry, oc__array *out, oc_err *err) {
  const json_t *shape = json_object_get(entry, "shape");
  if (!json_is_array(shape) || json_array_size(shape) > OC__ARRAY_MAX_RANK)
    return OC_FAIL(err, BAD_ARG, 0, "safetensors: %.60s: shape", name);
  out->rank = (int)json_array_size(shape);
  for (int axis = 0; axis < out->rank; axis++) {
    const json_t *size = json_array_get(shape, (size_t)axis);
    if (!json_is_integer(size)) return OC_FAIL(err, BAD_ARG, 0, "safetensors: %.60s: axis %d", name, axis);
    out->shape[axis] = json_integer_value(size);
  }
  return oc__array_count(out, err);
}

static oc_status read_data(const char *name, const json_t *entry, oc__slice data, oc__array *out, oc_err *err) {
  const json_t *offsets = json_object_get(entry, "data_offsets");
  const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
  if (!json_is_integer(from) || !json_is_integer(to) || json_array_size(offsets) != 2)
    return OC_FAIL(err, BAD_ARG, 0, "safetensors: %.60s: data_offsets", name);
  json_int_t low = json_integer_value(from), high = json_integer_value(to);
  if (low < 0 || high < low || (uint64_t)high > data.bytes)
    return OC_FAIL(err, BAD_ARG, 0, "safetensors: %.60s: bytes %lld to %lld of %zu", name, (long long)low,
                   (long long)high, data.bytes);
  if ((size_t)(high - low) != (size_t)out->count * out->element_bytes)
    return OC_FAIL(err, BAD_ARG, 0, "safetensors: %.60s: %lld bytes for %lld elements", name, (long long)(high - low),
                   (long long)out->count);
  out->data = (const unsigned char *)data.data + low;
  return OC_OK;
}

static oc_status read_tensor(const char *name, const json_t *entry, oc__slice data, oc__array *out, oc_err *err) {
  *out = (oc__array){0};
  OC_TRY(read_dtype(name, entry, out, err));
  OC_TRY(read_shape(name, entry, out, err));
  return read_data(name, entry, data, out, err);
}

static int is_metadata(const char *name) { return strcmp(name, "__metadata__") == 0; }

static oc_status check_header(const tensors *t, oc_err *err) {
  const char *name;
  json_t *entry;
  oc__array array;
  if (!json_is_object(t->header)) return OC_FAIL(err, BAD_ARG, 0, "safetensors: header is no object");
  json_object_foreach(t->header, name, entry) {
    if (!is_metadata(name)) OC_TRY(read_tensor(name, entry, t->data, &array, err));
  }
  return OC_OK;
}

static oc_status tensors_open(oc__slice file, tensors *out, oc_err *err) {
  *out = (tensors){0};
  uint64_t length = 0;
  if (file.bytes < 8) return OC_FAIL(err, BAD_ARG, 0, "safetensors: %zu bytes", file.bytes);
  for (int i = 7; i >= 0; i--) length = length << 8 | (unsigned char)file.data[i];
  if (length > file.bytes - 8)
    return OC_FAIL(err, BAD_ARG, 0, "safetensors: header of %llu bytes", (unsigned long long)length);
  json_error_t why;
  out->header = json_loadb(file.data + 8, (size_t)length, JSON_REJECT_DUPLICATES, &why);
  if (!out->header) return OC_FAIL(err, BAD_ARG, 0, "safetensors: header: %.100s", why.text);
  out->data = (oc__slice){file.data + 8 + length, file.bytes - 8 - (size_t)length};
  oc_status status = check_header(out, err);
  if (status != OC_OK) json_decref(out->header);
  return status;
}

static oc_status compare_metadata(const oc__compare *compare, const json_t *a, const json_t *b, oc_err *err) {
  oc__field field;
  OC_TRY(oc__field_open(compare, "__metadata__", &field, err));
  oc__field_text(&field, json_equal(a, b));
  oc__field_close(compare, &field);
  return OC_OK;
}

static oc_status compare_entry(const oc__compare *compare, const char *name, const json_t *entry, const tensors *a,
                               const tensors *b, oc_err *err) {
  const json_t *other = json_object_get(b->header, name);
  if (!other) return oc__field_report(compare, name, NULL, OC_VERDICT_MISSING, err);
  if (is_metadata(name)) return compare_metadata(compare, entry, other, err);
  oc__array left, right;
  OC_TRY(read_tensor(name, entry, a->data, &left, err));
  OC_TRY(read_tensor(name, other, b->data, &right, err));
  return oc__array_compare(compare, name, &left, &right, err);
}

static oc_status compare_tensors(const oc__compare *compare, const tensors *a, const tensors *b, oc_err *err) {
  const char *name;
  json_t *entry;
  json_object_foreach(a->header, name, entry) OC_TRY(compare_entry(compare, name, entry, a, b, err));
  json_object_foreach(b->header, name, entry) {
    if (!json_object_get(a->header, name)) OC_TRY(oc__field_report(compare, name, NULL, OC_VERDICT_EXTRA, err));
  }
  return OC_OK;
}

oc_status oc__safetensors_compare(const oc__compare *compare, oc__slice a, oc__slice b, oc_err *err) {
  tensors left, right;
  OC_TRY(tensors_open(a, &left, err));
  oc_status status = tensors_open(b, &right, err);
  if (status == OC_OK) {
    status = compare_tensors(compare, &left, &right, err);
    json_decref(right.header);
  }
  json_decref(left.header);
  return status;
}
