// RWKV-7 time mixing of rows of several tokens, token by token, in one launch: gates, kk, state,
// group norm, bonus and gate. backend.ts (wkv7) has the formulas, wkv7.cuh the operands,
// wkv-decode.cuh the format of a state. wkv7-decode.cu takes rows of one token; wkv7-chunk.cu takes
// long rows where it can run. A block has one head of a row. Its warps hold the state in f32
// registers, four rows per 8 lanes. Of every four tokens, each warp prepares and finishes one. The
// operands of the next four tokens are copied to shared memory during the recurrence of these
// four. It runs beside the kernels of other rows (wkv7-decode.cu). Memory traffic: the state, read
// and written.
// Tolerance: 2e-3 RMS against reference/ops.ts with f32 state (operands are f16).
#include "wkv-decode.cuh"
#include "wkv7.cuh"

/** Blocks that the registers must suffice for on a multiprocessor. */
constexpr int kResident = 6;
/** Tokens between two barriers: one per warp. */
constexpr int kTokens = kHeadWarps;
/** Operands of a token: r, k, v, w, a, g, v_gate and v_first, in the order of Wkv7. */
constexpr int kOperands = 8;
/** Constants of a head: from w_bias to ln_bias, in the order of Wkv7. */
constexpr int kConstants = 8;
static_assert(kHeadThreads == kConstants * 16, "a thread copies 16 bytes of a constant");

/** Shared memory for these tokens. What is not used at once waits here and not in registers, so
 * that more heads fit on a multiprocessor. */
struct Shared {
  Operands operands[kTokens];
  /** Per value row. */
  float y[kTokens][64];
  f16 raw[kTokens][kOperands][64];
  float constants[kConstants][64];
};

/** Starts copies of the head's constants, by the whole block; those that are null are zero. */
__device__ __forceinline__ void ask_for_constants(Shared& sh, const Wkv7& op, int head) {
  const int which = threadIdx.x >> 4, at = 4 * (threadIdx.x & 15);
  const float* from = (&op.w_bias)[which];
  float* to = sh.constants[which] + at;
  if (from != nullptr) copy_16(to, from + head * 64 + at);
  else *reinterpret_cast<float4*>(to) = make_float4(0, 0, 0, 0);
}

/** Starts copies of the operands of the warp's token. */
__device__ __forceinline__ void ask_for_operands(Shared& sh, const Wkv7& op, int t, int head) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, at = 8 * (lane & 7);
  const f16* const* operands = reinterpret_cast<const f16* const*>(&op.r);
#pragma unroll
  for (int i = 0; i < kOperands; i += 4) {
    const int which = i + (lane >> 3);
    const f16* from = operands[which];
    if (from != nullptr)
      copy_16(sh.raw[warp][which] + at, from + (long long)t * op.channels + head * 64 + at);
  }
}

/** What the warp's token makes of its operands: shared, but for the bonus, which is returned. */
__device__ __forceinline__ float prepare_token(Shared& sh, const Wkv7& op, int t, int head) {
  const int at = 2 * (threadIdx.x & 31), warp = threadIdx.x >> 5;
  const auto word = [&](int which) { return load_word(sh.raw[warp][which], at); };
  const auto pair = [&](int which) { return load_pair(sh.constants[which], at); };
  const bool has_gate = op.v_gate != nullptr;
  const Raw raw = {word(0), word(3), word(1), word(2), word(4), has_gate ? word(6) : 0,
                   has_gate ? word(7) : 0};
  keep_first_value(op, raw, t, head);
  const Prepared p = prepare(op, raw, {pair(3), pair(4), pair(0), pair(1), pair(2)});
  share(sh.operands[warp], p);
  const float2 r_k = pair(5);
  return warp_sum(p.r.x * p.k.x * r_k.x + p.r.y * p.k.y * r_k.y);
}

/** Advances the lane's rows of the state by one token. */
__device__ __forceinline__ void advance(Eight (&s)[kRows], const Operands& o, int first_row,
                                        float (&to)[64]) {
  const int q = lane_of_row();
  float part[kRows], v[kRows], y[kRows];
  {
    const Eight kk = eight(o.kk, q);
#pragma unroll
    for (int i = 0; i < kRows; i++) part[i] = dot(s[i], kk);
  }
  static_assert(kRows == 4, "sum_four takes four rows");
  const float four = sum_four(part, q);
  load4(v, o.v + first_row);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int at = 32 * half + 4 * q;
    float w[4], b[4], k[4], r[4];
    load4(w, o.w + at), load4(b, o.b + at), load4(k, o.k + at), load4(r, o.r + at);
#pragma unroll
    for (int i = 0; i < kRows; i++) {
      const float removed = __shfl_sync(0xffffffffu, four, (threadIdx.x & 24) + 2 * i);
      float(&held)[4] = half == 0 ? s[i].lo : s[i].hi;
      float sum = 0;
#pragma unroll
      for (int c = 0; c < 4; c++) {
        held[c] = changed(held[c], w[c], removed, b[c], v[i], k[c]);
        sum = c == 0 ? held[c] * r[c] : fmaf(held[c], r[c], sum);
      }
      y[i] = half == 0 ? sum : y[i] + sum;
    }
  }
  const float sum = sum_four(y, q);
  if ((q & 1) == 0) to[first_row + (q >> 1)] = sum;
}

/** Stores the state so many slots behind its own, rounded with noise that is derived from the last
 * token. */
__device__ __forceinline__ void store_rows(const Wkv7& op, const HeldRows& held, int slots,
                                           const Eight (&s)[kRows], const Operands& last) {
  const int q = lane_of_row();
  state_t* const to = held.at - 4 * q + slots * op.slot_stride;
  float v[kRows];
  load4(v, last.v + held.first_row);
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    const int row = held.first_row + i;
    store_state(to + 64 * i, q, s[i], row_noise(v[i], last.k[4 * q], row * 8 + q));
  }
}

extern "C" __global__ void __launch_bounds__(kHeadThreads, kResident)
    wkv7_rows(Step step, const __grid_constant__ Wkv7 op, int takes_long) {
  __shared__ __align__(16) Shared shared;
  const int head = blockIdx.x, row = step.num_singles() + blockIdx.y;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const bool is_padding = row >= (takes_long ? step.num_rows() : step.first_long());
  HeldRows held;
  if (!is_padding) ask_for_rows(held, step, op, row, head), ask_for_constants(shared, op, head);
  // The kernel of long rows is launched before this one.
  const bool beside = !takes_long && step.first_long() < step.num_rows();
  if (!beside) wait_for_previous();
  let_next_start();
  if (is_padding) {
    if (beside && is_last_block()) wait_for_previous();
    return;
  }

  const int start = step.starts[row], end = step.starts[row + 1];
  if (start + warp < end) ask_for_operands(shared, op, start + warp, head);
  await_copies();
  __syncthreads();
  Eight s[kRows];
#pragma unroll
  for (int i = 0; i < kRows; i++) s[i] = open_row(held, i);
  for (int from = start; from < end; from += kTokens) {
    const int t = from + warp;
    float bonus = 0;
    u32 g = 0;
    if (t < end) {
      bonus = prepare_token(shared, op, t, head);
      g = load_word(shared.raw[warp][5], 2 * lane);
      __syncwarp();
      if (t + kTokens < end) ask_for_operands(shared, op, t + kTokens, head);
    }
    __syncthreads();
    const int count = min(kTokens, end - from);
    for (int i = 0; i < count; i++) {
      advance(s, shared.operands[i], held.first_row, shared.y[i]);
      const int keep = from + i + 1 < end ? step.keeps[from + i] : kNowhere;
      if (keep != kNowhere)
        store_rows(op, held, keep - step.slots[row], s, shared.operands[i]);
    }
    __syncthreads();
    if (t >= end) continue;
    const Finish f = {unpack(g), make_float2(0, 0), load_pair(shared.constants[6], 2 * lane),
                      load_pair(shared.constants[7], 2 * lane)};
    finish(op, t, head, load_pair(shared.y[warp], 2 * lane), bonus,
           load_pair(shared.operands[warp].v, 2 * lane), f);
    await_copies();
    __syncwarp();
  }
  store_rows(op, held, 0, s, shared.operands[(end - 1 - start) % kTokens]);
  if (beside && is_last_block()) wait_for_previous();
}
