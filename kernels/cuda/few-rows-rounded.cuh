// How few-rows.cu multiplies with large matrices of fewer bits (quant.cuh): what a stage of its
// ring has of them, and their products with an input. A stage is rows of CHANNELS columns, first
// their values, then their scales and minimums; of ffn.value a row is several such, one after the
// other. Rows of e4m3 have one scale each, which is for who finishes their sums. Knows no phase, and
// not who asks for a stage. Of two tokens, one has the first half of a product's columns and the other
// the rest, which with one are the same once more.
//
// QUANT: the type · ROUNDED_ROWS: rows in a stage (a multiple of 4)
#pragma once
#include "few-rows.cuh"
#include "quant.cuh"

constexpr bool kHasRowScales = QUANT == kE4m3;
/** Bytes of a row's values and scales. */
constexpr int kRowBytes = CHANNELS / kPartInputs * kPartBytes;
constexpr int kRowScaleBytes = kHasRowScales ? 0 : CHANNELS / kGroup * kGroupScales * 2;
/** Whether a slice's sum takes its scale. A slice of e4m3 has none, one of q6 two. */
constexpr bool kScalesSums = !kHasRowScales && QUANT != kQ6;
constexpr int kScalesAt = ROUNDED_ROWS * kRowBytes;
constexpr int kRoundedBytes = ROUNDED_ROWS * (kRowBytes + kRowScaleBytes);
/** 8 lanes have two parts of a row; warps share a row by those. */
constexpr int kPairColumns = 2 * kPartInputs, kPairs = CHANNELS / kPairColumns;
constexpr int kRoundedSlices = kPairs < WARPS ? kPairs : WARPS;
/** Warps with the same columns share the rows. */
constexpr int kTeams = WARPS / kRoundedSlices;
constexpr int kMostPairs = (kPairs + kRoundedSlices - 1) / kRoundedSlices;
/** Stages that a row of value takes. */
constexpr int kValueChunks = KEYS / CHANNELS;
static_assert(KEYS % CHANNELS == 0, "whole chunks");
static_assert(CHANNELS % kPairColumns == 0 && kRowScaleBytes % 16 == 0, "as few-rows-plan.ts says");

static_assert(TOKENS <= 2, "as many as a product has columns for");

/** The part of a row that the warp has, and its team; what is left over has none. */
struct Share {
  Place pairs;
  int slice, team;
};

__device__ __forceinline__ Share share_of_warp() {
  const int warp = threadIdx.x >> 5, slice = warp % kRoundedSlices, team = warp / kRoundedSlices;
  if (team >= kTeams) return {{0, 0}, slice, team};
  return {part_of(kPairs, slice, kRoundedSlices), slice, team};
}

/** Of an input what a lane needs of the warp's columns, by slices of 32 of a part. */
struct RoundedInputs {
  uint2 of[kMostPairs][kPartSlices];
  /** Of the part whose weights the lane has: all inputs of a slice, for its minimums. */
  float sums[kHasMinimum ? kMostPairs : 1][kHasMinimum ? kPartSlices : 1];
  /** Of a part: inputs from one lane's to the next's, and from one slice's to the next's. */
  static constexpr int kOfLane = kHasRowScales ? kPartSlices * kVector : kVector;
  static constexpr int kOfSlice = kHasRowScales ? kVector : 32;

  /** The second token's lie `stride` behind the first's. */
  __device__ __forceinline__ void load(const f16* input, int stride, const Place& pairs) {
    const int lane = threadIdx.x & 31;
    if constexpr (TOKENS == 2) input += (lane >> 4) * stride;
    // As Products says: lanes of odd rows of the unit have the second part's, those of each part
    // the first and third words of 16 bytes, or the others.
    input += kPairColumns * pairs.begin + kPartInputs * (lane >> 3 & 1) + kOfLane * (lane & 3) +
             4 * (lane >> 2 & 1);
#pragma unroll
    for (int pair = 0; pair < kMostPairs; pair++)
#pragma unroll
      for (int s = 0; s < kPartSlices; s++)
        of[pair][s] = pairs.begin + pair < pairs.end
                          ? *reinterpret_cast<const uint2*>(input + kPairColumns * pair +
                                                            kOfSlice * s)
                          : make_uint2(0, 0);
    if constexpr (kHasMinimum) {
#pragma unroll
      for (int pair = 0; pair < kMostPairs; pair++)
#pragma unroll
        for (int s = 0; s < kPartSlices; s++) sums[pair][s] = sum_of_part(of[pair][s]);
    }
  }

  /** Eight lanes have a part's inputs, lanes 0 to 7 of the first; to those that have its products. */
  static __device__ __forceinline__ float sum_of_part(const uint2& four) {
    const float2 a = unpack(four.x), b = unpack(four.y);
    float sum = a.x + a.y + (b.x + b.y);
#pragma unroll
    for (int offset = 1; offset < 8; offset *= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    const int lane = threadIdx.x & 31, part = lane >> 2 & 1, token = TOKENS == 2 ? lane >> 1 & 1 : 0;
    return __shfl_sync(~0u, sum, 8 * part + 16 * token);
  }
};

/** Times 4 rows that a team multiplies at once: what one waits for, another does not. */
constexpr int kFours = most(1, least(2, ROUNDED_ROWS / 4 / kTeams));
/** Whether a stage is so many times that; else the last rows are read once more, for nobody. */
constexpr bool kIsWhole = ROUNDED_ROWS % (4 * kTeams * kFours) == 0;

/** The sums of several times 4 rows' products with the warp's columns, in lane 8·row (sum_four), of a
 * second token in lane 8·row + 2. Integers are multiplied as they are, a slice's sum then takes its
 * scale, but those of q6. */
__device__ __forceinline__ void multiply_fours(float (&sums)[kFours], const u8* stage, int first,
                                               const Place& pairs, const RoundedInputs& x,
                                               const DecodeConstants& constants) {
  const int lane = threadIdx.x & 31, row = first + (lane >> 3);
  const u8* const part =
      stage + row * kRowBytes + kPartBytes * (2 * pairs.begin + (lane >> 2 & 1));
  const u8* const scales = stage + kScalesAt + row * kRowScaleBytes +
                           (int)sizeof(Scales) * (2 * pairs.begin + (lane >> 2 & 1));
#pragma unroll
  for (float& sum : sums) sum = 0;
  // Where slices' sums take no scale.
  Products whole[kFours] = {};
#pragma unroll
  for (int pair = 0; pair < kMostPairs; pair++) {
    if (kPairs % kRoundedSlices != 0 && pairs.begin + pair >= pairs.end) break;
    u32 words[kFours][4], ready[kFours][4];
    High<false> high[kFours];
    Scales own[kFours];
#pragma unroll
    for (int n = 0; n < kFours; n++) {
      const int rows = kIsWhole ? 4 * kTeams * n : min(4 * kTeams * n, ROUNDED_ROWS - 4 - first);
      const u8* const at = part + rows * kRowBytes + 2 * kPartBytes * pair;
      const uint4 v = *reinterpret_cast<const uint4*>(at + 16 * (lane & 3));
      words[n][0] = v.x, words[n][1] = v.y, words[n][2] = v.z, words[n][3] = v.w;
      uint4 above = make_uint4(0, 0, 0, 0);
      if constexpr (kHighBits > 0) above = *reinterpret_cast<const uint4*>(at + high_at(lane & 3));
      high[n] = high_of_lane(above, lane & 3);
      if constexpr (!kHasRowScales)
        own[n] = *reinterpret_cast<const Scales*>(scales + rows * kRowScaleBytes +
                                                  2 * pair * (int)sizeof(Scales));
    }
#pragma unroll
    for (int s = 0; s < kPartSlices; s++)
#pragma unroll
      for (int n = 0; n < kFours; n++) {
        u32 h[4];
        if (s % 2 == 0) prepare_slices(ready[n], words[n], s, constants);
        if constexpr (QUANT == kQ6)
          decode(h, ready[n], high[n], own[n], s, constants);
        else
          slice_to_f16(h, ready[n], high[n], s, constants);
        const uint4 weights = make_uint4(h[0], h[1], h[2], h[3]);
        if constexpr (kScalesSums) {
          Products products = {};
          add_products(products, weights, x.of[pair][s]);
          sums[n] += products.sum() * unpack(scale_of(own[n], s)).x;
        } else {
          add_products(whole[n], weights, x.of[pair][s]);
        }
        if constexpr (kHasMinimum) sums[n] += x.sums[pair][s] * minimum_of(own[n], s);
      }
  }
#pragma unroll
  for (int n = 0; n < kFours; n++)
    sums[n] = (kHasRowScales ? 1.0f : UNSCALE) * sum_four(kScalesSums ? sums[n] : whole[n].sum());
}

/** A stage of so many rows: the warp's part of each row's sum, stored or added. */
__device__ __forceinline__ void multiply_stage(const u8* stage, const Share& share,
                                               const RoundedInputs& x, float* to, int rows,
                                               bool adds, const DecodeConstants& constants) {
  if (share.team >= kTeams) return;
  const int lane = threadIdx.x & 31, token = TOKENS == 2 ? (lane & 7) >> 1 : 0;
  const bool has_sum = TOKENS == 2 ? (lane & 5) == 0 : (lane & 7) == 0;
  to += token * kTokenSums;
#pragma unroll 1
  for (int first = 4 * share.team; first < rows; first += 4 * kTeams * kFours) {
    float sums[kFours];
    multiply_fours(sums, stage, first, share.pairs, x, constants);
#pragma unroll
    for (int n = 0; n < kFours; n++) {
      const int row = first + 4 * kTeams * n + (lane >> 3);
      if (has_sum && row < rows) to[row] = adds ? to[row] + sums[n] : sums[n];
    }
  }
}
