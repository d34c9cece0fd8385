/* SPDX-License-Identifier: Apache-2.0 */
/* Squares of OC_VL x OC_VL floats turned in registers. */
#ifndef OC_TRANSPOSE_H
#define OC_TRANSPOSE_H

#include "devices/cpu/simd.h"

/* r[i][j] <-> r[j][i]. First 4 x 4 within every 128 bits, then the 128-bit blocks themselves. */
OC_INLINE void vf_transpose(vf r[OC_VL]) {
#if OC_VL == 16
  vf u[16];
  for (int g = 0; g < 16; g += 4) {
    const vf t0 = _mm512_unpacklo_ps(r[g], r[g + 1]), t1 = _mm512_unpackhi_ps(r[g], r[g + 1]);
    const vf t2 = _mm512_unpacklo_ps(r[g + 2], r[g + 3]), t3 = _mm512_unpackhi_ps(r[g + 2], r[g + 3]);
    const __m512d d0 = _mm512_castps_pd(t0), d1 = _mm512_castps_pd(t1), d2 = _mm512_castps_pd(t2),
                  d3 = _mm512_castps_pd(t3);
    u[g] = _mm512_castpd_ps(_mm512_unpacklo_pd(d0, d2));
    u[g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(d0, d2));
    u[g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(d1, d3));
    u[g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(d1, d3));
  }
  for (int j = 0; j < 4; j++) {
    const vf even0 = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x88), odd0 = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xdd);
    const vf even1 = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x88),
             odd1 = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xdd);
    r[j] = _mm512_shuffle_f32x4(even0, even1, 0x88);
    r[8 + j] = _mm512_shuffle_f32x4(even0, even1, 0xdd);
    r[4 + j] = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
    r[12 + j] = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
  }
#elif OC_VL == 8
  vf u[8];
  for (int g = 0; g < 8; g += 4) {
    const vf t0 = _mm256_unpacklo_ps(r[g], r[g + 1]), t1 = _mm256_unpackhi_ps(r[g], r[g + 1]);
    const vf t2 = _mm256_unpacklo_ps(r[g + 2], r[g + 3]), t3 = _mm256_unpackhi_ps(r[g + 2], r[g + 3]);
    u[g] = _mm256_shuffle_ps(t0, t2, 0x44);
    u[g + 1] = _mm256_shuffle_ps(t0, t2, 0xee);
    u[g + 2] = _mm256_shuffle_ps(t1, t3, 0x44);
    u[g + 3] = _mm256_shuffle_ps(t1, t3, 0xee);
  }
  for (int j = 0; j < 4; j++) {
    r[j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x20);
    r[4 + j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x31);
  }
#else
  const vf t0 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), t1 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const vf t2 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5), t3 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(t0, t2, 0, 1, 4, 5);
  r[1] = __builtin_shufflevector(t0, t2, 2, 3, 6, 7);
  r[2] = __builtin_shufflevector(t1, t3, 0, 1, 4, 5);
  r[3] = __builtin_shufflevector(t1, t3, 2, 3, 6, 7);
#endif
}

#endif
