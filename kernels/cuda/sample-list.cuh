// Short lists of a row's tokens, ranked by score in the first block of the cluster: the best
// tokens, or those that a search has left.
#pragma once
#include "sample-search.cuh"

/** If there is only one list, it may use the room of both: kRoom tokens, kOwnOfAll per lane. */
constexpr int kRoom = kLines * kList, kOwnOfAll = kRoom / 32;

/** Up to kList tokens each. */
struct Lists {
  int length[kLines], num_ranked[kLines];
  /** Set in every block once a list overflowed. */
  u64 is_over;
  u64 tokens[kRoom];
  u64 ranked[kRoom];
};

__shared__ Lists lists;

__device__ __forceinline__ void clear_lists() {
  if (threadIdx.x < kLines) lists.length[threadIdx.x] = 0;
}

/** Call it before anything is listed, with a barrier of the cluster in between. */
__device__ __forceinline__ void prepare_lists() {
  clear_lists();
  if (threadIdx.x == 0) lists.is_over = 0;
}

/** Whether a list overflowed, the same in every block. Then it is arbitrary which tokens were
 * listed. Clears the flag; nothing may be listed until the next exchange of the cluster. */
__device__ __forceinline__ bool take_is_over() {
  if (!lists.is_over) return false;
  __syncthreads();
  if (threadIdx.x == 0) lists.is_over = 0;
  return true;
}

__device__ __forceinline__ Range nothing() { return {infinity(), infinity()}; }

/** Lists the tokens of two ranges in the first block, and ranks them there, best first. */
__device__ __forceinline__ void list_ranges(const Row& row, const Range& first,
                                            const Range& second) {
  const int room = second.is_empty() ? kRoom : kList;
  row.for_each_in(first, second, [&](int l, int id, float score) {
    const int at = count_in_first(lists.length[l]);
    if (at < room) {
      store_in(0, lists.tokens[l * kList + at], token_of(score, id));
    } else {
      for (int rank = 0; rank < CLUSTER; rank++) store_in(rank, lists.is_over, 1);
    }
  });
  cluster_sync();
  if (block_rank() > 0) return;
  const int num_first = min(lists.length[0], room), num_second = min(lists.length[1], kList);
  // The place of token i: of one list, or of two with half the room each.
  const auto is_second = [&](int i) { return i >= room; };
  for (int i = threadIdx.x; i < kRoom; i += kThreads)
    if (is_second(i) ? i - room >= num_second : i >= num_first) lists.tokens[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < kRoom; i += kThreads) {
    const int l = is_second(i), at = i - l * room, length = l ? num_second : num_first;
    if (at >= length) continue;
    const u64* const tokens = lists.tokens + l * kList;
    const u64 token = tokens[at];
    int rank = 0;
#pragma unroll 1
    for (int j = 0; j < length; j += 8)
#pragma unroll
      for (int k = 0; k < 8; k++) rank += tokens[j + k] > token;
    lists.ranked[l * kList + rank] = token;
  }
  if (threadIdx.x < kLines) lists.num_ranked[threadIdx.x] = threadIdx.x == 0 ? num_first : num_second;
  __syncthreads();
  clear_lists();
}

/** A listed token, its rank (from 1), and the sum up to and including it. */
struct Crossing {
  u64 token;
  int number;
  double sum;
};

/** The running sum over the first tokens of a list, of which a lane has kOwn. In the first block;
 * every warp computes it alone. */
template <int kOwn>
struct RunningOver {
  const u64* ranked;
  int length;
  double sums[kOwn], before;

  /** Finds where the running sum, which starts at `sum`, crosses the line; the last of the tokens
   * if it does not. */
  __device__ __forceinline__ Crossing cross(double sum, const Line& line) const {
    const int lane = threadIdx.x & 31;
    const double start = lane > 0 ? sum + before : sum;
    int own = kOwn;
    double there = start + sums[kOwn - 1];
#pragma unroll
    for (int i = kOwn - 1; i >= 0; i--)
      if (kOwn * lane + i < length && line.is_crossed(start + sums[i]))
        own = i, there = start + sums[i];
    const u32 crossed = __ballot_sync(~0u, own < kOwn);
    const int last = max(length - 1, 0);
    const int owner = crossed != 0 ? __ffs(crossed) - 1 : last / kOwn;
    own = __shfl_sync(~0u, own, owner);
    const int found = crossed != 0 ? kOwn * owner + own : last;
    return {ranked[found], found + 1, __shfl_sync(~0u, there, owner)};
  }
};

using Running = RunningOver<kList / 32>;

/** Sums over the first `length` tokens of list l. */
template <int kOwn = kList / 32>
__device__ __forceinline__ RunningOver<kOwn> run_over(int l, int length, const Ranking& r) {
  const int lane = threadIdx.x & 31;
  RunningOver<kOwn> to = {lists.ranked + l * kList, length};
  double own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const int at = kOwn * lane + i;
    if (at < length) own += r.weight(score_of((u32)(to.ranked[at] >> 32)));
    to.sums[i] = own;
  }
  double before = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double more = __shfl_up_sync(~0u, before, offset);
    if (lane >= offset) before += more;
  }
  to.before = __shfl_up_sync(~0u, before, 1);
  return to;
}

template <int kOwn = kList / 32>
__device__ __forceinline__ Crossing cross_list(int l, int length, const Ranking& r, double sum,
                                               const Line& line) {
  return run_over<kOwn>(l, length, r).cross(sum, line);
}
