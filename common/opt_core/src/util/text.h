/* SPDX-License-Identifier: Apache-2.0 */
/* A growable text buffer. Zero-initialise; a failed allocation sticks in `failed`, later adds do nothing, so that a
 * whole text is built first and checked once. Threads: one thread at a time. */
#ifndef OC_UTIL_TEXT_H
#define OC_UTIL_TEXT_H
#include <stddef.h>

typedef struct oc__text {
  char *data; /* terminated once anything was added; NULL before */
  size_t bytes, capacity;
  int failed;
} oc__text;

void oc__text_add_bytes(oc__text *text, const char *bytes, size_t count);
void oc__text_add(oc__text *text, const char *string);
void oc__text_format(oc__text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The text, now the caller's (free), and an empty buffer behind; NULL when an allocation failed. Never NULL else. */
char *oc__text_take(oc__text *text);
void oc__text_free(oc__text *text);

/* malloc'ed copy; NULL for NULL or without memory. */
char *oc__text_copy(const char *string);
#endif
