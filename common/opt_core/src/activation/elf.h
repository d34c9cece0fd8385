/* SPDX-License-Identifier: Apache-2.0 */
/* Symbol versions that an ELF64 file needs or defines, read from the file's bytes; nothing is loaded or run. */
#ifndef OC_ELF_H
#define OC_ELF_H

#include "opt_core/activation.h"

/* A file, or bytes in memory (then fd is -1). */
typedef struct oc__elf_source {
  int fd;
  const unsigned char *memory;
  uint64_t bytes;
  const char *name; /* for messages */
} oc__elf_source;

typedef enum oc__elf_versions { OC__ELF_NEEDED, OC__ELF_DEFINED } oc__elf_versions;

/* The newest version of each kind. BAD_ARG for anything that is no well-formed little-endian ELF64 file. */
oc_status oc__elf_floor(const oc__elf_source *source, oc__elf_versions which, oc_host_floor *out, oc_err *err);

#endif
