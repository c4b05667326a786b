// What becomes of a row of logits before one is drawn: bias, penalties and noise; its best score;
// and the sample's random numbers.
#pragma once
#include "sample-shared.cuh"

enum SampleFloat {
  kTemperature,
  kTopP,
  kMinP,
  kPresence,
  kFrequency,
  kDecay,
  kRepetition,
  kNoise,
  kSampleFloats = 8
};
enum SampleInt { kTopK, kSeedLow, kSeedHigh, kPosition, kStream, kTopLogprobs, kSampleInts = 8 };
enum Flag : u8 { kInPrompt = 1, kGenerated = 2 };

/** Four uniforms in [0, 1) with 24 bits: Philox4x32-10, see reference/philox.ts. */
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

/** Best score and its smallest id; notes scores that are not finite when `checks`. */
__device__ void find_best(Shared& sh, const float* scores, int vocab, bool checks) {
  float best = -__int_as_float(0x7f800000);
  int id = 0x7fffffff;
  bool finite = true;
  for_each_score(scores, vocab, [&](int i, float x) {
    finite &= (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
    if (x > best || id == 0x7fffffff) best = x, id = i;
  });
  // The best of a warp, in all its lanes; a slice that is empty has no id.
  const auto take_lanes = [&]() {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
      const float other = __shfl_xor_sync(~0u, best, offset);
      const int other_id = __shfl_xor_sync(~0u, id, offset);
      if (other_id != 0x7fffffff &&
          (id == 0x7fffffff || other > best || (other == best && other_id < id)))
        best = other, id = other_id;
    }
  };
  take_lanes();
  const int warp = threadIdx.x >> 5;
  if ((threadIdx.x & 31) == 0) sh.sums[warp][0] = best, sh.counts[warp][0] = id;
  const bool all_finite = __syncthreads_and(finite || !checks);
  if (warp == 0) {
    const int lane = threadIdx.x;
    best = (float)sh.sums[lane][0], id = sh.counts[lane][0];
    take_lanes();
    if (lane == 0) sh.own.best = best, sh.own.best_id = id, sh.own.is_finite = all_finite;
  }
  cluster_sync();
  if (warp == 0) {
    const int rank = min((int)threadIdx.x, CLUSTER - 1);
    best = remote(sh.own.best, rank), id = remote(sh.own.best_id, rank);
    const int is_finite = __all_sync(~0u, remote(sh.own.is_finite, rank));
    take_lanes();
    if (threadIdx.x == 0) sh.best = best, sh.best_id = id, sh.is_finite = is_finite;
  }
  cluster_sync();
}

/** scratch = logits with bias and penalties; decays the counts on the way. */
__device__ void adjust(const Sampling& op, const Step& step, int s, const float* raw, float* scores,
                       float* counts, u8* flags, const float* f) {
  const Slice slice = own_slice(op.vocab);
  for (int i = slice.begin + threadIdx.x; i < slice.end; i += kThreads) scores[i] = raw[i];
  __syncthreads();
  for (int i = step.bias_starts[s] + threadIdx.x; i < step.bias_starts[s + 1]; i += kThreads) {
    const int id = op.bias_ids[i];
    if (id >= slice.begin && id < slice.end) atomicAdd(scores + id, op.bias_values[i]);
  }
  __syncthreads();
  const float repetition = f[kRepetition];
  for (int i = slice.begin + threadIdx.x; i < slice.end; i += kThreads) {
    const u8 flag = flags[i];
    if (flag == 0) continue;
    float score = scores[i];
    if (repetition != 1.0f) score = score > 0 ? score / repetition : score * repetition;
    if (flag & kGenerated) {
      score -= f[kPresence] + f[kFrequency] * counts[i];
      if (f[kDecay] != 1.0f) counts[i] *= f[kDecay];
    }
    scores[i] = score;
  }
  __syncthreads();
}

/** to = scores / temperature + noise·uniform; a slice begins with a whole group of four. */
__device__ void add_noise(const float* scores, float* to, int vocab, const float* f, const int* n) {
  const Slice slice = own_slice(vocab);
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
