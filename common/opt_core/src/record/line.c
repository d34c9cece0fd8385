/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of a line, written and read; and the one way out for lines. */
#define _GNU_SOURCE
#include "record/line.h"
#include "util/percent.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char prefix[] = "[opt_core] ";
enum { PREFIX_BYTES = sizeof prefix - 1 };

static const char *const kind_words[OC_LINE_KIND_COUNT] = {"ACTIVE", "LEVER", "NOT ACTIVE", "ACCOUNTING",
                                                           "CELLS",  "EXIT",  "NOTE"};

static int is_statement(oc_line_kind kind) { return kind == OC_LINE_NOT_ACTIVE || kind == OC_LINE_ACCOUNTING; }

const char *oc__line_kind_word(oc_line_kind kind) {
  int64_t index = (int64_t)kind;
  return index >= 0 && index < OC_LINE_KIND_COUNT ? kind_words[index] : "unknown";
}

/* ---- printing ---- */

/* Text under construction: at most OC_LINE_MAX bytes with the newline; `full` once something did not fit. */
typedef struct draft {
  char *out;
  size_t bytes;
  int full;
} draft;

static void put_raw(draft *d, const char *text, size_t bytes) {
  if (d->bytes + bytes > OC_LINE_MAX) d->full = 1;
  if (d->full) return;
  memcpy(d->out + d->bytes, text, bytes);
  d->bytes += bytes;
}

static void put_coded(draft *d, const char *text, unsigned flags) {
  if (d->full) return;
  size_t room = OC_LINE_MAX - d->bytes;
  size_t bytes = oc__percent_encode(text, strlen(text), flags, d->out + d->bytes, room);
  if (bytes > room)
    d->full = 1;
  else
    d->bytes += bytes;
}

static oc_status check_fields(const oc_line *line, oc_err *err) {
  if (oc__line_kind_word(line->kind)[0] == 'u')
    return OC_FAIL(err, BAD_ARG, 0, "line kind %d is unknown", (int)line->kind);
  if (line->field_count < 0 || line->field_count > OC_LINE_FIELDS)
    return OC_FAIL(err, BAD_ARG, 0, "%d fields, the limit is %d", line->field_count, OC_LINE_FIELDS);
  int pairs = 0;
  for (int i = 0; i < line->field_count; i++) {
    const oc_line_field *field = &line->field[i];
    if (!field->key || !field->key[0]) return OC_FAIL(err, BAD_ARG, 0, "field %d has no key", i);
    if (field->value) pairs++;
    if (!field->value && pairs) return OC_FAIL(err, BAD_ARG, 0, "field %d is a word after a pair", i);
  }
  if (is_statement(line->kind) && (line->field_count != 2 || pairs))
    return OC_FAIL(err, BAD_ARG, 0, "%s needs a name and a text", oc__line_kind_word(line->kind));
  return OC_OK;
}

static void put_fields(draft *d, const oc_line *line) {
  for (int i = 0; i < line->field_count; i++) {
    put_raw(d, " ", 1);
    put_coded(d, line->field[i].key, OC__PERCENT_EQUALS_CODED);
    if (!line->field[i].value) continue;
    put_raw(d, "=", 1);
    put_coded(d, line->field[i].value, 0);
  }
}

static void put_statement(draft *d, const oc_line *line) {
  if (line->kind == OC_LINE_NOT_ACTIVE) put_raw(d, ":", 1);
  put_raw(d, " ", 1);
  put_coded(d, line->field[0].key, OC__PERCENT_EQUALS_CODED);
  put_raw(d, ": ", 2);
  put_coded(d, line->field[1].key, OC__PERCENT_SPACE_RAW);
}

oc_status oc_line_format(const oc_line *line, char *out, size_t out_bytes, size_t *written, oc_err *err) {
  if (!line || !out) return OC_FAIL(err, BAD_ARG, 0, "line and out must be given");
  OC_TRY(check_fields(line, err));
  char text[OC_LINE_MAX];
  draft d = {text, 0, 0};
  put_raw(&d, prefix, PREFIX_BYTES);
  put_raw(&d, kind_words[line->kind], strlen(kind_words[line->kind]));
  if (is_statement(line->kind))
    put_statement(&d, line);
  else
    put_fields(&d, line);
  put_raw(&d, "\n", 1);
  if (d.full) return OC_FAIL(err, BAD_ARG, 0, "the line is longer than %d bytes", OC_LINE_MAX);
  if (d.bytes + 1 > out_bytes)
    return OC_FAIL(err, BAD_ARG, 0, "%zu bytes of room, the line needs %zu", out_bytes, d.bytes + 1);
  memcpy(out, text, d.bytes);
  out[d.bytes] = '\0';
  if (written) *written = d.bytes;
  return OC_OK;
}

/* ---- reading ---- */

/* Where the reader is. `used` counts store bytes: every field takes at most its coded bytes plus one terminator, and
 * every field is followed or preceded by a byte of its own in the text, so OC_LINE_MAX bytes of store are enough. */
typedef struct reader {
  const char *text;
  size_t at, end, used;
  oc_line *line;
} reader;

static oc_status bad(const reader *r, const char *why, oc_err *err) {
  return OC_FAIL(err, BAD_ARG, 0, "column %zu: %s", r->at + 1, why);
}

static int skip(reader *r, const char *word) {
  size_t bytes = strlen(word);
  if (r->end - r->at < bytes || memcmp(r->text + r->at, word, bytes) != 0) return 0;
  r->at += bytes;
  return 1;
}

/* Decodes text[at, to) into the store and moves behind it. */
static oc_status take(reader *r, size_t to, unsigned flags, const char **out, oc_err *err) {
  char *store = r->line->store + r->used;
  size_t count, read = oc__percent_decode(r->text + r->at, to - r->at, flags, store, &count);
  r->at += read;
  if (r->at < to) return bad(r, "a byte that is not written like this", err);
  store[count] = '\0';
  r->used += count + 1;
  *out = store;
  return OC_OK;
}

static size_t find(const reader *r, char byte, size_t end) {
  const char *at = memchr(r->text + r->at, byte, end - r->at);
  return at ? (size_t)(at - r->text) : end;
}

static oc_status read_field(reader *r, oc_err *err) {
  if (r->line->field_count == OC_LINE_FIELDS) return bad(r, "more fields than a line holds", err);
  oc_line_field *field = &r->line->field[r->line->field_count];
  size_t end = find(r, ' ', r->end), equals = find(r, '=', end);
  if (equals == r->at) return bad(r, "an empty word or key", err);
  int after_pair = r->line->field_count > 0 && field[-1].value;
  if (equals == end && after_pair) return bad(r, "a word after a pair", err);
  OC_TRY(take(r, equals, OC__PERCENT_EQUALS_CODED, &field->key, err));
  if (equals < end) {
    r->at++;
    OC_TRY(take(r, end, 0, &field->value, err));
  }
  r->line->field_count++;
  return OC_OK;
}

static oc_status read_fields(reader *r, oc_err *err) {
  while (r->at < r->end) {
    if (r->text[r->at] != ' ') return bad(r, "a space is missing", err);
    r->at++;
    OC_TRY(read_field(r, err));
  }
  return OC_OK;
}

/* name ": " text. The name has no raw space, so the first space follows the separator's colon. */
static oc_status read_statement(reader *r, oc_err *err) {
  size_t space = find(r, ' ', r->end);
  if (space == r->end || space < r->at + 2 || r->text[space - 1] != ':') return bad(r, "`<name>: ` is missing", err);
  OC_TRY(take(r, space - 1, OC__PERCENT_EQUALS_CODED, &r->line->field[0].key, err));
  r->at += 2;
  if (r->at == r->end) return bad(r, "the text is missing", err);
  OC_TRY(take(r, r->end, OC__PERCENT_SPACE_RAW, &r->line->field[1].key, err));
  r->line->field_count = 2;
  return OC_OK;
}

static int read_kind(reader *r) {
  for (int kind = 0; kind < OC_LINE_KIND_COUNT; kind++) {
    size_t start = r->at;
    if (!skip(r, kind_words[kind])) continue;
    r->line->kind = (oc_line_kind)kind;
    if (kind == OC_LINE_NOT_ACTIVE ? skip(r, ": ") : kind == OC_LINE_ACCOUNTING ? skip(r, " ") : 1) return 1;
    r->at = start;
  }
  return 0;
}

oc_status oc_line_parse(const char *text, size_t text_bytes, oc_line *out, oc_err *err) {
  if (!text || !out) return OC_FAIL(err, BAD_ARG, 0, "text and out must be given");
  memset(out, 0, sizeof *out);
  reader r = {text, 0, text_bytes, 0, out};
  if (r.end && text[r.end - 1] == '\n') r.end--;
  if (r.end >= OC_LINE_MAX) {
    r.at = OC_LINE_MAX - 1;
    return bad(&r, "the line is too long", err);
  }
  if (!skip(&r, prefix)) return bad(&r, "`[opt_core] ` is missing", err);
  if (!read_kind(&r)) return bad(&r, "no known kind of line", err);
  return is_statement(out->kind) ? read_statement(&r, err) : read_fields(&r, err);
}

/* ---- building ---- */

void oc__line_start(oc_line *line, oc_line_kind kind) {
  line->kind = kind;
  line->field_count = 0;
}

int oc__line_add(oc_line *line, const char *key, const char *value) {
  if (line->field_count == OC_LINE_FIELDS) return 0;
  line->field[line->field_count++] = (oc_line_field){key, value};
  return 1;
}

size_t oc__line_fit(oc_line *line, int64_t left_out, char out[OC_LINE_MAX + 1]) {
  char more[24];
  size_t bytes = 0;
  for (;;) {
    int fields = line->field_count;
    if (left_out) {
      snprintf(more, sizeof more, "%jd", (intmax_t)left_out);
      if (!oc__line_add(line, "MORE", more)) goto drop;
    }
    if (oc_line_format(line, out, OC_LINE_MAX + 1, &bytes, NULL) == OC_OK) return bytes;
    line->field_count = fields;
  drop:
    if (line->field_count == 0) return 0;
    line->field_count--;
    left_out++;
  }
}

/* ---- writing ---- */

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  oc_line_sink *call;
  void *context;
} sink;

void oc__line_fork_lock(void) { pthread_mutex_lock(&sink_lock); }
void oc__line_fork_unlock(void) { pthread_mutex_unlock(&sink_lock); }

void oc_line_set_sink(oc_line_sink *call, void *context) {
  pthread_mutex_lock(&sink_lock);
  sink.call = call;
  sink.context = context;
  pthread_mutex_unlock(&sink_lock);
}

/* One write(2) for the whole line. Only a pipe that cannot block and is full leaves a rest; it is waited for a second a
 * try, because half a line would spoil the next process's line. */
static int write_fd(int fd, const char *text, size_t bytes) {
  for (int tries = 0; bytes && tries < 100;) {
    ssize_t put = write(fd, text, bytes);
    if (put >= 0) {
      text += put;
      bytes -= (size_t)put;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    struct pollfd ready = {fd, POLLOUT, 0};
    if (poll(&ready, 1, 1000) == 0) tries += 50;
    tries++;
  }
  return bytes ? EAGAIN : 0;
}

oc_status oc__line_emit(const char *text, size_t bytes, oc_err *err) {
  if (!bytes) return OC_OK;
  /* The sink is called without the lock: it may take another lock (an interpreter's) whose holder is on its way here.
   */
  pthread_mutex_lock(&sink_lock);
  oc_line_sink *call = sink.call;
  void *context = sink.context;
  pthread_mutex_unlock(&sink_lock);
  if (call) {
    call(text, bytes, context);
    return OC_OK;
  }
  int code = write_fd(STDERR_FILENO, text, bytes);
  return code ? OC_FAIL(err, IO, code, "standard error: %s", strerror(code)) : OC_OK;
}

oc_status oc_line_write(const oc_line *line, oc_err *err) {
  char text[OC_LINE_MAX + 1];
  size_t bytes;
  OC_TRY(oc_line_format(line, text, sizeof text, &bytes, err));
  return oc__line_emit(text, bytes, err);
}
