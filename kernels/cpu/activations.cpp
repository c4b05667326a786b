#include "activations.h"

#include <algorithm>

#include "convert.h"
#include "vec.h"

namespace skein {

namespace {

struct Group {
  float scale;
  int32_t sum;
};

/// 32 inputs to integers in [−127, 127], nearest even.
Group quantise_group(const float* x, int32_t* q) {
  vi largest = {};
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    const vi bits =
        as_int(load(x + i)) & 0x7fffffff;  // as integers NaN and infinity are the largest
    largest = bits > largest ? bits : largest;
  }
  int32_t lanes[kLanes];
  std::memcpy(lanes, &largest, sizeof largest);
  const float magnitude = bits_float(*std::max_element(lanes, lanes + kLanes));
  const float inverse = magnitude > 0 && magnitude <= 3e38f ? 127.0f / magnitude : 0.0f;
  vi total = {};
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    // Adding 1.5·2^23 rounds to an integer and leaves it in the low mantissa bits.
    const vi integer = as_int(load(x + i) * inverse + 12582912.0f) - 0x4b400000;
    total += integer;
    std::memcpy(q + i, &integer, sizeof integer);
  }
  std::memcpy(lanes, &total, sizeof total);
  int32_t sum_q = 0;
  for (int32_t lane : lanes) sum_q += lane;
  return {magnitude / 127.0f, sum_q};
}

}  // namespace

void quantise(const float* x, int64_t columns, const ActivationLayout& layout, uint8_t* to) {
  Quantised* values = reinterpret_cast<Quantised*>(to);
  float* scales = reinterpret_cast<float*>(to + layout.scales_at);
  int32_t* corrections = reinterpret_cast<int32_t*>(to + layout.corrections_at);
  for (int64_t g = 0; g < layout.groups; g++) {
    const float* from = x + g * kGroup;
    float padded[kGroup] = {};
    if (columns - g * kGroup < kGroup) {
      std::copy(from, x + columns, padded);
      from = padded;
    }
    int32_t q[kGroup];
    const Group group = quantise_group(from, q);
    scales[g] = group.scale;
    corrections[g] = -kCorrection * group.sum;
    Quantised* out = values + g * kGroup;
    for (int64_t i = 0; i < kGroup; i += 4) {
      constexpr bool kPlain = sizeof(Quantised) == 1;
      out[i] = static_cast<Quantised>(q[i]);
      out[i + 1] = static_cast<Quantised>(q[i + (kPlain ? 1 : 2)]);
      out[i + 2] = static_cast<Quantised>(q[i + (kPlain ? 2 : 1)]);
      out[i + 3] = static_cast<Quantised>(q[i + 3]);
    }
  }
}

}  // namespace skein
