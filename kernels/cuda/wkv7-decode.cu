// RWKV-7 time mixing of rows of one token, all in one launch: gates, kk, state, group norm, bonus
// and gate; the formulas stand in backend.ts (wkv7), the operands in wkv7.cuh, how a state is held
// in wkv-decode.cuh. A block takes two heads of a row: memory reads the state of the second while
// that of the first is worked on. Bytes: the state, in and out. Tolerance: 2e-3 RMS against
// reference/ops.ts with f32 state (operands are f16).
#include "wkv-decode.cuh"
#include "wkv7.cuh"

/** Heads of a block; the last block has one less where their number is odd. */
constexpr int kHeads = 2;
/** Blocks that registers are left for on a multiprocessor. */
#if STATE_F16 && __CUDA_ARCH__ >= 800
constexpr int kResident = 7;
#elif STATE_F16
constexpr int kResident = 6;
#else
constexpr int kResident = 4;
#endif

/** What is fetched at the start for the end. */
struct Ending {
  float2 g[32], r_k[32], gain[32], bias[32];
};

/** Of one head. */
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

/** The same rows of the head after. */
__device__ __forceinline__ void take_next(HeldRows& held, const HeldRows& before) {
  held.at = before.at + kHeadNumbers;
  held.first_row = before.first_row;
  load_rows(held);
}

extern "C" __global__ void __launch_bounds__(kHeadThreads, kResident)
    wkv7_decode(Step step, const __grid_constant__ Wkv7 op) {
  __shared__ __align__(16) Shared shared[kHeads];
  let_next_start();
  const int first = blockIdx.x * kHeads, heads = min(kHeads, op.channels / 64 - first);
  const int t = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  HeldRows held[kHeads];
  if (!take_head(held[0], step, op, first)) return;

  // Of each head: a warp that begins and ends it, and one that fetches what the end takes.
  static_assert(kHeadWarps == 2 * kHeads, "two warps to a head");
  const int mine = warp % kHeads, head = first + mine;
  Shared& own = shared[mine];
  if (mine < heads && warp >= kHeads) {
    const Finish f = load_finish(op, t, head);
    own.ending.g[lane] = f.g, own.ending.r_k[lane] = f.r_k, own.ending.gain[lane] = f.gain,
    own.ending.bias[lane] = f.bias;
  }
  if (warp < heads) {
    const Raw raw = load_raw(op, t, head);
    keep_first_value(op, raw, t, head);
    share(own.operands, prepare(op, raw, load_constants(op, head)));
  }
  __syncthreads();

  // No channels are fewer than 0.
  const u32 zero = (u32)op.channels >> 31;
#pragma unroll
  for (int n = 0; n < kHeads; n++) {
    if (n >= heads) break;
    share_removed(shared[n], held[n]);
    // A warp's rows are its own. Loads of the next head stay between the two: sooner, a wait for
    // this one's words would be a wait for theirs as well; later, less of them is hidden.
    __syncwarp();
    if (n == 0 && heads == kHeads) take_next(held[1], held[0]);
    __syncwarp();
    float y[kRows] = {};
    advance(shared[n], held[n], zero, y);
    __syncwarp();
    share_sums(shared[n].sums, held[n], y);
  }
  float bonus = 0;
  if (warp < heads) {
    const float2 r = load_pair(own.operands.r, 2 * lane), k = load_pair(own.operands.k, 2 * lane),
                 r_k = own.ending.r_k[lane];
    bonus = warp_sum(r.x * k.x * r_k.x + r.y * k.y * r_k.y);
  }
  __syncthreads();
  if (warp >= heads) return;
  const Finish f = {own.ending.g[lane], own.ending.r_k[lane], own.ending.gain[lane],
                    own.ending.bias[lane]};
  finish(op, t, head, load_pair(own.sums, 2 * lane), bonus, load_pair(own.operands.v, 2 * lane), f);
}
