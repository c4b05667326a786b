// Finds where the running sum over a sample's ranked tokens crosses a line, without sorting them. A
// first walk over an eighth of the scores estimates the place. Then walks over all scores sum the
// tokens above a few nearby scores (pivots), until few enough tokens to be listed are left between
// two of them. Sums are made in a fixed order, so they depend on the row alone.
#pragma once
#include "sample-row.cuh"

/** The weight of a score: 2^((score − best)·slope). scale = log2(e) / temperature. To count tokens,
 * slope is 0; scale stays. */
struct Ranking {
  float best, scale, slope;

  __device__ float weight(float score) const {
    return power_below(score, best, slope);
  }

  __device__ float score_at(float depth) const { return best - depth / scale; }
};

/** A line somewhere in [least, most]. A sum crosses it when it reaches it, or, with `passes`, when
 * it exceeds it. If most is negative, nothing is searched for. */
struct Line {
  double least, most;
  bool passes;

  __device__ bool is_crossed(double sum) const { return passes ? sum > most : sum >= most; }
  __device__ bool is_ahead(double sum) const { return passes ? sum <= least : sum < least; }
};

__device__ __forceinline__ Line line_at(double sum) { return {sum, sum, false}; }

/** A line for which nothing is searched. */
__device__ __forceinline__ Line no_line() { return {0, -1, false}; }

/** Scores in [low, high), in which the sum crosses the line, and the sums of all tokens from `high`
 * and from `low` on. */
struct Bracket {
  float high, low;
  double to_high, to_low;

  /** Whether the bracket has a single score. */
  __device__ bool is_tie() const { return order_of(high) - order_of(low) <= 1; }
};

/** The capacity of a list, and the tokens that a bracket may have at the end. The number is
 * estimated from the weights; rounding can hide tokens that are tiny beside the rest of a warp,
 * hence the reserve. */
constexpr int kList = 128, kFew = 120;

constexpr int kLines = 2, kPivots = 3 * kLines;
/** Depths of the first walk. One more sum is that of all. */
constexpr int kDepths = 15;
__device__ __forceinline__ float depth_of(int i) { return i < 12 ? 0.5f * (i + 1) : 2.0f * i - 16; }

/** The state of a search. The first warp sees it at once, the others after a barrier of the
 * block. */
struct Search {
  Bracket brackets[kLines];
  Line lines[kLines];
  float pivots[kPivots];
  /** The tokens that a bracket may have at the end; 0: a single score. */
  int few;
  bool is_done;
};

__shared__ Search search;

__device__ __forceinline__ bool is_few(const Bracket& b, const Ranking& r) {
  return b.to_low - b.to_high <= search.few * (double)r.weight(b.low);
}

/** The unit of depth: small if scores are close to each other. `mean` is the mean depth of the
 * scores, in halvings of the weight. */
__device__ __forceinline__ float depth_unit(float mean) {
  return fminf(fmaxf(0.22f * mean, 1e-4f), 1.25f);
}

/** exchange.sums: the sums down to each depth, and of all, over an eighth of the scores. */
__device__ __forceinline__ void sum_depths(int& turn, const Row& row, const Ranking& r,
                                           float unit) {
  float sums[kDepths + 1] = {};
  const float scale = r.scale / unit;
  float heights[kDepths];
#pragma unroll
  for (int i = 0; i < kDepths; i++) heights[i] = -depth_of(i);
  row.for_each<8>([&](int, float score) {
    const float weight = r.weight(score), height = -((r.best - score) * scale);
    add_from_six(sums, height, heights, weight), add_from_six(sums + 6, height, heights + 6, weight);
#pragma unroll
    for (int i = 12; i < kDepths; i++) add_from(sums[i], height, heights[i], weight);
    add_from(sums[kDepths], score, kLowest, weight);
  });
  sum_cluster(turn, sums);
}

/** Chooses the first pivots, with half a warp per line: two around the estimate from the depths,
 * and one well below. */
__device__ __forceinline__ void guess_pivots(const Ranking& r, double all, float unit) {
  const int lane = threadIdx.x & 31, l = lane / 16, i = lane % 16;
  const float middle = (float)(0.5 * (search.lines[l].least + search.lines[l].most));
  const float sum = (float)exchange.sums[i], sampled = (float)exchange.sums[kDepths];
  const bool is_beyond = sum > middle * (sampled / (float)all);
  const u32 beyond = __ballot_sync(~0u, is_beyond) >> (16 * l) & 0xffff;
  const int found = beyond != 0 ? __ffs(beyond) - 1 : kDepths;
  const float to = __shfl_sync(~0u, sum, 16 * l + found);
  const float before = __shfl_sync(~0u, sum, 16 * l + max(found - 1, 0));
  if (i > 0) return;
  const float from = found > 0 ? before : 0, start = found > 0 ? depth_of(found - 1) : 0;
  const float end = found < kDepths ? depth_of(found) : start + 8;
  const float share = (middle * (sampled / (float)all) - from) / (to - from);
  const float within = to > from ? fminf(fmaxf(share, 0.0f), 1.0f) : 0.5f;
  const float depth = unit * (start + (end - start) * within), width = unit * (end - start);
  search.pivots[3 * l] = r.score_at(depth - width / 8);
  search.pivots[3 * l + 1] = r.score_at(depth + width / 8);
  search.pivots[3 * l + 2] = r.score_at(depth + 2 * width);
}

/** Chooses the next pivots of line l, within its bracket. `walk` is the number of the walk. */
__device__ __forceinline__ void choose_pivots(int l, const Ranking& r, int walk) {
  const Bracket& b = search.brackets[l];
  float* const pivots = search.pivots + 3 * l;
  if ((walk < 3 || walk % 2 == 0) && b.low > kLowest) {
    // Interpolates: within a short stretch, weights are about the same.
    const float top = fminf(b.high, r.best), width = top - b.low;
    const double middle = 0.5 * (search.lines[l].least + search.lines[l].most);
    const float between = (float)(b.to_low - b.to_high);
    const float at = top - width * ((float)(middle - b.to_high) / between);
    // If few tokens are left, aim at 110 between two pivots, just below kFew. Among many tokens the
    // estimate is not that good.
    const float number = between / r.weight(b.low);
    const float error = number < 3000 ? 55 / number : 0.03f;
    pivots[0] = at + width * error, pivots[1] = at - width * error;
    pivots[2] = 0.5f * (at + (top - at > at - b.low ? top : b.low));
    return;
  }
  // Splits the order of scores in quarters, which guarantees an end.
  const u32 low = order_of(b.low), length = order_of(b.high) - low;
  for (int i = 0; i < 3; i++) pivots[i] = score_of(low + max((i + 1) * (length / 4), 1u));
}

/** Narrows the bracket of line l by the sums at its pivots. */
__device__ __forceinline__ void narrow(int l) {
  Bracket& b = search.brackets[l];
  const Line line = search.lines[l];
  for (int p = 3 * l; p < 3 * l + 3; p++) {
    const float pivot = search.pivots[p];
    const double sum = exchange.sums[p];
    if (!(pivot < b.high && pivot > b.low)) continue;
    if (line.is_ahead(sum))
      b.high = pivot, b.to_high = sum;
    else if (line.is_crossed(sum))
      b.low = pivot, b.to_low = sum;
  }
}

/** Evaluates a walk in the first warp. Walk −1 is the one over the depths. */
template <class LinesOf>
__device__ __forceinline__ void look_back(int walk, const Ranking& r, double all, float unit,
                                          LinesOf lines_of) {
  const int l = threadIdx.x;
  if (walk < 0) {
    if (l < kLines) search.brackets[l] = {infinity(), kLowest, 0, all};
    __syncwarp();
    if (l == 0) lines_of(search.lines), search.is_done = false;
    __syncwarp();
    guess_pivots(r, all, unit);
    return;
  }
  if (l < kLines) narrow(l);
  __syncwarp();
  // The place of one line depends on the bracket of the other.
  if (l == 0) lines_of(search.lines);
  __syncwarp();
  bool is_done = true;
  if (l < kLines) {
    const Bracket& b = search.brackets[l];
    is_done = search.lines[l].most < 0 || is_few(b, r) || b.is_tie();
    choose_pivots(l, r, walk);
  }
  is_done = __all_sync(~0u, is_done);
  if (l == 0) search.is_done = is_done;
}

/** Narrows the brackets of the lines until each has at most `few` tokens or a single score.
 * `lines_of(lines)` computes the lines from `search`; `all` is the sum of all tokens, `unit` the
 * unit of the first walk's depths. */
template <class LinesOf>
__device__ __forceinline__ void find_brackets(int& turn, const Row& row, const Ranking& r,
                                              double all, float unit, int few, LinesOf lines_of) {
  if (threadIdx.x == 0) search.few = few;
  sum_depths(turn, row, r, unit);
#pragma unroll 1
  for (int walk = -1; walk < 80; walk++) {
    if (threadIdx.x < 32) look_back(walk, r, all, unit, lines_of);
    __syncthreads();
    if (search.is_done) return;
    // Eight sums, because sum_cluster needs a power of two.
    float pivots[kPivots], sums[8] = {};
#pragma unroll
    for (int p = 0; p < kPivots; p++) pivots[p] = search.pivots[p];
    row.for_each([&](int, float score) {
      const float weight = r.weight(score);
      add_from_six(sums, score, pivots, weight);
    });
    sum_cluster(turn, sums);
  }
}
