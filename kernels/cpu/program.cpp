#include "program.h"

#include <algorithm>

#include "amx.h"
#include "vec.h"

namespace skein {

namespace {

/// Checks the sizes and indices of a batch that every program relies on.
void check_batch(const sk_program& program, const Batch& batch) {
  require(batch.num_tokens >= 0 && batch.num_tokens <= program.max_tokens,
          "more tokens than the program's capacity");
  require(batch.num_rows >= 0 && batch.num_rows <= program.max_rows,
          "more rows than the program's capacity");
  require(batch.num_logits >= 0 && batch.num_logits <= program.max_logits,
          "more logit rows than the program's capacity");
  require(batch.num_samples >= 0 && batch.num_samples <= program.max_samples,
          "more samples than the program's capacity");
  if (batch.num_rows > 0) {
    require(batch.starts[0] == 0 && batch.starts[batch.num_rows] == batch.num_tokens,
            "row starts do not cover the tokens");
  }
  for (int32_t b = 0; b < batch.num_rows; b++) {
    require(batch.starts[b] <= batch.starts[b + 1], "row starts do not ascend");
  }
  std::vector<int32_t> slots(batch.slots, batch.slots + batch.num_rows);
  std::sort(slots.begin(), slots.end());
  require(std::adjacent_find(slots.begin(), slots.end()) == slots.end(),
          "two rows of a step use the same slot");
  for (int32_t r = 0; r < batch.num_logits; r++) {
    require(batch.logit_rows[r] >= 0 && batch.logit_rows[r] < batch.num_tokens,
            "logit row outside the tokens");
  }
}

/// What a thread reads first in one of the commands after `command`; those of the next step follow
/// the last.
Soon first_read_after(const std::vector<std::unique_ptr<Command>>& commands, int command,
                      const Batch& batch, int thread, int threads) {
  constexpr size_t kLooks = 8;  // from the head to the next step's first product it is seven
  for (size_t i = 1; i <= std::min(kLooks, commands.size()); i++) {
    const Soon soon = commands[(command + i) % commands.size()]->first_read(batch, thread, threads);
    if (soon.at < soon.end) return soon;
  }
  return {};
}

/// A batch on its way through the commands of a program.
struct Step final : Work {
  const std::vector<std::unique_ptr<Command>>& commands;
  const Batch batch;
  const int threads;

  Step(const sk_program& program, const Batch& given)
      : commands(program.commands), batch(given), threads(program.context->pool.threads()) {}

  int phases() const override { return static_cast<int>(commands.size()); }
  int64_t items(int phase) const override { return commands[phase]->items(batch, threads); }
  void each(int phase, int64_t item, int thread) override {
    commands[phase]->run(batch, item, thread, threads);
  }
  Soon soon(int phase, int thread) override {
    release_tiles();
    return first_read_after(commands, phase, batch, thread, threads);
  }
};

void finish(sk_program& program) {
  const std::unique_ptr<Work> step = std::move(program.step);
  program.context->pool.finish();
}

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" {

int32_t sk_abi_version(void) { return SK_ABI_VERSION; }

uint32_t sk_progress(void) { return Pool::progress(); }

sk_context* sk_context_new(int32_t threads) {
  return guard_pointer([&] {
    require(threads >= 1 && threads <= 1024, "threads must be 1 to 1024");
    return new sk_context(threads);
  });
}

void sk_context_free(sk_context* context) { delete context; }

float* sk_tensor_new(sk_context* context, int64_t count) {
  return guard_pointer([&] {
    require(count > 0, "a tensor needs elements");
    auto buffer = std::make_unique<Buffer>(static_cast<size_t>(count) * sizeof(float));
    return context->keep(std::move(buffer))->as<float>();
  });
}

void sk_tensor_write(float* tensor, int64_t start, const float* values, int64_t count) {
  std::memcpy(tensor + start, values, static_cast<size_t>(count) * sizeof(float));
}

void sk_tensor_read(const float* tensor, int64_t start, float* values, int64_t count) {
  std::memcpy(values, tensor + start, static_cast<size_t>(count) * sizeof(float));
}

sk_program* sk_program_new(sk_context* context, int32_t tokens, int32_t rows, int32_t logits,
                           int32_t samples) {
  return guard_pointer([&] {
    require(tokens > 0 && rows > 0 && logits >= 0 && samples >= 0,
            "a program needs capacity for tokens and rows");
    return new sk_program{context, tokens, rows, logits, samples, {}, {}, {}, {}, {}};
  });
}

void sk_program_free(sk_program* program) { delete program; }

int32_t sk_program_run(sk_program* program, int32_t num_tokens, int32_t num_rows,
                       int32_t num_logits, int32_t num_samples, int32_t num_bias, int32_t num_masks,
                       const int32_t* tokens, const int32_t* starts, const int32_t* slots,
                       const int32_t* logit_rows, const int32_t* blend_counts,
                       const float* blend_weights, const int32_t* sample_row,
                       const int32_t* sample_slot, const float* sample_floats,
                       const int32_t* sample_ints, const int32_t* bias_starts,
                       const int32_t* bias_ids, const float* bias_values, const uint32_t* masks,
                       int32_t* sampled, float* sampled_logprob, int32_t* top_ids,
                       float* top_logprobs) {
  const Batch batch = {num_tokens,   num_rows,        num_logits, num_samples, num_bias,
                       num_masks,    tokens,          starts,     slots,       logit_rows,
                       blend_counts, blend_weights,   sample_row, sample_slot, sample_floats,
                       sample_ints,  bias_starts,     bias_ids,   bias_values, masks,
                       sampled,      sampled_logprob, top_ids,    top_logprobs};
  return guard([&] {
    require(program->context->pool.is_idle(), "the step before is not finished");
    check_batch(*program, batch);
    for (const auto& command : program->commands) command->check(batch);
    program->step = std::make_unique<Step>(*program, batch);
    program->context->pool.start(*program->step);
  });
}

int32_t sk_program_finish(sk_program* program) {
  return guard([&] {
    require(program->step != nullptr, "no step was started");
    finish(*program);
  });
}

}  // extern "C"
