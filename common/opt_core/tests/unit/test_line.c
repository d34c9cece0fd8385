/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opt_core/record.h"
#include "record/line.h"
#include "util/percent.h"

static void expect(const oc_line *line, const char *text) {
  char out[OC_LINE_MAX + 1];
  size_t bytes = 0;
  oc_err err = {0};
  assert_int_equal(oc_line_format(line, out, sizeof out, &bytes, &err), OC_OK);
  assert_string_equal(out, text);
  assert_int_equal(bytes, strlen(text));
}

static void test_printed_forms(void **state) {
  (void)state;
  oc_line active = {.kind = OC_LINE_ACTIVE,
                    .field_count = 3,
                    .field = {{"engine", "e"}, {"mode", "fast"}, {"core_dir", "/a b/c=%\n\xC3\xA9"}}};
  expect(&active, "[opt_core] ACTIVE engine=e mode=fast core_dir=/a%20b/c=%25%0A%C3%A9\n");
  oc_line lever = {
      .kind = OC_LINE_LEVER, .field_count = 3, .field = {{"tri=attn", NULL}, {"active", NULL}, {"row", ""}}};
  expect(&lever, "[opt_core] LEVER tri%3Dattn active row=\n");
  oc_line no = {
      .kind = OC_LINE_NOT_ACTIVE, .field_count = 2, .field = {{"tri attn:", NULL}, {"arch:80!=sm_90a  x\t%", NULL}}};
  expect(&no, "[opt_core] NOT ACTIVE: tri%20attn:: arch:80!=sm_90a  x%09%25\n");
  oc_line sum = {.kind = OC_LINE_ACCOUNTING, .field_count = 2, .field = {{"ln", NULL}, {"3 calls = 2", NULL}}};
  expect(&sum, "[opt_core] ACCOUNTING ln: 3 calls = 2\n");
  oc_line cells = {.kind = OC_LINE_CELLS};
  expect(&cells, "[opt_core] CELLS\n");
}

static void test_not_printable(void **state) {
  (void)state;
  static oc_line bad[] = {{.kind = OC_LINE_KIND_COUNT},
                          {.kind = OC_LINE_EXIT, .field_count = -1},
                          {.kind = OC_LINE_EXIT, .field_count = OC_LINE_FIELDS + 1},
                          {.kind = OC_LINE_EXIT, .field_count = 1, .field = {{NULL, "x"}}},
                          {.kind = OC_LINE_EXIT, .field_count = 1, .field = {{"", "x"}}},
                          {.kind = OC_LINE_EXIT, .field_count = 2, .field = {{"a", "x"}, {"b", NULL}}},
                          {.kind = OC_LINE_NOT_ACTIVE, .field_count = 1, .field = {{"a", NULL}}},
                          {.kind = OC_LINE_NOT_ACTIVE, .field_count = 2, .field = {{"a", NULL}, {"b", "c"}}},
                          {.kind = OC_LINE_ACCOUNTING, .field_count = 2, .field = {{"a", NULL}, {"", NULL}}}};
  char out[OC_LINE_MAX + 1] = "poison";
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    oc_err err = {0};
    size_t bytes = 77;
    assert_int_equal(oc_line_format(&bad[i], out, sizeof out, &bytes, &err), OC_BAD_ARG);
    assert_true(err.detail[0]);
    assert_int_equal(bytes, 77);
    assert_string_equal(out, "poison");
  }
}

static void test_length_limits(void **state) {
  (void)state;
  char value[OC_LINE_MAX], out[OC_LINE_MAX + 1];
  const size_t frame = strlen("[opt_core] NOTE k=\n");
  oc_line line = {.kind = OC_LINE_NOTE, .field_count = 1, .field = {{"k", value}}}, back;
  size_t bytes;
  memset(value, 'v', sizeof value);
  value[OC_LINE_MAX - frame] = '\0';
  assert_int_equal(oc_line_format(&line, out, sizeof out, &bytes, NULL), OC_OK);
  assert_int_equal(bytes, OC_LINE_MAX);
  assert_int_equal(oc_line_parse(out, bytes, &back, NULL), OC_OK);
  assert_string_equal(back.field[0].value, value);
  assert_int_equal(oc_line_parse(out, bytes - 1, &back, NULL), OC_OK); /* without its newline */
  assert_int_equal(oc_line_format(&line, out, OC_LINE_MAX, &bytes, NULL), OC_BAD_ARG);
  value[OC_LINE_MAX - frame] = 'v';
  value[OC_LINE_MAX - frame + 1] = '\0';
  oc_err err = {0};
  assert_int_equal(oc_line_format(&line, out, sizeof out, &bytes, &err), OC_BAD_ARG);
  assert_non_null(strstr(err.detail, "4096"));
  char longer[OC_LINE_MAX + 8];
  memset(longer, 'v', sizeof longer);
  memcpy(longer, "[opt_core] NOTE k=", frame - 1);
  assert_int_equal(oc_line_parse(longer, OC_LINE_MAX, &back, NULL), OC_BAD_ARG);
  assert_int_equal(oc_line_parse(longer, OC_LINE_MAX - 1, &back, NULL), OC_OK);
}

static void test_malformed(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    "\n",
                                    "[opt_core]",
                                    "[opt_core] ",
                                    "opt_core] EXIT",
                                    "[opt_core]  EXIT",
                                    "[opt_core] exit",
                                    "[opt_core] EXITS",
                                    "[opt_core] EXIT ",
                                    "[opt_core] EXIT  a",
                                    "[opt_core] EXIT a ",
                                    "[opt_core] EXIT =v",
                                    "[opt_core] EXIT a=b c",
                                    "[opt_core] EXIT a=%",
                                    "[opt_core] EXIT a=%2",
                                    "[opt_core] EXIT a=%41",
                                    "[opt_core] EXIT a=%3D",
                                    "[opt_core] EXIT a=%0a",
                                    "[opt_core] EXIT a=%00",
                                    "[opt_core] EXIT a=\t",
                                    "[opt_core] EXIT a\x7f",
                                    "[opt_core] EXIT a=\xC3\xA9",
                                    "[opt_core] EXIT\n\n",
                                    "[opt_core] EXIT\nx",
                                    "[opt_core] NOT ACTIVE",
                                    "[opt_core] NOT ACTIVE:",
                                    "[opt_core] NOT ACTIVE: ",
                                    "[opt_core] NOT ACTIVE: a",
                                    "[opt_core] NOT ACTIVE: a:",
                                    "[opt_core] NOT ACTIVE: a: ",
                                    "[opt_core] NOT ACTIVE: : b",
                                    "[opt_core] NOT ACTIVE: a b: c",
                                    "[opt_core] NOT ACTIVE: a: b%20c",
                                    "[opt_core] NOT ACTIVE: a: b\tc",
                                    "[opt_core] NOT ACTIVE: a=b: c",
                                    "[opt_core] ACCOUNTING",
                                    "[opt_core] ACCOUNTING a",
                                    "[opt_core] ACCOUNTING: a: b",
                                    "[opt_core] NOTE a%3d",
                                    "[opt_core] NOT  ACTIVE: a: b",
                                    "[OPT_CORE] EXIT"};
  oc_line line;
  int cases = 0;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++, cases++) {
    oc_err err = {0};
    if (oc_line_parse(bad[i], strlen(bad[i]), &line, &err) != OC_BAD_ARG) fail_msg("accepted: %s", bad[i]);
    assert_memory_equal(err.detail, "column ", 7);
  }
  assert_int_equal(cases, 41);
  assert_int_equal(oc_line_parse("[opt_core] EXIT a\0b", 19, &line, NULL), OC_BAD_ARG);
  oc_err err = {0};
  oc_line_parse("[opt_core] EXIT ok bad\x01", 23, &line, &err);
  assert_string_equal(err.detail, "column 23: a byte that is not written like this");
}

static void test_field_count_limit(void **state) {
  (void)state;
  char text[1024] = "[opt_core] NOTE";
  for (int i = 0; i < OC_LINE_FIELDS; i++) strcat(text, " a");
  oc_line line;
  assert_int_equal(oc_line_parse(text, strlen(text), &line, NULL), OC_OK);
  assert_int_equal(line.field_count, OC_LINE_FIELDS);
  strcat(text, " a");
  assert_int_equal(oc_line_parse(text, strlen(text), &line, NULL), OC_BAD_ARG);
}

static uint64_t seed = 88172645463325252u;
static unsigned next(unsigned below) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (unsigned)(seed % below);
}

static char *random_text(char *out, unsigned least, unsigned most) {
  unsigned bytes = least + next(most - least + 1);
  for (unsigned i = 0; i < bytes; i++) out[i] = (char)(next(3) ? 0x20 + next(0x60) : 1 + next(255));
  out[bytes] = '\0';
  return out;
}

/* Every printed line reads back to the same fields and prints to the same bytes. */
static void test_print_then_parse(void **state) {
  (void)state;
  static char store[2 * OC_LINE_FIELDS][64];
  int printed = 0, seen[OC_LINE_KIND_COUNT] = {0};
  for (int round = 0; round < 20000; round++) {
    oc_line line = {.kind = (oc_line_kind)next(OC_LINE_KIND_COUNT)}, back;
    int statement = line.kind == OC_LINE_NOT_ACTIVE || line.kind == OC_LINE_ACCOUNTING;
    line.field_count = statement ? 2 : (int)next(12);
    int words = statement ? 2 : (int)next((unsigned)line.field_count + 1);
    for (int i = 0; i < line.field_count; i++) {
      line.field[i].key = random_text(store[2 * i], 1, 40);
      line.field[i].value = i < words ? NULL : random_text(store[2 * i + 1], 0, 40);
    }
    char out[OC_LINE_MAX + 1], again[OC_LINE_MAX + 1];
    size_t bytes;
    if (oc_line_format(&line, out, sizeof out, &bytes, NULL) != OC_OK) continue;
    assert_ptr_equal(memchr(out, '\n', bytes), out + bytes - 1);
    assert_int_equal(oc_line_parse(out, bytes, &back, NULL), OC_OK);
    assert_int_equal(back.kind, line.kind);
    assert_int_equal(back.field_count, line.field_count);
    for (int i = 0; i < line.field_count; i++) {
      assert_string_equal(back.field[i].key, line.field[i].key);
      assert_int_equal(back.field[i].value == NULL, line.field[i].value == NULL);
      if (line.field[i].value) assert_string_equal(back.field[i].value, line.field[i].value);
    }
    assert_int_equal(oc_line_format(&back, again, sizeof again, NULL, NULL), OC_OK);
    assert_string_equal(again, out);
    printed++;
    seen[line.kind]++;
  }
  assert_true(printed > 19000);
  for (int i = 0; i < OC_LINE_KIND_COUNT; i++) assert_true(seen[i] > 1000);
}

/* Every accepted text prints to the same bytes; texts are mutated lines. */
static void test_parse_then_print(void **state) {
  (void)state;
  static const char *const seeds[] = {"[opt_core] ACTIVE engine=e mode=fast core_dir=/a%20b\n",
                                      "[opt_core] LEVER a b row=%25=\n", "[opt_core] NOT ACTIVE: a:: b  c%0A\n",
                                      "[opt_core] ACCOUNTING x: 1 = 2\n"};
  static const char letters[] = " =%:0AaF2D\n\tx]";
  int accepted = 0, refused = 0;
  for (int round = 0; round < 60000; round++) {
    char text[128], out[OC_LINE_MAX + 1];
    strcpy(text, seeds[next(4)]);
    size_t bytes = strlen(text);
    for (unsigned edits = 1 + next(2); edits; edits--)
      text[10 + next((unsigned)bytes - 10)] = letters[next(sizeof letters - 1)];
    oc_line line;
    if (oc_line_parse(text, bytes, &line, NULL) != OC_OK) {
      refused++;
      continue;
    }
    accepted++;
    size_t written;
    assert_int_equal(oc_line_format(&line, out, sizeof out, &written, NULL), OC_OK);
    if (text[bytes - 1] != '\n') written--;
    assert_int_equal(written, bytes);
    assert_memory_equal(out, text, bytes);
  }
  assert_true(accepted > 5000);
  assert_true(refused > 5000);
}

static void test_fit_counts_what_it_drops(void **state) {
  (void)state;
  oc_line line = {.kind = OC_LINE_CELLS}, back;
  char value[101], out[OC_LINE_MAX + 1];
  memset(value, 'v', 100);
  value[100] = '\0';
  for (int i = 0; i < 60; i++) oc__line_add(&line, "k", value);
  size_t bytes = oc__line_fit(&line, 5, out);
  assert_in_range(bytes, OC_LINE_MAX - 110, OC_LINE_MAX);
  assert_int_equal(oc_line_parse(out, bytes, &back, NULL), OC_OK);
  assert_string_equal(back.field[back.field_count - 1].key, "MORE");
  assert_int_equal(atoi(back.field[back.field_count - 1].value), 60 + 5 - (back.field_count - 1));
}

static void test_percent_is_canonical(void **state) {
  (void)state;
  int cases = 0;
  for (unsigned flags = 0; flags < 4; flags++)
    for (int byte = 1; byte < 256; byte++, cases++) {
      char in = (char)byte, coded[3], back[3];
      size_t width = oc__percent_encode(&in, 1, flags, coded, sizeof coded), count;
      assert_true(width == 1 || width == 3);
      assert_int_equal(oc__percent_decode(coded, width, flags, back, &count), width);
      assert_int_equal(count, 1);
      assert_int_equal(back[0], in);
    }
  assert_int_equal(cases, 4 * 255);
}

struct heard {
  int count;
  char last[OC_LINE_MAX + 1];
};
static void hear(const char *text, size_t bytes, void *context) {
  struct heard *heard = context;
  memcpy(heard->last, text, bytes);
  heard->last[bytes] = '\0';
  heard->count++;
}

static void test_sink_and_default(void **state) {
  (void)state;
  struct heard heard = {0, ""};
  oc_line line = {.kind = OC_LINE_NOTE, .field_count = 1, .field = {{"hello", NULL}}};
  oc_line_set_sink(hear, &heard);
  assert_int_equal(oc_line_write(&line, NULL), OC_OK);
  oc_line_set_sink(NULL, NULL);
  assert_int_equal(heard.count, 1);
  assert_string_equal(heard.last, "[opt_core] NOTE hello\n");
  int saved = dup(2), pipes[2];
  assert_int_equal(pipe(pipes), 0);
  dup2(pipes[1], 2);
  oc_status status = oc_line_write(&line, NULL);
  dup2(saved, 2);
  close(pipes[1]);
  char got[64] = "";
  ssize_t bytes = read(pipes[0], got, sizeof got - 1);
  close(pipes[0]);
  int full = open("/dev/full", O_WRONLY);
  oc_err err = {0};
  oc_status failed = OC_OK;
  if (full >= 0) {
    dup2(full, 2);
    failed = oc_line_write(&line, &err);
    dup2(saved, 2);
    close(full);
  }
  close(saved);
  assert_int_equal(status, OC_OK);
  assert_int_equal(bytes, 22);
  assert_string_equal(got, "[opt_core] NOTE hello\n");
  assert_true(full >= 0);
  assert_int_equal(failed, OC_IO);
  assert_int_equal(err.native, 28); /* ENOSPC */
}

/* Lines of four processes on one pipe never mix. */
static void test_lines_of_processes_stay_whole(void **state) {
  (void)state;
  enum { PROCESSES = 4, LINES = 300 };
  int pipes[2];
  assert_int_equal(pipe(pipes), 0);
  for (int p = 0; p < PROCESSES; p++) {
    if (fork()) continue;
    char value[2000];
    memset(value, 'a' + p, sizeof value - 1);
    value[sizeof value - 1] = '\0';
    oc_line line = {.kind = OC_LINE_NOTE, .field_count = 1, .field = {{"v", value}}};
    dup2(pipes[1], 2);
    for (int i = 0; i < LINES; i++) oc_line_write(&line, NULL);
    _exit(0);
  }
  close(pipes[1]);
  FILE *in = fdopen(pipes[0], "r");
  char text[OC_LINE_MAX + 1];
  int count[PROCESSES] = {0};
  while (fgets(text, sizeof text, in)) {
    oc_line line;
    assert_int_equal(oc_line_parse(text, strlen(text), &line, NULL), OC_OK);
    char letter = line.field[0].value[0];
    assert_int_equal(strspn(line.field[0].value, (char[]){letter, 0}), 1999);
    count[letter - 'a']++;
  }
  fclose(in);
  for (int p = 0; p < PROCESSES; p++) {
    wait(NULL);
    assert_int_equal(count[p], LINES);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_printed_forms),
                                     cmocka_unit_test(test_not_printable),
                                     cmocka_unit_test(test_length_limits),
                                     cmocka_unit_test(test_malformed),
                                     cmocka_unit_test(test_field_count_limit),
                                     cmocka_unit_test(test_print_then_parse),
                                     cmocka_unit_test(test_parse_then_print),
                                     cmocka_unit_test(test_fit_counts_what_it_drops),
                                     cmocka_unit_test(test_percent_is_canonical),
                                     cmocka_unit_test(test_sink_and_default),
                                     cmocka_unit_test(test_lines_of_processes_stay_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
