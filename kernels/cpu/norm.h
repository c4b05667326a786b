// Layer norm over C channels, shared by embed, shift-mix and gather-norm.
#pragma once

#include <cmath>

#include "vec.h"

namespace skein {

struct Norm {
  const float* weight;  // [C]
  const float* bias;    // [C]
  float eps;
};

struct Moments {
  float mean, scale;  // scale = 1/√(variance + eps)
};

/// Two passes: computing the variance from x − mean avoids cancellation.
inline Moments moments(const float* x, int64_t count, float eps) {
  vf total = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) total += load(x + i);
  float sum_x = sum(total);
  for (int64_t j = i; j < count; j++) sum_x += x[j];
  const float mean = sum_x / static_cast<float>(count);

  vf squares = {};
  for (i = 0; i + kLanes <= count; i += kLanes) {
    const vf d = load(x + i) - mean;
    squares = fma(d, d, squares);
  }
  float sum_squares = sum(squares);
  for (int64_t j = i; j < count; j++) sum_squares += (x[j] - mean) * (x[j] - mean);
  return {mean, 1.0f / std::sqrt(sum_squares / static_cast<float>(count) + eps)};
}

/// out[i] = (x[i] − mean)·scale·weight[i] + bias[i] for i in [from, to).
inline void normalise(float* out, const float* x, Moments m, const Norm& norm, int64_t from,
                      int64_t to) {
  int64_t i = from;
  for (; i + kLanes <= to; i += kLanes) {
    store(out + i,
          fma((load(x + i) - m.mean) * m.scale, load(norm.weight + i), load(norm.bias + i)));
  }
  for (; i < to; i++) out[i] = (x[i] - m.mean) * m.scale * norm.weight[i] + norm.bias[i];
}

}  // namespace skein
