/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "record_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static void test_a_whole_run(void **state) {
  (void)state;
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  assert_string_equal(fixture_lines, ""); /* opening says nothing */
  oc_err why = {0};
  OC_REFUSE(&why, DTYPE, "f64");
  assert_int_equal(oc_run_lever_begin(run, ATTN, NULL), OC_OK);
  assert_int_equal(oc_run_lever_active(run, ATTN, "cpu", NULL), OC_OK);
  assert_int_equal(oc_run_lever_refused(run, MUL, &why, NULL), OC_OK); /* record: goes on */
  assert_int_equal(oc_run_lever_active(run, COUNTED, NULL, NULL), OC_OK);
  assert_int_equal(oc_run_patched(run, COUNTED, "Block", 3, NULL), OC_OK);
  assert_int_equal(oc_run_patched(run, COUNTED, "Block", 1, NULL), OC_OK);
  assert_int_equal(oc_run_fact(run, "device", "cpu avx2", 1, NULL), OC_OK);
  assert_int_equal(oc_run_fact(run, "torch", "1", 0, NULL), OC_OK);
  assert_int_equal(oc_run_fact(run, "device", "cpu", 1, NULL), OC_OK); /* the last value wins */
  assert_int_equal(oc_run_activated(run, NULL), OC_OK);
  assert_true(said("LEVER attn active row=cpu\n"));
  assert_true(said("LEVER mul refused row= reason=dtype:f64\n"));
  assert_true(said("NOT ACTIVE: mul: dtype:f64\n"));
  assert_true(said("LEVER counted active row=\n"));
  assert_true(said("ACTIVE engine=an_engine mode=fast core=" OC_VERSION_TEXT " core_dir=/core%20dir device=cpu\n"));
  fixture_serve(run, ATTN, "cpu", 5);
  fixture_serve(run, COUNTED, "cpu", 2);
  int fallback, stock;
  assert_int_equal(oc_run_slot(run, ATTN, OC_SLOT_FALLBACK, "triattn", "cpu", "layout:odd", &fallback, NULL), OC_OK);
  assert_int_equal(oc_run_slot(run, ATTN, OC_SLOT_STOCK, "triattn", "big.n<=64", "uncovered_cell", &stock, NULL),
                   OC_OK);
  oc_run_call(run, ATTN);
  oc_run_claim(run, ATTN);
  oc_run_settle(run, fallback);
  oc_run_call(run, ATTN);
  oc_run_settle(run, stock);
  oc_run_still_patched(run, COUNTED, "Block", 4, NULL);
  fixture_bytes = 0;
  int status = -1;
  oc_err err = {0};
  assert_int_equal(oc_run_close(run, 0, &status, &err), OC_OK);
  assert_int_equal(status, 0);
  assert_true(said(
      "CELLS UNCOVERED_CELL:triattn:big.n<%3D64=1 NAMED_FALLBACK:triattn:cpu:layout:odd=1 CELL_HIT:triattn:cpu=7\n"));
  assert_true(said("EXIT status=0 state=finished calls=9 hits=7 fallbacks=1 stock=1 peak_mib="));
  size_t before = fixture_bytes;
  assert_int_equal(oc_run_close(run, 9, &status, NULL), OC_OK); /* a second close changes nothing */
  assert_int_equal(status, 0);
  assert_int_equal(fixture_bytes, before);
  assert_int_equal(oc_run_fact(run, "late", "x", 0, NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_activated(run, NULL), OC_BAD_ARG);
  oc_run_free(run);
  oc_run_free(NULL);
}

/* Opens, makes attn active, lets `bend` spoil the ledger, closes. */
static void expect_closed(void (*bend)(oc_run *run), const char *what) {
  fixture_bytes = 0;
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  oc_run_lever_active(run, ATTN, "", NULL);
  oc_run_activated(run, NULL);
  bend(run);
  int status = -1;
  oc_err err = {0};
  char line[300];
  assert_int_equal(oc_run_close(run, 0, &status, &err), OC_CLOSED);
  assert_int_equal(err.status, OC_CLOSED);
  assert_int_equal(status, 4);
  snprintf(line, sizeof line, "ACCOUNTING %s\n", what);
  if (!said(line)) fail_msg("%s not in %s", line, fixture_lines);
  assert_string_equal(err.detail, what);
  json_t *root = fixture_load(oc_run_manifest_path(run));
  assert_string_equal(text_at(root, "state"), "closed");
  assert_int_equal(number_at(root, "exit_status"), 4);
  assert_true(json_array_size(json_object_get(root, "accounting")) > 0);
  json_decref(root);
  oc_run_free(run);
}

static void bend_nothing(oc_run *run) { (void)run; }
static void bend_fallback_only(oc_run *run) { /* stock calls excuse no claim that failed */
  int slot;
  fixture_stock(run, ATTN, "c", "uncovered_cell", 2);
  oc_run_slot(run, ATTN, OC_SLOT_FALLBACK, "triattn", "cpu", "layout:odd", &slot, NULL);
  oc_run_call(run, ATTN);
  oc_run_claim(run, ATTN);
  oc_run_settle(run, slot);
}
static void bend_stock_without_call(oc_run *run) {
  int slot;
  fixture_stock(run, ATTN, "c", "uncovered_cell", 2);
  oc_run_slot(run, ATTN, OC_SLOT_STOCK, "triattn", "c", "uncovered_cell", &slot, NULL);
  oc_run_settle(run, slot);
}
static void bend_stock_and_lost_instance(oc_run *run) {
  fixture_stock(run, ATTN, "c", "uncovered_cell", 2);
  oc_run_patched(run, ATTN, "Block", 2, NULL);
  oc_run_still_patched(run, ATTN, "Block", 1, NULL);
}
static void bend_lost_call(oc_run *run) {
  fixture_serve(run, ATTN, "cpu", 3);
  oc_run_call(run, ATTN);
}
static void bend_claim_without_end(oc_run *run) {
  fixture_serve(run, ATTN, "cpu", 3);
  oc_run_call(run, ATTN);
  oc_run_claim(run, ATTN);
}
static void bend_settled_twice(oc_run *run) {
  int slot;
  fixture_serve(run, ATTN, "cpu", 3);
  oc_run_slot(run, ATTN, OC_SLOT_HIT, "triattn", "cpu", "cell1", &slot, NULL);
  oc_run_settle(run, slot);
}
static void bend_idle_lever_counts(oc_run *run) {
  fixture_serve(run, ATTN, "cpu", 1);
  fixture_serve(run, MUL, "cpu", 2);
}
static void bend_lost_instance(oc_run *run) {
  fixture_serve(run, ATTN, "cpu", 1);
  oc_run_patched(run, ATTN, "Block", 4, NULL);
  oc_run_still_patched(run, ATTN, "Block", 3, NULL);
}
static void bend_uncounted_instance(oc_run *run) {
  fixture_serve(run, ATTN, "cpu", 1);
  oc_run_patched(run, ATTN, "Block", 4, NULL);
}
static void bend_too_few_instances(oc_run *run) {
  fixture_serve(run, ATTN, "cpu", 1);
  oc_run_lever_active(run, COUNTED, "", NULL);
  fixture_serve(run, COUNTED, "cpu", 1);
  oc_run_patched(run, COUNTED, "Block", 3, NULL);
  oc_run_still_patched(run, COUNTED, "Block", 3, NULL);
}
static void bend_no_such_slot(oc_run *run) {
  fixture_serve(run, ATTN, "cpu", 1);
  oc_run_settle(run, 999);
  oc_run_settle(run, -1);
  oc_run_call(run, 77);
  oc_run_claim(run, -1);
}

static void test_accounting_fails_closed(void **state) {
  (void)state;
  static const struct {
    void (*bend)(oc_run *run);
    const char *what;
  } table[] = {{bend_nothing, "attn: active, but served none of 0 calls"},
               {bend_fallback_only, "attn: active, but served none of 3 calls"},
               {bend_stock_without_call, "attn: 2 calls, but 0 claimed + 3 stock"},
               {bend_stock_and_lost_instance, "attn: Block: 2 patched, 1 still patched"},
               {bend_lost_call, "attn: 4 calls, but 3 claimed + 0 stock"},
               {bend_claim_without_end, "attn: 4 claimed, but 3 served + 0 fell back"},
               {bend_settled_twice, "attn: 3 claimed, but 4 served + 0 fell back"},
               {bend_idle_lever_counts, "mul: declared, but counted 2 calls"},
               {bend_lost_instance, "attn: Block: 4 patched, 3 still patched"},
               {bend_uncounted_instance, "attn: Block: 4 patched, not counted at exit"},
               {bend_too_few_instances, "counted: 3 instances patched, the kit's table wants 4"},
               {bend_no_such_slot, "-: 4 counts named no lever or no slot"}};
  int cases = 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++, cases++) expect_closed(table[i].bend, table[i].what);
  assert_int_equal(cases, 12);
}

static const json_t *lever_at(const json_t *root, int lever) {
  return json_array_get(json_object_get(root, "levers"), (size_t)lever);
}

/* Closes and expects the run's state; the manifest is the caller's. */
static json_t *expect_end(oc_run *run, oc_status verdict, int exit_status, const char *state) {
  int status = -1;
  assert_int_equal(oc_run_close(run, 0, &status, NULL), verdict);
  assert_int_equal(status, exit_status);
  json_t *root = fixture_load(oc_run_manifest_path(run));
  assert_string_equal(text_at(root, "state"), state);
  assert_int_equal(number_at(root, "exit_status"), exit_status);
  return root;
}

/* Every call was left to the stock op: refused by the word that is counted most, and no fault. */
static void test_left_to_stock(void **state) {
  (void)state;
  static const struct {
    oc_mode mode;
    const char *name, *word, *reason;
    int is_refused;
  } table[] = {{OC_MODE_EXACT, "c.n<=16", "uncovered_cell", "uncovered_cell:c.n<=16", 0},
               {OC_MODE_EXACT, "cpu", "proof", "proof:cpu", 0},
               {OC_MODE_EXACT, "", "proof", "proof", 0},
               {OC_MODE_FAST, "c.n<=16", "uncovered_cell", "uncovered_cell:c.n<=16", 1},
               {OC_MODE_FAST, "cpu", "proof", "proof:cpu", 1}};
  int cases = 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++, cases++) {
    fixture_bytes = 0;
    oc_run *run = fixture_open(fixture_options(table[i].mode));
    oc_run_lever_active(run, ATTN, "", NULL);
    oc_run_activated(run, NULL);
    fixture_stock(run, ATTN, "less", "uncovered_cell", 2);
    fixture_stock(run, ATTN, table[i].name, table[i].word, 3);
    fixture_stock(run, ATTN, "least", "proof", 1);
    json_t *root =
        table[i].is_refused ? expect_end(run, OC_REFUSED, 3, "refused") : expect_end(run, OC_OK, 0, "finished");
    char line[200];
    snprintf(line, sizeof line, "NOT ACTIVE: attn: %s\n", table[i].reason);
    if (!said(line)) fail_msg("%s not in %s", line, fixture_lines);
    assert_false(said("ACCOUNTING"));
    assert_string_equal(text_at(lever_at(root, ATTN), "state"), "refused");
    assert_string_equal(text_at(lever_at(root, ATTN), "reason"), table[i].reason);
    assert_int_equal(json_array_size(json_object_get(root, "accounting")), 0);
    const json_t *refusal = json_object_get(root, "refusal");
    assert_int_equal(json_is_null(refusal), !table[i].is_refused);
    if (table[i].is_refused) assert_string_equal(text_at(refusal, "reason"), table[i].reason);
    json_decref(root);
    oc_run_free(run);
  }
  assert_int_equal(cases, 5);
}

/* The lever that the close refuses excuses no other: the run came to its end. */
static void test_left_to_stock_beside_others(void **state) {
  (void)state;
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  oc_run_lever_active(run, ATTN, "", NULL);
  oc_run_lever_active(run, MUL, "", NULL);
  fixture_stock(run, ATTN, "c", "uncovered_cell", 1);
  json_t *root = expect_end(run, OC_REFUSED, 3, "refused");
  assert_true(said("ACCOUNTING mul: active, but served none of 0 calls\n"));
  assert_string_equal(text_at(lever_at(root, ATTN), "state"), "refused");
  assert_string_equal(text_at(lever_at(root, MUL), "state"), "closed");
  json_decref(root);
  oc_run_free(run);
  fixture_bytes = 0;
  oc_run_options options = fixture_options(OC_MODE_FAST);
  options.is_child = 1; /* a worker may have got the uncovered calls by chance */
  run = fixture_open(options);
  oc_run_lever_active(run, ATTN, "", NULL);
  fixture_stock(run, ATTN, "c", "uncovered_cell", 1);
  root = expect_end(run, OC_OK, 0, "finished");
  assert_string_equal(text_at(lever_at(root, ATTN), "state"), "active");
  assert_false(said("NOT ACTIVE"));
  json_decref(root);
  oc_run_free(run);
}

/* A run that was refused on its way owes its sums, and nothing that it did not get to. */
static void test_refused_early(void **state) {
  (void)state;
  for (int by_lever = 0; by_lever < 2; by_lever++) {
    for (int spoilt = 0; spoilt < 2; spoilt++) {
      fixture_bytes = 0;
      oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
      oc_err why = {0};
      OC_REFUSE(&why, ARCH, "x");
      oc_run_lever_active(run, MUL, "", NULL);
      oc_run_patched(run, MUL, "Block", 1, NULL);
      oc_run_lever_active(run, COUNTED, "", NULL); /* wants 4 instances, has none */
      if (by_lever)
        assert_int_equal(oc_run_lever_refused(run, ATTN, &why, NULL), OC_REFUSED);
      else
        assert_int_equal(oc_run_refuse(run, "attn", &why, NULL), OC_OK);
      if (spoilt) oc_run_call(run, MUL);
      json_t *root = expect_end(run, OC_REFUSED, 3, "refused");
      assert_int_equal(said("ACCOUNTING mul: 1 calls, but 0 claimed + 0 stock\n"), spoilt);
      assert_int_equal(json_array_size(json_object_get(root, "accounting")), spoilt);
      assert_false(said("ACCOUNTING counted"));
      assert_string_equal(text_at(lever_at(root, MUL), "state"), spoilt ? "closed" : "active");
      assert_string_equal(text_at(lever_at(root, COUNTED), "state"), "active");
      json_decref(root);
      oc_run_free(run);
    }
  }
}

static void test_counting_again_at_exit_changes_nothing(void **state) {
  (void)state;
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  oc_run_lever_active(run, COUNTED, "", NULL);
  fixture_serve(run, COUNTED, "cpu", 1);
  oc_run_patched(run, COUNTED, "Block", 4, NULL);
  for (int i = 0; i < 3; i++) assert_int_equal(oc_run_still_patched(run, COUNTED, "Block", 4, NULL), OC_OK);
  json_t *root = expect_end(run, OC_OK, 0, "finished");
  assert_int_equal(number_at(json_array_get(json_object_get(root, "instances"), 0), "still_patched"), 4);
  json_decref(root);
  oc_run_free(run);
}

typedef struct sleeper { /* a thread that stays in a call of attn until it is let go */
  oc_run *run;
  int calls, claims;
  pthread_mutex_t gate;
  pthread_barrier_t inside;
} sleeper;

static void *stay_in_call(void *context) {
  sleeper *s = context;
  for (int i = 0; i < s->calls; i++) oc_run_call(s->run, ATTN);
  for (int i = 0; i < s->claims; i++) oc_run_claim(s->run, ATTN);
  pthread_barrier_wait(&s->inside);
  pthread_mutex_lock(&s->gate);
  pthread_mutex_unlock(&s->gate);
  return NULL;
}

/* Calls that another thread is in when the run ends, or was ended in, are no fault; calls that were lost are. */
static void test_calls_in_flight(void **state) {
  (void)state;
  static const struct {
    int calls, claims, lost_here, is_joined, status;
  } table[] = {{1, 0, 0, 0, 0}, {1, 1, 0, 0, 0}, {1, 0, 0, 1, 0},
               {0, 0, 0, 0, 0}, {2, 0, 0, 0, 4}, /* one thread is in one call */
               {0, 0, 1, 0, 4},                  /* the closing thread is in none, whatever threads there are */
               {1, 0, 1, 0, 4}, {0, 1, 0, 0, 4}};
  int cases = 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++, cases++) {
    fixture_bytes = 0;
    sleeper s = {
        .run = fixture_open(fixture_options(OC_MODE_FAST)), .calls = table[i].calls, .claims = table[i].claims};
    oc_run_lever_active(s.run, ATTN, "", NULL);
    fixture_serve(s.run, ATTN, "cpu", 3);
    pthread_t thread;
    pthread_mutex_init(&s.gate, NULL);
    pthread_barrier_init(&s.inside, NULL, 2);
    pthread_mutex_lock(&s.gate);
    assert_int_equal(pthread_create(&thread, NULL, stay_in_call, &s), 0);
    pthread_barrier_wait(&s.inside);
    for (int k = 0; k < table[i].lost_here; k++) oc_run_call(s.run, ATTN);
    if (table[i].is_joined) {
      pthread_mutex_unlock(&s.gate);
      pthread_join(thread, NULL);
    }
    int is_well = table[i].status == 0;
    json_t *root = expect_end(s.run, is_well ? OC_OK : OC_CLOSED, table[i].status, is_well ? "finished" : "closed");
    int flight = is_well ? table[i].calls : 0;
    assert_int_equal(number_at(lever_at(root, ATTN), "in_flight"), flight);
    assert_int_equal(said("NOTE calls in flight lever=attn count=1\n"), flight);
    json_decref(root);
    if (!table[i].is_joined) {
      pthread_mutex_unlock(&s.gate);
      pthread_join(thread, NULL);
    }
    pthread_mutex_destroy(&s.gate);
    pthread_barrier_destroy(&s.inside);
    oc_run_free(s.run);
  }
  assert_int_equal(cases, 8);
}

/* Calls left to the stock op and one in flight: refused all the same. */
static void test_in_flight_and_left_to_stock(void **state) {
  (void)state;
  sleeper s = {.run = fixture_open(fixture_options(OC_MODE_EXACT)), .calls = 1};
  oc_run_lever_active(s.run, ATTN, "", NULL);
  fixture_stock(s.run, ATTN, "c", "proof", 3);
  pthread_t thread;
  pthread_mutex_init(&s.gate, NULL);
  pthread_barrier_init(&s.inside, NULL, 2);
  assert_int_equal(pthread_create(&thread, NULL, stay_in_call, &s), 0);
  pthread_barrier_wait(&s.inside);
  pthread_join(thread, NULL);
  json_t *root = expect_end(s.run, OC_OK, 0, "finished");
  assert_string_equal(text_at(lever_at(root, ATTN), "state"), "refused");
  assert_int_equal(number_at(lever_at(root, ATTN), "in_flight"), 1);
  json_decref(root);
  pthread_mutex_destroy(&s.gate);
  pthread_barrier_destroy(&s.inside);
  oc_run_free(s.run);
}

typedef struct runner {
  oc_run *run;
  atomic_int ends;
} runner;

static void *call_on(void *context) {
  runner *r = context;
  int hit;
  oc_run_slot(r->run, ATTN, OC_SLOT_HIT, "triattn", "cpu", "c", &hit, NULL);
  while (!atomic_load(&r->ends)) {
    oc_run_call(r->run, ATTN);
    oc_run_claim(r->run, ATTN);
    oc_run_settle(r->run, hit);
  }
  return NULL;
}

/* Threads that go on calling while the run ends never make a sum that does not hold. */
static void test_close_among_callers(void **state) {
  (void)state;
  enum { CALLERS = 3, ROUNDS = 100 };
  for (int round = 0; round < ROUNDS; round++) {
    fixture_bytes = 0;
    runner r = {.run = fixture_open(fixture_options(OC_MODE_FAST))};
    oc_run_lever_active(r.run, ATTN, "", NULL);
    fixture_serve(r.run, ATTN, "cpu", 1);
    pthread_t thread[CALLERS];
    for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&thread[i], NULL, call_on, &r), 0);
    while (oc_run_counts(r.run, ATTN).hits < 1000) usleep(100);
    int status = -1;
    oc_err err = {0};
    oc_status verdict = oc_run_close(r.run, 0, &status, &err);
    atomic_store(&r.ends, 1);
    for (int i = 0; i < CALLERS; i++) pthread_join(thread[i], NULL);
    if (verdict != OC_OK) fail_msg("round %d: %s", round, err.detail);
    assert_int_equal(status, 0);
    oc_run_free(r.run);
  }
}

static void test_required_refusal(void **state) {
  (void)state;
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  oc_err why = {0}, err = {0}, end = {0};
  OC_REFUSE(&why, ARCH, "80!=sm_90a");
  assert_int_equal(oc_run_lever_refused(run, ATTN, &why, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_ARCH);
  assert_string_equal(err.detail, "80!=sm_90a");
  assert_true(said("NOT ACTIVE: attn: arch:80!=sm_90a\n"));
  int status = -1;
  assert_int_equal(oc_run_close(run, 0, &status, &end), OC_REFUSED);
  assert_int_equal(status, 3);
  assert_int_equal(end.reason, OC_REASON_ARCH);
  assert_true(said("EXIT status=3 state=refused "));
  json_t *root = fixture_load(oc_run_manifest_path(run));
  assert_string_equal(text_at(root, "state"), "refused");
  assert_string_equal(text_at(json_object_get(root, "refusal"), "name"), "attn");
  assert_string_equal(text_at(json_object_get(root, "refusal"), "reason"), "arch:80!=sm_90a");
  json_decref(root);
  oc_run_free(run);
}

/* The engine's own status stays; refusal goes before accounting; a cause that is no refusal keeps its word. */
static void test_exit_status(void **state) {
  (void)state;
  static const struct {
    int engine, refuse, spoil, status;
    oc_status verdict;
    const char *state;
  } table[] = {{0, 0, 0, 0, OC_OK, "finished"},     {1, 0, 0, 1, OC_OK, "finished"},
               {0, 1, 0, 3, OC_REFUSED, "refused"}, {7, 1, 0, 7, OC_REFUSED, "refused"},
               {0, 0, 1, 4, OC_CLOSED, "closed"},   {7, 0, 1, 7, OC_CLOSED, "closed"},
               {0, 1, 1, 3, OC_REFUSED, "refused"}, {-11, 0, 0, -11, OC_OK, "finished"}};
  int cases = 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++, cases++) {
    oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
    oc_err why = {0}, err = {0};
    OC_FAIL(&why, NO_MEM, 0, "7 bytes");
    if (table[i].refuse) assert_int_equal(oc_run_refuse(run, "an engine", &why, NULL), OC_OK);
    if (table[i].spoil) oc_run_call(run, ATTN);
    int status = -1;
    assert_int_equal(oc_run_close(run, table[i].engine, &status, &err), table[i].verdict);
    assert_int_equal(status, table[i].status);
    if (table[i].refuse) assert_string_equal(err.detail, "no_mem:7 bytes");
    json_t *root = fixture_load(oc_run_manifest_path(run));
    assert_string_equal(text_at(root, "state"), table[i].state);
    assert_int_equal(number_at(root, "engine_status"), table[i].engine);
    assert_int_equal(number_at(root, "exit_status"), table[i].status);
    json_decref(root);
    oc_run_free(run);
  }
  assert_int_equal(cases, 8);
  assert_true(said("NOT ACTIVE: an%20engine: no_mem:7 bytes\n"));
}

static void test_lever_steps(void **state) {
  (void)state;
  oc_run_options options = fixture_options(OC_MODE_EXACT);
  options.levers_off = "attn,counted:none";
  oc_run *run = NULL;
  oc_err err = {0};
  assert_int_equal(oc_run_open(&options, &run, &err), OC_REFUSED); /* `counted` has no rows */
  assert_int_equal(err.reason, OC_REASON_LEVER);
  options.levers_off = "attn";
  run = fixture_open(options);
  oc_err off = {0}, bad = {0}, why = {0};
  OC_REFUSE(&why, SHAPE, "n=1");
  assert_int_equal(oc_run_lever_begin(run, ATTN, &off), OC_REFUSED);
  assert_int_equal(off.reason, OC_REASON_OFF_BY_USER);
  assert_true(said("LEVER attn off row= reason=off_by_user\n"));
  assert_int_equal(oc_run_lever_active(run, ATTN, "", &bad), OC_BAD_ARG);
  assert_string_equal(bad.detail, "lever attn is off, not declared");
  assert_int_equal(oc_run_lever_begin(run, ATTN, NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_lever_refused(run, ATTN, &why, NULL), OC_BAD_ARG);
  oc_err absent = {0};
  assert_int_equal(oc_run_lever_active(run, MUL, "", &absent), OC_BAD_ARG);
  assert_string_equal(absent.detail, "lever mul takes no part in mode exact");
  assert_int_equal(oc_run_lever_active(run, 3, "", NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_lever_active(run, -1, "", NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_lever_refused(run, COUNTED, NULL, NULL), OC_BAD_ARG);
  oc_err nothing = {0};
  assert_int_equal(oc_run_lever_refused(run, COUNTED, &nothing, NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_lever_begin(run, COUNTED, NULL), OC_OK);
  assert_int_equal(oc_run_lever_begin(run, COUNTED, NULL), OC_OK); /* asks only */
  assert_int_equal(oc_run_activated(run, NULL), OC_OK);
  assert_int_equal(oc_run_activated(run, NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_patched(run, COUNTED, "x", -1, NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_patched(run, COUNTED, "", 1, NULL), OC_BAD_ARG);
  int status = -1;
  assert_int_equal(oc_run_close(run, 0, &status, NULL), OC_OK); /* nothing active owes nothing */
  assert_int_equal(status, 0);
  oc_run_free(run);
}

static void test_bad_options(void **state) {
  (void)state;
  oc_run_options good = fixture_options(OC_MODE_FAST), bad = good;
  oc_run *run = NULL;
  oc_err err = {0};
  assert_int_equal(oc_run_open(NULL, &run, NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_open(&good, NULL, NULL), OC_BAD_ARG);
  bad.struct_bytes = 8;
  assert_int_equal(oc_run_open(&bad, &run, NULL), OC_BAD_ARG);
  bad = good;
  bad.kit = NULL;
  assert_int_equal(oc_run_open(&bad, &run, NULL), OC_BAD_ARG);
  bad = good;
  bad.mode = OC_MODE_OFF;
  assert_int_equal(oc_run_open(&bad, &run, NULL), OC_BAD_ARG);
  bad.mode = (oc_mode)9;
  assert_int_equal(oc_run_open(&bad, &run, NULL), OC_BAD_ARG);
  bad = good;
  bad.census = "2";
  assert_int_equal(oc_run_open(&bad, &run, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_ENVIRONMENT);
  char longer[PATH_MAX + 10];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  bad = good;
  bad.manifest = longer;
  assert_int_equal(oc_run_open(&bad, &run, NULL), OC_BAD_ARG);
  longer[300] = '\0';
  assert_int_equal(oc_run_open(&bad, &run, NULL), OC_BAD_ARG);
  setenv("OPT_CORE_RANK", "x", 1);
  assert_int_equal(oc_run_open(&good, &run, NULL), OC_REFUSED);
  unsetenv("OPT_CORE_RANK");
  assert_null(run);
  assert_int_equal(fixture_files(), 0);
}

static void test_facts_and_binaries(void **state) {
  (void)state;
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  static const char *const bad[] = {"", "A", "a b", "a=b", "a-b", "\xC3\xA9"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_int_equal(oc_run_fact(run, bad[i], "v", 0, NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_fact(run, "mode", "v", 1, NULL), OC_BAD_ARG); /* would stand on the ACTIVE line twice */
  assert_int_equal(oc_run_fact(run, "mode", "v", 0, NULL), OC_OK);
  assert_int_equal(oc_run_fact(run, "a", NULL, 0, NULL), OC_BAD_ARG);
  char digest[65], key[16];
  memset(digest, 'a', 64);
  digest[64] = '\0';
  assert_int_equal(oc_run_binary(run, "/x\xFF y", digest, NULL), OC_OK);
  digest[3] = 'A';
  assert_int_equal(oc_run_binary(run, "/x", digest, NULL), OC_BAD_ARG);
  for (int i = 0; i < 200; i++) { /* more than a line holds */
    snprintf(key, sizeof key, "fact%d", i);
    assert_int_equal(oc_run_fact(run, key, "v", 1, NULL), OC_OK);
  }
  oc_run_activated(run, NULL);
  oc_line line;
  assert_int_equal(oc_line_parse(fixture_lines, fixture_bytes, &line, NULL), OC_OK);
  assert_string_equal(line.field[line.field_count - 1].key, "MORE");
  assert_int_equal(atoi(line.field[line.field_count - 1].value), 204 - (line.field_count - 1));
  json_t *root = fixture_load(oc_run_manifest_path(run));
  assert_string_equal(text_at(json_object_get(root, "facts"), "fact199"), "v");
  const json_t *binary = json_array_get(json_object_get(root, "binaries"), 0);
  assert_string_equal(text_at(binary, "path"), "/x%FF y"); /* bytes that are no UTF-8 */
  json_decref(root);
  oc_run_free(run);
}

static void test_slots(void **state) {
  (void)state;
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  int first, again, slot;
  oc_err err = {0};
  assert_int_equal(oc_run_slot(run, ATTN, OC_SLOT_HIT, "f", "ab", "c", &first, NULL), OC_OK);
  assert_int_equal(oc_run_slot(run, ATTN, OC_SLOT_HIT, "f", "ab", "c", &again, NULL), OC_OK);
  assert_int_equal(again, first);
  assert_int_equal(oc_run_slot(run, ATTN, OC_SLOT_HIT, "f", "a", "bc", &again, NULL), OC_OK);
  assert_int_not_equal(again, first);
  assert_int_equal(oc_run_slot(run, MUL, OC_SLOT_HIT, "f", "ab", "c", &again, NULL), OC_OK);
  assert_int_not_equal(again, first);
  assert_int_equal(oc_run_slot(run, 9, OC_SLOT_HIT, "f", "a", "b", &slot, NULL), OC_BAD_ARG);
  assert_int_equal(oc_run_slot(run, ATTN, OC_SLOT_KIND_COUNT, "f", "a", "b", &slot, NULL), OC_BAD_ARG);
  char name[16];
  for (int i = 3; i < OC_SLOT_MAX; i++) {
    snprintf(name, sizeof name, "n%d", i);
    assert_int_equal(oc_run_slot(run, ATTN, OC_SLOT_STOCK, NULL, name, NULL, &slot, NULL), OC_OK);
    assert_int_equal(slot, i);
  }
  slot = -5;
  assert_int_equal(oc_run_slot(run, ATTN, OC_SLOT_STOCK, "", "one more", "", &slot, &err), OC_NO_MEM);
  assert_int_equal(slot, -5);
  assert_non_null(strstr(err.detail, "4096"));
  assert_int_equal(oc_run_slot(run, ATTN, OC_SLOT_HIT, "f", "ab", "c", &again, NULL), OC_OK);
  assert_int_equal(again, first);
  oc_run_free(run);
}

enum { THREADS = 8, EACH = 1000000 };
static void *count_calls(void *context) {
  oc_run *run = context;
  int hit, stock;
  oc_run_slot(run, ATTN, OC_SLOT_HIT, "triattn", "cpu", "c", &hit, NULL);
  oc_run_slot(run, ATTN, OC_SLOT_STOCK, "triattn", "x", "uncovered_cell", &stock, NULL);
  for (int i = 0; i < EACH; i++) {
    oc_run_call(run, ATTN);
    if (i % 4 == 0) {
      oc_run_settle(run, stock);
    } else {
      oc_run_claim(run, ATTN);
      oc_run_settle(run, hit);
    }
  }
  return NULL;
}

static void test_counts_of_many_threads(void **state) {
  (void)state;
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  oc_run_lever_active(run, ATTN, "", NULL);
  pthread_t thread[THREADS];
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, count_calls, run), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  oc_lever_counts counts = oc_run_counts(run, ATTN);
  assert_int_equal(counts.calls, (int64_t)THREADS * EACH);
  assert_int_equal(counts.stock, (int64_t)THREADS * EACH / 4);
  assert_int_equal(counts.claims, (int64_t)THREADS * EACH * 3 / 4);
  assert_int_equal(counts.hits, counts.claims);
  assert_int_equal(counts.fallbacks, 0);
  assert_int_equal(oc_run_close(run, 0, NULL, NULL), OC_OK);
  oc_run_free(run);
}

static void test_counting_is_cheap(void **state) {
  (void)state;
  oc_run *run = fixture_open(fixture_options(OC_MODE_FAST));
  int slot;
  oc_run_slot(run, ATTN, OC_SLOT_HIT, "triattn", "cpu", "c", &slot, NULL);
  double best = 0;
  for (int round = 0; round < 5; round++) { /* the best of five: other work on the machine only slows down */
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < 3000000; i++) {
      oc_run_call(run, ATTN);
      oc_run_claim(run, ATTN);
      oc_run_settle(run, slot);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    double seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    if (9e6 / seconds > best) best = 9e6 / seconds;
  }
  print_message("%.0f M counts/s on one thread\n", best / 1e6);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  assert_true(best > 10e6);
#endif
  oc_run_free(run);
}

static oc_run *nested_run;
static void nested_sink(const char *text, size_t bytes, void *context) {
  (void)text;
  (void)bytes;
  (*(int *)context)++;
  assert_int_equal(oc_run_fact(nested_run, "from.sink", "x", 0, NULL), OC_OK);
  pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, NULL, 0);
}

/* A sink may use the run and may fork: no lock is held while it is called. */
static void test_a_sink_that_calls_back(void **state) {
  (void)state;
  int heard = 0;
  nested_run = fixture_open(fixture_options(OC_MODE_FAST));
  oc_line_set_sink(nested_sink, &heard);
  alarm(20);
  oc_run_lever_active(nested_run, ATTN, "", NULL);
  oc_run_activated(nested_run, NULL);
  alarm(0);
  oc_line_set_sink(NULL, NULL);
  assert_int_equal(heard, 2);
  oc_run_free(nested_run);
}

int main(void) {
  const struct CMUnitTest tests[] = {FIXTURE_TEST(test_a_whole_run),
                                     FIXTURE_TEST(test_accounting_fails_closed),
                                     FIXTURE_TEST(test_left_to_stock),
                                     FIXTURE_TEST(test_left_to_stock_beside_others),
                                     FIXTURE_TEST(test_refused_early),
                                     FIXTURE_TEST(test_counting_again_at_exit_changes_nothing),
                                     FIXTURE_TEST(test_calls_in_flight),
                                     FIXTURE_TEST(test_in_flight_and_left_to_stock),
                                     FIXTURE_TEST(test_close_among_callers),
                                     FIXTURE_TEST(test_required_refusal),
                                     FIXTURE_TEST(test_exit_status),
                                     FIXTURE_TEST(test_lever_steps),
                                     FIXTURE_TEST(test_bad_options),
                                     FIXTURE_TEST(test_facts_and_binaries),
                                     FIXTURE_TEST(test_slots),
                                     FIXTURE_TEST(test_counts_of_many_threads),
                                     FIXTURE_TEST(test_counting_is_cheap),
                                     FIXTURE_TEST(test_a_sink_that_calls_back)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
