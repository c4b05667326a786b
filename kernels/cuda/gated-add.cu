// x += gate·value, the gated residual of RWKV-6's channel mixing.  x, value f32 [T, C] · gate f16
// [T, C] · C a multiple of 4. Bound by memory. Tolerance: 1e-6 RMS against reference/ops.ts.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    gated_add(Step step, float* x, const f16* gate, const float* value, int channels) {
  let_next_start();
  wait_for_previous();
  const long long count = (long long)step.num_tokens() * (channels / 4);
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += 256ll * gridDim.x) {
    const uint2 packed = reinterpret_cast<const uint2*>(gate)[i];
    const float2 lo = unpack(packed.x), hi = unpack(packed.y);
    const float4 term = reinterpret_cast<const float4*>(value)[i];
    float4 sum = reinterpret_cast<const float4*>(x)[i];
    sum.x += lo.x * term.x, sum.y += lo.y * term.y;
    sum.z += hi.x * term.z, sum.w += hi.y * term.w;
    reinterpret_cast<float4*>(x)[i] = sum;
  }
}
