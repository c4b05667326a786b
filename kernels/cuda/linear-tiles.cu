// y = x·Wᵀ, or y + x·Wᵀ, for more than 128 tokens where W is of integers (quant.cuh): all jobs of
// one launch. x f16 [T, columns] · y f16 or f32 [T, rows] · columns a multiple of 32. A block has
// 128 rows of W and TOKENS (128 or 256) tokens; two warpgroups of it hold 64 rows each, whose
// weights they read, each lane its own, and decode in registers as the left operand of wgmma. x
// comes in boxes of 64 columns, which the two blocks of a pair (256 rows) load for each other. The
// pairs of a cluster have a share of the columns each and add up through their shared memories, in
// one order. So no copy of W is written. Needs capability 9.0 and its own instructions (sm_90a).
// Tolerance: 1e-3 RMS against reference/ops.ts with weights of the same type.
#include "copy-ahead.cuh"
#include "quant-left.cuh"
#include "wgmma.cuh"

#define MAX_JOBS 8

struct TileJob {
  void* y;
  const uint4* values;
  const f16* scales;
  int rows;
  int columns;
  /** Whether y is f32, and whether it is added to. */
  int is_f32;
  int is_added;
  /** The first pair of tiles. */
  int first_pair;
};

struct TileJobs {
  TileJob job[MAX_JOBS];
  int count;
  /** Which of the step's counts is T: 0 tokens, 2 logits rows. */
  int count_index;
  /** Tiles of tokens. */
  int columns_of_tiles;
  /** Pairs that share a product's columns. */
  int shares;
};

/** x of each job. */
struct InputMaps {
  TensorMap of[MAX_JOBS];
};

constexpr int kThreads = 256;
constexpr int kRows = 128;
/** Inputs of a stage, and stages of a part of W. */
constexpr int kInputs = 64;
constexpr int kPartStages = kPartInputs / kInputs;
/** Parts of W on their way. */
constexpr int kDepth = 4;
/** Between the sums of two tokens: no banks in common. */
constexpr int kStride = kRows + 4;
constexpr int kHalves = TOKENS / 128;

/** A thread's own 16 bytes of its two rows of W, g and g + 8 of the warp's. */
struct Weights {
  uint4 values[2];
  Scales scales[2];
};

struct Shared {
  union {
    struct {
      /** By tokens, 128 bytes each. */
      uint4 inputs[STAGES][8 * TOKENS];
      uint4 values[kDepth][2][kThreads];
      Scales scales[kDepth][2][kThreads];
    };
    /** In the end: sums of the block's share. */
    float sums[TOKENS][kStride];
  };
  Barrier full[STAGES];
  Barrier free[STAGES];
};

/** The work of a block. */
struct Tile {
  int first_row, first_token, job;
  /** Which of the pair it is, and of the shares. */
  int side, share;
  /** Parts of its share. */
  int begin, end;
};

__device__ __forceinline__ Tile find_tile(const TileJobs& jobs) {
  const int cluster = 2 * jobs.shares, rank = rank_in_cluster(), unit = blockIdx.x / cluster;
  const int pair = unit / jobs.columns_of_tiles;
  Tile tile;
  tile.job = 0;
  while (tile.job + 1 < jobs.count && pair >= jobs.job[tile.job + 1].first_pair) tile.job++;
  const TileJob& job = jobs.job[tile.job];
  tile.side = rank % 2, tile.share = rank / 2;
  tile.first_row = (2 * (pair - job.first_pair) + tile.side) * kRows;
  tile.first_token = unit % jobs.columns_of_tiles * TOKENS;
  const int parts = parts_of(job.columns);
  tile.begin = parts * tile.share / jobs.shares;
  tile.end = parts * (tile.share + 1) / jobs.shares;
  return tile;
}

/** A place in the ring of x, and the parity of its turn. */
struct Turn {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

/** The first thread's: asks for the x of one stage after the other, half of the tokens, for both
 * blocks of the pair. */
struct Feed {
  Turn turn;
  int next, end;

  __device__ __forceinline__ void one(Shared& shared, const Tile& tile, const TensorMap& map) {
    if (threadIdx.x == 0 && next < end) {
      const int half = tile.side * TOKENS / 2;
      Barrier& full = shared.full[turn.stage];
      wait(shared.free[turn.stage], turn.parity ^ 1);
      arrive_expecting(full, (int)sizeof(shared.inputs[0]));
      load_box(shared.inputs[turn.stage] + 8 * half, map, next * kInputs, tile.first_token + half,
               full, 3 << 2 * tile.share);
      next++;
      turn.next();
    }
    __syncwarp();
  }
};

/** Of part `p` what the thread has of W, if there is such a part. */
__device__ __forceinline__ void ask_weights(Shared& shared, int place, const TileJob& job,
                                            const int (&rows)[2], int p, int end, u64 policy) {
  if (p < end) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int part = rows[n] * parts_of(job.columns) + p;
      copy_ahead(shared.values[place][n][threadIdx.x], job.values + part * 4 + threadIdx.x % 4,
                 policy);
      copy_ahead(shared.scales[place][n][threadIdx.x],
                 reinterpret_cast<const Scales*>(job.scales) + part, policy);
    }
  }
  end_group();
}

__device__ __forceinline__ Weights take_weights(const Shared& shared, int place) {
  const int i = threadIdx.x;
  return {{shared.values[place][0][i], shared.values[place][1][i]},
          {shared.scales[place][0][i], shared.scales[place][1][i]}};
}

/** Of a thread's two rows the left operands of two products. */
struct Left {
  u32 row[4], other[4];

  __device__ __forceinline__ void decode_slice(const Weights& w, int slice) {
    decode_left(row, w.values[0], w.scales[0], slice);
    decode_left(other, w.values[1], w.scales[1], slice);
  }
};

/** Starts the products with 32 inputs: half `half` of a stage. */
__device__ __forceinline__ void multiply(float (&sums)[kHalves][64], const Left& left,
                                         const uint4* inputs, int half) {
  // In 16 bytes, as addresses are in it.
  const u64 first = describe(inputs) + 4 * half;
  begin_products();
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const u32 a[4] = {left.row[2 * k], left.other[2 * k], left.row[2 * k + 1],
                      left.other[2 * k + 1]};
#pragma unroll
    for (int part = 0; part < kHalves; part++)
      multiply_128(sums[part], a, first + 8 * 128 * part + 2 * k);
  }
  end_products();
}

/** All products of the share with the thread's rows. While 32 inputs are multiplied, the weights of
 * the next are decoded; the gap until those are, the other warpgroup fills. */
__device__ __forceinline__ void work(float (&sums)[kHalves][64], Shared& shared, const TileJob& job,
                                     const Tile& tile, const int (&rows)[2], const TensorMap& map,
                                     u64 policy) {
  const int lane = threadIdx.x & 31;
  Feed feed = {{}, tile.begin * kPartStages, tile.end * kPartStages};
  for (int s = 0; s < STAGES - 1; s++) feed.one(shared, tile, map);
  Turn turn;
  int place = 0;
  wait_for_group<kDepth - 1>();
  Weights w = take_weights(shared, place);
  Left left;
  left.decode_slice(w, 0);
  for (int p = tile.begin; p < tile.end; p++) {
#pragma unroll
    for (int slice = 0; slice < kPartSlices; slice++) {
      const int half = slice % 2;
      if (half == 0) wait(shared.full[turn.stage], turn.parity);
      multiply(sums, left, shared.inputs[turn.stage], half);
      if (slice + 1 == kPartSlices) {
        ask_weights(shared, place, job, rows, p + kDepth, tile.end, policy);
        place = (place + 1) % kDepth;
        wait_for_group<kDepth - 1>();
        w = take_weights(shared, place);
      }
      left.decode_slice(w, (slice + 1) % kPartSlices);
      wait_for_products<0>();
      if (half == 0) continue;
      if (lane < 2) arrive_in(2 * tile.share + lane, shared.free[turn.stage]);
      turn.next();
      // Into the stage that was multiplied before this one: by now others are done with it, too.
      feed.one(shared, tile, map);
    }
  }
  wait_for_group<0>();
}

/** The block's share of the sums, by tokens, for the others of the cluster. */
__device__ __forceinline__ void share(Shared& shared, const float (&sums)[kHalves][64]) {
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, row = threadIdx.x / 32 * 16 + g;
#pragma unroll
  for (int part = 0; part < kHalves; part++)
#pragma unroll
    for (int j = 0; j < 64; j++)
      shared.sums[128 * part + 8 * (j / 4) + 2 * q + j % 2][row + 8 * (j / 2 % 2)] = sums[part][j];
}

/** Adds up all shares for every so many-th token, two rows to a thread. */
__device__ __forceinline__ void store_outputs(const Shared& shared, const TileJob& job,
                                              const Tile& tile, int shares, int num_tokens) {
  constexpr int kPairs = kRows / 2, kSteps = kThreads / kPairs;
  const int r = 2 * (threadIdx.x % kPairs), row = tile.first_row + r;
  if (row >= job.rows) return;
  const int tokens = min(TOKENS, num_tokens - tile.first_token);
#pragma unroll 4
  for (int t = tile.share * kSteps + (int)threadIdx.x / kPairs; t < tokens; t += shares * kSteps) {
    const float* const from = &shared.sums[t][r];
    float2 sum = make_float2(0, 0);
    if (shares == 1)
      sum = *reinterpret_cast<const float2*>(from);
    else
      for (int other = 0; other < shares; other++) {
        sum.x += read_in(2 * other + tile.side, from[0]);
        sum.y += read_in(2 * other + tile.side, from[1]);
      }
    sum.x *= UNSCALE, sum.y *= UNSCALE;
    const long long at = (long long)(tile.first_token + t) * job.rows + row;
    if (job.is_f32) {
      float2* const y = reinterpret_cast<float2*>(static_cast<float*>(job.y) + at);
      const float2 old = job.is_added ? *y : make_float2(0, 0);
      *y = make_float2(old.x + sum.x, old.y + sum.y);
    } else {
      u32* const y = reinterpret_cast<u32*>(static_cast<f16*>(job.y) + at);
      const float2 old = job.is_added ? unpack(*y) : make_float2(0, 0);
      *y = pack(old.x + sum.x, old.y + sum.y);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, TOKENS == 128 ? 2 : 1)
    linear_tiles(Step step, const __grid_constant__ TileJobs jobs,
                 const __grid_constant__ InputMaps maps) {
#if HAS_WGMMA
  alignas(1024) extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  const Tile tile = find_tile(jobs);
  const TileJob& job = jobs.job[tile.job];
  const int in_tile = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  int rows[2];
#pragma unroll
  for (int n = 0; n < 2; n++) rows[n] = min(tile.first_row + in_tile + 8 * n, job.rows - 1);
  const u64 policy = evict_first();
  for (int d = 0; d < kDepth; d++)
    ask_weights(shared, d, job, rows, tile.begin + d, tile.end, policy);
  if (threadIdx.x < STAGES) {
    init(shared.full[threadIdx.x], 1);
    init(shared.free[threadIdx.x], kThreads / 16);
  }
  cluster_meet();
  wait_for_previous();
  const int num_tokens = step.counts[jobs.count_index];
  if (tile.first_token >= num_tokens) {
    wait_for_group<0>();
    return;
  }
  float sums[kHalves][64] = {};
  work(sums, shared, job, tile, rows, maps.of[tile.job], policy);
  // All have multiplied: x and W are read no more.
  __syncthreads();
  share(shared, sums);
  cluster_meet();
  store_outputs(shared, job, tile, jobs.shares, num_tokens);
  // No block goes while another may still read its sums, or tell it what is free.
  cluster_part();
#endif
}
