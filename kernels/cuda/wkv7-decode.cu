// RWKV-7 time mixing of rows of one token, in one launch: gates, kk, state, group norm, bonus and
// gate. backend.ts (wkv7) has the formulas, wkv7.cuh the operands, wkv-decode.cuh the way a state
// is held. A block takes two heads of a row: the state of the second is loaded while the first is
// computed. With a log (wkv7-log.cuh), steps of many rows write a state only every few tokens.
// Memory traffic: reads the state, and writes it or the log. Tolerance: 2e-3 RMS against
// reference/ops.ts with f32 state (operands are f16).
// Rows of several tokens have kernels of their own. They are launched before this one, and start it
// once the kernels before them have ended. So this one need not wait at the start, and runs beside
// them. The last block waits at its end, so a kernel that waits for this one waits for all of them.
// If every block did, the first to run would keep their places from all others.
#include "wkv7-log.cuh"

/** Heads per block; the last block has one less if their number is odd. */
constexpr int kHeads = 2;
/** Blocks that the registers must suffice for on a multiprocessor. */
#if STATE_F16 && __CUDA_ARCH__ >= 800
constexpr int kResident = 7;
#elif STATE_F16
constexpr int kResident = 6;
#else
constexpr int kResident = 4;
#endif
/** With at least this many heads of rows of one token, a step lets their logs grow. With fewer, it
 * writes the states. */
constexpr int kLogHeads = LOG_HEADS;

/** What is loaded at the start and used at the end. */
struct Ending {
  float2 g[32], r_k[32], gain[32], bias[32];
};

/** Shared memory of one head. */
struct Shared {
  Operands operands;
  Ending ending;
  /** Per value row: first S·kk, then y. */
  float sums[64];
};

/** S ← S·diag(w) − (S·kk)·b + v·k, stored only if `writes`; adds the lane's shares of y = S·r. */
__device__ __forceinline__ void advance(const Shared& sh, const HeldRows& held, u32 zero,
                                        bool writes, float (&y)[kRows]) {
  const Operands& o = sh.operands;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float r[4];
    load4(r, o.r + 32 * half + 4 * lane_of_row());
    change_half(held, o, sh.sums, half, zero, [&](int i, const float(&s)[4], u32 noise) {
#pragma unroll
      for (int c = 0; c < 4; c++) y[i] += s[c] * r[c];
      if (writes) store4(held.at + 64 * i + 32 * half, s, noise);
    });
  }
}

/** Starts the loads of the same rows of the next head. */
__device__ __forceinline__ void take_next(HeldRows& held, const HeldRows& before) {
  held.at = before.at + kHeadNumbers;
  held.first_row = before.first_row;
  load_rows(held);
}

/** Whether the log ends with this token. The heads of a slot take turns, so that every step of the
 * same rows writes equally many states. */
__device__ __forceinline__ bool is_full(const HeadLog& log, int head) {
  return log.count() >= kLogged || log.turn() == head % (kLogged + 1);
}

/** Updates the counts of a log, after the token was logged or after the state was written with all
 * of the log. */
__device__ __forceinline__ void count_on(const HeadLog& log, bool grows, bool may_grow) {
  const int turn = may_grow ? (log.turn() + 1) % (kLogged + 1) : log.turn();
  const int word = turn << 8 | (grows ? log.count() + 1 : 0);
  if (word != log.word) *log.at = word;
}

extern "C" __global__ void __launch_bounds__(kHeadThreads, kResident)
    wkv7_decode(Step step, const __grid_constant__ Wkv7 op,
                const __grid_constant__ StateLog state_log) {
  __shared__ __align__(16) Shared shared[kHeads];
  __shared__ __align__(16) Change lacking[kHeads][kHasLog ? kLogged : 1];
  let_next_start();
  const int first = blockIdx.x * kHeads, heads = min(kHeads, op.channels / 64 - first);
  const int t = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  HeadLog logs[kHeads] = {};
  if (kHasLog && t < step.num_singles())
#pragma unroll
    for (int n = 0; n < kHeads; n++)
      if (n < heads) logs[n] = open_log(state_log, step.slots[t], first + n);
  HeldRows held[kHeads];
  const bool beside = step.num_rows() > step.num_singles();
  if (!take_head(held[0], step, op, first, beside)) return;

  // Per head: one warp that starts and finishes it, and one that loads what the end needs.
  static_assert(kHeadWarps == 2 * kHeads, "two warps per head");
  const int mine = warp % kHeads, head = first + mine;
  Shared& own = shared[mine];
  const bool begins = warp < heads, helps = mine < heads && warp >= kHeads;
  Raw raw;
  Constants constants;
  Finish ending;
  if (begins) raw = load_raw(op, t, head), constants = load_constants(op, head);
  if (helps) ending = load_finish(op, t, head);
  const bool may_grow = step.num_singles() * (op.channels / 64) >= kLogHeads;
  bool writes[kHeads];
#pragma unroll
  for (int n = 0; n < kHeads; n++) {
    if (kHasLog) fetch(lacking[n], logs[n]);
    writes[n] = !kHasLog || !may_grow || is_full(logs[n], first + n);
  }
  const HeadLog log = mine == 0 ? logs[0] : logs[1];
  const bool grows = !(mine == 0 ? writes[0] : writes[1]);
  if (begins) {
    keep_first_value(op, raw, t, head);
    const Prepared p = prepare(op, raw, constants);
    share(own.operands, p);
    if (kHasLog && grows) put(log.changes[log.count()], p);
  }
  if (helps)
    own.ending.g[lane] = ending.g, own.ending.r_k[lane] = ending.r_k,
    own.ending.gain[lane] = ending.gain, own.ending.bias[lane] = ending.bias;
  if (kHasLog) await_copies();
  __syncthreads();
  // All threads have read the counts.
  if (kHasLog && begins && lane == 0) count_on(log, grows, may_grow);

  // The number of channels is never negative, so this is 0. The compiler does not know that.
  const u32 zero = (u32)op.channels >> 31;
#pragma unroll
  for (int n = 0; n < kHeads; n++) {
    if (n >= heads) break;
    Shared& sh = shared[n];
    const int count = kHasLog ? logs[n].count() : 0;
    for (int i = 0; i < count; i++) bring_in(held[n], lacking[n][i], sh.sums, zero);
    share_removed(sh.sums, held[n], sh.operands);
    // The loads of the next head start here, between two steps of this head. Earlier, waiting for
    // this head's words would wait for those loads as well. Later, less of them would overlap.
    if (n == 0 && heads == kHeads) take_next(held[1], held[0]);
    __syncwarp();
    float y[kRows] = {};
    advance(sh, held[n], zero, writes[n], y);
    __syncwarp();
    share_sums(sh.sums, held[n], y);
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
  if (beside && is_last_block()) wait_for_previous();
}
