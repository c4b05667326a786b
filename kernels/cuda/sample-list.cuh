// A stretch of the ranked list that fits in shared memory: gathered, sorted, and summed in order.
#pragma once
#include "sample-ranking.cuh"

/** Sorts list[0 … length) of shared memory, best first. */
__device__ void sort_list(Shared& sh) {
  int size = 32;
  while (size < sh.length) size *= 2;
  for (int i = sh.length + threadIdx.x; i < size; i += kThreads) sh.list[i] = ~0ull;
  __syncthreads();
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += kThreads) {
        const int lo = 2 * i - (i & (step - 1)), hi = lo + step;
        const u64 a = sh.list[lo], b = sh.list[hi];
        if ((a > b) == ((lo & width) == 0)) sh.list[lo] = b, sh.list[hi] = a;
      }
      // Up to here a warp's 64 are its own; what comes after the last of a width crosses them.
      if (step > 32 || (step == 1 && width > 32))
        __syncthreads();
      else
        __syncwarp();
    }
  }
  __syncthreads();
}

/** Lists ties beyond the list, every block for itself: a window of them in the order of their ids,
 * the first `skip` left out. */
__device__ void gather_ties(Shared& sh, const Ranking& r, const Bracket& b, int skip) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int seen = 0;
  for (int start = 0; start < r.vocab; start += kThreads) {
    const int i = start + threadIdx.x;
    const u32 key = i < r.vocab ? key_of(r.scores[i]) : 0;
    const bool inside = i < r.vocab && b.holds(key);
    const u32 mask = __ballot_sync(~0u, inside);
    if (lane == 0) sh.counts[warp][0] = __popc(mask);
    __syncthreads();
    int before = seen;
    for (int w = 0; w < kWarps; w++) {
      if (w < warp) before += sh.counts[w][0];
      seen += sh.counts[w][0];
    }
    __syncthreads();
    const int at = before + __popc(mask & ((1u << lane) - 1)) - skip;
    if (inside && at >= 0 && at < kList) sh.list[at] = (u64)~key << 32 | (u32)i;
  }
  if (threadIdx.x == 0) sh.length = max(0, min(kList, seen - skip));
}

/** Makes one list of what the blocks of the cluster listed. */
__device__ void join_slices(Shared& sh) {
  cluster_sync();
  int at = 0;
  for (int rank = 0; rank < CLUSTER; rank++) {
    const int length = remote(sh.own.length, rank);
    for (int i = threadIdx.x; i < length; i += kThreads)
      sh.list[at + i] = remote(sh.slice[i], rank);
    at += length;
  }
  if (threadIdx.x == 0) sh.length = at;
  cluster_sync();
}

/** Lists the bracket's tokens, best first; of a single score with too many tokens, those of the
 * smallest ids. */
__device__ void gather(Shared& sh, const Ranking& r, const Bracket& b, int skip) {
  if (threadIdx.x == 0) sh.own.length = 0;
  __syncthreads();
  if (b.low.count - b.high.count > kList) {
    gather_ties(sh, r, b, skip);
    __syncthreads();
  } else {
    for_each_score(r.scores, r.vocab, [&](int i, float score) {
      const u32 key = key_of(score);
      if (b.holds(key)) sh.slice[atomicAdd(&sh.own.length, 1)] = (u64)~key << 32 | (u32)i;
    });
    join_slices(sh);
  }
  sort_list(sh);
}

__device__ __forceinline__ float listed_weight(const Shared& sh, const Ranking& r, int i) {
  return i < sh.length ? r.weight(score_of(~(u32)(sh.list[i] >> 32))) : 0.0f;
}

/** The first listed token at which the sum crosses the line (−1: none), and that sum. The list
 * starts after `base`. */
__device__ int find_crossing(Shared& sh, const Ranking& r, Mark base, const Line& line,
                             double* sum_there) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int i = 2 * threadIdx.x;
  const double w0 = listed_weight(sh, r, i), w1 = listed_weight(sh, r, i + 1);
  double sum = w0 + w1;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double before = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += before;
  }
  if (lane == 31) sh.prefix[warp] = sum;
  if (threadIdx.x == 0) sh.found = 0x7fffffff;
  __syncthreads();
  for (int w = 0; w < warp; w++) sum += sh.prefix[w];
  const double sum1 = base.mass + sum, sum0 = sum1 - w1;
  const bool hit0 = i < sh.length && line.crossed(sum0, base.count + i + 1);
  const bool hit1 = i + 1 < sh.length && line.crossed(sum1, base.count + i + 2);
  if (hit0 || hit1) atomicMin(&sh.found, hit0 ? i : i + 1);
  __syncthreads();
  const int found = sh.found;
  if (found == i) sh.total = sum0;
  if (found == i + 1) sh.total = sum1;
  // No crossing: the sum of all.
  if (found == 0x7fffffff && threadIdx.x == kThreads - 1) sh.total = sum1;
  __syncthreads();
  *sum_there = sh.total;
  __syncthreads();
  return found == 0x7fffffff ? -1 : found;
}

/** Ties of one score that overflow the list: how many of them precede the window that holds the
 * crossing. */
__device__ int ties_before(const Ranking& r, const Bracket& b, const Line& line) {
  const int ties = b.low.count - b.high.count;
  if (ties <= kList) return 0;
  const double weight = (b.low.mass - b.high.mass) / ties;
  double needed = weight > 0 ? (line.mass - b.high.mass) / weight : ties;
  needed = fmin(needed, (double)(line.count - b.high.count));
  return max(0, min(ties - kList, (int)fmax(needed, 0.0) - kList / 2));
}

/** The crossing's index in the list, which it fills. */
__device__ int locate(Shared& sh, const Ranking& r, const Bracket& b, const Line& line,
                      double* sum_there) {
  const int skip = ties_before(r, b, line);
  gather(sh, r, b, skip);
  Mark base = b.high;
  if (skip > 0) {
    base.mass += skip * ((b.low.mass - b.high.mass) / (b.low.count - b.high.count));
    base.count += skip;
  }
  return find_crossing(sh, r, base, line, sum_there);
}
