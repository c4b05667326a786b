// Which sequences a cluster of wkv7-chunk.cu takes: heads of long rows, one after the other.
#pragma once
#include "wkv7-chunk.cuh"

/** The row that is number `index` among those of `from` tokens or more, or −1. */
__device__ __forceinline__ int long_row(const Step& step, int index, int from) {
  const int lane = threadIdx.x & 31, rows = step.num_rows();
  for (int first = 0; first < rows; first += 32) {
    const int row = first + lane;
    const bool is_long = row < rows && step.starts[row + 1] - step.starts[row] >= from;
    const u32 mask = __ballot_sync(0xffffffffu, is_long);
    const int number = index - __popc(mask & (1u << lane) - 1);
    const u32 found = __ballot_sync(0xffffffffu, is_long && number == 0);
    if (found != 0) return first + __ffs(found) - 1;
    index -= __popc(mask);
  }
  return -1;
}

/** What is the same in all lanes, such that the compiler knows: it goes to registers of a warp, and
 * no lanes go apart. */
__device__ __forceinline__ int same(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/** One head of one row. */
struct Sequence {
  int start, end, slot, head;

  __device__ __forceinline__ int num_chunks() const {
    return (end - start + kTokens - 1) / kTokens;
  }
};

/** The cluster's: every so many-th of all, the heads of a row being neighbours; one alone where a
 * cluster has several blocks, for then there are as many clusters as sequences. */
struct Sequences {
  const Step& step;
  const int heads, from;
  int index;
  Sequence now;

  __device__ __forceinline__ Sequences(const Step& step, const Wkv7& op, int from)
      : step(step), heads(op.channels / 64), from(from), index(blockIdx.x / CLUSTER), now{} {}

  /** Goes to the next, if there is one. */
  __device__ __forceinline__ bool next() {
    const int row = long_row(step, index / heads, from);
    if (row < 0) return false;
    now = {same(step.starts[row]), same(step.starts[row + 1]), same(step.slots[row]),
           same(index % heads)};
    index += (int)gridDim.x;
    return true;
  }
};

/** Hands the cluster's sequences to `take`, with how many chunks there have been, which it adds to.
 */
template <class Take>
__device__ __forceinline__ void for_each(Sequences& sequences, const Take& take) {
  if constexpr (CLUSTER > 1) {
    if (sequences.next()) take(sequences.now, 0);
  } else {
    for (int chunks = 0; sequences.next();) chunks = take(sequences.now, chunks);
  }
}
