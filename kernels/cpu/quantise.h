// Rounds weights to few bits. src/backend/reference/quantise.ts defines the rounding to the bit.
// Does not know tiles.
#pragma once

#include "matrix.h"

namespace skein {

/// Inputs of a block; a multiple of scale_inputs of every type.
constexpr int64_t kBlockInputs = 64;

/// 64 rows × 64 inputs as f32. Padding is zero.
using Block = float[kTileRows][kBlockInputs];

struct QuantisedBlock {
  int8_t values[kTileRows][kBlockInputs];             // q4: −8 … 7; nf4: a code 0 … 15
  uint16_t scales[kTileRows][kBlockInputs / kGroup];  // bf16; nf4 uses the first
};

/// Quantises a block. If a group holds a NaN or an infinity, its scale and all its weights become
/// NaN, so that it cannot be skipped.
void quantise_block(int32_t type, const Block& block, QuantisedBlock& to);

/// Quantised rows as a file holds them: row-major, without padding.
///   values  i8: [rows, columns].  q4 (+ 8) and nf4: [rows, columns / 2 rounded up], the even input
///           of a pair in the low half
///   scales  bf16 [rows, columns / scale_inputs rounded up]
struct QuantisedShape {
  int32_t type;
  int64_t rows, columns;

  int64_t row_bytes() const { return type == SK_I8 ? columns : div_up(columns, 2); }
  int64_t row_scales() const { return div_up(columns, scale_inputs(type)); }
};

/// Reads the block at (first_row, first_column). Padding becomes zeros.
void load_quantised(const QuantisedShape& shape, const uint8_t* values, const uint16_t* scales,
                    int64_t first_row, int64_t first_column, QuantisedBlock& to);

/// Writes a block back to rows; drops the padding.
void store_quantised(const QuantisedShape& shape, const QuantisedBlock& from, int64_t first_row,
                     int64_t first_column, uint8_t* values, uint16_t* scales);

}  // namespace skein
