// What the step before drew becomes what this one feeds. A row of the token −1 − s gets draw s; one
// that must not run, because its draw is among its stops or was not finite, gets token 0 and the
// scratch slot for its state and its penalty counts: what it does there is seen by nobody. One
// block. Everything of the step reads its slots after this kernel has ended: it never lets the next
// one start. Those that read them before they wait (shift_mix_decode, wkv7_decode) have only that
// order, so what is written here is there for all before the block ends.
#include "common.cuh"

struct TakeDraws {
  int* tokens;       // those of Step, to be written
  int* slots;
  int* sample_slot;
  const int* sampled;  // of the step before
  const int* stop_starts;  // [B + 1]
  const int* stop_ids;
};

constexpr int kThreads = 256;
/** Every pool has it, before slot 0. */
constexpr int kScratchSlot = -1;

/** The token that a row feeds, or −1 where it does not run. */
__device__ int fed_by(const Step& step, const TakeDraws& op, int row) {
  const int token = step.tokens[step.starts[row]];
  if (token >= 0) return token;
  const int drawn = op.sampled[-1 - token];
  for (int i = op.stop_starts[row]; i < op.stop_starts[row + 1]; i++)
    if (op.stop_ids[i] == drawn) return -1;
  return drawn;
}

extern "C" __global__ void __launch_bounds__(kThreads) take_draws(Step step, TakeDraws op) {
  wait_for_previous();
  for (int s = threadIdx.x; s < step.num_samples(); s += kThreads) {
    const int token = step.logit_rows[step.sample_row[s]];
    // From what an earlier step kept.
    if (token < 0) continue;
    const int row = step.token_rows[token];
    if (fed_by(step, op, row) < 0) op.sample_slot[s] = kScratchSlot;
  }
  // The tokens above are those of the batch.
  __syncthreads();
  for (int row = threadIdx.x; row < step.num_rows(); row += kThreads) {
    const int at = step.starts[row];
    if (step.tokens[at] >= 0) continue;
    const int token = fed_by(step, op, row);
    if (token < 0) op.slots[row] = kScratchSlot;
    op.tokens[at] = max(token, 0);
  }
  __threadfence();
}
