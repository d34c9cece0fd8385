/* SPDX-License-Identifier: Apache-2.0 */
/* The tables that this process chooses from: those compiled in, and those with the overlay on top. Both are built once
 * and never freed; a failure is kept and given to every caller. */
#include "providers/cells.h"
#include "providers/cells_embedded.h"
#include "providers/registry.h"
#include "util/file.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define OVERLAY_MAX_BYTES ((size_t)16 << 20)

typedef struct table_set {
  const oc_cells *table[OC_FAMILY_COUNT];
  oc_err failure[OC_FAMILY_COUNT]; /* OC_OK where table is there */
} table_set;

typedef struct overlay {
  oc_cells *table[OC_FAMILY_COUNT]; /* NULL where the file has none for the family */
} overlay;

static table_set builtin, in_force;
static overlay over;
static char overlay_digest[2 * crypto_hash_sha256_BYTES + 1];
static pthread_once_t builtin_once = PTHREAD_ONCE_INIT, in_force_once = PTHREAD_ONCE_INIT;

static oc_status give(const table_set *set, oc_family family, const oc_cells **out, oc_err *err) {
  if ((int)family < 0 || family >= OC_FAMILY_COUNT)
    return OC_FAIL(err, BAD_ARG, 0, "family %d is unknown", (int)family);
  const oc_err *f = &set->failure[family];
  if (f->status != OC_OK) return oc_err_set(err, f->status, f->reason, f->native, f->file, f->line, "%s", f->detail);
  *out = set->table[family];
  return OC_OK;
}

/* ---- compiled in ------------------------------------------------------------------------------------------------ */

/* The reference is what members are compared with; a table that is shipped never serves it. */
static oc_status check_shipped(const oc_cells *table, oc_err *err) {
  for (int i = 0; i < table->count; i++)
    if (strcmp(table->cells[i].row, "reference") == 0)
      return OC_REFUSE(err, CELLS, "%s: cell %d (%.40s) serves the reference", oc_family_word(table->family), i,
                       table->cells[i].id);
  return OC_OK;
}

static const oc__cells_embedded *find_embedded(const char *family) {
  for (const oc__cells_embedded *e = oc__cells_embedded_tables; e->family; e++)
    if (strcmp(e->family, family) == 0) return e;
  return NULL;
}

static oc_status load_builtin_family(oc_family family, oc_cells **out, oc_err *err) {
  const oc__cells_embedded *embedded = find_embedded(oc_family_word(family));
  if (!embedded) { /* a family without measured cells: every class is uncovered */
    const oc_cells nothing = {.family = family};
    return oc__cells_merge(NULL, &nothing, out, err);
  }
  OC_TRY(oc_cells_parse((const char *)embedded->json, embedded->json_bytes, out, err));
  if ((*out)->family != family)
    return OC_REFUSE(err, CELLS, "the table of %s says family %s", embedded->family, oc_family_word((*out)->family));
  return check_shipped(*out, err);
}

static void load_builtin(void) {
  for (int i = 0; i < OC_FAMILY_COUNT; i++) {
    oc_cells *table = NULL;
    load_builtin_family((oc_family)i, &table, &builtin.failure[i]);
    builtin.table[i] = table;
  }
}

oc_status oc_cells_builtin(oc_family family, const oc_cells **out, oc_err *err) {
  pthread_once(&builtin_once, load_builtin);
  return give(&builtin, family, out, err);
}

/* ---- overlay ---------------------------------------------------------------------------------------------------- */

static oc_status add_table(json_t *value, oc_err *err) {
  oc_cells *table = NULL;
  OC_TRY(oc__cells_from_json(value, "OPT_CORE_CELLS", &table, err));
  if (over.table[table->family]) {
    const char *family = oc_family_word(table->family);
    oc_cells_free(table);
    return OC_REFUSE(err, CELLS, "OPT_CORE_CELLS: two tables of family %s", family);
  }
  over.table[table->family] = table;
  return OC_OK;
}

static oc_status add_tables(json_t *root, oc_err *err) {
  json_t *tables = json_object_get(root, "tables");
  if (!tables) return add_table(root, err);
  if (!json_is_array(tables) || json_object_size(root) != 1)
    return OC_REFUSE(err, CELLS, "OPT_CORE_CELLS: \"tables\" is a list and stands alone");
  for (size_t i = 0; i < json_array_size(tables); i++) OC_TRY(add_table(json_array_get(tables, i), err));
  return OC_OK;
}

static oc_status parse_overlay(const char *text, size_t text_bytes, oc_err *err) {
  unsigned char digest[crypto_hash_sha256_BYTES];
  json_error_t why;
  crypto_hash_sha256(digest, (const unsigned char *)text, text_bytes);
  sodium_bin2hex(overlay_digest, sizeof overlay_digest, digest, sizeof digest);
  json_t *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &why);
  if (!root) return OC_REFUSE(err, CELLS, "OPT_CORE_CELLS: line %d: %.120s", why.line, why.text);
  oc_status status = add_tables(root, err);
  json_decref(root);
  return status;
}

static oc_status read_overlay(oc_err *err) {
  const char *path = getenv("OPT_CORE_CELLS");
  char *text;
  size_t text_bytes;
  oc_err failure = {0};
  if (!path || !*path) return OC_OK;
  if (oc__file_read(path, OVERLAY_MAX_BYTES, &text, &text_bytes, &failure) != OC_OK)
    return OC_REFUSE(err, CELLS, "OPT_CORE_CELLS: %s", failure.detail);
  oc_status status = parse_overlay(text, text_bytes, err);
  free(text);
  return status;
}

/* A broken overlay breaks every family: a run must not go on with half of what its user asked for. */
static void load_in_force(void) {
  oc_err broken = {0};
  read_overlay(&broken);
  for (int i = 0; i < OC_FAMILY_COUNT; i++) {
    const oc_cells *base = NULL;
    oc_cells *merged = NULL;
    in_force.failure[i] = broken;
    if (broken.status != OC_OK || oc_cells_builtin((oc_family)i, &base, &in_force.failure[i]) != OC_OK) continue;
    oc__cells_merge(over.table[i], base, &merged, &in_force.failure[i]);
    in_force.table[i] = merged;
  }
}

oc_status oc_cells_in_force(oc_family family, const oc_cells **out, oc_err *err) {
  pthread_once(&in_force_once, load_in_force);
  return give(&in_force, family, out, err);
}

const char *oc_cells_overlay_digest(void) {
  pthread_once(&in_force_once, load_in_force);
  return overlay_digest;
}
