// Shared by the elementwise ops. A work item is one token and a range of its channels.
#pragma once

#include <algorithm>

#include "program.h"
#include "vec.h"

namespace skein {

struct Elementwise : Command {
  int64_t channels;

  int64_t items(const Batch& batch, int) const override { return batch.num_tokens * ranges(); }

 protected:
  static constexpr int64_t kRange =
      1024;  // channels: 4 KB per array, enough work to give to a thread

  int64_t ranges() const { return div_up(channels, kRange); }

  struct Range {
    int64_t token, from, to;
  };

  Range range(int64_t item) const {
    const int64_t from = item % ranges() * kRange;
    return {item / ranges(), from, std::min(from + kRange, channels)};
  }
};

}  // namespace skein
