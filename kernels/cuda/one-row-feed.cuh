// How one-row.cu reads the weights of wide models: one warp of the block asks for all that the
// block reads, layer after layer, whole rows in order, into a ring of stages in shared memory; the
// others multiply stage after stage. No more is on its way at once than the memory needs to be
// busy: what other blocks wrote is read through the same queues, and would wait behind it. Knows no
// phase.
//
// STAGE_ROWS: rows of CHANNELS columns in a stage of the ring (a multiple of 4) · RING: stages
#pragma once
#include "mbarrier.cuh"
#include "one-row.cuh"

constexpr int kStageBytes = 2 * STAGE_ROWS * CHANNELS;
constexpr u32 kRingBytes = RING * kStageBytes;
constexpr int kStepRows = STAGE_ROWS, kKeyParts = 8;
/** Of a head's outer low ranks. */
constexpr int kLowSums = 64 * kLow;
/** Stages on their way at once, 32 to 64 KB: fewer, and the memory waits; more, and others do. */
constexpr int kAhead = 2;

struct StreamShared {
  /** Of each stage of the ring: its weights are there, all warps are done with them. */
  Barrier full[RING], empty[RING];
  /** Rows of an outer low rank in a stage. */
  int low_step[kLow];
};

/** As many rows of a low rank as fill a stage: a multiple of 4. */
__device__ __forceinline__ int rows_in_stage(int rank) {
  return rank == 0 ? 64 : min(64, kStageBytes / (2 * rank) / 4 * 4);
}

__device__ __forceinline__ void prepare_stream(const OneRow& op, StreamShared& sh) {
  if (threadIdx.x < RING) init(sh.full[threadIdx.x], 1), init(sh.empty[threadIdx.x], WARPS);
  if (threadIdx.x < kLow) sh.low_step[threadIdx.x] = rows_in_stage(rank_of(op, threadIdx.x));
}

/** A stage of the ring, and in which turn around it. */
struct Turn {
  int slot, parity;

  __device__ __forceinline__ void advance() {
    if (++slot == RING) slot = 0, parity ^= 1;
  }
};

/**
 * Copies a multiple of 16 bytes into shared memory, as one group of every lane's copies. Not by
 * bulk copies: a release waits for all of those that the block has on their way, of these only for
 * those of the warp which makes it.
 */
__device__ __forceinline__ void copy_stage(u8* to, const u8* from, int bytes, u64 policy) {
#if __CUDA_ARCH__ >= 800
#pragma unroll 8
  for (int at = 16 * (threadIdx.x & 31); at < bytes; at += 16 * 32)
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     shared_address(to + at)),
                 "l"(from + at), "l"(policy)
                 : "memory");
#endif
  end_group();
}

/** Of the warp that asks: the stage to ask for next, and the oldest that the others do not know of
 * yet. */
struct Feeder {
  StreamShared& shared;
  u8* ring;
  Turn next, late;
  int num_asked;
  u64 policy;
};

/** Tells the others of the oldest stage, when no more than so many that were asked for after it are
 * missing. */
template <int Younger>
__device__ __forceinline__ void hand_over(Feeder& f) {
  wait_for_groups<Younger>();
  // All lanes' parts are there.
  __syncwarp();
  if ((threadIdx.x & 31) == 0) arrive(f.shared.full[f.late.slot]);
  f.late.advance();
}

__device__ __forceinline__ void feed_rows(Feeder& f, const f16* matrix, int columns, Place rows,
                                          int step) {
#pragma unroll 1
  for (int row = rows.begin; row < rows.end; row += step) {
    // Before it waits for room: what was handed over must suffice to make some.
    if (f.num_asked++ >= kAhead) hand_over<kAhead - 1>(f);
    wait(f.shared.empty[f.next.slot], f.next.parity ^ 1);
    __syncwarp();
    copy_stage(f.ring + f.next.slot * kStageBytes,
               reinterpret_cast<const u8*>(matrix + (long long)row * columns),
               2 * columns * min(step, rows.end - row), f.policy);
    f.next.advance();
  }
}

/** By the warp behind THREADS: all that the block reads, in the order of the phases. */
__device__ __forceinline__ void feed_layers(const OneRow& op, StreamShared& sh,
                                            const Matrices* layers, u8* ring) {
  static_assert(kAhead < RING, "a stage that is handed over, or room to ask for one");
  Feeder f = {sh, ring, {0, 0}, {0, 0}, 0, evict_first()};
  const Place in = share_of(op.first[kIn]);
#pragma unroll 1
  for (int l = 0; l < op.num_layers; l++) {
    const f16* const* const of = layers[l].of;
#pragma unroll 1
    for (int j = 0; j < kIn; j++)
      if (of[j] != nullptr)
        feed_rows(
            f, of[j], CHANNELS,
            {max(in.begin, op.first[j]) - op.first[j], min(in.end, op.first[j + 1]) - op.first[j]},
            STAGE_ROWS);
#pragma unroll 1
    for (int head = blockIdx.x; head < kHeads; head += BLOCKS)
#pragma unroll 1
      for (int low = 0; low < kLow; low++)
        if (of[kLowMatrix + low] != nullptr)
          feed_rows(f, of[kLowMatrix + low], rank_of(op, low), {64 * head, 64 * head + 64},
                    sh.low_step[low]);
    feed_rows(f, of[kOutputMatrix], CHANNELS, share_of(CHANNELS), STAGE_ROWS);
    feed_rows(f, of[kKeyMatrix], CHANNELS, share_of(KEYS), STAGE_ROWS);
  }
  if (f.num_asked == 0) return;
  Turn last = f.late;
  do last = f.late, hand_over<0>(f);
  while (f.late.slot != f.next.slot);
  // The warp stays until all is multiplied: nothing that it asked for or told outlives it.
  wait(sh.empty[last.slot], last.parity);
}

/** Of a warp that multiplies: the stage that is next. */
struct Stream {
  StreamShared& shared;
  const u8* ring;
  Turn next;
};

__device__ __forceinline__ Stream start_stream(StreamShared& sh, const Matrices*, int, u8* ring) {
  return {sh, ring, {0, 0}};
}

/** The next stage, when it is there. */
__device__ __forceinline__ const f16* open_stage(Stream& s) {
  wait(s.shared.full[s.next.slot], s.next.parity);
  return reinterpret_cast<const f16*>(s.ring + s.next.slot * kStageBytes);
}

__device__ __forceinline__ void close_stage(Stream& s) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) arrive(s.shared.empty[s.next.slot]);
  s.next.advance();
}

/** Of 4 rows by 64 columns, where 8 lanes have 128 bytes of a row: in lane 8·row, the row's sum.
 * The unit's row i is the half i & 1 of the columns of row i / 2. */
__device__ __forceinline__ float sum_four(const Products& products) {
  const float half = products.sum();
  return half + __shfl_xor_sync(~0u, half, 5);
}

/** Where a lane's weights are among the 64 columns of 4 rows, and its inputs among those of 64. */
__device__ __forceinline__ int own_weights(int columns) {
  const int lane = threadIdx.x & 31;
  return (lane >> 3) * columns + kVector * (lane & 7);
}

__device__ __forceinline__ int own_inputs() {
  const int lane = threadIdx.x & 31;
  return 32 * (lane >> 3 & 1) + kVector * (lane & 3) + 4 * (lane >> 2 & 1);
}

/** The warp's columns of so many rows, times their inputs: a sum a row, the warp's part of it. */
__device__ __forceinline__ void multiply_rows(Stream& s, const f16* input, float* sums, int rows) {
  constexpr int kMost = (kUnits + kSlices - 1) / kSlices;
  const Place own = slice_of_warp();
  const int row = (threadIdx.x & 31) >> 3;
  const f16* const inputs = input + own_inputs() + kUnitColumns * own.begin;
#pragma unroll 1
  for (int first = 0; first < rows; first += STAGE_ROWS) {
    const f16* const weights = open_stage(s) + own_weights(CHANNELS) + kUnitColumns * own.begin;
    const int end = own.begin < own.end ? min(STAGE_ROWS, rows - first) : 0;
#pragma unroll 1
    for (int four = 0; four < end; four += 4) {
      Products products = {};
#pragma unroll
      for (int unit = 0; unit < kMost; unit++)
        if (kUnits % kSlices == 0 || unit < own.end - own.begin)
          add_products(
              products,
              *reinterpret_cast<const uint4*>(weights + four * CHANNELS + kUnitColumns * unit),
              *reinterpret_cast<const uint2*>(inputs + kUnitColumns * unit));
      const float sum = sum_four(products);
      if ((threadIdx.x & 7) == 0 && four + row < end) sums[first + four + row] = sum;
    }
    close_stage(s);
  }
}

/** Adds the products of 4 rows of a low rank, a multiple of 32, with its inputs. */
__device__ __forceinline__ void multiply_ragged(Products& products, const f16* weights,
                                                const f16* x, int rank) {
  const int lane = threadIdx.x & 31;
  weights += own_weights(rank), x += own_inputs();
  int column = 0;
#pragma unroll 4
  for (; column + kUnitColumns <= rank; column += kUnitColumns)
    add_products(products, *reinterpret_cast<const uint4*>(weights + column),
                 *reinterpret_cast<const uint2*>(x + column));
  if (column == rank) return;
  uint4 w = make_uint4(0, 0, 0, 0);
  uint2 inputs = make_uint2(0, 0);
  if ((lane & 4) == 0) w = *reinterpret_cast<const uint4*>(weights + column);
  if ((lane & 8) == 0) inputs = *reinterpret_cast<const uint2*>(x + column);
  __syncwarp();
  add_products(products, w, inputs);
}

/** A head's outer low ranks, [low rank][channel]: 4 channels a warp. All are multiplied before the
 * first is summed. */
__device__ __forceinline__ void low_products(const OneRow& op, Stream& s, const f16* x, float* sums,
                                             bool has_gate) {
  static_assert(4 * WARPS == 64, "4 channels of a head a warp");
  const int lane = threadIdx.x & 31, first = 4 * (int)(threadIdx.x >> 5);
  Products products[kLow] = {};
#pragma unroll
  for (int low = 0; low < kLow; low++) {
    if (low == kLow - 1 && !has_gate) break;
    const int rank = rank_of(op, low), step = s.shared.low_step[low];
#pragma unroll 1
    for (int begin = 0; begin < 64; begin += step) {
      const f16* const stage = open_stage(s);
      const int own = first - begin;
      if (own >= 0 && own < step) multiply_ragged(products[low], stage + own * rank, x, rank);
      close_stage(s);
    }
    x += rank;
  }
#pragma unroll
  for (int low = 0; low < kLow; low++) {
    const float sum = sum_four(products[low]);
    if ((lane & 7) == 0) sums[64 * low + first + (lane >> 3)] = sum;
  }
}

/** Two channels of an outer low rank. */
__device__ __forceinline__ float2 low_pair(const OneRow&, const float* sums, int low) {
  return load_pair(sums, 64 * low + 2 * (threadIdx.x & 31));
}
