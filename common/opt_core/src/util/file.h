/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files: reading with a limit, writing by rename. */
#ifndef OC_UTIL_FILE_H
#define OC_UTIL_FILE_H
#include "opt_core/status.h"

/* Reads all of a regular file: *bytes is malloc'ed, one zero byte follows the *count bytes. IO (native: errno) when it
 * cannot be read or is no regular file, BAD_ARG when it is larger than limit, NO_MEM. On failure *bytes is NULL. */
oc_status oc__file_read(const char *path, size_t limit, char **bytes, size_t *count, oc_err *err);

/* Replaces path by bytes[0, count): temporary in the same directory, fsync, rename, fsync of the directory. A reader
 * sees the old file or the new one, whole. IO with errno, and then path is as it was and no temporary stays behind. */
oc_status oc__file_replace(const char *path, const char *bytes, size_t count, oc_err *err);

/* Directory part of path in out[0, out_bytes): "." when there is none, "/" for the root. 0 when it does not fit. */
int oc__file_directory(const char *path, char *out, size_t out_bytes);
#endif
