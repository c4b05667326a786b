// out[r] = LN(x[logit_rows[r]])
#include "norm.h"
#include "program.h"

namespace skein {

namespace {

struct GatherNorm final : Command {
  float* out;      // [R, C]
  const float* x;  // [T, C]
  int32_t channels;
  Norm norm;

  int64_t items(const Batch& batch, int) const override { return batch.num_logits; }

  void run(const Batch& batch, int64_t r, int, int) override {
    const float* from = x + int64_t{batch.logit_rows[r]} * channels;
    normalise(out + r * channels, from, moments(from, channels, norm.eps), norm, 0, channels);
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
    program->commands.push_back(std::move(command));
  });
}
