// The scores of one sample: read once, then held in the registers of a cluster, SCORES per thread,
// and walked over as often as needed. SCORES is 0 if they do not fit; then every walk reads them
// from memory. Does not know distributions.
#pragma once
#include "sample-cluster.cuh"

/** kNoScore stands for scores beyond the end of a slice. kLowest lies between it and every real
 * score. */
constexpr float kNoScore = -3.4e38f, kLowest = -3e38f;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

/** An integer that has the same order as the score; −0 becomes 0. */
__device__ __forceinline__ u32 order_of(float score) {
  const u32 bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float score_of(u32 order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

/** A score and its id as one integer, in the order of the ranking. */
__device__ __forceinline__ u64 token_of(float score, int id) {
  return (u64)order_of(score) << 32 | (u32)~id;
}

__device__ __forceinline__ int id_of(u64 token) { return ~(int)(u32)token; }

/** The best token of a row in which a score is not finite. */
constexpr u64 kNotFinite = ~0ull;

/** Scores in [low, high). */
struct Range {
  float low, high;

  __device__ bool is_empty() const { return low == infinity(); }
  __device__ bool has(float score) const { return score >= low && score < high; }
};

/** A block's slice of a row. */
struct Row {
  const float* scores;
  /** The id of the slice's first token. */
  int first;
  int length;
  /** If set, a token with the score `tie` has its negated id as its score, others have none. */
  bool is_by_id;
  float tie;
#if SCORES > 0
  float held[SCORES];
#endif

  __device__ int id(int i) const { return first + 4 * (i / 4 * kThreads + threadIdx.x) + i % 4; }

#if SCORES == 0
  /** Loads four neighbours, kNoScore beyond the end. Any alignment. */
  __device__ float4 four(int at) const {
    const float* const from = scores + first + at;
    if (at + 4 <= length && (reinterpret_cast<u64>(from) & 15) == 0)
      return *reinterpret_cast<const float4*>(from);
    return make_float4(at < length ? from[0] : kNoScore, at + 1 < length ? from[1] : kNoScore,
                       at + 2 < length ? from[2] : kNoScore, at + 3 < length ? from[3] : kNoScore);
  }
#endif

  /** Loads the scores of the row that starts at `from`. */
  __device__ __forceinline__ void load(const float* from) {
    scores = from, is_by_id = false;
#if SCORES > 0
    const float* const own = from + first;
    if (length < 4 || length % 4 != 0 || (reinterpret_cast<u64>(own) & 15) != 0) {
#pragma unroll
      for (int i = 0; i < SCORES; i++) {
        const int one = id(i);
        held[i] = one < first + length ? from[one] : kNoScore;
      }
      return;
    }
    // All loads at once: none may wait behind a branch.
#pragma unroll
    for (int i = 0; i < SCORES; i += 4) {
      const int at = min(id(i) - first, length - 4);
      const float4 x = *reinterpret_cast<const float4*>(own + at);
      held[i] = x.x, held[i + 1] = x.y, held[i + 2] = x.z, held[i + 3] = x.w;
    }
#pragma unroll
    for (int i = 0; i < SCORES; i++)
      if (id(i) - first >= length) held[i] = kNoScore;
#endif
  }

  /** Calls `visit(id, score)` for every Step-th of the thread's scores, by rising id. */
  template <int Step = 1, class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
#if SCORES > 0
#pragma unroll
    for (int i = 0; i < SCORES; i += Step) visit(id(i), held[i]);
#else
    constexpr int kGroups = Step > 4 ? Step / 4 : 1;
    for (int at = 4 * threadIdx.x; at < length; at += 4 * kThreads * kGroups) {
      const float4 x = four(at);
      const float batch[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; i += Step) {
        const int id = first + at + i;
        visit(id, ranked_score(id, batch[i]));
      }
    }
#endif
  }

  /** From here on, ranks the tokens with the score `tie_score` by id, the smallest first, and no
   * others. */
  __device__ void rank_by_id(float tie_score) {
    is_by_id = true, tie = tie_score;
#if SCORES > 0
#pragma unroll
    for (int i = 0; i < SCORES; i++) held[i] = ranked_score(id(i), held[i]);
#endif
  }

  __device__ float ranked_score(int id, float score) const {
    return is_by_id ? (score == tie ? (float)-id : kNoScore) : score;
  }

  /** Calls `visit(l, id, score)` for the thread's scores in the first range (l = 0) or in the
   * second, which must be few. */
  template <class Visit>
  __device__ __forceinline__ void for_each_in(const Range& first, const Range& second,
                                              Visit visit) const {
#if SCORES > 0
    u32 in_first = 0, in_second = 0;
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
      if (first.has(held[i])) in_first |= 1u << i;
      if (second.has(held[i])) in_second |= 1u << i;
    }
    // Registers cannot be indexed, so these few scores are read again.
    for (u32 found = in_first | in_second; found != 0; found &= found - 1) {
      const int i = __ffs(found) - 1, one = id(i);
      const float score = ranked_score(one, scores[one]);
      if (in_first >> i & 1) visit(0, one, score);
      if (in_second >> i & 1) visit(1, one, score);
    }
#else
    for_each([&](int id, float score) {
      if (first.has(score)) visit(0, id, score);
      if (second.has(score)) visit(1, id, score);
    });
#endif
  }

  /** The best token of the row; its id is valid only with `has_id`. kNotFinite if `checks` and a
   * score is not finite. */
  __device__ u64 best(int& turn, bool has_id, bool checks) const {
    float best = -infinity(), zeros = 0;
    // Stays 0 while scores are finite, else becomes NaN.
    for_each([&](int, float score) {
      best = fmaxf(best, score);
      zeros += score * 0.0f;
    });
    int best_id = 0;
    if (has_id) {
      best_id = 0x7fffffff;
      for_each([&](int id, float score) {
        if (score == best && id < best_id) best_id = id;
      });
    }
    const bool is_finite = !checks || zeros == 0.0f;
    return max_cluster(turn, is_finite ? token_of(best, best_id) : kNotFinite);
  }
};

__device__ __forceinline__ Row own_slice(int vocab) {
  const int size = (vocab + 4 * CLUSTER - 1) / (4 * CLUSTER) * 4;
  Row row;
  row.first = min(vocab, block_rank() * size);
  row.length = min(vocab - row.first, size);
  return row;
}
