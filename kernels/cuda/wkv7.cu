// RWKV-7 time mixing of rows of several tokens, token by token, in one launch: gates, kk, state,
// group norm, bonus and gate. backend.ts (wkv7) has the formulas, wkv7.cuh the operands,
// wkv-decode.cuh the format of a state. wkv7-decode.cu takes rows of one token; wkv7-chunk.cu takes
// long rows where it can run. A block has one head of a row. Its warps hold the state in f32
// registers, four rows per 8 lanes. Of every four tokens, each warp prepares and finishes one. The
// operands of the next four tokens are loaded before the recurrence of these four. It runs beside
// the kernels of other rows (wkv7-decode.cu). Memory traffic: the state, read and written.
// Tolerance: 2e-3 RMS against reference/ops.ts with f32 state (operands are f16).
#include "wkv-decode.cuh"
#include "wkv7.cuh"

/** Tokens between two barriers: one per warp. */
constexpr int kTokens = kHeadWarps;

/** Shared memory for these tokens. */
struct Shared {
  Operands operands[kTokens];
  /** Per value row. */
  float y[kTokens][64];
};

/** Advances the lane's rows of the state by one token. */
__device__ __forceinline__ void advance(Eight (&s)[kRows], const Operands& o, int first_row,
                                        float (&to)[64]) {
  const int q = lane_of_row();
  const Eight kk = eight(o.kk, q);
  float removed[kRows], v[kRows], y[kRows];
#pragma unroll
  for (int i = 0; i < kRows; i++) removed[i] = sum8(dot(s[i], kk));
  load4(v, o.v + first_row);
  const Eight w = eight(o.w, q), b = eight(o.b, q), k = eight(o.k, q), r = eight(o.r, q);
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    update(s[i], removed[i], v[i], w, b, k);
    y[i] = dot(s[i], r);
  }
  const float sum = sum_four(y, q);
  if ((q & 1) == 0) to[first_row + (q >> 1)] = sum;
}

/** Stores the state, rounded with noise that is derived from the last token. */
__device__ __forceinline__ void store_rows(const HeldRows& held, const Eight (&s)[kRows],
                                           const Operands& last) {
  const int q = lane_of_row();
  float v[kRows];
  load4(v, last.v + held.first_row);
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    const int row = held.first_row + i;
    store_state(held.at - 4 * q + 64 * i, q, s[i], row_noise(v[i], last.k[4 * q], row * 8 + q));
  }
}

extern "C" __global__ void __launch_bounds__(kHeadThreads, 4)
    wkv7_rows(Step step, const __grid_constant__ Wkv7 op, int takes_long) {
  __shared__ __align__(16) Shared shared;
  const int head = blockIdx.x, row = step.num_singles() + blockIdx.y;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const bool is_padding = row >= (takes_long ? step.num_rows() : step.first_long());
  HeldRows held;
  if (!is_padding) ask_for_rows(held, step, op, row, head);
  // The kernel of long rows is launched before this one.
  const bool beside = !takes_long && step.first_long() < step.num_rows();
  if (!beside) wait_for_previous();
  let_next_start();
  if (is_padding) {
    if (beside && is_last_block()) wait_for_previous();
    return;
  }

  const int start = step.starts[row], end = step.starts[row + 1];
  const Constants constants = load_constants(op, head);
  Raw raw;
  Finish ending;
  // Loads the warp's token of the four from `from` on, if it exists.
  const auto ask = [&](int from) {
    const int t = from + warp;
    if (t < end) raw = load_raw(op, t, head), ending = load_finish(op, t, head);
  };
  ask(start);
  Eight s[kRows];
#pragma unroll
  for (int i = 0; i < kRows; i++) s[i] = open_row(held, i);
  for (int from = start; from < end; from += kTokens) {
    const int t = from + warp;
    const Finish finishing = ending;
    Prepared p;
    if (t < end) {
      keep_first_value(op, raw, t, head);
      p = prepare(op, raw, constants);
      share(shared.operands[warp], p);
    }
    ask(from + kTokens);
    __syncthreads();
    const int count = min(kTokens, end - from);
    for (int i = 0; i < count; i++)
      advance(s, shared.operands[i], held.first_row, shared.y[i]);
    __syncthreads();
    if (t >= end) continue;
    const float2 r_k = finishing.r_k;
    const float bonus = warp_sum(p.r.x * p.k.x * r_k.x + p.r.y * p.k.y * r_k.y);
    finish(op, t, head, load_pair(shared.y[warp], 2 * lane), bonus, p.v, finishing);
  }
  store_rows(held, s, shared.operands[(end - 1 - start) % kTokens]);
  if (beside && is_last_block()) wait_for_previous();
}
