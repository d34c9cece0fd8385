/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* fts, strptime, timegm */
#define _FILE_OFFSET_BITS 64
#include "compare/tree.h"

#include <errno.h>
#include <fnmatch.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Files are often copied after a run; clocks of file systems are coarse. */
#define SLACK_NS ((int64_t)2000000000)
#define RECORD_BYTES_MAX ((size_t)64 << 20)

static const char *last_part(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

static oc_status add(oc__tree *tree, const char *path, const struct stat *facts, oc_err *err) {
  if (tree->count == tree->capacity) {
    size_t capacity = tree->capacity ? tree->capacity * 2 : 64;
    oc__tree_file *grown = realloc(tree->files, capacity * sizeof *grown);
    if (!grown) return OC_FAIL(err, NO_MEM, 0, "%zu files", capacity);
    tree->files = grown;
    tree->capacity = capacity;
  }
  char *copy = strdup(path);
  if (!copy) return OC_FAIL(err, NO_MEM, 0, "path of a file");
  int64_t time_ns = (int64_t)facts->st_mtim.tv_sec * 1000000000 + facts->st_mtim.tv_nsec;
  tree->files[tree->count++] = (oc__tree_file){copy, time_ns};
  return OC_OK;
}

static oc_status visit(oc__tree *tree, size_t root_bytes, FTSENT *entry, oc_err *err) {
  switch (entry->fts_info) {
  case FTS_D:
  case FTS_DP:
    return OC_OK;
  case FTS_F: {
    const char *path = entry->fts_path + root_bytes;
    while (*path == '/') path++;
    return add(tree, *path ? path : last_part(entry->fts_path), entry->fts_statp, err);
  }
  case FTS_DNR:
  case FTS_ERR:
  case FTS_NS:
    return OC_FAIL(err, IO, entry->fts_errno, "%s: %s", entry->fts_path, strerror(entry->fts_errno));
  case FTS_SLNONE:
    return OC_FAIL(err, IO, ENOENT, "%s: link to nothing", entry->fts_path);
  case FTS_DC:
    return OC_FAIL(err, IO, ELOOP, "%s: folder inside itself", entry->fts_path);
  default:
    return OC_FAIL(err, IO, 0, "%s: neither file nor folder", entry->fts_path);
  }
}

static int by_path(const void *a, const void *b) {
  return strcmp(((const oc__tree_file *)a)->path, ((const oc__tree_file *)b)->path);
}

static oc_status walk(oc__tree *tree, oc_err *err) {
  char *const roots[] = {(char *)(uintptr_t)tree->root, NULL};
  FTS *stream = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
  if (!stream) return OC_FAIL(err, IO, errno, "%s: %s", tree->root, strerror(errno));
  oc_status status = OC_OK;
  size_t root_bytes = strlen(tree->root);
  errno = 0;
  for (FTSENT *entry; status == OC_OK && (entry = fts_read(stream));) {
    if (entry->fts_level == FTS_ROOTLEVEL) tree->is_file = entry->fts_info == FTS_F;
    status = visit(tree, root_bytes, entry, err);
    errno = 0;
  }
  if (status == OC_OK && errno) status = OC_FAIL(err, IO, errno, "%s: %s", tree->root, strerror(errno));
  fts_close(stream);
  return status;
}

oc_status oc__tree_open(const char *root, oc__tree *out, oc_err *err) {
  *out = (oc__tree){.root = root};
  if (!root || !*root) return OC_FAIL(err, BAD_ARG, 0, "compare: empty path");
  oc_status status = walk(out, err);
  if (status != OC_OK)
    oc__tree_close(out);
  else if (out->count)
    qsort(out->files, out->count, sizeof *out->files, by_path);
  return status;
}

void oc__tree_close(oc__tree *tree) {
  for (size_t i = 0; i < tree->count; i++) free(tree->files[i].path);
  free(tree->files);
  tree->files = NULL;
  tree->count = tree->capacity = 0;
}

char *oc__tree_join(const oc__tree *tree, const char *path) {
  if (tree->is_file) return strdup(tree->root);
  size_t bytes = strlen(tree->root) + strlen(path) + 2;
  char *joined = malloc(bytes);
  if (joined) snprintf(joined, bytes, "%s/%s", tree->root, path);
  return joined;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

int oc__tree_is_record(const char *path) {
  const char *name = last_part(path);
  return strcmp(name, "opt_manifest.json") == 0 || fnmatch("opt_manifest.*.json", name, 0) == 0;
}

static oc_status report(const oc__compare *compare, const char *file, const char *side, const char *what, oc_err *err) {
  oc__compare here = *compare;
  char where[160];
  here.file = file;
  snprintf(where, sizeof where, "state of %s: %s", side, what);
  return oc__field_report(&here, "state", where, OC_VERDICT_UNFINISHED, err);
}

/* A run record, and what it says of the files that it covers: those in its folder and below. */
typedef struct record {
  const oc__tree_file *file;
  int64_t started_ns; /* INT64_MIN: unknown, or the run did not end, which is reported by itself */
} record;

typedef struct records {
  record *items;
  size_t count;
} records;

static int64_t time_of(const char *utc) {
  struct tm parts = {0};
  const char *rest = utc ? strptime(utc, "%Y-%m-%dT%H:%M:%SZ", &parts) : NULL;
  return rest && !*rest ? (int64_t)timegm(&parts) * 1000000000 : INT64_MIN;
}

static oc_status check_state(const oc__compare *compare, record *found, json_t *root, const char *side, oc_err *err) {
  const char *state = json_string_value(json_object_get(root, "state"));
  if (!state) return report(compare, found->file->path, side, "none that can be read", err);
  int ended = strcmp(state, "finished") == 0 || strcmp(state, "refused") == 0 || strcmp(state, "closed") == 0;
  if (!ended) return report(compare, found->file->path, side, state, err);
  found->started_ns = time_of(json_string_value(json_object_get(root, "started")));
  return OC_OK;
}

static oc_status read_record(const oc__compare *compare, const oc__tree *tree, record *found, const char *side,
                             oc_err *err) {
  char *path = oc__tree_join(tree, found->file->path);
  if (!path) return OC_FAIL(err, NO_MEM, 0, "path of a record");
  oc__slice bytes;
  oc_status status = oc__map_open(path, &bytes, err);
  free(path);
  if (status != OC_OK) return status;
  json_t *root = bytes.bytes > RECORD_BYTES_MAX ? NULL : json_loadb(bytes.data, bytes.bytes, 0, NULL);
  status = check_state(compare, found, root, side, err);
  json_decref(root);
  oc__map_close(&bytes);
  return status;
}

static oc_status find_records(const oc__tree *tree, records *out, oc_err *err) {
  *out = (records){0};
  size_t count = 0;
  for (size_t i = 0; i < tree->count; i++) count += oc__tree_is_record(tree->files[i].path) != 0;
  if (!count) return OC_OK;
  out->items = malloc(count * sizeof *out->items);
  if (!out->items) return OC_FAIL(err, NO_MEM, 0, "%zu records", count);
  for (size_t i = 0; i < tree->count; i++)
    if (oc__tree_is_record(tree->files[i].path)) out->items[out->count++] = (record){&tree->files[i], INT64_MIN};
  return OC_OK;
}

/* The folder of a record, its '/' included; 0 bytes for the root. */
static size_t folder_bytes(const char *path) { return strlen(path) - strlen(last_part(path)); }

/* When the runs of the nearest folder with a record at or above the file began and were written down last. Several
 * processes of a run leave a record each: the first start and the last writing count. */
typedef struct span {
  int64_t start_ns, end_ns; /* INT64_MIN, INT64_MAX: nothing is known, every time fits */
} span;

static span covering(const records *all, const char *path) {
  span time = {INT64_MIN, INT64_MAX};
  size_t nearest = 0;
  for (size_t i = 0; i < all->count; i++) {
    const record *r = &all->items[i];
    size_t bytes = folder_bytes(r->file->path);
    if (bytes < nearest || strncmp(path, r->file->path, bytes) != 0) continue;
    int is_first = time.end_ns == INT64_MAX || bytes > nearest;
    if (is_first || r->started_ns < time.start_ns) time.start_ns = r->started_ns;
    if (is_first || r->file->time_ns > time.end_ns) time.end_ns = r->file->time_ns;
    nearest = bytes;
  }
  return time;
}

static oc_status check_age(const oc__compare *compare, const records *all, const oc__tree_file *file, const char *side,
                           oc_err *err) {
  span time = covering(all, file->path);
  if (time.end_ns != INT64_MAX && file->time_ns > time.end_ns && file->time_ns - time.end_ns > SLACK_NS)
    return report(compare, file->path, side, "changed after the record was written", err);
  if (time.start_ns != INT64_MIN && file->time_ns < time.start_ns && time.start_ns - file->time_ns > SLACK_NS)
    return report(compare, file->path, side, "older than the run of the record", err);
  return OC_OK;
}

static oc_status check_all(const oc__compare *compare, const oc__tree *tree, const records *all, const char *side,
                           oc_err *err) {
  for (size_t i = 0; i < all->count; i++) OC_TRY(read_record(compare, tree, &all->items[i], side, err));
  for (size_t i = 0; i < tree->count; i++) {
    const oc__tree_file *file = &tree->files[i];
    if (!oc__tree_is_record(file->path) && !oc__rules_ignore(compare, file->path))
      OC_TRY(check_age(compare, all, file, side, err));
  }
  return OC_OK;
}

oc_status oc__tree_check_records(const oc__compare *compare, const oc__tree *tree, const char *side, oc_err *err) {
  records all;
  if (tree->is_file) return OC_OK;
  OC_TRY(find_records(tree, &all, err));
  oc_status status = all.count ? check_all(compare, tree, &all, side, err) : OC_OK;
  free(all.items);
  return status;
}
