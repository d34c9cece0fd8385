/* SPDX-License-Identifier: Apache-2.0 */
/* The regular files under a path, and whether the record among them says that the run ended. */
#ifndef OC_SRC_COMPARE_TREE_H
#define OC_SRC_COMPARE_TREE_H

#include "compare/compare.h"

typedef struct oc__tree_file {
  char *path;      /* relative to the root, '/' between parts */
  int64_t time_ns; /* last change */
} oc__tree_file;

typedef struct oc__tree {
  const char *root;
  int is_file; /* the root itself is the only file; its path is its last part */
  oc__tree_file *files;
  size_t count, capacity;
} oc__tree;

/* Sorted by path bytes. Follows symbolic links. IO for what cannot be read or is neither file nor folder. */
oc_status oc__tree_open(const char *root, oc__tree *out, oc_err *err);
void oc__tree_close(oc__tree *tree);
/* root/path, malloc'ed; NULL without memory. */
char *oc__tree_join(const oc__tree *tree, const char *path);

/* opt_manifest.json, opt_manifest.<pid>.json, opt_manifest.rank<r>.json */
int oc__tree_is_record(const char *path);
/* Reports `unfinished` where a record says "running", or a file that the records of a folder cover is younger than the
 * newest of them or older than the start of the run that they tell of. side: "a" or "b". */
oc_status oc__tree_check_records(const oc__compare *compare, const oc__tree *tree, const char *side, oc_err *err);

#endif
