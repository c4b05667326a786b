// One head of a row: how a block holds its state, for wkv6_decode, wkv7_decode and wkv7_rows. Each
// group of 8 lanes owns four neighbouring rows. Loads are asked for first, and what is held stays
// as it lies in memory until it is used, so that many heads share a multiprocessor and their states
// fill the memory's queue. Knows no recurrence.
#pragma once
#include "wkv-state.cuh"

constexpr int kHeadWarps = 4;
constexpr int kHeadThreads = 32 * kHeadWarps;
/** Rows of a state that 8 lanes own. */
constexpr int kRows = 16 / kHeadWarps;
/** Of a head's state. */
constexpr int kHeadNumbers = 64 * 64;

/** Four channels as they lie in memory. */
#if STATE_F16
using HeldHalf = uint2;
#else
using HeldHalf = float4;
#endif

__device__ __forceinline__ void open(float (&s)[4], const float4& held, u32) {
  s[0] = held.x, s[1] = held.y, s[2] = held.z, s[3] = held.w;
}

__device__ __forceinline__ void open(float (&s)[4], const uint2& held, u32 zero) {
  const float2 lo = unpack(held.x ^ zero), hi = unpack(held.y ^ zero);
  s[0] = lo.x, s[1] = lo.y, s[2] = hi.x, s[3] = hi.y;
}

struct HeldRows {
  HeldHalf part[2][kRows];
  /** Of the lane's first row. */
  state_t* at;
  int first_row;
};

/** A lane's place among the 8 that share a row. */
__device__ __forceinline__ int lane_of_row() { return threadIdx.x & 7; }

/** Asks for the rows that lie at held.at. */
__device__ __forceinline__ void load_rows(HeldRows& held) {
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    held.part[0][i] = *reinterpret_cast<const HeldHalf*>(held.at + 64 * i);
    held.part[1][i] = *reinterpret_cast<const HeldHalf*>(held.at + 64 * i + 32);
  }
}

/** Asks for the state of a head of a row. What wrote the states of this layer ended a step ago at the
 * latest: no need to wait for the kernel before. */
template <class Op>
__device__ __forceinline__ void ask_for_rows(HeldRows& held, const Step& step, const Op& op,
                                             int row, int head) {
  held.first_row = (threadIdx.x >> 3) * kRows;
  held.at = static_cast<state_t*>(op.state) + step.slots[row] * op.slot_stride +
            (long long)head * kHeadNumbers + held.first_row * 64 + 4 * lane_of_row();
  load_rows(held);
}

/** A head of the block's row of one token (y), once the kernels before have ended, unless the block
 * waits for these at its end; false for padding. */
template <class Op>
__device__ __forceinline__ bool take_head(HeldRows& held, const Step& step, const Op& op,
                                          int head, bool waits_later = false) {
  const int row = blockIdx.y;
  const bool is_padding = row >= step.num_singles();
  if (!is_padding) ask_for_rows(held, step, op, row, head);
  if (is_padding || !waits_later) wait_for_previous();
  return !is_padding;
}

__device__ __forceinline__ Eight open_row(const HeldRows& held, int i) {
  Eight s;
  open(s.lo, held.part[0][i], 0), open(s.hi, held.part[1][i], 0);
  return s;
}

/** Half of a row. `zero` is 0 in a way that the compiler does not see: else it would keep what
 * open_row has opened, in twice the registers. */
__device__ __forceinline__ void open_half(float (&s)[4], const HeldRows& held, int half, int i,
                                          u32 zero) {
  open(s, held.part[half][i], zero);
}

/** Sums over 8 lanes of what each has of its rows, brought to where others find them. */
__device__ __forceinline__ void share_sums(float (&to)[64], const HeldRows& held,
                                           const float (&x)[kRows]) {
  static_assert(kRows == 4, "as many as sum_four sums");
  const int q = lane_of_row();
  const float sum = sum_four(x, q);
  if ((q & 1) == 0) to[held.first_row + (q >> 1)] = sum;
}
