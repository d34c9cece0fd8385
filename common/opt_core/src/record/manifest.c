/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest: its name, its text, and reading it back. Whole numbers only, so that no locale can change it. */
#define _GNU_SOURCE
#include "opt_core/cuda.h"
#include "opt_core/version.h"
#include "record/run.h"
#include "util/file.h"
#include "util/percent.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SCHEMA = 1, ATTEMPTS = 100, MANIFEST_MAX = 64 << 20 };
enum { NAME_ROOM = NAME_MAX - 128 }; /* the rest is for .rank<r>.<host>.<pid>.<n>.json */

/* ---- its name ---- */

static int is_directory(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Relative to the directory in force now: an engine may change it later. */
static int make_absolute(const char *path, char out[PATH_MAX]) {
  if (realpath(path, out)) return 1;
  char here[PATH_MAX];
  if (path[0] == '/')
    here[0] = '\0';
  else if (!getcwd(here, sizeof here - 1))
    return 0;
  int bytes = snprintf(out, PATH_MAX, "%s%s%s", here, path[0] == '/' ? "" : "/", path);
  return bytes > 0 && bytes < PATH_MAX;
}

static oc_status split_path(oc__where *where, const char *text, oc_err *err) {
  size_t bytes = strlen(text);
  char directory[PATH_MAX];
  const char *file = "opt_manifest.json";
  if (bytes >= sizeof directory)
    return OC_FAIL(err, BAD_ARG, 0, "manifest path of %zu bytes, the limit is %d", bytes, PATH_MAX);
  if (text[bytes - 1] == '/' || is_directory(text)) {
    memcpy(directory, text, bytes + 1);
  } else {
    const char *slash = strrchr(text, '/');
    oc__file_directory(text, directory, sizeof directory);
    file = slash ? slash + 1 : text;
  }
  size_t room = NAME_ROOM;
  if (strlen(file) > room)
    return OC_FAIL(err, BAD_ARG, 0, "manifest name of %zu bytes, the limit is %zu", strlen(file), room);
  if (!make_absolute(directory, where->directory) || strlen(where->directory) > PATH_MAX - NAME_MAX - 2)
    return OC_FAIL(err, BAD_ARG, 0, "manifest directory: the path is too long");
  snprintf(where->file, sizeof where->file, "%s", file);
  snprintf(where->stem, sizeof where->stem, "%s", file);
  size_t stem = strlen(where->stem);
  if (stem > 5 && strcmp(where->stem + stem - 5, ".json") == 0) where->stem[stem - 5] = '\0';
  return OC_OK;
}

/* -1 when text is no rank. */
static int parse_rank(const char *text) {
  size_t digits = strspn(text, "0123456789");
  return digits > 0 && digits <= 9 && !text[digits] ? atoi(text) : -1;
}

static oc_status read_rank(int *rank, oc_err *err) {
  static const char *const others[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
  const char *own = getenv("OPT_CORE_RANK");
  *rank = own && own[0] ? parse_rank(own) : -1;
  if (own && own[0] && *rank < 0) return OC_REFUSE(err, ENVIRONMENT, "OPT_CORE_RANK=%.40s (accepted: <n>)", own);
  for (int i = 0; i < 4 && *rank < 0; i++) {
    const char *text = getenv(others[i]); /* belongs to others and may mean anything */
    if (text) *rank = parse_rank(text);
  }
  return OC_OK;
}

/* The name of the attempt. snprintf only: it runs in forked children too. */
void oc__where_name(oc__where *where, int is_child, pid_t pid) {
  char name[NAME_MAX + 1], rank[24] = "", host[OC__HOST_MAX + 1] = "";
  if (where->rank >= 0) snprintf(rank, sizeof rank, ".rank%d", where->rank);
  if (where->has_host) snprintf(host, sizeof host, ".%s", where->host);
  int room = NAME_ROOM; /* split_path checked the stem; the compiler cannot see it */
  if (where->attempt > 1)
    snprintf(name, sizeof name, "%.*s%s%s.%ld.%d.json", room, where->stem, rank, host, (long)pid, where->attempt);
  else if (where->attempt == 1)
    snprintf(name, sizeof name, "%.*s%s%s.%ld.json", room, where->stem, rank, host, (long)pid);
  else if (is_child)
    snprintf(name, sizeof name, "%.*s.%ld.json", room, where->stem, (long)pid);
  else if (rank[0])
    snprintf(name, sizeof name, "%.*s%s.json", room, where->stem, rank);
  else
    snprintf(name, sizeof name, "%s", where->file);
  where->is_ours = 0;
  const char *slash = strcmp(where->directory, "/") == 0 ? "" : "/";
  snprintf(where->path, sizeof where->path, "%.*s%s%s", PATH_MAX - NAME_MAX - 2, where->directory, slash, name);
}

static void host_name(char out[256]) {
  if (gethostname(out, 255) != 0) out[0] = '\0';
  out[255] = '\0';
}

/* The host as a part of a file's name, where '.' ends a part. */
static void host_part(char out[OC__HOST_MAX]) {
  static const char kept[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  char host[256];
  host_name(host);
  size_t i = 0;
  for (; i < OC__HOST_MAX - 1 && host[i]; i++) out[i] = strchr(kept, host[i]) ? host[i] : '-';
  out[i] = '\0';
  if (i == 0) memcpy(out, "-", 2);
}

oc_status oc__where_init(oc__where *where, const char *text, int is_child, pid_t pid, oc_err *err) {
  OC_TRY(split_path(where, text && text[0] ? text : "opt_manifest.json", err));
  OC_TRY(read_rank(&where->rank, err));
  host_part(where->host);
  where->has_host = 0;
  where->attempt = 0;
  oc__where_name(where, is_child, pid);
  return OC_OK;
}

/* ---- who holds a name ---- */

/* Start of a process in clock ticks after boot; -1 when there is no such process, or only its zombie. */
int64_t oc__process_start_ticks(pid_t pid) {
  char path[48], text[1024];
  snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t bytes = read(fd, text, sizeof text - 1);
  close(fd);
  if (bytes <= 0) return -1;
  text[bytes] = '\0';
  /* The second field is the name in parentheses and may hold anything; the third, the state, follows the last ')'. */
  const char *at = strrchr(text, ')');
  if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X') return -1;
  at += 2;
  for (int field = 3; field < 22; field++) {
    at = strchr(at, ' ');
    if (!at) return -1;
    at++;
  }
  return strtoll(at, NULL, 10);
}

typedef enum holder { NOBODY, SOMEBODY, ANOTHER_HOST } holder;

/* Who holds the file that says `running`. A run on another host cannot be asked whether it lives: it counts as alive.
 */
static holder holder_of_running(const oc_run *run, const json_t *process) {
  char host[256];
  const char *at = json_string_value(json_object_get(process, "host"));
  int64_t pid = json_integer_value(json_object_get(process, "pid"));
  int64_t ticks = json_integer_value(json_object_get(process, "start_ticks"));
  int64_t serial = json_integer_value(json_object_get(process, "serial"));
  host_name(host);
  int is_here = at && strcmp(at, host) == 0;
  /* A host may change its name under a run: the file that this run wrote stays its own. */
  int is_own = pid == run->process.pid && serial == run->serial && (is_here || run->where.is_ours);
  if (!at || is_own) return NOBODY;
  if (!is_here) return ANOTHER_HOST;
  return pid > 0 && pid <= INT_MAX && oc__process_start_ticks((pid_t)pid) == ticks ? SOMEBODY : NOBODY;
}

/* Who holds the file at path: a run that may be alive and is not this one. A file that is no manifest is held too: it
 * belongs to someone. */
static holder find_holder(const oc_run *run, const char *path) {
  char *bytes;
  size_t count;
  /* What cannot be read is left alone, unless this run wrote it: a passing failure must not leave two records of one
   * run. */
  if (oc__file_read(path, MANIFEST_MAX, &bytes, &count, NULL) != OC_OK)
    return !run->where.is_ours && access(path, F_OK) == 0 ? SOMEBODY : NOBODY;
  json_t *root = json_loadb(bytes, count, 0, NULL);
  free(bytes);
  const json_t *process = json_object_get(root, "process");
  const char *state = json_string_value(json_object_get(root, "state"));
  holder found = count > 0 && !run->where.is_ours && (!process || !state) ? SOMEBODY : NOBODY;
  if (found == NOBODY && state && strcmp(state, "running") == 0) found = holder_of_running(run, process);
  json_decref(root);
  return found;
}

/* Locks the directory so that two processes do not both find a name free. Waits 2 s at most: somebody else's lock on
 * the directory must not hold a run up. Returns the descriptor to close, or -1 where there is nothing to lock. */
static int lock_directory(const char *directory) {
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct timespec pause = {0, 10 * 1000 * 1000};
  for (int tries = 0; fd >= 0 && tries < 200; tries++) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR)) break;
    nanosleep(&pause, NULL);
  }
  return fd;
}

/* Pids of two hosts may be the same: the host joins the name where another host's run holds it. Returns the holder of
 * the last name tried. */
static holder pick_name(oc_run *run) {
  oc__where *where = &run->where;
  holder found;
  while ((found = find_holder(run, where->path)) != NOBODY && where->attempt < ATTEMPTS) {
    int adds_host = found == ANOTHER_HOST && !where->has_host;
    where->has_host |= adds_host;
    if (!adds_host || where->attempt == 0) where->attempt++;
    oc__where_name(where, run->is_child, run->process.pid);
  }
  return found;
}

/* ---- its text ---- */

/* A string that is not UTF-8 (a path may be anything) is written with its bytes percent-coded. */
static json_t *string(const char *text) {
  if (!text) return json_null();
  json_t *out = json_string(text);
  if (out) return out;
  size_t bytes = strlen(text), room = 3 * bytes;
  char *coded = malloc(room + 1);
  if (!coded) return NULL;
  size_t count = oc__percent_encode(text, bytes, OC__PERCENT_SPACE_RAW, coded, room);
  out = json_stringn(coded, count);
  free(coded);
  return out;
}

static json_t *integer(int64_t value) { return json_integer((json_int_t)value); }

static void put(json_t *object, const char *key, json_t *value, int *failed) {
  if (json_object_set_new(object, key, value) != 0) *failed = 1; /* takes value, and copes with NULL on both sides */
}

static void append(json_t *list, json_t *value, int *failed) {
  if (json_array_append_new(list, value) != 0) *failed = 1;
}

static json_t *utc(int64_t seconds) {
  char text[32];
  time_t when = (time_t)seconds;
  struct tm parts;
  if (!gmtime_r(&when, &parts)) return json_null();
  snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02dZ", (parts.tm_year + 1900) % 10000, parts.tm_mon + 1,
           parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
  return json_string(text);
}

static json_t *core_json(const oc_run *run, int *failed) {
  json_t *out = json_object(), *parts = json_array();
  put(out, "version", string(oc_version()), failed);
  put(out, "abi", integer(oc_abi_version()), failed);
  put(out, "dir", string(run->core_dir), failed);
  for (int i = 0; oc_build_part(i)[0]; i++) append(parts, string(oc_build_part(i)), failed);
  put(out, "build", parts, failed);
  return out;
}

static json_t *process_json(const oc_run *run, int *failed) {
  char host[256], here[PATH_MAX];
  json_t *out = json_object();
  host_name(host);
  put(out, "pid", integer(run->process.pid), failed);
  put(out, "parent", integer(getppid()), failed);
  put(out, "serial", integer(run->serial), failed);
  put(out, "start_ticks", integer(run->process.start_ticks), failed);
  put(out, "host", string(host), failed);
  put(out, "cwd", string(getcwd(here, sizeof here) ? here : NULL), failed);
  put(out, "is_child", json_boolean(run->is_child), failed);
  put(out, "rank", run->where.rank >= 0 ? integer(run->where.rank) : json_null(), failed);
  return out;
}

static json_t *memory_json(int *failed) {
  struct rusage self = {0}, children = {0};
  getrusage(RUSAGE_SELF, &self);
  getrusage(RUSAGE_CHILDREN, &children);
  json_t *out = json_object();
  put(out, "peak_bytes", integer((int64_t)self.ru_maxrss * 1024), failed);
  put(out, "peak_children_bytes", integer((int64_t)children.ru_maxrss * 1024), failed);
  return out;
}

static json_t *floor_json(const oc_host_floor *have, int *failed) {
  json_t *out = json_object();
  put(out, "glibc", string(have->glibc), failed);
  put(out, "glibcxx", string(have->glibcxx), failed);
  put(out, "cxxabi", string(have->cxxabi), failed);
  return out;
}

static json_t *counts_json(const oc_run *run, int lever, int *failed) {
  oc_lever_counts counts = oc_run_counts(run, lever);
  json_t *out = json_object();
  put(out, "calls", integer(counts.calls), failed);
  put(out, "claims", integer(counts.claims), failed);
  put(out, "hits", integer(counts.hits), failed);
  put(out, "fallbacks", integer(counts.fallbacks), failed);
  put(out, "stock", integer(counts.stock), failed);
  return out;
}

static json_t *levers_json(const oc_run *run, int *failed) {
  static const char *const policies[] = {"absent", "record", "require"};
  json_t *out = json_array();
  for (int i = 0; i < run->kit->lever_count; i++) {
    const oc__run_lever *lever = &run->lever[i];
    json_t *row = json_object();
    put(row, "name", string(oc_kit_lever_name(run->kit, i)), failed);
    put(row, "family", string(oc_kit_lever_family(run->kit, i)), failed);
    put(row, "policy", string(policies[oc_kit_lever_policy(run->kit, i, run->mode)]), failed);
    put(row, "state", string(oc__lever_state_word(lever->state)), failed);
    put(row, "row", string(lever->row), failed);
    put(row, "reason", string(lever->reason), failed);
    put(row, "served_in_child", json_boolean(oc__run_served_in_child(run, i)), failed);
    put(row, "in_flight", integer(lever->in_flight), failed);
    put(row, "counts", counts_json(run, i, failed), failed);
    append(out, row, failed);
  }
  return out;
}

static json_t *calls_json(const oc_run *run, int *failed) {
  json_t *out = json_array();
  int slots = atomic_load_explicit(&run->slot_count, memory_order_acquire);
  for (int i = 0; i < slots; i++) {
    const oc__slot *slot = &run->slot[i];
    json_t *row = json_object();
    put(row, "lever", string(oc_kit_lever_name(run->kit, slot->lever)), failed);
    put(row, "kind", string(oc__slot_kind_word(slot->kind)), failed);
    put(row, "family", string(slot->family), failed);
    put(row, "name", string(slot->name), failed);
    put(row, "detail", string(slot->detail), failed);
    put(row, "count", integer(atomic_load_explicit(&slot->count, memory_order_relaxed)), failed);
    append(out, row, failed);
  }
  return out;
}

static json_t *instances_json(const oc_run *run, int *failed) {
  json_t *out = json_array();
  for (size_t i = 0; i < run->patched.count; i++) {
    const oc__patched *item = &run->patched.item[i];
    json_t *row = json_object();
    put(row, "lever", string(oc_kit_lever_name(run->kit, item->lever)), failed);
    put(row, "what", string(item->what), failed);
    put(row, "patched", integer(item->patched), failed);
    put(row, "still_patched", item->is_counted ? integer(item->still) : json_null(), failed);
    append(out, row, failed);
  }
  return out;
}

static json_t *facts_json(const oc__fact *fact, size_t count, int *failed) {
  json_t *out = json_object();
  for (size_t i = 0; i < count; i++) {
    json_t *key = string(fact[i].key); /* the name of an environment variable may be any bytes */
    put(out, key ? json_string_value(key) : "", string(fact[i].value), failed);
    json_decref(key);
  }
  return out;
}

static json_t *pairs_json(const oc__fact *fact, size_t count, const char *key, const char *value, int *failed) {
  json_t *out = json_array();
  for (size_t i = 0; i < count; i++) {
    json_t *row = json_object();
    put(row, key, string(fact[i].key), failed);
    put(row, value, string(fact[i].value), failed);
    append(out, row, failed);
  }
  return out;
}

static json_t *modules_json(int *failed) {
  enum { ROOM = 128 }; /* a family has a few a device; what is beyond is left out of the record */
  oc_cuda_module loaded[ROOM];
  json_t *out = json_array();
  const int count = oc_cuda_modules(loaded, ROOM);
  for (int i = 0; i < count && i < ROOM; i++) {
    json_t *row = json_object();
    put(row, "device", integer(loaded[i].device), failed);
    put(row, "package", string(loaded[i].package), failed);
    put(row, "key", string(loaded[i].key), failed);
    put(row, "sha256", string(loaded[i].sha256), failed);
    append(out, row, failed);
  }
  return out;
}

static json_t *libraries_json(int *failed) {
  json_t *out = json_object();
  for (int i = 0; i < OC_CUDA_LIBRARY_COUNT; i++) {
    char path[PATH_MAX];
    if (oc_cuda_library((oc_cuda_library_id)i, NULL, path, sizeof path, NULL) != OC_OK) continue;
    put(out, oc_cuda_library_word((oc_cuda_library_id)i), string(path), failed);
  }
  return out;
}

/* What runs on CUDA devices. A forked child cannot use them, and another thread of its parent may have held a lock that
 * nobody in the child will let go: it does not ask. */
static json_t *cuda_json(const oc_run *run, int *failed) {
  json_t *out = json_object();
  put(out, "modules", run->is_forked ? json_array() : modules_json(failed), failed);
  put(out, "libraries", run->is_forked ? json_object() : libraries_json(failed), failed);
  return out;
}

static json_t *refusal_json(const oc_run *run, int *failed) {
  if (!run->is_refused) return json_null();
  char text[OC_DETAIL_MAX + 64];
  oc_err_text(&run->verdict, text, sizeof text);
  json_t *out = json_object();
  put(out, "name", string(run->refused_name), failed);
  put(out, "reason", string(text), failed);
  return out;
}

static void put_run(const oc_run *run, json_t *out, int *failed) {
  int closed = run->is_closed;
  put(out, "schema", integer(SCHEMA), failed);
  put(out, "state", string(oc__run_state_word(run)), failed);
  put(out, "engine", string(run->kit->engine), failed);
  put(out, "kit_version", string(run->kit->version), failed);
  put(out, "mode", string(oc_mode_word(run->mode)), failed);
  put(out, "levers_off", string(run->levers_off ? run->levers_off : ""), failed);
  put(out, "started", utc(run->process.start_s), failed);
  put(out, "ended", closed ? utc(run->end_s) : json_null(), failed);
  put(out, "wall_ns", closed ? integer(run->wall_ns) : json_null(), failed);
  put(out, "engine_status", closed ? integer(run->engine_status) : json_null(), failed);
  put(out, "exit_status", closed ? integer(run->exit_status) : json_null(), failed);
}

/* malloc'ed text; NULL without memory. */
static char *manifest_text(const oc_run *run) {
  int failed = 0;
  json_t *out = json_object();
  put_run(run, out, &failed);
  put(out, "core", core_json(run, &failed), &failed);
  put(out, "process", process_json(run, &failed), &failed);
  put(out, "memory", memory_json(&failed), &failed);
  put(out, "host_floor", floor_json(&run->floor, &failed), &failed);
  put(out, "cells_overlay", string(oc_cells_overlay_digest()), &failed);
  put(out, "facts", facts_json(run->facts.item, run->facts.count, &failed), &failed);
  put(out, "environment", facts_json(run->environment.item, run->environment.count, &failed), &failed);
  put(out, "refusal", refusal_json(run, &failed), &failed);
  put(out, "levers", levers_json(run, &failed), &failed);
  put(out, "calls", calls_json(run, &failed), &failed);
  put(out, "instances", instances_json(run, &failed), &failed);
  put(out, "binaries", pairs_json(run->binaries.item, run->binaries.count, "path", "sha256", &failed), &failed);
  put(out, "cuda", cuda_json(run, &failed), &failed);
  put(out, "accounting", pairs_json(run->accounting.item, run->accounting.count, "lever", "what", &failed), &failed);
  char *json = failed ? NULL : json_dumps(out, JSON_INDENT(1));
  json_decref(out);
  if (!json) return NULL;
  oc__text text = {0};
  oc__text_format(&text, "%s\n", json);
  free(json);
  return oc__text_take(&text);
}

oc_status oc__manifest_write(oc_run *run, oc_err *err) {
  int lock = lock_directory(run->where.directory);
  oc_status status;
  if (pick_name(run) != NOBODY) {
    status = OC_FAIL(err, IO, EEXIST, "%s: held, and so are %d names beside it", run->where.path, ATTEMPTS);
  } else {
    char *text = manifest_text(run);
    status = text ? oc__file_replace(run->where.path, text, strlen(text), err)
                  : OC_FAIL(err, NO_MEM, 0, "no memory for the manifest");
    free(text);
    if (status == OC_OK) run->where.is_ours = 1;
  }
  if (lock >= 0) close(lock); /* lets the lock go */
  return status;
}

/* ---- reading it back ---- */

static oc_status bad(const char *path, const char *why, oc_err *err) {
  return OC_FAIL(err, BAD_ARG, 0, "%s: no manifest: %s", path, why);
}

static int find_kind(const char *word, oc_slot_kind *out) {
  for (int i = 0; word && i < OC_SLOT_KIND_COUNT; i++) {
    if (strcmp(word, oc__slot_kind_word((oc_slot_kind)i)) != 0) continue;
    *out = (oc_slot_kind)i;
    return 1;
  }
  return 0;
}

static oc_status read_calls(const json_t *calls, const char *path, oc__census *census, oc_err *err) {
  for (size_t i = 0; i < json_array_size(calls); i++) {
    const json_t *row = json_array_get(calls, i), *count = json_object_get(row, "count");
    const char *family = json_string_value(json_object_get(row, "family"));
    const char *name = json_string_value(json_object_get(row, "name"));
    const char *detail = json_string_value(json_object_get(row, "detail"));
    oc_slot_kind kind;
    if (!find_kind(json_string_value(json_object_get(row, "kind")), &kind) || !family || !name || !detail ||
        !json_is_integer(count) || json_integer_value(count) < 0)
      return OC_FAIL(err, BAD_ARG, 0, "%s: no manifest: calls[%zu] lacks a part", path, i);
    oc__census_add(census, kind, family, name, detail, json_integer_value(count));
  }
  return census->failed ? OC_FAIL(err, NO_MEM, 0, "no memory for the census") : OC_OK;
}

static oc_status read_root(const json_t *root, const char *path, oc__census *census, oc_err *err) {
  static const char *const states[] = {"running", "finished", "refused", "closed"};
  const json_t *schema = json_object_get(root, "schema"), *calls = json_object_get(root, "calls");
  const char *state = json_string_value(json_object_get(root, "state"));
  int known = 0;
  if (!json_is_object(root)) return bad(path, "no JSON object", err);
  if (!json_is_integer(schema)) return bad(path, "no schema number", err);
  if (json_integer_value(schema) != SCHEMA)
    return OC_FAIL(err, BAD_ARG, 0, "%s: schema %" JSON_INTEGER_FORMAT ", this core reads %d", path,
                   json_integer_value(schema), SCHEMA);
  for (int i = 0; state && i < 4; i++) known |= strcmp(state, states[i]) == 0;
  if (!known) return bad(path, "no known state", err);
  if (!json_is_array(calls)) return bad(path, "no calls", err);
  return read_calls(calls, path, census, err);
}

oc_status oc_manifest_census(const char *path, char **text, oc_err *err) {
  if (!path || !text) return OC_FAIL(err, BAD_ARG, 0, "path and text must be given");
  char *bytes;
  size_t count;
  OC_TRY(oc__file_read(path, MANIFEST_MAX, &bytes, &count, err));
  json_t *root = json_loadb(bytes, count, JSON_REJECT_DUPLICATES, NULL);
  free(bytes);
  oc__census census = {0};
  oc_status status = read_root(root, path, &census, err);
  json_decref(root);
  if (status == OC_OK) {
    oc__text out = {0};
    oc__census_sort(&census);
    oc__census_lines(&census, &out);
    *text = oc__text_take(&out);
    if (!*text) status = OC_FAIL(err, NO_MEM, 0, "no memory for the census");
  }
  oc__census_free(&census);
  return status;
}

void oc_text_free(char *text) { free(text); }
