// What a block of few-rows.cu has: its shared memory, the grid barrier, and one of two ways of
// reading weights. Both ways define:
//   StreamShared     what they keep in shared memory, beside kRingBytes of weights
//   prepare_stream() initialises it, before a barrier of the block
//   start_stream()   returns the Stream of a multiplying warp
//   multiply_rows()  multiplies the next rows of a matrix by an input: sums of each warp's columns
//   low_products()   multiplies a head's outer low ranks; low_pair() returns two channels of one
//   kStepRows        rows that are finished together; `key` has at most kKeyParts such parts
#pragma once
#include "few-rows-barrier.cuh"
#include "few-rows-words.cuh"
#if FEED
#include "few-rows-stages.cuh"
static_assert(SPLIT == 1 || kUnits % (SPLIT * kSlices) == 0, "a warp's columns lie in one stage");
#else
#include "few-rows-warps.cuh"
#endif

/** Of the matrices that may be quantised: the number of sums per row, and rows that are finished
 * together. */
#if QUANT
constexpr int kLargeSlices = kRoundedSlices, kLargeStep = ROUNDED_ROWS;
#else
constexpr int kLargeSlices = kSlices, kLargeStep = kStepRows;
#endif

/** Sums of rows, of the low ranks, and of ffn.value, which use the same memory. */
constexpr int kSums = most(TOKENS * most(kTokenSums, WARPS* value_columns()), kLowSums);

struct Shared {
  alignas(16) Layer layers[2];
  StreamShared stream;
  alignas(16) Operands operands;
  /** A head's vectors of `mixing` in the order of kOwn, and its r, k, v and first v. */
  alignas(16) float constants[8][64];
  u32 words[4][32];
  alignas(16) float gate[64];
  float outputs[64];
  float scratch[2][TOKENS][32];
  float bonus;
  /** Number of active u in each warp's share. */
  int counts[TOKENS][WARPS];
  alignas(16) float sums[kSums];
#if WORDS
  /** The shift vector of `in`, until all blocks have read the one before. */
  alignas(16) float shift[CHANNELS];
#endif
};
static_assert(sizeof(Shared) <= FIXED, "as fused-layers-plan.ts computes");

/** Everything a block has, except its Stream. */
struct Block {
  Shared& sh;
  u8* region;
  GridBarrier barrier;
  /** If WORDS, and between `output` and `value` the thread's own x. */
  Words words;
  float kept_x;
  /** The number of tokens, and the slots that their states come from. Absent tokens have the slot of
   * the last row. */
  int num_tokens, slots[TOKENS];
  HeadTasks tasks;
  /** The block's rows of `in`, the first of their matrices, and the first rows of the next
   * matrices. */
  Place in;
  int first_job;
  int bounds[MIXES];
};

/** One row per token. */
struct Rows {
  Row of[TOKENS];
};

/** x in the words at `from`. */
__device__ __forceinline__ Rows take_x(const Block& b, int from) {
  static_assert(kPer == 1 || !WORDS, "narrow models");
  uint4 words[TOKENS] = {};
  // All rows at once.
  for (bool has_all = !owns(0); !has_all;) {
    has_all = true;
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
      has_all &= b.words.has_four(words[t],
                                  from + min(t, b.num_tokens - 1) * CHANNELS + 4 * group(0));
  }
  Rows x;
#pragma unroll
  for (int t = 0; t < TOKENS; t++)
    x.of[t].part[0] = make_float4(__uint_as_float(words[t].x), __uint_as_float(words[t].y),
                                  __uint_as_float(words[t].z), __uint_as_float(words[t].w));
  return x;
}

__device__ __forceinline__ int slot_of(const Block& b, int token) {
  int slot = b.slots[0];
#pragma unroll
  for (int t = 1; t < TOKENS; t++)
    if (token == t) slot = b.slots[t];
  return slot;
}

/** Where the state from after a token goes. Of one row, the state between its two tokens may have a
 * slot of its own, which the second token takes it from. */
__device__ __forceinline__ int next_slot_of(const Block& b, int token) {
  return slot_of(b, TOKENS == 2 && b.tasks.is_one_row ? 1 - token : token);
}

/** The row that this block stores as a token's shift vector: the last block has the first token,
 * the block before it the second. */
__device__ __forceinline__ Row own_shift(const Rows& h) {
  Row own = h.of[0];
#pragma unroll
  for (int t = 1; t < TOKENS; t++)
    if (blockIdx.x == BLOCKS - 1 - t) own = h.of[t];
  return own;
}

/** Stores h as the shift vector. All blocks have read the previous one by then. */
__device__ __forceinline__ void keep_shift(const FewRows& op, const Block& b, const Layer& layer,
                                           int which, const Row& own) {
  const int token = BLOCKS - 1 - blockIdx.x;
  // Of one slot, only the last token stores.
  if (token < b.num_tokens &&
      (!b.tasks.is_one_row || token > 0 || b.slots[0] != b.slots[TOKENS - 1]))
    store_row(layer.shift[which] + next_slot_of(b, token) * op.shift_stride, own);
}

/** What other blocks compute in this phase is needed in the next one. */
__device__ __forceinline__ void end_phase(const Block& b) {
  if constexpr (!WORDS) b.barrier.arrive();
}

/** Before what a phase needs of other blocks is taken into memory that the phase before uses. */
__device__ __forceinline__ void begin_phase(Block& b) {
  if constexpr (WORDS)
    sync_threads();
  else
    b.barrier.wait();
}

__device__ __forceinline__ void sync_workers() { sync_some(1, kWorkers); }

/** Multiplies the warp's columns of `rows` rows by the inputs of each token, which are CHANNELS
 * apart. `first`: the first of the rows among those of the phase. */
__device__ __forceinline__ void multiply_small(Shared& sh, Stream& s, const f16* input, int first,
                                               int rows) {
  const int warp = threadIdx.x >> 5, slice = kInTurns ? warp % kSlices : warp;
  multiply_rows(s, input, sh.sums + kSumRows * slice + first, rows);
}

/** The same for a matrix that may be quantised. */
__device__ __forceinline__ void multiply_large(Shared& sh, Stream& s, const f16* input, int first,
                                               int rows) {
#if QUANT
  multiply_rounded<1>(s, input, sh.sums + first, rows);
#else
  multiply_small(sh, s, input, first, rows);
#endif
}

/** The sum of a token's row over its slices, in their order. */
template <int Slices = kLargeSlices>
__device__ __forceinline__ float sum_slices(const Shared& sh, int token, int row) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Slices; i++) sum += sh.sums[token * kTokenSums + i * kSumRows + row];
  return sum;
}
