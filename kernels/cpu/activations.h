// Activations as integers. Of 8 bits for products with i8, q4 and nf4: per token and group of 32
// inputs, q = round(x / scale) with scale = max|x| / 127. A token is one block of bytes:
//   values       VNNI: [K] i8.  Elsewhere: [K/4] × i16 {x0, x2, x1, x3}, the order in which weights
//                unpack
//   scales       [K/32] f32
//   corrections  [K/32] i32, −kCorrection·Σq: what the sum of a group owes for an offset of
//                kCorrection in its weights
// Of 16 bits, max|x| / 32512 a step, for packed weights:
//   quads   [K/4] FineQuad
//   scales  [K/32] f32
//   sums    [K/16] i32, Σq
#pragma once

#include "matrix.h"

namespace skein {

#if defined(__AVX512VNNI__)
using Quantised = int8_t;
#else
using Quantised = int16_t;
#endif

constexpr int kCorrection = 128;
static_assert(kWeightOffset == 0 || kWeightOffset == kCorrection);

struct ActivationLayout {
  int64_t groups, scales_at, corrections_at, stride;  // bytes

  explicit ActivationLayout(int64_t columns)
      : groups(div_up(columns, kGroup)),
        scales_at(groups * kGroup * static_cast<int64_t>(sizeof(Quantised))),
        corrections_at(scales_at + groups * 4),
        stride(round_up(corrections_at + groups * 4, 64)) {}
};

/// Quantises one token, x [columns], into `to` [layout.stride]. A group that holds a NaN or
/// infinity gets that as its scale, so it cannot vanish.
void quantise(const float* x, int64_t columns, const ActivationLayout& layout, uint8_t* to);

/// Four inputs of 16 bits.
struct FineQuad {
#if defined(__AVX512VNNI__)
  int8_t upper[4], lower[4];  // 256·upper + lower, to the nearest
#else
  int16_t values[4];  // 0, 2, 1, 3
#endif
};

constexpr int kFineMost = 32512;  // 127·256

struct FineLayout {
  int64_t groups, scales_at, sums_at, stride;  // bytes

  explicit FineLayout(int64_t columns)
      : groups(div_up(columns, kGroup)),
        scales_at(groups * kGroup / 4 * static_cast<int64_t>(sizeof(FineQuad))),
        sums_at(scales_at + groups * 4),
        stride(round_up(sums_at + groups * 8, 64)) {}
};

/// As quantise(), to 16 bits. `columns` is a multiple of 32.
void quantise_fine(const float* x, int64_t columns, const FineLayout& layout, uint8_t* to);

}  // namespace skein
