// The inner products of one weight tile: Rows tokens × Vectors·kLanes outputs, kept in registers
// over a range of K.
//
// Every output is summed in the order of K, whatever Rows, Vectors and the ranges are. That is why
// the result of a row has the same bits alone and in any batch.
#pragma once

#include "activations.h"
#include "matrix.h"
#include "sparse.h"
#include "vec.h"

namespace skein {

constexpr int kTileVectors = static_cast<int>(kTileRows) / kLanes;

/// Weights to prefetch into the L2 cache meanwhile: with group g, `bytes` at `at` + g·stride.
struct Ahead {
  const uint8_t* at = nullptr;
  int64_t stride = 0, bytes = 0;

  void fetch(int64_t g) const {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + g * stride + i, 0, 2);
  }
};

/// Where the tokens of a block are: f32 [Rows, columns], or quantised tokens of `stride` bytes
/// each.
struct Inputs {
  const uint8_t* first;
  int64_t stride;  // bytes between tokens
  int64_t columns;
  Ahead ahead = {};
  /// The weights come from memory, and no block of tokens before this one has read them.
  bool streams = false;
};

/// Whether a kernel fetches the weights that it will read. Where a tile is too wide for the
/// registers, the pass over its first outputs fetches for all.
template <int Rows>
bool fetches(const Inputs& inputs, int64_t output) {
  return (Rows == 1 || inputs.streams) && output == 0;
}

inline float element(const Inputs& inputs, int row, int64_t k) {
  return reinterpret_cast<const float*>(inputs.first + row * inputs.stride)[k];
}

template <int Rows, int Vectors>
struct Sums {
  vf at[Rows][Vectors] = {};

  /// Adds weights[n]·x[row][k] to every sum.
  void accumulate(const vf (&weights)[Vectors], const Inputs& inputs, int64_t k) {
#pragma GCC unroll 6
    for (int row = 0; row < Rows; row++) {
      const vf x = splat(element(inputs, row, k));
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) at[row][n] = fma(weights[n], x, at[row][n]);
    }
  }
};

/// bf16 does not use vdpbf16ps. To keep their digits, activations would be split in two halves. It
/// would then make as many products per cycle as FMA (on Zen 4, one instruction per cycle of
/// either), and FMA already runs near that peak.
template <class Element, vf (*Load)(const Element*)>
struct FloatWeights {
  static constexpr int kRegisters = 1, kSums = 1, kMaxRows = 6;
  static constexpr int kUnitInputs = 1, kUnitWords = 1, kSparseRows = 2;

  static constexpr int64_t tile_bytes(int64_t columns) { return columns * kUnitBytes; }

  template <int Rows, int Vectors>
  static void multiply(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t from,
                       int64_t to, Sums<Rows, Vectors>& sums) {
    const bool streams = fetches<Rows>(inputs, output);
    for (int64_t k = from; k < to; k++) {
      if (streams) fetch_stream<kUnitBytes>(tile + k * kUnitBytes);
      add_input(tile, output, inputs, k, sums);
    }
  }

  template <int Rows, int Vectors>
  static void multiply_used(const uint8_t* tile, int64_t output, const Inputs& inputs,
                            const UsedUnits& used, Sums<Rows, Vectors>& sums) {
    for (int64_t i = 0; i < used.count; i++) {
      fetch<kUnitBytes>(tile + used.units[i + UsedUnits::kAhead] * kUnitBytes);
      fetch<kUnitBytes, 3>(tile + used.units[i + UsedUnits::kNear] * kUnitBytes);
      add_input(tile, output, inputs, used.units[i], sums);
    }
  }

 private:
  static constexpr int kUnitBytes = kTileRows * sizeof(Element);

  template <int Rows, int Vectors>
  static void add_input(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t k,
                        Sums<Rows, Vectors>& sums) {
    const Element* w = reinterpret_cast<const Element*>(tile) + k * kTileRows + output;
    vf weights[Vectors];
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) weights[n] = Load(w + n * kLanes);
    sums.accumulate(weights, inputs, k);
  }
};

using F32Weights = FloatWeights<float, load>;
using F16Weights = FloatWeights<uint16_t, load_f16>;
using Bf16Weights = FloatWeights<uint16_t, load_bf16>;

typedef int16_t vs __attribute__((vector_size(kLanes * 4)));

// Four inputs of kLanes outputs, ready to multiply.
#if defined(SK_DOTS)
struct Quad {
  vi bytes;
};
inline Quad quad_of(vi bytes) { return {bytes}; }
inline vi add_products(vi total, Quad weights, const Quantised* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, 4);
#if defined(__AVX512VNNI__)
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(total),
                                                  reinterpret_cast<__m512i>(weights.bytes),
                                                  _mm512_set1_epi32(bytes)));
#else
  return reinterpret_cast<vi>(vdotq_s32(reinterpret_cast<int32x4_t>(total),
                                        reinterpret_cast<int8x16_t>(weights.bytes),
                                        vreinterpretq_s8_s32(vdupq_n_s32(bytes))));
#endif
}
#else
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
#elif defined(__aarch64__)
  const int16x8_t x = reinterpret_cast<int16x8_t>(a), y = reinterpret_cast<int16x8_t>(b);
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
  return reinterpret_cast<vi>(vpaddq_s32(low, vmull_high_s16(x, y)));
#else
  const vi x = reinterpret_cast<vi>(a), y = reinterpret_cast<vi>(b);
  return ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
#endif
}
#if defined(__AVX2__)
/// Per 16 bits the sum of two products of an unsigned and a signed byte, which must fit.
inline vs multiply_bytes(vi a, vi b) {
  return reinterpret_cast<vs>(
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
#endif
inline vi add_products(vi total, Quad weights, const Quantised* x) {
  int32_t pairs[2];
  std::memcpy(pairs, x, 8);
  total += multiply_pairs(weights.even, reinterpret_cast<vs>(splat_int(pairs[0])));
  return total + multiply_pairs(weights.odd, reinterpret_cast<vs>(splat_int(pairs[1])));
}
#endif

/// Unpacks Vectors vectors, from `first` on, of a quad that holds two weights per byte to one byte
/// per weight; or to whole bytes for high halves.
template <bool WholeBytes, int Vectors>
inline void load_halves(const uint8_t* quad, int first, vi (&to)[Vectors]) {
  constexpr int32_t kLowHalves = 0x0f0f0f0f;
  static_assert(!WholeBytes || Vectors > 1);
  if constexpr (Vectors == 1) {
    to[0] = (load_int(quad + first / 2 * kLanes * 4) >> (first % 2 * 4)) & kLowHalves;
  } else {
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n += 2) {
      const vi both = load_int(quad + (first + n) / 2 * kLanes * 4);
      to[n] = both & kLowHalves;
      to[n + 1] = WholeBytes ? both : (both >> 4) & kLowHalves;
    }
  }
}

struct I8Format {
  static constexpr int32_t kType = SK_I8;
  static constexpr bool kIsNarrow = false;
  static constexpr int kQuadBytes = kTileRows * 4, kConstants = 0;
  template <int Vectors>
  static void load(const uint8_t* quad, int first, Quad (&to)[Vectors]) {
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) to[n] = quad_of(load_int(quad + (first + n) * kLanes * 4));
  }
  static void codes(const uint8_t* quad, vi (&to)[kTileVectors]) {
    for (int n = 0; n < kTileVectors; n++) to[n] = load_int(quad + n * kLanes * 4);
  }
  static vi start(int32_t correction, int) {
    return splat_int(kWeightOffset == 0 ? 0 : correction);
  }
  template <int Vectors>
  static vi sum(const vi (&totals)[Vectors], int n) {
    return totals[n];
  }
};

struct Q4Format {
  static constexpr int32_t kType = SK_Q4;
  /// The products of a group are summed in 16 bits: 15·127·2·8 < 2^15.
  static constexpr bool kIsNarrow = kKeepsBytes;
  static constexpr int kQuadBytes = kTileRows * 2, kConstants = 1;
  template <int Vectors>
  static void load(const uint8_t* quad, int first, Quad (&to)[Vectors]) {
    vi bytes[Vectors];
    load_halves<kIsLifted>(quad, first, bytes);
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) to[n] = quad_of(bytes[n]);
  }
  static void codes(const uint8_t* quad, vi (&to)[kTileVectors]) {
    load_halves<false>(quad, 0, to);
  }
  static vi start(int32_t correction, int n) {
    static_assert(kCorrection == 16 * kQ4Offset);
    const vi one = splat_int(correction >> 4);
    return kIsLifted && n % 2 == 1 ? one * 17 : one;
  }
  template <int Vectors>
  static vi sum(const vi (&totals)[Vectors], int n) {
    return kIsLifted && n % 2 == 1 ? (totals[n] - totals[n - 1]) >> 4 : totals[n];
  }

 private:
  /// Where bytes are unsigned, whole bytes are multiplied in place of their high halves: sixteen
  /// times the sum of the high halves, and that of the low ones.
#if defined(__AVX512VNNI__)
  static constexpr bool kIsLifted = true;
#else
  static constexpr bool kIsLifted = false;
#endif
};

struct Nf4Format {
  static constexpr int32_t kType = SK_NF4;
  static constexpr bool kIsNarrow = false;
  static constexpr int kQuadBytes = kTileRows * 2, kConstants = 2;
  template <int Vectors>
  static void load(const uint8_t* quad, int first, Quad (&to)[Vectors]) {
    vi codes[Vectors];
    load_halves<false>(quad, first, codes);
#pragma GCC unroll 16
    for (int n = 0; n < Vectors; n++) to[n] = quad_of(look_up(kLevels, codes[n]));
  }
  static void codes(const uint8_t* quad, vi (&to)[kTileVectors]) { Q4Format::codes(quad, to); }
  static vi start(int32_t correction, int n) { return I8Format::start(correction, n); }
  template <int Vectors>
  static vi sum(const vi (&totals)[Vectors], int n) {
    return totals[n];
  }

 private:
  static constexpr ByteTable kLevels = [] {
    ByteTable table = {};
    for (int i = 0; i < 16; i++) table.at[i] = static_cast<uint8_t>(kNf4Levels[i] + kWeightOffset);
    return table;
  }();
};

/// Weights of 8 or 4 bits with activations of 8 bits. Each group of inputs is summed exactly as
/// integers; then sums += integer · (weight scale · activation scale).
template <class Format>
struct IntegerWeights {
  static constexpr int kRegisters = Format::kIsNarrow ? 1 : sizeof(Quad) / sizeof(vi);
  static constexpr int kSums = 1, kMaxRows = 4;
  static constexpr int kUnitInputs = 4, kUnitWords = sizeof(Quantised);
  static constexpr int kSparseRows = 1;

  template <int Rows, int Vectors>
  static void multiply(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t from,
                       int64_t to, Sums<Rows, Vectors>& sums) {
    const ActivationLayout layout(inputs.columns);
    const bool streams = fetches<Rows>(inputs, output);
    for (int64_t g = from / kGroup; g * kGroup < to; g++) {
      inputs.ahead.fetch(g);
      Totals<Rows, Vectors> totals;
      start(inputs, layout, g, totals);
      if constexpr (kHasMatrices && Rows % 2 == 0) {
        add_group(tile, output, inputs, g, streams, totals);
      } else {
#pragma GCC unroll 8
        for (int64_t quad = 0; quad < kQuads; quad++) {
          if (streams)
            fetch_stream_part<kGroupBytes, kQuads>(tile + g * kGroupBytes, quad);
          add_quad(tile, output, inputs, layout, g * kQuads + quad, totals);
        }
      }
      add_scaled(totals, block_of(tile, g) + output * 2, inputs, layout, g, sums);
    }
  }

  /// A group whose scale is not finite has no zeros (round_group), so it is never skipped.
  template <int Rows, int Vectors>
  static void multiply_used(const uint8_t* tile, int64_t output, const Inputs& inputs,
                            const UsedUnits& used, Sums<Rows, Vectors>& sums) {
    const ActivationLayout layout(inputs.columns);
    for (int64_t i = 0; i < used.count;) {
      const int64_t g = used.units[i] / kQuads;
      Totals<Rows, Vectors> totals;
      start(inputs, layout, g, totals);
      do {
        const int64_t ahead = used.units[i + UsedUnits::kAhead];
        fetch<Format::kQuadBytes>(quad_at(tile, ahead));
        fetch<Format::kQuadBytes, 3>(quad_at(tile, used.units[i + UsedUnits::kNear]));
        fetch<kTileRows * 2>(block_of(tile, ahead / kQuads));
        add_quad(tile, output, inputs, layout, used.units[i], totals);
        i++;
      } while (i < used.count && used.units[i] / kQuads == g);
      add_scaled(totals, block_of(tile, g) + output * 2, inputs, layout, g, sums);
    }
  }

  /// Gives the scales and codes of groups [first, end) to `to`.
  template <class To>
  static void unpack(const uint8_t* tile, int64_t first, int64_t end, const To& to) {
    for (int64_t g = first; g < end; g++) {
      const uint16_t* scales = reinterpret_cast<const uint16_t*>(block_of(tile, g));
      for (int n = 0; n < kTileVectors; n++) to.scale(g, 0, n, load_bf16(scales + n * kLanes));
      for (int64_t quad = 0; quad < kQuads; quad++) {
        vi bytes[kTileVectors];
        Format::codes(quad_at(tile, g * kQuads + quad), bytes);
        to.codes(g, static_cast<int>(quad), bytes);
      }
    }
  }

 private:
  static constexpr int64_t kGroupsPerBlock = scale_inputs(Format::kType) / kGroup;
  static constexpr int64_t kQuads = kGroup / 4;  // per group
  static constexpr int64_t kGroupBytes = block_bytes(Format::kType) / kGroupsPerBlock;

  /// Of a group.
  template <int Rows, int Vectors>
  struct Totals {
    vi at[Rows][Vectors];
    vs shorts[Rows][Vectors] = {};  // if narrow

    vi sum(int row, int n) {
      if constexpr (Format::kIsNarrow) return at[row][n] + multiply_pairs(shorts[row][n], vs{} + 1);
      return Format::sum(at[row], n);
    }
  };

  /// The block of group g: its scales, followed by the values.
  static const uint8_t* block_of(const uint8_t* tile, int64_t g) {
    return tile + g / kGroupsPerBlock * block_bytes(Format::kType);
  }

  static const uint8_t* quad_at(const uint8_t* tile, int64_t quad) {
    const int64_t within = quad % (kGroupsPerBlock * kQuads);
    return block_of(tile, quad / kQuads) + kTileRows * 2 + within * Format::kQuadBytes;
  }

  template <int Rows, int Vectors>
  static void start(const Inputs& inputs, const ActivationLayout& layout, int64_t g,
                    Totals<Rows, Vectors>& totals) {
#pragma GCC unroll 6
    for (int row = 0; row < Rows; row++) {
      const uint8_t* token = inputs.first + row * inputs.stride;
      const int32_t correction = reinterpret_cast<const int32_t*>(token + layout.corrections_at)[g];
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) totals.at[row][n] = Format::start(correction, n);
    }
  }

  template <int Rows, int Vectors>
  static void add_quad(const uint8_t* tile, int64_t output, const Inputs& inputs,
                       const ActivationLayout& layout, int64_t quad,
                       Totals<Rows, Vectors>& totals) {
    const uint8_t* at = quad_at(tile, quad);
    const int first = static_cast<int>(output) / kLanes;
    if constexpr (Format::kIsNarrow) {
      vi bytes[Vectors];
      load_halves<false>(at, first, bytes);
#pragma GCC unroll 6
      for (int row = 0; row < Rows; row++) {
        int32_t four;
        std::memcpy(&four, inputs.first + row * inputs.stride + layout.bytes_at + quad * 4, 4);
        const vi x = splat_int(four);
#pragma GCC unroll 16
        for (int n = 0; n < Vectors; n++) totals.shorts[row][n] += multiply_bytes(bytes[n], x);
      }
    } else {
      Quad weights[Vectors];
      Format::load(at, first, weights);
#pragma GCC unroll 6
      for (int row = 0; row < Rows; row++) {
        const Quantised* x =
            reinterpret_cast<const Quantised*>(inputs.first + row * inputs.stride) + quad * 4;
#pragma GCC unroll 16
        for (int n = 0; n < Vectors; n++)
          totals.at[row][n] = add_products(totals.at[row][n], weights[n], x);
      }
    }
  }

#if defined(__ARM_FEATURE_MATMUL_INT8)
  static constexpr bool kHasMatrices = true;

  /// All quads of a group: an instruction multiplies two tokens' eight inputs by those of two
  /// outputs, which two quads hold.
  template <int Rows, int Vectors>
  static void add_group(const uint8_t* tile, int64_t output, const Inputs& inputs, int64_t g,
                        bool streams, Totals<Rows, Vectors>& totals) {
    const int first = static_cast<int>(output) / kLanes;
    // Of two tokens: outputs 0 and 1 of the first, then of the second; outputs 2 and 3.
    int32x4_t pairs[Rows / 2][Vectors][2] = {};
#pragma GCC unroll 4
    for (int64_t quad = 0; quad < kQuads; quad += 2) {
      if (streams) {
        fetch_stream_part<kGroupBytes, kQuads>(tile + g * kGroupBytes, quad);
        fetch_stream_part<kGroupBytes, kQuads>(tile + g * kGroupBytes, quad + 1);
      }
      Quad upper[Vectors], lower[Vectors];
      Format::load(quad_at(tile, g * kQuads + quad), first, upper);
      Format::load(quad_at(tile, g * kQuads + quad + 1), first, lower);
      int8x16_t x[Rows / 2];
#pragma GCC unroll 2
      for (int p = 0; p < Rows / 2; p++) {
        const int8_t* token = reinterpret_cast<const int8_t*>(inputs.first + 2 * p * inputs.stride) +
                              g * kGroup + quad * 4;
        x[p] = vcombine_s8(vld1_s8(token), vld1_s8(token + inputs.stride));
      }
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) {
        const int32x4_t a = reinterpret_cast<int32x4_t>(upper[n].bytes);
        const int32x4_t b = reinterpret_cast<int32x4_t>(lower[n].bytes);
        const int8x16_t two[] = {vreinterpretq_s8_s32(vzip1q_s32(a, b)),
                                 vreinterpretq_s8_s32(vzip2q_s32(a, b))};
#pragma GCC unroll 2
        for (int p = 0; p < Rows / 2; p++) {
          pairs[p][n][0] = vmmlaq_s32(pairs[p][n][0], x[p], two[0]);
          pairs[p][n][1] = vmmlaq_s32(pairs[p][n][1], x[p], two[1]);
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < Rows / 2; p++) {
#pragma GCC unroll 16
      for (int n = 0; n < Vectors; n++) {
        const int64x2_t a = vreinterpretq_s64_s32(pairs[p][n][0]);
        const int64x2_t b = vreinterpretq_s64_s32(pairs[p][n][1]);
        totals.at[2 * p][n] += reinterpret_cast<vi>(vzip1q_s64(a, b));
        totals.at[2 * p + 1][n] += reinterpret_cast<vi>(vzip2q_s64(a, b));
      }
    }
  }
#else
  static constexpr bool kHasMatrices = false;
#endif

  template <int Rows, int Vectors>
  static void add_scaled(Totals<Rows, Vectors>& totals, const uint8_t* weight_scales,
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
        const vf total = to_float(totals.sum(row, n));
        sums.at[row][n] = fma(total, scales[n] * scale, sums.at[row][n]);
      }
    }
  }
};

using I8Weights = IntegerWeights<I8Format>;
using Q4Weights = IntegerWeights<Q4Format>;
using Nf4Weights = IntegerWeights<Nf4Format>;

/// Inputs per pass if a tile is too wide for the registers. A multiple of kGroup. A pass covers a
/// few KiB of weights, so the passes next to each other read them from the L1 cache, and memory
/// sees one stream.
constexpr int64_t kPassInputs = 128;

/// Vectors of outputs per pass. The sums, one vector of weights for each and an input must fit the
/// registers: 32 on AVX-512 and NEON, 16 elsewhere. With integers these are the sums of one group;
/// the others may be spilled.
template <class Weights>
constexpr int vectors_for(int rows) {
#if defined(__AVX512F__) || defined(__aarch64__)
  const int registers = 32;
#else
  const int registers = 16;
#endif
  int vectors = kTileVectors;
  while (vectors > 1) {
    // A weight vector of a single row is used at once; with more rows all of them stay in
    // registers.
    const int weights = rows == 1 ? 1 : vectors;
    if (rows * vectors * Weights::kSums + (weights + 1) * Weights::kRegisters <= registers) break;
    vectors /= 2;
  }
  return vectors;
}

}  // namespace skein
