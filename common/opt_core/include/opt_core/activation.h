/* SPDX-License-Identifier: Apache-2.0 */
/* Modes, kits, levers and gates: what may switch on, and by which name it refuses.
 *
 * A kit is a JSON table (schema: docs/kit.md):
 *   {"schema": 1, "engine": "<word>", "variable": "<WORD>_OPT", "version": "0.1.0",
 *    "triggers": ["package.module", ...],
 *    "levers": [{"name": "triattn", "family": "triattn_module", "modes": {"exact": "record", "fast": "require"},
 *                "instances": 1, "help": "..."}]}
 * `instances`: fewest objects that an active lever must have patched. A lever takes part in the modes that it lists.
 * "require": a refusal ends the process with status 3. "record": the word is written down and the run goes on with the
 * stock op.
 */
#ifndef OPT_CORE_ACTIVATION_H
#define OPT_CORE_ACTIVATION_H

#include "opt_core/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oc_mode { OC_MODE_OFF, OC_MODE_EXACT, OC_MODE_FAST, OC_MODE_BIG, OC_MODE_COUNT } oc_mode;
OC_API const char *oc_mode_word(oc_mode mode);
/* Reads the value of <ENGINE>_OPT. NULL, "", "0" and "off" are OFF; white space round the word is ignored.
 * REFUSED mode:unknown:<word> (accepted: off exact fast big) for anything else; a long or non-ASCII word is cut and
 * escaped in the detail. */
OC_API oc_status oc_mode_parse(const char *text, oc_mode *out, oc_err *err);

typedef enum oc_policy { OC_POLICY_ABSENT, OC_POLICY_RECORD, OC_POLICY_REQUIRE } oc_policy;

typedef struct oc_kit oc_kit;
/* REFUSED kit_table:<where>: <why>. Unknown keys, duplicate levers, an engine word outside [a-z0-9_]+ are errors. */
OC_API oc_status oc_kit_parse(const char *json, size_t json_bytes, oc_kit **out, oc_err *err);
OC_API void oc_kit_free(oc_kit *kit);
OC_API const char *oc_kit_engine(const oc_kit *kit);
OC_API const char *oc_kit_variable(const oc_kit *kit);
OC_API const char *oc_kit_version(const oc_kit *kit);
OC_API int oc_kit_trigger_count(const oc_kit *kit);
OC_API const char *oc_kit_trigger(const oc_kit *kit, int index);
OC_API int oc_kit_lever_count(const oc_kit *kit);
OC_API const char *oc_kit_lever_name(const oc_kit *kit, int lever);
OC_API const char *oc_kit_lever_family(const oc_kit *kit, int lever); /* "" when the lever binds no family */
OC_API oc_policy oc_kit_lever_policy(const oc_kit *kit, int lever, oc_mode mode);
OC_API int oc_kit_lever_find(const oc_kit *kit, const char *name); /* -1 when unknown */

/* Checks MODEL_OPT_LEVERS_OFF: words `lever` or `lever:row`, joined by ','. NULL or "" is none.
 * REFUSED lever:unknown:<word> (nearest: <w1> <w2>) for a word that names no lever of the kit, no row of its family. */
OC_API oc_status oc_levers_off_check(const oc_kit *kit, const char *text, oc_err *err);
/* 1 when text switches off the lever (row NULL) or that row of it. text must have passed the check. */
OC_API int oc_levers_off_has(const char *text, const char *lever, const char *row);

/* X(variable, accepted values, what it does). Accepted: words joined by '|', "<n>" for decimal digits, "*" for
 * anything. An empty value is the same as none. */
#define OC_ENVIRONMENT_LIST(X)                                                                                         \
  X(OPT_CORE_AUTOLOAD, "0|1", "0 switches the import hook off")                                                        \
  X(OPT_CORE_BOOTSTRAP, "*", "folder that `opt_core run` puts first on PYTHONPATH; set by python -m opt_core")         \
  X(OPT_CORE_CELL_CENSUS_PRINT, "0|1|uncovered", "when the CELLS line is printed at exit")                             \
  X(OPT_CORE_CELLS, "*", "file of measured cells laid over the tables that are built in")                              \
  X(OPT_CORE_ISA, "generic|avx2|avx512|avx512_bf16", "the instruction-set level that CPU members use")                 \
  X(OPT_CORE_KIT_VARIABLES, "*", "variables of the installed kits, joined by ','; set by python -m opt_core")          \
  X(OPT_CORE_MANIFEST, "*", "file or directory of the run record")                                                     \
  X(OPT_CORE_PARENT, "*", "set for children of a process that holds a run")                                            \
  X(OPT_CORE_PYTHON, "*", "interpreter that `opt_core doctor` asks; set by python -m opt_core")                        \
  X(OPT_CORE_RANK, "<n>", "rank of this process, for the name of its run record; goes before RANK")

/* Refuses OPT_CORE_* variables that are unknown or hold a value that is not accepted: REFUSED environment:<NAME>...
 * `environment` is NULL-terminated NAME=value; NULL is none. */
OC_API oc_status oc_environment_check(char *const *environment, oc_err *err);

/* ---- gates: conditions that refuse by name ----------------------------------------------------------------------- */

/* package version within ">=a,<b" (comma-joined >=, >, <=, <, ==, !=). REFUSED pin:<package><have>!<need>;
 * have NULL: not installed, printed as `none`. BAD_ARG for a malformed range. */
OC_API oc_status oc_gate_pin(const char *package, const char *have, const char *need, oc_err *err);
/* A binary built for sm_<have>. `need` is "sm_80" or "sm_90a"; an 'a' code runs on its own architecture only, a plain
 * code on the same major version from its minor on. REFUSED arch:<have>!=<need>. */
OC_API oc_status oc_gate_arch(int have_sm, const char *need, oc_err *err);

/* Newest GLIBC_x.y, GLIBCXX_x.y.z and CXXABI_x.y that an ELF file needs, read from its version-needs section. */
typedef struct oc_host_floor {
  char glibc[16], glibcxx[16], cxxabi[16];
} oc_host_floor; /* "" when it needs none */
/* IO when the file cannot be read, BAD_ARG when it is no valid ELF64. Reads only; never loads the file. */
OC_API oc_status oc_host_floor_read(const char *path, oc_host_floor *out, oc_err *err);
/* What this host offers: glibc of the running process; GLIBCXX / CXXABI of libstdc++ found by the loader's path, "" if
 * none. */
OC_API oc_status oc_host_floor_here(oc_host_floor *out, oc_err *err);
/* REFUSED host_floor:GLIBC_2.38>2.36 when need is above have. */
OC_API oc_status oc_gate_host_floor(const oc_host_floor *need, const oc_host_floor *have, oc_err *err);

/* ---- binaries with digests --------------------------------------------------------------------------------------- */

/* Reads the binary for `key` of the package in directory `dir`. dir/PREBUILT.json:
 *   {"schema": 1, "package": "<pkg>", "binaries": {"<key>": {"file": "...", "sha256": "...", "bytes": 123}}}
 * The file is read once, its SHA-256 checked, and exactly those bytes are returned (free with oc_bytes_free).
 * REFUSED no_prebuilt:<pkg>@<key>, digest:<pkg>@<key>, kit_table:PREBUILT... ; IO when a file is unreadable. */
OC_API oc_status oc_prebuilt_read(const char *dir, const char *key, unsigned char **bytes, size_t *bytes_count,
                                  oc_err *err);
OC_API void oc_bytes_free(unsigned char *bytes);
/* SHA-256 of a file / of bytes, as 64 lower-case hex digits and a terminator. */
OC_API oc_status oc_digest_file(const char *path, char out[65], oc_err *err);
OC_API oc_status oc_digest_bytes(const void *bytes, size_t bytes_count, char out[65], oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
