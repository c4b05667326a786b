// y = epilogue(x·Wᵀ + bias) for matrices of few rows and many columns, with all jobs of one
// `linear` in one launch.
// W f16 [rows, columns] · x f16 [T, columns] · bias f32 [rows] or null · y f16 [T, rows] · rows and
// columns multiples of 8.
// A cluster computes a tile of TOKENS × ROWS outputs. Each block multiplies its share of the
// columns through a ring of STAGES chunks in shared memory. Then each block adds its share of the
// outputs over the blocks, in the order of the blocks. The limit is how fast multiprocessors read
// from L2, (TOKENS + ROWS) lines per tile and chunk; that is why tiles are large and columns are
// shared. The order of a sum depends only on the number of blocks in a cluster, not on the tile or
// on other tokens. Tolerance: 1e-3 RMS against reference/ops.ts (outputs are rounded to f16).
#include "epilogue.cuh"
#include "low-rank.cuh"
#include "mbarrier.cuh"

#define MAX_JOBS 8
#define MAX_SPLITS 8

struct LowRankJob {
  f16* y;
  const f16* x;
  const f16* weight;
  const float* bias;
  int rows;
  int columns;
  int epilogue;
  /** The first tile of rows of this job. */
  int first_tile;
};

struct LowRankJobs {
  LowRankJob job[MAX_JOBS];
  int count;
  /** The index of T in the step's counts. */
  int count_index;
  /** Blocks of a cluster, which share the columns; at most MAX_SPLITS. */
  int splits;
};

constexpr int kTokenWarps = TOKENS >= 2 * ROWS ? 4 : 2, kRowWarps = kThreads / 32 / kTokenWarps;
/** A warp's tiles of 16 tokens and of 8 rows, as the tensor cores take them. */
constexpr int kTokenTiles = TOKENS / kTokenWarps / 16, kRowTiles = ROWS / kRowWarps / 8;
constexpr int kStageBytes = (TOKENS + ROWS) * 128;
/** The pitch of a token's sums in shared memory, in f32. The 8 extra avoid bank conflicts between
 * tokens. */
constexpr int kPitch = ROWS + 8;
static_assert(TOKENS * kPitch * 4 <= STAGES * kStageBytes, "the sums reuse the memory of the chunks");
static_assert(TOKENS % kLines == 0 && ROWS % kLines == 0 && kRowTiles % 2 == 0, "whole copies");

/** The operands of 16 columns. */
struct Fragments {
  u32 x[kTokenTiles][4], w[kRowTiles / 2][4];
};

struct Sums {
  float of[kTokenTiles][kRowTiles][4];
};

/** The place of a warp in the tile. */
struct Place {
  int token, row;
};

__device__ __forceinline__ Place place_of_warp() {
  const int warp = threadIdx.x / 32;
  return {warp / kRowWarps * kTokenTiles * 16, warp % kRowWarps * kRowTiles * 8};
}

/** Loads columns 16·step to 16·step + 15 of the chunk at `stage`. */
__device__ __forceinline__ void load_fragments(Fragments& to, u32 stage, Place at, int step) {
  const int lane = threadIdx.x % 32, line = lane % 8;
  const u32 x = stage + (at.token + lane % 16) * 128 + (((2 * step) | lane / 16) ^ line) * 16;
  const u32 w = stage + (TOKENS + at.row + lane / 16 * 8 + line) * 128 +
                (((2 * step) | (lane / 8 & 1)) ^ line) * 16;
#pragma unroll
  for (int m = 0; m < kTokenTiles; m++) load_matrices(to.x[m], x + m * 16 * 128);
#pragma unroll
  for (int n = 0; n < kRowTiles / 2; n++) load_matrices(to.w[n], w + n * 16 * 128);
}

__device__ __forceinline__ void multiply(Sums& sums, const Fragments& of) {
#pragma unroll
  for (int m = 0; m < kTokenTiles; m++)
#pragma unroll
    for (int n = 0; n < kRowTiles; n++)
      mma(sums.of[m][n], of.x[m][0], of.x[m][1], of.x[m][2], of.x[m][3], of.w[n / 2][n % 2 * 2],
          of.w[n / 2][n % 2 * 2 + 1]);
}

/** Multiplies the chunks of one block. The copies of the first STAGES − 1 chunks have been started;
 * a new one starts in place of each chunk that is done. */
__device__ __forceinline__ void multiply_chunks(Sums& sums, u32 memory, const Source& x,
                                                const Source& w, int first, int end) {
  constexpr int kSteps = kColumns / 16;
  const Place at = place_of_warp();
  Fragments fragments[2];
  wait_for_groups<STAGES - 2>();
  __syncthreads();
  load_fragments(fragments[0], memory, at, 0);
  int stage = 0, free = STAGES - 1;
  for (int chunk = first; chunk < end; chunk++) {
    const int next = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      if (step == kSteps - 1) {
        // After this, all threads have read this chunk, and the next one is there.
        wait_for_groups<STAGES - 2>();
        __syncthreads();
        load_fragments(fragments[0], memory + next * kStageBytes, at, 0);
      } else {
        load_fragments(fragments[(step + 1) % 2], memory + stage * kStageBytes, at, step + 1);
      }
      if (step == 0) {
        if (chunk + STAGES - 1 < end) {
          const u32 to = memory + free * kStageBytes;
          copy_lines<TOKENS>(to, x, chunk + STAGES - 1);
          copy_lines<ROWS>(to + TOKENS * 128, w, chunk + STAGES - 1);
        }
        end_group();
      }
      multiply(sums, fragments[step % 2]);
    }
    free = stage, stage = next;
  }
  wait_for_groups<0>();
  __syncthreads();
}

__device__ __forceinline__ void keep_sums(float* partial, const Sums& sums) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const Place at = place_of_warp();
#pragma unroll
  for (int m = 0; m < kTokenTiles; m++)
#pragma unroll
    for (int n = 0; n < kRowTiles; n++) {
      const float (&d)[4] = sums.of[m][n];
      float* const to = partial + (at.token + 16 * m + g) * kPitch + at.row + 8 * n + 2 * q;
      *reinterpret_cast<float2*>(to) = make_float2(d[0], d[1]);
      *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(d[2], d[3]);
    }
}

/** Adds the sums of four adjacent outputs over the first `splits` blocks, at most `Most`. */
template <int Most>
__device__ __forceinline__ float4 add_parts(u32 address, int splits) {
  float4 parts[Most];
#pragma unroll
  for (int s = 0; s < Most; s++) parts[s] = read_shared_in(address, s, s < splits);
  float4 sum = parts[0];
#pragma unroll
  for (int s = 1; s < Most; s++)
    sum.x += parts[s].x, sum.y += parts[s].y, sum.z += parts[s].z, sum.w += parts[s].w;
  return sum;
}

/** Stores four adjacent outputs. */
__device__ __forceinline__ void store_output(const LowRankJob& job, int t, int row, float4 sum) {
  if (job.bias != nullptr) {
    const float4 bias = *reinterpret_cast<const float4*>(job.bias + row);
    sum.x += bias.x, sum.y += bias.y, sum.z += bias.z, sum.w += bias.w;
  }
  const int epilogue = job.epilogue;
  uint2 y;
  y.x = pack(apply_epilogue(sum.x, epilogue), apply_epilogue(sum.y, epilogue));
  y.y = pack(apply_epilogue(sum.z, epilogue), apply_epilogue(sum.w, epilogue));
  *reinterpret_cast<uint2*>(job.y + (long long)t * job.rows + row) = y;
}

/** Stores the outputs of a block: every `splits`-th part of the tile. */
template <int Most>
__device__ __forceinline__ void store_outputs(const float* partial, const LowRankJob& job,
                                              int splits, int rank, int first_token, int first_row,
                                              int num_tokens) {
  constexpr int kUnits = ROWS / 4;
  const int row = first_row + threadIdx.x % kUnits * 4;
  if (row >= job.rows) return;
  const int tokens = min(TOKENS, num_tokens - first_token);
  const float* from = partial + threadIdx.x % kUnits * 4;
  for (int t = (rank * kThreads + threadIdx.x) / kUnits; t < tokens;
       t += splits * kThreads / kUnits)
    store_output(job, first_token + t, row,
                 add_parts<Most>(shared_address(from + t * kPitch), splits));
}

// Grid: x is the block in the cluster, then the tile of rows of all jobs; y is the tile of tokens.
extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
    low_rank(Step step, const __grid_constant__ LowRankJobs jobs) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) float memory[];
  let_next_start();
  const int splits = jobs.splits, tile = blockIdx.x / splits, rank = blockIdx.x % splits;
  int j = 0;
  while (j + 1 < jobs.count && tile >= jobs.job[j + 1].first_tile) j++;
  const LowRankJob& job = jobs.job[j];
  const int first_row = (tile - job.first_tile) * ROWS, first_token = blockIdx.y * TOKENS;
  const int chunks = (job.columns + kColumns - 1) / kColumns;
  const int first = chunks * rank / splits, end = chunks * (rank + 1) / splits;
  const u32 ring = shared_address(memory);

  // Weights do not depend on the previous kernel, so their copies start before it has ended.
  const Source w = source_of(job.weight, job.columns, first_row, job.rows);
  for (int i = 0; i < STAGES - 1 && first + i < end; i++)
    copy_lines<ROWS>(ring + i * kStageBytes + TOKENS * 128, w, first + i);
  wait_for_previous();
  const int num_tokens = step.counts[jobs.count_index];
  if (first_token >= num_tokens) {
    end_group();
    wait_for_groups<0>();
    return;
  }
  const Source x = source_of(job.x, job.columns, first_token, num_tokens);
  for (int i = 0; i < STAGES - 1; i++) {
    if (first + i < end) copy_lines<TOKENS>(ring + i * kStageBytes, x, first + i);
    end_group();
  }
  Sums sums = {};
  multiply_chunks(sums, ring, x, w, first, end);
  keep_sums(memory, sums);
  if (splits > 1)
    cluster_meet();
  else
    __syncthreads();
  // Each variant issues no more loads than it may need.
  if (splits == 1)
    store_outputs<1>(memory, job, 1, 0, first_token, first_row, num_tokens);
  else if (splits <= 4)
    store_outputs<4>(memory, job, splits, rank, first_token, first_row, num_tokens);
  else
    store_outputs<MAX_SPLITS>(memory, job, splits, rank, first_token, first_row, num_tokens);
  // No block may exit while another can still read its sums.
  if (splits > 1) cluster_part();
#endif
}
