// Weights in the layout that pack.cpp writes and linear.cpp streams.
//
// Output rows are grouped in tiles of 64. A tile is contiguous, with its inputs in order:
//   f32, f16, bf16   [K][64]
//   i8         [K/32] × { [64] bf16 scales, [8][64][4] values }     four inputs of a row together
//   q4         [K/32] × { [64] bf16 scales, [8][32][4] values }
//   nf4        [K/64] × { [64] bf16 scales, [16][32][4] values }
// A byte of q4 and nf4 holds one code of each of two rows that are L rows apart (L = kLanes): byte
// l of vector pair m has row 2mL + l in its low half and row 2mL + L + l in its high half. So a
// shift and a mask give two whole vectors. K is padded with zeros to a multiple of 32 (i8, q4) or
// 64 (nf4), rows to a multiple of 64. The layout of GGUF's blocks is in packed-tile.h.
#pragma once

#include "memory.h"
#include "skein.h"

namespace skein {
constexpr int64_t kTileRows = 64;
constexpr int64_t kGroup = 32;  // inputs whose products are summed as integers

// Levels that multiply four bytes and add the products to 32 bits: AVX-512 with VNNI, NEON with its
// dot product.
#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
#define SK_DOTS
#endif

// VNNI multiplies unsigned by signed bytes. There, i8 and nf4 weights are stored unsigned, with
// this offset, and the activations carry the correction. Elsewhere they are plain signed bytes.
#if defined(__AVX512VNNI__)
constexpr int kWeightOffset = 128;
#else
constexpr int kWeightOffset = 0;
#endif
/// q4 stores −8 … 7 as 0 … 15 on every ISA level.
constexpr int kQ4Offset = 8;

/// The values of the sixteen nf4 codes: quantiles of the normal distribution (Dettmers et al.,
/// "QLoRA", 2023) in units of 1/127, so that products are exact integers.
inline constexpr int8_t kNf4Levels[16] = {-127, -88, -67, -50, -36, -23, -12, 0,
                                          10,   20,  31,  43,  56,  71,  92,  127};
constexpr int kNf4Zero = 7;  // the code of 0

inline bool is_quantised(int32_t type) { return type >= SK_I8 && type <= SK_NF4; }
/// Whether the type is one of GGUF's block formats.
constexpr bool is_packed(int32_t type) { return type >= SK_Q4_0; }

/// Inputs of a row that share one scale.
constexpr int64_t scale_inputs(int32_t type) { return type == SK_NF4 ? 2 * kGroup : kGroup; }

/// Bytes of a tile for scale_inputs inputs, including the scales.
constexpr int64_t block_bytes(int32_t type) {
  const int64_t values = kTileRows * scale_inputs(type);
  return kTileRows * 2 + (type == SK_I8 ? values : values / 2);
}

/// Bytes of one tile.
inline int64_t tile_bytes(int32_t type, int64_t columns) {
  switch (type) {
    case SK_F32:
      return columns * kTileRows * 4;
    case SK_F16:
    case SK_BF16:
      return columns * kTileRows * 2;
    default:
      return div_up(columns, scale_inputs(type)) * block_bytes(type);
  }
}
}  // namespace skein

struct sk_matrix {
  sk_context* context;
  int64_t rows, columns;
  int32_t type;
  int64_t tile_stride;  // bytes
  uint8_t* data;        // [rows / 64 rounded up] tiles, of the context
  /// Whether all weights are finite, so that zero inputs can be skipped.
  bool is_finite = true;

  int64_t tiles() const { return skein::div_up(rows, skein::kTileRows); }
  const uint8_t* tile(int64_t index) const { return data + index * tile_stride; }
};
