// CUDA's side of portable.cuh.
#pragma once

/**
 * Programmatic dependent launch: from here the next kernel of the stream may take free room on the
 * device. Its blocks wait in their turn, so a chain of kernels keeps its order although their
 * beginnings overlap.
 */
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/** Until the kernels before have ended. Every kernel calls it, before it reads what they wrote or
 * writes anything. */
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ u32 shared_address(const void* at) {
  return (u32)__cvta_generic_to_shared(at);
}

__device__ __forceinline__ float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

__device__ __forceinline__ f16 to_f16(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

/** Two halves of a word, lower address first. */
__device__ __forceinline__ float2 unpack(u32 pair) {
  float2 y;
  asm("{ .reg .f16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }"
      : "=f"(y.x), "=f"(y.y)
      : "r"(pair));
  return y;
}

__device__ __forceinline__ u32 pack(float lo, float hi) {
  u32 pair;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(lo), "f"(hi));
#else
  pair = to_f16(lo).bits | (u32)to_f16(hi).bits << 16;
#endif
  return pair;
}

/** 16 bytes that no kernel writes, or zeros, kept out of L1. `Wide`: the 256 that they lie in come
 * to L2, for others to read the rest. The condition is in the assembly: as a branch it would leave
 * one load in flight. */
template <bool Wide>
__device__ __forceinline__ uint4 load_once(const void* from, bool inside) {
  uint4 v;
#define LOAD_ONCE(hint)                                                           \
  asm volatile(                                                                   \
      "{ .reg .pred p; setp.ne.s32 p, %5, 0;\n"                                   \
      " mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"            \
      " @p ld.global.nc.L1::no_allocate" hint ".v4.u32 {%0, %1, %2, %3}, [%4]; }" \
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)                            \
      : "l"(from), "r"((int)inside))
#if __CUDA_ARCH__ >= 800
  if constexpr (Wide)
    LOAD_ONCE(".L2::256B");
  else
#endif
    LOAD_ONCE("");
#undef LOAD_ONCE
  return v;
}

/** One of the block's barriers, for so many threads: whole warps. */
__device__ __forceinline__ void sync_some(int barrier, int threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Arithmetic of one instruction where the exact form is ten and a branch: within 2 ulp, zeros and
// infinities where they belong.
/** 2^x */
__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/** 2^((score − best)·slope). Volatile, or the compiler takes it out of the walks of sample-search.cuh:
 * weights and scores together do not fit into registers. */
__device__ __forceinline__ float power_below(float score, float best, float slope) {
  float y;
  asm volatile(
      "{ .reg .f32 x; sub.rn.f32 x, %1, %2; mul.rn.f32 x, x, %3; ex2.approx.ftz.f32 %0, x; }"
      : "=f"(y)
      : "f"(score), "f"(best), "f"(slope));
  return y;
}

/** sum += weight where x ≥ bound: two instructions, where the compiler makes three. */
__device__ __forceinline__ void add_from(float& sum, float x, float bound, float weight) {
  asm("{ .reg .pred p; setp.ge.f32 p, %1, %2; @p add.rn.f32 %0, %0, %3; }"
      : "+f"(sum)
      : "f"(x), "f"(bound), "f"(weight));
}

/** Four numbers, lowest byte first. */
__device__ __forceinline__ u32 to_e4m3(float a, float b, float c, float d) {
  u32 word = 0;
#if __CUDA_ARCH__ >= 890
  asm("{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, %2, %1; "
      "cvt.rn.satfinite.e4m3x2.f32 hi, %4, %3; mov.b32 %0, {lo, hi}; }"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
#endif
  return word;
}

// Pairs of f16 in a word.

__device__ __forceinline__ u32 add2(u32 a, u32 b) {
  u32 d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ u32 mul2(u32 a, u32 b) {
  u32 d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/** (a & mask) | bits in one instruction. */
__device__ __forceinline__ u32 mask_or(u32 a, u32 mask, u32 bits) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}

/** Bytes of a and b that the lower four nibbles of a selector say; their eights are not set. */
__device__ __forceinline__ u32 select_bytes(u32 a, u32 b, u32 selector) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// Copies into shared memory (cp.async, capability 8.0) are waited for by the thread that made them, in
// groups or all at once.

__device__ __forceinline__ void copy_16(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
#endif
}

/** Until this thread's copies are there. */
__device__ __forceinline__ void await_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/** What was asked for since the group before, as a group; none is one too. */
__device__ __forceinline__ void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/** Until all groups of this thread but the last `Left` are done. */
template <int Left>
__device__ __forceinline__ void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#endif
}
