// Products of f32 matrices on the tensor cores, accurate to about 2e-6 of their size: a number is a
// pair of bf16, its rounding and what that leaves (16 bits together, the whole range of f32, so
// that nothing has to be scaled), and a product is three of the tensor cores', the fourth being too
// small to matter. Operands lie in shared memory as the lanes want them, 16 bytes a lane: two words
// of roundings, then two of rests, which are registers side by side as the right operand needs
// them. Tiles are those of mma.m16n8k16; lane = 4·g + q. Needs capability 8.0.
#pragma once
#include "common.cuh"

/** Two neighbours as a word of roundings and one of rests. */
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

/** A [16, 16] of a product in registers: words of (row g, k 2q), (g + 8, 2q), (g, 2q + 8), (g + 8,
 * 2q + 8). */
struct Left {
  u32 rounded[4], rest[4];
};

/** From sums of a product, whose columns become k. */
__device__ __forceinline__ Left left_of(const float (&first)[4], const float (&second)[4]) {
  const uint2 a = split(first[0], first[1]), b = split(first[2], first[3]),
              c = split(second[0], second[1]), d = split(second[2], second[3]);
  return {{a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}};
}

/** d [16, 8] += A·B; of d a lane has (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1), of B (k
 * 2q, column g), (2q + 8, g). */
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/** Sums of a [16, 16], each kind of product apart, so that six chains share the tensor cores. */
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

/** sums += A·[b0 b1], 16 of k */
__device__ __forceinline__ void multiply(Sums& sums, const Left& a, uint4 b0, uint4 b1) {
  mma(sums.large[0], a.rounded, b0.x, b0.y);
  mma(sums.large[1], a.rounded, b1.x, b1.y);
  mma(sums.left_rest[0], a.rest, b0.x, b0.y);
  mma(sums.left_rest[1], a.rest, b1.x, b1.y);
  mma(sums.right_rest[0], a.rounded, b0.z, b0.w);
  mma(sums.right_rest[1], a.rounded, b1.z, b1.w);
}

/** Columns tiles of d += A·B, 16 of k. */
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

/** The transpose of an 8 × 8 whose row g, columns 2q and 2q + 1 are a lane's word. */
__device__ __forceinline__ u32 transposed(u32 word) {
  u32 other = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(word));
#endif
  return other;
}

// A matrix [16 tokens, 64 channels] lies in one of four orders, 4 KB each, in units of 32 lanes ×
// 16 bytes; lanes are permuted within a unit so that neither side meets a bank twice. A right
// operand's unit has 8 of what its columns are and 16 (or all tokens) of k; a left operand has two
// units for its 16 rows and 16 of k, one of roundings and one of rests.
constexpr int kUnit = 32;
constexpr int kMatrix = 8 * kUnit;

__device__ __forceinline__ int among_channels(int lane, int channels16) {
  return lane ^ (channels16 & 1) << 2;
}

__device__ __forceinline__ int among_tokens(int lane, int unit) {
  return lane ^ (lane >> 3 | (unit & 1) << 2);
}

// Every second pair of right operands' units has its rests first, for the same reason.
__device__ __forceinline__ uint4 roundings_first(uint4 b, bool rests_first) {
  return rests_first ? make_uint4(b.z, b.w, b.x, b.y) : b;
}

/** Right, k the channels. */
__device__ __forceinline__ uint4 load_right(const uint4* m, int tokens8, int channels16, int lane) {
  return roundings_first(m[(tokens8 * 4 + channels16) * kUnit + among_channels(lane, channels16)],
                         channels16 & 2);
}

/** Right, k the tokens. */
__device__ __forceinline__ uint4 load_right_of_tokens(const uint4* m, int channels8, int lane) {
  return roundings_first(m[channels8 * kUnit + among_tokens(lane, channels8)], channels8 & 2);
}

/** Left, rows the tokens. */
__device__ __forceinline__ const uint4* left(const uint4* m, int channels16, int lane) {
  return m + channels16 * 2 * kUnit + among_channels(lane, channels16);
}

/** Left, rows the channels. */
__device__ __forceinline__ const uint4* left_of_tokens(const uint4* m, int channels16, int lane) {
  return m + channels16 * 2 * kUnit + among_tokens(lane, channels16);
}

__device__ __forceinline__ Left load_left(const uint4* at) {
  const uint4 a = at[0], b = at[kUnit];
  return {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
}

// Where a pair of neighbours lies in such a matrix, in words; its rests are at word ^ kRightRest or
// word + kLeftRest. With an even token (or channel, where k is the tokens) the next one's pair lies
// at word ^ kNext.
constexpr int kNext = 16;
constexpr int kRightRest = 2;
constexpr int kLeftRest = 4 * kUnit;

/** Of a token the channels 2·pair and 2·pair + 1 in a right operand. */
__device__ __forceinline__ int right_word(int token, int pair) {
  const int lane = among_channels((token & 7) * 4 + (pair & 3), pair >> 3);
  return (((token >> 3) * 4 + (pair >> 3)) * kUnit + lane) * 4 + (pair >> 2 & 1) +
         (pair >> 4) * kRightRest;
}

/** The same in a left operand. */
__device__ __forceinline__ int left_word(int token, int pair) {
  const int lane = among_channels((token & 7) * 4 + (pair & 3), pair >> 3);
  return ((pair >> 3) * 2 * kUnit + lane) * 4 + (token >> 3) + (pair >> 2 & 1) * 2;
}

/** Of a channel the tokens 2·pair and 2·pair + 1 in a right operand. */
__device__ __forceinline__ int right_word_of_tokens(int channel, int pair) {
  const int lane = among_tokens((channel & 7) * 4 + (pair & 3), channel >> 3);
  return ((channel >> 3) * kUnit + lane) * 4 + (pair >> 2) + (channel >> 4 & 1) * kRightRest;
}

/** The same in a left operand. */
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
