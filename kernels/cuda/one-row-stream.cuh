// A warp's stream of weights in one-row.cu: what it reads of every layer and in which order, the ring
// in shared memory that it is read into, and the products with the inputs. Knows no phase.
#pragma once
#include "one-row.cuh"

/** What a warp reads next, far ahead of what it multiplies. */
struct Stream {
  const Matrices* layer;
  const Matrices* end;
  /** Of the lane: its next 8 numbers, and those left in the row from there on. */
  const f16* from;
  int left;
  /** Pieces left in the run, and the next of its row. */
  int pieces, piece;
  bool is_row;
  /** The next run, and how many there are. */
  const Run* run;
  int index, num_runs;
  /** Of the ring: the next piece to take, and the one taken before. */
  int slot, free;
  /** Evict first: what is read once should not drive out what is not. */
  u64 policy;
};

/** The matrix of `in` with this row. */
__device__ __forceinline__ int job_of(const OneRow& op, int row) {
  int j = 0;
  while (j < kIn - 1 && row >= op.first[j + 1]) j++;
  return j;
}

/** The runs of a warp's pieces of some rows: `matrix` with `rows` of which the first is `first`. */
__device__ __forceinline__ int list_rows(Run* runs, int count, int matrix, int first, int end,
                                         Place share) {
  const Place pieces = pieces_of(share);
  const int from = max(pieces.begin, (first - share.begin) * kRowPieces);
  const int to = min(pieces.end, (end - share.begin) * kRowPieces);
  if (from >= to) return count;
  const int row = share.begin + from / kRowPieces - first, piece = from % kRowPieces;
  runs[count] = {row * CHANNELS + piece * kPiece, CHANNELS - piece * kPiece, (u16)(to - from),
                 (u16)piece, matrix};
  return count + 1;
}

/** Lists all that the warp reads of a layer, in order. */
__device__ __forceinline__ void list_runs(const OneRow& op, Shared& sh) {
  const int warp = threadIdx.x >> 5;
  Run* const runs = sh.runs[warp];
  int count = 0;
  for (int j = 0; j < kIn; j++)
    count = list_rows(runs, count, j, op.first[j], op.first[j + 1], share_of(op.first[kIn]));
  for (int head = blockIdx.x; head < kHeads; head += BLOCKS)
    for (int low = 0; low < kLow; low++) {
      const int rank = rank_of(op, low), length = kLowRows * rank;
      // A row without end.
      runs[count++] = {(64 * head + kLowRows * warp) * rank, length,
                       (u16)((length + kPiece - 1) / kPiece), (u16)kRowPieces, kLowMatrix + low};
    }
  count = list_rows(runs, count, kOutputMatrix, 0, CHANNELS, share_of(CHANNELS));
  count = list_rows(runs, count, kKeyMatrix, 0, op.key_rows, share_of(op.key_rows));
  sh.num_runs[warp] = count;
}

/** Begins the next run that its layer has. */
__device__ __forceinline__ void open_run(Stream& s) {
  const int first = kVector * (threadIdx.x & 31);
  while (s.pieces == 0 && s.layer < s.end && s.num_runs > 0) {
    const Run run = s.run[s.index];
    const f16* const matrix = s.layer->of[run.matrix];
    if (++s.index == s.num_runs) s.index = 0, s.layer++;
    if (matrix == nullptr) continue;
    s.from = matrix + run.offset + first;
    s.left = run.length - first;
    s.pieces = run.pieces, s.piece = run.piece, s.is_row = run.piece < kRowPieces;
  }
}

/** 16 bytes into shared memory, zeros where there are none; done when its group is. */
__device__ __forceinline__ void copy_ahead(uint4* to, const f16* from, bool inside, u64 policy) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(
                   (u32)__cvta_generic_to_shared(to)),
               "l"(from), "r"(inside ? 16 : 0), "l"(policy)
               : "memory");
#endif
}

__device__ __forceinline__ u64 evict_first() {
  u64 policy = 0;
#if __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

__device__ __forceinline__ void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/** Until all groups but the last RING − 2 are done. */
__device__ __forceinline__ void wait_for_piece() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(RING - 2) : "memory");
#endif
}

/** Asks for the next piece of the stream. A group each, also after the end. */
__device__ __forceinline__ void ask(Stream& s, uint4* to) {
  if (s.pieces == 0) open_run(s);
  if (s.pieces > 0) {
    copy_ahead(to, s.from, s.left > 0, s.policy);
    copy_ahead(to + 32, s.from + kHalf, s.left > kHalf, s.policy);
    s.from += kPiece, s.left -= kPiece, s.pieces--;
    if constexpr (kInput > CHANNELS) {
      // Back over the padding of the row's last piece.
      if (++s.piece == kRowPieces) s.piece = 0, s.from += CHANNELS - kInput, s.left += kInput;
    } else {
      s.left += s.is_row ? kPiece : 0;
    }
  }
  end_group();
}

/** A lane's numbers of a piece. */
struct Piece {
  uint4 half[2];
};
constexpr int kSlot = kPiece / kVector;

/** The lane's own ring: only what a lane copied itself does it read. */
__device__ __forceinline__ uint4* ring_of(uint4* rings) {
  return rings + (threadIdx.x >> 5) * (RING * kSlot) + (threadIdx.x & 31);
}

/** The next piece, and the one after all that are on their way is asked for: into the place of the
 * piece that was taken before. */
__device__ __forceinline__ Piece take(Stream& s, uint4* ring) {
  wait_for_piece();
  const Piece piece = {{ring[s.slot], ring[s.slot + 32]}};
  ask(s, ring + s.free);
  s.free = s.slot;
  s.slot = s.slot == (RING - 1) * kSlot ? 0 : s.slot + kSlot;
  return piece;
}

/**
 * Sums of products on the tensor cores, of 32 neighbouring numbers (4 lanes' 8) each: the lanes' own
 * weights are the 16 rows of A, their own inputs the columns of B, and what is wanted lies on the
 * diagonals; the rest of the 16 × 8 is not looked at.
 */
struct Products {
  float lo[4], hi[4];
};

__device__ __forceinline__ void multiply(float (&d)[4], const uint4& w, u32 x0, u32 x1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(w.x), "r"(w.z), "r"(w.y), "r"(w.w), "r"(x0), "r"(x1));
#endif
}

__device__ __forceinline__ void add_products(Products& sums, const uint4& w, const uint4& x) {
  multiply(sums.lo, w, x.x, x.y);
  multiply(sums.hi, w, x.z, x.w);
}

/** The sum of 4 lanes (lane / 4) in one of them, 0 in the others. */
__device__ __forceinline__ float diagonal(const Products& sums) {
  const int group = (threadIdx.x & 31) >> 2;
  const float even = sums.lo[0] + sums.hi[2], odd = sums.lo[1] + sums.hi[3];
  return (threadIdx.x & 3) != group >> 1 ? 0.0f : group & 1 ? odd : even;
}

__device__ __forceinline__ void sync_workers() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kWorkers) : "memory");
}

/**
 * The warp's pieces of the block's rows, as far as `stop`, times their inputs, into its fragments.
 * `input(row)`: the input of a row; `whole(row, sum)`: of each row that is all the warp's, in all
 * lanes.
 */
template <class Input, class Whole>
__device__ __forceinline__ void multiply_rows(Stream& s, Shared& sh, uint4* ring,
                                              Place rows, int stop, Input input, Whole whole) {
  const int lane = threadIdx.x & 31;
  Place pieces = pieces_of(rows);
  pieces.end = min(pieces.end, (stop - rows.begin) * kRowPieces);
  float* fragment = sh.fragments[threadIdx.x >> 5];
  int row = rows.begin + pieces.begin / kRowPieces, piece = pieces.begin % kRowPieces;
  bool is_whole = piece == 0;
  int i = pieces.begin;
  while (i < pieces.end) {
    const uint4* const x = reinterpret_cast<const uint4*>(input(row)) + lane;
    const int end = min(kRowPieces, piece + pieces.end - i);
    Products sums = {};
    i += end - piece;
#pragma unroll 1
    for (; piece < end; piece++) {
      const Piece w = take(s, ring);
      add_products(sums, w.half[0], x[kSlot * piece]);
      add_products(sums, w.half[1], x[kSlot * piece + 32]);
    }
    const float total = warp_sum(diagonal(sums));
    if (lane == 0) *fragment = total;
    if (is_whole && end == kRowPieces) whole(row, total);
    fragment++, row++, piece = 0, is_whole = true;
  }
}

/** The warp that has a piece, of so many pieces; `inverse` is 1 / pieces. */
__device__ __forceinline__ int owner_of(int piece, float inverse) {
  // (WARPS·(piece + 1) − 1) / pieces: the half keeps it clear of rounding.
  return (int)((WARPS * (piece + 1) - 0.5f) * inverse);
}

/** The sum of the block's row `i` of so many, from the fragments of all warps. */
__device__ __forceinline__ float sum_fragments(const Shared& sh, int rows, int i) {
  const int pieces = rows * kRowPieces, first = i * kRowPieces;
  const float inverse = __frcp_rn((float)pieces);
  const int last = owner_of(first + kRowPieces - 1, inverse);
  float sum = 0;
  for (int w = owner_of(first, inverse); w <= last; w++) {
    const Place own = part_of(pieces, w, WARPS);
    if (own.begin < own.end) sum += sh.fragments[w][i - own.begin / kRowPieces];
  }
  return sum;
}
