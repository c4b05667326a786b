// Inputs of a product in the integers that its weights are multiplied with (activations.h). At few
// tokens a command of its own for the rounding would take as long to begin and to end as to run. So
// the command that computes a tensor rounds it too, part by part, if it is the last one recorded
// before the product.
#pragma once

#include "activations.h"
#include "memory.h"

namespace skein {

struct Rounded {
  const float* values;  // [T, columns]
  int64_t columns;
  bool is_fine;
  Buffer to;  // [T, stride()]

  int64_t stride() const {
    return is_fine ? FineLayout(columns).stride : ActivationLayout(columns).stride;
  }

  /// Rounds `count` columns of token t, from `from` on: whole groups.
  void round(int64_t t, int64_t from, int64_t count) const {
    const float* x = values + t * columns;
    const int64_t first = from / kGroup, end = (from + count) / kGroup;
    uint8_t* token = to.as<uint8_t>() + t * stride();
    if (is_fine) {
      quantise_fine(x, FineLayout(columns), first, end, token);
    } else {
      quantise(x, columns, ActivationLayout(columns), first, end, token);
    }
  }
};

}  // namespace skein
