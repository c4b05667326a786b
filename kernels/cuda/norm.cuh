// Layer norm of a row by one block, with the row in registers. CHANNELS (a multiple of 4) and
// THREADS are compile-time constants. Thread i owns the groups of 4 channels i, i + THREADS, … A
// block may have OTHER_THREADS more threads, which take no part.
#pragma once
#include "common.cuh"
#ifndef OTHER_THREADS
#define OTHER_THREADS 0
#endif

constexpr int kGroups = CHANNELS / 4;
constexpr int kPer = (kGroups + THREADS - 1) / THREADS;

struct Row {
  float4 part[kPer];
};

__device__ __forceinline__ bool owns(int i) {
  return kGroups % THREADS == 0 || threadIdx.x + i * THREADS < kGroups;
}

/** Index of the thread's i-th group. */
__device__ __forceinline__ int group(int i) { return threadIdx.x + i * THREADS; }

__device__ __forceinline__ Row load_row(const float* x) {
  Row row;
#pragma unroll
  for (int i = 0; i < kPer; i++)
    row.part[i] = owns(i) ? reinterpret_cast<const float4*>(x)[group(i)] : make_float4(0, 0, 0, 0);
  return row;
}

__device__ __forceinline__ void store_row(float* y, const Row& row) {
#pragma unroll
  for (int i = 0; i < kPer; i++)
    if (owns(i)) reinterpret_cast<float4*>(y)[group(i)] = row.part[i];
}

__device__ __forceinline__ void store_row(f16* y, const Row& row) {
#pragma unroll
  for (int i = 0; i < kPer; i++)
    if (owns(i))
      reinterpret_cast<uint2*>(y)[group(i)] =
          make_uint2(pack(row.part[i].x, row.part[i].y), pack(row.part[i].z, row.part[i].w));
}

__device__ __forceinline__ Row times(Row x, float factor) {
#pragma unroll
  for (float4& p : x.part) p.x *= factor, p.y *= factor, p.z *= factor, p.w *= factor;
  return x;
}

__device__ __forceinline__ Row plus(Row x, const Row& y) {
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    x.part[i].x += y.part[i].x, x.part[i].y += y.part[i].y;
    x.part[i].z += y.part[i].z, x.part[i].w += y.part[i].w;
  }
  return x;
}

/** A barrier of the THREADS threads, without the others. */
__device__ __forceinline__ void sync_threads() {
  if constexpr (OTHER_THREADS == 0)
    __syncthreads();
  else
    sync_some(0, THREADS);
}

/** Sums of several rows over a block. scratch: shared memory, not the one that the previous sums
 * used. */
template <int Rows>
__device__ __forceinline__ void block_sums(float (&x)[Rows], float (&scratch)[Rows][32]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < Rows; i++) {
    x[i] = warp_sum(x[i]);
    if (lane == 0) scratch[i][threadIdx.x >> 5] = x[i];
  }
  sync_threads();
#pragma unroll
  for (int i = 0; i < Rows; i++) x[i] = warp_sum(lane < THREADS / 32 ? scratch[i][lane] : 0.0f);
}

/** Normalises each row to (x − mean) / √(var + eps). The variance is computed from the
 * differences. */
template <int Rows>
__device__ __forceinline__ void normalise(Row (&x)[Rows], float eps,
                                          float (&scratch)[2][Rows][32]) {
  float sums[Rows] = {};
#pragma unroll
  for (int r = 0; r < Rows; r++)
#pragma unroll
    for (const float4& p : x[r].part) sums[r] += (p.x + p.y) + (p.z + p.w);
  block_sums(sums, scratch[0]);
  float squares[Rows] = {};
#pragma unroll
  for (int r = 0; r < Rows; r++) {
    const float mean = sums[r] * (1.0f / CHANNELS);
#pragma unroll
    for (int i = 0; i < kPer; i++) {
      if (!owns(i)) continue;
      float4& p = x[r].part[i];
      p.x -= mean, p.y -= mean, p.z -= mean, p.w -= mean;
      squares[r] += (p.x * p.x + p.y * p.y) + (p.z * p.z + p.w * p.w);
    }
  }
  block_sums(squares, scratch[1]);
#pragma unroll
  for (int r = 0; r < Rows; r++) {
    const float scale = rsqrtf(squares[r] * (1.0f / CHANNELS) + eps);
#pragma unroll
    for (float4& p : x[r].part) p.x *= scale, p.y *= scale, p.z *= scale, p.w *= scale;
  }
}

/** Normalises one row. scratch: shared [64] */
__device__ __forceinline__ Row normalise(const Row& x, float eps, float* scratch) {
  Row rows[1] = {x};
  normalise(rows, eps, *reinterpret_cast<float (*)[2][1][32]>(scratch));
  return rows[0];
}

/** x·weight + bias. */
__device__ __forceinline__ Row affine(Row x, const Row& weight, const Row& bias) {
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    float4& p = x.part[i];
    const float4 w = weight.part[i], b = bias.part[i];
    p.x = p.x * w.x + b.x;
    p.y = p.y * w.y + b.y;
    p.z = p.z * w.z + b.z;
    p.w = p.w * w.w + b.w;
  }
  return x;
}

__device__ __forceinline__ Row layer_norm(Row x, const float* weight, const float* bias, float eps,
                                          float* scratch) {
  x = normalise(x, eps, scratch);
  return affine(x, load_row(weight), load_row(bias));
}
