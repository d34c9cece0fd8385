/* SPDX-License-Identifier: Apache-2.0 */
#include "util/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `more` bytes and a terminator. */
static int reserve(oc__text *text, size_t more) {
  if (text->failed) return 0;
  if (more > SIZE_MAX / 4 || text->bytes > SIZE_MAX / 4) {
    text->failed = 1;
    return 0;
  }
  size_t need = text->bytes + more + 1;
  if (need <= text->capacity) return 1;
  size_t capacity = text->capacity ? text->capacity : 128;
  while (capacity < need) capacity *= 2;
  char *data = realloc(text->data, capacity);
  if (!data) {
    text->failed = 1;
    return 0;
  }
  text->data = data;
  text->capacity = capacity;
  return 1;
}

void oc__text_add_bytes(oc__text *text, const char *bytes, size_t count) {
  if (!reserve(text, count)) return;
  if (count) memcpy(text->data + text->bytes, bytes, count);
  text->bytes += count;
  text->data[text->bytes] = '\0';
}

void oc__text_add(oc__text *text, const char *string) { oc__text_add_bytes(text, string, strlen(string)); }

void oc__text_format(oc__text *text, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int count = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (count < 0) {
    text->failed = 1;
    return;
  }
  if (!reserve(text, (size_t)count)) return;
  va_start(args, format);
  vsnprintf(text->data + text->bytes, (size_t)count + 1, format, args);
  va_end(args);
  text->bytes += (size_t)count;
}

char *oc__text_take(oc__text *text) {
  if (!text->data) oc__text_add_bytes(text, "", 0);
  char *data = text->data;
  int failed = text->failed;
  *text = (oc__text){0};
  if (!failed) return data;
  free(data);
  return NULL;
}

void oc__text_free(oc__text *text) {
  free(text->data);
  *text = (oc__text){0};
}

char *oc__text_copy(const char *string) {
  if (!string) return NULL;
  size_t bytes = strlen(string) + 1;
  char *copy = malloc(bytes);
  if (copy) memcpy(copy, string, bytes);
  return copy;
}
