/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever the parser accepts prints back to the same bytes. */
#include "opt_core/record.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static const char prefix[] = "[opt_core] ";
  static oc_line line;
  char text[2 * OC_LINE_MAX], out[OC_LINE_MAX + 1];
  if (bytes > sizeof text - sizeof prefix) return 0;
  /* The first byte says whether the prefix is given: most inputs then reach the grammar behind it. */
  size_t start = bytes && (data[0] & 1) ? sizeof prefix - 1 : 0;
  memcpy(text, prefix, start);
  if (bytes) memcpy(text + start, data + 1, bytes - 1);
  size_t count = start + (bytes ? bytes - 1 : 0);
  if (oc_line_parse(text, count, &line, NULL) != OC_OK) return 0;
  size_t written;
  if (oc_line_format(&line, out, sizeof out, &written, NULL) != OC_OK) abort();
  if (text[count - 1] != '\n') written--;
  if (written != count || memcmp(out, text, count) != 0) abort();
  return 0;
}
