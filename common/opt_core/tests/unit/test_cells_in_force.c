/* SPDX-License-Identifier: Apache-2.0 */
/* The overlay is read once a process, so each case is a forked child. The compiled-in tables are this file's own: they
 * stand in for the generated array. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "cell_text.h"
#include "opt_core/activation.h"
#include "opt_core/provider.h"
#include "providers/cells_embedded.h"
#include "scratch.h"

static const char ln_table[] = TABLE(
    "ln", CELL("small", "\"form\":\"*\",\"n\":[1,100]") "," CELL(
              "large", "\"form\":\"*\",\"n\":[100,1000]") "," EXACT_CELL("proven", "\"form\":\"*\"", "[\"stack-1\"]"));
static const char apb_table[] = TABLE("ln", "");
static const char trimul_table[] = "{\"schema\":1";
static const char transition_table[] = TABLE(
    "transition",
    "{\"id\":\"r\",\"tier\":\"fast\",\"device\":\"cpu-avx2\",\"dtype\":\"f32\",\"form\":\"*\",\"row\":\"reference\","
    "\"fallback\":\"stock\"," CELL_NUMBERS "," CELL_EVIDENCE "}");

#define EMBED(family, text)                                                                                            \
  { family, (const unsigned char *)text, sizeof text - 1 }
const oc__cells_embedded oc__cells_embedded_tables[] = {EMBED("apb", apb_table),
                                                        EMBED("ln", ln_table),
                                                        EMBED("transition", transition_table),
                                                        EMBED("trimul", trimul_table),
                                                        {NULL, NULL, 0}};

/* Runs body in a child with OPT_CORE_CELLS naming a file of that text (NULL: not set). The body's asserts end the
 * child. */
static void in_child(const char *overlay, void (*body)(void)) {
  if (overlay) scratch_write("overlay.json", overlay, strlen(overlay));
  pid_t child = fork();
  if (child == 0) {
    if (overlay)
      setenv("OPT_CORE_CELLS", scratch_path("overlay.json"), 1);
    else
      unsetenv("OPT_CORE_CELLS");
    body();
    _exit(0);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

/* In a child: cmocka's asserts would jump back into the parent's list of tests. */
#define MUST(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                          \
      _exit(1);                                                                                                        \
    }                                                                                                                  \
  } while (0)

static const char *chosen(int64_t n, oc_tier tier, const char *stack, oc_err *err) {
  const oc_cells *cells = NULL;
  oc_choice choice;
  oc_class cls = {.family = OC_FAMILY_LN, .tier = tier, .device = "cpu-avx512", .dtype = OC_F32, .form = "affine"};
  cls.dim[OC_DIM_N] = n;
  strcpy(cls.stack, stack);
  if (oc_cells_in_force(OC_FAMILY_LN, &cells, err) != OC_OK) return "failed";
  return oc_select(cells, &cls, &choice, err) == OC_OK ? choice.cell->id : "refused";
}

static void builtin_only(void) {
  const oc_cells *cells = NULL, *again = NULL, *base = NULL;
  MUST(oc_cells_builtin(OC_FAMILY_LN, &base, NULL) == OC_OK && oc_cells_count(base) == 3);
  MUST(oc_cells_in_force(OC_FAMILY_LN, &cells, NULL) == OC_OK && oc_cells_count(cells) == 3);
  MUST(oc_cells_in_force(OC_FAMILY_LN, &again, NULL) == OC_OK && again == cells);
  MUST(strcmp(oc_cells_overlay_digest(), "") == 0);
  MUST(strcmp(chosen(50, OC_TIER_FAST, "", NULL), "small") == 0);
  MUST(strcmp(chosen(100, OC_TIER_FAST, "", NULL), "large") == 0);
  MUST(strcmp(chosen(1000, OC_TIER_FAST, "", NULL), "refused") == 0);
  MUST(oc_cells_in_force(OC_FAMILY_TRIATTN, &cells, NULL) == OC_OK && oc_cells_count(cells) == 0); /* no table */
  setenv("OPT_CORE_CELLS", "/nonexistent", 1); /* too late: it is read once */
  MUST(strcmp(chosen(50, OC_TIER_FAST, "", NULL), "small") == 0);
}

static void broken_builtin(void) {
  const oc_cells *cells = NULL;
  oc_err err = {0}, twice = {0};
  MUST(oc_cells_builtin(OC_FAMILY_TRIMUL, &cells, &err) == OC_REFUSED && err.reason == OC_REASON_CELLS && !cells);
  MUST(strstr(err.detail, "line 1") != NULL);
  MUST(oc_cells_in_force(OC_FAMILY_TRIMUL, &cells, &twice) == OC_REFUSED && strcmp(err.detail, twice.detail) == 0);
  err = (oc_err){0};
  MUST(oc_cells_builtin(OC_FAMILY_APB, &cells, &err) == OC_REFUSED);
  MUST(strcmp(err.detail, "the table of apb says family ln") == 0);
  err = (oc_err){0};
  MUST(oc_cells_builtin(OC_FAMILY_TRANSITION, &cells, &err) == OC_REFUSED);
  MUST(strcmp(err.detail, "transition: cell 0 (r) serves the reference") == 0);
  MUST(oc_cells_builtin(OC_FAMILY_LN, &cells, NULL) == OC_OK); /* one broken family leaves the others alone */
  MUST(oc_cells_builtin(OC_FAMILY_COUNT, &cells, NULL) == OC_BAD_ARG);
}

static void test_builtin(void **state) {
  (void)state;
  in_child(NULL, builtin_only);
  in_child(NULL, broken_builtin);
}

static const char over_table[] = TABLE("ln", CELL("mine", "\"form\":\"*\",\"n\":[60,120]") "," EXACT_CELL(
                                                 "mine-exact", "\"form\":\"*\"", "[\"stack-2\"]"));

static void overlaid(void) {
  const oc_cells *cells = NULL, *base = NULL;
  char digest[65];
  oc_err err = {0};
  MUST(strcmp(chosen(59, OC_TIER_FAST, "", NULL), "small") == 0);
  MUST(strcmp(chosen(60, OC_TIER_FAST, "", NULL), "mine") == 0);
  MUST(strcmp(chosen(119, OC_TIER_FAST, "", NULL), "mine") == 0);
  MUST(strcmp(chosen(120, OC_TIER_FAST, "", NULL), "large") == 0);
  /* an unproven overlay cell does not hide a proven one below it */
  MUST(strcmp(chosen(5, OC_TIER_EXACT, "stack-2", NULL), "mine-exact") == 0);
  MUST(strcmp(chosen(5, OC_TIER_EXACT, "stack-1", NULL), "proven") == 0);
  MUST(strcmp(chosen(5, OC_TIER_EXACT, "stack-3", &err), "refused") == 0 && err.reason == OC_REASON_PROOF);
  MUST(oc_cells_in_force(OC_FAMILY_LN, &cells, NULL) == OC_OK && oc_cells_count(cells) == 5);
  MUST(oc_cells_builtin(OC_FAMILY_LN, &base, NULL) == OC_OK && oc_cells_count(base) == 3);
  MUST(oc_digest_bytes(over_table, sizeof over_table - 1, digest, NULL) == OC_OK);
  MUST(strcmp(oc_cells_overlay_digest(), digest) == 0);
}

static void same_id(void) {
  const oc_cells *cells = NULL;
  MUST(oc_cells_in_force(OC_FAMILY_LN, &cells, NULL) == OC_OK && oc_cells_count(cells) == 3);
  MUST(strcmp(chosen(15, OC_TIER_FAST, "", NULL), "small") == 0);
  MUST(strcmp(chosen(50, OC_TIER_FAST, "", NULL), "refused") == 0); /* the replaced cell's range is gone */
  MUST(strcmp(chosen(500, OC_TIER_FAST, "", NULL), "large") == 0);
}

static void two_tables(void) {
  const oc_cells *cells = NULL;
  MUST(strcmp(chosen(60, OC_TIER_FAST, "", NULL), "mine") == 0);
  MUST(oc_cells_in_force(OC_FAMILY_TRIATTN, &cells, NULL) == OC_OK && oc_cells_count(cells) == 1);
  MUST(strcmp(oc_cells_at(cells, 0)->id, "t") == 0);
}

static void test_overlay(void **state) {
  (void)state;
  in_child(over_table, overlaid);
  in_child(TABLE("ln", CELL("small", "\"form\":\"*\",\"n\":[10,20]")), same_id);
  in_child("{\"tables\":[" TABLE("triattn", CELL("t", "\"form\":\"*\"")) "," TABLE(
               "ln", CELL("mine", "\"form\":\"*\",\"n\":[60,120]")) "]}",
           two_tables);
}

static const char *wanted;

static void refuses(void) {
  const oc_cells *cells = NULL;
  for (int family = 0; family < OC_FAMILY_COUNT; family++) {
    oc_err err = {0};
    MUST(oc_cells_in_force((oc_family)family, &cells, &err) == OC_REFUSED && err.reason == OC_REASON_CELLS);
    if (!strstr(err.detail, wanted)) fprintf(stderr, "'%s' does not hold '%s'\n", err.detail, wanted);
    MUST(strstr(err.detail, wanted) != NULL && !cells);
  }
}

static void refuses_missing(void) {
  setenv("OPT_CORE_CELLS", "/nonexistent/cells.json", 1);
  refuses();
}

static void test_bad_overlays(void **state) {
  (void)state;
  static const struct {
    const char *text, *part;
  } rows[] = {{"{", "OPT_CORE_CELLS: line 1"},
              {"", "OPT_CORE_CELLS: line"},
              {"[]", "OPT_CORE_CELLS: "},
              {"{\"tables\":{}}", "\"tables\" is a list and stands alone"},
              {"{\"tables\":[],\"schema\":1}", "\"tables\" is a list and stands alone"},
              {"{\"tables\":[" TABLE("ln", "") "," TABLE("ln", "") "]}", "two tables of family ln"},
              {"{\"tables\":[3]}", "OPT_CORE_CELLS: "},
              {TABLE("ln", CELL("a", "\"form\":\"*\",\"nn\":[1,2]")), "unknown key nn"}};
  int cases = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, cases++) {
    wanted = rows[i].part;
    in_child(rows[i].text, refuses);
  }
  assert_int_equal(cases, 8);
  wanted = "/nonexistent/cells.json";
  in_child(NULL, refuses_missing);
}

static void *first_use(void *out) {
  oc_cells_in_force(OC_FAMILY_LN, (const oc_cells **)out, NULL);
  return NULL;
}

static void many_threads(void) {
  pthread_t threads[16];
  const oc_cells *seen[16] = {NULL};
  for (int i = 0; i < 16; i++) MUST(pthread_create(&threads[i], NULL, first_use, &seen[i]) == 0);
  for (int i = 0; i < 16; i++) MUST(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < 16; i++) MUST(seen[i] && seen[i] == seen[0] && oc_cells_count(seen[i]) == 5);
}

static void test_threads(void **state) {
  (void)state;
  for (int round = 0; round < 20; round++) in_child(over_table, many_threads);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_builtin), cmocka_unit_test(test_overlay),
                                     cmocka_unit_test(test_bad_overlays), cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
