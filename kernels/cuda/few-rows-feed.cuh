// What few-rows.cu requests into its ring (few-rows-ring.cuh), and in which order: whole rows of
// all matrices. Used for wide models, and for all quantised ones. This file does not know the
// phases.
#pragma once
#if QUANT
#include "few-rows-rounded.cuh"
#endif
#include "few-rows-ring.cuh"

constexpr int kStepRows = STAGE_ROWS, kKeyParts = 8;
/** Sums of a head's outer low ranks. */
constexpr int kLowSums = 64 * kLow;

#if QUANT
/** If a stage has room for them, it holds the scales of the block's columns of a transposed
 * ffn.value, [group][columns]. */
constexpr int kTurnedScaleRows = KEYS / kGroup * kGroupScales;
constexpr bool kStagesScales = ACTIVE && !kHasRowScales && CHANNELS % value_columns() == 0 &&
                               2 * kTurnedScaleRows * value_columns() <= kStageBytes;
#endif

/** Rows of a low rank that fit in a stage: a multiple of 4. */
__device__ __forceinline__ int rows_in_stage(int rank) {
  return rank == 0 ? 64 : min(64, kStageBytes / (2 * rank) / 4 * 4);
}

__device__ __forceinline__ void prepare_stream(const FewRows& op, StreamShared& sh, HeadTasks) {
  constexpr int kReaders = kInTurns ? WARPS / 2 : WARPS;
  if (threadIdx.x < RING) init(sh.full[threadIdx.x], FEED), init(sh.empty[threadIdx.x], kReaders);
  if (threadIdx.x < kLow) sh.low_step[threadIdx.x] = rows_in_stage(rank_of(op, threadIdx.x));
}

/** Requests rows of CHANNELS columns of f16. */
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
/** Copies a chunk of each row. Whole rows have nothing between them. */
template <int RowBytes, int Chunks>
__device__ __forceinline__ void copy_chunk(u8* to, const u8* from, int rows, u64 policy) {
  if constexpr (Chunks == 1)
    copy_bytes(to, from, rows * RowBytes, policy);
  else
    copy_rows<RowBytes>(to, from, rows, Chunks * RowBytes, policy);
}

/** Requests quantised rows of `Chunks` times CHANNELS columns: one chunk of all rows, then the next
 * chunk. */
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
/** Requests the scales of a transposed ffn.value, as often as the block has columns. */
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

/** Requests rows of a large matrix of CHANNELS columns. `scales`: its index among the matrices with
 * scales. */
__device__ __forceinline__ void feed_large(Feeder& f, const Matrices& m, int matrix, int scales,
                                           Place rows) {
#if QUANT
  feed_rounded<1>(f, m.of[matrix], m.scales[scales], rows);
#else
  feed_wide_rows(f, m.of[matrix], rows);
#endif
}

/** Run by the warps beyond THREADS: requests all that the block reads, in the order of the phases.
 * */
__device__ __forceinline__ void feed_layers(const FewRows& op, StreamShared& sh,
                                            const Matrices* layers, u8* ring, HeadTasks tasks) {
  Feeder f = {sh, ring, {0, 0}, {0, 0}, 0, evict_first()};
  const Place in = share_of_in(op);
#pragma unroll 1
  for (int l = 0; l < op.num_layers; l++) {
    const Matrices& m = layers[l];
#pragma unroll 1
    for (int j = 0; j < kIn; j++) {
      if (m.of[j] == nullptr) continue;
      const Place rows = rows_of(op, in, j);
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
