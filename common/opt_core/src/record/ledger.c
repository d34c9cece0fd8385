/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger of calls. Counting takes no lock; a slot is found once, under the lock, and then a number. */
#define _GNU_SOURCE
#include "record/run.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_text(uint64_t hash, const char *text) {
  do { /* the terminator counts too, so that ("a", "bc") and ("ab", "c") differ */
    hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
  } while (*text++);
  return hash;
}

static int is_slot(const oc__slot *slot, int lever, oc_slot_kind kind, const char *family, const char *name,
                   const char *detail) {
  return slot->lever == lever && slot->kind == kind && strcmp(slot->family, family) == 0 &&
         strcmp(slot->name, name) == 0 && strcmp(slot->detail, detail) == 0;
}

static void slot_free(oc__slot *slot) {
  free(slot->family);
  free(slot->name);
  free(slot->detail);
  slot->family = slot->name = slot->detail = NULL;
}

static oc_status slot_new(oc_run *run, uint64_t hash, int lever, oc_slot_kind kind, const char *family,
                          const char *name, const char *detail, int *out, oc_err *err) {
  int index = atomic_load_explicit(&run->slot_count, memory_order_relaxed);
  if (index == OC_SLOT_MAX)
    return OC_FAIL(err, NO_MEM, 0, "slot %s:%s:%s: all %d slots are in use", family, name, detail, OC_SLOT_MAX);
  oc__slot *slot = &run->slot[index];
  slot->lever = lever;
  slot->kind = kind;
  slot->family = oc__text_copy(family);
  slot->name = oc__text_copy(name);
  slot->detail = oc__text_copy(detail);
  if (!slot->family || !slot->name || !slot->detail) {
    slot_free(slot);
    return OC_FAIL(err, NO_MEM, 0, "no memory for a slot");
  }
  run->slot_hash[index] = hash;
  atomic_store_explicit(&run->slot_count, index + 1, memory_order_release);
  *out = index;
  return OC_OK;
}

oc_status oc_run_slot(oc_run *run, int lever, oc_slot_kind kind, const char *family, const char *name,
                      const char *detail, int *slot, oc_err *err) {
  if (!run || !slot) return OC_FAIL(err, BAD_ARG, 0, "run and slot must be given");
  if (lever < 0 || lever >= run->kit->lever_count)
    return OC_FAIL(err, BAD_ARG, 0, "lever %d, the kit has %d", lever, run->kit->lever_count);
  if ((unsigned)kind >= OC_SLOT_KIND_COUNT) return OC_FAIL(err, BAD_ARG, 0, "slot kind %d is unknown", (int)kind);
  if (!family) family = "";
  if (!name) name = "";
  if (!detail) detail = "";
  uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ ((uint64_t)lever << 8 | (uint64_t)kind);
  hash = hash_text(hash_text(hash_text(hash, family), name), detail);
  pthread_mutex_lock(&run->lock);
  int count = atomic_load_explicit(&run->slot_count, memory_order_relaxed), found = -1;
  for (int i = 0; i < count && found < 0; i++)
    if (run->slot_hash[i] == hash && is_slot(&run->slot[i], lever, kind, family, name, detail)) found = i;
  oc_status status = OC_OK;
  if (found < 0) status = slot_new(run, hash, lever, kind, family, name, detail, &found, err);
  pthread_mutex_unlock(&run->lock);
  if (status == OC_OK) *slot = found;
  return status;
}

/* Release, so that who reads a claim or a settlement reads the call before it too (oc_run_counts). */
static void count(atomic_llong *counter) { atomic_fetch_add_explicit(counter, 1, memory_order_release); }

static int is_home(const oc_run *run) { return pthread_equal(pthread_self(), run->home); }

static void add_at_home(oc__run_lever *lever, long long by) { /* one writer: no atomic add */
  long long open = atomic_load_explicit(&lever->open_at_home, memory_order_relaxed);
  atomic_store_explicit(&lever->open_at_home, open + by, memory_order_relaxed);
}

/* A thread that calls levers of several runs by turns is counted more than once; that only widens a bound. */
static void meet_thread(oc_run *run) {
  static _Thread_local int met; /* serial of the run that this thread called last */
  if (met == run->serial) return;
  met = run->serial;
  count(&run->other_threads);
}

void oc_run_call(oc_run *run, int lever) {
  if (lever < 0 || lever >= run->kit->lever_count) {
    count(&run->misuse);
    return;
  }
  if (is_home(run))
    add_at_home(&run->lever[lever], 1);
  else
    meet_thread(run); /* before its call is counted: the bound must never be behind the calls */
  count(&run->lever[lever].calls);
}

void oc_run_claim(oc_run *run, int lever) {
  count(lever >= 0 && lever < run->kit->lever_count ? &run->lever[lever].claims : &run->misuse);
}

void oc_run_settle(oc_run *run, int slot) {
  int known = slot >= 0 && slot < atomic_load_explicit(&run->slot_count, memory_order_acquire);
  count(known ? &run->slot[slot].count : &run->misuse);
  if (known && is_home(run)) add_at_home(&run->lever[run->slot[slot].lever], -1);
  /* The parent of a worker that was forked learns here, and only here, that its lever served: workers often end by
   * _exit. */
  if (run->is_forked && known && run->slot[slot].kind == OC_SLOT_HIT && run->served_in_child)
    atomic_store_explicit(&run->served_in_child[run->slot[slot].lever], 1, memory_order_relaxed);
}

int64_t oc__ledger_calls(const oc_run *run, int lever) {
  return atomic_load_explicit(&run->lever[lever].calls, memory_order_acquire);
}

oc_lever_counts oc_run_counts(const oc_run *run, int lever) {
  oc_lever_counts counts = {0, 0, 0, 0, 0};
  if (!run || lever < 0 || lever >= run->kit->lever_count) return counts;
  /* The end of a call is read before its beginning: what other threads count meanwhile makes calls in flight, never
   * ends without a call. */
  int slots = atomic_load_explicit(&run->slot_count, memory_order_acquire);
  for (int i = 0; i < slots; i++) {
    if (run->slot[i].lever != lever) continue;
    int64_t settled = atomic_load_explicit(&run->slot[i].count, memory_order_acquire);
    switch (run->slot[i].kind) {
    case OC_SLOT_HIT:
      counts.hits += settled;
      break;
    case OC_SLOT_FALLBACK:
      counts.fallbacks += settled;
      break;
    default:
      counts.stock += settled;
      break;
    }
  }
  counts.claims = atomic_load_explicit(&run->lever[lever].claims, memory_order_acquire);
  counts.calls = oc__ledger_calls(run, lever);
  return counts;
}

/* A thread other than the one that closes may be inside a call, or was ended there with the interpreter, so the threads
 * that the process has at the moment say nothing. What keeps a wrapper that loses calls from passing as calls in
 * flight: the thread that closes is inside no call, so the home thread must have settled all of its own when it is the
 * one that closes; and a lever does not call itself, so a thread has one call of a lever open at most. That bounds the
 * calls that were counted before the settled ones were read; others began and ended meanwhile. */
int64_t oc__ledger_in_flight(const oc_run *run, int lever, int64_t calls_before, oc_lever_counts c) {
  int64_t open = c.calls - c.hits - c.fallbacks - c.stock, claimed = c.claims - c.hits - c.fallbacks;
  int64_t left_open = calls_before - c.hits - c.fallbacks - c.stock;
  int64_t most = atomic_load_explicit(&run->other_threads, memory_order_acquire) + !is_home(run);
  if (open < 1 || left_open > most || claimed < 0 || claimed > open) return 0;
  if (is_home(run) && atomic_load_explicit(&run->lever[lever].open_at_home, memory_order_relaxed)) return 0;
  return open;
}

/* A slot of a row that the user switched off comes before all others: it is why the lever had nothing to serve with. */
const oc__slot *oc__ledger_most_stock(const oc_run *run, int lever) {
  const char *off = oc_reason_word(OC_REASON_OFF_BY_USER);
  const oc__slot *most = NULL;
  int64_t most_count = 0;
  int slots = atomic_load_explicit(&run->slot_count, memory_order_acquire);
  for (int i = 0; i < slots; i++) {
    const oc__slot *slot = &run->slot[i];
    int64_t settled = atomic_load_explicit(&slot->count, memory_order_relaxed);
    if (slot->lever != lever || slot->kind != OC_SLOT_STOCK || settled == 0) continue;
    if (strcmp(slot->detail, off) == 0) return slot;
    if (settled <= most_count) continue;
    most = slot;
    most_count = settled;
  }
  return most;
}

void oc__ledger_census(const oc_run *run, oc__census *census) {
  int slots = atomic_load_explicit(&run->slot_count, memory_order_acquire);
  for (int i = 0; i < slots; i++)
    oc__census_add(census, run->slot[i].kind, run->slot[i].family, run->slot[i].name, run->slot[i].detail,
                   atomic_load_explicit(&run->slot[i].count, memory_order_relaxed));
  oc__census_sort(census);
}

/* The slots themselves stay: their numbers are held by callers. */
void oc__ledger_reset(oc_run *run) {
  int slots = atomic_load_explicit(&run->slot_count, memory_order_acquire);
  for (int i = 0; i < slots; i++) atomic_store_explicit(&run->slot[i].count, 0, memory_order_relaxed);
  for (int i = 0; i < OC__KIT_LEVERS_MAX; i++) {
    atomic_store_explicit(&run->lever[i].calls, 0, memory_order_relaxed);
    atomic_store_explicit(&run->lever[i].claims, 0, memory_order_relaxed);
    atomic_store_explicit(&run->lever[i].open_at_home, 0, memory_order_relaxed);
  }
  run->home = pthread_self();
  atomic_store_explicit(&run->other_threads, 0, memory_order_relaxed);
  atomic_store_explicit(&run->misuse, 0, memory_order_relaxed);
}

void oc__ledger_free(oc_run *run) {
  int slots = atomic_load_explicit(&run->slot_count, memory_order_acquire);
  for (int i = 0; i < slots; i++) slot_free(&run->slot[i]);
}
