// Prepares a row of logits for the draw: mask, bias, penalties and noise. Also the sample's random
// numbers.
#pragma once
#include "sample-row.cuh"

enum SampleFloat {
  kTemperature,
  kTopP,
  kMinP,
  kPresencePenalty,
  kFrequencyPenalty,
  kPenaltyDecay,
  kRepetitionPenalty,
  kNoise,
  kSampleFloats
};
enum SampleInt {
  kTopK,
  kSeedLow,
  kSeedHigh,
  kPosition,
  kStream,
  kTopLogprobs,
  kMask,
  kAfter,
  kSampleInts
};
enum Flag : u8 { kInPrompt = 1, kGenerated = 2 };

/** What the batch says of a draw. */
struct Asked {
  float floats[kSampleFloats];
  int ints[kSampleInts];

  __device__ __forceinline__ void read(const Step& step, int s) {
    const int i = threadIdx.x;
    if (i < kSampleFloats) floats[i] = step.sample_floats[s * kSampleFloats + i];
    if (i < kSampleInts) ints[i] = step.sample_ints[s * kSampleInts + i];
  }
};

__shared__ Asked asked;

/** Four uniforms in [0, 1) of 24 bits: Philox4x32-10, see reference/sample.ts. */
__device__ float4 philox_four(const int* n, u32 block) {
  u32 c0 = n[kPosition], c1 = n[kStream], c2 = block, c3 = 0;
  u32 k0 = n[kSeedLow], k1 = n[kSeedHigh];
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u32 high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    const u32 high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
  }
  constexpr float kUnit = 5.9604644775390625e-8f;
  return {(c0 >> 8) * kUnit, (c1 >> 8) * kUnit, (c2 >> 8) * kUnit, (c3 >> 8) * kUnit};
}

__device__ __forceinline__ bool penalises(const float* f) {
  return f[kRepetitionPenalty] != 1 || f[kPresencePenalty] != 0 || f[kFrequencyPenalty] != 0 ||
         f[kPenaltyDecay] != 1;
}

/** How many draws before it a draw has to wait for. Without penalties, a draw after a guess
 * (kAfter) waits for none: only the host looks at which token it follows (StepOutputs), and nobody
 * reads its counts. */
__device__ __forceinline__ int depth_of(const Step& step, int s) {
  int depth = 0;
  while (step.sample_ints[(s - depth) * kSampleInts + kAfter] > 0 &&
         penalises(step.sample_floats + (s - depth) * kSampleFloats))
    depth++;
  return depth;
}

/** The ids [begin, end) of a block. */
struct Slice {
  int begin, end;
};

/** scores = logits of the tokens that the mask allows (without a mask: of all) with bias and
 * penalties. Also decays the counts. */
__device__ __noinline__ void adjust(const Slice& slice, const Step& step, int s, const float* raw,
                                    float* scores, const u32* mask, const int* bias_ids,
                                    const float* bias_values, float* counts, u8* flags,
                                    const float* f) {
  for (int i = slice.begin + threadIdx.x; i < slice.end; i += kThreads) {
    const bool is_allowed = mask == nullptr || (mask[i >> 5] >> (i & 31) & 1) != 0;
    scores[i] = is_allowed ? raw[i] : -infinity();
  }
  __syncthreads();
  for (int i = step.bias_starts[s] + threadIdx.x; i < step.bias_starts[s + 1]; i += kThreads) {
    const int id = bias_ids[i];
    if (id >= slice.begin && id < slice.end) atomicAdd(scores + id, bias_values[i]);
  }
  __syncthreads();
  const float repetition = f[kRepetitionPenalty];
  for (int i = slice.begin + threadIdx.x; i < slice.end; i += kThreads) {
    const u8 flag = flags[i];
    if (flag == 0) continue;
    float score = scores[i];
    if (repetition != 1.0f) score = score > 0 ? score / repetition : score * repetition;
    if (flag & kGenerated) {
      score -= f[kPresencePenalty] + f[kFrequencyPenalty] * counts[i];
      if (f[kPenaltyDecay] != 1.0f) counts[i] *= f[kPenaltyDecay];
    }
    scores[i] = score;
  }
  __syncthreads();
}

/** to = scores / temperature + noise·uniform. A slice starts at a multiple of four. */
__device__ __noinline__ void add_noise(const Slice& slice, const float* scores, float* to,
                                       const float* f, const int* n) {
  for (int first = slice.begin + 4 * threadIdx.x; first < slice.end; first += 4 * kThreads) {
    const float4 four = philox_four(n, 1 + first / 4);
    const float uniforms[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (first + i < slice.end)
        to[first + i] = scores[first + i] / f[kTemperature] + f[kNoise] * uniforms[i];
  }
  __syncthreads();
}
