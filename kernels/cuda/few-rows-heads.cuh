// The `heads` phase of few-rows.cu: each block computes one head at a time, from the low ranks to
// the gated output.
#pragma once
#include "few-rows-block.cuh"

__device__ __forceinline__ state_t* state_row(const Wkv7& mixing, int slot, int head) {
  return static_cast<state_t*>(mixing.state) + slot * mixing.slot_stride +
         (head * 64 + (int)(threadIdx.x >> 3)) * 64;
}

/** Loads what a head needs before the barrier: its constants into shared memory, its state into
 * registers. */
__device__ __forceinline__ Eight load_head(Block& b, const Layer& layer, const HeadTask& task) {
  if (!b.tasks.has(task) || threadIdx.x >= kWorkers) return {};
  const int vector = (int)threadIdx.x / 16, part = threadIdx.x % 16;
  if (vector < 8 && layer.vectors[kOwn + vector] != nullptr)
    reinterpret_cast<float4*>(b.sh.constants[vector])[part] =
        reinterpret_cast<const float4*>(layer.vectors[kOwn + vector] + 64 * task.head)[part];
  return load_state(state_row(layer.mixing, slot_of(b, task.token), task.head), threadIdx.x & 7);
}

__device__ __forceinline__ u32 low_word(const FewRows& op, const Block& b, int low) {
  const float2 pair = low_pair(op, b.sh.sums, low);
  return pack(pair.x, pair.y);
}

/** The removal key, which needs no low rank. */
__device__ __forceinline__ float2 removal_of(const Shared& sh) {
  const int lane = threadIdx.x & 31;
  Constants constants = {};
  constants.k_k = load_pair(sh.constants[3], 2 * lane);
  const float2 kk = removal_key(unpack(sh.words[1][lane]), constants);
  const float length = sqrtf(warp_sum(kk.x * kk.x + kk.y * kk.y));
  // Not fmaxf, which would drop a NaN.
  const float scale = 1.0f / (length < 1e-12f ? 1e-12f : length);
  return make_float2(kk.x * scale, kk.y * scale);
}

/** With words, run by the warp that does not multiply, while the others multiply the low ranks. */
__device__ __forceinline__ void prepare_removal(Shared& sh) {
  *reinterpret_cast<float2*>(sh.operands.kk + 2 * (threadIdx.x & 31)) = removal_of(sh);
}

/** Prepares the recurrence's operands from the low ranks: one warp the keys, three more warps the
 * rest. */
__device__ __forceinline__ void prepare_head(const FewRows& op, const Wkv7& mixing, Shared& sh,
                                             const Block& b, const HeadTask& task) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, at = 2 * lane;
  const float(&c)[8][64] = sh.constants;
  const u32(&words)[4][32] = sh.words;
  Operands& o = sh.operands;
  Raw raw = {};
  Constants constants = {};
  if (warp == 0) {
    raw.a = low_word(op, b, 1);
    constants.k_a = load_pair(c[4], at), constants.a_bias = load_pair(c[1], at);
    const float2 a = learning_rate(mixing, raw, constants);
    const float2 kk = WORDS ? load_pair(o.kk, at) : removal_of(sh);
    if constexpr (!WORDS) *reinterpret_cast<float2*>(o.kk + at) = kk;
    *reinterpret_cast<float2*>(o.k + at) = scaled_key(unpack(words[1][lane]), a, constants);
    *reinterpret_cast<float2*>(o.b + at) = make_float2(kk.x * a.x, kk.y * a.y);
  } else if (warp == 1) {
    const float2 w = low_pair(op, b.sh.sums, 0), bias = load_pair(c[0], at);
    *reinterpret_cast<float2*>(o.w + at) = make_float2(decay(w.x + bias.x), decay(w.y + bias.y));
    *reinterpret_cast<float2*>(o.r + at) = unpack(words[0][lane]);
  } else if (warp == 2) {
    raw.v = words[2][lane], raw.first = words[3][lane];
    if (mixing.v_gate != nullptr) raw.gate = low_word(op, b, kLow - 1);
    constants.v_bias = load_pair(c[2], at);
    keep_first_value(mixing, raw, task.token, task.head);
    *reinterpret_cast<float2*>(o.v + at) = mixed_value(mixing, raw, constants);
  } else if (warp == 3) {
    *reinterpret_cast<float2*>(sh.gate + at) = low_pair(op, b.sh.sums, 2);
  }
}

/** Computes one head, from its low ranks to its part of `out`. */
__device__ __forceinline__ void run_head(const FewRows& op, Block& b, Stream& s, const Layer& layer,
                                         const HeadTask& task, Eight& state) {
  static_assert(kWorkers == 512, "8 lanes to each of the 64 rows of a state");
  const Wkv7& mixing = layer.mixing;
  const int lane = threadIdx.x & 31;
  const bool is_worker = threadIdx.x < kWorkers;
  const f16* const inputs = reinterpret_cast<const f16*>(b.region);
  if (is_worker)
    low_products(op, s, inputs, b.sh.sums, mixing.v_gate != nullptr);
  else if (WORDS)
    prepare_removal(b.sh);
  sync_threads();
  prepare_head(op, mixing, b.sh, b, task);
  sync_threads();
  const Operands& o = b.sh.operands;
  const int q = threadIdx.x & 7, row = threadIdx.x >> 3;
  float v = 0, k_lo = 0, k_hi = 0;
  const auto store = [&] {
    state_t* const to = state_row(mixing, next_slot_of(b, task.token), task.head);
    store4(to + 4 * q, state.lo, row_noise(v, k_lo, row * 16 + 2 * q));
    store4(to + 32 + 4 * q, state.hi, row_noise(v, k_hi, row * 16 + 2 * q + 1));
  };
  if (is_worker) {
    const Eight k = eight(o.k, q);
    v = o.v[row], k_lo = k.lo[0], k_hi = k.hi[0];
    const float removed = sum8(dot(state, eight(o.kk, q)));
    update(state, removed, v, eight(o.w, q), eight(o.b, q), k);
    const float y = sum8(dot(state, eight(o.r, q)));
    if (q == 0) b.sh.outputs[row] = y;
    if constexpr (!WORDS) store();
  } else {
    const float2 r = load_pair(o.r, 2 * lane), k = load_pair(o.k, 2 * lane),
                 r_k = load_pair(b.sh.constants[5], 2 * lane);
    const float bonus = warp_sum(r.x * k.x * r_k.x + r.y * k.y * r_k.y);
    if (lane == 0) b.sh.bonus = bonus;
  }
  sync_threads();
  // All blocks wait for the head's output, none for its state.
  if (WORDS && is_worker && threadIdx.x >= 32) store();
  if (threadIdx.x >= 32) return;
  const float(&c)[8][64] = b.sh.constants;
  const Finish f = {load_pair(b.sh.gate, 2 * lane), load_pair(c[5], 2 * lane),
                    load_pair(c[6], 2 * lane), load_pair(c[7], 2 * lane)};
  if constexpr (WORDS)
    b.words.give(kOfHeads + (task.token * kHeads + task.head) * 32 + lane,
                 finished(mixing, load_pair(b.sh.outputs, 2 * lane), b.sh.bonus,
                          load_pair(o.v, 2 * lane), f)),
        store();
  else
    finish(mixing, task.token, task.head, load_pair(b.sh.outputs, 2 * lane), b.sh.bonus,
           load_pair(o.v, 2 * lane), f);
}

/** Loads what other blocks have computed for the head, all at once: the last four worker warps load
 * r, k, v and the first value, the warps before them the inner low ranks. */
__device__ __forceinline__ void fetch_head(const FewRows& op, Block& b, const Wkv7& mixing,
                                           const HeadTask& task) {
  constexpr int kWordWarp = WARPS - 4;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const f16* const y = op.y + task.token * op.first[kIn];
  const uint4* const from = reinterpret_cast<const uint4*>(y + kFirstLow * CHANNELS);
  const int count = (op.first[kIn] - op.first[kFirstLow]) / kVector;
  uint4* const x = reinterpret_cast<uint4*>(b.region);
  if (warp >= kWordWarp && warp < WARPS) {
    const int which = warp - kWordWarp;
    const f16* const words =
        which < 3 ? y + which * CHANNELS : mixing.v_first + task.token * CHANNELS;
    if (which < 3 || mixing.v_gate != nullptr)
      b.sh.words[which][lane] = fresh_word(words, task.head * 64 + 2 * lane);
  } else if (warp < kWordWarp) {
    for (int i = threadIdx.x; i < count; i += 32 * kWordWarp) x[i] = as_input(__ldcg(from + i));
  }
}

/** The same with words, as soon as each is there. */
__device__ __forceinline__ void take_head(const FewRows& op, Block& b, const Layer& layer,
                                          const HeadTask& task) {
  constexpr int kWordWarp = WARPS - 4;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, which = warp - kWordWarp;
  const int y = kOfIn + task.token * op.first[kIn], channel = task.head * 64 + 2 * lane;
  if (warp < kWordWarp) {
    const int count = (in_rows(op, layer.matrices) - op.first[kFirstLow]) / 4;
    for (int i = threadIdx.x; i < count; i += 32 * kWordWarp) {
      const uint4 four = b.words.take_four(y + op.first[kFirstLow] + 4 * i);
      // In the order of as_input().
      u32* const x = reinterpret_cast<u32*>(b.region) + i / 2 * 4 + i % 2;
      x[0] = four.x | four.y << 16, x[2] = four.z | four.w << 16;
    }
  } else if (which < 3) {
    const uint2 two = b.words.take_two(y + which * CHANNELS + channel);
    b.sh.words[which][lane] = two.x | two.y << 16;
  } else if (warp < WARPS && layer.mixing.v_gate != nullptr) {
    b.sh.words[which][lane] = fresh_word(layer.mixing.v_first + task.token * CHANNELS, channel);
  }
}

/** The `heads` phase. */
__device__ __forceinline__ void heads_phase(const FewRows& op, Block& b, Stream& s, int l,
                                            const Row& shift) {
  const Layer& layer = b.sh.layers[l & 1];
  Eight state = load_head(b, layer, b.tasks.at(0));
#if WORDS
  store_row(b.sh.shift, shift);
#else
  b.barrier.wait();
  keep_shift(op, b, layer, 0, shift);
#endif
  for (int i = 0; b.tasks.has(b.tasks.at(i)); i++) {
    const HeadTask task = b.tasks.at(i), next = b.tasks.at(i + 1);
    if constexpr (WORDS)
      take_head(op, b, layer, task);
    else
      fetch_head(op, b, layer.mixing, task);
    sync_threads();
    run_head(op, b, s, layer, task, state);
    if (b.tasks.has(next)) {
      sync_threads();
      // If it is the next token of the same row, this state is what these threads have just stored.
      state = load_head(b, layer, next);
    }
  }
}
