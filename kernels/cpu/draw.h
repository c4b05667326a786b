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
  bool has_penalties() const {
    return floats[kRepetitionPenalty] != 1 || floats[kPresencePenalty] != 0 ||
           floats[kFrequencyPenalty] != 0;
  }
  /// Not below the bound, so that 1/temperature is finite: a lower one is greedy anyway.
  float temperature() const { return std::max(floats[kTemperature], 1e-20f); }
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

/// The weight of some tokens and their number, added at once.
typedef double Tally __attribute__((vector_size(16)));

/// What is known of one part of the vocabulary.
struct Part {
  bool is_finite;              // the model's own logits
  float best, worst;           // of `logits`; worst without the −inf of banned tokens
  double total;                // of the weights
  /// Those of its tokens that the draw may keep, and their buckets.
  std::vector<int32_t> ids;
  std::vector<uint16_t> places;
  int64_t num_ids;
  std::vector<Tally> buckets;  // [kBuckets]
  std::vector<Tally> groups;   // [kBuckets / kGroupBuckets], of that many buckets
};

struct Candidate {
  int32_t id;
  float logit, weight;
};

/// The memory of one draw. Tokens are counted into buckets of descending logits. What a token weighs,
/// exp((logit − best)/temperature), is computed twice where it matters rather than stored: a step's
/// weights have swept this memory from the caches.
struct Scratch {
  int64_t vocab;
  std::vector<float> adjusted;        // [V] logits after mask, bias and penalties, if there are any
  std::vector<Candidate> candidates;  // of one bucket, best first
  Part parts[kParts];

  static constexpr int kBuckets = 2048, kGroupBuckets = 64;

  explicit Scratch(int32_t tokens) : vocab(tokens), adjusted(tokens) {
    for (Part& part : parts) {
      part.ids.resize(start(1) + kScan), part.places.resize(start(1) + kScan);
      part.buckets.resize(kBuckets), part.groups.resize(kBuckets / kGroupBuckets);
    }
  }

  /// The first token of a part; a multiple of kScan, but for the end of the vocabulary.
  int64_t start(int part) const {
    return std::min(div_up(vocab, kParts * kScan) * kScan * part, vocab);
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
  Tally bucket(int index) const {
    Tally all = {};
    for (const Part& part : parts) all += part.buckets[index];
    return all;
  }
  Tally group(int index) const {
    Tally all = {};
    for (const Part& part : parts) all += part.groups[index];
    return all;
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

/// The terms exp((x − best)·factor) of kScan values, of `count` that are there; the others are 0.
/// Returns their sum.
float exponentials(const float* x, int64_t count, float best, float factor, float* terms) {
  std::copy_n(x, count, terms);
  std::fill(terms + count, terms + kScan, -kInfinity);
  vf all = {};
  for (int64_t j = 0; j < kScan; j += kLanes) {
    const vf term = exp((load(terms + j) - best) * factor);
    store(terms + j, term);
    all += term;
  }
  return sum(all);
}

/// Sums in double, because an f32 sum of 65,536 terms would lose digits.
double sum_exponentials(const float* x, int64_t count, float best, float factor) {
  double total = 0;
  float terms[kScan];
  for (int64_t i = 0; i < count; i += kScan)
    total += static_cast<double>(
        exponentials(x + i, std::min(kScan, count - i), best, factor, terms));
  return total;
}

/// Lists the first + j with x[j] ≥ least, of kScan or fewer; returns how many.
int64_t list_from(const float* x, int64_t count, float least, int32_t first, int32_t* ids) {
  int64_t num = 0;
#if defined(__AVX512F__)
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int64_t j = 0; j < count; j += kLanes) {
    const __mmask16 there = static_cast<__mmask16>(count - j < kLanes ? (1 << (count - j)) - 1 : -1);
    const __mmask16 kept = _mm512_mask_cmp_ps_mask(there, _mm512_maskz_loadu_ps(there, x + j),
                                                   _mm512_set1_ps(least), _CMP_GE_OQ);
    const __m512i all = _mm512_add_epi32(lanes, _mm512_set1_epi32(first + static_cast<int32_t>(j)));
    _mm512_storeu_si512(ids + num, _mm512_maskz_compress_epi32(kept, all));
    num += __builtin_popcount(kept);
  }
#else
  for (int64_t j = 0; j < count; j++) {
    ids[num] = first + static_cast<int32_t>(j);
    num += x[j] >= least ? 1 : 0;
  }
#endif
  return num;
}

/// Weighs the tokens of one part and counts those that the draw may keep into the buckets. What
/// top-p leaves out for certain is not counted: the tokens of a part that together weigh less than
/// the part's share of what it leaves out.
void weigh(Scratch& scratch, const float* logits, int index, const Params& params) {
  constexpr float kLast = Scratch::kBuckets - 1;
  const float temperature = params.temperature(), best = scratch.best();
  Part& part = scratch.parts[index];
  const int64_t from = scratch.start(index), count = scratch.start(index + 1) - from;
  part.total = sum_exponentials(logits + from, count, best, 1.0f / temperature);
  const double left_out = 1 - static_cast<double>(params.floats[kTopP]);
  // A tenth less, for the rounding of weights at low temperatures.
  const double light = left_out <= 0 ? 0 : 0.9 * left_out * part.total / static_cast<double>(count);
  const float least =
      light > 0 ? best + temperature * static_cast<float>(std::log(light)) : -kInfinity;
  part.num_ids = 0;
  for (int64_t i = 0; i < count; i += kScan)
    part.num_ids += list_from(logits + from + i, std::min(kScan, count - i), least,
                              static_cast<int32_t>(from + i), part.ids.data() + part.num_ids);
  // e^-32 is below the resolution of the draw. All tokens further down share the last bucket.
  const float range = std::max(std::min(best - scratch.worst(), 32 * temperature), 1e-30f);
  const float scale = kLast / range;
  std::fill(part.buckets.begin(), part.buckets.end(), Tally{});
  for (int64_t i = 0; i < part.num_ids; i += kScan) {
    const int64_t num = std::min(kScan, part.num_ids - i);
    float found[kScan], weights[kScan];
    for (int64_t j = 0; j < num; j++) found[j] = logits[part.ids[i + j]];
    exponentials(found, num, best, 1.0f / temperature, weights);
    for (int64_t j = 0; j < num; j++) {
      const float place = std::min((best - found[j]) * scale, kLast);
      part.places[i + j] = static_cast<uint16_t>(static_cast<int32_t>(place));
    }
    for (int64_t j = 0; j < num; j++) part.buckets[part.places[i + j]] += Tally{weights[j], 1};
  }
  std::fill(part.groups.begin(), part.groups.end(), Tally{});
  for (int i = 0; i < Scratch::kBuckets; i++)
    part.groups[i / Scratch::kGroupBuckets] += part.buckets[i];
}

/// Gives the tokens from best to worst (ties by id) without sorting them all: a bucket is sorted
/// only if the order within it matters.
class Ranking {
 public:
  Ranking(Scratch& scratch, const float* logits, float temperature)
      : scratch_(scratch), logits_(logits), factor_(1.0f / temperature) {}

  /// The tokens of one bucket, best first.
  const std::vector<Candidate>& sorted(int bucket) {
    auto& found = scratch_.candidates;
    if (bucket == sorted_) return found;
    sorted_ = bucket;
    found.clear();
    for (const Part& part : scratch_.parts) {
      for (int64_t i = 0; i < part.num_ids; i += kScan) {
        const int64_t end = std::min(i + kScan, part.num_ids);
        int any = 0;
        for (int64_t j = i; j < end; j++) any |= part.places[j] == bucket;
        for (int64_t j = i; any != 0 && j < end; j++) {
          if (part.places[j] == bucket) found.push_back({part.ids[j], logits_[part.ids[j]], 0});
        }
      }
    }
    std::sort(found.begin(), found.end(), [](const Candidate& x, const Candidate& y) {
      return x.logit != y.logit ? x.logit > y.logit : x.id < y.id;
    });
    const float best = scratch_.best();
    for (size_t i = 0; i < found.size(); i += kScan) {
      const size_t num = std::min<size_t>(kScan, found.size() - i);
      float logits[kScan], terms[kScan];
      for (size_t j = 0; j < num; j++) logits[j] = found[i + j].logit;
      exponentials(logits, static_cast<int64_t>(num), best, factor_, terms);
      for (size_t j = 0; j < num; j++) found[i + j].weight = terms[j];
    }
    return found;
  }

 private:
  Scratch& scratch_;
  const float* logits_;
  const float factor_;
  int sorted_ = -1;
};

/// What top-k, top-p and min-p keep: the number of tokens and their total weight.
struct Kept {
  double mass, count;

  void add(Tally tally) { mass += tally[0], count += tally[1]; }
};

Kept truncate(Scratch& scratch, Ranking& ranking, const Params& params) {
  const double wanted =
      params.floats[kTopP] < 1 ? params.floats[kTopP] * scratch.total() : kInfinity;
  const float min_p = params.floats[kMinP];  // relative to the best token, whose weight is 1
  const double top_k = params.ints[kTopK] > 0 ? params.ints[kTopK] : kInfinity;
  Kept kept = {0, 0};
  const auto is_kept = [&](Tally all) {
    return min_p <= 0 && kept.count + all[1] <= top_k && kept.mass + all[0] < wanted;
  };
  for (int bucket = 0; bucket < Scratch::kBuckets; bucket++) {
    if (bucket % Scratch::kGroupBuckets == 0) {
      const Tally group = scratch.group(bucket / Scratch::kGroupBuckets);
      if (group[1] == 0 || is_kept(group)) {
        kept.add(group);
        bucket += Scratch::kGroupBuckets - 1;
        continue;
      }
    }
    const Tally all = scratch.bucket(bucket);
    if (all[1] == 0) continue;
    if (is_kept(all)) {
      kept.add(all);
      continue;
    }
    for (const auto& [id, logit, weight] : ranking.sorted(bucket)) {
      const bool is_full = kept.count >= top_k || kept.mass >= wanted;
      if (kept.count > 0 && (is_full || weight < min_p || weight == 0)) return kept;
      kept.add(Tally{weight, 1});
    }
  }
  return kept;
}

/// The token at which the running sum of weights, best first, exceeds `target`.
int32_t find_token(Scratch& scratch, Ranking& ranking, double count, double target) {
  int32_t token = -1;
  double below = 0;
  const auto is_below = [&](Tally all) { return all[1] < count && below + all[0] <= target; };
  for (int bucket = 0; bucket < Scratch::kBuckets && count > 0; bucket++) {
    const bool is_first = bucket % Scratch::kGroupBuckets == 0;
    Tally all = is_first ? scratch.group(bucket / Scratch::kGroupBuckets) : Tally{};
    const bool is_whole = is_first && is_below(all);
    if (is_whole) bucket += Scratch::kGroupBuckets - 1;
    else all = scratch.bucket(bucket);
    if (is_whole || is_below(all)) {
      below += all[0];
      count -= all[1];
      continue;
    }
    for (const auto& [id, logit, weight] : ranking.sorted(bucket)) {
      // Because of rounding, the target can lie just beyond the last token that has weight.
      if (count-- == 0 || (token >= 0 && weight == 0)) return token;
      token = id;
      below += weight;
      if (below > target) return token;
    }
  }
  return token;
}

/// The token with the best score/temperature + noise·uniform; ties go to the smaller id.
int32_t draw_noisy(const float* scores, int32_t vocab, const Params& params) {
  const float temperature = params.floats[kTemperature], noise = params.floats[kNoise];
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
int32_t draw(Scratch& scratch, const float* logits, const Params& params) {
  const float best = scratch.best();
  const int64_t vocab = scratch.vocab;
  if (!std::isfinite(best)) return -1;
  if (params.is_greedy())
    return static_cast<int32_t>(std::find(logits, logits + vocab, best) - logits);
  if (params.floats[kNoise] > 0) return draw_noisy(logits, static_cast<int32_t>(vocab), params);
  Ranking ranking(scratch, logits, params.temperature());
  const Kept kept = truncate(scratch, ranking, params);
  const float u = philox_four(params.ints[kSeedLow], params.ints[kSeedHigh], params.ints[kPosition],
                              params.ints[kStream], 0)[0];
  return find_token(scratch, ranking, kept.count, static_cast<double>(u) * kept.mass);
}

}  // namespace

}  // namespace skein
