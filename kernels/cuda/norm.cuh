// Layer norm of one row by one block, with the row in registers. CHANNELS (a multiple of 4) and
// THREADS are fixed when the kernel is compiled: thread i owns the groups of 4 channels i, i +
// THREADS, …
#pragma once
#include "common.cuh"

constexpr int kGroups = CHANNELS / 4;
constexpr int kPer = (kGroups + THREADS - 1) / THREADS;

struct Row {
  float4 part[kPer];
};

__device__ __forceinline__ bool owns(int i) {
  return kGroups % THREADS == 0 || threadIdx.x + i * THREADS < kGroups;
}

/** Index of the thread's group i. */
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

/** (x − mean) / √(var + eps), the variance from the differences. scratch: shared [64] */
__device__ __forceinline__ Row normalise(Row x, float eps, float* scratch) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPer; i++) sum += (x.part[i].x + x.part[i].y) + (x.part[i].z + x.part[i].w);
  const float mean = block_sum<THREADS>(sum, scratch) * (1.0f / CHANNELS);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    if (!owns(i)) continue;
    float4& p = x.part[i];
    p.x -= mean, p.y -= mean, p.z -= mean, p.w -= mean;
    squares += (p.x * p.x + p.y * p.y) + (p.z * p.z + p.w * p.w);
  }
  const float variance = block_sum<THREADS>(squares, scratch + 32) * (1.0f / CHANNELS);
  const float scale = rsqrtf(variance + eps);
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    float4& p = x.part[i];
    p.x *= scale, p.y *= scale, p.z *= scale, p.w *= scale;
  }
  return x;
}

/** x·weight + bias */
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
