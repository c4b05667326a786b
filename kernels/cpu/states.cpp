#include "states.h"

#include <algorithm>
#include <limits>

#include "program.h"
#include "vec.h"

namespace skein {

namespace {

void check_slot(const sk_states* states, int32_t slot) {
  require(slot >= 0 && slot < states->num_slots, "state slot out of range");
}

/// to[j][i] = from[i][j] for a square of 4 × 4 in matrices of n columns.
void transpose4(float* to, const float* from, int64_t n) {
#if defined(__x86_64__)
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + n);
  __m128 c = _mm_loadu_ps(from + 2 * n), d = _mm_loadu_ps(from + 3 * n);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + n, b);
  _mm_storeu_ps(to + 2 * n, c);
  _mm_storeu_ps(to + 3 * n, d);
#else
  for (int64_t i = 0; i < 4; i++) {
    for (int64_t j = 0; j < 4; j++) to[j * n + i] = from[i * n + j];
  }
#endif
}

/// to[j][i] = from[i][j], n × n; n is a multiple of 4. Writes four whole rows at a time.
void transpose(float* to, const float* from, int64_t n) {
  for (int64_t j = 0; j < n; j += 4) {
    for (int64_t i = 0; i < n; i += 4) transpose4(to + j * n + i, from + i * n + j, n);
  }
}

/// Some layers of a state: their offsets and lengths in shift and wkv.
struct Range {
  int64_t shift, num_shift, wkv, num_wkv;
};

Range layer_range(const sk_states& states, int32_t first, int32_t count) {
  require(first >= 0 && count >= 0 && count <= states.layers - first,
          "layers of a state out of range");
  const int64_t shift = states.shift_count() / states.layers;
  const int64_t wkv = states.wkv_count() / states.layers;
  return {first * shift, count * shift, first * wkv, count * wkv};
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
            "head size must be a multiple of 16 and at most 256 on the cpu backend",
            SK_UNSUPPORTED);
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
    const Range range = layer_range(*states, first_layer, num_layers);
    const float* from = states->slot(slot);
    std::memcpy(shift + range.shift, from + range.shift, range.num_shift * sizeof(float));
    const int64_t size = int64_t{states->head_size} * states->head_size;
    for (int64_t i = range.wkv; i < range.wkv + range.num_wkv; i += size) {
      transpose(wkv + i, from + states->shift_count() + i, states->head_size);
    }
  });
}

int32_t sk_states_write(sk_states* states, int32_t slot, int32_t first_layer, int32_t num_layers,
                        const float* shift, const float* wkv) {
  return guard([&] {
    check_slot(states, slot);
    const Range range = layer_range(*states, first_layer, num_layers);
    float* to = states->slot(slot);
    std::memcpy(to + range.shift, shift + range.shift, range.num_shift * sizeof(float));
    const int64_t size = int64_t{states->head_size} * states->head_size;
    for (int64_t i = range.wkv; i < range.wkv + range.num_wkv; i += size) {
      transpose(to + states->shift_count() + i, wkv + i, states->head_size);
    }
  });
}

}  // extern "C"
