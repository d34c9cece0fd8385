/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "compare/compare.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static oc_status map(int file, const char *path, oc__slice *out, oc_err *err) {
  struct stat facts;
  if (fstat(file, &facts) != 0) return OC_FAIL(err, IO, errno, "%s: %s", path, strerror(errno));
  if (!S_ISREG(facts.st_mode)) return OC_FAIL(err, IO, 0, "%s: not a regular file", path);
  if (facts.st_size == 0) return OC_OK; /* an empty file cannot be mapped */
  void *data = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) return OC_FAIL(err, IO, errno, "%s: %s", path, strerror(errno));
  *out = (oc__slice){data, (size_t)facts.st_size};
  return OC_OK;
}

oc_status oc__map_open(const char *path, oc__slice *out, oc_err *err) {
  *out = (oc__slice){"", 0};
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO is refused below, not waited for */
  if (file < 0) return OC_FAIL(err, IO, errno, "%s: %s", path, strerror(errno));
  oc_status status = map(file, path, out, err);
  close(file);
  return status;
}

void oc__map_close(oc__slice *slice) {
  if (slice->bytes) munmap((void *)(uintptr_t)slice->data, slice->bytes);
  *slice = (oc__slice){"", 0};
}
