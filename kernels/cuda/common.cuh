// What every CUDA kernel shares: number types without the toolkit's headers (NVRTC may run where
// none are installed), sums over warps and blocks, and the step's batch as it lies on the device.
// Knows no op.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct f16 {
  u16 bits;
};

/** The batch of a step in device memory. Counts: tokens, rows, logits rows, samples, rows of one
 * token, rows that are not long; what lies beyond them is padding. Rows come shortest first, so
 * token t of the rows of one token is all of row t. */
struct Step {
  const int* counts;
  const int* tokens;       // [T]
  const int* token_rows;   // [T] row of each token
  const int* starts;       // [B + 1]
  const int* slots;        // [B]
  const int* logit_rows;   // [R]
  const int* sample_row;   // [S]
  const int* sample_slot;  // [S]
  const float* sample_floats;
  const int* sample_ints;
  const int* bias_starts;      // [S + 1]
  const int* blend_counts;     // [R]
  const float* blend_weights;  // [R]

  __device__ int num_tokens() const { return counts[0]; }
  __device__ int num_rows() const { return counts[1]; }
  __device__ int num_logits() const { return counts[2]; }
  __device__ int num_samples() const { return counts[3]; }
  /** Rows of one token: the first of the batch. Also the first token of the other rows. */
  __device__ int num_singles() const { return counts[4]; }
  /** The first row of so many tokens that it has kernels of its own (LONG_ROW of command.ts). */
  __device__ int first_long() const { return counts[5]; }
};

/**
 * Programmatic dependent launch: from here the next kernel of the stream may take free room on the
 * device. Its blocks wait in their turn, so a chain of kernels keeps its order although their
 * beginnings overlap.
 */
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/** Until the kernels before have ended. Every kernel calls it, before it reads what they wrote or
 * writes anything. */
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ u32 shared_address(const void* at) {
  return (u32)__cvta_generic_to_shared(at);
}

__device__ __forceinline__ float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

__device__ __forceinline__ f16 to_f16(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

/** Two halves of a word, lower address first. */
__device__ __forceinline__ float2 unpack(u32 pair) {
  float2 y;
  asm("{ .reg .f16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }"
      : "=f"(y.x), "=f"(y.y)
      : "r"(pair));
  return y;
}

__device__ __forceinline__ u32 pack(float lo, float hi) {
  u32 pair;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(lo), "f"(hi));
#else
  pair = to_f16(lo).bits | (u32)to_f16(hi).bits << 16;
#endif
  return pair;
}

/** sums += factor·(eight halves) */
__device__ __forceinline__ void add_scaled(float (&sums)[8], float factor, const uint4& halves) {
  const u32 words[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float2 pair = unpack(words[j]);
    sums[2 * j] += factor * pair.x, sums[2 * j + 1] += factor * pair.y;
  }
}

/** 16 bytes that no kernel writes, or zeros, kept out of L1. `Wide`: the 256 that they lie in come
 * to L2, for others to read the rest. The condition is in the assembly: as a branch it would leave
 * one load in flight. */
template <bool Wide>
__device__ __forceinline__ uint4 load_once(const void* from, bool inside) {
  uint4 v;
#define LOAD_ONCE(hint)                                                           \
  asm volatile(                                                                   \
      "{ .reg .pred p; setp.ne.s32 p, %5, 0;\n"                                   \
      " mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"            \
      " @p ld.global.nc.L1::no_allocate" hint ".v4.u32 {%0, %1, %2, %3}, [%4]; }" \
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)                            \
      : "l"(from), "r"((int)inside))
#if __CUDA_ARCH__ >= 800
  if constexpr (Wide)
    LOAD_ONCE(".L2::256B");
  else
#endif
    LOAD_ONCE("");
#undef LOAD_ONCE
  return v;
}

/** Into the range of f16; NaN stays NaN, so that a poisoned value is not healed. */
__device__ __forceinline__ float saturate_f16(float x) {
  x = x > 65504.0f ? 65504.0f : x;
  return x < -65504.0f ? -65504.0f : x;
}

__device__ __forceinline__ float bf16_to_float(u16 bits) {
  return __uint_as_float((u32)bits << 16);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

/** 1 − 2 / (e^2x + 1): right to both infinities, within 2 ulp of f16 everywhere. */
__device__ __forceinline__ float tanh_of(float x) {
  return 1.0f - 2.0f / (__expf(2.0f * x) + 1.0f);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ int warp_sum(int x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(0xffffffffu, x);
#else
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
#endif
}

/** The sum over a block, in every thread and in the same order each time. scratch: [32], not used
 * by the sum before. */
template <int Threads>
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  constexpr int kWarps = Threads / 32;
  x = warp_sum(x);
  if constexpr (kWarps == 1) return x;
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
  __syncthreads();
  const int lane = threadIdx.x & 31;
  return warp_sum(lane < kWarps ? scratch[lane] : 0.0f);
}
