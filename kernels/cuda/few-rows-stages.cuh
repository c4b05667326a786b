// The products of few-rows.cu with the stages that few-rows-feed.cuh requests. This file does not
// know the phases.
#pragma once
#include "few-rows-feed.cuh"

/** Offset of a lane's weights in 4 rows by 64 columns. own_inputs: of its inputs among the 64. */
__device__ __forceinline__ int own_weights(int columns) {
  const int lane = threadIdx.x & 31;
  return (lane >> 3) * columns + kVector * (lane & 7);
}

__device__ __forceinline__ int own_inputs() {
  const int lane = threadIdx.x & 31;
  return 32 * (lane >> 3 & 1) + kVector * (lane & 3) + 4 * (lane >> 2 & 1);
}

/** Multiplies the warp's columns of `rows` rows by the inputs of each token. Stores one sum per
 * row, the warp's part of it. */
__device__ __forceinline__ void multiply_rows(Stream& s, const f16* input, float* sums, int rows) {
  constexpr int kMost = (kUnits + kSlices - 1) / kSlices;
  if constexpr (kInTurns) {
    // What a stage takes is instructions around the products. So a warp has twice the columns of
    // every second stage.
    const int own_unit = (threadIdx.x >> 5) % kSlices * kMost;
    const f16* const x = input + own_inputs() + kUnitColumns * own_unit;
    uint2 inputs[TOKENS][kMost];
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
#pragma unroll
      for (int unit = 0; unit < kMost; unit++)
        inputs[t][unit] = *reinterpret_cast<const uint2*>(x + t * CHANNELS + kUnitColumns * unit);
    const int own_offset = own_weights(CHANNELS) + kUnitColumns * own_unit;
    float* const to = sums + ((threadIdx.x & 31) >> 3);
#pragma unroll 1
    for (int first = 0; first < rows; first += STAGE_ROWS) {
      if (!is_own_turn(s)) continue;
      const f16* const weights = open_stage(s) + own_offset;
      uint4 w[kMost];
#pragma unroll
      for (int unit = 0; unit < kMost; unit++)
        w[unit] = *reinterpret_cast<const uint4*>(weights + kUnitColumns * unit);
      close_stage(s);
      Products products[TOKENS] = {};
#pragma unroll
      for (int unit = 0; unit < kMost; unit++)
#pragma unroll
        for (int t = 0; t < TOKENS; t++) add_products(products[t], w[unit], inputs[t][unit]);
#pragma unroll
      for (int t = 0; t < TOKENS; t++) {
        const float sum = sum_four(products[t].sum());
        const int row = first + ((threadIdx.x & 31) >> 3);
        if ((threadIdx.x & 7) == 0 && row < rows) to[t * kTokenSums + first] = sum;
      }
    }
    return;
  }
  const Place own = slice_of_warp();
  const int row = (threadIdx.x & 31) >> 3;
  const f16* const inputs = input + own_inputs() + kUnitColumns * own.begin;
  // Which stage of a row holds the warp's columns.
  const int own_split = SPLIT == 1 ? 0 : own.begin / (kUnits / SPLIT);
  const int column_in_stage = kUnitColumns * own.begin - own_split * kStageColumns;
#pragma unroll 1
  for (int stage = 0; stage < SPLIT * ((rows + STAGE_ROWS - 1) / STAGE_ROWS); stage++) {
    const int first = stage / SPLIT * STAGE_ROWS;
    const f16* const weights = open_stage(s) + own_weights(kStageColumns) + column_in_stage;
    const bool is_own = own.begin < own.end && stage % SPLIT == own_split;
    const int end = is_own ? min(STAGE_ROWS, rows - first) : 0;
#pragma unroll 1
    for (int four = 0; four < end; four += 4) {
      Products products[TOKENS] = {};
#pragma unroll
      for (int unit = 0; unit < kMost; unit++) {
        if (kUnits % kSlices != 0 && unit >= own.end - own.begin) break;
        const int column = kUnitColumns * unit;
        const uint4 w = *reinterpret_cast<const uint4*>(weights + four * kStageColumns + column);
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
          add_products(products[t], w,
                       *reinterpret_cast<const uint2*>(inputs + t * CHANNELS + column));
      }
#pragma unroll
      for (int t = 0; t < TOKENS; t++) {
        const float sum = sum_four(products[t].sum());
        if ((threadIdx.x & 7) == 0 && four + row < end)
          sums[t * kTokenSums + first + four + row] = sum;
      }
    }
    close_stage(s);
  }
}

/** Adds the products of 4 rows of a low rank with its inputs. The rank is a multiple of 32. */
__device__ __forceinline__ void multiply_ragged(Products& products, const f16* weights,
                                                const f16* x, int rank) {
  const int lane = threadIdx.x & 31;
  weights += own_weights(rank), x += own_inputs();
  int column = 0;
#pragma unroll 4
  for (; column + kUnitColumns <= rank; column += kUnitColumns)
    add_products(products, *reinterpret_cast<const uint4*>(weights + column),
                 *reinterpret_cast<const uint2*>(x + column));
  if (column == rank) return;
  uint4 w = make_uint4(0, 0, 0, 0);
  uint2 inputs = make_uint2(0, 0);
  if ((lane & 4) == 0) w = *reinterpret_cast<const uint4*>(weights + column);
  if ((lane & 8) == 0) inputs = *reinterpret_cast<const uint2*>(x + column);
  __syncwarp();
  add_products(products, w, inputs);
}

/** Multiplies a head's outer low ranks, [low rank][channel], with 4 channels per warp. All are
 * multiplied before the first is summed. */
__device__ __forceinline__ void low_products(const FewRows& op, Stream& s, const f16* x,
                                             float* sums, bool has_gate) {
  static_assert(4 * WARPS == 64, "4 channels of a head a warp");
  if constexpr (kInTurns) {
#pragma unroll
    for (int low = 0; low < kLow; low++) {
      if (low == kLow - 1 && !has_gate) break;
      const int rank = rank_of(op, low), step = s.shared.low_step[low];
#pragma unroll 1
      for (int begin = 0; begin < 64; begin += step) {
        if (!is_own_turn(s)) continue;
        const f16* const stage = open_stage(s);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int own = 4 * ((threadIdx.x >> 5) % kSlices + kSlices * half);
          if (own >= step || begin + own >= 64) break;
          Products products = {};
          multiply_ragged(products, stage + own * rank, x, rank);
          const float sum = sum_four(products.sum());
          const int lane = threadIdx.x & 31;
          if ((lane & 7) == 0) sums[64 * low + begin + own + (lane >> 3)] = sum;
        }
        close_stage(s);
      }
      x += rank;
    }
    return;
  }
  const int lane = threadIdx.x & 31, first = 4 * (int)(threadIdx.x >> 5);
  Products products[kLow] = {};
#pragma unroll
  for (int low = 0; low < kLow; low++) {
    if (low == kLow - 1 && !has_gate) break;
    const int rank = rank_of(op, low), step = s.shared.low_step[low];
#pragma unroll 1
    for (int begin = 0; begin < 64; begin += step) {
      const f16* const stage = open_stage(s);
      const int own = first - begin;
      if (own >= 0 && own < step) multiply_ragged(products[low], stage + own * rank, x, rank);
      close_stage(s);
    }
    x += rank;
  }
#pragma unroll
  for (int low = 0; low < kLow; low++) {
    const float sum = sum_four(products[low].sum());
    if ((lane & 7) == 0) sums[64 * low + first + (lane >> 3)] = sum;
  }
}

/** Two channels of an outer low rank. */
__device__ __forceinline__ float2 low_pair(const FewRows&, const float* sums, int low) {
  return load_pair(sums, 64 * low + 2 * (threadIdx.x & 31));
}

#if QUANT
/** Multiplies `rows` quantised rows of `Chunks` · CHANNELS columns by the inputs of each token.
 * Stores one sum per row and slice. */
template <int Chunks>
__device__ __forceinline__ void multiply_rounded(Stream& s, const f16* input, float* sums,
                                                 int rows) {
  const Share share = share_of_warp();
  const DecodeConstants constants(QUANT == kNf4);
  sums += kSumRows * share.slice;
#pragma unroll 1
  for (int chunk = 0; chunk < Chunks; chunk++) {
    RoundedInputs x;
    x.load(input + chunk * CHANNELS, Chunks * CHANNELS, share.pairs);
#pragma unroll 1
    for (int first = 0; first < rows; first += ROUNDED_ROWS) {
      multiply_stage(reinterpret_cast<const u8*>(open_stage(s)), share, x, sums + first,
                     min(ROUNDED_ROWS, rows - first), chunk > 0, constants);
      close_stage(s);
    }
  }
}
#endif
