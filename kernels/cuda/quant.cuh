// Weights of 8 and 4 bits as they lie on the device, and how they become f16 in registers. QUANT
// says which type: 1 i8, 2 q4, 3 nf4 (integers times a scale that some inputs of a row share), 4
// e4m3 (one scale a row). Knows no product.
//
// A row is a sequence of parts of 64 bytes: 16 for each of the 4 lanes that share a row of a tensor
// core's operand. A lane's slice j of a part are the inputs 32·j + 8·lane … + 7, so that the inputs
// that the lanes of a slice meet lie side by side. i8 is stored as code + 128, nf4 as two indices a
// byte in order, q4 (code + 8) such that inputs 2j and 2j + 1 of 8 are nibbles j and j + 4 of their
// word. Scales are f16, in order, 2^8 times too large, so that those of small weights keep their
// digits. Rows end with whole parts.
#pragma once
#include "common.cuh"

enum Quant { kI8 = 1, kQ4 = 2, kNf4 = 3, kE4m3 = 4 };

#ifndef QUANT
#define QUANT 1
#endif

/** What scales are multiplied with on the device, and what undoes it. */
#define SCALE_FACTOR 256.0f
#define UNSCALE (1.0f / SCALE_FACTOR)

constexpr bool kIsNibbles = QUANT == kQ4 || QUANT == kNf4;
/** Inputs that share a scale; none do of e4m3. */
constexpr int kGroup = QUANT == kNf4 ? 64 : 32;
constexpr int kPartBytes = 64;
/** Slices of a part: a lane has 8 inputs in each. */
constexpr int kPartSlices = kIsNibbles ? 4 : 2;
constexpr int kPartInputs = 32 * kPartSlices;
/** Scales of a part. */
constexpr int kPartScales = QUANT == kE4m3 ? 0 : kPartInputs / kGroup;

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

/** Four integers + 128 to pairs of f16: the low byte of 1024 + n is n. */
__device__ __forceinline__ void bytes_to_f16(u32 bytes, u32& lo, u32& hi) {
  lo = add2(__byte_perm(bytes, 0x64646464u, 0x4140), 0xe480e480u);
  hi = add2(__byte_perm(bytes, 0x64646464u, 0x4342), 0xe480e480u);
}

/** The levels of four nibbles: of both halves of the table, then the right one of the two. */
__device__ __forceinline__ u32 nf4_bytes(u32 low_three, u32 high_bits) {
  const u32 low = __byte_perm(NF4_0, NF4_4, low_three);
  const u32 high = __byte_perm(NF4_8, NF4_12, low_three);
  return __byte_perm(low, high, high_bits);
}

/** Eight neighbouring integers (of e4m3: weights) as pairs of f16. i8 takes two words, others one.
 */
__device__ __forceinline__ void eight_to_f16(u32 first, u32 second, u32 (&h)[4]) {
  if constexpr (QUANT == kI8) {
    bytes_to_f16(first, h[0], h[1]);
    bytes_to_f16(second, h[2], h[3]);
  } else if constexpr (QUANT == kQ4) {
    const u32 upper = first >> 8;
    h[0] = add2(mask_or(first, 0x000f000fu, 0x64006400u), 0xe408e408u);
    h[1] = fma2(mask_or(first, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd480d480u);
    h[2] = add2(mask_or(upper, 0x000f000fu, 0x64006400u), 0xe408e408u);
    h[3] = fma2(mask_or(upper, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd480d480u);
  } else if constexpr (QUANT == kNf4) {
    const u32 low_three = first & 0x77777777u;
    const u32 high_bits = mask_or(first >> 1, 0x44444444u, 0x32103210u);
    bytes_to_f16(nf4_bytes(low_three, high_bits), h[0], h[1]);
    bytes_to_f16(nf4_bytes(low_three >> 16, high_bits >> 16), h[2], h[3]);
  } else {
#if __CUDA_ARCH__ >= 890
    const u32 words[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; i++)
      asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.rn.f16x2.e4m3x2 %0, lo; "
          "cvt.rn.f16x2.e4m3x2 %1, hi; }"
          : "=r"(h[2 * i]), "=r"(h[2 * i + 1])
          : "r"(words[i]));
#endif
  }
}
