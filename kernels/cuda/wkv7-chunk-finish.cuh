// The last stage of wkv7-chunk.cu: group norm, bonus and gate of a chunk, from Y in shared memory.
// Eight lanes per token, eight adjacent channels per lane.
#pragma once
#include "wkv7-chunk-sequences.cuh"

__device__ __forceinline__ void load8(float (&to)[8], const float* from) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float4 four = reinterpret_cast<const float4*>(from)[half];
    to[4 * half] = four.x, to[4 * half + 1] = four.y;
    to[4 * half + 2] = four.z, to[4 * half + 3] = four.w;
  }
}

/** out = (GN(y)·gain + bias + bonus·v)·g for a lane's channels. */
__device__ __forceinline__ uint4 finish_token(const Outcome& from, int token, int high, uint4 gates,
                                              const float (&gain)[8], const float (&bias)[8],
                                              float eps) {
  float y[8], bonus[8];
  const int place = place_of_high(high, token);
#pragma unroll
  for (int i = 0; i < 8; i++) y[i] = from.y[place ^ place_of_low(i)];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float4 four =
        *reinterpret_cast<const float4*>(from.bonus + place_of_bonus(token, 2 * high + half));
    bonus[4 * half] = four.x, bonus[4 * half + 1] = four.y;
    bonus[4 * half + 2] = four.z, bonus[4 * half + 3] = four.w;
  }
  const float mean =
      sum8(((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]))) * (1.0f / 64);
  float squares[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    y[i] -= mean;
    squares[i & 1] += y[i] * y[i];
  }
  const float scale = rsqrtf(sum8(squares[0] + squares[1]) * (1.0f / 64) + eps);
  const u32 gate[4] = {gates.x, gates.y, gates.z, gates.w};
  u32 out[4];
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const float2 g = unpack(gate[i / 2]);
    out[i / 2] = pack((y[i] * scale * gain[i] + bias[i] + bonus[i]) * g.x,
                      (y[i + 1] * scale * gain[i + 1] + bias[i + 1] + bonus[i + 1]) * g.y);
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

/** The loop of the warps that finish the chunks of their block. Gates are loaded one chunk ahead.
 * Returns the number of chunks so far. */
__device__ __forceinline__ int finish_chunks(const Wkv7& op, Shared& shared,
                                             const Sequence& sequence, int rank, int warp,
                                             int before) {
  constexpr int kPasses = kTokens / (4 * kFinishers);
  const int lane = threadIdx.x & 31, high = lane & 7, channel = sequence.head * 64 + 8 * high;
  const int last = before + sequence.num_chunks();
  float gain[8], bias[8];
  load8(gain, op.ln_weight + channel);
  load8(bias, op.ln_bias + channel);
  int c = before + (rank + before) % CLUSTER;
  // The lane's first token in the current chunk.
  int first = sequence.start + (c - before) * kTokens + warp * 4 + (lane >> 3);
  const auto at = [&](int t) { return (long long)t * op.channels + channel; };
  uint4 gates[kPasses];
  const auto load = [&](int from) {
#pragma unroll
    for (int pass = 0; pass < kPasses; pass++)
      gates[pass] = *reinterpret_cast<const uint4*>(
          op.g + at(min(from + pass * 4 * kFinishers, sequence.end - 1)));
  };
  load(first);
  for (; c < last; c += CLUSTER, first += CLUSTER * kTokens) {
    const int place = c % kStages / CLUSTER;
    wait(shared.told[place], c / kStages & 1);
    uint4 out[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; pass++)
      out[pass] = finish_token(shared.outcomes[place], (pass * kFinishers + warp) * 4 + (lane >> 3),
                               high, gates[pass], gain, bias, op.eps);
    __syncwarp();
    if (lane == 0) arrive(shared.done[place]);
    load(first + CLUSTER * kTokens);
#pragma unroll
    for (int pass = 0; pass < kPasses; pass++) {
      const int t = first + pass * 4 * kFinishers;
      if (t < sequence.end) *reinterpret_cast<uint4*>(op.out + at(t)) = out[pass];
    }
  }
  return last;
}
