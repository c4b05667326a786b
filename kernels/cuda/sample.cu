// Draws the samples of a step, one cluster of CLUSTER blocks each, in the order of backend.ts: bias
// → penalties → temperature → top-k, top-p and min-p on one distribution → draw (or the best of
// noisy scores); then counts the token and reports log-probabilities. logits f32 [R, V] · scratch
// f32 [S, V] · counts f32, flags u8 [slots, V] (1 in the prompt, 2 generated)
//
// No sort of the vocabulary. A token's rank is its key, the score's bits in order. Where the ranked
// list ends, and where a draw falls in it, is where a sum over keys from the top crosses a line:
// one pass sums the row in bins of scores, in whole numbers; where the bin with the crossing has
// too many tokens, passes with a few pivots each narrow it down until it fits in shared memory, is
// sorted there and summed in order. All sums are whole or made in a fixed order, so a draw depends
// on its row alone. Every block of a cluster reads its own slice of the row; what they find is
// exchanged through shared memory, and all of them follow the same path. Agrees with
// reference/sample.ts token for token unless two probabilities or sums are within f32 rounding of a
// tie.
#include "sample-report.cuh"

constexpr int kNoLimit = 0x7fffffff;

__device__ int draw(Shared& sh, const Ranking& r, const float* f, const int* n) {
  const u32 lowest = lowest_key(r, f[kMinP]);
  sum_bins(sh, r, lowest);
  const double total = sh.total;
  const Bracket all = whole(sh, key_of(r.best), lowest);
  const bool cuts = f[kTopP] < 1 || n[kTopK] > 0;
  const int limit = n[kTopK] > 0 ? n[kTopK] : kNoLimit;
  const Line end = {f[kTopP] < 1 ? f[kTopP] * total : 1e300, limit, false};

  Bracket kept = all;
  double mass = all.low.mass;
  if (cuts) {
    kept = narrow(sh, r, find_bin(sh, r, all, end), end);
    if (kept.low.count <= kList) kept.high = all.high;
    locate(sh, r, kept, end, &mass);
  } else if (all.low.count <= kList) {
    gather(sh, r, kept, 0);
  }

  const float u = philox_four(n, 0).x;
  const Line line = {u * mass, kNoLimit, true};
  int at;
  double sum;
  if (kept.low.count <= kList) {
    at = find_crossing(sh, r, kept.high, line, &sum);
  } else {
    Bracket b = find_bin(sh, r, all, line);
    // Where the kept end within the bin, it is cut there.
    if (line.crossed(kept.high.mass, kept.high.count)) {
      if (b.low.key < kept.high.key) b.low = kept.high;
    } else {
      if (b.high.key > kept.high.key || b.high.key <= kept.low.key) b.high = kept.high;
      if (b.low.key < kept.low.key) b.low = kept.low;
    }
    b = narrow(sh, r, b, line);
    at = locate(sh, r, b, line, &sum);
  }
  // Rounding can leave the line just beyond the last token.
  return (int)(u32)sh.list[at < 0 ? sh.length - 1 : at];
}

extern "C" __global__ void __launch_bounds__(kThreads) sample(Step step, Sampling op) {
  __shared__ Shared sh;
  let_next_start();
  wait_for_previous();
  const int s = blockIdx.x / CLUSTER;
  if (s >= step.num_samples()) return;
  const bool reports = block_rank() == 0 && threadIdx.x == 0;
  const float* const f = step.sample_floats + s * kSampleFloats;
  const int* const n = step.sample_ints + s * kSampleInts;
  const float* const raw = op.logits + (long long)step.sample_row[s] * op.vocab;
  float* const counts = op.counts + (long long)step.sample_slot[s] * op.vocab;
  u8* const flags = op.flags + (long long)step.sample_slot[s] * op.vocab;

  find_best(sh, raw, op.vocab, true);
  if (!sh.is_finite) {
    if (reports) op.sampled[s] = -1;
    return;
  }
  const bool penalises =
      f[kRepetition] != 1 || f[kPresence] != 0 || f[kFrequency] != 0 || f[kDecay] != 1;
  const bool is_greedy = f[kTemperature] <= 0 || n[kTopK] == 1 || f[kTopP] <= 0;
  const bool is_noisy = f[kNoise] > 0 && !is_greedy;
  const float* scores = raw;
  float* const adjusted = op.scratch + (long long)s * op.vocab;
  if (penalises || step.bias_starts[s + 1] > step.bias_starts[s]) {
    adjust(op, step, s, raw, adjusted, counts, flags, f);
    scores = adjusted;
    if (!is_noisy) find_best(sh, scores, op.vocab, false);
  }
  if (is_noisy) {
    add_noise(scores, adjusted, op.vocab, f, n);
    find_best(sh, adjusted, op.vocab, false);
  }

  int token = sh.best_id;
  if (!is_greedy && !is_noisy) {
    const Ranking r = {scores, op.vocab, sh.best, fminf(1.44269504f / f[kTemperature], 1e30f)};
    __syncthreads();
    token = draw(sh, r, f, n);
  }
  if (reports) {
    op.sampled[s] = token;
    counts[token] = flags[token] & kGenerated ? counts[token] + 1 : 1;
    flags[token] |= kGenerated;
  }
  if (n[kTopLogprobs] >= 0) {
    __syncthreads();
    report(sh, op, s, raw, token, n[kTopLogprobs]);
  }
  // No block goes while another may still read its shared memory.
  cluster_sync();
}
