/* SPDX-License-Identifier: Apache-2.0 */
/* Runs readers of `compare` on arbitrary bytes: each half against itself, which must come out equal, and the halves
 * against one another, which must come out the same both ways. */
#ifndef OC_TESTS_FUZZ_FUZZ_COMPARE_H
#define OC_TESTS_FUZZ_FUZZ_COMPARE_H

#include "compare/compare.h"

static oc_compare_result fuzz_pair(oc__format format, oc__slice a, oc__slice b, double absolute) {
  oc_compare_result result = {0};
  oc__compare compare = {.tolerance = {absolute, 0}, .result = &result, .file = "fuzz"};
  oc_err err = {0};
  oc_status status = oc__pair_compare(&compare, format, a, b, &err);
  if (status != OC_OK && status != OC_NO_MEM) __builtin_trap();
  return result;
}

/* The last byte says where the two files part, so that a corpus of whole files is one file and an empty one. */
static int fuzz_formats(const uint8_t *data, size_t size, const oc__format *formats, size_t count) {
  size_t cut = size ? size - 1 - (size - 1) * (size_t)(data[size - 1] & 1) / 2 : 0;
  oc__slice a = {(const char *)data, cut}, b = {(const char *)data + cut, size - cut};
  for (size_t i = 0; i < count; i++) {
    if (fuzz_pair(formats[i], a, a, 0).verdict != OC_VERDICT_EQUAL) __builtin_trap();
    if (fuzz_pair(formats[i], b, b, 0).verdict != OC_VERDICT_EQUAL) __builtin_trap();
    oc_compare_result there = fuzz_pair(formats[i], a, b, 0), back = fuzz_pair(formats[i], b, a, 0);
    if ((there.verdict == OC_VERDICT_EQUAL) != (back.verdict == OC_VERDICT_EQUAL)) __builtin_trap();
    fuzz_pair(formats[i], a, b, 1e-3);
  }
  return 0;
}

#endif
