/* SPDX-License-Identifier: Apache-2.0 */
/* Two trees: files paired by path, each pair read by the reader of its format. */
#define _POSIX_C_SOURCE 200809L
#include "compare/compare.h"
#include "compare/tree.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *oc_verdict_word(oc_verdict verdict) {
  static const char *const words[OC_VERDICT_COUNT] = {"equal", "within", "different", "missing", "extra", "unfinished"};
  return (unsigned)verdict < OC_VERDICT_COUNT ? words[verdict] : "unknown";
}

/* ---- formats ----------------------------------------------------------------------------------------------------- */

static int ends_with(const char *path, const char *ending) {
  size_t bytes = strlen(path), wanted = strlen(ending);
  return bytes >= wanted && strcasecmp(path + bytes - wanted, ending) == 0;
}

static int is_text(oc__slice bytes) { return memchr(bytes.data, 0, bytes.bytes) == NULL; }

oc__format oc__format_of(const char *path, oc__slice a, oc__slice b) {
  static const struct {
    const char *ending;
    oc__format format;
  } known[] = {
      {".json", OC__FORMAT_JSON}, {".npy", OC__FORMAT_NPY},
      {".npz", OC__FORMAT_NPZ},   {".safetensors", OC__FORMAT_SAFETENSORS},
      {".pdb", OC__FORMAT_PDB},   {".ent", OC__FORMAT_PDB},
      {".cif", OC__FORMAT_CIF},   {".mmcif", OC__FORMAT_CIF},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (ends_with(path, known[i].ending)) return known[i].format;
  return is_text(a) && is_text(b) ? OC__FORMAT_TEXT : OC__FORMAT_BYTES;
}

oc_status oc__pair_compare(const oc__compare *compare, oc__format format, oc__slice a, oc__slice b, oc_err *err) {
  static oc__reader *const readers[OC__FORMAT_COUNT] = {oc__bytes_compare, oc__text_compare, oc__json_compare,
                                                        oc__npy_compare,   oc__npz_compare,  oc__safetensors_compare,
                                                        oc__pdb_compare,   oc__cif_compare};
  oc_err why = {0};
  oc_status status = readers[format](compare, a, b, &why);
  if (status == OC_BAD_ARG) return oc__bytes_compare(compare, a, b, err);
  if (status != OC_OK && err && err->status == OC_OK) *err = why;
  return status;
}

/* ---- trees ------------------------------------------------------------------------------------------------------- */

typedef struct pairing {
  oc__compare compare;
  int ignore_record;
  const oc__tree *a, *b;
} pairing;

int oc__rules_ignore(const oc__compare *compare, const char *file) {
  return oc__rules_find(compare->rules, compare->tolerance, file, "file").kind == OC__CLASS_IGNORE;
}

static int is_ignored(const pairing *p, const char *path) {
  if (p->ignore_record && oc__tree_is_record(path)) return 1;
  return oc__rules_ignore(&p->compare, path);
}

static oc_status lone_file(pairing *p, const char *path, oc_verdict verdict, oc_err *err) {
  if (is_ignored(p, path)) return OC_OK;
  p->compare.file = path;
  p->compare.result->files++;
  return oc__field_report(&p->compare, "file", NULL, verdict, err);
}

static oc_status map_side(const oc__tree *tree, const char *path, oc__slice *out, oc_err *err) {
  char *full = oc__tree_join(tree, path);
  if (!full) return OC_FAIL(err, NO_MEM, 0, "path of a file");
  oc_status status = oc__map_open(full, out, err);
  free(full);
  return status;
}

static oc_status both_files(pairing *p, const char *path_a, const char *path_b, oc_err *err) {
  if (is_ignored(p, path_a)) return OC_OK;
  p->compare.file = path_a;
  p->compare.result->files++;
  oc__slice a, b;
  OC_TRY(map_side(p->a, path_a, &a, err));
  oc_status status = map_side(p->b, path_b, &b, err);
  if (status == OC_OK) {
    status = oc__pair_compare(&p->compare, oc__format_of(path_a, a, b), a, b, err);
    oc__map_close(&b);
  }
  oc__map_close(&a);
  return status;
}

static oc_status merge(pairing *p, oc_err *err) {
  size_t i = 0, j = 0;
  while (i < p->a->count || j < p->b->count) {
    const char *path_a = i < p->a->count ? p->a->files[i].path : NULL;
    const char *path_b = j < p->b->count ? p->b->files[j].path : NULL;
    int order = !path_b ? -1 : !path_a ? 1 : p->a->is_file ? 0 : strcmp(path_a, path_b);
    OC_TRY(order < 0   ? lone_file(p, path_a, OC_VERDICT_MISSING, err)
           : order > 0 ? lone_file(p, path_b, OC_VERDICT_EXTRA, err)
                       : both_files(p, path_a, path_b, err));
    i += order <= 0;
    j += order >= 0;
  }
  return OC_OK;
}

/* Nothing compared is not equality: two empty folders say that both runs left nothing. */
static oc_status check_not_empty(pairing *p, oc_err *err) {
  if (p->compare.result->files) return OC_OK;
  p->compare.file = "";
  p->compare.rules = NULL;
  return oc__field_report(&p->compare, "tree", "no file to compare", OC_VERDICT_MISSING, err);
}

static oc_status compare_trees(pairing *p, oc_err *err) {
  if (p->a->is_file != p->b->is_file)
    return OC_FAIL(err, BAD_ARG, 0, "compare: %.80s is a %s, %.80s is not", p->a->root,
                   p->a->is_file ? "file" : "folder", p->b->root);
  OC_TRY(oc__tree_check_records(&p->compare, p->a, "a", err));
  OC_TRY(oc__tree_check_records(&p->compare, p->b, "b", err));
  OC_TRY(merge(p, err));
  return check_not_empty(p, err);
}

static oc_status open_and_compare(pairing *p, const char *path_a, const char *path_b, oc_err *err) {
  oc__tree a, b;
  OC_TRY(oc__tree_open(path_a, &a, err));
  oc_status status = oc__tree_open(path_b, &b, err);
  if (status == OC_OK) {
    p->a = &a;
    p->b = &b;
    if (a.is_file) p->ignore_record = 0; /* a record that is named outright is meant */
    status = compare_trees(p, err);
    p->a = p->b = NULL;
    oc__tree_close(&b);
  }
  oc__tree_close(&a);
  return status;
}

static int is_bound(double value) { return value >= 0 && isfinite(value); }

static oc_status check_options(const oc_compare_options *options, oc_err *err) {
  if (options->struct_bytes != sizeof *options)
    return OC_FAIL(err, BAD_ARG, 0, "compare: options of %zu bytes, wanted %zu", options->struct_bytes,
                   sizeof *options);
  if (!is_bound(options->tolerance.absolute) || !is_bound(options->tolerance.relative))
    return OC_FAIL(err, BAD_ARG, 0, "compare: tolerance %g %g, wanted finite and >= 0", options->tolerance.absolute,
                   options->tolerance.relative);
  return OC_OK;
}

/* strtod and jansson read numbers as the locale of the thread writes them; files are written in the C locale. */
static oc_status in_c_locale(pairing *p, const char *a, const char *b, oc_err *err) {
  locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!c_locale) return OC_FAIL(err, NO_MEM, 0, "C locale");
  locale_t before = uselocale(c_locale);
  oc_status status = open_and_compare(p, a, b, err);
  uselocale(before);
  freelocale(c_locale);
  return status;
}

oc_status oc_compare_trees(const char *a, const char *b, const oc_compare_options *options, oc_difference_sink *sink,
                           void *context, oc_compare_result *result, oc_err *err) {
  static const oc_compare_options defaults = {.struct_bytes = sizeof defaults, .ignore_record = 1};
  if (!a || !b || !result) return OC_FAIL(err, BAD_ARG, 0, "compare: a, b or result is NULL");
  if (!options) options = &defaults;
  OC_TRY(check_options(options, err));
  oc_compare_result total = {0};
  pairing p = {.ignore_record = options->ignore_record};
  p.compare =
      (oc__compare){.tolerance = options->tolerance, .sink = sink, .context = context, .result = &total, .file = ""};
  OC_TRY(oc__rules_parse(options->rules_json, &p.compare.rules, err));
  json_t *rules = p.compare.rules;
  oc_status status = in_c_locale(&p, a, b, err);
  json_decref(rules);
  if (status == OC_OK) *result = total;
  return status;
}
