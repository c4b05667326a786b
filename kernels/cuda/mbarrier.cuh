// Barriers in shared memory that count arrivals and bytes (mbarrier), and copies between the shared
// memories of a cluster that report to them. A single block needs capability 8.0, clusters need
// 9.0.
#pragma once
#include "common.cuh"

struct Barrier {
  u64 state;
};

/** A phase ends after `arrivals` arrivals and all bytes that were announced. */
__device__ __forceinline__ void init(Barrier& barrier, int arrivals) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals)
               : "memory");
#endif
}

__device__ __forceinline__ void arrive(Barrier& barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(&barrier))
      : "memory");
#endif
}

/** Arrives when all cp.async copies of this thread are done. */
__device__ __forceinline__ void arrive_after_copies(Barrier& barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&barrier))
               : "memory");
#endif
}

/** Arrives, and announces bytes for this phase. */
__device__ __forceinline__ void arrive_expecting(Barrier& barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
#endif
}

/** Waits until the phase of this parity has ended; the phase before the first has parity 1.
 * Afterwards this thread sees what copies, store_telling and threads of its own block wrote. It
 * does not see plain stores of other blocks: acquiring at cluster scope would flush L1 every
 * time. */
__device__ __forceinline__ void wait(Barrier& barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
      " @!done bra again; }" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
#elif __CUDA_ARCH__ >= 800
  asm volatile(
      "{ .reg .pred done; again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;"
      " @!done bra again; }" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
#endif
}

/** The address of `at` in the shared memory of another block of the cluster. */
__device__ __forceinline__ u32 address_in(int rank, const void* at) {
  u32 address = 0;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(at)), "r"(rank));
#endif
  return address;
}

__device__ __forceinline__ void arrive_in(int rank, Barrier& barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in(rank, &barrier))
               : "memory");
#endif
}

/** Loads four numbers from the shared memory of a block of the cluster, or zeros. The predicate is
 * in the assembly, because with branches each load would be waited for. */
__device__ __forceinline__ float4 read_shared_in(u32 address, int rank, bool exists) {
  float4 v = {};
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p; .reg .u32 there; setp.ne.s32 p, %6, 0; mov.f32 %0, 0f00000000; mov.f32 %1, "
      "0f00000000; mov.f32 %2, 0f00000000; mov.f32 %3, 0f00000000;"
      " @p mapa.shared::cluster.u32 there, %4, %5;"
      " @p ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
      : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w)
      : "r"(address), "r"(rank), "r"((int)exists)
      : "memory");
#endif
  return v;
}

/** Makes this thread's writes to shared memory visible to copies. */
__device__ __forceinline__ void fence_for_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/** Copies `bytes` bytes to the same place in another block, and arrives at its barrier with them.
 * `bytes` and the address are multiples of 16. */
__device__ __forceinline__ void copy_to(int rank, const void* at, int bytes, Barrier& barrier) {
#if __CUDA_ARCH__ >= 900
  const u32 there = address_in(rank, &barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(there), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(address_in(rank, at)),
      "r"(shared_address(at)), "r"(bytes), "r"(there)
      : "memory");
#endif
}

/** Stores two numbers at an address in another block of the cluster, and counts their 8 bytes at
 * the barrier `barrier` there. */
__device__ __forceinline__ void store_telling(u32 to, float x, float y, u32 barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(to),
      "f"(x), "f"(y), "r"(barrier)
      : "memory");
#endif
}

/** A barrier of all threads of the cluster. Barriers that were initialised before are visible after
 * it. */
__device__ __forceinline__ void cluster_meet() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "fence.mbarrier_init.release.cluster; barrier.cluster.arrive.release; "
      "barrier.cluster.wait.acquire;" ::
          : "memory");
#endif
}

/** The halves of a barrier of all threads of the cluster. What a thread does between them is not
 * waited for. */
__device__ __forceinline__ void tell_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ __forceinline__ void await_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/** Like cluster_meet, for blocks that only read each other's memory before they exit: it does not
 * wait for writes. */
__device__ __forceinline__ void cluster_part() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed; barrier.cluster.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ int rank_in_cluster() {
  int rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
