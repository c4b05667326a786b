#include "packed-tile.h"

namespace skein {

namespace {

bool is_finite(const uint8_t* f16) { return (f16[1] & 0x7c) != 0x7c; }

/// Stores the code of one input of a row in its group of a tile.
void store_code(const PackedTile& tile, int code, int64_t row, int64_t input, uint8_t* group) {
  const int64_t quad = input / 4;
  uint8_t* values = group + tile.quads_at() + quad * tile.quad_bytes();
  if (tile.format.bits == 8) {
    values[row * 4 + input % 4] = static_cast<uint8_t>(code - tile.format.offset + kWeightOffset);
    return;
  }
  // Of the codes of two rows that share a byte, the high one is first (packed-tile.h).
  const bool is_high = row / kLanes % 2 == 1;
  const int bits = tile.beyond(), most = (1 << bits) - 1;
  const int half = is_high ? code >> bits : code & 15, beyond = is_high ? code & most : code >> 4;
  const int64_t at = (row / (2 * kLanes) * kLanes + row % kLanes) * 4 + input % 4;
  values[at] |= static_cast<uint8_t>(half << (is_high ? 4 : 0));
  if (bits == 0) return;
  uint8_t* plane = group + tile.planes_at() + quad / tile.plane_quads() * kTileRows * 2;
  const int64_t shift = quad % tile.plane_quads() * 2 * bits + (is_high ? 0 : bits);
  plane[at] |= static_cast<uint8_t>(beyond << shift);
}

}  // namespace

bool store_packed_tile(int32_t type, const uint8_t* blocks, int64_t rows, int64_t columns,
                       uint8_t* tile) {
  const PackedTile shape = packed_tile(type);
  const PackedFormat& format = shape.format;
  bool all_finite = true;
  PackedGroup from;
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t b = 0; b < columns / format.inputs; b++, blocks += format.bytes) {
      uint8_t* block = tile + b * shape.block_bytes();
      std::memcpy(block + row * 2, blocks + format.scale_at, 2);
      all_finite &= is_finite(blocks + format.scale_at);
      if (format.minimum != 0) {
        std::memcpy(block + (kTileRows + row) * 2, blocks + format.minimum_at, 2);
        all_finite &= is_finite(blocks + format.minimum_at);
      }
      for (int64_t g = 0; g < shape.groups(); g++) {
        uint8_t* group = block + shape.header_bytes() + g * shape.group_bytes();
        read_group(type, blocks, g, from);
        for (int64_t i = 0; i < format.group_scales; i++)
          group[i * kTileRows + row] = from.scales[i];
        if (format.group_scales != 0 && format.minimum != 0) group[kTileRows + row] = from.minimum;
        for (int64_t i = 0; i < kGroup; i++) store_code(shape, from.codes[i], row, i, group);
      }
    }
  }
  return all_finite;
}

}  // namespace skein
