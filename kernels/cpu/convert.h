// Converts between f32 and f16 or bf16. Scalar versions of the conversions in vec.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "skein.h"
#include "vec.h"

namespace skein {

inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline float bf16_to_float(uint16_t h) { return bits_float(uint32_t{h} << 16); }

/// Rounds to nearest, ties to even. NaN stays NaN.
inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Rounds towards +inf. For scales, which are finite and ≥ 0.
inline uint16_t float_to_bf16_up(float x) {
  return static_cast<uint16_t>((float_bits(x) + 0xffff) >> 16);
}

inline float f16_to_float(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  const uint32_t exponent = h >> 10 & 31, mantissa = h & 0x3ff;
  if (exponent == 0) return bits_float(sign | float_bits(static_cast<float>(mantissa) * 0x1p-24f));
  if (exponent == 31) return bits_float(sign | 0x7f800000 | mantissa << 13);
  return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
#endif
}

/// Rounds to nearest, ties to even. Values beyond ±65519 become infinity.
inline uint16_t float_to_f16(float x) {
#if defined(__F16C__)
  return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  const uint32_t bits = float_bits(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {  // denormal half: steps of 2^-24
    return sign | static_cast<uint16_t>(std::nearbyint(bits_float(magnitude) * 0x1p24f));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
#endif
}

/// Converts `count` elements of `type` at `from` to f32.
inline void to_floats(int32_t type, const uint8_t* from, float* to, int64_t count) {
  if (type == SK_F32) {
    std::memcpy(to, from, static_cast<size_t>(count) * 4);
    return;
  }
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(from + i * 2);
    store(to + i, type == SK_F16 ? load_f16(p) : load_bf16(p));
  }
  for (; i < count; i++) {
    uint16_t h;
    std::memcpy(&h, from + i * 2, 2);
    to[i] = type == SK_F16 ? f16_to_float(h) : bf16_to_float(h);
  }
}

}  // namespace skein
