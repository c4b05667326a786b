// Shared by linear-few.cu and linear-quant.cu: a product of TOKENS (8, 16 or 32) tokens, bound by
// reading W once. For the tensor cores the tokens are the 16 rows of a tile, and 8 rows of W are
// its columns. A warp owns 8·ROW_TILES rows. `split` warps share them and add their sums in shared
// memory, in the same order for any number of tokens. Does not know the format of W.
#pragma once
#include "epilogue.cuh"
#include "tensor-cores.cuh"

#define MAX_JOBS 8
#define WARPS 8

constexpr int kTileRows = 8 * ROW_TILES;
/** Groups of 8 tokens, and tensor core tiles of 16. */
constexpr int kTokenGroups = TOKENS / 8;
constexpr int kTokenTiles = (TOKENS + 15) / 16;

/** Loads 8 inputs of a token, or zeros. */
__device__ __forceinline__ uint4 load_inputs(const f16* x, bool inside) {
  uint4 v;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 "
      "%3, 0;"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(x), "r"((int)inside)
      : "memory");
  return v;
}

/** Accumulators of a thread: tokens g and g + 8 of each tile, rows 2q and 2q + 1 of every 8. */
struct Sums {
  float of[kTokenTiles][ROW_TILES][4];
};

/** Eight inputs of each of a thread's tokens. */
struct Inputs {
  uint4 of[kTokenGroups];
};

/** Adds the products of a tile of tokens with 8 columns of the thread's row n. Any order of k is
 * right if both operands use the same one. So each thread takes 8 adjacent columns instead of the
 * 4 × 2 of the standard fragments. */
__device__ __forceinline__ void multiply_tile(Sums& sums, int m, int n, const Inputs& x, u32 w0,
                                              u32 w1, u32 w2, u32 w3) {
  const uint4 lo = x.of[2 * m];
  uint4 hi = make_uint4(0, 0, 0, 0);
  if constexpr (TOKENS > 8) hi = x.of[2 * m + 1];
  mma(sums.of[m][n], lo.x, hi.x, lo.y, hi.y, w0, w1);
  mma(sums.of[m][n], lo.z, hi.z, lo.w, hi.w, w2, w3);
}

/** The work of a block (`width` rows of W, TOKENS tokens), and of a warp in it: a tile of rows, and
 * share `part` of `split` of their columns. */
struct Place {
  int split, width, block_row, first_token, row, part;
};

/** The job of this block. */
template <class Jobs>
__device__ __forceinline__ auto& find_job(const Jobs& jobs) {
  int j = 0;
  while (j + 1 < jobs.count && (int)blockIdx.x >= jobs.job[j + 1].first_block) j++;
  return jobs.job[j];
}

template <class Job>
__device__ __forceinline__ Place place_of(const Job& job) {
  const int warp = threadIdx.x >> 5;
  const int split = job.split, width = WARPS / split * kTileRows;
  const int block_row = (blockIdx.x - job.first_block) * width;
  const int first_token = blockIdx.y * TOKENS;
  return {split, width, block_row, first_token, block_row + warp / split * kTileRows, warp % split};
}

template <class Job>
__device__ __forceinline__ void store_output(const Job& job, int t, int row, float value) {
  if (job.bias != nullptr) value += job.bias[row];
  value = apply_epilogue(value, job.epilogue);
  const long long at = (long long)t * job.rows + row;
  if (job.is_f32) {
    float* const y = static_cast<float*>(job.y) + at;
    *y = job.epilogue == kAdd ? *y + value : value;
  } else {
    f16* const y = static_cast<f16*>(job.y) + at;
    *y = to_f16(job.epilogue == kAdd ? to_float(*y) + value : value);
  }
}

/** Adds the sums of the warps of a block and stores those of tokens that exist. `scaled` is applied
 * to each sum first. */
template <class Job, class Scaled>
__device__ __forceinline__ void store_sums(const Sums& sums, const Job& job, const Place& at,
                                           int num_tokens, Scaled scaled) {
  __shared__ float partial[WARPS][TOKENS][kTileRows];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int g = lane >> 2, q = lane & 3;
#pragma unroll
  for (int m = 0; m < kTokenTiles; m++) {
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
      const float (&d)[4] = sums.of[m][n];
      *reinterpret_cast<float2*>(&partial[warp][16 * m + g][8 * n + 2 * q]) =
          make_float2(d[0], d[1]);
      if constexpr (TOKENS > 8)
        *reinterpret_cast<float2*>(&partial[warp][16 * m + g + 8][8 * n + 2 * q]) =
            make_float2(d[2], d[3]);
    }
  }
  __syncthreads();

  const int outputs = at.width * min(TOKENS, num_tokens - at.first_token);
  for (int i = threadIdx.x; i < outputs; i += 32 * WARPS) {
    const int t = i / at.width, r = i % at.width;
    if (at.block_row + r >= job.rows) continue;
    float sum = 0;
    for (int s = 0; s < at.split; s++)
      sum += partial[r / kTileRows * at.split + s][t][r % kTileRows];
    store_output(job, at.first_token + t, at.block_row + r, scaled(at.block_row + r, sum));
  }
}
