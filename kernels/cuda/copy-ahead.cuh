// Copies from global into shared memory that a thread asks for ahead and waits for in groups
// (cp.async). Before capability 8.0 they are done at once.
#pragma once
#include "common.cuh"

/** What is read once should not drive out of L2 what is not. */
__device__ __forceinline__ u64 evict_first() {
  u64 policy = 0;
#if __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

/** 4, 8 or 16 bytes. */
template <class T>
__device__ __forceinline__ void copy_ahead(T& to, const T* from, u64 policy) {
#if __CUDA_ARCH__ >= 800
  const u32 at = (u32)__cvta_generic_to_shared(&to);
  if constexpr (sizeof(T) == 16)
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(at),
                 "l"(from), "l"(policy)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3;" ::"r"(at),
                 "l"(from), "n"(sizeof(T)), "l"(policy)
                 : "memory");
#else
  to = *from;
#endif
}

/** 16 bytes of what others read too, or zeros. */
__device__ __forceinline__ void copy_or_clear(uint4& to, const void* from, bool is_inside) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   (u32)__cvta_generic_to_shared(&to)),
               "l"(from), "r"(is_inside ? 16 : 0)
               : "memory");
#else
  to = is_inside ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#endif
}

/** Ends the group of what was asked for since the last. */
__device__ __forceinline__ void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/** Until all groups but the last Left have come. */
template <int Left>
__device__ __forceinline__ void wait_for_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#endif
}
