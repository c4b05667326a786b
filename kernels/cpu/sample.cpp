// Draws the samples of a batch (draw.h): mask, bias and penalties before, counts and
// log-probabilities after.
#include "draw.h"
#include "penalties.h"
#include "program.h"

namespace skein {

namespace {

/// What the commands of a draw share. With fewer draws than threads, a draw is spread over the
/// threads: two commands prepare and weigh the parts of its vocabulary.
struct Draws {
  const float* logits;  // [R, V]
  sk_penalties* penalties;
  std::vector<Scratch> scratch;  // per thread, or per draw if these are spread

  /// Draws of one slot follow one another, because an earlier one counts for the later ones.
  bool is_spread(const Batch& batch, int threads) const {
    if (batch.num_samples >= threads) return false;
    for (int32_t s = 1; s < batch.num_samples; s++) {
      if (std::find(batch.sample_slot, batch.sample_slot + s, batch.sample_slot[s]) !=
          batch.sample_slot + s)
        return false;
    }
    return true;
  }

  Params params_of(const Batch& batch, int64_t s) const {
    return {batch.sample_floats + s * kSampleFloats, batch.sample_ints + s * SK_SAMPLE_INTS};
  }

  const float* raw(const Batch& batch, int64_t s) const {
    return logits + int64_t{batch.sample_row[s]} * penalties->vocab;
  }

  bool is_adjusted(const Batch& batch, int64_t s) const {
    const Params params = params_of(batch, s);
    return params.ints[kMask] != 0 || batch.bias_starts[s] != batch.bias_starts[s + 1] ||
           params.has_penalties();
  }

  /// After mask, bias and penalties.
  const float* adjusted(const Batch& batch, int64_t s, const Scratch& own) const {
    return is_adjusted(batch, s) ? own.adjusted.data() : raw(batch, s);
  }

  /// One part of the vocabulary.
  void prepare(const Batch& batch, int64_t s, int index, Scratch& own) const {
    Part& part = own.parts[index];
    const int64_t from = own.start(index), to = own.start(index + 1);
    part.is_finite = all_finite(raw(batch, s) + from, to - from);
    if (is_adjusted(batch, s)) adjust(batch, s, from, to, own.adjusted.data());
    extremes(adjusted(batch, s, own) + from, to - from, part);
  }

  void adjust(const Batch& batch, int64_t s, int64_t from, int64_t to, float* into) const {
    const Params params = params_of(batch, s);
    copy_allowed(batch, params.ints[kMask], raw(batch, s), from, to, into);
    for (int32_t i = batch.bias_starts[s]; i < batch.bias_starts[s + 1]; i++) {
      const int32_t id = batch.bias_ids[i];
      if (id >= from && id < to) into[id] += batch.bias_values[i];
    }
    if (params.has_penalties()) penalise(into, from, to, batch.sample_slot[s], params);
  }

  void weigh(const Batch& batch, int64_t s, int index, Scratch& own) const {
    const Params params = params_of(batch, s);
    if (!own.is_finite() || !std::isfinite(own.best()) || params.is_greedy() ||
        params.floats[kNoise] > 0)
      return;
    skein::weigh(own, adjusted(batch, s, own), index, params);
  }

  /// Copies the logits of the tokens that the mask allows, and −inf for the others. Mask 0 allows
  /// all.
  void copy_allowed(const Batch& batch, int32_t mask, const float* from_logits, int64_t from,
                    int64_t to, float* into) const {
    if (mask == 0) {
      std::copy(from_logits + from, from_logits + to, into + from);
      return;
    }
    const uint32_t* row = batch.masks + int64_t{mask - 1} * ((penalties->vocab + 31) / 32);
    for (int64_t id = from; id < to; id++)
      into[id] = (row[id >> 5] >> (id & 31) & 1) != 0 ? from_logits[id] : -kInfinity;
  }

  void penalise(float* adjusted, int64_t from, int64_t to, int32_t slot,
                const Params& params) const {
    const float repetition = params.floats[kRepetitionPenalty];
    const float presence = params.floats[kPresencePenalty];
    const float frequency = params.floats[kFrequencyPenalty];
    const float* counts = penalties->counts_of(slot);
    const uint8_t* flags = penalties->flags_of(slot);
    for (int32_t id : penalties->seen[slot]) {
      if (id < from || id >= to) continue;
      float x = adjusted[id];
      if (repetition != 1) x = x > 0 ? x / repetition : x * repetition;
      if (flags[id] & sk_penalties::kGenerated) x -= presence + frequency * counts[id];
      adjusted[id] = x;
    }
  }
};

/// One part of the vocabulary of one draw is one item.
struct SpreadDraw final : Command {
  std::shared_ptr<Draws> draws;
  void (Draws::*work)(const Batch&, int64_t, int, Scratch&) const;

  int64_t items(const Batch& batch, int threads) const override {
    return draws->is_spread(batch, threads) ? int64_t{batch.num_samples} * kParts : 0;
  }

  void run(const Batch& batch, int64_t item, int, int) override {
    const int64_t s = item / kParts;
    ((*draws).*work)(batch, s, static_cast<int>(item % kParts), draws->scratch[s]);
  }
};

struct Sample final : Command {
  std::shared_ptr<Draws> draws;
  sk_penalties* penalties;

  void check(const Batch& batch) const override {
    for (int32_t s = 0; s < batch.num_samples; s++) {
      require(batch.sample_row[s] >= 0 && batch.sample_row[s] < batch.num_logits,
              "sample row outside the logit rows");
      require(batch.sample_slot[s] >= 0 && batch.sample_slot[s] < penalties->num_slots,
              "penalty slot out of range");
      require(batch.sample_ints[s * SK_SAMPLE_INTS + kTopLogprobs] <= SK_MAX_TOP_LOGPROBS,
              "at most 20 top logprobs");
      check_bias(batch, s);
      const int32_t mask = batch.sample_ints[s * SK_SAMPLE_INTS + kMask];
      require(mask >= 0 && mask <= batch.num_masks, "mask row out of range");
      const bool is_first = s == 0 || batch.sample_slot[s - 1] != batch.sample_slot[s];
      require(batch.sample_ints[s * SK_SAMPLE_INTS + kAfter] == 0 || !is_first,
              "a sample after a guess must follow one of its own slot");
    }
  }

  void check_bias(const Batch& batch, int32_t s) const {
    const int32_t from = batch.bias_starts[s], to = batch.bias_starts[s + 1];
    require(from >= 0 && from <= to && to <= batch.num_bias,
            "bias starts do not ascend within the bias arrays");
    for (int32_t i = from; i < to; i++) {
      require(batch.bias_ids[i] >= 0 && batch.bias_ids[i] < penalties->vocab,
              "bias token outside the vocabulary");
      require(batch.bias_values[i] < kInfinity, "a logit bias must be finite or -inf");
    }
  }

  int64_t items(const Batch& batch, int) const override { return batch.num_samples; }

  /// Samples of the same slot are drawn in order, by the item of the first of them.
  void run(const Batch& batch, int64_t first, int thread, int threads) override {
    if (draws->is_spread(batch, threads)) {
      finish(batch, first, draws->scratch[first]);
      return;
    }
    const int32_t slot = batch.sample_slot[first];
    if (std::find(batch.sample_slot, batch.sample_slot + first, slot) != batch.sample_slot + first)
      return;
    for (int64_t s = first; s < batch.num_samples; s++) {
      if (batch.sample_slot[s] == slot) sample(batch, s, draws->scratch[thread]);
    }
  }

  void sample(const Batch& batch, int64_t s, Scratch& own) const {
    const int32_t after = draws->params_of(batch, s).ints[kAfter];
    if (after > 0 && batch.sampled[s - 1] != after - 1) {
      batch.sampled[s] = -1;
      return;
    }
    for (int part = 0; part < kParts; part++) draws->prepare(batch, s, part, own);
    for (int part = 0; part < kParts; part++) draws->weigh(batch, s, part, own);
    finish(batch, s, own);
  }

  void finish(const Batch& batch, int64_t s, Scratch& own) const {
    const Params params = draws->params_of(batch, s);
    const int32_t token = own.is_finite() ? draw(own, draws->adjusted(batch, s, own), params) : -1;
    batch.sampled[s] = token;
    if (params.ints[kTopLogprobs] >= 0)
      write_logprobs(batch, s, draws->raw(batch, s), token, params.ints[kTopLogprobs]);
    if (token >= 0) count(batch.sample_slot[s], token, params.floats[kPenaltyDecay]);
  }

  void count(int32_t slot, int32_t token, float decay) const {
    float* counts = penalties->counts_of(slot);
    if (decay != 1) {
      for (int32_t id : penalties->seen[slot]) counts[id] *= decay;
    }
    counts[token] += 1;
    penalties->mark(slot, token, sk_penalties::kGenerated);
  }

  void write_logprobs(const Batch& batch, int64_t s, const float* raw, int32_t token,
                      int32_t wanted) const {
    const int32_t vocab = penalties->vocab;
    int32_t* ids = batch.top_ids + s * SK_MAX_TOP_LOGPROBS;
    float* values = batch.top_logprobs + s * SK_MAX_TOP_LOGPROBS;
    std::fill_n(ids, SK_MAX_TOP_LOGPROBS, -1);
    std::fill_n(values, SK_MAX_TOP_LOGPROBS, std::numeric_limits<float>::quiet_NaN());
    batch.sampled_logprob[s] = std::numeric_limits<float>::quiet_NaN();
    if (token < 0) return;
    const float best = largest(raw, vocab);
    const double log_total = std::log(sum_exponentials(raw, vocab, best, 1.0f));
    const auto logprob = [&](int32_t id) {
      return static_cast<float>(static_cast<double>(raw[id]) - static_cast<double>(best) -
                                log_total);
    };
    batch.sampled_logprob[s] = logprob(token);
    const int32_t count = find_best(raw, vocab, std::min(wanted, vocab), ids);
    for (int32_t i = 0; i < count; i++) values[i] = logprob(ids[i]);
  }
};

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" int32_t sk_record_sample(sk_program* program, const float* logits,
                                    sk_penalties* penalties) {
  return guard([&] {
    auto draws = std::make_shared<Draws>();
    draws->logits = logits;
    draws->penalties = penalties;
    draws->scratch.assign(program->context->pool.threads(), Scratch(penalties->vocab));
    for (const auto work : {&Draws::prepare, &Draws::weigh}) {
      auto spread = std::make_unique<SpreadDraw>();
      spread->draws = draws;
      spread->work = work;
      program->commands.push_back(std::move(spread));
    }
    auto command = std::make_unique<Sample>();
    command->draws = std::move(draws);
    command->penalties = penalties;
    program->commands.push_back(std::move(command));
  });
}
