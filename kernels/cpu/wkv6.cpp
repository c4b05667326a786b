// RWKV-6 time mixing, from the projections to the gated head outputs; `Ops.wkv6` in
// src/backend/backend.ts has the formulas. A head's state is held as [key][value]. Lanes hold
// values, so no sum crosses lanes.
#include "norm.h"
#include "program.h"
#include "states.h"
#include "vec.h"

namespace skein {

namespace {

constexpr int kMaxHeadSize = 256;

/// Per-key factors and per-value terms of one token and head.
struct Token {
  alignas(64) float w[kMaxHeadSize];  // decay in [0, 1]
  alignas(64) float y[kMaxHeadSize];
  float bonus;  // Σ r·u·k
};

struct Wkv6 final : Command {
  float* out;  // [T, C]; so are the next five
  const float *r, *k, *v, *w, *g;
  const float* u;  // [C]
  Norm ln_x;       // [C]
  sk_states* states;
  int32_t layer;

  void check(const Batch& batch) const override { check_slots(*states, batch); }

  int64_t items(const Batch& batch, int) const override {
    return int64_t{batch.num_rows} * states->heads;
  }

  void run(const Batch& batch, int64_t item, int, int) override {
    const int32_t row = static_cast<int32_t>(item / states->heads);
    const int32_t head = static_cast<int32_t>(item % states->heads);
    float* state = states->wkv(batch.slots[row], layer, head);
    const int64_t size = states->head_size, channels = states->channels, channel = head * size;
    Token token;
    for (int64_t t = batch.starts[row]; t < batch.starts[row + 1]; t++) {
      const int64_t at = t * channels + channel;
      prepare(token, at, channel, size);
      int64_t first = 0;
      for (; first + 4 * kLanes <= size; first += 4 * kLanes)
        advance<4>(state, token, at, size, first);
      for (; first < size; first += kLanes) advance<1>(state, token, at, size, first);
      finish(token, at, channel, size);
    }
  }

  /// Prepares one token of one head. `at` is the head's offset in [T, C], `channel` its offset in
  /// [C].
  void prepare(Token& token, int64_t at, int64_t channel, int64_t size) const {
    vf bonus = {};
    for (int64_t i = 0; i < size; i += kLanes) {
      bonus = fma(load(r + at + i) * load(u + channel + i), load(k + at + i), bonus);
      // A logit beyond 88 makes the inner exponential infinite and the decay 0, which is right.
      store(token.w + i, exp(-exp(load(w + at + i))));
    }
    token.bonus = sum(bonus);
  }

  /// y = S·r + bonus·v with the old S, then S ← S·diag(w) + v·kᵀ; for Vectors·kLanes values from
  /// `first` on.
  template <int Vectors>
  void advance(float* state, Token& token, int64_t at, int64_t size, int64_t first) const {
    vf values[Vectors], y[Vectors];
    for (int i = 0; i < Vectors; i++) {
      values[i] = load(v + at + first + i * kLanes);
      y[i] = values[i] * token.bonus;
    }
    float* s = state + first;
    for (int64_t key = 0; key < size; key++, s += size) {
      const vf decay = splat(token.w[key]), key_k = splat(k[at + key]), key_r = splat(r[at + key]);
      for (int i = 0; i < Vectors; i++) {
        const vf old = load(s + i * kLanes);
        y[i] = fma(old, key_r, y[i]);
        store(s + i * kLanes, fma(values[i], key_k, old * decay));
      }
    }
    for (int i = 0; i < Vectors; i++) store(token.y + first + i * kLanes, y[i]);
  }

  void finish(const Token& token, int64_t at, int64_t channel, int64_t size) const {
    const Moments m = moments(token.y, size, ln_x.eps);
    for (int64_t i = 0; i < size; i += kLanes) {
      const vf y = (load(token.y + i) - m.mean) * m.scale;
      const vf gate = load(g + at + i);
      const vf silu = gate * sigmoid(gate);
      store(out + at + i,
            fma(y, load(ln_x.weight + channel + i), load(ln_x.bias + channel + i)) * silu);
    }
  }
};

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" int32_t sk_record_wkv6(sk_program* program, float* out, const float* r, const float* k,
                                  const float* v, const float* w, const float* g, const float* u,
                                  const float* ln_weight, const float* ln_bias, float ln_eps,
                                  sk_states* states, int32_t layer) {
  return guard([&] {
    require(layer >= 0 && layer < states->layers, "no such layer in the state pool");
    require(states->heads * states->head_size == states->channels,
            "wkv6 needs channels = heads × head size");
    auto command = std::make_unique<Wkv6>();
    command->out = out;
    command->r = r, command->k = k, command->v = v, command->w = w, command->g = g;
    command->u = u;
    command->ln_x = {ln_weight, ln_bias, ln_eps};
    command->states = states;
    command->layer = layer;
    program->commands.push_back(std::move(command));
  });
}
