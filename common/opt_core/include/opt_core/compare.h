/* SPDX-License-Identifier: Apache-2.0 */
/* Two output trees, number by number: JSON, NPY, NPZ, safetensors, PDB, mmCIF and text.
 *
 * Verdict of a field, worst last: equal (same bytes of the numbers), within (tolerance class), different.
 * Verdict of a file: those, or missing (in B), extra (only in B), unfinished (a tree whose opt_manifest*.json does not
 * say that the run ended, or a file that it covers is more than 2 s younger than it or older than the run's start). The
 * verdict of the trees is the worst of all; two trees without a file to compare are `missing`.
 *
 * Class exact compares bits: -0 and +0, and NaN with other bits, are different. With a tolerance both are within. NaN
 * against a number, and an infinity against anything else, differ both ways in every class. In text formats the bits
 * are those of the doubles (for integers: the integers) that the spellings mean. Fields and rules: docs/compare.md.
 */
#ifndef OPT_CORE_COMPARE_H
#define OPT_CORE_COMPARE_H

#include "opt_core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oc_verdict {
  OC_VERDICT_EQUAL,
  OC_VERDICT_WITHIN,
  OC_VERDICT_DIFFERENT,
  OC_VERDICT_MISSING,
  OC_VERDICT_EXTRA,
  OC_VERDICT_UNFINISHED,
  OC_VERDICT_COUNT
} oc_verdict;
OC_API const char *oc_verdict_word(oc_verdict verdict);

typedef struct oc_tolerance {
  double absolute, relative;
} oc_tolerance; /* |a-b| <= absolute + relative*|a|; both 0: exact */

typedef struct oc_compare_options {
  size_t struct_bytes;
  oc_tolerance tolerance; /* for fields that no rule names; zeros: class exact */
  const char *rules_json; /* {"<file glob>": {"<field glob>": {"abs": 1e-3, "rel": 0} | "exact" | "ignore"}}; NULL */
  int ignore_record;      /* leave opt_manifest*.json out of the comparison (default 1 in the command) */
} oc_compare_options;

typedef struct oc_difference {
  const char *file, *field; /* field: JSON path, tensor name, or atom/line locator with the first coordinate */
  oc_verdict verdict;
  double a, b, largest; /* first differing pair; largest absolute difference in the field */
  int64_t count, of;    /* numbers that differ beyond tolerance, numbers compared */
  int64_t ulps;         /* of the first differing pair for float32 data, -1 elsewhere */
} oc_difference;
typedef void oc_difference_sink(const oc_difference *difference, void *context);

typedef struct oc_compare_result {
  oc_verdict verdict;
  int64_t files, fields, numbers, differing;
  double largest; /* largest absolute difference seen */
} oc_compare_result;

/* Compares files or directories. sink (may be NULL) gets every field that is not equal, in path order.
 * OK with the verdict in result; IO when a path cannot be read; BAD_ARG for malformed rules. A file of a known kind
 * that does not parse is compared as bytes and reported as different unless identical. */
OC_API oc_status oc_compare_trees(const char *a, const char *b, const oc_compare_options *options,
                                  oc_difference_sink *sink, void *context, oc_compare_result *result, oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
