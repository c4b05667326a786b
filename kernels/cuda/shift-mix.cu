// Layer norm, token shift and channel mixes. Per token t of a row:
//   h = LN(x[t]);  d = previous h of the row − h;  out[i][t] = h + d·mix[i]
// x f32 [T, C] · out n × f16 [T, C] · mix n × f32 [C] · shift f32, one vector [C] a slot,
// slot_stride numbers apart A block takes TOKENS tokens in a row, so that the mixes come from L1
// after the first. The h before a block's first token is computed again from x. A row of one token
// updates its shift vector here; the block of a longer row's last token must not, since that of its
// first may not have read it yet: shift_commit does it in the next launch.
#include "norm.cuh"

#define MAX_MIXES 6

struct Mixes {
  f16* out[MAX_MIXES];
  const float* mix[MAX_MIXES];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    shift_mix(Step step, Mixes mixes, const float* x, const float* weight, const float* bias,
              float eps, float* shift, long long slot_stride) {
  __shared__ float scratch[2][64];
  let_next_start();
  wait_for_previous();
  const int first = blockIdx.x * TOKENS;
  const int end = min(first + TOKENS, step.num_tokens());
  Row previous;
  int parity = 0;
  for (int t = first; t < end; t++) {
    const int row = step.token_rows[t];
    const bool starts_row = t == step.starts[row];
    float* const kept = shift + step.slots[row] * slot_stride;
    if (starts_row) {
      previous = load_row(kept);
    } else if (t == first) {
      previous = layer_norm(load_row(x + (long long)(t - 1) * CHANNELS), weight, bias, eps,
                            scratch[parity ^= 1]);
    }
    const Row h =
        layer_norm(load_row(x + (long long)t * CHANNELS), weight, bias, eps, scratch[parity ^= 1]);
#pragma unroll
    for (int n = 0; n < MIXES; n++) {
      Row y;
#pragma unroll
      for (int i = 0; i < kPer; i++) {
        if (!owns(i)) continue;
        const float4 m = reinterpret_cast<const float4*>(mixes.mix[n])[group(i)];
        const float4 p = previous.part[i], c = h.part[i];
        y.part[i] = make_float4(c.x + (p.x - c.x) * m.x, c.y + (p.y - c.y) * m.y,
                                c.z + (p.z - c.z) * m.z, c.w + (p.w - c.w) * m.w);
      }
      store_row(mixes.out[n] + (long long)t * CHANNELS, y);
    }
    if (starts_row && step.starts[row + 1] == t + 1) store_row(kept, h);
    previous = h;
  }
}

// The shift vector of each row of more than one token becomes the h of its last.
extern "C" __global__ void __launch_bounds__(THREADS)
    shift_commit(Step step, const float* x, const float* weight, const float* bias, float eps,
                 float* shift, long long slot_stride) {
  __shared__ float scratch[64];
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x;
  if (row >= step.num_rows()) return;
  const int last = step.starts[row + 1] - 1;
  if (last == step.starts[row]) return;
  const Row h = layer_norm(load_row(x + (long long)last * CHANNELS), weight, bias, eps, scratch);
  store_row(shift + step.slots[row] * slot_stride, h);
}
