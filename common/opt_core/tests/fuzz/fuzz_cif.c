/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz_compare.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const oc__format formats[] = {OC__FORMAT_CIF, OC__FORMAT_PDB, OC__FORMAT_TEXT};
  return fuzz_formats(data, size, formats, sizeof formats / sizeof formats[0]);
}
