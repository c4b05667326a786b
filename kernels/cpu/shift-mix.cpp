// Layer norm, token shift and channel mixes in one pass. Per token t of a row:
//   h = LN(x[t]);  d = previous h − h;  out[i][t] = h + d·mix[i]
#include <algorithm>

#include "norm.h"
#include "program.h"
#include "states.h"

namespace skein {

namespace {

constexpr int64_t kBlock = 64;  // channels: at least one cache line of every array

struct ShiftMix final : Command {
  std::vector<float*> out;  // n × [T, C]
  const float* x;           // [T, C]
  Norm norm;
  std::vector<const float*> mix;  // n × [C]
  sk_states* states;
  int32_t layer, which;
  std::vector<const Rounded*> rounded;

  bool rounds(const Rounded& one) override {
    const bool is_output = std::find(out.begin(), out.end(), one.values) != out.end();
    if (!is_output || one.columns != states->channels || one.columns % kGroup != 0) return false;
    rounded.push_back(&one);
    return true;
  }

  void check(const Batch& batch) const override { check_slots(*states, batch); }

  // An item is a range of channels of one row. Only that item reads and replaces those channels of
  // the state. Every range computes the row's moments again, which costs little beside the products
  // around it.
  int64_t ranges(const Batch& batch, int threads) const {
    const int64_t wanted = div_up(2 * threads, std::max(batch.num_rows, 1));
    return std::clamp<int64_t>(wanted, 1, div_up(states->channels, kBlock));
  }

  int64_t items(const Batch& batch, int threads) const override {
    return batch.num_rows * ranges(batch, threads);
  }

  void run(const Batch& batch, int64_t item, int, int threads) override {
    const int64_t count = ranges(batch, threads);
    const int64_t row = item / count, range = item % count;
    const int64_t blocks = div_up(states->channels, kBlock);
    const int64_t from = blocks * range / count * kBlock;
    const int64_t to = std::min<int64_t>(blocks * (range + 1) / count * kBlock, states->channels);
    float* previous = states->shift(batch.slots[row], layer, which);
    for (int64_t t = batch.starts[row]; t < batch.starts[row + 1]; t++)
      mix_token(t, previous, from, to);
  }

  void mix_token(int64_t t, float* previous, int64_t from, int64_t to) const {
    const int64_t channels = states->channels;
    const float* row = x + t * channels;
    const Moments m = moments(row, channels, norm.eps);
    int64_t c = from;
    for (; c + kLanes <= to; c += kLanes) {
      const vf h =
          fma((load(row + c) - m.mean) * m.scale, load(norm.weight + c), load(norm.bias + c));
      const vf d = load(previous + c) - h;
      store(previous + c, h);
      for (size_t i = 0; i < out.size(); i++)
        store(out[i] + t * channels + c, fma(d, load(mix[i] + c), h));
    }
    for (; c < to; c++) {
      const float h = (row[c] - m.mean) * m.scale * norm.weight[c] + norm.bias[c];
      const float d = previous[c] - h;
      previous[c] = h;
      for (size_t i = 0; i < out.size(); i++) out[i][t * channels + c] = h + d * mix[i][c];
    }
    for (const Rounded* one : rounded) one->round(t, from, to - from);
  }
};

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" int32_t sk_record_shift_mix(sk_program* program, int32_t num_out, float* const* out,
                                       const float* x, const float* norm_weight,
                                       const float* norm_bias, float eps, const float* const* mix,
                                       sk_states* states, int32_t layer, int32_t which) {
  return guard([&] {
    require(num_out > 0, "shift_mix needs an output");
    require(layer >= 0 && layer < states->layers && (which == 0 || which == 1),
            "no such shift vector");
    auto command = std::make_unique<ShiftMix>();
    command->out.assign(out, out + num_out);
    command->x = x;
    command->norm = {norm_weight, norm_bias, eps};
    command->mix.assign(mix, mix + num_out);
    command->states = states;
    command->layer = layer;
    command->which = which;
    program->commands.push_back(std::move(command));
  });
}
