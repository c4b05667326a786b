// out[r] = LN(x[logit_rows[r]]).  out f16 [R, C] · x f32 [T, C].  One block a row.
#include "norm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gather_norm(Step step, f16* out, const float* x, const float* weight, const float* bias,
                float eps) {
  __shared__ float scratch[64];
  let_next_start();
  wait_for_previous();
  const int r = blockIdx.x;
  if (r >= step.num_logits()) return;
  const Row row = load_row(x + (long long)step.logit_rows[r] * CHANNELS);
  store_row(out + (long long)r * CHANNELS, layer_norm(row, weight, bias, eps, scratch));
}
