// Packs matrices into the order in which linear.cpp streams them; matrix.h has the layout.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "convert.h"
#include "packed-tile.h"
#include "program.h"
#include "quantise.h"
#include "split.h"

namespace skein {

namespace {

struct Source {
  const uint8_t* values;
  int32_t type;
  int64_t rows, columns;
};

void load_block(const Source& source, int64_t first_row, int64_t first_column, Block& block) {
  const int64_t rows = std::min(kTileRows, source.rows - first_row);
  const int64_t columns = std::min(kBlockInputs, source.columns - first_column);
  const int64_t element = source.type == SK_F32 ? 4 : 2;
  if (rows < kTileRows || columns < kBlockInputs) std::memset(block, 0, sizeof block);
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

/// Returns false if a finite value became infinite.
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
  for (int64_t c = 0; c < columns; c++) {
    for (int64_t r = 0; r < kTileRows; r++)
      to[c * kTileRows + bf16_place(r)] = float_to_bf16(block[r][c]);
  }
}

/// The byte that a tile stores for a weight: the operand of the inner product, or an nf4 code.
int stored(int32_t type, int8_t value) {
  return value + (type == SK_I8 ? kWeightOffset : type == SK_Q4 ? kQ4Offset : 0);
}

/// Stores `columns` inputs of a quantised block as one or more blocks of a tile.
void store_packed(int32_t type, const QuantisedBlock& block, uint8_t* to, int64_t columns) {
  const int64_t inputs = scale_inputs(type);
  for (int64_t first = 0; first < columns; first += inputs, to += block_bytes(type)) {
    uint16_t* scales = reinterpret_cast<uint16_t*>(to);
    uint8_t* values = to + kTileRows * 2;
    for (int64_t r = 0; r < kTileRows; r++) {
      scales[r] = block.scales[r][first / kGroup];
      for (int64_t c = 0; c < inputs; c++) {
        const int value = stored(type, block.values[r][first + c]);
        if (type == SK_I8) {
          values[c / 4 * kTileRows * 4 + r * 4 + c % 4] = static_cast<uint8_t>(value);
          continue;
        }
        const int64_t pair = r / (2 * kLanes), lane = r % kLanes;
        uint8_t& byte = values[c / 4 * kTileRows * 2 + (pair * kLanes + lane) * 4 + c % 4];
        const bool is_high = r / kLanes % 2 == 1;
        byte = static_cast<uint8_t>(is_high ? (byte & 15) | value << 4 : value);
      }
    }
  }
}

struct Packed {
  bool fits = true;  // false if f16 cannot hold a value
  bool is_finite = true;
};

bool is_finite(const Block& block) {
  uint32_t exponents = 0;
  for (const auto& row : block) {
    for (const float x : row) exponents |= (float_bits(x) & 0x7f800000) == 0x7f800000 ? 1 : 0;
  }
  return exponents == 0;
}

Packed pack_tile(const sk_matrix& matrix, const Source& source, int64_t first_row, uint8_t* to) {
  Block block;
  QuantisedBlock quantised;
  Packed packed;
  for (int64_t c = 0; c < matrix.columns; c += kBlockInputs) {
    const int64_t columns = std::min(kBlockInputs, matrix.columns - c);
    load_block(source, first_row, c, block);
    packed.is_finite &= is_finite(block);
    switch (matrix.type) {
      case SK_F32:
        store_f32(block, reinterpret_cast<float*>(to) + c * kTileRows, columns);
        break;
      case SK_F16:
        packed.fits &= store_f16(block, reinterpret_cast<uint16_t*>(to) + c * kTileRows, columns);
        break;
      case SK_BF16:
        store_bf16(block, reinterpret_cast<uint16_t*>(to) + c * kTileRows, columns);
        break;
      default:
        quantise_block(matrix.type, block, quantised);
        store_packed(matrix.type, quantised, to + tile_bytes(matrix.type, c), columns);
    }
  }
  return packed;
}

void check_rows(const sk_matrix& matrix, int64_t first_row, int64_t num_rows) {
  require(first_row >= 0 && num_rows > 0 && first_row + num_rows <= matrix.rows,
          "matrix rows out of range");
  require(first_row % kTileRows == 0, "a block of matrix rows must start at a multiple of 64");
  require(num_rows % kTileRows == 0 || first_row + num_rows == matrix.rows,
          "only the last block of matrix rows may be ragged");
}

/// Calls pack(first row of the tile within the block, address of the tile) for all tiles of a block
/// of rows, spread over all threads.
template <class Pack>
void each_tile(const sk_matrix& matrix, int64_t first_row, int64_t num_rows, Pack&& pack) {
  uint8_t* first = matrix.data + first_row / kTileRows * matrix.tile_stride;
  matrix.context->pool.run(div_up(num_rows, kTileRows), [&](int64_t tile, int) {
    pack(tile * kTileRows, first + tile * matrix.tile_stride);
  });
}

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" {

sk_matrix* sk_matrix_new(sk_context* context, int64_t rows, int64_t columns, int32_t type) {
  return guard_pointer([&] {
    require(rows > 0 && columns > 0, "a matrix needs rows and columns");
    require(type >= SK_F32 && type <= SK_Q6_K, "unknown weight type");
    require(!is_packed(type) || columns % packed_format(type).inputs == 0,
            "rows of packed weights must be whole blocks");
    auto matrix = std::make_unique<sk_matrix>();
    const int64_t stride =
        is_packed(type) ? packed_tile(type).bytes(columns) : tile_bytes(type, columns);
    *matrix = {context, rows, columns, type, stride, nullptr, true};
    matrix->data = context->weights.take(static_cast<size_t>(matrix->tiles() * stride));
    return context->keep(std::move(matrix));
  });
}

int32_t sk_matrix_pack(sk_matrix* matrix, int64_t first_row, int64_t num_rows, int32_t source_type,
                       const void* values) {
  return guard([&] {
    check_rows(*matrix, first_row, num_rows);
    require(source_type >= SK_F32 && source_type <= SK_BF16, "a matrix source is f32, f16 or bf16");
    require(!is_packed(matrix->type), "a matrix of packed weights takes GGUF blocks only");
    const Source source{static_cast<const uint8_t*>(values), source_type, num_rows,
                        matrix->columns};
    std::atomic<bool> fits{true}, is_finite{true};
    each_tile(*matrix, first_row, num_rows, [&](int64_t row, uint8_t* to) {
      const Packed packed = pack_tile(*matrix, source, row, to);
      if (!packed.fits) fits.store(false);
      if (!packed.is_finite) is_finite.store(false);
    });
    require(fits.load(), "a weight is beyond ±65504 and does not fit f16; use bf16 or f32",
            SK_UNSUPPORTED);
    matrix->is_finite &= is_finite.load();
  });
}

int32_t sk_matrix_pack_quantised(sk_matrix* matrix, int64_t first_row, int64_t num_rows,
                                 const void* values, const uint16_t* scales) {
  return guard([&] {
    check_rows(*matrix, first_row, num_rows);
    require(is_quantised(matrix->type), "only i8, q4 and nf4 matrices take quantised rows");
    const QuantisedShape shape{matrix->type, num_rows, matrix->columns};
    for (int64_t i = 0; i < num_rows * shape.row_scales(); i++)
      matrix->is_finite &= (scales[i] & 0x7f80) != 0x7f80;
    each_tile(*matrix, first_row, num_rows, [&](int64_t row, uint8_t* to) {
      QuantisedBlock block;
      for (int64_t c = 0; c < matrix->columns; c += kBlockInputs) {
        load_quantised(shape, static_cast<const uint8_t*>(values), scales, row, c, block);
        store_packed(matrix->type, block, to + tile_bytes(matrix->type, c),
                     std::min(kBlockInputs, matrix->columns - c));
      }
    });
  });
}

int32_t sk_matrix_pack_blocks(sk_matrix* matrix, int64_t first_row, int64_t num_rows,
                              const void* blocks) {
  return guard([&] {
    check_rows(*matrix, first_row, num_rows);
    require(is_packed(matrix->type), "only a matrix of packed weights takes GGUF blocks");
    const int64_t row_bytes = packed_row_bytes(matrix->type, matrix->columns);
    std::atomic<bool> is_finite{true};
    each_tile(*matrix, first_row, num_rows, [&](int64_t row, uint8_t* to) {
      const uint8_t* from = static_cast<const uint8_t*>(blocks) + row * row_bytes;
      const int64_t rows = std::min(kTileRows, num_rows - row);
      if (!store_packed_tile(matrix->type, from, rows, matrix->columns, to)) is_finite.store(false);
    });
    matrix->is_finite &= is_finite.load();
  });
}

int32_t sk_quantise(sk_context* context, int32_t type, int64_t rows, int64_t columns,
                    int32_t source_type, const void* source, void* values, uint16_t* scales) {
  return guard([&] {
    require(type >= SK_I8 && type <= SK_NF4, "quantised types are i8, q4 and nf4");
    require(rows > 0 && columns > 0, "a matrix needs rows and columns");
    require(source_type >= SK_F32 && source_type <= SK_BF16, "a matrix source is f32, f16 or bf16");
    const Source from{static_cast<const uint8_t*>(source), source_type, rows, columns};
    const QuantisedShape shape{type, rows, columns};
    context->pool.run(div_up(rows, kTileRows), [&](int64_t tile, int) {
      Block block;
      QuantisedBlock quantised;
      for (int64_t c = 0; c < columns; c += kBlockInputs) {
        load_block(from, tile * kTileRows, c, block);
        quantise_block(type, block, quantised);
        store_quantised(shape, quantised, tile * kTileRows, c, static_cast<uint8_t*>(values),
                        scales);
      }
    });
  });
}

int64_t sk_matrix_bytes(const sk_matrix* matrix) { return matrix->tiles() * matrix->tile_stride; }

}  // extern "C"
