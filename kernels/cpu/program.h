// A recorded model: commands that run in order, each spread over the pool. A context owns
// everything; a program owns its commands and their scratch memory. Knows the batch, but not what
// the commands compute.
#pragma once

#include <memory>
#include <vector>

#include "memory.h"
#include "pool.h"
#include "rounded.h"
#include "skein.h"

namespace skein {

/// The input and output of one step; `Batch` in src/backend/backend.ts documents the fields.
struct Batch {
  int32_t num_tokens, num_rows, num_logits, num_samples, num_bias, num_masks;
  const int32_t *tokens, *starts, *slots, *logit_rows, *blend_counts;
  const float* blend_weights;
  const int32_t *sample_row, *sample_slot;
  const float* sample_floats;
  const int32_t* sample_ints;
  const int32_t *bias_starts, *bias_ids;
  const float* bias_values;
  const uint32_t* masks;
  int32_t* sampled;
  float* sampled_logprob;
  int32_t* top_ids;
  float* top_logprobs;
};

/// One parallel loop. Its items are independent. The next command starts when all items are done.
struct Command {
  virtual ~Command() = default;
  /// Throws Failure if run() would read or write out of bounds with this batch.
  virtual void check(const Batch&) const {}
  virtual int64_t items(const Batch& batch, int threads) const = 0;
  virtual void run(const Batch& batch, int64_t item, int thread, int threads) = 0;
  /// The first of the weights that a thread will read. Nothing if they are few, or not known yet.
  virtual Soon first_read(const Batch&, int /*thread*/, int /*threads*/) const { return {}; }
  /// Asked while recording: whether run() rounds this tensor from now on, as one of its outputs.
  virtual bool rounds(const Rounded&) { return false; }
};

}  // namespace skein

struct sk_context {
  explicit sk_context(int threads) : pool(threads) {}

  /// Takes ownership of an object of any type until the context is freed.
  template <class T>
  T* keep(std::unique_ptr<T> object) {
    T* raw = object.get();
    owned.push_back(std::shared_ptr<void>(std::move(object)));
    return raw;
  }

  skein::Pool pool;
  skein::Arena weights;
  std::vector<std::shared_ptr<void>> owned;
};

struct sk_program {
  sk_context* context;
  int32_t max_tokens, max_rows, max_logits, max_samples;
  std::vector<std::unique_ptr<skein::Command>> commands;
  /// Outputs of relu², most of which are zero.
  std::vector<const float*> sparse;
  /// Shared by all commands, because only one runs at a time. Grows while recording.
  skein::Buffer scratch;
  /// Shared by all layers, like the tensors themselves.
  std::vector<std::unique_ptr<skein::Rounded>> rounded;
  /// The one on its way.
  std::unique_ptr<skein::Work> step;

  void reserve_scratch(int64_t bytes) {
    if (static_cast<int64_t>(scratch.size()) < bytes) scratch = skein::Buffer(bytes);
  }
};
