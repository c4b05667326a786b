// Products of bf16 weights in the order of tile registers (amx.h). An f32 input is the sum of
// kPieces bf16 numbers, of 8 bits each, and every piece is multiplied. Per 32 inputs, for one piece
// after the other, two chains of fused multiply-adds begin at 0, over the even inputs and over the
// odd ones, and their sum is added to the output.
//
// One or two tokens whose inputs are mostly zero are multiplied without tiles, in the same order.
// There zeros can be skipped: a product of 0 changes no chain.
//
// Split tokens: blocks of up to 16; per group of 32 inputs and piece a tile, [rows][32] bf16.
#pragma once

#include <algorithm>
#include <type_traits>

#include "amx.h"
#include "tile.h"

namespace skein {

#if defined(SKEIN_TILES)
constexpr bool kSplits = true;
#else
constexpr bool kSplits = false;  // then nothing else of this header is used
#endif

constexpr int kPieces = 3;

/// Whether a product is made of split tokens.
inline bool is_split(int32_t type, int64_t tokens) {
  return kSplits && type == SK_BF16 && tokens > 1;
}

/// Where output r of a tile is among the 64 weights of an input: so that unpacking the lower and
/// the upper halves of lanes makes pairs, or f32, of 16 outputs that follow each other.
constexpr int64_t bf16_place(int64_t r) {
  return kSplits ? r / 32 * 32 + r % 16 / 4 * 8 + r % 32 / 16 * 4 + r % 4 : r;
}

struct SplitLayout {
  static constexpr int64_t kMostRows = 16;
  int64_t groups, rows, tile, block;  // the last two in bytes

  SplitLayout(int64_t columns, int64_t tokens)
      : groups(div_up(columns, kGroup)),
        rows(std::min(kMostRows, tokens)),
        tile(rows * kGroup * 2),
        block(groups * kPieces * tile) {}

  /// Bytes of at most so many tokens.
  static int64_t most(int64_t columns, int64_t tokens) {
    return SplitLayout(columns, kMostRows).block * div_up(tokens, kMostRows);
  }
};

/// Splits groups [first, end) of the tokens of a block, x [tokens, columns].
void split_block(const float* x, int64_t columns, const SplitLayout& layout, int64_t tokens,
                 int64_t first, int64_t end, uint8_t* block);

/// Takes the sums [kTileVectors][16][kLanes] of a weight tile and a block of tokens.
struct TakeSums {
  const void* job;
  void (*take)(const void* job, const float* sums, int64_t tile, int64_t token, int64_t tokens);
};

/// Multiplies `tiles` weight tiles, from `first` on, with tokens [from, to), which are whole blocks.
void multiply_split(const sk_matrix& weight, int64_t first, int64_t tiles,
                    const SplitLayout& layout, const uint8_t* tokens, int64_t from, int64_t to,
                    const TakeSums& take);

/// Multiplies a weight tile with one or two tokens of f32 while it is read from memory. sums:
/// [kTileVectors][16][kLanes]. The pieces of a token are rows of one tile, so a group takes a product
/// for each vector of outputs; their sums are added here.
template <int Tokens>
void multiply_few(const uint8_t* tile, const Inputs& inputs, float* sums);

#if defined(SKEIN_TILES)

struct Pieces {
  vf at[kPieces];
};

/// Cuts off the upper 8 of the bits that are left, three times. The pieces after one that is not
/// finite are 0.
inline Pieces split(vf x) {
  static_assert(kPieces == 3);
  constexpr int kNotFinite = 0x99;
  const vi upper = splat_int(static_cast<int32_t>(0xffff0000));
  const auto finite = static_cast<__mmask16>(~_mm512_fpclass_ps_mask(x, kNotFinite));
  const vf first = as_float(as_int(x) & upper);
  const vf rest = _mm512_maskz_sub_ps(finite, x, first);
  const vf second = as_float(as_int(rest) & upper);
  return {{first, second, rest - second}};
}

/// With AVX-512, in the order of tiles: for one token, and for inputs that are mostly zero.
struct SplitBf16Weights {
  static constexpr int kRegisters = 1, kSums = 2 * kPieces;
  static constexpr int kUnitInputs = 1, kUnitWords = 1;

  template <int Rows, int Vectors>
  static void multiply(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t from,
                       int64_t to, Sums<Rows, Vectors>& sums) {
    const bool streams = fetches<Rows>(inputs, output);
    for (int64_t k = from; k < to; k += kGroup) {
      alignas(64) float x[Rows][kPieces][kGroup];
      split_group(inputs, k, x);
      Chains<Rows, Vectors> chains;
      for (int64_t i = 0; i < kGroup; i += 2) {
        const uint8_t* line = tile + (k + i) * kUnitBytes;
        if (streams) fetch_stream<2 * kUnitBytes>(line);
        add<0>(line + output * 2, x, i, chains);
        add<1>(line + kUnitBytes + output * 2, x, i + 1, chains);
      }
      chains.end(sums);
    }
  }

  template <int Rows, int Vectors>
  static void multiply_used(const uint8_t* tile, int64_t output, const Inputs& inputs,
                            const UsedUnits& used, Sums<Rows, Vectors>& sums) {
    int64_t seen = 0;
    for (int64_t k = 0; seen < used.count; k += kGroup) {
      uint32_t any = 0;
      for (int row = 0; row < Rows; row++) {
        const uint8_t* at = inputs.first + row * inputs.stride + k * 4;
        any |= non_zero(load_int(at)) | non_zero(load_int(at + kLanes * 4)) << kLanes;
      }
      if (any == 0) continue;
      alignas(64) float x[Rows][kPieces][kGroup];
      split_group(inputs, k, x);
      Chains<Rows, Vectors> chains;
      const auto add_those = [&]<int Odd>(uint32_t left, std::integral_constant<int, Odd>) {
        for (; left != 0; left &= left - 1) {
          const int64_t i = __builtin_ctz(left);
          fetch<kUnitBytes>(tile + used.units[seen + UsedUnits::kAhead] * kUnitBytes);
          fetch<kUnitBytes, 3>(tile + used.units[seen++ + UsedUnits::kNear] * kUnitBytes);
          add<Odd>(tile + (k + i) * kUnitBytes + output * 2, x, i, chains);
        }
      };
      add_those(any & 0x55555555, std::integral_constant<int, 0>{});
      add_those(any & 0xaaaaaaaa, std::integral_constant<int, 1>{});
      chains.end(sums);
    }
  }

 private:
  static constexpr int64_t kUnitBytes = kTileRows * 2;
  static uint32_t non_zero(vi x) {
    const __m512i bits = reinterpret_cast<__m512i>(x);
    return _mm512_test_epi32_mask(bits, bits);
  }

  template <int Rows>
  static void split_group(const Inputs& inputs, int64_t k, float (&x)[Rows][kPieces][kGroup]) {
    for (int row = 0; row < Rows; row++) {
      for (int64_t i = 0; i < kGroup; i += kLanes) {
        const uint8_t* at = inputs.first + row * inputs.stride + (k + i) * 4;
        const Pieces pieces = split(load(reinterpret_cast<const float*>(at)));
        for (int p = 0; p < kPieces; p++) store(&x[row][p][i], pieces.at[p]);
      }
    }
  }

  template <int Rows, int Vectors>
  struct Chains {
    vf at[2][kPieces][Rows][Vectors] = {};

    void end(Sums<Rows, Vectors>& sums) const {
#pragma GCC unroll 4
      for (int p = 0; p < kPieces; p++) {
#pragma GCC unroll 2
        for (int row = 0; row < Rows; row++) {
#pragma GCC unroll 4
          for (int n = 0; n < Vectors; n++) sums.at[row][n] += at[0][p][row][n] + at[1][p][row][n];
        }
      }
    }
  };

  /// Adds the products of an input's weights to the chains of even or odd inputs.
  template <int Odd, int Rows, int Vectors, int Count>
  static void add(const uint8_t* line, const float (&x)[Rows][kPieces][Count], int64_t i,
                  Chains<Rows, Vectors>& chains) {
    static_assert(Vectors % 2 == 0);
    vf weights[Vectors];
#pragma GCC unroll 4
    for (int n = 0; n < Vectors; n += 2) {
      const __m512i both = _mm512_loadu_si512(line + n * kLanes * 2);
      const __m512i none = _mm512_setzero_si512();
      weights[n] = reinterpret_cast<vf>(_mm512_unpacklo_epi16(none, both));
      weights[n + 1] = reinterpret_cast<vf>(_mm512_unpackhi_epi16(none, both));
    }
#pragma GCC unroll 2
    for (int row = 0; row < Rows; row++) {
#pragma GCC unroll 4
      for (int p = 0; p < kPieces; p++) {
        const vf one = splat(x[row][p][i]);
#pragma GCC unroll 4
        for (int n = 0; n < Vectors; n++)
          chains.at[Odd][p][row][n] = fma(weights[n], one, chains.at[Odd][p][row][n]);
      }
    }
  }
};

#endif

}  // namespace skein
