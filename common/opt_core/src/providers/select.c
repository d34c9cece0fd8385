/* SPDX-License-Identifier: Apache-2.0 */
/* The choice. Reads the table and the class, nothing else: no clock, environment or device. */
#include "providers/cells.h"

#include <string.h>

const char *oc_device_below(const char *device) { return strcmp(device, "cpu-avx512_bf16") == 0 ? "cpu-avx512" : NULL; }

/* `form` is the class's form, sorted; `device` the class's or the one below. */
static int covers(const oc_cell *cell, const oc_class *cls, const char *form, const char *device) {
  if (cell->tier != cls->tier || cell->dtype != cls->dtype || strcmp(cell->device, device) != 0) return 0;
  for (int dim = 0; dim < OC_DIM_COUNT; dim++)
    if (cls->dim[dim] < cell->low[dim] || cls->dim[dim] >= cell->high[dim]) return 0;
  return oc__form_accepts(cell->form, form);
}

static int is_proven(const oc_cell *cell, const char *stack) {
  if (cell->tier != OC_TIER_EXACT) return 1;
  for (const char *const *proven = cell->stacks; *proven; proven++)
    if (strcmp(*proven, stack) == 0) return 1;
  return 0;
}

static oc_status refuse_uncovered(const oc_class *cls, oc_err *err) {
  char text[OC_DETAIL_MAX];
  oc_class_text(cls, text, sizeof text);
  return OC_REFUSE(err, UNCOVERED_CELL, "%s:%s", oc_family_word(cls->family), text);
}

static oc_status check_class(const oc_cells *cells, const oc_class *cls, oc_err *err) {
  if (!cells || !cls) return OC_FAIL(err, BAD_ARG, 0, "%s is NULL", cells ? "class" : "table");
  if (cells->family != cls->family)
    return OC_FAIL(err, BAD_ARG, 0, "a class of %s against a table of %s", oc_family_word(cls->family),
                   oc_family_word(cells->family));
  if (!memchr(cls->device, 0, sizeof cls->device) || !memchr(cls->form, 0, sizeof cls->form) ||
      !memchr(cls->stack, 0, sizeof cls->stack))
    return OC_FAIL(err, BAD_ARG, 0, "a text of the class has no end");
  return OC_OK;
}

oc_status oc_select(const oc_cells *cells, const oc_class *cls, oc_choice *out, oc_err *err) {
  char form[OC__FORM_BYTES];
  const oc_cell *unproven = NULL;
  OC_TRY(check_class(cells, cls, err));
  if (!oc__form_sort(cls->form, form)) return OC_FAIL(err, BAD_ARG, 0, "form %s is no set of words", cls->form);
  for (const char *device = cls->device; device; device = oc_device_below(device))
    for (int i = 0; i < cells->count; i++) {
      const oc_cell *cell = &cells->cells[i];
      if (!covers(cell, cls, form, device)) continue;
      if (!is_proven(cell, cls->stack)) {
        if (!unproven) unproven = cell;
        continue;
      }
      const oc_member *member = oc_member_for_device(cls->family, cell->row, cls->device);
      if (!member) return OC_REFUSE(err, ARCH, "%s", cls->device);
      *out = (oc_choice){cell, member};
      return OC_OK;
    }
  if (unproven) return OC_REFUSE(err, PROOF, "%s:%s", unproven->row, cls->stack);
  return refuse_uncovered(cls, err);
}
