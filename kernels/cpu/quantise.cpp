#include "quantise.h"

#include <algorithm>
#include <cmath>

#include "convert.h"

namespace skein {

namespace {

/// One input of 64 rows. Loops over the rows can be vectorised without changing a bit, because rows
/// are independent.
using Column = float[kTileRows];

/// Inputs [first, first + count) of a block, transposed to [input][row].
struct Inputs {
  Column at[kBlockInputs];
  int64_t count;

  Inputs(const Block& block, int64_t first, int64_t inputs) : count(inputs) {
    for (int64_t r = 0; r < kTileRows; r++) {
      for (int64_t c = 0; c < count; c++) at[c][r] = block[r][first + c];
    }
  }
};

/// The nearest integer, ties to even; needs |x| < 2^22.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

/// Per row: the first input of the largest magnitude. Compared as bits, so that NaN and infinity
/// count as largest.
struct Largest {
  int32_t magnitude[kTileRows] = {};
  int32_t bits[kTileRows] = {};

  explicit Largest(const Inputs& inputs) {
    for (int64_t c = 0; c < inputs.count; c++) {
      int32_t column[kTileRows];
      std::memcpy(column, inputs.at[c], sizeof column);
      for (int64_t r = 0; r < kTileRows; r++) {
        const int32_t size = column[r] & 0x7fffffff;
        bits[r] = size > magnitude[r] ? column[r] : bits[r];
        magnitude[r] = size > magnitude[r] ? size : magnitude[r];
      }
    }
  }

  /// Whether the row is treated as all zeros. The pool's threads flush denormals; this bound keeps
  /// all scales far above them.
  bool is_tiny(int64_t r) const { return std::fabs(value(r)) < 0x1p-100f; }
  bool is_finite(int64_t r) const { return magnitude[r] < 0x7f800000; }
  float value(int64_t r) const { return bits_float(static_cast<uint32_t>(bits[r])); }
};

constexpr uint16_t kNotANumber = 0x7fc0;

/// max|w| / 127, rounded up so that no value exceeds ±127.
void absolute_scales(const Inputs& inputs, uint16_t (&bits)[kTileRows], Column& scales) {
  const Largest largest(inputs);
  for (int64_t r = 0; r < kTileRows; r++) {
    const float scale = std::fabs(largest.value(r)) / 127.0f;
    bits[r] = largest.is_tiny(r) ? 0 : float_to_bf16_up(scale);
    if (!largest.is_finite(r)) bits[r] = kNotANumber;
    scales[r] = bf16_to_float(bits[r]);
  }
}

/// w / scale, or 0 if the scale is zero or NaN.
inline float scaled(float w, float scale) {
  return scale != 0 && scale == scale ? w / scale : 0.0f;
}

void quantise_i8(const Inputs& inputs, int64_t first, QuantisedBlock& to) {
  uint16_t bits[kTileRows];
  Column scale;
  absolute_scales(inputs, bits, scale);
  for (int64_t r = 0; r < kTileRows; r++) to.scales[r][first / kGroup] = bits[r];
  for (int64_t c = 0; c < inputs.count; c++) {
    for (int64_t r = 0; r < kTileRows; r++)
      to.values[r][first + c] = static_cast<int8_t>(nearest(scaled(inputs.at[c][r], scale[r])));
  }
}

void quantise_nf4(const Inputs& inputs, QuantisedBlock& to) {
  uint16_t bits[kTileRows];
  Column scale;
  absolute_scales(inputs, bits, scale);
  for (int64_t r = 0; r < kTileRows; r++) to.scales[r][0] = bits[r];
  for (int64_t c = 0; c < inputs.count; c++) {
    int32_t codes[kTileRows] = {};
    for (int level = 1; level < 16; level++) {
      const float middle = 0.5f * static_cast<float>(kNf4Levels[level - 1] + kNf4Levels[level]);
      for (int64_t r = 0; r < kTileRows; r++)
        codes[r] += scaled(inputs.at[c][r], scale[r]) > middle ? 1 : 0;
    }
    for (int64_t r = 0; r < kTileRows; r++) to.values[r][c] = static_cast<int8_t>(codes[r]);
  }
}

/// The largest weight divided by each of these is tried as the scale. −8 and 7 are the ends of the
/// range of q4.
constexpr float kQ4Divisors[] = {8.0f, 7.7f, 7.4f, 7.1f, 6.8f, 8.3f, 8.6f, 9.0f};

inline float round_q4(float w, float scale) {
  return std::min(7.0f, std::max(-8.0f, nearest(scaled(w, scale))));
}

/// Chooses the scale with the least squared error, summed in f64 in the order of the inputs.
void quantise_q4(const Inputs& inputs, int64_t first, QuantisedBlock& to) {
  const Largest largest(inputs);
  Column best;
  double least[kTileRows];
  for (const float divisor : kQ4Divisors) {
    Column scale;
    for (int64_t r = 0; r < kTileRows; r++)
      scale[r] = bf16_to_float(float_to_bf16(largest.value(r) / -divisor));
    double error[kTileRows] = {};
    for (int64_t c = 0; c < inputs.count; c++) {
      for (int64_t r = 0; r < kTileRows; r++) {
        const float w = inputs.at[c][r];
        const double d = double{w} - double{round_q4(w, scale[r])} * double{scale[r]};
        error[r] += d * d;
      }
    }
    for (int64_t r = 0; r < kTileRows; r++) {
      const bool is_better = divisor == kQ4Divisors[0] || error[r] < least[r];
      best[r] = is_better ? scale[r] : best[r];
      least[r] = is_better ? error[r] : least[r];
    }
  }
  for (int64_t r = 0; r < kTileRows; r++) {
    if (largest.is_tiny(r)) best[r] = 0;
    if (!largest.is_finite(r)) best[r] = bf16_to_float(kNotANumber);
    to.scales[r][first / kGroup] = static_cast<uint16_t>(float_bits(best[r]) >> 16);
    for (int64_t c = 0; c < inputs.count; c++)
      to.values[r][first + c] = static_cast<int8_t>(round_q4(inputs.at[c][r], best[r]));
  }
}

}  // namespace

void quantise_block(int32_t type, const Block& block, QuantisedBlock& to) {
  const int64_t inputs = scale_inputs(type);
  for (int64_t first = 0; first < kBlockInputs; first += inputs) {
    const Inputs part(block, first, inputs);
    if (type == SK_I8) quantise_i8(part, first, to);
    if (type == SK_Q4) quantise_q4(part, first, to);
    if (type == SK_NF4) quantise_nf4(part, to);
  }
}

void load_quantised(const QuantisedShape& shape, const uint8_t* values, const uint16_t* scales,
                    int64_t first_row, int64_t first_column, QuantisedBlock& to) {
  const int64_t rows = std::min(kTileRows, shape.rows - first_row);
  const int64_t columns = std::min(kBlockInputs, shape.columns - first_column);
  std::memset(&to, 0, sizeof to);
  if (shape.type == SK_NF4) std::memset(to.values, kNf4Zero, sizeof to.values);
  for (int64_t r = 0; r < rows; r++) {
    const uint8_t* row = values + (first_row + r) * shape.row_bytes();
    for (int64_t c = 0; c < columns; c++) {
      const int64_t column = first_column + c;
      const int code = shape.type == SK_I8 ? row[column] : row[column / 2] >> (column % 2 * 4) & 15;
      to.values[r][c] = static_cast<int8_t>(shape.type == SK_Q4 ? code - kQ4Offset : code);
    }
    const uint16_t* row_scales = scales + (first_row + r) * shape.row_scales();
    for (int64_t c = 0; c < columns; c += scale_inputs(shape.type))
      to.scales[r][c / kGroup] = row_scales[(first_column + c) / scale_inputs(shape.type)];
  }
}

void store_quantised(const QuantisedShape& shape, const QuantisedBlock& from, int64_t first_row,
                     int64_t first_column, uint8_t* values, uint16_t* scales) {
  const int64_t rows = std::min(kTileRows, shape.rows - first_row);
  const int64_t columns = std::min(kBlockInputs, shape.columns - first_column);
  const int offset = shape.type == SK_Q4 ? kQ4Offset : 0;
  for (int64_t r = 0; r < rows; r++) {
    uint8_t* row = values + (first_row + r) * shape.row_bytes() +
                   (shape.type == SK_I8 ? first_column : first_column / 2);
    for (int64_t c = 0; c < columns; c++) {
      const int value = from.values[r][c] + offset;
      if (shape.type == SK_I8) {
        row[c] = static_cast<uint8_t>(value);
      } else {
        row[c / 2] = static_cast<uint8_t>(c % 2 == 0 ? value : row[c / 2] | value << 4);
      }
    }
    uint16_t* row_scales = scales + (first_row + r) * shape.row_scales();
    for (int64_t c = 0; c < columns; c += scale_inputs(shape.type))
      row_scales[(first_column + c) / scale_inputs(shape.type)] = from.scales[r][c / kGroup];
  }
}

}  // namespace skein
