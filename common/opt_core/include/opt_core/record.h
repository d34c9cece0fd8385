/* SPDX-License-Identifier: Apache-2.0 */
/* The run record: lines on standard error, the manifest, the ledgers, the cell census, and the verdict at exit.
 *
 * Grammar of a line (ABNF-like; docs/record.md):
 *   line        = "[opt_core] " ( event / not-active / accounting )
 *   not-active  = "NOT ACTIVE: " name ": " reason          ; reason runs to the end of the line
 *   accounting  = "ACCOUNTING " name ": " what
 *   event       = kind *( SP word ) *( SP key "=" value )  ; kind = ACTIVE LEVER CELLS EXIT NOTE
 * Bytes below 0x21, above 0x7e, '%' (and '=' in words) are written %XX inside words, keys and values; a reason keeps
 * its spaces. A line is at most OC_LINE_MAX bytes with its newline and is written by one write(2), so lines of several
 * processes never mix on a pipe or a file opened for appending.
 */
#ifndef OPT_CORE_RECORD_H
#define OPT_CORE_RECORD_H

#include "opt_core/activation.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OC_LINE_MAX 4096
#define OC_LINE_FIELDS 128

typedef enum oc_line_kind {
  OC_LINE_ACTIVE,
  OC_LINE_LEVER,
  OC_LINE_NOT_ACTIVE,
  OC_LINE_ACCOUNTING,
  OC_LINE_CELLS,
  OC_LINE_EXIT,
  OC_LINE_NOTE,
  OC_LINE_KIND_COUNT
} oc_line_kind;

/* A field with value NULL is a bare word. NOT_ACTIVE and ACCOUNTING have exactly two: word name, word text. */
typedef struct oc_line_field {
  const char *key, *value;
} oc_line_field;

typedef struct oc_line {
  oc_line_kind kind;
  int field_count;
  oc_line_field field[OC_LINE_FIELDS]; /* words are {word, NULL} and come before key=value pairs */
  char store[OC_LINE_MAX];             /* where a parsed line keeps its text; unused when formatting */
} oc_line;

/* Text of a line, newline and terminator included; out needs OC_LINE_MAX + 1 bytes at most. BAD_ARG when it does not
 * fit. */
OC_API oc_status oc_line_format(const oc_line *line, char *out, size_t out_bytes, size_t *written, oc_err *err);
/* Reads one line (with or without its newline). BAD_ARG with the column for anything the printer cannot print. */
OC_API oc_status oc_line_parse(const char *text, size_t text_bytes, oc_line *out, oc_err *err);

/* Where lines go. Default: standard error. The sink is called with a whole line; NULL restores the default.
 * Thread-safe. No lock is held during the call: a sink may use the run, and a call may still be under way when this one
 * returns. */
typedef void oc_line_sink(const char *text, size_t bytes, void *context);
OC_API void oc_line_set_sink(oc_line_sink *sink, void *context);
OC_API oc_status oc_line_write(const oc_line *line, oc_err *err);

/* ---- a run: one activation of one kit in one process --------------------------------------------------------------
 * States of a lever: declared -> active | refused | off; at exit active -> served | closed | refused (every call was
 * left to the stock op). Any other step is BAD_ARG.
 * Threads: counting (oc_run_call, _claim, _settle) is lock-free and safe from any thread; the rest takes the run's
 * lock.
 * Fork: a child that was forked keeps the run, with counts at zero and a manifest of its own (pthread_atfork), written
 * when the child closes the run. A lever that served in such a child has served, for its parent too.
 */
typedef struct oc_run oc_run;

typedef struct oc_run_options {
  size_t struct_bytes;    /* sizeof(oc_run_options) */
  const oc_kit *kit;      /* must outlive the run */
  oc_mode mode;           /* not OFF */
  const char *levers_off; /* MODEL_OPT_LEVERS_OFF, checked here; NULL: none */
  const char *core_dir;   /* directory of the core in use, for the record */
  const char *manifest;   /* file to write, or directory (then <dir>/opt_manifest.json); NULL: ./opt_manifest.json */
  const char *census;     /* OPT_CORE_CELL_CENSUS_PRINT: "0", "1", "uncovered"; NULL: "1" */
  int is_child;           /* a worker of a process that holds a run: it may end without having served */
} oc_run_options;

/* Opens the run: checks levers_off and census, claims the manifest's name. The name is <file> unless another live
 * process holds it, or is_child, or a rank is set (OPT_CORE_RANK, RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK,
 * the first that is a number): then <stem>.<pid>.json, <stem>.rank<r>.json. A `running` record of another host is held
 * too: then <stem>.<host>.<pid>.json. Nothing is printed. */
OC_API oc_status oc_run_open(const oc_run_options *options, oc_run **out, oc_err *err);
/* The name in use now; the text is the run's, and changes when a write finds the name taken, and in a forked child. */
OC_API const char *oc_run_manifest_path(const oc_run *run);

/* A fact for the manifest (and, when on_active_line, the ACTIVE line): key [a-z0-9_.]+. Last value wins. */
OC_API oc_status oc_run_fact(oc_run *run, const char *key, const char *value, int on_active_line, oc_err *err);
/* A binary that was loaded, with its digest. */
OC_API oc_status oc_run_binary(oc_run *run, const char *path, const char *sha256, oc_err *err);

/* declared -> off when levers_off names the lever (prints LEVER, returns OC_REFUSED off_by_user), OC_OK otherwise. */
OC_API oc_status oc_run_lever_begin(oc_run *run, int lever, oc_err *err);
/* declared -> active; prints LEVER. row: what it will serve with, "" when chosen a call; may be "-" . */
OC_API oc_status oc_run_lever_active(oc_run *run, int lever, const char *row, oc_err *err);
/* declared -> refused; prints LEVER, and NOT ACTIVE with why's text. Returns OC_OK under `record`, OC_REFUSED under
 * `require` (the run is then refused: the process is to end with status 3). */
OC_API oc_status oc_run_lever_refused(oc_run *run, int lever, const oc_err *why, oc_err *err);
/* Ledger of instances: `count` more objects named `what` were patched by the lever / `count` in all were found still
 * patched at exit, the last report standing. */
OC_API oc_status oc_run_patched(oc_run *run, int lever, const char *what, int64_t count, oc_err *err);
OC_API oc_status oc_run_still_patched(oc_run *run, int lever, const char *what, int64_t count, oc_err *err);

/* Activation ended: prints ACTIVE, writes the manifest with "state": "running". */
OC_API oc_status oc_run_activated(oc_run *run, oc_err *err);
/* The run as a whole is refused (unknown mode, old core, ...): prints NOT ACTIVE: <name>: <why>; exit status 3 at
 * close. */
OC_API oc_status oc_run_refuse(oc_run *run, const char *name, const oc_err *why, oc_err *err);

/* Ledger of calls. A wrapper calls oc_run_call once a call; then either settles it as stock (SLOT_STOCK), or claims it
 * and settles it as hit or fallback, in the same thread. At close: calls = claims + stock, claims = hits + fallbacks,
 * for every lever, but for the calls that other threads are in at that moment: these are noted (NOTE calls in flight).
 * At most one a thread passes for that, and none of the thread that opened the run when it is the one that closes it.
 */
typedef enum oc_slot_kind { OC_SLOT_HIT, OC_SLOT_FALLBACK, OC_SLOT_STOCK, OC_SLOT_KIND_COUNT } oc_slot_kind;
#define OC_SLOT_MAX 4096
/* Slot for (lever, kind, family, name, reason): HIT name = row, detail = cell id; FALLBACK name = row, detail = reason
 * text; STOCK name = class text, detail = reason word. Same arguments, same slot. NO_MEM past OC_SLOT_MAX. */
OC_API oc_status oc_run_slot(oc_run *run, int lever, oc_slot_kind kind, const char *family, const char *name,
                             const char *detail, int *slot, oc_err *err);
OC_API void oc_run_call(oc_run *run, int lever);
OC_API void oc_run_claim(oc_run *run, int lever);
OC_API void oc_run_settle(oc_run *run, int slot);

typedef struct oc_lever_counts {
  int64_t calls, claims, hits, fallbacks, stock;
} oc_lever_counts;
OC_API oc_lever_counts oc_run_counts(const oc_run *run, int lever);

/* Ends the run: checks the accounting, prints ACCOUNTING lines, CELLS (as census says) and EXIT, writes the manifest
 * with "state": "finished" | "refused" | "closed". engine_status is the process's own. *exit_status: engine_status when
 * not 0; else 3 (refused), 4 (closed) or 0. Returns CLOSED / REFUSED / OK alike. A second call changes nothing. An
 * active lever whose every call was left to the stock op is refused here, with the word of its most counted stock slot
 * (prints NOT ACTIVE; under `require` the run is refused). One that was not called at all closes the run, as does any
 * sum that does not hold; a run that was refused before owes its sums only. */
OC_API oc_status oc_run_close(oc_run *run, int engine_status, int *exit_status, oc_err *err);
OC_API void oc_run_free(oc_run *run);

/* Reads a manifest back (census MANIFEST, run): checks schema version and shape. *text is the CELLS text, freed by
 * oc_text_free. BAD_ARG when it is no manifest. */
OC_API oc_status oc_manifest_census(const char *path, char **text, oc_err *err);
OC_API void oc_text_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
