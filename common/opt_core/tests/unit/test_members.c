/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the member tables that hold whatever members they list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "opt_core/activation.h"
#include "providers/registry.h"

static void test_family_words(void **state) {
  (void)state;
  static const char *const words[OC_FAMILY_COUNT] = {"ln", "trimul", "triattn", "triattn_module", "transition", "apb"};
  for (int i = 0; i < OC_FAMILY_COUNT; i++) {
    oc_family found = OC_FAMILY_COUNT;
    assert_string_equal(oc_family_word((oc_family)i), words[i]);
    assert_int_equal(oc_family_find(words[i], &found, NULL), OC_OK);
    assert_int_equal(found, i);
  }
  oc_family found = OC_FAMILY_COUNT;
  oc_err err = {0};
  assert_int_equal(oc_family_find("lm", &found, &err), OC_BAD_ARG);
  assert_string_equal(err.detail, "unknown family lm");
  assert_int_equal(oc_family_find(NULL, &found, NULL), OC_BAD_ARG);
  assert_int_equal(found, OC_FAMILY_COUNT);
  assert_string_equal(oc_family_word(OC_FAMILY_COUNT), "unknown");
}

static void test_tiers(void **state) {
  (void)state;
  static const char *const words[OC_TIER_COUNT] = {"exact", "fast", "big"};
  oc_tier tier = OC_TIER_COUNT;
  for (int i = 0; i < OC_TIER_COUNT; i++) {
    assert_string_equal(oc_tier_word((oc_tier)i), words[i]);
    assert_int_equal(oc_tier_find(words[i], &tier, NULL), OC_OK);
    assert_int_equal(tier, i);
  }
  assert_int_equal(oc_tier_find("off", &tier, NULL), OC_BAD_ARG);
  assert_int_equal(oc_tier_find(NULL, &tier, NULL), OC_BAD_ARG);
  assert_string_equal(oc_tier_word(OC_TIER_COUNT), "unknown");
}

/* A hosted member is exact (that is why it is hosted), and the library refuses to run it without touching the call. */
static void check_hosted(const oc_member *member) {
  oc_err err = {0};
  oc_exec exec = {0};
  assert_true(member->flags & OC_MEMBER_EXACT);
  assert_int_equal(oc_member_run(member, NULL, &exec, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_NOT_BUILT);
  assert_int_equal(oc_member_workspace(member, NULL, 1), 0);
}

static void test_tables(void **state) {
  (void)state;
  int members_seen = 0;
  for (int f = 0; f < OC_FAMILY_COUNT; f++) {
    int count, references = 0;
    const oc_member *members = oc_family_members((oc_family)f, &count);
    assert_true(count >= 2);
    for (int i = 0; i < count; i++, members_seen++) {
      const oc_member *m = &members[i];
      assert_int_equal(m->family, f);
      assert_int_equal(m->run == NULL, m->workspace == NULL);
      if (!m->run) check_hosted(m);
      assert_true(m->isa < OC_ISA_COUNT);
      assert_string_not_equal(m->row, "stock");
      assert_true(oc__family_has_row((oc_family)f, m->row));
      if (m->flags & OC_MEMBER_REFERENCE) {
        references++;
        assert_string_equal(m->row, "reference");
        assert_int_equal(m->isa, OC_ISA_GENERIC);
      }
      for (int j = 0; j < i; j++) {
        assert_string_not_equal(m->name, members[j].name);
        if (m->run) assert_ptr_not_equal((void *)(uintptr_t)m->run, (void *)(uintptr_t)members[j].run);
      }
    }
    assert_int_equal(references, 1);
    assert_true(oc__family_has_row((oc_family)f, "cpu"));
    assert_false(oc__family_has_row((oc_family)f, "stock"));
  }
  assert_true(members_seen >= 2 * OC_FAMILY_COUNT);
  int count = 7;
  assert_null(oc_family_members(OC_FAMILY_COUNT, &count));
  assert_int_equal(count, 0);
  assert_false(oc__family_has_row(OC_FAMILY_COUNT, "cpu"));
}

static void test_find(void **state) {
  (void)state;
  for (int f = 0; f < OC_FAMILY_COUNT; f++) {
    for (int isa = 0; isa < OC_ISA_COUNT; isa++) {
      char device[24];
      const oc_member *m = oc_member_find((oc_family)f, "cpu", (oc_isa)isa);
      assert_non_null(m);
      assert_true(m->isa <= (oc_isa)isa);
      int count;
      const oc_member *members = oc_family_members((oc_family)f, &count);
      for (int i = 0; i < count; i++) /* none that could run is higher */
        if (strcmp(members[i].row, "cpu") == 0 && members[i].isa <= (oc_isa)isa) assert_true(members[i].isa <= m->isa);
      snprintf(device, sizeof device, "cpu-%s", oc_isa_word((oc_isa)isa));
      assert_ptr_equal(oc_member_for_device((oc_family)f, "cpu", device), m);
      /* a row that has members at a lower level only still serves */
      m = oc_member_find((oc_family)f, "reference", (oc_isa)isa);
      assert_non_null(m);
      assert_string_equal(m->name, "reference");
    }
    assert_null(oc_member_find((oc_family)f, "absent", OC_ISA_AVX512));
    assert_null(oc_member_for_device((oc_family)f, "cpu", "cpu-neon"));
    assert_null(oc_member_for_device((oc_family)f, "cpu", "sm_90a"));
    assert_null(oc_member_for_device((oc_family)f, "cpu", ""));
  }
#if defined(__x86_64__) /* every level is built there */
  assert_int_equal(oc_member_find(OC_FAMILY_TRIMUL, "cpu", OC_ISA_AVX512)->isa, OC_ISA_AVX512);
  /* products of bf16 where the family has them, else the level below */
  assert_int_equal(oc_member_find(OC_FAMILY_TRANSITION, "cpu", OC_ISA_AVX512)->isa, OC_ISA_AVX512);
  assert_int_equal(oc_member_find(OC_FAMILY_TRANSITION, "cpu", OC_ISA_AVX512_BF16)->isa, OC_ISA_AVX512_BF16);
  assert_int_equal(oc_member_find(OC_FAMILY_LN, "cpu", OC_ISA_AVX512_BF16)->isa, OC_ISA_AVX512);
#endif
}

/* On each kind of CUDA device: the row's newest member that the architecture gate admits, and none where it admits none.
 */
static void test_find_cuda(void **state) {
  (void)state;
  static const struct {
    const char *device;
    int sm;
  } chips[] = {{"sm_75", 75}, {"sm_80", 80}, {"sm_86", 86}, {"sm_89", 89}, {"sm_90a", 90}, {"sm_100", 100}};
  for (int f = 0; f < OC_FAMILY_COUNT; f++) {
    int count;
    const oc_member *members = oc_family_members((oc_family)f, &count);
    for (int i = 0; i < count; i++)
      for (size_t c = 0; c < sizeof chips / sizeof *chips; c++) {
        const oc_member *m = oc_member_for_device((oc_family)f, members[i].row, chips[c].device);
        const int is_cuda = strcmp(members[i].device, "cpu") != 0;
        if (is_cuda && oc_gate_arch(chips[c].sm, members[i].device, NULL) == OC_OK) assert_non_null(m);
        if (!m) continue;
        assert_string_equal(m->row, members[i].row);
        assert_int_equal(m->isa, OC_ISA_GENERIC);
        assert_int_equal(oc_gate_arch(chips[c].sm, m->device, NULL), OC_OK);
      }
  }
  assert_null(oc_member_for_device(OC_FAMILY_LN, NULL, "sm_80"));
  assert_null(oc_member_for_device(OC_FAMILY_LN, "cpu", NULL));
  assert_null(oc_member_for_device(OC_FAMILY_LN, "cpu", "gpu"));
}

static void test_devices(void **state) {
  (void)state;
  static const char *const good[] = {"cpu-generic", "cpu-avx2", "cpu-avx512", "cpu-avx512_bf16",
                                     "sm_90a",      "sm_80",    "sm_120f",    NULL};
  static const char *const bad[] = {"",     "cpu",    "cpu-",    "cpu-neon", "cpu-avx2 ", "sm_",
                                    "sm_a", "sm_90A", "sm_90ab", "sm_9000",  NULL};
  for (int i = 0; good[i]; i++) assert_true(oc__device_is_known(good[i]));
  for (int i = 0; bad[i]; i++) assert_false(oc__device_is_known(bad[i]));
}

static size_t seven_a_thread(const void *call, int threads) { return call ? 7 * (size_t)threads : 0; }

static void test_workspace(void **state) {
  (void)state;
  int call = 0;
  oc_member member = {.workspace = seven_a_thread};
  assert_int_equal(oc_member_workspace(&member, &call, 3), 21);
  assert_int_equal(oc_member_workspace(&member, &call, 0), 7 * (size_t)oc_cpu_threads());
  member.workspace = NULL;
  assert_int_equal(oc_member_workspace(&member, &call, 3), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_family_words), cmocka_unit_test(test_tiers),
                                     cmocka_unit_test(test_tables),       cmocka_unit_test(test_find),
                                     cmocka_unit_test(test_find_cuda),    cmocka_unit_test(test_devices),
                                     cmocka_unit_test(test_workspace)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
