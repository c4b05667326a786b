// What the sampler remembers about each slot.
#pragma once

#include <vector>

#include "memory.h"
#include "skein.h"

struct sk_penalties {
  static constexpr uint8_t kInPrompt = 1, kGenerated = 2;

  int32_t vocab, num_slots;
  skein::Buffer counts;  // [num_slots, V] f32, decayed; 0 for tokens not generated
  skein::Buffer flags;   // [num_slots, V] kInPrompt | kGenerated
  std::vector<std::vector<int32_t>> seen;  // per slot: the tokens whose flags are not 0, each once

  float* counts_of(int32_t slot) const { return counts.as<float>() + int64_t{slot} * vocab; }
  uint8_t* flags_of(int32_t slot) const { return flags.as<uint8_t>() + int64_t{slot} * vocab; }

  void mark(int32_t slot, int32_t token, uint8_t flag) {
    uint8_t& flags_at = flags_of(slot)[token];
    if (flags_at == 0) seen[slot].push_back(token);
    flags_at |= flag;
  }
};
