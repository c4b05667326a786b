// Which sequences a cluster of wkv7-chunk.cu takes: heads of long rows, one after the other.
#pragma once
#include "wkv7-chunk.cuh"

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
  const int heads;
  int index;
  Sequence now;

  __device__ __forceinline__ Sequences(const Step& step, const Wkv7& op)
      : step(step), heads(op.channels / 64), index(blockIdx.x / CLUSTER), now{} {}

  /** Goes to the next, if there is one. */
  __device__ __forceinline__ bool next() {
    const int row = step.first_long() + index / heads;
    if (row >= step.num_rows()) return false;
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
