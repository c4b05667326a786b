// RWKV-7 time mixing of rows of any length, from the projections to the gated head outputs; the
// formulas stand in backend.ts (wkv7), the operands in wkv7.cuh. Head size 64, everything inside in
// f32. Source: BlinkDL/RWKV-LM, RWKV-v7. Tolerance: 2e-3 RMS against reference/ops.ts with f32 state
// (operands are f16). A state's rows (value channels) are independent of each other; a row's dot
// products are shared by 8 lanes.
#include "wkv7.cuh"

// Rows of less than `chunked_from` tokens (the others are wkv7-chunk.cu's), one token after the
// other: a block owns 16 rows of one head's state, in the registers of two warps (2 rows to 8
// lanes), while eight other warps prepare the operands of the next 16 tokens in shared memory and
// hold those of the 16 after in registers, so that no load is waited for. The chain from token to
// token is one dot product, three shuffles and the update. y goes to op.y; wkv7_output does the
// rest.
constexpr int kChunk = 16;
constexpr int kPreparers = 8;
constexpr int kTokensEach = kChunk / kPreparers;

/** The warps that run ahead: chunk after chunk into the buffer that is not being read. */
__device__ __forceinline__ void prepare_chunks(const Wkv7& op, Operands (&shared)[2][kChunk],
                                               int start, int end, int head, bool keeps_value) {
  const int first = (threadIdx.x >> 5) - 2;
  const Constants constants = load_constants(op, head);
  Raw raw[kTokensEach];
  const auto load = [&](Raw(&to)[kTokensEach], int from) {
#pragma unroll
    for (int i = 0; i < kTokensEach; i++) {
      const int t = from + first + i * kPreparers;
      if (t < end) to[i] = load_raw(op, t, head);
    }
  };
  const auto fill = [&](int from, int buffer) {
#pragma unroll
    for (int i = 0; i < kTokensEach; i++) {
      const int t = from + first + i * kPreparers;
      if (t >= end) continue;
      if (keeps_value) keep_first_value(op, raw[i], t, head);
      share(shared[buffer][first + i * kPreparers], prepare(op, raw[i], constants));
    }
  };
  load(raw, start);
  fill(start, 0);
  load(raw, start + kChunk);
  __syncthreads();
  int buffer = 1;
  for (int from = start; from < end; from += kChunk, buffer ^= 1) {
    // Asked for before the chunk at hand is prepared, so that none of it is waited for.
    Raw next[kTokensEach];
    load(next, from + 2 * kChunk);
    fill(from + kChunk, buffer);
#pragma unroll
    for (int i = 0; i < kTokensEach; i++) raw[i] = next[i];
    __syncthreads();
  }
}

/**
 * One round of a sum over 8 lanes for the two rows' sa and for y, whose rows are split between the
 * halves of the 8 lanes after the first round: three chains that do not wait for each other.
 */
__device__ __forceinline__ void sum_round(float& sa0, float& sa1, float& y, int offset) {
  const float other0 = __shfl_xor_sync(0xffffffffu, sa0, offset);
  const float other1 = __shfl_xor_sync(0xffffffffu, sa1, offset);
  const float other2 = __shfl_xor_sync(0xffffffffu, y, offset);
  sa0 += other0, sa1 += other1, y += other2;
}

/**
 * The warps of the recurrence. Instructions issue in order, so the sum of a token's y waits until
 * the next token's sa is summed beside it, and of the operands only kk, which the chain begins
 * with, is fetched a token ahead.
 */
__device__ __forceinline__ void recur(const Wkv7& op, const Operands (&shared)[2][kChunk],
                                      int start, int end, int head, int value_row, state_t* state) {
  const int q = threadIdx.x & 7;
  const bool upper = q >= 4;
  Eight s[2] = {load_state(state, q), load_state(state + 64, q)};
  float last_v = 0, last_k = 0, y0 = 0, y1 = 0;
  float* y = op.y + (long long)start * op.channels + head * 64 + value_row + (q >> 2);
  __syncthreads();
  int buffer = 0;
  for (int from = start; from < end; from += kChunk, buffer ^= 1) {
    const int count = min(kChunk, end - from);
    Eight kk = eight(shared[buffer][0].kk, q);
#pragma unroll 2
    for (int i = 0; i < count; i++) {
      const Operands& o = shared[buffer][i];
      const Eight w = eight(o.w, q), b = eight(o.b, q), k = eight(o.k, q), r = eight(o.r, q);
      const float2 v = load_pair(o.v, value_row);
      float sa0 = dot(s[0], kk), sa1 = dot(s[1], kk);
      // At the chunk's end the last again, which is not used.
      kk = eight(shared[buffer][min(i + 1, kChunk - 1)].kk, q);
      float sum = (upper ? y1 : y0) + __shfl_xor_sync(0xffffffffu, upper ? y0 : y1, 4);
      sa0 += __shfl_xor_sync(0xffffffffu, sa0, 4);
      sa1 += __shfl_xor_sync(0xffffffffu, sa1, 4);
      sum_round(sa0, sa1, sum, 2);
      sum_round(sa0, sa1, sum, 1);
      if ((q & 3) == 0 && from + i > start) y[-op.channels] = sum;
      y += op.channels;
      update(s[0], -sa0, v.x, w, b, k);
      update(s[1], -sa1, v.y, w, b, k);
      y0 = dot(s[0], r), y1 = dot(s[1], r);
      last_v = v.x, last_k = k.lo[0];
    }
    __syncthreads();
  }
  float sum = (upper ? y1 : y0) + __shfl_xor_sync(0xffffffffu, upper ? y0 : y1, 4);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  if ((q & 3) == 0) y[-op.channels] = sum;
  store_state(state, q, s[0], row_noise(last_v, last_k, value_row * 8 + q));
  store_state(state + 64, q, s[1], row_noise(last_v, last_k, value_row * 8 + 8 + q));
}

extern "C" __global__ void __launch_bounds__(64 + 32 * kPreparers)
    wkv7_prefill(Step step, const __grid_constant__ Wkv7 op, int chunked_from) {
  __shared__ Operands shared[2][kChunk];
  let_next_start();
  wait_for_previous();
  const int head = blockIdx.x, row = blockIdx.y, split = blockIdx.z;
  if (row >= step.num_rows()) return;
  const int start = step.starts[row], end = step.starts[row + 1];
  if (end - start >= chunked_from) return;
  if (threadIdx.x >= 64) {
    prepare_chunks(op, shared, start, end, head, split == 0);
    return;
  }
  const int value_row = split * 16 + (threadIdx.x >> 3) * 2;
  state_t* const state = static_cast<state_t*>(op.state) + step.slots[row] * op.slot_stride +
                         (long long)head * 64 * 64 + value_row * 64;
  recur(op, shared, start, end, head, value_row, state);
}

// Group norm, bonus and gate after wkv7_prefill: one warp a head of a token of its rows.
extern "C" __global__ void __launch_bounds__(128)
    wkv7_output(Step step, const __grid_constant__ Wkv7 op, int chunked_from) {
  let_next_start();
  wait_for_previous();
  const int heads = op.channels / 64;
  const int index = blockIdx.x * 4 + (threadIdx.x >> 5);
  const int t = index / heads, head = index % heads;
  if (t >= step.num_tokens()) return;
  const int row = step.token_rows[t];
  if (step.starts[row + 1] - step.starts[row] >= chunked_from) return;
  const long long at = (long long)t * op.channels + head * 64 + 2 * (threadIdx.x & 31);
  const Raw raw = load_raw(op, t, head);
  const Constants constants = load_constants(op, head);
  const Finish f = load_finish(op, t, head);
  const float2 y = *reinterpret_cast<const float2*>(op.y + at);
  const float2 r = unpack(raw.r),
               k = scaled_key(unpack(raw.k), learning_rate(op, raw, constants), constants);
  const float bonus = warp_sum(r.x * k.x * f.r_k.x + r.y * k.y * f.r_k.y);
  finish(op, t, head, y, bonus, mixed_value(op, raw, constants), f);
}
