/* SPDX-License-Identifier: Apache-2.0 */
/* MODEL_OPT_LEVERS_OFF: words `lever` or `lever:row`, joined by ','. */
#include "opt_core/activation.h"
#include "util/words.h"

#include <string.h>

typedef struct word {
  const char *text, *row; /* row: after the colon, or NULL */
  size_t bytes, lever_bytes, row_bytes;
} word;

/* The word at *at, white space trimmed; *at moves behind its comma, or to NULL after the last. */
static word next_word(const char **at) {
  size_t whole = strcspn(*at, ",");
  word out = {*at, NULL, 0, 0, 0};
  out.bytes = oc__word_trim(&out.text, whole);
  const char *colon = memchr(out.text, ':', out.bytes);
  out.lever_bytes = colon ? (size_t)(colon - out.text) : out.bytes;
  if (colon) {
    out.row = colon + 1;
    out.row_bytes = out.bytes - out.lever_bytes - 1;
  }
  *at = (*at)[whole] == ',' ? *at + whole + 1 : NULL;
  return out;
}

static int same(const char *text, size_t bytes, const char *known) {
  return strlen(known) == bytes && memcmp(text, known, bytes) == 0;
}

static oc_status refuse(const word *typed, const oc__nearest *nearest, oc_err *err) {
  char shown[OC__ESCAPED_MAX];
  oc__word_escape(typed->text, typed->bytes, shown);
  if (!nearest->word[0]) return OC_REFUSE(err, LEVER, "unknown:%s (no row can be switched off there)", shown);
  return OC_REFUSE(err, LEVER, "unknown:%s (nearest: %s%s%s)", shown, nearest->word[0], nearest->word[1] ? " " : "",
                   nearest->word[1] ? nearest->word[1] : "");
}

static oc_status refuse_lever(const oc_kit *kit, const word *typed, oc_err *err) {
  oc__nearest nearest = {0};
  for (int i = 0; i < oc_kit_lever_count(kit); i++)
    oc__nearest_offer(&nearest, typed->text, typed->lever_bytes, oc_kit_lever_name(kit, i));
  return refuse(typed, &nearest, err);
}

/* Members of one row stand together or apart in a family's list: each row is offered at its first member only. */
static int row_seen(const oc_member *members, int index) {
  for (int i = 0; i < index; i++)
    if (strcmp(members[i].row, members[index].row) == 0) return 1;
  return 0;
}

static oc_status check_row(const oc_kit *kit, int lever, const word *typed, oc_err *err) {
  oc_family family;
  int count = 0;
  const oc_member *members = NULL;
  if (oc_family_find(oc_kit_lever_family(kit, lever), &family, NULL) == OC_OK)
    members = oc_family_members(family, &count);
  oc__nearest nearest = {0};
  for (int i = 0; members && i < count; i++) {
    if (same(typed->row, typed->row_bytes, members[i].row)) return OC_OK;
    if (!row_seen(members, i)) oc__nearest_offer(&nearest, typed->row, typed->row_bytes, members[i].row);
  }
  return refuse(typed, &nearest, err);
}

static int find_lever(const oc_kit *kit, const word *typed) {
  for (int i = 0; i < oc_kit_lever_count(kit); i++)
    if (same(typed->text, typed->lever_bytes, oc_kit_lever_name(kit, i))) return i;
  return -1;
}

oc_status oc_levers_off_check(const oc_kit *kit, const char *text, oc_err *err) {
  if (!kit) return OC_FAIL(err, BAD_ARG, 0, "kit is NULL");
  if (!text || !text[strspn(text, " \t\r\n")]) return OC_OK;
  while (text) {
    word typed = next_word(&text);
    int lever = find_lever(kit, &typed);
    if (lever < 0) return refuse_lever(kit, &typed, err);
    if (typed.row) OC_TRY(check_row(kit, lever, &typed, err));
  }
  return OC_OK;
}

int oc_levers_off_has(const char *text, const char *lever, const char *row) {
  if (!lever) return 0;
  while (text) {
    word off = next_word(&text);
    if (!same(off.text, off.lever_bytes, lever)) continue;
    if (!off.row || (row && same(off.row, off.row_bytes, row)))
      return 1; /* a lever that is off is off with every row */
  }
  return 0;
}
