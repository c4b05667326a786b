// Draws the samples of a step, one cluster of CLUSTER blocks each, in the order of backend.ts: bias
// → penalties → temperature → top-k, top-p and min-p on one distribution → draw (or the best of
// noisy scores); then counts the token and reports log-probabilities. logits f32 [R, V] · scratch
// f32 [S, V] · counts f32, flags u8 [slots, V] (1 in the prompt, 2 generated)
//
// No sort of the vocabulary. A token's rank is its key, the score's bits in order. Where the ranked
// list ends, and where a draw falls in it, is where a sum over keys from the top crosses a line: one
// pass sums the row in bins of scores, in whole numbers; where the bin with the crossing has too many
// tokens, passes with a few pivots each narrow it down until it fits in shared memory, is sorted
// there and summed in order. All sums are whole or made in a fixed order, so a draw depends on its
// row alone. Every block of a cluster reads its own slice of the row; what they find
// is exchanged through shared memory, and all of them follow the same path. Agrees with
// reference/sample.ts token for token unless two probabilities or sums are within f32 rounding of a
// tie.
#include "common.cuh"

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
/** Candidates that are sorted in shared memory. */
constexpr int kList = 2048;
constexpr int kPivots = 4;
/** Bins of the first pass: kFine over the first kFineDepth halvings of the weight, the others over
 * the rest to kFloor. */
constexpr int kBins = 512, kFine = 384;
constexpr float kFineDepth = 32.0f;
constexpr int kMaxTop = 20;
/** Beyond this many e-folds below the best, a probability is zero in f32. */
constexpr float kFloor = 100.0f;

enum SampleFloat {
  kTemperature,
  kTopP,
  kMinP,
  kPresence,
  kFrequency,
  kDecay,
  kRepetition,
  kNoise,
  kSampleFloats = 8
};
enum SampleInt { kTopK, kSeedLow, kSeedHigh, kPosition, kStream, kTopLogprobs, kSampleInts = 8 };
enum Flag : u8 { kInPrompt = 1, kGenerated = 2 };

struct Sampling {
  const float* logits;
  float* scratch;
  float* counts;
  u8* flags;
  const int* bias_ids;
  const float* bias_values;
  int* sampled;
  float* sampled_logprob;
  int* top_ids;
  float* top_logprobs;
  int vocab;
};

/** A point of the ranking: everything with a key above it, summed. */
struct Mark {
  u32 key;
  int count;
  double mass;
};

/** What a block tells the others of its cluster. */
struct Found {
  double mass[kPivots + 1];
  int count[kPivots + 1];
  int length;
  float best;
  int best_id;
  int is_finite;
};

/** Weights in units of 2^−40, as two words each; the last bin is of what cannot be drawn. */
struct Bins {
  u32 low[kBins + 1], high[kBins + 1];
  int count[kBins + 1];
};

struct Shared {
  u64 list[kList];   // ~key << 32 | id: ascending is best first
  union {
    u64 slice[kList];  // the same of the block's own slice, in any order
    Bins bins;         // of the block's own slice
  };
  // Of a bin and those above it.
  double mass_to[kBins];
  int count_to[kBins];
  Found own;
  double sums[kWarps][kPivots + 1];
  int counts[kWarps][kPivots + 1];
  Mark marks[kPivots + 1];  // of the last pass
  double total;
  double prefix[kWarps];
  u64 warp_units[kBins / 32];
  float best;
  int best_id;
  int is_finite;
  int length;
  int found;
};

__device__ __forceinline__ int block_rank() {
#if CLUSTER > 1
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

/** A barrier of the cluster, after which each block sees what the others wrote. */
__device__ __forceinline__ void cluster_sync() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#else
  __syncthreads();
#endif
}

/** A number in the shared memory of another block of the cluster. */
template <class T>
__device__ __forceinline__ T remote(const T& own, int rank) {
#if CLUSTER > 1
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a word or two");
  u32 address = (u32)__cvta_generic_to_shared(&own);
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
  union {
    T value;
    u32 word;
    u64 words;
  };
  if constexpr (sizeof(T) == 4)
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  else
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(words) : "r"(address) : "memory");
  return value;
#else
  return own;
#endif
}

/** The ids [begin, end) of a row that a block reads. */
struct Slice {
  int begin, end;
};

__device__ __forceinline__ Slice own_slice(int vocab) {
  const int size = (vocab + 4 * CLUSTER - 1) / (4 * CLUSTER) * 4;
  const int begin = min(vocab, block_rank() * size);
  return {begin, min(vocab, begin + size)};
}

/** Scores of one row as a distribution: weight e^((score − best) / temperature). */
struct Ranking {
  const float* scores;
  int vocab;
  float best;
  /** log2(e) / temperature */
  float scale;

  __device__ float weight(float score) const { return exp2f((score - best) * scale); }
};

/** Scores that a thread asks for before it looks at the first. */
constexpr int kBatch = 8;

/** Calls `visit(id, score)` for the thread's share of the block's slice, ids rising. */
template <class Visit>
__device__ __forceinline__ void for_each_score(const float* scores, int vocab, Visit visit) {
  const Slice slice = own_slice(vocab);
  for (int start = slice.begin + threadIdx.x; start < slice.end; start += kBatch * kThreads) {
    float batch[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; u++) batch[u] = scores[min(start + u * kThreads, vocab - 1)];
#pragma unroll
    for (int u = 0; u < kBatch; u++)
      if (start + u * kThreads < slice.end) visit(start + u * kThreads, batch[u]);
  }
}

/** Order of scores as order of integers; −0 is 0. */
__device__ __forceinline__ u32 key_of(float score) {
  const u32 bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float score_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/** Four uniforms in [0, 1) with 24 bits: Philox4x32-10, see reference/philox.ts. */
__device__ float4 philox_four(const int* n, u32 block) {
  u32 c0 = n[kPosition], c1 = n[kStream], c2 = block, c3 = 0;
  u32 k0 = n[kSeedLow], k1 = n[kSeedHigh];
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u32 high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    const u32 high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
  }
  constexpr float kUnit = 5.9604644775390625e-8f;
  return {(c0 >> 8) * kUnit, (c1 >> 8) * kUnit, (c2 >> 8) * kUnit, (c3 >> 8) * kUnit};
}

/** Best score and its smallest id; notes scores that are not finite when `checks`. */
__device__ void find_best(Shared& sh, const float* scores, int vocab, bool checks) {
  float best = -__int_as_float(0x7f800000);
  int id = 0x7fffffff;
  bool finite = true;
  for_each_score(scores, vocab, [&](int i, float x) {
    finite &= (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
    if (x > best || id == 0x7fffffff) best = x, id = i;
  });
  // The best of a warp, in all its lanes; a slice that is empty has no id.
  const auto take_lanes = [&]() {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
      const float other = __shfl_xor_sync(~0u, best, offset);
      const int other_id = __shfl_xor_sync(~0u, id, offset);
      if (other_id != 0x7fffffff &&
          (id == 0x7fffffff || other > best || (other == best && other_id < id)))
        best = other, id = other_id;
    }
  };
  take_lanes();
  const int warp = threadIdx.x >> 5;
  if ((threadIdx.x & 31) == 0) sh.sums[warp][0] = best, sh.counts[warp][0] = id;
  const bool all_finite = __syncthreads_and(finite || !checks);
  if (warp == 0) {
    const int lane = threadIdx.x;
    best = (float)sh.sums[lane][0], id = sh.counts[lane][0];
    take_lanes();
    if (lane == 0) sh.own.best = best, sh.own.best_id = id, sh.own.is_finite = all_finite;
  }
  cluster_sync();
  if (warp == 0) {
    const int rank = min((int)threadIdx.x, CLUSTER - 1);
    best = remote(sh.own.best, rank), id = remote(sh.own.best_id, rank);
    const int is_finite = __all_sync(~0u, remote(sh.own.is_finite, rank));
    take_lanes();
    if (threadIdx.x == 0) sh.best = best, sh.best_id = id, sh.is_finite = is_finite;
  }
  cluster_sync();
}

/** scratch = logits with bias and penalties; decays the counts on the way. */
__device__ void adjust(const Sampling& op, const Step& step, int s, const float* raw, float* scores,
                       float* counts, u8* flags, const float* f) {
  const Slice slice = own_slice(op.vocab);
  for (int i = slice.begin + threadIdx.x; i < slice.end; i += kThreads) scores[i] = raw[i];
  __syncthreads();
  for (int i = step.bias_starts[s] + threadIdx.x; i < step.bias_starts[s + 1]; i += kThreads) {
    const int id = op.bias_ids[i];
    if (id >= slice.begin && id < slice.end) atomicAdd(scores + id, op.bias_values[i]);
  }
  __syncthreads();
  const float repetition = f[kRepetition];
  for (int i = slice.begin + threadIdx.x; i < slice.end; i += kThreads) {
    const u8 flag = flags[i];
    if (flag == 0) continue;
    float score = scores[i];
    if (repetition != 1.0f) score = score > 0 ? score / repetition : score * repetition;
    if (flag & kGenerated) {
      score -= f[kPresence] + f[kFrequency] * counts[i];
      if (f[kDecay] != 1.0f) counts[i] *= f[kDecay];
    }
    scores[i] = score;
  }
  __syncthreads();
}

/** to = scores / temperature + noise·uniform; a slice begins with a whole group of four. */
__device__ void add_noise(const float* scores, float* to, int vocab, const float* f, const int* n) {
  const Slice slice = own_slice(vocab);
  for (int first = slice.begin + 4 * threadIdx.x; first < slice.end; first += 4 * kThreads) {
    const float4 four = philox_four(n, 1 + first / 4);
    const float uniforms[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (first + i < slice.end)
        to[first + i] = scores[first + i] / f[kTemperature] + f[kNoise] * uniforms[i];
  }
  __syncthreads();
}

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

/** One pass: for each pivot (falling keys) the sum and count of pivot < key ≤ high. The marks are
 * these added to `base`, what lies above `high`. */
__device__ void sum_above(Shared& sh, const Ranking& r, const u32 (&pivots)[kPivots + 1], u32 high,
                          Mark base) {
  float mass[kPivots + 1] = {};
  int count[kPivots + 1] = {};
  for_each_score(r.scores, r.vocab, [&](int, float score) {
    const u32 key = key_of(score);
    if (key > high || key <= pivots[kPivots]) return;
    const float weight = r.weight(score);
#pragma unroll
    for (int p = 0; p <= kPivots; p++)
      if (key > pivots[p]) mass[p] += weight, count[p]++;
  });
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  __syncthreads();
#pragma unroll
  for (int p = 0; p <= kPivots; p++) {
    const float sum = warp_sum(mass[p]);
    const int number = warp_sum(count[p]);
    if (lane == 0) sh.sums[warp][p] = sum, sh.counts[warp][p] = number;
  }
  __syncthreads();
  // A warp to each pivot, a lane to each warp before.
  const int p = warp;
  if (p <= kPivots) {
    const double sum = warp_sum(sh.sums[lane][p]);
    const int number = warp_sum(sh.counts[lane][p]);
    if (lane == 0) sh.own.mass[p] = sum, sh.own.count[p] = number;
  }
  cluster_sync();
  if (p <= kPivots) {
    const bool is_rank = lane < CLUSTER;
    const int rank = is_rank ? lane : 0;
    const double theirs = remote(sh.own.mass[p], rank);
    const int number = remote(sh.own.count[p], rank);
    const double sum = warp_sum(is_rank ? theirs : 0.0);
    const int all = warp_sum(is_rank ? number : 0);
    u32 key = pivots[0];
#pragma unroll
    for (int i = 1; i <= kPivots; i++)
      if (p == i) key = pivots[i];
    if (lane == 0) sh.marks[p] = {key, base.count + all, base.mass + sum};
  }
  cluster_sync();
}

/** Keys in (low.key, high.key]; the sums of each are of everything above it. */
struct Bracket {
  Mark high, low;

  __device__ bool holds(u32 key) const { return key <= high.key && key > low.key; }
};

/** Where a sum from the top reaches its line: a mass (`passes`: must exceed it, else reach it) or a
 * number of tokens. */
struct Line {
  double mass;
  int count;
  bool passes;

  __device__ bool crossed(double sum, int number) const {
    return (passes ? sum > mass : sum >= mass) || number >= count;
  }
};

/** Narrows the bracket by the marks of the last pass. */
__device__ Bracket narrow_by_marks(const Shared& sh, Bracket b, const Line& line) {
  for (int p = 0; p <= kPivots; p++) {
    const Mark& mark = sh.marks[p];
    if (mark.key >= b.high.key || mark.key < b.low.key) continue;
    if (line.crossed(mark.mass, mark.count)) {
      b.low = mark;
      break;
    }
    b.high = mark;
  }
  return b;
}

/** Pivots between the ends of a bracket, even in score while that separates keys, else even in key.
 */
__device__ void choose_pivots(const Bracket& b, u32 (&pivots)[kPivots + 1]) {
  const u32 high = b.high.key, low = b.low.key, range = high - low;
  const float top = score_of(high), bottom = score_of(low);
#pragma unroll
  for (int p = 0; p < kPivots; p++) {
    const float share = (p + 1.0f) / (kPivots + 1);
    const u32 by_key = high - max(1u, (u32)(range * (double)share));
    const u32 by_score = key_of(top + (bottom - top) * share);
    const bool splits = range > 4096 && by_score < high && by_score > low;
    pivots[p] = max(splits ? by_score : by_key, low);
  }
  pivots[kPivots] = low;
}

/** Narrows until the bracket's tokens fit in the list or have one score. */
__device__ Bracket narrow(Shared& sh, const Ranking& r, Bracket b, const Line& line) {
  while (b.low.count - b.high.count > kList && b.high.key - b.low.key > 1) {
    u32 pivots[kPivots + 1];
    choose_pivots(b, pivots);
    sum_above(sh, r, pivots, b.high.key, b.high);
    b = narrow_by_marks(sh, b, line);
    __syncthreads();
  }
  return b;
}

/** Sorts list[0 … length) of shared memory, best first. */
__device__ void sort_list(Shared& sh) {
  int size = 32;
  while (size < sh.length) size *= 2;
  for (int i = sh.length + threadIdx.x; i < size; i += kThreads) sh.list[i] = ~0ull;
  __syncthreads();
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += kThreads) {
        const int lo = 2 * i - (i & (step - 1)), hi = lo + step;
        const u64 a = sh.list[lo], b = sh.list[hi];
        if ((a > b) == ((lo & width) == 0)) sh.list[lo] = b, sh.list[hi] = a;
      }
      // Up to here a warp's 64 are its own; what comes after the last of a width crosses them.
      if (step > 32 || (step == 1 && width > 32))
        __syncthreads();
      else
        __syncwarp();
    }
  }
  __syncthreads();
}

/** Lists ties beyond the list, every block for itself: a window of them in the order of their ids,
 * the first `skip` left out. */
__device__ void gather_ties(Shared& sh, const Ranking& r, const Bracket& b, int skip) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int seen = 0;
  for (int start = 0; start < r.vocab; start += kThreads) {
    const int i = start + threadIdx.x;
    const u32 key = i < r.vocab ? key_of(r.scores[i]) : 0;
    const bool inside = i < r.vocab && b.holds(key);
    const u32 mask = __ballot_sync(~0u, inside);
    if (lane == 0) sh.counts[warp][0] = __popc(mask);
    __syncthreads();
    int before = seen;
    for (int w = 0; w < kWarps; w++) {
      if (w < warp) before += sh.counts[w][0];
      seen += sh.counts[w][0];
    }
    __syncthreads();
    const int at = before + __popc(mask & ((1u << lane) - 1)) - skip;
    if (inside && at >= 0 && at < kList) sh.list[at] = (u64)~key << 32 | (u32)i;
  }
  if (threadIdx.x == 0) sh.length = max(0, min(kList, seen - skip));
}

/** Makes one list of what the blocks of the cluster listed. */
__device__ void join_slices(Shared& sh) {
  cluster_sync();
  int at = 0;
  for (int rank = 0; rank < CLUSTER; rank++) {
    const int length = remote(sh.own.length, rank);
    for (int i = threadIdx.x; i < length; i += kThreads)
      sh.list[at + i] = remote(sh.slice[i], rank);
    at += length;
  }
  if (threadIdx.x == 0) sh.length = at;
  cluster_sync();
}

/** Lists the bracket's tokens, best first; of a single score with too many tokens, those of the
 * smallest ids. */
__device__ void gather(Shared& sh, const Ranking& r, const Bracket& b, int skip) {
  if (threadIdx.x == 0) sh.own.length = 0;
  __syncthreads();
  if (b.low.count - b.high.count > kList) {
    gather_ties(sh, r, b, skip);
    __syncthreads();
  } else {
    for_each_score(r.scores, r.vocab, [&](int i, float score) {
      const u32 key = key_of(score);
      if (b.holds(key)) sh.slice[atomicAdd(&sh.own.length, 1)] = (u64)~key << 32 | (u32)i;
    });
    join_slices(sh);
  }
  sort_list(sh);
}

__device__ __forceinline__ float listed_weight(const Shared& sh, const Ranking& r, int i) {
  return i < sh.length ? r.weight(score_of(~(u32)(sh.list[i] >> 32))) : 0.0f;
}

/** The first listed token at which the sum crosses the line (−1: none), and that sum. The list
 * starts after `base`. */
__device__ int find_crossing(Shared& sh, const Ranking& r, Mark base, const Line& line,
                             double* sum_there) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int i = 2 * threadIdx.x;
  const double w0 = listed_weight(sh, r, i), w1 = listed_weight(sh, r, i + 1);
  double sum = w0 + w1;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double before = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += before;
  }
  if (lane == 31) sh.prefix[warp] = sum;
  if (threadIdx.x == 0) sh.found = 0x7fffffff;
  __syncthreads();
  for (int w = 0; w < warp; w++) sum += sh.prefix[w];
  const double sum1 = base.mass + sum, sum0 = sum1 - w1;
  const bool hit0 = i < sh.length && line.crossed(sum0, base.count + i + 1);
  const bool hit1 = i + 1 < sh.length && line.crossed(sum1, base.count + i + 2);
  if (hit0 || hit1) atomicMin(&sh.found, hit0 ? i : i + 1);
  __syncthreads();
  const int found = sh.found;
  if (found == i) sh.total = sum0;
  if (found == i + 1) sh.total = sum1;
  // No crossing: the sum of all.
  if (found == 0x7fffffff && threadIdx.x == kThreads - 1) sh.total = sum1;
  __syncthreads();
  *sum_there = sh.total;
  __syncthreads();
  return found == 0x7fffffff ? -1 : found;
}

/** Ties of one score that overflow the list: how many of them precede the window that holds the
 * crossing. */
__device__ int ties_before(const Ranking& r, const Bracket& b, const Line& line) {
  const int ties = b.low.count - b.high.count;
  if (ties <= kList) return 0;
  const double weight = (b.low.mass - b.high.mass) / ties;
  double needed = weight > 0 ? (line.mass - b.high.mass) / weight : ties;
  needed = fmin(needed, (double)(line.count - b.high.count));
  return max(0, min(ties - kList, (int)fmax(needed, 0.0) - kList / 2));
}

/** The crossing's index in the list, which it fills. */
__device__ int locate(Shared& sh, const Ranking& r, const Bracket& b, const Line& line,
                      double* sum_there) {
  const int skip = ties_before(r, b, line);
  gather(sh, r, b, skip);
  Mark base = b.high;
  if (skip > 0) {
    base.mass += skip * ((b.low.mass - b.high.mass) / (b.low.count - b.high.count));
    base.count += skip;
  }
  return find_crossing(sh, r, base, line, sum_there);
}

/** Which bin a score lies in: rises as scores fall. */
__device__ __forceinline__ int bin_of(const Ranking& r, float score) {
  constexpr float kFinePerHalving = kFine / kFineDepth;
  constexpr float kCoarsePerHalving = (kBins - kFine) / (kFloor * 1.44269504f - kFineDepth);
  // Rounded as written, so that every call gives a score the same bin.
  const float halvings = __fmul_rn(r.best - score, r.scale);
  if (halvings < kFineDepth) return min(kFine - 1, (int)(halvings * kFinePerHalving));
  const float beyond = (halvings - kFineDepth) * kCoarsePerHalving;
  return kFine + (int)fminf(beyond, kBins - kFine - 1);
}

/** Units of a weight. */
constexpr double kUnit = 1.0 / (1ull << 40);

/**
 * One pass over the row: mass and number of each bin and those above it, of keys above `lowest`;
 * sh.total is the mass of everything. Whole numbers, so the order of the additions does not matter.
 */
__device__ void sum_bins(Shared& sh, const Ranking& r, u32 lowest) {
  for (int i = threadIdx.x; i <= kBins; i += kThreads)
    sh.bins.low[i] = 0, sh.bins.high[i] = 0, sh.bins.count[i] = 0;
  __syncthreads();
  for_each_score(r.scores, r.vocab, [&](int, float score) {
    const int bin = key_of(score) > lowest ? bin_of(r, score) : kBins;
    // Exact but for the last bits of weights below 2^−16.
    const float weight = 256.0f * r.weight(score);
    const u32 whole = (u32)weight, part = __float2uint_rn((weight - whole) * 4294967296.0f);
    const u32 before = atomicAdd(&sh.bins.low[bin], part);
    const u32 carry = before + part < before;
    if (whole + carry > 0) atomicAdd(&sh.bins.high[bin], whole + carry);
    atomicAdd(&sh.bins.count[bin], 1);
  });
  cluster_sync();
  const int bin = threadIdx.x, warp = bin >> 5, lane = bin & 31;
  u64 units = 0;
  int count = 0;
  if (bin <= kBins) {
#pragma unroll
    for (int rank = 0; rank < CLUSTER; rank++) {
      units += (u64)remote(sh.bins.high[bin], rank) << 32;
      units += remote(sh.bins.low[bin], rank);
      count += remote(sh.bins.count[bin], rank);
    }
  }
  const u64 own = units;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const u64 more = __shfl_up_sync(~0u, units, offset);
    const int others = __shfl_up_sync(~0u, count, offset);
    if (lane >= offset) units += more, count += others;
  }
  if (lane == 31 && warp < kBins / 32) sh.warp_units[warp] = units, sh.counts[warp][0] = count;
  __syncthreads();
  if (bin < kBins) {
    for (int w = 0; w < warp; w++) units += sh.warp_units[w], count += sh.counts[w][0];
    sh.mass_to[bin] = units * kUnit, sh.count_to[bin] = count;
  }
  if (bin == kBins) {
    u64 all = own;
    for (int w = 0; w < kBins / 32; w++) all += sh.warp_units[w];
    sh.total = all * kUnit;
  }
  cluster_sync();
}

/** Everything above `lowest`, once sum_bins has been over it. */
__device__ Bracket whole(const Shared& sh, u32 best_key, u32 lowest) {
  return {{best_key, 0, 0}, {lowest, sh.count_to[kBins - 1], sh.mass_to[kBins - 1]}};
}

/** The smallest key of the bins up to `bin`, between those of the lowest score (not in it) and the
 * best (in it); each warp for itself. */
__device__ u32 edge_of(const Ranking& r, int bin, u32 lowest, u32 best_key) {
  u32 below = lowest, inside = best_key;
  while (inside - below > 1) {
    const u32 step = (inside - below + 31) / 32, lane = threadIdx.x & 31;
    const u32 probe = inside - below <= step * (lane + 1) ? inside : below + step * (lane + 1);
    const int first = __ffs(__ballot_sync(~0u, bin_of(r, score_of(probe)) <= bin)) - 1;
    if (first > 0) below = __shfl_sync(~0u, probe, first - 1);
    inside = __shfl_sync(~0u, probe, first);
  }
  return inside;
}

/** The bin in which a sum from the top crosses the line; nothing, at the end, where none does. */
__device__ Bracket find_bin(Shared& sh, const Ranking& r, const Bracket& all, const Line& line) {
  if (threadIdx.x == 0) sh.found = kBins;
  __syncthreads();
  const int i = threadIdx.x;
  if (i < kBins && line.crossed(sh.mass_to[i], sh.count_to[i]) &&
      (i == 0 || !line.crossed(sh.mass_to[i - 1], sh.count_to[i - 1])))
    sh.found = i;
  __syncthreads();
  const int bin = sh.found;
  __syncthreads();
  if (bin == kBins) return {all.low, all.low};
  const u32 low = edge_of(r, bin, all.low.key, all.high.key) - 1;
  Bracket b = {all.high, {low, sh.count_to[bin], sh.mass_to[bin]}};
  if (bin > 0)
    b.high = {edge_of(r, bin - 1, all.low.key, all.high.key) - 1, sh.count_to[bin - 1],
              sh.mass_to[bin - 1]};
  return b;
}

/** One key below the smallest that can be kept. */
__device__ u32 lowest_key(const Ranking& r, float min_p) {
  const float depth = min_p > 0 ? fminf(-logf(min_p), kFloor) : kFloor;
  return key_of(r.best - depth * 1.44269504f / r.scale) - 1;
}

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
