/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "cell_text.h"
#include "providers/cells.h"

static oc_cells *parse(const char *text) {
  oc_cells *cells = NULL;
  oc_err err = {0};
  if (oc_cells_parse(text, strlen(text), &cells, &err) != OC_OK) fail_msg("%s", err.detail);
  return cells;
}

static oc_class make_class(const char *form, int64_t n) {
  oc_class cls = {.family = OC_FAMILY_LN, .tier = OC_TIER_FAST, .device = "cpu-avx512", .dtype = OC_F32};
  strcpy(cls.form, form);
  cls.dim[OC_DIM_N] = n;
  cls.dim[OC_DIM_C] = 128;
  return cls;
}

static void check_choice(const oc_cells *cells, oc_class cls, const char *id) {
  oc_choice choice = {NULL, NULL};
  oc_err err = {0};
  if (oc_select(cells, &cls, &choice, &err) != OC_OK) fail_msg("%s", err.detail);
  assert_string_equal(choice.cell->id, id);
  assert_string_equal(choice.member->row, choice.cell->row);
  assert_int_equal(choice.member->family, cls.family);
}

static void check_refused(const oc_cells *cells, oc_class cls, oc_status status, oc_reason reason, const char *detail) {
  oc_choice choice = {NULL, NULL};
  oc_err err = {0};
  assert_int_equal(oc_select(cells, &cls, &choice, &err), status);
  assert_int_equal(err.reason, reason);
  assert_string_equal(err.detail, detail);
  assert_null(choice.cell);
  assert_null(choice.member);
}

static void test_ranges_are_half_open(void **state) {
  (void)state;
  oc_cells *cells = parse(
      TABLE("ln", CELL("low", "\"form\":\"*\",\"n\":[1,128]") "," CELL("high", "\"form\":\"*\",\"n\":[128,257]")));
  check_choice(cells, make_class("affine", 1), "low");
  check_choice(cells, make_class("affine", 127), "low");
  check_choice(cells, make_class("affine", 128), "high");
  check_choice(cells, make_class("", 256), "high");
  check_refused(cells, make_class("affine", 257), OC_REFUSED, OC_REASON_UNCOVERED_CELL,
                "ln:ln.fast.cpu-avx512.f32.affine.n<=512.c=128");
  check_refused(cells, make_class("", 0), OC_REFUSED, OC_REASON_UNCOVERED_CELL, "ln:ln.fast.cpu-avx512.f32.-.c=128");
  oc_cells_free(cells);
}

static void test_every_part_of_the_class_counts(void **state) {
  (void)state;
  oc_cells *cells = parse(TABLE("ln", CELL("a", "\"form\":\"affine\",\"n\":[1,9],\"c\":[128,129]")));
  check_choice(cells, make_class("affine", 5), "a");
  oc_class cls = make_class("affine", 5);
  cls.tier = OC_TIER_BIG;
  check_refused(cells, cls, OC_REFUSED, OC_REASON_UNCOVERED_CELL, "ln:ln.big.cpu-avx512.f32.affine.n<=8.c=128");
  cls = make_class("affine", 5), cls.dtype = OC_BF16;
  check_refused(cells, cls, OC_REFUSED, OC_REASON_UNCOVERED_CELL, "ln:ln.fast.cpu-avx512.bf16.affine.n<=8.c=128");
  cls = make_class("affine", 5), strcpy(cls.device, "cpu-avx2");
  check_refused(cells, cls, OC_REFUSED, OC_REASON_UNCOVERED_CELL, "ln:ln.fast.cpu-avx2.f32.affine.n<=8.c=128");
  cls = make_class("affine", 5), cls.dim[OC_DIM_C] = 129;
  check_refused(cells, cls, OC_REFUSED, OC_REASON_UNCOVERED_CELL, "ln:ln.fast.cpu-avx512.f32.affine.n<=8.c=129");
  check_refused(cells, make_class("affine+rms", 5), OC_REFUSED, OC_REASON_UNCOVERED_CELL,
                "ln:ln.fast.cpu-avx512.f32.affine+rms.n<=8.c=128");
  cls = make_class("affine", 5), strcpy(cls.stack, "any stack"); /* looked at in the exact tier only */
  check_choice(cells, cls, "a");
  oc_cells_free(cells);
}

static void test_forms(void **state) {
  (void)state;
  oc_cells *cells = parse(TABLE("ln", CELL("two", "\"form\":[\"x+y\",\"z\"]") "," CELL("none", "\"form\":\"\"")));
  check_choice(cells, make_class("x+y", 3), "two");
  check_choice(cells, make_class("y+x", 3), "two"); /* a form is a set */
  check_choice(cells, make_class("z", 3), "two");
  check_choice(cells, make_class("", 3), "none");
  check_refused(cells, make_class("x", 3), OC_REFUSED, OC_REASON_UNCOVERED_CELL,
                "ln:ln.fast.cpu-avx512.f32.x.n<=4.c=128");
  check_refused(cells, make_class("x+y+z", 3), OC_REFUSED, OC_REASON_UNCOVERED_CELL,
                "ln:ln.fast.cpu-avx512.f32.x+y+z.n<=4.c=128");
  check_refused(cells, make_class("x||z", 3), OC_BAD_ARG, OC_REASON_NONE, "form x||z is no set of words");
  oc_cells_free(cells);
}

static void test_exact_needs_proof(void **state) {
  (void)state;
  oc_cells *cells = parse(TABLE("ln", EXACT_CELL("e", "\"form\":\"*\"", "[\"torch-2.11.0\",\"torch-2.12.0\"]")));
  oc_class cls = make_class("affine", 5);
  cls.tier = OC_TIER_EXACT;
  strcpy(cls.stack, "torch-2.12.0");
  check_choice(cells, cls, "e");
  strcpy(cls.stack, "torch-2.10.0");
  check_refused(cells, cls, OC_REFUSED, OC_REASON_PROOF, "cpu:torch-2.10.0");
  strcpy(cls.stack, "");
  check_refused(cells, cls, OC_REFUSED, OC_REASON_PROOF, "cpu:");
  oc_cells_free(cells);
}

static void test_member_of_the_device(void **state) {
  (void)state;
  oc_choice choice;
  oc_cells *cells =
      parse(TABLE("ln", CELL_ON("g", "cpu-generic", "\"form\":\"*\"") "," CELL_ON(
                            "a", "cpu-avx512", "\"form\":\"*\"") "," CELL_ON("s", "sm_90a", "\"form\":\"*\"")));
  oc_class cls = make_class("", 5);
  assert_int_equal(oc_select(cells, &cls, &choice, NULL), OC_OK);
  assert_ptr_equal(choice.member, oc_member_find(OC_FAMILY_LN, "cpu", OC_ISA_AVX512));
  strcpy(cls.device, "cpu-generic");
  assert_int_equal(oc_select(cells, &cls, &choice, NULL), OC_OK);
  assert_ptr_equal(choice.member, oc_member_find(OC_FAMILY_LN, "cpu", OC_ISA_GENERIC));
  strcpy(cls.device, "sm_90a"); /* covered, but row cpu has no member there */
  check_refused(cells, cls, OC_REFUSED, OC_REASON_ARCH, "sm_90a");
  oc_cells_free(cells);
}

/* avx512_bf16 takes what was measured on it first, then what was measured on avx512; no other device looks elsewhere. */
static void test_the_device_below(void **state) {
  (void)state;
  oc_choice choice;
  oc_cells *cells = parse(TABLE(
      "transition", CELL("a", "\"form\":\"*\"") "," CELL_ON("b", "cpu-avx512_bf16", "\"form\":\"*\",\"c\":[64,65]")));
  oc_class cls = make_class("", 5);
  cls.family = OC_FAMILY_TRANSITION;
  strcpy(cls.device, "cpu-avx512_bf16");
  cls.dim[OC_DIM_C] = 64;
  assert_int_equal(oc_select(cells, &cls, &choice, NULL), OC_OK);
  assert_string_equal(choice.cell->id, "b"); /* though "a" stands before it */
  cls.dim[OC_DIM_C] = 128;
  assert_int_equal(oc_select(cells, &cls, &choice, NULL), OC_OK);
  assert_string_equal(choice.cell->id, "a");
#if defined(__x86_64__)
  assert_string_equal(choice.member->name, "cpu_avx512_bf16"); /* the member is this device's all the same */
#endif
  static const char *const others[] = {"cpu-avx512", "cpu-avx2", "cpu-generic", "sm_90a", "cpu-neon", ""};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_null(oc_device_below(others[i]));
  strcpy(cls.device, "cpu-avx2");
  check_refused(cells, cls, OC_REFUSED, OC_REASON_UNCOVERED_CELL,
                "transition:transition.fast.cpu-avx2.f32.-.n<=8.c=128");
  oc_cells_free(cells);
}

static void test_bad_arguments(void **state) {
  (void)state;
  oc_choice choice;
  oc_cells *cells = parse(TABLE("ln", ""));
  oc_class cls = make_class("", 5);
  assert_int_equal(oc_select(NULL, &cls, &choice, NULL), OC_BAD_ARG);
  assert_int_equal(oc_select(cells, NULL, &choice, NULL), OC_BAD_ARG);
  cls.family = OC_FAMILY_APB;
  check_refused(cells, cls, OC_BAD_ARG, OC_REASON_NONE, "a class of apb against a table of ln");
  cls = make_class("", 5);
  memset(cls.form, 'a', sizeof cls.form);
  check_refused(cells, cls, OC_BAD_ARG, OC_REASON_NONE, "a text of the class has no end");
  oc_cells_free(cells);
}

/* ---- property: select against a loop that knows only the definition --------------------------------------------- */

enum { FORMS = 8 };
static const char *const words[3] = {"p", "q", "r"};
static unsigned seed = 2463534242u;

static unsigned draw(unsigned below) {
  seed ^= seed << 13, seed ^= seed >> 17, seed ^= seed << 5;
  return seed % below;
}

/* Cells are kept as numbers beside their text: a set of forms (bit i: subset i of the words) and two ranges. */
typedef struct model {
  unsigned forms;
  int64_t low[2], high[2];
  int tier, device;
} model;

static const char *const devices[2] = {"cpu-generic", "cpu-avx2"};

static void form_text(unsigned subset, char *out) {
  *out = '\0';
  for (int w = 2; w >= 0; w--) /* unsorted on purpose */
    if (subset >> w & 1) {
      if (*out) strcat(out, "+");
      strcat(out, words[w]);
    }
}

static int meet(const model *a, const model *b) {
  if (a->tier != b->tier || a->device != b->device || !(a->forms & b->forms)) return 0;
  for (int d = 0; d < 2; d++)
    if (a->low[d] >= b->high[d] || b->low[d] >= a->high[d]) return 0;
  return 1;
}

static model draw_model(void) {
  model m = {.forms = draw(4) == 0 ? 0xff : 1 + draw(255),
             .tier = draw(2) ? OC_TIER_FAST : OC_TIER_BIG,
             .device = (int)draw(2)};
  for (int d = 0; d < 2; d++) {
    m.low[d] = draw(12);
    m.high[d] = m.low[d] + 1 + draw(14);
  }
  return m;
}

static int write_model(const model *m, int index, char *out, size_t room) {
  char forms[256] = "\"*\"", form[16];
  if (m->forms != 0xff) {
    strcpy(forms, "[");
    for (unsigned i = 0; i < FORMS; i++) {
      if (!(m->forms >> i & 1)) continue;
      form_text(i, form);
      if (forms[1]) strcat(forms, ",");
      strcat(strcat(strcat(forms, "\""), form), "\"");
    }
    strcat(forms, "]");
  }
  return snprintf(out, room,
                  "%s{\"id\":\"%d\",\"tier\":\"%s\",\"device\":\"%s\",\"dtype\":\"f32\",\"form\":%s,\"n\":[%d,%d],"
                  "\"c\":[%d,%d],\"row\":\"cpu\",\"fallback\":\"stock\"," CELL_NUMBERS "," CELL_EVIDENCE "}",
                  index ? "," : "", index, oc_tier_word((oc_tier)m->tier), devices[m->device], forms, (int)m->low[0],
                  (int)m->high[0], (int)m->low[1], (int)m->high[1]);
}

static int naive(const model *models, int count, const oc_class *cls, unsigned subset) {
  for (int i = 0; i < count; i++) {
    const model *m = &models[i];
    if ((int)cls->tier == m->tier && strcmp(cls->device, devices[m->device]) == 0 && (m->forms >> subset & 1) &&
        cls->dim[OC_DIM_N] >= m->low[0] && cls->dim[OC_DIM_N] < m->high[0] && cls->dim[OC_DIM_C] >= m->low[1] &&
        cls->dim[OC_DIM_C] < m->high[1])
      return i;
  }
  return -1;
}

static void check_classes(const oc_cells *cells, const model *models, int count, int *hits, int *misses) {
  for (int round = 0; round < 60; round++) {
    unsigned subset = draw(FORMS);
    oc_class cls = make_class("", draw(18)), before;
    oc_choice choice = {NULL, NULL}, again = {NULL, NULL};
    form_text(subset, cls.form);
    cls.tier = draw(2) ? OC_TIER_FAST : OC_TIER_BIG;
    strcpy(cls.device, devices[draw(2)]);
    cls.dim[OC_DIM_C] = draw(18);
    before = cls;
    int want = naive(models, count, &cls, subset);
    oc_status status = oc_select(cells, &cls, &choice, NULL);
    assert_int_equal(status, want < 0 ? OC_REFUSED : OC_OK);
    if (want >= 0) assert_int_equal(atoi(choice.cell->id), want);
    assert_int_equal(oc_select(cells, &cls, &again, NULL), status);
    assert_memory_equal(&again, &choice, sizeof again);
    assert_memory_equal(&before, &cls, sizeof cls);
    *(want < 0 ? misses : hits) += 1;
  }
}

static void test_against_a_naive_loop(void **state) {
  (void)state;
  static char text[1 << 15];
  int hits = 0, misses = 0, overlapping = 0, tables = 0;
  for (; tables < 400; tables++) {
    model models[12];
    int count = 1 + (int)draw(12), overlap = 0;
    int length = snprintf(text, sizeof text, "{\"schema\":1,\"family\":\"ln\",\"cells\":[");
    for (int i = 0; i < count; i++) {
      /* Most tables are made without overlap; the rest must be refused. */
      for (int tries = 0; tries < (tables % 4 ? 200 : 1); tries++) {
        models[i] = draw_model();
        overlap = 0;
        for (int j = 0; j < i; j++) overlap |= meet(&models[i], &models[j]);
        if (!overlap) break;
      }
      length += write_model(&models[i], i, text + length, sizeof text - (size_t)length);
      if (overlap) break;
    }
    snprintf(text + length, sizeof text - (size_t)length, "]}");
    oc_cells *cells = NULL;
    oc_status status = oc_cells_parse(text, strlen(text), &cells, NULL);
    assert_int_equal(status, overlap ? OC_REFUSED : OC_OK);
    overlapping += overlap;
    if (!overlap) check_classes(cells, models, count, &hits, &misses);
    oc_cells_free(cells);
  }
  assert_int_equal(hits + misses, 60 * (tables - overlapping));
  if (hits < 1000 || misses < 1000 || overlapping < 20)
    fail_msg("%d hits, %d misses, %d overlaps", hits, misses, overlapping);
}

/* ---- text of a class -------------------------------------------------------------------------------------------- */

static void check_text(const oc_class *cls, const char *want) {
  char out[256];
  assert_int_equal(oc_class_text(cls, out, sizeof out), strlen(want));
  assert_string_equal(out, want);
  for (size_t room = 0; room <= strlen(want) + 1; room++) { /* cut at every length, never past the end */
    memset(out, '#', sizeof out);
    assert_int_equal(oc_class_text(cls, out, room), strlen(want));
    assert_int_equal(out[room], '#');
    if (room == 0) continue;
    assert_int_equal(strlen(out), room - 1);
    assert_memory_equal(out, want, room - 1);
  }
}

static void test_text(void **state) {
  (void)state;
  oc_class cls = {.family = OC_FAMILY_TRIMUL,
                  .tier = OC_TIER_FAST,
                  .device = "cpu-avx512",
                  .dtype = OC_BF16,
                  .form = "biased+mask",
                  .dim = {1, 0, 238, 0, 32, 128}};
  check_text(&cls, "trimul.fast.cpu-avx512.bf16.biased+mask.b=1.n<=256.d=32.c=128");
  cls.dim[OC_DIM_N] = 256;
  check_text(&cls, "trimul.fast.cpu-avx512.bf16.biased+mask.b=1.n<=256.d=32.c=128");
  cls.dim[OC_DIM_N] = 257;
  check_text(&cls, "trimul.fast.cpu-avx512.bf16.biased+mask.b=1.n<=512.d=32.c=128");
  cls = (oc_class){.family = OC_FAMILY_LN, .dim = {0, 0, INT64_MAX, 0, 0, 0}, .form = "a b:c", .device = "x\ny"};
  check_text(&cls, "ln.exact.x_y.none.a_b_c.n<=9223372036854775808");
  cls.dim[OC_DIM_N] = 1;
  check_text(&cls, "ln.exact.x_y.none.a_b_c.n<=1");
  memset(cls.device, 'd', sizeof cls.device); /* no terminator */
  check_text(&cls, "ln.exact.dddddddddddddddddddddddd.none.a_b_c.n<=1");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges_are_half_open),
                                     cmocka_unit_test(test_every_part_of_the_class_counts),
                                     cmocka_unit_test(test_forms),
                                     cmocka_unit_test(test_exact_needs_proof),
                                     cmocka_unit_test(test_member_of_the_device),
                                     cmocka_unit_test(test_the_device_below),
                                     cmocka_unit_test(test_bad_arguments),
                                     cmocka_unit_test(test_against_a_naive_loop),
                                     cmocka_unit_test(test_text)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
