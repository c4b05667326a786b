// Shared by the warps of wkv7-chunk.cu: their roles, and the layout of shared memory between the
// warps that prepare chunks of 16 tokens, the chain, and the warps that finish. Names are those of
// the formulas in wkv7-chunk.cu.
#pragma once
#include "bf16-pairs.cuh"
#include "common.cuh"
#include "mbarrier.cuh"
#include "wkv7.cuh"

constexpr int kTokens = 16;
/** Groups that prepare in a block, and the warps of a group, with two tokens each. */
constexpr int kGroups = GROUPS;
constexpr int kParts = 8;
constexpr int kPart = kTokens / kParts;
/** Chunks in the ring. */
constexpr int kStages = STAGES;
/** Places in a block for the results of the chunks that it prepares and finishes: every CLUSTER-th
 * chunk of the cluster. */
constexpr int kPlaces = kStages / CLUSTER;
static_assert(kStages % CLUSTER == 0, "a stage must belong to one block");
/** Warps of the chain in a block, then the warps that finish. Four warps, which change their
 * register count together, have one role, except the first four of a cluster's block. */
constexpr int kChain = 4 / CLUSTER;
constexpr int kFinishers = 4 / CLUSTER;
constexpr int kThreads = 32 * (kChain + kFinishers + kParts * kGroups);

/** The operands of the chain for a chunk. Small matrices have one unit per 8 rows; g counts
 * rows. */
struct Chunk {
  uint4 w[kMatrix], r[kMatrix];
  uint4 b[kMatrix], k[kMatrix], v[kMatrix];
  uint4 x[64], rb[64], rk[64];
  float decay[64];
};

/** Operands of a chunk in their memory format. */
enum Operand { kR, kW, kK, kV, kA, kGate, kFirst, kOperands };

/** The working memory of a group. */
struct Desk {
  uint4 a[kMatrix], b[kMatrix], k[kMatrix];
  f16 raw[kOperands][kTokens][64];
  /** AB and AK by columns. */
  float ab[kTokens][20], ak[kTokens][20];
  /** Σ log2 w of each warp's tokens. */
  float2 decays[kParts][32];
};

/** The input of the warps that finish: Y from the chain, bonus·v from the warps that prepare. */
struct Outcome {
  float y[64 * kTokens], bonus[kTokens * 64];
};

struct Shared {
  Chunk ring[kStages];
  Outcome outcomes[kPlaces];
  Desk desks[kGroups];
  /** full: a chunk is ready. free: all four warps of the chain are done with it; they arrive in the
   * block that fills it. */
  Barrier full[kStages], free[kStages];
  /** told: Y of a chunk is there. done: the warps that finish have read it. */
  Barrier told[kPlaces], done[kPlaces];
};

constexpr int kBytesOfY = sizeof(Outcome::y);

/** Where Y is stored for value = 8·high + low and a token: place_of_high(high, token) ^
 * place_of_low(low). The order avoids bank conflicts for writers and readers. */
__device__ __forceinline__ int place_of_high(int high, int token) {
  return high << 7 | (high & 1) << 4 | (token ^ (high >> 1) << 2);
}

__device__ __forceinline__ int place_of_low(int low) {
  return (low >> 1) << 5 | (low & 1) << 4 | (low & 2) << 2 | (low & 4);
}

/** Where bonus·v is stored, four channels at a time. The order avoids bank conflicts too. */
__device__ __forceinline__ int place_of_bonus(int token, int channels4) {
  return token * 64 + ((channels4 ^ channels4 >> 3) << 2);
}

/** Registers per thread if a block has two groups. All threads start with 96 (80 if CLUSTER = 1).
 * Threads that prepare give back 16 (8), and if CLUSTER = 1 those that finish 32, so that the
 * first four warps can take 64 more. */
constexpr int kPreparing = CLUSTER > 1 ? 80 : 72;
constexpr int kChaining = CLUSTER > 1 ? 160 : 144;
constexpr int kFinishing = 48;

// Only Hopper's own instructions (sm_90a) can move registers. Without them a block has one group,
// and the registers suffice.
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
