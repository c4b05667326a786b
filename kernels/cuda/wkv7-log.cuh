// The log of a slot has, for every head, the last tokens that are not in its state yet. A kernel
// that reads the state applies them first, in order, with the arithmetic and rounding they would
// have had one by one. So results do not depend on when a state is written.
#pragma once
#include "common.cuh"
#include "wkv-decode.cuh"
#include "wkv7.cuh"

/** The most tokens of a log; 0: no logs (state-log.ts). */
constexpr int kLogged = LOGGED;
constexpr bool kHasLog = kLogged > 0;

/** The logs of all heads of all slots, from slot 0's first head on, with `slot_heads` per slot. */
struct StateLog {
  /** Low byte: tokens in a head's log. Next byte: the head's turn among kLogged + 1 steps. Zero
   * until something is logged. */
  int* counts;
  Change* changes;  // [kLogged] per head
  int slot_heads;
};

/** The log of one head of a slot. */
struct HeadLog {
  int* at;
  Change* changes;
  int word;

  __device__ int count() const { return word & 0xff; }
  __device__ int turn() const { return word >> 8; }
};

__device__ __forceinline__ HeadLog open_log(const StateLog& log, int slot, int head) {
  const long long at = (long long)slot * log.slot_heads + head;
  return {log.counts + at, log.changes + at * kLogged, __ldcg(log.counts + at)};
}

/** Starts copies of a head's log, by the whole block; await_copies waits for them. */
__device__ __forceinline__ void fetch(Change* to, const HeadLog& log) {
  const int count = log.count() * (int)(sizeof(Change) / 16);
  for (int i = threadIdx.x; i < count; i += kHeadThreads)
    copy_16(reinterpret_cast<float4*>(to) + i, reinterpret_cast<const float4*>(log.changes) + i);
}

/** S·kk of the lane's rows, stored where other lanes read it. */
__device__ __forceinline__ void share_removed(float (&sums)[64], const HeldRows& held,
                                              const Change& change) {
  float part[kRows];
  const Eight kk = eight(change.kk, lane_of_row());
#pragma unroll
  for (int i = 0; i < kRows; i++) part[i] = dot(open_row(held, i), kk);
  share_sums(sums, held, part);
  // A warp reads only its own rows.
  __syncwarp();
}

/** Computes what a token makes of one half of each of the lane's rows; calls `use` with four
 * channels of row i. */
template <class Use>
__device__ __forceinline__ void change_half(const HeldRows& held, const Change& change,
                                            const float (&sums)[64], int half, u32 zero, Use use) {
  const int q = lane_of_row(), at = 32 * half + 4 * q;
  float w[4], b[4], k[4];
  load4(w, change.w + at), load4(b, change.b + at), load4(k, change.k + at);
#pragma unroll
  for (int first = 0; first < kRows; first += 4) {
    float removed[4], v[4];
    load4(removed, sums + held.first_row + first), load4(v, change.v + held.first_row + first);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int i = first + j, row = held.first_row + i;
      float s[4];
      open_half(s, held, half, i, zero);
#pragma unroll
      for (int c = 0; c < 4; c++) s[c] = changed(s[c], w[c], removed[j], b[c], v[j], k[c]);
      use(i, s, row_noise(v[j], k[0], row * 16 + 2 * q + half));
    }
  }
}

/** Applies a token of the log to the state in registers. `sums` is scratch of the head. */
__device__ __forceinline__ void bring_in(HeldRows& held, const Change& change, float (&sums)[64],
                                         u32 zero) {
  share_removed(sums, held, change);
#pragma unroll
  for (int half = 0; half < 2; half++)
    change_half(held, change, sums, half, zero, [&](int i, const float(&s)[4], u32 noise) {
      close(held.part[half][i], s, noise);
    });
  __syncwarp();
}
