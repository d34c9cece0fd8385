/* SPDX-License-Identifier: Apache-2.0 */
/* A directory for one test program's files, made at setup and removed at teardown. Include after cmocka.h. */
#ifndef OC_TEST_SCRATCH_H
#define OC_TEST_SCRATCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch_dir[64];

static int scratch_make(void **state) {
  (void)state;
  strcpy(scratch_dir, "/tmp/oc_test_XXXXXX");
  return mkdtemp(scratch_dir) && chmod(scratch_dir, 0755) == 0 ? 0 : -1;
}

static int scratch_remove(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", scratch_dir);
  return system(command) == 0 ? 0 : -1;
}

/* Path of a file in the directory; valid until the fourth call after this one. */
static const char *scratch_path(const char *name) {
  static char paths[4][256];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", scratch_dir, name);
  return path;
}

static void scratch_write(const char *name, const void *bytes, size_t count) {
  FILE *file = fopen(scratch_path(name), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

#endif
