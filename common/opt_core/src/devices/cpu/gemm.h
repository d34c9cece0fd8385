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

/* Pairs (level avx512_bf16): where both operands are bf16, two neighbours along k lie as bf16 in the place of one float.
 * A row of A has its values so, a panel has row k / 2 in the place of rows k and k + 1; the partner of an odd last one is
 * zero. The tile then takes half as many steps, and everything round it stays as it is. Products are exact, sums f32,
 * two at a time; subnormal numbers count as zero, as the instruction has it. `pairs` is 0 at every other level. */
#ifdef __AVX512BF16__
#define OC_HAS_PAIRS 1
OC_INLINE __m512i oc__narrow(vf a) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a)); }
#else
#define OC_HAS_PAIRS 0
#endif

OC_INLINE int64_t oc__steps(int pairs, int64_t k) { return OC_HAS_PAIRS && pairs ? (k + 1) / 2 : k; }

/* acc + x * b; pairs is a constant. */
OC_INLINE vf oc__multiply_add(const int pairs, vf x, vf b, vf acc) {
#if OC_HAS_PAIRS
  if (pairs) return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)b);
#endif
  (void)pairs;
  return vf_fma(x, b, acc);
}

/* columns / OC_NR panels of k rows to pairs, in place; nothing without `pairs`. */
OC_INLINE void oc__pair_panels(int pairs, int64_t columns, int64_t k, float *panels) {
#if OC_HAS_PAIRS
  for (int64_t n = 0; pairs && n < columns; n += OC_NR)
    for (int64_t row = 0; row < k; row += 2)
      for (int64_t lane = 0; lane < OC_NR; lane += OC_VL) {
        float *from = panels + n * k + row * OC_NR + lane, *to = panels + n * k + row / 2 * OC_NR + lane;
        const __m512i low = oc__narrow(vf_load(from));
        const __m512i high = row + 1 < k ? oc__narrow(vf_load(from + OC_NR)) : _mm512_setzero_si512();
        vf_store(to, _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16))));
      }
#endif
  (void)pairs, (void)columns, (void)k, (void)panels;
}

/* The first n floats of each row to pairs, in place; nothing without `pairs`. */
OC_INLINE void oc__pair_rows(int pairs, int64_t rows, int64_t n, int64_t ld, float *data) {
#if OC_HAS_PAIRS
  for (int64_t r = 0; pairs && r < rows; r++)
    for (int64_t k = 0; k < n; k += OC_VL) {
      const int count = (int)(n - k < OC_VL ? n - k : OC_VL);
      const __m256i narrow = (__m256i)_mm512_cvtneps_pbh(vf_load_n(data + r * ld + k, count));
      _mm256_mask_storeu_epi16((uint16_t *)(data + r * ld) + k, oc__lanes(count + count % 2), narrow);
    }
#endif
  (void)pairs, (void)rows, (void)n, (void)ld, (void)data;
}

/* C[rows, OC_NR] = A * panel + start; start: C itself (accumulate) or bias[OC_NR] or nothing (bias NULL). pairs and rows
 * are constants. The start is added after the sum over k: the error of a long product is that of its blocks, and a large
 * bias costs none. */
OC_INLINE void oc__tile(const int pairs, const int rows, int64_t steps, const float *a, int64_t lda, const float *panel,
                        float *c, int64_t ldc, const float *bias, int accumulate) {
  vf acc0[OC_MR], acc1[OC_MR];
  for (int r = 0; r < rows; r++) acc0[r] = acc1[r] = vf_zero();
  for (int64_t k = 0; k < steps; k++) {
    const vf b0 = vf_load(panel + k * OC_NR), b1 = vf_load(panel + k * OC_NR + OC_VL);
    for (int r = 0; r < rows; r++) {
      const vf x = vf_set(a[r * lda + k]);
      acc0[r] = oc__multiply_add(pairs, x, b0, acc0[r]);
      acc1[r] = oc__multiply_add(pairs, x, b1, acc1[r]);
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
OC_INLINE void oc__tile_rows(const int pairs, int rows, int64_t steps, const float *a, int64_t lda, const float *panel,
                             float *c, int64_t ldc, const float *bias, int accumulate) {
  /* clang-format off */
  switch (rows) {
#define OC_CASE(r) \
  case r: oc__tile(pairs, r, steps, a, lda, panel, c, ldc, bias, accumulate); break;
    OC_CASE(1) OC_CASE(2) OC_CASE(3) OC_CASE(4) OC_CASE(5) OC_CASE(6)
#if OC_MR > 6
    OC_CASE(7) OC_CASE(8) OC_CASE(9) OC_CASE(10) OC_CASE(11) OC_CASE(12)
#endif
#undef OC_CASE
  default: break;
  }
  /* clang-format on */
}

/* And for pairs or floats, chosen at run time. */
OC_INLINE void oc__tile_any(int pairs, int rows, int64_t steps, const float *a, int64_t lda, const float *panel,
                            float *c, int64_t ldc, const float *bias, int accumulate) {
  if (OC_HAS_PAIRS && pairs)
    oc__tile_rows(1, rows, steps, a, lda, panel, c, ldc, bias, accumulate);
  else
    oc__tile_rows(0, rows, steps, a, lda, panel, c, ldc, bias, accumulate);
}

/* C[m, panels(n) * OC_NR] = bias + A[m, k] * packed B (bias: padded to whole panels, or NULL). ldc >= panels(n) *
 * OC_NR. accumulate: adds to what C holds instead of starting from the bias. C must not overlap A. */
static inline __attribute__((unused)) void oc__gemm(int pairs, int64_t m, int64_t n, int64_t k, const float *a,
                                                    int64_t lda, const float *packed, float *c, int64_t ldc,
                                                    const float *bias, int accumulate) {
  const int64_t all = oc__steps(pairs, k);
  for (int64_t k0 = 0; k0 == 0 || k0 < all; k0 += OC_KC) {
    const int64_t steps = all - k0 < OC_KC ? all - k0 : OC_KC;
    for (int64_t p = 0; p < oc__panels(n); p++) {
      const float *panel = packed + p * OC_NR * k + k0 * OC_NR;
      const float *start = bias ? bias + p * OC_NR : NULL;
      for (int64_t r = 0; r < m; r += OC_MR) {
        const int rows = (int)(m - r < OC_MR ? m - r : OC_MR);
        oc__tile_any(pairs, rows, steps, a + r * lda + k0, lda, panel, c + r * ldc + p * OC_NR, ldc, start,
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
