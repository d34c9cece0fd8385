/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine is and how many threads a CPU member may use. Nothing here allocates. */
#ifndef OPT_CORE_DEVICE_H
#define OPT_CORE_DEVICE_H

#include "opt_core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instruction-set levels of the CPU members, lowest first. X(identifier, word, needs) */
#define OC_ISA_LIST(X)                                                                                                 \
  X(GENERIC, "generic", "the baseline of the architecture")                                                            \
  X(AVX2, "avx2", "AVX2, FMA, F16C and an OS that saves YMM")                                                          \
  X(AVX512, "avx512", "AVX-512 F, BW, DQ, VL and an OS that saves ZMM")                                                \
  X(AVX512_BF16, "avx512_bf16", "that and AVX512_BF16: members with products of bf16")

typedef enum oc_isa {
#define X(id, word, needs) OC_ISA_##id,
  OC_ISA_LIST(X)
#undef X
      OC_ISA_COUNT
} oc_isa;

OC_API const char *oc_isa_word(oc_isa isa);

typedef struct oc_cpu {
  char vendor[16];                   /* CPUID vendor text, "" where the architecture has none */
  char model[64];                    /* brand string or "" */
  oc_isa isa;                        /* highest level that both the processor and the operating system offer */
  int has_avx512_bf16, has_amx_bf16; /* facts for the record; no member needs AMX yet */
} oc_cpu;

/* Reads CPUID and XGETBV once; later calls return the same facts. Never fails. Thread-safe. */
OC_API const oc_cpu *oc_cpu_facts(void);

/* The level that the members use: oc_cpu_facts()->isa, or the level named by the environment variable OPT_CORE_ISA.
 * REFUSED arch:<have>!=<wanted> when the processor lacks the named level, arch:generic!=x86-64-v2 when it lacks what
 * even the generic members are compiled for (SSE4.2, POPCNT), environment:OPT_CORE_ISA=<word> for an unknown word. Read
 * at every call, so that a test can change it. */
OC_API oc_status oc_cpu_isa(oc_isa *isa, oc_err *err);

/* Threads that a CPU member uses: the setting of the host framework's OpenMP pool (omp_get_max_threads), never more
 * than the processors that the scheduler and the cgroup grant. 1 where OpenMP was left out. Results never depend on it.
 * 1 in every process that was forked while the library was loaded, whatever oc_exec.threads says: GNU OpenMP's pool
 * does not survive fork, and the library cannot see whether another user of the pool (the host framework) had started
 * it. A child that calls exec is a new process; one that loads the library after its fork is taken for one, so load it
 * before. */
OC_API int oc_cpu_threads(void);

typedef struct oc_cuda_device {
  int ordinal;
  int sm; /* 90 for compute capability 9.0 */
  char name[128];
  char uuid[48]; /* "GPU-xxxxxxxx-...", 40 characters */
  int64_t memory_bytes;
} oc_cuda_device;

/* Asks the CUDA driver (libcuda.so.1 by dlopen) for device `ordinal`.
 * REFUSED no_device:libcuda / no_device:<n> devices when there is none, driver:<code> when a call fails. */
OC_API oc_status oc_cuda_device_facts(int ordinal, oc_cuda_device *out, oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
