// What everything in eight-rows.cu uses: a block's shared memory, products with tokens as the
// columns of the tensor cores, and sums that one warp finishes while the others multiply. This file
// does not know the phases.
#pragma once
#include "few-rows-barrier.cuh"

/** Rows of weights that are multiplied at once. A warp has one or two times 32 of a stage's columns
 * of f16. */
constexpr int kTileRows = 16, kTileColumns = 32;

__device__ __forceinline__ uint4 load_vector(const void* from) {
  return *reinterpret_cast<const uint4*>(from);
}

/** Adds the products of 16 rows by 32 columns. A lane has 8 columns of rows lane / 4 and lane / 4 +
 * 8, and the same columns of token lane / 4. The order of the columns within a product does not
 * matter if it is the same on both sides. */
__device__ __forceinline__ void add_tile(float (&sums)[4], const uint4& low, const uint4& high,
                                         const uint4& x) {
  mma(sums, low.x, high.x, low.y, high.y, x.x, x.y);
  mma(sums, low.z, high.z, low.w, high.w, x.z, x.w);
}

#if QUANT
#include "eight-rows-rounded.cuh"
#endif
#include "few-rows-ring.cuh"

constexpr int kParts = kStageColumns / (WARPS * kTileColumns);
static_assert(STAGE_ROWS == kTileRows && TOKENS == 8);
static_assert((kParts == 1 || kParts == 2) && kParts * WARPS * kTileColumns == kStageColumns);

/** A warp's sums of a tile, [row][token]. */
constexpr int kTileSums = kTileRows * TOKENS;
/** Sums of a head's outer low ranks, [low rank][half of its columns][token][channel]. */
constexpr int kLowHalves = 2, kLowSum = TOKENS * 64;
/** Sums of columns of ffn.value, if it is transposed. */
constexpr int kColumnSums = QUANT ? 0 : WARPS * value_columns() * TOKENS;
constexpr int kSums = most(most(2 * WARPS * kTileSums, kLow * kLowHalves * kLowSum), kColumnSums);

struct Token {
  /** `keep`: the slot that gets the state from after the token, or kNowhere. */
  int slot, keep;
  bool is_first;
};

/** The block's part of the `heads` phase: every BLOCKS-th head from `head` on, and some tokens of
 * each. */
struct HeadShare {
  int head, begin, end;
};

struct Shared {
  alignas(16) Layer layers[2];
  StreamShared stream;
  /** Of each of two places for a tile's sums: the sums are there; they are finished. */
  Barrier full[2], empty[2];
  Token tokens[TOKENS];
  HeadShare heads;
  float scratch[2][2][32];
  alignas(16) float sums[kSums];
};
static_assert(sizeof(Shared) <= FIXED, "as fused-layers-plan.ts computes");

static_assert(TOKENS * sizeof(Operands) <= REGION, "as fused-layers-plan.ts computes");

/** Blocks per head, as many as there are. They divide the rows of the step among them. */
constexpr int kHeadBlocks = most(1, least(TOKENS, BLOCKS / kHeads));

__device__ __forceinline__ HeadShare share_of_heads(const Step& step) {
  const int tokens = step.num_tokens(), part = blockIdx.x / kHeads;
  if (kHeadBlocks == 1) return {(int)blockIdx.x, 0, tokens};
  // The beginning of a row that is nearest to an equal share.
  const auto boundary = [&](int part) {
    int nearest = 0;
    for (int row = 1; row <= step.num_rows(); row++) {
      const int start = step.starts[row], equal = part * tokens;
      if (abs(kHeadBlocks * start - equal) < abs(kHeadBlocks * nearest - equal)) nearest = start;
    }
    return nearest;
  };
  if (part >= kHeadBlocks) return {kHeads, 0, 0};
  const int begin = boundary(part), end = boundary(part + 1);
  return {begin < end ? (int)blockIdx.x % kHeads : kHeads, begin, end};
}

/** A place for a tile's sums, and the parity of the turn. */
struct SumsTurn {
  int place = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    place ^= 1;
    if (place == 0) parity ^= 1;
  }
};

/** Everything a block has. */
struct Block {
  Shared& sh;
  u8* region;
  GridBarrier barrier;
  Stream stream;
  SumsTurn sums;
  int num_tokens;
};

/** The token of a lane's inputs. Lanes of absent tokens have those of the last token; their sums
 * are not used. There is no branch, because the compiler would make two loops of one, and products
 * need all lanes of a warp. */
__device__ __forceinline__ int own_token(const Block& b) {
  return min((int)(threadIdx.x & 31) >> 2, b.num_tokens - 1);
}

/** The inputs that a warp multiplies by rows of f16: of the token lane / 4. */
struct Inputs {
  /** Stages per tile, and sums that are added at the end, so that products wait for no other. */
  static constexpr int kStages = SPLIT, kChains = kParts;
  uint4 of[SPLIT][kParts];

  /** `from`: the token's CHANNELS inputs, f16, which other blocks wrote. */
  __device__ __forceinline__ explicit Inputs(const f16* from) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    from += kParts * kTileColumns * warp + kVector * (lane & 3);
#pragma unroll
    for (int split = 0; split < SPLIT; split++)
#pragma unroll
      for (int i = 0; i < kParts; i++)
        of[split][i] = __ldcg(
            reinterpret_cast<const uint4*>(from + split * kStageColumns + kTileColumns * i));
  }

  /** Adds the warp's products of a stage. */
  __device__ __forceinline__ void add(float (&sums)[kChains][4], const u8* stage, int split) const {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = lane >> 2, part = lane & 3;
    constexpr int kRowBytes = 2 * kStageColumns;
    // As copy_tile() lays them.
    const int at =
        row * kRowBytes + (2 * kParts * kTileColumns * warp + 16 * part ^ 64 * (row & 1));
    uint4 low[kParts], high[kParts];
#pragma unroll
    for (int i = 0; i < kParts; i++) {
      const u8* const own = stage + (at ^ 64 * i);
      low[i] = load_vector(own), high[i] = load_vector(own + 8 * kRowBytes);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kParts; i++) add_tile(sums[i], low[i], high[i], of[split][i]);
  }
};

/** The inputs that a warp multiplies by rows of a large matrix. */
#if QUANT
using LargeInputs = RoundedInputs;
#else
using LargeInputs = Inputs;
#endif

/** Run by the warps that multiply: the next `rows` rows of the ring times the inputs, tile by tile.
 * */
template <class X>
__device__ __forceinline__ void multiply_tiles(Block& b, const X& x, int rows) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = lane >> 2, part = lane & 3;
#pragma unroll 1
  for (int tile = 0; tile < rows; tile += kTileRows) {
    float sums[X::kChains][4] = {};
#pragma unroll
    for (int stage = 0; stage < X::kStages; stage++) {
      x.add(sums, reinterpret_cast<const u8*>(open_stage(b.stream)), stage);
      close_stage(b.stream);
    }
#pragma unroll
    for (int chain = 1; chain < X::kChains; chain++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[0][i] += sums[chain][i];
    wait(b.sh.empty[b.sums.place], b.sums.parity ^ 1);
    float* const to =
        b.sh.sums + (b.sums.place * WARPS + warp) * kTileSums + row * TOKENS + 2 * part;
    *reinterpret_cast<float2*>(to) = make_float2(sums[0][0], sums[0][1]);
    *reinterpret_cast<float2*>(to + 8 * TOKENS) = make_float2(sums[0][2], sums[0][3]);
    __syncwarp();
    if (lane == 0) arrive(b.sh.full[b.sums.place]);
    b.sums.advance();
  }
}

/** Factor of the sums of a row of a large matrix. `which`: its index among the matrices with
 * scales. */
__device__ __forceinline__ float large_scale(const Matrices& m, int which, int row) {
#if QUANT && QUANT != 4
  return UNSCALE;
#else
  return row_scale(m, which, row);
#endif
}

/** Run by the warp that does not multiply: sums the same tiles over the warps. `scale_of(row)` and
 * `before(row, token)` are loaded before the sums are complete, `store(row, token, sum, before)`
 * takes each sum. */
template <class Scale, class Before, class Store>
__device__ __forceinline__ void finish_tiles(Block& b, int rows, Scale scale_of, Before before,
                                             Store store) {
  const int lane = threadIdx.x & 31, own = lane >> 1, first = 4 * (lane & 1);
#pragma unroll 1
  for (int tile = 0; tile < rows; tile += kTileRows) {
    const int row = tile + own;
    const float scale = row < rows ? scale_of(row) : 1.0f;
    float old[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      old[i] = row < rows && first + i < b.num_tokens ? before(row, first + i) : 0.0f;
    wait(b.sh.full[b.sums.place], b.sums.parity);
    const float* const from =
        b.sh.sums + b.sums.place * WARPS * kTileSums + own * TOKENS + first;
    float sums[4] = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float4 part = *reinterpret_cast<const float4*>(from + w * kTileSums);
      sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
    }
    __syncwarp();
    if (lane == 0) arrive(b.sh.empty[b.sums.place]);
    b.sums.advance();
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (row < rows && first + i < b.num_tokens) store(row, first + i, sums[i] * scale, old[i]);
  }
}

/** x += W·inputs on the block's rows. `from`: f16 [tokens], `stride` apart. */
__device__ __forceinline__ void add_tiles(const FewRows& op, Block& b, const Matrices& m, int which,
                                          const f16* from, int stride) {
  const Place rows = share_of(CHANNELS);
  const int count = rows.end - rows.begin;
  if (threadIdx.x < kWorkers)
    return multiply_tiles(b, LargeInputs(from + own_token(b) * stride), count);
  float* const x = op.x + rows.begin;
  finish_tiles(
      b, count, [&](int row) { return large_scale(m, which, rows.begin + row); },
      [&](int row, int token) { return __ldcg(x + token * CHANNELS + row); },
      [&](int row, int token, float sum, float old) { x[token * CHANNELS + row] = old + sum; });
}

__device__ __forceinline__ void sync_workers() { sync_some(1, kWorkers); }
