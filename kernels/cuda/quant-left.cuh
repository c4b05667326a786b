// Weights of integers (quant.cuh) as the left operand of the tensor cores, in their own order of
// inputs: of 16 a lane has the pairs q and q + 4. The lanes of a row hold 8 neighbours each, four
// pairs; lane q gets pair q of each lane, while they are integers still.
#pragma once
#include "quant.cuh"

/** What the lane `other` away has; the lanes of a row are four neighbours. */
__device__ __forceinline__ u32 from_lane(u32 x, int other) {
  return __shfl_xor_sync(0xffffffffu, x, other);
}

/** Pairs of 16 bits, two words a lane. */
__device__ __forceinline__ void exchange_bytes(u32& first, u32& second) {
  const bool is_upper = threadIdx.x & 2, is_odd = threadIdx.x & 1;
  const u32 halves = from_lane(is_upper ? first : second, 2);
  if (is_upper)
    first = halves;
  else
    second = halves;
  const u32 kept = __byte_perm(first, second, is_odd ? 0x7632 : 0x5410);
  const u32 come = from_lane(__byte_perm(first, second, is_odd ? 0x5410 : 0x7632), 1);
  first = __byte_perm(kept, come, is_odd ? 0x1054 : 0x5410);
  second = __byte_perm(kept, come, is_odd ? 0x3276 : 0x7632);
}

/** Pairs of 8 bits: indices of nf4 as they lie. */
__device__ __forceinline__ void exchange_indices(u32& word) {
  word = __byte_perm(word, from_lane(word, 2), threadIdx.x & 2 ? 0x3276 : 0x5410);
  word = __byte_perm(word, from_lane(word, 1), threadIdx.x & 1 ? 0x3715 : 0x6240);
}

/** Pairs of nibbles j and j + 4, of q4. */
__device__ __forceinline__ void exchange_nibbles(u32& word) {
  const bool is_odd = threadIdx.x & 1;
  word = __byte_perm(word, from_lane(word, 2), threadIdx.x & 2 ? 0x3715 : 0x6240);
  const u32 come = from_lane(word, 1);
  const u32 kept = is_odd ? 0xf0f0f0f0u : 0x0f0f0f0fu;
  word = word & kept | (is_odd ? come >> 4 : come << 4) & ~kept;
}

/** Slice `slice` of a lane's 16 bytes of a row: the four pairs that it has of 32 inputs, times
 * their scale. */
__device__ __forceinline__ void decode_left(u32 (&h)[4], const uint4& v, const Scales& scales,
                                            int slice) {
  const u32 words[4] = {v.x, v.y, v.z, v.w};
  uint4 exchanged = v;
  if constexpr (kIsNibbles) {
    u32 word = words[slice];
    if constexpr (QUANT == kQ4)
      exchange_nibbles(word);
    else
      exchange_indices(word);
    exchanged = make_uint4(word, word, word, word);
  } else {
    u32 first = words[2 * slice], second = words[2 * slice + 1];
    exchange_bytes(first, second);
    exchanged = make_uint4(first, second, first, second);
  }
  decode(h, exchanged, scales, slice);
}
