/* SPDX-License-Identifier: Apache-2.0 */
/* The framework's own libraries. Only what is mapped already is found: a second copy beside the framework's would have
 * its own state, and could be of another version. */
#define _GNU_SOURCE
#include "opt_core/cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

enum { SONAMES_MAX = 3 };

static const struct {
  const char *word, *sonames[SONAMES_MAX]; /* NULL-terminated */
} libraries[OC_CUDA_LIBRARY_COUNT] = {
#define X(id, text, ...) {text, {__VA_ARGS__}},
    OC_CUDA_LIBRARY_LIST(X)
#undef X
};

static int is_known(oc_cuda_library_id library) { return (int)library >= 0 && library < OC_CUDA_LIBRARY_COUNT; }

const char *oc_cuda_library_word(oc_cuda_library_id library) {
  return is_known(library) ? libraries[library].word : "unknown";
}

static oc_status write_path(void *handle, const char *soname, char *path, size_t path_bytes, oc_err *err) {
  struct link_map *map = NULL;
  char resolved[PATH_MAX];
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map || !realpath(map->l_name, resolved))
    return OC_FAIL(err, IO, 0, "%s is loaded, its file was not found", soname);
  if (strlen(resolved) >= path_bytes)
    return OC_FAIL(err, BAD_ARG, 0, "a path of %zu bytes, room for %zu", strlen(resolved), path_bytes);
  memcpy(path, resolved, strlen(resolved) + 1);
  return OC_OK;
}

/* A handle that is not given to the caller is closed again, which only takes back the count that dlopen added. */
oc_status oc_cuda_library(oc_cuda_library_id library, void **handle, char *path, size_t path_bytes, oc_err *err) {
  if (!is_known(library))
    return OC_FAIL(err, BAD_ARG, 0, "library %d is outside 0..%d", (int)library, OC_CUDA_LIBRARY_COUNT - 1);
  const char *const *soname = libraries[library].sonames;
  void *found = NULL;
  for (; *soname && !(found = dlopen(*soname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD));) soname++;
  if (!found) return OC_REFUSE(err, NOT_BUILT, "%s: the framework has loaded none", libraries[library].sonames[0]);
  const oc_status status = write_path(found, *soname, path, path_bytes, err);
  if (handle && status == OC_OK)
    *handle = found;
  else
    (void)dlclose(found);
  return status;
}
