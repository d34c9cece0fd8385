/* SPDX-License-Identifier: Apache-2.0 */
/* Binaries of a package: PREBUILT.json names each by key, with its size and digest. The bytes that were hashed are the
 * bytes that the caller gets, so nothing can be exchanged between the check and the use. Files are never touched. */
#define _GNU_SOURCE
#include "opt_core/activation.h"

#include "util/file.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_NAME "PREBUILT.json"
#define INDEX_MAX_BYTES ((size_t)16 << 20)

void oc_bytes_free(unsigned char *bytes) { free(bytes); }

/* ---- the index -------------------------------------------------------------------------------------------------- */

typedef struct entry {
  const char *package, *file, *sha256; /* borrowed from the parsed index */
  size_t bytes;
} entry;

static int is_plain_name(const char *file) { return *file && *file != '.' && !strchr(file, '/') && strlen(file) < 256; }

static int is_digest(const char *text) { return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64; }

static oc_status check_entry(json_t *value, const char *key, entry *out, oc_err *err) {
  json_int_t bytes = -1;
  json_error_t why;
  if (json_unpack_ex(value, &why, JSON_STRICT, "{s:s, s:s, s:I}", "file", &out->file, "sha256", &out->sha256, "bytes",
                     &bytes))
    return OC_REFUSE(err, KIT_TABLE, INDEX_NAME ": binaries.%.48s: %.80s", key, why.text);
  if (!is_plain_name(out->file))
    return OC_REFUSE(err, KIT_TABLE, INDEX_NAME ": binaries.%.48s.file: %.64s is no plain file name", key, out->file);
  if (!is_digest(out->sha256))
    return OC_REFUSE(err, KIT_TABLE, INDEX_NAME ": binaries.%.48s.sha256: not 64 lower-case hex digits", key);
  if (bytes < 1 || bytes > INT32_MAX)
    return OC_REFUSE(err, KIT_TABLE, INDEX_NAME ": binaries.%.48s.bytes: %lld is outside 1..%d", key, (long long)bytes,
                     INT32_MAX);
  out->bytes = (size_t)bytes;
  return OC_OK;
}

static oc_status find_entry(json_t *root, const char *key, entry *out, oc_err *err) {
  int schema = 0;
  json_t *binaries = NULL;
  json_error_t why;
  if (json_unpack_ex(root, &why, JSON_STRICT, "{s:i, s:s, s:o}", "schema", &schema, "package", &out->package,
                     "binaries", &binaries))
    return OC_REFUSE(err, KIT_TABLE, INDEX_NAME ": %.120s", why.text);
  if (schema != 1) return OC_REFUSE(err, KIT_TABLE, INDEX_NAME ": schema is %d, this core reads 1", schema);
  if (!json_is_object(binaries)) return OC_REFUSE(err, KIT_TABLE, INDEX_NAME ": binaries is no object");
  json_t *value = json_object_get(binaries, key);
  if (!value) return OC_REFUSE(err, NO_PREBUILT, "%.80s@%.80s", out->package, key);
  return check_entry(value, key, out, err);
}

/* A directory without an index holds no binary; its last component stands for the package's name. */
static oc_status refuse_no_index(const char *dir, const char *key, oc_err *err) {
  const char *slash = strrchr(dir, '/');
  return OC_REFUSE(err, NO_PREBUILT, "%.80s@%.80s", slash && slash[1] ? slash + 1 : dir, key);
}

/* The first failure of a nested call, handed on to the caller's record. */
static oc_status pass_on(const oc_err *from, oc_err *err) {
  return oc_err_set(err, from->status, from->reason, from->native, from->file, from->line, "%s", from->detail);
}

static oc_status load_index(const char *dir, const char *key, json_t **root, oc_err *err) {
  char path[PATH_MAX], *text;
  size_t text_bytes;
  json_error_t why;
  oc_err failure = {0};
  if (snprintf(path, sizeof path, "%s/" INDEX_NAME, dir) >= (int)sizeof path)
    return OC_FAIL(err, BAD_ARG, 0, "the directory's path is longer than %d bytes", PATH_MAX - 16);
  if (oc__file_read(path, INDEX_MAX_BYTES, &text, &text_bytes, &failure) != OC_OK) {
    if (failure.native == ENOENT || failure.native == ENOTDIR) return refuse_no_index(dir, key, err);
    return pass_on(&failure, err);
  }
  *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &why);
  free(text);
  if (!*root) return OC_REFUSE(err, KIT_TABLE, INDEX_NAME ": line %d: %.120s", why.line, why.text);
  return OC_OK;
}

/* ---- the binary ------------------------------------------------------------------------------------------------- */

static oc_status verify(const entry *binary, const char *key, const char *bytes, size_t count, oc_err *err) {
  char digest[65];
  if (count != binary->bytes)
    return OC_REFUSE(err, DIGEST, "%.60s@%.60s: %zu bytes!=%zu", binary->package, key, count, binary->bytes);
  OC_TRY(oc_digest_bytes(bytes, count, digest, err));
  if (strcmp(digest, binary->sha256) != 0)
    return OC_REFUSE(err, DIGEST, "%.60s@%.60s: %.12s!=%.12s", binary->package, key, digest, binary->sha256);
  return OC_OK;
}

static oc_status read_binary(const char *dir, const char *key, const entry *binary, unsigned char **bytes,
                             size_t *count, oc_err *err) {
  char path[PATH_MAX], *read_bytes;
  size_t read_count;
  oc_err failure = {0};
  if (snprintf(path, sizeof path, "%s/%s", dir, binary->file) >= (int)sizeof path)
    return OC_FAIL(err, BAD_ARG, 0, "the binary's path is longer than %d bytes", PATH_MAX - 1);
  oc_status status = oc__file_read(path, binary->bytes, &read_bytes, &read_count, &failure);
  if (status == OC_BAD_ARG) /* larger than recorded: not read at all */
    return OC_REFUSE(err, DIGEST, "%.60s@%.60s: more than %zu bytes", binary->package, key, binary->bytes);
  if (status == OC_IO && failure.native == ENOENT)
    return OC_REFUSE(err, NO_PREBUILT, "%.80s@%.80s", binary->package, key);
  if (status != OC_OK) return pass_on(&failure, err);
  status = verify(binary, key, read_bytes, read_count, err);
  if (status != OC_OK) {
    free(read_bytes);
    return status;
  }
  *bytes = (unsigned char *)read_bytes;
  *count = read_count;
  return OC_OK;
}

oc_status oc_prebuilt_read(const char *dir, const char *key, unsigned char **bytes, size_t *bytes_count, oc_err *err) {
  json_t *root = NULL;
  entry binary = {0};
  *bytes = NULL;
  *bytes_count = 0;
  if (!dir || !key) return OC_FAIL(err, BAD_ARG, 0, "%s is NULL", dir ? "key" : "dir");
  OC_TRY(load_index(dir, key, &root, err));
  oc_status status = find_entry(root, key, &binary, err);
  if (status == OC_OK) status = read_binary(dir, key, &binary, bytes, bytes_count, err);
  json_decref(root);
  return status;
}
