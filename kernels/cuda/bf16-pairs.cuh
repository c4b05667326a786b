// Products of f32 matrices on the tensor cores, accurate to about 2e-6 of their size. Every number
// is split into two bf16: its rounding, and the rest that the rounding leaves. Together they have
// 16 bits and the whole range of f32, so nothing has to be scaled. A product is three products of
// the tensor cores; the fourth, rest times rest, is too small to matter. In shared memory operands
// have the order in which lanes load them, 16 bytes per lane: two words of roundings, then two
// words of rests. That puts each pair of words in adjacent registers, as the right operand of an
// mma needs them. Tiles are those of mma.m16n8k16; lane = 4·g + q. Needs capability 8.0.
#pragma once
#include "common.cuh"

/** Packs two neighbours into one word of bf16. */
__device__ __forceinline__ u32 pack_bf16(float lo, float hi) {
  u32 pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(lo), "f"(hi));
#endif
  return pair;
}

__device__ __forceinline__ uint2 split(float x, float y) {
  const u32 rounded = pack_bf16(x, y);
  return make_uint2(rounded, pack_bf16(x - __uint_as_float(rounded << 16),
                                       y - __uint_as_float(rounded & 0xffff0000u)));
}

/** A [16, 16] of a product, in registers: words (row g, k 2q), (g + 8, 2q), (g, 2q + 8) and (g + 8,
 * 2q + 8). */
struct Left {
  u32 rounded[4], rest[4];
};

/** Makes a left operand from the accumulators of a product, whose columns become k. */
__device__ __forceinline__ Left left_of(const float (&first)[4], const float (&second)[4]) {
  const uint2 a = split(first[0], first[1]), b = split(first[2], first[3]),
              c = split(second[0], second[1]), d = split(second[2], second[3]);
  return {{a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}};
}

/** d [16, 8] += A·B. A lane has (g, 2q), (g, 2q + 1), (g + 8, 2q) and (g + 8, 2q + 1) of d, and (k
 * 2q, column g) and (2q + 8, g) of B. */
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/** Accumulators of a [16, 16], separate for each kind of product, so that six chains keep the
 * tensor cores busy. */
struct Sums {
  float large[2][4], left_rest[2][4], right_rest[2][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) large[n][e] = left_rest[n][e] = right_rest[n][e] = 0;
  }

  __device__ __forceinline__ float of(int n, int e) const {
    return large[n][e] + (left_rest[n][e] + right_rest[n][e]);
  }
};

/** sums += A·[b0 b1] over 16 of k. */
__device__ __forceinline__ void multiply(Sums& sums, const Left& a, uint4 b0, uint4 b1) {
  mma(sums.large[0], a.rounded, b0.x, b0.y);
  mma(sums.large[1], a.rounded, b1.x, b1.y);
  mma(sums.left_rest[0], a.rest, b0.x, b0.y);
  mma(sums.left_rest[1], a.rest, b1.x, b1.y);
  mma(sums.right_rest[0], a.rounded, b0.z, b0.w);
  mma(sums.right_rest[1], a.rounded, b1.z, b1.w);
}

/** d += A·B for `Tiles` tiles of columns, over 16 of k. */
template <int Tiles>
__device__ __forceinline__ void multiply_add(float (*d)[4], const Left& a,
                                             const uint4 (&b)[Tiles]) {
#pragma unroll
  for (int j = 0; j < Tiles; j++) mma(d[j], a.rounded, b[j].x, b[j].y);
#pragma unroll
  for (int j = 0; j < Tiles; j++) mma(d[j], a.rest, b[j].x, b[j].y);
#pragma unroll
  for (int j = 0; j < Tiles; j++) mma(d[j], a.rounded, b[j].z, b[j].w);
}

/** Transposes an 8 × 8 matrix; a lane's word has row g, columns 2q and 2q + 1. */
__device__ __forceinline__ u32 transposed(u32 word) {
  u32 other = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(word));
#endif
  return other;
}

// A matrix [16 tokens, 64 channels] has one of four layouts of 4 KB each, in units of 32 lanes × 16
// bytes. Lanes are permuted within a unit, so that neither writers nor readers have bank conflicts.
// A unit of a right operand has 8 of its columns and 16 of k (if k is the tokens, all of k). A left
// operand has two units for its 16 rows and 16 of k: one of roundings, one of rests.
constexpr int kUnit = 32;
constexpr int kMatrix = 8 * kUnit;

__device__ __forceinline__ int among_channels(int lane, int channels16) {
  return lane ^ (channels16 & 1) << 2;
}

__device__ __forceinline__ int among_tokens(int lane, int unit) {
  return lane ^ (lane >> 3 | (unit & 1) << 2);
}

// Every second pair of units of a right operand stores its rests first, also to avoid bank
// conflicts.
__device__ __forceinline__ uint4 roundings_first(uint4 b, bool rests_first) {
  return rests_first ? make_uint4(b.z, b.w, b.x, b.y) : b;
}

/** A right operand whose k is the channels. */
__device__ __forceinline__ uint4 load_right(const uint4* m, int tokens8, int channels16, int lane) {
  return roundings_first(m[(tokens8 * 4 + channels16) * kUnit + among_channels(lane, channels16)],
                         channels16 & 2);
}

/** A right operand whose k is the tokens. */
__device__ __forceinline__ uint4 load_right_of_tokens(const uint4* m, int channels8, int lane) {
  return roundings_first(m[channels8 * kUnit + among_tokens(lane, channels8)], channels8 & 2);
}

/** A left operand whose rows are the tokens. */
__device__ __forceinline__ const uint4* left(const uint4* m, int channels16, int lane) {
  return m + channels16 * 2 * kUnit + among_channels(lane, channels16);
}

/** A left operand whose rows are the channels. */
__device__ __forceinline__ const uint4* left_of_tokens(const uint4* m, int channels16, int lane) {
  return m + channels16 * 2 * kUnit + among_tokens(lane, channels16);
}

__device__ __forceinline__ Left load_left(const uint4* at) {
  const uint4 a = at[0], b = at[kUnit];
  return {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
}

// The functions below give the index of the word that holds a pair of neighbours. The rests of a
// word are at word ^ kRightRest or word + kLeftRest. For an even token (or an even channel, if k is
// the tokens) the pair of the next one is at word ^ kNext.
constexpr int kNext = 16;
constexpr int kRightRest = 2;
constexpr int kLeftRest = 4 * kUnit;

/** The word of channels 2·pair and 2·pair + 1 of a token, in a right operand. */
__device__ __forceinline__ int right_word(int token, int pair) {
  const int lane = among_channels((token & 7) * 4 + (pair & 3), pair >> 3);
  return (((token >> 3) * 4 + (pair >> 3)) * kUnit + lane) * 4 + (pair >> 2 & 1) +
         (pair >> 4) * kRightRest;
}

/** Like right_word, in a left operand. */
__device__ __forceinline__ int left_word(int token, int pair) {
  const int lane = among_channels((token & 7) * 4 + (pair & 3), pair >> 3);
  return ((pair >> 3) * 2 * kUnit + lane) * 4 + (token >> 3) + (pair >> 2 & 1) * 2;
}

/** The word of tokens 2·pair and 2·pair + 1 of a channel, in a right operand. */
__device__ __forceinline__ int right_word_of_tokens(int channel, int pair) {
  const int lane = among_tokens((channel & 7) * 4 + (pair & 3), channel >> 3);
  return ((channel >> 3) * kUnit + lane) * 4 + (pair >> 2) + (channel >> 4 & 1) * kRightRest;
}

/** Like right_word_of_tokens, in a left operand. */
__device__ __forceinline__ int left_word_of_tokens(int channel, int pair) {
  const int lane = among_tokens((channel & 7) * 4 + (pair & 3), channel >> 4);
  return ((channel >> 4) * 2 * kUnit + lane) * 4 + (channel >> 3 & 1) + (pair >> 2) * 2;
}

__device__ __forceinline__ void put_right(uint4* m, int word, uint2 value) {
  u32* const words = reinterpret_cast<u32*>(m);
  words[word] = value.x, words[word ^ kRightRest] = value.y;
}

__device__ __forceinline__ void put_left(uint4* m, int word, uint2 value) {
  u32* const at = reinterpret_cast<u32*>(m) + word;
  at[0] = value.x, at[kLeftRest] = value.y;
}
