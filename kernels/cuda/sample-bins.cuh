// One pass over a row that sums it in bins of scores, and the stretch of the ranked list that a bin
// is.
#pragma once
#include "sample-ranking.cuh"

/** Which bin a score lies in: rises as scores fall. */
__device__ __forceinline__ int bin_of(const Ranking& r, float score) {
  constexpr float kFinePerHalving = kFine / kFineDepth;
  constexpr float kCoarsePerHalving = (kBins - kFine) / (kFloor * 1.44269504f - kFineDepth);
  // Rounded as written, so that every call gives a score the same bin.
  const float halvings = __fmul_rn(r.best - score, r.scale);
  if (halvings < kFineDepth) return min(kFine - 1, (int)(halvings * kFinePerHalving));
  const float beyond = (halvings - kFineDepth) * kCoarsePerHalving;
  return kFine + (int)fminf(beyond, kBins - kFine - 1);
}

/** Units of a weight. */
constexpr double kUnit = 1.0 / (1ull << 40);

/**
 * One pass over the row: mass and number of each bin and those above it, of keys above `lowest`;
 * sh.total is the mass of everything. Whole numbers, so the order of the additions does not matter.
 */
__device__ void sum_bins(Shared& sh, const Ranking& r, u32 lowest) {
  for (int i = threadIdx.x; i <= kBins; i += kThreads)
    sh.bins.low[i] = 0, sh.bins.high[i] = 0, sh.bins.count[i] = 0;
  __syncthreads();
  for_each_score(r.scores, r.vocab, [&](int, float score) {
    const int bin = key_of(score) > lowest ? bin_of(r, score) : kBins;
    // Exact but for the last bits of weights below 2^−16.
    const float weight = 256.0f * r.weight(score);
    const u32 whole = (u32)weight, part = __float2uint_rn((weight - whole) * 4294967296.0f);
    const u32 before = atomicAdd(&sh.bins.low[bin], part);
    const u32 carry = before + part < before;
    if (whole + carry > 0) atomicAdd(&sh.bins.high[bin], whole + carry);
    atomicAdd(&sh.bins.count[bin], 1);
  });
  cluster_sync();
  const int bin = threadIdx.x, warp = bin >> 5, lane = bin & 31;
  u64 units = 0;
  int count = 0;
  if (bin <= kBins) {
#pragma unroll
    for (int rank = 0; rank < CLUSTER; rank++) {
      units += (u64)remote(sh.bins.high[bin], rank) << 32;
      units += remote(sh.bins.low[bin], rank);
      count += remote(sh.bins.count[bin], rank);
    }
  }
  const u64 own = units;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const u64 more = __shfl_up_sync(~0u, units, offset);
    const int others = __shfl_up_sync(~0u, count, offset);
    if (lane >= offset) units += more, count += others;
  }
  if (lane == 31 && warp < kBins / 32) sh.warp_units[warp] = units, sh.counts[warp][0] = count;
  __syncthreads();
  if (bin < kBins) {
    for (int w = 0; w < warp; w++) units += sh.warp_units[w], count += sh.counts[w][0];
    sh.mass_to[bin] = units * kUnit, sh.count_to[bin] = count;
  }
  if (bin == kBins) {
    u64 all = own;
    for (int w = 0; w < kBins / 32; w++) all += sh.warp_units[w];
    sh.total = all * kUnit;
  }
  cluster_sync();
}

/** Everything above `lowest`, once sum_bins has been over it. */
__device__ Bracket whole(const Shared& sh, u32 best_key, u32 lowest) {
  return {{best_key, 0, 0}, {lowest, sh.count_to[kBins - 1], sh.mass_to[kBins - 1]}};
}

/** The smallest key of the bins up to `bin`, between those of the lowest score (not in it) and the
 * best (in it); each warp for itself. */
__device__ u32 edge_of(const Ranking& r, int bin, u32 lowest, u32 best_key) {
  u32 below = lowest, inside = best_key;
  while (inside - below > 1) {
    const u32 step = (inside - below + 31) / 32, lane = threadIdx.x & 31;
    const u32 probe = inside - below <= step * (lane + 1) ? inside : below + step * (lane + 1);
    const int first = __ffs(__ballot_sync(~0u, bin_of(r, score_of(probe)) <= bin)) - 1;
    if (first > 0) below = __shfl_sync(~0u, probe, first - 1);
    inside = __shfl_sync(~0u, probe, first);
  }
  return inside;
}

/** The bin in which a sum from the top crosses the line; nothing, at the end, where none does. */
__device__ Bracket find_bin(Shared& sh, const Ranking& r, const Bracket& all, const Line& line) {
  if (threadIdx.x == 0) sh.found = kBins;
  __syncthreads();
  const int i = threadIdx.x;
  if (i < kBins && line.crossed(sh.mass_to[i], sh.count_to[i]) &&
      (i == 0 || !line.crossed(sh.mass_to[i - 1], sh.count_to[i - 1])))
    sh.found = i;
  __syncthreads();
  const int bin = sh.found;
  __syncthreads();
  if (bin == kBins) return {all.low, all.low};
  const u32 low = edge_of(r, bin, all.low.key, all.high.key) - 1;
  Bracket b = {all.high, {low, sh.count_to[bin], sh.mass_to[bin]}};
  if (bin > 0)
    b.high = {edge_of(r, bin - 1, all.low.key, all.high.key) - 1, sh.count_to[bin - 1],
              sh.mass_to[bin - 1]};
  return b;
}

/** One key below the smallest that can be kept. */
__device__ u32 lowest_key(const Ranking& r, float min_p) {
  const float depth = min_p > 0 ? fminf(-logf(min_p), kFloor) : kFloor;
  return key_of(r.best - depth * 1.44269504f / r.scale) - 1;
}
