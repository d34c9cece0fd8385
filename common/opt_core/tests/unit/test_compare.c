/* SPDX-License-Identifier: Apache-2.0 */
/* compare: golden trees of every format, and files made here for what a golden tree cannot show. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
/* cmocka needs the four above it */
#include <cmocka.h>

#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compare/compare.h"
#include "compare/tree.h"

/* ---- what the sink heard ----------------------------------------------------------------------------------------- */

typedef struct heard {
  int count;
  struct {
    char file[128], field[256];
    oc_difference d;
  } item[64];
} heard;

static void listen(const oc_difference *d, void *context) {
  heard *h = context;
  assert_true(h->count < 64);
  snprintf(h->item[h->count].file, sizeof h->item[0].file, "%s", d->file);
  snprintf(h->item[h->count].field, sizeof h->item[0].field, "%s", d->field);
  h->item[h->count++].d = *d;
}

static const oc_difference *find(const heard *h, const char *file, const char *field) {
  for (int i = 0; i < h->count; i++)
    if (strcmp(h->item[i].file, file) == 0 && strcmp(h->item[i].field, field) == 0) return &h->item[i].d;
  for (int i = 0; i < h->count; i++) fprintf(stderr, "heard %s: %s\n", h->item[i].file, h->item[i].field);
  fail_msg("nothing heard of %s: %s", file, field);
  return NULL;
}

static oc_compare_result trees(const char *a, const char *b, double absolute, const char *rules, heard *h) {
  oc_compare_options options = {
      .struct_bytes = sizeof options, .tolerance = {absolute, 0}, .rules_json = rules, .ignore_record = 1};
  oc_compare_result result;
  oc_err err = {0};
  *h = (heard){0};
  if (oc_compare_trees(a, b, &options, listen, h, &result, &err) != OC_OK) fail_msg("compare: %s", err.detail);
  return result;
}

/* ---- files made here --------------------------------------------------------------------------------------------- */

static char dir[64];

static int setup(void **state) {
  (void)state;
  strcpy(dir, "/tmp/test_compare.XXXXXX");
  return mkdtemp(dir) == NULL;
}

static int teardown(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", dir);
  return system(command);
}

static const char *path_of(const char *name) {
  static char paths[4][256];
  static int turn;
  char *out = paths[turn++ % 4];
  snprintf(out, sizeof paths[0], "%s/%s", dir, name);
  return out;
}

static const char *put_bytes(const char *name, const void *bytes, size_t count) {
  const char *path = path_of(name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
  return path;
}

static const char *put(const char *name, const char *text) { return put_bytes(name, text, strlen(text)); }

static const char *put_npy(const char *name, const char *descr, int fortran, const char *shape, const void *data,
                           size_t bytes) {
  static unsigned char buffer[8192];
  int header =
      snprintf((char *)buffer + 10, sizeof buffer - 10, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n", descr,
               fortran ? "True" : "False", shape);
  memcpy(buffer, "\x93NUMPY\1\0", 8);
  buffer[8] = (unsigned char)(header & 255);
  buffer[9] = (unsigned char)(header >> 8);
  assert_true(10 + (size_t)header + bytes <= sizeof buffer);
  memcpy(buffer + 10 + header, data, bytes);
  return put_bytes(name, buffer, 10 + (size_t)header + bytes);
}

/* Both names end alike, so that both sides have one format. */
static oc_verdict files(const char *ending, const char *a, const char *b, double absolute, heard *h) {
  char name_a[64], name_b[64];
  snprintf(name_a, sizeof name_a, "a.%s", ending);
  snprintf(name_b, sizeof name_b, "b.%s", ending);
  put(name_a, a);
  put(name_b, b);
  return trees(path_of(name_a), path_of(name_b), absolute, NULL, h).verdict;
}

/* ---- golden trees ------------------------------------------------------------------------------------------------ */

#define GOLDEN OC_TEST_DATA "/compare/"

static void test_same_numbers_written_another_way_are_equal(void **state) {
  (void)state;
  heard h;
  const char *others[] = {GOLDEN "stock", GOLDEN "same"};
  for (int i = 0; i < 2; i++) {
    oc_compare_result r = trees(GOLDEN "stock", others[i], 0, NULL, &h);
    assert_int_equal(r.verdict, OC_VERDICT_EQUAL);
    assert_int_equal(h.count, 0);
    assert_int_equal(r.files, 7);
    assert_int_equal(r.fields, 37);
    assert_int_equal(r.numbers, 188); /* a reader that skipped its numbers would pass all else */
    assert_int_equal(r.differing, 0);
  }
}

static void test_close_numbers_are_within_a_tolerance_only(void **state) {
  (void)state;
  heard h;
  oc_compare_result r = trees(GOLDEN "stock", GOLDEN "close", 0, NULL, &h);
  assert_int_equal(r.verdict, OC_VERDICT_DIFFERENT);
  assert_int_equal(r.differing, 93);
  const oc_difference *d = find(&h, "pair.npy", "array[0,0,0]");
  assert_int_equal(d->ulps, 14);
  assert_true(d->a == -7.25 && d->b == -7.250006675720215 && d->largest == 1.52587890625e-05);
  assert_int_equal(d->count, 24);
  assert_int_equal(d->of, 24);
  d = find(&h, "scores.json", "chains[0].pae[1][0]");
  assert_int_equal(d->count, 12);
  assert_int_equal(d->ulps, -1);
  find(&h, "model.cif", "_atom_site.Cartn_x[1]");
  find(&h, "log.txt", "text line 1");
  find(&h, "sub/result.npz", "coords[0,0,0]");
  find(&h, "weights.safetensors", "w[0,0]");
  r = trees(GOLDEN "stock", GOLDEN "close", 1e-4, NULL, &h);
  assert_int_equal(r.verdict, OC_VERDICT_WITHIN);
  assert_int_equal(r.differing, 0);
  assert_int_equal(h.count, 8);
  r = trees(GOLDEN "stock", GOLDEN "close", 1e-5, NULL, &h);
  assert_int_equal(r.verdict, OC_VERDICT_DIFFERENT);
}

static void test_far_trees_show_every_kind_of_difference(void **state) {
  (void)state;
  heard h;
  oc_compare_result r = trees(GOLDEN "stock", GOLDEN "far", 1e-3, NULL, &h);
  assert_int_equal(r.verdict, OC_VERDICT_EXTRA);
  assert_true(isinf(r.largest));
  assert_int_equal(find(&h, "added.txt", "file")->verdict, OC_VERDICT_EXTRA);
  assert_int_equal(find(&h, "sub/result.npz", "file")->verdict, OC_VERDICT_MISSING);
  assert_int_equal(find(&h, "scores.json", "done")->verdict, OC_VERDICT_MISSING);
  assert_int_equal(find(&h, "scores.json", "extra")->verdict, OC_VERDICT_EXTRA);
  const oc_difference *nan_pair = find(&h, "scores.json", "plddt[1]");
  assert_int_equal(nan_pair->count, 2); /* NaN for a number and a number for NaN */
  assert_true(isnan(nan_pair->b) && nan_pair->a == 71.25);
  assert_int_equal(find(&h, "pair.npy", "array[1,2,3]")->verdict, OC_VERDICT_WITHIN);
  assert_int_equal(find(&h, "pair.npy", "array[1,2,3]")->ulps, 1);
  assert_int_equal(find(&h, "model.cif", "structure parts at _atom_site.group_PDB row 2")->verdict,
                   OC_VERDICT_DIFFERENT);
  assert_int_equal(h.count, 7);
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static void test_nan_and_infinity(void **state) {
  (void)state;
  heard h;
  static const struct {
    const char *a, *b;
    oc_verdict exact, loose;
  } cases[] = {
      {"[NaN]", "[NaN]", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"[NaN]", "[1.0]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[1.0]", "[NaN]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[Infinity]", "[Infinity]", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"[-Infinity]", "[-Infinity]", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"[Infinity]", "[-Infinity]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[Infinity]", "[1e308]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[1e308]", "[Infinity]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[NaN]", "[Infinity]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[NaN]", "[null]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[NaN]", "[\"NaN\"]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[-0.0]", "[0.0]", OC_VERDICT_DIFFERENT, OC_VERDICT_WITHIN},
      {"[1]", "[1.0]", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"[1.0]", "[1.00e0]", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"[9007199254740993]", "[9007199254740992]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[true]", "[1]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"[\"a\\\"NaN\", NaN]", "[\"a\\\"NaN\", NaN]", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"[1, 2]", "[1]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"{\"a\": 1, \"b\": 2}", "{\"b\": 2, \"a\": 1}", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"{\"a\": [[1, {\"b\": 2}]]}", "{\"a\": [[1, {\"b\": 3}]]}", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"{", "[1]", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"{", "{", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (files("json", cases[i].a, cases[i].b, 0, &h) != cases[i].exact)
      fail_msg("exact, case %zu: %s %s", i, cases[i].a, cases[i].b);
    if (files("json", cases[i].a, cases[i].b, 0.5, &h) != cases[i].loose)
      fail_msg("loose, case %zu: %s %s", i, cases[i].a, cases[i].b);
  }
}

static void test_text(void **state) {
  (void)state;
  heard h;
  static const struct {
    const char *a, *b;
    oc_verdict exact, loose;
  } cases[] = {
      {"x 1.5\n", "x   1.50\r\n", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"x 1.5\n", "x 1.6\n", OC_VERDICT_DIFFERENT, OC_VERDICT_WITHIN},
      {"x 1.5\n", "y 1.5\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"A1\n", "A2\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT}, /* part of a word is no number */
      {"3abc\n", "4abc\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"a b\n", "ab\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {" a\n", "a\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"12 34\n", "1234\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"nan\n", "1\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"nan -inf\n", "NaN -inf\n", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"1e999\n", "1e998\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT}, /* both overflow */
      {"12345678901234567890\n", "12345678901234567891\n", OC_VERDICT_DIFFERENT, OC_VERDICT_WITHIN},
      {"-0.0\n", "0.0\n", OC_VERDICT_DIFFERENT, OC_VERDICT_WITHIN},
      {"a\nb\n", "a\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"a\n", "a\nb\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"a\n\n", "a\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"a", "a\n", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"", "", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
      {"", "1\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"1 2\n", "1\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"1\n", "1 2\n", OC_VERDICT_DIFFERENT, OC_VERDICT_DIFFERENT},
      {"f(1,-2.5e-3)\n", "f(1,-2.5E-03)\n", OC_VERDICT_EQUAL, OC_VERDICT_EQUAL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (files("txt", cases[i].a, cases[i].b, 0, &h) != cases[i].exact)
      fail_msg("exact, case %zu: %s %s", i, cases[i].a, cases[i].b);
    if (files("txt", cases[i].a, cases[i].b, 0.5, &h) != cases[i].loose)
      fail_msg("loose, case %zu: %s %s", i, cases[i].a, cases[i].b);
  }
}

static void test_a_locale_with_decimal_commas_changes_nothing(void **state) {
  (void)state;
  heard h;
  if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8")) skip();
  assert_int_equal(files("json", "[1.25]", "[1.75]", 0, &h), OC_VERDICT_DIFFERENT);
  assert_true(h.item[0].d.a == 1.25 && h.item[0].d.b == 1.75);
  assert_int_equal(files("txt", "1.25\n", "1.75\n", 0, &h), OC_VERDICT_DIFFERENT);
  assert_true(h.item[0].d.a == 1.25);
  setlocale(LC_ALL, "C");
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

static void test_every_element_type_counts_one_changed_number(void **state) {
  (void)state;
  heard h;
  static const struct {
    const char *descr;
    size_t bytes;
    const char *one, *other;
    double a, b;
  } types[] = {
      {"<f8", 8, "\0\0\0\0\0\0\xf0\x3f", "\0\0\0\0\0\0\0\x40", 1, 2},
      {">f8", 8, "\x3f\xf0\0\0\0\0\0\0", "\x40\0\0\0\0\0\0\0", 1, 2},
      {"<f4", 4, "\0\0\x80\x3f", "\0\0\0\x40", 1, 2},
      {">f4", 4, "\x3f\x80\0\0", "\x40\0\0\0", 1, 2},
      {"<f2", 2, "\0\x3c", "\1\0", 1, 5.9604644775390625e-08},
      {">f2", 2, "\x3c\0", "\xc4\0", 1, -4},
      {"<i8", 8, "\1\0\0\0\0\0\0\0", "\xfe\xff\xff\xff\xff\xff\xff\xff", 1, -2},
      {">i4", 4, "\0\0\0\1", "\xff\xff\xff\xff", 1, -1},
      {"<i2", 2, "\1\0", "\0\x80", 1, -32768},
      {"|i1", 1, "\1", "\x80", 1, -128},
      {"<u8", 8, "\1\0\0\0\0\0\0\0", "\0\0\0\0\0\0\0\x80", 1, 0x1p63},
      {"<u4", 4, "\1\0\0\0", "\0\0\0\x80", 1, 2147483648.0},
      {">u2", 2, "\0\1", "\x80\0", 1, 32768},
      {"|u1", 1, "\1", "\xff", 1, 255},
      {"|b1", 1, "\1", "\0", 1, 0},
  };
  size_t executed = 0;
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++, executed++) {
    unsigned char left[40], right[40];
    for (int k = 0; k < 5; k++) memcpy(left + (size_t)k * types[i].bytes, types[i].one, types[i].bytes);
    memcpy(right, left, sizeof left);
    memcpy(right + 3 * types[i].bytes, types[i].other, types[i].bytes);
    const char *a = put_npy("a.npy", types[i].descr, 0, "(5,)", left, 5 * types[i].bytes);
    const char *b = put_npy("b.npy", types[i].descr, 0, "(5,)", right, 5 * types[i].bytes);
    assert_int_equal(trees(a, a, 0, NULL, &h).numbers, 5);
    assert_int_equal(h.count, 0);
    assert_int_equal(trees(a, b, 0, NULL, &h).verdict, OC_VERDICT_DIFFERENT);
    const oc_difference *d = find(&h, "a.npy", "array[3]");
    if (d->a != types[i].a || d->b != types[i].b || d->count != 1 || d->of != 5)
      fail_msg("%s: %g %g", types[i].descr, d->a, d->b);
  }
  assert_int_equal(executed, 15);
}

static void test_axis_order_is_only_layout(void **state) {
  (void)state;
  heard h;
  const int32_t rows[6] = {1, 2, 3, 4, 5, 6}, columns[6] = {1, 4, 2, 5, 3, 6}, changed[6] = {1, 4, 2, 5, 3, 7};
  const char *a = put_npy("a.npy", "<i4", 0, "(2, 3)", rows, sizeof rows);
  const char *b = put_npy("b.npy", "<i4", 1, "(2, 3)", columns, sizeof columns);
  const char *c = put_npy("c.npy", "<i4", 1, "(2, 3)", changed, sizeof changed);
  assert_int_equal(trees(a, b, 0, NULL, &h).verdict, OC_VERDICT_EQUAL);
  assert_int_equal(trees(a, c, 0, NULL, &h).verdict, OC_VERDICT_DIFFERENT);
  find(&h, "a.npy", "array[1,2]");
  assert_int_equal(trees(b, c, 0, NULL, &h).verdict, OC_VERDICT_DIFFERENT);
  find(&h, "b.npy", "array[1,2]");
  const char *d = put_npy("d.npy", "<i4", 0, "(3, 2)", rows, sizeof rows);
  assert_int_equal(trees(a, d, 9, NULL, &h).verdict, OC_VERDICT_DIFFERENT);
  find(&h, "a.npy", "array shape (3,2), not (2,3)");
}

static void test_types_and_patterns(void **state) {
  (void)state;
  heard h;
  const float f[2] = {1, 2};
  const double g[2] = {1, 2};
  const uint32_t nan_a[2] = {0x7fc00000, 0}, nan_b[2] = {0xffc00000, 0x80000000};
  const int64_t big_a[1] = {INT64_MAX}, big_b[1] = {INT64_MAX - 1};
  const char *a = put_npy("a.npy", "<f4", 0, "(2,)", f, sizeof f), *b = put_npy("b.npy", "<f8", 0, "(2,)", g, sizeof g);
  assert_int_equal(trees(a, b, 0, NULL, &h).verdict, OC_VERDICT_DIFFERENT);
  find(&h, "a.npy", "array type <f8, not <f4");
  assert_int_equal(trees(a, b, 1e-9, NULL, &h).verdict, OC_VERDICT_WITHIN);
  a = put_npy("a.npy", "<f4", 0, "(2,)", nan_a, sizeof nan_a);
  b = put_npy("b.npy", "<f4", 0, "(2,)", nan_b, sizeof nan_b);
  assert_int_equal(trees(a, b, 0, NULL, &h).differing, 2); /* exact: the bits of a NaN and the sign of a zero count */
  assert_int_equal(trees(a, b, 1e-9, NULL, &h).verdict, OC_VERDICT_WITHIN);
  a = put_npy("a.npy", "<i8", 0, "(1,)", big_a, sizeof big_a);
  b = put_npy("b.npy", "<i8", 0, "(1,)", big_b, sizeof big_b);
  assert_int_equal(trees(a, b, 0.5, NULL, &h).verdict, OC_VERDICT_DIFFERENT); /* their doubles are equal */
  assert_true(h.item[0].d.largest == 1);
  a = put_npy("a.npy", "|S2", 0, "(2,)", "abcd", 4);
  b = put_npy("b.npy", "|S2", 0, "(2,)", "abce", 4);
  assert_int_equal(trees(a, b, 9, NULL, &h).verdict, OC_VERDICT_DIFFERENT);
  find(&h, "a.npy", "array[1]");
}

static void test_a_difference_behind_many_equal_blocks_is_found(void **state) {
  (void)state;
  heard h;
  enum { COUNT = 300000 };
  static const char head[] = "\x93NUMPY\1\0\x3f\0{'descr': '<f8', 'fortran_order': False, 'shape': (300000,), }\n";
  size_t bytes = sizeof head - 1 + COUNT * sizeof(double);
  assert_int_equal(sizeof head - 1 - 10, 0x3f);
  char *file = calloc(1, bytes);
  memcpy(file, head, sizeof head - 1);
  const char *a = put_bytes("a.npy", file, bytes);
  file[bytes - 1] = 1;
  const char *b = put_bytes("b.npy", file, bytes);
  free(file);
  oc_compare_result r = trees(a, b, 0, NULL, &h);
  assert_int_equal(r.numbers, COUNT);
  assert_int_equal(r.differing, 1);
  find(&h, "a.npy", "array[299999]");
}

static void test_damaged_files_are_compared_as_bytes(void **state) {
  (void)state;
  heard h;
  static const char *const names[] = {"a.npy", "a.npz", "a.safetensors", "a.cif", "a.json"};
  size_t executed = 0;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++, executed++) {
    char other[32];
    snprintf(other, sizeof other, "b%s", names[i] + 1);
    const char *a = put(names[i], "loop_ \x93NUMPY broken"), *b = put(other, "loop_ \x93NUMPY broken"),
               *c = put("c", "loop_ \x93NUMPY");
    assert_int_equal(trees(a, b, 0, NULL, &h).verdict, OC_VERDICT_EQUAL);
    assert_int_equal(trees(a, c, 0, NULL, &h).verdict, OC_VERDICT_DIFFERENT);
    find(&h, names[i], "bytes differ at 12");
  }
  assert_int_equal(executed, 5);
}

static size_t read_golden(const char *name, char *out, size_t out_bytes) {
  FILE *file = fopen(name, "rb");
  assert_non_null(file);
  size_t bytes = fread(out, 1, out_bytes, file);
  fclose(file);
  assert_true(bytes > 0 && bytes < out_bytes);
  return bytes;
}

/* A bit that tips over in a stored or deflated member is found by its checksum, before its numbers are believed. */
static void test_damaged_archive_members_are_compared_as_bytes(void **state) {
  (void)state;
  heard h;
  static const char *const golden[] = {GOLDEN "same/sub/result.npz",
                                       GOLDEN "stock/sub/result.npz"}; /* stored, deflated */
  size_t executed = 0;
  for (int i = 0; i < 2; i++, executed++) {
    char bytes[4096];
    size_t count = read_golden(golden[i], bytes, sizeof bytes);
    const char *a = put_bytes("a.npz", bytes, count);
    assert_int_equal(trees(a, a, 0, NULL, &h).numbers, 24 * 3 + 3);
    bytes[30 + 10 + 50] ^= 16; /* in the data of the first member, behind its local header and name */
    const char *b = put_bytes("b.npz", bytes, count);
    assert_int_equal(trees(a, b, 1e9, NULL, &h).verdict, OC_VERDICT_DIFFERENT);
    find(&h, "a.npz", "coords (compared as bytes)");
    assert_int_equal(h.count, 1);
    assert_int_equal(trees(b, b, 0, NULL, &h).verdict, OC_VERDICT_EQUAL);
  }
  assert_int_equal(executed, 2);
}

static void test_archive_members_missing_and_extra(void **state) {
  (void)state;
  heard h;
  char bytes[4096];
  size_t count = read_golden(GOLDEN "same/sub/result.npz", bytes, sizeof bytes);
  const char *a = put_bytes("a.npz", bytes, count);
  int renamed = 0; /* in the local header and in the directory */
  for (size_t i = 0; i + 8 < count; i++)
    if (memcmp(bytes + i, "half.npy", 8) == 0) memcpy(bytes + i, "hale.npy", 8), renamed++;
  assert_int_equal(renamed, 2);
  const char *b = put_bytes("b.npz", bytes, count);
  oc_compare_result r = trees(a, b, 0, NULL, &h);
  assert_int_equal(r.verdict, OC_VERDICT_EXTRA);
  assert_int_equal(find(&h, "a.npz", "half")->verdict, OC_VERDICT_MISSING);
  assert_int_equal(find(&h, "a.npz", "hale")->verdict, OC_VERDICT_EXTRA);
  for (size_t i = 0; i + 8 < count; i++)
    if (memcmp(bytes + i, "hale.npy", 8) == 0)
      memcpy(bytes + i, "mask.npy", 8); /* two of one name: no archive to trust */
  put_bytes("b.npz", bytes, count);
  assert_int_equal(trees(path_of("b.npz"), path_of("b.npz"), 0, NULL, &h).numbers, 0);
}

/* ---- structures -------------------------------------------------------------------------------------------------- */

#define ATOM_HEAD "ATOM      1  CA  MET A   1    "

static void test_pdb_columns(void **state) {
  (void)state;
  heard h;
  const char *a = ATOM_HEAD "-100.123-200.456   3.000  1.00 80.50           C  \n";
  const char *moved = ATOM_HEAD "-100.123-200.457   3.000  1.00 80.51           C  \n";
  const char *renamed = "ATOM      1  CB  MET A   1    -100.123-200.456   3.000  1.00 80.50           C  \n";
  const char *stars = ATOM_HEAD "********-200.456   3.000  1.00 80.50           C  \n";
  assert_int_equal(files("pdb", a, a, 0, &h), OC_VERDICT_EQUAL);
  assert_int_equal(files("pdb", a, moved, 0, &h), OC_VERDICT_DIFFERENT);
  assert_true(find(&h, "a.pdb", "y line 1 (CA  MET A   1)")->b == -200.457);
  find(&h, "a.pdb", "b_factor line 1 (CA  MET A   1)");
  assert_int_equal(h.count, 2);
  assert_int_equal(files("pdb", a, moved, 0.1, &h), OC_VERDICT_WITHIN);
  assert_int_equal(files("pdb", a, renamed, 0.1, &h), OC_VERDICT_DIFFERENT);
  find(&h, "a.pdb", "text line 1");
  assert_int_equal(files("pdb", a, stars, 1e9, &h), OC_VERDICT_DIFFERENT);
  assert_int_equal(files("pdb", a, "", 1e9, &h), OC_VERDICT_DIFFERENT);
}

static void test_cif_values(void **state) {
  (void)state;
  heard h;
  static const struct {
    const char *a, *b;
    oc_verdict loose;
  } cases[] = {
      {"data_x\n_a.b 1.0\n", "data_x\n_a.b 1.1 # remark\n", OC_VERDICT_WITHIN},
      {"data_x\n_a.b 1.0\n", "data_x\n_a.b '1.0'\n", OC_VERDICT_EQUAL},
      {"data_x\n_a.b 1.0\n", "data_x\n_a.b '1.1'\n", OC_VERDICT_DIFFERENT}, /* quoted: text */
      {"data_x\n_a.id 1\n", "data_x\n_a.id 2\n", OC_VERDICT_DIFFERENT},     /* an identifier has no tolerance */
      {"data_x\n_a.b x\n", "data_x\n_a.c x\n", OC_VERDICT_DIFFERENT},
      {"data_x\n_a.b x\n", "data_y\n_a.b x\n", OC_VERDICT_DIFFERENT},
      {"data_x\nloop_\n_a.b\n_a.c\n1 2 3 4\n", "data_x\nloop_\n_a.b\n_a.c\n1 2\n3 4\n", OC_VERDICT_EQUAL},
      {"data_x\nloop_\n_a.b\n_a.c\n1 2 3 4\n", "data_x\nloop_\n_a.b\n_a.c\n1 2 3\n",
       OC_VERDICT_DIFFERENT}, /* row cut: bytes */
      {"data_x\nloop_\n_a.b\n1 2\n", "data_x\nloop_\n_a.b\n1 2 3\n", OC_VERDICT_DIFFERENT},
      {"data_x\n_a.b\n;one\ntwo\n;\n", "data_x\n_a.b\n;one\ntwo\n;\n", OC_VERDICT_EQUAL},
      {"data_x\n_a.b\n;one\ntwo\n;\n", "data_x\n_a.b\n;one\nTwo\n;\n", OC_VERDICT_DIFFERENT},
      {"data_x\n_a.b 'it's'\n", "data_x\n_a.b \"it's\"\n", OC_VERDICT_EQUAL},
      {"data_x\n_a.b ?\n", "data_x\n_a.b 1.0\n", OC_VERDICT_DIFFERENT},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    if (files("cif", cases[i].a, cases[i].b, 0.5, &h) != cases[i].loose)
      fail_msg("case %zu: %s %s", i, cases[i].a, cases[i].b);
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static void test_rules(void **state) {
  (void)state;
  heard h;
  const char *all =
      "{\"*.json\": {\"plddt\": {\"abs\": 1e-3}, \"*\": {\"rel\": 1e-5}}, \"model.*\": {\"*\": {\"abs\": 1e-3}},"
      " \"*\": {\"*\": {\"abs\": 0.1}}}";
  assert_int_equal(trees(GOLDEN "stock", GOLDEN "close", 0, all, &h).verdict, OC_VERDICT_WITHIN);
  const char *first = "{\"*.json\": {\"plddt\": \"exact\"}, \"*\": {\"*\": {\"abs\": 0.1}}}";
  assert_int_equal(trees(GOLDEN "stock", GOLDEN "close", 0, first, &h).verdict, OC_VERDICT_DIFFERENT);
  assert_int_equal(find(&h, "scores.json", "plddt[0]")->verdict, OC_VERDICT_DIFFERENT);
  assert_int_equal(find(&h, "pair.npy", "array[0,0,0]")->verdict, OC_VERDICT_WITHIN);
  const char *ignore =
      "{\"added.txt\": {\"*\": \"ignore\"}, \"*.npz\": {\"*\": \"ignore\"}, \"scores.json\": {\"*\": \"ignore\"},"
      " \"model.cif\": {\"*\": \"ignore\"}, \"pair.npy\": {\"array\": \"ignore\"}}";
  oc_compare_result r = trees(GOLDEN "stock", GOLDEN "far", 0, ignore, &h);
  assert_int_equal(r.verdict, OC_VERDICT_EQUAL);
  assert_int_equal(h.count, 0);
  assert_int_equal(r.files, 4);
}

static void test_malformed_rules_are_named(void **state) {
  (void)state;
  static const struct {
    const char *rules, *named;
  } cases[] = {
      {"[", "rules: line 1"},
      {"[]", "not an object of file globs"},
      {"{\"f\": 1}", "\"f\": not an object of field globs"},
      {"{\"f\": {\"g\": \"exakt\"}}", "word \"exakt\""},
      {"{\"f\": {\"g\": {\"abs\": -1}}}", "abs is not a number >= 0"},
      {"{\"f\": {\"g\": {\"ulp\": 1}}}", "unknown key \"ulp\""},
      {"{\"f\": {\"g\": {}}}", "not {\"abs\", \"rel\"}"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    oc_compare_options options = {.struct_bytes = sizeof options, .rules_json = cases[i].rules};
    oc_compare_result result;
    oc_err err = {0};
    assert_int_equal(oc_compare_trees(GOLDEN "stock", GOLDEN "stock", &options, NULL, NULL, &result, &err), OC_BAD_ARG);
    if (!strstr(err.detail, cases[i].named)) fail_msg("case %zu: %s", i, err.detail);
  }
}

static void test_bad_arguments(void **state) {
  (void)state;
  oc_compare_result result = {.verdict = OC_VERDICT_EXTRA};
  oc_err err = {0};
  oc_compare_options options = {.struct_bytes = 1};
  assert_int_equal(oc_compare_trees(dir, dir, &options, NULL, NULL, &result, &err), OC_BAD_ARG);
  options = (oc_compare_options){.struct_bytes = sizeof options, .tolerance = {NAN, 0}};
  assert_int_equal(oc_compare_trees(dir, dir, &options, NULL, NULL, &result, NULL), OC_BAD_ARG);
  err = (oc_err){0};
  assert_int_equal(oc_compare_trees(path_of("absent"), dir, NULL, NULL, NULL, &result, &err), OC_IO);
  assert_int_equal(err.native, 2);
  assert_int_equal(oc_compare_trees(put("file", "x"), dir, NULL, NULL, NULL, &result, NULL), OC_BAD_ARG);
  assert_int_equal(oc_compare_trees(NULL, dir, NULL, NULL, NULL, &result, NULL), OC_BAD_ARG);
  assert_int_equal(oc_compare_trees("", dir, NULL, NULL, NULL, &result, NULL), OC_BAD_ARG);
  assert_int_equal(result.verdict, OC_VERDICT_EXTRA); /* not written on failure */
  assert_string_equal(oc_verdict_word(OC_VERDICT_UNFINISHED), "unfinished");
  assert_string_equal(oc_verdict_word((oc_verdict)99), "unknown");
}

/* ---- trees ------------------------------------------------------------------------------------------------------- */

static void make_dirs(void) {
  char command[512];
  snprintf(command, sizeof command, "rm -rf '%s/A' '%s/B'; mkdir '%s/A' '%s/B'", dir, dir, dir, dir);
  assert_int_equal(system(command), 0);
}

static oc_compare_result sides(heard *h) { return trees(path_of("A"), path_of("B"), 0, NULL, h); }

static void test_empty_folders_are_not_equal(void **state) {
  (void)state;
  heard h;
  make_dirs();
  assert_int_equal(sides(&h).verdict, OC_VERDICT_MISSING);
  find(&h, "", "no file to compare");
  put("A/x.txt", "1\n");
  oc_compare_result r = sides(&h);
  assert_int_equal(r.verdict, OC_VERDICT_MISSING); /* a run that left nothing */
  assert_int_equal(r.files, 1);
  find(&h, "x.txt", "file");
}

static void age(const char *name, int seconds) {
  struct timespec times[2] = {{.tv_sec = 1700000000 + seconds}, {.tv_sec = 1700000000 + seconds}};
  assert_int_equal(utimensat(AT_FDCWD, path_of(name), times, 0), 0);
}

static void test_records(void **state) {
  (void)state;
  heard h;
  make_dirs();
  put("A/x.txt", "1\n");
  put("B/x.txt", "1\n");
  put("B/opt_manifest.json", "{\"state\": \"finished\"}");
  age("B/x.txt", 0);
  age("B/opt_manifest.json", 10);
  oc_compare_result r = sides(&h);
  assert_int_equal(r.verdict, OC_VERDICT_EQUAL); /* the record itself is left out */
  assert_int_equal(r.files, 1);
  age("B/opt_manifest.json", -10);
  assert_int_equal(sides(&h).verdict, OC_VERDICT_UNFINISHED);
  find(&h, "x.txt", "state of b: changed after the record was written");
  age("B/opt_manifest.json", -1); /* coarse clocks */
  assert_int_equal(sides(&h).verdict, OC_VERDICT_EQUAL);
  put("B/opt_manifest.17.json", "{\"state\": \"running\"}");
  assert_int_equal(sides(&h).verdict, OC_VERDICT_UNFINISHED);
  find(&h, "opt_manifest.17.json", "state of b: running");
  put("B/opt_manifest.17.json", "{\"state\": ");
  assert_int_equal(sides(&h).verdict, OC_VERDICT_UNFINISHED);
  assert_false(oc__tree_is_record("opt_manifest_old.json"));
  assert_true(oc__tree_is_record("sub/opt_manifest.rank3.json"));
}

/* 1700000000 is 2023-11-14T22:13:20Z. */
static void test_files_older_than_the_run(void **state) {
  (void)state;
  static const struct {
    int seconds; /* of the file against the start of the run */
    const char *state;
    oc_verdict verdict;
  } rows[] = {{-1, "finished", OC_VERDICT_EQUAL},        {-2, "closed", OC_VERDICT_EQUAL},
              {-3, "finished", OC_VERDICT_UNFINISHED},   {-3, "refused", OC_VERDICT_UNFINISHED},
              {-86400, "closed", OC_VERDICT_UNFINISHED}, {5, "finished", OC_VERDICT_EQUAL}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    heard h;
    char record[128];
    make_dirs();
    put("A/x.txt", "1\n");
    put("B/x.txt", "1\n");
    snprintf(record, sizeof record, "{\"state\": \"%s\", \"started\": \"2023-11-14T22:13:20Z\"}", rows[i].state);
    put("B/opt_manifest.json", record);
    age("B/x.txt", rows[i].seconds);
    age("B/opt_manifest.json", 10);
    assert_int_equal(sides(&h).verdict, rows[i].verdict);
    if (rows[i].verdict == OC_VERDICT_UNFINISHED) find(&h, "x.txt", "state of b: older than the run of the record");
  }
  heard h; /* the last row's tree, its file stale again */
  age("B/x.txt", -60);
  assert_int_equal(
      trees(path_of("A"), path_of("B"), 0, "{\"x.*\": {\"*\": \"ignore\"}, \"*\": {\"*\": \"exact\"}}", &h).verdict,
      OC_VERDICT_MISSING); /* left out by rule: nothing else is there to compare */
  put("B/opt_manifest.rank1.json", "{\"state\": \"finished\", \"started\": \"2023-11-14T22:12:20Z\"}");
  age("B/opt_manifest.rank1.json", 10);
  assert_int_equal(sides(&h).verdict, OC_VERDICT_EQUAL); /* the first start of several counts */
  put("B/opt_manifest.rank1.json", "{\"state\": \"finished\", \"started\": \"yesterday\"}");
  age("B/opt_manifest.rank1.json", 10);
  assert_int_equal(sides(&h).verdict, OC_VERDICT_EQUAL);
}

static void test_links_and_odd_files(void **state) {
  (void)state;
  heard h;
  make_dirs();
  put("A/x.txt", "1\n");
  assert_int_equal(symlink(path_of("A/x.txt"), path_of("B/x.txt")), 0);
  assert_int_equal(sides(&h).verdict, OC_VERDICT_EQUAL);
  assert_int_equal(mkfifo(path_of("B/pipe"), 0600), 0);
  oc_compare_result result;
  oc_err err = {0};
  assert_int_equal(oc_compare_trees(path_of("A"), path_of("B"), NULL, NULL, NULL, &result, &err), OC_IO);
  assert_non_null(strstr(err.detail, "neither file nor folder"));
  assert_int_equal(unlink(path_of("B/pipe")), 0);
  assert_int_equal(symlink("/nowhere/at/all", path_of("B/gone")), 0);
  err = (oc_err){0};
  assert_int_equal(oc_compare_trees(path_of("A"), path_of("B"), NULL, NULL, NULL, &result, &err), OC_IO);
  assert_non_null(strstr(err.detail, "link to nothing"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_numbers_written_another_way_are_equal),
      cmocka_unit_test(test_close_numbers_are_within_a_tolerance_only),
      cmocka_unit_test(test_far_trees_show_every_kind_of_difference),
      cmocka_unit_test(test_nan_and_infinity),
      cmocka_unit_test(test_text),
      cmocka_unit_test(test_a_locale_with_decimal_commas_changes_nothing),
      cmocka_unit_test(test_every_element_type_counts_one_changed_number),
      cmocka_unit_test(test_axis_order_is_only_layout),
      cmocka_unit_test(test_types_and_patterns),
      cmocka_unit_test(test_a_difference_behind_many_equal_blocks_is_found),
      cmocka_unit_test(test_damaged_files_are_compared_as_bytes),
      cmocka_unit_test(test_damaged_archive_members_are_compared_as_bytes),
      cmocka_unit_test(test_archive_members_missing_and_extra),
      cmocka_unit_test(test_pdb_columns),
      cmocka_unit_test(test_cif_values),
      cmocka_unit_test(test_rules),
      cmocka_unit_test(test_malformed_rules_are_named),
      cmocka_unit_test(test_bad_arguments),
      cmocka_unit_test(test_empty_folders_are_not_equal),
      cmocka_unit_test(test_records),
      cmocka_unit_test(test_files_older_than_the_run),
      cmocka_unit_test(test_links_and_odd_files),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
