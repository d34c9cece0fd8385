/* SPDX-License-Identifier: Apache-2.0 */
/* Lines, for the rest of the record. */
#ifndef OC_RECORD_LINE_H
#define OC_RECORD_LINE_H
#include "opt_core/record.h"

const char *oc__line_kind_word(oc_line_kind kind);
/* Building: the texts stay the caller's and must live until the line is formatted. oc__line_add returns 0 when full. */
void oc__line_start(oc_line *line, oc_line_kind kind);
int oc__line_add(oc_line *line, const char *key, const char *value);
/* Formats the line; drops fields from the end until it fits and says so by a last field MORE=<k>, k counting what was
 * dropped here and the left_out fields that the caller did not add. Returns bytes, 0 when not even the kind can be
 * printed. */
size_t oc__line_fit(oc_line *line, int64_t left_out, char out[OC_LINE_MAX + 1]);
/* Hands finished text to the sink or to standard error. Call it without the run's lock. */
oc_status oc__line_emit(const char *text, size_t bytes, oc_err *err);
/* For the fork handlers. */
void oc__line_fork_lock(void);
void oc__line_fork_unlock(void);
#endif
