#include "penalties.h"

#include "program.h"

using namespace skein;

extern "C" {

sk_penalties* sk_penalties_new(sk_context* context, int32_t vocab, int32_t num_slots) {
  return guard_pointer([&] {
    require(vocab > 0 && num_slots > 0, "a penalty pool needs a vocabulary and slots");
    auto penalties = std::make_unique<sk_penalties>();
    penalties->vocab = vocab;
    penalties->num_slots = num_slots;
    penalties->counts = Buffer(sizeof(float) * vocab * num_slots);
    penalties->flags = Buffer(size_t{1} * vocab * num_slots);
    penalties->seen.resize(num_slots);
    return context->keep(std::move(penalties));
  });
}

int32_t sk_penalties_reset(sk_penalties* penalties, int32_t slot, const int32_t* tokens,
                           int32_t count) {
  return guard([&] {
    require(slot >= 0 && slot < penalties->num_slots, "penalty slot out of range");
    for (int32_t i = 0; i < count; i++) {
      require(tokens[i] >= 0 && tokens[i] < penalties->vocab,
              "prompt token outside the vocabulary");
    }
    for (int32_t token : penalties->seen[slot]) {
      penalties->counts_of(slot)[token] = 0;
      penalties->flags_of(slot)[token] = 0;
    }
    penalties->seen[slot].clear();
    for (int32_t i = 0; i < count; i++) penalties->mark(slot, tokens[i], sk_penalties::kInPrompt);
  });
}

}  // extern "C"
