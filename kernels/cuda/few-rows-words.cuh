// Numbers that the blocks of few-rows.cu hand to each other without a barrier (WORDS). A number and
// the epoch of its layer are one word of 64 bits; whoever needs the number polls the word. There
// are a few copies of each word, because blocks that poll the same line wait for each other.
//
// - A word cannot tear: it is stored by one access of 64 bits, and loaded by one (the two of a
//   vector load are two such accesses).
// - It needs no other order. The number comes with its epoch. A word is written again a layer
//   later, after its block has taken x of all blocks, and each of them gave x after it had taken
//   all that it needs of the phases before: a GPU stores nothing before the loads that decide
//   whether, and what, it stores.
// - No block waits for one that waits for it: all are resident, what a block gives depends on
//   phases before alone, and to give never waits.
#pragma once
#include "few-rows-barrier.cuh"

static_assert(!WORDS || (!FEED && CHANNELS >= BLOCKS && KEYS >= 2 * BLOCKS),
              "every block gives x and outputs of key");

constexpr int kCopies = 4;
/** Where the words of a copy are: x after `output` and after `value`, outputs of heads and of key
 * (two halves a word), and outputs of `in`, as in FewRows::y. */
constexpr int kAfterOutput = 0, kAfterValue = TOKENS * CHANNELS, kOfHeads = 2 * kAfterValue;
constexpr int kOfKey = kOfHeads + TOKENS * CHANNELS / 2, kOfIn = kOfKey + TOKENS * KEYS / 2;

struct Words {
  u64* copies;
  /** Words of a copy. */
  int size;
  /** Of the layer; that of a later layer of any launch is greater. */
  u32 epoch;

  __device__ __forceinline__ void give(int at, u32 bits) const {
    const u64 word = (u64)epoch << 32 | bits;
#pragma unroll
    for (int copy = 0; copy < kCopies; copy++) {
      u64* const to = copies + copy * size + at;
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
    }
  }

  /** Loads two numbers; whether both are of this layer. */
  __device__ __forceinline__ bool has_two(uint2& numbers, int at) const {
    const u64* const from = copies + blockIdx.x % kCopies * size + at;
    u64 a, b;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(a), "=l"(b)
                 : "l"(from)
                 : "memory");
    numbers = make_uint2((u32)a, (u32)b);
    return (u32)(a >> 32) == epoch && (u32)(b >> 32) == epoch;
  }

  __device__ __forceinline__ bool has_four(uint4& numbers, int at) const {
    uint2 first, second;
    const bool has_first = has_two(first, at), has_second = has_two(second, at + 2);
    numbers = make_uint4(first.x, first.y, second.x, second.y);
    return has_first && has_second;
  }

  __device__ __forceinline__ uint2 take_two(int at) const {
    uint2 numbers;
    while (!has_two(numbers, at)) {}
    return numbers;
  }

  __device__ __forceinline__ uint4 take_four(int at) const {
    uint4 numbers;
    while (!has_four(numbers, at)) {}
    return numbers;
  }
};

/** Opens the words as the launch before has left them. Before epochs begin anew, every 2^32 layers,
 * all words are cleared, or old ones would be taken for new. */
__device__ __forceinline__ Words open_words(const FewRows& op, GridBarrier& barrier) {
  Words words = {op.words, kOfIn + TOKENS * op.first[kIn], __ldcg(op.arrivals + 1)};
  if (words.epoch + op.num_layers > words.epoch) return words;
  // There is room for two tokens.
  const int count = kCopies * (2 / TOKENS) * words.size;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += BLOCKS * THREADS)
    op.words[i] = 0;
  words.epoch = 0;
  barrier.arrive();
  barrier.wait();
  return words;
}
