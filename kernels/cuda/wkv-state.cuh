// The format of a recurrent state in memory and in registers: f32, or f16 rounded with dither. 8
// lanes share a row of 64 key channels. Does not know the recurrence.
#pragma once
#include "common.cuh"

#if STATE_F16
using state_t = f16;
#else
using state_t = float;
#endif

/** A lane's 8 of 64 key channels: 4·q … 4·q + 3 and 32 + 4·q … 32 + 4·q + 3, so that the 8 lanes of
 * a row load whole lines. */
struct Eight {
  float lo[4], hi[4];
};

__device__ __forceinline__ void load4(float (&s)[4], const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  s[0] = v.x, s[1] = v.y, s[2] = v.z, s[3] = v.w;
}

__device__ __forceinline__ void load4(float (&s)[4], const f16* from) {
  const uint2 v = *reinterpret_cast<const uint2*>(from);
  const float2 lo = unpack(v.x), hi = unpack(v.y);
  s[0] = lo.x, s[1] = lo.y, s[2] = hi.x, s[3] = hi.y;
}

/** Rounds to f16, up or down with a probability given by the remainder (13 bits of noise). Rounding
 * to nearest would stop slow decays. */
__device__ __forceinline__ u32 dithered(float x, u32 noise) {
  const u32 bits = __float_as_uint(x);
  const bool is_normal = fabsf(x) >= 6.1035e-5f && fabsf(x) < 65504.0f;
  return is_normal ? bits + (noise & 0x1fff) & ~0x1fffu : bits;
}

/** Packs four numbers into their memory format. */
__device__ __forceinline__ void close(float4& held, const float (&s)[4], u32) {
  held = make_float4(s[0], s[1], s[2], s[3]);
}

__device__ __forceinline__ void close(uint2& held, const float (&s)[4], u32 noise) {
  u32 v[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    noise = noise * 0x9e3779b1u + 0x7f4a7c15u;
    v[i] = dithered(s[i], noise >> 19);
  }
  held = make_uint2(pack(__uint_as_float(v[0]), __uint_as_float(v[1])),
                    pack(__uint_as_float(v[2]), __uint_as_float(v[3])));
}

__device__ __forceinline__ void store4(float* to, const float (&s)[4], u32 noise) {
  close(*reinterpret_cast<float4*>(to), s, noise);
}

__device__ __forceinline__ void store4(f16* to, const float (&s)[4], u32 noise) {
  close(*reinterpret_cast<uint2*>(to), s, noise);
}

/** The noise for a row of a state. It is derived from the token's v and k, so that it depends on
 * nothing outside the sequence. */
__device__ __forceinline__ u32 row_noise(float v, float k, int element) {
  u32 h = __float_as_uint(v) * 0x85ebca6bu ^ __float_as_uint(k) * 0xc2b2ae35u ^
          (u32)element * 0x27d4eb2fu;
  h ^= h >> 15;
  h *= 0x2c1b3c6du;
  return h ^ h >> 12;
}

__device__ __forceinline__ Eight eight(const float* x, int q) {
  Eight e;
  load4(e.lo, x + 4 * q);
  load4(e.hi, x + 32 + 4 * q);
  return e;
}

__device__ __forceinline__ Eight load_state(const state_t* row, int q) {
  Eight e;
  load4(e.lo, row + 4 * q);
  load4(e.hi, row + 32 + 4 * q);
  return e;
}

__device__ __forceinline__ void store_state(state_t* row, int q, const Eight& s, u32 noise) {
  store4(row + 4 * q, s.lo, noise);
  store4(row + 32 + 4 * q, s.hi, noise ^ 0x5bd1e995u);
}

__device__ __forceinline__ float dot(const Eight& a, const Eight& b) {
  float lo = a.lo[0] * b.lo[0], hi = a.hi[0] * b.hi[0];
#pragma unroll
  for (int i = 1; i < 4; i++) lo += a.lo[i] * b.lo[i], hi += a.hi[i] * b.hi[i];
  return lo + hi;
}

/** The sum over the 8 lanes of a row, in all of them. */
__device__ __forceinline__ float sum8(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 4);
  x += __shfl_xor_sync(0xffffffffu, x, 2);
  return x + __shfl_xor_sync(0xffffffffu, x, 1);
}

/** Four sums over 8 lanes, in the order of sum8, with four exchanges: each lane passes on half of
 * its sums, then half of the rest. Lanes q and q ^ 1 end with sum q >> 1. */
__device__ __forceinline__ float sum_four(const float (&x)[4], int q) {
  const bool upper = q & 4, odd = q & 2;
  const float a = (upper ? x[2] : x[0]) + __shfl_xor_sync(0xffffffffu, upper ? x[0] : x[2], 4);
  const float b = (upper ? x[3] : x[1]) + __shfl_xor_sync(0xffffffffu, upper ? x[1] : x[3], 4);
  const float sum = (odd ? b : a) + __shfl_xor_sync(0xffffffffu, odd ? a : b, 2);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

/** Four sums over a warp, in all lanes: each lane passes on half of its sums, then half of the
 * rest. */
__device__ __forceinline__ void warp_sum_four(float (&x)[4]) {
  const int lane = threadIdx.x & 31;
  const bool upper = lane & 16, odd = lane & 8;
  const float a = (upper ? x[2] : x[0]) + __shfl_xor_sync(0xffffffffu, upper ? x[0] : x[2], 16);
  const float b = (upper ? x[3] : x[1]) + __shfl_xor_sync(0xffffffffu, upper ? x[1] : x[3], 16);
  const float sum = sum8((odd ? b : a) + __shfl_xor_sync(0xffffffffu, odd ? a : b, 8));
#pragma unroll
  for (int i = 0; i < 4; i++) x[i] = __shfl_sync(0xffffffffu, sum, 8 * i);
}

/** Loads the two adjacent channels of a lane: a word of two f16, or two f32. */
__device__ __forceinline__ u32 load_word(const f16* x, long long at) {
  return *reinterpret_cast<const u32*>(x + at);
}

__device__ __forceinline__ float2 load_pair(const float* x, int at) {
  return *reinterpret_cast<const float2*>(x + at);
}

/** Group norm of one head by a warp with two channels per lane. */
__device__ __forceinline__ float2 head_norm(float2 y, float eps) {
  const float mean = warp_sum(y.x + y.y) * (1.0f / 64);
  y = make_float2(y.x - mean, y.y - mean);
  const float scale = rsqrtf(warp_sum(y.x * y.x + y.y * y.y) * (1.0f / 64) + eps);
  return make_float2(y.x * scale, y.y * scale);
}
