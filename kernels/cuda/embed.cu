// x[t] = LN(table[tokens[t]]).  x f32 (f16 with OUT_F16) [T, C] · table [V, C] of f16, bf16 or f32
// (TABLE_TYPE 1, 2, 0) or of GGUF's blocks of type BLOCK (3). One block per token. Tolerance: 1e-5
// RMS against reference/ops.ts.
#include "norm.cuh"
#if TABLE_TYPE == 3
#include "gguf-blocks.cuh"
#endif

__device__ __forceinline__ float4 load_entry(const void* table, long long row, int i) {
#if TABLE_TYPE == 0
  return reinterpret_cast<const float4*>(table)[row * kGroups + i];
#elif TABLE_TYPE == 3
  const u8* const block =
      block_of(static_cast<const u8*>(table) + row * (CHANNELS / kBlockInputs) * kBlockBytes, 4 * i);
  const int at = 4 * i % kBlockInputs;
  const float scale = block_scale(block, at / kScaleInputs);
  const float minimum = kBlockHasMinimum ? block_minimum(block, at / kScaleInputs) : 0.0f;
  const auto value = [&](int n) {
    return (block_code(block, at / 32, at % 32 + n) - kBlockZero) * scale + minimum;
  };
  return make_float4(value(0), value(1), value(2), value(3));
#else
  const uint2 bits = reinterpret_cast<const uint2*>(table)[row * kGroups + i];
#if TABLE_TYPE == 1
  const float2 lo = unpack(bits.x), hi = unpack(bits.y);
  return make_float4(lo.x, lo.y, hi.x, hi.y);
#else
  return make_float4(bf16_to_float(bits.x & 0xffff), bf16_to_float(bits.x >> 16),
                     bf16_to_float(bits.y & 0xffff), bf16_to_float(bits.y >> 16));
#endif
#endif
}

#ifdef OUT_F16
using Out = f16;
#else
using Out = float;
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    embed(Step step, Out* x, const void* table, const float* weight, const float* bias,
          float eps) {
  __shared__ float scratch[64];
  let_next_start();
  wait_for_previous();
  const int t = blockIdx.x;
  if (t >= step.num_tokens()) return;
  const int token = step.tokens[t];
  Row row;
#pragma unroll
  for (int i = 0; i < kPer; i++)
    row.part[i] = owns(i) ? load_entry(table, token, group(i)) : make_float4(0, 0, 0, 0);
  store_row(x + (long long)t * CHANNELS, layer_norm(row, weight, bias, eps, scratch));
}
