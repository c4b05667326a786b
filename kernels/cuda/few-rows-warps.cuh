// How few-rows.cu reads the weights of narrow models. Each warp reads its columns of the block's
// rows, layer after layer, into its own ring in shared memory, so no warp waits for another. This
// file has what a warp reads and in which order, the ring, and the products with the inputs. It
// does not know the phases.
//
// RING: units of 2 KB in a warp's ring · LOW_UNITS: units of 64 columns in all outer low ranks
// together
#pragma once
#include "few-rows.cuh"

/** Weights are read in units of 16 rows by 64 columns (2 KB). Those of value may have 8 rows by 128
 * columns (kIsWide): as lines 8 to 15 they then have the second half of the rows. */
constexpr int kTileRows = 16;
constexpr u32 kSlot = 2 * kTileRows * kUnitColumns, kRing = RING * kSlot;
constexpr u32 kRingBytes = WARPS * kRing;
constexpr int kStepRows = kTileRows, kKeyParts = 4;

/** A unit that a warp reads. The same in every layer. */
struct alignas(8) Unit {
  /** Element offset of the first row and column, and the distance between rows. */
  u32 offset;
  u16 stride;
  /** Rows of the matrix in the unit, and vectors in each of them. */
  u8 rows, vectors : 4, matrix : 4;
};

__device__ __forceinline__ Unit unit_of(int matrix, int offset, int stride, int rows, int columns) {
  Unit unit;
  unit.offset = offset, unit.stride = stride, unit.rows = rows;
  unit.vectors = columns / kVector, unit.matrix = matrix;
  return unit;
}

/** The inputs of a unit of the outer low ranks: the first one's position among all, and their
 * number. */
struct LowInput {
  u16 first, columns;
};

/** Tasks of the `heads` phase per block, at most. Of one row, a block has all tokens of a head. */
constexpr int kHeadsEach = TOKENS * ((kHeads + BLOCKS - 1) / BLOCKS);
/** Tiles in a head's 64 rows of an outer low rank. */
constexpr int kLowTiles = 64 / kTileRows;
/** Units of `rows` rows of `columns` columns that a warp reads, at most. */
__device__ constexpr int most_units(int rows, int columns) {
  const int units = columns / unit_columns(columns), slices = slices_of(columns);
  return (rows + kTileRows - 1) / kTileRows * ((units + slices - 1) / slices);
}
constexpr int kMostUnits = (MIXES - 1) * most_units(1, CHANNELS) + most_units(IN_ROWS, CHANNELS) +
                           kHeadsEach * ((kLowTiles * LOW_UNITS + WARPS - 1) / WARPS) +
                           most_units(kOutputRows, CHANNELS) + most_units(kKeyRows, CHANNELS) +
                           (WORDS ? most_units(kOutputRows, KEYS) : 0);
/** Sums of a head's outer low ranks. */
constexpr int kLowSums = 64 * LOW_UNITS;

struct StreamShared {
  Unit units[WARPS][kMostUnits];
  int num_units[WARPS];
  LowInput low_inputs[LOW_UNITS];
};

/** 64 columns of an outer low rank: which one, the first column, and its input's position among
 * all. */
struct LowUnit {
  int low, column, input;
};

__device__ __forceinline__ LowUnit low_unit(const FewRows& op, int unit) {
  LowUnit place = {0, unit * kUnitColumns, 0};
  while (place.low < kLow - 1 && place.column >= rank_of(op, place.low)) {
    const int rank = rank_of(op, place.low++);
    place.column -= (rank + kUnitColumns - 1) / kUnitColumns * kUnitColumns;
    place.input += rank;
  }
  place.input += place.column;
  return place;
}

/** What a warp reads next, far ahead of its products. */
struct Stream {
  const StreamShared& shared;
  const Matrices* layer;
  const Matrices* end;
  /** The layer's units, the next one's index, and their number. */
  const Unit* units;
  int index, num_units;
  /** The lane's place in a slot of the warp's ring, and byte offsets in it: the next unit to
   * multiply, and the unit before, which is free. */
  u32 own;
  u8* ring;
  u32 slot, free;
  /** Evict first: weights are read once and should not evict other data. */
  u64 policy;
};

/** Lists the warp's columns of some rows of a matrix. */
template <int Columns = CHANNELS>
__device__ __forceinline__ int list_rows(Unit* units, int count, int matrix, Place rows) {
  const Place own = slice_of_warp<Columns>();
#pragma unroll 1
  for (int row = rows.begin; row < rows.end; row += kTileRows)
#pragma unroll 1
    for (int unit = own.begin; unit < own.end; unit++)
      units[count++] = unit_of(matrix, row * Columns + unit * unit_columns(Columns), Columns,
                               min(kTileRows, rows.end - row), kUnitColumns);
  return count;
}

/** Lists all that the warp reads in a layer, in order. */
__device__ __forceinline__ void list_units(const FewRows& op, StreamShared& sh, HeadTasks tasks) {
  const int warp = threadIdx.x >> 5;
  Unit* const units = sh.units[warp];
  int count = 0;
  const Place in = share_of_in(op);
#pragma unroll 1
  for (int j = 0; j < kIn; j++)
    count = list_rows(units, count, j, rows_of(op, in, j));
#pragma unroll 1
  for (int i = 0; tasks.has(tasks.at(i)); i++)
#pragma unroll 1
    for (int tile = warp; tile < kLowTiles * LOW_UNITS; tile += WARPS) {
      const LowUnit unit = low_unit(op, tile / kLowTiles);
      const int rank = rank_of(op, unit.low);
      const int row = 64 * tasks.at(i).head + kTileRows * (tile % kLowTiles);
      units[count++] = unit_of(kLowMatrix + unit.low, row * rank + unit.column, rank, kTileRows,
                               min(kUnitColumns, rank - unit.column));
    }
  count = list_rows(units, count, kOutputMatrix, share_of(CHANNELS));
  count = list_rows(units, count, kKeyMatrix, share_of_keys());
  if constexpr (WORDS) count = list_rows<KEYS>(units, count, kValueMatrix, share_of(CHANNELS));
  sh.num_units[warp] = count;
}

__device__ __forceinline__ void prepare_stream(const FewRows& op, StreamShared& sh,
                                               HeadTasks tasks) {
  if (threadIdx.x < kWorkers && (threadIdx.x & 31) == 0) list_units(op, sh, tasks);
  if (threadIdx.x < LOW_UNITS) {
    const LowUnit unit = low_unit(op, threadIdx.x);
    sh.low_inputs[threadIdx.x] = {(u16)unit.input, (u16)(rank_of(op, unit.low) - unit.column)};
  }
}

/** Copies 16 bytes into shared memory if `inside`; complete when their group is. */
__device__ __forceinline__ void copy_ahead(u32 to, const f16* from, bool inside, u64 policy) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0;\n"
      " @p cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2; }" ::"r"(to),
      "l"(from), "l"(policy), "r"((int)inside)
      : "memory");
#endif
}

/** Requests the next unit of the stream into a slot of the ring. Each row of the unit is a line of
 * 128 bytes. In odd rows the two halves of the line are swapped, so that lanes that read two rows
 * at once have no bank conflicts. Rows and columns beyond the matrix keep what they held, and their
 * sums are discarded. Every call commits a group, also after the end of the stream. */
__device__ __forceinline__ void ask(Stream& s, u32 place) {
  while (s.layer < s.end) {
    const Unit unit = s.units[s.index];
    const f16* const matrix = s.layer->of[unit.matrix];
    if (++s.index == s.num_units) s.index = 0, s.layer++;
    if (matrix == nullptr) continue;
    const int lane = threadIdx.x & 31, row = lane >> 3, vector = lane & 7;
    const u32 four = 4 * (u32)unit.stride;
    const f16* const from = matrix + (unit.offset + row * unit.stride + kVector * vector);
    const int left = vector < unit.vectors ? unit.rows - row : 0;
    const bool is_wide = kIsWide && unit.matrix == kValueMatrix;
    const u32 second = is_wide ? kUnitColumns : 2 * four;
    const int in_second = is_wide ? left : left - 8;
    const u32 to = s.own + place;
    copy_ahead(to, from, left > 0, s.policy);
    copy_ahead(to + 512, from + four, left > 4, s.policy);
    copy_ahead(to + 1024, from + second, in_second > 0, s.policy);
    copy_ahead(to + 1536, from + (second + four), in_second > 4, s.policy);
    break;
  }
  end_group();
}

/** Requests as many units as the ring has room for. */
__device__ __forceinline__ Stream start_stream(const StreamShared& sh, const Matrices* layers,
                                               int num_layers, u8* ring) {
  const int warp = threadIdx.x >> 5;
  Stream s = {sh, layers, layers + num_layers};
  if (threadIdx.x < kWorkers) s.units = sh.units[warp], s.num_units = sh.num_units[warp];
  if (s.num_units == 0) s.end = layers;
  s.ring = ring + warp * kRing;
  const int lane = threadIdx.x & 31;
  s.own = (u32)__cvta_generic_to_shared(s.ring) + 128 * (lane >> 3) +
          16 * ((lane & 7) ^ (lane >> 3 & 1) << 2);
  s.free = kRing - kSlot, s.policy = evict_first();
  if (threadIdx.x < kWorkers)
#pragma unroll 1
    for (int i = 0; i < RING - 1; i++) ask(s, i * kSlot);
  return s;
}

/** The products of a tile: its first 8 rows, and the other 8. */
struct Tile {
  Products first, second;
};

/** Adds the next unit's products with the inputs at `x`; the tokens' inputs are Columns apart.
 * Also requests one more unit into the free slot, before it loads anything that registers would
 * have to hold meanwhile. `both`: all 64 columns, instead of the first 32; `rows`: 8 take half of
 * the loads. */
template <int Columns = CHANNELS, int Tokens>
__device__ __forceinline__ void add_unit(Stream& s, Tile (&tiles)[Tokens], const f16* x, bool both,
                                         int rows) {
  const int lane = threadIdx.x & 31, row = lane >> 2, column = lane & 3;
  const f16* const inputs = x + kVector * column + 4 * (row & 1);
  wait_for_groups<RING - 2>();
  __syncwarp();
  ask(s, s.free);
  constexpr bool kWide = unit_columns(Columns) > kUnitColumns;
  const u8* const from = s.ring + s.slot + 128 * row;
  const int at0 = 16 * (column ^ (row & 1) << 2), at1 = at0 ^ 64;
  const auto load = [&](int at) { return *reinterpret_cast<const uint4*>(from + at); };
  uint2 x0[Tokens], x1[Tokens];
#pragma unroll
  for (int t = 0; t < Tokens; t++) {
    x0[t] = *reinterpret_cast<const uint2*>(inputs + t * Columns);
    x1[t] = *reinterpret_cast<const uint2*>(inputs + t * Columns + 32);
  }
  const uint4 w00 = load(at0), w01 = load(at1);
#pragma unroll
  for (int t = 0; t < Tokens; t++) {
    add_products(tiles[t].first, w00, x0[t]);
    if (both) add_products(tiles[t].first, w01, x1[t]);
  }
  if (kWide) {
#pragma unroll
    for (int t = 0; t < Tokens; t++) {
      x0[t] = *reinterpret_cast<const uint2*>(inputs + t * Columns + 64);
      x1[t] = *reinterpret_cast<const uint2*>(inputs + t * Columns + 96);
    }
  }
  if (kWide || rows > 8) {
    const uint4 w10 = load(at0 + 1024), w11 = load(at1 + 1024);
#pragma unroll
    for (int t = 0; t < Tokens; t++) {
      Products& sums = kWide ? tiles[t].first : tiles[t].second;
      add_products(sums, w10, x0[t]);
      if (both) add_products(sums, w11, x1[t]);
    }
  }
  s.free = s.slot;
  s.slot = s.slot == kRing - kSlot ? 0 : s.slot + kSlot;
}

/** Stores the sums of a tile's rows, up to `rows` of them. */
__device__ __forceinline__ void keep_tile(const Tile& tile, float* to, int rows) {
  const int lane = threadIdx.x & 31, row = lane >> 2, part = lane & 3;
  const float first = tile.first.sum(), second = tile.second.sum();
  const int at = row + 8 * part;
  if (part < 2 && at < rows) to[at] = part == 0 ? first : second;
}

/** Multiplies the warp's columns of `rows` rows by the inputs of each token. Stores one sum per
 * row, the warp's part of it. */
template <int Columns = CHANNELS>
__device__ __forceinline__ void multiply_rows(Stream& s, const f16* input, float* sums, int rows) {
  const Place own = slice_of_warp<Columns>();
  if (own.begin >= own.end) return;
#pragma unroll 1
  for (int row = 0; row < rows; row += kTileRows) {
    Tile tiles[TOKENS] = {};
#pragma unroll 1
    for (int unit = own.begin; unit < own.end; unit++)
      add_unit<Columns>(s, tiles, input + unit_columns(Columns) * unit, true, rows - row);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) keep_tile(tiles[t], sums + t * kTokenSums + row, rows - row);
  }
}

/** Multiplies the head's outer low ranks, 64 columns at a time: [unit][channel]. */
__device__ __forceinline__ void low_products(const FewRows& op, Stream& s, const f16* x,
                                             float* sums, bool has_gate) {
  int units = LOW_UNITS;
  if (!has_gate) units -= (rank_of(op, kLow - 1) + kUnitColumns - 1) / kUnitColumns;
#pragma unroll 1
  for (int task = threadIdx.x >> 5; task < kLowTiles * units; task += WARPS) {
    const LowInput input = s.shared.low_inputs[task / kLowTiles];
    Tile tile[1] = {};
    add_unit(s, tile, x + input.first, input.columns > 32, kTileRows);
    keep_tile(tile[0], sums + kTileRows * task, kTileRows);
  }
}

/** Two channels of an outer low rank. */
__device__ __forceinline__ float2 low_pair(const FewRows& op, const float* sums, int low) {
  int first = 0;
#pragma unroll
  for (int i = 0; i < kLow - 1; i++)
    first += i < low ? (rank_of(op, i) + kUnitColumns - 1) / kUnitColumns : 0;
  sums += 64 * first + 2 * (threadIdx.x & 31);
  float2 pair = make_float2(0, 0);
#pragma unroll 2
  for (int column = 0; column < rank_of(op, low); column += kUnitColumns, sums += 64) {
    const float2 part = load_pair(sums, 0);
    pair.x += part.x, pair.y += part.y;
  }
  return pair;
}
