// The ranked list of a row's tokens, which is never made: a token's rank is its key, the score's
// bits in order. Knows only what a stretch of the list is, and where a sum over it ends.
#pragma once
#include "sample-shared.cuh"

/** Scores of one row as a distribution: weight e^((score − best) / temperature). */
struct Ranking {
  const float* scores;
  int vocab;
  float best;
  /** log2(e) / temperature */
  float scale;

  __device__ float weight(float score) const { return exp2f((score - best) * scale); }
};

/** Order of scores as order of integers; −0 is 0. */
__device__ __forceinline__ u32 key_of(float score) {
  const u32 bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float score_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/** Keys in (low.key, high.key]; the sums of each are of everything above it. */
struct Bracket {
  Mark high, low;

  __device__ bool holds(u32 key) const { return key <= high.key && key > low.key; }
};

/** Where a sum from the top reaches its line: a mass (`passes`: must exceed it, else reach it) or a
 * number of tokens. */
struct Line {
  double mass;
  int count;
  bool passes;

  __device__ bool crossed(double sum, int number) const {
    return (passes ? sum > mass : sum >= mass) || number >= count;
  }
};
