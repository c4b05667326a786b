// Products with the packed weights of GGUF (packed.h). Codes and scales are those of the file; only
// their order is changed to the one in which linear.cpp streams them. A tile of 64 rows is a
// sequence of blocks:
//   [64] f16 scales, [64] f16 minimums      if the type has them
//   per group of 32 inputs
//     [1 or 2][64] scales, [64] minimums    integers, if the type has them
//     [2 or 4][32][4] bits beyond four      of codes of five or six bits, for four or two quads
//     each 8 quads as in q4 (matrix.h), or as in i8 for codes of 8 bits
// Two rows share the bytes of a quad, L = kLanes rows apart. Of a code with u bits beyond four, the
// row in the low half has its lower four bits there and the row in the high half its upper four.
// The other bits of both are next to each other, 2u bits for a quad, those of the high half first.
// So one shift brings both to their places: above the lower four bits, below the upper four.
// Activations have 16 bits, so the products are as accurate as with f16 weights (activations.h).
#pragma once

#include <type_traits>

#include "packed.h"
#include "tile.h"

namespace skein {

struct PackedTile {
  PackedFormat format;

  constexpr int64_t groups() const { return format.inputs / kGroup; }
  constexpr int64_t header_bytes() const { return kTileRows * (format.minimum != 0 ? 4 : 2); }
  /// Integer scales and minimums per group and row.
  constexpr int64_t integers() const {
    return format.group_scales + (format.group_scales != 0 && format.minimum != 0 ? 1 : 0);
  }
  /// Bits of a code beyond the four in a quad.
  constexpr int beyond() const { return format.bits == 8 ? 0 : format.bits - 4; }
  constexpr int plane_quads() const { return beyond() == 0 ? 1 : 4 / beyond(); }
  constexpr int64_t quad_bytes() const { return kTileRows * (format.bits == 8 ? 4 : 2); }
  constexpr int64_t planes_at() const { return integers() * kTileRows; }
  constexpr int64_t quads_at() const { return planes_at() + beyond() * kTileRows * 4; }
  constexpr int64_t group_bytes() const { return quads_at() + kGroup / 4 * quad_bytes(); }
  constexpr int64_t block_bytes() const { return header_bytes() + groups() * group_bytes(); }
  constexpr int64_t bytes(int64_t columns) const { return columns / format.inputs * block_bytes(); }
};

constexpr PackedTile packed_tile(int32_t type) { return {packed_format(type)}; }

/// Stores at most 64 rows of the file's blocks in a zeroed tile. Returns false if a scale or a
/// minimum is not finite.
bool store_packed_tile(int32_t type, const uint8_t* blocks, int64_t rows, int64_t columns,
                       uint8_t* tile);

/// Integer sums of the products of a group, or of half a group.
template <int Rows, int Vectors>
struct FineTotals {
#if defined(SK_DOTS)
  vi upper[Rows][Vectors] = {}, lower[Rows][Vectors];

  void start(int row, int n, vi sum) { lower[row][n] = sum; }
  void add(int row, int n, Quad weights, const FineQuad& x) {
    upper[row][n] = add_products(upper[row][n], weights, x.upper);
    lower[row][n] = add_products(lower[row][n], weights, x.lower);
  }
  vi sum(int row, int n) const { return (upper[row][n] << 8) + lower[row][n]; }
#else
  vi all[Rows][Vectors];

  void start(int row, int n, vi sum) { all[row][n] = sum; }
  void add(int row, int n, Quad weights, const FineQuad& x) {
    all[row][n] = add_products(all[row][n], weights, x.values);
  }
  vi sum(int row, int n) const { return all[row][n]; }
#endif
};

/// Of one token: the scale of group g, and the sums of the two halves of its integers.
struct FineToken {
  float scale;
  int32_t halves[2];

  FineToken(const Inputs& inputs, const FineLayout& layout, int row, int64_t g) {
    const uint8_t* token = inputs.first + row * inputs.stride;
    scale = reinterpret_cast<const float*>(token + layout.scales_at)[g];
    std::memcpy(halves, token + layout.sums_at + g * 8, 8);
  }
  int32_t sum(int part, int parts) const {
    return parts == 1 ? halves[0] + halves[1] : halves[part];
  }
};

/// A tile whose codes are bytes and whose scales are f32, with the same results to the bit.
/// Decoding a tile pays when many tokens are multiplied with it. Layout: 64 bytes with the offset
/// of the codes; per group of 32 inputs [Parts][64] scales, [64] minimums if any, [8][64][4] codes.
template <int Parts, bool HasMinimum>
struct DecodedWeights {
  static constexpr int kRegisters = sizeof(Quad) / sizeof(vi);
#if defined(SK_DOTS)
  static constexpr int kSums = 2, kMaxRows = 3;
#else
  static constexpr int kSums = 1, kMaxRows = 4;
#endif
  static constexpr int kUnitInputs = 4, kUnitWords = 2, kSparseRows = 0;
  static constexpr int kQuads = kGroup / 4;
  static constexpr int64_t kFloats = (Parts + (HasMinimum ? 1 : 0)) * kTileRows;
  static constexpr int64_t kGroupBytes = kFloats * 4 + kTileRows * kGroup;

  static constexpr int64_t tile_bytes(int64_t columns) {
    return 64 + columns / kGroup * kGroupBytes;
  }
  template <class Byte>
  static auto* scales(Byte* tile, int64_t g) {
    using Float = std::conditional_t<std::is_const_v<Byte>, const float, float>;
    return reinterpret_cast<Float*>(tile + 64 + g * kGroupBytes);
  }
  template <class Byte>
  static auto* minimums(Byte* tile, int64_t g) {
    return scales(tile, g) + Parts * kTileRows;
  }
  template <class Byte>
  static Byte* quad(Byte* tile, int64_t g, int index) {
    return tile + 64 + g * kGroupBytes + kFloats * 4 + index * kTileRows * 4;
  }

  template <int Rows, int Vectors>
  static void multiply(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t from,
                       int64_t to, Sums<Rows, Vectors>& sums) {
    const FineLayout layout(inputs.columns);
    int32_t offset;
    std::memcpy(&offset, tile, sizeof offset);
    for (int64_t g = from / kGroup; g * kGroup < to; g++) {
      inputs.ahead.fetch(g);
#pragma GCC unroll 2
      for (int part = 0; part < Parts; part++) {
        FineTotals<Rows, Vectors> totals;
        sum_products(tile, output, inputs, layout, g, part, offset, totals);
        const float* scale_at = scales(tile, g) + part * kTileRows + output;
#pragma GCC unroll 6
        for (int row = 0; row < Rows; row++) {
          const vf scale = splat(FineToken(inputs, layout, row, g).scale);
#pragma GCC unroll 16
          for (int n = 0; n < Vectors; n++)
            sums.at[row][n] = fma(to_float(totals.sum(row, n)), load(scale_at + n * kLanes) * scale,
                                  sums.at[row][n]);
        }
      }
      if constexpr (HasMinimum) {
#pragma GCC unroll 6
        for (int row = 0; row < Rows; row++) {
          const FineToken token(inputs, layout, row, g);
          const vf sum = splat(static_cast<float>(token.sum(0, 1)) * token.scale);
#pragma GCC unroll 16
          for (int n = 0; n < Vectors; n++)
            sums.at[row][n] =
                fma(load(minimums(tile, g) + output + n * kLanes), sum, sums.at[row][n]);
        }
      }
    }
  }

 private:
  template <int Rows, int Vectors>
  static void sum_products(const uint8_t* tile, int64_t output, const Inputs& inputs,
                           const FineLayout& layout, int64_t g, int part, int32_t offset,
                           FineTotals<Rows, Vectors>& totals) {
    constexpr int kPartQuads = kQuads / Parts;
#pragma GCC unroll 6
    for (int row = 0; row < Rows; row++) {
      const int32_t sum = FineToken(inputs, layout, row, g).sum(part, Parts);
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) totals.start(row, n, splat_int(-offset * sum));
    }
#pragma GCC unroll 8
    for (int i = part * kPartQuads; i < (part + 1) * kPartQuads; i++) {
      Quad weights[Vectors];
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++)
        weights[n] = quad_of(load_int(quad(tile, g, i) + (output + n * kLanes) * 4));
#pragma GCC unroll 6
      for (int row = 0; row < Rows; row++) {
        const FineQuad& x =
            reinterpret_cast<const FineQuad*>(inputs.first + row * inputs.stride)[g * kQuads + i];
#pragma GCC unroll 16
        for (int n = 0; n < Vectors; n++) totals.add(row, n, weights[n], x);
      }
    }
  }
};

/// Receives what PackedWeights::unpack reads.
template <class Decoded>
struct DecodedWriter {
  uint8_t* tile;

  void scale(int64_t g, int part, int n, vf scale) const {
    store(Decoded::scales(tile, g) + part * kTileRows + n * kLanes, scale);
  }
  void minimum(int64_t g, int n, vf minimum) const {
    store(Decoded::minimums(tile, g) + n * kLanes, minimum);
  }
  void codes(int64_t g, int quad, const vi (&bytes)[kTileVectors]) const {
    for (int n = 0; n < kTileVectors; n++)
      std::memcpy(Decoded::quad(tile, g, quad) + n * kLanes * 4, &bytes[n], sizeof(vi));
  }
};

template <int32_t Type>
struct PackedWeights {
  static constexpr PackedTile kTile = packed_tile(Type);
  static constexpr PackedFormat kFormat = kTile.format;
  static constexpr int kRegisters = sizeof(Quad) / sizeof(vi);
#if defined(SK_DOTS)
  static constexpr int kSums = 2, kMaxRows = 3;
#else
  static constexpr int kSums = 1, kMaxRows = 4;
#endif
  static constexpr int kUnitInputs = 4, kUnitWords = 2;
  static constexpr int kSparseRows = kFormat.bits == 8 ? 1 : 0;
  /// Parts of a group that each have their own scale.
  static constexpr int kParts = kFormat.group_scales == 2 ? 2 : 1;
  using Decoded = DecodedWeights<kParts, kFormat.minimum != 0>;

  /// Inlined as multiply_groups is.
  template <int Rows, int Vectors>
  [[gnu::always_inline]] static void multiply(const uint8_t* tile, int64_t output,
                                              const Inputs& inputs, int64_t from, int64_t to,
                                              Sums<Rows, Vectors>& sums) {
    if (fetches<Rows>(inputs, output))
      multiply_groups<true>(tile, output, inputs, from, to, sums);
    else
      multiply_groups<false>(tile, output, inputs, from, to, sums);
  }

  /// Gives the scales, minimums and codes of groups [first, end) to `to`.
  template <class To>
  static void unpack(const uint8_t* tile, int64_t first, int64_t end, const To& to) {
    for (int64_t g = first; g < end; g++) {
      const Group group(tile, g, 0);
      constexpr Units<0, kTileVectors> units{};
      for (int n = 0; n < kTileVectors; n++) {
        for (int part = 0; part < kParts; part++)
          to.scale(g, part, n, units.scale(group, n, part));
        if constexpr (kFormat.minimum != 0)
          to.minimum(g, n, units.minimum(group, n) * kFormat.minimum);
      }
      for (int quad = 0; quad < kQuads; quad++) {
        vi bytes[kTileVectors];
        load_bytes<false>(group, quad, bytes);
        to.codes(g, quad, bytes);
      }
    }
  }

  /// Writes the tile in the form of DecodedWeights.
  static void decode(const uint8_t* tile, int64_t columns, uint8_t* to) {
    const int32_t offset = kOffset;
    std::memcpy(to, &offset, sizeof offset);
    unpack(tile, 0, columns / kGroup, DecodedWriter<Decoded>{to});
  }

  /// A group whose scale is not finite has no zeros (round_group), so it is never skipped.
  template <int Rows, int Vectors>
  static void multiply_used(const uint8_t* tile, int64_t output, const Inputs& inputs,
                            const UsedUnits& used, Sums<Rows, Vectors>& sums) {
    static_assert(kParts == 1 && kFormat.minimum == 0);
    const FineLayout layout(inputs.columns);
    for (int64_t i = 0; i < used.count;) {
      const int64_t g = used.units[i] / kQuads;
      const Group group(tile, g, output);
      FineTotals<Rows, Vectors> totals;
      start(inputs, layout, g, 0, totals);
      do {
        const int64_t ahead = used.units[i + UsedUnits::kAhead];
        const int64_t near = used.units[i + UsedUnits::kNear];
        const Group next(tile, ahead / kQuads, 0), sooner(tile, near / kQuads, 0);
        fetch<kTile.quad_bytes()>(next.quads + ahead % kQuads * kTile.quad_bytes());
        fetch<kTileRows * 2>(next.block);
        fetch<kTile.quad_bytes(), 3>(sooner.quads + near % kQuads * kTile.quad_bytes());
        add_quad(group, inputs, g, static_cast<int>(used.units[i] % kQuads), totals);
        i++;
      } while (i < used.count && used.units[i] / kQuads == g);
      add_scaled(group, Units<0, Vectors>(), totals, inputs, layout, g, 0, sums);
    }
  }

 private:
  static constexpr int kQuads = kGroup / 4;
  /// Bytes of a tile per group, with its share of the block's scales.
  static constexpr int64_t kGroupBytes = kTile.block_bytes() / kTile.groups();
  static constexpr int kPartQuads = kQuads / kParts;
  /// The offset of the codes in a tile: code − kOffset is the integer they stand for.
  static constexpr int kOffset = kFormat.bits == 8 ? kWeightOffset : kFormat.offset;
  /// Codes in high halves are multiplied in their place if bytes are unsigned: 2^kLift times too
  /// large. Where nothing is beyond four bits, the low half is left in the byte as well.
  static constexpr int kLift = kFormat.bits == 8 ? 0 : 4 - kTile.beyond();
#if defined(__AVX512VNNI__)
  static constexpr bool kIsLifted = kLift != 0;
#else
  static constexpr bool kIsLifted = false;
#endif

  /// The addresses of a group's numbers.
  struct Group {
    const uint8_t *block, *integers, *planes, *quads;
    int64_t output;

    Group(const uint8_t* tile, int64_t g, int64_t first)
        : block(tile + g / kTile.groups() * kTile.block_bytes()),
          integers(block + kTile.header_bytes() + g % kTile.groups() * kTile.group_bytes()),
          planes(integers + kTile.planes_at()),
          quads(integers + kTile.quads_at()),
          output(first) {}
  };

  /// The f16 scales and minimums of a block, converted once if they fit the registers.
  template <int Rows, int Vectors>
  struct Units {
    static constexpr bool kAreKept = Rows == 1 && kTile.groups() > 1;
    vf kept[2][Vectors];

    void keep(const Group& group) {
      if constexpr (!kAreKept) return;
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) {
        kept[0][n] = read(group, 0, n);
        if constexpr (kFormat.minimum != 0) kept[1][n] = read(group, 1, n);
      }
    }

    /// Scale `part` of the rows of vector n in a group of the block.
    vf scale(const Group& group, int n, int part) const {
      const vf unit = kAreKept ? kept[0][n] : read(group, 0, n);
      const uint8_t* integer = group.integers + part * kTileRows + group.output + n * kLanes;
      if constexpr (kFormat.group_scales == 0) return unit;
      if constexpr (kFormat.group_scales == 1) return unit * to_float(load_u8(integer));
      return unit * to_float(load_i8(integer));
    }

    vf minimum(const Group& group, int n) const {
      const vf unit = kAreKept ? kept[1][n] : read(group, 1, n);
      if constexpr (kFormat.group_scales == 0) return unit;
      const uint8_t* integer = group.integers + kTileRows + group.output + n * kLanes;
      return unit * to_float(load_u8(integer));
    }

   private:
    static vf read(const Group& group, int which, int n) {
      const uint16_t* halves = reinterpret_cast<const uint16_t*>(group.block);
      return load_f16(halves + which * kTileRows + group.output + n * kLanes);
    }
  };

  /// Inlined because GCC 12 would otherwise keep the sums of a call in memory.
  template <bool Fetches, int Rows, int Vectors>
  [[gnu::always_inline]] static void multiply_groups(const uint8_t* tile, int64_t output,
                                                     const Inputs& inputs, int64_t from, int64_t to,
                                                     Sums<Rows, Vectors>& sums) {
    const FineLayout layout(inputs.columns);
    Units<Rows, Vectors> units;
    units.keep(Group(tile, from / kGroup, output));
    for (int64_t g = from / kGroup; g * kGroup < to; g++) {
      inputs.ahead.fetch(g);
      const Group group(tile, g, output);
      if (g % kTile.groups() == 0) units.keep(group);
#pragma GCC unroll 2
      for (int part = 0; part < kParts; part++) {
        FineTotals<Rows, Vectors> totals;
        start(inputs, layout, g, part, totals);
#pragma GCC unroll 8
        for (int quad = part * kPartQuads; quad < (part + 1) * kPartQuads; quad++) {
          if constexpr (Fetches)
            fetch_stream_part<kGroupBytes, kQuads>(tile + g * kGroupBytes, quad);
          add_quad(group, inputs, g, quad, totals);
          // Otherwise GCC puts all of a group's requests before its products.
          if constexpr (Fetches) asm volatile("");
        }
        add_scaled(group, units, totals, inputs, layout, g, part, sums);
      }
      if constexpr (kFormat.minimum != 0) add_minimums(group, units, inputs, layout, g, sums);
    }
  }

  /// The codes of a quad, a byte each. Those of high halves are lifted if `Lifted`.
  template <bool Lifted, int Vectors>
  static void load_bytes(const Group& group, int quad, vi (&bytes)[Vectors]) {
    const uint8_t* values = group.quads + quad * kTile.quad_bytes();
    if constexpr (kFormat.bits == 8) {
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++)
        bytes[n] = load_int(values + (group.output + n * kLanes) * 4);
    } else {
      const int first = static_cast<int>(group.output) / kLanes;
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) {
        const int64_t at = (first + n) / 2 * kLanes * 4;
        const vi both = load_int(values + at), beyond = beyond_bits(group, quad, at);
        bytes[n] = (first + n) % 2 == 0 ? low_code(both, beyond) : high_code<Lifted>(both, beyond);
      }
    }
  }

  /// The bits beyond four of both codes in a byte of quad i, next to the four bits of each.
  static vi beyond_bits(const Group& group, int i, int64_t at) {
    constexpr int kBeyond = kTile.beyond();
    if constexpr (kBeyond == 0) return vi{};
    constexpr int kQuadsOfPlane = kTile.plane_quads();
    const vi all = load_int(group.planes + i / kQuadsOfPlane * kTileRows * 2 + at);
    const int shift = kLift - i % kQuadsOfPlane * 2 * kBeyond;
    return shift < 0 ? all >> -shift : all << shift;
  }

  static vi low_code(vi both, vi beyond) {
    constexpr int32_t kMask = ((1 << kTile.beyond()) - 1) * 0x10101010;
    return (both & 0x0f0f0f0f) | (beyond & kMask);
  }

  template <bool Lifted>
  static vi high_code(vi both, vi beyond) {
    if constexpr (kTile.beyond() == 0) return Lifted ? both : (both >> 4) & 0x0f0f0f0f;
    constexpr int32_t kHigh = static_cast<int32_t>(0xf0f0f0f0);
    constexpr int32_t kMask = ((1 << kTile.beyond()) - 1) * (0x01010101 << kLift);
    const vi code = (both & kHigh) | (beyond & kMask);
    return Lifted ? code : shift_right(code, kLift);
  }

  /// Of the codes of vector n, from totals of lifted codes.
  template <int Rows, int Vectors>
  static vi sum_of(const FineTotals<Rows, Vectors>& totals, int row, int n) {
    if (!kIsLifted || n % 2 == 0) return totals.sum(row, n);
    if constexpr (kTile.beyond() == 0)
      return (totals.sum(row, n) - totals.sum(row, n - 1)) >> kLift;
    return totals.sum(row, n) >> kLift;
  }

  /// Starts the totals with the correction for the offset of the codes.
  template <int Rows, int Vectors>
  static void start(const Inputs& inputs, const FineLayout& layout, int64_t g, int part,
                    FineTotals<Rows, Vectors>& totals) {
#pragma GCC unroll 6
    for (int row = 0; row < Rows; row++) {
      const FineToken token(inputs, layout, row, g);
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) {
        const int lift = !kIsLifted || n % 2 == 0 ? 1 : (1 << kLift) + (kTile.beyond() == 0);
        totals.start(row, n,
                     splat_int(kOffset == 0 ? 0 : -kOffset * lift * token.sum(part, kParts)));
      }
    }
  }

  template <int Rows, int Vectors>
  static void add_quad(const Group& group, const Inputs& inputs, int64_t g, int quad,
                       FineTotals<Rows, Vectors>& totals) {
    static_assert(!kIsLifted || Vectors % 2 == 0);
    vi bytes[Vectors];
    load_bytes<kIsLifted>(group, quad, bytes);
    Quad weights[Vectors];
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) weights[n] = quad_of(bytes[n]);
#pragma GCC unroll 6
    for (int row = 0; row < Rows; row++) {
      const FineQuad& x =
          reinterpret_cast<const FineQuad*>(inputs.first + row * inputs.stride)[g * kQuads + quad];
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) totals.add(row, n, weights[n], x);
    }
  }

  template <int Rows, int Vectors, class BlockUnits>
  static void add_scaled(const Group& group, const BlockUnits& units,
                         const FineTotals<Rows, Vectors>& totals, const Inputs& inputs,
                         const FineLayout& layout, int64_t g, int part, Sums<Rows, Vectors>& sums) {
    vf scales[Vectors];
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) scales[n] = units.scale(group, n, part);
#pragma GCC unroll 6
    for (int row = 0; row < Rows; row++) {
      const FineToken token(inputs, layout, row, g);
      const vf scale = splat(token.scale);
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++)
        sums.at[row][n] = fma(to_float(sum_of(totals, row, n)), scales[n] * scale, sums.at[row][n]);
    }
  }

  template <int Rows, int Vectors, class BlockUnits>
  static void add_minimums(const Group& group, const BlockUnits& units, const Inputs& inputs,
                           const FineLayout& layout, int64_t g, Sums<Rows, Vectors>& sums) {
    vf minimums[Vectors];
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) minimums[n] = units.minimum(group, n);
#pragma GCC unroll 6
    for (int row = 0; row < Rows; row++) {
      const FineToken token(inputs, layout, row, g);
      const vf sum = splat(static_cast<float>(kFormat.minimum * token.sum(0, 1)) * token.scale);
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) sums.at[row][n] = fma(minimums[n], sum, sums.at[row][n]);
    }
  }
};

}  // namespace skein
