// What the warps of wkv7-chunk.cu share: their roles, and what lies in shared memory between those
// that prepare chunks of 16 tokens, the chain, and those that finish. The names are those of its
// formulas.
#pragma once
#include "bf16-pairs.cuh"
#include "common.cuh"
#include "mbarrier.cuh"
#include "wkv7.cuh"

constexpr int kTokens = 16;
/** Groups in a block that prepare, and warps of one, two tokens to each. */
constexpr int kGroups = GROUPS;
constexpr int kParts = 8;
constexpr int kPart = kTokens / kParts;
/** Chunks in the ring. */
constexpr int kStages = STAGES;
/** Of a cluster's chunks a block prepares and finishes every second, which have a place for it. */
constexpr int kPlaces = kStages / CLUSTER;
static_assert(kStages % CLUSTER == 0, "a stage is always the same block's");
/** Warps of the chain in a block, and after them those that finish. Four warps, which give or take
 * registers together, are of one kind, but for the first four of a cluster's block. */
constexpr int kChain = 4 / CLUSTER;
constexpr int kFinishers = 4 / CLUSTER;
constexpr int kThreads = 32 * (kChain + kFinishers + kParts * kGroups);

/** What the chain takes of a chunk. Small matrices are one unit for 8 rows, g counting rows. */
struct Chunk {
  uint4 w[kMatrix], r[kMatrix];
  uint4 b[kMatrix], k[kMatrix], v[kMatrix];
  uint4 x[64], rb[64], rk[64];
  float decay[64];
};

/** Operands of a chunk as they lie in memory. */
enum Operand { kR, kW, kK, kV, kA, kGate, kFirst, kOperands };

/** What a group needs besides. */
struct Desk {
  uint4 a[kMatrix], b[kMatrix], k[kMatrix];
  f16 raw[kOperands][kTokens][64];
  /** AB and AK by columns. */
  float ab[kTokens][20], ak[kTokens][20];
  /** Of each warp's tokens: Σ log2 w. */
  float2 decays[kParts][32];
};

/** What those take that finish a chunk: Y of the chain, bonus·v of those that prepare. */
struct Outcome {
  float y[64 * kTokens], bonus[kTokens * 64];
};

struct Shared {
  Chunk ring[kStages];
  Outcome outcomes[kPlaces];
  Desk desks[kGroups];
  /** A chunk is there; all four warps of the chain are done with it, told to the block that fills
   * it. */
  Barrier full[kStages], free[kStages];
  /** Y of a chunk is there; those that finish are done with it. */
  Barrier told[kPlaces], done[kPlaces];
};

constexpr int kBytesOfY = sizeof(Outcome::y);

/** Where Y of a value and a token lies: such that neither side meets a bank twice, value = 8·high +
 * low. Exclusive or of what belongs to high and token, and what belongs to low. */
__device__ __forceinline__ int place_of_high(int high, int token) {
  return high << 7 | (high & 1) << 4 | (token ^ (high >> 1) << 2);
}

__device__ __forceinline__ int place_of_low(int low) {
  return (low >> 1) << 5 | (low & 1) << 4 | (low & 2) << 2 | (low & 4);
}

/** The same of bonus·v, four channels at a time. */
__device__ __forceinline__ int place_of_bonus(int token, int channels4) {
  return token * 64 + ((channels4 ^ channels4 >> 3) << 2);
}

/** Registers of a thread, where a block has two groups: of 96 or (CLUSTER = 1) 80 at the start,
 * those that prepare leave 16 or 8, which four times as few of the chain can have. */
constexpr int kPreparing = CLUSTER > 1 ? 80 : 72;
constexpr int kChaining = CLUSTER > 1 ? 160 : 144;
constexpr int kFinishing = 48;

// Only Hopper's own instructions move registers; without, a block has one group, and all have
// enough.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && GROUPS > 1
template <int Count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

template <int Count>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
#else
template <int Count>
__device__ __forceinline__ void take_registers() {}

template <int Count>
__device__ __forceinline__ void leave_registers() {}
#endif
