// Rounds to e4m3 (8 bits: 4 of exponent, 3 of fraction) with one f32 scale per row: weights at
// load, activations (a row is a token) in every step. scale = largest / 448, or 0 for a row of
// zeros. A NaN makes the scale of its row NaN, and so all outputs of that row, but of no other row.
// Needs compute capability 8.9.
#include "common.cuh"

#define MAX_JOBS 8
#define THREADS 256
/** The largest number of e4m3. */
#define LARGEST 448.0f
/** A row whose largest magnitude is below this becomes zeros, because its scale would be
 * denormal. */
#define MIN_LARGEST 7.8886090522101181e-31f

/** The bits of the largest magnitude over a block. The bits of a NaN are above all others. */
__device__ __forceinline__ u32 block_max(u32 x, u32* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1)
    x = max(x, __shfl_xor_sync(0xffffffffu, x, offset));
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) x = max(x, scratch[i]);
  return x;
}

__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

struct Scaled {
  float scale, inverse;
};

__device__ __forceinline__ Scaled scaled(u32 largest_bits) {
  const float largest = __uint_as_float(largest_bits);
  if (largest < MIN_LARGEST) return {0.0f, 0.0f};
  return {largest / LARGEST, LARGEST / largest};
}

#if SOURCE == 0
__device__ __forceinline__ float4 read4(const void* x, long long i) {
  return static_cast<const float4*>(x)[i];
}
#else
__device__ __forceinline__ float4 read4(const void* x, long long i) {
  const uint2 v = static_cast<const uint2*>(x)[i];
#if SOURCE == 1
  const float2 lo = unpack(v.x), hi = unpack(v.y);
  return make_float4(lo.x, lo.y, hi.x, hi.y);
#else
  return make_float4(bf16_to_float(v.x), bf16_to_float(v.x >> 16), bf16_to_float(v.y),
                     bf16_to_float(v.y >> 16));
#endif
}
#endif

/** A block rounds one row, `groups` groups of 4 numbers. */
__device__ __forceinline__ void round_row(u32* out, float* scale, const void* in, int groups,
                                          long long row) {
  __shared__ u32 scratch[THREADS / 32];
  const long long first = row * groups;
  u32 largest = 0;
  for (int i = threadIdx.x; i < groups; i += THREADS) {
    const float4 v = read4(in, first + i);
    largest =
        max(max(largest, max(magnitude(v.x), magnitude(v.y))), max(magnitude(v.z), magnitude(v.w)));
  }
  const Scaled s = scaled(block_max(largest, scratch));
  for (int i = threadIdx.x; i < groups; i += THREADS) {
    const float4 v = read4(in, first + i);
    out[first + i] = to_e4m3(v.x * s.inverse, v.y * s.inverse, v.z * s.inverse, v.w * s.inverse);
  }
  if (threadIdx.x == 0) scale[row] = s.scale;
}

// in [rows, 4·groups] of type SOURCE → out e4m3, scale [rows]. One block per row, at load.
extern "C" __global__ void __launch_bounds__(THREADS)
    round_weights(u32* out, float* scale, const void* in, int groups) {
  round_row(out, scale, in, groups, blockIdx.x);
}

/** One x of a step: f16 [T, columns]. */
struct RoundJob {
  u32* out;
  float* scale;
  const f16* in;
  long long columns;
};

struct RoundJobs {
  RoundJob job[MAX_JOBS];
  /** The index of T in the step's counts: 0 tokens, 2 logits rows. */
  int count_index;
};

// Rounds the x of several products. One block per token; blockIdx.y is the job.
extern "C" __global__ void __launch_bounds__(THREADS)
    round_tokens(Step step, const __grid_constant__ RoundJobs jobs) {
  let_next_start();
  wait_for_previous();
  if ((int)blockIdx.x >= step.counts[jobs.count_index]) return;
  const RoundJob& job = jobs.job[blockIdx.y];
  round_row(job.out, job.scale, job.in, job.columns / 4, blockIdx.x);
}

// y = epilogue(sums·row_scale·token_scale), for products that the library computes without scales.
//   sums f32 [T, rows] · y f16 or f32 [T, rows] · kAdd adds to y
extern "C" __global__ void __launch_bounds__(THREADS)
    scale_sums(Step step, void* y, const float* sums, const float* row_scales,
               const float* token_scales, int rows, int count_index, int is_f32, int is_added) {
  let_next_start();
  wait_for_previous();
  const long long count = (long long)step.counts[count_index] * rows;
  for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count;
       i += (long long)THREADS * gridDim.x) {
    float value = sums[i] * row_scales[i % rows] * token_scales[i / rows];
    if (is_f32) {
      float* const to = static_cast<float*>(y) + i;
      *to = is_added ? *to + value : value;
    } else {
      f16* const to = static_cast<f16*>(y) + i;
      *to = to_f16(is_added ? to_float(*to) + value : value);
    }
  }
}
