/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "record_fixture.h"

#include <locale.h>
#include <sys/file.h>
#include <time.h>

#include "util/file.h"

static void in_dir(char out[PATH_MAX + 300], const char *name) {
  snprintf(out, PATH_MAX + 300, "%s/%s", fixture_dir, name);
}

static void expect_path(const oc_run *run, const char *format, ...) {
  char name[256], path[PATH_MAX + 300];
  va_list args;
  va_start(args, format);
  vsnprintf(name, sizeof name, format, args);
  va_end(args);
  in_dir(path, name);
  assert_string_equal(oc_run_manifest_path(run), path);
}

static oc_run *serve_and_activate(oc_run_options options) {
  oc_run *run = fixture_open(options);
  assert_int_equal(oc_run_lever_active(run, ATTN, "cpu", NULL), OC_OK);
  assert_int_equal(oc_run_activated(run, NULL), OC_OK);
  fixture_serve(run, ATTN, "cpu", 3);
  return run;
}

static void expect_state(const char *path, const char *state, pid_t pid) {
  json_t *root = fixture_load(path);
  assert_string_equal(text_at(root, "state"), state);
  assert_int_equal(number_at(json_object_get(root, "process"), "pid"), pid);
  json_decref(root);
}

static void test_what_it_holds(void **state) {
  (void)state;
  setenv("AN_ENGINE_OPT", "fast", 1);
  setenv("OTHER_ENGINE_OPT", "big", 1);
  setenv("MODEL_OPT_LEVERS_OFF", "", 1);
  setenv("OMP_NUM_THREADS", "2", 1);
  setenv("OPT_CORE_CELLS", "", 1);
  setenv("A_SECRET", "s3", 1);
  time_t before = time(NULL);
  oc_run_options options = fixture_options(OC_MODE_FAST);
  options.levers_off = "mul";
  oc_run *run = fixture_open(options);
  oc_run_lever_begin(run, MUL, NULL);
  oc_run_lever_active(run, ATTN, "cpu", NULL);
  oc_run_patched(run, ATTN, "Block", 2, NULL);
  oc_run_fact(run, "torch", "2.11.0 \"quoted\" \xE2\x82\xAC", 0, NULL);
  oc_run_activated(run, NULL);
  expect_path(run, "opt_manifest.json");
  json_t *root = fixture_load(oc_run_manifest_path(run));
  assert_string_equal(text_at(root, "state"), "running");
  assert_true(json_is_null(json_object_get(root, "ended")));
  assert_true(json_is_null(json_object_get(root, "exit_status")));
  json_decref(root);
  fixture_serve(run, ATTN, "cpu", 6);
  oc_run_still_patched(run, ATTN, "Block", 2, NULL);
  assert_int_equal(oc_run_close(run, 0, NULL, NULL), OC_OK);
  root = fixture_load(oc_run_manifest_path(run));
  assert_int_equal(number_at(root, "schema"), 1);
  assert_string_equal(text_at(root, "state"), "finished");
  assert_string_equal(text_at(root, "engine"), "an_engine");
  assert_string_equal(text_at(root, "kit_version"), "0.3");
  assert_string_equal(text_at(root, "mode"), "fast");
  assert_string_equal(text_at(root, "levers_off"), "mul");
  assert_int_equal(number_at(root, "exit_status"), 0);
  assert_true(number_at(root, "wall_ns") > 0);
  assert_string_equal(text_at(json_object_get(root, "core"), "dir"), "/core dir");
  assert_string_equal(text_at(json_object_get(root, "core"), "version"), OC_VERSION_TEXT);
  assert_string_equal(text_at(json_object_get(root, "facts"), "torch"), "2.11.0 \"quoted\" \xE2\x82\xAC");
  const json_t *environment = json_object_get(root, "environment"), *process = json_object_get(root, "process");
  assert_string_equal(text_at(environment, "AN_ENGINE_OPT"), "fast");
  assert_string_equal(text_at(environment, "MODEL_OPT_LEVERS_OFF"), "");
  assert_string_equal(text_at(environment, "OMP_NUM_THREADS"), "2");
  assert_string_equal(text_at(environment, "OPT_CORE_CELLS"), "");
  assert_null(json_object_get(environment, "OTHER_ENGINE_OPT"));
  assert_null(json_object_get(environment, "A_SECRET"));
  assert_int_equal(number_at(process, "pid"), getpid());
  assert_true(number_at(process, "start_ticks") > 0);
  assert_true(json_is_false(json_object_get(process, "is_child")));
  assert_true(json_is_null(json_object_get(process, "rank")));
  assert_true(number_at(json_object_get(root, "memory"), "peak_bytes") > 100000);
  const json_t *levers = json_object_get(root, "levers"), *attn = json_array_get(levers, 0),
               *mul = json_array_get(levers, 1);
  assert_int_equal(json_array_size(levers), 3);
  assert_string_equal(text_at(attn, "state"), "served");
  assert_string_equal(text_at(attn, "policy"), "require");
  assert_string_equal(text_at(attn, "row"), "cpu");
  assert_int_equal(number_at(json_object_get(attn, "counts"), "hits"), 6);
  assert_string_equal(text_at(mul, "state"), "off");
  assert_string_equal(text_at(mul, "reason"), "off_by_user");
  const json_t *call = json_array_get(json_object_get(root, "calls"), 0);
  assert_string_equal(text_at(call, "lever"), "attn");
  assert_string_equal(text_at(call, "kind"), "hit");
  assert_string_equal(text_at(call, "name"), "cpu");
  assert_string_equal(text_at(call, "detail"), "cell1");
  assert_int_equal(number_at(call, "count"), 6);
  const json_t *instance = json_array_get(json_object_get(root, "instances"), 0);
  assert_int_equal(number_at(instance, "patched"), 2);
  assert_int_equal(number_at(instance, "still_patched"), 2);
  assert_int_equal(json_array_size(json_object_get(root, "accounting")), 0);
  struct tm parts;
  char today[16];
  strftime(today, sizeof today, "%Y-%m-%dT", gmtime_r(&before, &parts));
  assert_memory_equal(text_at(root, "started"), today, 11);
  assert_int_equal(strlen(text_at(root, "ended")), 20);
  json_decref(root);
  assert_int_equal(fixture_files(), 1); /* no temporary stayed */
  oc_run_free(run);
  unsetenv("AN_ENGINE_OPT");
  unsetenv("OPT_CORE_CELLS");
}

static void test_names(void **state) {
  (void)state;
  char path[PATH_MAX + 300];
  oc_run_options options = fixture_options(OC_MODE_FAST);
  in_dir(path, "run one.json");
  options.manifest = path;
  oc_run *run = fixture_open(options);
  expect_path(run, "run one.json");
  oc_run *second = fixture_open(options); /* the first is alive, in this very process */
  expect_path(second, "run one.%ld.json", (long)getpid());
  oc_run *third = fixture_open(options);
  expect_path(third, "run one.%ld.2.json", (long)getpid());
  oc_run_close(run, 0, NULL, NULL);
  oc_run *fourth = fixture_open(options); /* the first has ended: its name is free again */
  expect_path(fourth, "run one.json");
  oc_run_free(fourth);
  oc_run_free(third);
  oc_run_free(second);
  oc_run_free(run);
  options.manifest = fixture_dir;
  options.is_child = 1;
  run = fixture_open(options);
  expect_path(run, "opt_manifest.%ld.json", (long)getpid());
  oc_run_free(run);
  options.is_child = 0;
  setenv("RANK", "3", 1);
  run = fixture_open(options);
  expect_path(run, "opt_manifest.rank3.json");
  setenv("OPT_CORE_RANK", "12", 1);
  second = fixture_open(options);
  expect_path(second, "opt_manifest.rank12.json");
  third = fixture_open(options);
  expect_path(third, "opt_manifest.rank12.%ld.json", (long)getpid());
  oc_run_free(third);
  oc_run_free(second);
  oc_run_free(run);
  unsetenv("OPT_CORE_RANK");
  setenv("RANK", "first", 1); /* belongs to others, may be anything */
  run = fixture_open(options);
  expect_path(run, "opt_manifest.json");
  oc_run_free(run);
  in_dir(path, "plain");
  options.manifest = path;
  second = fixture_open(options);
  expect_path(second, "plain");
  oc_run_free(second);
}

/* The first number of the list is the rank, whatever else is set. */
static void test_ranks(void **state) {
  (void)state;
  static const char *const names[] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK", "OPT_CORE_RANK"};
  for (int i = 0; i < 5; i++) { /* each goes before those that were set already */
    char rank[16];
    snprintf(rank, sizeof rank, "%d", i + 3);
    setenv(names[i], rank, 1);
    oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
    expect_path(run, "opt_manifest.rank%d.json", i + 3);
    oc_run_free(run);
  }
  unsetenv("OPT_CORE_RANK");
  setenv("RANK", "-1", 1);
  setenv("SLURM_PROCID", "", 1);
  setenv("OMPI_COMM_WORLD_RANK", "12", 1);
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  expect_path(run, "opt_manifest.rank12.json");
  oc_run_free(run);
  for (int i = 0; i < 5; i++) unsetenv(names[i]);
}

/* A record by hand, of pid here or elsewhere. */
static void write_record(const char *name, const char *host, const char *state, pid_t pid) {
  char path[PATH_MAX + 300];
  in_dir(path, name);
  FILE *file = fopen(path, "w");
  fprintf(file, "{\"state\":\"%s\",\"process\":{\"host\":\"%s\",\"pid\":%ld,\"start_ticks\":1,\"serial\":1}}", state,
          host, (long)pid);
  assert_int_equal(fclose(file), 0);
}

static void expect_host(const char *name, const char *host) {
  char path[PATH_MAX + 300];
  in_dir(path, name);
  json_t *root = fixture_load(path);
  assert_string_equal(text_at(json_object_get(root, "process"), "host"), host);
  json_decref(root);
}

/* Nobody can ask another host whether its run lives: its `running` record stays, and pids may be the same there. */
static void test_another_host(void **state) {
  (void)state;
  char here[256], part[65], name[256];
  assert_int_equal(gethostname(here, sizeof here), 0);
  snprintf(part, sizeof part, "%.64s", here);
  for (char *at = part; *at; at++)
    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", *at)) *at = '-';
  oc_run_options options = fixture_options(OC_MODE_FAST);
  write_record("opt_manifest.json", "elsewhere.net", "running", getpid());
  oc_run *run = fixture_open(options);
  expect_path(run, "opt_manifest.%s.%ld.json", part, (long)getpid());
  oc_run *second = fixture_open(options);
  expect_path(second, "opt_manifest.%s.%ld.2.json", part, (long)getpid());
  oc_run_close(run, 0, NULL, NULL);
  expect_state(oc_run_manifest_path(run), "finished", getpid());
  expect_host("opt_manifest.json", "elsewhere.net");
  oc_run_free(second);
  oc_run_free(run);
  write_record("opt_manifest.json", "elsewhere.net", "finished", getpid()); /* ended: free for the next */
  run = fixture_open(options);
  expect_path(run, "opt_manifest.json");
  expect_host("opt_manifest.json", here);
  oc_run_free(run);
  write_record("opt_manifest.json", here, "running", getpid()); /* this host: that process is gone, its pid reused */
  run = fixture_open(options);
  expect_path(run, "opt_manifest.json");
  oc_run_free(run);
  options.is_child = 1; /* only another host's record brings the host into a name with a pid */
  snprintf(name, sizeof name, "opt_manifest.%ld.json", (long)getpid());
  write_record(name, "elsewhere.net", "running", getpid());
  run = fixture_open(options);
  expect_path(run, "opt_manifest.%s.%ld.json", part, (long)getpid());
  expect_host(name, "elsewhere.net");
  oc_run_free(run);
  options.is_child = 0;
  setenv("SLURM_PROCID", "5", 1);
  write_record("opt_manifest.rank5.json", "elsewhere.net", "running", 1);
  run = fixture_open(options);
  expect_path(run, "opt_manifest.rank5.%s.%ld.json", part, (long)getpid());
  oc_run_free(run);
  unsetenv("SLURM_PROCID");
}

/* A relative name means the directory at opening, wherever the engine goes later. */
static void test_relative_name(void **state) {
  (void)state;
  char here[PATH_MAX];
  assert_non_null(getcwd(here, sizeof here));
  assert_int_equal(chdir(fixture_dir), 0);
  oc_run_options options = fixture_options(OC_MODE_FAST);
  options.manifest = NULL;
  oc_run *run = fixture_open(options);
  options.manifest = "x.json";
  oc_run *other = fixture_open(options);
  assert_int_equal(chdir(here), 0);
  expect_path(run, "opt_manifest.json");
  expect_path(other, "x.json");
  oc_run_close(run, 0, NULL, NULL);
  expect_state(oc_run_manifest_path(run), "finished", getpid());
  oc_run_free(other);
  oc_run_free(run);
}

static void test_a_file_of_others_stays(void **state) {
  (void)state;
  static const char *const texts[] = {"my results", "{\"state\": \"running\"}", "[1]"};
  char path[PATH_MAX + 300];
  in_dir(path, "opt_manifest.json");
  for (int i = 0; i < 3; i++) {
    FILE *file = fopen(path, "w");
    fputs(texts[i], file);
    fclose(file);
    oc_run *run = serve_and_activate(fixture_options(OC_MODE_FAST));
    expect_path(run, "opt_manifest.%ld.json", (long)getpid());
    oc_run_close(run, 0, NULL, NULL);
    char back[64] = "";
    file = fopen(path, "r");
    assert_non_null(fgets(back, sizeof back, file));
    fclose(file);
    assert_string_equal(back, texts[i]);
    unlink(oc_run_manifest_path(run));
    oc_run_free(run);
  }
  FILE *file = fopen(path, "w"); /* an empty file is an invitation */
  fclose(file);
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  expect_path(run, "opt_manifest.json");
  oc_run_free(run);
}

/* A run that was killed leaves a whole manifest that says `running`; the next run sees that nobody holds it. */
static void test_killed_run(void **state) {
  (void)state;
  int pipes[2];
  assert_int_equal(pipe(pipes), 0);
  pid_t child = fork();
  if (child == 0) {
    oc_line_set_sink(NULL, NULL);
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    serve_and_activate(fixture_options(OC_MODE_FAST));
    if (write(pipes[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte, path[PATH_MAX + 300];
  assert_int_equal(read(pipes[0], &byte, 1), 1);
  in_dir(path, "opt_manifest.json");
  oc_run *beside = fixture_open(fixture_options(OC_MODE_FAST)); /* while it lives, its name is held */
  expect_path(beside, "opt_manifest.%ld.json", (long)getpid());
  oc_run_free(beside);
  kill(child, SIGKILL);
  oc_run *zombie = NULL;
  for (int tries = 0; tries < 500; tries++) { /* dead, not yet waited for: holds nothing */
    zombie = fixture_open(fixture_options(OC_MODE_FAST));
    if (strcmp(oc_run_manifest_path(zombie), path) == 0) break;
    oc_run_free(zombie);
    zombie = NULL;
    usleep(10000);
  }
  assert_non_null(zombie);
  oc_run_free(zombie);
  assert_int_equal(waitpid(child, NULL, 0), child);
  close(pipes[0]);
  close(pipes[1]);
}

static void test_killed_run_leaves_a_record(void **state) {
  (void)state;
  char path[PATH_MAX + 300];
  in_dir(path, "opt_manifest.json");
  pid_t child = fork();
  if (child == 0) {
    oc_line_set_sink(NULL, NULL);
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    serve_and_activate(fixture_options(OC_MODE_FAST));
    kill(getpid(), SIGKILL);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  expect_state(path, "running", child);
  json_t *root = fixture_load(path);
  assert_string_equal(text_at(json_array_get(json_object_get(root, "levers"), 0), "state"), "active");
  json_decref(root);
  oc_run *next = serve_and_activate(fixture_options(OC_MODE_FAST));
  expect_path(next, "opt_manifest.json");
  expect_state(path, "running", getpid());
  oc_run_free(next);
}

/* Many processes that open at once each end with a record of their own. */
static void test_processes_never_clobber(void **state) {
  (void)state;
  enum { PROCESSES = 8 };
  int go[2];
  assert_int_equal(pipe(go), 0);
  pid_t child[PROCESSES];
  for (int i = 0; i < PROCESSES; i++) {
    child[i] = fork();
    if (child[i]) continue;
    char byte;
    oc_line_set_sink(NULL, NULL);
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    close(go[1]);
    if (read(go[0], &byte, 1) != 0) _exit(9); /* all start when the parent closes the pipe */
    oc_run *run = serve_and_activate(fixture_options(OC_MODE_FAST));
    usleep(300000); /* all are open before the first closes */
    int status = 9;
    oc_run_close(run, 0, &status, NULL);
    _exit(status);
  }
  close(go[0]);
  close(go[1]);
  for (int i = 0; i < PROCESSES; i++) {
    int status;
    waitpid(child[i], &status, 0);
    assert_int_equal(status, 0);
  }
  assert_int_equal(fixture_files(), PROCESSES);
  int seen = 0;
  DIR *dir = opendir(fixture_dir);
  for (struct dirent *entry; (entry = readdir(dir));) {
    char path[PATH_MAX + 300];
    if (entry->d_name[0] == '.') continue;
    in_dir(path, entry->d_name);
    json_t *root = fixture_load(path);
    assert_string_equal(text_at(root, "state"), "finished");
    for (int i = 0; i < PROCESSES; i++)
      if (child[i] == (pid_t)number_at(json_object_get(root, "process"), "pid")) {
        child[i] = -1;
        seen++;
      }
    json_decref(root);
  }
  closedir(dir);
  assert_int_equal(seen, PROCESSES);
}

static void test_forked_child(void **state) {
  (void)state;
  oc_run *run = serve_and_activate(fixture_options(OC_MODE_FAST));
  oc_run_patched(run, ATTN, "Block", 2, NULL);
  oc_run_still_patched(run, ATTN, "Block", 2, NULL);
  pid_t idle = fork();
  if (idle == 0) { /* makes no call, ends well */
    int status = 9;
    oc_lever_counts counts = oc_run_counts(run, ATTN);
    oc_run_still_patched(run, ATTN, "Block", 2, NULL);
    if (counts.calls || counts.claims || counts.hits) _exit(8);
    _exit(oc_run_close(run, 0, &status, NULL) == OC_OK ? status : 7);
  }
  int status;
  waitpid(idle, &status, 0);
  assert_int_equal(status, 0);
  pid_t busy = fork();
  if (busy == 0) {
    fixture_serve(run, ATTN, "cpu", 5);
    oc_run_call(run, ATTN); /* and loses one: a child is held to its sums */
    int verdict = 9;
    oc_run_still_patched(run, ATTN, "Block", 2, NULL);
    oc_run_close(run, 0, &verdict, NULL);
    _exit(verdict);
  }
  waitpid(busy, &status, 0);
  assert_int_equal(WEXITSTATUS(status), 4);
  expect_path(run, "opt_manifest.json");
  expect_state(oc_run_manifest_path(run), "running", getpid()); /* the parent's file was left alone */
  char name[64], path[PATH_MAX + 300];
  snprintf(name, sizeof name, "opt_manifest.%ld.json", (long)busy);
  in_dir(path, name);
  json_t *root = fixture_load(path);
  assert_string_equal(text_at(root, "state"), "closed");
  assert_true(json_is_true(json_object_get(json_object_get(root, "process"), "is_child")));
  assert_int_equal(number_at(json_object_get(json_array_get(json_object_get(root, "levers"), 0), "counts"), "hits"), 5);
  assert_int_equal(number_at(json_object_get(root, "process"), "parent"), getpid());
  json_decref(root);
  assert_int_equal(oc_run_counts(run, ATTN).hits, 3);
  assert_int_equal(oc_run_close(run, 0, NULL, NULL), OC_OK);
  assert_int_equal(fixture_files(), 3);
  oc_run_free(run);
}

/* A process whose forked worker made all the calls and left by _exit has not served nothing. */
static void test_a_forked_worker_serves_for_its_parent(void **state) {
  (void)state;
  for (int serves = 0; serves < 2; serves++) {
    oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
    oc_run_lever_active(run, ATTN, "cpu", NULL);
    oc_run_activated(run, NULL);
    pid_t worker = fork();
    if (worker == 0) {
      if (serves) fixture_serve(run, ATTN, "cpu", 1);
      _exit(0);
    }
    waitpid(worker, NULL, 0);
    int status = 9;
    oc_run_close(run, 0, &status, NULL);
    assert_int_equal(status, serves ? 0 : 4);
    json_t *root = fixture_load(oc_run_manifest_path(run));
    const json_t *attn = json_array_get(json_object_get(root, "levers"), 0);
    assert_int_equal(json_is_true(json_object_get(attn, "served_in_child")), serves);
    assert_string_equal(text_at(attn, "state"), serves ? "served" : "closed");
    assert_int_equal(number_at(json_object_get(attn, "counts"), "hits"), 0);
    json_decref(root);
    oc_run_free(run);
  }
}

/* A manifest that cannot be written is one line, and the run goes on. */
static void test_failed_writes(void **state) {
  (void)state;
  char missing[PATH_MAX + 300];
  in_dir(missing, "no/such/dir/x.json");
  const char *const places[] = {"/proc/opt_manifest.json", missing};
  for (int i = 0; i < 2; i++) {
    fixture_bytes = 0;
    fixture_lines[0] = '\0';
    oc_run_options options = fixture_options(OC_MODE_FAST);
    options.manifest = places[i];
    oc_run *run = serve_and_activate(options);
    int status = 9;
    assert_int_equal(oc_run_close(run, 0, &status, NULL), OC_OK);
    assert_int_equal(status, 0);
    const char *note = strstr(fixture_lines, "[opt_core] NOTE manifest not written reason=io:");
    assert_non_null(note);
    assert_null(strstr(note + 12, " NOTE "));
    oc_run_free(run);
  }
  oc_run *run = serve_and_activate(fixture_options(OC_MODE_FAST));
  assert_int_equal(unlink(oc_run_manifest_path(run)), 0);
  assert_int_equal(rmdir(fixture_dir), 0); /* the directory goes while the run is on */
  assert_int_equal(oc_run_close(run, 0, NULL, NULL), OC_OK);
  assert_true(strstr(fixture_lines, "reason=io:") != NULL);
  assert_int_equal(mkdir(fixture_dir, 0700), 0);
  oc_run_free(run);
}

/* A directory that comes into being later is used from then on. */
static void test_directory_made_later(void **state) {
  (void)state;
  char dir[PATH_MAX + 300], path[PATH_MAX + 320];
  in_dir(dir, "out");
  snprintf(path, sizeof path, "%s/m.json", dir);
  oc_run_options options = fixture_options(OC_MODE_FAST);
  options.manifest = path;
  oc_run *run = fixture_open(options);
  assert_int_equal(mkdir(dir, 0700), 0);
  oc_run_activated(run, NULL);
  expect_state(path, "running", getpid());
  oc_run_free(run);
  unlink(path);
  rmdir(dir);
}

/* Somebody's lock on the directory delays a run, it does not stop it. */
static void test_foreign_lock(void **state) {
  (void)state;
  int fd = open(fixture_dir, O_RDONLY | O_DIRECTORY);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  alarm(30);
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  clock_gettime(CLOCK_MONOTONIC, &b);
  alarm(0);
  assert_true(b.tv_sec - a.tv_sec >= 1); /* it was waited for */
  expect_state(oc_run_manifest_path(run), "running", getpid());
  close(fd);
  oc_run_free(run);
}

static void test_no_locale_changes_it(void **state) {
  (void)state;
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
  int found = 0;
  for (int i = 0; i < 4 && !found; i++) found = setlocale(LC_ALL, names[i]) != NULL;
  if (!found) {
    print_message("skipped: no locale with a decimal comma is installed (de_DE, fr_FR)\n");
    skip();
  }
  oc_run *run = serve_and_activate(fixture_options(OC_MODE_FAST));
  assert_int_equal(oc_run_close(run, 0, NULL, NULL), OC_OK);
  setlocale(LC_ALL, "C");
  expect_state(oc_run_manifest_path(run), "finished", getpid());
  const char *wall = strstr(fixture_lines, "wall_s=");
  assert_non_null(wall);
  assert_non_null(memchr(wall, '.', 12));
  oc_run_free(run);
}

static void test_file_replace_and_read(void **state) {
  (void)state;
  char path[PATH_MAX + 300], *bytes;
  size_t count;
  in_dir(path, "f");
  assert_int_equal(oc__file_replace(path, "one\0two", 7, NULL), OC_OK);
  assert_int_equal(oc__file_replace(path,
                                    "1\0"
                                    "2",
                                    3, NULL),
                   OC_OK);
  assert_int_equal(oc__file_read(path, 3, &bytes, &count, NULL), OC_OK);
  assert_int_equal(count, 3);
  assert_memory_equal(bytes,
                      "1\0"
                      "2",
                      4);
  free(bytes);
  oc_err err = {0};
  assert_int_equal(oc__file_read(path, 2, &bytes, &count, &err), OC_BAD_ARG);
  assert_null(bytes);
  assert_non_null(strstr(err.detail, "3 bytes, the limit is 2"));
  oc_err directory = {0}, missing = {0};
  assert_int_equal(oc__file_read(fixture_dir, 99, &bytes, &count, &directory), OC_IO);
  assert_int_equal(oc__file_read("/no/such", 99, &bytes, &count, &missing), OC_IO);
  assert_int_equal(missing.native, ENOENT);
  in_dir(path, "d");
  mkdir(path, 0700);
  assert_int_equal(oc__file_replace(path, "x", 1, NULL), OC_IO); /* a directory is in the way: nothing stays behind */
  assert_int_equal(fixture_files(), 2);
  in_dir(path, "fifo");
  assert_int_equal(mkfifo(path, 0600), 0);
  alarm(10);
  assert_int_equal(oc__file_read(path, 99, &bytes, &count, NULL), OC_IO); /* does not wait for a writer */
  alarm(0);
  char out[8];
  static const char *const table[][2] = {{"a", "."},     {"/a", "/"}, {"b/a", "b"},
                                         {"/b/a", "/b"}, {"b/", "b"}, {"1234567/a", "1234567"}};
  for (int i = 0; i < 6; i++) {
    assert_int_equal(oc__file_directory(table[i][0], out, sizeof out), 1);
    assert_string_equal(out, table[i][1]);
  }
  assert_int_equal(oc__file_directory("12345678/a", out, sizeof out), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {FIXTURE_TEST(test_what_it_holds),
                                     FIXTURE_TEST(test_names),
                                     FIXTURE_TEST(test_ranks),
                                     FIXTURE_TEST(test_another_host),
                                     FIXTURE_TEST(test_relative_name),
                                     FIXTURE_TEST(test_a_file_of_others_stays),
                                     FIXTURE_TEST(test_killed_run),
                                     FIXTURE_TEST(test_killed_run_leaves_a_record),
                                     FIXTURE_TEST(test_processes_never_clobber),
                                     FIXTURE_TEST(test_forked_child),
                                     FIXTURE_TEST(test_a_forked_worker_serves_for_its_parent),
                                     FIXTURE_TEST(test_failed_writes),
                                     FIXTURE_TEST(test_directory_made_later),
                                     FIXTURE_TEST(test_foreign_lock),
                                     FIXTURE_TEST(test_no_locale_changes_it),
                                     FIXTURE_TEST(test_file_replace_and_read)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
