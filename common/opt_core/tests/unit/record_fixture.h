/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the record share: a kit, a directory of their own, and the lines that were said. */
#ifndef RECORD_FIXTURE_H
#define RECORD_FIXTURE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opt_core/record.h"
#include "opt_core/version.h"

static const char fixture_table[] =
    "{\"schema\":1,\"engine\":\"an_engine\",\"variable\":\"AN_ENGINE_OPT\",\"version\":\"0.3\",\"triggers\":[\"m\"],"
    "\"levers\":["
    "{\"name\":\"attn\",\"family\":\"triattn\",\"modes\":{\"exact\":\"record\",\"fast\":\"require\"}},"
    "{\"name\":\"mul\",\"family\":\"trimul\",\"modes\":{\"fast\":\"record\"}},"
    "{\"name\":\"counted\",\"modes\":{\"exact\":\"record\",\"fast\":\"record\"},\"instances\":4}]}";
enum { ATTN, MUL, COUNTED };

static oc_kit *fixture_kit;
static char fixture_dir[PATH_MAX];
static char fixture_lines[1 << 16];
static size_t fixture_bytes;

static void fixture_hear(const char *text, size_t bytes, void *context) {
  (void)context;
  oc_line line;
  assert_int_equal(oc_line_parse(text, bytes, &line, NULL), OC_OK); /* whatever is said can be read */
  assert_true(fixture_bytes + bytes < sizeof fixture_lines);
  memcpy(fixture_lines + fixture_bytes, text, bytes);
  fixture_bytes += bytes;
  fixture_lines[fixture_bytes] = '\0';
}

static int fixture_setup(void **state) {
  (void)state;
  static const char *const ranks[] = {"OPT_CORE_RANK", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
  for (int i = 0; i < 5; i++) unsetenv(ranks[i]);
  strcpy(fixture_dir, "/tmp/opt_core_test_XXXXXX");
  if (!mkdtemp(fixture_dir)) return -1;
  fixture_bytes = 0;
  fixture_lines[0] = '\0';
  oc_line_set_sink(fixture_hear, NULL);
  return oc_kit_parse(fixture_table, sizeof fixture_table - 1, &fixture_kit, NULL) == OC_OK ? 0 : -1;
}

/* Files in the directory, by name; temporaries that were left behind would be counted too. */
static inline int fixture_files(void) {
  DIR *dir = opendir(fixture_dir);
  int count = 0;
  for (struct dirent *entry; dir && (entry = readdir(dir));)
    count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
  closedir(dir);
  return count;
}

static int fixture_teardown(void **state) {
  (void)state;
  oc_line_set_sink(NULL, NULL);
  oc_kit_free(fixture_kit);
  chmod(fixture_dir, 0700);
  DIR *dir = opendir(fixture_dir);
  for (struct dirent *entry; dir && (entry = readdir(dir));) {
    char path[PATH_MAX + 300];
    snprintf(path, sizeof path, "%s/%s", fixture_dir, entry->d_name);
    unlink(path);
    rmdir(path);
  }
  closedir(dir);
  return rmdir(fixture_dir);
}

static oc_run_options fixture_options(oc_mode mode) {
  return (oc_run_options){.struct_bytes = sizeof(oc_run_options),
                          .kit = fixture_kit,
                          .mode = mode,
                          .core_dir = "/core dir",
                          .manifest = fixture_dir};
}

static inline oc_run *fixture_open(oc_run_options options) {
  oc_run *run = NULL;
  oc_err err = {0};
  if (oc_run_open(&options, &run, &err) != OC_OK) fail_msg("open: %s", err.detail);
  return run;
}

/* `count` calls that hit. */
static inline void fixture_serve(oc_run *run, int lever, const char *row, int count) {
  int slot = -1;
  assert_int_equal(oc_run_slot(run, lever, OC_SLOT_HIT, "triattn", row, "cell1", &slot, NULL), OC_OK);
  for (int i = 0; i < count; i++) {
    oc_run_call(run, lever);
    oc_run_claim(run, lever);
    oc_run_settle(run, slot);
  }
}

/* `count` calls that are left to the stock op. */
static inline void fixture_stock(oc_run *run, int lever, const char *name, const char *word, int count) {
  int slot = -1;
  assert_int_equal(oc_run_slot(run, lever, OC_SLOT_STOCK, "triattn", name, word, &slot, NULL), OC_OK);
  for (int i = 0; i < count; i++) {
    oc_run_call(run, lever);
    oc_run_settle(run, slot);
  }
}

static inline json_t *fixture_load(const char *path) {
  json_error_t where;
  json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
  if (!root) fail_msg("%s: %s", path, where.text);
  return root;
}

static inline const char *text_at(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "(none)";
}

static inline int64_t number_at(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  assert_true(json_is_integer(value));
  return json_integer_value(value);
}

static inline int said(const char *line) {
  char whole[OC_LINE_MAX + 32];
  snprintf(whole, sizeof whole, "[opt_core] %s", line);
  return strstr(fixture_lines, whole) != NULL;
}

#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
#endif
