// What the phases of one-row.cu share: the addresses of a layer, what a block holds, its share of the
// rows of a matrix, the barrier over the grid, and reading what other blocks wrote. Knows no phase.
#pragma once
#include "epilogue.cuh"
#define THREADS (32 * (WARPS + 1))
#include "norm.cuh"
#include "wkv7.cuh"

constexpr int kWorkers = 32 * WARPS;
/** Halves of a piece; a lane has 8 in each half of it. */
constexpr int kPiece = 512, kHalf = kPiece / 2, kVector = 8;
constexpr int kRowPieces = (CHANNELS + kPiece - 1) / kPiece;
/** An input with zeros up to a whole piece. */
constexpr int kInput = kRowPieces * kPiece;
constexpr int kHeads = CHANNELS / 64;
/** r, k, v, then the inner matrices of w, a, g and v's gate; and the outer ones. */
constexpr int kIn = 7, kLow = 4, kFirstLow = kIn - kLow;

enum Vector { kNorm1, kNorm2 = 2, kKeyMix = 4, kMix = 5, kOwn = kMix + kIn, kVectors = kOwn + 8 };

/** Matrices in the order in which they are read; the gate of v has none in a model's first layer. */
struct Matrices {
  const f16* of[kIn + kLow + 2];
};
constexpr int kLowMatrix = kIn, kOutputMatrix = kIn + kLow, kKeyMatrix = kOutputMatrix + 1;

struct Layer {
  /** Everything of [C]: weight and bias of both norms, the mixes, those of `mixing` once more. */
  const float* vectors[kVectors];
  Matrices matrices;
  /** [F, C] */
  const f16* value;
  float* shift[2];
  /** w, a, g and v_gate stay in shared memory; v_gate says whether there is one. */
  Wkv7 mixing;
  u64 unused;
};

struct OneRow {
  const Layer* layers;
  float* x;
  /** Outputs of `in`, f16. */
  f16* y[kIn];
  /** f32 [blocks, C] */
  float* partial;
  /** Of the barrier: zero at first. */
  u32* arrivals;
  long long shift_stride;
  /** The first row of each matrix of `in` in all its rows, and their number. */
  int first[kIn + 1];
  int num_layers;
  int key_rows;
  float eps;
};

struct Active {
  float value;
  int row;
};

/** Neighbouring pieces of one matrix that a warp reads, the same in every layer. */
struct alignas(16) Run {
  /** Of the first lane, in numbers from the matrix's beginning. */
  int offset;
  /** From there to the end of the row, or of the run where rows do not matter. */
  int length;
  /** Pieces, and the row's piece that is the first. */
  u16 pieces, piece;
  int matrix;
};
constexpr int kHeadsEach = (kHeads + BLOCKS - 1) / BLOCKS;
constexpr int kRuns = kIn + kLow * kHeadsEach + 2;

struct Shared {
  alignas(16) Layer layers[2];
  Run runs[WARPS][kRuns];
  int num_runs[WARPS];
  Operands operands;
  /** Of a head: its vectors of `mixing` in the order of kOwn, and its r, k, v and first v. */
  alignas(16) float constants[8][64];
  u32 words[4][32];
  float logits[kLow][64];
  float outputs[64];
  float scratch[64];
  float u[KEY_ROWS];
  /** Sums of the rows that a warp has pieces of. */
  float fragments[WARPS][FRAGMENTS];
  Active active[KEY_ROWS];
  int num_active;
};

struct Place {
  int begin, end;
};

/** Part `index` of `parts` of so many. */
__device__ __forceinline__ Place part_of(int count, int index, int parts) {
  return {(int)((u32)count * index / parts), (int)((u32)count * (index + 1) / parts)};
}

/** The block's rows of so many. */
__device__ __forceinline__ Place share_of(int rows) { return part_of(rows, blockIdx.x, BLOCKS); }

/** The warp's pieces of so many rows: whole rows and the ends of others. */
__device__ __forceinline__ Place pieces_of(Place rows) {
  return part_of((rows.end - rows.begin) * kRowPieces, threadIdx.x >> 5, WARPS);
}

__device__ __forceinline__ int num_low(const Matrices& m) {
  return m.of[kLowMatrix + kLow - 1] == nullptr ? kLow - 1 : kLow;
}

/** Rows that a layer has of `in`: the gate's are the last. */
__device__ __forceinline__ int in_rows(const OneRow& op, const Matrices& m) {
  return op.first[m.of[kIn - 1] == nullptr ? kIn - 1 : kIn];
}

/** Rows a warp takes of each outer matrix of a head. */
constexpr int kLowRows = 64 / WARPS;

__device__ __forceinline__ int rank_of(const OneRow& op, int low) {
  return op.first[kFirstLow + low + 1] - op.first[kFirstLow + low];
}

/** A barrier over the grid in two halves. One thread of a warp without copies on their way speaks
 * for the block. */
struct Barrier {
  u32* arrivals;
  u32 sense;

  __device__ void arrive() const {
    __syncthreads();
    if (threadIdx.x == kWorkers) {
      // The top bit turns when all have come.
      const u32 one = blockIdx.x == 0 ? 0x80000000u - (BLOCKS - 1) : 1u;
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(arrivals), "r"(one) : "memory");
    }
    __syncwarp();
  }

  __device__ u32 read() const {
    u32 value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(arrivals) : "memory");
    return value;
  }

  __device__ void wait() {
    // All lanes, so that they stay together.
    if (threadIdx.x >= kWorkers)
      while (((read() ^ sense) & 0x80000000u) == 0) {
      }
    __syncwarp();
    sense ^= 0x80000000u;
    __syncthreads();
  }
};

/** What other blocks wrote in this launch is read past L1. */
__device__ __forceinline__ Row load_fresh(const float* x) {
  Row row;
#pragma unroll
  for (int i = 0; i < kPer; i++)
    row.part[i] =
        owns(i) ? __ldcg(reinterpret_cast<const float4*>(x) + group(i)) : make_float4(0, 0, 0, 0);
  return row;
}

__device__ __forceinline__ u32 fresh_word(const f16* x, int at) {
  return __ldcg(reinterpret_cast<const u32*>(x + at));
}

/** Zeros after an input, up to a whole piece. */
__device__ __forceinline__ void pad_input(f16* input) {
  if constexpr (kInput > CHANNELS)
    for (int i = CHANNELS + threadIdx.x; i < kInput; i += THREADS) input[i] = f16{0};
}

/** h + (previous − h)·mix, as an input. */
__device__ __forceinline__ void mix_input(f16* input, const Row& h, const Row& previous,
                                          const Row& mix) {
  Row y;
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    const float4 c = h.part[i], p = previous.part[i], m = mix.part[i];
    y.part[i] = make_float4(c.x + (p.x - c.x) * m.x, c.y + (p.y - c.y) * m.y,
                            c.z + (p.z - c.z) * m.z, c.w + (p.w - c.w) * m.w);
  }
  store_row(input, y);
  pad_input(input);
}

__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/** Everything a block has beside its place in the stream. */
struct Block {
  Shared& sh;
  u8* region;
  uint4* ring;
  Barrier barrier;
  int slot;
};

/** The shift vector becomes h: by one block, after all have read it. */
__device__ __forceinline__ void keep_shift(const OneRow& op, const Block& b, const Layer& layer,
                                           int which, const Row& h) {
  if (blockIdx.x == BLOCKS - 1) store_row(layer.shift[which] + b.slot * op.shift_stride, h);
}
