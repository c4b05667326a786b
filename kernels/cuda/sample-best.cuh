// Draws from a short list of the best tokens, if that is enough: for a top-k with a small k, or a
// concentrated distribution. The best score of each thread alone decides at which score the list
// ends: the number and the weight of those scores are lower bounds for all tokens above it. Sums
// are made in a fixed order.
#pragma once
#include "sample-list.cuh"

/** The weight of the whole row, and of the tokens that are not below a draw's floor. */
struct Totals {
  double all, above_floor;
};

__shared__ Totals totals;

/** What a list must contain to be enough for a draw: all tokens from `floor` on, top-k's `count`
 * tokens, or top-p's share of the weight. If neither top-k nor top-p limits, the draw's share of
 * the weight. */
struct Need {
  float floor, count, top_p, share_drawn;
  bool has_count;

  __device__ double line() const {
    if (top_p < 1) return top_p * totals.all;
    return has_count ? 1e300 : share_drawn * totals.above_floor;
  }
};

/** Bounds tried at once, and the most rounds of trying. kMostThreads: the most threads whose best
 * score may be in the list, which limits the list to about as many tokens. */
constexpr int kProbes = 7, kMostProbing = 4, kMostThreads = 160;

/** The i-th bound, in falling order: in the first round at doubling distances, because the spread
 * of the scores is unknown; then evenly within (low, high). */
__device__ __forceinline__ float probe_at(int i, bool is_first, float high, float low) {
  if (is_first) return i < kProbes - 1 ? high - __uint_as_float((124u + 2 * i) << 23) : kLowest;
  return __fsub_rn(high, __fmul_rn(high - low, 0.125f * (i + 1)));
}

/** Sums the totals, and finds the score at which the list may end: the tokens above it are enough,
 * but not many more. Infinity if there would be too many. */
__device__ __forceinline__ float find_best(int& turn, const Row& row, const Ranking& r,
                                           const Need& need) {
  const int lane = threadIdx.x & 31;
  float sums[2 + 2 * kProbes] = {};
  float own = kNoScore;
  row.for_each([&](int, float score) {
    const float weight = r.weight(score);
    add_from(sums[0], score, kLowest, weight);
    add_from(sums[1], score, need.floor, weight);
    own = fmaxf(own, score);
  });
  const float own_weight = r.weight(own);
  float high = r.best, low = kLowest;
  double above = 0;
#pragma unroll 1
  for (int step = 0; step < kMostProbing; step++) {
#pragma unroll
    for (int i = 0; i < kProbes; i++) {
      const float probe = probe_at(i, step == 0, high, low);
      sums[2 + i] = own >= probe ? 1 : 0;
      sums[2 + kProbes + i] = own >= probe ? own_weight : 0;
    }
    sum_cluster(turn, sums);
    if (step == 0 && threadIdx.x == 0) totals = {exchange.sums[0], exchange.sums[1]};
    __syncthreads();
    const int i = min(lane, kProbes - 1);
    const float probe = probe_at(i, step == 0, high, low);
    const double count = exchange.sums[2 + i], weight = exchange.sums[2 + kProbes + i];
    const bool is_rest_nothing = probe <= need.floor || r.weight(probe) == 0;
    const bool is_enough = is_rest_nothing || count >= need.count || weight >= need.line();
    const u32 enough = __ballot_sync(~0u, is_enough && lane < kProbes);
    const int found = enough != 0 ? __ffs(enough) - 1 : kProbes;
    const double before = __shfl_sync(~0u, count, max(found - 1, 0));
    const double there = __shfl_sync(~0u, count, found);
    const float last = __shfl_sync(~0u, probe, max(found - 1, 0));
    if (found < kProbes) low = __shfl_sync(~0u, probe, found);
    if (found < kProbes && there <= kMostThreads) return low;
    if (found > 0) high = last, above = before;
    if (above > kMostThreads || low == kLowest) break;
  }
  return infinity();
}

/** Returns whether the best tokens could be listed, the same in every block. If so, the first block
 * gets the drawn token. */
__device__ __forceinline__ bool draw_best(int& turn, const Row& row, const Ranking& r,
                                          const Need& need, int& token) {
  const float low = find_best(turn, row, r, need);
  if (low == infinity()) return false;
  list_ranges(row, {fmaxf(low, need.floor), infinity()}, nothing());
  if (take_is_over()) return false;
  if (block_rank() > 0) return true;
  const bool cuts = need.top_p < 1 || need.has_count;
  const int length = (int)fminf(need.count, (float)lists.num_ranked[0]);
  double kept = totals.above_floor;
  if (cuts) kept = cross_list<kOwnOfAll>(0, length, r, 0, line_at(need.line())).sum;
  const double at = need.share_drawn * kept;
  token = id_of(cross_list<kOwnOfAll>(0, length, r, 0, {at, at, true}).token);
  return true;
}
