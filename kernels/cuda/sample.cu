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

/** Where the token goes that a sample draws: for the next step, and for the host. */
struct Telling {
  int *step, *host;

  __device__ __forceinline__ void tell(int token) const { *step = *host = token; }
};

constexpr int kLater = -1;

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
    sample(Step step, Sampling op, int depth) {
  let_next_start();
  prepare_exchange();
  prepare_lists();
  // What the batch says is read before the logits are there. take_draws has ended by then.
  const int s = blockIdx.x / CLUSTER;
  const bool is_asked = s < step.num_samples();
  if (is_asked) asked.read(step, s);
  // No block may write to another that has not started.
  cluster_sync();
  if (!is_asked) return wait_for_previous();
  const float* const f = asked.floats;
  const int* const n = asked.ints;
  const bool is_later = n[kMask] < 0;
  bool is_due = depth == kLater ? is_later : !is_later && depth_of(step, s) == depth;
  const float* const logits = op.logits + (long long)step.sample_row[s] * op.vocab;
  float* const counts = op.counts + (long long)step.sample_slot[s] * op.vocab;
  u8* const flags = op.flags + (long long)step.sample_slot[s] * op.vocab;
  const bool is_adjusted =
      n[kMask] != 0 || penalises(f) || step.bias_starts[s + 1] > step.bias_starts[s];
  const Telling to = {op.sampled + s, op.host_sampled + step.results_image() * op.host_words + s};
  float share_drawn = philox_four(n, 0).x;
  compute_now(share_drawn);
  wait_for_previous();

  const bool reports = block_rank() == 0 && threadIdx.x == 0;
  if (depth == kLater && is_due) is_due = op.has_come[-1 - n[kMask]] != 0;
  if (!is_due) {
    if (is_later && depth == 0 && reports) to.tell(-1);
    return;
  }
  const u32* const mask =
      n[kMask] == 0 ? nullptr : op.masks + (long long)(abs(n[kMask]) - 1) * ((op.vocab + 31) / 32);
  const bool is_greedy = f[kTemperature] <= 0 || n[kTopK] == 1 || f[kTopP] <= 0;
  const bool is_noisy = f[kNoise] > 0 && !is_greedy;
  if (depth > 0 && op.sampled[s - 1] != n[kAfter] - 1) {
    if (reports) to.tell(-1);
    return;
  }
  int turn = 0;

  Row row = own_slice(op.vocab);
  row.load(logits);
  u64 best = row.best(turn, is_greedy, true);
  if (best == kNotFinite) {
    if (reports) to.tell(-1);
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
    token = draw(turn, row, op.vocab, r, f, n, share_drawn);
  }
  // If all tokens are banned, the best one is beyond the end.
  token = min(max(token, 0), op.vocab - 1);
  if (reports) {
    to.tell(token);
    // Draws after guesses that do not wait would count into the same place at once.
    if (n[kAfter] == 0 || depth > 0) {
      const u8 flag = flags[token];
      const float before = counts[token];
      counts[token] = flag & kGenerated ? before + 1 : 1;
      flags[token] = flag | kGenerated;
    }
  }
  if (n[kTopLogprobs] >= 0) {
    const Report report_to = {op.sampled_logprob + s, op.top_ids + s * kMaxTop,
                       op.top_logprobs + s * kMaxTop};
    report(turn, logits, op.vocab, report_to, token, n[kTopLogprobs]);
  }
}
