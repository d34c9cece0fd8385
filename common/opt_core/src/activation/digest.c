/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "opt_core/activation.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

#define DIGEST_BYTES crypto_hash_sha256_BYTES
_Static_assert(2 * DIGEST_BYTES + 1 == 65, "a SHA-256 is 64 hex digits");

oc_status oc_digest_bytes(const void *bytes, size_t bytes_count, char out[65], oc_err *err) {
  unsigned char digest[DIGEST_BYTES];
  if (!bytes && bytes_count > 0) return OC_FAIL(err, BAD_ARG, 0, "bytes are NULL, count %zu", bytes_count);
  crypto_hash_sha256(digest, bytes, bytes_count);
  sodium_bin2hex(out, 65, digest, sizeof digest);
  return OC_OK;
}

/* Feeds the file to the hash; 0, or the errno of the read that failed. */
static int digest_stream(int fd, unsigned char digest[DIGEST_BYTES]) {
  unsigned char block[1 << 15];
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  for (;;) {
    ssize_t got = read(fd, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    crypto_hash_sha256_update(&state, block, (unsigned long long)got);
  }
  crypto_hash_sha256_final(&state, digest);
  return 0;
}

oc_status oc_digest_file(const char *path, char out[65], oc_err *err) {
  unsigned char digest[DIGEST_BYTES];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return OC_FAIL(err, IO, errno, "%.128s: %s", path, strerror(errno));
  int failure = digest_stream(fd, digest);
  close(fd);
  if (failure) return OC_FAIL(err, IO, failure, "%.128s: %s", path, strerror(failure));
  sodium_bin2hex(out, 65, digest, sizeof digest);
  return OC_OK;
}
