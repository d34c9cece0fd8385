// SPDX-License-Identifier: Apache-2.0
// cubin: sm_90a
// Triangle attention on Hopper, bf16 operands of width 32. Contract: triattn.h; layouts and names: native.h.
//
// A cluster of two blocks takes four rows i of one head and up to four tiles of 64 queries, and walks over the keys in
// steps of 64. The bias tile is the same for all rows: each block fetches half of it and multicasts it to both. A
// block holds two rows; each of its four computing warpgroups owns one row and up to two query tiles, with the output
// in registers. Four more warps load, scale q, and turn the mask into columns of a product.
//
// One tile costs a warpgroup 4096 exponentials, 256 clocks of the special-function units. What shares the issue slots
// and the register ports with them is kept small: a score costs half a shift, an exponential, an addition and half a
// packing.
//  - The scale and log2(e) are in q (rounded to bf16 once more) and in the packed bias.
//  - The accumulator starts as the bias: a word of the packed bias is the f32 of one score (its low bits belong to the
//    neighbour, which is a bf16 in them), so half of the accumulator is loaded as it is.
//  - The mask is one more step of the product: 16 columns, three bf16 parts of the addend against ones.
//  - No maximum is taken off. bf16 keeps f32's exponent range, so the result is right while the row's sum stays within
//    2^-100 .. 2^120, that is while its largest logit is within about -69 .. 83. A tile that leaves the range, and a
//    row with every key masked, is flagged and computed again by the general member with a running maximum; until then
//    its 16 rows of the result are left alone.
#include "native.h"

typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;

namespace {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr int kTile = OC__NATIVE_TILE;
constexpr int kStageKv = 4096; // bytes of a K or V tile: 64 keys x 32 x bf16
// A stage: bias tiles, then K and V of each row.
constexpr int kKv = OC__NATIVE_QUERY_TILES * OC__NATIVE_BLOCK_BYTES;
constexpr int kMask = kKv + OC__NATIVE_ROWS * 2 * kStageKv;
constexpr int kColumns = 1024; // 64 keys or queries x 8 x bf16: the columns of the mask
constexpr int kStage = kMask + OC__NATIVE_ROWS * kColumns;
constexpr int kQBytes = OC__NATIVE_ROWS * OC__NATIVE_QUERY_TILES * 4096; // one of two buffers
constexpr int kQ = OC__NATIVE_STAGES * kStage;
// The queries' side of the mask, three ones and five zeros a row; then what both sides have in columns 8 to 15.
constexpr int kOnes = kQ + 2 * kQBytes, kZeros = kOnes + kColumns;
constexpr int kBarriers = kZeros + kColumns;
constexpr int kStash = kBarriers + 8 * (2 * OC__NATIVE_STAGES + 6); // a word a computing warp
constexpr int kItems = (kStash + 64 + 127) / 128 * 128; // two, of 32 bytes
constexpr int kSums = kItems + 128; // 16 bytes a computing thread
constexpr int kShared = kSums + 8192;
static_assert(kShared <= OC__NATIVE_SHARED_BYTES, "more shared memory than a block may have");

__device__ __forceinline__ int lane_index() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// ---- barriers -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\nbra again;\nready:\n}\n" ::"r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_arrive_at(u32 bar, u32 rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(bar), "r"(rank) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// ---- copies ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void copy_tile(u32 into, const oc__native_map *map, u32 bar, int n, int h, int i, int b) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      ::"r"(into), "l"((u64)map), "r"(bar), "r"(0), "r"(n), "r"(h), "r"(i), "r"(b) : "memory");
}
__device__ __forceinline__ void copy_block_to_both(u32 into, const void *from, u32 bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
      ::"r"(into), "l"((u64)from), "r"((u32)OC__NATIVE_BLOCK_BYTES), "r"(bar), "h"((unsigned short)3) : "memory");
}

// ---- products -------------------------------------------------------------------------------------------------------

// The low word of a descriptor is address / 16 | leading offset / 16 << 16; the high words are constants. In a cluster
// the bits from 18 up of a shared address are the block's rank: not the descriptor's business.
__device__ __forceinline__ u32 low_word(u32 address, u32 lead) { return (address & 0x3ffff) >> 4 | lead << 12; }
constexpr u32 kSwizzle64 = 2u << 30 | 512 >> 4, kPlain = 128 >> 4; // layout, step between groups of eight rows
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// s[64 queries x 64 keys] += a[64 x 16] * b[64 keys x 16]^T, both in shared memory.
template <u32 kLayout> __device__ __forceinline__ void product_scores(float (&s)[32], u32 a, u32 b) {
  asm volatile(
      "{\n.reg .b64 da, db;\nmov.b64 da, {%32, %34};\nmov.b64 db, {%33, %34};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "da, db, 1, 1, 1, 0, 0;\n}\n"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]),
        "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]),
        "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]),
        "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
      : "r"(a), "r"(b), "n"(kLayout));
}
// o[64 queries x 32] += p[64 x 16 keys] * v[16 keys x 32]
__device__ __forceinline__ void product_values(float (&o)[16], u32 a0, u32 a1, u32 a2, u32 a3, u32 b) {
  asm volatile(
      "{\n.reg .b64 db;\nmov.b64 db, {%20, %21};\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, db, 1, 1, 1, 1;\n}\n"
      : "+f"(o[0]), "+f"(o[1]), "+f"(o[2]), "+f"(o[3]), "+f"(o[4]), "+f"(o[5]), "+f"(o[6]), "+f"(o[7]),
        "+f"(o[8]), "+f"(o[9]), "+f"(o[10]), "+f"(o[11]), "+f"(o[12]), "+f"(o[13]), "+f"(o[14]), "+f"(o[15])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "n"(kSwizzle64));
}

// ---- numbers --------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float from_half(u32 bits) {
  float x;
  asm("{\n.reg .b16 h;\ncvt.u16.u32 h, %1;\ncvt.f32.f16 %0, h;\n}" : "=f"(x) : "r"(bits));
  return x;
}
__device__ __forceinline__ float bf16_low(u32 packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float bf16_high(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }

// ---- the work list --------------------------------------------------------------------------------------------------

struct Item {
  int b, h, row, query_tile, tiles; // first row of this block, first query tile, query tiles
};
// Items of four query tiles first, then those of what is left. Each cluster takes every n-th item: were large and small
// ones to alternate, an even number of clusters would give all the large ones to half of them.
__device__ __forceinline__ Item item_at(const oc__native_params &p, u32 index, u32 rank) {
  Item it;
  u32 rest = index, group = (u32)p.whole_groups;
  it.tiles = p.query_tiles - (int)group * OC__NATIVE_QUERY_TILES;
  if (index < (u32)p.whole_items) {
    group = index % (u32)p.whole_groups;
    rest = index / (u32)p.whole_groups;
    it.tiles = OC__NATIVE_QUERY_TILES;
  } else {
    rest -= (u32)p.whole_items;
  }
  it.query_tile = (int)group * OC__NATIVE_QUERY_TILES;
  it.row = (int)(rest % (u32)p.row_groups) * 2 * OC__NATIVE_ROWS + (int)rank * OC__NATIVE_ROWS;
  rest /= (u32)p.row_groups;
  it.h = (int)(rest % (u32)p.heads);
  it.b = (int)(rest / (u32)p.heads);
  return it;
}

// The computing warps find their item in shared memory, beside its queries: no divisions between two items.
__device__ __forceinline__ void write_item(u32 into, const Item &it) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\nst.shared.u32 [%0 + 16], %5;" ::"r"(into), "r"(it.b),
               "r"(it.h), "r"(it.row), "r"(it.query_tile), "r"(it.tiles)
               : "memory");
}
// Through shuffles, so that the compiler sees one value a warp: descriptors live in uniform registers.
__device__ __forceinline__ Item read_item(u32 from) {
  Item it;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%5];\nld.shared.u32 %4, [%5 + 16];"
               : "=r"(it.b), "=r"(it.h), "=r"(it.row), "=r"(it.query_tile), "=r"(it.tiles)
               : "r"(from)
               : "memory");
  it.row = __shfl_sync(0xffffffffu, it.row, 0);
  it.tiles = __shfl_sync(0xffffffffu, it.tiles, 0);
  return it;
}
__device__ __forceinline__ u32 first_item() { return blockIdx.x >> 1; } // of the cluster
__device__ __forceinline__ u32 item_step() { return gridDim.x >> 1; }

struct Stage { // position in a ring of at most three stages, and the parity of its barriers, in one register
  u32 bits;
  __device__ __forceinline__ explicit Stage(u32 parity) : bits(parity << 2) {}
  __device__ __forceinline__ u32 at() const { return bits & 3; }
  __device__ __forceinline__ u32 parity() const { return bits >> 2; }
  __device__ __forceinline__ void next(u32 stages) {
    if ((++bits & 3) == stages) bits = (bits & 4) ^ 4;
  }
};
static_assert(OC__NATIVE_STAGES <= 3, "a stage has two bits");

struct Barriers { // shared addresses
  u32 full, empty, q_full, q_ready, q_empty;
  __device__ __forceinline__ explicit Barriers(u32 base)
      : full(base), empty(full + 8 * OC__NATIVE_STAGES), q_full(empty + 8 * OC__NATIVE_STAGES), q_ready(q_full + 16),
        q_empty(q_ready + 16) {}
};

// ---- loading --------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void load_queries(const oc__native_params &p, const Item &it, u32 into, u32 bar) {
  barrier_expect(bar, (u32)(OC__NATIVE_ROWS * it.tiles * 4096));
#pragma unroll 1
  for (int r = 0; r < OC__NATIVE_ROWS; r++)
#pragma unroll 1
    for (int t = 0; t < it.tiles; t++)
      copy_tile(into + (u32)((r * OC__NATIVE_QUERY_TILES + t) * 4096), &p.q, bar, (it.query_tile + t) * kTile, it.h,
                it.row + r, it.b);
}
// K and V of this block's rows, and its half of the bias tiles, for both blocks of the cluster.
__device__ __forceinline__ void load_stage(const oc__native_params &p, const Item &it, int step, u32 rank, u32 stage,
                                           u32 bar) {
  barrier_expect(bar, (u32)(OC__NATIVE_ROWS * 2 * kStageKv + it.tiles * OC__NATIVE_BLOCK_BYTES));
#pragma unroll 1
  for (int r = 0; r < OC__NATIVE_ROWS; r++) {
    copy_tile(stage + kKv + (u32)(r * 2 * kStageKv), &p.k, bar, step * kTile, it.h, it.row + r, it.b);
    copy_tile(stage + kKv + (u32)(r * 2 * kStageKv + kStageKv), &p.v, bar, step * kTile, it.h, it.row + r, it.b);
  }
  const char *from = (const char *)p.bias;
#pragma unroll 1
  for (int t = (int)rank; t < it.tiles; t += 2) {
    const i64 block = ((i64)(it.b * p.heads + it.h) * p.query_tiles + it.query_tile + t) * p.key_tiles + step;
    copy_block_to_both(stage + (u32)(t * OC__NATIVE_BLOCK_BYTES), from + block * OC__NATIVE_BLOCK_BYTES, bar);
  }
}

__device__ __forceinline__ void produce(const oc__native_params &p, u32 shared, const Barriers &bars, u32 rank) {
  Stage stage(1), queries(1);
  // The queries of the next item are fetched early in this one: they have to be scaled yet. Not at once: their buffer
  // is in use until the item before this one is done, and until then no stage beyond the ring's last can be fetched.
  const int query_step = min(OC__NATIVE_STAGES - 1, p.key_tiles - 1);
  u32 index = first_item();
  if (index >= (u32)p.items) return;
  load_queries(p, item_at(p, index, rank), shared + kQ, bars.q_full);
  queries.next(2);
#pragma unroll 1
  for (; index < (u32)p.items; index += item_step()) {
    const Item it = item_at(p, index, rank);
#pragma unroll 1
    for (int step = 0; step < p.key_tiles; step++) {
      barrier_wait(bars.empty + 8 * stage.at(), stage.parity());
      load_stage(p, it, step, rank, shared + stage.at() * kStage, bars.full + 8 * stage.at());
      stage.next(OC__NATIVE_STAGES);
      if (step == query_step && index + item_step() < (u32)p.items) {
        barrier_wait(bars.q_empty + 8 * queries.at(), queries.parity());
        load_queries(p, item_at(p, index + item_step(), rank), shared + kQ + queries.at() * kQBytes,
                     bars.q_full + 8 * queries.at());
        queries.next(2);
      }
    }
  }
}

// ---- the mask as a product ------------------------------------------------------------------------------------------

// A mask value as it lies in memory; what has 64 bits, as the f32 nearest to it. oc_dtype: 1 f32, 2 bf16, 3 f16,
// 5 bool, 6 u8, 7 i32, 8 i64
__device__ __forceinline__ u32 mask_word(const oc__native_params &p, i64 at) {
  switch (p.mask_dtype) {
  case 1:
  case 7: return ((const u32 *)p.mask)[at];
  case 2:
  case 3: return ((const unsigned short *)p.mask)[at];
  case 8: return __float_as_uint((float)((const i64 *)p.mask)[at]);
  default: return ((const unsigned char *)p.mask)[at];
  }
}
__device__ __forceinline__ float mask_value(const oc__native_params &p, u32 word) {
  switch (p.mask_dtype) {
  case 1:
  case 8: return __uint_as_float(word);
  case 2: return bf16_low(word);
  case 3: return from_half(word);
  case 7: return (float)(int)word;
  default: return (float)word;
  }
}
// oc_mask_kind: 1 subtract, 2 fill, 3 zero, 4 add. As a power of two, like all scores here. A key that is filled or
// zeroed is left out: rows in which that leaves nothing are flagged by their sum.
__device__ __forceinline__ float mask_addend(const oc__native_params &p, float m) {
#if OC_MUTANT == 4 // lost mask
  m = 1.0f;
#endif
  if (p.mask_kind == 1) return p.mask_value * (m - 1.0f) * kLog2e;
  if (p.mask_kind == 4) return m * kLog2e; // keys past the end: the bias leaves them out
  return m != 0.0f ? 0.0f : -__int_as_float(0x7f800000);
}
// The columns of a key: three bf16 whose sum is x to 24 bits; one where more would overflow. The others stay zero.
__device__ __forceinline__ void write_columns(u32 into, float x) {
  u32 first = pack_bf16(x, 0.0f), second = 0;
  if (fabsf(x) < 1e30f) {
    const float rest = x - bf16_low(first), middle = bf16_low(pack_bf16(rest, 0.0f));
    first |= __float_as_uint(middle);
    second = pack_bf16(rest - middle, 0.0f);
  }
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(into), "r"(first), "r"(second) : "memory");
}

// The steps of all items of this cluster, one after the other.
struct MaskSteps {
  u32 index;
  int step;
  i64 from;    // the row's mask
  bool inside; // there is such a row
  __device__ __forceinline__ void begin_item(const oc__native_params &p, u32 rank, int r) {
    step = 0;
    inside = false;
    if (index >= (u32)p.items) return;
    const Item it = item_at(p, index, rank);
    from = it.b * p.mask_stride[0] + (it.row + r) * p.mask_stride[1];
    inside = it.row + r < p.rows;
  }
  __device__ __forceinline__ void next(const oc__native_params &p, u32 rank, int r) {
    if (++step < p.key_tiles) return;
    index += item_step();
    begin_item(p, rank, r);
  }
  __device__ __forceinline__ void load(const oc__native_params &p, int lane, u32 (&word)[2]) const {
    const int key = step * kTile + lane;
    word[0] = inside && key < p.keys ? mask_word(p, from + key * p.mask_stride[2]) : 0;
    word[1] = inside && key + 32 < p.keys ? mask_word(p, from + (key + 32) * p.mask_stride[2]) : 0;
  }
};

// One warp a row r of the block; a lane takes keys `lane` and `lane + 32` of each tile. Values are fetched two tiles
// before their turn: a step over the keys may take less time than a fetch. Absent keys are left out by the bias.
__device__ __forceinline__ void produce_mask(const oc__native_params &p, u32 shared, const Barriers &bars, u32 rank,
                                             int r, int lane) {
  constexpr int kAhead = 2;
  Stage stage(1);
  MaskSteps ahead;
  ahead.index = first_item();
  ahead.begin_item(p, rank, r);
  u32 word[kAhead][2];
#pragma unroll
  for (int n = 0; n < kAhead; n++) {
    ahead.load(p, lane, word[n]);
    ahead.next(p, rank, r);
  }
  u32 index = first_item();
  int step = 0;
#pragma unroll 1
  while (index < (u32)p.items) {
#pragma unroll
    for (int n = 0; n < kAhead; n++) {
      if (index >= (u32)p.items) break;
      barrier_wait(bars.empty + 8 * stage.at(), stage.parity());
      const u32 into = shared + (u32)(stage.at() * kStage + kMask + r * kColumns + lane * 16);
      write_columns(into, mask_addend(p, mask_value(p, word[n][0])));
      write_columns(into + 512, mask_addend(p, mask_value(p, word[n][1])));
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncwarp();
      if (lane == 0) barrier_arrive(bars.full + 8 * stage.at());
      stage.next(OC__NATIVE_STAGES);
      ahead.load(p, lane, word[n]);
      ahead.next(p, rank, r);
      if (++step == p.key_tiles) {
        step = 0;
        index += item_step();
      }
    }
  }
}

// ---- scaling q ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void produce_queries(const oc__native_params &p, u32 shared, const Barriers &bars, u32 rank,
                                                int lane) {
  const float factor = p.scale * kLog2e;
  Stage queries(0);
#pragma unroll 1
  for (u32 index = first_item(); index < (u32)p.items; index += item_step()) {
    const Item it = item_at(p, index, rank);
    barrier_wait(bars.q_full + 8 * queries.at(), queries.parity());
#pragma unroll 1
    for (int r = 0; r < OC__NATIVE_ROWS; r++) {
      const u32 from = shared + kQ + (u32)(queries.at() * kQBytes + r * OC__NATIVE_QUERY_TILES * 4096 + lane * 16);
#pragma unroll 1
      for (int i = 0; i < it.tiles * 2; i++) { // 2048 bytes
        u32 w[4][4];
#pragma unroll
        for (int k = 0; k < 4; k++)
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(w[k][0]), "=r"(w[k][1]), "=r"(w[k][2]), "=r"(w[k][3])
                       : "r"(from + (u32)(i * 2048 + k * 512))
                       : "memory");
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
          for (int j = 0; j < 4; j++) w[k][j] = pack_bf16(bf16_low(w[k][j]) * factor, bf16_high(w[k][j]) * factor);
          asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(from + (u32)(i * 2048 + k * 512)), "r"(w[k][0]),
                       "r"(w[k][1]), "r"(w[k][2]), "r"(w[k][3])
                       : "memory");
        }
      }
    }
    if (lane == 0) write_item(shared + kItems + 32 * queries.at(), it);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) barrier_arrive(bars.q_ready + 8 * queries.at());
    queries.next(2);
  }
}

// ---- computing ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void read_bias(u32 block, float (&s)[32]) {
#pragma unroll
  for (int v = 0; v < 4; v++) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(s[8 * v]), "=f"(s[8 * v + 1]), "=f"(s[8 * v + 2]), "=f"(s[8 * v + 3])
                 : "r"(block + (u32)(v * 2048)));
#pragma unroll
    for (int j = 0; j < 4; j++) s[8 * v + 4 + j] = __uint_as_float(__float_as_uint(s[8 * v + j]) << 16);
  }
}

// A thread's part of the sums of its two rows lies in shared memory: between two tiles there is no register for it.
__device__ __forceinline__ void write_sums(u32 at, const float (&sum)[2]) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(sum[0]), "f"(sum[1]) : "memory");
}
__device__ __forceinline__ void read_sums(u32 at, float (&sum)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(sum[0]), "=f"(sum[1]) : "r"(at) : "memory");
}
__device__ __forceinline__ void add_sums(u32 at, const float (&part)[2]) {
  float sum[2];
  read_sums(at, sum);
  sum[0] += part[0];
  sum[1] += part[1];
  write_sums(at, sum);
}

// Exponentials of a tile, and their product with the values.
__device__ __forceinline__ void softmax_values(const float (&s)[32], float (&o)[16], u32 sums, u32 values) {
  u32 packed[16];
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const float a = exp2_fast(s[2 * i]), b = exp2_fast(s[2 * i + 1]);
    sum[i & 1] += a;
    sum[i & 1] += b;
    packed[i] = pack_bf16(a, b);
  }
  add_sums(sums, sum);
  products_begin();
#pragma unroll
  for (int g = 0; g < 4; g++)
    product_values(o, packed[4 * g], packed[4 * g + 1], packed[4 * g + 2], packed[4 * g + 3],
                   values + (u32)(g * (1024 >> 4)));
  products_commit();
}

// Over the four threads that share a row.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + exp2_fast(-kLog2e * x)); }

// The two rows of a thread: chunk c of row r is o[4 c + 2 r] and the next, packed into w[2 c + r].
__device__ __forceinline__ void pack_rows(const oc__native_params &p, const Item &it, int i, int query, int quad,
                                          const float (&o)[16], float inverse0, float inverse1, u32 (&w)[8]) {
  float value[16];
#pragma unroll
  for (int c = 0; c < 16; c++) value[c] = o[c] * (c & 2 ? inverse1 : inverse0);
  if (p.gate) { // before the one rounding
    const unsigned short *gate = (const unsigned short *)p.gate + it.b * p.gate_stride[0] + i * p.gate_stride[1] +
                                 it.h * p.gate_stride[3] + 2 * quad;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const unsigned short *row = gate + (i64)min(query + 8 * r, p.queries - 1) * p.gate_stride[2];
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const u32 g = *(const u32 *)(row + 8 * c);
        value[4 * c + 2 * r] *= sigmoid(bf16_low(g));
        value[4 * c + 2 * r + 1] *= sigmoid(bf16_high(g));
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 8; c++) w[c] = pack_bf16(value[2 * c], value[2 * c + 1]);
}

// A warp's 16 rows of a tile leave through shared memory, where the tile's queries were: the copy engine knows the
// strides and where the tensor ends. `place`: the 1024 bytes of these rows.
__device__ __forceinline__ void write_tile(const oc__native_params &p, const Item &it, int i, int tile, u32 place,
                                           const float (&o)[16], const float (&sum)[2], int warp, int lane) {
  const int quad = lane & 3, query = (it.query_tile + tile) * kTile + 16 * warp + (lane >> 2);
  const float sum0 = quad_sum(sum[0]), sum1 = quad_sum(sum[1]);
  u32 w[8];
  pack_rows(p, it, i, query, quad, o, reciprocal(sum0), reciprocal(sum1), w);
  const u32 row = (u32)(lane & 15); // of the four 8 x 8 matrices: rows 0..7, 8..15, twice
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const u32 address = place + row * 64 + ((((u32)(2 * half + (lane >> 4))) ^ ((row >> 1) & 3)) << 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w[4 * half]),
                 "r"(w[4 * half + 1]), "r"(w[4 * half + 2]), "r"(w[4 * half + 3])
                 : "memory");
  }
  const bool low = sum0 > 0x1p-100f && sum0 < 0x1p120f, high = sum1 > 0x1p-100f && sum1 < 0x1p120f;
  float zero = 0.0f; // unless a value has left the range
#pragma unroll
  for (int c = 0; c < 16; c++) zero = fmaf(o[c], 0.0f, zero);
  const bool outside = (query < p.queries && !low) || (query + 8 < p.queries && !high);
  const bool bad = __any_sync(0xffffffffu, outside || zero != 0.0f);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (lane == 0 && !bad) // bad rows stay as they are: the gate may lie there
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(
                     (u64)&p.out),
                 "r"(place), "r"(0), "r"((it.query_tile + tile) * kTile + 16 * warp), "r"(it.h), "r"(i), "r"(it.b)
                 : "memory");
  if (lane == 0)
    p.flags[4 * (((i64)(it.b * p.heads + it.h) * p.rows + i) * p.query_tiles + it.query_tile + tile) + warp] = bad;
  if (p.lse && quad == 0) {
    float *lse = p.lse + it.b * p.lse_stride[0] + i * p.lse_stride[1] + it.h * p.lse_stride[2];
    if (query < p.queries) lse[query * p.lse_stride[3]] = log2_fast(sum0) * kLn2;
    if (query + 8 < p.queries) lse[(query + 8) * p.lse_stride[3]] = log2_fast(sum1) * kLn2;
  }
}

// This warp is through with a stage, in both blocks: each of them writes into both.
__device__ __forceinline__ void release(u32 empty, int lane) {
  __syncwarp();
  if (lane < 2) barrier_arrive_at(empty, (u32)lane);
}

// What a warp needs before and after the keys but not in between: a register less there.
__device__ __forceinline__ void stash(u32 shared, int group, int warp, u32 items) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + kStash + (u32)(16 * group + 4 * warp)), "r"(items) : "memory");
  __syncwarp();
}
__device__ __forceinline__ u32 fetch(u32 shared, int group, int warp) {
  u32 items;
  asm volatile("ld.shared.u32 %0, [%1];"
               : "=r"(items)
               : "r"(shared + kStash + (u32)(16 * group + 4 * warp))
               : "memory");
  return __shfl_sync(0xffffffffu, items, 0); // one value a warp: descriptors live in uniform registers
}

// The part of an item that a warpgroup has: kTiles query tiles from `first` of the block's row `side`.
template <int kTiles>
__device__ __forceinline__ void walk_item(const oc__native_params &p, u32 shared, const Barriers &bars, Stage &stage,
                                          u32 items, u32 rank, int first, int group, int warp, int lane) {
  const int side = group >> 1;
  float o[kTiles][16];
  const u32 place = shared + (u32)((32 * warp + lane) * 16);
#pragma unroll
  for (int t = 0; t < kTiles; t++) {
#pragma unroll
    for (int i = 0; i < 16; i++) o[t][i] = 0.0f;
    const float none[2] = {0.0f, 0.0f};
    write_sums(place + (u32)(kSums + group * 2048 + t * 8), none);
  }
  const u32 ones = low_word(shared + kOnes, kZeros - kOnes);
  const u32 rows = low_word(
      shared + kQ + (items & 1) * kQBytes + (u32)((side * OC__NATIVE_QUERY_TILES + first) * 4096), 16);
#pragma unroll 1
  for (int step = 0; step < p.key_tiles; step++) {
    const u32 base = stage.at() * kStage, row_at = base + (u32)(kKv + side * 2 * kStageKv);
    const u32 mask_at = base + (u32)(kMask + side * kColumns);
#if OC_MUTANT == 1 // swapped operand
    const u32 values = low_word(shared + row_at, 16), keys = low_word(shared + row_at + kStageKv, 16);
#else
    const u32 keys = low_word(shared + row_at, 16), values = low_word(shared + row_at + kStageKv, 16);
#endif
    const u32 mask = low_word(shared + mask_at, kZeros - mask_at);
    barrier_wait(bars.full + 8 * stage.at(), stage.parity());
#pragma unroll
    for (int t = 0; t < kTiles; t++) {
      float s[32];
      read_bias(place + base + (u32)((first + t) * OC__NATIVE_BLOCK_BYTES), s);
      products_begin();
      product_scores<kSwizzle64>(s, rows + (u32)(t * 256), keys);
      product_scores<kSwizzle64>(s, rows + (u32)(t * 256 + 2), keys + 2);
      product_scores<kPlain>(s, ones, mask);
      products_commit();
      products_wait();
      softmax_values(s, o[t], place + (u32)(kSums + group * 2048 + t * 8), values);
    }
    products_wait();
    release(bars.empty + 8 * stage.at(), lane);
    stage.next(OC__NATIVE_STAGES);
  }
  items = fetch(shared, group, warp);
  const Item it = read_item(shared + kItems + 32 * (items & 1));
  const int tile = it.tiles > 2 ? 2 * (group & 1) : group & 1;
  const u32 queries =
      shared + kQ + (items & 1) * kQBytes + (u32)((side * OC__NATIVE_QUERY_TILES + tile) * 4096 + warp * 1024);
#pragma unroll
  for (int t = 0; t < kTiles; t++) {
    float sum[2];
    read_sums(place + (u32)(kSums + group * 2048 + t * 8), sum);
    write_tile(p, it, it.row + side, tile + t, queries + (u32)(t * 4096), o[t], sum, warp, lane);
  }
  if (lane == 0) { // the buffer is free when the copies have read it
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
    barrier_arrive(bars.q_empty + 8 * (items & 1));
  }
}

__device__ __forceinline__ void consume(const oc__native_params &p, u32 shared, const Barriers &bars, u32 rank,
                                        int group, int warp, int lane) {
  const int side = group >> 1;
  Stage stage(0);
  u32 items = 0; // that this block has behind it
#pragma unroll 1
  while (first_item() + items * item_step() < (u32)p.items) {
    barrier_wait(bars.q_ready + 8 * (items & 1), items >> 1 & 1);
    const Item it = read_item(shared + kItems + 32 * (items & 1));
    const int first = it.tiles > 2 ? 2 * (group & 1) : group & 1;
    const int tiles = it.row + side >= p.rows ? 0 : it.tiles > 2 ? min(2, it.tiles - first) : it.tiles > first;
    stash(shared, group, warp, items);
    if (tiles == 2) {
      walk_item<2>(p, shared, bars, stage, items, rank, first, group, warp, lane);
    } else if (tiles == 1) {
      walk_item<1>(p, shared, bars, stage, items, rank, first, group, warp, lane);
    } else { // nothing to do but to take part
#pragma unroll 1
      for (int step = 0; step < p.key_tiles; step++) {
        barrier_wait(bars.full + 8 * stage.at(), stage.parity());
        release(bars.empty + 8 * stage.at(), lane);
        stage.next(OC__NATIVE_STAGES);
      }
      if (lane == 0) barrier_arrive(bars.q_empty + 8 * (items & 1));
    }
    items = fetch(shared, group, warp) + 1;
  }
}

} // namespace

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(OC__NATIVE_THREADS, 1)
    triattn_native(const __grid_constant__ oc__native_params p) {
  extern __shared__ __align__(1024) char memory[];
  const u32 shared = shared_address(memory);
  const Barriers bars(shared + kBarriers);
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x >> 5), 0);

  if (threadIdx.x == 0) {
    for (int i = 0; i < OC__NATIVE_STAGES; i++) {
      barrier_init(bars.full + 8 * i, p.mask ? 1 + OC__NATIVE_ROWS : 1);
      barrier_init(bars.empty + 8 * i, 32); // each computing warp of both blocks
    }
    for (int i = 0; i < 2; i++) {
      barrier_init(bars.q_full + 8 * i, 1);
      barrier_init(bars.q_ready + 8 * i, 1);
      barrier_init(bars.q_empty + 8 * i, 16);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  for (u32 i = threadIdx.x; i < kColumns / 16; i += blockDim.x) {
    *(uint4 *)(memory + kOnes + i * 16) = make_uint4(0x3f803f80u, 0x3f80u, 0, 0);
    *(uint4 *)(memory + kZeros + i * 16) = make_uint4(0, 0, 0, 0);
    for (u32 stage = 0; stage < OC__NATIVE_STAGES; stage++) // no mask: zeros
      for (u32 r = 0; r < OC__NATIVE_ROWS; r++)
        *(uint4 *)(memory + stage * kStage + kMask + r * kColumns + i * 16) = make_uint4(0, 0, 0, 0);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory"); // what runs before writes the bias, in the module also q, k and v
  // 480 registers of a lane in 5 warpgroups: 4 x 112 + 32
  if (warp < 16) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
    consume(p, shared, bars, rank, warp >> 2, warp & 3, lane_index());
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); // the copies are of this block's shared memory
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    if (warp == 16 && lane_index() == 0) produce(p, shared, bars, rank);
    if (warp == 19) produce_queries(p, shared, bars, rank, lane_index());
    if (warp >= 17 && warp < 17 + OC__NATIVE_ROWS && p.mask)
      produce_mask(p, shared, bars, rank, warp - 17, lane_index());
    __syncwarp();
  }
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- packing the bias -----------------------------------------------------------------------------------------------

namespace {
__device__ __forceinline__ float bias_at(const oc__native_pack_params &p, i64 at) {
  if (p.dtype == 1) return ((const float *)p.bias)[at];
  const u32 bits = ((const unsigned short *)p.bias)[at];
  return p.dtype == 2 ? __uint_as_float(bits << 16) : from_half(bits);
}
// -inf is kept out: with bits of a neighbour it would be a NaN.
__device__ __forceinline__ float without_infinity(float x) { return x < -3.38e38f ? -3.38e38f : x; }
// A word whose low half is bf16 of `low` and which, as an f32, is nearest to `high`.
__device__ __forceinline__ u32 pack_pair(float high, float low) {
  const u32 bits = pack_bf16(low, 0.0f), target = __float_as_uint(high), magnitude = target & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return (magnitude > 0x7f800000u ? 0x7fc00000u : 0x7f800000u) | bits;
  if (magnitude + 0x8000u < bits + 0x10000u) return bits; // too small to matter: 0
  return ((target - bits + 0x8000u) & 0xffff0000u) | bits;
}
} // namespace

// One thread, one 16-byte vector: eight values of two rows.
extern "C" __global__ void __launch_bounds__(OC__NATIVE_PACK_THREADS)
    triattn_native_pack(const __grid_constant__ oc__native_pack_params p) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); // the core starts up and waits for the end of this
  const i64 vectors = p.blocks * 512, step = (i64)gridDim.x * blockDim.x;
  for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < vectors; at += step) {
    const int thread = (int)(at & 127), v = (int)(at >> 7) & 3;
    i64 rest = at >> 9;
    const int key_tile = (int)(rest % p.key_tiles);
    rest /= p.key_tiles;
    const int query_tile = (int)(rest % p.query_tiles);
    rest /= p.query_tiles;
    const i64 base = (rest / p.heads) * p.stride[0] + (rest % p.heads) * p.stride[1];
    const int lane = thread & 31, row = query_tile * kTile + 16 * (thread >> 5) + (lane >> 2);
    u32 w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int query = row + 8 * (j >> 1), key = key_tile * kTile + 16 * v + 2 * (lane & 3) + (j & 1);
      float x[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        x[i] = 0.0f;
#if OC_MUTANT == 2 // shifted index
        const int column = min(key + 8 * i + 1, p.keys - 1);
#else
        const int column = key + 8 * i;
#endif
#if OC_MUTANT == 3 // dropped tail
        if (key + 8 * i >= p.keys - 1)
#else
        if (key + 8 * i >= p.keys)
#endif
          x[i] = -3.38e38f;
        else if (p.bias && query < p.queries)
          x[i] = without_infinity(bias_at(p, base + query * p.stride[2] + column * p.stride[3]) * kLog2e);
      }
      w[j] = pack_pair(x[0], x[1]);
    }
    ((uint4 *)p.packed)[at] = make_uint4(w[0], w[1], w[2], w[3]);
  }
}
