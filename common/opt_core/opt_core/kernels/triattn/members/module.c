/* SPDX-License-Identifier: Apache-2.0 */
/* triattn_module on Hopper: prologue (module.cu), core (native.c), epilogue (module.cu).
 *
 * The products take bf16 operands and sum in f32, also where x is f32: the normalised row, q, k, v, the gate, the
 * gated result of the core and the weights are rounded to bf16; the pair bias is a bf16 after its product with
 * log2(e). y is rounded once.
 * Workspace: q, k, v, gate of B * N * N * 128 bf16 each (the core's result takes the gate's place), the packed bias,
 * the core's own. */
#include "devices/cuda/cuda.h"
#include "module.h"
#include "native.h"
#include "triattn/triattn_internal.h"

size_t oc__triattn_module_native_sm90a_workspace(const void *call, int threads);
oc_status oc__triattn_module_native_sm90a(const void *call, const oc_exec *exec, oc_err *err);
extern const oc__cuda_kernel *const oc__triattn_module_kernels[];

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

#define PROLOGUE(word, c)                                                                                              \
  { "triattn", "module", "sm_90a", "oc_module_prologue_" #word "_" #c, OC__MODULE_PROLOGUE_SHARED(c) }
#define EPILOGUE(word, c)                                                                                              \
  { "triattn", "module", "sm_90a", "oc_module_epilogue_" #word "_" #c, OC__MODULE_EPILOGUE_SHARED(c) }

/* [dtype of x][C = 64, 128, 256] and [y narrower than f32][C] */
static const oc__cuda_kernel prologues[2][3] = {{PROLOGUE(f32, 64), PROLOGUE(f32, 128), PROLOGUE(f32, 256)},
                                                {PROLOGUE(bf16, 64), PROLOGUE(bf16, 128), PROLOGUE(bf16, 256)}};
static const oc__cuda_kernel epilogues[2][3] = {{EPILOGUE(wide, 64), EPILOGUE(wide, 128), EPILOGUE(wide, 256)},
                                                {EPILOGUE(narrow, 64), EPILOGUE(narrow, 128), EPILOGUE(narrow, 256)}};

const oc__cuda_kernel *const oc__triattn_module_kernels[] = {&prologues[0][0],
                                                             &prologues[0][1],
                                                             &prologues[0][2],
                                                             &prologues[1][0],
                                                             &prologues[1][1],
                                                             &prologues[1][2],
                                                             &epilogues[0][0],
                                                             &epilogues[0][1],
                                                             &epilogues[0][2],
                                                             &epilogues[1][0],
                                                             &epilogues[1][1],
                                                             &epilogues[1][2],
                                                             NULL};

/* 0, 1, 2 for 64, 128, 256; -1 for others. */
static int channels_index(int64_t channels) {
  return channels == 64 ? 0 : channels == 128 ? 1 : channels == 256 ? 2 : -1;
}

/* ---- plan -------------------------------------------------------------------------------------------------------- */

typedef struct module_plan {
  int64_t batch, n, channels, heads;
  int64_t pixels, tiles;            /* B * N * N */
  size_t plane_bytes, packed_bytes; /* one of q, k, v, gate; the packed bias */
  size_t at_packed, at_core, core_bytes;
  int has_gate;
} module_plan;

static oc_view plane_view(const module_plan *plan, char *data, int32_t device) {
  const int64_t shape[5] = {plan->batch, plan->n, plan->n, plan->heads, OC__MODULE_INNER / plan->heads};
  oc_view view = oc_view_dense(data, OC_BF16, 5, shape);
  view.device = device;
  return view;
}

/* The core's call on scratch at `base`. Its result overwrites the gate, or the unused fourth plane. */
static oc_triattn core_call(const oc_triattn_module *call, const module_plan *plan, char *base) {
  const int32_t device = call->x.device;
  oc_triattn core = {.q = plane_view(plan, base, device),
                     .k = plane_view(plan, base + plan->plane_bytes, device),
                     .v = plane_view(plan, base + 2 * plan->plane_bytes, device),
                     .out = plane_view(plan, base + 3 * plan->plane_bytes, device),
                     .mask = call->mask,
                     .mask_kind = call->mask_kind,
                     .mask_value = call->mask_value,
                     .scale = call->scale};
  if (plan->has_gate) core.gate = core.out;
  return core;
}

/* Of a call that has passed refuse(), at an invented address where `base` is NULL. */
static module_plan module_plan_make(const oc_triattn_module *call, char *base) {
  module_plan p = {.batch = call->x.shape[0],
                   .n = call->x.shape[1],
                   .channels = call->x.shape[3],
                   .heads = call->heads,
                   .has_gate = oc_view_is_present(&call->to_gate.weight)};
  const int64_t blocks = oc__triattn_pieces(p.n, OC__NATIVE_TILE);
  p.pixels = p.batch * p.n * p.n;
  p.tiles = oc__triattn_pieces(p.pixels, OC__MODULE_TILE);
  p.plane_bytes = (size_t)p.pixels * OC__MODULE_INNER * 2;
  p.packed_bytes = (size_t)(p.batch * p.heads * blocks * blocks) * OC__NATIVE_BLOCK_BYTES;
  p.at_packed = 4 * p.plane_bytes;
  p.at_core = p.at_packed + p.packed_bytes;
  const oc_triattn core = core_call(call, &p, base ? base : (char *)(uintptr_t)256);
  p.core_bytes = oc__triattn_native_core_bytes(&core, 1);
  return p;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static oc_status refuse_rows(const oc_view *view, const char *name, oc_err *err) {
  const int64_t bytes = (int64_t)oc_dtype_bytes(view->dtype);
  if (!oc_view_is_present(view)) return OC_OK;
  if (view->stride[3] != 1) return OC_REFUSE(err, LAYOUT, "%s: stride[3] is %" PRId64 ", not 1", name, view->stride[3]);
  if (((uintptr_t)view->data & 15u) != 0) return OC_REFUSE(err, LAYOUT, "%s: not aligned to 16 bytes", name);
  for (int axis = 0; axis < 3; axis++)
    if (view->shape[axis] > 1 && view->stride[axis] * bytes % 16 != 0)
      return OC_REFUSE(err, LAYOUT, "%s: stride[%d] is %" PRId64 " bytes, not a multiple of 16", name, axis,
                       view->stride[axis] * bytes);
  return OC_OK;
}

static oc_status refuse_shape(const oc_triattn_module *call, oc_err *err) {
  const int64_t *x = call->x.shape, inner = call->to_q.weight.shape[0];
  if (channels_index(x[3]) < 0) return OC_REFUSE(err, SHAPE, "c=%" PRId64 " is not 64, 128 or 256", x[3]);
  if (inner != OC__MODULE_INNER || call->heads * OC__NATIVE_DEPTH != inner)
    return OC_REFUSE(err, SHAPE, "h=%" PRId64 " h*d=%" PRId64 ", not 4 and 128", call->heads, inner);
  /* pixels are counted in 32 bits; the product of three factors may not fit in 64 */
  if (x[1] > 32768 || (x[1] > 0 && x[0] > INT32_MAX / (x[1] * x[1])))
    return OC_REFUSE(err, SHAPE, "b=%" PRId64 " n=%" PRId64 ": more than 2^31 - 1 pixels", x[0], x[1]);
  return OC_OK;
}

/* The operands of the products are bf16. That is what the plain operator does where x is bf16, or where x is f32 and
 * every weight bf16 (mixed precision that keeps the pair representation in f32). Elsewhere its products are more
 * accurate. */
static oc_status refuse_dtypes(const oc_triattn_module *call, oc_err *err) {
  static const char *const names[] = {"to_q", "to_k", "to_v", "to_bias", "to_gate", "out_proj"};
  const oc_view *const weights[] = {&call->to_q.weight,    &call->to_k.weight,    &call->to_v.weight,
                                    &call->to_bias.weight, &call->to_gate.weight, &call->out_proj.weight};
  if (call->x.dtype == OC_BF16) return OC_OK;
  if (call->x.dtype != OC_F32) return OC_REFUSE(err, DTYPE, "x=%s, not bf16 or f32", oc_dtype_word(call->x.dtype));
  for (size_t n = 0; n < sizeof weights / sizeof weights[0]; n++)
    if (oc_view_is_present(weights[n]) && weights[n]->dtype != OC_BF16)
      return OC_REFUSE(err, DTYPE, "x=f32 with %s.weight=%s, not bf16", names[n], oc_dtype_word(weights[n]->dtype));
  return OC_OK;
}

/* The epilogue is made for a residual as wide as y. */
static oc_status refuse_residual(const oc_triattn_module *call, oc_err *err) {
  const oc_dtype residual = call->residual.dtype, y = call->y.dtype;
  if (oc_view_is_present(&call->residual) && oc_dtype_bytes(residual) != oc_dtype_bytes(y))
    return OC_REFUSE(err, DTYPE, "residual=%s with y=%s", oc_dtype_word(residual), oc_dtype_word(y));
  return OC_OK;
}

static oc_status refuse(const oc_triattn_module *call, oc_err *err) {
  OC_TRY(oc__triattn_module_refuse(call, 0, err));
  OC_TRY(refuse_dtypes(call, err));
  OC_TRY(refuse_residual(call, err));
  OC_TRY(refuse_shape(call, err));
  OC_TRY(refuse_rows(&call->x, "x", err));
  OC_TRY(refuse_rows(&call->y, "y", err));
  OC_TRY(refuse_rows(&call->residual, "residual", err));
  if (!isfinite(call->scale)) return OC_REFUSE(err, DIALECT, "scale=%g", (double)call->scale);
  return OC_OK;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static oc__module_vector vector_of(const oc_view *view, int64_t first) {
  const int64_t bytes = (int64_t)oc_dtype_bytes(view->dtype);
  if (!oc_view_is_present(view)) return (oc__module_vector){0};
  return (oc__module_vector){.data = (const char *)view->data + first * view->stride[0] * bytes,
                             .stride = view->stride[0] * bytes,
                             .dtype = view->dtype};
}

/* Output columns from `first`. */
static oc__module_linear linear_of(const oc_linear *linear, int64_t first) {
  const oc_view *w = &linear->weight;
  const int64_t bytes = (int64_t)oc_dtype_bytes(w->dtype);
  return (oc__module_linear){.weight = {.data = (const char *)w->data + first * w->stride[0] * bytes,
                                        .row = w->stride[0] * bytes,
                                        .column = w->stride[1] * bytes,
                                        .dtype = w->dtype},
                             .bias = vector_of(&linear->bias, first)};
}

/* See oc__module_prologue_params.fill. */
static int fill_of(const oc__module_linear *linears, int count) {
  for (int n = 0; n < count; n++) {
    const oc__module_matrix *w = &linears[n].weight;
    if (w->dtype != linears[0].weight.dtype || w->column != (long long)oc_dtype_bytes((oc_dtype)w->dtype) ||
        w->row % 16 != 0 || ((uintptr_t)w->data & 15u) != 0)
      return 0;
  }
  return (int)linears[0].weight.dtype;
}

static void byte_strides(const oc_view *view, long long out[3]) {
  for (int axis = 0; axis < 3; axis++) out[axis] = view->stride[axis] * (int64_t)oc_dtype_bytes(view->dtype);
}

static oc__module_prologue_params prologue_params(const oc_triattn_module *call, const module_plan *plan, char *base) {
  const oc_linear *const linears[] = {&call->to_q, &call->to_k, &call->to_v, &call->to_gate};
  oc__module_prologue_params p = {.x = call->x.data,
                                  .pair = (unsigned short *)(void *)(base + plan->at_packed),
                                  .to_pair = linear_of(&call->to_bias, 0),
                                  .norm_weight = vector_of(&call->norm.weight, 0),
                                  .norm_bias = vector_of(&call->norm.bias, 0),
                                  .eps = call->norm.eps,
                                  .rms = call->norm.rms != 0,
                                  .fast_variance = call->norm.fast_variance != 0 && !call->norm.rms,
                                  .n = (int)plan->n,
                                  .heads = (int)plan->heads,
                                  .exchanged = call->bias_untransposed_end != 0,
                                  .groups = plan->has_gate ? 4 : 3,
                                  .pixels = (unsigned)plan->pixels,
                                  .tiles = (unsigned)plan->tiles,
                                  .batch = (int)plan->batch};
  byte_strides(&call->x, p.x_stride);
  for (int g = 0; g < p.groups; g++) {
    p.out[g] = (unsigned short *)(void *)(base + (size_t)g * plan->plane_bytes);
    p.to[g] = linear_of(linears[g], 0);
  }
  p.fill = fill_of(p.to, p.groups);
  return p;
}

static oc__module_epilogue_params epilogue_params(const oc_triattn_module *call, const module_plan *plan, char *base) {
  oc__module_epilogue_params p = {.o = base + 3 * plan->plane_bytes,
                                  .y = call->y.data,
                                  .y_dtype = (int)call->y.dtype,
                                  .n = (unsigned)plan->n,
                                  .pixels = (unsigned)plan->pixels,
                                  .tiles = (unsigned)plan->tiles};
  byte_strides(&call->y, p.y_stride);
  if (oc_view_is_present(&call->residual)) {
    p.residual = call->residual.data;
    p.residual_dtype = (int)call->residual.dtype;
    byte_strides(&call->residual, p.residual_stride);
  }
  p.out[0] = linear_of(&call->out_proj, 0);
  if (plan->channels > OC__MODULE_GROUP) p.out[1] = linear_of(&call->out_proj, OC__MODULE_GROUP);
  p.fill = fill_of(p.out, plan->channels > OC__MODULE_GROUP ? 2 : 1);
  return p;
}

/* ---- the member -------------------------------------------------------------------------------------------------- */

static unsigned smaller(int64_t a, int64_t b) { return (unsigned)(a < b ? a : b); }

/* Persistent blocks, one a multiprocessor; with 256 channels the projections are shared by two of them. */
static oc__cuda_grid grid_of(const module_plan *plan, int multiprocessors, unsigned parts, int shared_bytes) {
  const int64_t blocks = multiprocessors > (int)parts ? multiprocessors / (int)parts : 1;
  return (oc__cuda_grid){.grid = {smaller(plan->tiles, blocks), parts, 1},
                         .block = {OC__MODULE_THREADS(plan->channels), 1, 1},
                         .shared_bytes = (unsigned)shared_bytes};
}

size_t oc__triattn_module_native_sm90a_workspace(const void *call, int threads) {
  oc_err err = {0};
  (void)threads;
  const oc_triattn_module *const module = call;
  if (module->x.rank != 4 || module->heads < 1) return 0; /* may be asked for before the call is checked */
  if (refuse(module, &err) != OC_OK) return 0;            /* the run refuses too, before it touches the workspace */
  const module_plan plan = module_plan_make(module, NULL);
  return plan.at_core + plan.core_bytes;
}

static oc_status run_stages(const oc_triattn_module *call, const module_plan *plan, const oc_triattn *core,
                            const oc_exec *exec, oc_err *err) {
  const int device = exec->device - 1, channels = channels_index(plan->channels);
  const oc__cuda_kernel *const before = &prologues[call->x.dtype == OC_BF16][channels];
  const oc__cuda_kernel *const after = &epilogues[call->y.dtype != OC_F32][channels];
  const oc__cuda_limits *limits;
  oc__cuda_function prologue, epilogue;
  OC_TRY(oc__cuda_limits_of(device, &limits, err));
  OC_TRY(oc__cuda_kernel_find(device, exec->stream, before, &prologue, err));
  OC_TRY(oc__cuda_kernel_find(device, exec->stream, after, &epilogue, err));

  char *const base = exec->workspace;
  const oc__module_prologue_params first = prologue_params(call, plan, base);
  const unsigned parts = OC__MODULE_GROUPS(plan->channels) == 4 ? 1 : 2;
  const oc__cuda_grid first_grid = grid_of(plan, limits->multiprocessors, parts, before->shared_bytes);
  OC_TRY(oc__cuda_launch(device, prologue, &first_grid, exec->stream, &first, sizeof first, err));

  OC_TRY(oc__triattn_native_core(core, base + plan->at_packed, base + plan->at_core, plan->core_bytes, exec, err));

  const oc__module_epilogue_params last = epilogue_params(call, plan, base);
  oc__cuda_grid last_grid = grid_of(plan, limits->multiprocessors, 1, after->shared_bytes);
  last_grid.follows = 1; /* its weights arrive while the core drains */
  return oc__cuda_launch(device, epilogue, &last_grid, exec->stream, &last, sizeof last, err);
}

oc_status oc__triattn_module_native_sm90a(const void *call, const oc_exec *exec, oc_err *err) {
  const oc_triattn_module *const module = call;
  OC_TRY(refuse(module, err));
  if (oc_view_count(&module->x) == 0) return OC_OK;
  if (exec->device != module->x.device || exec->device < 1)
    return OC_FAIL(err, BAD_ARG, 0, "device: %d, x lies on %d", (int)exec->device, (int)module->x.device);
  const module_plan plan = module_plan_make(module, exec->workspace);
  OC_TRY(oc__workspace_check(exec, plan.at_core + plan.core_bytes, err));
  if (((uintptr_t)exec->workspace & 255u) != 0) return OC_FAIL(err, BAD_ARG, 0, "workspace: not aligned to 256 bytes");
  const oc_triattn core = core_call(module, &plan, exec->workspace);
  OC_TRY(oc__triattn_native_refuse(&core, err));
  return run_stages(module, &plan, &core, exec, err);
}
