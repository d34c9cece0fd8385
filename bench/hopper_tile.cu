// SPDX-License-Identifier: Apache-2.0
// What the loop of triattn's wgmma core (kernels/triattn/members/native.cu) costs without loads, barriers and items:
// clocks of a multiprocessor for a tile of 64 queries x 64 keys, D = 32, with one to four warpgroups, for the loop's
// pieces and their sums. Everything is in registers and in shared memory, which holds zeros.
//
//   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -o build/hopper_tile bench/hopper_tile.cu
//   build/hopper_tile
#include <cstdio>
#include <cuda_runtime.h>

typedef unsigned u32;
typedef unsigned long long u64;

enum Piece {
  EXP = 1,   // 4096 exponentials
  ADD = 2,   // their sums
  PACK = 4,  // to bf16, two a word
  QK = 8,    // scores: two products of 64 x 64 x 16
  MASK = 16, // a third one, the mask
  PV = 32,   // values: four products of 64 x 32 x 16
  BIAS = 64, // the accumulator from shared memory: 16 bits a score, half of them shifted
  HALF = 128 // only every second exponential
};

__device__ __forceinline__ float exponential(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 packed;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

constexpr u32 kLayout = 2u << 30 | 512 >> 4; // 64-byte swizzle, eight rows apart

__device__ __forceinline__ void scores(float (&s)[32], u32 a, u32 b) {
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
__device__ __forceinline__ void values(float (&o)[16], u32 a0, u32 a1, u32 a2, u32 a3, u32 b) {
  asm volatile(
      "{\n.reg .b64 db;\nmov.b64 db, {%20, %21};\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, db, 1, 1, 1, 1;\n}\n"
      : "+f"(o[0]), "+f"(o[1]), "+f"(o[2]), "+f"(o[3]), "+f"(o[4]), "+f"(o[5]), "+f"(o[6]), "+f"(o[7]),
        "+f"(o[8]), "+f"(o[9]), "+f"(o[10]), "+f"(o[11]), "+f"(o[12]), "+f"(o[13]), "+f"(o[14]), "+f"(o[15])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "n"(kLayout));
}

template <int kPieces> __global__ void __launch_bounds__(512, 1) tiles(float *out, int count, long long *clocks) {
  extern __shared__ __align__(1024) char memory[];
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  for (int i = threadIdx.x; i < 50000 / 4; i += blockDim.x) ((u32 *)memory)[i] = 0;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const int group = __shfl_sync(~0u, threadIdx.x >> 7, 0);
  const u32 queries = ((shared + group * 4096) & 0x3ffff) >> 4 | 1 << 16;
  const u32 keys = ((shared + 16384 + group * 8192) & 0x3ffff) >> 4 | 1 << 16, value_rows = keys + 256;
  const u32 bias = shared + 16384 + (threadIdx.x & 127) * 16;
  float s[32], o[16] = {}, sum[2] = {};
  u32 packed[16] = {};
  for (int i = 0; i < 32; i++) s[i] = threadIdx.x * 1e-3f;
  __syncthreads();
  const long long from = clock64();
#pragma unroll 1
  for (int n = 0; n < count; n++) {
    if (kPieces & BIAS) {
#pragma unroll
      for (int v = 0; v < 4; v++) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(s[8 * v]), "=f"(s[8 * v + 1]), "=f"(s[8 * v + 2]), "=f"(s[8 * v + 3])
                     : "r"(bias + v * 2048));
#pragma unroll
        for (int j = 0; j < 4; j++) s[8 * v + 4 + j] = __uint_as_float(__float_as_uint(s[8 * v + j]) << 16);
      }
    }
    if (kPieces & QK) {
      begin();
      scores(s, queries, keys);
      scores(s, queries + 2, keys + 2);
      if (kPieces & MASK) scores(s, queries, keys + 2);
      end();
    }
    float e[32];
#pragma unroll
    for (int i = 0; i < 32; i++) {
      e[i] = (kPieces & EXP) && (!(kPieces & HALF) || (i & 1)) ? exponential(s[i]) : s[i];
      if (kPieces & ADD) sum[(i >> 1) & 1] += e[i];
      if ((kPieces & PACK) && (i & 1)) packed[i >> 1] = pack(e[i - 1], e[i]);
    }
    if (!(kPieces & (QK | BIAS)))
      for (int i = 0; i < 32; i++) s[i] = e[i];
    if (kPieces & PV) {
      begin();
#pragma unroll
      for (int g = 0; g < 4; g++)
        values(o, packed[4 * g], packed[4 * g + 1], packed[4 * g + 2], packed[4 * g + 3], value_rows + g * 64);
      end();
    }
  }
  __syncthreads();
  const long long to = clock64();
  float all = sum[0] + sum[1];
  for (int i = 0; i < 16; i++) all += o[i] + __uint_as_float(packed[i]);
  for (int i = 0; i < 32; i++) all += s[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = all;
  if (threadIdx.x == 0 && blockIdx.x == 0) *clocks = to - from;
}

static float *out;
static long long *clocks;

template <int kPieces> void time(const char *name) {
  const int count = 4000, bytes = 100000;
  cudaFuncSetAttribute(tiles<kPieces>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  printf("%-28s", name);
  for (int groups = 1; groups <= 4; groups++) {
    cudaEvent_t begins, ends;
    float ms = 0;
    cudaEventCreate(&begins);
    cudaEventCreate(&ends);
    for (int run = 0; run < 2; run++) { // the first one is warm-up
      cudaEventRecord(begins);
      tiles<kPieces><<<132, groups * 128, bytes>>>(out, count, clocks);
      cudaEventRecord(ends);
      cudaDeviceSynchronize();
    }
    cudaEventElapsedTime(&ms, begins, ends);
    printf("  %d: %6.1f (%.2f GHz)", groups, (double)*clocks / count / groups, *clocks / (ms * 1e6));
  }
  printf("\n");
}

int main() {
  cudaMalloc(&out, 132 * 512 * sizeof *out);
  cudaMallocManaged(&clocks, sizeof *clocks);
  printf("clocks of a multiprocessor a tile, by the number of warpgroups\n");
  time<EXP | ADD | PACK>("exp add pack");
  time<QK | MASK | PV>("qk mask pv");
  time<EXP | ADD | PACK | PV>("exp add pack pv");
  time<QK | EXP | ADD | PACK | PV>("qk exp add pack pv");
  time<QK | MASK | EXP | ADD | PACK | PV>("qk mask exp add pack pv");
  time<BIAS | QK | MASK | EXP | ADD | PACK | PV>("bias qk mask exp add pack pv");
  time<BIAS | QK | MASK | EXP | HALF | ADD | PACK | PV>("with half of the exp");
  time<BIAS | QK | MASK | ADD | PACK | PV>("with no exp");
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) printf("%s\n", cudaGetErrorString(error));
  return error != cudaSuccess;
}
