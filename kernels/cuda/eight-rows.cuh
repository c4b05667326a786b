// What everything in eight-rows.cu is about: a block's shared memory, tokens as the columns of the
// tensor cores, and sums that one warp finishes while the others multiply. Knows no phase.
#pragma once
#include "few-rows-barrier.cuh"
#include "few-rows-stages.cuh"

/** Rows of weights that are multiplied at once, in stages of so many of their columns: one or two
 * times 32 for each warp. */
constexpr int kTileRows = 16, kTileColumns = 32;
constexpr int kParts = kStageColumns / (WARPS * kTileColumns);
static_assert(STAGE_ROWS == kTileRows && TOKENS == 8);
static_assert((kParts == 1 || kParts == 2) && kParts * WARPS * kTileColumns == kStageColumns);

/** Of a tile, sums of a warp: [row][token]. */
constexpr int kTileSums = kTileRows * TOKENS;
/** Of the outer low ranks of a head, [low rank][half of its columns][token][channel]. */
constexpr int kLowHalves = 2, kLowSum = TOKENS * 64;
constexpr int kColumns = value_columns();
constexpr int kSums =
    most(most(2 * WARPS * kTileSums, kLow* kLowHalves* kLowSum), WARPS* kColumns* TOKENS);

struct Token {
  int slot;
  bool is_first, is_last;
};

struct Shared {
  alignas(16) Layer layers[2];
  StreamShared stream;
  /** Of each of two places for a tile's sums: they are there, and no longer needed. */
  Barrier full[2], empty[2];
  Token tokens[TOKENS];
  float scratch[2][2][32];
  alignas(16) float sums[kSums];
};
static_assert(sizeof(Shared) <= FIXED, "as fused-layers-plan.ts reckons");

static_assert(TOKENS * sizeof(Operands) <= REGION, "as fused-layers-plan.ts reckons");

/** A place for a tile's sums, and in which turn. */
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

__device__ __forceinline__ uint4 load_vector(const void* from) {
  return *reinterpret_cast<const uint4*>(from);
}

/** Adds the products of 16 rows by 32 columns. A lane has 16 bytes of rows lane / 4 and 8 more, and
 * as many of token lane / 4: which of the tensor cores' columns a word is does not matter, if it is
 * the same on both sides. */
__device__ __forceinline__ void add_tile(float (&sums)[4], const uint4& low, const uint4& high,
                                         const uint4& x) {
  mma(sums, low.x, high.x, low.y, high.y, x.x, x.y);
  mma(sums, low.z, high.z, low.w, high.w, x.z, x.w);
}

/** Of all tokens what a warp multiplies of CHANNELS inputs. */
struct Inputs {
  uint4 of[SPLIT][kParts];
};

/** The token of a lane's inputs; of those that there are not the last once more, for nobody. Not a
 * condition: the compiler would make two loops of one, and products need all lanes of a warp. */
__device__ __forceinline__ int own_token(const Block& b) {
  return min((int)(threadIdx.x & 31) >> 2, b.num_tokens - 1);
}

/** Inputs that other blocks wrote, f16 [tokens, CHANNELS]. */
__device__ __forceinline__ Inputs load_inputs(const Block& b, const f16* from) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  from += own_token(b) * CHANNELS + kParts * kTileColumns * warp + kVector * (lane & 3);
  Inputs x;
#pragma unroll
  for (int split = 0; split < SPLIT; split++)
#pragma unroll
    for (int i = 0; i < kParts; i++)
      x.of[split][i] = __ldcg(
          reinterpret_cast<const uint4*>(from + split * kStageColumns + kTileColumns * i));
  return x;
}

/** By the warps that multiply: the next rows of the stream times the inputs, tile by tile. */
__device__ __forceinline__ void multiply_tiles(Block& b, const Inputs& x, int rows) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = lane >> 2, part = lane & 3;
  constexpr int kRowBytes = 2 * kStageColumns;
  // As copy_tile() lays them.
  const int at =
      row * kRowBytes + (2 * kParts * kTileColumns * warp + 16 * part ^ 64 * (row & 1));
#pragma unroll 1
  for (int tile = 0; tile < rows; tile += kTileRows) {
    float sums[kParts][4] = {};
#pragma unroll
    for (int split = 0; split < SPLIT; split++) {
      const u8* const stage = reinterpret_cast<const u8*>(open_stage(b.stream));
      uint4 low[kParts], high[kParts];
#pragma unroll
      for (int i = 0; i < kParts; i++) {
        const u8* const own = stage + (at ^ 64 * i);
        low[i] = load_vector(own), high[i] = load_vector(own + 8 * kRowBytes);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kParts; i++) add_tile(sums[i], low[i], high[i], x.of[split][i]);
      close_stage(b.stream);
    }
    if constexpr (kParts == 2)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[0][i] += sums[1][i];
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

/** By the warp that multiplies nothing: the same tiles' sums over the warps. `before(row, token)` is
 * asked for ahead of them, `store(row, token, sum, before)` takes each. */
template <class Before, class Store>
__device__ __forceinline__ void finish_tiles(Block& b, int rows, Before before, Store store) {
  const int lane = threadIdx.x & 31, own = lane >> 1, first = 4 * (lane & 1);
#pragma unroll 1
  for (int tile = 0; tile < rows; tile += kTileRows) {
    const int row = tile + own;
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
      if (row < rows && first + i < b.num_tokens) store(row, first + i, sums[i], old[i]);
  }
}

__device__ __forceinline__ void sync_workers() { sync_some(1, kWorkers); }

/** 16 rows of one of a stage's columns. Of a line of an odd row the halves change places, so that
 * lanes that read two rows at once meet no bank twice. The place goes from row to row in one register:
 * of one that was a lane's part and the warp's, ptxas 13.0 made copies that are no instruction. */
__device__ __forceinline__ void copy_tile(u8* to, const f16* matrix, int rows, u64 policy) {
  constexpr int kRowBytes = 2 * kStageColumns;
  static_assert(kRowBytes % kCopyBytes == 0, "a row at a time");
  const u8* from = reinterpret_cast<const u8*>(matrix) + own_copy();
  u32 place = shared_address(to) + own_copy();
#pragma unroll 2
  for (int row = 0; row < rows; row++, place = place + kRowBytes ^ 64, from += 2 * CHANNELS)
#pragma unroll
    for (int at = 0; at < kRowBytes; at += kCopyBytes)
      copy_vector(place + at, from + at, policy);
}

__device__ __forceinline__ void feed_tiles(Feeder& f, const f16* matrix, Place rows) {
#pragma unroll 1
  for (int row = rows.begin; row < rows.end; row += kTileRows)
#pragma unroll 1
    for (int split = 0; split < SPLIT; split++) {
      u8* const to = make_room(f);
      copy_tile(to, matrix + (long long)row * CHANNELS + split * kStageColumns,
                min(kTileRows, rows.end - row), f.policy);
      end_stage(f);
    }
}

/** The block's rows of a matrix of `in`. */
__device__ __forceinline__ Place rows_of(const FewRows& op, Place in, int j) {
  const int first = op.first[j];
  return {max(in.begin, first) - first, min(in.end, op.first[j + 1]) - first};
}

/** By the warp behind THREADS: all that the block reads in order, but value. */
__device__ __forceinline__ void feed_all(const FewRows& op, StreamShared& sh,
                                         const Matrices* layers, u8* ring) {
  Feeder f = {sh, ring, {0, 0}, {0, 0}, 0, evict_first()};
  const Place in = share_of_in(op);
#pragma unroll 1
  for (int l = 0; l < op.num_layers; l++) {
    const Matrices& m = layers[l];
#pragma unroll 1
    for (int j = 0; j < kIn; j++)
      if (m.of[j] != nullptr) feed_tiles(f, m.of[j], rows_of(op, in, j));
#pragma unroll 1
    for (int head = blockIdx.x; head < kHeads; head += BLOCKS)
#pragma unroll 1
      for (int low = 0; low < kLow; low++)
        if (m.of[kLowMatrix + low] != nullptr)
          feed_rows(f, m.of[kLowMatrix + low], rank_of(op, low), {64 * head, 64 * head + 64},
                    sh.low_step[low]);
    feed_tiles(f, m.of[kOutputMatrix], share_of(CHANNELS));
    feed_tiles(f, m.of[kKeyMatrix], share_of(KEYS));
  }
  end_feeding(f);
}
