// RWKV-7 time mixing of rows of one token, all in one launch, a block a head of a row: gates, kk,
// state, group norm, bonus and gate; the formulas stand in backend.ts (wkv7), the operands in
// wkv7.cuh, how a state is held in wkv-decode.cuh. Bytes: the state, in and out. Tolerance: 2e-3
// RMS against reference/ops.ts with f32 state (operands are f16).
#include "wkv-decode.cuh"
#include "wkv7.cuh"

/** What is fetched at the start for the end. */
struct Ending {
  float2 g[32], r_k[32], gain[32], bias[32];
};

struct Shared {
  Operands operands;
  Ending ending;
  /** Of each value row: first S·kk, then y. */
  float sums[64];
};

/** S·kk of the lane's rows, brought to where all find it. */
__device__ __forceinline__ void share_removed(Shared& sh, const HeldRows& held) {
  float part[kRows];
  const Eight kk = eight(sh.operands.kk, lane_of_row());
#pragma unroll
  for (int i = 0; i < kRows; i++) part[i] = dot(open_row(held, i), kk);
  share_sums(sh.sums, held, part);
}

/** S ← S·diag(w) − (S·kk)·b + v·k, stored; a lane's shares of y = S·r. */
__device__ __forceinline__ void advance(const Shared& sh, const HeldRows& held, u32 zero,
                                        float (&y)[kRows]) {
  const Operands& o = sh.operands;
  const int q = lane_of_row();
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float w[4], b[4], k[4], r[4];
    const int at = 32 * half + 4 * q;
    load4(w, o.w + at), load4(b, o.b + at), load4(k, o.k + at), load4(r, o.r + at);
#pragma unroll
    for (int first = 0; first < kRows; first += 4) {
      float removed[4], v[4];
      load4(removed, sh.sums + held.first_row + first);
      load4(v, o.v + held.first_row + first);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int i = first + j, row = held.first_row + i;
        float s[4];
        open_half(s, held, half, i, zero);
#pragma unroll
        for (int c = 0; c < 4; c++) {
          s[c] = s[c] * w[c] + (-removed[j] * b[c] + v[j] * k[c]);
          y[i] += s[c] * r[c];
        }
        store4(held.at + 64 * i + 32 * half, s, row_noise(v[j], k[0], row * 16 + 2 * q + half));
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kHeadThreads, kHeadsResident)
    wkv7_decode(Step step, const __grid_constant__ Wkv7 op) {
  __shared__ __align__(16) Shared sh;
  let_next_start();
  const int head = blockIdx.x, t = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  HeldRows held;
  if (!take_head(held, step, op)) return;

  if (warp == kHeadWarps - 1) {
    const Finish f = load_finish(op, t, head);
    sh.ending.g[lane] = f.g, sh.ending.r_k[lane] = f.r_k, sh.ending.gain[lane] = f.gain,
    sh.ending.bias[lane] = f.bias;
  }
  if (warp == 0) {
    const Raw raw = load_raw(op, t, head);
    keep_first_value(op, raw, t, head);
    share(sh.operands, prepare(op, raw, load_constants(op, head)));
  }
  __syncthreads();

  share_removed(sh, held);
  // A warp's rows are its own.
  __syncwarp();
  float y[kRows] = {};
  // No channels are fewer than 0.
  advance(sh, held, (u32)op.channels >> 31, y);
  __syncwarp();
  share_sums(sh.sums, held, y);
  float bonus = 0;
  if (warp == 0) {
    const float2 r = load_pair(sh.operands.r, 2 * lane), k = load_pair(sh.operands.k, 2 * lane),
                 r_k = sh.ending.r_k[lane];
    bonus = warp_sum(r.x * k.x * r_k.x + r.y * k.y * r_k.y);
  }
  __syncthreads();
  if (warp != 0) return;
  const Finish f = {sh.ending.g[lane], sh.ending.r_k[lane], sh.ending.gain[lane],
                    sh.ending.bias[lane]};
  finish(op, t, head, load_pair(sh.sums, 2 * lane), bonus, load_pair(sh.operands.v, 2 * lane), f);
}
