/* SPDX-License-Identifier: Apache-2.0 */
/* opt_core run -- CMD: the way in where no .pth is read. The command runs as a child with a `sitecustomize` in front of
 * its PYTHONPATH; when a kit's variable is on, the child must leave a run record, or the run is refused by name. */
#define _GNU_SOURCE
#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RECORDS_MAX 4096

static error_t parse(int key, char *argument, struct argp_state *state) {
  char ***command = state->input;
  (void)argument;
  switch (key) {
  case ARGP_KEY_ARG: /* the rest belongs to the command, options and all */
    *command = &state->argv[state->next - 1];
    state->next = state->argc;
    return 0;
  case ARGP_KEY_NO_ARGS:
    argp_error(state, "a command is missing");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

const struct argp cli_run_argp = {
    .parser = parse,
    .args_doc = "[--] CMD [ARGUMENT...]",
    .doc = "Run CMD with the import hook in place, also where Python reads no .pth file of the kit."
           "\vThe exit status is CMD's own (128 + signal when one ended it; 127 when CMD is not found). When "
           "<ENGINE>_OPT of an "
           "installed kit is on and CMD leaves no run record, the run is refused: `NOT ACTIVE: hook: hook:absent`, one "
           "record "
           "that says so, and status 3 where CMD itself ended with 0."};

/* ---- the kits that are switched on ------------------------------------------------------------------------------- */

typedef struct active_kit {
  char variable[80];
  oc_mode mode;
} active_kit;

static oc_status check_variable(const char *name, size_t bytes, active_kit *found, oc_err *err) {
  active_kit kit = {.mode = OC_MODE_OFF};
  if (bytes == 0 || bytes >= sizeof kit.variable) return OC_OK;
  memcpy(kit.variable, name, bytes);
  OC_TRY(oc_mode_parse(getenv(kit.variable), &kit.mode, err));
  if (kit.mode != OC_MODE_OFF && found->mode == OC_MODE_OFF) *found = kit;
  return OC_OK;
}

/* Variables that python -m opt_core found installed. */
static oc_status check_installed(const char *list, active_kit *found, oc_err *err) {
  while (*list) {
    size_t bytes = strcspn(list, ",");
    OC_TRY(check_variable(list, bytes, found, err));
    list += bytes + (list[bytes] == ',');
  }
  return OC_OK;
}

/* Without that list: any <WORD>_OPT that holds a mode word. Other values belong to other programs. */
static oc_status check_environment(active_kit *found) {
  for (char **entry = environ; *entry; entry++) {
    size_t bytes = strcspn(*entry, "=");
    if (bytes <= 4 || memcmp(*entry + bytes - 4, "_OPT", 4) != 0) continue;
    (void)check_variable(*entry, bytes, found, NULL);
  }
  return OC_OK;
}

static oc_status find_active(active_kit *found, oc_err *err) {
  const char *list = getenv("OPT_CORE_KIT_VARIABLES");
  *found = (active_kit){.mode = OC_MODE_OFF};
  OC_TRY(list && *list ? check_installed(list, found, err) : check_environment(found));
  return found->mode == OC_MODE_OFF ? OC_OK : oc_environment_check(environ, err);
}

/* ---- where the hook is ------------------------------------------------------------------------------------------- */

static int has_bootstrap(const char *dir) {
  char path[PATH_MAX + 32];
  snprintf(path, sizeof path, "%s/sitecustomize.py", dir);
  return access(path, R_OK) == 0;
}

/* The folder beside the program's own: <package>/bin/opt_core -> <package>/_bootstrap. */
static int beside_program(char *out, size_t out_bytes) {
  char path[PATH_MAX];
  ssize_t bytes = readlink("/proc/self/exe", path, sizeof path - 1);
  if (bytes <= 0) return 0;
  path[bytes] = 0;
  for (int up = 0; up < 2; up++) {
    char *slash = strrchr(path, '/');
    if (!slash) return 0;
    *slash = 0;
  }
  return snprintf(out, out_bytes, "%s/_bootstrap", path) < (int)out_bytes;
}

static oc_status find_bootstrap(char *out, size_t out_bytes, oc_err *err) {
  const char *given = getenv("OPT_CORE_BOOTSTRAP");
  int found = given && *given ? snprintf(out, out_bytes, "%s", given) < (int)out_bytes : beside_program(out, out_bytes);
  if (found && has_bootstrap(out)) return OC_OK;
  return OC_REFUSE(err, HOOK, "no sitecustomize.py in %.120s", found ? out : "the program's folder");
}

static int prepend_path(const char *dir) {
  const char *before = getenv("PYTHONPATH");
  if (!before || !*before) return setenv("PYTHONPATH", dir, 1);
  size_t bytes = strlen(dir) + strlen(before) + 2;
  char *joined = malloc(bytes);
  if (!joined) return -1;
  snprintf(joined, bytes, "%s:%s", dir, before);
  int failed = setenv("PYTHONPATH", joined, 1);
  free(joined);
  return failed;
}

/* The hook goes in place in any case, for CMD may set the variable itself (`env <ENGINE>_OPT=fast python ...`). That it
 * cannot is refused only where a mode is on already. */
static oc_status put_hook(int is_needed, oc_err *err) {
  char dir[PATH_MAX];
  oc_err why = {0};
  if (find_bootstrap(dir, sizeof dir, &why) != OC_OK) {
    if (is_needed && err->status == OC_OK) *err = why;
    return is_needed ? OC_REFUSED : OC_OK;
  }
  return prepend_path(dir) == 0 ? OC_OK : OC_FAIL(err, NO_MEM, errno, "PYTHONPATH: %s", strerror(errno));
}

/* ---- run records ------------------------------------------------------------------------------------------------- */

typedef struct record {
  ino_t inode;
  struct timespec time;
} record;

/* A record is replaced by rename, so that one which was written has another inode or time than before. */
typedef struct records {
  char dir[PATH_MAX], stem[NAME_MAX + 1]; /* <dir>/<stem>.json, <dir>/<stem>.<pid>.json, ... */
  record *items;
  size_t count;
} records;

static int is_folder(const char *path) {
  struct stat facts;
  size_t bytes = strlen(path);
  return (bytes && path[bytes - 1] == '/') || (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode));
}

/* Absolute path of the record that is expected, from OPT_CORE_MANIFEST or the working folder. */
static int expected_record(char out[PATH_MAX]) {
  const char *given = getenv("OPT_CORE_MANIFEST");
  if (!given || !*given) given = "opt_manifest.json";
  char cwd[PATH_MAX] = "";
  if (given[0] != '/' && !getcwd(cwd, sizeof cwd)) return -1;
  int bytes =
      snprintf(out, PATH_MAX, "%s%s%s%s", cwd, cwd[0] ? "/" : "", given, is_folder(given) ? "/opt_manifest.json" : "");
  if (bytes >= PATH_MAX) errno = ENAMETOOLONG;
  return bytes < PATH_MAX ? 0 : -1;
}

static void split_record(const char *path, records *out) {
  const char *slash = strrchr(path, '/');
  size_t dir_bytes = slash == path ? 1 : (size_t)(slash - path), bytes = strlen(slash + 1);
  if (bytes > 5 && strcmp(slash + 1 + bytes - 5, ".json") == 0) bytes -= 5;
  if (bytes > NAME_MAX) bytes = NAME_MAX;
  *out = (records){.items = NULL};
  memcpy(out->dir, path, dir_bytes);
  memcpy(out->stem, slash + 1, bytes);
}

static int is_record(const records *r, const char *name) {
  size_t bytes = strlen(r->stem);
  return strncmp(name, r->stem, bytes) == 0 &&
         (strcmp(name + bytes, ".json") == 0 || fnmatch(".*.json", name + bytes, 0) == 0);
}

typedef int visitor(records *r, const struct stat *facts); /* 1: stop */

static int visit_records(records *r, visitor *visit) {
  DIR *dir = opendir(r->dir);
  int stop = 0;
  for (struct dirent *entry; dir && !stop && (entry = readdir(dir));) {
    struct stat facts;
    if (is_record(r, entry->d_name) && fstatat(dirfd(dir), entry->d_name, &facts, 0) == 0) stop = visit(r, &facts);
  }
  if (dir) closedir(dir);
  return stop;
}

static int remember(records *r, const struct stat *facts) {
  if (r->count == RECORDS_MAX) return 1;
  if (!r->items) r->items = calloc(RECORDS_MAX, sizeof *r->items);
  if (!r->items) return 1;
  r->items[r->count++] = (record){facts->st_ino, facts->st_mtim};
  return 0;
}

static int is_new(records *r, const struct stat *facts) {
  for (size_t i = 0; i < r->count; i++) {
    const record *old = &r->items[i];
    if (old->inode == facts->st_ino && old->time.tv_sec == facts->st_mtim.tv_sec &&
        old->time.tv_nsec == facts->st_mtim.tv_nsec)
      return 0;
  }
  return 1;
}

/* ---- the child --------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t child_pid;

/* What the terminal sends reaches the child by itself, as a member of the foreground group; what a process sends to us
 * alone is handed on. */
static void forward(int number, siginfo_t *info, void *context) {
  (void)context;
  int saved = errno;
  if (child_pid > 0 && info->si_code <= 0) kill((pid_t)child_pid, number);
  errno = saved;
}

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
enum { FORWARDED_COUNT = sizeof forwarded / sizeof forwarded[0] };

/* SIGHUP ignored by nohup stays ignored. */
static void forward_signals(void) {
  for (int i = 0; i < FORWARDED_COUNT; i++) {
    struct sigaction before, action = {.sa_flags = SA_SIGINFO | SA_RESTART};
    action.sa_sigaction = forward;
    sigemptyset(&action.sa_mask);
    if (sigaction(forwarded[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      sigaction(forwarded[i], &action, NULL);
  }
}

static void block_forwarded(sigset_t *before) {
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < FORWARDED_COUNT; i++) sigaddset(&set, forwarded[i]);
  sigprocmask(SIG_BLOCK, &set, before);
}

static void become(char **command) {
  execvp(command[0], command);
  int error = errno;
  fprintf(stderr, "opt_core: run: %s: %s\n", command[0], strerror(error));
  _exit(error == ENOENT ? CLI_NOT_FOUND : CLI_NOT_STARTED);
}

/* Exit status of the command as a shell would say it; -1 when no process could be made. */
static int run_child(char **command) {
  sigset_t before;
  int status;
  block_forwarded(&before); /* a signal that comes between fork and the handlers waits for them */
  pid_t pid = fork();
  if (pid == 0) {
    sigprocmask(SIG_SETMASK, &before, NULL);
    become(command);
  }
  child_pid = pid;
  if (pid > 0) forward_signals();
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (pid < 0) return -1;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return -1;
  child_pid = 0;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---- the refusal ------------------------------------------------------------------------------------------------- */

static void engine_of(const char *variable, char out[80]) {
  size_t bytes = strlen(variable) - strlen("_OPT");
  for (size_t i = 0; i < bytes; i++)
    out[i] = (char)(variable[i] >= 'A' && variable[i] <= 'Z' ? variable[i] + 32 : variable[i]);
  out[bytes] = 0;
}

/* A table for the record of a run in which no kit came to open one. */
static oc_status kit_of(const active_kit *active, oc_kit **kit, oc_err *err) {
  char engine[80], text[512];
  engine_of(active->variable, engine);
  int bytes =
      snprintf(text, sizeof text,
               "{\"schema\": 1, \"engine\": \"%s\", \"variable\": \"%s\", \"version\": \"0\", \"triggers\": [\"%s\"],"
               " \"levers\": [{\"name\": \"hook\", \"modes\": {\"%s\": \"require\"}}]}",
               engine, active->variable, engine, oc_mode_word(active->mode));
  return oc_kit_parse(text, (size_t)bytes, kit, err);
}

static oc_status record_absence(const active_kit *active, const oc_kit *kit, const char *path, int child, int *status,
                                oc_err *err) {
  oc_run_options options = {.struct_bytes = sizeof options, .kit = kit, .mode = active->mode, .manifest = path};
  oc_run *run;
  oc_err why = {0};
  OC_REFUSE(&why, HOOK, "absent, %s=%s and no run record was left at %.100s", active->variable,
            oc_mode_word(active->mode), path);
  OC_TRY(oc_run_open(&options, &run, err));
  oc_status opened = oc_run_refuse(run, "hook", &why, NULL);
  (void)opened; /* the refusal is what is wanted; close says how the run ends */
  oc_status closed = oc_run_close(run, child, status, NULL);
  (void)closed;
  oc_run_free(run);
  return OC_OK;
}

static int refuse_absent(const active_kit *active, const char *path, int child) {
  oc_kit *kit = NULL;
  oc_err err = {0};
  int status = child ? child : CLI_REFUSED;
  oc_status done = kit_of(active, &kit, &err);
  if (done == OC_OK) done = record_absence(active, kit, path, child, &status, &err);
  if (done != OC_OK) cli_failed("run", &err);
  oc_kit_free(kit);
  return status;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int run_plain(char **command) {
  int status = run_child(command);
  if (status < 0) perror("opt_core: run");
  return status < 0 ? CLI_NOT_STARTED : status;
}

static int run_active(const active_kit *active, char **command) {
  char path[PATH_MAX];
  records before;
  if (expected_record(path) != 0 || setenv("OPT_CORE_MANIFEST", path, 1) != 0) {
    perror("opt_core: run: OPT_CORE_MANIFEST");
    return CLI_USAGE;
  }
  split_record(path, &before);
  visit_records(&before, remember);
  int status = run_plain(command);
  /* Also where the command ended with 3: that number is a refusal of ours only where a record says so. */
  if (!visit_records(&before, is_new)) status = refuse_absent(active, path, status);
  free(before.items);
  return status;
}

int cli_run(int argc, char **argv) {
  char **command = NULL;
  active_kit active;
  oc_err err = {0};
  argp_parse(&cli_run_argp, argc, argv, ARGP_IN_ORDER, NULL, &command);
  if (find_active(&active, &err) != OC_OK) return cli_failed("run", &err);
  int is_on = active.mode != OC_MODE_OFF;
  if (put_hook(is_on, &err) != OC_OK) return cli_failed("hook", &err);
  return is_on ? run_active(&active, command) : run_plain(command);
}
