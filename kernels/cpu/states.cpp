#include "states.h"

#include <algorithm>
#include <limits>

#include "program.h"

namespace skein {

namespace {

void check_slot(const sk_states* states, int32_t slot) {
  require(slot >= 0 && slot < states->num_slots, "state slot out of range");
}

/// to[j][i] = from[i][j], n × n.
void transpose(float* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++) to[j * n + i] = from[i * n + j];
  }
}

}  // namespace

void check_slots(const sk_states& states, const Batch& batch) {
  for (int32_t b = 0; b < batch.num_rows; b++) check_slot(&states, batch.slots[b]);
}

}  // namespace skein

using namespace skein;

extern "C" {

sk_states* sk_states_new(sk_context* context, int32_t layers, int32_t channels, int32_t heads,
                         int32_t head_size, int32_t num_slots) {
  return guard_pointer([&] {
    require(layers > 0 && heads > 0 && num_slots > 0, "a state pool needs layers, heads and slots");
    require(head_size > 0 && head_size % 16 == 0 && head_size <= 256,
            "head size must be a multiple of 16 and at most 256 on the cpu backend");
    require(channels > 0, "a state pool needs channels");
    auto states = std::make_unique<sk_states>();
    *states = {layers, channels, heads, head_size, num_slots, 0, {}};
    states->slot_stride = round_up(states->shift_count() + states->wkv_count(), 16);
    states->data = Buffer(static_cast<size_t>(states->slot_stride) * num_slots * sizeof(float));
    return context->keep(std::move(states));
  });
}

int64_t sk_states_bytes_per_slot(const sk_states* states) { return states->slot_stride * 4; }

int32_t sk_states_clear(sk_states* states, int32_t slot) {
  return guard([&] {
    check_slot(states, slot);
    std::memset(states->slot(slot), 0, states->slot_stride * sizeof(float));
  });
}

int32_t sk_states_poison(sk_states* states, int32_t slot) {
  return guard([&] {
    check_slot(states, slot);
    std::fill_n(states->slot(slot), states->slot_stride, std::numeric_limits<float>::quiet_NaN());
  });
}

int32_t sk_states_copy(sk_states* states, int32_t from, int32_t to) {
  return guard([&] {
    check_slot(states, from);
    check_slot(states, to);
    std::memmove(states->slot(to), states->slot(from), states->slot_stride * sizeof(float));
  });
}

int32_t sk_states_read(const sk_states* states, int32_t slot, int32_t first_layer,
                       int32_t num_layers, float* shift, float* wkv) {
  return guard([&] {
    check_slot(states, slot);
    require(first_layer >= 0 && num_layers >= 0 && num_layers <= states->layers - first_layer,
            "layers of a state out of range");
    const float* from = states->slot(slot);
    const int64_t shift_layer = states->shift_count() / states->layers;
    std::memcpy(shift + first_layer * shift_layer, from + first_layer * shift_layer,
                num_layers * shift_layer * sizeof(float));
    const int64_t size = int64_t{states->head_size} * states->head_size;
    const int64_t wkv_layer = states->heads * size;
    const int64_t end = (first_layer + num_layers) * wkv_layer;
    for (int64_t i = first_layer * wkv_layer; i < end; i += size) {
      transpose(wkv + i, from + states->shift_count() + i, states->head_size);
    }
  });
}

int32_t sk_states_write(sk_states* states, int32_t slot, const float* shift, const float* wkv) {
  return guard([&] {
    check_slot(states, slot);
    float* to = states->slot(slot);
    std::memcpy(to, shift, states->shift_count() * sizeof(float));
    const int64_t size = int64_t{states->head_size} * states->head_size;
    for (int64_t i = 0; i < states->wkv_count(); i += size) {
      transpose(to + states->shift_count() + i, wkv + i, states->head_size);
    }
  });
}

}  // extern "C"
