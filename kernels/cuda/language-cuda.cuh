// The CUDA version of portable.cuh.
#pragma once

/** Programmatic dependent launch: from here on, blocks of the next kernel of the stream may start
 * if there is room. They wait in wait_for_previous(), so a chain of kernels keeps its order
 * although their prologues overlap. */
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/** Waits until the previous kernels have ended. Every kernel calls it before it reads their results
 * or writes anything. */
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

/** Unpacks the two halves of a word, the one at the lower address first. */
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

/** Loads 16 bytes that no kernel writes, or zeros, bypassing L1. `Wide` brings the surrounding 256
 * bytes into L2, because others will read the rest. The predicate is in the assembly: with a
 * branch only one load would be in flight. */
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

/** Named barrier `barrier` of the block, for `threads` threads (whole warps). */
__device__ __forceinline__ void sync_some(int barrier, int threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Approximations in one instruction; the exact forms take ten and a branch. Within 2 ulp, and exact
// at zeros and infinities.
/** 2^x. */
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

/** 2^((score − best)·slope). Volatile, or the compiler hoists it out of the walks of
 * sample-search.cuh, and weights and scores together do not fit into registers. */
__device__ __forceinline__ float power_below(float score, float best, float slope) {
  float y;
  asm volatile(
      "{ .reg .f32 x; sub.rn.f32 x, %1, %2; mul.rn.f32 x, x, %3; ex2.approx.ftz.f32 %0, x; }"
      : "=f"(y)
      : "f"(score), "f"(best), "f"(slope));
  return y;
}

/** The compiler may not compute x later than here. */
__device__ __forceinline__ void compute_now(float& x) { asm volatile("" : "+f"(x)); }

/** sum += weight if x ≥ bound. Two instructions; the compiler would emit three. */
__device__ __forceinline__ void add_from(float& sum, float x, float bound, float weight) {
  asm("{ .reg .pred p; setp.ge.f32 p, %1, %2; @p add.rn.f32 %0, %0, %3; }"
      : "+f"(sum)
      : "f"(x), "f"(bound), "f"(weight));
}

/** The same for six sums, so that no comparison waits for the sum before. */
__device__ __forceinline__ void add_from_six(float* sums, float x, const float* bounds,
                                             float weight) {
  asm("{ .reg .pred p<6>;\n"
      " setp.ge.f32 p0, %6, %7; setp.ge.f32 p1, %6, %8; setp.ge.f32 p2, %6, %9;\n"
      " setp.ge.f32 p3, %6, %10; setp.ge.f32 p4, %6, %11; setp.ge.f32 p5, %6, %12;\n"
      " @p0 add.rn.f32 %0, %0, %13; @p1 add.rn.f32 %1, %1, %13; @p2 add.rn.f32 %2, %2, %13;\n"
      " @p3 add.rn.f32 %3, %3, %13; @p4 add.rn.f32 %4, %4, %13; @p5 add.rn.f32 %5, %5, %13; }"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5])
      : "f"(x), "f"(bounds[0]), "f"(bounds[1]), "f"(bounds[2]), "f"(bounds[3]), "f"(bounds[4]),
        "f"(bounds[5]), "f"(weight));
}

/** Converts four numbers, the first to the lowest byte. */
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

// Arithmetic on pairs of f16 in a word.

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

/** Selects bytes of a and b by the lower four nibbles of `selector`. A nibble must not have bit 3
 * set. */
__device__ __forceinline__ u32 select_bytes(u32 a, u32 b, u32 selector) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// Asynchronous copies into shared memory (cp.async, capability 8.0). The thread that starts copies
// waits for them, group by group or all at once.

__device__ __forceinline__ void copy_16(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
#endif
}

/** Waits for all copies of this thread. */
__device__ __forceinline__ void await_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/** Closes a group: all copies that this thread has started since the last one. The group may be
 * empty. */
__device__ __forceinline__ void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/** Waits for all groups of this thread but the last `Left`. */
template <int Left>
__device__ __forceinline__ void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#endif
}
