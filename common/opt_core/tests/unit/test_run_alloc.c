/* SPDX-License-Identifier: Apache-2.0 */
/* A whole run in which the k-th allocation fails, for every k there is: no crash, no leak, a status that says so. The
 * linker sends the library's allocations here (cmake/opt_core_tests.cmake); those of jansson come by its own hook. */
#define _GNU_SOURCE
#include "record_fixture.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *at, size_t bytes);
void __real_free(void *at);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *at, size_t bytes);
void __wrap_free(void *at);
int __wrap_fsync(int fd);

static int counts_now; /* between the start and the end of a run under test; one thread */
static int64_t asked, fails_at, held;

static int refuses(void) { return counts_now && ++asked == fails_at; }

static void *hold(void *at) {
  held += counts_now && at;
  return at;
}

void *__wrap_malloc(size_t bytes) { return refuses() ? NULL : hold(__real_malloc(bytes)); }

void *__wrap_calloc(size_t count, size_t bytes) { return refuses() ? NULL : hold(__real_calloc(count, bytes)); }

void *__wrap_realloc(void *at, size_t bytes) {
  if (refuses()) return NULL;
  return at ? __real_realloc(at, bytes) : hold(__real_realloc(NULL, bytes));
}

void __wrap_free(void *at) {
  held -= counts_now && at;
  __real_free(at);
}

int __wrap_fsync(int fd) { /* thousands of runs: the disk is not what is tested */
  return fd < 0 ? -1 : 0;
}

static void hear_nothing(const char *text, size_t bytes, void *context) {
  (void)text;
  (void)bytes;
  (void)context;
}

static int steps, failures; /* of the run under test */
static void step(oc_status status) {
  assert_true(status == OC_OK || status == OC_NO_MEM);
  steps++;
  failures += status == OC_NO_MEM;
}

static void use(oc_run *run) {
  oc_err why = {0};
  char digest[65] = "";
  int hit = -1, stock = -1;
  memset(digest, 'a', 64);
  OC_REFUSE(&why, DTYPE, "f64");
  step(oc_run_lever_begin(run, ATTN, NULL));
  oc_status active = oc_run_lever_active(run, ATTN, "cpu", NULL);
  step(active);
  step(oc_run_lever_refused(run, MUL, &why, NULL));
  step(oc_run_patched(run, ATTN, "Block", 2, NULL));
  step(oc_run_still_patched(run, ATTN, "Block", 2, NULL));
  step(oc_run_fact(run, "torch", "1", 0, NULL));
  step(oc_run_fact(run, "torch", "2", 1, NULL));
  step(oc_run_binary(run, "/a binary", digest, NULL));
  step(oc_run_activated(run, NULL));
  step(oc_run_slot(run, ATTN, OC_SLOT_HIT, "triattn", "cpu", "cell1", &hit, NULL));
  step(oc_run_slot(run, ATTN, OC_SLOT_STOCK, "triattn", "c", "uncovered_cell", &stock, NULL));
  if (hit >= 0) {
    oc_run_call(run, ATTN);
    oc_run_claim(run, ATTN);
    oc_run_settle(run, hit);
  }
  if (stock >= 0) {
    oc_run_call(run, ATTN);
    oc_run_settle(run, stock);
  }
}

/* Returns the run's exit status, -1 when it could not even open. */
static int whole_run(void) {
  oc_kit *kit = NULL;
  oc_run *run = NULL;
  char path[PATH_MAX], *census = NULL;
  int status = -1;
  oc_status parsed = oc_kit_parse(fixture_table, sizeof fixture_table - 1, &kit, NULL);
  if (parsed != OC_OK) {
    failures++; /* a table that cannot be read for want of memory may look broken too */
    return -1;
  }
  oc_run_options options = fixture_options(OC_MODE_FAST);
  options.kit = kit;
  step(oc_run_open(&options, &run, NULL));
  if (run) {
    use(run);
    oc_status closed = oc_run_close(run, 0, &status, NULL);
    /* Without the slot of its hit the lever has stock calls only. */
    assert_true(closed == OC_OK || closed == OC_CLOSED || (closed == OC_REFUSED && failures));
    assert_int_equal(status, closed == OC_OK ? 0 : closed == OC_REFUSED ? 3 : 4);
    snprintf(path, sizeof path, "%s", oc_run_manifest_path(run));
    oc_run_free(run);
    /* The manifest may be missing or from an earlier write; whether it can be read shows in the status alone. */
    if (oc_manifest_census(path, &census, NULL) == OC_OK)
      oc_text_free(census);
    else
      failures++;
    unlink(path); /* a `running` one of this process would be held against the next run */
  }
  oc_kit_free(kit);
  return status;
}

static int64_t run_failing_at(int64_t k, int *status) {
  asked = held = 0;
  steps = failures = 0;
  fails_at = k;
  counts_now = 1;
  *status = whole_run();
  counts_now = 0;
  if (held) fail_msg("allocation %jd failed: %jd blocks leaked", (intmax_t)k, (intmax_t)held);
  return asked;
}

static void test_every_allocation_may_fail(void **state) {
  (void)state;
  oc_line_set_sink(hear_nothing, NULL);
  json_set_alloc_funcs(__wrap_malloc, __wrap_free);
  int status, seen = 0;
  assert_int_equal(whole_run(), 0); /* the cell tables are read once a process, and stay */
  int64_t total = run_failing_at(0, &status);
  assert_int_equal(status, 0);
  assert_int_equal(failures, 0);
  assert_int_equal(steps, 12);
  assert_true(total > 500); /* the allocations are really counted */
  for (int64_t k = 1; k <= total; k++) {
    (void)run_failing_at(k, &status);
    seen += failures > 0;
  }
  print_message("%jd allocations, %d of their failures came back as a status\n", (intmax_t)total, seen);
  assert_true(seen > 50);
  assert_int_equal(run_failing_at(0, &status), total); /* nothing was left behind that changes a later run */
  assert_int_equal(status, 0);
  assert_int_equal(fixture_files(), 0); /* and no temporary stayed */
}

int main(void) {
  const struct CMUnitTest tests[] = {FIXTURE_TEST(test_every_allocation_may_fail)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
