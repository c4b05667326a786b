// A warp's stream of weights in one-row.cu: what it reads of every layer and in which order, the ring
// in shared memory that it is read into, and the products with the inputs. Knows no phase.
#pragma once
#include "one-row.cuh"

/** What a warp reads next, far ahead of what it multiplies. */
struct Stream {
  const Matrices* layer;
  const Matrices* end;
  /** Of the lane: its part of the next unit's first rows, and the unit's rows from there on. */
  const f16* from;
  int left;
  /** Of the run: numbers from row to row, tiles and units of a tile that are left, units of a tile. */
  int stride, tiles, unit, units;
  /** The next run, and how many there are. */
  const Run* run;
  int index, num_runs;
  /** The warp's ring. Of it, in bytes: the next unit to take, and the one taken before. */
  u8* ring;
  u32 slot, free;
  /** Evict first: what is read once should not drive out what is not. */
  u64 policy;
};

/** The matrix of `in` with this row. */
__device__ __forceinline__ int job_of(const OneRow& op, int row) {
  int j = 0;
  while (j < kIn - 1 && row >= op.first[j + 1]) j++;
  return j;
}

/** The warp's columns of some rows of a matrix. */
__device__ __forceinline__ int list_rows(Run* runs, int count, int matrix, Place rows) {
  const Place own = slice_of_warp();
  if (rows.begin >= rows.end || own.begin >= own.end) return count;
  runs[count] = {rows.begin * CHANNELS + own.begin * kUnitColumns, CHANNELS,
                 (u16)(rows.end - rows.begin), (u16)(own.end - own.begin), (u16)kUnitColumns,
                 (u16)matrix};
  return count + 1;
}

/** Lists all that the warp reads of a layer, in order. */
__device__ __forceinline__ void list_runs(const OneRow& op, Shared& sh) {
  const int warp = threadIdx.x >> 5;
  Run* const runs = sh.runs[warp];
  int count = 0;
  const Place in = share_of(op.first[kIn]);
#pragma unroll 1
  for (int j = 0; j < kIn; j++)
    count = list_rows(runs, count, j,
                      {max(in.begin, op.first[j]) - op.first[j],
                       min(in.end, op.first[j + 1]) - op.first[j]});
#pragma unroll 1
  for (int head = blockIdx.x; head < kHeads; head += BLOCKS)
#pragma unroll 1
    for (int task = warp; task < kLowTiles * LOW_UNITS; task += WARPS) {
      const LowUnit unit = low_unit(op, task / kLowTiles);
      const int rank = rank_of(op, unit.low);
      const int row = 64 * head + kTileRows * (task % kLowTiles);
      runs[count++] = {row * rank + unit.column, rank, (u16)kTileRows, 1,
                       (u16)min(kUnitColumns, rank - unit.column), (u16)(kLowMatrix + unit.low)};
    }
  count = list_rows(runs, count, kOutputMatrix, share_of(CHANNELS));
  count = list_rows(runs, count, kKeyMatrix, share_of(KEYS));
  sh.num_runs[warp] = count;
}

/** Begins the next run that its layer has. */
__device__ __forceinline__ void open_run(Stream& s) {
  const int lane = threadIdx.x & 31, row = lane >> 3, column = kVector * (lane & 7);
  while (s.tiles == 0 && s.layer < s.end && s.num_runs > 0) {
    const Run run = s.run[s.index];
    const f16* const matrix = s.layer->of[run.matrix];
    if (++s.index == s.num_runs) s.index = 0, s.layer++;
    if (matrix == nullptr) continue;
    s.from = matrix + run.offset + row * run.stride + column;
    s.left = column < run.columns ? run.rows - row : 0;
    s.stride = run.stride, s.unit = s.units = run.units;
    s.tiles = (run.rows + kTileRows - 1) / kTileRows;
  }
}

/** 16 bytes into shared memory, zeros where there are none; done when its group is. */
__device__ __forceinline__ void copy_ahead(u32 to, const f16* from, bool inside, u64 policy) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
      "l"(from), "r"(inside ? 16 : 0), "l"(policy)
      : "memory");
#endif
}

__device__ __forceinline__ u64 evict_first() {
  u64 policy = 0;
#if __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

/**
 * Asks for the next unit of the stream, for a place of the ring: lines of 128 bytes, a row's each. Of a
 * line of an odd row the halves change places, so that lanes that read two rows at once meet no
 * bank twice. A group each, also after the end.
 */
__device__ __forceinline__ void ask(Stream& s, u32 place) {
  if (s.tiles == 0) open_run(s);
  if (s.tiles > 0) {
    const int lane = threadIdx.x & 31;
    const u32 own = 128 * (lane >> 3) + 16 * ((lane & 7) ^ (lane >> 3 & 1) << 2);
    const u32 to = (u32)__cvta_generic_to_shared(s.ring) + place + own;
    const f16* from = s.from;
#pragma unroll
    for (int i = 0; i < 4; i++, from += 4 * s.stride)
      copy_ahead(to + 512 * i, from, s.left > 4 * i, s.policy);
    s.from += kUnitColumns;
    if (--s.unit == 0) {
      s.unit = s.units, s.tiles--;
      s.from += kTileRows * s.stride - s.units * kUnitColumns, s.left -= kTileRows;
    }
  }
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/**
 * Sums of products on the tensor cores, of 8 rows: a lane's 16 bytes of a row are the four words that
 * the unit takes as rows i and i + 8, so the even columns of the other side hold an input's
 * first and third words and the odd ones its second and fourth, and a row's sum is in two places.
 */
struct Products {
  float of[4];
};

__device__ __forceinline__ void add_products(Products& sums, const uint4& w, const uint2& x) {
#if __CUDA_ARCH__ >= 800
  // Volatile: not to be moved to where not all lanes are.
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums.of[0]), "+f"(sums.of[1]), "+f"(sums.of[2]), "+f"(sums.of[3])
      : "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w), "r"(x.x), "r"(x.y));
#endif
}

/** Of a tile: its first 8 rows and the others. */
struct Tile {
  Products first, second;
};

/** Adds the next unit's products with the inputs at x; the one after all that are on their way is
 * asked for, into the place of the unit before. `both`: all 64 columns, not the first 32. */
__device__ __forceinline__ void add_unit(Stream& s, Tile& tile, const f16* x, bool both) {
  const int lane = threadIdx.x & 31, row = lane >> 2, column = lane & 3;
  const f16* const inputs = x + kVector * column + 4 * (row & 1);
  const uint2 x0 = *reinterpret_cast<const uint2*>(inputs),
              x1 = *reinterpret_cast<const uint2*>(inputs + 32);
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(RING - 2) : "memory");
#endif
  __syncwarp();
  const u8* const from = s.ring + s.slot + 128 * row;
  const int at0 = 16 * (column ^ (row & 1) << 2), at1 = at0 ^ 64;
  const auto load = [&](int at) { return *reinterpret_cast<const uint4*>(from + at); };
  const uint4 w00 = load(at0), w01 = load(at1), w10 = load(at0 + 1024), w11 = load(at1 + 1024);
  ask(s, s.free);
  s.free = s.slot;
  s.slot = s.slot == kRing - kSlot ? 0 : s.slot + kSlot;
  add_products(tile.first, w00, x0);
  add_products(tile.second, w10, x0);
  if (both) {
    add_products(tile.first, w01, x1);
    add_products(tile.second, w11, x1);
  }
}

/** The sums of a tile's rows, as many as there are. */
__device__ __forceinline__ void keep_tile(const Tile& tile, float* to, int rows) {
  const int lane = threadIdx.x & 31, row = lane >> 2, part = lane & 3;
  const float first = tile.first.of[0] + tile.first.of[3],
              second = tile.second.of[0] + tile.second.of[3];
  const int at = row + 8 * part;
  if (part < 2 && at < rows) to[at] = part == 0 ? first : second;
}

__device__ __forceinline__ void sync_workers() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kWorkers) : "memory");
}

/** The warp's columns of so many rows, times their inputs: a sum a row, the warp's part of it. */
__device__ __forceinline__ void multiply_rows(Stream& s, const f16* input, float* sums, int rows) {
  const Place own = slice_of_warp();
  if (own.begin >= own.end) return;
#pragma unroll 1
  for (int row = 0; row < rows; row += kTileRows) {
    Tile tile = {};
#pragma unroll 1
    for (int unit = own.begin; unit < own.end; unit++)
      add_unit(s, tile, input + kUnitColumns * unit, true);
    keep_tile(tile, sums + row, rows - row);
  }
}

/** The sum of a row: over the warps, in their order. */
__device__ __forceinline__ float sum_slices(const Shared& sh, int row) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kSlices; i++) sum += sh.sums[i * kSumRows + row];
  return sum;
}
