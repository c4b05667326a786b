// Activations rounded to integers.
//
// 8 bits, for products with i8, q4 and nf4 weights. Each token has one scale per group of 32
// inputs: scale = max|x| / 127, q = round(x / scale). The layout of a token in bytes:
//   values       with SK_DOTS: [K] i8.  Elsewhere: [K/4] × i16 {x0, x2, x1, x3}, the order in which weights
//                are unpacked
//   scales       [K/32] f32
//   corrections  [K/32] i32, −kCorrection·Σq: added to the sum of a group whose weights are stored
//                with an offset of kCorrection
//   bytes        AVX2 without VNNI: [K] i8, the values once more, for q4
//
// 16 bits, for GGUF's blocks: scale = max|x| / 32512.
//   quads   [K/4] FineQuad
//   scales  [K/32] f32
//   sums    [K/16] i32, Σq
#pragma once

#include "matrix.h"

namespace skein {

#if defined(SK_DOTS)
using Quantised = int8_t;
#else
using Quantised = int16_t;
#endif

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
constexpr bool kKeepsBytes = true;
#else
constexpr bool kKeepsBytes = false;
#endif

constexpr int kCorrection = 128;
static_assert(kWeightOffset == 0 || kWeightOffset == kCorrection);

struct ActivationLayout {
  int64_t groups, scales_at, corrections_at, bytes_at, stride;  // bytes

  explicit ActivationLayout(int64_t columns)
      : groups(div_up(columns, kGroup)),
        scales_at(groups * kGroup * static_cast<int64_t>(sizeof(Quantised))),
        corrections_at(scales_at + groups * 4),
        bytes_at(corrections_at + groups * 4),
        stride(round_up(bytes_at + (kKeepsBytes ? groups * kGroup : 0), 64)) {}
};

/// Quantises groups [first, end) of one token, x [columns], into `to` [layout.stride]. A group with
/// a NaN or an infinity gets that as its scale, so that the value reaches the output.
void quantise(const float* x, int64_t columns, const ActivationLayout& layout, int64_t first,
              int64_t end, uint8_t* to);

/// Four inputs of 16 bits each.
struct FineQuad {
#if defined(SK_DOTS)
  int8_t upper[4], lower[4];  // x = 256·upper + lower, upper rounded to nearest
#else
  int16_t values[4];  // inputs 0, 2, 1, 3
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

/// Like quantise(), but to 16 bits, of a multiple of 32 columns.
void quantise_fine(const float* x, const FineLayout& layout, int64_t first, int64_t end,
                   uint8_t* to);

}  // namespace skein
