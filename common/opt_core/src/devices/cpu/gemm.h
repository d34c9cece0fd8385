/* SPDX-License-Identifier: Apache-2.0 */
/* The inner products of the CPU members: f32, packed right operand, register tiles.
 *
 *   panel      OC_NR = 2 * OC_VL columns of B, k-major: panel[k * OC_NR + n]; columns past the end are zero
 *   tile       OC_MR rows of A (unit stride along k) times one panel, in registers
 * The sum over k runs in order for every element, whatever the tile, the row block or the thread: bits never depend on
 * how the rows are cut. At AVX-512 a tile needs 14 loads and 24 FMAs a step, so the two FMA ports are the bound.
 */
#ifndef OC_GEMM_H
#define OC_GEMM_H

#include "devices/cpu/rows.h"

#define OC_NR (2 * OC_VL)
#if OC_VL == 16
#define OC_MR 12
#else
#define OC_MR 6
#endif
/* Depth of a block: a panel of 256 x 32 floats is 32 KB, one first-level cache; sums of 256 products are added up one
 * by one, which keeps the error of a long product near that of a blocked library product (one chain of 4096 had 1.7
 * times its error). */
#define OC_KC 256

OC_INLINE int64_t oc__panels(int64_t n) { return (n + OC_NR - 1) / OC_NR; }
/* Floats that the packed form of a [k, n] operand takes. */
OC_INLINE int64_t oc__packed_floats(int64_t k, int64_t n) { return oc__panels(n) * OC_NR * k; }

/* Packs B given as weight[n, k] (a torch Linear: out, in), any strides and dtype, into panels. */
OC_INLINE void oc__pack_linear(const oc_view *weight, float *packed) {
  const int64_t n_count = weight->shape[0], k_count = weight->shape[1];
  for (int64_t n0 = 0; n0 < n_count; n0 += OC_NR) {
    float *panel = packed + n0 * k_count;
    for (int64_t n = 0; n < OC_NR; n++) {
      const int64_t column = n0 + n;
      for (int64_t k = 0; k < k_count; k++)
        panel[k * OC_NR + n] = column < n_count ? oc__load1(weight->data, weight->dtype,
                                                            column * weight->stride[0] + k * weight->stride[1])
                                                : 0.0f;
    }
  }
}

/* C[rows, OC_NR] = A * panel + start; start: C itself (accumulate) or bias[OC_NR] or nothing (bias NULL). rows is a
 * constant. The start is added after the sum over k: the error of a long product is that of its blocks, and a large
 * bias costs none. */
OC_INLINE void oc__tile(const int rows, int64_t k_count, const float *a, int64_t lda, const float *panel, float *c,
                        int64_t ldc, const float *bias, int accumulate) {
  vf acc0[OC_MR], acc1[OC_MR];
  for (int r = 0; r < rows; r++) acc0[r] = acc1[r] = vf_zero();
  for (int64_t k = 0; k < k_count; k++) {
    const vf b0 = vf_load(panel + k * OC_NR), b1 = vf_load(panel + k * OC_NR + OC_VL);
    for (int r = 0; r < rows; r++) {
      const vf x = vf_set(a[r * lda + k]);
      acc0[r] = vf_fma(x, b0, acc0[r]);
      acc1[r] = vf_fma(x, b1, acc1[r]);
    }
  }
  for (int r = 0; r < rows; r++) {
    const float *start = accumulate ? c + r * ldc : bias;
    vf_store(c + r * ldc, start ? vf_add(acc0[r], vf_load(start)) : acc0[r]);
    vf_store(c + r * ldc + OC_VL, start ? vf_add(acc1[r], vf_load(start + OC_VL)) : acc1[r]);
  }
}

/* The same for a row count known at run time, 1..OC_MR: unrolled per count so that the accumulators stay in registers.
 */
OC_INLINE void oc__tile_any(int rows, int64_t k_count, const float *a, int64_t lda, const float *panel, float *c,
                            int64_t ldc, const float *bias, int accumulate) {
  /* clang-format off */
  switch (rows) {
#define OC_CASE(r) \
  case r: oc__tile(r, k_count, a, lda, panel, c, ldc, bias, accumulate); break;
    OC_CASE(1) OC_CASE(2) OC_CASE(3) OC_CASE(4) OC_CASE(5) OC_CASE(6)
#if OC_MR > 6
    OC_CASE(7) OC_CASE(8) OC_CASE(9) OC_CASE(10) OC_CASE(11) OC_CASE(12)
#endif
#undef OC_CASE
  default: break;
  }
  /* clang-format on */
}

/* ---- products of bf16 (level avx512_bf16) ------------------------------------------------------------------------ */

/* Where both operands are bf16, two neighbours along k make a pair, 4 bytes: a row of A as it lies (an even number of
 * values, the partner of an odd last one zero), a panel with row k / 2 in the place of rows k and k + 1. Products are
 * exact, sums f32, two at a time. Subnormal numbers count as zero, as the instruction has it. */
#ifdef __AVX512BF16__
#define OC_HAS_PAIRS 1

OC_INLINE __m512i oc__narrow(vf a) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a)); }

/* k rows of a panel to pairs, in place. */
OC_INLINE void oc__pair_panel(int64_t k, float *panel) {
  for (int64_t row = 0; row < k; row += 2)
    for (int64_t lane = 0; lane < OC_NR; lane += OC_VL) {
      const __m512i low = oc__narrow(vf_load(panel + row * OC_NR + lane));
      const __m512i high = row + 1 < k ? oc__narrow(vf_load(panel + (row + 1) * OC_NR + lane)) : _mm512_setzero_si512();
      const __m512i pair = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
      vf_store(panel + row / 2 * OC_NR + lane, _mm512_castsi512_ps(pair));
    }
}

/* A row of n floats to bf16, in place, and a zero behind an odd last one: (n + 1) / 2 floats of space. */
OC_INLINE void oc__pair_row(int64_t n, float *row) {
  uint16_t *out = (uint16_t *)row;
  for (int64_t k = 0; k < n; k += OC_VL) {
    const int count = (int)(n - k < OC_VL ? n - k : OC_VL);
    const __m256i narrow = (__m256i)_mm512_cvtneps_pbh(vf_load_n(row + k, count));
    _mm256_mask_storeu_epi16(out + k, oc__lanes(count + count % 2), narrow);
  }
}

/* As oc__tile, over `pairs` pairs; a, lda: bf16. rows and accumulate are constants. */
OC_INLINE void oc__pair_tile(const int rows, const int accumulate, int64_t pairs, const uint16_t *a, int64_t lda,
                             const float *panel, float *c, int64_t ldc) {
  vf acc0[OC_MR], acc1[OC_MR];
  for (int r = 0; r < rows; r++) acc0[r] = acc1[r] = vf_zero();
  for (int64_t k = 0; k < pairs; k++) {
    const __m512bh b0 = (__m512bh)vf_load(panel + k * OC_NR), b1 = (__m512bh)vf_load(panel + k * OC_NR + OC_VL);
    for (int r = 0; r < rows; r++) {
      int32_t pair;
      memcpy(&pair, a + r * lda + 2 * k, sizeof pair);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
      acc0[r] = _mm512_dpbf16_ps(acc0[r], x, b0);
      acc1[r] = _mm512_dpbf16_ps(acc1[r], x, b1);
    }
  }
  for (int r = 0; r < rows; r++) {
    float *target = c + r * ldc;
    vf_store(target, accumulate ? vf_add(acc0[r], vf_load(target)) : acc0[r]);
    vf_store(target + OC_VL, accumulate ? vf_add(acc1[r], vf_load(target + OC_VL)) : acc1[r]);
  }
}
/* For a row count and an accumulate known at run time. */
OC_INLINE void oc__pair_tile_any(int rows, int accumulate, int64_t pairs, const uint16_t *a, int64_t lda,
                                 const float *panel, float *c, int64_t ldc) {
  /* clang-format off */
  switch (2 * rows + accumulate) {
#define OC_CASE(r) \
  case 2 * r: oc__pair_tile(r, 0, pairs, a, lda, panel, c, ldc); break; \
  case 2 * r + 1: oc__pair_tile(r, 1, pairs, a, lda, panel, c, ldc); break;
    OC_CASE(1) OC_CASE(2) OC_CASE(3) OC_CASE(4) OC_CASE(5) OC_CASE(6)
    OC_CASE(7) OC_CASE(8) OC_CASE(9) OC_CASE(10) OC_CASE(11) OC_CASE(12)
#undef OC_CASE
  default: break;
  }
  /* clang-format on */
}

/* C[m, panels(n) * OC_NR] = A[m, k] * packed B, whose panels of k rows hold pairs. */
static inline __attribute__((unused)) void oc__pair_gemm(int64_t m, int64_t n, int64_t k, const uint16_t *a,
                                                         int64_t lda, const float *packed, float *c, int64_t ldc) {
  const int64_t all = (k + 1) / 2;
  for (int64_t k0 = 0; k0 == 0 || k0 < all; k0 += OC_KC) {
    const int64_t pairs = all - k0 < OC_KC ? all - k0 : OC_KC;
    for (int64_t p = 0; p < oc__panels(n); p++)
      for (int64_t r = 0; r < m; r += OC_MR)
        oc__pair_tile_any((int)(m - r < OC_MR ? m - r : OC_MR), k0 > 0, pairs, a + r * lda + 2 * k0, lda,
                          packed + p * OC_NR * k + k0 * OC_NR, c + r * ldc + p * OC_NR, ldc);
  }
}
#else
#define OC_HAS_PAIRS 0
#endif

/* C[m, panels(n) * OC_NR] = bias + A[m, k] * packed B (bias: padded to whole panels, or NULL). ldc >= panels(n) *
 * OC_NR. accumulate: adds to what C holds instead of starting from the bias. C must not overlap A. */
static inline __attribute__((unused)) void oc__gemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                                                    const float *packed, float *c, int64_t ldc, const float *bias,
                                                    int accumulate) {
  for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += OC_KC) {
    const int64_t depth = k - k0 < OC_KC ? k - k0 : OC_KC;
    for (int64_t p = 0; p < oc__panels(n); p++) {
      const float *panel = packed + p * OC_NR * k + k0 * OC_NR;
      const float *start = bias ? bias + p * OC_NR : NULL;
      for (int64_t r = 0; r < m; r += OC_MR) {
        const int rows = (int)(m - r < OC_MR ? m - r : OC_MR);
        oc__tile_any(rows, depth, a + r * lda + k0, lda, panel, c + r * ldc + p * OC_NR, ldc, start,
                     accumulate || k0 > 0);
      }
    }
  }
}

/* 16-byte to 64-byte helpers for carving scratch: floats rounded up to a cache line. */
OC_INLINE int64_t oc__line_floats(int64_t floats) { return (floats + 15) & ~(int64_t)15; }

/* Exchanges rows and columns of OC_VL vectors, in registers. */
OC_INLINE void oc__transpose_square(vf r[OC_VL]) {
#if OC_VL == 16
  vf t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) { /* r[i + j]: lane L holds column 4 L + j of rows i..i+3 */
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int j = 0; j < 4; j++) {
    const vf a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
    const vf c = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd), d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    t[j] = _mm512_shuffle_f32x4(a, b, 0x88);
    t[4 + j] = _mm512_shuffle_f32x4(c, d, 0x88);
    t[8 + j] = _mm512_shuffle_f32x4(a, b, 0xdd);
    t[12 + j] = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
  for (int i = 0; i < 16; i++) r[i] = t[i];
#elif OC_VL == 8
  vf t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int j = 0; j < 4; j++) {
    t[j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20);
    t[4 + j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
  }
  for (int i = 0; i < 8; i++) r[i] = t[i];
#else
  vf t[4];
  for (int i = 0; i < 4; i++) t[i] = (vf){r[0][i], r[1][i], r[2][i], r[3][i]};
  for (int i = 0; i < 4; i++) r[i] = t[i];
#endif
}

/* out[c, r] = in[r, c] for a block of rows x columns f32 (leading dimensions in floats), OC_VL x OC_VL at a time. */
static inline __attribute__((unused)) void oc__transpose(int64_t rows, int64_t columns, const float *in, int64_t ld_in,
                                                         float *out, int64_t ld_out) {
  for (int64_t r0 = 0; r0 < rows; r0 += OC_VL) {
    int64_t c0 = 0;
    for (; r0 + OC_VL <= rows && c0 + OC_VL <= columns; c0 += OC_VL) {
      vf square[OC_VL];
      for (int r = 0; r < OC_VL; r++) square[r] = vf_load(in + (r0 + r) * ld_in + c0);
      oc__transpose_square(square);
      for (int c = 0; c < OC_VL; c++) vf_store(out + (c0 + c) * ld_out + r0, square[c]);
    }
    const int64_t r1 = r0 + OC_VL < rows ? r0 + OC_VL : rows;
    for (; c0 < columns; c0++)
      for (int64_t r = r0; r < r1; r++) out[c0 * ld_out + r] = in[r * ld_in + c0];
  }
}

#endif
