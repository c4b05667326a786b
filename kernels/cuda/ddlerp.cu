// RWKV-6's data-dependent token shift, in place:
//   mix[i] ← h + (prev − h)·(base[i] + mix[i])
// mix MIXES × f16 [T, C] · h, prev f16 [T, C] · base MIXES × f32 [C] · C a multiple of 8
// Bound by memory. A thread computes all mixes of 8 channels of a token, so h and prev are read
// once. Tolerance: 1e-3 RMS against reference/ops.ts (operands and results are f16).
#include "common.cuh"

#define MAX_MIXES 5

struct Lerps {
  f16* mix[MAX_MIXES];
  const float* base[MAX_MIXES];
};

extern "C" __global__ void __launch_bounds__(256)
    ddlerp(Step step, const __grid_constant__ Lerps lerps, const f16* h, const f16* prev,
           int channels) {
  let_next_start();
  wait_for_previous();
  const int groups = channels / 8;
  const long long count = (long long)step.num_tokens() * groups;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += 256ll * gridDim.x) {
    const uint4 now = reinterpret_cast<const uint4*>(h)[i];
    const uint4 before = reinterpret_cast<const uint4*>(prev)[i];
    const u32 nows[4] = {now.x, now.y, now.z, now.w};
    const u32 befores[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
    for (int n = 0; n < MIXES; n++) {
      uint4 packed = reinterpret_cast<uint4*>(lerps.mix[n])[i];
      u32* const words = reinterpret_cast<u32*>(&packed);
      const float* const base = lerps.base[n] + i % groups * 8;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 c = unpack(nows[j]), p = unpack(befores[j]), m = unpack(words[j]);
        words[j] = pack(c.x + (p.x - c.x) * (base[2 * j] + m.x),
                        c.y + (p.y - c.y) * (base[2 * j + 1] + m.y));
      }
      reinterpret_cast<uint4*>(lerps.mix[n])[i] = packed;
    }
  }
}
