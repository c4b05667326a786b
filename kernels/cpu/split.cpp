#include "split.h"

#if defined(SKEIN_TILES)

namespace skein {

namespace {

/// Groups of inputs whose weights are paired at a time. With all 64 outputs they take 32 KB, and
/// stay in the L1 cache while the tokens go by.
constexpr int64_t kPanel = 8;
constexpr int64_t kGroupBytes = kTileRows * kGroup * 2, kTileBytes = 1024;
constexpr int64_t kTileSums = kTileBytes / 4, kBlockSums = kTileVectors * kTileSums;

/// Pairs the weights of one group as tiles want them: for each of four vectors of outputs [16 pairs
/// of inputs][16 outputs][2]. `line` has `inputs` inputs, up to 32.
void pair_group(const uint8_t* line, int64_t inputs, uint8_t* to) {
  constexpr int64_t kLine = kTileRows * 2;
  constexpr __mmask32 kUpper = 0xaaaaaaaa;
  for (int64_t i = 0; i < kGroup; i += 2, line += 2 * kLine, to += 64) {
    for (int half = 0; half < 2; half++) {
      const __m512i none = _mm512_setzero_si512();
      const __m512i even = i < inputs ? _mm512_loadu_si512(line + half * 64) : none;
      const __m512i odd = i + 1 < inputs ? _mm512_loadu_si512(line + kLine + half * 64) : none;
      _mm512_store_si512(to + 2 * half * kTileBytes,
                         _mm512_mask_blend_epi16(kUpper, even, _mm512_slli_epi32(odd, 16)));
      _mm512_store_si512(to + (2 * half + 1) * kTileBytes,
                         _mm512_mask_blend_epi16(kUpper, _mm512_srli_epi32(even, 16), odd));
    }
  }
}

/// Bytes to fetch into the L2 cache, in even parts.
struct Fetcher {
  const uint8_t *at, *end;
  int64_t part;  // bytes

  void fetch() {
    const uint8_t* to = std::min(at + part, end);
    for (; at < to; at += 64) __builtin_prefetch(at, 0, 2);
  }
};

template <int Blocks>
void add_piece(const uint8_t* tokens, int64_t block) {
  load_tile<4>(tokens);
  add_bf16_products<0, 4, 6>();
  add_bf16_products<1, 4, 7>();
  if constexpr (Blocks == 2) {
    load_tile<5>(tokens + block);
    add_bf16_products<2, 5, 6>();
    add_bf16_products<3, 5, 7>();
  }
}

/// Adds the products of one or two blocks of tokens, and of the first two vectors of outputs of
/// `groups` groups, to their sums. With two blocks a register is loaded anew after four products, so
/// that a load does not wait for the product before.
template <int Blocks>
void add_panel(const uint8_t* tokens, const SplitLayout& layout, const uint8_t* weights,
               int64_t groups, bool is_first, float* sums, Fetcher& next) {
  float* second = sums + kBlockSums;
  if (is_first) {
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
  for (int64_t g = 0; g < groups; g++, weights += kGroupBytes) {
    next.fetch();
    load_tile<6>(weights);
    load_tile<7>(weights + kTileBytes);
    for (int p = 0; p < kPieces; p++, tokens += layout.tile)
      add_piece<Blocks>(tokens, layout.block);
  }
  store_tile<0>(sums);
  store_tile<1>(sums + kTileSums);
  if constexpr (Blocks == 2) store_tile<2>(second);
  if constexpr (Blocks == 2) store_tile<3>(second + kTileSums);
}

}  // namespace

void split_block(const float* x, int64_t columns, const SplitLayout& layout, int64_t tokens,
                 int64_t first, int64_t end, uint8_t* block) {
  for (int64_t g = first; g < end; g++) {
    uint8_t* tiles = block + g * kPieces * layout.tile;
    const auto lanes = [&](int64_t k) {
      const int64_t count = std::clamp<int64_t>(columns - k, 0, kLanes);
      return static_cast<__mmask16>((1u << count) - 1);
    };
    const __mmask16 low_lanes = lanes(g * kGroup), high_lanes = lanes(g * kGroup + kLanes);
    for (int64_t t = 0; t < tokens; t++) {
      const float* from = x + t * columns + g * kGroup;
      const Pieces low = split(_mm512_maskz_loadu_ps(low_lanes, from));
      const Pieces high = split(_mm512_maskz_loadu_ps(high_lanes, from + kLanes));
      for (int p = 0; p < kPieces; p++) {
        const __m512bh both = _mm512_cvtne2ps_pbh(high.at[p], low.at[p]);
        std::memcpy(tiles + p * layout.tile + t * kGroup * 2, &both, sizeof both);
      }
    }
  }
}

void multiply_split(const sk_matrix& weight, int64_t first, int64_t tiles,
                    const SplitLayout& layout, const uint8_t* tokens, int64_t from, int64_t end,
                    const TakeSums& take) {
  static thread_local Buffer room;
  const int64_t blocks = div_up(end - from, layout.rows);
  const int64_t sums_floats = blocks * kBlockSums;  // of a tile
  const int64_t panel_bytes = kPanel * kGroupBytes;
  const size_t bytes = static_cast<size_t>(panel_bytes + tiles * sums_floats * 4);
  if (room.size() < bytes) room = Buffer(bytes);
  uint8_t* pairs = room.as<uint8_t>();
  float* sums = reinterpret_cast<float*>(pairs + panel_bytes);

  TileConfig config = kWholeTiles;
  for (const int tile : {0, 1, 2, 3, 4, 5}) config.set(tile, static_cast<int>(layout.rows), 64);
  const Tiles in_use(config);

  tokens += from / layout.rows * layout.block;
  for (int64_t g = 0; g < layout.groups; g += kPanel) {
    const int64_t groups = std::min(kPanel, layout.groups - g);
    for (int64_t n = 0; n < tiles; n++) {
      const uint8_t* tile = weight.tile(first + n);
      for (int64_t i = 0; i < groups; i++) {
        const int64_t k = (g + i) * kGroup;
        pair_group(tile + k * kTileRows * 2, std::min(kGroup, weight.columns - k),
                   pairs + i * kGroupBytes);
      }
      // The weights that are paired next.
      const bool is_last = n + 1 == tiles;
      const uint8_t* next = is_last ? weight.tile(first) + (g + kPanel) * kGroupBytes
                                    : weight.tile(first + n + 1) + g * kGroupBytes;
      const uint8_t* last = weight.data + weight.tiles() * weight.tile_stride;
      Fetcher fetcher{next, std::min(next + panel_bytes, last),
                      round_up(div_up(panel_bytes, 2 * div_up(blocks, 2) * groups), 64)};
      for (int64_t b = 0; b < blocks; b += 2) {
        const auto add = b + 1 < blocks ? add_panel<2> : add_panel<1>;
        const uint8_t* panel = tokens + b * layout.block + g * kPieces * layout.tile;
        float* to = sums + n * sums_floats + b * kBlockSums;
        for (const int half : {0, 1}) {
          add(panel, layout, pairs + half * 2 * kTileBytes, groups, g == 0,
              to + half * 2 * kTileSums, fetcher);
        }
        if (g + kPanel < layout.groups) continue;
        // Now, while they are in the cache, and while tiles are multiplied.
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
