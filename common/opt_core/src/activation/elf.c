/* SPDX-License-Identifier: Apache-2.0 */
/* Every offset, count and string of the file is distrusted: each is checked against the bytes that are there, records
 * must move forward by at least their own size, and the work is bounded by the size of the table. */
#define _GNU_SOURCE
#include "activation/elf.h"

#include "opt_core/version.h"

#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TABLE_MAX_BYTES ((uint64_t)64 << 20) /* of a section that is read whole */

typedef struct span {
  uint64_t offset, bytes;
} span;

/* A version section (needs or definitions) and the strings that it names. */
typedef struct version_table {
  span records, strings;
  uint64_t count; /* of first-level records */
} version_table;

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

static oc_status malformed(const oc__elf_source *source, const char *what, oc_err *err) {
  return OC_FAIL(err, BAD_ARG, 0, "%.96s: no valid ELF64 file: %s", source->name, what);
}

static int is_inside(const oc__elf_source *source, span part) {
  return part.offset <= source->bytes && part.bytes <= source->bytes - part.offset;
}

static oc_status read_at(const oc__elf_source *source, span part, void *out, oc_err *err) {
  if (!is_inside(source, part)) return malformed(source, "a table lies past the end", err);
  if (source->memory) {
    if (part.bytes) memcpy(out, source->memory + part.offset, part.bytes);
    return OC_OK;
  }
  for (uint64_t done = 0; done < part.bytes;) {
    ssize_t got = pread(source->fd, (char *)out + done, part.bytes - done, (off_t)(part.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return OC_FAIL(err, IO, errno, "%.96s: %s", source->name, strerror(errno));
    if (got == 0) return malformed(source, "it shrank while it was read", err);
    done += (uint64_t)got;
  }
  return OC_OK;
}

/* A copy of part with one zero byte behind it, so that the last string always ends. Caller frees. */
static oc_status read_copy(const oc__elf_source *source, span part, char **out, oc_err *err) {
  if (!is_inside(source, part)) return malformed(source, "a table lies past the end", err);
  if (part.bytes > TABLE_MAX_BYTES) return malformed(source, "a table is larger than 64 MiB", err);
  char *copy = malloc(part.bytes + 1);
  if (!copy) return OC_FAIL(err, NO_MEM, 0, "%llu bytes", (unsigned long long)part.bytes + 1);
  copy[part.bytes] = '\0';
  oc_status status = read_at(source, part, copy, err);
  if (status == OC_OK)
    *out = copy;
  else
    free(copy);
  return status;
}

/* ---- where the tables are --------------------------------------------------------------------------------------- */

static oc_status read_header(const oc__elf_source *source, Elf64_Ehdr *header, oc_err *err) {
  if (source->bytes < sizeof *header) return malformed(source, "shorter than an ELF header", err);
  OC_TRY(read_at(source, (span){0, sizeof *header}, header, err));
  if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return malformed(source, "no ELF magic", err);
  if (header->e_ident[EI_CLASS] != ELFCLASS64) return malformed(source, "not 64 bits", err);
  if (header->e_ident[EI_DATA] != ELFDATA2LSB) return malformed(source, "not little-endian", err);
  return OC_OK;
}

static oc_status read_segments(const oc__elf_source *source, const Elf64_Ehdr *header, Elf64_Phdr **out, oc_err *err) {
  if (header->e_phnum == 0) return OC_OK;
  if (header->e_phentsize != sizeof(Elf64_Phdr)) return malformed(source, "program header size", err);
  char *copy = NULL;
  OC_TRY(read_copy(source, (span){header->e_phoff, (uint64_t)header->e_phnum * sizeof(Elf64_Phdr)}, &copy, err));
  *out = (Elf64_Phdr *)(void *)copy;
  return OC_OK;
}

/* The file bytes from a virtual address to the end of its segment; empty when no segment holds it. */
static span map_address(const Elf64_Phdr *segments, int count, uint64_t address) {
  for (int i = 0; i < count; i++) {
    const Elf64_Phdr *s = &segments[i];
    if (s->p_type != PT_LOAD || address < s->p_vaddr || address - s->p_vaddr >= s->p_filesz) continue;
    uint64_t inside = address - s->p_vaddr, offset;
    if (__builtin_add_overflow(s->p_offset, inside, &offset)) break;
    return (span){offset, s->p_filesz - inside};
  }
  return (span){0, 0};
}

typedef struct dynamic_values {
  uint64_t versions, count, strings, strings_bytes;
} dynamic_values;

static void pick_values(const Elf64_Dyn *entries, uint64_t count, oc__elf_versions which, dynamic_values *out) {
  const int64_t versions = which == OC__ELF_NEEDED ? DT_VERNEED : DT_VERDEF;
  const int64_t number = which == OC__ELF_NEEDED ? DT_VERNEEDNUM : DT_VERDEFNUM;
  for (uint64_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++) {
    if (entries[i].d_tag == versions) out->versions = entries[i].d_un.d_ptr;
    if (entries[i].d_tag == number) out->count = entries[i].d_un.d_val;
    if (entries[i].d_tag == DT_STRTAB) out->strings = entries[i].d_un.d_ptr;
    if (entries[i].d_tag == DT_STRSZ) out->strings_bytes = entries[i].d_un.d_val;
  }
}

static oc_status place_tables(const oc__elf_source *source, const Elf64_Phdr *segments, int count,
                              const dynamic_values *values, version_table *out, oc_err *err) {
  out->records = map_address(segments, count, values->versions);
  out->strings = map_address(segments, count, values->strings);
  out->count = values->count;
  if (out->records.bytes == 0) return malformed(source, "the version table is in no segment", err);
  if (out->strings.bytes < values->strings_bytes) return malformed(source, "the string table is in no segment", err);
  out->strings.bytes = values->strings_bytes;
  /* Where the table ends is not recorded; the rest of its segment bounds it, and 64 MiB of that is more than enough. */
  if (out->records.bytes > TABLE_MAX_BYTES) out->records.bytes = TABLE_MAX_BYTES;
  return OC_OK;
}

/* From PT_DYNAMIC, what the loader itself reads. *found stays 0 in a file without one. */
static oc_status tables_from_dynamic(const oc__elf_source *source, const Elf64_Phdr *segments, int count,
                                     oc__elf_versions which, version_table *out, int *found, oc_err *err) {
  for (int i = 0; i < count; i++) {
    if (segments[i].p_type != PT_DYNAMIC) continue;
    char *copy = NULL;
    dynamic_values values = {0};
    *found = 1;
    OC_TRY(read_copy(source, (span){segments[i].p_offset, segments[i].p_filesz}, &copy, err));
    pick_values((const Elf64_Dyn *)(const void *)copy, segments[i].p_filesz / sizeof(Elf64_Dyn), which, &values);
    free(copy);
    return values.versions ? place_tables(source, segments, count, &values, out, err) : OC_OK;
  }
  return OC_OK;
}

static oc_status tables_of_section(const oc__elf_source *source, const Elf64_Shdr *sections, int count, uint32_t type,
                                   version_table *out, oc_err *err) {
  for (int i = 0; i < count; i++) {
    if (sections[i].sh_type != type) continue;
    if (sections[i].sh_link >= (uint32_t)count) return malformed(source, "the version section links to none", err);
    const Elf64_Shdr *strings = &sections[sections[i].sh_link];
    out->records = (span){sections[i].sh_offset, sections[i].sh_size};
    out->strings = (span){strings->sh_offset, strings->sh_size};
    out->count = sections[i].sh_info;
    return OC_OK;
  }
  return OC_OK;
}

/* From the section headers: for files without PT_DYNAMIC. More than 65279 sections never come with version sections. */
static oc_status tables_from_sections(const oc__elf_source *source, const Elf64_Ehdr *header, oc__elf_versions which,
                                      version_table *out, oc_err *err) {
  if (header->e_shoff == 0 || header->e_shnum == 0) return OC_OK;
  if (header->e_shentsize != sizeof(Elf64_Shdr)) return malformed(source, "section header size", err);
  char *copy = NULL;
  OC_TRY(read_copy(source, (span){header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr)}, &copy, err));
  oc_status status = tables_of_section(source, (const Elf64_Shdr *)(const void *)copy, header->e_shnum,
                                       which == OC__ELF_NEEDED ? SHT_GNU_verneed : SHT_GNU_verdef, out, err);
  free(copy);
  return status;
}

static oc_status find_tables(const oc__elf_source *source, oc__elf_versions which, version_table *out, oc_err *err) {
  Elf64_Ehdr header;
  Elf64_Phdr *segments = NULL;
  int found = 0;
  OC_TRY(read_header(source, &header, err));
  OC_TRY(read_segments(source, &header, &segments, err));
  oc_status status = tables_from_dynamic(source, segments, header.e_phnum, which, out, &found, err);
  free(segments);
  if (status != OC_OK || found) return status;
  return tables_from_sections(source, &header, which, out, err);
}

/* ---- version names ---------------------------------------------------------------------------------------------- */

typedef struct reader {
  const oc__elf_source *source;
  const char *records, *strings;
  uint64_t records_bytes, strings_bytes;
  uint64_t budget; /* second-level records left; a table cannot hold more than its bytes allow */
  oc_host_floor *floor;
} reader;

/* Digits and dots only: GLIBC_PRIVATE, CXXABI_TM_1 and the like are names, not numbers. */
static int is_version(const char *text) {
  return *text >= '0' && *text <= '9' && text[strspn(text, "0123456789.")] == '\0';
}

static oc_status raise_floor(const reader *r, char floor[16], const char *version, oc_err *err) {
  if (!is_version(version)) return OC_OK;
  if (strlen(version) > 15) return malformed(r->source, "a version of more than 15 characters", err);
  if (!*floor || oc_version_compare(version, floor) > 0) memcpy(floor, version, strlen(version) + 1);
  return OC_OK;
}

static oc_status take_name(const reader *r, uint32_t name_offset, oc_err *err) {
  if (name_offset >= r->strings_bytes) return malformed(r->source, "a version's name lies past the strings", err);
  const char *name = r->strings + name_offset;
  /* The loader's marker for packed relative relocations; the C library has had it since 2.36. */
  if (strcmp(name, "GLIBC_ABI_DT_RELR") == 0) return raise_floor(r, r->floor->glibc, "2.36", err);
  if (strncmp(name, "GLIBC_", 6) == 0) return raise_floor(r, r->floor->glibc, name + 6, err);
  if (strncmp(name, "GLIBCXX_", 8) == 0) return raise_floor(r, r->floor->glibcxx, name + 8, err);
  if (strncmp(name, "CXXABI_", 7) == 0) return raise_floor(r, r->floor->cxxabi, name + 7, err);
  return OC_OK;
}

static oc_status record_at(const reader *r, uint64_t at, size_t bytes, void *out, oc_err *err) {
  if (at > r->records_bytes || bytes > r->records_bytes - at)
    return malformed(r->source, "a version record lies past its table", err);
  memcpy(out, r->records + at, bytes); /* the file promises no alignment */
  return OC_OK;
}

static oc_status spend(reader *r, oc_err *err) {
  if (r->budget == 0) return malformed(r->source, "more version records than the table can hold", err);
  r->budget--;
  return OC_OK;
}

/* Names below one needed library. A weak need does not stop the loader, so it sets no floor. */
static oc_status walk_needed_names(reader *r, uint64_t at, uint64_t count, oc_err *err) {
  for (uint64_t i = 0; i < count; i++) {
    Elf64_Vernaux aux;
    OC_TRY(spend(r, err));
    OC_TRY(record_at(r, at, sizeof aux, &aux, err));
    if (!(aux.vna_flags & VER_FLG_WEAK)) OC_TRY(take_name(r, aux.vna_name, err));
    if (aux.vna_next == 0) return OC_OK;
    if (aux.vna_next < sizeof aux) return malformed(r->source, "version records overlap", err);
    at += aux.vna_next;
  }
  return OC_OK;
}

static oc_status walk_needed(reader *r, uint64_t count, oc_err *err) {
  uint64_t at = 0;
  for (uint64_t i = 0; i < count; i++) {
    Elf64_Verneed need;
    OC_TRY(record_at(r, at, sizeof need, &need, err));
    if (need.vn_version != VER_NEED_CURRENT) return malformed(r->source, "unknown version of the needs table", err);
    OC_TRY(walk_needed_names(r, at + need.vn_aux, need.vn_cnt, err));
    if (need.vn_next == 0) return OC_OK;
    if (need.vn_next < sizeof need) return malformed(r->source, "version records overlap", err);
    at += need.vn_next;
  }
  return OC_OK;
}

/* The first name of a definition is its own; those after it are what it inherits from. */
static oc_status walk_defined(reader *r, uint64_t count, oc_err *err) {
  uint64_t at = 0;
  for (uint64_t i = 0; i < count; i++) {
    Elf64_Verdef def;
    Elf64_Verdaux aux;
    OC_TRY(spend(r, err));
    OC_TRY(record_at(r, at, sizeof def, &def, err));
    if (def.vd_version != VER_DEF_CURRENT) return malformed(r->source, "unknown version of the definitions table", err);
    if (def.vd_cnt > 0) {
      OC_TRY(record_at(r, at + def.vd_aux, sizeof aux, &aux, err));
      OC_TRY(take_name(r, aux.vda_name, err));
    }
    if (def.vd_next == 0) return OC_OK;
    if (def.vd_next < sizeof def) return malformed(r->source, "version records overlap", err);
    at += def.vd_next;
  }
  return OC_OK;
}

static oc_status walk(const oc__elf_source *source, const version_table *table, oc__elf_versions which,
                      oc_host_floor *out, oc_err *err) {
  char *records = NULL, *strings = NULL;
  oc_status status = read_copy(source, table->records, &records, err);
  if (status == OC_OK) status = read_copy(source, table->strings, &strings, err);
  if (status == OC_OK) {
    reader r = {source, records, strings, table->records.bytes, table->strings.bytes, table->records.bytes / 16, out};
    status = which == OC__ELF_NEEDED ? walk_needed(&r, table->count, err) : walk_defined(&r, table->count, err);
  }
  free(records);
  free(strings);
  return status;
}

oc_status oc__elf_floor(const oc__elf_source *source, oc__elf_versions which, oc_host_floor *out, oc_err *err) {
  version_table table = {0};
  oc_host_floor found = {"", "", ""};
#if __BYTE_ORDER != __LITTLE_ENDIAN
#error "the ELF reader copies little-endian records as they are"
#endif
  OC_TRY(find_tables(source, which, &table, err));
  if (table.count > 0) OC_TRY(walk(source, &table, which, &found, err));
  *out = found;
  return OC_OK;
}
