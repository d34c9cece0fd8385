// SPDX-License-Identifier: Apache-2.0
// What the loop of triattn's wgmma core (kernels/triattn/members/native.cu) costs without loads, barriers and items:
// clocks of a multiprocessor for a tile of 64 queries x 64 keys, D = 32, with one to four warpgroups, for the loop's
// pieces and their sums. Everything is in registers and in shared memory, which holds zeros.
//
//   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I common/opt_core/opt_core/kernels/triattn/members
//        -o build/hopper_tile bench/hopper_tile.cu
//   build/hopper_tile
#include <cstdio>
#include <cuda_runtime.h>

#include "native.cu" // the products and the bias are the core's own

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

// As exp2_fast and pack_bf16, but kept where nothing reads the result.
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
template <int kPieces> __global__ void __launch_bounds__(512, 1) tiles(float *out, int count, long long *clocks) {
  extern __shared__ __align__(1024) char scratch[];
  const u32 shared = (u32)__cvta_generic_to_shared(scratch);
  for (int i = threadIdx.x; i < 50000 / 4; i += blockDim.x) ((u32 *)scratch)[i] = 0;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const int group = __shfl_sync(~0u, threadIdx.x >> 7, 0);
  const u32 queries = low_word(shared + group * 4096, 16);
  const u32 keys = low_word(shared + 16384 + group * 8192, 16), values = low_word(shared + 20480 + group * 8192, 16);
  const u32 bias = shared + 16384 + (threadIdx.x & 127) * 16;
  float s[32], o[16] = {}, sum[2] = {};
  u32 packed[16] = {};
  for (int i = 0; i < 32; i++) s[i] = threadIdx.x * 1e-3f;
  __syncthreads();
  const long long from = clock64();
#pragma unroll 1
  for (int n = 0; n < count; n++) {
    if (kPieces & BIAS) read_bias(bias, s);
    if (kPieces & QK) {
      products_begin();
      product_scores<kSwizzle64>(s, queries, keys);
      product_scores<kSwizzle64>(s, queries + 2, keys + 2);
      if (kPieces & MASK) product_scores<kSwizzle64>(s, queries, keys + 2);
      products_commit();
      products_wait();
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
      products_begin();
#pragma unroll
      for (int g = 0; g < 4; g++)
        product_values(o, packed[4 * g], packed[4 * g + 1], packed[4 * g + 2], packed[4 * g + 3], values + g * 64);
      products_commit();
      products_wait();
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
