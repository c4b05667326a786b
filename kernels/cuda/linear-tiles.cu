// y = epilogue(x·Wᵀ + bias), or y + x·Wᵀ, for many tokens where W is of integers (quant.cuh): all
// jobs of one launch. x f16 [T, columns] · y f16 or f32 [T, rows] · bias f32 [rows] or null ·
// columns a multiple of 32. No copy of W is written: a block has 128 rows of it and TOKENS (64, 128
// or 256) tokens; two warpgroups hold 64 rows each and decode them in registers, as the left
// operand of wgmma, a slice ahead of what the tensor cores multiply, so that these always have
// something to do. A third warpgroup asks for parts of W, their scales and x ahead, in a ring in
// shared memory; the two blocks of a pair (256 rows) bring each other half of x. The pairs of a
// cluster have a share of the columns each and add up through their shared memories, in one order.
// Needs capability 9.0 and its own instructions (sm_90a).
// Tolerance: 1e-3 RMS against reference/ops.ts with weights of the same type.
#include "epilogue.cuh"
#include "quant-left.cuh"
#include "wgmma.cuh"

#define MAX_JOBS 8

struct TileJob {
  void* y;
  const f16* scales;
  const float* bias;
  int rows;
  int columns;
  int epilogue;
  int is_f32;
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

/** Of each job: x in boxes of 64 columns and half a block's tokens, W in boxes of a part and a
 * block's rows. */
struct TileMaps {
  TensorMap inputs[MAX_JOBS];
  TensorMap values[MAX_JOBS];
};

constexpr int kRows = 128;
/** The warpgroups that multiply, then the one that asks. */
constexpr int kMultiplying = 256;
constexpr int kThreads = kMultiplying + 128;
/** Inputs of a box of x, a row of 128 bytes, and boxes to a part of W. */
constexpr int kBoxInputs = 64;
constexpr int kBoxes = kPartInputs / kBoxInputs;
constexpr int kPartBytesOfRows = kRows * kPartBytes;
/** Between the sums of two tokens: no banks in common. */
constexpr int kStride = kRows + 4;

struct Shared {
  union {
    struct {
      /** By boxes, then tokens, 128 bytes each. */
      uint4 inputs[STAGES][kBoxes][8 * TOKENS];
      uint4 values[STAGES][kRows][4];
      Scales scales[STAGES][kRows];
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

/** A place in the ring, and the parity of its turn. */
struct Turn {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

/** Of the 168 registers that each thread has at the start those that ask leave most; these get
 * them.
 */
__device__ __forceinline__ void take_registers() {
#if HAS_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif
}

__device__ __forceinline__ void leave_registers() {
#if HAS_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
}

/** x of a part for both blocks of the pair, half of the tokens, and W for this one. */
__device__ __forceinline__ void ask_part(Shared& shared, const Tile& tile, const TileMaps& maps,
                                         int stage, int part) {
  const int half = tile.side * TOKENS / 2;
  Barrier& full = shared.full[stage];
  arrive_expecting(full, (int)sizeof(shared.inputs[0]) + kPartBytesOfRows);
#pragma unroll
  for (int box = 0; box < kBoxes; box++)
    load_box_to(3 << 2 * tile.share, shared.inputs[stage][box] + 8 * half, maps.inputs[tile.job],
                part * kPartInputs + box * kBoxInputs, tile.first_token + half, full);
  load_box(shared.values[stage], maps.values[tile.job], part * kPartBytes, tile.first_row, full);
}

/** A word or two, by a copy that is not waited for. */
__device__ __forceinline__ void copy_word(Scales& to, const Scales* from) {
#if HAS_WGMMA
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(&to)), "l"(from),
               "n"(sizeof(Scales))
               : "memory");
#endif
}

/** The warpgroup that asks: each thread for the scales of a row, the first for the rest. */
__device__ __forceinline__ void ask(Shared& shared, const TileJob& job, const Tile& tile,
                                    const TileMaps& maps) {
  const int thread = threadIdx.x - kMultiplying, row = min(tile.first_row + thread, job.rows - 1);
  const Scales* const scales =
      reinterpret_cast<const Scales*>(job.scales) + (long long)row * parts_of(job.columns);
  Turn turn;
  for (int part = tile.begin; part < tile.end; part++, turn.next()) {
    wait(shared.free[turn.stage], turn.parity ^ 1);
    if (thread == 0) ask_part(shared, tile, maps, turn.stage, part);
    copy_word(shared.scales[turn.stage][thread], scales + part);
    arrive_after_copies(shared.full[turn.stage]);
  }
}

/** A thread's own 16 bytes of its two rows of a part, g and g + 8 of the warp's. */
struct Weights {
  uint4 values[2];
  Scales scales[2];

  __device__ __forceinline__ void take(const Shared& shared, int stage) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      values[n] = shared.values[stage][row + 8 * n][lane];
      scales[n] = shared.scales[stage][row + 8 * n];
    }
  }
};

/** Of a thread's two rows the left operands of two products: a slice. */
struct Left {
  u32 row[4], other[4];

  __device__ __forceinline__ void decode_slice(const Weights& w, int slice) {
    decode_left(row, w.values[0], w.scales[0], slice);
    decode_left(other, w.values[1], w.scales[1], slice);
  }
};

/** Starts the products with the 32 inputs of a slice. */
__device__ __forceinline__ void start(float (&sums)[TOKENS / 2], const Left& left,
                                      const uint4* inputs, int half, bool is_first) {
  // In 16 bytes, as addresses are in it.
  const u64 first = describe(inputs) + 4 * half;
  begin_products();
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const u32 a[4] = {left.row[2 * k], left.other[2 * k], left.row[2 * k + 1],
                      left.other[2 * k + 1]};
    multiply(sums, a, first + 2 * k, k > 0 || !is_first);
  }
  end_products();
}

/** One lane of each warp tells both blocks of the pair that a stage is read. */
__device__ __forceinline__ void release(Shared& shared, const Tile& tile, int stage) {
  const int lane = threadIdx.x & 31;
  if (lane < 2) arrive_in(2 * tile.share + lane, shared.free[stage]);
}

/** All products of the share with the thread's rows. While a slice is multiplied the one before it
 * is waited for, whose registers the next is then decoded into. */
__device__ __forceinline__ void work(float (&sums)[TOKENS / 2], Shared& shared, const Tile& tile) {
  Turn turn;
  Weights w;
  Left left[2];
  wait(shared.full[0], 0);
  w.take(shared, 0);
  left[0].decode_slice(w, 0);
  for (int part = tile.begin; part < tile.end; part++) {
    const int stage = turn.stage, before = (stage == 0 ? STAGES : stage) - 1;
    turn.next();
#pragma unroll
    for (int slice = 0; slice < kPartSlices; slice++) {
      start(sums, left[slice % 2], shared.inputs[stage][slice / 2], slice % 2,
            slice == 0 && part == tile.begin);
      wait_for_products<1>();
      if (slice == 0 && part > tile.begin) release(shared, tile, before);
      if (slice + 1 < kPartSlices) {
        left[(slice + 1) % 2].decode_slice(w, slice + 1);
      } else if (part + 1 < tile.end) {
        wait(shared.full[turn.stage], turn.parity);
        w.take(shared, turn.stage);
        left[0].decode_slice(w, 0);
      }
    }
  }
  wait_for_products<0>();
}

/** Between the threads that multiply. */
__device__ __forceinline__ void meet() {
#if __CUDA_ARCH__ >= 900
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiplying) : "memory");
#endif
}

/** The block's share of the sums, by tokens, for the others of the cluster. */
__device__ __forceinline__ void share(Shared& shared, const float (&sums)[TOKENS / 2]) {
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, row = threadIdx.x / 32 * 16 + g;
#pragma unroll
  for (int j = 0; j < TOKENS / 2; j++)
    shared.sums[8 * (j / 4) + 2 * q + j % 2][row + 8 * (j / 2 % 2)] = sums[j];
}

/** Adds up all shares for every so many-th token, two rows to a thread. */
__device__ __forceinline__ void store_outputs(const Shared& shared, const TileJob& job,
                                              const Tile& tile, int shares, int num_tokens) {
  constexpr int kPairs = kRows / 2, kSteps = kMultiplying / kPairs;
  const int r = 2 * (threadIdx.x % kPairs), row = tile.first_row + r;
  if (row >= job.rows) return;
  const int tokens = min(TOKENS, num_tokens - tile.first_token);
  const bool has_bias = job.bias != nullptr, is_added = job.epilogue == kAdd;
  const float2 bias = has_bias ? make_float2(job.bias[row], job.bias[row + 1]) : make_float2(0, 0);
#pragma unroll 4
  for (int t = tile.share * kSteps + (int)threadIdx.x / kPairs; t < tokens; t += shares * kSteps) {
    const float* const from = &shared.sums[t][r];
    float2 sum = *reinterpret_cast<const float2*>(from);
    if (shares > 1) {
      sum = make_float2(0, 0);
      for (int other = 0; other < shares; other++) {
        const float2 part = read_two_in(2 * other + tile.side, from);
        sum.x += part.x, sum.y += part.y;
      }
    }
    sum.x = apply_epilogue(sum.x * UNSCALE + bias.x, job.epilogue);
    sum.y = apply_epilogue(sum.y * UNSCALE + bias.y, job.epilogue);
    const long long at = (long long)(tile.first_token + t) * job.rows + row;
    if (job.is_f32) {
      float2* const y = reinterpret_cast<float2*>(static_cast<float*>(job.y) + at);
      const float2 old = is_added ? *y : make_float2(0, 0);
      *y = make_float2(old.x + sum.x, old.y + sum.y);
    } else {
      u32* const y = reinterpret_cast<u32*>(static_cast<f16*>(job.y) + at);
      const float2 old = is_added ? unpack(*y) : make_float2(0, 0);
      *y = pack(old.x + sum.x, old.y + sum.y);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    linear_tiles(Step step, const __grid_constant__ TileJobs jobs,
                 const __grid_constant__ TileMaps maps) {
#if HAS_WGMMA
  alignas(1024) extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  const Tile tile = find_tile(jobs);
  const TileJob& job = jobs.job[tile.job];
  if (threadIdx.x < STAGES) {
    // The first of those that ask, and each when its scales have come; the warps of both blocks.
    init(shared.full[threadIdx.x], 1 + kThreads - kMultiplying);
    init(shared.free[threadIdx.x], 2 * kMultiplying / 32);
  }
  cluster_meet();
  wait_for_previous();
  const int num_tokens = step.counts[jobs.count_index];
  if (tile.first_token >= num_tokens) return;
  if (threadIdx.x >= kMultiplying) {
    leave_registers();
    ask(shared, job, tile, maps);
    cluster_meet();
  } else {
    take_registers();
    float sums[TOKENS / 2];
    work(sums, shared, tile);
    // All have multiplied: what was brought is read no more.
    meet();
    share(shared, sums);
    cluster_meet();
    store_outputs(shared, job, tile, jobs.shares, num_tokens);
  }
  // No block goes while another may still read its sums, or tell it what is free.
  cluster_part();
#endif
}
