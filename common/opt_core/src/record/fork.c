/* SPDX-License-Identifier: Apache-2.0 */
/* Forked children. All locks of the record are taken before a fork and let go on both sides after it, so that a child
 * never inherits a lock whose holder does not exist there. Order: list, runs, sink; no code takes them the other way.
 */
#define _GNU_SOURCE
#include "record/line.h"
#include "record/run.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static oc_run *list;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void) {
  pthread_mutex_lock(&list_lock);
  for (oc_run *run = list; run; run = run->next) pthread_mutex_lock(&run->lock);
  oc__line_fork_lock();
}

static void unlock_all(void) {
  oc__line_fork_unlock();
  for (oc_run *run = list; run; run = run->next) pthread_mutex_unlock(&run->lock);
  pthread_mutex_unlock(&list_lock);
}

/* The child's run begins at the fork: counts at zero, a manifest of its own, written when the child ends. */
static void in_child(void) {
  for (oc_run *run = list; run; run = run->next) {
    if (run->is_closed) continue;
    run->is_child = run->is_forked = 1;
    run->is_noted = 0;
    oc__process_init(&run->process);
    oc__ledger_reset(run);
    oc__where_name(&run->where, 1, run->process.pid);
    for (size_t i = 0; i < run->patched.count; i++) run->patched.item[i].is_counted = 0;
  }
  unlock_all();
}

static void install(void) { (void)pthread_atfork(before_fork, unlock_all, in_child); }

void oc__fork_register(oc_run *run) {
  pthread_once(&once, install);
  pthread_mutex_lock(&list_lock);
  run->next = list;
  list = run;
  pthread_mutex_unlock(&list_lock);
}

void oc__fork_unregister(oc_run *run) {
  pthread_mutex_lock(&list_lock);
  for (oc_run **at = &list; *at; at = &(*at)->next)
    if (*at == run) {
      *at = run->next;
      break;
    }
  pthread_mutex_unlock(&list_lock);
}
