/* SPDX-License-Identifier: Apache-2.0 */
/* NPZ: a ZIP archive of NPY members, stored or deflated. Sizes come from the central directory, ZIP64 included. */
#define _POSIX_C_SOURCE 200809L
#include "compare/compare.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef OPT_CORE_HAS_ZLIB
#include <zlib.h>
#endif

#define END_BYTES 22
#define CENTRAL_BYTES 46
#define LOCAL_BYTES 30
#define INFLATE_RATIO 1032 /* deflate cannot expand more than this; a larger claim is a lie */

enum { METHOD_STORED = 0, METHOD_DEFLATED = 8 };

typedef struct member {
  char *name;
  unsigned method, flags;
  uint32_t crc;
  oc__slice packed;
  uint64_t size;
} member;

typedef struct archive {
  member *items;
  size_t count;
  json_t *index; /* name -> position */
} archive;

static uint64_t little(const char *p, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = bytes; i-- > 0;) value = value << 8 | (unsigned char)p[i];
  return value;
}

static int within(oc__slice file, uint64_t from, uint64_t bytes) {
  return from <= file.bytes && bytes <= file.bytes - from;
}

/* The end record is the last of the file, before a comment of at most 65,535 bytes. */
static const char *find_end(oc__slice file) {
  if (file.bytes < END_BYTES) return NULL;
  size_t last = file.bytes - END_BYTES, furthest = last > 65535 ? last - 65535 : 0;
  for (size_t at = last + 1; at-- > furthest;) {
    const char *p = file.data + at;
    if (memcmp(p, "PK\5\6", 4) == 0 && little(p + 20, 2) == last - at) return p;
  }
  return NULL;
}

typedef struct directory {
  uint64_t offset, bytes, count;
} directory;

static int read_directory(oc__slice file, directory *out) {
  const char *end = find_end(file);
  if (!end) return 0;
  *out = (directory){.count = little(end + 10, 2), .bytes = little(end + 12, 4), .offset = little(end + 16, 4)};
  if (out->count != 0xffff && out->bytes != 0xffffffff && out->offset != 0xffffffff) return 1;
  if (end - file.data < 20 || memcmp(end - 20, "PK\6\7", 4) != 0) return 1;
  uint64_t at = little(end - 20 + 8, 8);
  if (!within(file, at, 56) || memcmp(file.data + at, "PK\6\6", 4) != 0) return 0;
  const char *p = file.data + at;
  *out = (directory){.count = little(p + 32, 8), .bytes = little(p + 40, 8), .offset = little(p + 48, 8)};
  return 1;
}

/* ZIP64 extra field: the values that did not fit their 32 bits, in this order. */
static int read_extra(oc__slice extra, uint64_t *size, uint64_t *packed, uint64_t *offset) {
  while (extra.bytes >= 4) {
    size_t length = (size_t)little(extra.data + 2, 2), id = (size_t)little(extra.data, 2);
    if (length > extra.bytes - 4) return 0;
    const char *p = extra.data + 4, *stop = p + length;
    uint64_t *wanted[] = {size, packed, offset};
    for (int i = 0; id == 1 && i < 3; i++) {
      if (*wanted[i] != 0xffffffff) continue;
      if (stop - p < 8) return 0;
      *wanted[i] = little(p, 8);
      p += 8;
    }
    extra = (oc__slice){stop, extra.bytes - 4 - length};
  }
  return 1;
}

static int find_data(oc__slice file, uint64_t offset, uint64_t bytes, oc__slice *out) {
  if (!within(file, offset, LOCAL_BYTES) || memcmp(file.data + offset, "PK\3\4", 4) != 0) return 0;
  uint64_t from = offset + LOCAL_BYTES + little(file.data + offset + 26, 2) + little(file.data + offset + 28, 2);
  if (!within(file, from, bytes)) return 0;
  *out = (oc__slice){file.data + from, (size_t)bytes};
  return 1;
}

/* Reads one entry at *at of the central directory and steps over it. */
static oc_status read_member(oc__slice file, uint64_t *at, member *out, oc_err *err) {
  if (!within(file, *at, CENTRAL_BYTES) || memcmp(file.data + *at, "PK\1\2", 4) != 0)
    return OC_FAIL(err, BAD_ARG, 0, "npz: no directory entry at byte %llu", (unsigned long long)*at);
  const char *p = file.data + *at;
  size_t name = (size_t)little(p + 28, 2), extra = (size_t)little(p + 30, 2), comment = (size_t)little(p + 32, 2);
  uint64_t size = little(p + 24, 4), packed = little(p + 20, 4), offset = little(p + 42, 4);
  if (!within(file, *at, CENTRAL_BYTES + name + extra + comment))
    return OC_FAIL(err, BAD_ARG, 0, "npz: directory entry cut at byte %llu", (unsigned long long)*at);
  if (!read_extra((oc__slice){p + CENTRAL_BYTES + name, extra}, &size, &packed, &offset))
    return OC_FAIL(err, BAD_ARG, 0, "npz: malformed extra field");
  out->flags = (unsigned)little(p + 8, 2);
  out->method = (unsigned)little(p + 10, 2);
  out->crc = (uint32_t)little(p + 16, 4);
  out->size = size;
  if (!find_data(file, offset, packed, &out->packed)) return OC_FAIL(err, BAD_ARG, 0, "npz: data outside the file");
  out->name = strndup(p + CENTRAL_BYTES, name);
  *at += CENTRAL_BYTES + name + extra + comment;
  return out->name ? OC_OK : OC_FAIL(err, NO_MEM, 0, "npz: member name");
}

static void archive_close(archive *opened) {
  for (size_t i = 0; i < opened->count; i++) free(opened->items[i].name);
  free(opened->items);
  json_decref(opened->index);
  *opened = (archive){0};
}

/* Two members of one name: which of them counts depends on who reads, so the archive is refused. */
static oc_status add_member(archive *opened, oc__slice file, uint64_t *at, oc_err *err) {
  member *m = &opened->items[opened->count++];
  OC_TRY(read_member(file, at, m, err));
  if (json_object_get(opened->index, m->name)) return OC_FAIL(err, BAD_ARG, 0, "npz: two members named %.60s", m->name);
  if (json_object_set_new_nocheck(opened->index, m->name, json_integer((json_int_t)opened->count - 1)))
    return OC_FAIL(err, NO_MEM, 0, "npz: index of members");
  return OC_OK;
}

static oc_status archive_open(oc__slice file, archive *out, oc_err *err) {
  directory d;
  *out = (archive){0};
  if (!read_directory(file, &d)) return OC_FAIL(err, BAD_ARG, 0, "npz: no ZIP directory");
  if (d.count > d.bytes / CENTRAL_BYTES || !within(file, d.offset, d.bytes))
    return OC_FAIL(err, BAD_ARG, 0, "npz: directory outside the file");
  out->items = calloc((size_t)d.count + 1, sizeof *out->items);
  out->index = json_object();
  oc_status status =
      out->items && out->index ? OC_OK : OC_FAIL(err, NO_MEM, 0, "npz: %llu members", (unsigned long long)d.count);
  uint64_t at = d.offset;
  while (status == OC_OK && out->count < d.count) status = add_member(out, file, &at, err);
  if (status != OC_OK) archive_close(out);
  return status;
}

/* ---- bytes of a member ------------------------------------------------------------------------------------------- */

#ifdef OPT_CORE_HAS_ZLIB
static int crc_is_right(const member *m, const void *data, uint64_t size) {
  const unsigned char *p = data;
  uLong crc = crc32(0, Z_NULL, 0);
  for (uint64_t left = size; left;) {
    uInt step = left > (1u << 30) ? 1u << 30 : (uInt)left;
    crc = crc32(crc, p, step);
    p += step;
    left -= step;
  }
  return crc == m->crc;
}

static int inflate_all(z_stream *stream, oc__slice packed, unsigned char *out, uint64_t size) {
  uint64_t in_left = packed.bytes, out_left = size;
  int code = Z_OK;
  stream->next_in = (unsigned char *)(uintptr_t)packed.data;
  stream->next_out = out;
  while (code == Z_OK) { /* avail_* hold 32 bits: large members go in steps */
    uInt in_step = in_left > (1u << 30) ? 1u << 30 : (uInt)in_left;
    uInt out_step = out_left > (1u << 30) ? 1u << 30 : (uInt)out_left;
    stream->avail_in = in_step;
    stream->avail_out = out_step;
    code = inflate(stream, Z_NO_FLUSH);
    in_left -= in_step - stream->avail_in;
    out_left -= out_step - stream->avail_out;
  }
  return code == Z_STREAM_END && out_left == 0 && in_left == 0;
}

static oc_status inflate_member(const member *m, char **owned, oc__slice *out, oc_err *err) {
  if (m->size / INFLATE_RATIO > m->packed.bytes + 1 || m->size > SIZE_MAX - 1)
    return OC_FAIL(err, BAD_ARG, 0, "npz: %llu bytes out of %zu", (unsigned long long)m->size, m->packed.bytes);
  *owned = malloc((size_t)m->size + 1);
  if (!*owned) return OC_FAIL(err, NO_MEM, 0, "npz: member of %llu bytes", (unsigned long long)m->size);
  z_stream stream = {0};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return OC_FAIL(err, NO_MEM, 0, "npz: inflate");
  int ok = inflate_all(&stream, m->packed, (unsigned char *)*owned, m->size);
  inflateEnd(&stream);
  *out = (oc__slice){*owned, (size_t)m->size};
  return ok && crc_is_right(m, *owned, m->size) ? OC_OK : OC_FAIL(err, BAD_ARG, 0, "npz: damaged member");
}
#else
static int crc_is_right(const member *m, const void *data, uint64_t size) {
  (void)m, (void)data, (void)size;
  return 1;
}

static oc_status inflate_member(const member *m, char **owned, oc__slice *out, oc_err *err) {
  (void)owned, (void)out;
  return OC_FAIL(err, BAD_ARG, 0, "npz: deflated member %.60s, built without zlib", m->name);
}
#endif

static oc_status unpack(const member *m, char **owned, oc__slice *out, oc_err *err) {
  *owned = NULL;
  if (m->flags & 1) return OC_FAIL(err, BAD_ARG, 0, "npz: encrypted member");
  if (m->method == METHOD_DEFLATED) return inflate_member(m, owned, out, err);
  if (m->method != METHOD_STORED || m->size != m->packed.bytes)
    return OC_FAIL(err, BAD_ARG, 0, "npz: compression method %u", m->method);
  *out = m->packed;
  return crc_is_right(m, out->data, m->size) ? OC_OK : OC_FAIL(err, BAD_ARG, 0, "npz: damaged member");
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static const member *find(const archive *holder, const char *name) {
  const json_t *position = json_object_get(holder->index, name);
  return position ? &holder->items[json_integer_value(position)] : NULL;
}

/* Name of the field: the member's without its ending, as numpy.load shows it. */
static char *field_name(const member *m) {
  size_t bytes = strlen(m->name);
  int is_npy = bytes > 4 && strcmp(m->name + bytes - 4, ".npy") == 0;
  return strndup(m->name, is_npy ? bytes - 4 : bytes);
}

static int same_packed(const member *a, const member *b) {
  return a->method == b->method && a->size == b->size && a->flags == b->flags && oc__slice_equal(a->packed, b->packed);
}

/* A member that cannot be unpacked or is no NPY is compared as it lies in the archive. */
static oc_status compare_bytes(const oc__compare *compare, const char *name, const member *a, const member *b, int same,
                               oc_err *err) {
  oc__field field;
  OC_TRY(oc__field_open(compare, name, &field, err));
  oc_status status = OC_OK;
  if (oc__field_text(&field, same || same_packed(a, b)))
    status = oc__field_locate(&field, err, "%s (compared as bytes)", name);
  oc__field_close(compare, &field);
  return status;
}

static oc_status compare_open(const oc__compare *compare, const char *name, const member *a, const member *b,
                              oc_err *err) {
  char *owned_a = NULL, *owned_b = NULL;
  oc__slice bytes_a, bytes_b;
  oc__array left, right;
  oc_err why = {0};
  int same = 0;
  oc_status status = unpack(a, &owned_a, &bytes_a, &why);
  if (status == OC_OK) status = unpack(b, &owned_b, &bytes_b, &why);
  if (status == OC_OK) {
    same = oc__slice_equal(bytes_a, bytes_b);
    status = oc__npy_parse(bytes_a, &left, &why);
    if (status == OC_OK) status = oc__npy_parse(bytes_b, &right, &why);
    if (status == OC_OK)
      status = oc__array_compare(compare, name, &left, &right, err);
    else
      status = compare_bytes(compare, name, a, b, same, err);
  } else if (status == OC_BAD_ARG) {
    status = compare_bytes(compare, name, a, b, 0, err);
  } else if (err && err->status == OC_OK) {
    *err = why;
  }
  free(owned_a);
  free(owned_b);
  return status;
}

static oc_status compare_member(const oc__compare *compare, const member *a, const archive *other, oc_err *err) {
  char *name = field_name(a);
  if (!name) return OC_FAIL(err, NO_MEM, 0, "npz: member name");
  const member *b = find(other, a->name);
  oc_status status =
      b ? compare_open(compare, name, a, b, err) : oc__field_report(compare, name, NULL, OC_VERDICT_MISSING, err);
  free(name);
  return status;
}

static oc_status report_extra(const oc__compare *compare, const member *b, const archive *other, oc_err *err) {
  if (find(other, b->name)) return OC_OK;
  char *name = field_name(b);
  if (!name) return OC_FAIL(err, NO_MEM, 0, "npz: member name");
  oc_status status = oc__field_report(compare, name, NULL, OC_VERDICT_EXTRA, err);
  free(name);
  return status;
}

static oc_status compare_archives(const oc__compare *compare, const archive *a, const archive *b, oc_err *err) {
  for (size_t i = 0; i < a->count; i++) OC_TRY(compare_member(compare, &a->items[i], b, err));
  for (size_t i = 0; i < b->count; i++) OC_TRY(report_extra(compare, &b->items[i], a, err));
  return OC_OK;
}

oc_status oc__npz_compare(const oc__compare *compare, oc__slice a, oc__slice b, oc_err *err) {
  archive left, right;
  OC_TRY(archive_open(a, &left, err));
  oc_status status = archive_open(b, &right, err);
  if (status == OC_OK) {
    status = compare_archives(compare, &left, &right, err);
    archive_close(&right);
  }
  archive_close(&left);
  return status;
}
