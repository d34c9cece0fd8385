/* SPDX-License-Identifier: Apache-2.0 */
/* The kit's table: read once, checked whole, refused with the place of the first fault. */
#include "activation/kit.h"
#include "util/text.h"
#include "util/words.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define WORD_LOWER "abcdefghijklmnopqrstuvwxyz0123456789_"
#define WORD_UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

static oc_status fault(oc_err *err, const char *where, const char *why) {
  return OC_REFUSE(err, KIT_TABLE, "%s: %s", where, why);
}

static oc_status no_memory(oc_err *err) { return OC_FAIL(err, NO_MEM, 0, "no memory for a kit table"); }

/* Every key of object is one of the known ones (NULL-terminated). */
static oc_status check_keys(const json_t *object, const char *where, const char *const *known, oc_err *err) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)object, key, value) {
    int found = 0;
    for (int i = 0; known[i]; i++) found |= strcmp(key, known[i]) == 0;
    if (found) continue;
    char shown[OC__ESCAPED_MAX];
    return OC_REFUSE(err, KIT_TABLE, "%s: unknown key `%s`", where, oc__word_escape(key, strlen(key), shown));
  }
  return OC_OK;
}

/* Copies the string at key when it is made of `allowed` only and has 1 to OC__KIT_WORD_MAX bytes. */
static oc_status read_word(const json_t *object, const char *key, const char *where, const char *allowed, char **out,
                           oc_err *err) {
  const char *text = json_string_value(json_object_get(object, key));
  if (!text) return OC_REFUSE(err, KIT_TABLE, "%s%s: a string is missing", where, key);
  size_t bytes = strlen(text);
  char shown[OC__ESCAPED_MAX];
  if (bytes == 0 || bytes > OC__KIT_WORD_MAX || strspn(text, allowed) != bytes)
    return OC_REFUSE(err, KIT_TABLE, "%s%s: `%s` is not 1 to %d bytes of the accepted letters", where, key,
                     oc__word_escape(text, bytes, shown), OC__KIT_WORD_MAX);
  *out = oc__text_copy(text);
  return *out ? OC_OK : no_memory(err);
}

static int ends_with(const char *text, const char *end) {
  size_t bytes = strlen(text), end_bytes = strlen(end);
  return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

static oc_status check_variable(const char *variable, oc_err *err) {
  if (variable[0] < 'A' || variable[0] > 'Z' || !ends_with(variable, "_OPT") || strcmp(variable, "MODEL_OPT") == 0)
    return OC_REFUSE(err, KIT_TABLE, "variable: `%s` is not <WORD>_OPT", variable);
  return OC_OK;
}

/* Dotted ASCII identifiers. */
static int is_module(const char *text) {
  for (;;) {
    size_t bytes = strspn(text, WORD_LOWER WORD_UPPER);
    if (bytes == 0 || strchr(DIGITS, text[0])) return 0;
    if (text[bytes] == '\0') return 1;
    if (text[bytes] != '.') return 0;
    text += bytes + 1;
  }
}

static oc_status read_trigger(oc_kit *kit, const char *text, oc_err *err) {
  char shown[OC__ESCAPED_MAX];
  if (!text || strlen(text) > 255 || !is_module(text))
    return OC_REFUSE(err, KIT_TABLE, "triggers[%d]: `%s` is no dotted module name", kit->trigger_count,
                     oc__word_escape(text ? text : "", text ? strlen(text) : 0, shown));
  for (int i = 0; i < kit->trigger_count; i++)
    if (strcmp(kit->trigger[i], text) == 0)
      return OC_REFUSE(err, KIT_TABLE, "triggers[%d]: `%s` is there twice", kit->trigger_count,
                       oc__word_escape(text, strlen(text), shown));
  kit->trigger[kit->trigger_count] = oc__text_copy(text);
  return kit->trigger[kit->trigger_count++] ? OC_OK : no_memory(err);
}

static oc_status read_triggers(oc_kit *kit, const json_t *list, oc_err *err) {
  size_t count = json_array_size(list); /* 0 when list is no array */
  if (count == 0 || count > OC__KIT_TRIGGERS_MAX)
    return OC_REFUSE(err, KIT_TABLE, "triggers: %zu module names, the limits are 1 and %d", count,
                     OC__KIT_TRIGGERS_MAX);
  kit->trigger = calloc(count, sizeof *kit->trigger);
  if (!kit->trigger) return no_memory(err);
  for (size_t i = 0; i < count; i++) OC_TRY(read_trigger(kit, json_string_value(json_array_get(list, i)), err));
  return OC_OK;
}

static oc_status read_modes(oc__lever *lever, const json_t *modes, const char *where, oc_err *err) {
  if (json_object_size(modes) == 0)
    return OC_REFUSE(err, KIT_TABLE, "%smodes: an object with a mode is missing", where);
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)modes, key, value) {
    int mode = OC_MODE_OFF + 1;
    while (mode < OC_MODE_COUNT && strcmp(key, oc_mode_word((oc_mode)mode)) != 0) mode++;
    const char *policy = json_string_value(value);
    char shown[OC__ESCAPED_MAX];
    if (mode == OC_MODE_COUNT)
      return OC_REFUSE(err, KIT_TABLE, "%smodes: `%s` is not exact, fast or big", where,
                       oc__word_escape(key, strlen(key), shown));
    if (!policy || (strcmp(policy, "record") != 0 && strcmp(policy, "require") != 0))
      return OC_REFUSE(err, KIT_TABLE, "%smodes.%s: `%s` is not record or require", where, oc_mode_word((oc_mode)mode),
                       oc__word_escape(policy ? policy : "", policy ? strlen(policy) : 0, shown));
    lever->policy[mode] = strcmp(policy, "require") == 0 ? OC_POLICY_REQUIRE : OC_POLICY_RECORD;
  }
  return OC_OK;
}

static oc_status read_family(oc__lever *lever, const json_t *object, const char *where, oc_err *err) {
  if (!json_object_get(object, "family")) {
    lever->family = oc__text_copy("");
    return lever->family ? OC_OK : no_memory(err);
  }
  OC_TRY(read_word(object, "family", where, WORD_LOWER, &lever->family, err));
  oc_family family;
  if (oc_family_find(lever->family, &family, NULL) != OC_OK)
    return OC_REFUSE(err, KIT_TABLE, "%sfamily: `%s` is no family of this core", where, lever->family);
  return OC_OK;
}

static oc_status read_lever(oc_kit *kit, const json_t *object, oc_err *err) {
  static const char *const keys[] = {"name", "family", "modes", "instances", "help", NULL};
  oc__lever *lever = &kit->lever[kit->lever_count];
  char where[32], place[24];
  snprintf(place, sizeof place, "levers[%d]", kit->lever_count);
  snprintf(where, sizeof where, "%s.", place);
  kit->lever_count++; /* before anything is allocated in it, so that oc_kit_free reaches it */
  if (!json_is_object(object)) return fault(err, place, "not an object");
  OC_TRY(check_keys(object, place, keys, err));
  OC_TRY(read_word(object, "name", where, WORD_LOWER, &lever->name, err));
  for (int i = 0; i < kit->lever_count - 1; i++)
    if (strcmp(kit->lever[i].name, lever->name) == 0)
      return OC_REFUSE(err, KIT_TABLE, "%sname: `%s` is there twice", where, lever->name);
  OC_TRY(read_family(lever, object, where, err));
  OC_TRY(read_modes(lever, json_object_get(object, "modes"), where, err));
  const json_t *instances = json_object_get(object, "instances"), *help = json_object_get(object, "help");
  if (instances && (!json_is_integer(instances) || json_integer_value(instances) < 0))
    return OC_REFUSE(err, KIT_TABLE, "%sinstances: not a whole number from 0 on", where);
  if (help && !json_is_string(help)) return OC_REFUSE(err, KIT_TABLE, "%shelp: not a string", where);
  lever->instances = json_integer_value(instances);
  return OC_OK;
}

static oc_status read_levers(oc_kit *kit, const json_t *list, oc_err *err) {
  size_t count = json_array_size(list);
  if (count == 0 || count > OC__KIT_LEVERS_MAX)
    return OC_REFUSE(err, KIT_TABLE, "levers: %zu levers, the limits are 1 and %d", count, OC__KIT_LEVERS_MAX);
  kit->lever = calloc(count, sizeof *kit->lever);
  if (!kit->lever) return no_memory(err);
  for (size_t i = 0; i < count; i++) OC_TRY(read_lever(kit, json_array_get(list, i), err));
  return OC_OK;
}

static oc_status read_kit(oc_kit *kit, const json_t *root, oc_err *err) {
  static const char *const keys[] = {"schema", "engine", "variable", "version", "triggers", "levers", NULL};
  if (!json_is_object(root)) return fault(err, "table", "not an object");
  OC_TRY(check_keys(root, "table", keys, err));
  const json_t *schema = json_object_get(root, "schema");
  if (!json_is_integer(schema) || json_integer_value(schema) != 1)
    return OC_REFUSE(err, KIT_TABLE, "schema: %" JSON_INTEGER_FORMAT ", this core reads 1", json_integer_value(schema));
  OC_TRY(read_word(root, "engine", "", WORD_LOWER, &kit->engine, err));
  OC_TRY(read_word(root, "variable", "", WORD_UPPER DIGITS "_", &kit->variable, err));
  OC_TRY(check_variable(kit->variable, err));
  OC_TRY(read_word(root, "version", "", WORD_LOWER WORD_UPPER ".+-", &kit->version, err));
  if (!strchr(DIGITS, kit->version[0])) return fault(err, "version", "does not start with a digit");
  OC_TRY(read_triggers(kit, json_object_get(root, "triggers"), err));
  return read_levers(kit, json_object_get(root, "levers"), err);
}

oc_status oc_kit_parse(const char *json, size_t json_bytes, oc_kit **out, oc_err *err) {
  if (!json || !out) return OC_FAIL(err, BAD_ARG, 0, "json and out must be given");
  if (json_bytes > OC__KIT_JSON_MAX)
    return OC_REFUSE(err, KIT_TABLE, "table: %zu bytes, the limit is %d", json_bytes, OC__KIT_JSON_MAX);
  json_error_t where;
  json_t *root = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &where);
  char shown[OC__ESCAPED_MAX * 2];
  if (!root) {
    snprintf(shown, sizeof shown, "%.80s", where.text);
    for (char *c = shown; *c; c++) /* the message may quote raw bytes of the text */
      if (*c < 0x20 || *c > 0x7e) *c = '?';
    return OC_REFUSE(err, KIT_TABLE, "line %d column %d: %s", where.line, where.column, shown);
  }
  oc_kit *kit = calloc(1, sizeof *kit);
  oc_status status = kit ? read_kit(kit, root, err) : no_memory(err);
  json_decref(root);
  if (status == OC_OK)
    *out = kit;
  else
    oc_kit_free(kit);
  return status;
}

void oc_kit_free(oc_kit *kit) {
  if (!kit) return;
  for (int i = 0; i < kit->trigger_count; i++) free(kit->trigger[i]);
  for (int i = 0; i < kit->lever_count; i++) {
    free(kit->lever[i].name);
    free(kit->lever[i].family);
  }
  free(kit->trigger);
  free(kit->lever);
  free(kit->engine);
  free(kit->variable);
  free(kit->version);
  free(kit);
}

const char *oc_kit_engine(const oc_kit *kit) { return kit->engine; }
const char *oc_kit_variable(const oc_kit *kit) { return kit->variable; }
const char *oc_kit_version(const oc_kit *kit) { return kit->version; }
int oc_kit_trigger_count(const oc_kit *kit) { return kit->trigger_count; }
int oc_kit_lever_count(const oc_kit *kit) { return kit->lever_count; }

const char *oc_kit_trigger(const oc_kit *kit, int index) {
  return index >= 0 && index < kit->trigger_count ? kit->trigger[index] : "";
}

static const oc__lever *lever_at(const oc_kit *kit, int lever) {
  return lever >= 0 && lever < kit->lever_count ? &kit->lever[lever] : NULL;
}

const char *oc_kit_lever_name(const oc_kit *kit, int lever) {
  const oc__lever *at = lever_at(kit, lever);
  return at ? at->name : "";
}

const char *oc_kit_lever_family(const oc_kit *kit, int lever) {
  const oc__lever *at = lever_at(kit, lever);
  return at ? at->family : "";
}

oc_policy oc_kit_lever_policy(const oc_kit *kit, int lever, oc_mode mode) {
  const oc__lever *at = lever_at(kit, lever);
  int64_t index = (int64_t)mode;
  return at && index >= 0 && index < OC_MODE_COUNT ? at->policy[index] : OC_POLICY_ABSENT;
}

int oc_kit_lever_find(const oc_kit *kit, const char *name) {
  for (int i = 0; name && i < kit->lever_count; i++)
    if (strcmp(kit->lever[i].name, name) == 0) return i;
  return -1;
}

int64_t oc__kit_lever_instances(const oc_kit *kit, int lever) {
  const oc__lever *at = lever_at(kit, lever);
  return at ? at->instances : 0;
}
