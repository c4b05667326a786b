// Log-probabilities of a sample, of the raw logits: the drawn token's, and the best ones.
#pragma once
#include "sample-bins.cuh"
#include "sample-list.cuh"
#include "sample-pivots.cuh"
#include "sample-scores.cuh"

constexpr int kMaxTop = 20;

/** Log-probabilities of the raw logits: the drawn token's, and the k best. */
__device__ void report(Shared& sh, const Sampling& op, int s, const float* raw, int token, int k) {
  find_best(sh, raw, op.vocab, false);
  const Ranking r = {raw, op.vocab, sh.best, 1.44269504f};
  sum_bins(sh, r, 0);
  const float log_total = r.best + (float)log(sh.total);
  const bool writes = block_rank() == 0;
  if (writes && threadIdx.x == 0) op.sampled_logprob[s] = raw[token] - log_total;
  if (k <= 0) return;
  k = min(min(k, kMaxTop), op.vocab);
  const Line line = {1e300, k, false};
  const Bracket all = whole(sh, key_of(r.best), 0);
  Bracket b = narrow(sh, r, find_bin(sh, r, all, line), line);
  // The k best are few: with everything above the bracket they still fit, unless the bracket alone
  // fills the list.
  if (b.low.count <= kList) b.high = {key_of(r.best), 0, 0};
  int done = 0;
  if (b.high.count > 0) {
    const Bracket above = {{key_of(r.best), 0, 0}, b.high};
    gather(sh, r, above, 0);
    done = min(k, sh.length);
    if (writes && (int)threadIdx.x < done) {
      const int id = (int)(u32)sh.list[threadIdx.x];
      op.top_ids[s * kMaxTop + threadIdx.x] = id;
      op.top_logprobs[s * kMaxTop + threadIdx.x] = raw[id] - log_total;
    }
    __syncthreads();
  }
  gather(sh, r, b, 0);
  if (writes && (int)threadIdx.x < k - done) {
    const int id = (int)(u32)sh.list[threadIdx.x];
    op.top_ids[s * kMaxTop + done + threadIdx.x] = id;
    op.top_logprobs[s * kMaxTop + done + threadIdx.x] = raw[id] - log_total;
  }
}
