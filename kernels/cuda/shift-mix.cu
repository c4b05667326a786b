// Layer norm, token shift and channel mixes. For token t of a row:
//   h = LN(x[t]);  d = previous h of the row − h;  out[i][t] = h + d·mix[i]
// x f32 [T, C] · out n × f16 [T, C] · mix n × f32 [C] · shift f32, one vector [C] per slot,
// slot_stride numbers apart.
// A block takes TOKENS adjacent tokens, which share their loads, the barriers of their sums, and
// the mixes. The h of the token before a block is computed again from x. The block with a row's
// last token must not update the row's shift vector, because the block with its first token may not
// have read it yet. With TOKENS = 1 the block of the first token updates it: it reads the old
// vector and needs no h before, so it computes the h of the last token instead. With more tokens
// shift_commit does it in the next launch. Rows of one token come first, and their token t is row
// t. shift_mix_decode takes them: it needs no list of rows and no h of a token before.
#include "norm.cuh"

#define MAX_MIXES 6

struct Mixes {
  f16* out[MAX_MIXES];
  const float* mix[MAX_MIXES];
};

/** x + (to − x)·share. */
__device__ __forceinline__ Row moved(Row x, const Row& to, const Row& share) {
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    float4& c = x.part[i];
    const float4 p = to.part[i], m = share.part[i];
    c = make_float4(c.x + (p.x - c.x) * m.x, c.y + (p.y - c.y) * m.y, c.z + (p.z - c.z) * m.z,
                    c.w + (p.w - c.w) * m.w);
  }
  return x;
}

/** Threads that the registers must suffice for on a multiprocessor, so that all blocks of a step of
 * 320 tokens run at once. */
#if TOKENS == 1 && __CUDA_ARCH__ >= 800
constexpr int kResident = 1536;
#else
constexpr int kResident = 1024;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, kResident / THREADS)
    shift_mix(Step step, Mixes mixes, const float* x, const float* weight, const float* bias,
              float eps, float* shift, long long slot_stride) {
  __shared__ float scratch[2][TOKENS + 1][32];
  wait_for_previous();
  let_next_start();
  const int first = step.num_singles() + blockIdx.x * TOKENS;
  const int count = min(TOKENS, step.num_tokens() - first);
  if (count <= 0) return;
  // Starts all loads at once. h[i + 1] belongs to token i, h[0] to the token before.
  Row h[TOKENS + 1], previous[TOKENS];
  bool starts[TOKENS];
  int before = first - 1;
#pragma unroll
  for (int i = 0; i < TOKENS; i++) {
    const int t = first + min(i, count - 1), row = step.token_rows[t];
    starts[i] = t == step.starts[row];
    if (!starts[i]) continue;
    previous[i] = load_row(shift + step.slots[row] * slot_stride);
    if (TOKENS == 1) before = step.starts[row + 1] - 1;
  }
#pragma unroll
  for (int i = 0; i <= TOKENS; i++) {
    const int t = i == 0 ? before : first + min(i, count) - 1;
    h[i] = load_row(x + (long long)max(t, 0) * CHANNELS);
  }
  normalise(h, eps, scratch);
  const Row w = load_row(weight), b = load_row(bias);
#pragma unroll
  for (int i = 0; i <= TOKENS; i++) h[i] = affine(h[i], w, b);
  if (TOKENS == 1 && starts[0]) store_row(shift + step.slots[step.token_rows[first]] * slot_stride, h[0]);
#pragma unroll
  for (int i = 0; i < TOKENS; i++) {
    if (!starts[i]) previous[i] = h[i];
    const int keep = i < count ? step.keeps[first + i] : kNowhere;
    if (keep != kNowhere) store_row(shift + keep * slot_stride, h[i + 1]);
  }
#pragma unroll
  for (int n = 0; n < MIXES; n++) {
    const Row mix = load_row(mixes.mix[n]);
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
      if (i < count)
        store_row(mixes.out[n] + (long long)(first + i) * CHANNELS,
                  moved(h[i + 1], previous[i], mix));
    }
  }
}

// Rows of one token, one block each. If the step has longer rows, shift_mix is launched before
// this, and starts it once the kernels before shift_mix have ended. So this need not wait at the
// start; its last block waits at its end instead.
extern "C" __global__ void __launch_bounds__(THREADS, kResident / THREADS)
    shift_mix_decode(Step step, Mixes mixes, const float* x, const float* weight, const float* bias,
                     float eps, float* shift, long long slot_stride) {
  __shared__ float scratch[64];
  let_next_start();
  const int t = blockIdx.x;
  const bool is_padding = t >= step.num_singles();
  // The kernel that wrote this shift ended a step ago or earlier, so this load need not wait.
  float* const at = shift + step.slots[t] * slot_stride;
  Row previous;
  if (!is_padding) previous = load_row(at);
  const bool beside = step.num_rows() > step.num_singles();
  if (is_padding || !beside) wait_for_previous();
  if (is_padding) return;
  const Row h = layer_norm(load_row(x + (long long)t * CHANNELS), weight, bias, eps, scratch);
#pragma unroll
  for (int n = 0; n < MIXES; n++)
    store_row(mixes.out[n] + (long long)t * CHANNELS, moved(h, previous, load_row(mixes.mix[n])));
  store_row(at, h);
  if (beside && is_last_block()) wait_for_previous();
}

// Stores the h of the last token of each longer row as its shift vector.
extern "C" __global__ void __launch_bounds__(THREADS)
    shift_commit(Step step, const float* x, const float* weight, const float* bias, float eps,
                 float* shift, long long slot_stride) {
  __shared__ float scratch[64];
  let_next_start();
  wait_for_previous();
  const int row = step.num_singles() + blockIdx.x;
  if (row >= step.num_rows()) return;
  const int last = step.starts[row + 1] - 1;
  const Row h = layer_norm(load_row(x + (long long)last * CHANNELS), weight, bias, eps, scratch);
  store_row(shift + step.slots[row] * slot_stride, h);
}
