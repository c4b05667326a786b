// Measures the machine's limits (memory bandwidth, FMA rate), and exposes the vector functions to
// tests.
#include <algorithm>
#include <chrono>

#include "program.h"
#include "vec.h"

using namespace skein;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

extern "C" {

double sk_bench_read(sk_context* context, int64_t bytes, int32_t repeats) {
  double best = -1;
  guard([&] {
    constexpr int64_t kPiece = 1 << 18;
    Buffer buffer(static_cast<size_t>(round_up(bytes, kPiece)));
    std::memset(buffer.as<void>(), 1, buffer.size());
    std::vector<int32_t> totals(context->pool.threads() * 16);
    for (int32_t i = 0; i < repeats; i++) {
      const auto start = std::chrono::steady_clock::now();
      const int64_t pieces = static_cast<int64_t>(buffer.size()) / kPiece;
      context->pool.run(pieces, [&](int64_t piece, int thread) {
        const uint8_t* p = buffer.as<uint8_t>() + piece * kPiece;
        vi total[4] = {};
        for (int64_t at = 0; at < kPiece; at += 4 * kLanes * 4) {
          for (int n = 0; n < 4; n++) total[n] ^= load_int(p + at + n * kLanes * 4);
        }
        const vi all = total[0] ^ total[1] ^ total[2] ^ total[3];
        totals[thread * 16] += all[0];
      });
      const double seconds = seconds_since(start);
      if (best < 0 || seconds < best) best = seconds;
    }
    // Uses the result, so that the compiler cannot drop the loop.
    if (totals[0] == 0x7fffffff) best = -best;
  });
  return best;
}

double sk_bench_fma(sk_context* context, int32_t repeats) {
  constexpr int kChains = 12;
  constexpr int64_t kSteps = 1 << 20;
  double best = 0;
  guard([&] {
    std::vector<float> totals(context->pool.threads() * 16);
    for (int32_t i = 0; i < repeats; i++) {
      const auto start = std::chrono::steady_clock::now();
      context->pool.run(context->pool.threads(), [&](int64_t, int thread) {
        vf chain[kChains];
        for (int n = 0; n < kChains; n++)
          chain[n] = splat(static_cast<float>(n));  // distinct, else the compiler merges the chains
        const vf a = splat(0.999f), b = splat(1e-3f);
        for (int64_t step = 0; step < kSteps; step++) {
#pragma GCC unroll 12
          for (int n = 0; n < kChains; n++) chain[n] = fma(chain[n], a, b);
        }
        vf all = {};
        for (const vf& x : chain) all += x;
        totals[thread * 16] += sum(all);
      });
      const double operations = 2.0 * kLanes * kChains * kSteps * context->pool.threads();
      best = std::max(best, operations / seconds_since(start));
    }
    if (totals[0] < 0) best = 0;
  });
  return best;
}

void sk_vector_function(int32_t which, const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    float lanes[kLanes] = {};
    const int64_t filled = std::min<int64_t>(kLanes, count - i);
    std::copy_n(x + i, filled, lanes);
    const vf v = load(lanes);
    store(lanes, which == 0 ? exp(v) : which == 1 ? sigmoid(v) : tanh(v));
    std::copy_n(lanes, filled, y + i);
  }
}

}  // extern "C"
