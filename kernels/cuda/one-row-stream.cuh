// The stream of weights in one-row.cu: one warp of the block asks for all that the block reads,
// layer after layer, whole rows in order, into a ring of stages in shared memory; the others
// multiply stage after stage. No more is on its way at once than the memory needs to be busy: what
// other blocks wrote is read through the same queues, and would wait behind it. Knows no phase.
#pragma once
#include "one-row.cuh"

/** Stages on their way at once, 32 to 64 KB: fewer, and the memory waits; more, and others do. */
constexpr int kAhead = 2;

/** Rows of so many columns that fill a stage: a multiple of 4. */
__device__ __forceinline__ int stage_rows(int columns) {
  if (columns == CHANNELS) return STAGE_ROWS;
  return min(64, kStageBytes / (2 * columns) / 4 * 4);
}

/** Where a warp is in the ring, and in which turn around it. */
struct Stream {
  u8* ring;
  int slot, parity;

  __device__ __forceinline__ void advance() {
    if (++slot == RING) slot = 0, parity ^= 1;
  }
};

// ---- The warp that asks.

__device__ __forceinline__ u64 evict_first() {
  u64 policy = 0;
#if __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

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
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/** The stage to ask for next, and the oldest that the others do not know of yet. */
struct Feeder {
  Stream next, late;
  int num_asked;
  u64 policy;
};

/** Tells the others of the oldest stage, when no more than so many that were asked for after it are
 * missing. */
template <int Younger>
__device__ __forceinline__ void hand_over(Feeder& f, Shared& sh) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Younger) : "memory");
#endif
  // All lanes' parts are there.
  __syncwarp();
  if ((threadIdx.x & 31) == 0) arrive(sh.full[f.late.slot]);
  f.late.advance();
}

__device__ __forceinline__ void feed_rows(Feeder& f, Shared& sh, const f16* matrix, int columns,
                                          Place rows, int step) {
#pragma unroll 1
  for (int row = rows.begin; row < rows.end; row += step) {
    // Before it waits for room: what was handed over must suffice to make some.
    if (f.num_asked++ >= kAhead) hand_over<kAhead - 1>(f, sh);
    wait(sh.empty[f.next.slot], f.next.parity ^ 1);
    __syncwarp();
    copy_stage(f.next.ring + f.next.slot * kStageBytes,
               reinterpret_cast<const u8*>(matrix + (long long)row * columns),
               2 * columns * min(step, rows.end - row), f.policy);
    f.next.advance();
  }
}

/** All that the block reads of all layers, in the order of the phases. */
__device__ __forceinline__ void feed_layers(const OneRow& op, Shared& sh, const Matrices* layers,
                                            u8* ring) {
  static_assert(kAhead < RING, "a stage that is handed over, or room to ask for one");
  Feeder f = {{ring, 0, 0}, {ring, 0, 0}, 0, evict_first()};
  const Place in = share_of(op.first[kIn]);
#pragma unroll 1
  for (int l = 0; l < op.num_layers; l++) {
    const f16* const* const of = layers[l].of;
#pragma unroll 1
    for (int j = 0; j < kIn; j++)
      if (of[j] != nullptr)
        feed_rows(
            f, sh, of[j], CHANNELS,
            {max(in.begin, op.first[j]) - op.first[j], min(in.end, op.first[j + 1]) - op.first[j]},
            STAGE_ROWS);
#pragma unroll 1
    for (int head = blockIdx.x; head < kHeads; head += BLOCKS)
#pragma unroll 1
      for (int low = 0; low < kLow; low++)
        if (of[kLowMatrix + low] != nullptr)
          feed_rows(f, sh, of[kLowMatrix + low], rank_of(op, low), {64 * head, 64 * head + 64},
                    sh.low_step[low]);
    feed_rows(f, sh, of[kOutputMatrix], CHANNELS, share_of(CHANNELS), STAGE_ROWS);
    feed_rows(f, sh, of[kKeyMatrix], CHANNELS, share_of(KEYS), STAGE_ROWS);
  }
  if (f.num_asked == 0) return;
  Stream last = f.late;
  do last = f.late, hand_over<0>(f, sh);
  while (f.late.slot != f.next.slot);
  // The warp stays until all is multiplied: nothing that it asked for or told outlives it.
  wait(sh.empty[last.slot], last.parity);
}

// ---- The warps that multiply.

/** The next stage, when it is there. */
__device__ __forceinline__ const f16* open_stage(const Stream& s, Shared& sh) {
  wait(sh.full[s.slot], s.parity);
  return reinterpret_cast<const f16*>(s.ring + s.slot * kStageBytes);
}

__device__ __forceinline__ void close_stage(Stream& s, Shared& sh) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) arrive(sh.empty[s.slot]);
  s.advance();
}

/**
 * Sums of products on the tensor cores, of 4 rows by 64 columns: 8 lanes have 128 bytes of a row. A
 * lane's four words are what the unit takes for rows i and i + 8, i = 2·row + half of the columns;
 * on the other side a half's even column holds an input's first and third words, its odd one the
 * second and fourth. So each half of a row has its sum in two places of one lane.
 */
struct Products {
  float of[4];
};

__device__ __forceinline__ void add_products(Products& sums, const uint4& w, const uint2& x) {
#if __CUDA_ARCH__ >= 800
  // Volatile: not to be moved to where not all lanes are.
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums.of[0]), "+f"(sums.of[1]), "+f"(sums.of[2]), "+f"(sums.of[3])
      : "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w), "r"(x.x), "r"(x.y));
#endif
}

/** In lane 8·row: the row's sum. */
__device__ __forceinline__ float sum_four(const Products& sums) {
  const float half = sums.of[0] + sums.of[3];
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

/** Adds the products of 4 rows of a low rank, a multiple of 32, with its inputs. */
__device__ __forceinline__ void multiply_ragged(Products& sums, const f16* weights, const f16* x,
                                                int rank) {
  const int lane = threadIdx.x & 31;
  weights += own_weights(rank), x += own_inputs();
  int column = 0;
#pragma unroll 4
  for (; column + kUnitColumns <= rank; column += kUnitColumns)
    add_products(sums, *reinterpret_cast<const uint4*>(weights + column),
                 *reinterpret_cast<const uint2*>(x + column));
  if (column == rank) return;
  uint4 w = make_uint4(0, 0, 0, 0);
  uint2 inputs = make_uint2(0, 0);
  if ((lane & 4) == 0) w = *reinterpret_cast<const uint4*>(weights + column);
  if ((lane & 8) == 0) inputs = *reinterpret_cast<const uint2*>(x + column);
  __syncwarp();
  add_products(sums, w, inputs);
}

/** The warp's columns of so many rows, times their inputs: a sum a row, the warp's part of it. */
__device__ __forceinline__ void multiply_rows(Stream& s, Shared& sh, const f16* input, float* sums,
                                              int rows) {
  constexpr int kMost = (kUnits + kSlices - 1) / kSlices;
  const Place own = slice_of_warp();
  const int row = (threadIdx.x & 31) >> 3;
  const f16* const inputs = input + own_inputs() + kUnitColumns * own.begin;
#pragma unroll 1
  for (int first = 0; first < rows; first += STAGE_ROWS) {
    const f16* const weights = open_stage(s, sh) + own_weights(CHANNELS) + kUnitColumns * own.begin;
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
    close_stage(s, sh);
  }
}

__device__ __forceinline__ void sync_workers() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kWorkers) : "memory");
}

/** The sum of a row: over the warps, in their order. */
__device__ __forceinline__ float sum_slices(const Shared& sh, int row) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kSlices; i++) sum += sh.sums[i * kSumRows + row];
  return sum;
}
