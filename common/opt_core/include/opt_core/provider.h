/* SPDX-License-Identifier: Apache-2.0 */
/* Families, members, measured cells, and the pure choice between them.
 *
 * family  one operation (`ln`, `trimul`, ...)           row     the name that a cell serves (`cpu`, `exactln`)
 * member  code that runs a row on one device class      cell    a measured call class with its evidence
 * Choosing is pure, serving is blunt: oc_select reads only its arguments; a family's oc_<family>_serve runs exactly the
 * row chosen or refuses by name, and then has written nothing.
 */
#ifndef OPT_CORE_PROVIDER_H
#define OPT_CORE_PROVIDER_H

#include "opt_core/device.h"
#include "opt_core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(identifier, word, folder under kernels/) */
#define OC_FAMILY_LIST(X)                                                                                              \
  X(LN, "ln", "ln")                                                                                                    \
  X(TRIMUL, "trimul", "trimul")                                                                                        \
  X(TRIATTN, "triattn", "triattn")                                                                                     \
  X(TRIATTN_MODULE, "triattn_module", "triattn")                                                                       \
  X(TRANSITION, "transition", "transition")                                                                            \
  X(APB, "apb", "apb")

typedef enum oc_family {
#define X(id, word, folder) OC_FAMILY_##id,
  OC_FAMILY_LIST(X)
#undef X
      OC_FAMILY_COUNT
} oc_family;

OC_API const char *oc_family_word(oc_family family);
OC_API oc_status oc_family_find(const char *word, oc_family *out, oc_err *err); /* BAD_ARG for an unknown word */

typedef enum oc_tier { OC_TIER_EXACT, OC_TIER_FAST, OC_TIER_BIG, OC_TIER_COUNT } oc_tier;
OC_API const char *oc_tier_word(oc_tier tier);
OC_API oc_status oc_tier_find(const char *word, oc_tier *out, oc_err *err);

/* ---- members ------------------------------------------------------------------------------------------------- */

enum {
  OC_MEMBER_EXACT = 1u << 0,         /* bits equal to the named stock op on the stacks that its cells list */
  OC_MEMBER_DETERMINISTIC = 1u << 1, /* same bits on another run, address, stream or thread count */
  OC_MEMBER_ROWWISE = 1u << 2,       /* bits of a row do not depend on the other rows (chunking leaves bits alone) */
  OC_MEMBER_REFERENCE = 1u << 3      /* the specification itself; never chosen by a shipped cell */
};

/* How one call runs. Zero-initialise. */
typedef struct oc_exec {
  /* Owned by the caller, at least oc_member_workspace bytes. CPU members: host memory, 64-byte aligned. CUDA members:
   * memory of the device, 256-byte aligned, not used by other work until the stream has passed the call. */
  void *workspace;
  size_t workspace_bytes;
  int threads;    /* 0: oc_cpu_threads(); a forked process runs 1. Unused by CUDA members */
  int32_t device; /* where the call runs, as oc_view.device: that of the operands, else BAD_ARG */
  void *stream;   /* the CUstream that the work is enqueued on; unused by CPU members */
} oc_exec;

typedef struct oc_member {
  const char *row, *name; /* "cpu", "cpu_avx512" */
  oc_family family;
  const char *device;                                                   /* "cpu", "sm_80", "sm_90a" */
  oc_isa isa;                                                           /* lowest level that can run it; GENERIC */
  unsigned flags;                                                       /* OC_MEMBER_* */
  size_t (*workspace)(const void *call, int threads);                   /* bytes; NULL: none */
  oc_status (*run)(const void *call, const oc_exec *exec, oc_err *err); /* NULL: a hosted member, see below */
} oc_member;

/* A hosted member runs in the host framework (kernels/<family>/members/<row>.py), because its products are the
 * framework's own. */

/* All members of a family in the order of its members.inc. Static storage. */
OC_API const oc_member *oc_family_members(oc_family family, int *count);
/* The member that runs `row` on `isa` (the highest level not above it); NULL when there is none. */
OC_API const oc_member *oc_member_find(oc_family family, const char *row, oc_isa isa);
/* The member that runs `row` on a device as oc_class.device writes it: on "cpu-<level>" as above; on "sm_<nn>" the one
 * built for the newest architecture that oc_gate_arch admits. NULL when there is none. */
OC_API const oc_member *oc_member_for_device(oc_family family, const char *row, const char *device);
/* Runs a member on a checked call. REFUSED not_built:<name> runs in the host framework, for a hosted member. */
OC_API oc_status oc_member_run(const oc_member *member, const void *call, const oc_exec *exec, oc_err *err);
/* Scratch bytes that a member needs for the call. `call` is the family's descriptor. */
OC_API size_t oc_member_workspace(const oc_member *member, const void *call, int threads);

/* ---- call classes and cells ------------------------------------------------------------------------------------ */

/* X(identifier, letter): the tree's shape letters. */
#define OC_DIM_LIST(X) X(B, "b") X(S, "s") X(N, "n") X(H, "h") X(D, "d") X(C, "c")
typedef enum oc_dim {
#define X(id, letter) OC_DIM_##id,
  OC_DIM_LIST(X)
#undef X
      OC_DIM_COUNT
} oc_dim;

/* What selection may look at, and nothing else. */
typedef struct oc_class {
  oc_family family;
  oc_tier tier;
  char device[24];           /* "cpu-avx512"; "sm_90a" for compute capability 9.0, "sm_86" and such for others */
  oc_dtype dtype;            /* of the main input */
  char form[48];             /* words of the dialect joined by '+', sorted, e.g. "biased+mask+outgoing" */
  int64_t dim[OC_DIM_COUNT]; /* 0 where the letter does not apply */
  char stack[96];            /* what exact proofs are keyed by, e.g. "torch-2.11.0+intel+avx512"; "" outside exact */
} oc_class;

/* `family.tier.device.dtype.form.n<=256.c=128...`, stable text without spaces or ':' for records; N is bucketed to the
 * next power of two. Cut at out_bytes; returns uncut length. */
OC_API size_t oc_class_text(const oc_class *cls, char *out, size_t out_bytes);

typedef struct oc_cells oc_cells; /* an immutable, checked table */

/* The table compiled in for a family. Built once, thread-safe. REFUSED cells:<why> if it breaks its schema. */
OC_API oc_status oc_cells_builtin(oc_family family, const oc_cells **out, oc_err *err);
/* Parses a table (schema: docs/cells.md). Unknown keys, overlaps within a tier, a row without a member, a number
 * without evidence are REFUSED cells:<where>. Caller frees. */
OC_API oc_status oc_cells_parse(const char *json, size_t json_bytes, oc_cells **out, oc_err *err);
OC_API void oc_cells_free(oc_cells *cells);
/* The table in force: the builtin one overlaid by the file that OPT_CORE_CELLS names (read once a process). */
OC_API oc_status oc_cells_in_force(oc_family family, const oc_cells **out, oc_err *err);
/* SHA-256 of the overlay as 64 hex digits, "" when there is none. */
OC_API const char *oc_cells_overlay_digest(void);
OC_API int oc_cells_count(const oc_cells *cells);

typedef struct oc_cell {
  const char *id; /* unique within the table */
  oc_tier tier;
  const char *device, *row, *fallback, *form; /* form "*": any */
  oc_dtype dtype;
  int64_t low[OC_DIM_COUNT], high[OC_DIM_COUNT]; /* half-open ranges; [0, INT64_MAX) where the table names no range */
  double us, peer_us, err, stock_err;            /* measured; peer_us is the stock op's time in the same run */
  const char *date, *machine, *stack, *command, *result; /* evidence; result is the file under bench/results */
  const char *const *stacks;                             /* exact: proven stacks, NULL-terminated; NULL elsewhere */
} oc_cell;

OC_API const oc_cell *oc_cells_at(const oc_cells *cells, int index);

typedef struct oc_choice {
  const oc_cell *cell;
  const oc_member *member;
} oc_choice;

/* The device whose cells count where a device has none of its own for a class: "cpu-avx512" for "cpu-avx512_bf16", whose
 * f32 members are the same code; NULL for every other. */
OC_API const char *oc_device_below(const char *device);

/* Pure: the same arguments give the same answer. No clock, environment or device query. Cells of the class's device come
 * before those of the device below it.
 * REFUSED uncovered_cell:<family>:<class> when no cell covers the class; proof:<row>:<stack> when only exact cells
 * proven on other stacks do; arch:<device> when the row has no member for the device. */
OC_API oc_status oc_select(const oc_cells *cells, const oc_class *cls, oc_choice *out, oc_err *err);

#ifdef __cplusplus
}
#endif
#endif
