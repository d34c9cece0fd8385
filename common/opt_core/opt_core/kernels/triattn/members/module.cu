// SPDX-License-Identifier: Apache-2.0
// cubin: sm_90a
// The triangle-attention module round its core: LayerNorm and the projections before it, the output projection after.
//
// A warpgroup takes 64 pixels (rows of x or of o) at a time and goes through them alone: global memory straight into
// registers, LayerNorm in registers, A of the products from registers. Its next rows are on their way into registers
// meanwhile. Results leave through a few kilobytes of shared memory a warp, by bulk copies that nobody waits for: most
// of the traffic is written, and stores of the threads would hold up their loads behind them. Nothing but the arrival
// of the weights needs a barrier of the block.
//
// No shuffles are needed because both index orders of the weight tile are free:
//   k order   a wgmma A fragment gives a lane two neighbours in each 8 columns; the sum over k may run in any order, so
//             the columns of the tile are permuted until the fragments of a lane are one 16-byte piece of x
//   n order   likewise the rows of the tile: the accumulators of a lane become one 16-byte piece of the result
// so every access is 16 bytes a lane and 64 contiguous bytes a quad (whole sectors).

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

// The same for what the kernel may overwrite elsewhere.
__device__ __forceinline__ uint4 load_writable(const char *p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// Bulk copies from shared to global memory, counted in groups of this thread.
__device__ __forceinline__ void bulk_store(char *to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
               "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All groups but the last PENDING have been read from shared memory.
template <int PENDING> __device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Shared memory as the threads wrote it, for the copies and the tensor cores.
__device__ __forceinline__ void show_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void warp_barrier() { __syncwarp(); }
__device__ __forceinline__ void let_dependents_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void store_shared(u32 address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
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
    return make_uint4(
        pack_bf16(__uint_as_float(a.x), __uint_as_float(a.y)), pack_bf16(__uint_as_float(a.z), __uint_as_float(a.w)),
        pack_bf16(__uint_as_float(b.x), __uint_as_float(b.y)), pack_bf16(__uint_as_float(b.z), __uint_as_float(b.w)));
  }
};

// Several loads in flight a thread: one load after the other would take longer than the rest of a small call. A thread
// keeps its columns, and its rows differ by multiples of 8, so most of the index arithmetic is done once. 11: 512 rows
// of 128 columns are two rounds of 384 threads.
template <int THREADS, int K, int K_PIECE, int N_PIECE, int MODE>
__device__ __forceinline__ void fill_vectors(const linear_ref *to, int rows, u32 panels) {
  enum { PER_ROW = K / 8, STEP = THREADS / PER_ROW, DEPTH = MODE == F32 ? 4 : 11, BYTES = MODE == F32 ? 32 : 16 };
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
  show_shared();
  __syncthreads();
}

__device__ __forceinline__ char *align_shared(char *raw) {
  const u32 address = (u32)__cvta_generic_to_shared(raw);
  return raw + ((1024 - (address & 1023)) & 1023);
}

// ---- results --------------------------------------------------------------------------------------------------------

// A warp's way out: a ring of OC__MODULE_STAGES places for eight rows each.
struct outlet {
  u32 first, at, end; // shared addresses
  __device__ __forceinline__ explicit outlet(u32 stages)
      : first(stages + threadIdx.x / 32 * (OC__MODULE_STAGES * OC__MODULE_STAGE_BYTES)), at(first),
        end(first + OC__MODULE_STAGES * OC__MODULE_STAGE_BYTES) {}
};

// Eight rows of 64 * PIECES bytes, one a quad; v[m]: the lane's 16 bytes of the 64 from 64 m on. together: all eight
// are there and lie one after the other. Odd quads write their pieces in exchanged pairs: the eight lanes that write at
// a time, those of two rows, find 32 different banks.
template <int PIECES>
__device__ __forceinline__ void put_rows(outlet &out, const uint4 (&v)[PIECES], char *row, bool is_there,
                                         bool together) {
  const u32 lane = threadIdx.x % 32, mine = out.at + lane / 4 * (PIECES * 64);
  const bool odd = (lane & 4) != 0;
  bulk_wait_read<OC__MODULE_STAGES - 1>();
  warp_barrier();
#pragma unroll
  for (int m = 0; m < PIECES; m += 2) {
    const u32 to = mine + m * 64 + (lane & 3) * 16 + (odd ? 64 : 0);
    store_shared(to, odd ? v[m + 1] : v[m]);
    store_shared(to ^ 64, odd ? v[m] : v[m + 1]);
  }
  show_shared();
  warp_barrier();
  if (together ? lane == 0 : is_there && (lane & 3) == 0)
    bulk_store(row, together ? out.at : mine, together ? 8 * PIECES * 64 : PIECES * 64);
  bulk_commit();
  out.at += OC__MODULE_STAGE_BYTES;
  if (out.at == out.end) out.at = out.first;
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
#if OC_MUTANT == 3 // dropped tail
  for (int i = 0; i < C / 4 - 1; i++) sum += x.at(i);
#else
  for (int i = 0; i < C / 4; i++) sum += x.at(i);
#endif
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
#if OC_MUTANT == 1 // swapped operand
  const u32 first = query;
  query = key, key = first;
#endif
  const u32 thread = ((query >> 4) & 3) * 32 + (query & 7) * 4 + ((key >> 1) & 3);
  const u32 vector = (key >> 4) & 3, half = ((query >> 3) & 1) * 4 + (key & 1) * 2 + 1 - ((key >> 3) & 1);
  return (((i64)plane * blocks + (query >> 6)) * blocks + (key >> 6)) * 4096 + (vector * 128 + thread) * 8 + half;
}

enum { EXCLUDED = 0xff7f, NOT_A_NUMBER = 0x7fc0 };

// 16 bits of bias * log2(e) for `key`. The low half of a word is a rounded bf16. The high half is followed by the low
// half as the end of its mantissa, which the thread does not know: cutting off is right on average. -inf would become
// NaN by such an end, so it is the largest finite value; what is too small for the end not to matter is 0.
__device__ __forceinline__ u16 packed_bias(float bias, u32 key) {
  const float v = bias * 1.4426950408889634f, magnitude = fabsf(v);
  if (v != v) return NOT_A_NUMBER;
  if (v < __uint_as_float((u32)EXCLUDED << 16)) return EXCLUDED;
  if (magnitude < 0x1p-100f) return 0;
  return (u16)(key & 8 ? pack_bf16(v, 0.0f) : __float_as_uint(v) >> 16);
}

// A word of `key` and of key + 8, for a thread that has both: as an f32 it is nearest to the bias of `key`.
__device__ __forceinline__ u32 packed_pair(float bias, float next, u32 key) {
  const u32 low = packed_bias(next, key | 8), exact = __float_as_uint(bias * 1.4426950408889634f);
  const u32 high = packed_bias(bias, key & ~8u), magnitude = high & 0x7fff;
  if (magnitude == 0 || magnitude >= (EXCLUDED & 0x7fff)) return high << 16 | low;
  return ((exact - low + 0x8000) & 0xffff0000u) | low;
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
__device__ __forceinline__ void load_x(x_piece<DTYPE, C> (&x)[2], u32 first, const prologue_params &p) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const char *source = x_row(pixel_at(first + 8 * r, p), p) + (threadIdx.x & 3) * 16;
#pragma unroll
    for (int v = 0; v < x_piece<DTYPE, C>::VECTORS; v++) x[r].v[v] = load_once(source + v * 64);
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
#if OC_MUTANT == 2 // shifted index
    const float4 w = *(const float4 *)(norm_weight + (column ^ 4)), b = *(const float4 *)(norm_bias + column);
#else
    const float4 w = *(const float4 *)(norm_weight + column), b = *(const float4 *)(norm_bias + column);
#endif
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
  const u64 plane = (u64)blocks * blocks * 4096;
  if (p.n % 16 == 0) { // then the two rows are keys k and k + 8 of one word
    u16 *first = p.pair + packed_at(at[0].batch * p.heads + head, at[0].query, at[0].key, blocks) - 1;
#pragma unroll
    for (int h = 0; h < 2; h++)
      if (at[1].is_there && head + h < p.heads)
        *(u32 *)(first + h * plane) = packed_pair(acc[h] + biases[head + h], acc[2 + h] + biases[head + h], at[0].key);
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    u16 *first = p.pair + packed_at(at[r].batch * p.heads + head, at[r].query, at[r].key, blocks);
#pragma unroll
    for (int h = 0; h < 2; h++)
      if (at[r].is_there && head + h < p.heads)
        first[h * plane] = packed_bias(acc[2 * r + h] + biases[head + h], at[r].key);
  }
}

// The linears' biases, in the order of the accumulators.
template <int COUNT> __device__ __forceinline__ void add_biases(float (&acc)[COUNT], const float *biases) {
#pragma unroll
  for (int chunk = 0; chunk < COUNT / 4; chunk++) {
    const float2 b = *(const float2 *)(biases + chunk * 8 + 2 * (threadIdx.x & 3));
    float *d = acc + chunk * 4;
    d[0] += b.x, d[1] += b.y, d[2] += b.x, d[3] += b.y;
  }
}

// Row r as the lane's pieces.
template <int DTYPE, int COUNT>
__device__ __forceinline__ void narrow_pieces(const float (&acc)[COUNT], int r, uint4 (&v)[COUNT / 16]) {
#pragma unroll
  for (int m = 0; m < COUNT / 16; m++) {
    u32 words[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
      const float *d = acc + 16 * m + 4 * w + 2 * r;
      words[w] = DTYPE == BF16 ? pack_bf16(d[0], d[1]) : pack_f16(d[0], d[1]);
    }
    v[m] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Shared memory: weight panels [groups][C / 64], pair panels [C / 64], the warps' stages, norm weight and bias [C],
// linear biases [groups * 128], pair biases [8]. C = 256: two groups a block (blockIdx.y), since four do not fit.
template <int DTYPE, int C> __device__ __forceinline__ void prologue(const prologue_params &p) {
  enum { GROUPS = OC__MODULE_GROUPS(C), ROW_BYTES = C * (DTYPE == F32 ? 4 : 2), PANELS = C / 64 };
  enum { THREADS = OC__MODULE_THREADS(C), WARPGROUPS = THREADS / 128 };
  enum { PIECE = x_piece<DTYPE, C>::PIECE, AT_STAGES = GROUPS * PANELS * PANEL + PANELS * PAIR_PANEL };
  constexpr bool AHEAD = DTYPE == BF16; // the next rows have place in registers
  extern __shared__ char raw[];
  char *shared = align_shared(raw);
  const u32 panels = (u32)__cvta_generic_to_shared(shared), pair_panels = panels + GROUPS * PANELS * PANEL;
  float *norm_weight = (float *)(shared + AT_STAGES + OC__MODULE_STAGES_BYTES(C)), *norm_bias = norm_weight + C;
  float *biases = norm_bias + C, *pair_biases = biases + GROUPS * GROUP;
  const int first_group = blockIdx.y * GROUPS, left = p.groups - first_group, groups = left < GROUPS ? left : GROUPS;
  const bool has_pair = blockIdx.y == 0;
  const int warpgroup = threadIdx.x / 128, in_group = threadIdx.x % 128;
  const u32 step = gridDim.x * WARPGROUPS;
  u32 tile = warpgroup * gridDim.x + blockIdx.x;

  const int row = in_group / 32 * 16 + in_group % 32 / 4;
  const i64 line = (i64)p.n * ROW_BYTES;
  const bool is_dense = !p.exchanged && p.x_stride[2] == ROW_BYTES && p.x_stride[1] == line &&
                        (p.batch == 1 || p.x_stride[0] == p.n * line);
  x_piece<DTYPE, C> x[2];
  if (AHEAD)
    load_x(x, tile * TILE + row, p);
  else
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
  let_dependents_start();

  const u64 weights = panel_descriptor(panels), pair_weights = panel_descriptor(pair_panels);
  outlet out(panels + AT_STAGES);
  for (; tile < p.tiles; tile += step) {
    const pixel at[2] = {pixel_at(tile * TILE + row, p), pixel_at(tile * TILE + row + 8, p)};
    const u32 warp_rows = tile * TILE + in_group / 32 * 16 + 8; // and how far the first eight go
    const bool together[2] = {!p.exchanged && warp_rows <= p.pixels, !p.exchanged && warp_rows + 8 <= p.pixels};
    u32 a[C / 16][4];
    if (!AHEAD) {
      load_x(x, tile * TILE + row, p);
      prefetch_x<ROW_BYTES>(tile + step, is_dense, p);
    }
    normalise<DTYPE, C>(x, p, norm_weight, norm_bias, a);
    if (AHEAD) load_x(x, (tile + step) * TILE + row, p); // past the end: the last row
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
      add_biases(acc, biases + g * GROUP);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        uint4 v[4];
        narrow_pieces<BF16>(acc, r, v);
        put_rows(out, v, (char *)p.out[first_group + g] + (u64)at[r].row * (INNER * 2), at[r].is_there, together[r]);
      }
    }
  }
  bulk_wait();
}

// ---- epilogue -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ i64 row_offset(u32 index, u32 n, const i64 (&stride)[3]) {
  const u32 line = index / n, j = index - line * n, b = line / n, i = line - b * n;
  return b * stride[0] + i * stride[1] + j * stride[2];
}

// The lane's pieces of its two rows, as they come from memory.
template <int PIECES> struct row_pieces {
  uint4 v[2][PIECES];
  __device__ __forceinline__ void load(const epilogue_params &p, u32 first, int column_bytes) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u32 index = first + 8 * r < p.pixels ? first + 8 * r : p.pixels - 1;
      const char *row = p.residual + row_offset(index, p.n, p.residual_stride) + column_bytes + (threadIdx.x & 3) * 16;
#pragma unroll
      for (int m = 0; m < PIECES; m++) v[r][m] = load_writable(row + m * 64);
    }
  }
};

// acc += the pieces: a piece is 8 values of 16 bits or 4 of 32, and 4 accumulators (2 a row) are 2 columns.
template <int DTYPE, int COUNT, int PIECES>
__device__ __forceinline__ void add_pieces(float (&acc)[COUNT], const row_pieces<PIECES> &from) {
  enum { WORDS_A_CHUNK = DTYPE == F32 ? 2 : 1 };
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int w = 0; w < PIECES * 4; w++) {
      const uint4 &u = from.v[r][w / 4];
      const u32 word = w % 4 == 0 ? u.x : w % 4 == 1 ? u.y : w % 4 == 2 ? u.z : u.w;
      float *d = acc + w / WORDS_A_CHUNK * 4 + 2 * r;
      if (DTYPE == F32) {
        d[w % 2] += __uint_as_float(word);
      } else {
        d[0] += DTYPE == BF16 ? low_bf16(word) : low_f16(word);
        d[1] += DTYPE == BF16 ? high_bf16(word) : high_f16(word);
      }
    }
}

template <int COUNT>
__device__ __forceinline__ void wide_pieces(const float (&acc)[COUNT], int r, uint4 (&v)[COUNT / 8]) {
#pragma unroll
  for (int m = 0; m < COUNT / 8; m++) {
    const float *d = acc + 8 * m + 2 * r;
    v[m] = make_uint4(__float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[4]), __float_as_uint(d[5]));
  }
}

__device__ __forceinline__ void load_o(uint4 (&o)[2][INNER / 32], u32 first, const epilogue_params &p) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const u32 index = first + 8 * r < p.pixels ? first + 8 * r : p.pixels - 1;
    const char *source = p.o + (u64)index * (INNER * 2) + (threadIdx.x & 3) * 16;
#pragma unroll
    for (int v = 0; v < INNER / 32; v++) o[r][v] = load_once(source + v * 64);
  }
}

// zero: 0, but the compiler must not know. It would move the words to their places right after the loads, and so wait
// for them there, a whole step before they are needed.
__device__ __forceinline__ void fragments_of(const uint4 (&o)[2][INNER / 32], u32 zero, u32 (&a)[INNER / 16][4]) {
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int v = 0; v < INNER / 32; v++) {
      a[2 * v][r] = o[r][v].x ^ zero, a[2 * v][2 + r] = o[r][v].y ^ zero;
      a[2 * v + 1][r] = o[r][v].z ^ zero, a[2 * v + 1][2 + r] = o[r][v].w ^ zero;
    }
}

// Shared memory: weight panels [C / 128 or 1][2], the warps' stages, biases [C]. PIECE 4: y and the residual are f32,
// 8: 16 bits. The residual's pieces of the next columns, or of the next rows, are asked for as soon as the last are
// added.
template <int PIECE, int C> __device__ __forceinline__ void epilogue(const epilogue_params &p) {
  enum { THREADS = OC__MODULE_THREADS(C), WARPGROUPS = THREADS / 128, BYTES = PIECE == 4 ? 4 : 2 };
  enum { COLUMNS = PIECE == 4 || C == 64 ? 64 : 128, PARTS = C / COLUMNS, PANELS = INNER / 64 };
  enum { PIECES = COLUMNS * BYTES / 64, PART_BYTES = COLUMNS * BYTES };
  enum { AT_STAGES = (C > GROUP ? 2 : 1) * PANELS * PANEL };
  extern __shared__ char raw[];
  char *shared = align_shared(raw);
  const u32 panels = (u32)__cvta_generic_to_shared(shared);
  float *biases = (float *)(shared + AT_STAGES + OC__MODULE_STAGES_BYTES(C));
  const int in_group = threadIdx.x % 128;
  const u32 step = gridDim.x * WARPGROUPS;
  const i64 line = (i64)p.n * (C * BYTES);
  const bool is_dense = PARTS == 1 && p.y_stride[2] == C * BYTES && p.y_stride[1] == line &&
                        (p.pixels == p.n * p.n || p.y_stride[0] == p.n * line);
  u32 tile = threadIdx.x / 128 * gridDim.x + blockIdx.x;

  fill_weights<THREADS, INNER, 8, PIECE>(p.out, C, panels, p.fill);
  fill_biases<THREADS, PIECE>(p.out, C, biases);
  publish_shared();
  wait_for_previous(); // o is the core's, which may still drain

  const u64 weights = panel_descriptor(panels);
  const int row = in_group / 32 * 16 + in_group % 32 / 4;
  outlet out(panels + AT_STAGES);
  uint4 o[2][INNER / 32];
  row_pieces<PIECES> add;
  load_o(o, tile * TILE + row, p);
  if (p.residual) add.load(p, tile * TILE + row, 0);
  for (; tile < p.tiles; tile += step) {
    u32 a[INNER / 16][4];
    fragments_of(o, p.pixels >> 31, a);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      enum { GROUP_STEP = PANELS * PANEL };
      float acc[COLUMNS / 2];
      const u32 at = part * COLUMNS / GROUP * GROUP_STEP + part * COLUMNS % GROUP * 128;
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < INNER / 16; k++)
        wgmma(acc, a[k], weights + (at + (k / 4) * PANEL + (k % 4) * 32) / 16, k > 0);
      wgmma_commit();
      wgmma_wait();
      add_biases(acc, biases + part * COLUMNS);
      if (p.residual) {
        if (PIECE == 4)
          add_pieces<F32>(acc, add);
        else if (p.residual_dtype == BF16)
          add_pieces<BF16>(acc, add);
        else
          add_pieces<F16>(acc, add);
        const bool is_last = part == PARTS - 1;
        add.load(p, (is_last ? tile + step : tile) * TILE + row, is_last ? 0 : (part + 1) * PART_BYTES);
      }
      if (part == PARTS - 1) load_o(o, (tile + step) * TILE + row, p);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        uint4 v[PIECES];
        if constexpr (PIECE == 4)
          wide_pieces(acc, r, v);
        else if (p.y_dtype == BF16)
          narrow_pieces<BF16>(acc, r, v);
        else
          narrow_pieces<F16>(acc, r, v);
        const u32 index = tile * TILE + row + 8 * r, eight = tile * TILE + in_group / 32 * 16 + 8 * r + 8;
        char *to = p.y + row_offset(index < p.pixels ? index : p.pixels - 1, p.n, p.y_stride) + part * PART_BYTES;
        put_rows(out, v, to, index < p.pixels, is_dense && eight <= p.pixels);
      }
    }
  }
  bulk_wait();
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
