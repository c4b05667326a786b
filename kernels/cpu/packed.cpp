#include "packed.h"

#include "convert.h"

namespace skein {

namespace {

/// Reads 32 codes of 4 bits: the low halves of 16 bytes are codes 0 … 15, the high halves 16 … 31.
void read_halves(const uint8_t* low, PackedGroup& to) {
  for (int i = 0; i < 16; i++) {
    to.codes[i] = low[i] & 15;
    to.codes[i + 16] = low[i] >> 4;
  }
}

/// Like read_halves, with a fifth bit per code.
void read_fives(const uint8_t* high, const uint8_t* low, PackedGroup& to) {
  read_halves(low, to);
  for (int i = 0; i < 32; i++) to.codes[i] |= (high[i / 8] >> i % 8 & 1) << 4;
}

/// Reads the scale and the minimum of a group from the twelve bytes that hold those of eight
/// groups, six bits each.
void read_six_bits(const uint8_t* bytes, int64_t group, PackedGroup& to) {
  if (group < 4) {
    to.scales[0] = bytes[group] & 63;
    to.minimum = bytes[group + 4] & 63;
    return;
  }
  to.scales[0] = (bytes[group + 4] & 15) | bytes[group - 4] >> 6 << 4;
  to.minimum = bytes[group + 4] >> 4 | bytes[group] >> 6 << 4;
}

/// Layout: two f16 · scales · 128 bytes. Of every 32 bytes, the low halves are one group, the high
/// halves the next.
void read_q4_k(const uint8_t* block, const uint8_t* low, int64_t group, PackedGroup& to) {
  read_six_bits(block + 4, group, to);
  for (int i = 0; i < 32; i++) to.codes[i] = low[group / 2 * 32 + i] >> (group % 2 * 4) & 15;
}

/// Layout: 128 bytes of low halves · 64 bytes of upper pairs of bits · 16 scales, one per 16
/// inputs. Within 128 inputs, byte i of 64 holds the halves of inputs i and i + 64, and byte i of
/// 32 the pairs of inputs i, i + 32, i + 64 and i + 96.
void read_q6_k(const uint8_t* block, int64_t group, PackedGroup& to) {
  const int64_t half = group / 4, quarter = group % 4;
  const uint8_t* low = block + 64 * half + 32 * (quarter % 2);
  const uint8_t* high = block + 128 + 32 * half;
  for (int i = 0; i < 32; i++) {
    const int upper = high[i] >> (2 * quarter) & 3;
    to.codes[i] = static_cast<uint8_t>((low[i] >> (quarter / 2 * 4) & 15) | upper << 4);
  }
  std::memcpy(to.scales, block + 192 + 2 * group, 2);
}

float f16_at(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, 2);
  return f16_to_float(half);
}

}  // namespace

void read_group(int32_t type, const uint8_t* block, int64_t index, PackedGroup& to) {
  switch (type) {
    case SK_Q4_0:
      return read_halves(block + 2, to);
    case SK_Q4_1:
      return read_halves(block + 4, to);
    case SK_Q5_0:
      return read_fives(block + 2, block + 6, to);
    case SK_Q5_1:
      return read_fives(block + 4, block + 8, to);
    case SK_Q8_0:
      for (int i = 0; i < 32; i++) to.codes[i] = block[2 + i] ^ 128;
      return;
    case SK_Q4_K:
      return read_q4_k(block, block + 16, index, to);
    case SK_Q5_K:
      read_q4_k(block, block + 48, index, to);
      for (int i = 0; i < 32; i++) to.codes[i] |= (block[16 + i] >> index & 1) << 4;
      return;
    default:
      return read_q6_k(block, index, to);
  }
}

void unpack_row(int32_t type, const uint8_t* row, float* to, int64_t columns) {
  const PackedFormat format = packed_format(type);
  PackedGroup group;
  for (int64_t c = 0; c < columns; c += kGroup) {
    const uint8_t* block = row + c / format.inputs * format.bytes;
    read_group(type, block, c % format.inputs / kGroup, group);
    const float unit = f16_at(block + format.scale_at);
    float minimum = 0;
    if (format.minimum != 0) {
      const float factor = format.group_scales == 0 ? 1.0f : static_cast<float>(group.minimum);
      minimum = f16_at(block + format.minimum_at) * factor * static_cast<float>(format.minimum);
    }
    for (int64_t i = 0; i < kGroup; i++) {
      float scale = unit;
      if (format.group_scales == 1) scale *= static_cast<float>(group.scales[0]);
      if (format.group_scales == 2)
        scale *= static_cast<float>(static_cast<int8_t>(group.scales[i / 16]));
      to[c + i] = static_cast<float>(group.codes[i] - format.offset) * scale + minimum;
    }
  }
}

}  // namespace skein
