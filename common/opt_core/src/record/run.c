/* SPDX-License-Identifier: Apache-2.0 */
/* A run and its levers: the states, what is said at each step, and the verdict. Lines are gathered under the run's lock
 * and written after it is let go, because a sink may call back or fork. */
#define _GNU_SOURCE
#include "record/run.h"
#include "opt_core/version.h"
#include "record/line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { REASON_TEXT = OC_DETAIL_MAX + 64, EXIT_REFUSED = 3, EXIT_CLOSED = 4 };

const char *oc__lever_state_word(oc__lever_state state) {
  static const char *const words[] = {"declared", "active", "off", "refused", "served", "closed"};
  return words[state];
}

const char *oc__run_state_word(const oc_run *run) {
  if (!run->is_closed) return "running";
  return run->is_refused ? "refused" : run->is_failed ? "closed" : "finished";
}

static int64_t now(clockid_t clock, int64_t unit_ns) {
  struct timespec at = {0, 0};
  clock_gettime(clock, &at);
  return ((int64_t)at.tv_sec * 1000000000 + at.tv_nsec) / unit_ns;
}

void oc__process_init(oc__process *process) {
  process->pid = getpid();
  process->start_ticks = oc__process_start_ticks(process->pid);
  process->start_s = now(CLOCK_REALTIME, 1000000000);
  process->start_ns = now(CLOCK_MONOTONIC, 1);
}

/* Twice the room for items that fill their array; NULL without memory, and then item is as it was. */
static void *grow(void *item, size_t *capacity, size_t item_bytes) {
  size_t wider = *capacity ? *capacity * 2 : 16;
  void *moved = realloc(item, wider * item_bytes);
  if (moved) *capacity = wider;
  return moved;
}

static int has_room(oc__facts *list) {
  if (list->count < list->capacity) return 1;
  oc__fact *wider = grow(list->item, &list->capacity, sizeof *wider);
  if (wider) list->item = wider;
  return wider != NULL;
}

static oc_status no_memory(oc_err *err) { return OC_FAIL(err, NO_MEM, 0, "no memory for the run record"); }

/* Adds a line to the text; what does not fit, and the left_out fields, are counted in MORE. */
static void say_fitting(oc__text *out, oc_line *line, int64_t left_out) {
  char text[OC_LINE_MAX + 1];
  oc__text_add_bytes(out, text, oc__line_fit(line, left_out, text));
}

static void say(oc__text *out, oc_line *line) { say_fitting(out, line, 0); }

static void say_statement(oc__text *out, oc_line_kind kind, const char *name, const char *text) {
  oc_line line;
  oc__line_start(&line, kind);
  oc__line_add(&line, name[0] ? name : "-", NULL);
  oc__line_add(&line, text, NULL);
  say(out, &line);
}

/* Writes gathered lines one by one and frees them. A line that cannot be written is no failure of the run. */
static void emit(oc__text *lines) {
  const char *at = lines->data;
  while (at && *at) {
    const char *end = strchr(at, '\n') + 1; /* every line ends with one and holds no other */
    (void)oc__line_emit(at, (size_t)(end - at), NULL);
    at = end;
  }
  oc__text_free(lines);
}

/* Refuses with the word of `why`; a cause that is no refusal (no memory, a file) keeps its status word in the detail.
 */
static oc_status pass_on(const oc_err *why, oc_err *err) {
  char text[REASON_TEXT];
  oc_err_text(why, text, sizeof text);
  return oc_err_set(err, OC_REFUSED, why->reason, why->native, why->file, why->line, "%s",
                    why->status == OC_REFUSED ? why->detail : text);
}

/* ---- opening ---- */

/* Replaces the value of a key or adds it. */
static int set_fact(oc_run *run, const char *key, const char *value, int on_active_line) {
  char *copy = oc__text_copy(value);
  for (size_t i = 0; copy && i < run->facts.count; i++) {
    oc__fact *fact = &run->facts.item[i];
    if (strcmp(fact->key, key) != 0) continue;
    free(fact->value);
    fact->value = copy;
    fact->on_active_line = on_active_line;
    return 1;
  }
  char *name = oc__text_copy(key);
  if (copy && name && has_room(&run->facts)) {
    run->facts.item[run->facts.count++] = (oc__fact){name, copy, on_active_line};
    return 1;
  }
  free(copy);
  free(name);
  return 0;
}

/* Takes key (malloc'ed) and copies value. */
static int add_pair(oc__facts *list, char *key, const char *value) {
  char *copy = oc__text_copy(value);
  if (!key || !copy || !has_room(list)) {
    free(key);
    free(copy);
    return 0;
  }
  list->item[list->count++] = (oc__fact){key, copy, 0};
  return 1;
}

static int is_recorded(const oc_kit *kit, const char *name, size_t bytes) {
  static const char *const prefixes[] = {"MODEL_OPT_", "OPT_CORE_"};
  const char *names[] = {kit->variable, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"};
  for (int i = 0; i < 2; i++)
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return 1;
  for (int i = 0; i < 3; i++)
    if (strlen(names[i]) == bytes && memcmp(name, names[i], bytes) == 0) return 1;
  return 0;
}

static oc_status read_environment(oc_run *run, oc_err *err) {
  for (char **at = environ; at && *at; at++) {
    size_t bytes = strcspn(*at, "=");
    if ((*at)[bytes] != '=' || !is_recorded(run->kit, *at, bytes)) continue;
    oc__text name = {0};
    oc__text_add_bytes(&name, *at, bytes);
    if (!add_pair(&run->environment, oc__text_take(&name), *at + bytes + 1)) return no_memory(err);
  }
  return OC_OK;
}

static oc_status check_options(const oc_run_options *options, oc_err *err) {
  if (!options || options->struct_bytes < sizeof *options)
    return OC_FAIL(err, BAD_ARG, 0, "options of %zu bytes, this library reads %zu", options ? options->struct_bytes : 0,
                   sizeof *options);
  if (!options->kit) return OC_FAIL(err, BAD_ARG, 0, "kit is NULL");
  if ((unsigned)options->mode >= OC_MODE_COUNT || options->mode == OC_MODE_OFF)
    return OC_FAIL(err, BAD_ARG, 0, "mode %d opens no run", (int)options->mode);
  const char *census = options->census;
  if (census && census[0] && strcmp(census, "0") != 0 && strcmp(census, "1") != 0 && strcmp(census, "uncovered") != 0)
    return OC_REFUSE(err, ENVIRONMENT, "OPT_CORE_CELL_CENSUS_PRINT=%.40s (accepted: 0|1|uncovered)", census);
  return oc_levers_off_check(options->kit, options->levers_off, err);
}

enum { SHARED_BYTES = OC__KIT_LEVERS_MAX * sizeof(atomic_int) };

static atomic_int *share(void) {
  void *page = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); /* zeros */
  return page == MAP_FAILED ? NULL : page;
}

int oc__run_served_in_child(const oc_run *run, int lever) {
  return run->served_in_child && atomic_load_explicit(&run->served_in_child[lever], memory_order_relaxed);
}

static oc_status fill_run(oc_run *run, const oc_run_options *options, oc_err *err) {
  static atomic_int serial;
  run->kit = options->kit;
  run->mode = options->mode;
  run->is_child = options->is_child != 0;
  run->serial = atomic_fetch_add(&serial, 1) + 1;
  run->served_in_child = share();
  oc__ledger_reset(run);
  oc__process_init(&run->process);
  run->levers_off = oc__text_copy(options->levers_off ? options->levers_off : "");
  run->core_dir = oc__text_copy(options->core_dir ? options->core_dir : "");
  run->census = oc__text_copy(options->census && options->census[0] ? options->census : "1");
  if (!run->levers_off || !run->core_dir || !run->census) return no_memory(err);
  OC_TRY(oc__where_init(&run->where, options->manifest, run->is_child, run->process.pid, err));
  return read_environment(run, err);
}

static void free_pairs(oc__facts *list) {
  for (size_t i = 0; i < list->count; i++) {
    free(list->item[i].key);
    free(list->item[i].value);
  }
  free(list->item);
}

static void destroy(oc_run *run) {
  free_pairs(&run->facts);
  free_pairs(&run->environment);
  free_pairs(&run->binaries);
  free_pairs(&run->accounting);
  for (size_t i = 0; i < run->patched.count; i++) free(run->patched.item[i].what);
  free(run->patched.item);
  for (int i = 0; i < OC__KIT_LEVERS_MAX; i++) {
    free(run->lever[i].row);
    free(run->lever[i].reason);
  }
  oc__ledger_free(run);
  if (run->served_in_child) munmap(run->served_in_child, SHARED_BYTES);
  free(run->levers_off);
  free(run->core_dir);
  free(run->census);
  free(run->refused_name);
  pthread_mutex_destroy(&run->lock);
  free(run);
}

oc_status oc_run_open(const oc_run_options *options, oc_run **out, oc_err *err) {
  if (!out) return OC_FAIL(err, BAD_ARG, 0, "out is NULL");
  OC_TRY(check_options(options, err));
  oc_run *run = calloc(1, sizeof *run);
  if (!run) return no_memory(err);
  pthread_mutex_init(&run->lock, NULL);
  oc_status status = fill_run(run, options, err);
  if (status != OC_OK) {
    destroy(run);
    return status;
  }
  /* The first write claims the name. Where it fails, the next write tries again and says so. */
  (void)oc__manifest_write(run, NULL);
  oc__fork_register(run);
  *out = run;
  return OC_OK;
}

void oc_run_free(oc_run *run) {
  if (!run) return;
  oc__fork_unregister(run);
  destroy(run);
}

const char *oc_run_manifest_path(const oc_run *run) { return run ? run->where.path : ""; }

/* ---- facts ---- */

static oc_status check_open(const oc_run *run, oc_err *err) {
  return run->is_closed ? OC_FAIL(err, BAD_ARG, 0, "the run of %s has ended", run->kit->engine) : OC_OK;
}

static int is_reserved(const char *key) {
  static const char *const keys[] = {"engine", "mode", "core", "core_dir"};
  for (int i = 0; i < 4; i++)
    if (strcmp(keys[i], key) == 0) return 1;
  return 0;
}

oc_status oc_run_fact(oc_run *run, const char *key, const char *value, int on_active_line, oc_err *err) {
  if (!run || !key || !value) return OC_FAIL(err, BAD_ARG, 0, "run, key and value must be given");
  if (!key[0] || strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_.") != strlen(key))
    return OC_FAIL(err, BAD_ARG, 0, "fact `%.60s` is not of the letters a-z 0-9 _ .", key);
  if (on_active_line && is_reserved(key))
    return OC_FAIL(err, BAD_ARG, 0, "fact `%s`: the ACTIVE line has its own", key);
  pthread_mutex_lock(&run->lock);
  oc_status status = check_open(run, err);
  if (status == OC_OK && !set_fact(run, key, value, on_active_line != 0)) status = no_memory(err);
  pthread_mutex_unlock(&run->lock);
  return status;
}

oc_status oc_run_binary(oc_run *run, const char *path, const char *sha256, oc_err *err) {
  if (!run || !path || !sha256) return OC_FAIL(err, BAD_ARG, 0, "run, path and sha256 must be given");
  if (strlen(sha256) != 64 || strspn(sha256, "0123456789abcdef") != 64)
    return OC_FAIL(err, BAD_ARG, 0, "sha256 `%.70s` is not 64 lower-case hex digits", sha256);
  pthread_mutex_lock(&run->lock);
  oc_status status = check_open(run, err);
  if (status == OC_OK && !add_pair(&run->binaries, oc__text_copy(path), sha256)) status = no_memory(err);
  pthread_mutex_unlock(&run->lock);
  return status;
}

/* ---- levers ---- */

static oc_status check_lever(const oc_run *run, int lever, oc_err *err) {
  if (!run) return OC_FAIL(err, BAD_ARG, 0, "run is NULL");
  if (lever < 0 || lever >= run->kit->lever_count)
    return OC_FAIL(err, BAD_ARG, 0, "lever %d, the kit has %d", lever, run->kit->lever_count);
  return OC_OK;
}

/* A lever may leave `declared` once, and only in a mode that lists it. Under the lock. */
static oc_status check_declared(const oc_run *run, int lever, oc_err *err) {
  OC_TRY(check_open(run, err));
  const char *name = oc_kit_lever_name(run->kit, lever);
  if (oc_kit_lever_policy(run->kit, lever, run->mode) == OC_POLICY_ABSENT)
    return OC_FAIL(err, BAD_ARG, 0, "lever %s takes no part in mode %s", name, oc_mode_word(run->mode));
  if (run->lever[lever].state != OC__LEVER_DECLARED)
    return OC_FAIL(err, BAD_ARG, 0, "lever %s is %s, not declared", name,
                   oc__lever_state_word(run->lever[lever].state));
  return OC_OK;
}

static void say_lever(oc__text *out, const oc_run *run, int lever) {
  const oc__run_lever *at = &run->lever[lever];
  oc_line line;
  oc__line_start(&line, OC_LINE_LEVER);
  oc__line_add(&line, oc_kit_lever_name(run->kit, lever), NULL);
  oc__line_add(&line, oc__lever_state_word(at->state), NULL);
  oc__line_add(&line, "row", at->row ? at->row : "");
  if (at->reason) oc__line_add(&line, "reason", at->reason);
  say(out, &line);
}

/* declared -> state, with its texts. Under the lock. */
static oc_status move(oc_run *run, int lever, oc__lever_state state, const char *row, const char *reason,
                      oc__text *lines, oc_err *err) {
  OC_TRY(check_declared(run, lever, err));
  char *row_copy = oc__text_copy(row), *reason_copy = oc__text_copy(reason);
  if ((row && !row_copy) || (reason && !reason_copy)) {
    free(row_copy);
    free(reason_copy);
    return no_memory(err);
  }
  run->lever[lever].state = state;
  run->lever[lever].row = row_copy;
  run->lever[lever].reason = reason_copy;
  say_lever(lines, run, lever);
  return OC_OK;
}

oc_status oc_run_lever_begin(oc_run *run, int lever, oc_err *err) {
  OC_TRY(check_lever(run, lever, err));
  const char *name = oc_kit_lever_name(run->kit, lever);
  int off = oc_levers_off_has(run->levers_off, name, NULL);
  oc__text lines = {0};
  pthread_mutex_lock(&run->lock);
  oc_status status = off ? move(run, lever, OC__LEVER_OFF, NULL, oc_reason_word(OC_REASON_OFF_BY_USER), &lines, err)
                         : check_declared(run, lever, err);
  pthread_mutex_unlock(&run->lock);
  emit(&lines);
  if (status != OC_OK || !off) return status;
  return OC_REFUSE(err, OFF_BY_USER, "%s", name);
}

oc_status oc_run_lever_active(oc_run *run, int lever, const char *row, oc_err *err) {
  OC_TRY(check_lever(run, lever, err));
  oc__text lines = {0};
  pthread_mutex_lock(&run->lock);
  oc_status status = move(run, lever, OC__LEVER_ACTIVE, row ? row : "", NULL, &lines, err);
  pthread_mutex_unlock(&run->lock);
  emit(&lines);
  return status;
}

/* Marks the run refused; the first refusal stays. Under the lock. */
static void mark_refused(oc_run *run, const char *name, const oc_err *why) {
  if (run->is_refused) return;
  run->is_refused = 1;
  run->verdict = *why;
  run->refused_name = oc__text_copy(name); /* NULL without memory: the manifest then names nothing, the line did */
}

static oc_status check_why(const oc_err *why, oc_err *err) {
  if (!why || why->status == OC_OK) return OC_FAIL(err, BAD_ARG, 0, "a refusal needs a reason");
  return OC_OK;
}

oc_status oc_run_lever_refused(oc_run *run, int lever, const oc_err *why, oc_err *err) {
  OC_TRY(check_lever(run, lever, err));
  OC_TRY(check_why(why, err));
  oc_err cause = *why; /* why and err may be the same record */
  char text[REASON_TEXT];
  oc_err_text(&cause, text, sizeof text);
  const char *name = oc_kit_lever_name(run->kit, lever);
  oc__text lines = {0};
  pthread_mutex_lock(&run->lock);
  oc_status status = move(run, lever, OC__LEVER_REFUSED, NULL, text, &lines, err);
  int is_required = oc_kit_lever_policy(run->kit, lever, run->mode) == OC_POLICY_REQUIRE;
  if (status == OC_OK) {
    say_statement(&lines, OC_LINE_NOT_ACTIVE, name, text);
    if (is_required) mark_refused(run, name, &cause);
  }
  pthread_mutex_unlock(&run->lock);
  emit(&lines);
  if (status != OC_OK || !is_required) return status;
  return pass_on(&cause, err);
}

oc_status oc_run_refuse(oc_run *run, const char *name, const oc_err *why, oc_err *err) {
  if (!run || !name) return OC_FAIL(err, BAD_ARG, 0, "run and name must be given");
  OC_TRY(check_why(why, err));
  char text[REASON_TEXT];
  oc_err_text(why, text, sizeof text);
  oc__text lines = {0};
  pthread_mutex_lock(&run->lock);
  oc_status status = check_open(run, err);
  if (status == OC_OK) {
    mark_refused(run, name, why);
    say_statement(&lines, OC_LINE_NOT_ACTIVE, name, text);
  }
  pthread_mutex_unlock(&run->lock);
  emit(&lines);
  return status;
}

/* ---- instances ---- */

static oc__patched *find_patched(oc_run *run, int lever, const char *what) {
  for (size_t i = 0; i < run->patched.count; i++)
    if (run->patched.item[i].lever == lever && strcmp(run->patched.item[i].what, what) == 0)
      return &run->patched.item[i];
  if (run->patched.count == run->patched.capacity) {
    oc__patched *wider = grow(run->patched.item, &run->patched.capacity, sizeof *wider);
    if (!wider) return NULL;
    run->patched.item = wider;
  }
  char *copy = oc__text_copy(what);
  if (!copy) return NULL;
  oc__patched *item = &run->patched.item[run->patched.count++];
  *item = (oc__patched){.lever = lever, .what = copy};
  return item;
}

static oc_status count_patched(oc_run *run, int lever, const char *what, int64_t count, int is_exit, oc_err *err) {
  OC_TRY(check_lever(run, lever, err));
  if (!what || !what[0]) return OC_FAIL(err, BAD_ARG, 0, "patched objects need a name");
  if (count < 0) return OC_FAIL(err, BAD_ARG, 0, "%jd patched objects", (intmax_t)count);
  pthread_mutex_lock(&run->lock);
  oc_status status = check_open(run, err);
  oc__patched *item = status == OC_OK ? find_patched(run, lever, what) : NULL;
  if (status == OC_OK && !item) status = no_memory(err);
  if (item && is_exit) { /* whoever counts again at exit says the same once more */
    item->is_counted = 1;
    item->still = count;
  } else if (item && item->patched > INT64_MAX - count) {
    status = OC_FAIL(err, BAD_ARG, 0, "%jd patched objects", (intmax_t)count);
  } else if (item) {
    item->patched += count;
  }
  pthread_mutex_unlock(&run->lock);
  return status;
}

oc_status oc_run_patched(oc_run *run, int lever, const char *what, int64_t count, oc_err *err) {
  return count_patched(run, lever, what, count, 0, err);
}

oc_status oc_run_still_patched(oc_run *run, int lever, const char *what, int64_t count, oc_err *err) {
  return count_patched(run, lever, what, count, 1, err);
}

/* ---- the end of activation ---- */

static void say_active(oc__text *out, const oc_run *run) {
  oc_line line;
  oc__line_start(&line, OC_LINE_ACTIVE);
  oc__line_add(&line, "engine", run->kit->engine);
  oc__line_add(&line, "mode", oc_mode_word(run->mode));
  oc__line_add(&line, "core", oc_version());
  oc__line_add(&line, "core_dir", run->core_dir);
  int64_t left_out = 0;
  for (size_t i = 0; i < run->facts.count; i++) {
    const oc__fact *fact = &run->facts.item[i];
    if (fact->on_active_line && !oc__line_add(&line, fact->key, fact->value)) left_out++;
  }
  say_fitting(out, &line, left_out);
}

/* Writes the manifest; says once when that fails. Under the lock. */
static void record(oc_run *run, oc__text *lines) {
  oc_err why = {0};
  if (oc__manifest_write(run, &why) == OC_OK || run->is_noted) return;
  run->is_noted = 1;
  char text[REASON_TEXT];
  oc_err_text(&why, text, sizeof text);
  oc_line line;
  oc__line_start(&line, OC_LINE_NOTE);
  oc__line_add(&line, "manifest", NULL);
  oc__line_add(&line, "not", NULL);
  oc__line_add(&line, "written", NULL);
  oc__line_add(&line, "reason", text);
  oc__line_add(&line, "path", run->where.path);
  say(lines, &line);
}

oc_status oc_run_activated(oc_run *run, oc_err *err) {
  if (!run) return OC_FAIL(err, BAD_ARG, 0, "run is NULL");
  oc_host_floor floor = {"", "", ""};
  (void)oc_host_floor_here(&floor, NULL); /* a fact that cannot be had stays empty */
  oc__text lines = {0};
  pthread_mutex_lock(&run->lock);
  oc_status status = check_open(run, err);
  if (status == OC_OK && run->is_activated)
    status = OC_FAIL(err, BAD_ARG, 0, "the run of %s is activated already", run->kit->engine);
  if (status == OC_OK) {
    run->is_activated = 1;
    run->floor = floor;
    say_active(&lines, run);
    record(run, &lines);
  }
  pthread_mutex_unlock(&run->lock);
  emit(&lines);
  return status;
}

/* ---- the end of the run ---- */

static void fail(oc_run *run, oc__text *lines, const char *name, const char *what) {
  say_statement(lines, OC_LINE_ACCOUNTING, name, what);
  run->is_failed = 1;
  if (!run->is_refused) (void)OC_FAIL(&run->verdict, CLOSED, 0, "%s: %s", name, what);
  /* Without memory the manifest lacks the entry; its state and the line do not. */
  (void)add_pair(&run->accounting, oc__text_copy(name), what);
}

enum { WHAT_TEXT = 192 };

static void say_in_flight(oc__text *lines, const char *name, int64_t count) {
  char digits[24];
  oc_line line;
  snprintf(digits, sizeof digits, "%jd", (intmax_t)count);
  oc__line_start(&line, OC_LINE_NOTE);
  oc__line_add(&line, "calls", NULL);
  oc__line_add(&line, "in", NULL);
  oc__line_add(&line, "flight", NULL);
  oc__line_add(&line, "lever", name);
  oc__line_add(&line, "count", digits);
  say(lines, &line);
}

static void audit_sums(oc_run *run, oc__text *lines, int lever, int64_t calls_before, oc_lever_counts c) {
  char what[WHAT_TEXT];
  const char *name = oc_kit_lever_name(run->kit, lever);
  run->lever[lever].in_flight = oc__ledger_in_flight(run, lever, calls_before, c);
  if (run->lever[lever].in_flight) { /* they make up both differences below */
    say_in_flight(lines, name, run->lever[lever].in_flight);
    return;
  }
  if (c.calls != c.claims + c.stock) {
    snprintf(what, sizeof what, "%jd calls, but %jd claimed + %jd stock", (intmax_t)c.calls, (intmax_t)c.claims,
             (intmax_t)c.stock);
    fail(run, lines, name, what);
  }
  if (c.claims != c.hits + c.fallbacks) {
    snprintf(what, sizeof what, "%jd claimed, but %jd served + %jd fell back", (intmax_t)c.claims, (intmax_t)c.hits,
             (intmax_t)c.fallbacks);
    fail(run, lines, name, what);
  }
}

/* Was called, and served no call because each was left to the stock op. */
static int is_left_to_stock(oc_lever_counts c) { return c.stock > 0 && c.claims == 0 && c.hits == 0; }

/* What an active lever owes, and what another may not have. A worker may end without having served, and so may a
 * process whose forked worker served, and a run that was refused before it came to serve. */
static void audit_state(oc_run *run, oc__text *lines, int lever, oc_lever_counts c, int64_t patched, int was_refused) {
  char what[WHAT_TEXT] = "";
  int64_t least = oc__kit_lever_instances(run->kit, lever);
  if (run->lever[lever].state != OC__LEVER_ACTIVE) {
    if (c.calls || c.claims || c.hits || c.fallbacks || c.stock)
      snprintf(what, sizeof what, "%s, but counted %jd calls", oc__lever_state_word(run->lever[lever].state),
               (intmax_t)c.calls);
  } else if (run->is_child || was_refused) {
    return;
  } else if (patched < least) {
    snprintf(what, sizeof what, "%jd instances patched, the kit's table wants %jd", (intmax_t)patched, (intmax_t)least);
  } else if (c.hits == 0 && !is_left_to_stock(c) && !oc__run_served_in_child(run, lever)) {
    snprintf(what, sizeof what, "active, but served none of %jd calls", (intmax_t)c.calls);
  }
  if (what[0]) fail(run, lines, oc_kit_lever_name(run->kit, lever), what);
}

/* Every instance patched is still patched. A run that was refused may end before anybody counts. Returns how many were
 * patched. */
static int64_t audit_instances(oc_run *run, oc__text *lines, int lever, int was_refused) {
  int64_t patched = 0;
  for (size_t i = 0; i < run->patched.count; i++) {
    const oc__patched *item = &run->patched.item[i];
    if (item->lever != lever) continue;
    patched = patched > INT64_MAX - item->patched ? INT64_MAX : patched + item->patched;
    if (item->is_counted ? item->still == item->patched : item->patched == 0 || was_refused) continue;
    char what[WHAT_TEXT], still[40] = "not counted at exit";
    if (item->is_counted) snprintf(still, sizeof still, "%jd still patched", (intmax_t)item->still);
    snprintf(what, sizeof what, "%.80s: %jd patched, %s", item->what, (intmax_t)item->patched, still);
    fail(run, lines, oc_kit_lever_name(run->kit, lever), what);
  }
  return patched;
}

/* active -> refused, by the word that kept most of its calls stock. */
static void refuse_at_close(oc_run *run, oc__text *lines, int lever) {
  const oc__slot *slot = oc__ledger_most_stock(run, lever);
  const char *name = oc_kit_lever_name(run->kit, lever);
  if (!slot) return; /* only called where there is one */
  oc_err why = {0};
  (void)oc_err_set(&why, OC_REFUSED, oc_reason_find(slot->detail, strlen(slot->detail)), 0, __FILE__, __LINE__, "%s",
                   slot->name);
  char text[REASON_TEXT];
  oc_err_text(&why, text, sizeof text);
  say_statement(lines, OC_LINE_NOT_ACTIVE, name, text);
  const int is_off = why.reason == OC_REASON_OFF_BY_USER; /* what the user asked for refuses nothing */
  run->lever[lever].state = is_off ? OC__LEVER_OFF : OC__LEVER_REFUSED;
  run->lever[lever].reason = oc__text_copy(text); /* NULL without memory: the line said it */
  if (!is_off && oc_kit_lever_policy(run->kit, lever, run->mode) == OC_POLICY_REQUIRE) mark_refused(run, name, &why);
}

/* Where an active lever ends. A worker's, and that of a run that was refused early, may stay active. */
static void end_lever(oc_run *run, oc__text *lines, int lever, oc_lever_counts counts, int was_refused) {
  oc__lever_state *state = &run->lever[lever].state;
  if (*state != OC__LEVER_ACTIVE) return;
  if (run->is_failed)
    *state = OC__LEVER_CLOSED;
  else if (counts.hits || oc__run_served_in_child(run, lever))
    *state = OC__LEVER_SERVED;
  else if (is_left_to_stock(counts) && !run->is_child && !was_refused)
    refuse_at_close(run, lines, lever);
}

static void audit_lever(oc_run *run, oc__text *lines, int lever, int was_refused) {
  int was_failed = run->is_failed;
  run->is_failed = 0;
  int64_t calls_before = oc__ledger_calls(run, lever);
  oc_lever_counts counts = oc_run_counts(run, lever);
  audit_sums(run, lines, lever, calls_before, counts);
  int64_t patched = audit_instances(run, lines, lever, was_refused);
  audit_state(run, lines, lever, counts, patched, was_refused);
  end_lever(run, lines, lever, counts, was_refused);
  run->is_failed |= was_failed;
}

static void check_accounting(oc_run *run, oc__text *lines) {
  int was_refused = run->is_refused; /* before the close: one that the close refuses has run to its end */
  for (int i = 0; i < run->kit->lever_count; i++) audit_lever(run, lines, i, was_refused);
  int64_t misuse = atomic_load_explicit(&run->misuse, memory_order_relaxed);
  char what[WHAT_TEXT];
  snprintf(what, sizeof what, "%jd counts named no lever or no slot", (intmax_t)misuse);
  if (misuse) fail(run, lines, "-", what);
}

static void say_census(oc__text *lines, const oc_run *run) {
  oc__census census = {0};
  oc__ledger_census(run, &census);
  int is_wanted = strcmp(run->census, "1") == 0 || (strcmp(run->census, "uncovered") == 0 && census.has_uncovered);
  if (is_wanted) oc__census_line(&census, lines);
  oc__census_free(&census);
}

static void say_exit(oc__text *lines, const oc_run *run) {
  oc_lever_counts all = {0, 0, 0, 0, 0};
  for (int i = 0; i < run->kit->lever_count; i++) {
    oc_lever_counts c = oc_run_counts(run, i);
    all.calls += c.calls;
    all.hits += c.hits;
    all.fallbacks += c.fallbacks;
    all.stock += c.stock;
  }
  struct rusage usage = {0};
  getrusage(RUSAGE_SELF, &usage);
  const struct {
    const char *key;
    int64_t value;
  } numbers[] = {{"calls", all.calls},
                 {"hits", all.hits},
                 {"fallbacks", all.fallbacks},
                 {"stock", all.stock},
                 {"peak_mib", (int64_t)usage.ru_maxrss / 1024}};
  char text[5][24], status[16], wall[40];
  oc_line line;
  oc__line_start(&line, OC_LINE_EXIT);
  snprintf(status, sizeof status, "%d", run->exit_status);
  snprintf(wall, sizeof wall, "%jd.%03d", (intmax_t)(run->wall_ns / 1000000000), (int)(run->wall_ns / 1000000 % 1000));
  oc__line_add(&line, "status", status);
  oc__line_add(&line, "state", oc__run_state_word(run));
  for (int i = 0; i < 5; i++) {
    snprintf(text[i], sizeof text[i], "%jd", (intmax_t)numbers[i].value);
    oc__line_add(&line, numbers[i].key, text[i]);
  }
  oc__line_add(&line, "wall_s", wall);
  oc__line_add(&line, "manifest", run->where.path);
  say(lines, &line);
}

static int verdict_status(const oc_run *run) {
  if (run->engine_status) return run->engine_status;
  if (run->is_refused) return EXIT_REFUSED;
  return run->is_failed ? EXIT_CLOSED : 0;
}

/* Under the lock. */
static void end_run(oc_run *run, int engine_status, oc__text *lines) {
  check_accounting(run, lines);
  run->is_closed = 1;
  run->engine_status = engine_status;
  run->exit_status = verdict_status(run);
  run->end_s = now(CLOCK_REALTIME, 1000000000);
  run->wall_ns = now(CLOCK_MONOTONIC, 1) - run->process.start_ns;
  record(run, lines);
  say_census(lines, run);
  say_exit(lines, run);
}

oc_status oc_run_close(oc_run *run, int engine_status, int *exit_status, oc_err *err) {
  if (!run) return OC_FAIL(err, BAD_ARG, 0, "run is NULL");
  oc__text lines = {0};
  pthread_mutex_lock(&run->lock);
  if (!run->is_closed) end_run(run, engine_status, &lines);
  if (exit_status) *exit_status = run->exit_status;
  oc_err verdict = run->verdict;
  int is_refused = run->is_refused;
  pthread_mutex_unlock(&run->lock);
  emit(&lines);
  if (is_refused) return pass_on(&verdict, err);
  if (verdict.status == OC_OK) return OC_OK;
  return oc_err_set(err, OC_CLOSED, OC_REASON_NONE, 0, verdict.file, verdict.line, "%s", verdict.detail);
}
