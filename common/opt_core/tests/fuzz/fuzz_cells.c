/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a cell table: refused by name, or a table whose every cell is found by a class inside its own ranges. */
#include "providers/cells.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void select_own_class(const oc_cells *cells, const oc_cell *cell) {
  oc_class cls = {.family = cells->family, .tier = cell->tier, .dtype = cell->dtype};
  oc_choice choice = {NULL, NULL};
  char text[128];
  memcpy(cls.device, cell->device, strlen(cell->device) + 1);
  if (strcmp(cell->form, "*") != 0) memcpy(cls.form, cell->form, strcspn(cell->form, "|"));
  if (cell->stacks) memcpy(cls.stack, cell->stacks[0], strlen(cell->stacks[0]) + 1);
  for (int dim = 0; dim < OC_DIM_COUNT; dim++) cls.dim[dim] = cell->low[dim];
  oc_class_text(&cls, text, sizeof text);
  oc_status status = oc_select(cells, &cls, &choice, NULL);
  if (status == OC_OK ? choice.cell != cell : status != OC_REFUSED) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  oc_cells *cells = NULL;
  oc_err err = {0};
  oc_status status = oc_cells_parse((const char *)data, size, &cells, &err);
  if (status != OC_OK) {
    if (cells || err.status != status || (status == OC_REFUSED && err.reason != OC_REASON_CELLS)) abort();
    return 0;
  }
  for (int i = 0; i < oc_cells_count(cells); i++) select_own_class(cells, oc_cells_at(cells, i));
  oc_cells_free(cells);
  return 0;
}
