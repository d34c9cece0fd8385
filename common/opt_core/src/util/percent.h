/* SPDX-License-Identifier: Apache-2.0 */
/* Percent coding with one canonical form: a byte is written raw when it is allowed raw and as %XX (upper case)
 * otherwise; the decoder accepts nothing else, so that decoding and encoding again gives the same bytes. */
#ifndef OC_UTIL_PERCENT_H
#define OC_UTIL_PERCENT_H
#include <stddef.h>

/* 0x21..0x7e without '%' are always raw; these add to or take from that. */
enum { OC__PERCENT_SPACE_RAW = 1, OC__PERCENT_EQUALS_CODED = 2 };

/* Writes the coded text to out[0, out_bytes) without a terminator when it fits. Returns the bytes of the coded text. */
size_t oc__percent_encode(const char *text, size_t bytes, unsigned flags, char *out, size_t out_bytes);
/* Decodes text[0, bytes) to out (room for `bytes`), no terminator. Returns the offset of the first byte that the
 * encoder does not write, or `bytes` when there is none; %00 counts as such, because texts end at a zero byte. */
size_t oc__percent_decode(const char *text, size_t bytes, unsigned flags, char *out, size_t *out_count);
#endif
