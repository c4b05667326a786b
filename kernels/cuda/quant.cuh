// Weights of 8 bits and fewer as they lie on the device, and how they become f16 in registers. QUANT
// says which type: 1 i8, 2 q4, 3 nf4 (integers times a scale that some inputs of a row share), 4
// e4m3 (one scale a row); of GGUF's blocks 5 q4 and 6 q5 that have a minimum added, 7 q6 with a scale
// for 16 inputs, 8 q5. Knows no product.
//
// A row is a sequence of parts of 64 bytes: 16 for each of the 4 lanes that share a row of a tensor
// core's operand. A part is of slices of 32 inputs, of which lane l has inputs 8·l … + 7, so that
// the inputs that the lanes of a slice meet lie side by side. Word j of a lane's four has inputs 2j
// and 2j + 1 of each slice s, so that a lane that is given word j of all four lanes (ldmatrix) has
// of each slice what it needs of the left operand of a product (linear-tiles.cu): of i8 bytes 2s
// and 2s + 1, of nf4 the nibbles of byte s, of q4 nibbles s and s + 4. i8 is stored as code + 128,
// q4 as code + 8, nf4 as the index of its level. q5 and q6 lie as q4, code + 16 and + 32 (with a
// minimum the code), but for what is above four bits: a part ends with 16 bytes for each such bit.
// Of q5, word j of them has in bit 4·l + s input 2j of lane l and slice s, and in bit 16 + … input
// 2j + 1; of q6, word 4·(l / 2) + j has those in the two bits from 8·(l % 2) + 2·s on. Scales are f16, in order, 2^8 times too large, so
// that those of small weights keep their digits; a minimum follows its scale. Rows end with whole
// parts. e4m3 lies in order, in rows of one byte an input.
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

/** Bits of a code that do not lie among its nibbles. */
#define HIGH_BITS (QUANT == 7 ? 2 : QUANT == 6 || QUANT == 8 ? 1 : 0)

/** What scales are multiplied with on the device, and what undoes it. */
#define SCALE_FACTOR 256.0f
#define UNSCALE (1.0f / SCALE_FACTOR)

constexpr int kHighBits = HIGH_BITS;
constexpr bool kIsNibbles = QUANT != kI8 && QUANT != kE4m3;
constexpr bool kHasMinimum = QUANT == kQ4Minimum || QUANT == kQ5Minimum;
/** Inputs that share a scale; none do of e4m3. */
constexpr int kGroup = QUANT == kNf4 ? 64 : QUANT == kQ6 ? 16 : 32;
/** What a group has: a scale, and a minimum. */
constexpr int kGroupScales = kHasMinimum ? 2 : 1;
/** Of a part, what each lane has for itself, and all of it. */
constexpr int kLanesBytes = 64, kPartBytes = kLanesBytes + 16 * kHighBits;
/** Slices of a part: a lane has 8 inputs in each. */
constexpr int kPartSlices = kIsNibbles ? 4 : 2;
constexpr int kPartInputs = 32 * kPartSlices;
/** Scales and minimums of a part. */
constexpr int kPartScales = QUANT == kE4m3 ? 0 : kPartInputs / kGroup * kGroupScales;

/** What active-rows.cu adds to the codes of integers. */
constexpr int kTurnedZero = kHasMinimum ? 0 : 128;

__device__ __forceinline__ int parts_of(int columns) {
  return (columns + kPartInputs - 1) / kPartInputs;
}

/** The levels of nf4, + 128, as bytes: those of quantised.ts. */
#define NF4_0 0x4e3d2801u
#define NF4_4 0x8074695cu
#define NF4_8 0xab9f948au
#define NF4_12 0xffdcc7b8u

/** Codes whose lower bits are nibbles `at` and at + 4 of a word, as a pair of f16: 1024 + n, or 1024
 * + 16·n. `high` has the others from bits `high_at` and high_at + 16 on. */
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

/** What lies beside four words, as `High` says whose they are: of one lane what is above the nibbles
 * of each, moved to the lowest bits, or of one word of each lane. */
template <bool OfAll>
struct High {
  static constexpr int kWords = kHighBits == 0 ? 1 : OfAll ? kHighBits : 4;
  u32 of[kWords];

  __device__ __forceinline__ u32 word(int j) const {
    if constexpr (kHighBits == 0) return 0;
    if constexpr (OfAll) return of[kHighBits == 2 ? j / 2 : 0];
    return of[j];
  }

  /** The bit of a word's first pair that slice `slice` of word j begins at. */
  static __device__ __forceinline__ int at(int j, int slice) {
    const int lane = !OfAll ? 0 : kHighBits == 2 ? 8 * (j % 2) : 4 * j;
    return lane + kHighBits * slice;
  }
};

/** Of lane `q`, at the part's last 16 bytes that concern it. */
__device__ __forceinline__ High<false> high_of_lane(const uint4& v, int q) {
  const int by = kHighBits == 2 ? 8 * (q % 2) : 4 * q;
  High<false> high;
  if constexpr (kHighBits == 0)
    high.of[0] = 0;
  else
    high.of[0] = v.x >> by, high.of[1] = v.y >> by, high.of[2] = v.z >> by, high.of[3] = v.w >> by;
  return high;
}

/** Where in a part lane `q` has them. */
__device__ __forceinline__ int high_at(int q) {
  return kLanesBytes + (kHighBits == 2 ? q / 2 * 16 : 0);
}

/** A constant in a register of its own. The compiler knows no better, as lane 0 has it; what it
 * knows it would bring there anew for each use. */
__device__ __forceinline__ u32 in_register(u32 constant) {
  return __shfl_sync(0xffffffffu, (threadIdx.x & 31) == 0 ? constant : 0, 0);
}

/** Constants that decoding takes, in registers where those can be spared; made by whole warps. */
struct DecodeConstants {
  u32 levels[4] = {NF4_0, NF4_4, NF4_8, NF4_12}, magic = 0x64646464u;

  __device__ __forceinline__ explicit DecodeConstants(bool are_held) {
    if (!are_held) return;
    magic = in_register(magic);
#pragma unroll
    for (u32& level : levels) level = in_register(level);
  }
};

/** Two integers + 128, the lower bytes of a word or the upper, as a pair of f16: the low byte of
 * 1024 + n is n. */
__device__ __forceinline__ u32 bytes_to_f16(u32 bytes, bool is_upper,
                                            const DecodeConstants& constants) {
  return add2(__byte_perm(bytes, constants.magic, is_upper ? 0x4342 : 0x4140), 0xe480e480u);
}

/** The levels, + 128, of four nibbles of a word, the lower or the upper: of both halves of the
 * table, then the right one of the two. */
__device__ __forceinline__ u32 nf4_bytes(u32 word, bool is_upper,
                                         const DecodeConstants& constants) {
  const int shift = is_upper ? 16 : 0;
  const u32 low_three = (word & 0x77777777u) >> shift;
  const u32 high_bits = mask_or(word >> 1, 0x44444444u, 0x32103210u) >> shift;
  const u32 low = select_bytes(constants.levels[0], constants.levels[1], low_three);
  const u32 high = select_bytes(constants.levels[2], constants.levels[3], low_three);
  return select_bytes(low, high, high_bits);
}

/** Four words as slices `slice`, which is even, and slice + 1 are decoded from them: as they lie,
 * nf4 as the bytes of its levels. */
__device__ __forceinline__ void prepare_slices(u32 (&ready)[4], const u32 (&words)[4], int slice,
                                               const DecodeConstants& constants) {
#pragma unroll
  for (int j = 0; j < 4; j++)
    ready[j] = QUANT == kNf4 ? nf4_bytes(words[j], slice / 2, constants) : words[j];
}

/** Slice `slice` of four prepared words: of integers pair j of word j, as f16; e4m3 itself. */
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

/** Scales of a part, two to a word. */
struct alignas(kPartScales > 4 ? 16 : kPartScales > 2 ? 8 : 4) Scales {
  u32 of[kPartScales > 4 ? 4 : kPartScales > 2 ? 2 : 1];
};

/** One of a word's two f16, twice. */
__device__ __forceinline__ u32 twice(u32 word, bool is_upper) {
  return __byte_perm(word, 0, is_upper ? 0x3232 : 0x1010);
}

/** The scale of a slice, twice; of q6, where a slice has two, the lane's. */
__device__ __forceinline__ u32 scale_of(const Scales& scales, int slice) {
  if constexpr (kHasMinimum) return twice(scales.of[slice], false);
  if constexpr (QUANT == kQ6) return twice(scales.of[slice], (threadIdx.x & 2) != 0);
  const int group = slice * kPartScales / kPartSlices;
  return twice(scales.of[group / 2], group % 2 != 0);
}

/** The minimum of a slice, SCALE_FACTOR times too large. */
__device__ __forceinline__ float minimum_of(const Scales& scales, int slice) {
  return unpack(scales.of[slice]).y;
}

/** Slice `slice` of four prepared words of integers, times their scale, SCALE_FACTOR times too
 * large. The words are those of one lane or, `OfAll`, one of each. */
template <bool OfAll>
__device__ __forceinline__ void decode(u32 (&h)[4], const u32 (&ready)[4], const High<OfAll>& high,
                                       const Scales& scales, int slice,
                                       const DecodeConstants& constants) {
  slice_to_f16(h, ready, high, slice, constants);
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
