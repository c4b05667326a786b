// The `heads` phase of eight-rows.cu: each block computes one head at a time, for all of its
// tokens, from the low ranks to the gated output.
#pragma once
#include "eight-rows.cuh"

__device__ __forceinline__ int low_width(const FewRows& op) {
  return op.first[kIn] - op.first[kFirstLow];
}

/** Distance in shared memory from one token's inner low ranks to the next token's, in halves: an
 * odd multiple of 64 bytes, so that lanes that read two tokens at once meet no bank twice. */
__device__ __forceinline__ int low_stride(const FewRows& op) { return low_width(op) | 32; }

/** The place of a channel's sum among those of a token. Lanes that store sums of several tokens
 * meet no bank twice. */
__device__ __forceinline__ int low_place(int channel, int token) {
  return channel ^ 8 * (token >> 1);
}

/** Multiplies a warp's part of the outer low ranks: 16 of the head's channels, and half of the
 * columns of every second low rank. */
__device__ __forceinline__ void low_products(const FewRows& op, Block& b, bool has_gate) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = lane >> 2, part = lane & 3;
  const int first = kTileRows * (warp & 3), half = warp >> 2 & 1;
  // Lanes of absent tokens have the inputs of the last one, as in own_token().
  const int token = min(row, b.sh.heads.end - b.sh.heads.begin - 1);
  const f16* x = reinterpret_cast<const f16*>(b.region) + token * low_stride(op) + kVector * part;
#pragma unroll
  for (int low = 0; low < kLow; low++) {
    if (low == kLow - 1 && !has_gate) break;
    const int rank = rank_of(op, low), step = b.sh.stream.low_step[low];
    const Place own = part_of(rank / 32, half, kLowHalves);
    const bool is_own = (low & 1) == warp >> 3;
    float sums[4] = {};
#pragma unroll 1
    for (int begin = 0; begin < 64; begin += step) {
      const f16* const stage = open_stage(b.stream);
      const int in_stage = first - begin;
      if (is_own && in_stage >= 0 && in_stage < step) {
        const f16* const weights = stage + (in_stage + row) * rank + kVector * part;
#pragma unroll 2
        for (int at = 32 * own.begin; at < 32 * own.end; at += 32) {
          const uint4 a = load_vector(weights + at), c = load_vector(weights + 8 * rank + at),
                      inputs = load_vector(x + at);
          __syncwarp();
          add_tile(sums, a, c, inputs);
        }
      }
      close_stage(b.stream);
    }
    x += rank;
    if (!is_own) continue;
    float* const to = b.sh.sums + (low * kLowHalves + half) * kLowSum + 64 * 2 * part;
    const int at = low_place(first + row, 2 * part), above = low_place(first + row + 8, 2 * part);
    to[at] = sums[0], to[64 + at] = sums[1], to[above] = sums[2], to[64 + above] = sums[3];
  }
}

/** Two channels of an outer low rank. `token`: counted from the block's first. */
__device__ __forceinline__ float2 low_pair(const Block& b, int low, int token) {
  const float* const sums = b.sh.sums + low * kLowHalves * kLowSum + 64 * token +
                            low_place(2 * (threadIdx.x & 31), token);
  const float2 x = load_pair(sums, 0), y = load_pair(sums, kLowSum);
  return make_float2(x.x + y.x, x.y + y.y);
}

__device__ __forceinline__ u32 low_word(const Block& b, int low, int token) {
  const float2 pair = low_pair(b, low, token);
  return pack(pair.x, pair.y);
}

__device__ __forceinline__ state_t* state_row(const Wkv7& mixing, int slot, int head) {
  return static_cast<state_t*>(mixing.state) + slot * mixing.slot_stride +
         (head * 64 + (int)(threadIdx.x >> 3)) * 64;
}

/** Rounds a state as it is when it has been stored. */
__device__ __forceinline__ void round_state(float (&s)[4], u32 noise) {
#if STATE_F16
  uint2 held;
  close(held, s, noise);
  const float2 low = unpack(held.x), high = unpack(held.y);
  s[0] = low.x, s[1] = low.y, s[2] = high.x, s[3] = high.y;
#endif
}

/** Stores four rounded numbers. */
__device__ __forceinline__ void store_rounded(state_t* to, const float (&s)[4]) {
#if STATE_F16
  *reinterpret_cast<uint2*>(to) = make_uint2(pack(s[0], s[1]), pack(s[2], s[3]));
#else
  *reinterpret_cast<float4*>(to) = make_float4(s[0], s[1], s[2], s[3]);
#endif
}

/** The recurrence over the block's tokens in order. 8 lanes have one of the 64 rows of a state. */
__device__ __forceinline__ void run_tokens(Block& b, const Wkv7& mixing, int head, Eight state) {
  static_assert(kWorkers == 512);
  Operands* const operands = reinterpret_cast<Operands*>(b.region);
  const int q = threadIdx.x & 7, row = threadIdx.x >> 3;
  const int begin = b.sh.heads.begin, end = b.sh.heads.end;
  Eight next = state;
#pragma unroll 1
  for (int t = begin; t < end; t++) {
    if (b.sh.tokens[t].is_first) state = next;
    if (t + 1 < end && b.sh.tokens[t + 1].is_first)
      next = load_state(state_row(mixing, b.sh.tokens[t + 1].slot, head), q);
    const Operands& o = operands[t - begin];
    const Eight k = eight(o.k, q);
    const float v = o.v[row], removed = sum8(dot(state, eight(o.kk, q)));
    update(state, removed, v, eight(o.w, q), eight(o.b, q), k);
    const float y = sum8(dot(state, eight(o.r, q)));
    if (q == 0) b.sh.sums[64 * (t - begin) + row] = y;
    const u32 low = row_noise(v, k.lo[0], row * 16 + 2 * q),
              high = row_noise(v, k.hi[0], row * 16 + 2 * q + 1);
    round_state(state.lo, low), round_state(state.hi, high);
    if (b.sh.tokens[t].keep == kNowhere) continue;
    state_t* const to = state_row(mixing, b.sh.tokens[t].keep, head);
    store_rounded(to + 4 * q, state.lo), store_rounded(to + 32 + 4 * q, state.hi);
  }
}

/** Run by the warps that multiply: computes one head. Before and after the recurrence, each of the
 * first warps has one token. */
__device__ __forceinline__ void run_head(const FewRows& op, Block& b, const Wkv7& mixing, int head,
                                         const Constants& constants, const Eight& state) {
  const int begin = b.sh.heads.begin, tokens = b.sh.heads.end - begin;
  const int index = threadIdx.x >> 5, token = begin + index, lane = threadIdx.x & 31;
  const bool has_token = index < tokens, has_gate = mixing.v_gate != nullptr;
  Operands* const operands = reinterpret_cast<Operands*>(b.region);
  Raw raw = {};
  if (has_token) {
    const f16* const y = op.y + token * op.first[kIn];
    const int at = head * 64 + 2 * lane;
    raw.r = fresh_word(y, at), raw.k = fresh_word(y + CHANNELS, at);
    raw.v = fresh_word(y + 2 * CHANNELS, at);
    if (has_gate) raw.first = fresh_word(mixing.v_first + token * CHANNELS, at);
  }
  const int vectors = low_width(op) / kVector;
  for (int i = threadIdx.x; i < tokens * vectors; i += kWorkers) {
    const int to = i / vectors, vector = i % vectors;
    const f16* const y = op.y + (begin + to) * op.first[kIn] + op.first[kFirstLow];
    reinterpret_cast<uint4*>(b.region)[to * (low_stride(op) / kVector) + vector] =
        __ldcg(reinterpret_cast<const uint4*>(y) + vector);
  }
  sync_workers();
  low_products(op, b, has_gate);
  sync_workers();
  float2 gate = {};
  if (has_token) {
    raw.w = low_word(b, 0, index), raw.a = low_word(b, 1, index), gate = low_pair(b, 2, index);
    if (has_gate) raw.gate = low_word(b, kLow - 1, index);
    keep_first_value(mixing, raw, token, head);
    share(operands[index], prepare(mixing, raw, constants));
  }
  sync_workers();
  const int channel = 64 * head + 2 * lane;
  Finish f = {gate};
  if (has_token) {
    f.r_k = load_pair(mixing.r_k, channel);
    f.gain = load_pair(mixing.ln_weight, channel), f.bias = load_pair(mixing.ln_bias, channel);
  }
  run_tokens(b, mixing, head, state);
  sync_workers();
  if (!has_token) return;
  const Operands& o = operands[index];
  const float2 r = load_pair(o.r, 2 * lane), k = load_pair(o.k, 2 * lane), r_k = f.r_k;
  const float bonus = warp_sum(r.x * k.x * r_k.x + r.y * k.y * r_k.y);
  finish(mixing, token, head, load_pair(b.sh.sums + 64 * index, 2 * lane), bonus,
         load_pair(o.v, 2 * lane), f);
}
