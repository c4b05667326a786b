// How the kernels that run at load write the layout of quant.cuh. A thread has 64 or 128 inputs of
// a row.
#pragma once
#include "quant.cuh"

/** The scale as kernels read it. Clamped so that 128 times the scale fits f16. */
__device__ __forceinline__ f16 device_scale(float scale) {
  scale *= SCALE_FACTOR;
  scale = scale > 511.0f ? 511.0f : scale;
  return to_f16(scale < -511.0f ? -511.0f : scale);
}

/** Inputs of a thread: two slices (they share bytes in q4), or a whole part (q5, q6). Always whole
 * groups. */
constexpr int kThreadInputs = kHighBits > 0 ? kPartInputs : 64;
constexpr int kThreadGroups = kThreadInputs / kGroup;

/** The codes of a thread's inputs, eight per element, in order. As in a file, there are two codes
 * per byte, or one per byte if a code has more than four bits. Codes beyond the end of the row are
 * zero. */
struct Codes {
  u64 of[kThreadInputs / 8] = {};
};

/** Writes one part of five or six bits per code. */
__device__ __forceinline__ void store_part(u32* part, const Codes& codes) {
  u32 high[4 * (kHighBits > 0 ? kHighBits : 1)] = {};
#pragma unroll
  for (int lane = 0; lane < 4; lane++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u32 low = 0;
#pragma unroll
      for (int slice = 0; slice < 4; slice++) {
        const u32 pair = codes.of[4 * slice + lane] >> 16 * j & 0xffff;
        const u32 even = pair & 0xff, odd = pair >> 8;
        low |= (even & 15 | (odd & 15) << 16) << 4 * slice;
        const int at = kHighBits == 2 ? 8 * (lane % 2) + 2 * slice : 4 * lane + slice;
        high[kHighBits == 2 ? lane / 2 * 4 + j : j] |= (even >> 4 | odd >> 4 << 16) << at;
      }
      part[4 * lane + j] = low;
    }
#pragma unroll
  for (int i = 0; i < 4 * kHighBits; i++) part[16 + i] = high[i];
}

/** Writes the inputs of a row from kThreadInputs·index on. */
__device__ __forceinline__ void store_codes(u32* values, long long row, int index, int columns,
                                            const Codes& codes) {
  if constexpr (kHighBits > 0) {
    store_part(values + (row * parts_of(columns) + index) * (kPartBytes / 4), codes);
    return;
  }
  constexpr int kPairs = kPartSlices / 2;
  u32* const part = values + (row * parts_of(columns) + index / kPairs) * (kPartBytes / 4);
  const int pair = index % kPairs;
#pragma unroll
  for (int word = 0; word < 16; word++) {
    // The word has inputs 2j and 2j + 1 of both slices.
    const int j = word % 4;
    if constexpr (QUANT == kI8) {
      const u32 first = codes.of[word / 4] >> 16 * j & 0xffff;
      const u32 second = codes.of[word / 4 + 4] >> 16 * j & 0xffff;
      part[word] = (first | second << 16) ^ 0x80808080u;
    } else {
      const u32 first = codes.of[word / 4] >> 8 * j & 0xff;
      const u32 second = codes.of[word / 4 + 4] >> 8 * j & 0xff;
      u8* const to = reinterpret_cast<u8*>(part + word);
      if constexpr (QUANT == kNf4)
        to[2 * pair] = first, to[2 * pair + 1] = second;
      else
        to[pair] = first & 15 | second << 4, to[pair + 2] = first >> 4 | second & 0xf0;
    }
  }
}

__device__ __forceinline__ long long scale_at(int row, int group, int columns) {
  return (long long)row * parts_of(columns) * kPartScales + group * kGroupScales;
}

__device__ __forceinline__ int groups_of(int columns) { return (columns + kGroup - 1) / kGroup; }

/** The place of a thread: its row, and its index among the threads of that row. */
struct Place {
  int row, index, first_group, end_group;
  bool exists;
};

__device__ __forceinline__ Place place_of(int rows, int columns) {
  const int threads = (columns + kThreadInputs - 1) / kThreadInputs;
  const long long thread = blockIdx.x * 256ll + threadIdx.x;
  Place at;
  at.exists = thread < (long long)rows * threads;
  at.row = thread / threads, at.index = thread % threads;
  at.first_group = at.index * kThreadGroups;
  at.end_group = min(at.first_group + kThreadGroups, groups_of(columns));
  return at;
}
