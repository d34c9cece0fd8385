/* SPDX-License-Identifier: Apache-2.0 */
/* PDB: the number columns of ATOM and HETATM lines are fields of their own; the other columns and lines are text. */
#include "compare/compare.h"

#include <string.h>

static const struct column {
  const char *name;
  size_t from, to;
} columns[] = {{"x", 30, 38}, {"y", 38, 46}, {"z", 46, 54}, {"occupancy", 54, 60}, {"b_factor", 60, 66}};
enum {
  COLUMN_COUNT = sizeof columns / sizeof columns[0],
  TEXT = COLUMN_COUNT,
  FIELD_COUNT,
  COLUMNS_FROM = 30,
  COLUMNS_TO = 66
};

typedef struct fields {
  oc__field item[FIELD_COUNT];
} fields;

static int is_atom(oc__slice line) {
  return line.bytes >= 54 && (memcmp(line.data, "ATOM  ", 6) == 0 || memcmp(line.data, "HETATM", 6) == 0);
}

static oc__slice trim(oc__slice text) {
  while (text.bytes && text.data[0] == ' ') text = (oc__slice){text.data + 1, text.bytes - 1};
  while (text.bytes && text.data[text.bytes - 1] == ' ') text.bytes--;
  return text;
}

static oc__slice part(oc__slice line, size_t from, size_t to) {
  if (from > line.bytes) from = line.bytes;
  if (to > line.bytes) to = line.bytes;
  return (oc__slice){line.data + from, to - from};
}

static oc__slice trim_end(oc__slice text) {
  while (text.bytes && text.data[text.bytes - 1] == ' ') text.bytes--;
  return text;
}

static oc_status compare_column(oc__field *field, size_t column, oc__slice a, oc__slice b, int64_t number,
                                oc_err *err) {
  oc__slice left = trim(part(a, columns[column].from, columns[column].to));
  oc__slice right = trim(part(b, columns[column].from, columns[column].to));
  int numbers = oc__is_number(left) && oc__is_number(right);
  int reported = numbers ? oc__field_literal(field, left, right) : oc__field_text(field, oc__slice_equal(left, right));
  if (!reported) return OC_OK;
  oc__slice atom = trim(part(a, 12, 27)); /* name, residue, chain and number */
  return oc__field_locate(field, err, "%s line %lld (%.*s)", field->name, (long long)number, (int)atom.bytes,
                          atom.data);
}

static oc_status compare_atoms(fields *f, oc__slice a, oc__slice b, int64_t number, oc_err *err) {
  for (size_t i = 0; i < COLUMN_COUNT; i++) OC_TRY(compare_column(&f->item[i], i, a, b, number, err));
  int same = oc__slice_equal(part(a, 0, COLUMNS_FROM), part(b, 0, COLUMNS_FROM)) &&
             oc__slice_equal(trim_end(part(a, COLUMNS_TO, a.bytes)), trim_end(part(b, COLUMNS_TO, b.bytes)));
  if (!oc__field_text(&f->item[TEXT], same)) return OC_OK;
  return oc__field_locate(&f->item[TEXT], err, "text line %lld", (long long)number);
}

static oc_status compare_lines(fields *f, oc__slice a, oc__slice b, oc_err *err) {
  for (int64_t number = 1;; number++) {
    oc__slice left, right;
    int has_left = oc__line_next(&a, &left), has_right = oc__line_next(&b, &right);
    if (!has_left && !has_right) return OC_OK;
    if (has_left != has_right) {
      if (!oc__field_text(&f->item[TEXT], 0)) return OC_OK;
      return oc__field_locate(&f->item[TEXT], err, "text line %lld on one side only", (long long)number);
    }
    OC_TRY(is_atom(left) && is_atom(right) ? compare_atoms(f, left, right, number, err)
                                           : oc__line_compare(&f->item[TEXT], left, right, number, err));
  }
}

oc_status oc__pdb_compare(const oc__compare *compare, oc__slice a, oc__slice b, oc_err *err) {
  fields f = {0};
  oc_status status = OC_OK;
  for (size_t i = 0; i < FIELD_COUNT && status == OC_OK; i++)
    status = oc__field_open(compare, i == TEXT ? "text" : columns[i].name, &f.item[i], err);
  if (status == OC_OK) status = compare_lines(&f, a, b, err);
  for (size_t i = 0; i < FIELD_COUNT; i++) oc__field_close(compare, &f.item[i]);
  return status;
}
