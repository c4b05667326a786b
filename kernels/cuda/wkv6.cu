// RWKV-6 time mixing, from the projections to the gated head outputs; backend.ts (wkv6) has the
// formulas. Head size 64; everything inside is f32. Source: BlinkDL/RWKV-LM, RWKV-v6. Tolerance:
// 1e-3 RMS against reference/ops.ts with f32 state (operands are f16). The rows of a state (value
// channels) are independent, and so are its elements from token to token; only y is summed over a
// row, which 8 lanes share.
#include "wkv-decode.cuh"

/** Operands f16 [T, C]; constants f32 [C]; as in backend.ts's wkv6. */
struct Wkv6 {
  f16* out;
  const f16* r;
  const f16* k;
  const f16* v;
  const f16* w;
  const f16* g;
  const float* u;
  const float* ln_weight;
  const float* ln_bias;
  /** The layer's states: slot s is at state + s·slot_stride, [H, 64 value, 64 key] f32 or f16. */
  void* state;
  /** f32 [T, C]: y before its norm, written by wkv6_prefill and read by wkv6_output. */
  float* y;
  long long slot_stride;
  int channels;
  float eps;
};

/** The operands of one head of one token; bonus = Σ r·u·k. */
struct __align__(16) Operands {
  float r[64], w[64], k[64], v[64];
  float bonus;
};

/** Two channels of a token's operands, as words in their memory format. */
struct Raw {
  u32 r, w, k, v;
};

/** The index of a lane's first channel in [T, C]. */
__device__ __forceinline__ long long pair_at(const Wkv6& op, int t, int head) {
  return (long long)t * op.channels + head * 64 + 2 * (threadIdx.x & 31);
}

__device__ __forceinline__ Raw load_raw(const Wkv6& op, int t, int head) {
  const long long at = pair_at(op, t, head);
  return {load_word(op.r, at), load_word(op.w, at), load_word(op.k, at), load_word(op.v, at)};
}

/** exp(−exp(logit)), computed in base 2. */
__device__ __forceinline__ float decay(float logit) { return exp2f(-1.44269504f * __expf(logit)); }

/** A warp puts a token's operands into shared memory. */
__device__ __forceinline__ void share(Operands& to, const Raw& raw, float2 u) {
  const int c = 2 * (threadIdx.x & 31);
  const float2 r = unpack(raw.r), w = unpack(raw.w), k = unpack(raw.k);
  const float bonus = warp_sum(r.x * u.x * k.x + r.y * u.y * k.y);
  *reinterpret_cast<float2*>(to.r + c) = r;
  *reinterpret_cast<float2*>(to.w + c) = make_float2(decay(w.x), decay(w.y));
  *reinterpret_cast<float2*>(to.k + c) = k;
  *reinterpret_cast<float2*>(to.v + c) = unpack(raw.v);
  if (c == 0) to.bonus = bonus;
}

/** Two channels of what the steps after the recurrence need. */
struct Finish {
  float2 g, gain, bias;
};

__device__ __forceinline__ Finish load_finish(const Wkv6& op, int t, int head) {
  const int channel = head * 64 + 2 * (threadIdx.x & 31);
  return {unpack(load_word(op.g, pair_at(op, t, head))), load_pair(op.ln_weight, channel),
          load_pair(op.ln_bias, channel)};
}

/** out = (GN(y)·ln_x)·silu(g). */
__device__ __forceinline__ void finish(const Wkv6& op, int t, int head, float2 y, const Finish& f) {
  y = head_norm(y, op.eps);
  *reinterpret_cast<u32*>(op.out + pair_at(op, t, head)) =
      pack((y.x * f.gain.x + f.bias.x) * f.g.x * sigmoid(f.g.x),
           (y.y * f.gain.y + f.bias.y) * f.g.y * sigmoid(f.g.y));
}

/** A lane's share of y = S·r; then S ← S·diag(w) + v·k for its part of a row. */
__device__ __forceinline__ float advance(Eight& s, const Operands& o, float v, int q) {
  const Eight r = eight(o.r, q), w = eight(o.w, q), k = eight(o.k, q);
  const float y = dot(s, r);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    s.lo[i] = s.lo[i] * w.lo[i] + v * k.lo[i];
    s.hi[i] = s.hi[i] * w.hi[i] + v * k.hi[i];
  }
  return y;
}

/** Heads that the registers must suffice for on a multiprocessor. */
#if STATE_F16 && __CUDA_ARCH__ >= 800
constexpr int kHeadsResident = 9;
#else
constexpr int kHeadsResident = 7;
#endif

// Rows of one token: one block per head of a row, everything fused (wkv-decode.cuh). The loads of
// the state are in flight while the first warp prepares the operands. Memory traffic: the state,
// read and written.
extern "C" __global__ void __launch_bounds__(kHeadThreads, kHeadsResident)
    wkv6_decode(Step step, const __grid_constant__ Wkv6 op) {
  __shared__ Operands shared;
  __shared__ Finish ending[32];
  __shared__ float sums[64];
  let_next_start();
  const int head = blockIdx.x, t = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  HeldRows held;
  if (!take_head(held, step, op, head)) return;

  if (warp == kHeadWarps - 1) ending[lane] = load_finish(op, t, head);
  if (warp == 0) share(shared, load_raw(op, t, head), load_pair(op.u, head * 64 + 2 * lane));
  __syncthreads();

  const int q = lane_of_row();
  float y[kRows];
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    const int row = held.first_row + i;
    const float v = shared.v[row];
    Eight s = open_row(held, i);
    y[i] = advance(s, shared, v, q);
    store_state(held.at - 4 * q + 64 * i, q, s, row_noise(v, shared.k[4 * q], row * 8 + q));
  }
  share_sums(sums, held, y);
  __syncthreads();
  if (warp != 0) return;
  const float2 v = load_pair(shared.v, 2 * lane), sum = load_pair(sums, 2 * lane);
  const float2 all = make_float2(sum.x + shared.bonus * v.x, sum.y + shared.bonus * v.y);
  finish(op, t, head, all, ending[lane]);
}

// Rows of several tokens, token by token. A block has 16 rows of a head's state in the registers of
// four warps, 8 lanes per row. Four other warps run ahead: they prepare the operands of the next
// chunk in shared memory and hold those of the chunk after it in registers. The block writes y to
// op.y; wkv6_output does the rest.
constexpr int kChunk = 16;
constexpr int kWarps = 4;
constexpr int kTokensEach = kChunk / kWarps;

/** The loop of the warps that run ahead: fills the buffer that is not being read, chunk by
 * chunk. */
__device__ __forceinline__ void prepare_chunks(const Wkv6& op, Operands (&shared)[2][kChunk],
                                               int start, int end, int head) {
  const int first = (threadIdx.x >> 5) - kWarps;
  const float2 u = load_pair(op.u, head * 64 + 2 * (threadIdx.x & 31));
  Raw raw[kTokensEach];
  const auto load = [&](int from) {
#pragma unroll
    for (int i = 0; i < kTokensEach; i++) {
      const int t = from + first + i * kWarps;
      if (t < end) raw[i] = load_raw(op, t, head);
    }
  };
  const auto fill = [&](int from, int buffer) {
#pragma unroll
    for (int i = 0; i < kTokensEach; i++) {
      const int at = first + i * kWarps;
      if (from + at < end) share(shared[buffer][at], raw[i], u);
    }
  };
  load(start);
  fill(start, 0);
  load(start + kChunk);
  __syncthreads();
  int buffer = 1;
  for (int from = start; from < end; from += kChunk, buffer ^= 1) {
    fill(from + kChunk, buffer);
    load(from + 2 * kChunk);
    __syncthreads();
  }
}

__device__ __forceinline__ void recur(const Wkv6& op, const Operands (&shared)[2][kChunk],
                                      int start, int end, int head, int value_row, state_t* state) {
  const int q = threadIdx.x & 7;
  Eight s = load_state(state, q);
  float last_v = 0, last_k = 0;
  float* const y = op.y + head * 64 + value_row;
  __syncthreads();
  int buffer = 0;
  for (int from = start; from < end; from += kChunk, buffer ^= 1) {
    const int count = min(kChunk, end - from);
    for (int base = 0; base < count; base += 4) {
      float sums[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (base + i >= count) break;
        const Operands& o = shared[buffer][base + i];
        const float v = o.v[value_row];
        sums[i] = advance(s, o, v, q);
        if (q == 0) sums[i] += o.bonus * v;
        last_v = v, last_k = o.k[4 * q];
      }
      const float sum = sum_four(sums, q);
      const int i = base + (q >> 1);
      if ((q & 1) == 0 && i < count) y[(long long)(from + i) * op.channels] = sum;
    }
    __syncthreads();
  }
  store_state(state, q, s, row_noise(last_v, last_k, value_row * 8 + q));
}

extern "C" __global__ void __launch_bounds__(64 * kWarps)
    wkv6_prefill(Step step, const __grid_constant__ Wkv6 op) {
  __shared__ Operands shared[2][kChunk];
  let_next_start();
  wait_for_previous();
  const int head = blockIdx.x, row = step.num_singles() + blockIdx.y, split = blockIdx.z;
  if (row >= step.num_rows()) return;
  const int start = step.starts[row], end = step.starts[row + 1];
  if (threadIdx.x >= 32 * kWarps) {
    prepare_chunks(op, shared, start, end, head);
    return;
  }
  const int value_row = split * 16 + (threadIdx.x >> 3);
  state_t* const state = static_cast<state_t*>(op.state) + step.slots[row] * op.slot_stride +
                         (long long)head * 64 * 64 + value_row * 64;
  recur(op, shared, start, end, head, value_row, state);
}

// Group norm and gate, after wkv6_prefill. One warp per head of a token.
extern "C" __global__ void __launch_bounds__(128)
    wkv6_output(Step step, const __grid_constant__ Wkv6 op) {
  let_next_start();
  wait_for_previous();
  const int heads = op.channels / 64;
  const int index = blockIdx.x * 4 + (threadIdx.x >> 5);
  const int t = step.num_singles() + index / heads, head = index % heads;
  if (t >= step.num_tokens()) return;
  const Finish f = load_finish(op, t, head);
  finish(op, t, head, *reinterpret_cast<const float2*>(op.y + pair_at(op, t, head)), f);
}
