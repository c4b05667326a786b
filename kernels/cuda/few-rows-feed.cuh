// How few-rows.cu reads the weights of wide models, and all of integers: one warp of the block, or
// two, ask for all that the block reads, layer after layer, whole rows in order, into a ring of
// stages in shared memory, of which the others multiply one after the other (few-rows-stages.cuh).
// No more is on its way at once than the memory needs to be busy: what other blocks wrote is read
// through the same queues, and would wait behind it. Two warps where the others have integers to
// decode, and leave one too few turns. Knows no phase.
//
// FEED: warps that ask · STAGE_ROWS: rows in a stage of the ring (a multiple of 4) · SPLIT: stages
// that rows of CHANNELS columns of f16 take, each so many of their columns · RING: stages
#pragma once
#include "few-rows.cuh"
#include "mbarrier.cuh"
#if QUANT
#include "few-rows-rounded.cuh"
constexpr int kLargest = most(2 * STAGE_ROWS * CHANNELS / SPLIT, kRoundedBytes);
#else
constexpr int kLargest = 2 * STAGE_ROWS * CHANNELS / SPLIT;
#endif
/** Columns of a row in a stage. */
constexpr int kStageColumns = CHANNELS / SPLIT;

/** Of a stage, in whole lines. */
constexpr int kStageBytes = (kLargest + 127) / 128 * 128;
constexpr u32 kRingBytes = RING * kStageBytes;
constexpr int kStepRows = STAGE_ROWS, kKeyParts = 8;
/** Of a head's outer low ranks. */
constexpr int kLowSums = 64 * kLow;
/** Stages on their way at once, 32 to 64 KB: fewer, and the memory waits; more, and others do. */
constexpr int kAhead = RING > 2 ? 2 : 1;

#if QUANT
/** The scales of the block's columns of a value turned round, [group][columns]: a stage, where that has
 * room for them. */
constexpr int kTurnedScaleRows = KEYS / kGroup * kGroupScales;
constexpr bool kStagesScales = ACTIVE && !kHasRowScales && CHANNELS % value_columns() == 0 &&
                               2 * kTurnedScaleRows * value_columns() <= kStageBytes;
#endif

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

__device__ __forceinline__ void prepare_stream(const FewRows& op, StreamShared& sh, HeadTasks) {
  if (threadIdx.x < RING) init(sh.full[threadIdx.x], FEED), init(sh.empty[threadIdx.x], WARPS);
  if (threadIdx.x < kLow) sh.low_step[threadIdx.x] = rows_in_stage(rank_of(op, threadIdx.x));
}

/** A stage of the ring, and in which turn around it. */
struct Turn {
  int slot, parity;

  __device__ __forceinline__ void advance() {
    if (++slot == RING) slot = 0, parity ^= 1;
  }
};

/** 16 bytes into shared memory. Not by bulk copies: a release waits for all of those that the block
 * has on their way, of these only for those of the warp which makes it. */
__device__ __forceinline__ void copy_vector(u32 to, const u8* from, u64 policy) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "l"(policy)
               : "memory");
#endif
}

__device__ __forceinline__ void copy_vector(u8* to, const u8* from, u64 policy) {
  copy_vector(shared_address(to), from, policy);
}

/** What the warps that ask copy at a time, and where in that a lane has its 16 bytes. */
constexpr int kCopyBytes = 16 * 32 * FEED;

__device__ __forceinline__ int own_copy() { return 16 * (threadIdx.x - THREADS); }

/** A multiple of 16 bytes. */
__device__ __forceinline__ void copy_bytes(u8* to, const u8* from, int bytes, u64 policy) {
#pragma unroll 8
  for (int at = own_copy(); at < bytes; at += kCopyBytes) copy_vector(to + at, from + at, policy);
}

/** Of a warp that asks: the stage to ask for next, and the oldest that the others do not know of
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

/** The next stage, when there is room. */
__device__ __forceinline__ u8* make_room(Feeder& f) {
  // Before it waits for room: what was handed over must suffice to make some.
  if (f.num_asked++ >= kAhead) hand_over<kAhead - 1>(f);
  wait(f.shared.empty[f.next.slot], f.next.parity ^ 1);
  __syncwarp();
  return f.ring + f.next.slot * kStageBytes;
}

/** A stage is asked for: a group of copies. */
__device__ __forceinline__ void end_stage(Feeder& f) {
  end_group();
  f.next.advance();
}

__device__ __forceinline__ void feed_rows(Feeder& f, const f16* matrix, int columns, Place rows,
                                          int step) {
#pragma unroll 1
  for (int row = rows.begin; row < rows.end; row += step) {
    u8* const to = make_room(f);
    copy_bytes(to, reinterpret_cast<const u8*>(matrix + (long long)row * columns),
               2 * columns * min(step, rows.end - row), f.policy);
    end_stage(f);
  }
}

/** Rows of so many bytes each, one behind the other in the stage, `stride` bytes apart in memory.
 */
template <int RowBytes>
__device__ __forceinline__ void copy_rows(u8* to, const u8* from, int rows, int stride,
                                          u64 policy) {
  if constexpr (RowBytes % kCopyBytes == 0) {
    to += own_copy(), from += own_copy();
#pragma unroll 2
    for (int row = 0; row < rows; row++, to += RowBytes, from += stride)
#pragma unroll
      for (int at = 0; at < RowBytes; at += kCopyBytes) copy_vector(to + at, from + at, policy);
  } else {
#pragma unroll 4
    for (int at = own_copy(); at < rows * RowBytes; at += kCopyBytes)
      copy_vector(to + at, from + at / RowBytes * stride + at % RowBytes, policy);
  }
}

/** Rows of CHANNELS columns. */
__device__ __forceinline__ void feed_wide_rows(Feeder& f, const f16* matrix, Place rows) {
  if constexpr (SPLIT == 1) {
    feed_rows(f, matrix, CHANNELS, rows, STAGE_ROWS);
  } else {
#pragma unroll 1
    for (int row = rows.begin; row < rows.end; row += STAGE_ROWS)
#pragma unroll 1
      for (int split = 0; split < SPLIT; split++) {
        const f16* const from = matrix + (long long)row * CHANNELS + split * kStageColumns;
        u8* const to = make_room(f);
        copy_rows<2 * kStageColumns>(to, reinterpret_cast<const u8*>(from),
                                     min(STAGE_ROWS, rows.end - row), 2 * CHANNELS, f.policy);
        end_stage(f);
      }
  }
}

#if QUANT
/** The same, where nothing may lie between them. */
template <int RowBytes, int Chunks>
__device__ __forceinline__ void copy_chunk(u8* to, const u8* from, int rows, u64 policy) {
  if constexpr (Chunks == 1)
    copy_bytes(to, from, rows * RowBytes, policy);
  else
    copy_rows<RowBytes>(to, from, rows, Chunks * RowBytes, policy);
}

/** Rows of integers, of `Chunks` times CHANNELS columns: one chunk of all of them, then the next.
 */
template <int Chunks>
__device__ __forceinline__ void feed_rounded(Feeder& f, const f16* values, const f16* scales,
                                             Place rows) {
#pragma unroll 1
  for (int chunk = 0; chunk < Chunks; chunk++)
#pragma unroll 1
    for (int row = rows.begin; row < rows.end; row += ROUNDED_ROWS) {
      const int count = min(ROUNDED_ROWS, rows.end - row);
      const long long at = (long long)row * Chunks + chunk;
      u8* const to = make_room(f);
      copy_chunk<kRowBytes, Chunks>(to, reinterpret_cast<const u8*>(values) + at * kRowBytes, count,
                                    f.policy);
      if constexpr (!kHasRowScales)
        copy_chunk<kRowScaleBytes, Chunks>(
            to + kScalesAt, reinterpret_cast<const u8*>(scales) + at * kRowScaleBytes, count,
            f.policy);
      end_stage(f);
    }
}
#endif

#if QUANT
/** Those of a value turned round, as often as the block has columns. */
__device__ __forceinline__ void feed_turned_scales(Feeder& f, const f16* scales) {
  constexpr int kColumns = value_columns();
#pragma unroll 1
  for (int begin = blockIdx.x * kColumns; begin < CHANNELS; begin += BLOCKS * kColumns) {
    u8* const to = make_room(f);
    copy_rows<2 * kColumns>(to, reinterpret_cast<const u8*>(scales + begin), kTurnedScaleRows,
                            2 * CHANNELS, f.policy);
    end_stage(f);
  }
}
#endif

/** Rows of a matrix of CHANNELS columns, `scales` being its place among those. */
__device__ __forceinline__ void feed_large(Feeder& f, const Matrices& m, int matrix, int scales,
                                           Place rows) {
#if QUANT
  feed_rounded<1>(f, m.of[matrix], m.scales[scales], rows);
#else
  feed_wide_rows(f, m.of[matrix], rows);
#endif
}

/** Hands over what is left. The warp stays until all is multiplied: nothing that it asked for or told
 * outlives it. */
__device__ __forceinline__ void end_feeding(Feeder& f) {
  if (f.num_asked == 0) return;
  Turn last = f.late;
  do last = f.late, hand_over<0>(f);
  while (f.late.slot != f.next.slot);
  wait(f.shared.empty[last.slot], last.parity);
}

/** By the warps behind THREADS: all that the block reads, in the order of the phases. */
__device__ __forceinline__ void feed_layers(const FewRows& op, StreamShared& sh,
                                            const Matrices* layers, u8* ring, HeadTasks tasks) {
  static_assert(kAhead < RING, "a stage that is handed over, or room to ask for one");
  Feeder f = {sh, ring, {0, 0}, {0, 0}, 0, evict_first()};
  const Place in = share_of_in(op);
#pragma unroll 1
  for (int l = 0; l < op.num_layers; l++) {
    const Matrices& m = layers[l];
#pragma unroll 1
    for (int j = 0; j < kIn; j++) {
      if (m.of[j] == nullptr) continue;
      const int first = op.first[j];
      const Place rows = {max(in.begin, first) - first, min(in.end, op.first[j + 1]) - first};
      if (j < kFirstLow)
        feed_large(f, m, j, j, rows);
      else
        feed_wide_rows(f, m.of[j], rows);
    }
#pragma unroll 1
    for (int i = 0; tasks.has(tasks.at(i)); i++) {
      const int first = 64 * tasks.at(i).head;
#pragma unroll 1
      for (int low = 0; low < kLow; low++)
        if (m.of[kLowMatrix + low] != nullptr)
          feed_rows(f, m.of[kLowMatrix + low], rank_of(op, low), {first, first + 64},
                    sh.low_step[low]);
    }
    feed_large(f, m, kOutputMatrix, kFirstLow, share_of(CHANNELS));
    feed_large(f, m, kKeyMatrix, kFirstLow + 1, share_of(KEYS));
#if !ACTIVE
    feed_rounded<kValueChunks>(f, m.of[kValueMatrix], m.scales[kFirstLow + 2], share_of(CHANNELS));
#elif QUANT
    if constexpr (kStagesScales) feed_turned_scales(f, m.scales[kFirstLow + 2]);
#endif
  }
  end_feeding(f);
}
