// Computes W and X of wkv7-chunk.cu: (I − AB)⁻¹·ã and (I − AB)⁻¹·AK, in f32.
#pragma once
#include "wkv7-chunk.cuh"

/** x ← (I − AB)⁻¹·x, one column per lane. */
__device__ __forceinline__ void substitute(float (&x)[kTokens], const float (&ab)[kTokens][20]) {
#pragma unroll
  for (int m = 0; m + 1 < kTokens; m++) {
    float column[kTokens];
#pragma unroll
    for (int i = (m + 1) / 4 * 4; i < kTokens; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(ab[m] + i);
      column[i] = four.x, column[i + 1] = four.y, column[i + 2] = four.z, column[i + 3] = four.w;
    }
#pragma unroll
    for (int i = m + 1; i < kTokens; i++) x[i] += column[i] * x[m];
  }
}

/** Stores the columns of two adjacent lanes: the first lane stores the words of even tokens, the
 * second those of odd tokens. The words of the next token are kNext further; those of the ninth
 * are at `ninth`. */
__device__ __forceinline__ void put_columns(const float (&x)[kTokens], u32* to, u32* rests,
                                            int ninth) {
  const bool odd = threadIdx.x & 1;
#pragma unroll
  for (int t = 0; t < kTokens; t += 2) {
    const float mine = odd ? x[t + 1] : x[t];
    const float other = __shfl_xor_sync(0xffffffffu, odd ? x[t] : x[t + 1], 1);
    const uint2 word = split(odd ? other : mine, odd ? mine : other);
    const int at = (t & 7) * kNext + (t >> 3) * ninth;
    to[at] = word.x, rests[at] = word.y;
  }
}

/** W by the first two warps of a group, X by half of the third. */
__device__ __forceinline__ void solve(Chunk& chunk, const Desk& desk, int part) {
  const int lane = threadIdx.x & 31, odd = lane & 1;
  // The distance in words from a token to the eighth after it, in a right operand.
  constexpr int kEight = 4 * 4 * kUnit, kEightOfX = 4 * kUnit;
  float x[kTokens];
  if (part < 2) {
    const int word = right_word(0, 16 * part + (lane >> 1));
    const u32* const a = reinterpret_cast<const u32*>(desk.a);
    const int rest = part == 0 ? kRightRest : -kRightRest;
    // Selects the lane's half of a word, as f32.
    const u32 half = odd ? 0x3244 : 0x1044;
#pragma unroll
    for (int t = 0; t < kTokens; t++) {
      const u32* const at = a + (word ^ (t & 1) * kNext) + (t & 6) * kNext + (t >> 3) * kEight;
      x[t] = __uint_as_float(__byte_perm(at[0], 0, half)) +
             __uint_as_float(__byte_perm(at[rest], 0, half));
    }
    substitute(x, desk.ab);
    u32* const w = reinterpret_cast<u32*>(chunk.w);
    put_columns(x, w + (word ^ odd * kNext), w + (word ^ odd * kNext ^ kRightRest), kEight);
  } else if (part == 2) {
    // The other half of the warp computes and stores the same.
    const int column = lane & 15, pair = column >> 1;
#pragma unroll
    for (int t = 0; t < kTokens; t++) x[t] = desk.ak[column][t];
    substitute(x, desk.ab);
    u32* const to = reinterpret_cast<u32*>(chunk.x) + odd * kNext + (pair & 3) * 4 + (pair >> 2);
    put_columns(x, to, to + kRightRest, kEightOfX);
  }
}
