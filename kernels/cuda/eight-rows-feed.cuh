// What eight-rows.cu requests into its ring (few-rows-ring.cuh), and in which order. This file does
// not know the phases.
#pragma once
#include "eight-rows.cuh"

/** Copies 16 rows of a stage's columns of f16. The halves of each line of an odd row change places,
 * so that lanes that read two rows at once meet no bank twice. The address goes from row to row in
 * one register: of the sum of a lane's part and a part of the warp, ptxas 13.0 makes a copy that is
 * an illegal instruction. */
__device__ __forceinline__ void copy_tile(u8* to, const f16* matrix, int rows, u64 policy) {
  constexpr int kBytes = 2 * kStageColumns;
  static_assert(kBytes % kCopyBytes == 0, "a row at a time");
  const u8* from = reinterpret_cast<const u8*>(matrix) + own_copy();
  u32 place = shared_address(to) + own_copy();
#pragma unroll 2
  for (int row = 0; row < rows; row++, place = place + kBytes ^ 64, from += 2 * CHANNELS)
#pragma unroll
    for (int at = 0; at < kBytes; at += kCopyBytes) copy_vector(place + at, from + at, policy);
}

/** Requests rows of CHANNELS columns of f16. */
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

/** Requests rows of a large matrix of `Chunks` times CHANNELS columns: one chunk of all rows, then
 * the next chunk. `which`: its index among the matrices with scales. */
template <int Chunks = 1>
__device__ __forceinline__ void feed_large(Feeder& f, const Matrices& m, int matrix, int which,
                                           Place rows) {
#if QUANT
  const u8* const codes = reinterpret_cast<const u8*>(m.of[matrix]);
  const u8* const scales = reinterpret_cast<const u8*>(m.scales[which]);
  constexpr int kStages = Chunks * ROUNDED_SPLIT;
#pragma unroll 1
  for (int chunk = 0; chunk < Chunks; chunk++)
#pragma unroll 1
    for (int row = rows.begin; row < rows.end; row += kTileRows)
#pragma unroll 1
      for (int split = 0; split < ROUNDED_SPLIT; split++) {
        const int count = min(kTileRows, rows.end - row);
        const long long at = (long long)row * kStages + chunk * ROUNDED_SPLIT + split;
        u8* const to = make_room(f);
        copy_rows<kRowBytes, kRowStride>(to, codes + at * kRowBytes, count, kStages * kRowBytes,
                                         f.policy);
        if constexpr (!kHasRowScales)
          copy_rows<kRowScaleBytes, kScaleStride>(to + kScalesAt, scales + at * kRowScaleBytes,
                                                  count, kStages * kRowScaleBytes, f.policy);
        end_stage(f);
      }
#else
  static_assert(Chunks == 1);
  feed_tiles(f, m.of[matrix], rows);
#endif
}

/** Run by the warps beyond THREADS: requests all that the block reads, in the order of the phases,
 * except a transposed ffn.value. */
__device__ __forceinline__ void feed_all(const FewRows& op, StreamShared& sh,
                                         const Matrices* layers, u8* ring, int first_head) {
  Feeder f = {sh, ring, {0, 0}, {0, 0}, 0, evict_first()};
  const Place in = share_of_in(op);
#pragma unroll 1
  for (int l = 0; l < op.num_layers; l++) {
    const Matrices& m = layers[l];
#pragma unroll 1
    for (int j = 0; j < kIn; j++) {
      if (m.of[j] == nullptr) continue;
      if (j < kFirstLow)
        feed_large(f, m, j, j, rows_of(op, in, j));
      else
        feed_tiles(f, m.of[j], rows_of(op, in, j));
    }
#pragma unroll 1
    for (int head = first_head; head < kHeads; head += BLOCKS)
#pragma unroll 1
      for (int low = 0; low < kLow; low++)
        if (m.of[kLowMatrix + low] != nullptr)
          feed_rows(f, m.of[kLowMatrix + low], rank_of(op, low), {64 * head, 64 * head + 64},
                    sh.low_step[low]);
    feed_large(f, m, kOutputMatrix, kFirstLow, share_of(CHANNELS));
    feed_large(f, m, kKeyMatrix, kFirstLow + 1, share_of(KEYS));
#if QUANT
    feed_large<KEYS / CHANNELS>(f, m, kValueMatrix, kFirstLow + 2, share_of(CHANNELS));
#endif
  }
  end_feeding(f);
}
