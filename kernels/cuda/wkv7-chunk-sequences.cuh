// Which sequences a cluster of wkv7-chunk.cu takes: heads of long rows, one after another.
#pragma once
#include "wkv7-chunk.cuh"

/** Broadcasts lane 0's value, so that the compiler knows it is the same in all lanes: it can use
 * uniform registers, and branches do not diverge. */
__device__ __forceinline__ int same(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/** One head of one row. */
struct Sequence {
  int start, end, slot, head;

  __device__ __forceinline__ int num_chunks() const {
    return (end - start + kTokens - 1) / kTokens;
  }
};

/** The sequences of a cluster: every gridDim-th of all, ordered by row, then head. A cluster of
 * several blocks has only one, because then there are as many clusters as sequences. */
struct Sequences {
  const Step& step;
  const int heads;
  int index;
  Sequence now;

  __device__ __forceinline__ Sequences(const Step& step, const Wkv7& op)
      : step(step), heads(op.channels / 64), index(blockIdx.x / CLUSTER), now{} {}

  /** Moves to the next sequence; returns false if there is none. */
  __device__ __forceinline__ bool next() {
    const int row = step.first_long() + index / heads;
    if (row >= step.num_rows()) return false;
    now = {same(step.starts[row]), same(step.starts[row + 1]), same(step.slots[row]),
           same(index % heads)};
    index += (int)gridDim.x;
    return true;
  }
};

/** Calls `take` with each sequence of the cluster and the number of chunks so far; `take` returns
 * the new number. */
template <class Take>
__device__ __forceinline__ void for_each(Sequences& sequences, const Take& take) {
  if constexpr (CLUSTER > 1) {
    if (sequences.next()) take(sequences.now, 0);
  } else {
    for (int chunks = 0; sequences.next();) chunks = take(sequences.now, chunks);
  }
}
