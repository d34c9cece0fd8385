/* SPDX-License-Identifier: Apache-2.0 */
/* What the attention families share before any arithmetic: the call on views and its checks. */
#ifndef OC_ATTENTION_CALL_H
#define OC_ATTENTION_CALL_H

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "devices/cpu/rowset.h"
#include "devices/place.h"
#include "opt_core/module.h"
#include "opt_core/provider.h"

#define OC_CHECK_FN static inline __attribute__((unused))

/* Widest head: its query block (12 KB) and a key panel (32 KB) share L1. */
#define OC_ATTENTION_D_MAX 256

/* q, k, v, gate, out [B, I, N, H, D]; bias [B, H, Nq, Nk]; mask [B, I, Nk]; lse [B, I, H, Nq]; NULL where absent. */
typedef struct oc__attention {
  const oc_view *q, *k, *v, *bias, *mask, *gate, *out, *lse;
  float scale, mask_value;
  oc_mask_kind mask_kind;
  int bias_first; /* the bias is added before the mask acts */
} oc__attention;

OC_CHECK_FN const oc_view *oc__view_or_null(const oc_view *view) { return oc_view_is_present(view) ? view : NULL; }

/* BAD_ARG unless view is present, sound and has this shape. */
OC_CHECK_FN oc_status oc__shape_check(const oc_view *view, const char *name, int32_t rank, const int64_t *shape,
                                      oc_err *err) {
  if (!oc_view_is_present(view)) return OC_FAIL(err, BAD_ARG, 0, "%s: absent", name);
  OC_TRY(oc_view_check(view, name, err));
  if (view->rank != rank) return OC_FAIL(err, BAD_ARG, 0, "%s: rank %" PRId32 ", not %" PRId32, name, view->rank, rank);
  for (int32_t axis = 0; axis < rank; axis++)
    if (view->shape[axis] != shape[axis])
      return OC_FAIL(err, BAD_ARG, 0, "%s: shape[%" PRId32 "] is %" PRId64 ", not %" PRId64, name, axis,
                     view->shape[axis], shape[axis]);
  return OC_OK;
}

OC_CHECK_FN oc_status oc__shape_check_optional(const oc_view *view, const char *name, int32_t rank,
                                               const int64_t *shape, oc_err *err) {
  return oc_view_is_present(view) ? oc__shape_check(view, name, rank, shape, err) : OC_OK;
}

/* An output's elements must lie apart: BAD_ARG for a stride below 1 on an axis longer than 1, REFUSED layout: for
 * strides under which two elements may be one place (threads would write it both). */
OC_CHECK_FN oc_status oc__output_check(const oc_view *view, const char *name, oc_err *err) {
  if (oc_view_count(view) == 0) return OC_OK;
  for (int32_t axis = 0; axis < view->rank; axis++)
    if (view->shape[axis] > 1 && view->stride[axis] < 1)
      return OC_FAIL(err, BAD_ARG, 0, "%s: stride[%" PRId32 "] of an output is %" PRId64 ", below 1", name, axis,
                     view->stride[axis]);
  if (!oc__is_one_to_one(view)) return OC_REFUSE(err, LAYOUT, "%s: strides may lead two elements to one place", name);
  return OC_OK;
}

OC_CHECK_FN oc_status oc__apart_check(const oc_view *out, const char *out_name, const oc_view *in, const char *in_name,
                                      oc_err *err) {
  if (oc_view_is_present(in) && oc_view_may_overlap(out, in))
    return OC_FAIL(err, BAD_ARG, 0, "%s overlaps %s", out_name, in_name);
  return OC_OK;
}

OC_CHECK_FN int oc__same_view(const oc_view *a, const oc_view *b) {
  if (a->data != b->data || a->dtype != b->dtype || a->rank != b->rank) return 0;
  for (int32_t axis = 0; axis < a->rank; axis++)
    if (a->shape[axis] != b->shape[axis] || (a->shape[axis] > 1 && a->stride[axis] != b->stride[axis])) return 0;
  return 1;
}

OC_CHECK_FN oc_status oc__mask_check(const oc_view *mask, oc_mask_kind kind, float value, oc_err *err) {
  if ((int)kind < OC_MASK_NONE || kind > OC_MASK_ADD)
    return OC_FAIL(err, BAD_ARG, 0, "mask_kind: %d is outside 0..%d", (int)kind, (int)OC_MASK_ADD);
  if (oc_view_is_present(mask) != (kind != OC_MASK_NONE))
    return OC_FAIL(err, BAD_ARG, 0, "mask: %s with mask_kind %d", oc_view_is_present(mask) ? "present" : "absent",
                   (int)kind);
  if (kind == OC_MASK_SUBTRACT && !(value > 0.0f && isfinite(value)))
    return OC_FAIL(err, BAD_ARG, 0, "mask_value: %g is not finite and above 0", (double)value);
  if (kind == OC_MASK_FILL && isnan(value)) return OC_FAIL(err, BAD_ARG, 0, "mask_value: NaN");
  return OC_OK;
}

OC_CHECK_FN const char *oc__mask_word(oc_mask_kind kind) {
  static const char *const words[] = {"", "mask_subtract", "mask_fill", "mask_zero", "mask_add"};
  return words[kind];
}

/* Adds a word to a class's form. Callers add in alphabetical order. */
OC_CHECK_FN void oc__form_add(oc_class *cls, const char *word) {
  const size_t used = strlen(cls->form);
  if (word[0]) (void)snprintf(cls->form + used, sizeof cls->form - used, "%s%s", used ? "+" : "", word);
}

/* The fields that every family fills alike. main: the operand whose dtype and place are the call's. */
OC_CHECK_FN oc_status oc__class_start(oc_family family, oc_tier tier, const oc_view *main, oc_class *out, oc_err *err) {
  if (!out) return OC_FAIL(err, BAD_ARG, 0, "out: NULL");
  memset(out, 0, sizeof *out);
  out->family = family;
  out->tier = tier;
  out->dtype = main->dtype;
  return oc__place_class(main, out->device, err);
}

OC_CHECK_FN oc_status oc__choice_check(const oc_choice *choice, const oc_exec *exec, oc_family family,
                                       const oc_view *main, const char *main_name, oc_err *err) {
  if (!choice || !choice->member) return OC_FAIL(err, BAD_ARG, 0, "choice: no member");
  if (choice->member->family != family)
    return OC_FAIL(err, BAD_ARG, 0, "choice: member %s is of family %d, not %d", choice->member->name,
                   (int)choice->member->family, (int)family);
  if (!exec) return OC_FAIL(err, BAD_ARG, 0, "exec: NULL");
  return oc__place_serve(choice->member, exec, main, main_name, err);
}

OC_CHECK_FN oc_status oc__workspace_check(const oc_exec *exec, size_t need, oc_err *err) {
  if (need > 0 && (!exec->workspace || exec->workspace_bytes < need))
    return OC_FAIL(err, BAD_ARG, 0, "workspace: %zu bytes, the call needs %zu",
                   exec->workspace ? exec->workspace_bytes : 0, need);
  if (((uintptr_t)exec->workspace & 63u) != 0) return OC_FAIL(err, BAD_ARG, 0, "workspace: not aligned to 64 bytes");
  return OC_OK;
}

OC_CHECK_FN int oc__is_narrow_float(oc_dtype dtype) { return dtype == OC_F32 || dtype == OC_BF16 || dtype == OC_F16; }

/* REFUSED dtype:<name>=<word> unless the view is absent, F32, BF16 or F16 (or F64 where the row takes it). */
OC_CHECK_FN oc_status oc__float_check(const oc_view *view, const char *name, int takes_f64, oc_err *err) {
  if (!oc_view_is_present(view) || oc__is_narrow_float(view->dtype) || (takes_f64 && view->dtype == OC_F64))
    return OC_OK;
  return OC_REFUSE(err, DTYPE, "%s=%s", name, oc_dtype_word(view->dtype));
}

OC_CHECK_FN oc_status oc__depth_check(int64_t depth, oc_err *err) {
  if (depth < 1 || depth > OC_ATTENTION_D_MAX)
    return OC_REFUSE(err, SHAPE, "d=%" PRId64 " is outside 1..%d", depth, OC_ATTENTION_D_MAX);
  return OC_OK;
}

#endif
