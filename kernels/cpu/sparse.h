// Lists the non-zero inputs of one or two tokens. After relu² most inputs are zero, and at one or
// two tokens a product is bound by reading weights. Weights that meet only zeros need not be read:
// adding their products would not change a bit of a sum, which is never −0. Does not know weights.
#pragma once

#include <cstring>

#include "vec.h"

namespace skein {

/// A unit is one, two or four inputs, which a kernel skips or takes as a whole.
struct UsedUnits {
  static constexpr int64_t kMost = 16384;
  /// So many units before it is used, a unit is requested into the L2 cache and, later, into the L1
  /// cache. The last unit is repeated after the end, so that this may run ahead of the list.
  static constexpr int64_t kAhead = 32, kNear = 8;

  int64_t count = 0;
  int32_t units[kMost + kAhead];

  /// Lists the units that are not zero. Words: 32-bit words per unit. first: [Rows] tokens,
  /// `stride` bytes apart, of `num_units` units each, a multiple of 16.
  template <int Words, int Rows>
  void list(const uint8_t* first, int64_t stride, int64_t num_units) {
    count = 0;
#if defined(__AVX512F__)
    constexpr int kStep = 16 / Words;
    for (int64_t unit = 0; unit < num_units; unit += kStep) {
      vi any = {};
      for (int row = 0; row < Rows; row++) any |= load_int(first + row * stride + unit * Words * 4);
      append<Words>(reinterpret_cast<__m512i>(any), static_cast<int32_t>(unit));
    }
#else
    for (int64_t unit = 0; unit < num_units; unit++) {
      uint32_t any = 0;
      for (int row = 0; row < Rows; row++) {
        uint32_t words[Words];
        std::memcpy(words, first + row * stride + unit * Words * 4, sizeof words);
        for (const uint32_t word : words) any |= word;
      }
      units[count] = static_cast<int32_t>(unit);
      count += any != 0 ? 1 : 0;
    }
#endif
    for (int64_t i = 0; i < kAhead; i++) units[count + i] = count == 0 ? 0 : units[count - 1];
  }

 private:
#if defined(__AVX512F__)
  template <int Words>
  void append(__m512i any, int32_t unit) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if constexpr (Words == 1) {
      const __mmask16 used = _mm512_test_epi32_mask(any, any);
      const __m512i list =
          _mm512_maskz_compress_epi32(used, _mm512_add_epi32(lanes, _mm512_set1_epi32(unit)));
      _mm512_storeu_si512(units + count, list);
      count += __builtin_popcount(used);
    } else {
      static_assert(Words == 2);
      const __mmask8 used = _mm512_test_epi64_mask(any, any);
      const __m512i all = _mm512_cvtepi32_epi64(
          _mm256_add_epi32(_mm512_castsi512_si256(lanes), _mm256_set1_epi32(unit)));
      const __m256i list = _mm512_cvtepi64_epi32(_mm512_maskz_compress_epi64(used, all));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(units + count), list);
      count += __builtin_popcount(used);
    }
  }
#endif
};

/// Prefetches the cache lines of [p, p + Bytes): into the L2 cache, which can have more misses in
/// flight than the L1 cache, or with locality 3 into both.
template <int Bytes, int Locality = 2>
inline void fetch(const uint8_t* p) {
#pragma GCC unroll 8
  for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(p + i, 0, Locality);
}

/// Weights that few tokens stream are requested twice: into the L2 cache, and from there into the
/// L1 cache before they are used. So a load waits for neither, and does not take one of the few
/// buffers that hold the lines on their way from memory.
constexpr int64_t kFar = 8192, kNear = 2048;

/// Requests the cache lines that are kFar and kNear bytes behind those of [p, p + Bytes).
template <int Bytes>
inline void fetch_stream(const uint8_t* p) {
  fetch<Bytes>(p + kFar);
  fetch<Bytes, 3>(p + kNear);
}

/// The same for part `index` of `Parts` of `Bytes` bytes, so that all parts together fetch each line
/// once.
template <int64_t Bytes, int Parts>
inline void fetch_stream_part(const uint8_t* p, int64_t index) {
  constexpr int64_t kLines = (Bytes + 63) / 64;
  const uint8_t* line = p - reinterpret_cast<uintptr_t>(p) % 64;
#pragma GCC unroll 8
  for (int64_t i = kLines * index / Parts; i < kLines * (index + 1) / Parts; i++)
    fetch_stream<64>(line + i * 64);
}

}  // namespace skein
