// RWKV-7 time mixing from the projections to the gated head outputs; the formulas stand in backend.ts (wkv7), the
// operands in wkv7.cuh. Head size 64, everything inside in f32.
// Source: BlinkDL/RWKV-LM, RWKV-v7. Tolerance: 2e-3 RMS against reference/ops.ts with f32 state (operands are f16).
// A state's rows (value channels) are independent of each other; a row's dot products are shared by 8 lanes.
#include "wkv7.cuh"

struct Operands {
  float r[64], w[64], k[64], v[64], kk[64], b[64];
};

__device__ __forceinline__ void share(Operands& to, const Prepared& p) {
  const int c = 2 * (threadIdx.x & 31);
  *reinterpret_cast<float2*>(to.r + c) = p.r;
  *reinterpret_cast<float2*>(to.w + c) = p.w;
  *reinterpret_cast<float2*>(to.k + c) = p.k;
  *reinterpret_cast<float2*>(to.v + c) = p.v;
  *reinterpret_cast<float2*>(to.kk + c) = p.kk;
  *reinterpret_cast<float2*>(to.b + c) = p.b;
}

/** A lane's 8 of 64 key channels: 4·q … and 32 + 4·q …, so that a row's 8 lanes load whole lines. */
struct Eight {
  float lo[4], hi[4];
};

__device__ __forceinline__ Eight eight(const float* x, int q) {
  Eight e;
  load4(e.lo, x + 4 * q);
  load4(e.hi, x + 32 + 4 * q);
  return e;
}

__device__ __forceinline__ Eight load_state(const state_t* row, int q) {
  Eight e;
  load4(e.lo, row + 4 * q);
  load4(e.hi, row + 32 + 4 * q);
  return e;
}

__device__ __forceinline__ void store_state(state_t* row, int q, const Eight& s, u32 noise) {
  store4(row + 4 * q, s.lo, noise);
  store4(row + 32 + 4 * q, s.hi, noise ^ 0x5bd1e995u);
}

__device__ __forceinline__ float dot(const Eight& a, const Eight& b) {
  float lo = a.lo[0] * b.lo[0], hi = a.hi[0] * b.hi[0];
#pragma unroll
  for (int i = 1; i < 4; i++) lo += a.lo[i] * b.lo[i], hi += a.hi[i] * b.hi[i];
  return lo + hi;
}

/** The sum over a row's 8 lanes, in all of them. */
__device__ __forceinline__ float sum8(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 4);
  x += __shfl_xor_sync(0xffffffffu, x, 2);
  return x + __shfl_xor_sync(0xffffffffu, x, 1);
}

/** S ← S·diag(w) + sa·b + v·k on a lane's part of a row. */
__device__ __forceinline__ void update(Eight& s, float sa, float v, const Eight& w, const Eight& b, const Eight& k) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    s.lo[i] = s.lo[i] * w.lo[i] + (sa * b.lo[i] + v * k.lo[i]);
    s.hi[i] = s.hi[i] * w.hi[i] + (sa * b.hi[i] + v * k.hi[i]);
  }
}

// Rows of one token: one block a head of a row, all fused. Each group of 8 lanes owns 4 of the state's 64 rows; their
// loads are in flight while the first warp prepares the operands. Bytes: the state, in and out.
extern "C" __global__ void __launch_bounds__(128) wkv7_decode(Step step, Wkv7 op) {
  __shared__ Operands shared;
  __shared__ float outputs[64];
  const int head = blockIdx.x, row = blockIdx.y;
  if (row >= step.num_rows()) return;
  const int q = threadIdx.x & 7, group = threadIdx.x >> 3;
  const int t = step.starts[row];
  state_t* const state =
      static_cast<state_t*>(op.state) + step.slots[row] * op.slot_stride + (long long)head * 64 * 64;
  Eight s[4];
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = load_state(state + (group + 16 * i) * 64, q);

  Prepared p;
  if (threadIdx.x < 32) {
    p = prepare(op, t, head, true);
    share(shared, p);
  }
  __syncthreads();

  const Eight w = eight(shared.w, q), k = eight(shared.k, q), kk = eight(shared.kk, q);
  const Eight b = eight(shared.b, q), r = eight(shared.r, q);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int at = group + 16 * i;
    const float v = shared.v[at];
    update(s[i], -sum8(dot(s[i], kk)), v, w, b, k);
    const float y = sum8(dot(s[i], r));
    if (q == 0) outputs[at] = y;
    store_state(state + at * 64, q, s[i], row_noise(v, k.lo[0], at * 8 + q));
  }
  __syncthreads();
  if (threadIdx.x < 32) finish(op, t, head, load_pair(outputs, 2 * threadIdx.x), p.r, p.k, p.v);
}

// Rows of any number of tokens, one after the other: a block owns 16 rows of one head's state, in the registers of two
// warps (2 rows to 8 lanes), while two other warps prepare the next tokens' operands in shared memory. The chain from
// token to token is one dot product, three shuffles and the update. y goes to op.y; wkv7_output does the rest.
constexpr int kChunk = 8;

struct Chain {
  Eight kk, w, b, k, r;
  float v[2];
};

__device__ __forceinline__ Chain load_chain(const Operands& from, int q, int value_row) {
  Chain c;
  c.kk = eight(from.kk, q);
  c.w = eight(from.w, q);
  c.b = eight(from.b, q);
  c.k = eight(from.k, q);
  c.r = eight(from.r, q);
  c.v[0] = from.v[value_row];
  c.v[1] = from.v[value_row + 1];
  return c;
}

extern "C" __global__ void __launch_bounds__(128) wkv7_prefill(Step step, Wkv7 op) {
  __shared__ Operands shared[2][kChunk];
  const int head = blockIdx.x, row = blockIdx.y, split = blockIdx.z;
  if (row >= step.num_rows()) return;
  const int start = step.starts[row], end = step.starts[row + 1];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const bool prepares = warp >= 2;
  const auto fill = [&](int from, int buffer) {
    for (int i = warp - 2; i < kChunk && from + i < end; i += 2)
      share(shared[buffer][i], prepare(op, from + i, head, split == 0));
  };

  const int q = lane & 7;
  const int value_row = split * 16 + (warp & 1) * 8 + (lane >> 3) * 2;
  state_t* const state = static_cast<state_t*>(op.state) + step.slots[row] * op.slot_stride +
                         (long long)head * 64 * 64 + value_row * 64;
  Eight s[2];
  float last_v = 0, last_k = 0;
  if (prepares) {
    fill(start, 0);
  } else {
    s[0] = load_state(state, q);
    s[1] = load_state(state + 64, q);
  }
  __syncthreads();

  int buffer = 0;
  for (int from = start; from < end; from += kChunk, buffer ^= 1) {
    if (prepares) {
      fill(from + kChunk, buffer ^ 1);
    } else {
      const int count = min(kChunk, end - from);
      Chain next = load_chain(shared[buffer][0], q, value_row);
      float* y = op.y + (long long)from * op.channels + head * 64 + value_row;
      for (int i = 0; i < count; i++, y += op.channels) {
        const Chain c = next;
        if (i + 1 < count) next = load_chain(shared[buffer][i + 1], q, value_row);
        const float sa0 = -sum8(dot(s[0], c.kk)), sa1 = -sum8(dot(s[1], c.kk));
        update(s[0], sa0, c.v[0], c.w, c.b, c.k);
        update(s[1], sa1, c.v[1], c.w, c.b, c.k);
        // Both rows' sums at once: the upper four lanes take the second row's.
        const float y0 = dot(s[0], c.r), y1 = dot(s[1], c.r);
        const bool upper = q >= 4;
        float sum = (upper ? y1 : y0) + __shfl_xor_sync(0xffffffffu, upper ? y0 : y1, 4);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        if ((q & 3) == 0) y[q >> 2] = sum;
        last_v = c.v[0], last_k = c.k.lo[0];
      }
    }
    __syncthreads();
  }
  if (prepares) return;
  store_state(state, q, s[0], row_noise(last_v, last_k, value_row * 8 + q));
  store_state(state + 64, q, s[1], row_noise(last_v, last_k, value_row * 8 + 8 + q));
}

// Group norm, bonus and gate after wkv7_prefill: one warp a head of a token.
extern "C" __global__ void __launch_bounds__(128) wkv7_output(Step step, Wkv7 op) {
  const int heads = op.channels / 64;
  const int index = blockIdx.x * 4 + (threadIdx.x >> 5);
  const int t = index / heads, head = index % heads;
  if (t >= step.num_tokens()) return;
  const int channel = head * 64 + 2 * (threadIdx.x & 31);
  const long long at = (long long)t * op.channels + channel;
  const float2 y = *reinterpret_cast<const float2*>(op.y + at);
  const float2 k = scaled_key(op, load_pair(op.k, at), learning_rate(op, at, channel), channel);
  finish(op, t, head, y, load_pair(op.r, at), k, mixed_value(op, at, channel));
}
