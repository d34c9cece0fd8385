/* SPDX-License-Identifier: Apache-2.0 */
/* The ELF files are made here: libraries that define versions, and one that needs them. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <elf.h>
#include <errno.h>
#include <gnu/libc-version.h>
#include <cmocka.h>

#include "activation/elf.h"
#include "activation/host.h"
#include "opt_core/activation.h"
#include "opt_core/version.h"
#include "scratch.h"

static unsigned char *image;
static size_t image_bytes;

static const char make_files[] =
    "cd '%s' && CC=${CC:-cc} && mkdir -p lib old && "
    "printf 'int f1(void){return 1;} int f2(void){return 2;} int f3(void){return 3;} int f4(void){return 4;}' > dep.c "
    "&& "
    "printf 'GLIBCXX_3.4.9 { global: f1; }; GLIBCXX_3.4.32 { global: f2; } GLIBCXX_3.4.9; "
    "CXXABI_1.3.13 { global: f3; local: *; }; GLIBC_ABI_DT_RELR { global: f4; };' > dep.map && "
    "$CC -shared -fPIC -Wl,--version-script=dep.map -Wl,-soname,libstdc++.so.6 -o lib/libstdc++.so.6 dep.c && "
    "sed 's/3.4.32/3.4.30/; s/1.3.13/1.3.2/' dep.map > old.map && "
    "$CC -shared -fPIC -Wl,--version-script=old.map -Wl,-soname,libstdc++.so.6 -o old/libstdc++.so.6 dep.c && "
    "printf 'int f1(void); int f2(void); int f3(void); int f4(void); int use(void){return f1()+f2()+f3()+f4();}' > "
    "use.c && "
    "$CC -shared -fPIC -o use.so use.c lib/libstdc++.so.6 && "
    "printf 'int alone(void){return 0;}' > alone.c && $CC -shared -fPIC -nostdlib -o alone.so alone.c && "
    "$CC -c -o alone.o alone.c";

static void read_image(const char *name) {
  FILE *file = fopen(scratch_path(name), "rb");
  assert_non_null(file);
  image = malloc(1 << 20);
  image_bytes = fread(image, 1, 1 << 20, file);
  fclose(file);
  assert_in_range(image_bytes, 1000, (1 << 20) - 1);
}

static int setup(void **state) {
  char command[4096];
  if (scratch_make(state) != 0) return -1;
  snprintf(command, sizeof command, make_files, scratch_dir);
  if (system(command) != 0) return -1;
  read_image("use.so");
  return 0;
}

static int teardown(void **state) {
  free(image);
  return scratch_remove(state);
}

static oc_status floor_of(const unsigned char *bytes, size_t count, oc_host_floor *out, oc_err *err) {
  const oc__elf_source source = {-1, bytes, count, "memory"};
  return oc__elf_floor(&source, OC__ELF_NEEDED, out, err);
}

static void check_need(const oc_host_floor *need) {
  assert_true(oc_version_compare(need->glibc, "2.36") >= 0); /* by way of the marker for packed relocations */
  assert_string_equal(need->glibcxx, "3.4.32");
  assert_string_equal(need->cxxabi, "1.3.13");
}

static void test_needs(void **state) {
  (void)state;
  oc_host_floor need;
  assert_int_equal(oc_host_floor_read(scratch_path("use.so"), &need, NULL), OC_OK);
  check_need(&need);
  assert_int_equal(oc_host_floor_read(scratch_path("alone.so"), &need, NULL), OC_OK);
  assert_string_equal(need.glibc, "");
  assert_string_equal(need.glibcxx, "");
  assert_string_equal(need.cxxabi, "");
  assert_int_equal(oc_host_floor_read(scratch_path("alone.o"), &need, NULL), OC_OK);
  assert_string_equal(need.glibc, "");
  /* This program needs the C library that it runs on, and no more than that. */
  assert_int_equal(oc_host_floor_read("/proc/self/exe", &need, NULL), OC_OK);
  assert_true(oc_version_compare(need.glibc, "2.2") >= 0);
  assert_true(oc_version_compare(need.glibc, gnu_get_libc_version()) <= 0);
}

/* The same needs from the dynamic segment alone and from the section headers alone. */
static void test_both_ways_to_the_table(void **state) {
  (void)state;
  oc_host_floor need;
  unsigned char *copy = malloc(image_bytes);
  memcpy(copy, image, image_bytes);
  Elf64_Ehdr *header = (Elf64_Ehdr *)(void *)copy;
  header->e_shoff = 0;
  header->e_shnum = 0;
  assert_int_equal(floor_of(copy, image_bytes, &need, NULL), OC_OK);
  check_need(&need);
  memcpy(copy, image, image_bytes);
  header->e_phnum = 0;
  need = (oc_host_floor){"", "", ""};
  assert_int_equal(floor_of(copy, image_bytes, &need, NULL), OC_OK);
  check_need(&need);
  header->e_shnum = 0;
  assert_int_equal(floor_of(copy, image_bytes, &need, NULL), OC_OK);
  assert_string_equal(need.glibcxx, "");
  free(copy);
}

/* The section header of the needs in a copy of the image. */
static Elf64_Shdr *needs_section(unsigned char *copy) {
  Elf64_Ehdr *header = (Elf64_Ehdr *)(void *)copy;
  Elf64_Shdr *sections = (Elf64_Shdr *)(void *)(copy + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++)
    if (sections[i].sh_type == SHT_GNU_verneed) return &sections[i];
  fail_msg("no section of version needs in %d sections", header->e_shnum);
  return NULL;
}

static void test_weak_needs_set_no_floor(void **state) {
  (void)state;
  oc_host_floor need;
  int marked = 0;
  unsigned char *copy = malloc(image_bytes);
  memcpy(copy, image, image_bytes);
  unsigned char *at = copy + needs_section(copy)->sh_offset;
  for (Elf64_Verneed *entry = (Elf64_Verneed *)(void *)at;; entry = (Elf64_Verneed *)(void *)at) {
    unsigned char *aux = at + entry->vn_aux;
    for (int i = 0; i < entry->vn_cnt; i++, marked++) {
      Elf64_Vernaux *name = (Elf64_Vernaux *)(void *)aux;
      name->vna_flags |= VER_FLG_WEAK;
      aux += name->vna_next;
    }
    if (entry->vn_next == 0) break;
    at += entry->vn_next;
  }
  assert_true(marked >= 4);
  assert_int_equal(floor_of(copy, image_bytes, &need, NULL), OC_OK);
  assert_string_equal(need.glibc, "");
  assert_string_equal(need.glibcxx, "");
  assert_string_equal(need.cxxabi, "");
  free(copy);
}

static void check_bad_table(unsigned char *copy, const char *why) {
  oc_host_floor need;
  oc_err err = {0};
  assert_int_equal(floor_of(copy, image_bytes, &need, &err), OC_BAD_ARG);
  if (!strstr(err.detail, why)) fail_msg("'%s' does not hold '%s'", err.detail, why);
  memcpy(copy, image, image_bytes);
  ((Elf64_Ehdr *)(void *)copy)->e_phnum = 0; /* by the sections, whose sizes are the table's */
}

static void test_bad_version_tables(void **state) {
  (void)state;
  oc_host_floor need;
  unsigned char *copy = malloc(image_bytes);
  memcpy(copy, image, image_bytes);
  ((Elf64_Ehdr *)(void *)copy)->e_phnum = 0;
  Elf64_Shdr *section = needs_section(copy);
  Elf64_Verneed *entry = (Elf64_Verneed *)(void *)(copy + section->sh_offset);
  Elf64_Vernaux *name = (Elf64_Vernaux *)(void *)(copy + section->sh_offset + entry->vn_aux);
  assert_int_equal(floor_of(copy, image_bytes, &need, NULL), OC_OK);
  section->sh_size = sizeof *entry + 8, check_bad_table(copy, "lies past its table");
  section->sh_size = 8, check_bad_table(copy, "lies past its table");
  section->sh_size = UINT64_MAX, check_bad_table(copy, "past the end");
  section->sh_link = 60000, check_bad_table(copy, "links to none");
  entry->vn_version = 2, check_bad_table(copy, "unknown version of the needs table");
  entry->vn_aux = 0x7fffffff, check_bad_table(copy, "lies past its table");
  entry->vn_next = 3, check_bad_table(copy, "records overlap");
  name->vna_next = 1, entry->vn_cnt = 9, check_bad_table(copy, "records overlap");
  name->vna_name = 0x7fffffff, check_bad_table(copy, "past the strings");
  free(copy);
}

static void check_bad(size_t at, unsigned char byte, const char *why) {
  oc_host_floor need = {"x", "x", "x"};
  oc_err err = {0};
  unsigned char keep = image[at];
  image[at] = byte;
  assert_int_equal(floor_of(image, image_bytes, &need, &err), OC_BAD_ARG);
  if (!strstr(err.detail, why)) fail_msg("'%s' does not hold '%s'", err.detail, why);
  assert_string_equal(need.glibc, "x");
  image[at] = keep;
}

static void test_no_valid_elf(void **state) {
  (void)state;
  oc_host_floor need;
  oc_err err = {0};
  check_bad(0, 0, "no ELF magic");
  check_bad(EI_CLASS, ELFCLASS32, "not 64 bits");
  check_bad(EI_DATA, ELFDATA2MSB, "not little-endian");
  check_bad(offsetof(Elf64_Ehdr, e_phentsize), 1, "program header size");
  check_bad(offsetof(Elf64_Ehdr, e_phoff) + 7, 0x7f, "past the end");
  assert_int_equal(floor_of(image, 10, &need, NULL), OC_BAD_ARG);
  assert_int_equal(floor_of(image, 0, &need, NULL), OC_BAD_ARG);
  assert_int_equal(oc_host_floor_read(scratch_path("use.c"), &need, NULL), OC_BAD_ARG);
  assert_int_equal(oc_host_floor_read(scratch_path("absent"), &need, &err), OC_IO);
  assert_int_equal(err.native, ENOENT);
  err = (oc_err){0};
  assert_int_equal(oc_host_floor_read(scratch_dir, &need, &err), OC_IO);
}

/* Every truncation and a change of every byte end in OK or BAD_ARG; the sanitizers watch the reads. A copy of exactly
 * the right size is made, so that a read past it is seen. */
static void test_damaged_files(void **state) {
  (void)state;
  oc_host_floor need;
  size_t refused = 0, cases = 0;
  for (size_t count = 0; count < image_bytes; count += 7, cases++) {
    unsigned char *copy = malloc(count ? count : 1);
    memcpy(copy, image, count);
    oc_status status = floor_of(copy, count, &need, NULL);
    assert_true(status == OC_OK || status == OC_BAD_ARG);
    refused += status != OC_OK;
    free(copy);
  }
  unsigned char *copy = malloc(image_bytes);
  memcpy(copy, image, image_bytes);
  static const unsigned char values[] = {0x00, 0xff, 0x7f, 0x80, 0x01};
  for (size_t at = 0; at < image_bytes; at++)
    for (size_t v = 0; v < sizeof values; v++, cases++) {
      copy[at] = values[v];
      oc_status status = floor_of(copy, image_bytes, &need, NULL);
      assert_true(status == OC_OK || status == OC_BAD_ARG);
      refused += status != OC_OK;
      copy[at] = image[at];
    }
  free(copy);
  assert_true(cases > 5 * image_bytes);
  assert_true(refused > 100);
}

static void test_host_libraries(void **state) {
  (void)state;
  char list[512];
  oc_host_floor host = {"", "", ""};
  assert_int_equal(oc__host_cxx_in(NULL, &host), 0);
  assert_int_equal(oc__host_cxx_in("", &host), 0);
  assert_int_equal(oc__host_cxx_in("/nonexistent::relative;", &host), 0);
  assert_string_equal(host.glibcxx, "");
  snprintf(list, sizeof list, "/nonexistent:%s:%s", scratch_path("old"), scratch_path("lib"));
  assert_int_equal(oc__host_cxx_in(list, &host), 1); /* the first in the list, as the loader has it */
  assert_string_equal(host.glibcxx, "3.4.30");
  assert_string_equal(host.cxxabi, "1.3.2");
  scratch_write("libstdc++.so.6", "no library", 10);
  snprintf(list, sizeof list, "%s:%s", scratch_dir, scratch_path("lib"));
  assert_int_equal(oc__host_cxx_in(list, &host), 1); /* a broken file is passed over */
  assert_string_equal(host.glibcxx, "3.4.32");
  assert_string_equal(host.cxxabi, "1.3.13");
}

static void test_here(void **state) {
  (void)state;
  oc_host_floor here = {"", "", ""}, mine;
  setenv("LD_LIBRARY_PATH", scratch_path("old"), 1); /* read by the function, not by the loader of this process */
  assert_int_equal(oc_host_floor_here(&here, NULL), OC_OK);
  unsetenv("LD_LIBRARY_PATH");
  assert_string_equal(here.glibc, gnu_get_libc_version());
  assert_true(here.glibcxx[0] >= '0' && here.glibcxx[0] <= '9');
  assert_int_equal(oc_host_floor_read("/proc/self/exe", &mine, NULL), OC_OK);
  assert_int_equal(oc_gate_host_floor(&mine, &here, NULL), OC_OK);
}

static void check_gate(oc_host_floor need, oc_host_floor have, const char *detail) {
  oc_err err = {0};
  oc_status status = oc_gate_host_floor(&need, &have, &err);
  assert_int_equal(status, detail ? OC_REFUSED : OC_OK);
  if (!detail) return;
  assert_int_equal(err.reason, OC_REASON_HOST_FLOOR);
  assert_string_equal(err.detail, detail);
}

static void test_gate(void **state) {
  (void)state;
  const oc_host_floor have = {"2.36", "3.4.30", "1.3.13"};
  check_gate((oc_host_floor){"", "", ""}, have, NULL);
  check_gate((oc_host_floor){"2.36", "3.4.30", "1.3.13"}, have, NULL);
  check_gate((oc_host_floor){"2.9", "3.4.9", "1.3.9"}, have, NULL);
  check_gate((oc_host_floor){"2.38", "", ""}, have, "GLIBC_2.38>2.36");
  check_gate((oc_host_floor){"2.17", "3.4.32", ""}, have, "GLIBCXX_3.4.32>3.4.30");
  check_gate((oc_host_floor){"", "", "1.3.15"}, have, "CXXABI_1.3.15>1.3.13");
  check_gate((oc_host_floor){"2.38", "3.4.32", ""}, have, "GLIBC_2.38>2.36");
  check_gate((oc_host_floor){"", "3.4.1", ""}, (oc_host_floor){"2.36", "", ""}, "GLIBCXX_3.4.1>none");
  check_gate((oc_host_floor){"2.17", "", ""}, (oc_host_floor){"2.36", "", ""}, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_needs),
                                     cmocka_unit_test(test_both_ways_to_the_table),
                                     cmocka_unit_test(test_no_valid_elf),
                                     cmocka_unit_test(test_weak_needs_set_no_floor),
                                     cmocka_unit_test(test_bad_version_tables),
                                     cmocka_unit_test(test_damaged_files),
                                     cmocka_unit_test(test_host_libraries),
                                     cmocka_unit_test(test_here),
                                     cmocka_unit_test(test_gate)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
