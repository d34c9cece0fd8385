/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "util/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* read(2) until count bytes or the end. Returns bytes read, -1 with errno. */
static ssize_t read_all(int fd, char *to, size_t count) {
  size_t done = 0;
  while (done < count) {
    ssize_t got = read(fd, to + done, count - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += (size_t)got;
  }
  return (ssize_t)done;
}

static oc_status read_open(int fd, const char *path, size_t limit, char **bytes, size_t *count, oc_err *err) {
  struct stat info;
  if (fstat(fd, &info) != 0) return OC_FAIL(err, IO, errno, "%s: %s", path, strerror(errno));
  if (!S_ISREG(info.st_mode)) return OC_FAIL(err, IO, EINVAL, "%s: not a regular file", path);
  if ((uintmax_t)info.st_size > limit)
    return OC_FAIL(err, BAD_ARG, 0, "%s: %jd bytes, the limit is %zu", path, (intmax_t)info.st_size, limit);
  /* One byte more than the size tells a file that grows while it is read; /proc files have size 0 and are not read
   * here. */
  size_t room = (size_t)info.st_size + 1;
  char *data = malloc(room);
  if (!data) return OC_FAIL(err, NO_MEM, 0, "%s: no memory for %zu bytes", path, room);
  ssize_t got = read_all(fd, data, room);
  if (got < 0 || (size_t)got == room) {
    int code = got < 0 ? errno : EBUSY;
    free(data);
    return OC_FAIL(err, IO, code, "%s: %s", path, got < 0 ? strerror(code) : "grew while it was read");
  }
  data[got] = '\0';
  *bytes = data;
  *count = (size_t)got;
  return OC_OK;
}

oc_status oc__file_read(const char *path, size_t limit, char **bytes, size_t *count, oc_err *err) {
  *bytes = NULL;
  *count = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold the open up */
  if (fd < 0) return OC_FAIL(err, IO, errno, "%s: %s", path, strerror(errno));
  oc_status status = read_open(fd, path, limit, bytes, count, err);
  close(fd);
  return status;
}

int oc__file_directory(const char *path, char *out, size_t out_bytes) {
  const char *slash = strrchr(path, '/');
  size_t bytes = slash ? (size_t)(slash - path) : 1;
  if (slash == path) bytes = 1;
  if (bytes >= out_bytes) return 0;
  memcpy(out, slash ? path : ".", bytes);
  out[bytes] = '\0';
  return 1;
}

/* 0, or errno. */
static int write_and_sync(int fd, const char *bytes, size_t count) {
  while (count) {
    ssize_t put = write(fd, bytes, count);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    bytes += put;
    count -= (size_t)put;
  }
  /* Pipes and some network file systems cannot sync; the bytes are then as safe as they get. */
  if (fsync(fd) != 0 && errno != EINVAL && errno != ENOSYS) return errno;
  return 0;
}

static void sync_directory(const char *directory) {
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd); /* the rename is done; a directory that cannot be synced is no failure of the write */
  close(fd);
}

oc_status oc__file_replace(const char *path, const char *bytes, size_t count, oc_err *err) {
  static atomic_uint serial; /* two threads of one process must not share a temporary */
  char directory[PATH_MAX], temporary[PATH_MAX];
  if (!oc__file_directory(path, directory, sizeof directory))
    return OC_FAIL(err, IO, ENAMETOOLONG, "path of %zu bytes, the limit is %d", strlen(path), PATH_MAX);
  int length = snprintf(temporary, sizeof temporary, "%s/.opt_core.%ld.%u.tmp", directory, (long)getpid(),
                        atomic_fetch_add(&serial, 1));
  if (length < 0 || (size_t)length >= sizeof temporary)
    return OC_FAIL(err, IO, ENAMETOOLONG, "path of %zu bytes, the limit is %d", strlen(path), PATH_MAX);
  int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return OC_FAIL(err, IO, errno, "%s: %s", directory, strerror(errno));
  int code = write_and_sync(fd, bytes, count);
  if (close(fd) != 0 && code == 0 && errno != EINTR) code = errno;
  if (code == 0 && rename(temporary, path) != 0) code = errno;
  if (code != 0) {
    (void)unlink(temporary);
    return OC_FAIL(err, IO, code, "%s: %s", path, strerror(code));
  }
  sync_directory(directory);
  return OC_OK;
}
