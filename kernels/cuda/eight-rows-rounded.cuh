// How eight-rows.cu multiplies by large quantised matrices (quant.cuh): the layout of a stage of
// its ring, and a warp's products with it. A stage holds 16 rows of CHANNELS / ROUNDED_SPLIT
// columns: first their codes, then their scales and minimums. A lane decodes the codes of two rows,
// and the weights of a slice of 32 inputs are the operand of two products. Integers are multiplied
// as they are, and the sum of each slice is scaled; where a slice has several scales, or a minimum,
// the weights are scaled instead and rounded to f16. Rows of e4m3 have one scale each, which the
// code that finishes their sums applies. This file knows neither the phases nor how a stage is
// requested.
//
// QUANT: the type · ROUNDED_SPLIT: stages per row of CHANNELS columns
#pragma once
#include "few-rows.cuh"
#include "quant.cuh"

constexpr bool kHasRowScales = QUANT == kE4m3;
/** Whether the sum of a slice is scaled, and not its weights. */
constexpr bool kScalesSums = !kHasRowScales && !kHasMinimum && QUANT != kQ6;
/** Columns and parts of a row in a stage, and the bytes of their codes and scales. */
constexpr int kRoundedColumns = CHANNELS / ROUNDED_SPLIT;
constexpr int kRoundedParts = kRoundedColumns / kPartInputs;
constexpr int kRowBytes = kRoundedParts * kPartBytes;
constexpr int kRowScaleBytes = kHasRowScales ? 0 : kRoundedColumns / kGroup * kGroupScales * 2;
static_assert(CHANNELS % (ROUNDED_SPLIT * kPartInputs) == 0 && kRowScaleBytes % 16 == 0,
              "as fused-layers-plan.ts says");
/** Distances between rows: lanes that read neighbouring rows at once meet no bank twice. */
constexpr int kRowStride = (kRowBytes + 63) / 128 * 128 + 64;
constexpr int kScaleStride = kHasRowScales ? 0 : 16 * (kRowScaleBytes / 16 | 1);
constexpr int kScalesAt = STAGE_ROWS * kRowStride;
constexpr int kRoundedBytes = kScalesAt + STAGE_ROWS * kScaleStride;
/** Number of warps that divide the parts among them, and parts per warp, at most. */
constexpr int kPartWarps = least(WARPS, kRoundedParts);
constexpr int kMostParts = (kRoundedParts + kPartWarps - 1) / kPartWarps;

/** The warp's parts of a stage's rows. Warps without a part have sums of zero. */
__device__ __forceinline__ Place own_parts() {
  const int warp = threadIdx.x >> 5;
  if (warp >= kPartWarps) return {0, 0};
  return part_of(kRoundedParts, warp, kPartWarps);
}

/** A lane's weights of one part: its 16 bytes in each of two rows, with their scales. */
struct RoundedPart {
  u32 words[2][4];
  High<false> high[2];
  Scales scales[2];

  /** `codes` and `scales_from`: those of the first row. */
  __device__ __forceinline__ void load(const u8* codes, const u8* scales_from) {
    const int q = threadIdx.x & 3;
#pragma unroll
    for (int n = 0; n < 2; n++, codes += 8 * kRowStride, scales_from += 8 * kScaleStride) {
      const uint4 v = *reinterpret_cast<const uint4*>(codes + 16 * q);
      words[n][0] = v.x, words[n][1] = v.y, words[n][2] = v.z, words[n][3] = v.w;
      uint4 above = make_uint4(0, 0, 0, 0);
      if constexpr (kHighBits > 0) above = *reinterpret_cast<const uint4*>(codes + high_at(q));
      high[n] = high_of_lane(above, q);
      if constexpr (!kHasRowScales) scales[n] = *reinterpret_cast<const Scales*>(scales_from);
    }
  }
};

/** The inputs that a warp multiplies: of the token lane / 4, by slices of 32. */
struct RoundedInputs {
  static constexpr int kStages = ROUNDED_SPLIT, kChains = 1;
  /** Distances from one lane's inputs to the next lane's, and from one slice's to the next
   * slice's. */
  static constexpr int kOfLane = kHasRowScales ? kPartSlices * kVector : kVector;
  static constexpr int kOfSlice = kHasRowScales ? kVector : 32;
  uint4 of[ROUNDED_SPLIT][kMostParts][kPartSlices];
  DecodeConstants constants;

  /** `from`: the token's CHANNELS inputs, f16, which other blocks wrote. */
  __device__ __forceinline__ explicit RoundedInputs(const f16* from)
      : constants(QUANT == kNf4) {
    const Place own = own_parts();
    from += kPartInputs * own.begin + kOfLane * (threadIdx.x & 3);
#pragma unroll
    for (int split = 0; split < ROUNDED_SPLIT; split++)
#pragma unroll
      for (int part = 0; part < kMostParts; part++)
#pragma unroll
        for (int s = 0; s < kPartSlices; s++)
          of[split][part][s] =
              own.begin + part < own.end
                  ? __ldcg(reinterpret_cast<const uint4*>(from + split * kRoundedColumns +
                                                          kPartInputs * part + kOfSlice * s))
                  : make_uint4(0, 0, 0, 0);
  }

  /** Adds the warp's products of a stage. */
  __device__ __forceinline__ void add(float (&sums)[kChains][4], const u8* stage, int split) const {
    const Place own = own_parts();
    const int row = (threadIdx.x & 31) >> 2;
    const u8* const codes = stage + row * kRowStride + own.begin * kPartBytes;
    const u8* const scales =
        stage + kScalesAt + row * kScaleStride + own.begin * (int)sizeof(Scales);
#pragma unroll
    for (int i = 0; i < kMostParts; i++) {
      if (kRoundedParts % WARPS != 0 && own.begin + i >= own.end) break;
      RoundedPart part;
      part.load(codes + i * kPartBytes, scales + i * (int)sizeof(Scales));
      __syncwarp();
      add_part(sums[0], part, of[split][i]);
    }
  }

  __device__ __forceinline__ void add_part(float (&sums)[4], const RoundedPart& part,
                                           const uint4 (&x)[kPartSlices]) const {
    u32 ready[2][4], h[2][4];
#pragma unroll
    for (int s = 0; s < kPartSlices; s++) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
        if (s % 2 == 0) prepare_slices(ready[n], part.words[n], s, constants);
        if constexpr (kHasRowScales || kScalesSums)
          slice_to_f16(h[n], ready[n], part.high[n], s, constants);
        else
          decode(h[n], ready[n], part.high[n], part.scales[n], s, constants);
      }
      const uint4 low = make_uint4(h[0][0], h[0][1], h[0][2], h[0][3]),
                  high = make_uint4(h[1][0], h[1][1], h[1][2], h[1][3]);
      if constexpr (kScalesSums) {
        float products[4] = {};
        add_tile(products, low, high, x[s]);
        const float a = unpack(scale_of(part.scales[0], s)).x,
                    b = unpack(scale_of(part.scales[1], s)).x;
        sums[0] += products[0] * a, sums[1] += products[1] * a;
        sums[2] += products[2] * b, sums[3] += products[3] * b;
      } else {
        add_tile(sums, low, high, x[s]);
      }
    }
  }
};
