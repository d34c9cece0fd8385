/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "devices/cpu/features.h"

#define BIT(n) ((uint32_t)1 << (n))

static const oc__cpuid zen4 = {.leaf1_ecx = BIT(0) | BIT(9) | BIT(13) | BIT(19) | BIT(20) | BIT(23) | BIT(12) |
                                            BIT(27) | BIT(28) | BIT(29),
                               .leaf7_ebx = BIT(3) | BIT(5) | BIT(8) | BIT(16) | BIT(17) | BIT(30) | BIT(31),
                               .leaf7_1_eax = BIT(5),
                               .xcr0 = 0xe7};

static void test_levels(void **state) {
  (void)state;
  oc__cpuid id = {0};
  assert_int_equal(oc__cpu_isa_of(&id), OC_ISA_GENERIC);
  assert_int_equal(oc__cpu_isa_of(&zen4), OC_ISA_AVX512_BF16);
  id = zen4, id.leaf7_1_eax = 0;
  assert_int_equal(oc__cpu_isa_of(&id), OC_ISA_AVX512);
  assert_false(oc__cpu_has_avx512_bf16(&id));
  assert_true(oc__cpu_has_avx512_bf16(&zen4));
  assert_false(oc__cpu_has_amx_bf16(&zen4));
  id = zen4, id.xcr0 = 0x07; /* the system saves YMM but not ZMM */
  assert_int_equal(oc__cpu_isa_of(&id), OC_ISA_AVX2);
  assert_false(oc__cpu_has_avx512_bf16(&id));
  id = zen4, id.xcr0 = 0x03; /* neither */
  assert_int_equal(oc__cpu_isa_of(&id), OC_ISA_GENERIC);
  id = zen4, id.leaf7_edx = BIT(22) | BIT(24), id.xcr0 = 0x600e7;
  assert_true(oc__cpu_has_amx_bf16(&id));
  id.xcr0 = 0xe7;
  assert_false(oc__cpu_has_amx_bf16(&id));
}

/* Each single bit that a level needs takes the level away when it is missing. */
static void test_every_bit_counts(void **state) {
  (void)state;
  int cases = 0;
  for (int bit = 0; bit < 32; bit++) {
    oc__cpuid id = zen4;
    if (id.leaf1_ecx & BIT(bit)) {
      id.leaf1_ecx &= ~BIT(bit);
      assert_int_equal(oc__cpu_isa_of(&id), OC_ISA_GENERIC);
      cases++;
    }
    id = zen4;
    if (id.leaf7_ebx & BIT(bit)) {
      id.leaf7_ebx &= ~BIT(bit);
      assert_int_equal(oc__cpu_isa_of(&id), bit < 16 ? OC_ISA_GENERIC : OC_ISA_AVX2);
      cases++;
    }
    id = zen4;
    if (bit > 0 && bit < 8 && (id.xcr0 & BIT(bit))) {
      id.xcr0 &= ~(uint64_t)BIT(bit);
      assert_int_equal(oc__cpu_isa_of(&id), bit < 3 ? OC_ISA_GENERIC : OC_ISA_AVX2);
      cases++;
    }
  }
#if defined(__x86_64__)
  assert_int_equal(cases, 10 + 7 + 5);
#endif
}

/* The generic members are compiled for x86-64-v2: a processor without one of its bits is refused, whatever else it has.
 */
static void test_a_processor_below_the_base_level(void **state) {
  (void)state;
#if defined(__x86_64__)
  static const int base[] = {0, 9, 13, 19, 20, 23}; /* SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT */
  int refused = 0;
  for (int bit = 0; bit < 32; bit++) {
    oc__cpuid id = zen4;
    id.leaf1_ecx &= ~BIT(bit);
    int is_base = 0;
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) is_base |= base[i] == bit;
    assert_int_equal(oc__cpu_has_base(&id), !is_base);
    refused += is_base;
  }
  assert_int_equal(refused, 6);
#endif
  static const char *const words[] = {NULL, "", "generic", "avx2"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    oc_isa isa = OC_ISA_COUNT;
    oc_err err = {0};
    assert_int_equal(oc__cpu_isa_choose(OC_ISA_GENERIC, 0, words[i], &isa, &err), OC_REFUSED);
    assert_int_equal(err.reason, OC_REASON_ARCH);
    assert_string_equal(err.detail, "generic!=x86-64-v2");
    assert_int_equal(isa, OC_ISA_COUNT);
  }
}

static void test_words(void **state) {
  (void)state;
  oc_isa isa;
  assert_string_equal(oc_isa_word(OC_ISA_GENERIC), "generic");
  assert_string_equal(oc_isa_word(OC_ISA_AVX2), "avx2");
  assert_string_equal(oc_isa_word(OC_ISA_AVX512), "avx512");
  assert_string_equal(oc_isa_word(OC_ISA_AVX512_BF16), "avx512_bf16");
  assert_string_equal(oc_isa_word(OC_ISA_COUNT), "unknown");
  assert_string_equal(oc_isa_word((oc_isa)-1), "unknown");
  assert_true(oc__isa_find("avx2", &isa));
  assert_int_equal(isa, OC_ISA_AVX2);
  assert_false(oc__isa_find("AVX2", &isa));
  assert_false(oc__isa_find("", &isa));
}

/* The kernel prints a flag only when processor and system both offer it. */
static int kernel_says(const char *flag) {
  char line[8192], word[64];
  FILE *file = fopen("/proc/cpuinfo", "r");
  int found = 0;
  snprintf(word, sizeof word, " %s ", flag);
  while (file && !found && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = ' ';
    if (strncmp(line, "flags", 5) == 0) found = strstr(line, word) != NULL;
  }
  if (file) fclose(file);
  return found;
}

static void test_facts_agree_with_the_kernel(void **state) {
  (void)state;
  const oc_cpu *cpu = oc_cpu_facts();
  assert_ptr_equal(cpu, oc_cpu_facts());
#if defined(__x86_64__)
  int avx2 =
      kernel_says("avx2") && kernel_says("fma") && kernel_says("f16c") && kernel_says("bmi1") && kernel_says("bmi2");
  int avx512 =
      avx2 && kernel_says("avx512f") && kernel_says("avx512bw") && kernel_says("avx512dq") && kernel_says("avx512vl");
  const int bf16 = avx512 && kernel_says("avx512_bf16");
  assert_int_equal(cpu->isa, bf16 ? OC_ISA_AVX512_BF16 : avx512 ? OC_ISA_AVX512 : avx2 ? OC_ISA_AVX2 : OC_ISA_GENERIC);
  assert_int_equal(cpu->has_avx512_bf16, bf16);
  assert_int_equal(strlen(cpu->vendor), 12);
#else
  (void)kernel_says;
  assert_int_equal(cpu->isa, OC_ISA_GENERIC);
#endif
}

static void test_isa_variable(void **state) {
  (void)state;
  oc_isa isa = OC_ISA_COUNT;
  oc_err err = {0};
  unsetenv("OPT_CORE_ISA");
  assert_int_equal(oc_cpu_isa(&isa, NULL), OC_OK);
  assert_int_equal(isa, oc_cpu_facts()->isa);
  setenv("OPT_CORE_ISA", "", 1);
  assert_int_equal(oc_cpu_isa(&isa, NULL), OC_OK);
  assert_int_equal(isa, oc_cpu_facts()->isa);
  setenv("OPT_CORE_ISA", "generic", 1);
  assert_int_equal(oc_cpu_isa(&isa, NULL), OC_OK);
  assert_int_equal(isa, OC_ISA_GENERIC);
  setenv("OPT_CORE_ISA", "neon", 1);
  assert_int_equal(oc_cpu_isa(&isa, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_ENVIRONMENT);
  assert_string_equal(err.detail, "OPT_CORE_ISA=neon");
  for (int level = 0; level < OC_ISA_COUNT; level++) {
    err = (oc_err){0};
    setenv("OPT_CORE_ISA", oc_isa_word((oc_isa)level), 1);
    if ((oc_isa)level <= oc_cpu_facts()->isa) {
      assert_int_equal(oc_cpu_isa(&isa, &err), OC_OK);
      assert_int_equal(isa, level);
    } else { /* only a machine below AVX-512 comes here */
      assert_int_equal(oc_cpu_isa(&isa, &err), OC_REFUSED);
      assert_int_equal(err.reason, OC_REASON_ARCH);
    }
  }
  unsetenv("OPT_CORE_ISA");
}

/* The refusal of a level above the machine's, on every machine. */
static void test_isa_above_the_machine(void **state) {
  (void)state;
  oc_isa isa = OC_ISA_COUNT;
  oc_err err = {0};
  assert_int_equal(oc__cpu_isa_choose(OC_ISA_GENERIC, 1, "avx512", &isa, &err), OC_REFUSED);
  assert_int_equal(err.reason, OC_REASON_ARCH);
  assert_string_equal(err.detail, "generic!=avx512");
  assert_int_equal(isa, OC_ISA_COUNT);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels),
                                     cmocka_unit_test(test_every_bit_counts),
                                     cmocka_unit_test(test_words),
                                     cmocka_unit_test(test_facts_agree_with_the_kernel),
                                     cmocka_unit_test(test_isa_variable),
                                     cmocka_unit_test(test_isa_above_the_machine),
                                     cmocka_unit_test(test_a_processor_below_the_base_level)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
