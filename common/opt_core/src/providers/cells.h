/* SPDX-License-Identifier: Apache-2.0 */
/* What the table (cells.c), the table in force (in_force.c), the class text (class.c) and the choice (select.c) share.
 */
#ifndef OC_CELLS_H
#define OC_CELLS_H

#include "opt_core/provider.h"

#include <jansson.h>

enum { OC__FORM_BYTES = sizeof(((oc_class *)0)->form), OC__FORM_WORDS = 16 };

struct oc_cells {
  oc_family family;
  int count;
  oc_cell *cells; /* overlay cells, then builtin ones: the first that covers a class is the one that counts */
  json_t *root;   /* owner of the cells' strings; NULL in a merged table, whose parts live as long as the process */
};

/* The words of a form in order, joined by '+'. 0 for an empty, foreign, repeated word or a text that does not fit. */
int oc__form_sort(const char *text, char out[OC__FORM_BYTES]);

/* True when a cell's form ("*", or sorted forms joined by '|') accepts a sorted form / has a form in common with b. */
int oc__form_accepts(const char *forms, const char *form);
int oc__forms_meet(const char *a, const char *b);

/* A parsed table; borrows nothing, keeps a reference to value. `where` goes before each message. */
oc_status oc__cells_from_json(json_t *value, const char *where, oc_cells **out, oc_err *err);

/* overlay (may be NULL) over base: an overlay cell replaces the base cell of the same id and goes before the others.
 * Both must outlive the result. */
oc_status oc__cells_merge(const oc_cells *overlay, const oc_cells *base, oc_cells **out, oc_err *err);

#endif
