/* SPDX-License-Identifier: Apache-2.0 */
/* The elementwise half of the exact assembly. Compiled with the library's strict floating point (-ffp-contract=off, no
 * ISA flag): two multiplications have one possible result each, so the bits are those of any IEEE implementation. Bound
 * by memory: wider vectors would not help. */
#include <inttypes.h>

#include "devices/cpu/parallel.h"
#include "devices/cpu/rows.h"
#include "devices/cpu/transpose.h"
#include "devices/place.h"
#include "opt_core/trimul.h"

#define TILE 64     /* positions s at a time: whole cache lines of out, four for each channel */
#define CHANNELS 16 /* channels at a time: one cache line of gate and of proj */

typedef struct planes {
  const oc_view *gate, *proj, *mask, *out;
} planes;

static int64_t at3(const oc_view *v, int64_t i, int64_t j, int64_t k) {
  return i * v->stride[0] + j * v->stride[1] + k * v->stride[2];
}

static void one(const planes *p, int64_t r, int64_t s, int64_t c, float mask) {
  const float gate = ((const float *)p->gate->data)[at3(p->gate, r, s, c)];
  const float proj = ((const float *)p->proj->data)[at3(p->proj, r, s, c)];
  ((float *)p->out->data)[at3(p->out, c, r, s)] = (oc_view_is_present(p->mask) ? mask * gate : gate) * proj;
}

/* OC_VL positions from s on, OC_VL channels from c on, both operands with unit stride along c. */
static void square(const planes *p, int64_t r, int64_t s, int64_t c, const float *mask) {
  vf v[OC_VL];
  for (int i = 0; i < OC_VL; i++) {
    v[i] = vf_load((const float *)p->gate->data + at3(p->gate, r, s + i, c));
    if (mask) v[i] = vf_mul(vf_set(mask[i]), v[i]);
    v[i] = vf_mul(v[i], vf_load((const float *)p->proj->data + at3(p->proj, r, s + i, c)));
  }
  vf_transpose(v);
  for (int i = 0; i < OC_VL; i++) vf_store((float *)p->out->data + at3(p->out, c + i, r, s), v[i]);
}

/* Positions [s0, s1) of row r, channels [c0, c1). */
static void tile(const planes *p, int64_t r, int64_t s0, int64_t s1, int64_t c0, int64_t c1, const float *mask) {
  const int is_unit = p->gate->stride[2] == 1 && p->proj->stride[2] == 1;
  const int64_t s_whole = is_unit ? s0 + (s1 - s0) / OC_VL * OC_VL : s0;
  const int64_t c_whole = is_unit ? c0 + (c1 - c0) / OC_VL * OC_VL : c0;
  for (int64_t c = c0; c < c_whole; c += OC_VL)
    for (int64_t s = s0; s < s_whole; s += OC_VL)
      square(p, r, s, c, oc_view_is_present(p->mask) ? mask + (s - s0) : NULL);
  for (int64_t c = c0; c < c1; c++)
    for (int64_t s = c < c_whole ? s_whole : s0; s < s1; s++) one(p, r, s, c, mask[s - s0]);
}

static void row_block(int64_t r, int thread, void *context) {
  const planes *p = context;
  const int64_t n = p->out->shape[2], channels = p->out->shape[0];
  float mask[TILE];
  (void)thread;
  for (int64_t s0 = 0; s0 < n; s0 += TILE) {
    const int64_t s1 = s0 + TILE < n ? s0 + TILE : n;
    for (int64_t s = s0; s < s1; s++)
      mask[s - s0] = oc_view_is_present(p->mask)
                         ? oc__load1(p->mask->data, p->mask->dtype, r * p->mask->stride[0] + s * p->mask->stride[1])
                         : 1.0f;
    for (int64_t c0 = 0; c0 < channels; c0 += CHANNELS)
      tile(p, r, s0, s1, c0, c0 + CHANNELS < channels ? c0 + CHANNELS : channels, mask);
  }
}

static oc_status check_rank3(const oc_view *v, const char *name, oc_err *err) {
  OC_TRY(oc_view_check(v, name, err));
  if (v->rank != 3) return OC_FAIL(err, BAD_ARG, 0, "%s: rank %" PRId32 ", needs 3", name, v->rank);
  if (v->dtype != OC_F32) return OC_REFUSE(err, DTYPE, "%s is %s, served is f32", name, oc_dtype_word(v->dtype));
  return OC_OK;
}

static oc_status check_operand(const oc_view *v, const char *name, const oc_view *out, oc_err *err) {
  OC_TRY(check_rank3(v, name, err));
  for (int32_t axis = 0; axis < 3; axis++) {
    const int64_t need = out->shape[(axis + 1) % 3];
    if (v->shape[axis] != need)
      return OC_FAIL(err, BAD_ARG, 0, "%s: shape[%" PRId32 "] is %" PRId64 ", needs %" PRId64, name, axis,
                     v->shape[axis], need);
  }
  if (oc_view_may_overlap(v, out)) return OC_FAIL(err, BAD_ARG, 0, "out overlaps %s", name);
  return OC_OK;
}

static oc_status check_mask(const oc_view *mask, const oc_view *out, oc_err *err) {
  if (!oc_view_is_present(mask)) return OC_OK;
  OC_TRY(oc_view_check(mask, "mask", err));
  if (mask->rank != 2 || mask->shape[0] != out->shape[1] || mask->shape[1] != out->shape[2])
    return OC_FAIL(err, BAD_ARG, 0, "mask: rank %" PRId32 ", needs [%" PRId64 ", %" PRId64 "]", mask->rank,
                   out->shape[1], out->shape[2]);
  if (oc_view_may_overlap(mask, out)) return OC_FAIL(err, BAD_ARG, 0, "out overlaps mask");
  return OC_OK;
}

static oc_status check_out(const oc_view *out, oc_err *err) {
  OC_TRY(check_rank3(out, "out", err));
  if (out->shape[1] != out->shape[2])
    return OC_FAIL(err, BAD_ARG, 0, "out: %" PRId64 " rows of %" PRId64 ", needs a square", out->shape[1],
                   out->shape[2]);
  if (oc_view_count(out) == 0) return OC_OK;
  for (int32_t axis = 0; axis < 3; axis++)
    if (out->shape[axis] > 1 && out->stride[axis] < 1)
      return OC_FAIL(err, BAD_ARG, 0, "out: stride[%" PRId32 "] is %" PRId64 ", an output needs 1 or more", axis,
                     out->stride[axis]);
  if (out->shape[2] > 1 && out->stride[2] != 1)
    return OC_REFUSE(err, LAYOUT, "out: stride[2] is %" PRId64 ", served is 1", out->stride[2]);
  const int64_t row = out->stride[1], plane = out->stride[0];
  const int64_t n = out->shape[2], channels = out->shape[0];
  const int rows_apart = n < 2 || row >= n;
  const int planes_outside = channels < 2 || (n < 2 ? plane > 0 : plane > (n - 1) * row + n - 1);
  const int planes_inside = channels < 2 || (plane >= n && row > (channels - 1) * plane + n - 1);
  if (rows_apart && (planes_outside || planes_inside)) return OC_OK;
  return OC_REFUSE(err, LAYOUT, "out: planes %" PRId64 " apart and rows %" PRId64 " apart overlap", plane, row);
}

oc_status oc_trimul_gate_planes(const oc_view *gate, const oc_view *proj, const oc_view *mask, const oc_view *out,
                                int threads, oc_err *err) {
  static const oc_view absent = {0};
  if (!gate || !proj || !out) return OC_FAIL(err, BAD_ARG, 0, "gate_planes: gate, proj or out is NULL");
  planes p = {gate, proj, mask ? mask : &absent, out};
  OC_TRY(check_out(out, err));
  OC_TRY(check_operand(gate, "gate", out, err));
  OC_TRY(check_operand(proj, "proj", out, err));
  OC_TRY(check_mask(p.mask, out, err));
  if (out->device != OC_DEVICE_HOST)
    return OC_REFUSE(err, NO_DEVICE, "out is a cuda:%d tensor, the planes are made on the cpu",
                     oc_view_cuda_ordinal(out));
  OC_TRY(oc__place_check(out, "out", gate, "gate", err));
  OC_TRY(oc__place_check(out, "out", proj, "proj", err));
  OC_TRY(oc__place_check(out, "out", p.mask, "mask", err));
  if (oc_view_count(out) == 0) return OC_OK;
  oc__parallel(out->shape[1], oc__thread_count(threads, out->shape[1]), row_block, &p);
  return OC_OK;
}
