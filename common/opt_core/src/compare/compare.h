/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of `compare`: one pair of files is read by one format reader, which feeds fields; a field keeps its verdict.
 */
#ifndef OC_SRC_COMPARE_COMPARE_H
#define OC_SRC_COMPARE_COMPARE_H

#include <jansson.h>

#include "opt_core/compare.h"

/* ---- bytes of a file ------------------------------------------------------------------------------------------- */

typedef struct oc__slice {
  const char *data; /* never NULL; not terminated */
  size_t bytes;
} oc__slice;

/* Maps a regular file for reading; pages come in as they are touched, so that large files cost no memory of ours. */
oc_status oc__map_open(const char *path, oc__slice *out, oc_err *err);
void oc__map_close(oc__slice *slice);

/* ---- rules ------------------------------------------------------------------------------------------------------ */

typedef enum oc__class { OC__CLASS_EXACT, OC__CLASS_TOLERANCE, OC__CLASS_IGNORE } oc__class;

typedef struct oc__rule {
  oc__class kind;
  oc_tolerance tolerance;
} oc__rule;

/* BAD_ARG names the entry at fault. NULL text gives *rules NULL. */
oc_status oc__rules_parse(const char *text, json_t **rules, oc_err *err);
/* The first field glob that matches under the first file glob that has one; the default otherwise. */
oc__rule oc__rules_find(const json_t *rules, oc_tolerance otherwise, const char *file, const char *field);

/* ---- a comparison and its fields -------------------------------------------------------------------------------- */

typedef struct oc__compare {
  json_t *rules;
  oc_tolerance tolerance;
  oc_difference_sink *sink;
  void *context;
  oc_compare_result *result;
  const char *file; /* the pair in hand, for rules and reports */
} oc__compare;

/* A file that a rule leaves out as a whole: it is not even missed, and its age does not matter. */
int oc__rules_ignore(const oc__compare *compare, const char *file);

typedef struct oc__field {
  char *name;  /* what rules match */
  char *where; /* locator of the pair reported; NULL: the name */
  oc__rule rule;
  oc_verdict verdict;
  int has_pair; /* 0: nothing reported yet, 1: a pair within tolerance, 2: a pair beyond it */
  double a, b, largest;
  int64_t count, of, numbers, ulps;
} oc__field;

oc_status oc__field_open(const oc__compare *compare, const char *name, oc__field *out, oc_err *err);
/* Counts a pair of numbers. same_bits: the patterns are equal (NaN included). difference: |a-b| where a and b are
 * finite. Returns 1 when this pair is now the one reported: the caller then sets the locator. */
int oc__field_pair(oc__field *field, double a, double b, double difference, int same_bits);
int oc__field_number(oc__field *field, double a, double b);
int oc__field_integer(oc__field *field, int64_t a, int64_t b);
/* Counts `count` pairs that are known to have equal bits. */
void oc__field_same(oc__field *field, int64_t count);
/* Counts something that is not a number: equal text, an equal shape, ... Returns as oc__field_pair does. */
int oc__field_text(oc__field *field, int same);
/* Two spellings of a number. Equal when the parsed doubles have equal bits; integers are compared as integers. */
int oc__field_literal(oc__field *field, oc__slice a, oc__slice b);
oc_status oc__field_locate(oc__field *field, oc_err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds the field to the result, tells the sink when it is not equal, and frees it. */
void oc__field_close(const oc__compare *compare, oc__field *field);
/* A field that has a verdict and no numbers: a file or key that is missing, extra, unfinished, or differs as bytes. */
oc_status oc__field_report(const oc__compare *compare, const char *name, const char *where, oc_verdict verdict,
                           oc_err *err);

/* Fields in order of appearance, found by name. */
typedef struct oc__fields {
  json_t *index;
  oc__field *items;
  size_t count, capacity;
} oc__fields;

oc_status oc__fields_open(oc__fields *fields, oc_err *err);
oc_status oc__fields_find(const oc__compare *compare, oc__fields *fields, const char *name, size_t *index, oc_err *err);
/* Reports every field in order when `report`, and frees all. */
void oc__fields_close(const oc__compare *compare, oc__fields *fields, int report);

/* ---- arrays of numbers ------------------------------------------------------------------------------------------ */

/* X(identifier, word, bytes) */
/* clang-format off */
#define OC__ELEMENT_LIST(X) \
  X(F64, "f64", 8) X(F32, "f32", 4) X(F16, "f16", 2) X(BF16, "bf16", 2) \
  X(I64, "i64", 8) X(I32, "i32", 4) X(I16, "i16", 2) X(I8, "i8", 1) \
  X(U64, "u64", 8) X(U32, "u32", 4) X(U16, "u16", 2) X(U8, "u8", 1) X(BOOL, "bool", 1) \
  X(RAW, "raw", 0) /* anything else: equal or not, byte by byte */
/* clang-format on */

typedef enum oc__element {
#define X(id, word, bytes) OC__ELEMENT_##id,
  OC__ELEMENT_LIST(X)
#undef X
      OC__ELEMENT_COUNT
} oc__element;

#define OC__ARRAY_MAX_RANK 64

typedef struct oc__array {
  const unsigned char *data;
  oc__element element;
  oc__slice type_text;  /* the format's own word, for reports and for RAW */
  size_t element_bytes; /* one number; for RAW one item */
  int big_endian, fortran;
  int rank;
  int64_t shape[OC__ARRAY_MAX_RANK];
  int64_t count; /* numbers, the product of the shape */
} oc__array;

const char *oc__element_word(oc__element element);
size_t oc__element_bytes(oc__element element);
/* Product of the shape. BAD_ARG when a size is negative or the bytes pass SIZE_MAX. */
oc_status oc__array_count(oc__array *array, oc_err *err);
oc_status oc__array_compare(const oc__compare *compare, const char *name, const oc__array *a, const oc__array *b,
                            oc_err *err);

/* ---- formats ---------------------------------------------------------------------------------------------------- */

/* X(identifier, word) */
/* clang-format off */
#define OC__FORMAT_LIST(X) \
  X(BYTES, "bytes") X(TEXT, "text") X(JSON, "json") X(NPY, "npy") X(NPZ, "npz") \
  X(SAFETENSORS, "safetensors") X(PDB, "pdb") X(CIF, "cif")
/* clang-format on */

typedef enum oc__format {
#define X(id, word) OC__FORMAT_##id,
  OC__FORMAT_LIST(X)
#undef X
      OC__FORMAT_COUNT
} oc__format;

/* By the ending of the name; text or bytes by content where the ending says nothing. */
oc__format oc__format_of(const char *path, oc__slice a, oc__slice b);

/* Compares two files of one format. What does not parse is compared as bytes. */
oc_status oc__pair_compare(const oc__compare *compare, oc__format format, oc__slice a, oc__slice b, oc_err *err);

/* A reader answers BAD_ARG, and has reported nothing, when either side does not parse. */
typedef oc_status oc__reader(const oc__compare *compare, oc__slice a, oc__slice b, oc_err *err);
oc__reader oc__json_compare, oc__npy_compare, oc__npz_compare, oc__safetensors_compare, oc__pdb_compare,
    oc__cif_compare, oc__text_compare, oc__bytes_compare;

oc_status oc__npy_parse(oc__slice bytes, oc__array *out, oc_err *err);

/* The next line of *rest without its end; 0 at the end of the text. */
int oc__line_next(oc__slice *rest, oc__slice *line);
/* Token by token: numbers as numbers, the text between them as text. */
oc_status oc__line_compare(oc__field *field, oc__slice a, oc__slice b, int64_t number, oc_err *err);
/* 1 when the whole slice is the spelling of a number. */
int oc__is_number(oc__slice text);
int oc__slice_equal(oc__slice a, oc__slice b);

#endif
