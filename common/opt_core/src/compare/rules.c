/* SPDX-License-Identifier: Apache-2.0 */
/* Which tolerance class holds for a field of a file. */
#define _POSIX_C_SOURCE 200809L
#include "compare/compare.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

static oc_status check_bound(const char *file, const char *field, const char *key, const json_t *value, oc_err *err) {
  if (strcmp(key, "abs") != 0 && strcmp(key, "rel") != 0)
    return OC_FAIL(err, BAD_ARG, 0, "rules: \"%.40s\" \"%.40s\": unknown key \"%.40s\" (abs, rel)", file, field, key);
  if (!json_is_number(value) || !(json_number_value(value) >= 0) || isinf(json_number_value(value)))
    return OC_FAIL(err, BAD_ARG, 0, "rules: \"%.40s\" \"%.40s\": %.40s is not a number >= 0", file, field, key);
  return OC_OK;
}

static oc_status check_rule(const char *file, const char *field, json_t *rule, oc_err *err) {
  if (json_is_string(rule)) {
    const char *word = json_string_value(rule);
    if (strcmp(word, "exact") == 0 || strcmp(word, "ignore") == 0) return OC_OK;
    return OC_FAIL(err, BAD_ARG, 0, "rules: \"%.40s\" \"%.40s\": word \"%.40s\" (exact, ignore)", file, field, word);
  }
  if (!json_is_object(rule) || json_object_size(rule) == 0)
    return OC_FAIL(err, BAD_ARG, 0, "rules: \"%.40s\" \"%.40s\": not {\"abs\", \"rel\"}, \"exact\" or \"ignore\"", file,
                   field);
  const char *key;
  json_t *value;
  json_object_foreach(rule, key, value) OC_TRY(check_bound(file, field, key, value, err));
  return OC_OK;
}

static oc_status check_rules(json_t *rules, oc_err *err) {
  if (!json_is_object(rules)) return OC_FAIL(err, BAD_ARG, 0, "rules: not an object of file globs");
  const char *file, *field;
  json_t *fields, *rule;
  json_object_foreach(rules, file, fields) {
    if (!json_is_object(fields))
      return OC_FAIL(err, BAD_ARG, 0, "rules: \"%.40s\": not an object of field globs", file);
    json_object_foreach(fields, field, rule) OC_TRY(check_rule(file, field, rule, err));
  }
  return OC_OK;
}

oc_status oc__rules_parse(const char *text, json_t **rules, oc_err *err) {
  *rules = NULL;
  if (!text) return OC_OK;
  json_error_t why;
  json_t *parsed = json_loads(text, JSON_REJECT_DUPLICATES, &why);
  if (!parsed) return OC_FAIL(err, BAD_ARG, 0, "rules: line %d column %d: %.100s", why.line, why.column, why.text);
  oc_status status = check_rules(parsed, err);
  if (status != OC_OK)
    json_decref(parsed);
  else
    *rules = parsed;
  return status;
}

static double bound(const json_t *rule, const char *key) { return json_number_value(json_object_get(rule, key)); }

static oc__rule of_tolerance(oc_tolerance tolerance) {
  int exact = !(tolerance.absolute > 0) && !(tolerance.relative > 0);
  return (oc__rule){exact ? OC__CLASS_EXACT : OC__CLASS_TOLERANCE, tolerance};
}

static oc__rule of_json(const json_t *rule) {
  const char *word = json_string_value(rule);
  if (!word) return of_tolerance((oc_tolerance){bound(rule, "abs"), bound(rule, "rel")});
  return (oc__rule){strcmp(word, "ignore") == 0 ? OC__CLASS_IGNORE : OC__CLASS_EXACT, {0, 0}};
}

/* Iterates without json_object_foreach, which takes a table that it may change. Insertion order, as written. */
static const json_t *first_match(const json_t *table, const char *text, const char *field) {
  json_t *object = (json_t *)(uintptr_t)table;
  for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
    if (fnmatch(json_object_iter_key(at), text, 0) != 0) continue;
    const json_t *value = json_object_iter_value(at);
    if (!field) return value;
    const json_t *inner = first_match(value, field, NULL);
    if (inner) return inner;
  }
  return NULL;
}

oc__rule oc__rules_find(const json_t *rules, oc_tolerance otherwise, const char *file, const char *field) {
  const json_t *rule = rules ? first_match(rules, file, field) : NULL;
  return rule ? of_json(rule) : of_tolerance(otherwise);
}
