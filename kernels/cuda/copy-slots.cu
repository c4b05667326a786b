// Copies one array of the states of some slots to other slots, all in one launch: a step with guesses
// keeps the state of every row that has some. It never lets the next kernel start early, because that
// one may read states before it waits. Bound by memory.
#include "common.cuh"

/** The most copies per launch (states.ts). */
constexpr int kCopies = 32;
constexpr int kCopyThreads = 256;

/** blockIdx.y is the index of the copy. No slot is written and read in one launch. */
struct Copies {
  int from[kCopies], to[kCopies];
};

/** `slots`: slot 0's; `vectors`: of a slot. */
extern "C" __global__ void __launch_bounds__(kCopyThreads)
    copy_slots(uint4* slots, long long vectors, const __grid_constant__ Copies copies) {
  wait_for_previous();
  const uint4* const from = slots + copies.from[blockIdx.y] * vectors;
  uint4* const to = slots + copies.to[blockIdx.y] * vectors;
  const long long stride = (long long)gridDim.x * kCopyThreads;
  for (long long i = (long long)blockIdx.x * kCopyThreads + threadIdx.x; i < vectors; i += 4 * stride) {
    uint4 held[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (i + j * stride < vectors) held[j] = from[i + j * stride];
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (i + j * stride < vectors) to[i + j * stride] = held[j];
  }
}
