// The log-probabilities of a sample, from the raw logits: of the drawn token and of the best ones.
#pragma once
#include "sample-draw.cuh"

constexpr int kMaxTop = 20;

/** Where the results of one sample go: ids and logprobs [kMaxTop]. */
struct Report {
  float* sampled;
  int* ids;
  float* logprobs;
};

/** `token` is valid in the first block. */
__device__ __noinline__ void report(int turn, const float* logits, int vocab, const Report& to,
                                    int token, int k) {
  constexpr float kLog2e = 1.44269504f;
  Row row = own_slice(vocab);
  row.load(logits);
  // Waits until all threads have read the results of the last exchange.
  __syncthreads();
  const float best = score_of((u32)(row.best(turn, false, false) >> 32));
  float sums[2] = {};
  const Ranking r = {best, kLog2e, kLog2e};
  row.for_each([&](int, float score) { sums[0] += r.weight(score); });
  sum_cluster(turn, sums);
  __syncthreads();
  const float log_total = best + (float)log(exchange.sums[0]);
  const bool writes = block_rank() == 0;
  if (writes && threadIdx.x == 0) *to.sampled = logits[token] - log_total;
  if (k <= 0) return;
  k = min(min(k, kMaxTop), vocab);
  const auto write = [&](int from) {
    const int at = from + threadIdx.x;
    if (!writes || at >= k || (int)threadIdx.x >= lists.num_ranked[0]) return;
    const int id = min(id_of(lists.ranked[threadIdx.x]), vocab - 1);
    to.ids[at] = id, to.logprobs[at] = logits[id] - log_total;
  };
  const Place place = list_nth(turn, logits, vocab, best, kLog2e, k, infinity());
  write(0);
  if (place.is_listed) return;
  // The remaining tokens all have the same score.
  const int better = (int)place.bracket.to_high;
  list_nth(place.next_turn, logits, vocab, 0, 16.0f / vocab, k - better, place.bracket.low);
  write(better);
}
