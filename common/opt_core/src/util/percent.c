/* SPDX-License-Identifier: Apache-2.0 */
#include "util/percent.h"

static int raw(unsigned char byte, unsigned flags) {
  if (byte == ' ') return (flags & OC__PERCENT_SPACE_RAW) != 0;
  if (byte == '=') return (flags & OC__PERCENT_EQUALS_CODED) == 0;
  return byte >= 0x21 && byte <= 0x7e && byte != '%';
}

size_t oc__percent_encode(const char *text, size_t bytes, unsigned flags, char *out, size_t out_bytes) {
  static const char digit[] = "0123456789ABCDEF";
  size_t count = 0;
  for (size_t i = 0; i < bytes; i++) {
    unsigned char byte = (unsigned char)text[i];
    size_t width = raw(byte, flags) ? 1 : 3;
    if (count + width <= out_bytes) {
      out[count] = width == 1 ? (char)byte : '%';
      if (width == 3) {
        out[count + 1] = digit[byte >> 4];
        out[count + 2] = digit[byte & 15];
      }
    }
    count += width;
  }
  return count;
}

static int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

size_t oc__percent_decode(const char *text, size_t bytes, unsigned flags, char *out, size_t *out_count) {
  size_t count = 0, at = 0;
  while (at < bytes) {
    unsigned char byte = (unsigned char)text[at];
    if (byte == '%') {
      int high = at + 2 < bytes ? digit_value(text[at + 1]) : -1;
      int low = at + 2 < bytes ? digit_value(text[at + 2]) : -1;
      if (high < 0 || low < 0) break;
      unsigned char value = (unsigned char)(high * 16 + low);
      if (value == 0 || raw(value, flags)) break;
      out[count++] = (char)value;
      at += 3;
    } else {
      if (!raw(byte, flags)) break;
      out[count++] = (char)byte;
      at++;
    }
  }
  *out_count = count;
  return at;
}
