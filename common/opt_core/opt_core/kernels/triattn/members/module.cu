// SPDX-License-Identifier: Apache-2.0
// cubin: sm_90a
// The triangle-attention module round its core: LayerNorm and the projections before it, the output projection after.
//
// A warpgroup takes 64 pixels (rows of x or of o) at a time and goes through them alone: global memory straight into
// registers, LayerNorm in registers, A of the products from registers, results straight back to global memory. Only the
// weights lie in shared memory, so nothing but their arrival needs a barrier; loads, products and stores of the three
// warpgroups of a block overlap by themselves, and the next 64 rows are on their way into L2 meanwhile.
//
// This works without a shuffle or a staging buffer because both index orders of the weight tile are free:
//   k order   a wgmma A fragment gives a lane two neighbours in each 8 columns; the sum over k may run in any order, so
//             the columns of the tile are permuted until the fragments of a lane are one 16-byte piece of x
//   n order   likewise the rows of the tile: the accumulators of a lane become one 16-byte piece of the result
// so every access to global memory is 16 bytes a lane and 64 contiguous bytes a quad (whole sectors).

#include "module.h"

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

typedef oc__module_vector vector_ref;
typedef oc__module_matrix matrix_ref;
typedef oc__module_linear linear_ref;
typedef oc__module_prologue_params prologue_params;
typedef oc__module_epilogue_params epilogue_params;

enum { F32 = 1, BF16 = 2, F16 = 3 }; // oc_dtype
enum { TILE = OC__MODULE_TILE, INNER = OC__MODULE_INNER, GROUP = OC__MODULE_GROUP };
enum { PANEL = OC__MODULE_PANEL_BYTES, PAIR_PANEL = 8 * 128 };

// ---- instructions ---------------------------------------------------------------------------------------------------

#define ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC16(d, i) ACC4(d, i), ACC4(d, i + 4), ACC4(d, i + 8), ACC4(d, i + 12)

// d = a * b + (more ? d : 0): a 64 x 16 in registers, b n x 16 in shared memory (k fastest, 128-byte swizzle).
__device__ __forceinline__ void wgmma(float (&d)[64], const u32 (&a)[4], u64 b, int more) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
               "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
               : ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

__device__ __forceinline__ void wgmma(float (&d)[32], const u32 (&a)[4], u64 b, int more) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
               "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
               : ACC16(d, 0), ACC16(d, 16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

__device__ __forceinline__ void wgmma(float (&d)[4], const u32 (&a)[4], u64 b, int more) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, "
               "p, 1, 1, 0;\n}\n"
               : ACC4(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// Panels start at multiples of 1024 bytes; eight rows are 1024 bytes apart (the 64 of the stride field).
__device__ __forceinline__ u64 panel_descriptor(u32 shared_address) {
  return (u64)((shared_address >> 4) & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// To L2. The lanes of a warp are served one after the other.
__device__ __forceinline__ void prefetch(const char *row, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(row)), "r"(bytes));
}

// Read once and never written by this kernel.
__device__ __forceinline__ uint4 load_once(const char *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ void store_shared(u32 address, u32 word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ u32 pack_f16(float low, float high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ float low_bf16(u32 word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_bf16(u32 word) { return __uint_as_float(word & 0xffff0000u); }
__device__ __forceinline__ float from_f16(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
__device__ __forceinline__ float low_f16(u32 word) { return from_f16((u16)word); }
__device__ __forceinline__ float high_f16(u32 word) { return from_f16((u16)(word >> 16)); }

__device__ __forceinline__ float load_any(const char *p, int dtype) {
  if (dtype == F32) return *(const float *)p;
  const u16 bits = *(const u16 *)p;
  return dtype == BF16 ? __uint_as_float((u32)bits << 16) : from_f16(bits);
}
__device__ __forceinline__ float load_at(const vector_ref &v, int index, float absent) {
  return v.data ? load_any(v.data + index * v.stride, (int)v.dtype) : absent;
}

// ---- weights into shared memory -------------------------------------------------------------------------------------

// Place of column c (even; c + 1 follows) in the permuted k order, for pieces of 8 (16-bit) or 4 (f32) elements a lane.
template <int PIECE> __device__ __forceinline__ int place_of_column(int c) {
  if (PIECE == 8) return (c & ~31) + (c & 4) * 4 + (c & 2) * 4 + ((c >> 3) & 3) * 2;
  return (c & ~15) + (c & 2) * 4 + ((c >> 2) & 3) * 2;
}

// The output column that row `place` of a tile stands for, likewise.
template <int PIECE> __device__ __forceinline__ int column_of_place(int place) {
  const int chunk = place >> 3, lane = (place >> 1) & 3, odd = place & 1;
  if (PIECE == 8) return (chunk >> 2) * 32 + lane * 8 + (chunk & 3) * 2 + odd;
  return (chunk >> 1) * 16 + lane * 4 + (chunk & 1) * 2 + odd;
}

// Byte of (row, k) in panels of 64 k each.
__device__ __forceinline__ u32 panel_byte(int row, int k, u32 panel_bytes) {
  const u32 unit = ((k >> 3) & 7) ^ (row & 7);
  return (k >> 6) * panel_bytes + row * 128 + unit * 16 + (k & 7) * 2;
}

template <int MODE> struct eight_columns; // as they come from memory; 16 bytes a load
template <> struct eight_columns<BF16> {
  uint4 v;
  __device__ __forceinline__ void load(const char *p) { v = load_once(p); }
  __device__ __forceinline__ uint4 bf16() const { return v; }
};
template <> struct eight_columns<F16> {
  uint4 v;
  __device__ __forceinline__ void load(const char *p) { v = load_once(p); }
  __device__ __forceinline__ uint4 bf16() const {
    return make_uint4(pack_bf16(low_f16(v.x), high_f16(v.x)), pack_bf16(low_f16(v.y), high_f16(v.y)),
                      pack_bf16(low_f16(v.z), high_f16(v.z)), pack_bf16(low_f16(v.w), high_f16(v.w)));
  }
};
template <> struct eight_columns<F32> {
  uint4 a, b;
  __device__ __forceinline__ void load(const char *p) { a = load_once(p), b = load_once(p + 16); }
  __device__ __forceinline__ uint4 bf16() const {
    return make_uint4(pack_bf16(__uint_as_float(a.x), __uint_as_float(a.y)),
                      pack_bf16(__uint_as_float(a.z), __uint_as_float(a.w)),
                      pack_bf16(__uint_as_float(b.x), __uint_as_float(b.y)),
                      pack_bf16(__uint_as_float(b.z), __uint_as_float(b.w)));
  }
};

// Several loads in flight a thread: one load after the other would take longer than the rest of a small call. A thread
// keeps its columns, and its rows differ by multiples of 8, so most of the index arithmetic is done once.
template <int THREADS, int K, int K_PIECE, int N_PIECE, int MODE>
__device__ __forceinline__ void fill_vectors(const linear_ref *to, int rows, u32 panels) {
  enum { PER_ROW = K / 8, STEP = THREADS / PER_ROW, DEPTH = MODE == F32 ? 4 : 8, BYTES = MODE == F32 ? 32 : 16 };
  static_assert(THREADS % PER_ROW == 0 && STEP % 8 == 0, "rows of a thread are equal modulo 8");
  const int column = threadIdx.x % PER_ROW, first_row = threadIdx.x / PER_ROW;
  const int first_column = column_of_place<N_PIECE>(first_row & 7);
  u32 spot[4];
#pragma unroll
  for (int m = 0; m < 4; m++)
    spot[m] = panels + panel_byte(first_row & 7, place_of_column<K_PIECE>(column * 8 + 2 * m), PANEL);
  for (int first = first_row; first < rows; first += STEP * DEPTH) {
    eight_columns<MODE> piece[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int row = first + d * STEP;
      const matrix_ref &w = to[row < rows ? row / GROUP : 0].weight;
      const int source = first_column + column_of_place<N_PIECE>(row & (GROUP - 8));
      if (row < rows) piece[d].load(w.data + source * w.row + column * BYTES);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int row = first + d * STEP;
      if (row >= rows) continue;
      const uint4 v = piece[d].bf16();
      const u32 at = (row / GROUP) * (K / 64 * PANEL) + (row & (GROUP - 8)) * 128;
      store_shared(at + spot[0], v.x);
      store_shared(at + spot[1], v.y);
      store_shared(at + spot[2], v.z);
      store_shared(at + spot[3], v.w);
    }
  }
}

// Two columns at a time by scalar loads; rows from `used` on are zero.
template <int K, int K_PIECE>
__device__ __forceinline__ void fill_row_pair(const matrix_ref &w, int row, bool used, int column, u32 panels,
                                              u32 panel_bytes, int tile_row) {
  const char *p = w.data + row * w.row + column * w.column;
  const float low = used ? load_any(p, (int)w.dtype) : 0.0f;
  const float high = used ? load_any(p + w.column, (int)w.dtype) : 0.0f;
  store_shared(panels + panel_byte(tile_row, place_of_column<K_PIECE>(column), panel_bytes), pack_bf16(low, high));
}

template <int THREADS, int K, int K_PIECE, int N_PIECE>
__device__ __forceinline__ void fill_weights(const linear_ref *to, int rows, u32 panels, int mode) {
  if (mode == BF16) return fill_vectors<THREADS, K, K_PIECE, N_PIECE, BF16>(to, rows, panels);
  if (mode == F32) return fill_vectors<THREADS, K, K_PIECE, N_PIECE, F32>(to, rows, panels);
  if (mode == F16) return fill_vectors<THREADS, K, K_PIECE, N_PIECE, F16>(to, rows, panels);
  for (int at = threadIdx.x; at < rows * (K / 2); at += THREADS) {
    const int row = at / (K / 2), group = row / GROUP, place = row % GROUP;
    fill_row_pair<K, K_PIECE>(to[group].weight, column_of_place<N_PIECE>(place), true, at % (K / 2) * 2,
                              panels + group * (K / 64) * PANEL, PANEL, place);
  }
}

// The linears' biases in the order of the tile's rows.
template <int THREADS, int N_PIECE>
__device__ __forceinline__ void fill_biases(const linear_ref *to, int rows, float *biases) {
  for (int at = threadIdx.x; at < rows; at += THREADS)
    biases[at] = load_at(to[at / GROUP].bias, column_of_place<N_PIECE>(at % GROUP), 0.0f);
}

__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

__device__ __forceinline__ char *align_shared(char *raw) {
  const u32 address = (u32)__cvta_generic_to_shared(raw);
  return raw + ((1024 - (address & 1023)) & 1023);
}

// ---- prologue -------------------------------------------------------------------------------------------------------

// The piece of a row that a lane holds: element i is column column_of_piece(i) of x.
template <int DTYPE, int C> struct x_piece { // bf16
  enum { PIECE = 8, VECTORS = C / 32, STEP_BYTES = 64 };
  uint4 v[VECTORS];
  __device__ __forceinline__ float at(int i) const {
    const uint4 &u = v[i / 8];
    const u32 word = i % 8 < 2 ? u.x : i % 8 < 4 ? u.y : i % 8 < 6 ? u.z : u.w;
    return i % 2 ? high_bf16(word) : low_bf16(word);
  }
};
template <int C> struct x_piece<F32, C> {
  enum { PIECE = 4, VECTORS = C / 16, STEP_BYTES = 64 };
  uint4 v[VECTORS];
  __device__ __forceinline__ float at(int i) const {
    const uint4 &u = v[i / 4];
    return __uint_as_float(i % 4 == 0 ? u.x : i % 4 == 1 ? u.y : i % 4 == 2 ? u.z : u.w);
  }
};

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

struct row_statistics {
  float mean, scale;
};

template <int DTYPE, int C>
__device__ __forceinline__ row_statistics statistics_of(const x_piece<DTYPE, C> &x, const prologue_params &p) {
  float sum = 0.0f, squares = 0.0f;
#pragma unroll
  for (int i = 0; i < C / 4; i++) sum += x.at(i);
  const float mean = p.rms ? 0.0f : quad_sum(sum) * (1.0f / C), shift = p.fast_variance ? 0.0f : mean;
#pragma unroll
  for (int i = 0; i < C / 4; i++) {
    const float d = x.at(i) - shift;
    squares = fmaf(d, d, squares);
  }
  const float variance = quad_sum(squares) * (1.0f / C) - (p.fast_variance ? mean * mean : 0.0f);
  return {mean, rsqrtf(variance + p.eps)};
}

struct pixel {
  u32 batch, query, key, row; // row: of the scratch tensors
  bool is_there;
};

// Pixels are walked with the key fastest, so that neighbours of a tile are neighbours of a packed bias row.
__device__ __forceinline__ pixel pixel_at(u32 index, const prologue_params &p) {
  pixel at;
  at.is_there = index < p.pixels;
  index = at.is_there ? index : p.pixels - 1;
  const u32 n = (u32)p.n, line = index / n;
  at.key = index - line * n;
  at.batch = line / n;
  at.query = line - at.batch * n;
  at.row = p.exchanged ? (at.batch * n + at.key) * n + at.query : index;
  return at;
}
__device__ __forceinline__ const char *x_row(const pixel &at, const prologue_params &p) {
  const i64 i = p.exchanged ? at.key : at.query, j = p.exchanged ? at.query : at.key;
  return p.x + at.batch * p.x_stride[0] + i * p.x_stride[1] + j * p.x_stride[2];
}

// The warpgroup's next rows, 16 a warp; in one piece where x is dense in the order of the walk.
template <int ROW_BYTES> __device__ __forceinline__ void prefetch_x(u32 tile, bool is_dense, const prologue_params &p) {
  const u32 first = tile * TILE, lane = threadIdx.x % 32, index = first + threadIdx.x % 128 / 32 * 16 + lane;
  if (tile >= p.tiles) return;
  if (is_dense) {
    const u32 rows = p.pixels - first < TILE ? p.pixels - first : TILE;
    if (threadIdx.x % 128 == 0) prefetch(p.x + (u64)first * ROW_BYTES, rows * ROW_BYTES);
  } else if (lane < 16 && index < p.pixels) {
    prefetch(x_row(pixel_at(index, p), p), ROW_BYTES);
  }
}

// Element of the packed bias: blocks of 64 queries x 64 keys in the order of the core's accumulators.
__device__ __forceinline__ i64 packed_at(u32 plane, u32 query, u32 key, u32 blocks) {
  const u32 thread = ((query >> 4) & 3) * 32 + (query & 7) * 4 + ((key >> 1) & 3);
  const u32 vector = (key >> 4) & 3, half = ((query >> 3) & 1) * 4 + (key & 1) * 2 + 1 - ((key >> 3) & 1);
  return (((i64)plane * blocks + (query >> 6)) * blocks + (key >> 6)) * 4096 + (vector * 128 + thread) * 8 + half;
}

enum { EXCLUDED = 0xff7f, NOT_A_NUMBER = 0x7fc0 };

// 16 bits of bias * log2(e) for `key`. The low half of a word is a rounded bf16. The high half is followed by the low half
// as the end of its mantissa, which the thread does not know: cutting off is right on average. -inf would become NaN by
// such an end, so it is the largest finite value; what is too small for the end not to matter is 0.
__device__ __forceinline__ u16 packed_bias(float bias, u32 key) {
  const float v = bias * 1.4426950408889634f, magnitude = fabsf(v);
  if (v != v) return NOT_A_NUMBER;
  if (v < __uint_as_float((u32)EXCLUDED << 16)) return EXCLUDED;
  if (magnitude < 0x1p-100f) return 0;
  return (u16)(key & 8 ? pack_bf16(v, 0.0f) : __float_as_uint(v) >> 16);
}

// What lies outside N x N in the last blocks: keys count as excluded (their weight is 0), 0 for queries.
__device__ __forceinline__ void pad_packed(const prologue_params &p, u32 first, u32 step) {
  const u32 n = (u32)p.n, blocks = (n + 63) / 64, wide = blocks * 64, beyond = wide - n;
  if (beyond == 0) return;
  const u32 keys = wide * beyond, per_plane = keys + beyond * n;
  const u32 planes = (u32)p.batch * (u32)p.heads;
  for (u64 at = first; at < (u64)per_plane * planes; at += step) {
    const u32 plane = (u32)(at / per_plane), in = (u32)(at - (u64)plane * per_plane);
    const bool is_key = in < keys;
    const u32 query = is_key ? in / beyond : n + (in - keys) / n, key = is_key ? n + in % beyond : (in - keys) % n;
    p.pair[packed_at(plane, query, key, blocks)] = is_key ? EXCLUDED : 0;
  }
}

template <int DTYPE, int C>
__device__ __forceinline__ void normalise(const x_piece<DTYPE, C> (&x)[2], const prologue_params &p,
                                          const float *norm_weight, const float *norm_bias, u32 (&a)[C / 16][4]) {
  const int lane = threadIdx.x & 3;
  row_statistics s[2];
#pragma unroll
  for (int r = 0; r < 2; r++) s[r] = statistics_of<DTYPE, C>(x[r], p);
#pragma unroll
  for (int k = 0; k < C / 16; k++) {
    const int column = DTYPE == F32 ? 16 * k + 4 * lane : 32 * (k / 2) + 8 * lane + 4 * (k % 2);
    const float4 w = *(const float4 *)(norm_weight + column), b = *(const float4 *)(norm_bias + column);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float y0 = fmaf((x[r].at(4 * k) - s[r].mean) * s[r].scale, w.x, b.x);
      const float y1 = fmaf((x[r].at(4 * k + 1) - s[r].mean) * s[r].scale, w.y, b.y);
      const float y2 = fmaf((x[r].at(4 * k + 2) - s[r].mean) * s[r].scale, w.z, b.z);
      const float y3 = fmaf((x[r].at(4 * k + 3) - s[r].mean) * s[r].scale, w.w, b.w);
      a[k][r] = pack_bf16(y0, y1);
      a[k][2 + r] = pack_bf16(y2, y3);
    }
  }
}

__device__ __forceinline__ void store_pair(const float (&acc)[4], const prologue_params &p, const pixel (&at)[2],
                                           const float *biases) {
  const int head = (threadIdx.x & 3) * 2;
  const u32 blocks = ((u32)p.n + 63) / 64;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    u16 *first = p.pair + packed_at(at[r].batch * p.heads + head, at[r].query, at[r].key, blocks);
    if (at[r].is_there && head < p.heads) first[0] = packed_bias(acc[2 * r] + biases[head], at[r].key);
    if (at[r].is_there && head + 1 < p.heads)
      first[(u64)blocks * blocks * 4096] = packed_bias(acc[2 * r + 1] + biases[head + 1], at[r].key);
  }
}

// 64 x 128 results as bf16: pieces of 32 columns, 16 bytes a lane.
__device__ __forceinline__ void store_group(const float (&acc)[64], u16 *out, const pixel (&at)[2],
                                            const float *biases) {
  const int lane = threadIdx.x & 3;
#pragma unroll
  for (int piece = 0; piece < 4; piece++) {
    u32 words[2][4];
#pragma unroll
    for (int m = 0; m < 4; m++) {
      const float2 b = *(const float2 *)(biases + (4 * piece + m) * 8 + 2 * lane);
      const float *d = acc + (4 * piece + m) * 4;
      words[0][m] = pack_bf16(d[0] + b.x, d[1] + b.y);
      words[1][m] = pack_bf16(d[2] + b.x, d[3] + b.y);
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (at[r].is_there)
        *(uint4 *)(out + (u64)at[r].row * INNER + piece * 32 + lane * 8) =
            make_uint4(words[r][0], words[r][1], words[r][2], words[r][3]);
  }
}

// Shared memory: weight panels [groups][C / 64], pair panels [C / 64], norm weight and bias [C], linear biases
// [groups * 128], pair biases [8]. C = 256: two groups a block (blockIdx.y), since four do not fit.
template <int DTYPE, int C> __device__ __forceinline__ void prologue(const prologue_params &p) {
  enum { GROUPS = OC__MODULE_GROUPS(C), ROW_BYTES = C * (DTYPE == F32 ? 4 : 2), PANELS = C / 64 };
  enum { THREADS = OC__MODULE_THREADS(C), WARPGROUPS = THREADS / 128 };
  enum { PIECE = x_piece<DTYPE, C>::PIECE, VECTORS = x_piece<DTYPE, C>::VECTORS };
  extern __shared__ char raw[];
  char *shared = align_shared(raw);
  const u32 panels = (u32)__cvta_generic_to_shared(shared), pair_panels = panels + GROUPS * PANELS * PANEL;
  float *norm_weight = (float *)(shared + GROUPS * PANELS * PANEL + PANELS * PAIR_PANEL), *norm_bias = norm_weight + C;
  float *biases = norm_bias + C, *pair_biases = biases + GROUPS * GROUP;
  const int first_group = blockIdx.y * GROUPS, left = p.groups - first_group, groups = left < GROUPS ? left : GROUPS;
  const bool has_pair = blockIdx.y == 0;
  const int warpgroup = threadIdx.x / 128, in_group = threadIdx.x % 128;
  const u32 step = gridDim.x * WARPGROUPS;
  u32 tile = warpgroup * gridDim.x + blockIdx.x;

  const i64 line = (i64)p.n * ROW_BYTES;
  const bool is_dense = !p.exchanged && p.x_stride[2] == ROW_BYTES && p.x_stride[1] == line &&
                        (p.batch == 1 || p.x_stride[0] == p.n * line);
  prefetch_x<ROW_BYTES>(tile, is_dense, p);
  fill_weights<THREADS, C, PIECE, 8>(p.to + first_group, groups * GROUP, panels, p.fill);
  fill_biases<THREADS, 8>(p.to + first_group, groups * GROUP, biases);
  for (int c = threadIdx.x; c < C; c += THREADS) {
    norm_weight[c] = load_at(p.norm_weight, c, 1.0f);
    norm_bias[c] = load_at(p.norm_bias, c, 0.0f);
  }
  if (has_pair) {
    for (int at = threadIdx.x; at < 8 * (C / 2); at += THREADS) {
      const int row = at / (C / 2);
      fill_row_pair<C, PIECE>(p.to_pair.weight, row, row < p.heads, at % (C / 2) * 2, pair_panels, PAIR_PANEL, row);
    }
    if (threadIdx.x < 8) pair_biases[threadIdx.x] = threadIdx.x < p.heads ? load_at(p.to_pair.bias, threadIdx.x, 0) : 0;
    pad_packed(p, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
  }
  publish_shared();

  const u64 weights = panel_descriptor(panels), pair_weights = panel_descriptor(pair_panels);
  const int row = in_group / 32 * 16 + in_group % 32 / 4;
  for (; tile < p.tiles; tile += step) {
    const pixel at[2] = {pixel_at(tile * TILE + row, p), pixel_at(tile * TILE + row + 8, p)};
    u32 a[C / 16][4];
    {
      x_piece<DTYPE, C> x[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const char *source = x_row(at[r], p) + (threadIdx.x & 3) * 16;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) x[r].v[v] = load_once(source + v * 64);
      }
      prefetch_x<ROW_BYTES>(tile + step, is_dense, p);
      normalise<DTYPE, C>(x, p, norm_weight, norm_bias, a);
    }
    if (has_pair) {
      float acc[4];
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < C / 16; k++)
        wgmma(acc, a[k], pair_weights + ((k / 4) * PAIR_PANEL + (k % 4) * 32) / 16, k > 0);
      wgmma_commit();
      wgmma_wait();
      store_pair(acc, p, at, pair_biases);
    }
#pragma unroll 1
    for (int g = 0; g < groups; g++) {
      float acc[64];
      const u64 group_weights = weights + g * (PANELS * PANEL / 16);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < C / 16; k++) wgmma(acc, a[k], group_weights + ((k / 4) * PANEL + (k % 4) * 32) / 16, k > 0);
      wgmma_commit();
      wgmma_wait();
      store_group(acc, p.out[first_group + g], at, biases + g * GROUP);
    }
  }
}

// ---- epilogue -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ i64 row_offset(u32 index, u32 n, const i64 (&stride)[3]) {
  const u32 line = index / n, j = index - line * n, b = line / n, i = line - b * n;
  return b * stride[0] + i * stride[1] + j * stride[2];
}

// 16 elements of each of the lane's two rows (its pieces of 64 columns), as words of memory until convert() makes
// floats of them: the loads are all in flight before the first is waited for.
template <int PIECE> struct residual_piece {
  u32 words[2][16];

  __device__ __forceinline__ void load(const char *const (&rows)[2], int column, int dtype) {
    const int lane_column = column + (threadIdx.x & 3) * PIECE;
    if (dtype == F32) {
#pragma unroll
      for (int at = 0; at < 8; at++) {
        const int r = at / 4, m = at % 4, c = m * 4 / PIECE * 4 * PIECE + m * 4 % PIECE;
        const uint4 v = *(const uint4 *)(rows[r] + (lane_column + c) * 4);
        words[r][4 * m] = v.x, words[r][4 * m + 1] = v.y, words[r][4 * m + 2] = v.z, words[r][4 * m + 3] = v.w;
      }
    } else if (PIECE == 8) {
#pragma unroll
      for (int at = 0; at < 4; at++) {
        const int r = at / 2, m = at % 2;
        const uint4 v = *(const uint4 *)(rows[r] + (lane_column + m * 32) * 2);
        words[r][4 * m] = v.x, words[r][4 * m + 1] = v.y, words[r][4 * m + 2] = v.z, words[r][4 * m + 3] = v.w;
      }
    } else {
#pragma unroll
      for (int at = 0; at < 8; at++) {
        const int r = at / 4, m = at % 4;
        const uint2 v = *(const uint2 *)(rows[r] + (lane_column + m * 16) * 2);
        words[r][2 * m] = v.x, words[r][2 * m + 1] = v.y;
      }
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int at = 0; at < 32; at++) words[at / 16][at % 16] = 0;
  }

  __device__ __forceinline__ void convert(int dtype) {
    if (dtype == BF16) {
#pragma unroll
      for (int at = 15; at >= 0; at--) { // backwards: in place
        const int r = at / 8, m = at % 8;
        const u32 word = words[r][m];
        words[r][2 * m] = __float_as_uint(low_bf16(word)), words[r][2 * m + 1] = __float_as_uint(high_bf16(word));
      }
    } else if (dtype == F16) {
#pragma unroll
      for (int at = 15; at >= 0; at--) {
        const int r = at / 8, m = at % 8;
        const u32 word = words[r][m];
        words[r][2 * m] = __float_as_uint(low_f16(word)), words[r][2 * m + 1] = __float_as_uint(high_f16(word));
      }
    }
  }
};

// 16 floats of y from the accumulators of 64 columns (32 of them: 16 for each of the lane's two rows).
template <int PIECE>
__device__ __forceinline__ void store_y(const float *acc, int r, const float *biases, const u32 (&residual)[16],
                                        char *row, int dtype) {
  const int lane = threadIdx.x & 3;
#pragma unroll
  for (int piece = 0; piece < 16 / PIECE; piece++) {
    float v[PIECE];
#pragma unroll
    for (int m = 0; m < PIECE / 2; m++) {
      const int chunk = piece * (PIECE / 2) + m;
      const float2 b = *(const float2 *)(biases + chunk * 8 + 2 * lane);
      v[2 * m] = acc[chunk * 4 + 2 * r] + b.x + __uint_as_float(residual[piece * PIECE + 2 * m]);
      v[2 * m + 1] = acc[chunk * 4 + 2 * r + 1] + b.y + __uint_as_float(residual[piece * PIECE + 2 * m + 1]);
    }
    const int column = piece * 4 * PIECE + lane * PIECE;
    if (PIECE == 4) {
      *(float4 *)(row + column * 4) = make_float4(v[0], v[1], v[2], v[3]);
    } else if (dtype == BF16) {
      *(uint4 *)(row + column * 2) = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                                                pack_bf16(v[PIECE - 4], v[PIECE - 3]),
                                                pack_bf16(v[PIECE - 2], v[PIECE - 1]));
    } else {
      *(uint4 *)(row + column * 2) = make_uint4(pack_f16(v[0], v[1]), pack_f16(v[2], v[3]),
                                                pack_f16(v[PIECE - 4], v[PIECE - 3]),
                                                pack_f16(v[PIECE - 2], v[PIECE - 1]));
    }
  }
}

// The warpgroup's next rows of o, which are dense, and of the residual, 16 a warp.
__device__ __forceinline__ void prefetch_next(u32 tile, u32 residual_bytes, bool is_dense, const epilogue_params &p) {
  const u32 first = tile * TILE, lane = threadIdx.x % 32, index = first + threadIdx.x % 128 / 32 * 16 + lane;
  if (tile >= p.tiles) return;
  const u32 rows = p.pixels - first < TILE ? p.pixels - first : TILE;
  if (threadIdx.x % 128 == 0) prefetch(p.o + (u64)first * (INNER * 2), rows * (INNER * 2));
  if (!p.residual) return;
  if (is_dense) {
    if (threadIdx.x % 128 == 0) prefetch(p.residual + (u64)first * residual_bytes, rows * residual_bytes);
  } else if (lane < 16 && index < p.pixels) {
    prefetch(p.residual + row_offset(index, p.n, p.residual_stride), residual_bytes);
  }
}

// Shared memory: weight panels [C / 128 or 1][2], biases [C].
template <int PIECE, int C> __device__ __forceinline__ void epilogue(const epilogue_params &p) {
  enum { THREADS = OC__MODULE_THREADS(C), WARPGROUPS = THREADS / 128 };
  enum { COLUMNS = C < GROUP ? C : GROUP, GROUPS = C / COLUMNS, PARTS = COLUMNS / 64, PANELS = INNER / 64 };
  extern __shared__ char raw[];
  char *shared = align_shared(raw);
  const u32 panels = (u32)__cvta_generic_to_shared(shared);
  float *biases = (float *)(shared + GROUPS * PANELS * PANEL);
  const int warpgroup = threadIdx.x / 128, in_group = threadIdx.x % 128;
  const u32 step = gridDim.x * WARPGROUPS;
  const int y_bytes = PIECE == 4 ? 4 : 2, residual_bytes = C * (p.residual_dtype == F32 ? 4 : 2);
  const i64 line = (i64)p.n * residual_bytes;
  const bool is_dense = p.residual_stride[2] == residual_bytes && p.residual_stride[1] == line &&
                        (p.pixels == p.n * p.n || p.residual_stride[0] == p.n * line);
  u32 tile = warpgroup * gridDim.x + blockIdx.x;

  fill_weights<THREADS, INNER, 8, PIECE>(p.out, C, panels, p.fill);
  fill_biases<THREADS, PIECE>(p.out, C, biases);
  publish_shared();
  asm volatile("griddepcontrol.wait;" ::: "memory"); // o is the core's, which may still drain

  const u64 weights = panel_descriptor(panels);
  const int row = in_group / 32 * 16 + in_group % 32 / 4;
  for (; tile < p.tiles; tile += step) {
    u32 a[INNER / 16][4];
    char *y[2];
    const char *residual[2];
    bool is_there[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      u32 index = tile * TILE + row + 8 * r;
      is_there[r] = index < p.pixels;
      index = is_there[r] ? index : p.pixels - 1;
      const char *source = p.o + (u64)index * (INNER * 2) + (threadIdx.x & 3) * 16;
#pragma unroll
      for (int v = 0; v < INNER / 32; v++) {
        const uint4 u = load_once(source + v * 64);
        a[2 * v][r] = u.x, a[2 * v][2 + r] = u.y, a[2 * v + 1][r] = u.z, a[2 * v + 1][2 + r] = u.w;
      }
      y[r] = p.y + row_offset(index, p.n, p.y_stride);
      residual[r] = p.residual + row_offset(index, p.n, p.residual_stride);
    }
    prefetch_next(tile + step, residual_bytes, is_dense, p);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      float acc[COLUMNS / 2];
      residual_piece<PIECE> add[PARTS];
      const u64 group_weights = weights + g * (PANELS * PANEL / 16);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < INNER / 16; k++)
        wgmma(acc, a[k], group_weights + ((k / 4) * PANEL + (k % 4) * 32) / 16, k > 0);
      wgmma_commit();
#pragma unroll
      for (int part = 0; part < PARTS; part++) add[part].clear();
      if (p.residual) add[0].load(residual, g * GROUP, p.residual_dtype);
      wgmma_wait();
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        const int column = g * GROUP + part * 64;
        if (p.residual && part + 1 < PARTS) add[PARTS - 1].load(residual, column + 64, p.residual_dtype);
        if (p.residual) add[part].convert(p.residual_dtype);
#pragma unroll
        for (int r = 0; r < 2; r++)
          if (is_there[r])
            store_y<PIECE>(acc + part * 32, r, biases + column, add[part].words[r], y[r] + column * y_bytes, p.y_dtype);
      }
    }
  }
}

// ---- entries --------------------------------------------------------------------------------------------------------

#define PROLOGUE(word, dtype, c)                                                                                       \
  extern "C" __global__ void __launch_bounds__(OC__MODULE_THREADS(c), 1)                                               \
      oc_module_prologue_##word##_##c(const __grid_constant__ prologue_params p) {                                     \
    prologue<dtype, c>(p);                                                                                             \
  }
#define EPILOGUE(word, piece, c)                                                                                       \
  extern "C" __global__ void __launch_bounds__(OC__MODULE_THREADS(c), 1)                                               \
      oc_module_epilogue_##word##_##c(const __grid_constant__ epilogue_params p) {                                     \
    epilogue<piece, c>(p);                                                                                             \
  }
PROLOGUE(f32, F32, 64)
PROLOGUE(f32, F32, 128)
PROLOGUE(f32, F32, 256)
PROLOGUE(bf16, BF16, 64)
PROLOGUE(bf16, BF16, 128)
PROLOGUE(bf16, BF16, 256)
EPILOGUE(wide, 4, 64)
EPILOGUE(wide, 4, 128)
EPILOGUE(wide, 4, 256)
EPILOGUE(narrow, 8, 64)
EPILOGUE(narrow, 8, 128)
EPILOGUE(narrow, 8, 256)
