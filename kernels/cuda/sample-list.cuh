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

/** Scores in [low, high). */
struct Range {
  float low, high;

  __device__ bool is_empty() const { return low == infinity(); }
};

__device__ __forceinline__ Range nothing() { return {infinity(), infinity()}; }

/** Lists the tokens of two ranges in the first block, and ranks them there, best first. */
__device__ __forceinline__ void list_ranges(const Row& row, const Range& first,
                                            const Range& second) {
  const int room = second.is_empty() ? kRoom : kList;
  for (int l = 0; l < kLines; l++) {
    const Range& range = l == 0 ? first : second;
    if (range.is_empty()) continue;
    row.for_each_in(range.low, range.high, [&](int id, float score) {
      const int at = count_in_first(lists.length[l]);
      if (at < room) {
        store_in(0, lists.tokens[l * kList + at], token_of(score, id));
      } else {
        for (int rank = 0; rank < CLUSTER; rank++) store_in(rank, lists.is_over, 1);
      }
    });
  }
  cluster_sync();
  if (block_rank() > 0) return;
  for (int i = threadIdx.x; i < kRoom; i += kThreads) {
    const int l = i / room, at = i % room, length = min(lists.length[l], room);
    if (at >= length) continue;
    const u64* const tokens = lists.tokens + l * kList;
    const u64 token = tokens[at];
    int rank = 0;
#pragma unroll 8
    for (int j = 0; j < length; j++) rank += tokens[j] > token;
    lists.ranked[l * kList + rank] = token;
  }
  if (threadIdx.x < kLines) lists.num_ranked[threadIdx.x] = min(lists.length[threadIdx.x], room);
  __syncthreads();
  clear_lists();
}

/** A listed token, its rank (from 1), and the sum up to and including it. */
struct Crossing {
  u64 token;
  int number;
  double sum;
};

/** Finds where the running sum over the first `length` tokens of list l, which starts at `sum`,
 * crosses the line; the last of these tokens if it does not. In the first block; every warp
 * computes it alone, with kOwn tokens per lane. */
template <int kOwn = kList / 32>
__device__ __forceinline__ Crossing cross_list(int l, int length, const Ranking& r, double sum,
                                               const Line& line) {
  const int lane = threadIdx.x & 31;
  const u64* const ranked = lists.ranked + l * kList;
  double sums[kOwn];
  double own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; i++) {
    const int at = kOwn * lane + i;
    if (at < length) own += r.weight(score_of((u32)(ranked[at] >> 32)));
    sums[i] = own;
  }
  double before = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double more = __shfl_up_sync(~0u, before, offset);
    if (lane >= offset) before += more;
  }
  before = __shfl_up_sync(~0u, before, 1);
  before = lane > 0 ? sum + before : sum;
  int found = length - 1;
#pragma unroll
  for (int i = kOwn - 1; i >= 0; i--)
    if (kOwn * lane + i < length && line.is_crossed(before + sums[i])) found = kOwn * lane + i;
      // Lanes before the crossing have found length − 1.
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    found = min(found, __shfl_xor_sync(~0u, found, offset));
  found = max(found, 0);
  double there = before;
#pragma unroll
  for (int i = 0; i < kOwn; i++)
    if (found % kOwn == i) there = before + sums[i];
  return {ranked[found], found + 1, __shfl_sync(~0u, there, found / kOwn)};
}
