// Shared by the warps of linear-tiles.cu: the jobs of a launch, the tile of a block, and the layout
// of shared memory.
#pragma once
#include "quant.cuh"
#include "wgmma.cuh"

#define MAX_JOBS 8

struct TileJob {
  void* y;
  /** f16 of groups; of e4m3 f32 of rows. */
  const void* scales;
  const float* bias;
  int rows;
  int columns;
  int epilogue;
  int is_f32;
  /** The first pair of tiles of this job. */
  int first_pair;
};

struct TileJobs {
  TileJob job[MAX_JOBS];
  int count;
  /** The index of T in the step's counts: 0 tokens, 2 logits rows. */
  int count_index;
  /** Number of tiles of tokens. */
  int columns_of_tiles;
  /** Number of pairs that share the columns of a product. */
  int shares;
  /** Where pairs share: the sums of each block. */
  float4* partials;
  /** How many of a tile's sums are there, by tile and side; 0 between launches. */
  u32* arrived;
};

/** Per job: x in boxes of 64 columns and half a block's tokens, W in boxes of one part and a
 * block's rows. */
struct TileMaps {
  TensorMap inputs[MAX_JOBS];
  TensorMap values[MAX_JOBS];
#if HIGH_BITS
  /** The bits above four of each code. */
  TensorMap high[MAX_JOBS];
#endif
};

constexpr int kRows = 128;
/** Threads of the warpgroups that multiply; the loader's follow. */
constexpr int kMultiplying = 256;
constexpr int kThreads = kMultiplying + 128;
/** Inputs in a box of x (a row of 128 bytes), and boxes per part of W. */
constexpr int kBoxInputs = 64;
constexpr int kBoxes = kPartInputs / kBoxInputs;
constexpr int kPartBytesOfRows = kRows * kPartBytes;
/** Scales are copied 16 bytes of a row at a time: the scales of kScaleParts parts. The ring has
 * kScaleStages such copies. */
constexpr int kScaleParts = 16 / sizeof(Scales);
constexpr int kScaleStages = (STAGES + kScaleParts - 2) / kScaleParts + 1;
/** The stride between the sums of two tokens, padded against bank conflicts. */
constexpr int kStride = kRows + 4;

struct Shared {
  union {
    struct {
      /** By box, then by token, 128 bytes each. */
      uint4 inputs[STAGES][kBoxes][8 * TOKENS];
      uint4 values[STAGES][kRows][4];
#if HIGH_BITS
      uint4 high[STAGES][kRows][kHighBits];
#endif
      Scales scales[kScaleStages][kRows][kScaleParts];
    };
    /** At the end: the sums. */
    float sums[TOKENS][kStride];
  };
  Barrier full[STAGES];
  Barrier free[STAGES];
};

/** The work of a block. */
struct Tile {
  int first_row, first_token, job;
  /** Which block of the pair this is, and which share of the columns it has. */
  int side, share;
  /** Among the tiles of all jobs. */
  int number;
  /** The parts of its share. */
  int begin, end;
};

__device__ __forceinline__ Tile find_tile(const TileJobs& jobs) {
  const int unit = blockIdx.x / 2 / jobs.shares, pair = unit / jobs.columns_of_tiles;
  Tile tile;
  tile.number = unit;
  tile.job = 0;
  while (tile.job + 1 < jobs.count && pair >= jobs.job[tile.job + 1].first_pair) tile.job++;
  const TileJob& job = jobs.job[tile.job];
  tile.side = blockIdx.x % 2, tile.share = blockIdx.x / 2 % jobs.shares;
  tile.first_row = (2 * (pair - job.first_pair) + tile.side) * kRows;
  tile.first_token = unit % jobs.columns_of_tiles * TOKENS;
  const int parts = parts_of(job.columns);
  tile.begin = parts * tile.share / jobs.shares;
  tile.end = parts * (tile.share + 1) / jobs.shares;
  return tile;
}
