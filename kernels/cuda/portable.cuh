// What CUDA and HIP spell differently: PTX, shuffles within a warp, dependent launches.
// language-cuda.cuh is for nvcc and NVRTC, language-hip.cuh for hipcc and hipRTC; both define the
// same names, and nothing else asks which it is. A warp is 32 lanes in both. Number types are
// defined without the toolkits' headers, because the run-time compilers may run where none are
// installed.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct f16 {
  u16 bits;
};

#ifdef __HIP__
#include "language-hip.cuh"
#else
#include "language-cuda.cuh"
#endif

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ int warp_sum(int x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(0xffffffffu, x);
#else
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
#endif
}
