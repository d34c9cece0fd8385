/* SPDX-License-Identifier: Apache-2.0 */
/* Triangle attention on Hopper: which calls the wgmma core (native.cu) takes, its bias, its launch, and the pass that
 * computes flagged tiles again. Everything else goes to the general member (mma.c).
 *
 * Workspace: the packed bias, 2 bytes a logit of one row (1 % of bf16 operands at H * D = 128 with a pair bias), and
 * four bytes a tile of 64 queries. */
#include "native.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "devices/cuda/cuda.h"
#include "mma.h"
#include "triattn/triattn_internal.h"

size_t oc__triattn_native_sm90a_workspace(const void *call, int threads);
oc_status oc__triattn_native_sm90a(const void *call, const oc_exec *exec, oc_err *err);
size_t oc__triattn_cuda_sm90a_workspace(const void *call, int threads);
oc_status oc__triattn_cuda_sm90a(const void *call, const oc_exec *exec, oc_err *err);
extern const oc__cuda_kernel *const oc__triattn_native_kernels[];

static const oc__cuda_kernel core_kernel = {"triattn", "native", "sm_90a", "triattn_native", OC__NATIVE_SHARED_BYTES};
static const oc__cuda_kernel pack_kernel = {"triattn", "native", "sm_90a", "triattn_native_pack", 0};
const oc__cuda_kernel *const oc__triattn_native_kernels[] = {&core_kernel, &pack_kernel, NULL};

_Static_assert(sizeof(oc__native_map) == sizeof(oc__cuda_map), "a tensor map is 128 bytes");

/* ---- which calls ------------------------------------------------------------------------------------------------- */

/* [b, i, n, h, d] as the tensor map has it: d, n, h, i, b. */
static void map_axes(const oc_view *view, int64_t shape[5], int64_t stride[5]) {
  static const int axis[5] = {4, 2, 3, 1, 0};
  for (int n = 0; n < 5; n++) {
    shape[n] = view->shape[axis[n]];
    stride[n] = view->stride[axis[n]];
  }
}

static int fits_map(const oc_view *view) {
  int64_t shape[5], stride[5];
  map_axes(view, shape, stride);
  return stride[0] == 1 && oc__cuda_map_fits(OC_BF16, 5, view->data, shape, stride);
}

/* Pairs of neighbours as 4 bytes. */
static int fits_pairs(const oc_view *view) {
  if (view->stride[4] != 1 || (uintptr_t)view->data % 4 != 0) return 0;
  for (int axis = 0; axis < 4; axis++)
    if (view->shape[axis] > 1 && view->stride[axis] % 2 != 0) return 0;
  return 1;
}

/* Masks that leave a key out or in; what is between is left to the flags (SUBTRACT) or the general member. */
static int takes_mask(const oc_triattn *call) {
  switch (call->mask_kind) {
  case OC_MASK_NONE:
  case OC_MASK_ZERO:
    return 1;
  case OC_MASK_SUBTRACT:
    return call->mask_value >= 1e4f;
  case OC_MASK_FILL:
    return call->mask_value <= -1e8f; /* below any logit, and bias does not bring it back */
  default:
    return 0;
  }
}

static oc_status refuse_sizes(const oc_triattn *call, oc_err *err) {
  const int64_t *q = call->q.shape, keys = call->k.shape[2], most = 1 << 24; /* tile coordinates and items are ints */
  if (q[4] != OC__NATIVE_DEPTH)
    return OC_REFUSE(err, SHAPE, "d=%" PRId64 ", the core takes %d", q[4], OC__NATIVE_DEPTH);
  if (oc_view_count(&call->q) == 0 || keys < 1) return OC_REFUSE(err, SHAPE, "no query or no key");
  if (q[2] > most || keys > most)
    return OC_REFUSE(err, SHAPE, "nq=%" PRId64 " nk=%" PRId64 ", the core takes up to %" PRId64, q[2], keys, most);
  if (oc__triattn_pieces(q[1], 4) * oc__triattn_pieces(q[2], 256) > INT_MAX / q[3] / q[0])
    return OC_REFUSE(err, SHAPE, "b=%" PRId64 " s=%" PRId64 " nq=%" PRId64 " h=%" PRId64 ": more than 2^31 - 1 items",
                     q[0], q[1], q[2], q[3]);
  return OC_OK;
}

static oc_status refuse_layout(const oc_triattn *call, oc_err *err) {
  const oc_view *const views[] = {&call->q, &call->k, &call->v, &call->out};
  static const char *const names[] = {"q", "k", "v", "out"};
  for (size_t n = 0; n < sizeof views / sizeof views[0]; n++)
    if (!fits_map(views[n]))
      return OC_REFUSE(err, LAYOUT, "%s: last stride 1, all others and the address multiples of 16 bytes", names[n]);
  if (oc_view_is_present(&call->gate) && !fits_pairs(&call->gate))
    return OC_REFUSE(err, LAYOUT, "gate: last stride 1, all others and the address multiples of 4 bytes");
  return OC_OK;
}

oc_status oc__triattn_native_refuse(const oc_triattn *call, oc_err *err) {
  if (call->q.dtype != OC_BF16) return OC_REFUSE(err, DTYPE, "q=%s, the core takes bf16", oc_dtype_word(call->q.dtype));
  if (call->mask.dtype == OC_F64) /* the pass over flagged tiles does not read it */
    return OC_REFUSE(err, DTYPE, "mask=%s", oc_dtype_word(call->mask.dtype));
  if (!isfinite(call->scale)) return OC_REFUSE(err, DIALECT, "scale=%g", (double)call->scale);
  if (!takes_mask(call))
    return OC_REFUSE(err, DIALECT, "mask_kind=%d mask_value=%g", (int)call->mask_kind, (double)call->mask_value);
  OC_TRY(refuse_sizes(call, err));
  return refuse_layout(call, err);
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

typedef struct core_plan {
  int64_t query_tiles, key_tiles, blocks; /* of the packed bias */
  size_t packed_bytes, flags_bytes;
} core_plan;

static core_plan plan_of(const oc_triattn *call, int has_packed_bias) {
  const int64_t *q = call->q.shape;
  core_plan p = {.query_tiles = oc__triattn_pieces(q[2], OC__NATIVE_TILE),
                 .key_tiles = oc__triattn_pieces(call->k.shape[2], OC__NATIVE_TILE)};
  p.blocks = q[0] * q[3] * p.query_tiles * p.key_tiles;
  p.packed_bytes = has_packed_bias ? 0 : (size_t)p.blocks * OC__NATIVE_BLOCK_BYTES;
  p.flags_bytes = (size_t)(4 * q[0] * q[3] * q[1] * p.query_tiles);
  return p;
}

size_t oc__triattn_native_core_bytes(const oc_triattn *call, int has_packed_bias) {
  const core_plan p = plan_of(call, has_packed_bias);
  return p.packed_bytes + (p.flags_bytes + 255) / 256 * 256;
}

static oc_status make_map(oc__native_map *out, const oc_view *view, unsigned tokens, oc_err *err) {
  const unsigned box[5] = {OC__NATIVE_DEPTH, tokens, 1, 1, 1};
  int64_t shape[5], stride[5];
  oc__cuda_map map;
  map_axes(view, shape, stride);
  OC_TRY(oc__cuda_tensor_map(&map, OC_BF16, 5, view->data, shape, stride, box, OC__SWIZZLE_64, err));
  memcpy(out, &map, sizeof map);
  return OC_OK;
}

static void take_strides(const oc_view *view, const int *axes, int count, long long *out) {
  for (int n = 0; oc_view_is_present(view) && n < count; n++) out[n] = view->stride[axes[n]];
}

static oc_status params_of(const oc_triattn *call, const core_plan *plan, const void *packed, unsigned char *flags,
                           oc__native_params *p, oc_err *err) {
  static const int in_order[4] = {0, 1, 2, 3};
  const int64_t *q = call->q.shape;
  *p = (oc__native_params){.bias = packed,
                           .mask = call->mask.data,
                           .gate = call->gate.data,
                           .lse = call->lse.data,
                           .flags = flags,
                           .rows = (int)q[1],
                           .queries = (int)q[2],
                           .keys = (int)call->k.shape[2],
                           .heads = (int)q[3],
                           .row_groups = (int)oc__triattn_pieces(q[1], 2 * OC__NATIVE_ROWS),
                           .whole_groups = (int)(plan->query_tiles / OC__NATIVE_QUERY_TILES),
                           .query_tiles = (int)plan->query_tiles,
                           .key_tiles = (int)plan->key_tiles,
                           .mask_dtype = (int)call->mask.dtype,
                           .mask_kind = (int)call->mask_kind,
                           .mask_value = call->mask_value,
                           .scale = call->scale};
  const int64_t row_items = q[0] * q[3] * p->row_groups;
  p->whole_items = row_items * p->whole_groups;
  p->items = p->whole_items + (plan->query_tiles % OC__NATIVE_QUERY_TILES ? row_items : 0);
  take_strides(&call->mask, in_order, 3, p->mask_stride);
  take_strides(&call->gate, in_order, 4, p->gate_stride);
  take_strides(&call->lse, in_order, 4, p->lse_stride);
  OC_TRY(make_map(&p->q, &call->q, OC__NATIVE_TILE, err));
  OC_TRY(make_map(&p->k, &call->k, OC__NATIVE_TILE, err));
  OC_TRY(make_map(&p->v, &call->v, OC__NATIVE_TILE, err));
  return make_map(&p->out, &call->out, OC__NATIVE_TILE / 4, err); /* a warp's rows */
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static oc_status pack_bias(const oc_triattn *call, const core_plan *plan, void *packed, const oc__cuda_limits *limits,
                           const oc_exec *exec, oc_err *err) {
  static const int in_order[4] = {0, 1, 2, 3};
  oc__cuda_function function;
  oc__native_pack_params p = {.bias = call->bias.data,
                              .packed = packed,
                              .blocks = plan->blocks,
                              .heads = (int)call->q.shape[3],
                              .queries = (int)call->q.shape[2],
                              .keys = (int)call->k.shape[2],
                              .query_tiles = (int)plan->query_tiles,
                              .key_tiles = (int)plan->key_tiles,
                              .dtype = (int)call->bias.dtype};
  take_strides(&call->bias, in_order, 4, p.stride);
  const int64_t all = plan->blocks * (OC__NATIVE_BLOCK_BYTES / 16 / OC__NATIVE_PACK_THREADS);
  const int64_t resident = 8 * (int64_t)limits->multiprocessors;
  const oc__cuda_grid grid = {.grid = {(unsigned)(all < resident ? all : resident), 1, 1},
                              .block = {OC__NATIVE_PACK_THREADS, 1, 1}};
  OC_TRY(oc__cuda_kernel_find(exec->device - 1, exec->stream, &pack_kernel, &function, err));
  return oc__cuda_launch(exec->device - 1, function, &grid, exec->stream, &p, sizeof p, err);
}

/* As many clusters of two as there are pairs of multiprocessors, or items. */
static oc_status launch_core(const oc__native_params *p, const oc__cuda_limits *limits, const oc_exec *exec,
                             oc_err *err) {
  oc__cuda_function function;
  const long long pairs = limits->multiprocessors / 2;
  const oc__cuda_grid grid = {.grid = {2u * (unsigned)(p->items < pairs ? p->items : pairs), 1, 1},
                              .block = {OC__NATIVE_THREADS, 1, 1},
                              .cluster = 2,
                              .shared_bytes = OC__NATIVE_SHARED_BYTES,
                              .follows = 1};
  OC_TRY(oc__cuda_kernel_find(exec->device - 1, exec->stream, &core_kernel, &function, err));
  return oc__cuda_launch(exec->device - 1, function, &grid, exec->stream, p, sizeof *p, err);
}

oc_status oc__triattn_native_core(const oc_triattn *call, const void *packed_bias, void *workspace,
                                  size_t workspace_bytes, const oc_exec *exec, oc_err *err) {
  const core_plan plan = plan_of(call, packed_bias != NULL);
  const oc__cuda_limits *limits;
  oc__native_params params;
  if (exec->device < 1 || exec->device != call->q.device)
    return OC_FAIL(err, BAD_ARG, 0, "device: %d, q lies on %d", (int)exec->device, (int)call->q.device);
  if (workspace_bytes < oc__triattn_native_core_bytes(call, packed_bias != NULL))
    return OC_FAIL(err, BAD_ARG, 0, "workspace: %zu bytes, need %zu", workspace_bytes,
                   oc__triattn_native_core_bytes(call, packed_bias != NULL));
  unsigned char *const flags = (unsigned char *)workspace + plan.packed_bytes;
  OC_TRY(oc__cuda_limits_of(exec->device - 1, &limits, err));
  OC_TRY(params_of(call, &plan, packed_bias ? packed_bias : workspace, flags, &params, err));
  if (!packed_bias) OC_TRY(pack_bias(call, &plan, workspace, limits, exec, err));
  OC_TRY(launch_core(&params, limits, exec, err));
  return oc__triattn_mma_fixup(call, packed_bias, exec, flags, err);
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

/* The packed bias of all heads is 1.02 % of q, k, v and bias at H * D = 128. Where that is much memory, half of the
 * heads are done at a time. */
static int64_t heads_at_once(const oc_triattn *call) {
  const int64_t heads = call->q.shape[3];
  return plan_of(call, 0).packed_bytes > (size_t)4 << 20 && heads > 1 ? oc__triattn_pieces(heads, 2) : heads;
}

static void slice(oc_view *view, int axis, int64_t first, int64_t count) {
  if (!oc_view_is_present(view)) return;
  view->data = (char *)view->data + first * view->stride[axis] * (int64_t)oc_dtype_bytes(view->dtype);
  view->shape[axis] = count;
}

static oc_triattn heads_of(const oc_triattn *call, int64_t first, int64_t count) {
  oc_triattn part = *call;
  oc_view *const per_row[] = {&part.q, &part.k, &part.v, &part.gate, &part.out};
  for (size_t n = 0; n < sizeof per_row / sizeof per_row[0]; n++) slice(per_row[n], 3, first, count);
  slice(&part.bias, 1, first, count);
  slice(&part.lse, 2, first, count);
  return part;
}

static oc_status run_core(const oc_triattn *call, const oc_exec *exec, oc_err *err) {
  const int64_t heads = call->q.shape[3], step = heads_at_once(call);
  for (int64_t first = 0; first < heads; first += step) {
    const oc_triattn part = heads_of(call, first, first + step < heads ? step : heads - first);
    OC_TRY(oc__triattn_native_core(&part, NULL, exec->workspace, exec->workspace_bytes, exec, err));
  }
  return OC_OK;
}

size_t oc__triattn_native_sm90a_workspace(const void *call, int threads) {
  (void)threads;
  if (oc__triattn_native_refuse(call, NULL) != OC_OK) return 0;
  const oc_triattn part = heads_of(call, 0, heads_at_once(call));
  return oc__triattn_native_core_bytes(&part, 0);
}

oc_status oc__triattn_native_sm90a(const void *call, const oc_exec *exec, oc_err *err) {
  OC_TRY(oc__triattn_refuse(call, 0, err));
  if (oc__triattn_native_refuse(call, NULL) != OC_OK) return oc__triattn_mma_run(call, exec, NULL, err);
  return run_core(call, exec, err);
}

/* Row `cuda_sm90a`: the one wgmma kernel for all lengths, and nothing else. */
size_t oc__triattn_cuda_sm90a_workspace(const void *call, int threads) {
  return oc__triattn_native_sm90a_workspace(call, threads);
}

oc_status oc__triattn_cuda_sm90a(const void *call, const oc_exec *exec, oc_err *err) {
  OC_TRY(oc__triattn_refuse(call, 0, err));
  OC_TRY(oc__triattn_native_refuse(call, err));
  return run_core(call, exec, err);
}
