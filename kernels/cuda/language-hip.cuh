// The HIP version of portable.cuh. It has been compiled (test/unit/cuda/hip.test.ts), but never run
// on a GPU. A wave has 64 lanes on CDNA. A warp is half of one; shuffles get its width.
#pragma once

#define __grid_constant__
#define __shfl_sync(mask, value, lane) __shfl(value, lane, 32)
#define __shfl_xor_sync(mask, value, offset) __shfl_xor(value, offset, 32)
#define __shfl_up_sync(mask, value, offset) __shfl_up(value, offset, 32)
#define __shfl_down_sync(mask, value, offset) __shfl_down(value, offset, 32)
#define __ballot_sync(mask, predicate) warp_ballot(predicate)
#define __all_sync(mask, predicate) (warp_ballot(!(predicate)) == 0)
#define __syncwarp() sync_wave()
#define __ldcg(from) __builtin_nontemporal_load(from)

__device__ __forceinline__ u32 warp_ballot(bool predicate) {
  return (u32)(__ballot(predicate) >> (__lane_id() & 32));
}

/** Lanes of a wave run in lockstep: this makes their writes visible, but does not wait. */
__device__ __forceinline__ void sync_wave() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

/** A kernel starts when the previous one has ended. */
__device__ __forceinline__ void let_next_start() {}
__device__ __forceinline__ void wait_for_previous() {}

__device__ __forceinline__ float to_float(f16 x) { return __builtin_bit_cast(_Float16, x.bits); }

__device__ __forceinline__ f16 to_f16(float x) { return {__builtin_bit_cast(u16, (_Float16)x)}; }

/** Unpacks the two halves of a word, the one at the lower address first. */
__device__ __forceinline__ float2 unpack(u32 pair) {
  return make_float2(to_float({(u16)pair}), to_float({(u16)(pair >> 16)}));
}

__device__ __forceinline__ u32 pack(float lo, float hi) {
  return to_f16(lo).bits | (u32)to_f16(hi).bits << 16;
}

/** Loads 16 bytes that no kernel writes, or zeros. */
template <bool Wide>
__device__ __forceinline__ uint4 load_once(const void* from, bool inside) {
  return inside ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}

// Arithmetic on pairs of f16 in a word.

using Halves = _Float16 __attribute__((ext_vector_type(2)));

__device__ __forceinline__ Halves halves(u32 pair) { return __builtin_bit_cast(Halves, pair); }
__device__ __forceinline__ u32 add2(u32 a, u32 b) {
  return __builtin_bit_cast(u32, halves(a) + halves(b));
}
__device__ __forceinline__ u32 mul2(u32 a, u32 b) {
  return __builtin_bit_cast(u32, halves(a) * halves(b));
}
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
  return __builtin_bit_cast(u32, __builtin_elementwise_fma(halves(a), halves(b), halves(c)));
}

/** (a & mask) | bits. */
__device__ __forceinline__ u32 mask_or(u32 a, u32 mask, u32 bits) { return (a & mask) | bits; }

/** Selects bytes of a and b by the lower four nibbles of `selector`. A nibble must not have bit 3
 * set. */
__device__ __forceinline__ u32 select_bytes(u32 a, u32 b, u32 selector) {
  u32 bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 which = selector >> 4 * i & 7;
    bytes |= ((which < 4 ? a >> 8 * which : b >> 8 * (which - 4)) & 0xff) << 8 * i;
  }
  return bytes;
}

// Copies into shared memory are synchronous here.

__device__ __forceinline__ void copy_16(void* to, const void* from) {
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
}

__device__ __forceinline__ void await_copies() {}
__device__ __forceinline__ void end_group() {}
template <int Left>
__device__ __forceinline__ void wait_for_groups() {}

/** Only barriers of whole blocks exist. Named barriers are for kernels on matrix cores, which have
 * no HIP version yet. */
__device__ __forceinline__ void sync_some(int, int) { __builtin_trap(); }

/** 2^x. */
__device__ __forceinline__ float power(float x) { return __builtin_amdgcn_exp2f(x); }
__device__ __forceinline__ float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
__device__ __forceinline__ float reciprocal_root(float x) { return __builtin_amdgcn_rsqf(x); }

/** 2^((score − best)·slope). */
__device__ __forceinline__ float power_below(float score, float best, float slope) {
  return power((score - best) * slope);
}

/** Not needed: draws of one block wait for nothing else. */
__device__ __forceinline__ void compute_now(float&) {}

/** sum += weight if x ≥ bound. */
__device__ __forceinline__ void add_from(float& sum, float x, float bound, float weight) {
  if (x >= bound) sum += weight;
}

/** The same for six sums. */
__device__ __forceinline__ void add_from_six(float* sums, float x, const float* bounds,
                                             float weight) {
  for (int i = 0; i < 6; i++) add_from(sums[i], x, bounds[i], weight);
}

/** Rounds to e4m3, ties to even, at most 448. */
__device__ __forceinline__ u32 e4m3_of(float x) {
  const u32 bits = __builtin_bit_cast(u32, x), sign = bits >> 24 & 0x80;
  if (x != x) return sign | 0x7f;
  const u32 magnitude = bits & 0x7fffffff;
  if (magnitude < 0x3c800000)  // below 2^-6: multiples of 2^-9
    return sign | (u32)__builtin_rintf(__builtin_bit_cast(float, magnitude) * 512.0f);
  if (magnitude > 0x43e00000) return sign | 0x7e;
  return sign | ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
}

/** Converts four numbers, the first to the lowest byte. */
__device__ __forceinline__ u32 to_e4m3(float a, float b, float c, float d) {
  return e4m3_of(a) | e4m3_of(b) << 8 | e4m3_of(c) << 16 | e4m3_of(d) << 24;
}
