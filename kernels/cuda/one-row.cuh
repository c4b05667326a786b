// What the phases of one-row.cu share: the addresses of a layer, what a block holds, its share of the
// rows of a matrix, the barrier over the grid, and reading what other blocks wrote. Knows no phase.
#pragma once
#include "epilogue.cuh"
#define THREADS (32 * (WARPS + 1))
#include "norm.cuh"
#include "wkv7.cuh"

constexpr int kWorkers = 32 * WARPS;
/** Halves of 16 bytes. */
constexpr int kVector = 8;
/** Weights are read in units of 16 rows by 64 columns, 2 KB. */
constexpr int kTileRows = 16, kUnitColumns = 64, kUnits = CHANNELS / kUnitColumns;
constexpr u32 kSlot = 2 * kTileRows * kUnitColumns, kRing = RING * kSlot;
/** Warps that share the columns of a row. */
constexpr int kSlices = kUnits < WARPS ? kUnits : WARPS;
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

/** Columns of value that a block has: a power of two, so that a warp reads whole rows of them. */
__device__ constexpr int value_columns() {
  int columns = 16;
  while (columns < 128 && columns * BLOCKS < CHANNELS) columns *= 2;
  return columns;
}

struct OneRow {
  const Layer* layers;
  float* x;
  /** f16, outputs of `in` in the order of its rows: r, k, v, then the inner low ranks. */
  f16* y;
  /** f16, outputs of key. */
  f16* u;
  /** Of the barrier: zero at first. */
  u32* arrivals;
  long long shift_stride;
  /** The first row of each matrix of `in` in all its rows, and their number. */
  int first[kIn + 1];
  int num_layers;
  float eps;
};

/** Rows that a block has of output and of key at most. */
constexpr int kOutputRows = (CHANNELS + BLOCKS - 1) / BLOCKS;
constexpr int kKeyRows = (KEYS + BLOCKS - 1) / BLOCKS;

/** Tiles of rows of one matrix that a warp reads some columns of, the same in every layer. */
struct alignas(16) Run {
  /** Of the first row and column, in numbers from the matrix's beginning; from row to row. */
  int offset, stride;
  u16 rows, units;
  /** Of a unit. */
  u16 columns, matrix;
};
/** Of a unit of the outer low ranks: its inputs among all. */
struct LowInput {
  u16 first, columns;
};
constexpr int kHeadsEach = (kHeads + BLOCKS - 1) / BLOCKS;
/** Tiles of a head's 64 rows of an outer low rank. */
constexpr int kLowTiles = 64 / kTileRows;
constexpr int kRuns = MIXES + kHeadsEach * ((kLowTiles * LOW_UNITS + WARPS - 1) / WARPS) + 2;

__device__ constexpr int most(int a, int b) { return a > b ? a : b; }
/** Sums a warp has of the rows of a phase at most. */
constexpr int kSumRows = most(IN_ROWS, most(kOutputRows, kKeyRows));
/** Also those of the low ranks, and of value. */
constexpr int kSums = most(kSlices * kSumRows, most(64 * LOW_UNITS, WARPS * value_columns()));

struct Shared {
  alignas(16) Layer layers[2];
  Run runs[WARPS][kRuns];
  int num_runs[WARPS];
  Operands operands;
  /** Of a head: its vectors of `mixing` in the order of kOwn, and its r, k, v and first v. */
  alignas(16) float constants[8][64];
  u32 words[4][32];
  LowInput low_inputs[LOW_UNITS];
  alignas(16) float gate[64];
  float outputs[64];
  float scratch[64];
  float bonus;
  /** Active u of a warp's share of them, and of all. */
  int counts[WARPS];
  alignas(16) float sums[kSums];
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

/** The warp's units of a row of so many channels. */
__device__ __forceinline__ Place slice_of_warp() {
  const int warp = threadIdx.x >> 5;
  if (warp >= kSlices) return {0, 0};
  return part_of(kUnits, warp, kSlices);
}

/** Rows that a layer has of `in`: the gate's are the last. */
__device__ __forceinline__ int in_rows(const OneRow& op, const Matrices& m) {
  return op.first[m.of[kIn - 1] == nullptr ? kIn - 1 : kIn];
}

__device__ __forceinline__ int rank_of(const OneRow& op, int low) {
  return op.first[kFirstLow + low + 1] - op.first[kFirstLow + low];
}

/** A unit of 64 columns of the outer low ranks: which, its first column, and its inputs among all. */
struct LowUnit {
  int low, column, input;
};

__device__ __forceinline__ LowUnit low_unit(const OneRow& op, int unit) {
  LowUnit place = {0, unit * kUnitColumns, 0};
  while (place.low < kLow - 1 && place.column >= rank_of(op, place.low)) {
    const int rank = rank_of(op, place.low++);
    place.column -= (rank + kUnitColumns - 1) / kUnitColumns * kUnitColumns;
    place.input += rank;
  }
  place.input += place.column;
  return place;
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
    if (threadIdx.x >= kWorkers) {
      u32 value;
      // An acquire empties L1: one at the end.
      do {
        asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(arrivals) : "memory");
      } while (((value ^ sense) & 0x80000000u) == 0);
      read();
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

/** An input lies in shared memory such that of every four words the second and third have changed places:
 * one side of the tensor cores takes the first two, the other the rest (one-row-stream.cuh). */
__device__ __forceinline__ uint4 as_input(const uint4& v) {
  return make_uint4(v.x, v.z, v.y, v.w);
}

__device__ __forceinline__ void store_input(f16* input, const Row& row) {
  u32* const words = reinterpret_cast<u32*>(input);
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    if (!owns(i)) continue;
    const float4 p = row.part[i];
    const int at = 4 * (group(i) >> 1) + (group(i) & 1);
    words[at] = pack(p.x, p.y), words[at + 2] = pack(p.z, p.w);
  }
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
  store_input(input, y);
}

__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/** A row of value into L2, by a warp. */
__device__ __forceinline__ void prefetch_row(const f16* row) {
  for (int at = 64 * (threadIdx.x & 31); at < CHANNELS; at += 64 * 32) prefetch(row + at);
}

/** Everything a block has beside its place in the stream. */
struct Block {
  Shared& sh;
  u8* region;
  Barrier barrier;
  int slot;
  /** The block's rows of `in`, the first matrix that they are of, and where the next ones begin. */
  Place in;
  int first_job;
  int bounds[MIXES];
};

/** The shift vector becomes h: by one block, after all have read it. */
__device__ __forceinline__ void keep_shift(const OneRow& op, const Block& b, const Layer& layer,
                                           int which, const Row& h) {
  if (blockIdx.x == BLOCKS - 1) store_row(layer.shift[which] + b.slot * op.shift_stride, h);
}
