/* SPDX-License-Identifier: Apache-2.0 */
/* One vector vocabulary for the CPU members. The same member source is compiled once an instruction set; this header
 * picks the width. Only functions that take pointers touch memory; none needs alignment.
 *
 * vf      OC_VL floats: 16 (AVX-512), 8 (AVX2), 4 (GCC vector extension: SSE2, NEON, anything)
 * *_n     the first n lanes (0 < n <= OC_VL); the rest of a load is zero, the rest of a store is untouched
 */
#ifndef OC_SIMD_H
#define OC_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define OC_JOIN2(a, b) a##_##b
#define OC_JOIN(a, b) OC_JOIN2(a, b)
/* Name of a member's function at the level that is being compiled: OC_MEMBER_FN(oc__ln_cpu) -> oc__ln_cpu_avx512. */
#define OC_MEMBER_FN(stem) OC_JOIN(stem, OC_ISA_SUFFIX)

#define OC_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#include <immintrin.h>
#define OC_VL 16
typedef __m512 vf;
OC_INLINE __mmask16 oc__lanes(int n) { return (__mmask16)((1u << n) - 1u); }
OC_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
OC_INLINE vf vf_set(float a) { return _mm512_set1_ps(a); }
OC_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
OC_INLINE vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(oc__lanes(n), p); }
OC_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
OC_INLINE void vf_store_n(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, oc__lanes(n), a); }
OC_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
OC_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
OC_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
OC_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
OC_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }   /*  a*b + c */
OC_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } /* -a*b + c */
/* NaN in b is kept (x86 max returns its second operand when either is NaN); the other levels do the same. */
OC_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
OC_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
OC_INLINE float vf_sum(vf a) { return _mm512_reduce_add_ps(a); }
OC_INLINE vf vf_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
OC_INLINE vf vf_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
#elif defined(__AVX2__)
#include <immintrin.h>
#define OC_VL 8
typedef __m256 vf;
OC_INLINE __m256i oc__lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
OC_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
OC_INLINE vf vf_set(float a) { return _mm256_set1_ps(a); }
OC_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
OC_INLINE vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, oc__lanes(n)); }
OC_INLINE void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
OC_INLINE void vf_store_n(float *p, vf a, int n) { _mm256_maskstore_ps(p, oc__lanes(n), a); }
OC_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
OC_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
OC_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
OC_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
OC_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
OC_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
OC_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
OC_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
OC_INLINE float vf_sum(vf a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
OC_INLINE vf vf_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
OC_INLINE vf vf_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
#else
#define OC_VL 4
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
OC_INLINE vf vf_set(float a) { return (vf){a, a, a, a}; }
OC_INLINE vf vf_zero(void) { return vf_set(0.0f); }
OC_INLINE vf vf_load(const float *p) {
  vf a;
  memcpy(&a, p, sizeof a);
  return a;
}
OC_INLINE vf vf_load_n(const float *p, int n) {
  vf a = vf_zero();
  memcpy(&a, p, (size_t)n * sizeof(float));
  return a;
}
OC_INLINE void vf_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
OC_INLINE void vf_store_n(float *p, vf a, int n) { memcpy(p, &a, (size_t)n * sizeof(float)); }
OC_INLINE vf vf_add(vf a, vf b) { return a + b; }
OC_INLINE vf vf_sub(vf a, vf b) { return a - b; }
OC_INLINE vf vf_mul(vf a, vf b) { return a * b; }
OC_INLINE vf vf_div(vf a, vf b) { return a / b; }
OC_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
OC_INLINE vf vf_fnma(vf a, vf b, vf c) { return c - a * b; }
OC_INLINE vf vf_pick(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
OC_INLINE vf vf_max(vf a, vf b) { return vf_pick((vi)(a > b), a, b); }
OC_INLINE vf vf_min(vf a, vf b) { return vf_pick((vi)(a < b), a, b); }
OC_INLINE float vf_sum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
#endif

/* ---- narrow types, one value ------------------------------------------------------------------------------------ */

OC_INLINE float oc__bits_f32(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}
OC_INLINE uint32_t oc__f32_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}
OC_INLINE float oc__from_bf16(uint16_t h) { return oc__bits_f32((uint32_t)h << 16); }
/* To nearest even; a NaN stays a quiet NaN. */
OC_INLINE uint16_t oc__to_bf16(float f) {
  uint32_t u = oc__f32_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
OC_INLINE float oc__from_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return oc__bits_f32(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13)); /* Inf, NaN */
  /* 2^112 rescales the exponent bias, subnormals included: both steps are exact. */
  return oc__bits_f32(sign | oc__f32_bits(oc__bits_f32(magnitude << 13) * 0x1p112f));
}
OC_INLINE uint16_t oc__to_f16(float f) {
  uint32_t u = oc__f32_bits(f), magnitude = u & 0x7fffffffu;
  uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
  if (magnitude < 0x38800000u) { /* subnormal: adding 0.5 puts the unit in the last place at 2^-24 */
    return (uint16_t)(sign | (uint16_t)(oc__f32_bits(oc__bits_f32(magnitude) + 0.5f) - 0x3f000000u));
  }
  return (uint16_t)(sign | (uint16_t)((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

#if OC_VL == 4
OC_INLINE vf vf_bf16(const uint16_t *p) {
  return (vf){oc__from_bf16(p[0]), oc__from_bf16(p[1]), oc__from_bf16(p[2]), oc__from_bf16(p[3])};
}
OC_INLINE vf vf_f16(const uint16_t *p) {
  return (vf){oc__from_f16(p[0]), oc__from_f16(p[1]), oc__from_f16(p[2]), oc__from_f16(p[3])};
}
#endif

/* ---- functions of a vector --------------------------------------------------------------------------------------- */

/* 2^(x * log2 e) by Cody-Waite reduction and a degree-6 polynomial on |r| <= ln2 / 2: error below 1.2 ulp (0.9 with
 * FMA) where the result is normal (test_simd.c measures it against double). Below -87.3 it gives 0 (no subnormals),
 * above 88.7 Inf; NaN stays NaN. */
OC_INLINE vf vf_exp(vf x) {
  const vf log2e = vf_set(0x1.715476p+0f), ln2_high = vf_set(0x1.62e400p-1f), ln2_low = vf_set(0x1.7f7d1cp-20f);
  const vf low = vf_set(-0x1.5d589ep+6f), high = vf_set(0x1.62e42ep+6f);
  const vf magic = vf_set(0x1.8p+23f);       /* adding it leaves the nearest integer in the low mantissa bits */
  vf clamped = vf_max(low, vf_min(high, x)); /* NaN in x survives: it is the second operand of both */
  vf shifted = vf_fma(clamped, log2e, magic);
  vf n = vf_sub(shifted, magic);
  vf r = vf_fnma(n, ln2_low, vf_fnma(n, ln2_high, clamped));
  vf p = vf_set(0x1.6a23dp-10f);
  p = vf_fma(p, r, vf_set(0x1.123a2p-7f));
  p = vf_fma(p, r, vf_set(0x1.5558f2p-5f));
  p = vf_fma(p, r, vf_set(0x1.555492p-3f));
  p = vf_fma(p, r, vf_set(0x1.fffffcp-2f));
  p = vf_fma(p, r, vf_set(1.0f));
  p = vf_fma(p, r, vf_set(1.0f));
#if OC_VL == 16
  vf y = _mm512_scalef_ps(p, n);
  __mmask16 under = _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ), over = _mm512_cmp_ps_mask(x, high, _CMP_GT_OQ);
  y = _mm512_mask_mov_ps(y, under, vf_zero());
  return _mm512_mask_mov_ps(y, over, vf_set(INFINITY));
#elif OC_VL == 8
  /* n runs from -126 to 128: as a product of two powers neither leaves the range of exponents. */
  const __m256i e = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(magic));
  const __m256i half = _mm256_srai_epi32(e, 1), one = _mm256_set1_epi32(127);
  vf y = vf_mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, one), 23)));
  y = vf_mul(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, half), one), 23)));
  y = _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), y);
  return _mm256_blendv_ps(y, vf_set(INFINITY), _mm256_cmp_ps(x, high, _CMP_GT_OQ));
#else
  const vi e = (vi)shifted - (vi)magic, half = e >> 1;
  vf y = p * (vf)((half + 127) << 23) * (vf)((e - half + 127) << 23);
  y = vf_pick((vi)(x < low), vf_zero(), y);
  return vf_pick((vi)(x > high), vf_set(INFINITY), y);
#endif
}

OC_INLINE vf vf_sigmoid(vf x) { return vf_div(vf_set(1.0f), vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_zero(), x)))); }

/* Largest lane; NaN if a lane is NaN would cost a compare: callers that need NaN get it from the exponentials. */
OC_INLINE float vf_largest(vf a) {
  float lane[OC_VL], m;
  vf_store(lane, a);
  m = lane[0];
  for (int i = 1; i < OC_VL; i++) m = lane[i] > m ? lane[i] : m;
  return m;
}

#endif
