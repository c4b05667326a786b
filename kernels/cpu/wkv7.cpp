// RWKV-7 time mixing, from the projections to the gated head outputs; `Ops.wkv7` in
// src/backend/backend.ts has the formulas. A head's state is held as [key][value]. Lanes hold
// values, so no sum crosses lanes.
#include <cmath>

#include "norm.h"
#include "program.h"
#include "states.h"
#include "vec.h"

namespace skein {

namespace {

constexpr int kMaxHeadSize = 256;

/// Per-key factors and per-value terms of one token and head.
struct Token {
  alignas(64) float r[kMaxHeadSize];
  alignas(64) float w[kMaxHeadSize];   // decay in (0.545, 1)
  alignas(64) float k[kMaxHeadSize];   // after k_a
  alignas(64) float v[kMaxHeadSize];   // after the mix with v_first
  alignas(64) float kk[kMaxHeadSize];  // unit length
  alignas(64) float ka[kMaxHeadSize];  // kk·a
  alignas(64) float y[kMaxHeadSize];
  float bonus;  // Σ r·k·r_k
};

/// S ← S·diag(w) − (S·kk)(kk⊙a)ᵀ + v·kᵀ, then y = S·r; for Vectors·kLanes values from `first` on.
template <int Vectors>
void advance(float* state, Token& token, int64_t size, int64_t first) {
  vf sa[Vectors] = {}, v[Vectors], y[Vectors] = {};
  const float* s = state + first;
  for (int64_t k = 0; k < size; k++, s += size) {
    const vf kk = splat(token.kk[k]);
    for (int i = 0; i < Vectors; i++) sa[i] = fma(load(s + i * kLanes), kk, sa[i]);
  }
  for (int i = 0; i < Vectors; i++) v[i] = load(token.v + first + i * kLanes);
  float* d = state + first;
  for (int64_t k = 0; k < size; k++, d += size) {
    const vf w = splat(token.w[k]), ka = splat(-token.ka[k]), key = splat(token.k[k]),
             r = splat(token.r[k]);
    for (int i = 0; i < Vectors; i++) {
      vf next = load(d + i * kLanes) * w;
      next = fma(sa[i], ka, next);
      next = fma(v[i], key, next);
      store(d + i * kLanes, next);
      y[i] = fma(next, r, y[i]);
    }
  }
  for (int i = 0; i < Vectors; i++) store(token.y + first + i * kLanes, y[i]);
}

struct Wkv7 final : Command {
  float* out;  // [T, C]; so are the next eight
  const float *r, *k, *v, *w, *a, *g;
  const float* v_gate;  // null in the first layer
  float* v_first;
  const float *k_k, *k_a, *r_k;  // [C]
  Norm ln_x;                     // [C]
  sk_states* states;
  int32_t layer;
  std::vector<const Rounded*> rounded;

  bool rounds(const Rounded& one) override {
    if (one.values != out || one.columns != states->channels || states->head_size % kGroup != 0)
      return false;
    rounded.push_back(&one);
    return true;
  }

  void check(const Batch& batch) const override { check_slots(*states, batch); }

  int64_t items(const Batch& batch, int) const override {
    return int64_t{batch.num_rows} * states->heads;
  }

  void run(const Batch& batch, int64_t item, int, int) override {
    const int32_t row = static_cast<int32_t>(item / states->heads);
    const int32_t head = static_cast<int32_t>(item % states->heads);
    float* state = states->wkv(batch.slots[row], layer, head);
    const int64_t size = states->head_size, channels = states->channels;
    Token token;
    for (int64_t t = batch.starts[row]; t < batch.starts[row + 1]; t++) {
      prepare(token, t * channels + head * size, head * size, size);
      int64_t first = 0;
      for (; first + 4 * kLanes <= size; first += 4 * kLanes) advance<4>(state, token, size, first);
      for (; first < size; first += kLanes) advance<1>(state, token, size, first);
      finish(token, t * channels + head * size, head * size, size);
      for (const Rounded* one : rounded) one->round(t, head * size, size);
    }
  }

  /// Prepares one token of one head. `at` is the head's offset in [T, C], `channel` its offset in
  /// [C].
  void prepare(Token& token, int64_t at, int64_t channel, int64_t size) const {
    vf squares = {}, bonus = {};
    for (int64_t i = 0; i < size; i += kLanes) {
      const vf key = load(k + at + i), rate = load(a + at + i), r_i = load(r + at + i);
      const vf kk = key * load(k_k + channel + i);
      squares = fma(kk, kk, squares);
      const vf key_mixed = key * fma(rate - 1.0f, load(k_a + channel + i), splat(1.0f));
      bonus = fma(r_i * key_mixed, load(r_k + channel + i), bonus);
      store(token.r + i, r_i);
      store(token.kk + i, kk);
      store(token.k + i, key_mixed);
      // exp(−½) = 0.60653066
      store(token.w + i, exp(-0.60653066f * sigmoid(load(w + at + i))));
      vf value = load(v + at + i);
      if (v_gate == nullptr) {
        store(v_first + at + i, value);
      } else {
        value = fma(load(v_first + at + i) - value, load(v_gate + at + i), value);
      }
      store(token.v + i, value);
    }
    token.bonus = sum(bonus);
    const float length = std::sqrt(sum(squares));
    const float divisor = length < 1e-12f ? 1e-12f : length;
    for (int64_t i = 0; i < size; i += kLanes) {
      const vf kk = load(token.kk + i) / divisor;
      store(token.kk + i, kk);
      store(token.ka + i, kk * load(a + at + i));
    }
  }

  void finish(const Token& token, int64_t at, int64_t channel, int64_t size) const {
    const Moments m = moments(token.y, size, ln_x.eps);
    for (int64_t i = 0; i < size; i += kLanes) {
      vf y = (load(token.y + i) - m.mean) * m.scale;
      y = fma(y, load(ln_x.weight + channel + i), load(ln_x.bias + channel + i));
      y = fma(load(token.v + i), splat(token.bonus), y);
      store(out + at + i, y * load(g + at + i));
    }
  }
};

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" int32_t sk_record_wkv7(sk_program* program, float* out, const float* r, const float* k,
                                  const float* v, const float* w, const float* a, const float* g,
                                  const float* v_gate, float* v_first, const float* k_k,
                                  const float* k_a, const float* r_k, const float* ln_weight,
                                  const float* ln_bias, float ln_eps, sk_states* states,
                                  int32_t layer) {
  return guard([&] {
    require(layer >= 0 && layer < states->layers, "no such layer in the state pool");
    require(states->heads * states->head_size == states->channels,
            "wkv7 needs channels = heads × head size");
    auto command = std::make_unique<Wkv7>();
    command->out = out;
    command->r = r, command->k = k, command->v = v, command->w = w, command->a = a, command->g = g;
    command->v_gate = v_gate, command->v_first = v_first;
    command->k_k = k_k, command->k_a = k_a, command->r_k = r_k;
    command->ln_x = {ln_weight, ln_bias, ln_eps};
    command->states = states;
    command->layer = layer;
    program->commands.push_back(std::move(command));
  });
}
