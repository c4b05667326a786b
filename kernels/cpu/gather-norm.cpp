// out[r] = LN(x[logit_rows[r]]), or a weighted sum of several such rows.
#include "norm.h"
#include "program.h"

namespace skein {

namespace {

struct GatherNorm final : Command {
  float* out;      // [R, C]
  const float* x;  // [T, C]
  int32_t channels;
  Norm norm;
  std::vector<float> spare;  // [threads, C]

  int64_t items(const Batch& batch, int) const override { return batch.num_logits; }

  void check(const Batch& batch) const override {
    for (int32_t r = 0; r < batch.num_logits; r++) {
      require(batch.blend_counts[r] <= batch.num_logits - r,
              "a blend reaches beyond the logit rows");
    }
  }

  void run(const Batch& batch, int64_t r, int thread, int) override {
    gather(batch, r, out + r * channels);
    if (batch.blend_counts[r] <= 1) return;
    float* blend = out + r * channels;
    float* other = spare.data() + int64_t{thread} * channels;
    for (int32_t c = 0; c < channels; c++) blend[c] *= batch.blend_weights[r];
    for (int64_t i = r + 1; i < r + batch.blend_counts[r]; i++) {
      gather(batch, i, other);
      for (int32_t c = 0; c < channels; c++) blend[c] += batch.blend_weights[i] * other[c];
    }
  }

  void gather(const Batch& batch, int64_t r, float* to) const {
    const float* from = x + int64_t{batch.logit_rows[r]} * channels;
    normalise(to, from, moments(from, channels, norm.eps), norm, 0, channels);
  }
};

}  // namespace

}  // namespace skein

extern "C" int32_t sk_record_gather_norm(sk_program* program, float* out, const float* x,
                                         int32_t channels, const float* norm_weight,
                                         const float* norm_bias, float eps) {
  return skein::guard([&] {
    auto command = std::make_unique<skein::GatherNorm>();
    command->out = out;
    command->x = x;
    command->channels = channels;
    command->norm = {norm_weight, norm_bias, eps};
    command->spare.resize(static_cast<size_t>(program->context->pool.threads()) * channels);
    program->commands.push_back(std::move(command));
  });
}
