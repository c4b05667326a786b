// Draws the samples of a step, each with a cluster of CLUSTER blocks, in the order of backend.ts:
// mask → bias → penalties → temperature → top-k, top-p and min-p on one distribution → draw (or the
// best of noisy scores). Then counts the token and reports log-probabilities.
//   logits f32 [R, V] · scratch f32 [S, V] · counts f32, flags u8 [slots, V] (1 in the prompt,
//   2 generated)
//
// The vocabulary is not sorted. If the best few tokens are enough, only they are listed and ranked
// (sample-best.cuh). Otherwise the end of the kept part, and the draw in it, are found where a
// running sum crosses a line (sample-search.cuh). A cluster holds the row in its registers. All
// sums are made in a fixed order, which is the same for every step, so a draw depends on its row
// alone, also if a list overflows. It agrees with reference/sample.ts token for token, unless two
// probabilities or sums are within f32 rounding of a tie.
//
// Some draws are made by a launch of their own, which `depth` selects: draws whose penalties depend
// on the draw before (guesses), and draws whose mask comes after their step (kLater, those whose
// mask has come).
#include "sample-report.cuh"

struct Sampling {
  const float* logits;
  float* scratch;
  float* counts;
  u8* flags;
  const int* bias_ids;
  const float* bias_values;
  const u32* masks;
  const int* has_come;  // [masks]
  int* sampled;
  float* sampled_logprob;
  int* top_ids;
  float* top_logprobs;
  /** In page-locked memory: what each step in flight draws, `host_words` apart. */
  int* host_sampled;
  int host_words;
  int vocab;
};

/** What sample s drew, for the next step and for the host. */
__device__ __forceinline__ void tell(const Step& step, const Sampling& op, int s, int token) {
  op.sampled[s] = token;
  op.host_sampled[step.results_image() * op.host_words + s] = token;
}

constexpr int kLater = -1;

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
    sample(Step step, Sampling op, int depth) {
  let_next_start();
  prepare_exchange();
  prepare_lists();
  // No block may write to another that has not started.
  cluster_arrive();
  wait_for_previous();
  const int s = blockIdx.x / CLUSTER;
  if (s >= step.num_samples()) {
    cluster_wait();
    return;
  }
  const float* const f = step.sample_floats + s * kSampleFloats;
  const int* const n = step.sample_ints + s * kSampleInts;
  const bool reports = block_rank() == 0 && threadIdx.x == 0;
  const bool is_later = n[kMask] < 0;
  const bool is_due = depth == kLater ? is_later && op.has_come[-1 - n[kMask]] != 0
                                      : !is_later && depth_of(step, s) == depth;
  if (!is_due) {
    cluster_wait();
    if (is_later && depth == 0 && reports) tell(step, op, s, -1);
    return;
  }
  const float* const logits = op.logits + (long long)step.sample_row[s] * op.vocab;
  float* const counts = op.counts + (long long)step.sample_slot[s] * op.vocab;
  u8* const flags = op.flags + (long long)step.sample_slot[s] * op.vocab;
  const u32* const mask =
      n[kMask] == 0 ? nullptr : op.masks + (long long)(abs(n[kMask]) - 1) * ((op.vocab + 31) / 32);
  const bool is_adjusted =
      mask != nullptr || penalises(f) || step.bias_starts[s + 1] > step.bias_starts[s];
  const bool is_greedy = f[kTemperature] <= 0 || n[kTopK] == 1 || f[kTopP] <= 0;
  const bool is_noisy = f[kNoise] > 0 && !is_greedy;
  if (depth > 0 && op.sampled[s - 1] != n[kAfter] - 1) {
    cluster_wait();
    if (reports) tell(step, op, s, -1);
    return;
  }
  int turn = 0;

  Row row = own_slice(op.vocab);
  row.load(logits);
  cluster_wait();
  u64 best = row.best(turn, is_greedy, true);
  if (best == kNotFinite) {
    if (reports) tell(step, op, s, -1);
    return;
  }
  if (is_adjusted || is_noisy) {
    float* const scratch = op.scratch + (long long)s * op.vocab;
    const Slice slice = {row.first, row.first + row.length};
    if (is_adjusted) {
      adjust(slice, step, s, logits, scratch, mask, op.bias_ids, op.bias_values, counts, flags, f);
      // The first block reads the count of its token, which another block may have decayed.
      cluster_sync();
    }
    if (is_noisy) add_noise(slice, is_adjusted ? scratch : logits, scratch, f, n);
    row.load(scratch);
    best = row.best(turn, true, false);
  }
  int token = id_of(best);
  const float best_score = score_of((u32)(best >> 32));
  // If all tokens are banned, no score is finite, and none can be weighed against the best.
  if (!is_greedy && !is_noisy && fabsf(best_score) < -kLowest) {
    const float scale = fminf(1.44269504f / f[kTemperature], 1e30f);
    const Ranking r = {best_score, scale, scale};
    token = draw(turn, row, op.vocab, r, f, n);
  }
  // If all tokens are banned, the best one is beyond the end.
  token = min(max(token, 0), op.vocab - 1);
  if (reports) {
    tell(step, op, s, token);
    // Draws after guesses that do not wait would count into the same place at once.
    if (n[kAfter] == 0 || depth > 0) {
      counts[token] = flags[token] & kGenerated ? counts[token] + 1 : 1;
      flags[token] |= kGenerated;
    }
  }
  if (n[kTopLogprobs] >= 0) {
    const Report to = {op.sampled_logprob + s, op.top_ids + s * kMaxTop,
                       op.top_logprobs + s * kMaxTop};
    report(turn, logits, op.vocab, to, token, n[kTopLogprobs]);
  }
}
