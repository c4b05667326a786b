// Brings the states of some slots up to date with their logs (wkv7-log.cuh): every head of every
// layer, one to a block. It never lets the next kernel start: that one may read states before it
// waits. Bytes: the states of heads with a log, in and out.
#include "wkv7-log.cuh"

/** Slots of a launch at most (state-log.ts). */
constexpr int kSlots = 64;

/** A slot to each y of the grid. */
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
