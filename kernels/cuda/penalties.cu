// Marks the tokens of a prompt as seen.  flags u8 [V] of one slot: 1 in the prompt, 2 generated
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    mark_prompt(u8* flags, const int* tokens, int count, int vocab) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < count && tokens[i] >= 0 && tokens[i] < vocab) flags[tokens[i]] = 1;
}
