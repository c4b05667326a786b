#include "split.h"

#include <utility>

#if defined(SKEIN_TILES)

namespace skein {

namespace {

constexpr int64_t kLine = kTileRows * 2, kGroupBytes = kGroup * kLine, kTileBytes = 1024;
constexpr int64_t kTileSums = kTileBytes / 4, kBlockSums = kTileVectors * kTileSums;

/// Pairs the weights of inputs [2·from, 2·end) of a group as tiles want them: for each vector of
/// outputs [16 pairs of inputs][16 outputs][2]. A line has two halves of two vectors each. Fetches
/// the weights that follow if they come from memory.
template <bool FromMemory, int FirstHalf, int EndHalf>
[[gnu::always_inline]] inline void pair_inputs(const uint8_t* line, int64_t from, int64_t end,
                                               uint8_t* to) {
  line += from * 2 * kLine;
  to += from * 64;
#pragma GCC unroll 16
  for (int64_t i = from; i < end; i++, line += 2 * kLine, to += 64) {
    if constexpr (FromMemory) fetch_stream<2 * kLine>(line);
#pragma GCC unroll 2
    for (int half = FirstHalf; half < EndHalf; half++) {
      const __m512i even = _mm512_loadu_si512(line + half * 64);
      const __m512i odd = _mm512_loadu_si512(line + kLine + half * 64);
      uint8_t* vector = to + 2 * (half - FirstHalf) * kTileBytes;
      _mm512_store_si512(vector, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(vector + kTileBytes, _mm512_unpackhi_epi16(even, odd));
    }
  }
}

/// The lines of group g, of zeros beyond the last input.
struct Lines {
  const uint8_t* tile;
  int64_t columns;
  alignas(64) uint8_t rest[kGroupBytes];

  Lines(const uint8_t* weights, int64_t inputs) : tile(weights), columns(inputs) {
    const int64_t count = columns % kGroup * kLine;
    if (count == 0) return;
    std::memcpy(rest, tile + columns * kLine - count, static_cast<size_t>(count));
    std::memset(rest + count, 0, static_cast<size_t>(kGroupBytes - count));
  }

  const uint8_t* of(int64_t g) const {
    return (g + 1) * kGroup <= columns ? tile + g * kGroupBytes : rest;
  }
};

/// Splits up to 32 inputs, of which there are `count`, into pieces `stride` bytes apart.
void split_group(const float* x, int64_t count, uint8_t* pieces, int64_t stride) {
  const auto lanes = [&](int64_t k) {
    return static_cast<__mmask16>((1u << std::clamp<int64_t>(count - k, 0, kLanes)) - 1);
  };
  const Pieces low = split(_mm512_maskz_loadu_ps(lanes(0), x));
  const Pieces high = split(_mm512_maskz_loadu_ps(lanes(kLanes), x + kLanes));
  for (int p = 0; p < kPieces; p++, pieces += stride) {
    const __m512bh both = _mm512_cvtne2ps_pbh(high.at[p], low.at[p]);
    std::memcpy(pieces, &both, sizeof both);
  }
}

/// Tiles 0 to 5 have so many rows.
template <int... Rows>
const TileConfig& tiles_of(int64_t rows, std::integer_sequence<int, Rows...>) {
  static constexpr TileConfig kConfigs[] = {[] {
    TileConfig config = kWholeTiles;
    for (const int tile : {0, 1, 2, 3, 4, 5}) config.set(tile, Rows + 1, 64);
    return config;
  }()...};
  return kConfigs[rows - 1];
}

const TileConfig& tiles_of(int64_t rows) {
  return tiles_of(rows, std::make_integer_sequence<int, SplitLayout::kMostRows>{});
}

/// A group is paired so many groups before it is multiplied: a tile is loaded only when what was
/// stored there has left the store buffer.
constexpr int64_t kLag = 3, kRing = 4;

template <int N>
[[gnu::always_inline]] inline void add_vector(const uint8_t* pairs) {
  load_tile<6 + N % 2>(pairs + N * kTileBytes);
  add_bf16_products<N, 4, 6 + N % 2>();
}

/// Multiplies a weight tile with one block of tokens while it is read from memory.
void stream(const Lines& lines, const uint8_t* tokens, const SplitLayout& layout, float* sums) {
  static_assert(kPieces == 3);
  alignas(64) uint8_t pairs[kRing][kGroupBytes];
  const int64_t groups = div_up(lines.columns, kGroup);
  for (int64_t g = 0; g < std::min(kLag, groups); g++)
    pair_inputs<true, 0, 2>(lines.of(g), 0, 16, pairs[g]);
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  for (int64_t g = 0; g < groups; g++, tokens += kPieces * layout.tile) {
    const uint8_t* ready = pairs[g % kRing];
    const int64_t next = std::min(g + kLag, groups - 1);
    const uint8_t* from = lines.of(next);
    uint8_t* to = pairs[(g + kLag) % kRing];
    const auto pair = [&](int64_t first, int64_t end) __attribute__((always_inline)) {
      pair_inputs<true, 0, 2>(from, first, end, to);
    };
    load_tile<4>(tokens);
    add_vector<0>(ready);
    pair(0, 2);
    add_vector<1>(ready);
    pair(2, 4);
    add_vector<2>(ready);
    pair(4, 5);
    add_vector<3>(ready);
    load_tile<4>(tokens + layout.tile);
    pair(5, 7);
    add_vector<0>(ready);
    pair(7, 8);
    add_vector<1>(ready);
    pair(8, 10);
    add_vector<2>(ready);
    pair(10, 11);
    add_vector<3>(ready);
    load_tile<4>(tokens + 2 * layout.tile);
    pair(11, 13);
    add_vector<0>(ready);
    pair(13, 14);
    add_vector<1>(ready);
    pair(14, 15);
    add_vector<2>(ready);
    pair(15, 16);
    add_vector<3>(ready);
  }
  store_tile<0>(sums);
  store_tile<1>(sums + kTileSums);
  store_tile<2>(sums + 2 * kTileSums);
  store_tile<3>(sums + 3 * kTileSums);
}

/// Bytes to fetch into the L2 cache meanwhile.
struct Fetcher {
  const uint8_t *at, *end;
  int64_t lines;  // at a time

  void fetch() {
    for (int64_t i = 0; i < lines && at < end; i++, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

/// Groups of inputs that are added at a time, so that they stay in the L2 cache with their tokens.
constexpr int64_t kPanel = 16;

/// Pairs of the weights of one half of each line: group g is at g % of a ring of 2^n groups.
struct Pairs {
  uint8_t* first;
  int64_t last;  // of the ring

  uint8_t* at(int64_t g) const { return first + (g & last) * (kGroupBytes / 2); }
};

/// Adds the products of one or two blocks of tokens, and of the vectors of outputs in one half of
/// each line of `groups` groups, from `first` on, to their sums. IsFirst: pairs them meanwhile.
template <int Blocks, int Half, bool IsFirst>
void add_half(const Lines& lines, const Pairs& pairs, int64_t first, int64_t groups,
              const uint8_t* tokens, const SplitLayout& layout, float* sums, Fetcher& next) {
  const auto pair = [&](int64_t from, int64_t end, int64_t g) __attribute__((always_inline)) {
    if constexpr (IsFirst)
      pair_inputs<false, Half, Half + 1>(lines.of(first + g), from, end, pairs.at(g));
  };
  for (int64_t g = 0; g < std::min(kLag, groups); g++) pair(0, 16, g);
  float* second = sums + kBlockSums;
  if (first == 0) {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
  } else {
    load_tile<0>(sums);
    load_tile<1>(sums + kTileSums);
    if constexpr (Blocks == 2) load_tile<2>(second);
    if constexpr (Blocks == 2) load_tile<3>(second + kTileSums);
  }
  for (int64_t g = 0; g < groups; g++) {
    const uint8_t* ready = pairs.at(g);
    const int64_t later = std::min(g + kLag, groups - 1);
    load_tile<6>(ready);
    load_tile<7>(ready + kTileBytes);
    const auto add_piece = [&](int64_t from, int64_t middle, int64_t end) __attribute__((always_inline)) {
      load_tile<4>(tokens);
      add_bf16_products<0, 4, 6>();
      next.fetch();
      pair(from, middle, later);
      add_bf16_products<1, 4, 7>();
      if constexpr (Blocks == 2) {
        load_tile<5>(tokens + layout.block);
        add_bf16_products<2, 5, 6>();
      }
      next.fetch();
      pair(middle, end, later);
      if constexpr (Blocks == 2) add_bf16_products<3, 5, 7>();
      tokens += layout.tile;
    };
    add_piece(0, 3, 6);
    add_piece(6, 8, 11);
    add_piece(11, 13, 16);
  }
  store_tile<0>(sums);
  store_tile<1>(sums + kTileSums);
  if constexpr (Blocks == 2) store_tile<2>(second);
  if constexpr (Blocks == 2) store_tile<3>(second + kTileSums);
}

/// Fetches of add_half per group.
constexpr int64_t kFetches = 2 * kPieces;

}  // namespace

void split_block(const float* x, int64_t columns, const SplitLayout& layout, int64_t tokens,
                 int64_t first, int64_t end, uint8_t* block) {
  for (int64_t g = first; g < end; g++) {
    uint8_t* tiles = block + g * kPieces * layout.tile;
    for (int64_t t = 0; t < tokens; t++)
      split_group(x + t * columns + g * kGroup, columns - g * kGroup, tiles + t * 64, layout.tile);
  }
}

template <int Tokens>
void multiply_few(const uint8_t* tile, const Inputs& inputs, float* sums) {
  constexpr int kRows = Tokens * kPieces;
  alignas(64) uint8_t pairs[kRing][kGroupBytes], rows[kRing][kRows * 64];
  alignas(64) float parts[2][kTileVectors][kRows][kLanes];
  vf totals[Tokens][kTileVectors] = {};
  const Lines lines(tile, inputs.columns);
  const int64_t groups = div_up(lines.columns, kGroup);
  const auto split_inputs = [&](int64_t g) {
    for (int t = 0; t < Tokens; t++) {
      const uint8_t* x = inputs.first + t * inputs.stride + g * kGroup * 4;
      split_group(reinterpret_cast<const float*>(x), inputs.columns - g * kGroup,
                  rows[g % kRing] + t * kPieces * 64, 64);
    }
  };
  const auto add = [&](int64_t g) {
#pragma GCC unroll 6
    for (int row = 0; row < kRows; row++) {
#pragma GCC unroll 4
      for (int n = 0; n < kTileVectors; n++)
        totals[row / kPieces][n] += load(parts[g % 2][n][row]);
    }
  };
  use_tiles(tiles_of(kRows));
  for (int64_t g = 0; g < std::min(kLag, groups); g++) {
    split_inputs(g);
    pair_inputs<true, 0, 2>(lines.of(g), 0, 16, pairs[g]);
  }
  for (int64_t g = 0; g < groups; g++) {
    const uint8_t* ready = pairs[g % kRing];
    const int64_t next = std::min(g + kLag, groups - 1);
    const uint8_t* from = lines.of(next);
    uint8_t* to = pairs[(g + kLag) % kRing];
    load_tile<4>(rows[g % kRing]);
    zero_tile<0>();
    add_vector<0>(ready);
    pair_inputs<true, 0, 2>(from, 0, 4, to);
    zero_tile<1>();
    add_vector<1>(ready);
    pair_inputs<true, 0, 2>(from, 4, 8, to);
    zero_tile<2>();
    add_vector<2>(ready);
    pair_inputs<true, 0, 2>(from, 8, 12, to);
    zero_tile<3>();
    add_vector<3>(ready);
    pair_inputs<true, 0, 2>(from, 12, 16, to);
    if (next == g + kLag) split_inputs(next);
    auto& products = parts[g % 2];
    store_tile<0>(products[0]);
    store_tile<1>(products[1]);
    store_tile<2>(products[2]);
    store_tile<3>(products[3]);
    if (g > 0) add(g - 1);
  }
  add(groups - 1);
  for (int t = 0; t < Tokens; t++)
    for (int n = 0; n < kTileVectors; n++) store(sums + n * kTileSums + t * kLanes, totals[t][n]);
}

template void multiply_few<1>(const uint8_t* tile, const Inputs& inputs, float* sums);
template void multiply_few<2>(const uint8_t* tile, const Inputs& inputs, float* sums);

void multiply_split(const sk_matrix& weight, int64_t first, int64_t tiles,
                    const SplitLayout& layout, const uint8_t* tokens, int64_t from, int64_t end,
                    const TakeSums& take) {
  static thread_local Buffer room;
  const int64_t blocks = div_up(end - from, layout.rows);
  const int64_t sums_floats = blocks * kBlockSums;  // of a tile
  const int64_t panel_bytes = kPanel * kGroupBytes;
  const size_t bytes = static_cast<size_t>(panel_bytes + tiles * sums_floats * 4);
  if (room.size() < bytes) room = Buffer(bytes);
  float* sums = reinterpret_cast<float*>(room.as<uint8_t>() + panel_bytes);
  use_tiles(tiles_of(layout.rows));
  tokens += from / layout.rows * layout.block;
  if (blocks == 1) {
    for (int64_t n = first; n < first + tiles; n++) {
      stream(Lines(weight.tile(n), weight.columns), tokens, layout, sums);
      take.take(take.job, sums, n, from, end - from);
    }
    return;
  }
  // Two blocks need no pairs twice, and fetch their own weights. With more it is the next ones.
  const bool is_few = blocks == 2;
  const int64_t panel = is_few ? layout.groups : kPanel, ring = is_few ? kRing : kPanel;
  const Pairs halves[2] = {{room.as<uint8_t>(), ring - 1},
                           {room.as<uint8_t>() + panel_bytes / 2, ring - 1}};
  const uint8_t* last = weight.data + weight.tiles() * weight.tile_stride;
  for (int64_t g = 0; g < layout.groups; g += panel) {
    const int64_t groups = std::min(panel, layout.groups - g);
    for (int64_t n = 0; n < tiles; n++) {
      const uint8_t* tile = weight.tile(first + n);
      const Lines lines(tile, weight.columns);
      const bool is_last = n + 1 == tiles;
      const uint8_t* next = is_few ? tile + kFar : tile + weight.tile_stride + g * kGroupBytes;
      if (!is_few && is_last) {
        next = g + panel < layout.groups ? weight.tile(first) + (g + panel) * kGroupBytes
                                         : tile + weight.tile_stride;
      }
      const int64_t passes = is_few ? 1 : 2 * div_up(blocks, 2);
      Fetcher fetcher{next, std::min(next + groups * kGroupBytes, last),
                      div_up(kGroupBytes / 64, kFetches * passes)};
      for (int64_t b = 0; b < blocks; b += 2) {
        const uint8_t* at = tokens + b * layout.block + g * kPieces * layout.tile;
        float* to = sums + n * sums_floats + b * kBlockSums;
        const auto add = [&]<int Half>(std::integral_constant<int, Half>) {
          const auto one = b + 1 < blocks
                               ? (b == 0 ? add_half<2, Half, true> : add_half<2, Half, false>)
                               : add_half<1, Half, false>;
          one(lines, halves[Half], g, groups, at, layout, to + 2 * Half * kTileSums, fetcher);
        };
        add(std::integral_constant<int, 0>{});
        add(std::integral_constant<int, 1>{});
        if (g + panel < layout.groups) continue;
        // Now, while they are in the cache.
        for (int64_t one = b; one < std::min(b + 2, blocks); one++, to += kBlockSums) {
          const int64_t token = from + one * layout.rows;
          const int64_t count = std::min(layout.rows, end - token);
          take.take(take.job, to, first + n, token, count);
        }
      }
    }
  }
}

}  // namespace skein

#endif
