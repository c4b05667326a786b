// y = x·Wᵀ, or y + x·Wᵀ, for 33 to 128 tokens where W is of integers (quant.cuh): all jobs of one
// launch. x f16 [T, columns] · y f16 or f32 [T, rows] · columns a multiple of 32.
// A block has 256 rows of W and all TOKENS (64 or 128) tokens; the blocks of a cluster have a share
// of the columns each and add up through their shared memories, in one order. So W is read
// once, x once for every 256 rows, and one matrix fills the device. Parts of W and of x come into a
// ring in shared memory; a warp multiplies 32 rows as the tensor cores' columns, as linear-quant.cu
// does. Needs capability 9.0.
// Tolerance: 1e-3 RMS against reference/ops.ts with weights of the same type.
#define ROW_TILES 4
#include "copy-ahead.cuh"
#include "few-tokens.cuh"
#include "mbarrier.cuh"
#include "quant.cuh"

struct WideJob {
  void* y;
  const f16* x;
  const uint4* values;
  const f16* scales;
  int rows;
  int columns;
  /** Whether y is f32, and whether it is added to. */
  int is_f32;
  int is_added;
  /** The first tile of 256 rows. */
  int first_block;
};

struct WideJobs {
  WideJob job[MAX_JOBS];
  int count;
  /** Which of the step's counts is T: 0 tokens, 2 logits rows. */
  int count_index;
  /** Blocks of a cluster, kMaxCluster at the most. */
  int cluster;
};

constexpr int kMaxCluster = 8;
constexpr int kThreads = 32 * WARPS;
constexpr int kRows = WARPS * kTileRows;
/** Eights of inputs of a part. */
constexpr int kEights = kPartInputs / 8;
/** Between the sums of two tokens: no banks in common. */
constexpr int kStride = kRows + 8;

/** What a block has of a part: a thread's own lanes of W, and x by tokens (input_at). */
struct Stage {
  uint4 values[ROW_TILES][kThreads];
  Scales scales[ROW_TILES][kThreads];
  uint4 inputs[TOKENS * kEights];
};

struct Shared {
  union {
    Stage ring[STAGES];
    /** In the end: sums of the block's share. */
    float sums[TOKENS][kStride];
  };
};

/** Eight inputs of a token in a stage. Of odd tokens the halves of each 128 bytes change places:
 * what 8 lanes read at once is in different banks. */
__device__ __forceinline__ int input_at(int token, int eight) {
  return token * kEights + (eight ^ (token & 1) * 4);
}

/** Of a thread's rows, one in each of the warp's tiles of 8: the first part. */
struct Rows {
  int part[ROW_TILES];
};

/** Of part `p`: what the thread has of W. */
__device__ __forceinline__ void ask_weights(Stage& stage, const WideJob& job, const Rows& rows,
                                            int p, int end, u64 policy) {
  if (p >= end) return;
  const Scales* const scales = reinterpret_cast<const Scales*>(job.scales);
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++) {
    const int part = rows.part[n] + p;
    copy_ahead(stage.values[n][threadIdx.x], job.values + part * 4 + threadIdx.x % 4, policy);
    copy_ahead(stage.scales[n][threadIdx.x], scales + part, policy);
  }
}

/** Of part `p`: a share of x, zeros beyond the columns. Tokens beyond the last are the last. */
__device__ __forceinline__ void ask_inputs(Stage& stage, const WideJob& job, int p, int end,
                                           int last) {
  if (p >= end) return;
#pragma unroll
  for (int i = threadIdx.x; i < TOKENS * kEights; i += kThreads) {
    const int token = i / kEights, eight = i % kEights;
    const int column = p * kPartInputs + 8 * eight;
    const bool is_inside = column < job.columns;
    copy_or_clear(stage.inputs[input_at(token, eight)],
                  job.x + (min(token, last) * job.columns + (is_inside ? column : 0)), is_inside);
  }
}

/** Adds the products of a part. The order of k is that of multiply_tile. */
__device__ __forceinline__ void multiply(Sums& sums, const Stage& stage) {
  const int g = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3;
#pragma unroll
  for (int slice = 0; slice < kPartSlices; slice++) {
    u32 w[ROW_TILES][4];
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++)
      decode(w[n], stage.values[n][threadIdx.x], stage.scales[n][threadIdx.x], slice);
#pragma unroll
    for (int m = 0; m < kTokenTiles; m++) {
      const uint4 lo = stage.inputs[input_at(16 * m + g, 4 * slice + q)];
      const uint4 hi = stage.inputs[input_at(16 * m + 8 + g, 4 * slice + q)];
#pragma unroll
      for (int n = 0; n < ROW_TILES; n++) {
        mma(sums.of[m][n], lo.x, hi.x, lo.y, hi.y, w[n][0], w[n][1]);
        mma(sums.of[m][n], lo.z, hi.z, lo.w, hi.w, w[n][2], w[n][3]);
      }
    }
  }
}

/** The block's share of the sums, by tokens, for the others of the cluster. */
__device__ __forceinline__ void share(Shared& shared, const Sums& sums) {
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3;
#pragma unroll
  for (int m = 0; m < kTokenTiles; m++)
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
      const float (&d)[4] = sums.of[m][n];
      const int row = warp * kTileRows + 8 * n + 2 * q;
      *reinterpret_cast<float2*>(&shared.sums[16 * m + g][row]) = make_float2(d[0], d[1]);
      *reinterpret_cast<float2*>(&shared.sums[16 * m + 8 + g][row]) = make_float2(d[2], d[3]);
    }
}

/** Adds up all shares for every `cluster`th token, a row to a thread. */
__device__ __forceinline__ void store_outputs(Shared& shared, const WideJob& job, int row, int rank,
                                              int cluster, int num_tokens) {
  if (row >= job.rows) return;
  for (int t = rank; t < min(TOKENS, num_tokens); t += cluster) {
    float share[kMaxCluster], sum = 0;
#pragma unroll
    for (int other = 0; other < kMaxCluster; other++)
      share[other] = other < cluster ? read_in(other, shared.sums[t][threadIdx.x]) : 0.0f;
#pragma unroll
    for (int other = 0; other < kMaxCluster; other++) sum += share[other];
    sum *= UNSCALE;
    const long long at = (long long)t * job.rows + row;
    if (job.is_f32) {
      float* const y = static_cast<float*>(job.y) + at;
      *y = job.is_added ? *y + sum : sum;
    } else {
      f16* const y = static_cast<f16*>(job.y) + at;
      *y = to_f16(job.is_added ? to_float(*y) + sum : sum);
    }
  }
}

__device__ __forceinline__ const WideJob& find_tile(const WideJobs& jobs, int tile) {
  int j = 0;
  while (j + 1 < jobs.count && tile >= jobs.job[j + 1].first_block) j++;
  return jobs.job[j];
}

extern "C" __global__ void __launch_bounds__(kThreads, TOKENS == 64 ? 2 : 1)
    linear_wide(Step step, const __grid_constant__ WideJobs jobs) {
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  const int cluster = jobs.cluster, tile = blockIdx.x / cluster, rank = rank_in_cluster();
  const WideJob& job = find_tile(jobs, tile);
  const int first_row = (tile - job.first_block) * kRows;
  const int parts = parts_of(job.columns);
  const int begin = parts * rank / cluster, end = parts * (rank + 1) / cluster;
  Rows rows;
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++) {
    const int in_tile = (threadIdx.x >> 5) * kTileRows + 8 * n + (threadIdx.x & 31) / 4;
    rows.part[n] = min(first_row + in_tile, job.rows - 1) * parts;
  }
  const u64 policy = evict_first();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++)
    ask_weights(shared.ring[s], job, rows, begin + s, end, policy);
  wait_for_previous();

  const int num_tokens = step.counts[jobs.count_index];
  const int last = max(min(TOKENS, num_tokens), 1) - 1;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    ask_inputs(shared.ring[s], job, begin + s, end, last);
    end_group();
  }
  Sums sums = {};
  int stage = 0;
  for (int p = begin; p < end; p++) {
    wait_for_group<STAGES - 2>();
    // The part has come to all threads, and all are done with the one before.
    __syncthreads();
    const int next = p + STAGES - 1, free = stage == 0 ? STAGES - 1 : stage - 1;
    ask_weights(shared.ring[free], job, rows, next, end, policy);
    ask_inputs(shared.ring[free], job, next, end, last);
    end_group();
    multiply(sums, shared.ring[stage]);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  wait_for_group<0>();
  __syncthreads();
  share(shared, sums);
  cluster_meet();
  store_outputs(shared, job, first_row + threadIdx.x, rank, cluster, num_tokens);
  // No block goes while another may still read its sums.
  cluster_meet();
}
