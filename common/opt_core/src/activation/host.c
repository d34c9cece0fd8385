/* SPDX-License-Identifier: Apache-2.0 */
/* The host floor: what a binary needs of the C and C++ libraries against what the host has. The C++ library is read as
 * a file and never loaded: loading it would settle, for the engine too, which copy the process uses. */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "activation/host.h"

#include "activation/elf.h"
#include "opt_core/version.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#define CXX_LIBRARY "libstdc++.so.6"

static oc_status read_open_file(int fd, const char *path, oc__elf_versions which, oc_host_floor *out, oc_err *err) {
  struct stat info;
  if (fstat(fd, &info) != 0) return OC_FAIL(err, IO, errno, "%.128s: %s", path, strerror(errno));
  if (!S_ISREG(info.st_mode)) return OC_FAIL(err, IO, EINVAL, "%.128s: no regular file", path);
  const oc__elf_source source = {fd, NULL, (uint64_t)info.st_size, path};
  return oc__elf_floor(&source, which, out, err);
}

static oc_status read_versions(const char *path, oc__elf_versions which, oc_host_floor *out, oc_err *err) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold the open up */
  if (fd < 0) return OC_FAIL(err, IO, errno, "%.128s: %s", path, strerror(errno));
  oc_status status = read_open_file(fd, path, which, out, err);
  close(fd);
  return status;
}

oc_status oc_host_floor_read(const char *path, oc_host_floor *out, oc_err *err) {
  return read_versions(path, OC__ELF_NEEDED, out, err);
}

/* ---- this host -------------------------------------------------------------------------------------------------- */

static int read_cxx(const char *path, oc_host_floor *out) {
  oc_host_floor defined;
  if (read_versions(path, OC__ELF_DEFINED, &defined, NULL) != OC_OK || !*defined.glibcxx) return 0;
  memcpy(out->glibcxx, defined.glibcxx, sizeof out->glibcxx);
  memcpy(out->cxxabi, defined.cxxabi, sizeof out->cxxabi);
  return 1;
}

static int copy_loaded_path(struct dl_phdr_info *info, size_t info_bytes, void *path) {
  (void)info_bytes;
  const char *slash = strrchr(info->dlpi_name, '/');
  const char *name = slash ? slash + 1 : info->dlpi_name;
  if (strncmp(name, CXX_LIBRARY, strlen(CXX_LIBRARY)) != 0 || strlen(info->dlpi_name) >= PATH_MAX) return 0;
  memcpy(path, info->dlpi_name, strlen(info->dlpi_name) + 1);
  return 1;
}

int oc__host_cxx_in(const char *directories, oc_host_floor *out) {
  char path[PATH_MAX];
  while (directories && *directories) {
    size_t bytes = strcspn(directories, ":;");
    if (bytes > 0 && bytes < PATH_MAX - sizeof CXX_LIBRARY - 1) {
      snprintf(path, sizeof path, "%.*s/" CXX_LIBRARY, (int)bytes, directories);
      if (read_cxx(path, out)) return 1;
    }
    directories += bytes + (directories[bytes] != '\0');
  }
  return 0;
}

#if defined(__x86_64__)
#define MULTIARCH "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define MULTIARCH "aarch64-linux-gnu"
#else
#define MULTIARCH "."
#endif

/* The copy that a later load would use: the one in the process, then the loader's own order of directories. */
static void find_cxx(oc_host_floor *out) {
  char loaded[PATH_MAX];
  if (dl_iterate_phdr(copy_loaded_path, loaded) && read_cxx(loaded, out)) return;
  if (oc__host_cxx_in(getenv("LD_LIBRARY_PATH"), out)) return;
  oc__host_cxx_in("/lib/" MULTIARCH ":/usr/lib/" MULTIARCH ":/lib64:/usr/lib64:/lib:/usr/lib:/usr/local/lib64", out);
}

oc_status oc_host_floor_here(oc_host_floor *out, oc_err *err) {
  oc_host_floor here = {"", "", ""};
#ifdef __GLIBC__
  const char *glibc = gnu_get_libc_version();
  if (strlen(glibc) >= sizeof here.glibc)
    return OC_FAIL(err, DEVICE, 0, "C library version %.32s is longer than 15 characters", glibc);
  memcpy(here.glibc, glibc, strlen(glibc) + 1);
#else
  (void)err;
#endif
  find_cxx(&here);
  *out = here;
  return OC_OK;
}

/* ---- the gate --------------------------------------------------------------------------------------------------- */

static oc_status compare(const char *library, const char *need, const char *have, oc_err *err) {
  if (!*need || (*have && oc_version_compare(need, have) <= 0)) return OC_OK;
  return OC_REFUSE(err, HOST_FLOOR, "%s_%s>%s", library, need, *have ? have : "none");
}

oc_status oc_gate_host_floor(const oc_host_floor *need, const oc_host_floor *have, oc_err *err) {
  OC_TRY(compare("GLIBC", need->glibc, have->glibc, err));
  OC_TRY(compare("GLIBCXX", need->glibcxx, have->glibcxx, err));
  return compare("CXXABI", need->cxxabi, have->cxxabi, err);
}
