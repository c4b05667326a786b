// DeepEmbed of RWKV-7a: M = own[t] + table[tokens[t]], as [S, S]; u[t] *= s0 + (low[t]·M)·s2.
// u f16 [T, F] · low f16 [T, S] · own f16 [T, S·S] · table f16, bf16 or f32 [V, S·S] (TABLE_TYPE 1,
// 2, 0) in the host's memory · s2 f32 [S, F] · s0 f32 [F] · S = SIDE, a multiple of 8, at most 64 ·
// F a multiple of 4. Bound by the bus: each row is read once. Tolerance: 1e-3 RMS against
// reference/ops.ts.
#include "common.cuh"

constexpr int kEntries = SIDE * SIDE;
constexpr int kThreads = 256;

__device__ __forceinline__ float4 halves_of(const f16* from, long long i) {
  const uint2 bits = reinterpret_cast<const uint2*>(from)[i];
  const float2 lo = unpack(bits.x), hi = unpack(bits.y);
  return make_float4(lo.x, lo.y, hi.x, hi.y);
}

/** Loads four numbers of the table. */
__device__ __forceinline__ float4 entries_of(const void* table, long long i) {
#if TABLE_TYPE == 0
  return reinterpret_cast<const float4*>(table)[i];
#elif TABLE_TYPE == 1
  return halves_of(static_cast<const f16*>(table), i);
#else
  const uint2 bits = reinterpret_cast<const uint2*>(table)[i];
  return make_float4(bf16_to_float(bits.x & 0xffff), bf16_to_float(bits.x >> 16),
                     bf16_to_float(bits.y & 0xffff), bf16_to_float(bits.y >> 16));
#endif
}

/** by[t] = low[t]·M.  by f32 [T, S]. One block per token. */
extern "C" __global__ void __launch_bounds__(kThreads)
    deep_embed_multiply(Step step, float* by, const f16* low, const f16* own, const void* table) {
  __shared__ float4 products[kEntries / 4];
  let_next_start();
  wait_for_previous();
  const long long t = blockIdx.x;
  if (t >= step.num_tokens()) return;
  const long long row = step.tokens[t];
  for (int i = threadIdx.x; i < kEntries / 4; i += kThreads) {
    const float4 entry = entries_of(table, row * (kEntries / 4) + i);
    const float4 added = halves_of(own, t * (kEntries / 4) + i);
    const float scale = to_float(low[t * SIDE + 4 * i / SIDE]);
    products[i] = make_float4(scale * (entry.x + added.x), scale * (entry.y + added.y),
                              scale * (entry.z + added.z), scale * (entry.w + added.w));
  }
  __syncthreads();
  if (threadIdx.x >= SIDE) return;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < SIDE; i++)
    sum += reinterpret_cast<const float*>(products)[i * SIDE + threadIdx.x];
  by[t * SIDE + threadIdx.x] = sum;
}

/** u[t] *= s0 + by[t]·s2. Blocks: [T, parts of F]. */
extern "C" __global__ void __launch_bounds__(kThreads)
    deep_embed_scale(Step step, f16* u, const float* by, const float* s2, const float* s0,
                     int channels) {
  let_next_start();
  wait_for_previous();
  const long long t = blockIdx.x;
  const int f = blockIdx.y * kThreads + threadIdx.x, width = channels / 4;
  if (t >= step.num_tokens() || f >= width) return;
  float4 factor = reinterpret_cast<const float4*>(s0)[f];
#pragma unroll 8
  for (int j = 0; j < SIDE; j++) {
    const float scale = by[t * SIDE + j];
    const float4 column = reinterpret_cast<const float4*>(s2)[j * width + f];
    factor.x += scale * column.x, factor.y += scale * column.y;
    factor.z += scale * column.z, factor.w += scale * column.w;
  }
  const float4 value = halves_of(u, t * width + f);
  reinterpret_cast<uint2*>(u)[t * width + f] =
      make_uint2(pack(saturate_f16(value.x * factor.x), saturate_f16(value.y * factor.y)),
                 pack(saturate_f16(value.z * factor.z), saturate_f16(value.w * factor.w)));
}
