// x += gate·value, the gated residual of RWKV-6's channel mixing.
#include "elementwise.h"

namespace skein {

namespace {

struct GatedAdd final : Elementwise {
  float* x;  // [T, C]; so are gate and value
  const float *gate, *value;

  void run(const Batch&, int64_t item, int, int) override {
    const auto [token, from, to] = range(item);
    const int64_t end = token * channels + to;
    int64_t c = token * channels + from;
    for (; c + kLanes <= end; c += kLanes)
      store(x + c, fma(load(gate + c), load(value + c), load(x + c)));
    for (; c < end; c++) x[c] += gate[c] * value[c];
  }
};

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" int32_t sk_record_gated_add(sk_program* program, float* x, const float* gate,
                                       const float* value, int32_t channels) {
  return guard([&] {
    require(channels > 0, "gated_add needs channels");
    auto command = std::make_unique<GatedAdd>();
    command->x = x, command->gate = gate, command->value = value;
    command->channels = channels;
    program->commands.push_back(std::move(command));
  });
}
