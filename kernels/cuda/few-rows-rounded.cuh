// How few-rows.cu multiplies by large quantised matrices (quant.cuh): the layout of a stage of its
// ring, and the products with an input. A stage holds rows of CHANNELS columns: first their values,
// then their scales and minimums. A row of ffn.value takes several stages, one after the other.
// Rows of e4m3 have one scale each, which is applied by the code that finishes their sums. This
// file knows neither the phases nor the code that fills the stages. With two tokens, one has the
// first half of a product's columns and the other the second half; with one token, both halves hold
// that token.
//
// QUANT: the type · ROUNDED_ROWS: rows of a stage (a multiple of 4)
#pragma once
#include "few-rows.cuh"
#include "quant.cuh"

constexpr bool kHasRowScales = QUANT == kE4m3;
/** Bytes of a row's values, and of its scales. */
constexpr int kRowBytes = CHANNELS / kPartInputs * kPartBytes;
constexpr int kRowScaleBytes = kHasRowScales ? 0 : CHANNELS / kGroup * kGroupScales * 2;
/** Whether the sum of a slice is multiplied by its scale. Slices of e4m3 have no scale, those of q6
 * two. */
constexpr bool kScalesSums = !kHasRowScales && QUANT != kQ6;
constexpr int kScalesAt = ROUNDED_ROWS * kRowBytes;
constexpr int kRoundedBytes = ROUNDED_ROWS * (kRowBytes + kRowScaleBytes);
/** 8 lanes hold two parts of a row. The warps divide a row into such pairs of parts. */
constexpr int kPairColumns = 2 * kPartInputs, kPairs = CHANNELS / kPairColumns;
constexpr int kRoundedSlices = kPairs < WARPS ? kPairs : WARPS;
/** Teams of warps divide the rows: each team has a warp for every slice of the columns. */
constexpr int kTeams = WARPS / kRoundedSlices;
constexpr int kMostPairs = (kPairs + kRoundedSlices - 1) / kRoundedSlices;
/** Stages per row of ffn.value. */
constexpr int kValueChunks = KEYS / CHANNELS;
static_assert(KEYS % CHANNELS == 0, "whole chunks");
static_assert(CHANNELS % kPairColumns == 0 && kRowScaleBytes % 16 == 0, "as fused-layers-plan.ts says");

static_assert(TOKENS <= 2, "as many as a product has columns for");

/** The warp's part of a row, and its team. Warps beyond the last team have no part. */
struct Share {
  Place pairs;
  int slice, team;
};

__device__ __forceinline__ Share share_of_warp() {
  const int warp = threadIdx.x >> 5, slice = warp % kRoundedSlices, team = warp / kRoundedSlices;
  if (team >= kTeams) return {{0, 0}, slice, team};
  return {part_of(kPairs, slice, kRoundedSlices), slice, team};
}

/** The inputs that a lane needs for the warp's columns, by slices of 32 within a part. */
struct RoundedInputs {
  uint2 of[kMostPairs][kPartSlices];
  /** For the part whose weights the lane holds: the sum of each slice's inputs, to be multiplied by
   * its minimum. */
  float sums[kHasMinimum ? kMostPairs : 1][kHasMinimum ? kPartSlices : 1];
  /** Distance within a part from one lane's inputs to the next lane's, and from one slice's to the
   * next slice's. */
  static constexpr int kOfLane = kHasRowScales ? kPartSlices * kVector : kVector;
  static constexpr int kOfSlice = kHasRowScales ? kVector : 32;

  /** The second token's inputs lie `stride` behind the first token's. */
  __device__ __forceinline__ void load(const f16* input, int stride, const Place& pairs) {
    const int lane = threadIdx.x & 31;
    if constexpr (TOKENS == 2) input += (lane >> 4) * stride;
    // The odd rows of a product have the weights of the second part (multiply_fours). So of every
    // four columns, the last two have the inputs of that part. Even columns have the first and
    // third words of 16 bytes, odd columns the other two (Products).
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

  /** Eight lanes hold a part's inputs, lanes 0 to 7 those of the first part. Sends their sum to the
   * lanes that have the part's products. */
  static __device__ __forceinline__ float sum_of_part(const uint2& four) {
    const float2 a = unpack(four.x), b = unpack(four.y);
    float sum = a.x + a.y + (b.x + b.y);
#pragma unroll
    for (int offset = 1; offset < 8; offset *= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    const int lane = threadIdx.x & 31, part = lane >> 2 & 1, token = TOKENS == 2 ? lane >> 1 & 1 : 0;
    return __shfl_sync(~0u, sum, 8 * part + 16 * token);
  }
};

/** How many groups of 4 rows a team multiplies at once, to hide latency. */
constexpr int kFours = most(1, least(2, ROUNDED_ROWS / 4 / kTeams));
/** Whether these groups divide a stage evenly. Otherwise the last rows are read again and
 * discarded. */
constexpr bool kIsWhole = ROUNDED_ROWS % (4 * kTeams * kFours) == 0;

/** Multiplies kFours groups of 4 rows by the inputs of the warp's columns. The sums are in lane
 * 8·row (sum_four), those of a second token in lane 8·row + 2. Integers are multiplied as they are
 * and each slice's sum is then scaled, except for q6. */
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
  // Used where the sums of slices are not scaled.
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

/** Multiplies a stage of `rows` rows: stores or adds the warp's part of each row's sum. */
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
