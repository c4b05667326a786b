// Draws the samples of a batch. The order of the steps and the ties stand at `Ops.sample` of
// src/backend/backend.ts; the results are those of sorting the whole vocabulary, which this avoids.
#include <algorithm>
#include <cmath>
#include <limits>

#include "penalties.h"
#include "program.h"
#include "vec.h"

namespace skein {

namespace {

// Columns of sample_floats and sample_ints.
enum { kTemperature, kTopP, kMinP, kPresence, kFrequency, kDecay, kRepetition };
enum { kTopK, kSeedLow, kSeedHigh, kPosition, kStream, kTopLogprobs };

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kScan = 64;

struct Params {
  const float* floats;  // [SK_SAMPLE_FLOATS]
  const int32_t* ints;  // [SK_SAMPLE_INTS]

  bool is_greedy() const {
    return floats[kTemperature] <= 0 || floats[kTopP] <= 0 || ints[kTopK] == 1;
  }
};

/// First word of Philox4x32-10 with key (key0, key1) and counter (counter0, counter1, 0, 0), as a uniform in [0, 1).
float philox_uniform(uint32_t key0, uint32_t key1, uint32_t counter0, uint32_t counter1) {
  uint32_t c[4] = {counter0, counter1, 0, 0};
  for (int round = 0; round < 10; round++) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c[0], product1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(product1),
                              static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(product0)};
    std::copy_n(next, 4, c);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return static_cast<float>(c[0] >> 8) * 0x1p-24f;
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

float largest(const float* x, int64_t count) {
  int64_t i = 0;
  vf best = splat(-kInfinity);
  for (; i + kLanes <= count; i += kLanes) {
    const vf value = load(x + i);
    best = value > best ? value : best;
  }
  float lanes[kLanes];
  store(lanes, best);
  float result = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; i++) result = std::max(result, x[i]);
  return result;
}

/// Σ exp((x − best)·factor), and the terms in `weights` unless null. The sum is in double: 65536 terms of one f32
/// sum would lose digits.
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

/// Calls found(id) for ids with low ≤ x[id] < high, in order.
template <class Found>
void scan(const float* x, int64_t count, float low, float high, Found&& found) {
  for (int64_t i = 0; i < count; i += kScan) {
    const int64_t end = std::min(i + kScan, count);
    int any = 0;
    for (int64_t j = i; j < end; j++) any |= (x[j] >= low) & (x[j] < high);
    if (any == 0) continue;
    for (int64_t j = i; j < end; j++) {
      if (x[j] >= low && x[j] < high) found(static_cast<int32_t>(j));
    }
  }
}

/// What one thread needs to draw.
struct Scratch {
  std::vector<float> logits;       // [V] after bias and penalties
  std::vector<float> weights;      // [V] exp((logit − best)/temperature)
  std::vector<int32_t> candidates;  // best first
};

/// Visits tokens from the best on (ties by id), sorting only as much of the vocabulary as is asked for: one band of
/// logits, a temperature wide, after the other.
class SortedWalk {
 public:
  SortedWalk(Scratch& scratch, float best, float temperature)
      : scratch_(scratch), best_(best), temperature_(temperature) {
    scratch_.candidates.clear();
  }

  /// The token at `rank`, or −1 beyond the last one that is not banned.
  int32_t at(size_t rank) {
    while (rank >= scratch_.candidates.size() && band_ <= kBands) sort_next_band();
    return rank < scratch_.candidates.size() ? scratch_.candidates[rank] : -1;
  }

 private:
  static constexpr int kBands = 32;

  void sort_next_band() {
    band_++;
    const float low = band_ > kBands ? std::numeric_limits<float>::lowest()
                                     : best_ - temperature_ * static_cast<float>(band_);
    auto& ids = scratch_.candidates;
    const size_t first = ids.size();
    const float* logits = scratch_.logits.data();
    scan(logits, static_cast<int64_t>(scratch_.logits.size()), low, high_, [&](int32_t id) { ids.push_back(id); });
    std::sort(ids.begin() + static_cast<int64_t>(first), ids.end(), [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    high_ = std::min(high_, low);
  }

  Scratch& scratch_;
  const float best_, temperature_;
  int band_ = 0;
  float high_ = kInfinity;
};

int32_t draw(Scratch& scratch, const Params& params) {
  const int64_t vocab = static_cast<int64_t>(scratch.logits.size());
  const float best = largest(scratch.logits.data(), vocab);
  if (!std::isfinite(best)) return -1;
  if (params.is_greedy()) {
    return static_cast<int32_t>(std::find(scratch.logits.begin(), scratch.logits.end(), best) -
                                scratch.logits.begin());
  }
  // Colder than this is greedy anyway, and keeps 0·∞ away.
  const float temperature = std::max(params.floats[kTemperature], 1e-20f);
  const double total =
      exponentials(scratch.logits.data(), vocab, best, 1.0f / temperature, scratch.weights.data());
  const float u = philox_uniform(params.ints[kSeedLow], params.ints[kSeedHigh], params.ints[kPosition],
                                 params.ints[kStream]);

  SortedWalk walk(scratch, best, temperature);
  const float top_p = params.floats[kTopP], min_p = params.floats[kMinP];
  const int32_t top_k = params.ints[kTopK];
  size_t kept = scratch.logits.size();
  double mass = total;
  if (top_p < 1 || min_p > 0 || top_k > 0) {
    mass = 0;
    for (kept = 0; top_k <= 0 || kept < static_cast<size_t>(top_k); kept++) {
      const int32_t id = walk.at(kept);
      if (id < 0 || (kept > 0 && scratch.weights[id] < min_p)) break;  // the best one's weight is 1
      if (top_p < 1 && mass >= static_cast<double>(top_p) * total) break;
      mass += scratch.weights[id];
    }
  }

  const double target = static_cast<double>(u) * mass;
  double below = 0;
  int32_t token = walk.at(0);
  for (size_t rank = 0; rank < kept; rank++) {
    const int32_t id = walk.at(rank);
    if (id < 0 || scratch.weights[id] == 0) break;  // rounding left the target beyond the last of them
    token = id;
    below += scratch.weights[id];
    if (below > target) break;
  }
  return token;
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
    }
  }

  void check_bias(const Batch& batch, int32_t s) const {
    const int32_t from = batch.bias_starts[s], to = batch.bias_starts[s + 1];
    require(from >= 0 && from <= to && to <= batch.num_bias, "bias starts do not ascend within the bias arrays");
    for (int32_t i = from; i < to; i++) {
      require(batch.bias_ids[i] >= 0 && batch.bias_ids[i] < penalties->vocab, "bias token outside the vocabulary");
      require(batch.bias_values[i] < kInfinity, "a logit bias must be finite or -inf");
    }
  }

  int64_t items(const Batch& batch, int) const override { return batch.num_samples; }

  /// Samples that count into the same slot are drawn in order, by the item of the first of them.
  void run(const Batch& batch, int64_t first, int thread, int) override {
    const int32_t slot = batch.sample_slot[first];
    if (std::find(batch.sample_slot, batch.sample_slot + first, slot) != batch.sample_slot + first) return;
    for (int64_t s = first; s < batch.num_samples; s++) {
      if (batch.sample_slot[s] == slot) sample(batch, s, scratch[thread]);
    }
  }

  void sample(const Batch& batch, int64_t s, Scratch& own) const {
    const Params params = {batch.sample_floats + s * SK_SAMPLE_FLOATS, batch.sample_ints + s * SK_SAMPLE_INTS};
    const int32_t slot = batch.sample_slot[s];
    const float* raw = logits + int64_t{batch.sample_row[s]} * penalties->vocab;
    int32_t token = -1;
    if (all_finite(raw, penalties->vocab)) {
      std::copy_n(raw, penalties->vocab, own.logits.begin());
      for (int32_t i = batch.bias_starts[s]; i < batch.bias_starts[s + 1]; i++) {
        own.logits[batch.bias_ids[i]] += batch.bias_values[i];
      }
      penalise(own.logits.data(), slot, params);
      token = draw(own, params);
    }
    batch.sampled[s] = token;
    if (params.ints[kTopLogprobs] >= 0) write_logprobs(batch, s, raw, token, params.ints[kTopLogprobs]);
    if (token >= 0) count(slot, token, params.floats[kDecay]);
  }

  void penalise(float* adjusted, int32_t slot, const Params& params) const {
    const float repetition = params.floats[kRepetition], presence = params.floats[kPresence];
    const float frequency = params.floats[kFrequency];
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

  void write_logprobs(const Batch& batch, int64_t s, const float* raw, int32_t token, int32_t wanted) const {
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
      return static_cast<float>(static_cast<double>(raw[id]) - static_cast<double>(best) - log_total);
    };
    batch.sampled_logprob[s] = logprob(token);
    const int32_t count = find_best(raw, vocab, std::min(wanted, vocab), ids);
    for (int32_t i = 0; i < count; i++) values[i] = logprob(ids[i]);
  }

  /// The `wanted` largest of x, best first, ties by id. Returns how many.
  static int32_t find_best(const float* x, int32_t vocab, int32_t wanted, int32_t* ids) {
    int32_t count = 0;
    for (int64_t i = 0; wanted > 0 && i < vocab; i += kScan) {
      const int64_t end = std::min<int64_t>(i + kScan, vocab);
      const float worst = count < wanted ? -kInfinity : x[ids[count - 1]];
      int any = 0;
      for (int64_t j = i; j < end; j++) any |= x[j] > worst;
      if (any == 0) continue;
      for (int64_t j = i; j < end; j++) {
        if (count == wanted && !(x[j] > x[ids[count - 1]])) continue;
        int32_t place = count < wanted ? count++ : count - 1;
        for (; place > 0 && x[j] > x[ids[place - 1]]; place--) ids[place] = ids[place - 1];
        ids[place] = static_cast<int32_t>(j);
      }
    }
    return count;
  }
};

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" int32_t sk_record_sample(sk_program* program, const float* logits, sk_penalties* penalties) {
  return guard([&] {
    auto command = std::make_unique<Sample>();
    command->logits = logits;
    command->penalties = penalties;
    command->scratch.resize(program->context->pool.threads());
    for (Scratch& scratch : command->scratch) {
      scratch.logits.resize(penalties->vocab);
      scratch.weights.resize(penalties->vocab);
    }
    program->commands.push_back(std::move(command));
  });
}
