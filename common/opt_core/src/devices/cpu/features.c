/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/cpu/features.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define OC_HAS_CPUID 1
#endif

static const char *const isa_words[OC_ISA_COUNT] = {
#define X(id, word, needs) word,
    OC_ISA_LIST(X)
#undef X
};

const char *oc_isa_word(oc_isa isa) { return (int)isa >= 0 && isa < OC_ISA_COUNT ? isa_words[isa] : "unknown"; }

int oc__isa_find(const char *word, oc_isa *isa) {
  for (int i = 0; i < OC_ISA_COUNT; i++) {
    if (strcmp(word, isa_words[i]) != 0) continue;
    *isa = (oc_isa)i;
    return 1;
  }
  return 0;
}

#define BIT(n) (1u << (n))
#define HAS_ALL(value, bits) (((value) & (bits)) == (bits))

enum { XCR0_YMM = BIT(1) | BIT(2), XCR0_ZMM = XCR0_YMM | BIT(5) | BIT(6) | BIT(7), XCR0_TILE = BIT(17) | BIT(18) };

/* SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT: x86-64-v2, but for LAHF, which came before all of these. */
#define BASE_LEAF1_ECX (BIT(0) | BIT(9) | BIT(13) | BIT(19) | BIT(20) | BIT(23))
/* FMA, OSXSAVE, AVX, F16C / BMI1, AVX2, BMI2: all that the AVX2 members are compiled for. */
static const uint32_t avx2_leaf1_ecx = BIT(12) | BIT(27) | BIT(28) | BIT(29);
static const uint32_t avx2_leaf7_ebx = BIT(3) | BIT(5) | BIT(8);
/* F, DQ, BW, VL */
static const uint32_t avx512_leaf7_ebx = BIT(16) | BIT(17) | BIT(30) | (uint32_t)1 << 31;

int oc__cpu_has_base(const oc__cpuid *id) {
#ifdef __x86_64__
  return HAS_ALL(id->leaf1_ecx, BASE_LEAF1_ECX);
#else
  (void)id;
  return 1;
#endif
}

oc_isa oc__cpu_isa_of(const oc__cpuid *id) {
  if (!oc__cpu_has_base(id)) return OC_ISA_GENERIC;
  if (!HAS_ALL(id->leaf1_ecx, avx2_leaf1_ecx) || !HAS_ALL(id->leaf7_ebx, avx2_leaf7_ebx)) return OC_ISA_GENERIC;
  if (!HAS_ALL(id->xcr0, (uint64_t)XCR0_YMM)) return OC_ISA_GENERIC;
  if (!HAS_ALL(id->leaf7_ebx, avx512_leaf7_ebx) || !HAS_ALL(id->xcr0, (uint64_t)XCR0_ZMM)) return OC_ISA_AVX2;
  return HAS_ALL(id->leaf7_1_eax, BIT(5)) ? OC_ISA_AVX512_BF16 : OC_ISA_AVX512;
}

int oc__cpu_has_avx512_bf16(const oc__cpuid *id) { return oc__cpu_isa_of(id) >= OC_ISA_AVX512_BF16; }

/* AMX-TILE and AMX-BF16. The permission that Linux wants from arch_prctl is asked for by whoever uses it. */
int oc__cpu_has_amx_bf16(const oc__cpuid *id) {
  return HAS_ALL(id->leaf7_edx, BIT(22) | BIT(24)) && HAS_ALL(id->xcr0, (uint64_t)XCR0_TILE);
}

#ifdef OC_HAS_CPUID
static uint64_t read_xcr0(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static void read_cpuid(oc__cpuid *id) {
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) id->leaf1_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    id->leaf7_ebx = b;
    id->leaf7_edx = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) id->leaf7_1_eax = a;
  }
  if (id->leaf1_ecx & BIT(27)) id->xcr0 = read_xcr0(); /* XGETBV faults where the OS has not set OSXSAVE */
}

static void put_register(char *out, unsigned value) { memcpy(out, &value, sizeof value); }

static void read_names(oc_cpu *cpu) {
  unsigned a, b, c, d;
  if (__get_cpuid(0, &a, &b, &c, &d)) {
    put_register(cpu->vendor, b);
    put_register(cpu->vendor + 4, d);
    put_register(cpu->vendor + 8, c);
  }
  char brand[49] = "";
  for (unsigned part = 0; part < 3; part++) {
    if (!__get_cpuid(0x80000002u + part, &a, &b, &c, &d)) return;
    unsigned registers[4] = {a, b, c, d};
    memcpy(brand + 16 * part, registers, sizeof registers);
  }
  const char *start = brand + strspn(brand, " ");
  size_t bytes = strlen(start);
  while (bytes > 0 && start[bytes - 1] == ' ') bytes--;
  memcpy(cpu->model, start, bytes); /* at most 48 bytes, the rest of model is zero */
}
#else
static void read_cpuid(oc__cpuid *id) { (void)id; }
static void read_names(oc_cpu *cpu) { (void)cpu; }
#endif

static oc_cpu facts;
static int facts_have_base;
static pthread_once_t facts_once = PTHREAD_ONCE_INIT;

static void read_facts(void) {
  oc__cpuid id = {0};
  read_cpuid(&id);
  read_names(&facts);
  facts_have_base = oc__cpu_has_base(&id);
  facts.isa = oc__cpu_isa_of(&id);
  facts.has_avx512_bf16 = oc__cpu_has_avx512_bf16(&id);
  facts.has_amx_bf16 = oc__cpu_has_amx_bf16(&id);
}

const oc_cpu *oc_cpu_facts(void) {
  pthread_once(&facts_once, read_facts);
  return &facts;
}

oc_status oc__cpu_isa_choose(oc_isa have, int has_base, const char *word, oc_isa *isa, oc_err *err) {
  oc_isa wanted = have;
  if (word && *word && !oc__isa_find(word, &wanted)) return OC_REFUSE(err, ENVIRONMENT, "OPT_CORE_ISA=%.64s", word);
  if (!has_base) return OC_REFUSE(err, ARCH, "%s!=%s", oc_isa_word(have), OC__BASE_LEVEL);
  if (wanted > have) return OC_REFUSE(err, ARCH, "%s!=%s", oc_isa_word(have), oc_isa_word(wanted));
  *isa = wanted;
  return OC_OK;
}

oc_status oc_cpu_isa(oc_isa *isa, oc_err *err) {
  oc_isa have = oc_cpu_facts()->isa; /* first: it reads facts_have_base too */
  return oc__cpu_isa_choose(have, facts_have_base, getenv("OPT_CORE_ISA"), isa, err);
}
