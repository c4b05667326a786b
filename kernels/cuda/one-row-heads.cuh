// The phase `heads` of one-row.cu: a block a head, from the low ranks to the gated output.
#pragma once
#include "one-row-stream.cuh"

__device__ __forceinline__ state_t* state_row(const Block& b, const Wkv7& mixing, int head) {
  return static_cast<state_t*>(mixing.state) + b.slot * mixing.slot_stride +
         (head * 64 + (int)(threadIdx.x >> 3)) * 64;
}

/** What is asked for of a head before the barrier: its constants into shared memory, its state into
 * registers. */
__device__ __forceinline__ Eight load_head(Block& b, const Layer& layer, int head) {
  if (head >= kHeads || threadIdx.x >= kWorkers) return {};
  const int vector = (int)threadIdx.x / 16, part = threadIdx.x % 16;
  if (vector < 8 && layer.vectors[kOwn + vector] != nullptr)
    reinterpret_cast<float4*>(b.sh.constants[vector])[part] =
        reinterpret_cast<const float4*>(layer.vectors[kOwn + vector] + 64 * head)[part];
  return load_state(state_row(b, layer.mixing, head), threadIdx.x & 7);
}

/** The head's outer low ranks, one after the other: logits[low][channel]. Ranks are multiples of 32,
 * so that 4 lanes' numbers are of one row. */
__device__ __forceinline__ void low_products(const OneRow& op, Block& b, Stream& s, int lows) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const f16* x = reinterpret_cast<const f16*>(b.region);
#pragma unroll 1
  for (int low = 0; low < lows; low++) {
    const int rank = rank_of(op, low), length = kLowRows * rank;
    float rows[kLowRows] = {};
#pragma unroll 1
    for (int begin = 0; begin < length; begin += kPiece) {
      const Piece w = take(s, b.ring);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int row = 0, column = begin + kHalf * half + kVector * lane;
        const bool inside = column < length;
#pragma unroll
        for (int i = 1; i < kLowRows; i++)
          if (column >= rank) column -= rank, row++;
        Products sums = {};
        add_products(sums, w.half[half],
                     *reinterpret_cast<const uint4*>(x + (inside ? column : 0)));
        const float sum = inside ? diagonal(sums) : 0.0f;
#pragma unroll
        for (int i = 0; i < kLowRows; i++) rows[i] += row == i ? sum : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kLowRows; i++) {
      const float sum = warp_sum(rows[i]);
      if (lane == 0) b.sh.logits[low][kLowRows * warp + i] = sum;
    }
    x += rank;
  }
}

__device__ __forceinline__ u32 logit_word(const Block& b, int low) {
  const float2 pair = load_pair(b.sh.logits[low], 2 * (threadIdx.x & 31));
  return pack(pair.x, pair.y);
}

/** One head from its low ranks to its part of out. */
__device__ __forceinline__ void run_head(const OneRow& op, Block& b, Stream& s, const Layer& layer,
                                         int head, Eight& state) {
  static_assert(kWorkers == 512, "8 lanes to each of the 64 rows of a state");
  const Wkv7& mixing = layer.mixing;
  const int lane = threadIdx.x & 31, lows = num_low(layer.matrices);
  if (threadIdx.x < 4 * 32) {
    const int which = threadIdx.x >> 5;
    const f16* const x = which == 0   ? mixing.r
                         : which == 1 ? mixing.k
                         : which == 2 ? mixing.v
                                      : mixing.v_first;
    if (which < 3 || mixing.v_gate != nullptr)
      b.sh.words[which][lane] = fresh_word(x, head * 64 + 2 * lane);
  }
  const bool is_worker = threadIdx.x < kWorkers;
  if (is_worker) low_products(op, b, s, lows);
  __syncthreads();
  if (threadIdx.x < 32) {
    const float(&c)[8][64] = b.sh.constants;
    const Constants constants = {load_pair(c[3], 2 * lane), load_pair(c[4], 2 * lane),
                                 load_pair(c[0], 2 * lane), load_pair(c[1], 2 * lane),
                                 load_pair(c[2], 2 * lane)};
    const u32(&words)[4][32] = b.sh.words;
    const Raw raw = {words[0][lane],
                     logit_word(b, 0),
                     words[1][lane],
                     words[2][lane],
                     logit_word(b, 1),
                     mixing.v_gate == nullptr ? 0 : logit_word(b, kLow - 1),
                     words[3][lane]};
    keep_first_value(mixing, raw, 0, head);
    share(b.sh.operands, prepare(mixing, raw, constants));
  }
  __syncthreads();
  const Operands& o = b.sh.operands;
  if (is_worker) {
    const int q = threadIdx.x & 7, row = threadIdx.x >> 3;
    const Eight k = eight(o.k, q);
    const float v = o.v[row], sa = -sum8(dot(state, eight(o.kk, q)));
    update(state, sa, v, eight(o.w, q), eight(o.b, q), k);
    const float y = sum8(dot(state, eight(o.r, q)));
    if (q == 0) b.sh.outputs[row] = y;
    state_t* const to = state_row(b, mixing, head);
    store4(to + 4 * q, state.lo, row_noise(v, k.lo[0], row * 16 + 2 * q));
    store4(to + 32 + 4 * q, state.hi, row_noise(v, k.hi[0], row * 16 + 2 * q + 1));
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const float(&c)[8][64] = b.sh.constants;
  const float2 r = load_pair(o.r, 2 * lane), k = load_pair(o.k, 2 * lane),
               r_k = load_pair(c[5], 2 * lane);
  const float bonus = warp_sum(r.x * k.x * r_k.x + r.y * k.y * r_k.y);
  const Finish f = {unpack(logit_word(b, 2)), r_k, load_pair(c[6], 2 * lane),
                    load_pair(c[7], 2 * lane)};
  finish(mixing, 0, head, load_pair(b.sh.outputs, 2 * lane), bonus, load_pair(o.v, 2 * lane), f);
}

/** heads */
__device__ __forceinline__ void heads_phase(const OneRow& op, Block& b, Stream& s, int l,
                                            const Row& shift) {
  const Layer& layer = b.sh.layers[l & 1];
  Eight state = load_head(b, layer, blockIdx.x);
  b.barrier.wait();
  keep_shift(op, b, layer, 0, shift);
  if (blockIdx.x >= kHeads) return;
  f16* const x = reinterpret_cast<f16*>(b.region);
  int begin = 0;
  for (int low = 0; low < num_low(layer.matrices); low++) {
    const int rank = rank_of(op, low);
    const int i = kVector * threadIdx.x;
    if (i < rank)
      *reinterpret_cast<uint4*>(x + begin + i) =
          __ldcg(reinterpret_cast<const uint4*>(op.y[kFirstLow + low] + i));
    begin += rank;
  }
  __syncthreads();
  for (int head = blockIdx.x; head < kHeads; head += BLOCKS) {
    run_head(op, b, s, layer, head, state);
    if (head + BLOCKS < kHeads) {
      __syncthreads();
      state = load_head(b, layer, head + BLOCKS);
      __syncthreads();
    }
  }
}
