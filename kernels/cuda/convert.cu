// Converts checkpoint numbers to f16 at load. in: bf16 (SOURCE 2), f32 (0) or f16 (1). out: f16;
// values beyond its range become the largest one.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    convert(f16* out, const void* in, long long count) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += 256ll * gridDim.x) {
#if SOURCE == 0
    out[i] = to_f16(saturate_f16(static_cast<const float*>(in)[i]));
#elif SOURCE == 1
    out[i] = static_cast<const f16*>(in)[i];
#else
    out[i] = to_f16(saturate_f16(bf16_to_float(static_cast<const u16*>(in)[i])));
#endif
  }
}

// Converts states, which the host keeps as f16, to f32. out f32 · in f16
extern "C" __global__ void __launch_bounds__(256)
    widen(float* out, const f16* in, long long count) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += 256ll * gridDim.x) {
    out[i] = to_float(in[i]);
  }
}

// to[k, m] = from[m, k], once at load.
extern "C" __global__ void __launch_bounds__(256)
    transpose(f16* to, const f16* from, int rows, int columns) {
  __shared__ f16 tile[32][33];
  const int x = threadIdx.x & 31, y = threadIdx.x >> 5;
  for (int i = y; i < 32; i += 8) {
    const int row = blockIdx.y * 32 + i, column = blockIdx.x * 32 + x;
    if (row < rows && column < columns) tile[i][x] = from[(long long)row * columns + column];
  }
  __syncthreads();
  for (int i = y; i < 32; i += 8) {
    const int row = blockIdx.y * 32 + x, column = blockIdx.x * 32 + i;
    if (row < rows && column < columns) to[(long long)column * rows + row] = tile[x][i];
  }
}
