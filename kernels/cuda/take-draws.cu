// Fetches the batch of a small step from the host, and feeds the draws of the previous step to it. A row whose token is −1 − s gets draw s. If
// that draw is one of the row's stop tokens or was not finite, the row must not run: it gets token
// 0, and the scratch slot for its state and its penalty counts, where nobody sees what it does. One
// block. This kernel never lets the next one start early, because everything in the step reads the
// slots that it writes. Some kernels read them before they wait (shift_mix_decode, wkv7_decode) and
// rely on that order alone, so the block makes its writes visible before it ends.
#include "common.cuh"

struct TakeDraws {
  int* tokens;  // the tokens of Step, to be overwritten
  int* slots;
  int* sample_slot;
  const int* sampled;      // of the previous step
  const int* stop_starts;  // [B + 1]
  const int* stop_ids;
};

/** A batch in page-locked memory, where the host puts each in its turn. */
struct Fetched {
  /** `words` from one to the next; null if a copy has brought the batch. */
  const u32* images;
  /** The batch in device memory, at `counts` of Step. */
  u32* batch;
  /** Whose turn it is. */
  u32* turn;
  int num_images, words;
  /** Where the ids and values of biases begin, which may lie far behind the rest. */
  int bias_ids, bias_values;
};

constexpr int kThreads = 256;
/** Among the counts: words of a batch before its biases, and the number of those. */
constexpr int kWords = 6, kBiases = 7;
/** Every pool has this slot, before slot 0. */
constexpr int kScratchSlot = -1;

/** The token that a row feeds, or −1 if it must not run. */
__device__ int fed_by(const Step& step, const TakeDraws& op, int row) {
  const int token = step.tokens[step.starts[row]];
  if (token >= 0) return token;
  const int drawn = op.sampled[-1 - token];
  for (int i = op.stop_starts[row]; i < op.stop_starts[row + 1]; i++)
    if (op.stop_ids[i] == drawn) return -1;
  return drawn;
}

/** Copies the batch of this step. */
__device__ void fetch(const Fetched& op) {
  __shared__ u32 counts[8];
  const u32 turn = *op.turn;
  const volatile u32* const image = op.images + (long long)turn * op.words;
  // Most batches are no longer than this. What lies behind a shorter one nobody reads.
  const u32 first = image[threadIdx.x];
  if (threadIdx.x < 8) counts[threadIdx.x] = first;
  op.batch[threadIdx.x] = first;
  __syncthreads();
  for (u32 i = kThreads + threadIdx.x; i < counts[kWords]; i += kThreads) op.batch[i] = image[i];
  for (u32 i = threadIdx.x; i < counts[kBiases]; i += kThreads) {
    op.batch[op.bias_ids + i] = image[op.bias_ids + i];
    op.batch[op.bias_values + i] = image[op.bias_values + i];
  }
  if (threadIdx.x == 0) *op.turn = (int)turn + 1 == op.num_images ? 0 : turn + 1;
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads)
    take_draws(Step step, TakeDraws op, Fetched fetched) {
  wait_for_previous();
  if (fetched.images != nullptr) fetch(fetched);
  for (int s = threadIdx.x; s < step.num_samples(); s += kThreads) {
    const int token = step.logit_rows[step.sample_row[s]];
    // This draw uses a row that an earlier step kept.
    if (token < 0) continue;
    const int row = step.token_rows[token];
    if (fed_by(step, op, row) < 0) op.sample_slot[s] = kScratchSlot;
  }
  // The loop above reads the original tokens of the batch.
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
