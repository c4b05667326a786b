// What all of few-rows.cu uses: the addresses of a layer, a block's share of a matrix's rows,
// inputs in shared memory, and products. This file knows neither the phases nor how weights are
// read.
#pragma once
#include "common.cuh"
#include "epilogue.cuh"
#include "tensor-cores.cuh"
#define THREADS (32 * (WARPS + 1))
#define OTHER_THREADS (32 * FEED)
#ifndef QUANT
#define QUANT 0
#endif
#ifndef ACTIVE
#define ACTIVE !QUANT
#endif
/** Whether blocks poll words (few-rows-words.cuh) instead of waiting at barriers. */
#define WORDS (!QUANT && !ACTIVE)
#include "norm.cuh"
#include "wkv7.cuh"

constexpr int kWorkers = 32 * WARPS;
/** Halves in 16 bytes. */
constexpr int kVector = 8;
/** Warps divide the columns of a row into units of 64. */
constexpr int kUnitColumns = 64, kUnits = CHANNELS / kUnitColumns;
__device__ constexpr int most(int a, int b) { return a > b ? a : b; }
__device__ constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int kHeads = CHANNELS / 64;
/** Rows of output and of value per block, at most. */
constexpr int kOutputRows = (CHANNELS + BLOCKS - 1) / BLOCKS;
/** Whether warps read value in units of 8 rows by 128 columns: others would be half empty. */
constexpr bool kIsWide = WORDS && kOutputRows <= 8 && KEYS % 128 == 0 && KEYS > CHANNELS;
/** Columns of a unit of a matrix with so many columns. */
__device__ constexpr int unit_columns(int columns) {
  return kIsWide && columns == KEYS ? 2 * kUnitColumns : kUnitColumns;
}
/** Number of warps that divide a row's columns among them. */
__device__ constexpr int slices_of(int columns) {
  return least(columns / unit_columns(columns), WARPS);
}
/** Whether the two halves of the warps take stages in turns (few-rows-stages.cuh): where each warp
 * then has four units of a stage of four rows. With eight, turns are slower. */
#if FEED && !QUANT
constexpr bool kInTurns = SPLIT == 1 && STAGE_ROWS == 4 && kUnits == 2 * WARPS;
#else
constexpr bool kInTurns = false;
#endif
constexpr int kSlices = kInTurns ? WARPS / 2 : slices_of(CHANNELS);
/** kIn: r, k, v, then the inner matrices of w, a, g and of the gate of v. kLow: the outer matrices
 * of those four. */
constexpr int kIn = 7, kLow = 4, kFirstLow = kIn - kLow;

enum Vector { kNorm1, kNorm2 = 2, kKeyMix = 4, kMix = 5, kOwn = kMix + kIn, kVectors = kOwn + 8 };

constexpr int kLowMatrix = kIn, kOutputMatrix = kIn + kLow, kKeyMatrix = kOutputMatrix + 1;
constexpr int kValueMatrix = kKeyMatrix + 1, kMatrices = kValueMatrix + 1;

/** Matrices in the order in which they are read. The first layer of a model has no gate of v. r, k,
 * v, output, key and value may be quantised (QUANT). Their scales are then in the same order,
 * those of e4m3 in f32. value is [F, C] if ACTIVE, otherwise [C, F]. */
struct Matrices {
  const f16* of[kMatrices];
#if QUANT
  const f16* scales[kFirstLow + kMatrices - kOutputMatrix];
#endif
};

struct Layer {
  /** All vectors of [C]: weights and biases of both norms, the mixes, and again those of
   * `mixing`. */
  const float* vectors[kVectors];
  Matrices matrices;
  float* shift[2];
  /** w, a, g and v_gate stay in shared memory; v_gate only says whether there is one. */
  Wkv7 mixing;
};

/** Columns of value per block: a power of two, so that a warp reads whole rows of them. */
__device__ constexpr int value_columns() {
  int columns = 16;
  while (columns < 128 && columns * BLOCKS < CHANNELS) columns *= 2;
  return columns;
}

struct FewRows {
  const Layer* layers;
  /** [T, C] */
  float* x;
  /** f16 [T, rows], the outputs of `in` in the order of its rows: r, k, v, then the inner low
   * ranks. */
  f16* y;
  /** f16 [T, KEYS], the outputs of key. */
  f16* u;
  /** Counter of the barrier, initially zero. */
  u32* arrivals;
  long long shift_stride;
  /** First row of each matrix among all rows of `in`, and at the end the number of rows. */
  int first[kIn + 1];
  int num_layers;
  float eps;
  /** With WORDS: kCopies copies, initially zero. arrivals[1] is then the epoch of the last layer. */
  u64* words;
};

/** What makes logits of the last layer's x: the norm of gather-norm.cu, and the head. */
struct Logits {
  const float* weight;
  const float* bias;
  /** [V, CHANNELS]; null if others make the logits. */
  const f16* head;
  /** What the head multiplies, [R, CHANNELS], and the logits, [R, V]. */
  f16* hidden;
  float* of;
  const int* kept_as;
  f16* kept;
  float eps;
  int vocab;
};

/** Whether the launch may make logits: a warp then has one or two runs of a row, as in
 * linear-few.cu. */
#define HAS_LOGITS (WORDS && CHANNELS >= 512 && CHANNELS <= 1024 && KEYS >= 2 * CHANNELS)

/** The addresses of all layers' matrices, into shared memory, by all threads of the block. */
__device__ __forceinline__ void copy_matrices(Matrices* to, const FewRows& op) {
  constexpr int kWords = sizeof(Matrices) / 8;
  for (int i = threadIdx.x; i < op.num_layers * kWords; i += THREADS + OTHER_THREADS)
    reinterpret_cast<u64*>(to)[i] =
        reinterpret_cast<const u64*>(&op.layers[i / kWords].matrices)[i % kWords];
}

/** Rows of key that stay together: a word has two of their outputs. */
constexpr int kTogether = WORDS ? 2 : 1;
constexpr int kKeyRows = (KEYS / kTogether + BLOCKS - 1) / BLOCKS * kTogether;

/** Rows per block, and so sums per warp, in any phase, at most. */
constexpr int kSumRows = most(IN_ROWS, most(kOutputRows, kKeyRows));
/** Sums of all slices of those rows, for one token. */
constexpr int kTokenSums = (WORDS ? slices_of(KEYS) : kSlices) * kSumRows;

struct Place {
  int begin, end;
};

/** Part `index` when `count` is divided into `parts` parts. */
__device__ __forceinline__ Place part_of(int count, int index, int parts) {
  return {(int)((u32)count * index / parts), (int)((u32)count * (index + 1) / parts)};
}

/** The block's part of `rows` rows. */
__device__ __forceinline__ Place share_of(int rows) { return part_of(rows, blockIdx.x, BLOCKS); }

__device__ __forceinline__ Place share_of_keys() {
  const Place share = share_of(KEYS / kTogether);
  return {kTogether * share.begin, kTogether * share.end};
}

/** Weights by which the rows of `in` are divided among the blocks: of a row of r, k and v, and of a
 * row of the inner low ranks, which stay f16. So all blocks read about the same number of
 * bytes. */
#if QUANT
constexpr u32 kLargeWeight = IN_WEIGHT, kLowWeight = CHANNELS / kVector;
#else
constexpr u32 kLargeWeight = 1, kLowWeight = 1;
#endif

/** The block's rows of `in`. */
__device__ __forceinline__ Place share_of_in(const FewRows& op) {
  if constexpr (kLargeWeight == kLowWeight) return share_of(op.first[kIn]);
  const u32 large = op.first[kFirstLow] * kLargeWeight;
  const Place own = share_of(large + (op.first[kIn] - op.first[kFirstLow]) * kLowWeight);
  const auto row_at = [&](u32 weight) {
    return (int)(weight < large ? weight / kLargeWeight
                                : op.first[kFirstLow] + (weight - large) / kLowWeight);
  };
  return {row_at(own.begin), row_at(own.end)};
}

/** The block's rows of matrix `j` of `in`; `in`: those of all. */
__device__ __forceinline__ Place rows_of(const FewRows& op, Place in, int j) {
  const int first = op.first[j];
  return {max(in.begin, first) - first, min(in.end, op.first[j + 1]) - first};
}

/** The warp's units of a row. */
template <int Columns = CHANNELS>
__device__ __forceinline__ Place slice_of_warp() {
  const int warp = threadIdx.x >> 5;
  if (warp >= slices_of(Columns)) return {0, 0};
  return part_of(Columns / unit_columns(Columns), warp, slices_of(Columns));
}

/** Rows of `in` in a layer. Those of the gate of v are the last. */
__device__ __forceinline__ int in_rows(const FewRows& op, const Matrices& m) {
  return op.first[m.of[kIn - 1] == nullptr ? kIn - 1 : kIn];
}

__device__ __forceinline__ int rank_of(const FewRows& op, int low) {
  return op.first[kFirstLow + low + 1] - op.first[kFirstLow + low];
}

/** One task of the `heads` phase: one head of one token. */
struct HeadTask {
  int head, token;
};

/** The tasks of a block. If the rows have one token each, heads are dealt out one by one. If there
 * is one row, a block has all tokens of a head, in order, because they share a state. */
struct HeadTasks {
  int num_tokens;
  bool is_one_row;

  __device__ __forceinline__ HeadTask at(int i) const {
    if (TOKENS == 1) return {(int)blockIdx.x + i * BLOCKS, 0};
    if (is_one_row) return {(int)blockIdx.x + i / num_tokens * BLOCKS, i % num_tokens};
    const int index = blockIdx.x + i * BLOCKS;
    return {index % kHeads, index / kHeads};
  }

  __device__ __forceinline__ bool has(const HeadTask& task) const {
    return task.head < kHeads && task.token < num_tokens;
  }
};
/** Factor of a row's sum if the matrix is e4m3, otherwise 1. `which` is the matrix's index among
 * those with scales. */
__device__ __forceinline__ float row_scale(const Matrices& m, int which, int row) {
#if QUANT == 4
  return __ldg(reinterpret_cast<const float*>(m.scales[which]) + row);
#else
  return 1.0f;
#endif
}

/** The matrix of `in` that has this row. */
__device__ __forceinline__ int job_of(const FewRows& op, int row) {
  int j = 0;
  while (j < kIn - 1 && row >= op.first[j + 1]) j++;
  return j;
}

/** Reads what other blocks have written in this launch, bypassing L1. */
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

/** In shared memory, the second and third of every four words of an input are swapped. Lanes of one
 * half of the tensor cores' operand read the first two words, the other lanes the other two
 * (Products). */
__device__ __forceinline__ uint4 as_input(const uint4& v) { return make_uint4(v.x, v.z, v.y, v.w); }

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

/** Stores h + (previous − h)·mix as an input. */
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

/** Sums of products on the tensor cores. A lane's 16 bytes of weights are four words, which the
 * unit takes as rows i and i + 8. So the even columns of the other operand hold an input's first
 * and third words, the odd columns its second and fourth. A lane then has the parts of a sum in
 * two places. */
struct Products {
  float of[4];

  __device__ float sum() const { return of[0] + of[3]; }
};

__device__ __forceinline__ void add_products(Products& sums, const uint4& w, const uint2& x) {
  mma(sums.of, w.x, w.y, w.z, w.w, x.x, x.y);
}

/** Sums 4 rows, for which 8 lanes hold 128 bytes of a row each time: lane 8·row gets the row's sum.
 * Row i of the unit is the half i & 1 of the columns of row i / 2. */
__device__ __forceinline__ float sum_four(float half) {
  return half + __shfl_xor_sync(~0u, half, 5);
}

__device__ __forceinline__ u64 evict_first() {
  u64 policy = 0;
#if __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
