// The largest of a row of logits: its value, and the ids of the k largest.
#pragma once

#include <algorithm>
#include <limits>

#include "vec.h"

namespace skein {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Values that are looked at together.
constexpr int64_t kScan = 64;

/// Of those that are no NaN; −inf where there are none.
inline float largest(const float* x, int64_t count) {
  int64_t i = 0;
  vf best = splat(-kInfinity);
  for (; i + kLanes <= count; i += kLanes) {
    const vf value = load(x + i);
    best = value > best ? value : best;
  }
  float lanes[kLanes];
  store(lanes, best);
  float result = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; i++) result = std::max(result, x[i]);
  return result;
}

/// Ids of the `wanted` largest of x, best first, ties by id. Returns how many.
inline int32_t find_best(const float* x, int32_t vocab, int32_t wanted, int32_t* ids) {
  int32_t count = 0;
  for (int64_t i = 0; wanted > 0 && i < vocab; i += kScan) {
    const int64_t end = std::min<int64_t>(i + kScan, vocab);
    const float worst = count < wanted ? -kInfinity : x[ids[count - 1]];
    int any = count < wanted;
    for (int64_t j = i; j < end; j++) any |= x[j] > worst;
    if (any == 0) continue;
    for (int64_t j = i; j < end; j++) {
      if (count == wanted && !(x[j] > x[ids[count - 1]])) continue;
      int32_t place = count < wanted ? count++ : count - 1;
      for (; place > 0 && x[j] > x[ids[place - 1]]; place--) ids[place] = ids[place - 1];
      ids[place] = static_cast<int32_t>(j);
    }
  }
  return count;
}

}  // namespace skein
