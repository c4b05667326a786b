// RWKV-6's data-dependent token shift, in place: mix[i] ← h + (prev − h)·(base[i] + mix[i]).
#include "elementwise.h"

namespace skein {

namespace {

struct Ddlerp final : Elementwise {
  std::vector<float*> mix;         // n × [T, C]
  const float *h, *prev;           // [T, C]
  std::vector<const float*> base;  // n × [C]

  void run(const Batch&, int64_t item, int, int) override {
    const auto [token, from, to] = range(item);
    const int64_t at = token * channels;
    int64_t c = from;
    for (; c + kLanes <= to; c += kLanes) {
      const vf now = load(h + at + c), d = load(prev + at + c) - now;
      for (size_t i = 0; i < mix.size(); i++) {
        float* y = mix[i] + at + c;
        store(y, fma(d, load(base[i] + c) + load(y), now));
      }
    }
    for (; c < to; c++) {
      const float now = h[at + c], d = prev[at + c] - now;
      for (size_t i = 0; i < mix.size(); i++)
        mix[i][at + c] = now + d * (base[i][c] + mix[i][at + c]);
    }
  }
};

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" int32_t sk_record_ddlerp(sk_program* program, int32_t num_mix, float* const* mix,
                                    const float* h, const float* prev, const float* const* base,
                                    int32_t channels) {
  return guard([&] {
    require(num_mix > 0 && channels > 0, "ddlerp needs an output and channels");
    auto command = std::make_unique<Ddlerp>();
    command->mix.assign(mix, mix + num_mix);
    command->h = h, command->prev = prev;
    command->base.assign(base, base + num_mix);
    command->channels = channels;
    program->commands.push_back(std::move(command));
  });
}
