// Vectors of the library's ISA level: `vf` holds kLanes f32, `vi` as many i32. One source serves
// all levels; the differences (FMA, F16C) are here. Knows no models.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace skein {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef float vf_unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t vi_unaligned __attribute__((vector_size(kLanes * 4), aligned(1), may_alias));

inline vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
inline void store(float* p, vf x) { *reinterpret_cast<vf_unaligned*>(p) = x; }
inline vi load_int(const void* p) { return *reinterpret_cast<const vi_unaligned*>(p); }
inline vf splat(float x) { return x - vf{}; }
inline vi splat_int(int32_t x) { return x - vi{}; }
inline vf as_float(vi x) { return reinterpret_cast<vf>(x); }
inline vi as_int(vf x) { return reinterpret_cast<vi>(x); }
inline vf to_float(vi x) { return __builtin_convertvector(x, vf); }
inline vf select(vi mask, vf yes, vf no) {
  return as_float((mask & as_int(yes)) | (~mask & as_int(no)));
}

/// Loads kLanes unsigned 16-bit integers.
inline vi load_u16(const uint16_t* p) {
  typedef uint16_t vh __attribute__((vector_size(kLanes * 2)));
  vh x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, vi);
}

/// Loads kLanes 8-bit integers, unsigned or signed.
inline vi load_u8(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return reinterpret_cast<vi>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  typedef uint8_t vb __attribute__((vector_size(kLanes)));
  vb x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, vi);
#endif
}
inline vi load_i8(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return (load_u8(p) << 24) >> 24;
#endif
}

/// Shifts zeros in.
inline vi shift_right(vi x, int bits) {
  typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));
  return reinterpret_cast<vi>(reinterpret_cast<vu>(x) >> bits);
}

/// a·b + c, fused if the ISA level has FMA. -ffp-contract=off prevents any other fusing, so the way
/// a loop is unrolled cannot change a result.
inline vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__) && defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

/// Loads kLanes halves. Denormal halves are kept on every level.
inline vf load_f16(const uint16_t* p) {
#if defined(__AVX512F__)
  // GCC 12 sees an uninitialised vector in _mm512_cvtph_ps.
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  const vi h = load_u16(p);
  const vi exponent = h & 0x7c00;
  vf value = as_float(((h & 0x7fff) << 13) + (112 << 23));
  value = select(exponent == 0x7c00, as_float(as_int(value) | 0x7f800000), value);
  value = select(exponent == 0, to_float(h & 0x3ff) * 0x1p-24f, value);
  return as_float(as_int(value) | ((h & 0x8000) << 16));
#endif
}

/// Loads kLanes bf16.
inline vf load_bf16(const uint16_t* p) {
#if defined(__AVX512F__)
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return as_float(reinterpret_cast<vi>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
#else
  return as_float(load_u16(p) << 16);
#endif
}

struct ByteTable {
  alignas(16) uint8_t at[16];
};

/// table.at[i] for every byte i of x; each i is below 16.
inline vi look_up(const ByteTable& table, vi x) {
#if defined(__AVX512BW__)
  const __m512i all =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table.at)));
  return reinterpret_cast<vi>(_mm512_shuffle_epi8(all, reinterpret_cast<__m512i>(x)));
#elif defined(__AVX2__)
  const __m256i all =
      _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table.at)));
  return reinterpret_cast<vi>(_mm256_shuffle_epi8(all, reinterpret_cast<__m256i>(x)));
#elif defined(__ARM_NEON)
  return reinterpret_cast<vi>(vqtbl1q_u8(vld1q_u8(table.at), reinterpret_cast<uint8x16_t>(x)));
#else
  uint8_t bytes[sizeof x];
  std::memcpy(bytes, &x, sizeof x);
  for (uint8_t& byte : bytes) byte = table.at[byte];
  std::memcpy(&x, bytes, sizeof x);
  return x;
#endif
}

/// The sum of the lanes, always added in the same tree.
inline float sum(vf x) {
  float lane[kLanes];
  std::memcpy(lane, &x, sizeof x);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  }
  return lane[0];
}

/// e^x to 2e-7 relative; 0 below −87.3 (no denormals), +inf above 88.7; NaN stays NaN.
inline vf exp(vf x) {
  const vf clamped = select(x > 89.0f, splat(89.0f), select(x < -88.0f, splat(-88.0f), x));
  // Adding 1.5·2^23 rounds to an integer and leaves it in the low mantissa bits.
  const vf shifted = fma(clamped, splat(1.44269504088896341f), splat(12582912.0f));
  const vf n = shifted - 12582912.0f;
  vf r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  vf p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  const vf value = fma(p, r * r, r) + 1.0f;
  // Two factors, because n reaches 128 before the result overflows.
  const vi exponent = as_int(shifted) - 0x4b400000;
  const vi half = exponent >> 1;
  const vf scaled = value * as_float((half + 127) << 23) * as_float((exponent - half + 127) << 23);
  return select(x < -87.3f, vf{}, scaled);
}

inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }

/// tanh to 3e-7 relative: a polynomial near 0, where 1 − 2/(e^2x + 1) would cancel.
inline vf tanh(vf x) {
  const vf z = x * x;
  vf p = splat(-5.70498872745e-3f);
  p = fma(p, z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  const vf near = fma(p * z, x, x);
  const vf far = 1.0f - 2.0f / (exp(x + x) + 1.0f);
  return select(z < 0.390625f, near, far);
}

}  // namespace skein
