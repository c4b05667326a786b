// Weights of 8 bits and fewer: their layout on the device, and how they become f16 in registers.
// Does not know products. QUANT is the type:
//   1 i8, 2 q4, 3 nf4   integers with a scale per group of inputs of a row
//   4 e4m3              one scale per row
//   5 q4, 6 q5          GGUF's blocks with a minimum, which is added
//   7 q6, 8 q5          GGUF's blocks without a minimum; q6 has a scale per 16 inputs
//
// A row is a sequence of parts. A part has 64 bytes, 16 for each of the 4 lanes that share a row of
// a tensor core operand. It covers slices of 32 inputs: lane l has inputs 8·l … 8·l + 7 of each, so
// the inputs that the lanes of a slice meet are adjacent. Word j of a lane's four words has inputs
// 2j and 2j + 1 of every slice s:
//   i8          bytes 2s and 2s + 1: code + 128
//   nf4         the nibbles of byte s: index of the level
//   q4, q5, q6  nibbles s and s + 4: the low four bits of code + 8, + 16, + 32, or of the code if
//               the type has a minimum
// A lane that gets word j of all four lanes (ldmatrix) thus has the inputs of every slice that it
// needs for the left operand of a product (linear-tiles.cu). After the 64 bytes, a part has 16
// bytes for each bit above four:
//   q5  word j: bit 4·l + s for input 2j of lane l and slice s, bit 16 + 4·l + s for input 2j + 1
//   q6  word 4·(l / 2) + j: the two bits from 8·(l % 2) + 2·s on, and from 16 + 8·(l % 2) + 2·s on
// Scales are f16, in order, multiplied by 2^8 so that those of small weights keep their digits. A
// minimum follows its scale. A row ends with a whole part. e4m3 has no parts: its rows are in
// order, one byte per input.
#pragma once
#include "common.cuh"

enum Quant {
  kI8 = 1,
  kQ4 = 2,
  kNf4 = 3,
  kE4m3 = 4,
  kQ4Minimum = 5,
  kQ5Minimum = 6,
  kQ6 = 7,
  kQ5 = 8
};

#ifndef QUANT
#define QUANT 1
#endif

/** Bits of a code that are not in its nibble. */
#define HIGH_BITS (QUANT == 7 ? 2 : QUANT == 6 || QUANT == 8 ? 1 : 0)

/** The factor of scales on the device, and its inverse. */
#define SCALE_FACTOR 256.0f
#define UNSCALE (1.0f / SCALE_FACTOR)

constexpr int kHighBits = HIGH_BITS;
constexpr bool kIsNibbles = QUANT != kI8 && QUANT != kE4m3;
constexpr bool kHasMinimum = QUANT == kQ4Minimum || QUANT == kQ5Minimum;
/** Inputs that share a scale. Unused for e4m3. */
constexpr int kGroup = QUANT == kNf4 ? 64 : QUANT == kQ6 ? 16 : 32;
/** Numbers per group: a scale, and a minimum if the type has one. */
constexpr int kGroupScales = kHasMinimum ? 2 : 1;
/** Bytes of a part that belong to the lanes, and all bytes of a part. */
constexpr int kLanesBytes = 64, kPartBytes = kLanesBytes + 16 * kHighBits;
/** Slices per part. A lane has 8 inputs of each. */
constexpr int kPartSlices = kIsNibbles ? 4 : 2;
constexpr int kPartInputs = 32 * kPartSlices;
/** Scales and minimums per part. */
constexpr int kPartScales = QUANT == kE4m3 ? 0 : kPartInputs / kGroup * kGroupScales;

/** The offset that active-rows.cu adds to codes. */
constexpr int kTurnedZero = kHasMinimum ? 0 : 128;

__device__ __forceinline__ int parts_of(int columns) {
  return (columns + kPartInputs - 1) / kPartInputs;
}

/** The levels of nf4 (quantised.ts) + 128, as bytes. */
#define NF4_0 0x4e3d2801u
#define NF4_4 0x8074695cu
#define NF4_8 0xab9f948au
#define NF4_12 0xffdcc7b8u

/** Converts two codes of a word to a pair of f16. Their lower bits are nibbles `at` and at + 4;
 * `high` has their upper bits from `high_at` and high_at + 16 on. The bits are put into the f16
 * 1024 + n (or 1024 + 16·n), and the offset is subtracted. */
__device__ __forceinline__ u32 nibbles_to_f16(u32 word, int at, u32 high, int high_at) {
  constexpr u32 kZero = kHasMinimum ? 0 : 8 << kHighBits;
  const int shift = at % 2 * 4;
  u32 pair = mask_or(word >> at / 2 * 8, 0x000f000fu << shift, 0x64006400u);
  if constexpr (kHighBits > 0) {
    const int by = high_at - 4 - shift;
    const u32 bits = by < 0 ? high << -by : high >> by;
    pair = mask_or(bits, (kHighBits == 1 ? 0x00100010u : 0x00300030u) << shift, pair);
  }
  if (shift == 0) return add2(pair, 0xe400e400u + kZero * 0x00010001u);
  return fma2(pair, 0x2c002c00u, 0xd400d400u + (kZero << 4) * 0x00010001u);
}

/** The bits above the nibbles for four words: the four words of one lane, shifted to the lowest
 * bits, or (OfAll) one word of each lane. */
template <bool OfAll>
struct High {
  static constexpr int kWords = kHighBits == 0 ? 1 : OfAll ? kHighBits : 4;
  u32 of[kWords];

  __device__ __forceinline__ u32 word(int j) const {
    if constexpr (kHighBits == 0) return 0;
    if constexpr (OfAll) return of[kHighBits == 2 ? j / 2 : 0];
    return of[j];
  }

  /** The bit at which the pair of word j and slice `slice` begins. */
  static __device__ __forceinline__ int at(int j, int slice) {
    const int lane = !OfAll ? 0 : kHighBits == 2 ? 8 * (j % 2) : 4 * j;
    return lane + kHighBits * slice;
  }
};

/** The high bits of lane `q`, from the part's 16 bytes that hold them. */
__device__ __forceinline__ High<false> high_of_lane(const uint4& v, int q) {
  const int by = kHighBits == 2 ? 8 * (q % 2) : 4 * q;
  High<false> high;
  if constexpr (kHighBits == 0)
    high.of[0] = 0;
  else
    high.of[0] = v.x >> by, high.of[1] = v.y >> by, high.of[2] = v.z >> by, high.of[3] = v.w >> by;
  return high;
}

/** The offset in a part of the 16 bytes with lane `q`'s high bits. */
__device__ __forceinline__ int high_at(int q) {
  return kLanesBytes + (kHighBits == 2 ? q / 2 * 16 : 0);
}

/** Keeps a constant in a register. The shuffle hides its value from the compiler, which would
 * otherwise materialise the constant at every use. */
__device__ __forceinline__ u32 in_register(u32 constant) {
  return __shfl_sync(0xffffffffu, (threadIdx.x & 31) == 0 ? constant : 0, 0);
}

/** Constants for decoding, kept in registers if there are enough. Constructed by whole warps. */
struct DecodeConstants {
  u32 levels[4] = {NF4_0, NF4_4, NF4_8, NF4_12}, magic = 0x64646464u;

  __device__ __forceinline__ explicit DecodeConstants(bool are_held) {
    if (!are_held) return;
    magic = in_register(magic);
#pragma unroll
    for (u32& level : levels) level = in_register(level);
  }
};

/** Converts the lower or the upper two bytes of a word, integers + 128, to a pair of f16. Works
 * because the low byte of the f16 1024 + n is n. */
__device__ __forceinline__ u32 bytes_to_f16(u32 bytes, bool is_upper,
                                            const DecodeConstants& constants) {
  return add2(__byte_perm(bytes, constants.magic, is_upper ? 0x4342 : 0x4140), 0xe480e480u);
}

/** Looks up the levels + 128 of four nibbles of a word, the lower or the upper: in both halves of
 * the table, then selects the right one. */
__device__ __forceinline__ u32 nf4_bytes(u32 word, bool is_upper,
                                         const DecodeConstants& constants) {
  const int shift = is_upper ? 16 : 0;
  const u32 low_three = (word & 0x77777777u) >> shift;
  const u32 high_bits = mask_or(word >> 1, 0x44444444u, 0x32103210u) >> shift;
  const u32 low = select_bytes(constants.levels[0], constants.levels[1], low_three);
  const u32 high = select_bytes(constants.levels[2], constants.levels[3], low_three);
  return select_bytes(low, high, high_bits);
}

/** Prepares four words for decoding slices `slice` (even) and slice + 1. nf4 becomes the bytes of
 * its levels; other types are unchanged. */
__device__ __forceinline__ void prepare_slices(u32 (&ready)[4], const u32 (&words)[4], int slice,
                                               const DecodeConstants& constants) {
#pragma unroll
  for (int j = 0; j < 4; j++)
    ready[j] = QUANT == kNf4 ? nf4_bytes(words[j], slice / 2, constants) : words[j];
}

/** Converts slice `slice` of four prepared words to f16. For integers, pair j comes from word j. */
template <bool OfAll>
__device__ __forceinline__ void slice_to_f16(u32 (&h)[4], const u32 (&ready)[4],
                                             const High<OfAll>& high, int slice,
                                             const DecodeConstants& constants) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if constexpr (QUANT == kI8 || QUANT == kNf4)
      h[j] = bytes_to_f16(ready[j], slice % 2, constants);
    else if constexpr (kIsNibbles)
      h[j] = nibbles_to_f16(ready[j], slice, high.word(j), high.at(j, slice));
  }
#if __CUDA_ARCH__ >= 890
  if constexpr (QUANT == kE4m3) {
#pragma unroll
    for (int i = 0; i < 2; i++)
      asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.rn.f16x2.e4m3x2 %0, lo; "
          "cvt.rn.f16x2.e4m3x2 %1, hi; }"
          : "=r"(h[2 * i]), "=r"(h[2 * i + 1])
          : "r"(ready[2 * slice + i]));
  }
#endif
}

/** The scales of a part, two per word. */
struct alignas(kPartScales > 4 ? 16 : kPartScales > 2 ? 8 : 4) Scales {
  u32 of[kPartScales > 4 ? 4 : kPartScales > 2 ? 2 : 1];
};

/** One of the two f16 of a word, duplicated. */
__device__ __forceinline__ u32 twice(u32 word, bool is_upper) {
  return __byte_perm(word, 0, is_upper ? 0x3232 : 0x1010);
}

/** The scale of a slice, duplicated. A slice of q6 has two scales; this is the one of the calling
 * lane. */
__device__ __forceinline__ u32 scale_of(const Scales& scales, int slice) {
  if constexpr (kHasMinimum) return twice(scales.of[slice], false);
  if constexpr (QUANT == kQ6) return twice(scales.of[slice], (threadIdx.x & 2) != 0);
  const int group = slice * kPartScales / kPartSlices;
  return twice(scales.of[group / 2], group % 2 != 0);
}

/** The minimum of a slice, times SCALE_FACTOR. */
__device__ __forceinline__ float minimum_of(const Scales& scales, int slice) {
  return unpack(scales.of[slice]).y;
}

/** Decodes slice `slice` of four prepared words, integers with their scale, times SCALE_FACTOR.
 * The words are the four of one lane or, if `OfAll`, one of each lane. */
template <bool OfAll>
__device__ __forceinline__ void decode(u32 (&h)[4], const u32 (&ready)[4], const High<OfAll>& high,
                                       const Scales& scales, int slice,
                                       const DecodeConstants& constants) {
  slice_to_f16(h, ready, high, slice, constants);
  if constexpr (QUANT == kE4m3) return;
  const u32 scale = scale_of(scales, slice);
#pragma unroll
  for (int j = 0; j < 4; j++)
    if constexpr (kHasMinimum)
      h[j] = fma2(h[j], scale, twice(scales.of[slice], true));
    else if constexpr (OfAll && QUANT == kQ6)
      h[j] = mul2(h[j], twice(scales.of[slice], j >= 2));
    else
      h[j] = mul2(h[j], scale);
}
