// The ring of few-rows.cu and eight-rows.cu: one or two warps of a block request all weights that
// the block reads, layer after layer, into stages in shared memory. The other warps multiply one
// stage after the other. No more than the memory needs is in flight at once: reads of what other
// blocks wrote go through the same queues and would wait behind the weights. There are two
// requesting warps if the others decode integers, because one would get too few turns. This file
// does not know what a stage holds; the includer defines kRoundedBytes, the bytes of a stage of
// integers, if QUANT.
//
// FEED: requesting warps · STAGE_ROWS: rows per stage (a multiple of 4) · SPLIT: stages per row of
// CHANNELS columns of f16 · RING: stages
#pragma once
#include "few-rows.cuh"
#include "mbarrier.cuh"

/** Columns of f16 in a stage. */
constexpr int kStageColumns = CHANNELS / SPLIT;
#if QUANT
constexpr int kLargest = most(2 * STAGE_ROWS * kStageColumns, kRoundedBytes);
#else
constexpr int kLargest = 2 * STAGE_ROWS * kStageColumns;
#endif

/** Bytes of a stage: whole lines. */
constexpr int kStageBytes = (kLargest + 127) / 128 * 128;
constexpr u32 kRingBytes = RING * kStageBytes;
/** Stages in flight, 32 to 64 KB: with fewer the memory waits, with more the other reads do. */
constexpr int kAhead = RING > 2 ? 2 : 1;
static_assert(kAhead < RING, "a stage that is handed over, or room to request one");

struct StreamShared {
  /** Of each stage of the ring: its weights are there; all warps have multiplied it. */
  Barrier full[RING], empty[RING];
  /** Rows of an outer low rank per stage. */
  int low_step[kLow];
};

/** A stage of the ring, and the parity of the turn around the ring. */
struct Turn {
  int slot, parity;

  __device__ __forceinline__ void advance() {
    if (++slot == RING) slot = 0, parity ^= 1;
  }
};

/** Copies 16 bytes into shared memory. Not a bulk copy: a release waits for all bulk copies of the
 * block, but only for its own warp's copies of this kind. */
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

/** Bytes that the requesting warps copy at a time, and the offset of a lane's 16 bytes. */
constexpr int kCopyBytes = 16 * 32 * FEED;

__device__ __forceinline__ int own_copy() { return 16 * (threadIdx.x - THREADS); }

/** Copies `bytes` bytes, a multiple of 16. */
__device__ __forceinline__ void copy_bytes(u8* to, const u8* from, int bytes, u64 policy) {
#pragma unroll 8
  for (int at = own_copy(); at < bytes; at += kCopyBytes) copy_vector(to + at, from + at, policy);
}

/** A requesting warp's state: the stage to request next, and the oldest stage that is not handed
 * over yet. */
struct Feeder {
  StreamShared& shared;
  u8* ring;
  Turn next, late;
  int num_asked;
  u64 policy;
};

/** Waits until no more than `Younger` stages are in flight, and hands the oldest stage over. */
template <int Younger>
__device__ __forceinline__ void hand_over(Feeder& f) {
  wait_for_groups<Younger>();
  // All lanes' copies are there.
  __syncwarp();
  if ((threadIdx.x & 31) == 0) arrive(f.shared.full[f.late.slot]);
  f.late.advance();
}

/** Waits for room. Returns the next stage. */
__device__ __forceinline__ u8* make_room(Feeder& f) {
  // A stage is handed over before the wait, because only stages that were handed over make room.
  if (f.num_asked++ >= kAhead) hand_over<kAhead - 1>(f);
  wait(f.shared.empty[f.next.slot], f.next.parity ^ 1);
  __syncwarp();
  return f.ring + f.next.slot * kStageBytes;
}

/** Ends the requests of a stage: they are a group of copies. */
__device__ __forceinline__ void end_stage(Feeder& f) {
  end_group();
  f.next.advance();
}

/** Requests rows of f16, `step` per stage. */
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

/** Copies rows of RowBytes bytes, which are ToStride apart in the stage and `stride` in memory. */
template <int RowBytes, int ToStride = RowBytes>
__device__ __forceinline__ void copy_rows(u8* to, const u8* from, int rows, int stride,
                                          u64 policy) {
  if constexpr (RowBytes % kCopyBytes == 0) {
    to += own_copy(), from += own_copy();
#pragma unroll 2
    for (int row = 0; row < rows; row++, to += ToStride, from += stride)
#pragma unroll
      for (int at = 0; at < RowBytes; at += kCopyBytes) copy_vector(to + at, from + at, policy);
  } else {
#pragma unroll 4
    for (int at = own_copy(); at < rows * RowBytes; at += kCopyBytes) {
      const int row = at / RowBytes, byte = at % RowBytes;
      copy_vector(to + (ToStride == RowBytes ? at : row * ToStride + byte),
                  from + row * stride + byte, policy);
    }
  }
}

/** Hands over the remaining stages, and waits until all are multiplied: no copy and no arrival may
 * outlive its warp. */
__device__ __forceinline__ void end_feeding(Feeder& f) {
  if (f.num_asked == 0) return;
  Turn last = f.late;
  do last = f.late, hand_over<0>(f);
  while (f.late.slot != f.next.slot);
  wait(f.shared.empty[last.slot], last.parity);
}

/** A multiplying warp's position in the ring: the next stage. */
struct Stream {
  StreamShared& shared;
  const u8* ring;
  Turn next;
  /** Whether the next stage is the other half's, if the halves of the warps take turns. */
  bool is_others;
};

__device__ __forceinline__ Stream start_stream(StreamShared& sh, const Matrices*, int, u8* ring) {
  return {sh, ring, {0, 0}, threadIdx.x >= kWorkers / 2};
}

/** Waits until the next stage is loaded. */
__device__ __forceinline__ const f16* open_stage(Stream& s) {
  wait(s.shared.full[s.next.slot], s.next.parity);
  return reinterpret_cast<const f16*>(s.ring + s.next.slot * kStageBytes);
}

__device__ __forceinline__ void close_stage(Stream& s) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) arrive(s.shared.empty[s.next.slot]);
  s.next.advance();
}

/** Whether the next stage is the warp's own, where the halves of the warps take turns. If not, the
 * warp passes it. */
__device__ __forceinline__ bool is_own_turn(Stream& s) {
  s.is_others ^= true;
  if (s.is_others) return true;
  s.next.advance();
  return false;
}
