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
  /** How many tiles have a pair for all columns. Of each further one, `shares` pairs share them. */
  int whole;
  int shares;
  /** Where pairs share: the sums that blocks give to others. */
  float4* partials;
  /** How many blocks of a shared tile have given theirs, by tile and side; 0 between launches. */
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

/** Threads of the warpgroups that multiply; the loader's follow. */
constexpr int kMultiplying = 128 * WARPGROUPS;
constexpr int kLoading = 128;
constexpr int kThreads = kMultiplying + kLoading;
/** Rows of the block, and those from a thread's rows in one unit to those in the next. */
constexpr int kUnitRows = 64 * WARPGROUPS;
constexpr int kRows = UNITS * kUnitRows;
/** Inputs in a box of x (a row of 128 bytes), and boxes per part of W. */
constexpr int kBoxInputs = 64;
constexpr int kBoxes = kPartInputs / kBoxInputs;
/** Parts in a stage of the ring: 128 bytes of a row of W at once, where there is room. */
constexpr int kStageParts =
    (QUANT == kI8 || QUANT == kE4m3) && UNITS == 1 && TOKENS < 256 ? 2 : 1;
constexpr int kStageBoxes = kStageParts * kBoxes;
constexpr int kStageBytesOfRows = kRows * kStageParts * kPartBytes;
/** Scales are copied 16 bytes of a row at a time: the scales of kScaleParts parts. The ring has
 * kScaleStages such copies. */
constexpr int kScaleParts = 16 / sizeof(Scales);
constexpr int kScaleStages = (STAGES * kStageParts + kScaleParts - 2) / kScaleParts + 1;
/** The stride between the sums of two tokens, padded against bank conflicts. */
constexpr int kStride = kRows + 4;

struct Shared {
  union {
    struct {
      /** By box, then by token, 128 bytes each. */
      uint4 inputs[STAGES][kStageBoxes][8 * TOKENS];
      uint4 values[STAGES][kRows][4 * kStageParts];
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
  /** Which block of the pair this is, and which of so many shares of the columns it has. */
  int side, share, shares;
  /** Among the tiles that are shared. */
  int number;
  /** Its share, in stages of the ring. */
  int begin, end;
};

__device__ __forceinline__ Tile find_tile(const TileJobs& jobs) {
  Tile tile;
  const int index = blockIdx.x / 2, shared = index - jobs.whole;
  tile.shares = shared < 0 ? 1 : jobs.shares;
  tile.number = shared / tile.shares, tile.share = shared < 0 ? 0 : shared % tile.shares;
  const int unit = shared < 0 ? index : jobs.whole + tile.number;
  const int pair = unit / jobs.columns_of_tiles;
  tile.job = 0;
  while (tile.job + 1 < jobs.count && pair >= jobs.job[tile.job + 1].first_pair) tile.job++;
  const TileJob& job = jobs.job[tile.job];
  tile.side = blockIdx.x % 2;
  tile.first_row = (2 * (pair - job.first_pair) + tile.side) * kRows;
  tile.first_token = unit % jobs.columns_of_tiles * TOKENS;
  const int stages = (parts_of(job.columns) + kStageParts - 1) / kStageParts;
  tile.begin = stages * tile.share / tile.shares;
  tile.end = stages * (tile.share + 1) / tile.shares;
  return tile;
}
