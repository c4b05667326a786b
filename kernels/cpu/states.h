// The recurrent states of all slots. A slot is one contiguous block, so copy, clear and poison are
// one call each. Its layout:
//   shift [L][2][C], then S transposed per layer and head: [L][H][N keys][N values]; lanes hold
//   values.
#pragma once

#include "memory.h"
#include "skein.h"

struct sk_states {
  int32_t layers, channels, heads, head_size, num_slots;
  int64_t slot_stride;  // floats
  skein::Buffer data;   // [num_slots, slot_stride]

  int64_t shift_count() const { return int64_t{layers} * 2 * channels; }
  int64_t wkv_count() const { return int64_t{layers} * heads * head_size * head_size; }
  float* slot(int32_t index) const { return data.as<float>() + index * slot_stride; }
  /// [C]
  float* shift(int32_t index, int32_t layer, int32_t which) const {
    return slot(index) + (int64_t{layer} * 2 + which) * channels;
  }
  /// [N keys][N values]
  float* wkv(int32_t index, int32_t layer, int32_t head) const {
    return slot(index) + shift_count() + (int64_t{layer} * heads + head) * head_size * head_size;
  }
};

namespace skein {
struct Batch;
/// Throws unless every row's slot exists.
void check_slots(const sk_states& states, const Batch& batch);
}  // namespace skein
