// The inner products: Rows tokens × Vectors·kLanes outputs of one weight tile, kept in registers
// over a range of K.
//
// Every output is one chain of additions in the order of K, whatever Rows, Vectors and the ranges
// are. That is why a row's result is the same bits alone and in any batch.
#pragma once

#include "activations.h"
#include "matrix.h"
#include "vec.h"

namespace skein {

constexpr int kTileVectors = static_cast<int>(kTileRows) / kLanes;

/// Weights to bring into the L2 cache meanwhile: `bytes` at `at` + g·stride with every group g.
struct Ahead {
  const uint8_t* at = nullptr;
  int64_t stride = 0, bytes = 0;

  void fetch(int64_t g) const {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + g * stride + i, 0, 2);
  }
};

/// Where the tokens of a block lie: f32 [Rows, columns], or quantised blocks of `stride` bytes
/// each.
struct Inputs {
  const uint8_t* first;
  int64_t stride;  // bytes between tokens
  int64_t columns;
  Ahead ahead = {};
};

inline float element(const Inputs& inputs, int row, int64_t k) {
  return reinterpret_cast<const float*>(inputs.first + row * inputs.stride)[k];
}

template <int Rows, int Vectors>
struct Sums {
  vf at[Rows][Vectors] = {};

  /// Adds weights[n]·x[row][k].
  void accumulate(const vf (&weights)[Vectors], const Inputs& inputs, int64_t k) {
#pragma GCC unroll 6
    for (int row = 0; row < Rows; row++) {
      const vf x = splat(element(inputs, row, k));
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) at[row][n] = fma(weights[n], x, at[row][n]);
    }
  }
};

struct F32Weights {
  static constexpr int kRegisters = 1, kMaxRows = 6;
  template <int Rows, int Vectors>
  static void multiply(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t from,
                       int64_t to, Sums<Rows, Vectors>& sums) {
    const float* w = reinterpret_cast<const float*>(tile) + from * kTileRows + output;
    for (int64_t k = from; k < to; k++, w += kTileRows) {
      vf weights[Vectors];
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) weights[n] = load(w + n * kLanes);
      sums.accumulate(weights, inputs, k);
    }
  }
};

struct F16Weights {
  static constexpr int kRegisters = 1, kMaxRows = 6;
  template <int Rows, int Vectors>
  static void multiply(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t from,
                       int64_t to, Sums<Rows, Vectors>& sums) {
    const uint16_t* w = reinterpret_cast<const uint16_t*>(tile) + from * kTileRows + output;
    for (int64_t k = from; k < to; k++, w += kTileRows) {
      vf weights[Vectors];
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) weights[n] = load_f16(w + n * kLanes);
      sums.accumulate(weights, inputs, k);
    }
  }
};

struct Bf16Weights {
  static constexpr int kRegisters = 1, kMaxRows = 6;
  /// A lane holds two inputs of an output: the even one in its low half, the odd one in its high
  /// half, where a bf16 already is an f32 once the rest is masked. Not vdpbf16ps: with activations
  /// split in two halves to keep their digits it makes as many products a cycle as FMA does (Zen 4:
  /// one instruction of either), and this already runs near that peak.
  template <int Rows, int Vectors>
  static void multiply(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t from,
                       int64_t to, Sums<Rows, Vectors>& sums) {
    const uint32_t* w = reinterpret_cast<const uint32_t*>(tile) + from / 2 * kTileRows + output;
    vf weights[Vectors];
    int64_t k = from;
    for (; k + 2 <= to; k += 2, w += kTileRows) {
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) weights[n] = as_float(load_int(w + n * kLanes) << 16);
      sums.accumulate(weights, inputs, k);
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) {
        weights[n] = as_float(load_int(w + n * kLanes) & static_cast<int32_t>(0xffff0000));
      }
      sums.accumulate(weights, inputs, k + 1);
    }
    if (k == to) return;
    for (int n = 0; n < Vectors; n++) weights[n] = as_float(load_int(w + n * kLanes) << 16);
    sums.accumulate(weights, inputs, k);
  }
};

// Four inputs of kLanes outputs, ready to multiply.
#if defined(__AVX512VNNI__)
struct Quad {
  vi bytes;
};
inline Quad quad_of(vi bytes) { return {bytes}; }
inline vi add_products(vi total, Quad weights, const Quantised* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, 4);
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(total),
                                                  reinterpret_cast<__m512i>(weights.bytes),
                                                  _mm512_set1_epi32(bytes)));
}
#else
typedef int16_t vs __attribute__((vector_size(kLanes * 4)));
struct Quad {
  vs even, odd;  // inputs 0 and 2, inputs 1 and 3 of each lane's output
};
inline Quad quad_of(vi bytes) {
  const vs pairs = reinterpret_cast<vs>(bytes);
  return {(pairs << 8) >> 8, pairs >> 8};
}
/// Per lane a.lo·b.lo + a.hi·b.hi. Exact: unlike maddubs it cannot saturate.
inline vi multiply_pairs(vs a, vs b) {
#if defined(__AVX2__)
  return reinterpret_cast<vi>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<vi>(
      _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  const vi x = reinterpret_cast<vi>(a), y = reinterpret_cast<vi>(b);
  return ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
#endif
}
inline vi add_products(vi total, Quad weights, const Quantised* x) {
  int32_t pairs[2];
  std::memcpy(pairs, x, 8);
  total += multiply_pairs(weights.even, reinterpret_cast<vs>(splat_int(pairs[0])));
  return total + multiply_pairs(weights.odd, reinterpret_cast<vs>(splat_int(pairs[1])));
}
#endif

/// Vectors `first` and on of a quad that holds two weights a byte, one byte a weight.
template <int Vectors>
inline void load_halves(const uint8_t* quad, int first, vi (&to)[Vectors]) {
  constexpr int32_t kLowHalves = 0x0f0f0f0f;
  if constexpr (Vectors == 1) {
    to[0] = (load_int(quad + first / 2 * kLanes * 4) >> (first % 2 * 4)) & kLowHalves;
  } else {
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n += 2) {
      const vi both = load_int(quad + (first + n) / 2 * kLanes * 4);
      to[n] = both & kLowHalves;
      to[n + 1] = (both >> 4) & kLowHalves;
    }
  }
}

struct I8Format {
  static constexpr int32_t kType = SK_I8;
  static constexpr int kQuadBytes = kTileRows * 4, kConstants = 0;
  template <int Vectors>
  static void load(const uint8_t* quad, int first, Quad (&to)[Vectors]) {
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) to[n] = quad_of(load_int(quad + (first + n) * kLanes * 4));
  }
  static vi start(int32_t correction) { return splat_int(kWeightOffset == 0 ? 0 : correction); }
};

struct Q4Format {
  static constexpr int32_t kType = SK_Q4;
  static constexpr int kQuadBytes = kTileRows * 2, kConstants = 1;
  template <int Vectors>
  static void load(const uint8_t* quad, int first, Quad (&to)[Vectors]) {
    vi bytes[Vectors];
    load_halves(quad, first, bytes);
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) to[n] = quad_of(bytes[n]);
  }
  static vi start(int32_t correction) {
    static_assert(kCorrection == 16 * kQ4Offset);
    return splat_int(correction) >> 4;
  }
};

struct Nf4Format {
  static constexpr int32_t kType = SK_NF4;
  static constexpr int kQuadBytes = kTileRows * 2, kConstants = 2;
  template <int Vectors>
  static void load(const uint8_t* quad, int first, Quad (&to)[Vectors]) {
    vi codes[Vectors];
    load_halves(quad, first, codes);
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) to[n] = quad_of(look_up(kLevels, codes[n]));
  }
  static vi start(int32_t correction) { return I8Format::start(correction); }

 private:
  static constexpr ByteTable kLevels = [] {
    ByteTable table = {};
    for (int i = 0; i < 16; i++) table.at[i] = static_cast<uint8_t>(kNf4Levels[i] + kWeightOffset);
    return table;
  }();
};

/// Weights of 8 or 4 bits against activations of 8.
template <class Format>
struct IntegerWeights {
  static constexpr int kRegisters = sizeof(Quad) / sizeof(vi), kMaxRows = 4;

  /// Per group: exact integer sums, then sums += integer · (weight scale · activation scale).
  template <int Rows, int Vectors>
  static void multiply(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t from,
                       int64_t to, Sums<Rows, Vectors>& sums) {
    const ActivationLayout layout(inputs.columns);
    for (int64_t g = from / kGroup; g * kGroup < to; g++) {
      inputs.ahead.fetch(g);
      const uint8_t* block = tile + g / kGroupsPerBlock * block_bytes(Format::kType);
      vi totals[Rows][Vectors];
#pragma GCC unroll 6
      for (int row = 0; row < Rows; row++) {
        const uint8_t* token = inputs.first + row * inputs.stride;
        const int32_t correction =
            reinterpret_cast<const int32_t*>(token + layout.corrections_at)[g];
#pragma GCC unroll 16
        for (int n = 0; n < Vectors; n++) totals[row][n] = Format::start(correction);
      }
      const uint8_t* quad =
          block + kTileRows * 2 + g % kGroupsPerBlock * (kGroup / 4) * Format::kQuadBytes;
#pragma GCC unroll 8
      for (int64_t k = 0; k < kGroup; k += 4, quad += Format::kQuadBytes) {
        Quad weights[Vectors];
        Format::load(quad, static_cast<int>(output) / kLanes, weights);
#pragma GCC unroll 6
        for (int row = 0; row < Rows; row++) {
          const Quantised* x =
              reinterpret_cast<const Quantised*>(inputs.first + row * inputs.stride) + g * kGroup +
              k;
#pragma GCC unroll 16
          for (int n = 0; n < Vectors; n++)
            totals[row][n] = add_products(totals[row][n], weights[n], x);
        }
      }
      add_scaled(totals, block + output * 2, inputs, layout, g, sums);
    }
  }

 private:
  static constexpr int64_t kGroupsPerBlock = scale_inputs(Format::kType) / kGroup;

  template <int Rows, int Vectors>
  static void add_scaled(const vi (&totals)[Rows][Vectors], const uint8_t* weight_scales,
                         const Inputs& inputs, const ActivationLayout& layout, int64_t g,
                         Sums<Rows, Vectors>& sums) {
    vf scales[Vectors];
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++)
      scales[n] = load_bf16(reinterpret_cast<const uint16_t*>(weight_scales) + n * kLanes);
#pragma GCC unroll 6
    for (int row = 0; row < Rows; row++) {
      const uint8_t* token = inputs.first + row * inputs.stride;
      const vf scale = splat(reinterpret_cast<const float*>(token + layout.scales_at)[g]);
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) {
        sums.at[row][n] = fma(to_float(totals[row][n]), scales[n] * scale, sums.at[row][n]);
      }
    }
  }
};

using I8Weights = IntegerWeights<I8Format>;
using Q4Weights = IntegerWeights<Q4Format>;
using Nf4Weights = IntegerWeights<Nf4Format>;

/// Inputs per pass when a tile is too wide for the registers. A few KiB of weights: the passes side
/// by side read them from the L1 cache, and memory sees one stream. A multiple of kGroup.
constexpr int64_t kPassInputs = 128;

/// Vectors of outputs per pass, so that the sums (of a group, for i8: the others may wait in
/// memory), a vector of weights each and an input fit the registers: 32 on AVX-512 and NEON, 16
/// elsewhere.
template <class Weights>
constexpr int vectors_for(int rows) {
#if defined(__AVX512F__) || defined(__aarch64__)
  const int registers = 32;
#else
  const int registers = 16;
#endif
  int vectors = kTileVectors;
  while (vectors > 1) {
    // A weight of a single row is used up at once; others stay for all rows.
    const int weights = rows == 1 ? 1 : vectors;
    if (rows * vectors + (weights + 1) * Weights::kRegisters <= registers) break;
    vectors /= 2;
  }
  return vectors;
}

}  // namespace skein
