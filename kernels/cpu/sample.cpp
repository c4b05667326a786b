// Draws the samples of a batch. `Ops.sample` in src/backend/backend.ts defines the order of the
// steps and how ties are broken. The results are those of sorting the whole vocabulary, but only
// small parts are sorted.
#include <algorithm>
#include <array>
#include <cmath>

#include "best.h"
#include "penalties.h"
#include "program.h"
#include "vec.h"

namespace skein {

namespace {

// Columns of sample_floats and sample_ints.
enum {
  kTemperature,
  kTopP,
  kMinP,
  kPresencePenalty,
  kFrequencyPenalty,
  kPenaltyDecay,
  kRepetitionPenalty,
  kNoise,
  kSampleFloats
};
enum { kTopK, kSeedLow, kSeedHigh, kPosition, kStream, kTopLogprobs, kMask, kAfter };

struct Params {
  const float* floats;  // [kSampleFloats]
  const int32_t* ints;  // [SK_SAMPLE_INTS]

  bool is_greedy() const {
    return floats[kTemperature] <= 0 || floats[kTopP] <= 0 || ints[kTopK] == 1;
  }
};

/// Philox4x32-10 with key (key0, key1) and counter (counter0, counter1, counter2, 0), as four
/// uniforms in [0, 1).
std::array<float, 4> philox_four(uint32_t key0, uint32_t key1, uint32_t counter0, uint32_t counter1,
                                 uint32_t counter2) {
  uint32_t c[4] = {counter0, counter1, counter2, 0};
  for (int round = 0; round < 10; round++) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c[0], product1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(product0)};
    std::copy_n(next, 4, c);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  std::array<float, 4> uniforms;
  for (int i = 0; i < 4; i++) uniforms[i] = static_cast<float>(c[i] >> 8) * 0x1p-24f;
  return uniforms;
}

bool all_finite(const float* x, int64_t count) {
  int64_t i = 0;
  vi bad = {};
  for (; i + kLanes <= count; i += kLanes) bad |= (as_int(load(x + i)) & 0x7f800000) == 0x7f800000;
  int32_t lanes[kLanes];
  std::memcpy(lanes, &bad, sizeof bad);
  bool finite = std::all_of(lanes, lanes + kLanes, [](int32_t lane) { return lane == 0; });
  for (; i < count; i++) finite &= std::isfinite(x[i]);
  return finite;
}

/// The smallest x that is not the −inf of a banned token. At least one x is finite.
float smallest_finite(const float* x, int64_t count) {
  int64_t i = 0;
  vf worst = splat(kInfinity);
  for (; i + kLanes <= count; i += kLanes) {
    const vf value = load(x + i);
    worst = ((value < worst) & (value > -kInfinity)) ? value : worst;
  }
  float lanes[kLanes];
  store(lanes, worst);
  float result = *std::min_element(lanes, lanes + kLanes);
  for (; i < count; i++) {
    if (x[i] < result && x[i] > -kInfinity) result = x[i];
  }
  return result;
}

/// Returns Σ exp((x − best)·factor), and stores the terms in `weights` unless it is null. Sums in
/// double, because an f32 sum of 65,536 terms would lose digits.
double exponentials(const float* x, int64_t count, float best, float factor, float* weights) {
  double total = 0;
  for (int64_t i = 0; i < count; i += kScan) {
    float terms[kScan];
    const int64_t end = std::min(kScan, count - i);
    std::copy_n(x + i, end, terms);
    std::fill(terms + end, terms + kScan, -kInfinity);
    vf part = {};
    for (int64_t j = 0; j < kScan; j += kLanes) {
      const vf term = exp((load(terms + j) - best) * factor);
      store(terms + j, term);
      part += term;
    }
    if (weights != nullptr) std::copy_n(terms, end, weights + i);
    total += static_cast<double>(sum(part));
  }
  return total;
}

/// The memory that one thread needs to draw.
struct Scratch {
  std::vector<float> logits;        // [V] after bias and penalties
  std::vector<float> weights;       // [V] exp((logit − best)/temperature)
  std::vector<uint16_t> buckets;    // [V]
  std::vector<int32_t> counts;      // [kBuckets]
  std::vector<double> masses;       // [kBuckets]
  std::vector<int32_t> candidates;  // of one bucket, best first

  explicit Scratch(int32_t vocab)
      : logits(vocab), weights(vocab), buckets(vocab), counts(kBuckets), masses(kBuckets) {}

  static constexpr int kBuckets = 2048;
};

/// Gives the tokens from best to worst (ties by id) without sorting them all. Tokens are counted
/// into buckets of descending logits; a bucket is sorted only if the order within it matters.
class Ranking {
 public:
  Ranking(Scratch& scratch, float best, float temperature) : scratch_(scratch) {
    const float* logits = scratch.logits.data();
    const int64_t vocab = static_cast<int64_t>(scratch.logits.size());
    // e^-32 is below the resolution of the draw. All tokens further down share the last bucket.
    const float range =
        std::max(std::min(best - smallest_finite(logits, vocab), 32 * temperature), 1e-30f);
    const float scale = (Scratch::kBuckets - 1) / range;
    for (int64_t i = 0; i < vocab; i++) {
      const float place =
          std::min((best - logits[i]) * scale, static_cast<float>(Scratch::kBuckets - 1));
      scratch.buckets[i] = static_cast<uint16_t>(static_cast<int32_t>(place));
    }
    std::fill(scratch.counts.begin(), scratch.counts.end(), 0);
    std::fill(scratch.masses.begin(), scratch.masses.end(), 0.0);
    for (int64_t i = 0; i < vocab; i++) {
      scratch.counts[scratch.buckets[i]]++;
      scratch.masses[scratch.buckets[i]] += scratch.weights[i];
    }
  }

  /// The tokens of one bucket, best first.
  const std::vector<int32_t>& sorted(int bucket) {
    auto& ids = scratch_.candidates;
    if (bucket == sorted_) return ids;
    sorted_ = bucket;
    ids.clear();
    const uint16_t* buckets = scratch_.buckets.data();
    const int64_t vocab = static_cast<int64_t>(scratch_.buckets.size());
    for (int64_t i = 0; i < vocab; i += kScan) {
      const int64_t end = std::min(i + kScan, vocab);
      int any = 0;
      for (int64_t j = i; j < end; j++) any |= buckets[j] == bucket;
      for (int64_t j = i; any != 0 && j < end; j++) {
        if (buckets[j] == bucket) ids.push_back(static_cast<int32_t>(j));
      }
    }
    const float* logits = scratch_.logits.data();
    std::sort(ids.begin(), ids.end(), [&](int32_t x, int32_t y) {
      return logits[x] != logits[y] ? logits[x] > logits[y] : x < y;
    });
    return ids;
  }

 private:
  Scratch& scratch_;
  int sorted_ = -1;
};

/// What top-k, top-p and min-p keep: the number of tokens and their total weight.
struct Kept {
  int64_t count;
  double mass;
};

Kept truncate(Scratch& scratch, Ranking& ranking, const Params& params, double total) {
  const double wanted = params.floats[kTopP] < 1 ? params.floats[kTopP] * total : kInfinity;
  const float min_p = params.floats[kMinP];  // relative to the best token, whose weight is 1
  const int64_t top_k =
      params.ints[kTopK] > 0 ? params.ints[kTopK] : std::numeric_limits<int64_t>::max();
  Kept kept = {0, 0};
  for (int bucket = 0; bucket < Scratch::kBuckets; bucket++) {
    const int32_t count = scratch.counts[bucket];
    if (count == 0) continue;
    if (min_p <= 0 && kept.count + count <= top_k && kept.mass + scratch.masses[bucket] < wanted) {
      kept.count += count;
      kept.mass += scratch.masses[bucket];
      continue;
    }
    for (int32_t id : ranking.sorted(bucket)) {
      const float weight = scratch.weights[id];
      const bool is_full = kept.count >= top_k || kept.mass >= wanted;
      if (kept.count > 0 && (is_full || weight < min_p || weight == 0)) return kept;
      kept.count++;
      kept.mass += weight;
    }
  }
  return kept;
}

/// The token at which the running sum of weights, best first, exceeds `target`.
int32_t find_token(Scratch& scratch, Ranking& ranking, int64_t count, double target) {
  int32_t token = -1;
  double below = 0;
  for (int bucket = 0; bucket < Scratch::kBuckets && count > 0; bucket++) {
    if (scratch.counts[bucket] < count && below + scratch.masses[bucket] <= target) {
      below += scratch.masses[bucket];
      count -= scratch.counts[bucket];
      continue;
    }
    for (int32_t id : ranking.sorted(bucket)) {
      // Because of rounding, the target can lie just beyond the last token that has weight.
      if (count-- == 0 || (token >= 0 && scratch.weights[id] == 0)) return token;
      token = id;
      below += scratch.weights[id];
      if (below > target) return token;
    }
  }
  return token;
}

/// The token with the best score/temperature + noise·uniform; ties go to the smaller id.
int32_t draw_noisy(const std::vector<float>& scores, const Params& params) {
  const float temperature = params.floats[kTemperature], noise = params.floats[kNoise];
  const int32_t vocab = static_cast<int32_t>(scores.size());
  int32_t token = 0;
  float best = -kInfinity;
  for (int32_t first = 0; first < vocab; first += 4) {
    const auto uniforms =
        philox_four(params.ints[kSeedLow], params.ints[kSeedHigh], params.ints[kPosition],
                    params.ints[kStream], static_cast<uint32_t>(1 + first / 4));
    for (int32_t id = first; id < std::min(first + 4, vocab); id++) {
      const float score = scores[id] / temperature + noise * uniforms[id - first];
      if (score > best) best = score, token = id;
    }
  }
  return token;
}

int32_t draw(Scratch& scratch, const Params& params) {
  const int64_t vocab = static_cast<int64_t>(scratch.logits.size());
  const float best = largest(scratch.logits.data(), vocab);
  if (!std::isfinite(best)) return -1;
  if (params.is_greedy()) {
    return static_cast<int32_t>(std::find(scratch.logits.begin(), scratch.logits.end(), best) -
                                scratch.logits.begin());
  }
  if (params.floats[kNoise] > 0) return draw_noisy(scratch.logits, params);
  // A lower temperature is greedy anyway. The bound avoids 0·∞.
  const float temperature = std::max(params.floats[kTemperature], 1e-20f);
  const double total =
      exponentials(scratch.logits.data(), vocab, best, 1.0f / temperature, scratch.weights.data());
  Ranking ranking(scratch, best, temperature);
  const Kept kept = truncate(scratch, ranking, params, total);
  const float u = philox_four(params.ints[kSeedLow], params.ints[kSeedHigh], params.ints[kPosition],
                              params.ints[kStream], 0)[0];
  return find_token(scratch, ranking, kept.count, static_cast<double>(u) * kept.mass);
}

struct Sample final : Command {
  const float* logits;  // [R, V]
  sk_penalties* penalties;
  std::vector<Scratch> scratch;  // per thread

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
  void run(const Batch& batch, int64_t first, int thread, int) override {
    const int32_t slot = batch.sample_slot[first];
    if (std::find(batch.sample_slot, batch.sample_slot + first, slot) != batch.sample_slot + first)
      return;
    for (int64_t s = first; s < batch.num_samples; s++) {
      if (batch.sample_slot[s] == slot) sample(batch, s, scratch[thread]);
    }
  }

  void sample(const Batch& batch, int64_t s, Scratch& own) const {
    const Params params = {batch.sample_floats + s * kSampleFloats,
                           batch.sample_ints + s * SK_SAMPLE_INTS};
    const int32_t after = params.ints[kAfter];
    if (after > 0 && batch.sampled[s - 1] != after - 1) {
      batch.sampled[s] = -1;
      return;
    }
    const int32_t slot = batch.sample_slot[s];
    const float* raw = logits + int64_t{batch.sample_row[s]} * penalties->vocab;
    int32_t token = -1;
    if (all_finite(raw, penalties->vocab)) {
      copy_allowed(batch, params.ints[kMask], raw, own.logits);
      for (int32_t i = batch.bias_starts[s]; i < batch.bias_starts[s + 1]; i++) {
        own.logits[batch.bias_ids[i]] += batch.bias_values[i];
      }
      penalise(own.logits.data(), slot, params);
      token = draw(own, params);
    }
    batch.sampled[s] = token;
    if (params.ints[kTopLogprobs] >= 0)
      write_logprobs(batch, s, raw, token, params.ints[kTopLogprobs]);
    if (token >= 0) count(slot, token, params.floats[kPenaltyDecay]);
  }

  /// Copies the logits of the tokens that the mask allows, and −inf for the others. Mask 0 allows
  /// all.
  void copy_allowed(const Batch& batch, int32_t mask, const float* raw,
                    std::vector<float>& to) const {
    const int32_t vocab = penalties->vocab;
    if (mask == 0) {
      std::copy_n(raw, vocab, to.begin());
      return;
    }
    const uint32_t* row = batch.masks + int64_t{mask - 1} * ((vocab + 31) / 32);
    for (int32_t id = 0; id < vocab; id++)
      to[id] = (row[id >> 5] >> (id & 31) & 1) != 0 ? raw[id] : -kInfinity;
  }

  void penalise(float* adjusted, int32_t slot, const Params& params) const {
    const float repetition = params.floats[kRepetitionPenalty];
    const float presence = params.floats[kPresencePenalty];
    const float frequency = params.floats[kFrequencyPenalty];
    if (repetition == 1 && presence == 0 && frequency == 0) return;
    const float* counts = penalties->counts_of(slot);
    const uint8_t* flags = penalties->flags_of(slot);
    for (int32_t id : penalties->seen[slot]) {
      float x = adjusted[id];
      if (repetition != 1) x = x > 0 ? x / repetition : x * repetition;
      if (flags[id] & sk_penalties::kGenerated) x -= presence + frequency * counts[id];
      adjusted[id] = x;
    }
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
    const double log_total = std::log(exponentials(raw, vocab, best, 1.0f, nullptr));
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
    auto command = std::make_unique<Sample>();
    command->logits = logits;
    command->penalties = penalties;
    command->scratch.assign(program->context->pool.threads(), Scratch(penalties->vocab));
    program->commands.push_back(std::move(command));
  });
}
