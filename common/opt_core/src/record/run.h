/* SPDX-License-Identifier: Apache-2.0 */
/* The run, as its files (run.c states, ledger.c counters, manifest.c file, fork.c children) share it. */
#ifndef OC_RECORD_RUN_H
#define OC_RECORD_RUN_H
#include "activation/kit.h"
#include "opt_core/record.h"
#include "record/census.h"
#include "util/text.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

typedef enum oc__lever_state {
  OC__LEVER_DECLARED,
  OC__LEVER_ACTIVE,
  OC__LEVER_OFF,
  OC__LEVER_REFUSED,
  OC__LEVER_SERVED,
  OC__LEVER_CLOSED
} oc__lever_state;
const char *oc__lever_state_word(oc__lever_state state);

typedef struct oc__run_lever {
  oc__lever_state state;
  char *row, *reason;         /* NULL until known */
  atomic_llong calls, claims; /* int64 range: 10 M a second for 29 000 years */
  atomic_llong open_at_home;  /* calls that the home thread has begun and not settled; written by that thread alone */
  int64_t in_flight;          /* calls that the close found under way in other threads */
} oc__run_lever;

typedef struct oc__slot {
  int lever;
  oc_slot_kind kind;
  char *family, *name, *detail;
  atomic_llong count;
} oc__slot;

typedef struct oc__patched {
  int lever;
  char *what;
  int64_t patched, still;
  int is_counted; /* still was reported */
} oc__patched;

typedef struct oc__fact {
  char *key, *value;
  int on_active_line;
} oc__fact;

typedef struct oc__facts {
  oc__fact *item;
  size_t count, capacity;
} oc__facts;

typedef struct oc__patched_list {
  oc__patched *item;
  size_t count, capacity;
} oc__patched_list;

enum { OC__HOST_MAX = 65 }; /* Linux: 64 bytes */

typedef struct oc__where { /* the manifest's name; every part is set before the first write and by a fork */
  char path[PATH_MAX];     /* the file in use */
  char directory[PATH_MAX];
  char stem[NAME_MAX + 1], file[NAME_MAX + 1];
  char host[OC__HOST_MAX]; /* of letters, digits and '-' */
  int rank;                /* -1: none */
  int attempt;             /* 0: the plain name; 1: with the pid; from 2 on a number too */
  int has_host;            /* the name says the host: a run of another host held the one before */
  int is_ours;             /* this run wrote the file at path */
} oc__where;

typedef struct oc__process {
  pid_t pid;
  int64_t start_ticks; /* of /proc/<pid>/stat: tells two processes with one pid apart */
  int64_t start_s;     /* CLOCK_REALTIME */
  int64_t start_ns;    /* CLOCK_MONOTONIC */
} oc__process;

struct oc_run {
  pthread_mutex_t lock; /* everything but the counters; never held while a line is written */
  oc_run *next;         /* list of fork.c */
  const oc_kit *kit;
  oc_mode mode;
  int serial; /* of the runs that this process opened */
  char *levers_off, *core_dir, *census;
  int is_child, is_activated, is_refused, is_closed, is_noted;
  int is_failed; /* an accounting check failed, or could not be made */
  int engine_status, exit_status;
  int64_t end_s, wall_ns;
  oc_err verdict; /* the refusal, or the first failed check */
  char *refused_name;
  oc__where where;
  oc__process process;
  oc_host_floor floor;
  oc__facts facts;
  oc__facts environment;
  oc__facts binaries;   /* path, digest */
  oc__facts accounting; /* lever, what failed */
  oc__patched_list patched;
  oc__run_lever lever[OC__KIT_LEVERS_MAX];
  int is_forked;               /* set in a child that inherited the run */
  atomic_int *served_in_child; /* by lever, in memory shared with forked children; NULL where it cannot be had */
  atomic_llong misuse;         /* counts that named no lever or no slot */
  pthread_t home;              /* the thread that opened the run, or forked into it */
  atomic_llong other_threads;  /* that ever called a lever */
  atomic_int slot_count;       /* slots below it are complete */
  uint64_t slot_hash[OC_SLOT_MAX];
  oc__slot slot[OC_SLOT_MAX];
};

/* ledger.c */
/* Counts at zero; the calling thread is the home thread from now on. */
void oc__ledger_reset(oc_run *run);
void oc__ledger_free(oc_run *run);
void oc__ledger_census(const oc_run *run, oc__census *census);
int64_t oc__ledger_calls(const oc_run *run, int lever);
/* Calls that other threads are in while this one closes the run; 0 where that does not explain the counts.
 * calls_before: oc__ledger_calls, read before the counts. */
int64_t oc__ledger_in_flight(const oc_run *run, int lever, int64_t calls_before, oc_lever_counts counts);
/* The lever's slot of most stock calls; NULL when it has none. */
const oc__slot *oc__ledger_most_stock(const oc_run *run, int lever);

/* manifest.c: both under the run's lock */
oc_status oc__where_init(oc__where *where, const char *text, int is_child, pid_t pid, oc_err *err);
void oc__where_name(oc__where *where, int is_child, pid_t pid);
int64_t oc__process_start_ticks(pid_t pid);
oc_status oc__manifest_write(oc_run *run, oc_err *err);

/* fork.c */
void oc__fork_register(oc_run *run);
void oc__fork_unregister(oc_run *run);

/* run.c */
int oc__run_served_in_child(const oc_run *run, int lever);
void oc__process_init(oc__process *process);
const char *oc__run_state_word(const oc_run *run);
#endif
