// out[r] = LN(x[logit_rows[r]]), or a weighted sum of blend_counts[r] such rows, from r on. If
// kept_as[r] = 1 + p, the result is also stored as kept[p]. If logit_rows[r] = −1 − p, the result
// is read from kept[p].  out f16 [R, C] · x f32 [T, C] · kept f16 [places, C].  One block per row.
#include "norm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gather_norm(Step step, f16* out, const float* x, const float* weight, const float* bias,
                float eps, const int* kept_as, f16* kept) {
  __shared__ float scratch[64];
  let_next_start();
  wait_for_previous();
  const int r = blockIdx.x;
  if (r >= step.num_logits()) return;
  f16* const to = out + (long long)r * CHANNELS;
  if (step.logit_rows[r] < 0) {
    const f16* const from = kept + (long long)(-1 - step.logit_rows[r]) * CHANNELS;
#pragma unroll
    for (int i = 0; i < kPer; i++)
      if (owns(i))
        reinterpret_cast<uint2*>(to)[group(i)] = reinterpret_cast<const uint2*>(from)[group(i)];
    return;
  }
  const auto normed = [&](int from) {
    const Row row = load_row(x + (long long)step.logit_rows[from] * CHANNELS);
    return layer_norm(row, weight, bias, eps, scratch);
  };
  Row row = normed(r);
  const int count = step.blend_counts[r];
  if (count > 1) {
    row = times(row, step.blend_weights[r]);
    for (int i = 1; i < count; i++) {
      __syncthreads();
      row = plus(row, times(normed(r + i), step.blend_weights[r + i]));
    }
  }
  store_row(to, row);
  if (kept_as[r] > 0) store_row(kept + (long long)(kept_as[r] - 1) * CHANNELS, row);
}
