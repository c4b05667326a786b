// Shared by all CUDA kernels: sums over a block, and the batch of the step in device memory. Does
// not know any op.
#pragma once
#include "portable.cuh"

/** The batch of a step in device memory. `counts` has the numbers of tokens, rows, logits rows,
 * samples, rows of one token, and rows that are not long, and others that few kernels read; anything beyond them is padding. Rows
 * are sorted by length, shortest first, so token t of the rows of one token belongs to row t. */
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
  /** [T] The slot that also gets its row's state from after the token, or kNowhere. Only of rows of
   * several tokens, that are not long, and not of a row's last token. */
  const int* keeps;

  __device__ int num_tokens() const { return counts[0]; }
  __device__ int num_rows() const { return counts[1]; }
  __device__ int num_logits() const { return counts[2]; }
  __device__ int num_samples() const { return counts[3]; }
  /** Number of rows of one token, which come first. Also the index of the first token of the other
   * rows. */
  __device__ int num_singles() const { return counts[4]; }
  /** The first row that is long enough for kernels of its own (LONG_ROW in command.ts). */
  __device__ int first_long() const { return counts[5]; }
  /** Which of the host's images gets the draws. */
  __device__ int results_image() const { return counts[8]; }
};

/** In `keeps` of Step. Slot −1 is that of rows that do not run. */
constexpr int kNowhere = -2;

/** Of those that start last: blocks start in order. */
__device__ __forceinline__ bool is_last_block() {
  return blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1;
}

/** sums += factor·(eight halves). */
__device__ __forceinline__ void add_scaled(float (&sums)[8], float factor, const uint4& halves) {
  const u32 words[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float2 pair = unpack(words[j]);
    sums[2 * j] += factor * pair.x, sums[2 * j + 1] += factor * pair.y;
  }
}

/** Clamps to the range of f16. NaN stays NaN, so that a poisoned value stays visible. */
__device__ __forceinline__ float saturate_f16(float x) {
  x = x > 65504.0f ? 65504.0f : x;
  return x < -65504.0f ? -65504.0f : x;
}

__device__ __forceinline__ float bf16_to_float(u16 bits) {
  return __uint_as_float((u32)bits << 16);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

/** 1 − 2 / (e^2x + 1): correct up to both infinities, and within 2 ulp of f16 everywhere. */
__device__ __forceinline__ float tanh_of(float x) {
  return 1.0f - 2.0f / (__expf(2.0f * x) + 1.0f);
}

/** The sum over a block, in every thread, always added in the same order. scratch: [32], not the
 * one that the previous sum used. */
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
