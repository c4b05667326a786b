// The phase `value` of one-row.cu where it is f16: a block some columns, over the u that are not
// zero.
#pragma once
#include "one-row-block.cuh"

constexpr int kColumns = value_columns();
/** Lanes to a row of these columns, and rows that a warp and that the workers read at a time. */
constexpr int kRowLanes = kColumns / kVector;
constexpr int kRowsAtOnce = kWorkers / kRowLanes;
/** Vectors of u that a worker has. */
constexpr int kActiveVectors = (KEYS + kVector * kWorkers - 1) / (kVector * kWorkers);
constexpr int kFlight = 8;

/** A worker's u, and where its active ones stand among all. */
struct ActiveList {
  uint4 u[kActiveVectors];
  int begin, total;
};

__device__ __forceinline__ bool is_active(const uint4& v, int i) {
  const u32 word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
  return (word >> 16 * (i & 1) & 0x7fff) != 0;
}

/** Reads u and counts. */
__device__ __forceinline__ ActiveList read_active(const OneRow& op, Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  ActiveList list;
#pragma unroll
  for (int k = 0; k < kActiveVectors; k++) {
    const int at = threadIdx.x + k * kWorkers;
    list.u[k] = make_uint4(0, 0, 0, 0);
    if (kVector * at < KEYS) list.u[k] = __ldcg(reinterpret_cast<const uint4*>(op.u) + at);
  }
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
  if (lane == 31) sh.counts[warp] = sum;
  sync_workers();
  const int others = lane < WARPS ? sh.counts[lane] : 0;
  list.total = warp_sum(others);
  list.begin = warp_sum(lane < warp ? others : 0) + sum - count;
  return list;
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

/** acc += u·value over the list, on a lane's 8 columns; every kRowsAtOnce-th of it. The lanes of a
 * warp end at different rows: nothing in here may wait for all of them. */
__device__ __forceinline__ void add_active(float (&acc)[kVector], const u32* list, int count,
                                           const f16* value) {
  for (int base = threadIdx.x / kRowLanes; base < count; base += kFlight * kRowsAtOnce) {
    uint4 rows[kFlight];
    float u[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; i++) {
      const int at = base + i * kRowsAtOnce;
      const u32 one = at < count ? list[at] : 0;
      u[i] = to_float({(u16)one});
      rows[i] = make_uint4(0, 0, 0, 0);
      if (at < count)
        rows[i] = __ldg(reinterpret_cast<const uint4*>(value + (long long)(one >> 16) * CHANNELS));
    }
#pragma unroll
    for (int i = 0; i < kFlight; i++) add_scaled(acc, u[i], rows[i]);
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

/** value: x += u·value on the block's columns. */
__device__ __forceinline__ void value_phase(const OneRow& op, Block& b, int l, const Row& shift) {
  const Layer& layer = b.sh.layers[l & 1];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  u32* const entries = reinterpret_cast<u32*>(b.region);
  float* const sums = b.sh.sums;
  b.barrier.wait();
  keep_shift(op, b, layer, 1, shift);
  if (warp >= WARPS) return;
  for (int begin = blockIdx.x * kColumns; begin < CHANNELS; begin += BLOCKS * kColumns) {
    const int c = begin + threadIdx.x;
    const bool adds = threadIdx.x < kColumns && c < CHANNELS;
    float total = adds ? __ldcg(op.x + c) : 0.0f;
    const ActiveList list = read_active(op, b.sh);
    const int column = begin + kVector * (lane % kRowLanes);
    // Past the end of a width that is no multiple: the last columns once more, for nobody.
    const f16* const value = layer.matrices.of[kValueMatrix] + min(column, CHANNELS - kVector);
    float acc[kVector] = {};
    for (int base = 0; base < list.total; base += LIST) {
      write_active(list, base, entries);
      sync_workers();
      add_active(acc, entries, min(LIST, list.total - base), value);
      if (base + LIST < list.total) sync_workers();
    }
    keep_sums(acc, sums + warp * kColumns);
    sync_workers();
    if (adds) {
#pragma unroll
      for (int w = 0; w < WARPS; w++) total += sums[w * kColumns + threadIdx.x];
      op.x[c] = total;
    }
    if (BLOCKS * kColumns < CHANNELS) sync_workers();
  }
}
