// The tile registers of Intel's AMX, at the level that has them (SKEIN_TILES): eight tiles of up
// to 16 rows of 64 bytes. A thread may use them because kernels/machine/level.cpp has asked the
// kernel for the process.
//
// The instructions are written out: GCC 12's own macros do not say that they read memory, so a
// store before one could move behind it.
#pragma once

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define SKEIN_TILES 1

#include <cstdint>

namespace skein {

/// What LDTILECFG reads. A product C += A·B of TDP…(C, A, B) has A.rows rows, B.bytes / 4 columns
/// and A.bytes / 4 rows of B, each of which holds two (bf16) or four (int8) inputs of every
/// column.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int tile_rows, int tile_bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    bytes[tile] = static_cast<uint16_t>(tile_bytes);
  }
};

/// All eight tiles with 16 rows of 64 bytes.
inline constexpr TileConfig kWholeTiles = [] {
  TileConfig config;
  for (int tile = 0; tile < 8; tile++) config.set(tile, 16, 64);
  return config;
}();

/// What this thread has loaded; null if it has none.
inline thread_local const TileConfig* tiles_in_use = nullptr;

/// From now on the thread has tiles of this shape, which must stay where it is. That takes some
/// 0.1 µs, so a thread keeps them until the end of a command.
inline void use_tiles(const TileConfig& config) {
  if (tiles_in_use == &config) return;
  tiles_in_use = &config;
  asm volatile("ldtilecfg %0" ::"m"(config));
}

/// A thread that kept tiles would save them at every switch, and could not know whether another
/// library had changed them.
inline void release_tiles() {
  if (tiles_in_use == nullptr) return;
  tiles_in_use = nullptr;
  asm volatile("tilerelease");
}

template <int Tile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}

/// `stride`: bytes between rows.
template <int Tile>
inline void load_tile(const void* from, int64_t stride = 64) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
inline void store_tile(void* to, int64_t stride = 64) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
}

/// C += A·B, quads of signed bytes to i32.
template <int C, int A, int B>
inline void add_i8_products() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

/// C += A·B, pairs of bf16 to f32. Per output one chain of fused multiply-adds over the first
/// inputs of the pairs and one over the second, each from 0, then C + (first + second). Denormals
/// are zero; MXCSR is ignored.
template <int C, int A, int B>
inline void add_bf16_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace skein
#else
namespace skein {
inline void release_tiles() {}
}  // namespace skein
#endif
