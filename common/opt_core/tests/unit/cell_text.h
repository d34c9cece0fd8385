/* SPDX-License-Identifier: Apache-2.0 */
/* Cell tables as text for tests. Include after cmocka.h. */
#ifndef OC_TEST_CELL_TEXT_H
#define OC_TEST_CELL_TEXT_H

#include <stdio.h>
#include <string.h>

#define CELL_EVIDENCE                                                                                                  \
  "\"evidence\":{\"date\":\"2026-12-01\",\"machine\":\"m\",\"stack\":\"s\",\"command\":\"c\",\"result\":\"r.json\"}"
#define CELL_NUMBERS "\"us\":2.5,\"peer_us\":5,\"err\":0,\"stock_err\":1e-7"
/* A fast cell of row cpu; `rest` holds its form, ranges and what else: "\"form\":\"*\",\"n\":[1,5]". */
#define CELL_ON(id, device, rest)                                                                                      \
  "{\"id\":\"" id "\",\"tier\":\"fast\",\"device\":\"" device                                                          \
  "\",\"dtype\":\"f32\",\"row\":\"cpu\",\"fallback\":\"stock\"," rest "," CELL_NUMBERS "," CELL_EVIDENCE "}"
#define CELL(id, rest) CELL_ON(id, "cpu-avx512", rest)
#define EXACT_CELL(id, rest, stacks)                                                                                   \
  "{\"id\":\"" id                                                                                                      \
  "\",\"tier\":\"exact\",\"device\":\"cpu-avx512\",\"dtype\":\"f32\",\"row\":\"cpu\",\"fallback\":\"stock\"," rest     \
  "," CELL_NUMBERS "," CELL_EVIDENCE ",\"stacks\":" stacks "}"
#define TABLE(family, cells) "{\"schema\":1,\"family\":\"" family "\",\"cells\":[" cells "]}"

#endif
