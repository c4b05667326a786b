// Matrices into the order in which linear.cpp streams them; see matrix.h for the layout.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "convert.h"
#include "matrix.h"
#include "program.h"

namespace skein {

namespace {

/// 64 rows × 32 inputs as f32; padding is zero.
using Block = float[kTileRows][kGroup];

struct Source {
  const uint8_t* values;
  int32_t type;
  int64_t rows, columns;
};

void load_block(const Source& source, int64_t first_row, int64_t first_column, Block& block) {
  const int64_t rows = std::min(kTileRows, source.rows - first_row);
  const int64_t columns = std::min(kGroup, source.columns - first_column);
  const int64_t element = source.type == SK_F32 ? 4 : 2;
  if (rows < kTileRows || columns < kGroup) std::memset(block, 0, sizeof block);
  for (int64_t r = 0; r < rows; r++) {
    const int64_t offset = (first_row + r) * source.columns + first_column;
    to_floats(source.type, source.values + offset * element, block[r], columns);
  }
}

void store_f32(const Block& block, float* to, int64_t columns) {
  for (int64_t c = 0; c < columns; c++) {
    for (int64_t r = 0; r < kTileRows; r++) to[c * kTileRows + r] = block[r][c];
  }
}

/// False when a finite value became infinite.
bool store_f16(const Block& block, uint16_t* to, int64_t columns) {
  bool fits = true;
  for (int64_t c = 0; c < columns; c++) {
    for (int64_t r = 0; r < kTileRows; r++) {
      const uint16_t h = float_to_f16(block[r][c]);
      to[c * kTileRows + r] = h;
      if ((h & 0x7fff) == 0x7c00 && std::isfinite(block[r][c])) fits = false;
    }
  }
  return fits;
}

void store_bf16(const Block& block, uint16_t* to, int64_t columns) {
  for (int64_t c = 0; c < round_up(columns, 2); c++) {
    uint16_t* pairs = to + c / 2 * kTileRows * 2 + c % 2;
    for (int64_t r = 0; r < kTileRows; r++) pairs[r * 2] = float_to_bf16(block[r][c]);
  }
}

/// The scale is rounded up to bf16 first and the values are quantised with the rounded one, so none
/// exceeds ±127.
void store_i8(const Block& block, uint8_t* to) {
  uint16_t* scales = reinterpret_cast<uint16_t*>(to);
  uint8_t* values = to + kTileRows * 2;
  for (int64_t r = 0; r < kTileRows; r++) {
    uint32_t largest = 0;  // as bits, so that NaN and infinity win
    for (float x : block[r]) largest = std::max(largest, float_bits(x) & 0x7fffffff);
    const bool finite = largest < 0x7f800000;
    scales[r] = finite ? float_to_bf16_up(bits_float(largest) / 127.0f) : 0x7fc0;
    const float scale = bf16_to_float(scales[r]);
    const bool is_used = finite && scale > 0;
    for (int64_t c = 0; c < kGroup; c++) {
      const float scaled = is_used ? block[r][c] / scale : 0.0f;
      const int q = std::clamp(static_cast<int>(std::nearbyint(scaled)), -127, 127);
      values[c / 4 * kTileRows * 4 + r * 4 + c % 4] = static_cast<uint8_t>(q + kWeightOffset);
    }
  }
}

/// One tile; false when f16 cannot hold a value.
bool pack_tile(const sk_matrix& matrix, const Source& source, int64_t first_row, uint8_t* to) {
  Block block;
  bool fits = true;
  for (int64_t c = 0; c < matrix.columns; c += kGroup) {
    const int64_t columns = std::min(kGroup, matrix.columns - c);
    load_block(source, first_row, c, block);
    switch (matrix.type) {
      case SK_F32:
        store_f32(block, reinterpret_cast<float*>(to) + c * kTileRows, columns);
        break;
      case SK_F16:
        fits &= store_f16(block, reinterpret_cast<uint16_t*>(to) + c * kTileRows, columns);
        break;
      case SK_BF16:
        store_bf16(block, reinterpret_cast<uint16_t*>(to) + c * kTileRows, columns);
        break;
      default:
        store_i8(block, to + c / kGroup * kGroupBytes);
    }
  }
  return fits;
}

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" {

sk_matrix* sk_matrix_new(sk_context* context, int64_t rows, int64_t columns, int32_t type) {
  return guard_pointer([&] {
    require(rows > 0 && columns > 0, "a matrix needs rows and columns");
    require(type >= SK_F32 && type <= SK_I8, "unknown weight type");
    auto matrix = std::make_unique<sk_matrix>();
    *matrix = {context, rows, columns, type, tile_bytes(type, columns), {}};
    matrix->data = Buffer(static_cast<size_t>(matrix->tiles() * matrix->tile_stride));
    return context->keep(std::move(matrix));
  });
}

int32_t sk_matrix_pack(sk_matrix* matrix, int64_t first_row, int64_t num_rows, int32_t source_type,
                       const void* values) {
  return guard([&] {
    require(first_row >= 0 && num_rows > 0 && first_row + num_rows <= matrix->rows,
            "matrix rows out of range");
    require(first_row % kTileRows == 0, "blocks of matrix rows start at a multiple of 64");
    require(num_rows % kTileRows == 0 || first_row + num_rows == matrix->rows,
            "only the last block of matrix rows may be ragged");
    require(source_type >= SK_F32 && source_type <= SK_BF16, "a matrix source is f32, f16 or bf16");
    const Source source{static_cast<const uint8_t*>(values), source_type, num_rows,
                        matrix->columns};
    std::atomic<bool> fits{true};
    matrix->context->pool.run([&](Worker& worker) {
      worker.each(div_up(num_rows, kTileRows), [&](int64_t tile) {
        uint8_t* to =
            matrix->data.as<uint8_t>() + (first_row / kTileRows + tile) * matrix->tile_stride;
        if (!pack_tile(*matrix, source, tile * kTileRows, to)) fits.store(false);
      });
    });
    require(fits.load(), "a weight is beyond ±65504 and does not fit f16; use bf16 or f32");
  });
}

int64_t sk_matrix_bytes(const sk_matrix* matrix) { return matrix->tiles() * matrix->tile_stride; }

}  // extern "C"
