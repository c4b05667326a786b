// Kernels for the tests of the runtime: they do next to nothing, and one of them what it must not.
#include <cuda_fp16.h>
#include "probe.cuh"

#ifndef SCALE
#define SCALE 1
#endif

struct Offsets {
  int first;
  float second;
  long long third;
};

// y[i] = SCALE·a·x[i] + b, with an offset out of a struct
extern "C" __global__ void affine(float *y, const float *x, float a, int count, Offsets offsets) {
  int i = index();
  if (i < count) y[i] = SCALE * a * x[i] + offsets.first + offsets.second + offsets.third;
}

extern "C" __global__ void to_half(__half *y, const float *x, int count) {
  int i = index();
  if (i < count) y[i] = __float2half(x[i]);
}

extern "C" __global__ void count_up(int *counter) {
  if (threadIdx.x == 0) atomicAdd(counter, 1);
}

// Each block sums what its cluster's blocks hold in shared memory.
extern "C" __global__ void shared_sum(float *y, int floats) {
  extern __shared__ float values[];
  for (int i = threadIdx.x; i < floats; i += blockDim.x) values[i] = 1.0f;
  __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < floats; i += blockDim.x) sum += values[i];
  atomicAdd(y, sum);
}

#if __CUDA_ARCH__ >= 900
// Reads what the kernel before wrote, after waiting for it.
extern "C" __global__ void follow(int *seen, const int *counter) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (threadIdx.x == 0) atomicAdd(seen, *counter);
}

extern "C" __global__ void cluster_rank(int *ranks) {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) ranks[blockIdx.x] = rank;
}
#endif

extern "C" __global__ void out_of_bounds(int *nowhere) { nowhere[threadIdx.x] = 1; }
