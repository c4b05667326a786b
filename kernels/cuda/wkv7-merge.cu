// Applies the logs (wkv7-log.cuh) of some slots to their states: every head of every layer, one per
// block. It never lets the next kernel start early, because that one may read states before it
// waits. Memory traffic: the states of heads with a log, read and written.
#include "wkv7-log.cuh"

/** The most slots per launch (state-log.ts). */
constexpr int kSlots = 64;

/** blockIdx.y is the index of the slot. */
struct Slots {
  int of[kSlots];
};

extern "C" __global__ void __launch_bounds__(kHeadThreads)
    wkv7_merge(const __grid_constant__ StateLog state_log, state_t* states,
               const __grid_constant__ Slots slots) {
  __shared__ __align__(16) Change lacking[kLogged];
  __shared__ float sums[64];
  wait_for_previous();
  const int slot = slots.of[blockIdx.y], head = blockIdx.x;
  const HeadLog log = open_log(state_log, slot, head);
  if (log.count() == 0) return;
  fetch(lacking, log);
  HeldRows held;
  held.first_row = (threadIdx.x >> 3) * kRows;
  held.at = states + ((long long)slot * state_log.slot_heads + head) * kHeadNumbers +
            held.first_row * 64 + 4 * lane_of_row();
  load_rows(held);
  await_copies();
  __syncthreads();
  for (int i = 0; i < log.count(); i++) bring_in(held, lacking[i], sums, 0);
#pragma unroll
  for (int i = 0; i < kRows; i++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<HeldHalf*>(held.at + 64 * i + 32 * half) = held.part[half][i];
  if (threadIdx.x == 0) *log.at = 0;
}
