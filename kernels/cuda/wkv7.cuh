// Shared by the kernels of RWKV-7 time mixing: one head of one token before and after the
// recurrence, by one warp. A lane owns channels 2·lane and 2·lane + 1 of the head's 64.
#pragma once
#include "wkv-state.cuh"

/** Operands f16 [T, C]; constants f32 [C]; as in backend.ts's wkv7. */
struct Wkv7 {
  f16* out;
  const f16* r;
  const f16* k;
  const f16* v;
  const f16* w;
  const f16* a;
  const f16* g;
  /** Null in layer 0, which writes v_first. */
  const f16* v_gate;
  f16* v_first;
  /** If not null, this bias (and for a and v_gate the sigmoid) must still be applied to the
   * operand. */
  const float* w_bias;
  const float* a_bias;
  const float* v_bias;
  const float* k_k;
  const float* k_a;
  const float* r_k;
  const float* ln_weight;
  const float* ln_bias;
  /** The layer's states: slot s is at state + s·slot_stride, [H, 64 value, 64 key] f32 or f16. */
  void* state;
  long long slot_stride;
  int channels;
  float eps;
};

/** Two adjacent channels of the recurrence's operands. */
struct Prepared {
  float2 r, w, k, v, kk, b;
};

__device__ __forceinline__ float2 load_pair(const f16* x, long long at) {
  return unpack(*reinterpret_cast<const u32*>(x + at));
}

// Powers and reciprocals are single instructions. Branches would keep a warp from working on
// several tokens at once.
/** σ(x). */
__device__ __forceinline__ float gate(float x) {
  return reciprocal(1.0f + power(-1.44269504f * x));
}

/** The logarithm, in base 2, of exp(−e^(−½)·σ(logit)). */
__device__ __forceinline__ float log_decay(float logit) { return -0.87503873f * gate(logit); }

__device__ __forceinline__ float decay(float logit) { return power(log_decay(logit)); }

/** Two channels of a token's operands, as words in their memory format. */
struct Raw {
  u32 r, w, k, v, a, gate, first;
};

__device__ __forceinline__ Raw load_raw(const Wkv7& op, int t, int head) {
  const long long at = (long long)t * op.channels + head * 64 + 2 * (threadIdx.x & 31);
  const bool has_gate = op.v_gate != nullptr;
  return {load_word(op.r, at),
          load_word(op.w, at),
          load_word(op.k, at),
          load_word(op.v, at),
          load_word(op.a, at),
          has_gate ? load_word(op.v_gate, at) : 0,
          has_gate ? load_word(op.v_first, at) : 0};
}

/** Two channels of the constants that are used before the recurrence. */
struct Constants {
  float2 k_k, k_a, w_bias, a_bias, v_bias;
};

__device__ __forceinline__ float2 load_optional(const float* x, int at) {
  return x == nullptr ? make_float2(0, 0) : load_pair(x, at);
}

__device__ __forceinline__ Constants load_constants(const Wkv7& op, int head) {
  const int channel = head * 64 + 2 * (threadIdx.x & 31);
  return {load_pair(op.k_k, channel), load_pair(op.k_a, channel), load_optional(op.w_bias, channel),
          load_optional(op.a_bias, channel), load_optional(op.v_bias, channel)};
}

/** Applies the bias and the sigmoid, if the operand still needs them. */
__device__ __forceinline__ float2 completed(float2 x, float2 bias, bool lacks) {
  const float2 y = make_float2(gate(x.x + bias.x), gate(x.y + bias.y));
  return make_float2(lacks ? y.x : x.x, lacks ? y.y : x.y);
}

/** v, mixed with the first layer's v. */
__device__ __forceinline__ float2 mixed_value(const Wkv7& op, const Raw& raw, const Constants& c) {
  const float2 v = unpack(raw.v), first = unpack(raw.first);
  const float2 move = completed(unpack(raw.gate), c.v_bias, op.v_bias != nullptr);
  const bool moves = op.v_gate != nullptr;
  return make_float2(moves ? v.x + (first.x - v.x) * move.x : v.x,
                     moves ? v.y + (first.y - v.y) * move.y : v.y);
}

__device__ __forceinline__ float2 learning_rate(const Wkv7& op, const Raw& raw,
                                                const Constants& c) {
  return completed(unpack(raw.a), c.a_bias, op.a_bias != nullptr);
}

/** k, scaled by the in-context learning rate. */
__device__ __forceinline__ float2 scaled_key(float2 k, float2 a, const Constants& c) {
  return make_float2(k.x * (1 + (a.x - 1) * c.k_a.x), k.y * (1 + (a.y - 1) * c.k_a.y));
}

/** kk before it is scaled to length 1. */
__device__ __forceinline__ float2 removal_key(float2 k, const Constants& c) {
  return make_float2(k.x * c.k_k.x, k.y * c.k_k.y);
}

/** The factor that scales a vector with this squared length to length 1. Not with fmaxf, which
 * would drop a NaN. */
__device__ __forceinline__ float scale_to_one(float square) {
  return square < 1e-24f ? 1e12f : reciprocal_root(square);
}

__device__ __forceinline__ Prepared prepare(const Wkv7& op, const Raw& raw, const Constants& c) {
  const float2 w = unpack(raw.w), k = unpack(raw.k), a = learning_rate(op, raw, c);
  Prepared p;
  p.r = unpack(raw.r);
  p.v = mixed_value(op, raw, c);
  p.w = make_float2(decay(w.x + c.w_bias.x), decay(w.y + c.w_bias.y));
  const float2 kk = removal_key(k, c);
  const float scale = scale_to_one(warp_sum(kk.x * kk.x + kk.y * kk.y));
  p.kk = make_float2(kk.x * scale, kk.y * scale);
  p.b = make_float2(p.kk.x * a.x, p.kk.y * a.y);
  p.k = scaled_key(k, a, c);
  return p;
}

/** In layer 0, which has no gate, v is stored as v_first. */
__device__ __forceinline__ void keep_first_value(const Wkv7& op, const Raw& raw, int t, int head) {
  if (op.v_gate != nullptr) return;
  const long long at = (long long)t * op.channels + head * 64 + 2 * (threadIdx.x & 31);
  *reinterpret_cast<u32*>(op.v_first + at) = raw.v;
}

/** Two channels of what the steps after the recurrence need. */
struct Finish {
  float2 g, r_k, gain, bias;
};

__device__ __forceinline__ Finish load_finish(const Wkv7& op, int t, int head) {
  const int channel = head * 64 + 2 * (threadIdx.x & 31);
  return {load_pair(op.g, (long long)t * op.channels + channel), load_pair(op.r_k, channel),
          load_pair(op.ln_weight, channel), load_pair(op.ln_bias, channel)};
}

/** (GN(y)·ln_x + bonus·v)·g of two channels, with bonus = Σ r·k·r_k. */
__device__ __forceinline__ u32 finished(const Wkv7& op, float2 y, float bonus, float2 v,
                                        const Finish& f) {
  y = head_norm(y, op.eps);
  return pack((y.x * f.gain.x + f.bias.x + bonus * v.x) * f.g.x,
              (y.y * f.gain.y + f.bias.y + bonus * v.y) * f.g.y);
}

/** out = what is finished. */
__device__ __forceinline__ void finish(const Wkv7& op, int t, int head, float2 y, float bonus,
                                       float2 v, const Finish& f) {
  const u32 out = finished(op, y, bonus, v, f);
  const long long at = (long long)t * op.channels + head * 64 + 2 * (threadIdx.x & 31);
  *reinterpret_cast<u32*>(op.out + at) = out;
}

/** What one token does to the state of a head. */
struct Change {
  float w[64], k[64], v[64], kk[64], b[64];
};

/** The recurrence's operands of one token, in shared memory. */
struct Operands : Change {
  float r[64];
};

__device__ __forceinline__ void put(Change& to, const Prepared& p) {
  const int c = 2 * (threadIdx.x & 31);
  *reinterpret_cast<float2*>(to.w + c) = p.w;
  *reinterpret_cast<float2*>(to.k + c) = p.k;
  *reinterpret_cast<float2*>(to.v + c) = p.v;
  *reinterpret_cast<float2*>(to.kk + c) = p.kk;
  *reinterpret_cast<float2*>(to.b + c) = p.b;
}

__device__ __forceinline__ void share(Operands& to, const Prepared& p) {
  put(to, p);
  *reinterpret_cast<float2*>(to.r + 2 * (threadIdx.x & 31)) = p.r;
}

/** One number of S·diag(w) − removed·b + v·k. All kernels add in this order. */
__device__ __forceinline__ float changed(float s, float w, float removed, float b, float v,
                                         float k) {
  return fmaf(s, w, fmaf(v, k, -(removed * b)));
}

/** S ← S·diag(w) − removed·b + v·k for a lane's part of a row. */
__device__ __forceinline__ void update(Eight& s, float removed, float v, const Eight& w,
                                       const Eight& b, const Eight& k) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    s.lo[i] = changed(s.lo[i], w.lo[i], removed, b.lo[i], v, k.lo[i]);
    s.hi[i] = changed(s.hi[i], w.hi[i], removed, b.hi[i], v, k.hi[i]);
  }
}
