// The best few tokens of a row, where a draw needs no others: top-k of a small k, or a distribution
// that is concentrated. Each thread's best score alone says from where on the list has to go: what
// those number and weigh is no more than what all do. Sums are made in a fixed order.
#pragma once
#include "sample-list.cuh"

/** Sums over the whole row, and over what is not below a draw's floor. */
struct Totals {
  double all, above_floor;
};

__shared__ Totals totals;

/** What is enough to draw from: all from `floor` on, top-k's `count` of tokens, or what weighs
 * top-p's share of the row; where neither limits, the draw's. */
struct Need {
  float floor, count, top_p, share_drawn;
  bool has_count;

  __device__ double line() const {
    if (top_p < 1) return top_p * totals.all;
    return has_count ? 1e300 : share_drawn * totals.above_floor;
  }
};

/** Bounds tried at once, and how often; threads whose best may be listed, so that about as many
 * tokens are. */
constexpr int kProbes = 7, kMostProbing = 4, kMostThreads = 160;

/** The bounds, falling: far apart at first, whatever the spread of the scores; then evenly within
 * (low, high). */
__device__ __forceinline__ float probe_at(int i, bool is_first, float high, float low) {
  if (is_first) return i < kProbes - 1 ? high - __uint_as_float((124u + 2 * i) << 23) : kLowest;
  return __fsub_rn(high, __fmul_rn(high - low, 0.125f * (i + 1)));
}

/** Sums the totals, and finds a score from which on is enough, but not much more; infinite where
 * that would be too many. */
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

/** Whether the best can be listed, the same in every block; then the token that is drawn from the
 * list, in the first block. */
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
