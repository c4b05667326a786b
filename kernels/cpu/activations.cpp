#include "activations.h"

#include <algorithm>

#include "convert.h"
#include "vec.h"

namespace skein {

namespace {

int32_t sum_of(vi x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(x));
#else
  int32_t sum = 0;
  for (int lane = 0; lane < kLanes; lane++) sum += x[lane];
  return sum;
#endif
}

/// Stores the integers of a group in the order that the inner products read; returns their sum.
int32_t store_group(const vi (&q)[kGroup / kLanes], Quantised* to) {
  vi total = {};
  for (const vi& part : q) total += part;
#if defined(__AVX512VNNI__)
  for (int64_t i = 0; i < kGroup / kLanes; i++) {
    const __m128i bytes = _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(q[i]));
    std::memcpy(to + i * kLanes, &bytes, sizeof bytes);
  }
#elif defined(SK_DOTS)
  for (int64_t i = 0; i < kGroup; i++)
    to[i] = static_cast<Quantised>(q[i / kLanes][i % kLanes]);
#else
  for (int64_t i = 0; i < kGroup; i += 4) {
    const auto at = [&](int64_t k) { return static_cast<Quantised>(q[k / kLanes][k % kLanes]); };
    to[i] = at(i);
    to[i + 1] = at(i + 2);
    to[i + 2] = at(i + 1);
    to[i + 3] = at(i + 3);
  }
#endif
  return sum_of(total);
}

/// Stores the integers of a group as bytes in their order, where tokens keep them so.
void store_bytes([[maybe_unused]] const vi (&q)[kGroup / kLanes], [[maybe_unused]] uint8_t* to) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
  const auto pack = [&](int i) {
    return _mm256_packs_epi32(reinterpret_cast<__m256i>(q[i]), reinterpret_cast<__m256i>(q[i + 1]));
  };
  // Both halves of the vectors are packed by themselves.
  const __m256i bytes =
      _mm256_permutevar8x32_epi32(_mm256_packs_epi16(pack(0), pack(2)),
                                  _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  std::memcpy(to, &bytes, sizeof bytes);
#endif
}

int32_t largest_lane(vi x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(x));
#else
  int32_t largest = x[0];
  for (int lane = 1; lane < kLanes; lane++) largest = std::max(largest, x[lane]);
  return largest;
#endif
}

/// Rounds 32 inputs to integers in [−most, most], ties to even; returns the scale. Inlined because
/// GCC 12 reports a false -Wuninitialized when a vector comes from its own header.
[[gnu::always_inline]] inline float round_group(const float* x, float most,
                                                vi (&q)[kGroup / kLanes]) {
  vi largest = {};
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    const vi bits =
        as_int(load(x + i)) & 0x7fffffff;  // compared as integers, NaN and infinity are largest
    largest = bits > largest ? bits : largest;
  }
  const float magnitude = bits_float(static_cast<uint32_t>(largest_lane(largest)));
  const bool is_finite = magnitude <= 3e38f;
  // A smaller magnitude would have a denormal scale (flushed to zero) and an infinite inverse.
  const float least = most * 0x1p-126f;
  const float inverse = magnitude >= least && is_finite ? most / magnitude : 0.0f;
  for (int64_t i = 0; i < kGroup / kLanes; i++) {
    // Adding 1.5·2^23 rounds to an integer and leaves it in the low mantissa bits.
    q[i] = as_int(load(x + i * kLanes) * inverse + 12582912.0f) - 0x4b400000;
    if (!is_finite) q[i] = splat_int(1);  // not zero: a sparse product must not skip this group
  }
  return magnitude / most;
}

#if defined(__AVX512VNNI__)
void store_fine(const vi (&q)[kGroup / kLanes], FineQuad* to) {
  for (const vi& part : q) {
    const vi upper = (part + 128) >> 8, lower = part - (upper << 8);
    const __m128i u = _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(upper));
    const __m128i l = _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(lower));
    // Not as one array, which GCC 12 would load before both of its halves are stored.
    __m128i* quads = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(quads, _mm_unpacklo_epi32(u, l));
    _mm_storeu_si128(quads + 1, _mm_unpackhi_epi32(u, l));
    to += kLanes / 4;
  }
}
#elif defined(SK_DOTS)
void store_fine(const vi (&q)[kGroup / kLanes], FineQuad* to) {
  static_assert(kLanes == 4);
  for (const vi& part : q) {
    const vi upper = (part + 128) >> 8, lower = part - (upper << 8);
    for (int i = 0; i < 4; i++) {
      to->upper[i] = static_cast<int8_t>(upper[i]);
      to->lower[i] = static_cast<int8_t>(lower[i]);
    }
    to++;
  }
}
#else
void store_fine(const vi (&q)[kGroup / kLanes], FineQuad* to) {
  for (int64_t i = 0; i < kGroup; i += 4, to++) {
    const auto at = [&](int64_t k) { return static_cast<int16_t>(q[k / kLanes][k % kLanes]); };
    to->values[0] = at(i);
    to->values[1] = at(i + 2);
    to->values[2] = at(i + 1);
    to->values[3] = at(i + 3);
  }
}
#endif

/// The sum of the first or the last 16 integers of a group.
int32_t half_sum(const vi (&q)[kGroup / kLanes], int64_t half) {
  constexpr int64_t kVectors = 16 / kLanes;
  vi total = q[half * kVectors];
  for (int64_t i = 1; i < kVectors; i++) total += q[half * kVectors + i];
  return sum_of(total);
}

}  // namespace

void quantise(const float* x, int64_t columns, const ActivationLayout& layout, int64_t first,
              int64_t end, uint8_t* to) {
  Quantised* values = reinterpret_cast<Quantised*>(to);
  float* scales = reinterpret_cast<float*>(to + layout.scales_at);
  int32_t* corrections = reinterpret_cast<int32_t*>(to + layout.corrections_at);
  for (int64_t g = first; g < end; g++) {
    const float* from = x + g * kGroup;
    float padded[kGroup];
    if (columns - g * kGroup < kGroup) {
      std::fill(std::copy(from, x + columns, padded), padded + kGroup, 0.0f);
      from = padded;
    }
    vi q[kGroup / kLanes];
    scales[g] = round_group(from, 127.0f, q);
    corrections[g] = -kCorrection * store_group(q, values + g * kGroup);
    store_bytes(q, to + layout.bytes_at + g * kGroup);
  }
}

void quantise_fine(const float* x, const FineLayout& layout, int64_t first, int64_t end,
                   uint8_t* to) {
  FineQuad* quads = reinterpret_cast<FineQuad*>(to);
  float* scales = reinterpret_cast<float*>(to + layout.scales_at);
  int32_t* sums = reinterpret_cast<int32_t*>(to + layout.sums_at);
  for (int64_t g = first; g < end; g++) {
    vi q[kGroup / kLanes];
    scales[g] = round_group(x + g * kGroup, static_cast<float>(kFineMost), q);
    store_fine(q, quads + g * kGroup / 4);
    for (int64_t half = 0; half < 2; half++) sums[2 * g + half] = half_sum(q, half);
  }
}

}  // namespace skein
