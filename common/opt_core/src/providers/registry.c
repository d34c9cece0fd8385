/* SPDX-License-Identifier: Apache-2.0 */
/* Every family's members.inc, three times: prototypes, the table of members that this build has, the names of all rows.
 * A line OC_MEMBER(row, name, device, isa, flags) names oc__<family>_<name> and oc__<family>_<name>_workspace; a line
 * OC_MEMBER_HOSTED(...) a member that the host framework runs: it has no function here. */
#include "providers/registry.h"

#include "devices/cpu/features.h"
#include "opt_core/activation.h"

#include <stdlib.h>
#include <string.h>

/* ---- prototypes ------------------------------------------------------------------------------------------------- */

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define RUN(name) JOIN(JOIN(oc__, FAMILY, _), name, )
#define WORKSPACE(name) JOIN(JOIN(oc__, FAMILY, _), name, _workspace)

#define OC_MEMBER_HOSTED(row, name, device, isa, flags)
#define OC_MEMBER(row, name, device, isa, flags)                                                                       \
  oc_status RUN(name)(const void *call, const oc_exec *exec, oc_err *err);                                             \
  size_t WORKSPACE(name)(const void *call, int threads);
#define FAMILY ln
#include "ln/members.inc"
#undef FAMILY
#define FAMILY trimul
#include "trimul/members.inc"
#undef FAMILY
#define FAMILY triattn
#include "triattn/members.inc"
#undef FAMILY
#define FAMILY triattn_module
#include "triattn/module_members.inc"
#undef FAMILY
#define FAMILY transition
#include "transition/members.inc"
#undef FAMILY
#define FAMILY apb
#include "apb/members.inc"
#undef FAMILY
#undef OC_MEMBER
#undef OC_MEMBER_HOSTED

/* ---- tables ----------------------------------------------------------------------------------------------------- */

/* A level that was not compiled drops out of the table. */
#define IF_BUILT_GENERIC(...) __VA_ARGS__
#ifdef OPT_CORE_HAS_AVX2
#define IF_BUILT_AVX2(...) __VA_ARGS__
#else
#define IF_BUILT_AVX2(...)
#endif
#ifdef OPT_CORE_HAS_AVX512
#define IF_BUILT_AVX512(...) __VA_ARGS__
#else
#define IF_BUILT_AVX512(...)
#endif
#ifdef OPT_CORE_HAS_AVX512_BF16
#define IF_BUILT_AVX512_BF16(...) __VA_ARGS__
#else
#define IF_BUILT_AVX512_BF16(...)
#endif

#define OC_MEMBER(row, name, device, isa, flags)                                                                       \
  IF_BUILT_##isa({#row, #name, FAMILY, device, OC_ISA_##isa, flags, WORKSPACE_OF(name), RUN_OF(name)}, )
#define OC_MEMBER_HOSTED(row, name, device, isa, flags)                                                                \
  IF_BUILT_##isa({#row, #name, FAMILY, device, OC_ISA_##isa, flags, NULL, NULL}, )
#define RUN_OF(name) JOIN(JOIN(oc__, SYMBOLS, _), name, )
#define WORKSPACE_OF(name) JOIN(JOIN(oc__, SYMBOLS, _), name, _workspace)

#define FAMILY OC_FAMILY_LN
#define SYMBOLS ln
static const oc_member ln_members[] = {
#include "ln/members.inc"
};
#undef FAMILY
#undef SYMBOLS
#define FAMILY OC_FAMILY_TRIMUL
#define SYMBOLS trimul
static const oc_member trimul_members[] = {
#include "trimul/members.inc"
};
#undef FAMILY
#undef SYMBOLS
#define FAMILY OC_FAMILY_TRIATTN
#define SYMBOLS triattn
static const oc_member triattn_members[] = {
#include "triattn/members.inc"
};
#undef FAMILY
#undef SYMBOLS
#define FAMILY OC_FAMILY_TRIATTN_MODULE
#define SYMBOLS triattn_module
static const oc_member triattn_module_members[] = {
#include "triattn/module_members.inc"
};
#undef FAMILY
#undef SYMBOLS
#define FAMILY OC_FAMILY_TRANSITION
#define SYMBOLS transition
static const oc_member transition_members[] = {
#include "transition/members.inc"
};
#undef FAMILY
#undef SYMBOLS
#define FAMILY OC_FAMILY_APB
#define SYMBOLS apb
static const oc_member apb_members[] = {
#include "apb/members.inc"
};
#undef FAMILY
#undef SYMBOLS
#undef OC_MEMBER
#undef OC_MEMBER_HOSTED

/* ---- row names -------------------------------------------------------------------------------------------------- */

#define OC_MEMBER(row, name, device, isa, flags) #row,
#define OC_MEMBER_HOSTED(row, name, device, isa, flags) #row,
static const char *const ln_rows[] = {
#include "ln/members.inc"
    NULL};
static const char *const trimul_rows[] = {
#include "trimul/members.inc"
    NULL};
static const char *const triattn_rows[] = {
#include "triattn/members.inc"
    NULL};
static const char *const triattn_module_rows[] = {
#include "triattn/module_members.inc"
    NULL};
static const char *const transition_rows[] = {
#include "transition/members.inc"
    NULL};
static const char *const apb_rows[] = {
#include "apb/members.inc"
    NULL};
#undef OC_MEMBER
#undef OC_MEMBER_HOSTED

static const struct {
  const char *word;
  const oc_member *members;
  int count;
  const char *const *rows;
} families[OC_FAMILY_COUNT] = {
#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
    [OC_FAMILY_LN] = {"ln", ln_members, COUNT(ln_members), ln_rows},
    [OC_FAMILY_TRIMUL] = {"trimul", trimul_members, COUNT(trimul_members), trimul_rows},
    [OC_FAMILY_TRIATTN] = {"triattn", triattn_members, COUNT(triattn_members), triattn_rows},
    [OC_FAMILY_TRIATTN_MODULE] = {"triattn_module", triattn_module_members, COUNT(triattn_module_members),
                                  triattn_module_rows},
    [OC_FAMILY_TRANSITION] = {"transition", transition_members, COUNT(transition_members), transition_rows},
    [OC_FAMILY_APB] = {"apb", apb_members, COUNT(apb_members), apb_rows},
};

static int family_is_known(oc_family family) { return (int)family >= 0 && family < OC_FAMILY_COUNT; }

const char *oc_family_word(oc_family family) { return family_is_known(family) ? families[family].word : "unknown"; }

oc_status oc_family_find(const char *word, oc_family *out, oc_err *err) {
  for (int i = 0; word && i < OC_FAMILY_COUNT; i++) {
    if (strcmp(word, families[i].word) != 0) continue;
    *out = (oc_family)i;
    return OC_OK;
  }
  return OC_FAIL(err, BAD_ARG, 0, "unknown family %.64s", word ? word : "NULL");
}

const oc_member *oc_family_members(oc_family family, int *count) {
  *count = family_is_known(family) ? families[family].count : 0;
  return family_is_known(family) ? families[family].members : NULL;
}

int oc__family_has_row(oc_family family, const char *row) {
  if (!family_is_known(family)) return 0;
  for (const char *const *known = families[family].rows; *known; known++)
    if (strcmp(*known, row) == 0) return 1;
  return 0;
}

const oc_member *oc_member_find(oc_family family, const char *row, oc_isa isa) {
  int count;
  const oc_member *members = oc_family_members(family, &count), *best = NULL;
  for (int i = 0; i < count; i++) {
    const oc_member *m = &members[i];
    if (strcmp(m->device, "cpu") != 0 || strcmp(m->row, row) != 0 || m->isa > isa) continue;
    if (!best || m->isa > best->isa) best = m;
  }
  return best;
}

/* Of the CUDA members that a device admits, the one built for the newest architecture; of two built for one, the first
 * of the table. */
static const oc_member *find_cuda(oc_family family, const char *row, int sm) {
  int count, best_built = -1;
  const oc_member *members = oc_family_members(family, &count), *best = NULL;
  for (int i = 0; i < count; i++) {
    const oc_member *m = &members[i];
    if (strncmp(m->device, "sm_", 3) != 0 || strcmp(m->row, row) != 0) continue;
    const int built = atoi(m->device + 3);
    if (built <= best_built || oc_gate_arch(sm, m->device, NULL) != OC_OK) continue;
    best = m;
    best_built = built;
  }
  return best;
}

const oc_member *oc_member_for_device(oc_family family, const char *row, const char *device) {
  oc_isa isa;
  if (!row || !device || !oc__device_is_known(device)) return NULL;
  if (strncmp(device, "sm_", 3) == 0) return find_cuda(family, row, atoi(device + 3));
  return oc__isa_find(device + 4, &isa) ? oc_member_find(family, row, isa) : NULL;
}

int oc__device_is_known(const char *device) {
  oc_isa isa;
  if (strncmp(device, "cpu-", 4) == 0) return oc__isa_find(device + 4, &isa);
  if (strncmp(device, "sm_", 3) != 0) return 0;
  size_t digits = strspn(device + 3, "0123456789");
  const char *rest = device + 3 + digits;
  return digits >= 1 && digits <= 3 && (!*rest || (*rest >= 'a' && *rest <= 'z' && !rest[1]));
}

oc_status oc_member_run(const oc_member *member, const void *call, const oc_exec *exec, oc_err *err) {
  if (!member->run) return OC_REFUSE(err, NOT_BUILT, "%s runs in the host framework", member->name);
  return member->run(call, exec, err);
}

size_t oc_member_workspace(const oc_member *member, const void *call, int threads) {
  return member->workspace ? member->workspace(call, threads > 0 ? threads : oc_cpu_threads()) : 0;
}
