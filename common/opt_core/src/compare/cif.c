/* SPDX-License-Identifier: Apache-2.0 */
/* mmCIF: both files are read as a stream of data blocks, single values and loop values, and walked in step. Each tag is
 * a field; a value that is a bare number on both sides is a number, except in columns of identifiers. Files whose
 * blocks, tags or row counts part are different in field `structure`, and are read no further. */
#define _POSIX_C_SOURCE 200809L
#include "compare/compare.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

typedef enum token_kind { TOKEN_END, TOKEN_VALUE, TOKEN_TAG, TOKEN_DATA, TOKEN_LOOP, TOKEN_BROKEN } token_kind;

typedef struct token {
  token_kind kind;
  oc__slice text;
  int is_quoted;
} token;

typedef struct scanner {
  const char *from, *at, *end;
  int64_t line;
} scanner;

static int is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static int at_line_start(const scanner *s) { return s->at == s->from || s->at[-1] == '\n'; }

static void step(scanner *s) {
  s->line += *s->at == '\n';
  s->at++;
}

static void skip(scanner *s) {
  while (s->at < s->end) {
    if (*s->at == '#') {
      while (s->at < s->end && *s->at != '\n') s->at++;
    } else if (is_space(*s->at)) {
      step(s);
    } else {
      return;
    }
  }
}

/* A text block runs from ';' in the first column to the next line that begins with ';'. */
static token take_block(scanner *s) {
  const char *from = ++s->at;
  for (; s->at < s->end; step(s)) {
    if (*s->at != ';' || s->at == from || s->at[-1] != '\n') continue;
    token t = {TOKEN_VALUE, {from, (size_t)(s->at - 1 - from)}, 1};
    s->at++;
    return t;
  }
  return (token){.kind = TOKEN_BROKEN, .text = {from, 0}};
}

/* A quote closes only before white space or the end: 'a dog's tail' is one value. */
static token take_quoted(scanner *s) {
  char quote = *s->at++;
  const char *from = s->at;
  for (; s->at < s->end && *s->at != '\n'; s->at++) {
    if (*s->at != quote || (s->at + 1 < s->end && !is_space(s->at[1]))) continue;
    token t = {TOKEN_VALUE, {from, (size_t)(s->at - from)}, 1};
    s->at++;
    return t;
  }
  return (token){.kind = TOKEN_BROKEN, .text = {from, 0}};
}

static int begins(oc__slice text, const char *word) {
  size_t bytes = strlen(word);
  return text.bytes >= bytes && strncasecmp(text.data, word, bytes) == 0;
}

static token take_bare(scanner *s) {
  const char *from = s->at;
  while (s->at < s->end && !is_space(*s->at)) s->at++;
  oc__slice text = {from, (size_t)(s->at - from)};
  token_kind kind = TOKEN_VALUE;
  if (text.data[0] == '_')
    kind = TOKEN_TAG;
  else if (begins(text, "data_") || begins(text, "save_") || begins(text, "global_"))
    kind = TOKEN_DATA;
  else if (text.bytes == 5 && begins(text, "loop_"))
    kind = TOKEN_LOOP;
  return (token){kind, text, 0};
}

static token take(scanner *s) {
  skip(s);
  if (s->at == s->end) return (token){.kind = TOKEN_END, .text = {s->end, 0}};
  if (*s->at == ';' && at_line_start(s)) return take_block(s);
  if (*s->at == '\'' || *s->at == '"') return take_quoted(s);
  return take_bare(s);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

typedef enum event_kind { EVENT_END, EVENT_DATA, EVENT_SINGLE, EVENT_ROW, EVENT_BROKEN } event_kind;

typedef struct event {
  event_kind kind;
  oc__slice tag, value;
  int is_quoted;
  int64_t row;
  size_t column;
} event;

typedef struct reader {
  scanner scan;
  token ahead; /* one token of look-ahead */
  oc__slice *tags;
  size_t tag_count, tag_capacity, column;
  int64_t row;
  int in_loop, no_memory;
} reader;

static void advance(reader *r) { r->ahead = take(&r->scan); }

static void reader_open(reader *r, oc__slice text) {
  *r = (reader){.scan = {text.data, text.data, text.data + text.bytes, 1}};
  advance(r);
}

static int add_tag(reader *r, oc__slice tag) {
  if (r->tag_count == r->tag_capacity) {
    size_t capacity = r->tag_capacity ? r->tag_capacity * 2 : 32;
    oc__slice *grown = realloc(r->tags, capacity * sizeof *grown);
    if (!grown) return 0;
    r->tags = grown;
    r->tag_capacity = capacity;
  }
  r->tags[r->tag_count++] = tag;
  return 1;
}

static event broken(void) { return (event){.kind = EVENT_BROKEN, .tag = {"", 0}, .value = {"", 0}}; }

static int read_loop_head(reader *r) {
  r->tag_count = r->column = 0;
  r->row = 0;
  for (advance(r); r->ahead.kind == TOKEN_TAG; advance(r))
    if (!add_tag(r, r->ahead.text)) {
      r->no_memory = 1;
      return 0;
    }
  r->in_loop = 1;
  return r->tag_count > 0 && r->ahead.kind == TOKEN_VALUE; /* a loop has a column and a row */
}

static event loop_value(reader *r) {
  event e = {EVENT_ROW, r->tags[r->column], r->ahead.text, r->ahead.is_quoted, r->row, r->column};
  if (++r->column == r->tag_count) {
    r->column = 0;
    r->row++;
  }
  advance(r);
  return e;
}

static event single_value(reader *r) {
  event e = {.kind = EVENT_SINGLE, .tag = r->ahead.text};
  advance(r);
  if (r->ahead.kind != TOKEN_VALUE) return broken();
  e.value = r->ahead.text;
  e.is_quoted = r->ahead.is_quoted;
  advance(r);
  return e;
}

static event next_event(reader *r) {
  if (r->in_loop && r->ahead.kind == TOKEN_VALUE) return loop_value(r);
  if (r->in_loop && r->column != 0) return broken(); /* the last row is cut */
  r->in_loop = 0;
  event e = {.kind = EVENT_DATA, .tag = {"data", 4}, .value = r->ahead.text, .is_quoted = 1};
  switch (r->ahead.kind) {
  case TOKEN_END:
    e.kind = EVENT_END;
    return e;
  case TOKEN_DATA:
    advance(r);
    return e;
  case TOKEN_TAG:
    return single_value(r);
  case TOKEN_LOOP:
    return read_loop_head(r) ? loop_value(r) : broken();
  default:
    return broken();
  }
}

/* Reads the file through once: a file that breaks off is compared as bytes, before anything was reported. */
static oc_status check(oc__slice text, oc_err *err) {
  reader r;
  event e;
  int64_t count = 0;
  reader_open(&r, text);
  do {
    e = next_event(&r);
    count++;
  } while (e.kind != EVENT_END && e.kind != EVENT_BROKEN);
  free(r.tags);
  if (r.no_memory) return OC_FAIL(err, NO_MEM, 0, "cif: %zu columns", r.tag_count);
  if (e.kind == EVENT_BROKEN) return OC_FAIL(err, BAD_ARG, 0, "cif: line %lld", (long long)r.scan.line);
  return count > 1 ? OC_OK : OC_FAIL(err, BAD_ARG, 0, "cif: no data");
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

typedef struct walk {
  const oc__compare *compare;
  reader a, b;
  oc__fields fields;
  size_t *columns; /* field of each column of the loop in hand */
  size_t column_capacity;
} walk;

/* Identifiers count or name; a tolerance means nothing for them. */
static int is_identifier(oc__slice tag) {
  static const char *const endings[] = {"id", "_seq", "num", "ordinal"};
  for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
    size_t bytes = strlen(endings[i]);
    if (tag.bytes > bytes && strncasecmp(tag.data + tag.bytes - bytes, endings[i], bytes) == 0) return 1;
  }
  return 0;
}

static oc_status find_field(walk *w, oc__slice tag, size_t *index, oc_err *err) {
  char *name = strndup(tag.data, tag.bytes);
  if (!name) return OC_FAIL(err, NO_MEM, 0, "cif: tag");
  oc_status status = oc__fields_find(w->compare, &w->fields, name, index, err);
  free(name);
  return status;
}

/* Fields of all columns, found once a loop. */
static oc_status find_columns(walk *w, oc_err *err) {
  if (w->a.tag_count > w->column_capacity) {
    size_t *grown = realloc(w->columns, w->a.tag_count * sizeof *grown);
    if (!grown) return OC_FAIL(err, NO_MEM, 0, "cif: %zu columns", w->a.tag_count);
    w->columns = grown;
    w->column_capacity = w->a.tag_count;
  }
  for (size_t i = 0; i < w->a.tag_count; i++) OC_TRY(find_field(w, w->a.tags[i], &w->columns[i], err));
  return OC_OK;
}

static oc_status compare_values(walk *w, const event *a, const event *b, oc_err *err) {
  size_t index;
  if (a->kind == EVENT_ROW) {
    if (a->row == 0 && a->column == 0) OC_TRY(find_columns(w, err));
    index = w->columns[a->column];
  } else {
    OC_TRY(find_field(w, a->tag, &index, err));
  }
  oc__field *field = &w->fields.items[index];
  int numbers =
      !a->is_quoted && !b->is_quoted && !is_identifier(a->tag) && oc__is_number(a->value) && oc__is_number(b->value);
  int reported = numbers ? oc__field_literal(field, a->value, b->value)
                         : oc__field_text(field, oc__slice_equal(a->value, b->value));
  if (!reported) return OC_OK;
  if (a->kind != EVENT_ROW) return OC_OK;
  return oc__field_locate(field, err, "%s[%lld]", field->name, (long long)a->row);
}

static int in_step(const event *a, const event *b) {
  return a->kind == b->kind && a->row == b->row && a->column == b->column && oc__slice_equal(a->tag, b->tag);
}

static oc_status parted(walk *w, const event *a, oc_err *err) {
  size_t index;
  oc__slice name = {"structure", 9};
  OC_TRY(find_field(w, name, &index, err));
  oc__field *field = &w->fields.items[index];
  if (!oc__field_text(field, 0)) return OC_OK;
  if (a->kind == EVENT_END) return oc__field_locate(field, err, "structure: goes on behind the end");
  return oc__field_locate(field, err, "structure parts at %.*s row %lld", (int)(a->tag.bytes > 80 ? 80 : a->tag.bytes),
                          a->tag.data, (long long)a->row);
}

static oc_status compare_events(walk *w, oc_err *err) {
  for (;;) {
    event a = next_event(&w->a), b = next_event(&w->b);
    if (!in_step(&a, &b)) return parted(w, &a, err);
    if (a.kind == EVENT_END) return OC_OK;
    OC_TRY(compare_values(w, &a, &b, err));
  }
}

oc_status oc__cif_compare(const oc__compare *compare, oc__slice a, oc__slice b, oc_err *err) {
  OC_TRY(check(a, err));
  OC_TRY(check(b, err));
  walk w = {.compare = compare};
  OC_TRY(oc__fields_open(&w.fields, err));
  reader_open(&w.a, a);
  reader_open(&w.b, b);
  oc_status status = compare_events(&w, err);
  oc__fields_close(compare, &w.fields, status == OC_OK);
  free(w.a.tags);
  free(w.b.tags);
  free(w.columns);
  return status;
}
