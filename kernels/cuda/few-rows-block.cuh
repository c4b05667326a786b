// What a block of few-rows.cu has: its shared memory, its place in the barrier over the grid, and
// one of two ways of reading weights. Both give the phases
//   StreamShared     what they keep in shared memory, beside kRingBytes of weights
//   prepare_stream() writes it, before a barrier of the block; start_stream() → Stream
//   multiply_rows()  the next rows of a matrix, times an input: each warp's sums of its columns
//   low_products()   the outer low ranks of a head; low_pair() two channels of one
//   kStepRows        rows that are finished together; kKeyParts: times that `key` says so at most
#pragma once
#include "few-rows-barrier.cuh"
#if FEED
#include "few-rows-stages.cuh"
static_assert(SPLIT == 1 || kUnits % (SPLIT * kSlices) == 0, "a warp's columns are in one of them");
#else
#include "few-rows-warps.cuh"
#endif

/** Of the matrices that may be of integers: parts of a row's sum, and rows that are finished
 * together. */
#if QUANT
constexpr int kLargeSlices = kRoundedSlices, kLargeStep = ROUNDED_ROWS;
#else
constexpr int kLargeSlices = kSlices, kLargeStep = kStepRows;
#endif

/** Those of rows, of the low ranks, and of value. */
constexpr int kSums = most(TOKENS * most(kTokenSums, WARPS* value_columns()), kLowSums);

struct Shared {
  alignas(16) Layer layers[2];
  StreamShared stream;
  Operands operands;
  /** Of a head: its vectors of `mixing` in the order of kOwn, and its r, k, v and first v. */
  alignas(16) float constants[8][64];
  u32 words[4][32];
  alignas(16) float gate[64];
  float outputs[64];
  float scratch[2][TOKENS][32];
  float bonus;
  /** Active u of a warp's share of them. */
  int counts[TOKENS][WARPS];
  alignas(16) float sums[kSums];
};
static_assert(sizeof(Shared) <= FIXED, "as few-rows-plan.ts reckons");

/** Everything a block has beside its place in the stream. */
struct Block {
  Shared& sh;
  u8* region;
  GridBarrier barrier;
  /** Tokens that there are, and their slots; beyond them the last one's. */
  int num_tokens, slots[TOKENS];
  HeadTasks tasks;
  /** The block's rows of `in`, the first matrix that they are of, and where the next ones begin. */
  Place in;
  int first_job;
  int bounds[MIXES];
};

/** Of each token what the layer has for it. */
struct Rows {
  Row of[TOKENS];
};

__device__ __forceinline__ int slot_of(const Block& b, int token) {
  int slot = b.slots[0];
#pragma unroll
  for (int t = 1; t < TOKENS; t++)
    if (token == t) slot = b.slots[t];
  return slot;
}

/** Of the rows that which becomes the shift vector of a token: a block each, from the last on. */
__device__ __forceinline__ Row own_shift(const Rows& h) {
  Row own = h.of[0];
#pragma unroll
  for (int t = 1; t < TOKENS; t++)
    if (blockIdx.x == BLOCKS - 1 - t) own = h.of[t];
  return own;
}

/** The shift vectors become h, after all blocks have read them. */
__device__ __forceinline__ void keep_shift(const FewRows& op, const Block& b, const Layer& layer,
                                           int which, const Row& own) {
  const int token = BLOCKS - 1 - blockIdx.x;
  // Of one row the last token's stays.
  if (token < b.num_tokens && (!b.tasks.is_one_row || token == b.num_tokens - 1))
    store_row(layer.shift[which] + slot_of(b, token) * op.shift_stride, own);
}

__device__ __forceinline__ void sync_workers() { sync_some(1, kWorkers); }

/** The warp's columns of so many rows, from `first` on of the phase's, times the inputs of each
 * token, CHANNELS apart. */
__device__ __forceinline__ void multiply_small(Shared& sh, Stream& s, const f16* input, int first,
                                               int rows) {
  multiply_rows(s, input, sh.sums + kSumRows * (threadIdx.x >> 5) + first, rows);
}

/** The same with a matrix that may be of integers. */
__device__ __forceinline__ void multiply_large(Shared& sh, Stream& s, const f16* input, int first,
                                               int rows) {
#if QUANT
  multiply_rounded<1>(s, input, sh.sums + first, rows);
#else
  multiply_small(sh, s, input, first, rows);
#endif
}

/** The sum of a token's row: over its slices, in their order. */
template <int Slices = kLargeSlices>
__device__ __forceinline__ float sum_slices(const Shared& sh, int token, int row) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Slices; i++) sum += sh.sums[token * kTokenSums + i * kSumRows + row];
  return sum;
}
