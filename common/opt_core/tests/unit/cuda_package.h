/* SPDX-License-Identifier: Apache-2.0 */
/* Packages of binaries in the scratch directory, for kernels that fake_cuda.c "loads". Include after scratch.h. */
#ifndef OC_TEST_CUDA_PACKAGE_H
#define OC_TEST_CUDA_PACKAGE_H

#include "devices/cuda/driver.h"
#include "fake_cuda.h"
#include "opt_core/activation.h"
#include "opt_core/cuda.h"

/* Package with one binary a key; a binary's bytes are "<package>/<key>" and its file <package>.<key>.cubin. */
static void package_write(const char *package, const char *const *keys) {
  char index[2048], path[256], text[128], digest[65];
  size_t used = (size_t)snprintf(index, sizeof index, "{\"schema\": 1, \"package\": \"%s\", \"binaries\": {", package);
  mkdir(scratch_path(package), 0755);
  for (int i = 0; keys[i]; i++) {
    const size_t bytes = (size_t)snprintf(text, sizeof text, "%s/%s", package, keys[i]) + 1;
    snprintf(path, sizeof path, "%s/%s.%s.cubin", package, package, keys[i]);
    scratch_write(path, text, bytes);
    oc_digest_bytes(text, bytes, digest, NULL);
    used += (size_t)snprintf(index + used, sizeof index - used,
                             "%s\"%s\": {\"file\": \"%s.%s.cubin\", \"sha256\": \"%s\", \"bytes\": %zu}", i ? ", " : "",
                             keys[i], package, keys[i], digest, bytes);
  }
  used += (size_t)snprintf(index + used, sizeof index - used, "}}");
  snprintf(path, sizeof path, "%s/PREBUILT.json", package);
  scratch_write(path, index, used);
}

#define EXPECT_REFUSED(call, word, text)                                                                               \
  do {                                                                                                                 \
    oc_err err = {0};                                                                                                  \
    assert_int_equal((call), OC_REFUSED);                                                                              \
    assert_int_equal(err.reason, OC_REASON_##word);                                                                    \
    assert_string_equal(err.detail, text);                                                                             \
  } while (0)

#endif
