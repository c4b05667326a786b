// The blocks that share a sample: one cluster of CLUSTER, each with its own slice of the row. What
// they find they exchange through shared memory, and all of them follow the same path. Knows not
// what they look for.
#pragma once
#include "common.cuh"

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
__device__ __forceinline__ int block_rank() {
#if CLUSTER > 1
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

/** A barrier of the cluster, after which each block sees what the others wrote. */
__device__ __forceinline__ void cluster_sync() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#else
  __syncthreads();
#endif
}

/** A number in the shared memory of another block of the cluster. */
template <class T>
__device__ __forceinline__ T remote(const T& own, int rank) {
#if CLUSTER > 1
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a word or two");
  u32 address = (u32)__cvta_generic_to_shared(&own);
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
  union {
    T value;
    u32 word;
    u64 words;
  };
  if constexpr (sizeof(T) == 4)
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  else
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(words) : "r"(address) : "memory");
  return value;
#else
  return own;
#endif
}

/** The ids [begin, end) of a row that a block reads. */
struct Slice {
  int begin, end;
};

__device__ __forceinline__ Slice own_slice(int vocab) {
  const int size = (vocab + 4 * CLUSTER - 1) / (4 * CLUSTER) * 4;
  const int begin = min(vocab, block_rank() * size);
  return {begin, min(vocab, begin + size)};
}

/** Scores that a thread asks for before it looks at the first. */
constexpr int kBatch = 8;

/** Calls `visit(id, score)` for the thread's share of the block's slice, ids rising. */
template <class Visit>
__device__ __forceinline__ void for_each_score(const float* scores, int vocab, Visit visit) {
  const Slice slice = own_slice(vocab);
  for (int start = slice.begin + threadIdx.x; start < slice.end; start += kBatch * kThreads) {
    float batch[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; u++) batch[u] = scores[min(start + u * kThreads, vocab - 1)];
#pragma unroll
    for (int u = 0; u < kBatch; u++)
      if (start + u * kThreads < slice.end) visit(start + u * kThreads, batch[u]);
  }
}

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
