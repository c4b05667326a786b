// DeepEmbed of RWKV-7a: M = own[t] + table[tokens[t]], as [S, S]; u[t] *= s0 + (low[t]·M)·s2.
// Tolerance: 1e-6 RMS against reference/ops.ts.
#include "convert.h"
#include "elementwise.h"
#include "table.h"

namespace skein {

namespace {

constexpr int64_t kMaxSide = 64;

struct DeepEmbed final : Elementwise {
  int64_t side;
  float* u;                // [T, F]
  const float *low, *own;  // [T, S], [T, S·S]
  const sk_table* table;   // [V, S·S]
  const float *s2, *s0;    // [S, F], [F]

  void check(const Batch& batch) const override {
    for (int32_t t = 0; t < batch.num_tokens; t++)
      require(batch.tokens[t] >= 0 && batch.tokens[t] < table->rows,
              "token id outside the DeepEmbed table");
  }

  void run(const Batch& batch, int64_t item, int, int) override {
    const auto [token, from, to] = range(item);
    float by[kMaxSide];
    multiply(batch.tokens[token], token, by);
    float* row = u + token * channels;
    int64_t f = from;
    for (; f + kLanes <= to; f += kLanes) {
      vf factor = load(s0 + f);
      for (int64_t j = 0; j < side; j++)
        factor = fma(splat(by[j]), load(s2 + j * channels + f), factor);
      store(row + f, load(row + f) * factor);
    }
    for (; f < to; f++) {
      float factor = s0[f];
      for (int64_t j = 0; j < side; j++) factor += by[j] * s2[j * channels + f];
      row[f] *= factor;
    }
  }

 private:
  /// by = low·M.
  void multiply(int64_t id, int64_t token, float* by) const {
    float row[kMaxSide];
    const uint8_t* stored = table->data.as<uint8_t>() + id * table->row_bytes();
    const int64_t row_bytes = table->row_bytes() / side;
    std::fill(by, by + side, 0.0f);
    for (int64_t i = 0; i < side; i++) {
      to_floats(table->type, stored + i * row_bytes, row, side);
      const float scale = low[token * side + i];
      const float* added = own + (token * side + i) * side;
      for (int64_t j = 0; j < side; j++) by[j] += scale * (row[j] + added[j]);
    }
  }
};

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" int32_t sk_record_deep_embed(sk_program* program, float* u, const float* low,
                                        const float* own, const sk_table* table, const float* s2,
                                        const float* s0, int32_t channels, int32_t side) {
  return guard([&] {
    require(channels > 0 && side > 0 && side <= kMaxSide,
            "DeepEmbed needs channels, and matrices of 64 rows at most");
    require(table->columns == int64_t{side} * side && !is_packed(table->type),
            "a DeepEmbed table has a square matrix for each token");
    auto command = std::make_unique<DeepEmbed>();
    command->side = side, command->u = u, command->low = low, command->own = own;
    command->table = table, command->s2 = s2, command->s0 = s0;
    command->channels = channels;
    program->commands.push_back(std::move(command));
  });
}
