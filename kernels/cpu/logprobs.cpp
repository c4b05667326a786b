// Log-probabilities of given tokens and of the best ones, from rows of logits of any device, in
// double. Its oracle is src/engine/answer/logprobs.ts.
#include <cmath>

#include "best.h"
#include "memory.h"

namespace skein {

namespace {

/// Doubles of a vector, and vectors that are summed side by side: eight doubles on every level, and
/// no fused products, so that all levels give the same bits.
constexpr int kDoubles = kLanes / 2;
constexpr int kSums = 8 / kDoubles;

typedef double vd __attribute__((vector_size(kDoubles * 8)));
typedef int64_t vl __attribute__((vector_size(kDoubles * 8)));
typedef float vh __attribute__((vector_size(kDoubles * 4)));

/// e^x of x ≤ 0 to 4e-16 relative; 0 below −708, where doubles become denormal; NaN stays NaN.
inline vd exp(vd x) {
  const vd clamped = x < -708.0 ? vd{} - 708.0 : x;
  // Adding 1.5·2^52 rounds to an integer and leaves it in the low mantissa bits.
  const vd shifted = clamped * 1.44269504088896340736 + 6755399441055744.0;
  const vd n = shifted - 6755399441055744.0;
  // ln 2 in two parts: n times the first is exact.
  const vd r = (clamped - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  // Taylor's series up to r^13/13!, |r| ≤ ln 2/2.
  vd p = vd{} + 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const vl scale = (reinterpret_cast<vl>(shifted) << 52) + (int64_t{1023} << 52);
  return x < -708.0 ? vd{} : p * reinterpret_cast<vd>(scale);
}

/// Σ e^(x − best).
double sum_exponentials(const float* x, int64_t count, double best) {
  vd sums[kSums] = {};
  for (int64_t i = 0; i < count; i += 8) {
    float eight[8];
    const float* from = x + i;
    if (i + 8 > count) {
      std::fill_n(eight, 8, -kInfinity);
      from = std::copy(from, x + count, eight) - (count - i);
    }
    for (int part = 0; part < kSums; part++) {
      vh values;
      std::memcpy(&values, from + part * kDoubles, sizeof values);
      sums[part] += exp(__builtin_convertvector(values, vd) - best);
    }
  }
  double lanes[8];
  std::memcpy(lanes, sums, sizeof lanes);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" int32_t sk_logprobs(const float* logits, int64_t rows, int32_t vocab,
                               const int32_t* tokens, int32_t wanted, double* logprobs,
                               int32_t* top_ids, double* top_logprobs) {
  return guard([&] {
    require(wanted >= 0 && wanted <= std::min(vocab, SK_MAX_TOP_LOGPROBS), "too many top logprobs");
    for (int64_t row = 0; row < rows; row++) {
      require(tokens[row] >= 0 && tokens[row] < vocab, "a token outside the vocabulary");
      const float* x = logits + row * vocab;
      const double best = largest(x, vocab);
      // NaN where the row has a NaN or +inf, or nothing finite.
      const double log_sum = best + std::log(sum_exponentials(x, vocab, best));
      logprobs[row] = x[tokens[row]] - log_sum;
      int32_t* ids = top_ids + row * wanted;
      find_best(x, vocab, wanted, ids);
      for (int32_t i = 0; i < wanted; i++) top_logprobs[row * wanted + i] = x[ids[i]] - log_sum;
    }
  });
}
