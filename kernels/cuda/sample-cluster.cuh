// The blocks that share a sample: a cluster of CLUSTER blocks, each with a slice of the vocabulary.
// They write their results into each other's shared memory, and all take the same branches. Does
// not know what is searched for.
#pragma once
#include "mbarrier.cuh"

constexpr int kThreads = THREADS;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ int block_rank() {
#if CLUSTER > 1
  return rank_in_cluster();
#else
  return 0;
#endif
}

__device__ __forceinline__ void cluster_arrive() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

/** A barrier of the cluster. Afterwards each block sees what the others wrote. */
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/** Stores into the shared memory of block `rank` of the cluster, at the place of `own`. */
__device__ __forceinline__ void store_in(int rank, u64& own, u64 value) {
#if CLUSTER > 1
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address_in(rank, &own)), "l"(value)
               : "memory");
#else
  own = value;
#endif
}

/** Increments a number in the first block; returns its old value. */
__device__ __forceinline__ int count_in_first(int& own) {
#if CLUSTER > 1
  int before;
  asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "r"(address_in(0, &own))
               : "memory");
  return before;
#else
  return atomicAdd(&own, 1);
#endif
}

/** Count the bytes that are sent in an exchange; exchanges use them in turns. */
__shared__ Barrier arrivals[2];

/** Call it before anything is sent, with a barrier of the cluster in between. */
__device__ __forceinline__ void prepare_exchange() {
#if CLUSTER > 1
  if (threadIdx.x != 0) return;
  init(arrivals[0], 1), init(arrivals[1], 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/** Like store_in(), but receive() waits for it at the end of the turn. */
__device__ __forceinline__ void send_to(int rank, int turn, u64& own, u64 value) {
#if CLUSTER > 1
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(
                   address_in(rank, &own)),
               "l"(value), "r"(address_in(rank, &arrivals[turn & 1]))
               : "memory");
#else
  own = value;
#endif
}

/** Ends a turn: waits until this block has received everything that the cluster sends to it. This
 * is not a barrier of the cluster, which would wait for every store and flush L1. */
__device__ __forceinline__ void receive(int& turn, int bytes) {
#if CLUSTER > 1
  Barrier& barrier = arrivals[turn & 1];
  if (threadIdx.x == 0)
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
        "r"(bytes)
        : "memory");
  wait(barrier, turn >> 1 & 1);
#else
  __syncthreads();
#endif
  turn++;
}

constexpr int kMostSums = 16;

struct Exchange {
  float parts[kWarps][kMostSums];
  u64 warp_best[kWarps];
  /** What each block wrote. Two copies in turns, because some threads may still read those of the
   * last exchange. */
  u64 from[2][CLUSTER][kMostSums];
  double sums[kMostSums];
};

// Global names, not parameters: the compiler must know that these are in shared memory.
__shared__ Exchange exchange;

/** Each half of the lanes keeps half of the sums, until each lane has one. */
template <int Half, int N>
__device__ __forceinline__ void halve(float (&sums)[N], int lane) {
  constexpr int kOffset = 32 * Half / N;
  const bool is_upper = lane & kOffset;
#pragma unroll
  for (int i = 0; i < Half; i++) {
    const float given = is_upper ? sums[i] : sums[i + Half];
    const float kept = is_upper ? sums[i + Half] : sums[i];
    sums[i] = kept + __shfl_xor_sync(~0u, given, kOffset);
  }
  if constexpr (Half > 1) halve<Half / 2>(sums, lane);
}

/** exchange.sums: N sums over all threads of the cluster, always in the same order. The first warp
 * sees them at once, others after a barrier of the block. */
template <int N>
__device__ __forceinline__ void sum_cluster(int& turn, float (&sums)[N]) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  halve<N / 2>(sums, lane);
#pragma unroll
  for (int offset = 16 / N; offset > 0; offset /= 2)
    sums[0] += __shfl_xor_sync(~0u, sums[0], offset);
  if (lane % (32 / N) == 0) exchange.parts[warp][lane / (32 / N)] = sums[0];
  __syncthreads();
  if (threadIdx.x < N * CLUSTER) {
    const int i = threadIdx.x % N;
    double sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) sum += exchange.parts[w][i];
    send_to(threadIdx.x / N, turn, exchange.from[turn & 1][block_rank()][i],
            __double_as_longlong(sum));
  }
  const auto& from = exchange.from[turn & 1];
  receive(turn, N * CLUSTER * sizeof(u64));
  if (threadIdx.x < N) {
    double sum = 0;
#pragma unroll
    for (int rank = 0; rank < CLUSTER; rank++) sum += __longlong_as_double(from[rank][threadIdx.x]);
    exchange.sums[threadIdx.x] = sum;
  }
  __syncwarp();
}

__device__ __forceinline__ u64 warp_max(u64 x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const u64 other = __shfl_xor_sync(~0u, x, offset);
    x = other > x ? other : x;
  }
  return x;
}

/** The largest value of all threads of the cluster. */
__device__ __forceinline__ u64 max_cluster(int& turn, u64 own) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  own = warp_max(own);
  if (lane == 0) exchange.warp_best[warp] = own;
  __syncthreads();
  if (threadIdx.x < CLUSTER) {
#pragma unroll
    for (int w = 0; w < kWarps; w++)
      own = exchange.warp_best[w] > own ? exchange.warp_best[w] : own;
    send_to(threadIdx.x, turn, exchange.from[turn & 1][block_rank()][0], own);
  }
  const auto& from = exchange.from[turn & 1];
  receive(turn, CLUSTER * sizeof(u64));
#pragma unroll
  for (int rank = 0; rank < CLUSTER; rank++) {
    const u64 other = from[rank][0];
    own = rank == 0 || other > own ? other : own;
  }
  return own;
}
