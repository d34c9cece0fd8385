/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of simd.h, rows.h and gemm.h at one level. Included by test_simd*.c, once a level, after the level is chosen.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "devices/cpu/rowset.h"

static uint64_t random_state = 7;

static uint64_t random_u64(void) { /* splitmix64 */
  uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static float random_float(void) { return (float)((double)(random_u64() >> 11) * 0x1p-52 - 1.0); }

static float exp_lane(float x) {
  float out[OC_VL];
  vf_store(out, vf_exp(vf_set(x)));
  for (int i = 1; i < OC_VL; i++) assert_int_equal(oc__f32_bits(out[i]), oc__f32_bits(out[0]));
  return out[0];
}

/* Distance to the true value in units of the last place that the true value has in f32. */
static double ulps(float got, double truth) {
  int exponent;
  frexp(truth, &exponent);
  return fabs((double)got - truth) / ldexp(1.0, exponent - 24);
}

static void test_exp(void **state) {
  (void)state;
  double worst = 0.0;
  float worst_at = 0.0f;
  int64_t executed = 0;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 251) {
    const float x = oc__bits_f32((uint32_t)bits), y = exp_lane(x);
    executed++;
    if (isnan(x))
      assert_true(isnan(y));
    else if (x < -0x1.5d589ep+6f)
      assert_true(y == 0.0f && !signbit(y));
    else if (x > 0x1.62e42ep+6f)
      assert_true(y == INFINITY);
    else {
      const double u = ulps(y, exp((double)x));
      if (u > worst) worst = u, worst_at = x;
    }
  }
  print_message("exp: %.3f ulp at most, at %.9g\n", worst, (double)worst_at);
  assert_true(worst < 1.2);
  assert_true(worst > 0.4); /* a smaller figure would mean that nothing was measured */
  assert_int_equal(executed, (0xffffffffu + (uint64_t)251) / 251);
  assert_true(exp_lane(0.0f) == 1.0f && exp_lane(-0.0f) == 1.0f);
  assert_true(exp_lane(INFINITY) == INFINITY && exp_lane(-INFINITY) == 0.0f);
  assert_true(isfinite(exp_lane(88.7f)) && exp_lane(-87.3f) > 0.0f);
}

static void test_sigmoid(void **state) {
  (void)state;
  double worst = 0.0;
  float out[OC_VL];
  for (int i = 0; i < 200000; i++) {
    const float x = 87.0f * random_float();
    vf_store(out, vf_sigmoid(vf_set(x)));
    const double u = ulps(out[0], 1.0 / (1.0 + exp(-(double)x)));
    if (u > worst) worst = u;
  }
  print_message("sigmoid: %.3f ulp at most\n", worst);
  assert_true(worst < 3.0 && worst > 0.4);
  vf_store(out, vf_sigmoid(vf_set(-200.0f)));
  assert_true(out[0] == 0.0f);
  vf_store(out, vf_sigmoid(vf_set(200.0f)));
  assert_true(out[0] == 1.0f);
  vf_store(out, vf_sigmoid(vf_set(NAN)));
  assert_true(isnan(out[0]));
}

/* ---- narrow types: every pattern --------------------------------------------------------------------------------- */

/* The value by the definition of the format, without bit tricks. */
static double decode(uint16_t h, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, top = (1 << exponent_bits) - 1, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (h >> mantissa_bits) & top, mantissa = h & ((1 << mantissa_bits) - 1);
  const double sign = h & 0x8000 ? -1.0 : 1.0;
  if (exponent == top) return mantissa ? (double)NAN : sign * (double)INFINITY;
  if (exponent == 0) return sign * ldexp((double)mantissa, 1 - bias - mantissa_bits);
  return sign * ldexp((double)(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
}

static float widen(uint16_t h, int exponent_bits) { return exponent_bits == 8 ? oc__from_bf16(h) : oc__from_f16(h); }
static uint16_t narrow(float f, int exponent_bits) { return exponent_bits == 8 ? oc__to_bf16(f) : oc__to_f16(f); }

static void check_widening(int exponent_bits) {
  uint16_t patterns[OC_VL];
  float lanes[OC_VL];
  int executed = 0;
  for (int h = 0; h < 65536; h++) {
    const float f = widen((uint16_t)h, exponent_bits);
    const double want = decode((uint16_t)h, exponent_bits);
    for (int i = 0; i < OC_VL; i++) patterns[i] = (uint16_t)(h + i);
    vf_store(lanes, exponent_bits == 8 ? vf_bf16(patterns) : vf_f16(patterns));
    for (int i = 0; i < OC_VL; i++) {
      const float one = widen((uint16_t)(h + i), exponent_bits);
      assert_true(isnan(one) ? isnan(lanes[i]) : oc__f32_bits(one) == oc__f32_bits(lanes[i]));
    }
    executed++;
    if (isnan(want)) {
      assert_true(isnan(f) && isnan(widen(narrow(f, exponent_bits), exponent_bits)));
      continue;
    }
    assert_true((double)f == want && !signbit(f) == !signbit(want));
    assert_int_equal(narrow(f, exponent_bits), h);
  }
  assert_int_equal(executed, 65536);
}

/* Between neighbours: the midpoint goes to the even one, one f32 step to either side goes to the nearer one. */
static void check_narrowing(int exponent_bits) {
  const uint16_t infinity = exponent_bits == 8 ? 0x7f80 : 0x7c00;
  int executed = 0;
  for (uint16_t h = 0; h < infinity; h++) {
    const double low = decode(h, exponent_bits);
    /* past the largest value the next step would be where the format has its infinity */
    const double high = h + 1 == infinity ? 2.0 * low - decode((uint16_t)(h - 1), exponent_bits)
                                          : decode((uint16_t)(h + 1), exponent_bits);
    const float middle = (float)(low + (high - low) / 2.0);
    const uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
    assert_true((double)middle == low + (high - low) / 2.0);
    assert_int_equal(narrow(middle, exponent_bits), even);
    assert_int_equal(narrow(-middle, exponent_bits), even | 0x8000);
    assert_int_equal(narrow(nextafterf(middle, 0.0f), exponent_bits), h);
    assert_int_equal(narrow(nextafterf(middle, INFINITY), exponent_bits), h + 1);
    executed++;
  }
  assert_int_equal(executed, infinity);
  assert_int_equal(narrow(INFINITY, exponent_bits), infinity);
  assert_int_equal(narrow(-INFINITY, exponent_bits), infinity | 0x8000);
  assert_int_equal(narrow(3.4028234e38f, exponent_bits), infinity);
  assert_int_equal(narrow(-0.0f, exponent_bits), 0x8000);
  assert_int_equal(narrow(1e-45f, exponent_bits), 0);
  for (uint32_t payload = 1; payload < 0x800000u; payload = payload * 3 + 1) /* a NaN never becomes an infinity */
    assert_true(isnan(widen(narrow(oc__bits_f32(0x7f800000u | payload), exponent_bits), exponent_bits)));
}

static void test_bf16(void **state) {
  (void)state;
  check_widening(8);
  check_narrowing(8);
}

static void test_f16(void **state) {
  (void)state;
  check_widening(5);
  check_narrowing(5);
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* Partial loads and stores next to a page that may not be touched. */
static void test_partial_lanes(void **state) {
  (void)state;
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(memory != MAP_FAILED);
  assert_int_equal(mprotect(memory + page, page, PROT_NONE), 0);
  for (int n = 1; n <= OC_VL; n++) {
    float *end = (float *)(memory + page) - n, lanes[OC_VL], guarded[2 * OC_VL];
    for (int i = 0; i < n; i++) end[i] = (float)(i + 1);
    vf_store(lanes, vf_load_n(end, n));
    for (int i = 0; i < OC_VL; i++) assert_true(lanes[i] == (i < n ? (float)(i + 1) : 0.0f));
    vf_store_n(end, vf_set(9.0f), n);
    for (int i = 0; i < n; i++) assert_true(end[i] == 9.0f);
    for (int i = 0; i < 2 * OC_VL; i++) guarded[i] = -1.0f;
    vf_store_n(guarded, vf_set(5.0f), n);
    for (int i = 0; i < 2 * OC_VL; i++) assert_true(guarded[i] == (i < n ? 5.0f : -1.0f));
  }
  munmap(memory, 2 * page);
}

static void test_arithmetic(void **state) {
  (void)state;
  float a[OC_VL], b[OC_VL], c[OC_VL], out[OC_VL], sum = 0.0f;
  for (int i = 0; i < OC_VL; i++) {
    a[i] = (float)(i - 3);
    b[i] = (float)(2 - i * i);
    c[i] = (float)(5 * i + 1);
    sum += a[i];
  }
#define EACH(expression, want)                                                                                         \
  do {                                                                                                                 \
    vf_store(out, expression);                                                                                         \
    for (int i = 0; i < OC_VL; i++) assert_true(out[i] == (want));                                                     \
  } while (0)
  const vf va = vf_load(a), vb = vf_load(b), vc = vf_load(c);
  EACH(vf_add(va, vb), a[i] + b[i]);
  EACH(vf_sub(va, vb), a[i] - b[i]);
  EACH(vf_mul(va, vb), a[i] * b[i]);
  EACH(vf_div(va, vc), a[i] / c[i]);
  EACH(vf_fma(va, vb, vc), a[i] * b[i] + c[i]);
  EACH(vf_fnma(va, vb, vc), c[i] - a[i] * b[i]);
  EACH(vf_max(va, vb), a[i] > b[i] ? a[i] : b[i]);
  EACH(vf_min(va, vb), a[i] < b[i] ? a[i] : b[i]);
  EACH(vf_zero(), 0.0f);
#undef EACH
  vf_store(out, vf_max(va, vf_set(NAN)));
  assert_true(isnan(out[0]) && isnan(out[OC_VL - 1]));
  vf_store(out, vf_min(va, vf_set(NAN)));
  assert_true(isnan(out[0]) && isnan(out[OC_VL - 1]));
  assert_true(vf_sum(va) == sum);
  assert_true(vf_largest(va) == (float)(OC_VL - 4));
  assert_true(vf_largest(vf_sub(vf_zero(), va)) == 3.0f);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void test_rows(void **state) {
  (void)state;
  static const oc_dtype dtypes[] = {OC_F32, OC_BF16, OC_F16, OC_F64, OC_BOOL, OC_U8, OC_I32, OC_I64};
  static const int64_t strides[] = {1, 2, 3, -1, 0};
  int executed = 0;
  for (int d = 0; d < 8; d++)
    for (int s = 0; s < 5; s++)
      for (int64_t n = 0; n <= 40; n++, executed++) {
        double memory[128] = {0};
        const oc_view view = {.data = memory, .dtype = dtypes[d], .rank = 1};
        for (int64_t i = 0; i < 128; i++) {
          switch (dtypes[d]) {
          case OC_F32:
            ((float *)memory)[i] = (float)(i - 60);
            break;
          case OC_BF16:
            ((uint16_t *)memory)[i] = oc__to_bf16((float)(i - 60));
            break;
          case OC_F16:
            ((uint16_t *)memory)[i] = oc__to_f16((float)(i - 60));
            break;
          case OC_F64:
            memory[i] = (double)(i - 60);
            break;
          case OC_I32:
            ((int32_t *)memory)[i] = (int32_t)(i - 60);
            break;
          case OC_I64:
            ((int64_t *)memory)[i] = i - 60;
            break;
          default:
            ((uint8_t *)memory)[i] = (uint8_t)(i % 4);
            break;
          }
        }
        float out[41];
        out[n] = 777.0f;
        const int64_t first = strides[s] < 0 ? 45 : 3;
        oc__row_load(&view, first, strides[s], n, out);
        for (int64_t i = 0; i < n; i++) {
          const int64_t at = first + i * strides[s];
          const float want = dtypes[d] == OC_BOOL ? (float)(at % 4 != 0)
                             : dtypes[d] == OC_U8 ? (float)(at % 4)
                                                  : (float)(at - 60);
          assert_true(out[i] == want);
        }
        assert_true(out[n] == 777.0f);
        if (d > 2 || s > 2) continue;
        for (int64_t i = 0; i < n; i++) out[i] = (float)(100 + i);
        oc__row_store(&view, first, strides[s], n, out);
        for (int64_t at = 0; at < 128; at++) {
          const int64_t i = at >= first && (at - first) % strides[s] == 0 ? (at - first) / strides[s] : -1;
          assert_true(oc__load1(memory, dtypes[d], at) == (i >= 0 && i < n ? (float)(100 + i) : (float)(at - 60)));
        }
      }
  assert_int_equal(executed, 8 * 5 * 41);
  assert_true(oc__round_to(1.0f + 0x1p-9f, OC_BF16) == 1.0f && oc__round_to(1.0f + 0x1p-9f, OC_F16) == 1.0f + 0x1p-9f);
  assert_true(oc__round_to(1.0f + 0x1p-12f, OC_F16) == 1.0f &&
              oc__round_to(1.0f + 0x1p-12f, OC_F32) == 1.0f + 0x1p-12f);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void test_transpose(void **state) {
  (void)state;
  static float in[70 * 75], out[70 * 80];
  int executed = 0;
  for (int64_t i = 0; i < 70 * 75; i++) in[i] = (float)i;
  for (int64_t rows = 1; rows <= 70; rows += rows < 36 ? 1 : 17)
    for (int64_t columns = 1; columns <= 70; columns += columns < 36 ? 1 : 17, executed++) {
      for (int64_t i = 0; i < 70 * 80; i++) out[i] = -1.0f;
      oc__transpose(rows, columns, in, 75, out, 80);
      for (int64_t c = 0; c < 70; c++)
        for (int64_t r = 0; r < 80; r++)
          assert_true(out[c * 80 + r] == (c < columns && r < rows ? in[r * 75 + c] : -1.0f));
    }
  assert_int_equal(executed, 38 * 38);
}

enum { M_MAX = 27, K_MAX = 1030, N_MAX = 101 };
static float matrix_a[M_MAX * (K_MAX + 5)], weight[N_MAX * 2 * K_MAX], packed[(N_MAX + OC_NR) * K_MAX];
static float product[M_MAX * (N_MAX + 2 * OC_NR)], bias[N_MAX + OC_NR];

/* Small integers: every sum is exact, so any error in an index, a tail or a start value shows. */
static int check_product(int64_t m, int64_t n, int64_t k, int with_bias, int accumulate) {
  const int64_t lda = K_MAX + 5, width = oc__panels(n) * OC_NR, ldc = width + 3;
  oc_view view = {.data = weight, .dtype = OC_F32, .rank = 2, .shape = {n, k}, .stride = {2 * K_MAX, (n + k) % 2 + 1}};
  for (int64_t i = 0; i < (N_MAX + OC_NR) * K_MAX; i++) packed[i] = NAN;
  oc__pack_linear(&view, packed);
  assert_int_equal(oc__packed_floats(k, n), width * k);
  for (int64_t i = 0; i < M_MAX * (N_MAX + 2 * OC_NR); i++) product[i] = (float)(i % 13);
  oc__gemm(0, m, n, k, matrix_a, lda, packed, product, ldc, with_bias ? bias : NULL, accumulate);
  for (int64_t r = 0; r < m; r++)
    for (int64_t c = 0; c < ldc; c++) {
      double want = accumulate || c >= width ? (double)((r * ldc + c) % 13) : with_bias ? (double)bias[c] : 0.0;
      for (int64_t i = 0; i < k && c < n; i++)
        want += (double)matrix_a[r * lda + i] * (double)weight[c * view.stride[0] + i * view.stride[1]];
      if ((double)product[r * ldc + c] != want)
        fail_msg("m=%lld n=%lld k=%lld: [%lld, %lld] is %g, wanted %g", (long long)m, (long long)n, (long long)k,
                 (long long)r, (long long)c, (double)product[r * ldc + c], want);
    }
  for (int64_t i = m * ldc; i < M_MAX * (N_MAX + 2 * OC_NR); i++) assert_true(product[i] == (float)(i % 13));
  return 1;
}

static void test_gemm_tails(void **state) {
  (void)state;
  static const int64_t ns[] = {1, OC_NR - 1, OC_NR, OC_NR + 1, 100, 101}, ks[] = {0, 1, 2, 17, 511, 512, 513, 1030};
  int executed = 0;
  for (int64_t i = 0; i < M_MAX * (K_MAX + 5); i++) matrix_a[i] = (float)((int)(random_u64() % 7) - 3);
  for (int64_t i = 0; i < N_MAX * 2 * K_MAX; i++) weight[i] = (float)((int)(random_u64() % 5) - 2);
  for (int64_t i = 0; i < N_MAX + OC_NR; i++) bias[i] = (float)(i % 9 - 4);
  for (int64_t m = 1; m <= M_MAX; m++)
    for (int n = 0; n < 6; n++) executed += check_product(m, ns[n], ks[(m + n) % 8], m % 2, m % 3 == 0);
  for (int k = 0; k < 8; k++) executed += check_product(13, 33, ks[k], k % 2, k % 3 == 0);
  assert_int_equal(executed, M_MAX * 6 + 8);
}

/* Bits of a row do not depend on the rows beside it. */
static void test_gemm_rows_stand_alone(void **state) {
  (void)state;
  static float together[M_MAX * 128], alone[128];
  const int64_t n = 70, k = 600, lda = K_MAX + 5;
  oc_view view = {.data = weight, .dtype = OC_F32, .rank = 2, .shape = {n, k}, .stride = {2 * K_MAX, 1}};
  for (int64_t i = 0; i < M_MAX * (K_MAX + 5); i++) matrix_a[i] = random_float();
  for (int64_t i = 0; i < N_MAX * 2 * K_MAX; i++) weight[i] = random_float();
  oc__pack_linear(&view, packed);
  oc__gemm(0, M_MAX, n, k, matrix_a, lda, packed, together, 128, NULL, 0);
  for (int64_t r = 0; r < M_MAX; r++) {
    oc__gemm(0, 1, n, k, matrix_a + r * lda, lda, packed, alone, 128, NULL, 0);
    assert_memory_equal(alone, together + r * 128, (size_t)n * sizeof(float));
  }
}

#if OC_HAS_PAIRS
/* A row of n floats becomes n bf16 and, behind an odd last one, a zero; nothing else is touched. */
static void test_pair_row(void **state) {
  (void)state;
  static float row[80];
  int executed = 0;
  for (int64_t n = 0; n <= 70; n++, executed++) {
    float old[80];
    for (int i = 0; i < 80; i++) row[i] = old[i] = 1e3f * random_float();
    oc__pair_rows(1, 1, n, 80, row);
    const uint16_t *narrow = (const uint16_t *)row;
    for (int64_t i = 0; i < n; i++) assert_int_equal(narrow[i], oc__to_bf16(old[i]));
    if (n % 2) assert_int_equal(narrow[n], 0);
    for (int64_t i = n; i < 80; i++) assert_int_equal(oc__f32_bits(row[i]), oc__f32_bits(old[i]));
  }
  assert_int_equal(executed, 71);
}

/* Small whole numbers: bf16 holds them, and their sums are exact in any order. */
static void test_pair_gemm(void **state) {
  (void)state;
  static const int64_t ns[] = {1, OC_NR - 1, OC_NR, OC_NR + 1, 100}, ks[] = {1, 2, 17, 511, 512, 513, 1029};
  int executed = 0;
  for (int64_t i = 0; i < N_MAX * 2 * K_MAX; i++) weight[i] = (float)((int)(random_u64() % 5) - 2);
  for (int64_t m = 1; m <= M_MAX; m += 3)
    for (int n = 0; n < 5; n++)
      for (int k = 0; k < 7; k++, executed++) {
        const int64_t columns = ns[n], depth = ks[k], lda = K_MAX + 5, ldc = oc__panels(columns) * OC_NR;
        const oc_view view = {
            .data = weight, .dtype = OC_F32, .rank = 2, .shape = {columns, depth}, .stride = {2 * K_MAX, 1}};
        static float a[M_MAX * (K_MAX + 5)];
        for (int64_t i = 0; i < M_MAX * lda; i++) a[i] = matrix_a[i] = (float)((int)(random_u64() % 7) - 3);
        oc__pair_rows(1, m, depth, lda, a);
        oc__pack_linear(&view, packed);
        oc__pair_panels(1, ldc, depth, packed);
        oc__gemm(1, m, columns, depth, a, lda, packed, product, ldc, NULL, 0);
        for (int64_t r = 0; r < m; r++)
          for (int64_t c = 0; c < columns; c++) {
            double want = 0.0;
            for (int64_t i = 0; i < depth; i++)
              want += (double)matrix_a[r * lda + i] * (double)weight[c * view.stride[0] + i];
            assert_true((double)product[r * ldc + c] == want);
          }
      }
  assert_int_equal(executed, (M_MAX + 2) / 3 * 35);
}
#endif

static int run_checks(void) {
  const struct CMUnitTest tests[] = {
#if OC_HAS_PAIRS
    cmocka_unit_test(test_pair_row),
    cmocka_unit_test(test_pair_gemm),
#endif
    cmocka_unit_test(test_exp),
    cmocka_unit_test(test_sigmoid),
    cmocka_unit_test(test_bf16),
    cmocka_unit_test(test_f16),
    cmocka_unit_test(test_partial_lanes),
    cmocka_unit_test(test_arithmetic),
    cmocka_unit_test(test_rows),
    cmocka_unit_test(test_transpose),
    cmocka_unit_test(test_gemm_tails),
    cmocka_unit_test(test_gemm_rows_stand_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
