// Reads GGUF's blocks as a file has them: codes, scales and minimums. BLOCK is the type: 1 Q4_0, 2
// Q4_1, 3 Q5_0, 4 Q5_1, 5 Q8_0, 6 Q4_K, 7 Q5_K, 8 Q6_K. kernels/cpu/packed.cpp explains the
// formats.
#pragma once
#include "common.cuh"

#ifndef BLOCK
#define BLOCK 1
#endif

enum Block { kQ4_0 = 1, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

constexpr int kBlockInputs = BLOCK >= kQ4_K ? 256 : 32;
constexpr int kBlockBytes = BLOCK == kQ4_0   ? 18
                            : BLOCK == kQ4_1 ? 20
                            : BLOCK == kQ5_0 ? 22
                            : BLOCK == kQ5_1 ? 24
                            : BLOCK == kQ8_0 ? 34
                            : BLOCK == kQ4_K ? 144
                            : BLOCK == kQ5_K ? 176
                                             : 210;

constexpr int kScaleInputs = BLOCK == kQ6_K ? 16 : 32;
constexpr int kBlockZero = BLOCK == kQ4_0 ? 8 : BLOCK == kQ5_0 ? 16 : BLOCK == kQ6_K ? 32 : 0;
constexpr bool kBlockHasMinimum =
    BLOCK == kQ4_1 || BLOCK == kQ5_1 || BLOCK == kQ4_K || BLOCK == kQ5_K;

__device__ __forceinline__ float half_at(const u8* p) {
  const u16 bits = p[0] | p[1] << 8;
  return to_float(*reinterpret_cast<const f16*>(&bits));
}

/** Code `i` of sixteen bytes: first all low halves, then all high halves. */
__device__ __forceinline__ int nibble(const u8* low, int i) {
  return i < 16 ? low[i] & 15 : low[i - 16] >> 4;
}

__device__ __forceinline__ int fifth_bit(const u8* bits, int i) {
  return (bits[i / 8] >> i % 8 & 1) << 4;
}

/** The code of input i of group `g` of 32. Q8_0: a signed integer. Others: the bits, where
 * `kBlockZero` stands for 0. */
__device__ __forceinline__ int block_code(const u8* block, int g, int i) {
  if constexpr (BLOCK == kQ4_0) return nibble(block + 2, i);
  if constexpr (BLOCK == kQ4_1) return nibble(block + 4, i);
  if constexpr (BLOCK == kQ5_0) return nibble(block + 6, i) | fifth_bit(block + 2, i);
  if constexpr (BLOCK == kQ5_1) return nibble(block + 8, i) | fifth_bit(block + 4, i);
  if constexpr (BLOCK == kQ8_0) return static_cast<signed char>(block[2 + i]);
  if constexpr (BLOCK == kQ4_K) return block[16 + g / 2 * 32 + i] >> g % 2 * 4 & 15;
  if constexpr (BLOCK == kQ5_K)
    return (block[48 + g / 2 * 32 + i] >> g % 2 * 4 & 15) | (block[16 + i] >> g & 1) << 4;
  if constexpr (BLOCK == kQ6_K) {
    const int half = g / 4, quarter = g % 4;
    const int low = block[64 * half + 32 * (quarter % 2) + i] >> quarter / 2 * 4 & 15;
    return low | (block[128 + 32 * half + i] >> 2 * quarter & 3) << 4;
  }
}

/** The 6-bit scale of group g of Q4_K and Q5_K, or its minimum, from the twelve bytes that pack
 * them. */
__device__ __forceinline__ int six_bits(const u8* bytes, int g, bool is_minimum) {
  if (g < 4) return bytes[g + (is_minimum ? 4 : 0)] & 63;
  const int low = is_minimum ? bytes[g + 4] >> 4 : bytes[g + 4] & 15;
  return low | bytes[is_minimum ? g : g - 4] >> 6 << 4;
}

/** The scale of group `g`; a group has kScaleInputs inputs. */
__device__ __forceinline__ float block_scale(const u8* block, int g) {
  if constexpr (BLOCK == kQ6_K)
    return half_at(block + 208) * static_cast<signed char>(block[192 + g]);
  if constexpr (BLOCK == kQ4_K || BLOCK == kQ5_K)
    return half_at(block) * six_bits(block + 4, g, false);
  return half_at(block);
}

__device__ __forceinline__ float block_minimum(const u8* block, int g) {
  if constexpr (BLOCK == kQ4_K || BLOCK == kQ5_K)
    return -half_at(block + 2) * six_bits(block + 4, g, true);
  return half_at(block + 2);
}

__device__ __forceinline__ const u8* block_of(const u8* row, int input) {
  return row + input / kBlockInputs * kBlockBytes;
}
