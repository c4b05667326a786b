// y = epilogue(x·Wᵀ + bias) for few tokens, with all jobs of one `linear` in one launch.
// W f16 [rows, columns] · x f16 [T, columns] · bias f32 [rows] · y f16 or f32 [T, rows] · columns a
// multiple of 8.
// A block has TOKENS tokens (few-tokens.cuh); blockIdx.y is the block of tokens (only one, unless
// the matrices are small). A warp takes every `split`-th run of 64 columns. A ring of runs in
// registers keeps loads in flight all the time. The first weights are loaded before the kernel
// waits for the previous one, because weights do not depend on it. Tolerance: 1e-3 RMS against
// reference/ops.ts (outputs are rounded to f16).
#include "few-tokens.cuh"

struct LinearJob {
  void* y;
  const f16* x;
  const f16* weight;
  const float* bias;
  int rows;
  int columns;
  int epilogue;
  /** Whether y is f32. */
  int is_f32;
  /** The first block of the job, and the number of warps that share rows: 1, 2, 4 or 8. */
  int first_block;
  int split;
};

struct LinearJobs {
  LinearJob job[MAX_JOBS];
  int count;
  /** The index of T in the step's counts: 0 tokens, 2 logits rows. */
  int count_index;
};

/** Runs in flight: as many as fit the registers, 100 KB per multiprocessor. */
constexpr int kDepth = TOKENS <= 16 ? (ROW_TILES == 1   ? 6
                                       : ROW_TILES == 2 ? 3
                                                        : 2)
                                    : (ROW_TILES == 1   ? 3
                                       : ROW_TILES == 2 ? 2
                                                        : 1);
/** One run of a thread: 2 × 8 columns of each of its rows of W, or of its tokens of x. */
struct WeightRun {
  uint4 part[2][ROW_TILES];
};

struct TokenRun {
  Inputs part[2];
};

/** The addresses a thread reads, clamped into range. Results that are out of range are not
 * stored. */
struct Sources {
  const f16* weight[ROW_TILES];
  const f16* x[kTokenGroups];
  int columns;
};

__device__ __forceinline__ void load_weights(WeightRun& run, const Sources& from, int k) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int at = k + 32 * half;
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++)
      run.part[half][n] = load_once<true>(from.weight[n] + at, at < from.columns);
  }
}

__device__ __forceinline__ void load_tokens(TokenRun& run, const Sources& from, int k) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int at = k + 32 * half;
#pragma unroll
    for (int m = 0; m < kTokenGroups; m++)
      run.part[half].of[m] = load_inputs(from.x[m] + at, at < from.columns);
  }
}

__device__ __forceinline__ void multiply_run(Sums& sums, const WeightRun& w, const TokenRun& x) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int m = 0; m < kTokenTiles; m++) {
#pragma unroll
      for (int n = 0; n < ROW_TILES; n++) {
        const uint4 v = w.part[half][n];
        multiply_tile(sums, m, n, x.part[half], v.x, v.y, v.z, v.w);
      }
    }
  }
}

/** The warp's share of its rows: runs part, part + split, … of 64 columns. */
__device__ __forceinline__ void multiply(Sums& sums, const LinearJob& job, const int* count,
                                         int row, int first_token, int part) {
  const int g = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3;
  const int stride = 64 * job.split;
  Sources from;
  from.columns = job.columns;
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++)
    from.weight[n] = job.weight + (long long)min(row + 8 * n + g, job.rows - 1) * job.columns;
  const int start = part * 64 + 8 * q;
  WeightRun ring[kDepth];
#pragma unroll
  for (int d = 0; d < kDepth; d++) load_weights(ring[d], from, start + d * stride);
  wait_for_previous();

  const int last = max(*count, 1) - 1;
#pragma unroll
  for (int m = 0; m < kTokenGroups; m++)
    from.x[m] = job.x + (long long)min(first_token + 8 * m + g, last) * job.columns;
  TokenRun next;
  load_tokens(next, from, start);
  for (int base = start; base - 8 * q < job.columns; base += kDepth * stride) {
#pragma unroll
    for (int d = 0; d < kDepth; d++) {
      const TokenRun x = next;
      load_tokens(next, from, base + (d + 1) * stride);
      multiply_run(sums, ring[d], x);
      load_weights(ring[d], from, base + (d + kDepth) * stride);
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    linear_few(Step step, const __grid_constant__ LinearJobs jobs) {
  let_next_start();
  const LinearJob& job = find_job(jobs);
  const Place at = place_of(job);
  const int* const count = step.counts + jobs.count_index;
  Sums sums = {};
  multiply(sums, job, count, at.row, at.first_token, at.part);
  store_sums(sums, job, at, *count, [](int, float sum) { return sum; });
}
