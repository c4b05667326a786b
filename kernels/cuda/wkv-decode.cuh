// How a block holds the state of one head of a row, for wkv6_decode, wkv7_decode and wkv7_rows.
// Every 8 lanes own four adjacent rows. Loads start first, and the state keeps its memory format in
// registers until it is used. So many heads fit on a multiprocessor, and their loads fill the
// memory's queue. Does not know the recurrence.
#pragma once
#include "wkv-state.cuh"

constexpr int kHeadWarps = 4;
constexpr int kHeadThreads = 32 * kHeadWarps;
/** Rows of a state per 8 lanes. */
constexpr int kRows = 16 / kHeadWarps;
/** Numbers in a head's state. */
constexpr int kHeadNumbers = 64 * 64;

/** Four channels in their memory format. */
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
  /** The address of the lane's first row. */
  state_t* at;
  int first_row;
};

/** A lane's index among the 8 that share a row. */
__device__ __forceinline__ int lane_of_row() { return threadIdx.x & 7; }

/** Starts the loads of the rows at held.at. */
__device__ __forceinline__ void load_rows(HeldRows& held) {
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    held.part[0][i] = *reinterpret_cast<const HeldHalf*>(held.at + 64 * i);
    held.part[1][i] = *reinterpret_cast<const HeldHalf*>(held.at + 64 * i + 32);
  }
}

/** Starts the loads of the state of a head. The kernel that wrote it ended a step ago or earlier,
 * so these loads need not wait. */
template <class Op>
__device__ __forceinline__ void ask_for_rows(HeldRows& held, const Step& step, const Op& op,
                                             int row, int head) {
  held.first_row = (threadIdx.x >> 3) * kRows;
  held.at = static_cast<state_t*>(op.state) + step.slots[row] * op.slot_stride +
            (long long)head * kHeadNumbers + held.first_row * 64 + 4 * lane_of_row();
  load_rows(held);
}

/** Starts the loads of a head of the block's row of one token (blockIdx.y). Then waits for the
 * previous kernels, unless the block waits at its end (`waits_later`). Returns false for
 * padding. */
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

/** Unpacks half of a row. `zero` is 0, but the compiler does not know: otherwise it would keep the
 * numbers that open_row unpacked, in twice the registers. */
__device__ __forceinline__ void open_half(float (&s)[4], const HeldRows& held, int half, int i,
                                          u32 zero) {
  open(s, held.part[half][i], zero);
}

/** Sums over 8 lanes for each of their rows, stored where other lanes read them. */
__device__ __forceinline__ void share_sums(float (&to)[64], const HeldRows& held,
                                           const float (&x)[kRows]) {
  static_assert(kRows == 4, "sum_four takes four rows");
  const int q = lane_of_row();
  const float sum = sum_four(x, q);
  if ((q & 1) == 0) to[held.first_row + (q >> 1)] = sum;
}
