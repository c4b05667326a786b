// The packed weights of GGUF: how a file stores them (ggml-org/llama.cpp, ggml/src/ggml-common.h)
// and their values. A block has 32 or 256 inputs of a row: codes of a few bits, and one or two f16
// scales. Does not know tiles.
#pragma once

#include "matrix.h"

namespace skein {

/// A weight is (code − offset)·scale, plus or minus a minimum.
struct PackedFormat {
  int32_t inputs, bytes;  // per block
  int32_t bits, offset;   // per code
  int32_t minimum;        // 1: added, −1: subtracted, 0: none
  int32_t group_scales;   // integer scales per group of 32 inputs, times the block's f16; 0: none
  int32_t scale_at, minimum_at;  // offsets of the f16s in a block
};

constexpr PackedFormat packed_format(int32_t type) {
  switch (type) {
    case SK_Q4_0:
      return {32, 18, 4, 8, 0, 0, 0, 0};
    case SK_Q4_1:
      return {32, 20, 4, 0, 1, 0, 0, 2};
    case SK_Q5_0:
      return {32, 22, 5, 16, 0, 0, 0, 0};
    case SK_Q5_1:
      return {32, 24, 5, 0, 1, 0, 0, 2};
    case SK_Q8_0:
      return {32, 34, 8, 128, 0, 0, 0, 0};
    case SK_Q4_K:
      return {256, 144, 4, 0, -1, 1, 0, 2};
    case SK_Q5_K:
      return {256, 176, 5, 0, -1, 1, 0, 2};
    default:  // SK_Q6_K
      return {256, 210, 6, 32, 0, 2, 208, 0};
  }
}

/// Bytes of one row, which consists of whole blocks.
constexpr int64_t packed_row_bytes(int32_t type, int64_t columns) {
  return columns / packed_format(type).inputs * packed_format(type).bytes;
}

/// 32 inputs of a row.
struct PackedGroup {
  uint8_t codes[kGroup];
  /// The integer scales of the group (one, or one for each 16 inputs, signed) and its minimum.
  uint8_t scales[2], minimum;
};

/// Reads group `index` of a block.
void read_group(int32_t type, const uint8_t* block, int64_t index, PackedGroup& to);

/// Unpacks one row of weights to f32.
void unpack_row(int32_t type, const uint8_t* row, float* to, int64_t columns);

}  // namespace skein
