/* SPDX-License-Identifier: Apache-2.0 */
/* opt_core doctor: facts first, as one JSON value; the page for people is printed from it. */
#define _GNU_SOURCE
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEY_JSON = 256 };

static const struct argp_option options[] = {{"json", KEY_JSON, NULL, 0, "print as JSON", 0}, {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
  int *as_json = state->input;
  switch (key) {
  case KEY_JSON:
    *as_json = 1;
    return 0;
  case ARGP_KEY_ARG:
    argp_error(state, "too many arguments: `%s`", argument);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

const struct argp cli_doctor_argp = {.options = options,
                                     .parser = parse,
                                     .doc = "Say what this machine and this interpreter offer: processor, device, "
                                            "which members can serve here and which refuse "
                                            "with which word, the hook, the installed kits, the environment."
                                            "\vExit status 1 when something is wrong: a variable that nobody knows, a "
                                            "table that does not parse, a hook that will "
                                            "not run. A part that is not there (no GPU) is a fact, not a fault."};

/* ---- facts of the machine ---------------------------------------------------------------------------------------- */

typedef struct report {
  json_t *root, *problems;
} report;

static json_t *text_of(const oc_err *err) {
  char text[OC_DETAIL_MAX + 64];
  oc_err_text(err, text, sizeof text);
  return json_string(text);
}

static void add_problem(report *r, const oc_err *err) { json_array_append_new(r->problems, text_of(err)); }

static json_t *parts_value(void) {
  json_t *parts = json_array();
  for (int i = 0; oc_build_part(i)[0]; i++) json_array_append_new(parts, json_string(oc_build_part(i)));
  return parts;
}

static json_t *cpu_value(report *r, oc_isa *isa) {
  const oc_cpu *cpu = oc_cpu_facts();
  oc_err err = {0};
  *isa = OC_ISA_GENERIC;
  if (oc_cpu_isa(isa, &err) != OC_OK) add_problem(r, &err);
  return json_pack("{s:s, s:s, s:s, s:s, s:i, s:b, s:b}", "vendor", cpu->vendor, "model", cpu->model, "isa",
                   oc_isa_word(cpu->isa), "isa_in_use", oc_isa_word(*isa), "threads", oc_cpu_threads(), "avx512_bf16",
                   cpu->has_avx512_bf16, "amx_bf16", cpu->has_amx_bf16);
}

/* Device 0, for which members are asked: its sm, or why there is none. */
typedef struct cuda_here {
  oc_err err;
  int sm;
} cuda_here;

static json_t *cuda_value(cuda_here *cuda) {
  oc_cuda_device d;
  if (oc_cuda_device_facts(0, &d, &cuda->err) != OC_OK) return json_pack("{s:o}", "refusal", text_of(&cuda->err));
  cuda->sm = d.sm;
  return json_pack("{s:i, s:i, s:s, s:s, s:I}", "ordinal", d.ordinal, "sm", d.sm, "name", d.name, "uuid", d.uuid,
                   "memory_bytes", (json_int_t)d.memory_bytes);
}

static json_t *host_value(void) {
  oc_host_floor floor;
  oc_err err = {0};
  if (oc_host_floor_here(&floor, &err) != OC_OK) return json_pack("{s:o}", "refusal", text_of(&err));
  return json_pack("{s:s, s:s, s:s}", "glibc", floor.glibc, "glibcxx", floor.glibcxx, "cxxabi", floor.cxxabi);
}

/* Whether the member can run here, else the word that it refuses with. */
static json_t *refusal_of(const oc_member *member, oc_isa isa, const cuda_here *cuda) {
  oc_err err = {0};
  if (strcmp(member->device, "cpu") != 0) {
    if (cuda->err.status != OC_OK) return text_of(&cuda->err);
    return oc_gate_arch(cuda->sm, member->device, &err) == OC_OK ? json_null() : text_of(&err);
  }
  if (member->isa <= isa) return json_null();
  OC_REFUSE(&err, ARCH, "%s!=%s", oc_isa_word(isa), oc_isa_word(member->isa));
  return text_of(&err);
}

static json_t *flags_value(unsigned flags) {
  static const struct {
    unsigned flag;
    const char *word;
  } known[] = {{OC_MEMBER_EXACT, "exact"},
               {OC_MEMBER_DETERMINISTIC, "deterministic"},
               {OC_MEMBER_ROWWISE, "rowwise"},
               {OC_MEMBER_REFERENCE, "reference"}};
  json_t *words = json_array();
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (flags & known[i].flag) json_array_append_new(words, json_string(known[i].word));
  return words;
}

static json_t *members_value(oc_isa isa, const cuda_here *cuda) {
  json_t *list = json_array();
  for (int family = 0; family < OC_FAMILY_COUNT; family++) {
    int count = 0;
    const oc_member *members = oc_family_members((oc_family)family, &count);
    for (int i = 0; i < count; i++)
      json_array_append_new(list,
                            json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o}", "family",
                                      oc_family_word((oc_family)family), "row", members[i].row, "name", members[i].name,
                                      "device", members[i].device, "isa", oc_isa_word(members[i].isa), "flags",
                                      flags_value(members[i].flags), "refusal", refusal_of(&members[i], isa, cuda)));
  }
  return list;
}

static json_t *cells_value(report *r) {
  json_t *families = json_object();
  for (int family = 0; family < OC_FAMILY_COUNT; family++) {
    const oc_cells *cells;
    oc_err err = {0};
    if (oc_cells_in_force((oc_family)family, &cells, &err) != OC_OK) {
      add_problem(r, &err);
      continue;
    }
    json_object_set_new(families, oc_family_word((oc_family)family), json_integer(oc_cells_count(cells)));
  }
  return json_pack("{s:s, s:o}", "overlay", oc_cells_overlay_digest(), "families", families);
}

/* Each OPT_CORE_* variable by itself, so that every unknown one is named and not the first alone. */
static json_t *environment_value(report *r) {
  json_t *set = json_object();
  for (char **entry = environ; *entry; entry++) {
    if (strncmp(*entry, "OPT_CORE_", 9) != 0) continue;
    char *const alone[] = {*entry, NULL};
    oc_err err = {0};
    if (oc_environment_check(alone, &err) != OC_OK) add_problem(r, &err);
    size_t bytes = strcspn(*entry, "=");
    char *name = strndup(*entry, bytes);
    json_t *value = json_string((*entry)[bytes] ? *entry + bytes + 1 : "");
    if (name && value)
      json_object_set_new(set, name, value); /* a value that is no UTF-8 is left out */
    else
      json_decref(value);
    free(name);
  }
  return set;
}

/* ---- the interpreter --------------------------------------------------------------------------------------------- */

static void become_python(const char *python, int output) {
  if (dup2(output, STDOUT_FILENO) < 0) _exit(CLI_NOT_STARTED);
  execlp(python, python, "-m", "opt_core.doctor", "--json", (char *)NULL);
  _exit(errno == ENOENT ? CLI_NOT_FOUND : CLI_NOT_STARTED);
}

static json_t *python_failed(const char *python, const char *why) {
  return json_pack("{s:s, s:s}", "executable", python, "failed", why);
}

static json_t *read_answer(const char *python, FILE *answer, pid_t pid) {
  json_error_t why;
  json_t *value = json_loadf(answer, 0, &why);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  if (value) return value;
  if (WIFEXITED(status) && WEXITSTATUS(status) == CLI_NOT_FOUND) return python_failed(python, "not found");
  return python_failed(python, "it did not answer with JSON; is opt_core installed there?");
}

static json_t *ask_python(const char *python) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return python_failed(python, strerror(errno));
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) become_python(python, ends[1]);
  close(ends[1]);
  FILE *answer = pid < 0 ? NULL : fdopen(ends[0], "r");
  if (!answer) {
    close(ends[0]);
    return python_failed(python, strerror(errno));
  }
  json_t *value = read_answer(python, answer, pid);
  fclose(answer);
  return value;
}

static json_t *python_value(report *r) {
  const char *python = getenv("OPT_CORE_PYTHON");
  if (!python || !*python) return json_null();
  json_t *value = ask_python(python);
  json_t *problems = json_object_get(value, "problems");
  if (json_is_array(problems)) json_array_extend(r->problems, problems);
  const char *failed = json_string_value(json_object_get(value, "failed"));
  if (failed) json_array_append_new(r->problems, json_sprintf("python %s: %s", python, failed));
  return value;
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static const char *text_at(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static void print_words(const char *title, const json_t *words) {
  printf("%-12s", title);
  for (size_t i = 0; i < json_array_size(words); i++) printf(" %s", json_string_value(json_array_get(words, i)));
  putchar('\n');
}

static void print_machine(const json_t *root) {
  const json_t *cpu = json_object_get(root, "cpu"), *cuda = json_object_get(root, "cuda"),
               *host = json_object_get(root, "host");
  printf("%-12s %s\n", "opt_core", text_at(root, "version"));
  print_words("parts", json_object_get(root, "parts"));
  printf("%-12s %s, isa %s (in use: %s), %lld threads\n", "cpu", text_at(cpu, "model"), text_at(cpu, "isa"),
         text_at(cpu, "isa_in_use"), (long long)json_integer_value(json_object_get(cpu, "threads")));
  printf("%-12s glibc %s, glibcxx %s, cxxabi %s\n", "host", text_at(host, "glibc"), text_at(host, "glibcxx"),
         text_at(host, "cxxabi"));
  if (json_object_get(cuda, "refusal"))
    printf("%-12s %s\n", "cuda", text_at(cuda, "refusal"));
  else
    printf("%-12s %s, sm_%lld\n", "cuda", text_at(cuda, "name"),
           (long long)json_integer_value(json_object_get(cuda, "sm")));
}

static void print_members(const json_t *members) {
  for (size_t i = 0; i < json_array_size(members); i++) {
    const json_t *member = json_array_get(members, i);
    const char *refusal = text_at(member, "refusal");
    printf("%-12s %-14s %-14s %-16s %s%s%s\n", i ? "" : "members", text_at(member, "family"), text_at(member, "row"),
           text_at(member, "name"), cli_colour(stdout, *refusal ? "\033[33m" : "\033[32m"),
           *refusal ? refusal : "serves", cli_colour(stdout, "\033[0m"));
  }
}

static void print_cells(const json_t *cells) {
  const char *overlay = text_at(cells, "overlay"), *family;
  json_t *count;
  printf("%-12s", "cells");
  json_object_foreach(json_object_get(cells, "families"), family, count)
      printf(" %s=%lld", family, (long long)json_integer_value(count));
  printf("%s%s\n", *overlay ? ", overlay " : ", no overlay", overlay);
}

static void print_python(const json_t *python) {
  if (json_is_null(python)) {
    printf("%-12s not asked: OPT_CORE_PYTHON is not set (python -m opt_core doctor sets it)\n", "python");
    return;
  }
  printf("%-12s %s %s\n", "python", text_at(python, "executable"), text_at(python, "version"));
  printf("%-12s %s\n", "hook", text_at(python, "hook"));
  const json_t *kits = json_object_get(python, "kits"), *packages = json_object_get(python, "packages");
  if (json_array_size(kits) == 0) printf("%-12s none installed\n", "kits");
  for (size_t i = 0; i < json_array_size(kits); i++) {
    const json_t *kit = json_array_get(kits, i);
    printf("%-12s %s %s, %s=%s, hook file: %s\n", i ? "" : "kits", text_at(kit, "engine"), text_at(kit, "version"),
           text_at(kit, "variable"), text_at(kit, "value"), text_at(kit, "file"));
  }
  const char *name;
  json_t *version;
  printf("%-12s", "packages");
  json_object_foreach((json_t *)(uintptr_t)packages, name, version)
      printf(" %s %s", name, json_is_string(version) ? json_string_value(version) : "-");
  putchar('\n');
}

static void print_problems(const json_t *problems) {
  for (size_t i = 0; i < json_array_size(problems); i++)
    printf("%s%-12s%s %s\n", cli_colour(stdout, "\033[31m"), "problem", cli_colour(stdout, "\033[0m"),
           json_string_value(json_array_get(problems, i)));
  if (json_array_size(problems) == 0) printf("%-12s none\n", "problems");
}

static void print_page(const report *r) {
  print_machine(r->root);
  print_members(json_object_get(r->root, "members"));
  print_cells(json_object_get(r->root, "cells"));
  print_python(json_object_get(r->root, "python"));
  print_problems(r->problems);
}

int cli_doctor(int argc, char **argv) {
  int as_json = 0;
  oc_isa isa;
  cuda_here cuda = {0};
  argp_parse(&cli_doctor_argp, argc, argv, 0, NULL, &as_json);
  report r = {.root = json_object(), .problems = json_array()};
  json_object_set_new(r.root, "schema", json_integer(1));
  json_object_set_new(r.root, "version", json_string(oc_version()));
  json_object_set_new(r.root, "abi", json_integer(oc_abi_version()));
  json_object_set_new(r.root, "parts", parts_value());
  json_object_set_new(r.root, "cpu", cpu_value(&r, &isa));
  json_object_set_new(r.root, "host", host_value());
  json_object_set_new(r.root, "cuda", cuda_value(&cuda));
  json_object_set_new(r.root, "members", members_value(isa, &cuda));
  json_object_set_new(r.root, "cells", cells_value(&r));
  json_object_set_new(r.root, "environment", environment_value(&r));
  json_object_set_new(r.root, "python", python_value(&r));
  json_object_set(r.root, "problems", r.problems);
  int status = json_array_size(r.problems) ? CLI_DIFFERENT : CLI_OK;
  if (!as_json) print_page(&r);
  json_decref(r.problems);
  if (!as_json)
    json_decref(r.root);
  else if (cli_print_json(r.root) != CLI_OK)
    status = CLI_USAGE;
  return status;
}
