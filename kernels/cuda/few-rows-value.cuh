// The phase `value` of few-rows.cu where it is f16: a block some columns, over the u of each token
// that are not zero.
#pragma once
#include "few-rows-block.cuh"

constexpr int kColumns = value_columns();
/** Lanes to a row of these columns, and rows that a warp and that the workers read at a time. */
constexpr int kRowLanes = kColumns / kVector;
constexpr int kRowsAtOnce = kWorkers / kRowLanes;
/** Vectors of u that a worker has. */
constexpr int kActiveVectors = (KEYS + kVector * kWorkers - 1) / (kVector * kWorkers);
/** Of a token's, rows on their way to a lane. */
constexpr int kFlight = 8 / TOKENS;
static_assert(TOKENS * kColumns <= kWorkers, "a column of a token a worker");

/** A worker's u of a token, and where its active ones stand among all of that token. */
struct ActiveList {
  uint4 u[kActiveVectors];
  int begin, total;
};

/** One a token; none is active of those that there are not. */
struct ActiveLists {
  ActiveList of[TOKENS];
};

__device__ __forceinline__ bool is_active(const uint4& v, int i) {
  const u32 word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
  return (word >> 16 * (i & 1) & 0x7fff) != 0;
}

/** Counts those of a token: the lane's place among the warp's, and the warp's among all. */
__device__ __forceinline__ void count_active(ActiveList& list, int (&counts)[WARPS]) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int count = 0;
#pragma unroll
  for (int k = 0; k < kActiveVectors; k++)
#pragma unroll
    for (int i = 0; i < kVector; i++) count += is_active(list.u[k], i);
  int sum = count;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += before;
  }
  if (lane == 31) counts[warp] = sum;
  list.begin = sum - count;
}

/** Reads u and counts. */
__device__ __forceinline__ ActiveLists read_active(const FewRows& op, Shared& sh, int num_tokens) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  ActiveLists lists;
#pragma unroll
  for (int t = 0; t < TOKENS; t++)
#pragma unroll
    for (int k = 0; k < kActiveVectors; k++) {
      const int at = threadIdx.x + k * kWorkers;
      lists.of[t].u[k] = make_uint4(0, 0, 0, 0);
      if (t < num_tokens && kVector * at < KEYS)
        lists.of[t].u[k] = __ldcg(reinterpret_cast<const uint4*>(op.u + t * KEYS) + at);
    }
#pragma unroll
  for (int t = 0; t < TOKENS; t++) count_active(lists.of[t], sh.counts[t]);
  sync_workers();
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
    const int others = lane < WARPS ? sh.counts[t][lane] : 0;
    lists.of[t].total = warp_sum(others);
    lists.of[t].begin += warp_sum(lane < warp ? others : 0);
  }
  return lists;
}

/** Those of the list from `base` on, as many as there is room for: its row and u. */
__device__ __forceinline__ void write_active(const ActiveList& list, int base, u32* to) {
  int at = list.begin - base;
#pragma unroll
  for (int k = 0; k < kActiveVectors; k++)
#pragma unroll
    for (int i = 0; i < kVector; i++) {
      const uint4& v = list.u[k];
      const u32 word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
      const u32 bits = word >> 16 * (i & 1) & 0xffff;
      const u32 row = kVector * (threadIdx.x + k * kWorkers) + i;
      const bool is_one = (bits & 0x7fff) != 0;
      if (is_one && (u32)at < LIST) to[at] = row << 16 | bits;
      at += is_one;
    }
}

/** acc += u·value over the lists of all tokens, on a lane's 8 columns; every kRowsAtOnce-th of
 * each. The lanes of a warp end at different rows: nothing in here may wait for all of them. */
__device__ __forceinline__ void add_active(float (&acc)[TOKENS][kVector], const u32* entries,
                                           const int (&counts)[TOKENS], int longest,
                                           const f16* value) {
#pragma unroll 1
  for (int base = threadIdx.x / kRowLanes; base < longest; base += kFlight * kRowsAtOnce) {
    uint4 rows[TOKENS][kFlight];
    float u[TOKENS][kFlight];
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
#pragma unroll
      for (int i = 0; i < kFlight; i++) {
        const int at = base + i * kRowsAtOnce;
        const bool is_one = at < counts[t];
        const u32 one = is_one ? entries[t * LIST + at] : 0;
        u[t][i] = to_float({(u16)one});
        rows[t][i] = load_once<true>(value + (long long)(one >> 16) * CHANNELS, is_one);
      }
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
#pragma unroll
      for (int i = 0; i < kFlight; i++) add_scaled(acc[t], u[t][i], rows[t][i]);
  }
}

/** Adds what the lane `offset` away has of half of the numbers, and keeps that half. */
template <int Half>
__device__ __forceinline__ void fold(float (&x)[kVector], int offset) {
  const bool upper = (threadIdx.x & offset) != 0;
#pragma unroll
  for (int i = 0; i < Half; i++) {
    const float give = upper ? x[i] : x[i + Half];
    x[i] = (upper ? x[i + Half] : x[i]) + __shfl_xor_sync(~0u, give, offset);
  }
}

/** The warp's sums of its columns into `sums`. */
__device__ __forceinline__ void keep_sums(float (&acc)[kVector], float* sums) {
  const int lane = threadIdx.x & 31;
  fold<4>(acc, 16);
  static_assert(kRowLanes >= 2 && kRowLanes <= 16, "between 2 and 16 rows a warp");
  int column = kVector * (lane % kRowLanes) + (lane & 16 ? 4 : 0);
  if constexpr (kRowLanes <= 8) fold<2>(acc, 8), column += lane & 8 ? 2 : 0;
  if constexpr (kRowLanes <= 4) fold<1>(acc, 4), column += lane & 4 ? 1 : 0;
  if constexpr (kRowLanes == 2) acc[0] += __shfl_xor_sync(~0u, acc[0], 2);
  constexpr int kKept = kRowLanes <= 4 ? 1 : kRowLanes == 8 ? 2 : 4;
#pragma unroll
  for (int i = 0; i < kKept; i++) sums[column + i] = acc[i];
}

/** acc = u·value of each token on a lane's 8 columns. Where there is no room for all that are
 * active, u is read once more for the rest. */
__device__ __forceinline__ void multiply_active(float (&acc)[TOKENS][kVector], const FewRows& op,
                                                Block& b, const f16* value) {
  u32* const entries = reinterpret_cast<u32*>(b.region);
  int longest = 0, base = 0;
#pragma unroll 1
  do {
    if (base > 0) sync_workers();
    int counts[TOKENS];
    const ActiveLists lists = read_active(op, b.sh, b.num_tokens);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      longest = most(longest, lists.of[t].total);
      counts[t] = least(LIST, lists.of[t].total - base);
      write_active(lists.of[t], base, entries + t * LIST);
    }
    sync_workers();
    add_active(acc, entries, counts, least(LIST, longest - base), value);
    base += LIST;
  } while (base < longest);
}

/** value: x += u·value on the block's columns. */
__device__ __forceinline__ void value_phase(const FewRows& op, Block& b, int l, const Row& shift) {
  const Layer& layer = b.sh.layers[l & 1];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float* const sums = b.sh.sums;
  b.barrier.wait();
  keep_shift(op, b, layer, 1, shift);
  if (warp >= WARPS) return;
  for (int begin = blockIdx.x * kColumns; begin < CHANNELS; begin += BLOCKS * kColumns) {
    const int token = threadIdx.x / kColumns, own = threadIdx.x % kColumns;
    const bool adds = token < b.num_tokens && begin + own < CHANNELS;
    float* const x = op.x + token * CHANNELS + begin + own;
    float total = adds ? __ldcg(x) : 0.0f;
    const int column = begin + kVector * (lane % kRowLanes);
    // Past the end of a width that is no multiple: the last columns once more, for nobody.
    const f16* const value = layer.matrices.of[kValueMatrix] + min(column, CHANNELS - kVector);
    float acc[TOKENS][kVector] = {};
    multiply_active(acc, op, b, value);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) keep_sums(acc[t], sums + (t * WARPS + warp) * kColumns);
    sync_workers();
    if (adds) {
#pragma unroll
      for (int w = 0; w < WARPS; w++) total += sums[(token * WARPS + w) * kColumns + own];
      *x = total;
    }
    if (BLOCKS * kColumns < CHANNELS) sync_workers();
  }
}
