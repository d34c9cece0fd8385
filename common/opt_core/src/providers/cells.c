/* SPDX-License-Identifier: Apache-2.0 */
/* A cell table from its JSON (docs/cells.md). Whatever the schema does not name is an error: a misspelt key would
 * otherwise widen a cell in silence. */
#include "providers/cells.h"

#include "providers/registry.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CELLS_MAX 4096

static const char *const dim_letters[OC_DIM_COUNT] = {
#define X(id, letter) letter,
    OC_DIM_LIST(X)
#undef X
};

/* The place that messages name: `where` (a table) and the cell in it. */
typedef struct place {
  const char *table;
  int cell;
  const char *id;
} place;

#define REFUSE_CELL(err, at, format, ...)                                                                              \
  OC_REFUSE((err), CELLS, "%.48s: cell %d (%.32s): " format, (at)->table, (at)->cell, (at)->id ? (at)->id : "?",       \
            __VA_ARGS__)

/* ---- single values ---------------------------------------------------------------------------------------------- */

static oc_status take_text(json_t *object, const char *key, const place *at, const char **out, oc_err *err) {
  const char *text = json_string_value(json_object_get(object, key));
  if (!text || !*text) return REFUSE_CELL(err, at, "%s is no text", key);
  *out = text;
  return OC_OK;
}

static oc_status take_number(json_t *object, const char *key, int may_be_zero, const place *at, double *out,
                             oc_err *err) {
  json_t *value = json_object_get(object, key);
  if (!json_is_number(value)) return REFUSE_CELL(err, at, "%s is no number", key);
  *out = json_number_value(value);
  if (!isfinite(*out) || *out < 0 || (*out == 0 && !may_be_zero))
    return REFUSE_CELL(err, at, "%s is %g, not a measured value", key, *out);
  return OC_OK;
}

static oc_status take_range(json_t *object, int dim, const place *at, oc_cell *cell, oc_err *err) {
  json_t *range = json_object_get(object, dim_letters[dim]);
  cell->low[dim] = 0;
  cell->high[dim] = INT64_MAX;
  if (!range) return OC_OK;
  json_t *low = json_array_get(range, 0), *high = json_array_get(range, 1);
  if (json_array_size(range) != 2 || !json_is_integer(low) || !json_is_integer(high))
    return REFUSE_CELL(err, at, "%s is no [low, high)", dim_letters[dim]);
  cell->low[dim] = json_integer_value(low);
  cell->high[dim] = json_integer_value(high);
  if (cell->low[dim] < 0 || cell->low[dim] >= cell->high[dim])
    return REFUSE_CELL(err, at, "%s: [%" PRId64 ", %" PRId64 ") is empty or negative", dim_letters[dim], cell->low[dim],
                       cell->high[dim]);
  return OC_OK;
}

static oc_status check_keys(json_t *object, const char *const *known, const place *at, oc_err *err) {
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    const char *const *k = known;
    while (*k && strcmp(*k, key) != 0) k++;
    if (!*k) return REFUSE_CELL(err, at, "unknown key %.40s", key);
  }
  return OC_OK;
}

/* ---- forms ------------------------------------------------------------------------------------------------------ */

/* Bytes of the first form in a list joined by '|'. */
static size_t form_bytes(const char *forms) { return strcspn(forms, "|"); }

int oc__form_accepts(const char *forms, const char *form) {
  if (strcmp(forms, "*") == 0) return 1;
  for (size_t wanted = strlen(form);; forms++) {
    size_t bytes = form_bytes(forms);
    if (bytes == wanted && memcmp(forms, form, bytes) == 0) return 1;
    forms += bytes;
    if (!*forms) return 0;
  }
}

int oc__forms_meet(const char *a, const char *b) {
  char form[OC__FORM_BYTES];
  if (strcmp(a, "*") == 0 || strcmp(b, "*") == 0) return 1;
  for (;; a++) {
    size_t bytes = form_bytes(a);
    memcpy(form, a, bytes); /* a form in a cell has passed oc__form_sort, so it fits */
    form[bytes] = '\0';
    if (oc__form_accepts(b, form)) return 1;
    a += bytes;
    if (!*a) return 0;
  }
}

static oc_status append_form(json_t *value, const place *at, char *forms, oc_err *err) {
  char sorted[OC__FORM_BYTES];
  const char *text = json_string_value(value);
  if (!text || !oc__form_sort(text, sorted))
    return REFUSE_CELL(err, at, "form %.60s is no set of words joined by '+'", text ? text : "(no text)");
  memcpy(forms + strlen(forms), sorted, strlen(sorted) + 1); /* take_form made room for the longest of each */
  return OC_OK;
}

static oc_status join_forms(json_t *list, const place *at, char *forms, oc_err *err) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    if (i > 0) memcpy(forms + strlen(forms), "|", 2);
    OC_TRY(append_form(json_array_get(list, i), at, forms, err));
  }
  return OC_OK;
}

static oc_status take_form(json_t *object, const place *at, oc_cell *cell, oc_err *err) {
  json_t *value = json_object_get(object, "form");
  size_t count = json_is_array(value) ? json_array_size(value) : 1;
  if (!value || count < 1 || count > 256) return REFUSE_CELL(err, at, "form is missing or has %zu entries", count);
  char *forms = calloc(count, OC__FORM_BYTES);
  if (!forms) return OC_FAIL(err, NO_MEM, 0, "%zu bytes", count * (size_t)OC__FORM_BYTES);
  cell->form = forms; /* freed with the table, also after a failure */
  if (json_is_array(value)) return join_forms(value, at, forms, err);
  if (json_is_string(value) && strcmp(json_string_value(value), "*") == 0) {
    memcpy(forms, "*", 2);
    return OC_OK;
  }
  return append_form(value, at, forms, err);
}

/* ---- one cell --------------------------------------------------------------------------------------------------- */

static const char *const cell_keys[] = {"id",
                                        "tier",
                                        "device",
                                        "dtype",
                                        "form",
                                        "row",
                                        "fallback",
                                        "us",
                                        "peer_us",
                                        "err",
                                        "stock_err",
                                        "evidence",
                                        "stacks",
#define X(id, letter) letter,
                                        OC_DIM_LIST(X)
#undef X
                                            NULL};

static const char *const evidence_keys[] = {"date", "machine", "stack", "command", "result", NULL};

static int is_date(const char *text) {
  static const char pattern[] = "0000-00-00";
  for (int i = 0; i < 10; i++)
    if (pattern[i] == '-' ? text[i] != '-' : text[i] < '0' || text[i] > '9') return 0;
  return text[10] == '\0';
}

static oc_status take_evidence(json_t *object, const place *at, oc_cell *cell, oc_err *err) {
  json_t *evidence = json_object_get(object, "evidence");
  if (!json_is_object(evidence)) return REFUSE_CELL(err, at, "%s", "no evidence");
  OC_TRY(check_keys(evidence, evidence_keys, at, err));
  OC_TRY(take_text(evidence, "date", at, &cell->date, err));
  OC_TRY(take_text(evidence, "machine", at, &cell->machine, err));
  OC_TRY(take_text(evidence, "stack", at, &cell->stack, err));
  OC_TRY(take_text(evidence, "command", at, &cell->command, err));
  OC_TRY(take_text(evidence, "result", at, &cell->result, err));
  if (!is_date(cell->date)) return REFUSE_CELL(err, at, "date %.20s is not YYYY-MM-DD", cell->date);
  return OC_OK;
}

static oc_status take_stacks(json_t *object, const place *at, oc_cell *cell, oc_err *err) {
  json_t *list = json_object_get(object, "stacks");
  if (cell->tier != OC_TIER_EXACT)
    return list ? REFUSE_CELL(err, at, "stacks belong to the exact tier, not to %s", oc_tier_word(cell->tier)) : OC_OK;
  size_t count = json_array_size(list);
  if (count < 1) return REFUSE_CELL(err, at, "%s", "an exact cell lists no proven stack");
  const char **stacks = calloc(count + 1, sizeof *stacks);
  if (!stacks) return OC_FAIL(err, NO_MEM, 0, "%zu stacks", count);
  cell->stacks = stacks;
  for (size_t i = 0; i < count; i++) {
    stacks[i] = json_string_value(json_array_get(list, i));
    if (!stacks[i] || !*stacks[i]) return REFUSE_CELL(err, at, "stacks[%zu] is no text", i);
    if (strlen(stacks[i]) >= sizeof((oc_class *)0)->stack)
      return REFUSE_CELL(err, at, "stacks[%zu] has more than %zu bytes", i, sizeof((oc_class *)0)->stack - 1);
  }
  return OC_OK;
}

static oc_status take_dtype(json_t *object, const place *at, oc_cell *cell, oc_err *err) {
  const char *word = NULL;
  OC_TRY(take_text(object, "dtype", at, &word, err));
  for (int i = OC_DTYPE_NONE + 1; i < OC_DTYPE_COUNT; i++)
    if (strcmp(word, oc_dtype_word((oc_dtype)i)) == 0) cell->dtype = (oc_dtype)i;
  return cell->dtype != OC_DTYPE_NONE ? OC_OK : REFUSE_CELL(err, at, "unknown dtype %.32s", word);
}

static oc_status take_key(json_t *object, const place *at, oc_cell *cell, oc_err *err) {
  const char *tier = NULL;
  OC_TRY(take_text(object, "tier", at, &tier, err));
  if (oc_tier_find(tier, &cell->tier, NULL) != OC_OK) return REFUSE_CELL(err, at, "unknown tier %.32s", tier);
  OC_TRY(take_text(object, "device", at, &cell->device, err));
  if (!oc__device_is_known(cell->device)) return REFUSE_CELL(err, at, "unknown device %.32s", cell->device);
  OC_TRY(take_dtype(object, at, cell, err));
  OC_TRY(take_form(object, at, cell, err));
  for (int dim = 0; dim < OC_DIM_COUNT; dim++) OC_TRY(take_range(object, dim, at, cell, err));
  return OC_OK;
}

/* What serves when the row refuses is the stock op: a second row would need a measured cell of its own. */
static oc_status take_rows(json_t *object, oc_family family, const place *at, oc_cell *cell, oc_err *err) {
  OC_TRY(take_text(object, "row", at, &cell->row, err));
  OC_TRY(take_text(object, "fallback", at, &cell->fallback, err));
  if (!oc__family_has_row(family, cell->row)) return REFUSE_CELL(err, at, "row %.40s has no member", cell->row);
  return strcmp(cell->fallback, "stock") == 0 ? OC_OK
                                              : REFUSE_CELL(err, at, "fallback %.40s is not stock", cell->fallback);
}

static oc_status take_numbers(json_t *object, const place *at, oc_cell *cell, oc_err *err) {
  OC_TRY(take_number(object, "us", 0, at, &cell->us, err));
  OC_TRY(take_number(object, "peer_us", 0, at, &cell->peer_us, err));
  OC_TRY(take_number(object, "err", 1, at, &cell->err, err));
  return take_number(object, "stock_err", 1, at, &cell->stock_err, err);
}

static oc_status take_cell(json_t *object, oc_family family, place *at, oc_cell *cell, oc_err *err) {
  if (!json_is_object(object)) return REFUSE_CELL(err, at, "%s", "no object");
  OC_TRY(take_text(object, "id", at, &cell->id, err));
  at->id = cell->id;
  OC_TRY(check_keys(object, cell_keys, at, err));
  OC_TRY(take_key(object, at, cell, err));
  OC_TRY(take_rows(object, family, at, cell, err));
  OC_TRY(take_numbers(object, at, cell, err));
  OC_TRY(take_evidence(object, at, cell, err));
  return take_stacks(object, at, cell, err);
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static int cells_overlap(const oc_cell *a, const oc_cell *b) {
  if (a->tier != b->tier || a->dtype != b->dtype || strcmp(a->device, b->device) != 0) return 0;
  for (int dim = 0; dim < OC_DIM_COUNT; dim++)
    if (a->low[dim] >= b->high[dim] || b->low[dim] >= a->high[dim]) return 0;
  return oc__forms_meet(a->form, b->form);
}

/* The new last cell against those before it. */
static oc_status check_last(const oc_cells *table, const place *at, oc_err *err) {
  const oc_cell *last = &table->cells[table->count - 1];
  for (int i = 0; i < table->count - 1; i++) {
    if (strcmp(table->cells[i].id, last->id) == 0) return REFUSE_CELL(err, at, "cell %d has this id too", i);
    if (cells_overlap(&table->cells[i], last))
      return REFUSE_CELL(err, at, "overlaps cell %d (%.32s)", i, table->cells[i].id);
  }
  return OC_OK;
}

static oc_status take_cells(json_t *list, const char *where, oc_cells *table, oc_err *err) {
  size_t count = json_array_size(list);
  table->cells = calloc(count ? count : 1, sizeof *table->cells);
  if (!table->cells) return OC_FAIL(err, NO_MEM, 0, "%zu cells", count);
  for (size_t i = 0; i < count; i++) {
    place at = {where, (int)i, NULL};
    table->count = (int)i + 1; /* counted first: a cell that fails half-way is freed with the table */
    OC_TRY(take_cell(json_array_get(list, i), table->family, &at, &table->cells[i], err));
    OC_TRY(check_last(table, &at, err));
  }
  return OC_OK;
}

static oc_status take_table(json_t *value, const char *where, oc_cells *table, oc_err *err) {
  int schema = 0;
  const char *family = NULL;
  json_t *list = NULL;
  json_error_t why;
  if (json_unpack_ex(value, &why, JSON_STRICT, "{s:i, s:s, s:o}", "schema", &schema, "family", &family, "cells", &list))
    return OC_REFUSE(err, CELLS, "%.48s: %.120s", where, why.text);
  if (schema != 1) return OC_REFUSE(err, CELLS, "%.48s: schema is %d, this core reads 1", where, schema);
  if (oc_family_find(family, &table->family, NULL) != OC_OK)
    return OC_REFUSE(err, CELLS, "%.48s: unknown family %.40s", where, family);
  if (!json_is_array(list) || json_array_size(list) > CELLS_MAX)
    return OC_REFUSE(err, CELLS, "%.48s: cells is no list of at most %d", where, CELLS_MAX);
  return take_cells(list, where, table, err);
}

oc_status oc__cells_from_json(json_t *value, const char *where, oc_cells **out, oc_err *err) {
  oc_cells *table = calloc(1, sizeof *table);
  if (!table) return OC_FAIL(err, NO_MEM, 0, "%zu bytes", sizeof *table);
  table->root = json_incref(value);
  oc_status status = take_table(value, where, table, err);
  if (status == OC_OK)
    *out = table;
  else
    oc_cells_free(table);
  return status;
}

oc_status oc_cells_parse(const char *json, size_t json_bytes, oc_cells **out, oc_err *err) {
  json_error_t why;
  *out = NULL;
  json_t *root = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &why);
  if (!root) return OC_REFUSE(err, CELLS, "line %d: %.140s", why.line, why.text);
  oc_status status = oc__cells_from_json(root, "table", out, err);
  json_decref(root);
  return status;
}

/* A merged table shares forms and stacks with its parts, which own them. */
void oc_cells_free(oc_cells *cells) {
  if (!cells) return;
  for (int i = 0; cells->root && i < cells->count; i++) {
    free((char *)(uintptr_t)cells->cells[i].form);
    free((void *)(uintptr_t)cells->cells[i].stacks);
  }
  free(cells->cells);
  json_decref(cells->root);
  free(cells);
}

static int has_id(const oc_cells *table, const char *id) {
  for (int i = 0; i < table->count; i++)
    if (strcmp(table->cells[i].id, id) == 0) return 1;
  return 0;
}

oc_status oc__cells_merge(const oc_cells *overlay, const oc_cells *base, oc_cells **out, oc_err *err) {
  size_t most = (size_t)base->count + (overlay ? (size_t)overlay->count : 0);
  oc_cells *table = calloc(1, sizeof *table);
  oc_cell *cells = calloc(most ? most : 1, sizeof *cells);
  if (!table || !cells) {
    free(table);
    free(cells);
    return OC_FAIL(err, NO_MEM, 0, "%zu cells", most);
  }
  table->family = base->family;
  table->cells = cells;
  for (int i = 0; overlay && i < overlay->count; i++) cells[table->count++] = overlay->cells[i];
  for (int i = 0; i < base->count; i++)
    if (!overlay || !has_id(overlay, base->cells[i].id)) cells[table->count++] = base->cells[i];
  *out = table;
  return OC_OK;
}

int oc_cells_count(const oc_cells *cells) { return cells->count; }

const oc_cell *oc_cells_at(const oc_cells *cells, int index) {
  return index >= 0 && index < cells->count ? &cells->cells[index] : NULL;
}
