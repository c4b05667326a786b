// One draw: its parameters, the weights of the tokens in buckets, and the token. `Ops.sample` in
// src/backend/backend.ts defines the order of the steps and how ties are broken. The results are
// those of sorting the whole vocabulary, but only small parts are sorted.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "best.h"
#include "memory.h"
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

/// The vocabulary is worked on in so many parts, which several threads may share. Sums are of whole
/// parts, in order, so a draw does not depend on who did them.
constexpr int kParts = 4;

/// What is known of one part of the vocabulary.
struct Part {
  bool is_finite;               // the model's own logits
  float best, worst;            // of `logits`; worst without the −inf of banned tokens
  double total;                 // of `weights`
  std::vector<int32_t> counts;  // [kBuckets]
  std::vector<double> masses;   // [kBuckets]
};

/// The memory of one draw. Tokens are counted into buckets of descending logits.
struct Scratch {
  std::vector<float> logits;        // [V] after bias and penalties
  std::vector<float> weights;       // [V] exp((logit − best)/temperature)
  std::vector<uint16_t> buckets;    // [V]
  std::vector<int32_t> candidates;  // of one bucket, best first
  Part parts[kParts];

  static constexpr int kBuckets = 2048;

  explicit Scratch(int32_t vocab) : logits(vocab), weights(vocab), buckets(vocab) {
    for (Part& part : parts) part.counts.resize(kBuckets), part.masses.resize(kBuckets);
  }

  int64_t vocab() const { return static_cast<int64_t>(logits.size()); }
  /// The first token of a part; a multiple of kScan, but for the end of the vocabulary.
  int64_t start(int part) const {
    return std::min(div_up(vocab(), kParts * kScan) * kScan * part, vocab());
  }
  bool is_finite() const {
    return std::all_of(parts, parts + kParts, [](const Part& part) { return part.is_finite; });
  }
  float best() const {
    float best = -kInfinity;
    for (const Part& part : parts) best = std::max(best, part.best);
    return best;
  }
  float worst() const {
    float worst = kInfinity;
    for (const Part& part : parts) worst = std::min(worst, part.worst);
    return worst;
  }
  double total() const {
    double total = 0;
    for (const Part& part : parts) total += part.total;
    return total;
  }
  int64_t count(int bucket) const {
    int64_t count = 0;
    for (const Part& part : parts) count += part.counts[bucket];
    return count;
  }
  double mass(int bucket) const {
    double mass = 0;
    for (const Part& part : parts) mass += part.masses[bucket];
    return mass;
  }
};

/// The largest and the smallest x of a part; −inf, of banned tokens, is not the smallest.
void extremes(const float* x, int64_t count, Part& part) {
  int64_t i = 0;
  vf best = splat(-kInfinity), worst = splat(kInfinity);
  for (; i + kLanes <= count; i += kLanes) {
    const vf value = load(x + i);
    best = value > best ? value : best;
    worst = ((value < worst) & (value > -kInfinity)) ? value : worst;
  }
  float lanes[2][kLanes];
  store(lanes[0], best);
  store(lanes[1], worst);
  part.best = *std::max_element(lanes[0], lanes[0] + kLanes);
  part.worst = *std::min_element(lanes[1], lanes[1] + kLanes);
  for (; i < count; i++) {
    part.best = std::max(part.best, x[i]);
    if (x[i] < part.worst && x[i] > -kInfinity) part.worst = x[i];
  }
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

/// Weighs the tokens of one part and counts them into the buckets.
void weigh(Scratch& scratch, int index, float temperature) {
  constexpr float kLast = Scratch::kBuckets - 1;
  Part& part = scratch.parts[index];
  const int64_t from = scratch.start(index), count = scratch.start(index + 1) - from;
  const float* logits = scratch.logits.data() + from;
  const float best = scratch.best();
  // A lower temperature is greedy anyway. The bound avoids 0·∞.
  temperature = std::max(temperature, 1e-20f);
  part.total = exponentials(logits, count, best, 1.0f / temperature, scratch.weights.data() + from);
  // e^-32 is below the resolution of the draw. All tokens further down share the last bucket.
  const float range = std::max(std::min(best - scratch.worst(), 32 * temperature), 1e-30f);
  const float scale = kLast / range;
  uint16_t* buckets = scratch.buckets.data() + from;
  for (int64_t i = 0; i < count; i++) {
    const float place = std::min((best - logits[i]) * scale, kLast);
    buckets[i] = static_cast<uint16_t>(static_cast<int32_t>(place));
  }
  std::fill(part.counts.begin(), part.counts.end(), 0);
  std::fill(part.masses.begin(), part.masses.end(), 0.0);
  for (int64_t i = 0; i < count; i++) {
    part.counts[buckets[i]]++;
    part.masses[buckets[i]] += scratch.weights[from + i];
  }
}

/// Gives the tokens from best to worst (ties by id) without sorting them all: a bucket is sorted
/// only if the order within it matters.
class Ranking {
 public:
  explicit Ranking(Scratch& scratch) : scratch_(scratch) {}

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

Kept truncate(Scratch& scratch, Ranking& ranking, const Params& params) {
  const double wanted =
      params.floats[kTopP] < 1 ? params.floats[kTopP] * scratch.total() : kInfinity;
  const float min_p = params.floats[kMinP];  // relative to the best token, whose weight is 1
  const int64_t top_k =
      params.ints[kTopK] > 0 ? params.ints[kTopK] : std::numeric_limits<int64_t>::max();
  Kept kept = {0, 0};
  for (int bucket = 0; bucket < Scratch::kBuckets; bucket++) {
    const int64_t count = scratch.count(bucket);
    if (count == 0) continue;
    const double mass = scratch.mass(bucket);
    if (min_p <= 0 && kept.count + count <= top_k && kept.mass + mass < wanted) {
      kept.count += count;
      kept.mass += mass;
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
    const int64_t in_bucket = scratch.count(bucket);
    const double mass = scratch.mass(bucket);
    if (in_bucket < count && below + mass <= target) {
      below += mass;
      count -= in_bucket;
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

/// Draws from the weighed tokens.
int32_t draw(Scratch& scratch, const Params& params) {
  const float best = scratch.best();
  if (!std::isfinite(best)) return -1;
  if (params.is_greedy()) {
    return static_cast<int32_t>(std::find(scratch.logits.begin(), scratch.logits.end(), best) -
                                scratch.logits.begin());
  }
  if (params.floats[kNoise] > 0) return draw_noisy(scratch.logits, params);
  Ranking ranking(scratch);
  const Kept kept = truncate(scratch, ranking, params);
  const float u = philox_four(params.ints[kSeedLow], params.ints[kSeedHigh], params.ints[kPosition],
                              params.ints[kStream], 0)[0];
  return find_token(scratch, ranking, kept.count, static_cast<double>(u) * kept.mass);
}

}  // namespace

}  // namespace skein
