/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an ELF file: OK with terminated versions, or BAD_ARG; never a read outside the bytes. */
#include "activation/elf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const oc__elf_source *source, oc__elf_versions which) {
  oc_host_floor found;
  memset(&found, 'x', sizeof found);
  oc_status status = oc__elf_floor(source, which, &found, NULL);
  if (status != OC_OK && status != OC_BAD_ARG) abort();
  if (status != OC_OK) return;
  if (!memchr(found.glibc, 0, sizeof found.glibc) || !memchr(found.glibcxx, 0, sizeof found.glibcxx) ||
      !memchr(found.cxxabi, 0, sizeof found.cxxabi))
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const oc__elf_source source = {-1, data, size, "input"};
  check(&source, OC__ELF_NEEDED);
  check(&source, OC__ELF_DEFINED);
  return 0;
}
