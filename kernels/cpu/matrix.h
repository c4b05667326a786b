// Packed weights: the layout that pack.cpp writes and linear.cpp streams.
//
// Output rows come in tiles of 64; a tile is contiguous, its inputs in order:
//   f32, f16   [K][64]
//   bf16       [K/2][64][2]              pairs, so that one 32-bit lane holds two inputs of a row
//   i8         [K/32] × { [64] bf16 scales, [8][64][4] values }     quads of inputs of a row
// K is padded with zeros to a multiple of 2 (bf16) or 32 (i8), rows to a multiple of 64.
#pragma once

#include "memory.h"
#include "skein.h"

namespace skein {
constexpr int64_t kTileRows = 64;
constexpr int64_t kGroup = 32;  // inputs that share an i8 scale
constexpr int64_t kGroupBytes = kTileRows * 2 + kTileRows * kGroup;  // of one tile

// VNNI multiplies unsigned by signed bytes: there the weights are stored + 128 and the activations
// carry the correction. Elsewhere they are plain signed bytes.
#if defined(__AVX512VNNI__)
constexpr int kWeightOffset = 128;
#else
constexpr int kWeightOffset = 0;
#endif

inline int64_t tile_bytes(int32_t type, int64_t columns) {
  switch (type) {
    case SK_F32:
      return columns * kTileRows * 4;
    case SK_F16:
      return columns * kTileRows * 2;
    case SK_BF16:
      return round_up(columns, 2) * kTileRows * 2;
    default:
      return div_up(columns, kGroup) * kGroupBytes;
  }
}
}  // namespace skein

struct sk_matrix {
  sk_context* context;
  int64_t rows, columns;
  int32_t type;
  int64_t tile_stride;  // bytes
  skein::Buffer data;   // [rows / 64 rounded up] tiles

  int64_t tiles() const { return skein::div_up(rows, skein::kTileRows); }
  const uint8_t* tile(int64_t index) const { return data.as<uint8_t>() + index * tile_stride; }
};
