// Narrows a stretch of the ranked list by passes over the row that sum it above a few pivots each.
#pragma once
#include "sample-ranking.cuh"

/** One pass: for each pivot (falling keys) the sum and count of pivot < key ≤ high. The marks are
 * these added to `base`, what lies above `high`. */
__device__ void sum_above(Shared& sh, const Ranking& r, const u32 (&pivots)[kPivots + 1], u32 high,
                          Mark base) {
  float mass[kPivots + 1] = {};
  int count[kPivots + 1] = {};
  for_each_score(r.scores, r.vocab, [&](int, float score) {
    const u32 key = key_of(score);
    if (key > high || key <= pivots[kPivots]) return;
    const float weight = r.weight(score);
#pragma unroll
    for (int p = 0; p <= kPivots; p++)
      if (key > pivots[p]) mass[p] += weight, count[p]++;
  });
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  __syncthreads();
#pragma unroll
  for (int p = 0; p <= kPivots; p++) {
    const float sum = warp_sum(mass[p]);
    const int number = warp_sum(count[p]);
    if (lane == 0) sh.sums[warp][p] = sum, sh.counts[warp][p] = number;
  }
  __syncthreads();
  // A warp to each pivot, a lane to each warp before.
  const int p = warp;
  if (p <= kPivots) {
    const double sum = warp_sum(sh.sums[lane][p]);
    const int number = warp_sum(sh.counts[lane][p]);
    if (lane == 0) sh.own.mass[p] = sum, sh.own.count[p] = number;
  }
  cluster_sync();
  if (p <= kPivots) {
    const bool is_rank = lane < CLUSTER;
    const int rank = is_rank ? lane : 0;
    const double theirs = remote(sh.own.mass[p], rank);
    const int number = remote(sh.own.count[p], rank);
    const double sum = warp_sum(is_rank ? theirs : 0.0);
    const int all = warp_sum(is_rank ? number : 0);
    u32 key = pivots[0];
#pragma unroll
    for (int i = 1; i <= kPivots; i++)
      if (p == i) key = pivots[i];
    if (lane == 0) sh.marks[p] = {key, base.count + all, base.mass + sum};
  }
  cluster_sync();
}

/** Narrows the bracket by the marks of the last pass. */
__device__ Bracket narrow_by_marks(const Shared& sh, Bracket b, const Line& line) {
  for (int p = 0; p <= kPivots; p++) {
    const Mark& mark = sh.marks[p];
    if (mark.key >= b.high.key || mark.key < b.low.key) continue;
    if (line.crossed(mark.mass, mark.count)) {
      b.low = mark;
      break;
    }
    b.high = mark;
  }
  return b;
}

/** Pivots between the ends of a bracket, even in score while that separates keys, else even in key.
 */
__device__ void choose_pivots(const Bracket& b, u32 (&pivots)[kPivots + 1]) {
  const u32 high = b.high.key, low = b.low.key, range = high - low;
  const float top = score_of(high), bottom = score_of(low);
#pragma unroll
  for (int p = 0; p < kPivots; p++) {
    const float share = (p + 1.0f) / (kPivots + 1);
    const u32 by_key = high - max(1u, (u32)(range * (double)share));
    const u32 by_score = key_of(top + (bottom - top) * share);
    const bool splits = range > 4096 && by_score < high && by_score > low;
    pivots[p] = max(splits ? by_score : by_key, low);
  }
  pivots[kPivots] = low;
}

/** Narrows until the bracket's tokens fit in the list or have one score. */
__device__ Bracket narrow(Shared& sh, const Ranking& r, Bracket b, const Line& line) {
  while (b.low.count - b.high.count > kList && b.high.key - b.low.key > 1) {
    u32 pivots[kPivots + 1];
    choose_pivots(b, pivots);
    sum_above(sh, r, pivots, b.high.key, b.high);
    b = narrow_by_marks(sh, b, line);
    __syncthreads();
  }
  return b;
}
