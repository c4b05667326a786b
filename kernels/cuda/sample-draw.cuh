// One draw from a row of scores. First finds how much of the ranked list is kept, then the token at
// which the running sum exceeds the draw's share of that.
#pragma once
#include "sample-best.cuh"
#include "sample-scores.cuh"

/** Broadcasts a value of the first thread of the first block. */
__device__ __forceinline__ float2 share(int& turn, float2 said) {
  const bool is_first = block_rank() == 0 && threadIdx.x == 0;
  float sums[2] = {is_first ? said.x : 0.0f, is_first ? said.y : 0.0f};
  sum_cluster(turn, sums);
  __syncthreads();
  return {(float)exchange.sums[0], (float)exchange.sums[1]};
}

/** A place in the ranked list: its bracket, counted in tokens, and how many better tokens are not
 * listed. */
struct Place {
  Bracket bracket;
  int not_listed;
  bool is_listed;
  /** The length of the ranked list. */
  double all;
  int next_turn;
};

/** Finds the `count`-th best token of a row. The first block lists the tokens around it and, if
 * they are few, all better ones. If too many tokens have its score, only better ones are listed.
 * If `tie` is finite, ranks the tokens with the score `tie` by their ids instead. */
__device__ __noinline__ Place list_nth(int turn, const float* scores, int vocab, float best,
                                       float scale, int count, float tie) {
  Row row = own_slice(vocab);
  row.load(scores);
  if (tie != infinity()) row.rank_by_id(tie);
  float sums[2] = {};
  row.for_each([&](int, float score) {
    add_from(sums[0], score, kLowest, 1);
    add_from(sums[1], score, kLowest, (best - score) * scale);
  });
  sum_cluster(turn, sums);
  __syncthreads();
  // Limited to the number of tokens: a count that was derived from weights may exceed it.
  const double all = exchange.sums[0], last = fmin((double)count, all);
  const Ranking counting = {best, scale, 0};
  find_brackets(turn, row, counting, all, depth_unit((float)(exchange.sums[1] / all)), kFew,
                [&](Line* lines) { lines[0] = line_at(last), lines[1] = no_line(); });
  const Bracket b = search.brackets[0];
  // Lists all better tokens, up to kMaxTop of them, whatever the bracket.
  const bool is_listed = is_few(b, counting), lists_all = b.to_low <= kRoom;
  const float top = is_listed && !lists_all ? b.high : infinity();
  const bool lists_none = !is_listed && b.to_high > kRoom;
  list_ranges(row, lists_none ? nothing() : Range{is_listed ? b.low : b.high, top}, nothing());
  return {b, lists_all ? 0 : (int)b.to_high, is_listed, all, turn};
}

struct Sum {
  double sum;
  int next_turn;
};

/** The weight of the k best tokens of a row; infinite if there are fewer. */
__device__ __noinline__ Sum sum_best(int turn, const float* scores, int vocab, Ranking r, int k) {
  const Place place = list_nth(turn, scores, vocab, r.best, r.scale, k, infinity());
  turn = place.next_turn;
  // The score of the k-th best token, and the number of tokens with a better score.
  float2 last = {place.bracket.low, (float)place.bracket.to_high};
  if (place.is_listed) {
    if (block_rank() == 0) {
      const Crossing c =
          cross_list<kOwnOfAll>(0, lists.num_ranked[0], {0, 1, 0}, place.not_listed, line_at(k));
      const u32 order = (u32)(c.token >> 32);
      int better = c.number - 1;
      while (better > 0 && (u32)(lists.ranked[better - 1] >> 32) == order) better--;
      last = {score_of(order), (float)(place.not_listed + better)};
    }
    last = share(turn, last);
  }
  Row row = own_slice(vocab);
  row.load(scores);
  float sums[2] = {};
  row.for_each([&](int, float score) {
    if (score > last.x) sums[0] += r.weight(score);
  });
  sum_cluster(turn, sums);
  __syncthreads();
  const double sum = exchange.sums[0] + (k - last.y) * (double)r.weight(last.x);
  return {place.all >= k ? sum : 1e300, turn};
}

/** The running sum at the token that crosses the line, in a bracket that has a single score. */
__device__ __forceinline__ double sum_in_tie(const Bracket& b, const Ranking& r, double line) {
  const double weight = r.weight(b.low);
  return b.to_high + ceil((line - b.to_high) / weight) * weight;
}

/** Returns the drawn token, in the first block. */
__device__ __forceinline__ int draw(int& turn, Row& row, int vocab, const Ranking& r,
                                    const float* f, const int* n, float share_drawn) {
  const float top_p = f[kTopP];
  const float lowest = f[kMinP] > 0 ? r.score_at(fmaxf(-log2f(f[kMinP]), 0.0f)) : kLowest;
  const int k = n[kTopK] > 0 ? min(n[kTopK], vocab) : vocab;
  const Need need = {fmaxf(lowest, kLowest), (float)k, top_p, share_drawn, k < vocab};
  int token = 0;
  if (draw_best(turn, row, r, need, token)) return token;
  double best_sum = 1e300;
  if (k < vocab) {
    const Sum best = sum_best(turn, row.scores, vocab, r, k);
    turn = best.next_turn;
    best_sum = best.sum;
    row.load(row.scores);
  }
  const double most_kept = fmin(totals.above_floor, best_sum);
  // The kept part ends with the token that crosses top-p's line. Until that token is known, the
  // draw's line is known only to within that token's weight. So the search finds that token too:
  // otherwise it might never end between two tokens whose weights differ a lot.
  const Bracket &cut = search.brackets[0], &drawn = search.brackets[1];
  const Line& line = search.lines[0];
  bool cuts, lists_cut, lists_drawn;
  // If the lists overflow although the brackets seemed small, search again with few = 0, down to a
  // single score. Then nothing is listed here.
#pragma unroll 1
  for (int few = kFew;; few = 0) {
    const float unit = depth_unit(log2f(vocab / (float)totals.all));
    find_brackets(turn, row, r, totals.all, unit, few, [&](Line* lines) {
      const Bracket& b = search.brackets[0];
      const double line = top_p * totals.all;
      const bool cuts = top_p < 1 && line < most_kept;
      double least = line, most = fmin(line + r.weight(fminf(b.high, r.best)), b.to_low);
      if (b.is_tie()) least = most = sum_in_tie(b, r, line);
      lines[0] = cuts ? line_at(line) : no_line();
      lines[1] = {share_drawn * (cuts ? fmin(most_kept, least) : most_kept),
                  share_drawn * (cuts ? fmin(most_kept, most) : most_kept), true};
    });
    cuts = line.most >= 0, lists_cut = cuts && is_few(cut, r);
    lists_drawn = is_few(drawn, r);
    list_ranges(row, lists_cut ? Range{cut.low, cut.high} : nothing(),
                lists_drawn ? Range{drawn.low, drawn.high} : nothing());
    if (!take_is_over()) break;
    row.load(row.scores);
  }
  if (lists_drawn && block_rank() > 0) return 0;

  // Both at once, since each takes long.
  const Running to_cut = run_over(0, lists_cut && block_rank() == 0 ? lists.num_ranked[0] : 0, r);
  const Running to_drawn = run_over(1, lists_drawn ? lists.num_ranked[1] : 0, r);
  double kept = most_kept;
  if (lists_cut && block_rank() == 0) {
    kept = fmin(kept, to_cut.cross(cut.to_high, line).sum);
  } else if (cuts) {
    kept = fmin(kept, sum_in_tie(cut, r, line.least));
  }
  const double at = share_drawn * kept;
  if (lists_drawn) return id_of(to_drawn.cross(drawn.to_high, {at, at, true}).token);

  const double weight = r.weight(drawn.low), count = (drawn.to_low - drawn.to_high) / weight;
  const double before = fmax(fmin(::floor((at - drawn.to_high) / weight), count - 1), 0.0);
  const int number = 1 + (int)share(turn, {(float)before, 0}).x;
  const Place place = list_nth(turn, row.scores, vocab, 0, 16.0f / vocab, number, drawn.low);
  turn = place.next_turn;
  if (block_rank() > 0) return 0;
  const Ranking counting = {0, 1, 0};
  const Line line_of_number = line_at(number);
  return id_of(
      cross_list<kOwnOfAll>(0, lists.num_ranked[0], counting, place.not_listed, line_of_number)
          .token);
}
