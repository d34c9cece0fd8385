// SPDX-License-Identifier: Apache-2.0
// cubin: sm_80 sm_90a
//
// Triangle attention on mma.sync: any operand dtype, strides, mask and width up to 128 (parameters: mma.h).
//
// A warp owns 16 queries of each of its rows i. Thread (g = lane / 4, t = lane % 4) holds of a 16 x 8 piece of the
// logits the columns 2t, 2t + 1 of queries g and g + 8, which is also where the product with v wants the weights:
// - 16-bit operands: as the A operand of m16n8k16 without a move.
// - f32 operands (m16n8k8): key 2t plays index t of the sum and key 2t + 1 index t + 4, in the weights and in v alike.
//
// Tensor cores truncate the f32 accumulator at each step. For f32 operands the second product therefore starts from
// zero in every key tile and is added to the output by a rounded FMA, so that the error does not grow with the keys.
// The f32 class splits x = hi + lo into two TF32 numbers (|x - hi - lo| <= 2^-21 |x|) and sums hi*lo + lo*hi apart from
// hi*hi.
//
// The logits keep their natural unit: fl(logit - 1e9) must lose the digits that it loses in the reference.

#define OC__TRIATTN_DEVICE_CODE
#include "mma.h"

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef oc__triattn_mma_params params;

enum { MASK_NONE, MASK_SUBTRACT, MASK_FILL, MASK_ZERO, MASK_ADD };

#define METHOD __device__ __forceinline__
#define INLINE static METHOD
#define LOG2E 1.44269504088896340736f
#define LOG2E_LOW 1.92596299e-8f // log2(e) - LOG2E
#define LN2 0.693147180559945309417f
#define FAST_MAX 128.0f // below it fl(m * log2(e)) is within 2^-17 of m * log2(e)
#define LOWEST __int_as_float(0xff800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// ---- instructions (a host program that checks the indices brings its own) ------------------------------------------

#ifdef OC__TRIATTN_MMA_PIECES
#include OC__TRIATTN_MMA_PIECES
#else
extern __shared__ __align__(16) unsigned char shared_memory[];

INLINE u32 shared_start() { return (u32)__cvta_generic_to_shared(shared_memory); }
INLINE void copy16(u32 to, const void *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
INLINE void copy4(u32 to, const void *from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
INLINE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
INLINE void copies_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
INLINE void block_sync() { __syncthreads(); }
INLINE int block_any(int x) { return __syncthreads_or(x); }
INLINE void store16(u32 to, u16 x) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x) : "memory"); }
INLINE void store32(u32 to, u32 x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }
INLINE u32 load32(u32 from) {
  u32 x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
  return x;
}
INLINE uint2 load64(u32 from) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from));
  return x;
}
INLINE void load128(u32 *x, u32 from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
}
INLINE void matrices(u32 *x, u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from));
}
INLINE void matrices_turned(u32 *x, u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from));
}
INLINE void mma_bf16(float *c, const u32 *a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
INLINE void mma_f16(float *c, const u32 *a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
INLINE void mma_tf32(float *c, const u32 *a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
INLINE float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
INLINE float log2_of(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
INLINE float reciprocal(float x) { // within 1 ulp; 0 above 2^126
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
INLINE u32 pair_bf16(float low, float high) {
  u32 x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
INLINE u32 pair_f16(float low, float high) {
  u32 x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
INLINE float from_f16(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
INLINE u32 to_tf32(float x) { // to nearest, ties away from zero
  u32 y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
// The same for what is finite, above the 13 bits that the tensor cores do not read (those are left as they come out).
// Not moved out of a loop, where its results would have to be kept in registers.
INLINE u32 to_tf32_here(float x) {
  u32 y;
  asm volatile("add.u32 %0, %1, 0x1000;" : "=r"(y) : "r"(__float_as_uint(x)));
  return y;
}
// To TF32 in one instruction that keeps a NaN: up by .35 to .71 of a unit in TF32's last place, before the tensor cores
// cut off; .5 on average over values without a scale. Exact for what is a TF32 number already.
INLINE float near_tf32(float x) { return x * 1.000345f; }
INLINE int thread_again() { // read again where it is used, not kept
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
INLINE float exchange(float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }
INLINE float from_lane(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
INLINE u32 vote(bool x) { return __ballot_sync(0xffffffffu, x); }
INLINE int lowest_bit(u32 x) { return __ffs((int)x) - 1; }
INLINE void wait_for_kernel_before() { // its writes are there; no wait where the launch did not ask for an early start
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

// ---- elements -------------------------------------------------------------------------------------------------------

INLINE float from_bf16(u32 x) { return __uint_as_float(x << 16); }
INLINE float low_of(int type, u32 pair) {
  return type == OC__MMA_F16 ? from_f16((u16)pair) : __uint_as_float(pair << 16);
}
INLINE float high_of(int type, u32 pair) {
  return type == OC__MMA_F16 ? from_f16((u16)(pair >> 16)) : __uint_as_float(pair & 0xffff0000u);
}

template <int OPERANDS> struct kind {
  static const bool narrow = OPERANDS <= OC__MMA_f16;
  static const int bytes = narrow ? 2 : 4;
  static const int type = OPERANDS == OC__MMA_f16 ? OC__MMA_F16 : OC__MMA_BF16; // of narrow ones
};

template <int OPERANDS> INLINE u32 to_pair(float low, float high) {
  return OPERANDS == OC__MMA_f16 ? pair_f16(low, high) : pair_bf16(low, high);
}

// Two neighbours in d (d + 1 may be outside) of a row of q, gate or out.
template <int OPERANDS> INLINE float2 load_two(const void *row, i64 stride, int d, int depth, bool pair) {
  float2 x = make_float2(0.0f, 0.0f);
  if (kind<OPERANDS>::narrow) {
    const u16 *from = (const u16 *)row;
    u32 bits = 0;
    if (pair) {
      if (d < depth) bits = *(const u32 *)(from + d);
    } else {
      if (d < depth) bits = from[d * stride];
      if (d + 1 < depth) bits |= (u32)from[(d + 1) * stride] << 16;
    }
    x = make_float2(low_of(kind<OPERANDS>::type, bits), high_of(kind<OPERANDS>::type, bits));
  } else {
    const float *from = (const float *)row;
    if (pair) {
      if (d < depth) x = *(const float2 *)(from + d);
    } else {
      if (d < depth) x.x = from[d * stride];
      if (d + 1 < depth) x.y = from[(d + 1) * stride];
    }
  }
  return x;
}

template <int OPERANDS> INLINE void store_two(void *row, i64 stride, int d, int depth, bool pair, float2 x) {
  if (kind<OPERANDS>::narrow) {
    u16 *to = (u16 *)row;
    const u32 bits = to_pair<OPERANDS>(x.x, x.y);
    if (pair) {
      if (d < depth) *(u32 *)(to + d) = bits;
    } else {
      if (d < depth) to[d * stride] = (u16)bits;
      if (d + 1 < depth) to[(d + 1) * stride] = (u16)(bits >> 16);
    }
  } else {
    float *to = (float *)row;
    if (pair) {
      if (d < depth) *(float2 *)(to + d) = x;
    } else {
      if (d < depth) to[d * stride] = x.x;
      if (d + 1 < depth) to[(d + 1) * stride] = x.y;
    }
  }
}

// exp(x) within 2 ulp for x <= 88: the product with log2(e) carries its rounding error along.
INLINE float exp_full(float x) {
  const float high = x * LOG2E;
  const float low = fmaf(x, LOG2E_LOW, fmaf(x, LOG2E, -high));
  const float y = exp2_of(high);
  return x < -87.0f ? 0.0f : fmaf(y, low * LN2, y);
}

INLINE float sigmoid(float x) {
  const float minus = x < -88.0f ? 88.0f : -x; // keeps a NaN
  return reciprocal(1.0f + exp_full(minus));
}

// ---- one block's work -----------------------------------------------------------------------------------------------

struct place { // what a block serves: rows i .. i + count - 1 of head h from query q
  int b, i, count, h, q;
};

// FIXUP: the bias may be a packed one.
template <int OPERANDS, int WIDE, int ROWS, int WARPS, int KEYS, bool FIXUP = false> struct core {
  static const int bytes = kind<OPERANDS>::bytes;
  static const bool narrow = kind<OPERANDS>::narrow;
  static const bool split = OPERANDS == OC__MMA_f32;
  // q in shared memory, each thread's own registers' worth; both of its parts where there is room.
  static const bool q_outside = OC__TRIATTN_MMA_Q_PARTS(OPERANDS, WIDE) > 0;
  static const bool keep_split = OC__TRIATTN_MMA_Q_PARTS(OPERANDS, WIDE) == 2;
  static const bool sums_outside = OC__TRIATTN_MMA_SUMS(OPERANDS, ROWS, WARPS) > 0;
  static const bool late_bias = split && WIDE == 128; // no registers to hold it during the products
  static const int line = WIDE * bytes + 16;          // bytes of a row in shared memory
  static const int panel = KEYS * line;
  static const int stage = 2 * ROWS * panel;
  static const int steps = WIDE * bytes / 32; // of the sum over d: 32 bytes each
  static const int tiles = KEYS / 8;
  static const int words = KEYS / 32; // of mask bits
  static const int outs = WIDE / 8;
  static const int threads = 32 * WARPS;

  const params &p;
  const place at;
  const int lane, warp, t;
  u32 q[ROWS][q_outside ? 1 : steps][4];
  float o[ROWS][outs][4], top[ROWS][2], sum[sums_outside ? 1 : ROWS][2];
  float bias[tiles * 4];
  const char *bias_row[2];

  METHOD core(const params &p_, const place &at_)
      : p(p_), at(at_), lane(threadIdx.x & 31), warp(threadIdx.x >> 5), t(threadIdx.x & 3) {}

  // ---- global to shared ----

  // The place also lies in shared memory: where it is rarely needed it takes no registers in between.
  static const int place_at = OC__TRIATTN_MMA_PANELS(OPERANDS, WIDE, ROWS, WARPS, KEYS), bits_at = place_at + 32;
  static const int sums_at = bits_at + ROWS * OC__TRIATTN_MMA_SPAN / 4;

  METHOD void note_place() const {
    const u32 to = shared_start() + place_at;
    if (threadIdx.x == 0) {
      store32(to, at.b);
      store32(to + 4, at.i);
      store32(to + 8, at.h);
      store32(to + 12, at.q);
      store32(to + 16, at.count);
    }
    block_sync();
  }

  METHOD place recall_place() const {
    const u32 from = shared_start() + place_at;
    place x;
    x.b = (int)load32(from);
    x.i = (int)load32(from + 4);
    x.h = (int)load32(from + 8);
    x.q = (int)load32(from + 12);
    x.count = (int)load32(from + 16);
    return x;
  }

  // A row beyond the last repeats the last one and is not stored.
  static METHOD int row_i(const place &x, int r) { return ROWS == 1 || r < x.count ? x.i + r : x.i; }

  // Panel 2r holds k of row i + r, panel 2r + 1 holds v.
  METHOD const char *source(const place &x, int panel_at) const {
    const i64 *stride = panel_at & 1 ? p.v_stride : p.k_stride;
    return (const char *)(panel_at & 1 ? p.v : p.k) +
           (x.b * stride[0] + row_i(x, panel_at >> 1) * stride[1] + x.h * stride[3]) * bytes;
  }

  // 4-byte copies, or 16-bit loads and stores.
  METHOD void fetch_elements(u32 to, int first) const {
    const place x = recall_place();
    for (int panel_at = 0; panel_at < 2 * ROWS; panel_at++) {
      const char *from = source(x, panel_at);
      const i64 row_stride = panel_at & 1 ? p.v_stride[2] : p.k_stride[2];
      const i64 d_stride = panel_at & 1 ? p.v_stride[4] : p.k_stride[4];
#pragma unroll 4
      for (int n = threadIdx.x; n < KEYS * WIDE; n += threads) {
        const int row = n / WIDE, d = n % WIDE, key = first + row;
        const bool there = key < p.keys && d < p.depth;
        const char *element = there ? from + (key * row_stride + d * d_stride) * bytes : from;
        if (bytes == 4)
          copy4(to + panel_at * panel + row * line + d * 4, element, there);
        else
          store16(to + panel_at * panel + row * line + d * 2, there ? *(const u16 *)element : (u16)0);
      }
    }
  }

  // The block copies `lines` lines of 16-byte pieces at a time. A thread runs along k and v, or along one of them where
  // the lines of both fit.
  static const int pieces = WIDE * bytes / 16, lines = threads / pieces, runs = lines <= KEYS ? 2 : 1;
  const char *piece[runs];

  static METHOD int first_panel(int run, u32 thread) { return runs == 2 ? run : thread / pieces / KEYS; }
  static METHOD int first_line(u32 thread) { return runs == 2 ? thread / pieces : thread / pieces % KEYS; }

  METHOD void start_fetch() {
#pragma unroll
    for (int run = 0; run < runs; run++) {
      const int panel_at = first_panel(run, threadIdx.x);
      const i64 row_stride = panel_at & 1 ? p.v_stride[2] : p.k_stride[2];
      piece[run] = source(at, panel_at) + first_line(threadIdx.x) * row_stride * bytes + threadIdx.x % pieces * 16;
    }
  }

  METHOD void fetch_pieces(u32 to, int first) {
    const int span = lines < KEYS ? lines : KEYS, panels = runs == 2 ? 2 : lines / KEYS;
    const u32 thread = thread_again();
    const int count = ROWS > 1 ? (int)load32(shared_start() + place_at + 16) : 1;
    const int left = thread % pieces * (16 / bytes) < p.depth ? p.keys - first - first_line(thread) : 0;
#pragma unroll
    for (int run = 0; run < runs; run++) {
      const int panel_at = first_panel(run, thread);
      const i64 row_bytes = (panel_at & 1 ? p.v_stride[2] : p.k_stride[2]) * bytes;
      const u32 to_piece = to + panel_at * panel + first_line(thread) * line + thread % pieces * 16;
#pragma unroll
      for (int n = 0; n < 2 * ROWS / panels; n++) { // panels of later rows
        const char *from = piece[run];
        if (n > 0 && count > 1) from += n * (panels / 2) * (panel_at & 1 ? p.v_stride[1] : p.k_stride[1]) * bytes;
#pragma unroll
        for (int pass = 0; pass < KEYS; pass += span) {
          copy16(to_piece + n * panels * panel + pass * line, from, pass < left);
          from += span * row_bytes;
        }
      }
      piece[run] += KEYS * row_bytes;
    }
  }

  METHOD void fetch(u32 to, int first) {
    if (p.paths & OC__MMA_VEC_KV)
      fetch_pieces(to, first);
    else
      fetch_elements(to, first);
    copies_commit();
  }

  // ---- global to registers ----

  METHOD int row_of(int half) const {
    const int query = at.q + 16 * warp + (lane >> 2) + 8 * half;
    return query < p.queries ? query : p.queries - 1;
  }

  METHOD void load_q_row(int r, int half) {
    const char *row =
        (const char *)p.q + (at.b * p.q_stride[0] + row_i(at, r) * p.q_stride[1] + row_of(half) * p.q_stride[2] +
                             at.h * p.q_stride[3] + (narrow ? 2 * t : t) * p.q_stride[4]) *
                                bytes;
    const int left = p.depth - (narrow ? 2 * t : t); // columns from this thread's first one
#pragma unroll
    for (int n = 0; n < 2 * steps; n++) {
      u32 x;
      if (narrow) {
        const float2 two = load_two<OPERANDS>(row, p.q_stride[4], 0, left - 8 * n, (p.paths & OC__MMA_PAIR_Q) != 0);
        x = to_pair<OPERANDS>(two.x, two.y);
        row += 8 * p.q_stride[4] * bytes;
      } else {
        const float one = 4 * n < left ? *(const float *)row : 0.0f;
        x = split ? __float_as_uint(one) : to_tf32(one);
        if (keep_split) {
          u32 low;
          part(one, x, low);
          store32(own_q(r, n >> 1, 1) + 4 * (half + 2 * (n & 1)), low);
        }
        row += 4 * p.q_stride[4] * bytes;
      }
      if (q_outside)
        store32(own_q(r, n >> 1, 0) + 4 * (half + 2 * (n & 1)), x);
      else
        q[r][q_outside ? 0 : n >> 1][half + 2 * (n & 1)] = x;
    }
  }

  METHOD u32 own_q(int r, int step, int low_part) const {
    return shared_start() + 2 * stage +
           (((r * (keep_split ? 2 : 1) + low_part) * steps + step) * threads + threadIdx.x) * 16;
  }

  METHOD void take_q(u32 *x, int r, int step) const {
    if (q_outside) {
      load128(x, own_q(r, step, 0));
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++) x[e] = q[r][q_outside ? 0 : step][e];
    }
  }

  METHOD void load_q() {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      load_q_row(r, 0);
      load_q_row(r, 1);
    }
  }

  METHOD void start_bias() {
    if (FIXUP && p.bias_type == OC__MMA_PACKED) {
      const i64 tile = ((i64)at.b * p.heads + at.h) * ((p.queries + 63) / 64) + at.q / 64;
      bias_row[0] = (const char *)p.bias + tile * p.key_tiles * 8192 + threadIdx.x * 16;
      return;
    }
    const int size = p.bias_type == OC__MMA_F32 ? 4 : 2;
#pragma unroll
    for (int half = 0; half < 2; half++)
      bias_row[half] = (const char *)p.bias + (at.b * p.bias_stride[0] + at.h * p.bias_stride[1] +
                                               row_of(half) * p.bias_stride[2] + 2 * t * p.bias_stride[3]) *
                                                  size;
  }

  // Two neighbours t read 16 bytes each, the even one of its 8 keys and the odd one of the next 8: 64 bytes of a row at
  // a time, half as many requests to L2. Then they exchange what is the other's.
  METHOD bool quads(int first) const { return !narrow && (p.paths & OC__MMA_QUAD_BIAS) && first + KEYS <= p.keys; }

  METHOD void exchange_quads() {
    const bool odd = t & 1;
#pragma unroll
    for (int n = 0; n < tiles; n += 2)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float &own = bias[4 * n + e], &next = bias[4 * n + 4 + e];
        const float got = exchange(odd ? own : next, 1);
        own = odd ? got : own;
        next = odd ? next : got;
      }
  }

  // Tiles come in order, the pointers run along: offsets would be kept in registers. Raw values: f32 in place, 16-bit
  // in pairs in the first half; unpack_bias spreads them.
  METHOD void load_bias_f32(int first) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float *from = (const float *)bias_row[half];
      if (quads(first)) {
#pragma unroll
        for (int n = 0; n < tiles; n += 2) {
          const float4 x = *(const float4 *)(from + 6 * (t & 1) + 8 * n);
          bias[4 * n + 2 * half] = x.x;
          bias[4 * n + 2 * half + 1] = x.y;
          bias[4 * n + 4 + 2 * half] = x.z;
          bias[4 * n + 5 + 2 * half] = x.w;
        }
        from += KEYS;
      } else if ((p.paths & OC__MMA_PAIR_BIAS) && first + KEYS <= p.keys) {
#pragma unroll
        for (int n = 0; n < tiles; n++) {
          const float2 x = *(const float2 *)(from + 8 * n);
          bias[4 * n + 2 * half] = x.x;
          bias[4 * n + 2 * half + 1] = x.y;
        }
        from += KEYS;
      } else {
        const int left = p.keys - first - 2 * t; // keys from this thread's first one
#pragma unroll
        for (int n = 0; n < tiles; n++) {
          bias[4 * n + 2 * half] = 8 * n < left ? *from : 0.0f;
          from += p.bias_stride[3];
          bias[4 * n + 2 * half + 1] = 8 * n + 1 < left ? *from : 0.0f;
          from += 7 * p.bias_stride[3];
        }
      }
      bias_row[half] = (const char *)from;
    }
  }

  METHOD void load_bias_narrow(int first) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const u16 *from = (const u16 *)bias_row[half];
      if ((p.paths & OC__MMA_PAIR_BIAS) && first + KEYS <= p.keys) {
#pragma unroll
        for (int n = 0; n < tiles; n++) bias[2 * n + half] = __uint_as_float(*(const u32 *)(from + 8 * n));
        from += KEYS;
      } else {
        const int left = p.keys - first - 2 * t;
#pragma unroll
        for (int n = 0; n < tiles; n++) {
          u32 x = 8 * n < left ? *from : 0;
          from += p.bias_stride[3];
          x |= 8 * n + 1 < left ? (u32)*from << 16 : 0;
          from += 7 * p.bias_stride[3];
          bias[2 * n + half] = __uint_as_float(x);
        }
      }
      bias_row[half] = (const char *)from;
    }
  }

  // A block's threads are those of the packed format, 16 keys a vector: key 2t + e of query half at word 2 half + e, in
  // its upper half (with the lower half as more digits), key 8 further in the lower half.
  METHOD void load_bias_packed() {
#pragma unroll
    for (int n = 0; n < tiles; n += 2) {
      const uint4 x = *(const uint4 *)bias_row[0];
      bias[2 * n] = __uint_as_float(x.x);
      bias[2 * n + 1] = __uint_as_float(x.y);
      bias[2 * n + 2] = __uint_as_float(x.z);
      bias[2 * n + 3] = __uint_as_float(x.w);
      bias_row[0] += 2048;
    }
  }

  // 0xff7f stands for -inf, which a logit must become: a row of nothing else has no weights.
  METHOD void spread_bias_packed() {
#pragma unroll
    for (int n = tiles - 2; n >= 0; n -= 2) {
      u32 x[4];
#pragma unroll
      for (int e = 0; e < 4; e++) x[e] = __float_as_uint(bias[2 * n + e]);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        bias[4 * n + e] = x[e] >> 16 == 0xff7fu ? LOWEST : __uint_as_float(x[e]) * LN2;
        bias[4 * n + 4 + e] = (x[e] & 0xffffu) == 0xff7fu ? LOWEST : from_bf16(x[e]) * LN2;
      }
    }
  }

  METHOD void load_bias(int first) {
    if (FIXUP && p.bias_type == OC__MMA_PACKED)
      load_bias_packed();
    else if (p.bias_type == OC__MMA_F32)
      load_bias_f32(first);
    else if (p.bias_type != OC__MMA_ABSENT)
      load_bias_narrow(first);
  }

  template <int TYPE> METHOD void spread_bias() {
#pragma unroll
    for (int n = tiles - 1; n >= 0; n--) {
      const u32 a = __float_as_uint(bias[2 * n]), b = __float_as_uint(bias[2 * n + 1]);
      bias[4 * n] = low_of(TYPE, a);
      bias[4 * n + 1] = high_of(TYPE, a);
      bias[4 * n + 2] = low_of(TYPE, b);
      bias[4 * n + 3] = high_of(TYPE, b);
    }
  }

  METHOD void unpack_bias(int first) {
    if (quads(first))
      exchange_quads();
    else if (p.bias_type == OC__MMA_BF16)
      spread_bias<OC__MMA_BF16>();
    else if (p.bias_type == OC__MMA_F16)
      spread_bias<OC__MMA_F16>();
    else if (FIXUP && p.bias_type == OC__MMA_PACKED)
      spread_bias_packed();
  }

  METHOD float mask_at(const place &x, int r, int key) const {
    const i64 offset = x.b * p.mask_stride[0] + row_i(x, r) * p.mask_stride[1] + key * p.mask_stride[2];
    switch (p.mask_type) {
    case OC__MMA_BYTE:
      return (float)((const unsigned char *)p.mask)[offset];
    case OC__MMA_I32:
      return (float)((const int *)p.mask)[offset];
    case OC__MMA_I64:
      return (float)((const i64 *)p.mask)[offset];
    case OC__MMA_BF16:
      return from_bf16(((const u16 *)p.mask)[offset]);
    case OC__MMA_F16:
      return from_f16(((const u16 *)p.mask)[offset]);
    default:
      return ((const float *)p.mask)[offset];
    }
  }

  // Two words for 32 keys, OC__TRIATTN_MMA_SPAN keys ahead: a bit a key, set where it is there and kept; and not 0
  // where bits do not say it all, that is an added mask or one to be subtracted that is neither 0 nor 1.
  METHOD void note_mask(u32 to, int first) const {
    const place x = recall_place();
    const int thread = thread_again(), lane = thread & 31, warp = thread >> 5;
    for (int n = warp; n < ROWS * OC__TRIATTN_MMA_SPAN / 32; n += WARPS) {
      const int r = n / (OC__TRIATTN_MMA_SPAN / 32), start = first + n % (OC__TRIATTN_MMA_SPAN / 32) * 32;
      if (start >= p.keys + KEYS) continue; // a tile's last words may lie beyond the keys
      const bool there = start + lane < p.keys;
#if OC_MUTANT == 4 // lost mask
      const float m = 1.0f;
#else
      const float m = there && p.mask_kind != MASK_NONE ? mask_at(x, r, start + lane) : 1.0f;
#endif
      const u32 kept = vote(there && (p.mask_kind == MASK_ADD || m != 0.0f));
      const u32 graded = vote(p.mask_kind == MASK_ADD || (p.mask_kind == MASK_SUBTRACT && m != 0.0f && m != 1.0f));
      if (lane != 0) continue;
      store32(to + 8 * n, kept);
      store32(to + 8 * n + 4, graded);
    }
  }

  METHOD bool keeps_any(const place &x, int r) const {
    u32 kept = 0;
    for (int first = 0; first < p.keys && kept == 0; first += 32)
      kept = vote(first + lane < p.keys && mask_at(x, r, first + lane) != 0.0f);
    return kept != 0;
  }

  // ---- products ----

  static METHOD void mma(float *c, const u32 *a, u32 b0, u32 b1) {
    if (OPERANDS == OC__MMA_bf16)
      mma_bf16(c, a, b0, b1);
    else if (OPERANDS == OC__MMA_f16)
      mma_f16(c, a, b0, b1);
    else
      mma_tf32(c, a, b0, b1);
  }

  // |x - high - low| <= 2^-21 |x|. A NaN stays one in low; infinities become NaN.
  static METHOD void part(float x, u32 &high, u32 &low) {
    high = (__float_as_uint(x) + 0x1000) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
  }

  METHOD void logits_split(float (*s)[4], int r, u32 from) {
    const int together = WIDE == 128 ? 2 : tiles; // columns of 8 keys for which a part of q is read once
#pragma unroll
    for (int n0 = 0; n0 < tiles; n0 += together) {
      float low[together][4];
#pragma unroll
      for (int n = 0; n < together; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[n0 + n][e] = low[n][e] = 0.0f;
#pragma unroll(WIDE == 128 ? 2 : steps)
      for (int step = 0; step < steps; step++) {
        u32 a_high[4], a_low[4];
        take_q(a_high, r, step);
        if (keep_split) {
          load128(a_low, own_q(r, step, 1));
        } else {
#pragma unroll
          for (int e = 0; e < 4; e++) part(__uint_as_float(a_high[e]), a_high[e], a_low[e]);
        }
#pragma unroll
        for (int n = 0; n < together; n += 2) {
          u32 k[4], k_high[4], k_low[4];
          matrices(k, from + (n0 + n) * 8 * line + step * 32);
#pragma unroll
          for (int e = 0; e < 4; e++) part(__uint_as_float(k[e]), k_high[e], k_low[e]);
#pragma unroll
          for (int e = 0; e < 2; e++) {
            mma_tf32(low[n + e], a_low, k_high[2 * e], k_high[2 * e + 1]);
            mma_tf32(s[n0 + n + e], a_high, k_high[2 * e], k_high[2 * e + 1]);
            mma_tf32(low[n + e], a_high, k_low[2 * e], k_low[2 * e + 1]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < together; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[n0 + n][e] += low[n][e];
    }
  }

  METHOD void logits(float (*s)[4], int r, u32 k_panel) {
    // Matrix m of four: keys 8 * (m / 2) .., bytes 16 * (m % 2) .. of a step.
    const u32 from = k_panel + ((lane >> 4) * 8 + (lane & 7)) * line + ((lane >> 3) & 1) * 16;
    if constexpr (split)
      logits_split(s, r, from);
    else
      logits_plain(s, r, from);
  }

  METHOD void logits_piece(float (*s)[4], const u32 *a, int n, int step, u32 from) {
    u32 k[4];
    matrices(k, from + n * 8 * line + step * 32);
    if (!narrow) {
#pragma unroll
      for (int e = 0; e < 4; e++) k[e] = __float_as_uint(near_tf32(__uint_as_float(k[e])));
    }
    mma(s[n], a, k[0], k[1]);
    mma(s[n + 1], a, k[2], k[3]);
  }

  METHOD void logits_plain(float (*s)[4], int r, u32 from) {
#pragma unroll
    for (int n = 0; n < tiles; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] = 0.0f;
    if constexpr (q_outside) { // read each piece of it once
#pragma unroll
      for (int step = 0; step < steps; step++) {
        u32 a[4];
        take_q(a, r, step);
#pragma unroll
        for (int n = 0; n < tiles; n += 2) logits_piece(s, a, n, step, from);
      }
    } else {
#pragma unroll
      for (int n = 0; n < tiles; n += 2)
#pragma unroll
        for (int step = 0; step < steps; step++) logits_piece(s, q[r][step], n, step, from);
    }
  }

  METHOD void values_narrow(const float (*w)[4], int r, u32 v_panel) {
    // Matrix m of four: keys 8 * (m % 2) .., columns 8 * (m / 2) .. of a step of 16 keys.
    const u32 from = v_panel + (((lane >> 3) & 1) * 8 + (lane & 7)) * line + (lane >> 4) * 16;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
      u32 a[4];
#pragma unroll
      for (int e = 0; e < 4; e++)
        a[e] = to_pair<OPERANDS>(w[2 * step + (e >> 1)][2 * (e & 1)], w[2 * step + (e >> 1)][2 * (e & 1) + 1]);
#pragma unroll
      for (int n = 0; n < outs; n += 2) {
        u32 v[4];
        matrices_turned(v, from + step * 16 * line + n * 16);
        mma(o[r][n], a, v[0], v[1]);
        mma(o[r][n + 1], a, v[2], v[3]);
      }
    }
  }

  METHOD void values_f32(const float (*w)[4], const float *shrink, int r, u32 v_panel) {
    const int chunk = WIDE == 32 ? 4 : WIDE == 128 && split ? 1 : 2; // columns of 8 whose fresh sums are held at a time
    const u32 from = v_panel + 2 * t * line + (lane >> 2) * 4;
#pragma unroll
    for (int n0 = 0; n0 < outs; n0 += chunk) {
      float high[chunk][4], low[split ? chunk : 1][4];
#pragma unroll
      for (int n = 0; n < chunk; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          high[n][e] = 0.0f;
          if (split) low[split ? n : 0][e] = 0.0f;
        }
#pragma unroll
      for (int step = 0; step < tiles; step++) {
        u32 a[4], a_low[4];
#pragma unroll
        for (int e = 0; e < 4; e++) { // e: query half, then key parity
          const float x = w[step][2 * (e & 1) + (e >> 1)];
          a[e] = to_tf32_here(x); // a NaN is also in the sum
          if (split) {
            a[e] &= 0xffffe000u;
            a_low[e] = __float_as_uint(x - __uint_as_float(a[e]));
          }
        }
#pragma unroll
        for (int n = 0; n < chunk; n++) {
          const u32 v_at = from + step * 8 * line + (n0 + n) * 32;
          u32 v[2], v_low[2];
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const float x = __uint_as_float(load32(v_at + e * line));
            if (split)
              part(x, v[e], v_low[e]);
            else
              v[e] = __float_as_uint(near_tf32(x));
          }
          mma_tf32(high[n], a, v[0], v[1]);
          if (split) {
            mma_tf32(low[split ? n : 0], a_low, v[0], v[1]);
            mma_tf32(low[split ? n : 0], a, v_low[0], v_low[1]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < chunk; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float fresh = split ? high[n][e] + low[split ? n : 0][e] : high[n][e];
          o[r][n0 + n][e] = fmaf(o[r][n0 + n][e], shrink[e >> 1], fresh);
        }
    }
  }

  // ---- softmax ----

  METHOD float sum_of(int r, int half) const {
    if (!sums_outside) return sum[sums_outside ? 0 : r][half];
    return __uint_as_float(load32(shared_start() + sums_at + ((2 * r + half) * threads + threadIdx.x) * 4));
  }

  METHOD void set_sum(int r, int half, float x) {
    if (sums_outside)
      store32(shared_start() + sums_at + ((2 * r + half) * threads + threadIdx.x) * 4, __float_as_uint(x));
    else
      sum[sums_outside ? 0 : r][half] = x;
  }

  // MASK_ADD, and MASK_SUBTRACT with values between 0 and 1: a lane reads one key's addend (left out: -inf).
  METHOD void add_mask(float (*s)[4], int r, int first) const {
    const place x = recall_place();
#pragma unroll
    for (int w = 0; w < words; w++) {
      const int key = first + 32 * w + lane;
      float addend = key < p.keys ? mask_at(x, r, key) : LOWEST;
      if (p.mask_kind == MASK_SUBTRACT && key < p.keys) addend = __fmul_rn(p.mask_value, __fadd_rn(addend, -1.0f));
#pragma unroll
      for (int n = 4 * w; n < 4 * w + 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float a = from_lane(addend, 8 * (n & 3) + 2 * t + e);
          s[n][e] = __fadd_rn(fmaf(s[n][e], p.scale, a), bias[4 * n + e]);
          s[n][e + 2] = __fadd_rn(fmaf(s[n][e + 2], p.scale, a), bias[4 * n + e + 2]);
        }
    }
  }

  // kept: the tile's bits of note_mask, moved so that bit 8 n + e belongs to this thread's column. One loop a kind: the
  // masks of real batches touch many tiles.
  METHOD void apply_mask(float (*s)[4], const u32 *kept, int first) const {
    if (p.mask_kind == MASK_SUBTRACT) {
#pragma unroll
      for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float a = kept[n >> 2] & 1u << (8 * (n & 3) + (e & 1)) ? 0.0f : -p.mask_value;
          s[n][e] = __fadd_rn(fmaf(s[n][e], p.scale, a), bias[4 * n + e]);
        }
    } else if (p.mask_kind == MASK_FILL) {
#pragma unroll
      for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const bool keep = kept[n >> 2] & 1u << (8 * (n & 3) + (e & 1));
          s[n][e] = __fadd_rn(keep ? __fmul_rn(s[n][e], p.scale) : p.mask_value, bias[4 * n + e]);
        }
    } else {
#pragma unroll
      for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const bool keep = kept[n >> 2] & 1u << (8 * (n & 3) + (e & 1));
          s[n][e] = keep ? fmaf(s[n][e], p.scale, bias[4 * n + e]) : LOWEST;
        }
    }
#if OC_MUTANT == 3 // dropped tail
    const int left = p.keys - first - 2 * t - 1;
#else
    const int left = p.keys - first - 2 * t; // keys from this thread's first one
#endif
    if (first + KEYS > p.keys) {
#pragma unroll
      for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (8 * n + (e & 1) >= left) s[n][e] = LOWEST;
    }
  }

  // Scale, mask and bias. A tile whose keys are all there and unmasked takes one FMA a logit.
  METHOD void finish_logits(float (*s)[4], int r, int first, u32 mask_bits) {
    u32 kept[words], all = 0xffffffffu, graded = 0;
#pragma unroll
    for (int w = 0; w < words; w++) {
      const uint2 two = load64(mask_bits + (r * (OC__TRIATTN_MMA_SPAN / 32) + w) * 8);
      kept[w] = two.x;
      graded |= two.y;
      all &= kept[w];
      kept[w] >>= 2 * t;
    }
    if (graded != 0) {
      add_mask(s, r, first);
    } else if (all != 0xffffffffu) {
      apply_mask(s, kept, first);
    } else {
#pragma unroll
      for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] = fmaf(s[n][e], p.scale, bias[4 * n + e]);
    }
  }

  // The rounded product with log2(e) costs a weight |logit - base| 2^-24 of itself: on average over the weights
  // log(keys) 2^-24 at most. The folded one costs |base| 2^-24.
  METHOD void weights(float (*s)[4], const float *base, float *tile_sum) {
    tile_sum[0] = tile_sum[1] = 0.0f;
    if (!split && vote(fabsf(base[0]) < FAST_MAX && fabsf(base[1]) < FAST_MAX) == 0xffffffffu) {
      const float folded[2] = {-base[0] * LOG2E, -base[1] * LOG2E};
#pragma unroll
      for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          s[n][e] = exp2_of(fmaf(s[n][e], LOG2E, folded[e >> 1]));
          tile_sum[e >> 1] += s[n][e];
        }
    } else {
#pragma unroll
      for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          s[n][e] = exp2_of((s[n][e] - base[e >> 1]) * LOG2E);
          tile_sum[e >> 1] += s[n][e];
        }
    }
  }

  METHOD void tile(int r, int first, u32 panels, u32 mask_bits) {
    float s[tiles][4], base[2], shrink[2], tile_sum[2];
#if OC_MUTANT == 1 // swapped operand
    logits(s, r, panels + (2 * r + 1) * panel);
#else
    logits(s, r, panels + 2 * r * panel);
#endif
    if (late_bias) load_bias(first);
    if (r == 0) unpack_bias(first);
#if OC_MUTANT == 2 // shifted index
#pragma unroll
    for (int n = 0; n < 2 * tiles; n++) bias[2 * n] = bias[2 * n + 1];
#endif
    finish_logits(s, r, first, mask_bits);
    if (!late_bias && r == ROWS - 1 && first + KEYS < p.keys) load_bias(first + KEYS);
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float largest = LOWEST;
#pragma unroll
      for (int n = 0; n < tiles; n++) largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      largest = fmaxf(largest, exchange(largest, 1));
      largest = fmaxf(largest, exchange(largest, 2));
      grown = grown || largest > top[r][half];
      largest = fmaxf(largest, top[r][half]);
      base[half] = largest == LOWEST ? 0.0f : largest;
      shrink[half] = exp2_of((top[r][half] - base[half]) * LOG2E);
      top[r][half] = largest;
    }
    weights(s, base, tile_sum);
#pragma unroll
    for (int half = 0; half < 2; half++) set_sum(r, half, fmaf(sum_of(r, half), shrink[half], tile_sum[half]));
    if constexpr (narrow) {
      if (vote(grown)) {
#pragma unroll
        for (int n = 0; n < outs; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) o[r][n][e] *= shrink[e >> 1];
      }
      values_narrow(s, r, panels + (2 * r + 1) * panel);
    } else {
      values_f32(s, shrink, r, panels + (2 * r + 1) * panel);
    }
  }

  // ---- output ----

  METHOD void finish(int r, const place &done) {
    const int i = done.i + r;
    bool counted = p.keys > 0; // some key has weight, as far as the mask says
    if (p.mask_kind == MASK_ZERO && vote(top[r][0] == LOWEST || top[r][1] == LOWEST)) counted = keeps_any(done, r);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float total = sum_of(r, half);
      total += exchange(total, 1);
      total += exchange(total, 2);
      const int thread = thread_again(), row = done.q + (thread >> 5) * 16 + ((thread & 31) >> 2) + 8 * half;
      if (row >= p.queries) continue;
      if constexpr (FIXUP) { // a flag a warp: the others' results are right, and where the gate lay already overwritten
        const i64 tile = ((i64)(done.b * p.heads + done.h) * p.rows + i) * ((p.queries + 63) / 64) + done.q / 64;
        if (p.flags[4 * tile + (thread >> 5)] == 0) continue;
      }
      const bool dead = top[r][half] == LOWEST; // no weight anywhere
      const float nothing = counted ? NOT_A_NUMBER : 0.0f;
      const float inverse = reciprocal(total);
      char *to =
          (char *)p.out +
          (done.b * p.out_stride[0] + i * p.out_stride[1] + row * p.out_stride[2] + done.h * p.out_stride[3]) * bytes;
      const char *gate = (const char *)p.gate + (done.b * p.gate_stride[0] + i * p.gate_stride[1] +
                                                 row * p.gate_stride[2] + done.h * p.gate_stride[3]) *
                                                    bytes;
#pragma unroll
      for (int n = 0; n < outs; n++) {
        const int d = 8 * n + 2 * t;
        float2 x = make_float2(o[r][n][2 * half] * inverse, o[r][n][2 * half + 1] * inverse);
        if (dead) x = make_float2(nothing, nothing);
        if (p.gate) {
          const float2 g = load_two<OPERANDS>(gate, p.gate_stride[4], d, p.depth, (p.paths & OC__MMA_PAIR_GATE) != 0);
          x = make_float2(x.x * sigmoid(g.x), x.y * sigmoid(g.y));
        }
        store_two<OPERANDS>(to, p.out_stride[4], d, p.depth, (p.paths & OC__MMA_PAIR_OUT) != 0, x);
      }
      if (p.lse && t == 0)
        p.lse[done.b * p.lse_stride[0] + i * p.lse_stride[1] + done.h * p.lse_stride[2] + row * p.lse_stride[3]] =
            dead ? (counted ? NOT_A_NUMBER : LOWEST) : fmaf(log2_of(total), LN2, top[r][half]);
    }
  }

  METHOD void run() {
    const u32 memory = shared_start();
    note_place();
    load_q();
    start_fetch();
    start_bias();
#pragma unroll
    for (int n = 0; n < 4 * tiles; n++) bias[n] = 0.0f;
    if (!late_bias) load_bias(0);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
      for (int n = 0; n < outs; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[r][n][e] = 0.0f;
      top[r][0] = top[r][1] = LOWEST;
      set_sum(r, 0, 0.0f);
      set_sum(r, 1, 0.0f);
    }
    // One turn more than tiles: the first only fetches.
    u32 here = memory + stage;
    for (int first = -KEYS; first < p.keys; first += KEYS) {
      const int ahead = first + KEYS, inside = first & (OC__TRIATTN_MMA_SPAN - 1);
      if (first >= 0) {
        copies_wait();
        block_sync(); // this tile is there, and nobody reads the other stage or the bits before `first` any more
      }
      if (ahead < p.keys) fetch(2 * memory + stage - here, ahead);
      if (first >= 0) {
        if (inside == 0) {
          note_mask(memory + bits_at, first);
          block_sync();
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) tile(r, first, here, memory + bits_at + inside / 4);
      }
      here = 2 * memory + stage - here;
    }
    const place done = recall_place();
#pragma unroll
    for (int r = 0; r < ROWS; r++)
      if (ROWS == 1 || r < done.count) finish(r, done);
  }
};

// ---- entries --------------------------------------------------------------------------------------------------------

// Blocks that run at the same time should share k and v (same rows, all query tiles) as well as the bias (same head and
// query tile, many rows): heads outermost, then groups of rows, query tiles, and the rows of a group innermost.
template <int OPERANDS, int WIDE, int ROWS, int WARPS, int KEYS> INLINE void run_block(const params &p) {
  const u32 queries = 16 * WARPS;
  const u32 query_tiles = ((u32)p.queries + queries - 1) / queries, row_tiles = ((u32)p.rows + ROWS - 1) / ROWS;
  const u32 head = blockIdx.x / (query_tiles * row_tiles), rest = blockIdx.x - head * query_tiles * row_tiles;
  const u32 group = rest / (OC__TRIATTN_MMA_GROUP * query_tiles);
  const u32 inside = rest - group * OC__TRIATTN_MMA_GROUP * query_tiles;
  const u32 left = row_tiles - group * OC__TRIATTN_MMA_GROUP;
  const u32 wide = left < OC__TRIATTN_MMA_GROUP ? left : OC__TRIATTN_MMA_GROUP;
  place at;
  at.b = (int)(head / (u32)p.heads);
  at.h = (int)(head % (u32)p.heads);
  at.q = (int)(inside / wide * queries);
  at.i = (int)((group * OC__TRIATTN_MMA_GROUP + inside % wide) * ROWS);
  at.count = p.rows - at.i < ROWS ? p.rows - at.i : ROWS;
  core<OPERANDS, WIDE, ROWS, WARPS, KEYS>(p, at).run();
}

#define ENTRY(operands, wide, rows, warps, keys, blocks)                                                               \
  extern "C" __global__ void __launch_bounds__(32 * warps, blocks)                                                     \
      triattn_mma_##operands##_d##wide(const __grid_constant__ params p) {                                             \
    run_block<OC__MMA_##operands, wide, rows, warps, keys>(p);                                                         \
  }
OC__TRIATTN_MMA_LIST(ENTRY)

// A vector of 4 tiles' words a thread and round, two neighbours of which (32 bytes) go to one block: flagged tiles come
// in groups, and a block computes those that it finds one by one.
template <int OPERANDS, int WIDE, int ROWS, int WARPS, int KEYS> INLINE void run_fixup(const params &p) {
  const int tiles = (p.queries + 63) / 64;
  const u32 found = shared_start() + OC__TRIATTN_MMA_SHARED(OPERANDS, WIDE, ROWS, WARPS, KEYS);
  const i64 count = (i64)p.batches * p.heads * p.rows * tiles;
  wait_for_kernel_before();
  for (i64 pair = blockIdx.x; pair * 8 < count; pair += (i64)gridDim.x * 16 * WARPS) {
    const i64 mine = (pair + (i64)(threadIdx.x >> 1) * gridDim.x) * 8 + (threadIdx.x & 1) * 4;
    const u32 *from = (const u32 *)p.flags + mine;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (mine + 4 <= count) {
      x = *(const uint4 *)from;
    } else {
      if (mine < count) x.x = from[0];
      if (mine + 1 < count) x.y = from[1];
      if (mine + 2 < count) x.z = from[2];
    }
    if (!block_any((x.x | x.y | x.z | x.w) != 0)) continue;
    const u32 bits[4] = {vote(x.x != 0), vote(x.y != 0), vote(x.z != 0), vote(x.w != 0)};
    if ((threadIdx.x & 31) == 0) {
#pragma unroll
      for (int f = 0; f < 4; f++) store32(found + (threadIdx.x >> 5) * 16 + f * 4, bits[f]);
    }
    block_sync();
    for (int n = 0; n < 4 * WARPS; n++) { // bit t of word n: place n % 4 of thread 32 * (n / 4) + t
      for (u32 open = load32(found + 4 * n); open != 0; open &= open - 1) {
        const int thread = 32 * (n >> 2) + lowest_bit(open);
        const i64 flag = (pair + (i64)(thread >> 1) * gridDim.x) * 8 + (thread & 1) * 4 + (n & 3), row = flag / tiles;
        place at;
        at.q = (int)(flag % tiles) * 64;
        at.i = (int)(row % p.rows);
        at.h = (int)(row / p.rows % p.heads);
        at.b = (int)(row / p.rows / p.heads);
        at.count = 1;
        core<OPERANDS, WIDE, ROWS, WARPS, KEYS, true>(p, at).run();
        block_sync(); // before the next tile overwrites k and v
      }
    }
    block_sync();
  }
}

#define FIXUP(operands, wide, rows, warps, keys, blocks)                                                               \
  extern "C" __global__ void __launch_bounds__(32 * warps, blocks)                                                     \
      triattn_mma_fixup_##operands##_d##wide(const __grid_constant__ params p) {                                       \
    run_fixup<OC__MMA_##operands, wide, rows, warps, keys>(p);                                                         \
  }
OC__TRIATTN_MMA_FIXUP(FIXUP)
