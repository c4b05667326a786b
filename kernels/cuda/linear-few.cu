// y = epilogue(x·Wᵀ + bias) for few tokens, all jobs of one `linear` in one launch; TOKENS (8, 16
// or 32) to a block, and blockIdx.y counts the blocks of tokens (one, unless the matrices are
// small). W f16 [rows, columns] · x f16 [T, columns] · bias f32 [rows] · y f16 or f32 [T, rows] ·
// columns a multiple of 8 The work is reading W once: the tensor cores take the tokens as their 16
// rows and 8 rows of W as their columns. The order of k is free as long as both operands agree on
// it, so every thread loads 16 bytes of each in place of the fragments' 4, and an output is summed
// in the same order whatever T is. A warp owns 8·ROW_TILES rows and every `split`-th run of 64
// columns; the warps of a block add up in shared memory. A ring of runs in registers keeps loads in
// flight all the time; the first are asked for before the kernel waits for the one before it, since
// weights depend on nothing. Tolerance: 1e-3 RMS against reference/ops.ts (outputs are rounded to
// f16).
#include "epilogue.cuh"

#define MAX_JOBS 8
#define WARPS 8

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
  /** The first block of the job, and the warps that share rows: 1, 2, 4 or 8. */
  int first_block;
  int split;
};

struct LinearJobs {
  LinearJob job[MAX_JOBS];
  int count;
  /** Which of the step's counts is T: 0 tokens, 2 logits rows. */
  int count_index;
};

constexpr int kTileRows = 8 * ROW_TILES;
/** Runs in flight: as many as registers hold, 100 KB on a multiprocessor. */
constexpr int kDepth = TOKENS <= 16 ? (ROW_TILES == 1   ? 6
                                       : ROW_TILES == 2 ? 3
                                                        : 2)
                                    : (ROW_TILES == 1   ? 3
                                       : ROW_TILES == 2 ? 2
                                                        : 1);
/** Groups of 8 tokens, and the tensor cores' 16. */
constexpr int kTokenGroups = TOKENS / 8;
constexpr int kTokenTiles = (TOKENS + 15) / 16;

/** One run of a thread: 2 × 8 columns of each of its rows of W, or of its tokens of x. */
struct WeightRun {
  uint4 part[2][ROW_TILES];
};

struct TokenRun {
  uint4 part[2][kTokenGroups];
};

/** Where a thread reads, clamped into range: what is out of range is not stored. */
struct Sources {
  const f16* weight[ROW_TILES];
  const f16* x[kTokenGroups];
  int columns;
};

/** 16 bytes of W, or zeros. Streamed once: kept out of L1. */
__device__ __forceinline__ uint4 load_weight(const f16* w, bool inside) {
  uint4 v;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 "
      "%3, 0;"
      " @p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(w), "r"((int)inside));
  return v;
}

/** 16 bytes of x, or zeros. */
__device__ __forceinline__ uint4 load_token(const f16* x, bool inside) {
  uint4 v;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 "
      "%3, 0;"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(x), "r"((int)inside)
      : "memory");
  return v;
}

__device__ __forceinline__ void load_weights(WeightRun& run, const Sources& from, int k) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int at = k + 32 * half;
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++)
      run.part[half][n] = load_weight(from.weight[n] + at, at < from.columns);
  }
}

__device__ __forceinline__ void load_tokens(TokenRun& run, const Sources& from, int k) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int at = k + 32 * half;
#pragma unroll
    for (int m = 0; m < kTokenGroups; m++)
      run.part[half][m] = load_token(from.x[m] + at, at < from.columns);
  }
}

/** d += A·B with A [16 tokens, 16], B [16, 8 rows of W]; both from words of two neighbouring k. */
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a2), "r"(a3), "r"(b1));
#endif
}

/** Sums of a thread: of tokens g and g + 8 of each tile, rows 2q and 2q + 1 of each 8. */
struct Sums {
  float of[kTokenTiles][ROW_TILES][4];
};

__device__ __forceinline__ void multiply_run(Sums& sums, const WeightRun& w, const TokenRun& x) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int m = 0; m < kTokenTiles; m++) {
      const uint4 lo = x.part[half][2 * m];
      uint4 hi = make_uint4(0, 0, 0, 0);
      if constexpr (TOKENS > 8) hi = x.part[half][2 * m + 1];
#pragma unroll
      for (int n = 0; n < ROW_TILES; n++) {
        const uint4 v = w.part[half][n];
        mma(sums.of[m][n], lo.x, hi.x, lo.y, hi.y, v.x, v.y);
        mma(sums.of[m][n], lo.z, hi.z, lo.w, hi.w, v.z, v.w);
      }
    }
  }
}

/** The warp's share of its rows: runs of 64 columns part, part + split, … */
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

__device__ __forceinline__ void store_output(const LinearJob& job, int t, int row, float value) {
  if (job.bias != nullptr) value += job.bias[row];
  value = apply_epilogue(value, job.epilogue);
  const long long at = (long long)t * job.rows + row;
  if (job.is_f32) {
    float* const y = static_cast<float*>(job.y) + at;
    *y = job.epilogue == kAdd ? *y + value : value;
  } else {
    f16* const y = static_cast<f16*>(job.y) + at;
    *y = to_f16(job.epilogue == kAdd ? to_float(*y) + value : value);
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    linear_few(Step step, const __grid_constant__ LinearJobs jobs) {
  __shared__ float partial[WARPS][TOKENS][kTileRows];
  let_next_start();
  int j = 0;
  while (j + 1 < jobs.count && (int)blockIdx.x >= jobs.job[j + 1].first_block) j++;
  const LinearJob& job = jobs.job[j];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int split = job.split, tiles = WARPS / split;
  const int block_row = (blockIdx.x - job.first_block) * tiles * kTileRows;
  const int* const count = step.counts + jobs.count_index;

  Sums sums = {};
  const int first_token = blockIdx.y * TOKENS;
  multiply(sums, job, count, block_row + warp / split * kTileRows, first_token, warp % split);
  const int g = lane >> 2, q = lane & 3;
#pragma unroll
  for (int m = 0; m < kTokenTiles; m++) {
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
      const float(&d)[4] = sums.of[m][n];
      *reinterpret_cast<float2*>(&partial[warp][16 * m + g][8 * n + 2 * q]) =
          make_float2(d[0], d[1]);
      if constexpr (TOKENS > 8)
        *reinterpret_cast<float2*>(&partial[warp][16 * m + g + 8][8 * n + 2 * q]) =
            make_float2(d[2], d[3]);
    }
  }
  __syncthreads();

  const int width = tiles * kTileRows;
  const int outputs = width * min(TOKENS, *count - first_token);
  for (int i = threadIdx.x; i < outputs; i += 32 * WARPS) {
    const int t = i / width, r = i % width;
    if (block_row + r >= job.rows) continue;
    float sum = 0;
    for (int s = 0; s < split; s++) sum += partial[r / kTileRows * split + s][t][r % kTileRows];
    store_output(job, first_token + t, block_row + r, sum);
  }
}
