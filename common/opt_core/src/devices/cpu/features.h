/* SPDX-License-Identifier: Apache-2.0 */
/* The decision behind oc_cpu_facts, apart from the instructions that read the registers, so that tests can play
 * machines that they do not run on. */
#ifndef OC_CPU_FEATURES_H
#define OC_CPU_FEATURES_H

#include "opt_core/device.h"

/* Register contents: CPUID leaf 1 ECX, leaf 7.0 EBX and EDX, leaf 7.1 EAX, and XCR0 (0 where the OS has no XSAVE). */
typedef struct oc__cpuid {
  uint32_t leaf1_ecx, leaf7_ebx, leaf7_edx, leaf7_1_eax;
  uint64_t xcr0;
} oc__cpuid;

/* What the generic members are compiled for, and the word that refusals name it by. */
#define OC__BASE_LEVEL "x86-64-v2"
/* 1 where the processor has all of it; on other architectures the generic members need nothing. */
int oc__cpu_has_base(const oc__cpuid *id);
oc_isa oc__cpu_isa_of(const oc__cpuid *id);
int oc__cpu_has_avx512_bf16(const oc__cpuid *id);
int oc__cpu_has_amx_bf16(const oc__cpuid *id);

/* 1 and *isa for a word of OC_ISA_LIST, else 0. */
int oc__isa_find(const char *word, oc_isa *isa);

/* oc_cpu_isa on a machine that has `have` (and the base level or not), with OPT_CORE_ISA holding word (NULL or "": not
 * set). */
oc_status oc__cpu_isa_choose(oc_isa have, int has_base, const char *word, oc_isa *isa, oc_err *err);

#endif
