// Weights of 8 and 4 bits as they lie on the device, and how they become f16 in registers. QUANT
// says which type: 1 i8, 2 q4, 3 nf4 (integers times a scale that some inputs of a row share), 4
// e4m3 (one scale a row); of GGUF's blocks 5 q4 and 6 i8 that have a minimum added, 7 i8 with a scale
// for 16 inputs. Knows no product.
//
// A row is a sequence of parts of 64 bytes: 16 for each of the 4 lanes that share a row of a tensor
// core's operand. A part is of slices of 32 inputs, of which lane l has inputs 8·l … + 7, so that
// the inputs that the lanes of a slice meet lie side by side. Word j of a lane's four has inputs 2j
// and 2j + 1 of each slice s, so that a lane that is given word j of all four lanes (ldmatrix) has
// of each slice what it needs of the left operand of a product (linear-tiles.cu): of i8 bytes 2s
// and 2s + 1, of nf4 the nibbles of byte s, of q4 nibbles s and s + 4. i8 is stored as code + 128,
// q4 as code + 8, nf4 as the index of its level. Scales are f16, in order, 2^8 times too large, so
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
  kI8Minimum = 6,
  kI8Halves = 7
};

#ifndef QUANT
#define QUANT 1
#endif

/** What scales are multiplied with on the device, and what undoes it. */
#define SCALE_FACTOR 256.0f
#define UNSCALE (1.0f / SCALE_FACTOR)

constexpr bool kIsNibbles = QUANT == kQ4 || QUANT == kNf4 || QUANT == kQ4Minimum;
constexpr bool kIsBytes = QUANT == kI8 || QUANT == kI8Minimum || QUANT == kI8Halves;
constexpr bool kHasMinimum = QUANT == kQ4Minimum || QUANT == kI8Minimum;
/** Inputs that share a scale; none do of e4m3. */
constexpr int kGroup = QUANT == kNf4 ? 64 : QUANT == kI8Halves ? 16 : 32;
/** What a group has: a scale, and a minimum. */
constexpr int kGroupScales = kHasMinimum ? 2 : 1;
constexpr int kPartBytes = 64;
/** Slices of a part: a lane has 8 inputs in each. */
constexpr int kPartSlices = kIsNibbles ? 4 : 2;
constexpr int kPartInputs = 32 * kPartSlices;
/** Scales and minimums of a part. */
constexpr int kPartScales = QUANT == kE4m3 ? 0 : kPartInputs / kGroup * kGroupScales;

__device__ __forceinline__ int parts_of(int columns) {
  return (columns + kPartInputs - 1) / kPartInputs;
}

/** The levels of nf4, + 128, as bytes: those of quantised.ts. */
#define NF4_0 0x4e3d2801u
#define NF4_4 0x8074695cu
#define NF4_8 0xab9f948au
#define NF4_12 0xffdcc7b8u

__device__ __forceinline__ u32 add2(u32 a, u32 b) {
  u32 d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ u32 mul2(u32 a, u32 b) {
  u32 d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/** (a & mask) | bits in one instruction. */
__device__ __forceinline__ u32 mask_or(u32 a, u32 mask, u32 bits) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}

/** Nibbles `at` and at + 4 of a word, integers + 8, as a pair of f16: 1024 + n, or 1024 + 16·n. */
__device__ __forceinline__ u32 nibbles_to_f16(u32 word, int at) {
  word >>= at / 2 * 8;
  if (at % 2 == 0) return add2(mask_or(word, 0x000f000fu, 0x64006400u), 0xe408e408u);
  return fma2(mask_or(word, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd480d480u);
}

/** The same as they lie: n. */
__device__ __forceinline__ u32 plain_nibbles_to_f16(u32 word, int at) {
  word >>= at / 2 * 8;
  if (at % 2 == 0) return add2(mask_or(word, 0x000f000fu, 0x64006400u), 0xe400e400u);
  return fma2(mask_or(word, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd400d400u);
}

/** Bytes of a and b that the lower four nibbles of a selector say; their eights are not set. */
__device__ __forceinline__ u32 select_bytes(u32 a, u32 b, u32 selector) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
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
__device__ __forceinline__ void slice_to_f16(u32 (&h)[4], const u32 (&ready)[4], int slice,
                                             const DecodeConstants& constants) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if constexpr (kIsBytes || QUANT == kNf4) h[j] = bytes_to_f16(ready[j], slice % 2, constants);
    if constexpr (QUANT == kQ4) h[j] = nibbles_to_f16(ready[j], slice);
    if constexpr (QUANT == kQ4Minimum) h[j] = plain_nibbles_to_f16(ready[j], slice);
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

/** The scale of a slice, twice; of halves of a slice that of the lane's. */
__device__ __forceinline__ u32 scale_of(const Scales& scales, int slice) {
  if constexpr (kHasMinimum) return twice(scales.of[slice], false);
  if constexpr (QUANT == kI8Halves) return twice(scales.of[slice], (threadIdx.x & 2) != 0);
  const int group = slice * kPartScales / kPartSlices;
  return twice(scales.of[group / 2], group % 2 != 0);
}

/** Slice `slice` of four prepared words of integers, times their scale, SCALE_FACTOR times too
 * large. */
__device__ __forceinline__ void decode(u32 (&h)[4], const u32 (&ready)[4], const Scales& scales,
                                       int slice, const DecodeConstants& constants) {
  slice_to_f16(h, ready, slice, constants);
  const u32 scale = scale_of(scales, slice);
#pragma unroll
  for (int j = 0; j < 4; j++)
    if constexpr (kHasMinimum)
      h[j] = fma2(h[j], scale, twice(scales.of[slice], true));
    else
      h[j] = mul2(h[j], scale);
}
