// The end of linear-tiles.cu: adds up the sums of all shares of the columns, and stores them or adds
// them to y. Each share does so for some of the tile's tokens. Does not know how the sums were
// computed.
#pragma once
#include "epilogue.cuh"
#include "linear-tiles.cuh"

/** Prefetches a line of 128 bytes into L2. */
__device__ __forceinline__ void fetch_line(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/** A barrier of the threads that multiply. */
__device__ __forceinline__ void meet() {
#if __CUDA_ARCH__ >= 800
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiplying) : "memory");
#endif
}

/** Writes the sums to shared memory, by token, times the factor of their scales. */
__device__ __forceinline__ void lay_out(Shared& shared, const float (&sums)[UNITS][TOKENS / 2],
                                        const TileJob& job, const Tile& tile) {
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
#pragma unroll
  for (int unit = 0; unit < UNITS; unit++) {
    const int row = unit * kUnitRows + threadIdx.x / 32 * 16 + g;
    float scale[2] = {UNSCALE, UNSCALE};
    if constexpr (QUANT == kE4m3) {
#pragma unroll
      for (int half = 0; half < 2; half++)
        scale[half] = static_cast<const float*>(
            job.scales)[min(tile.first_row + row + 8 * half, job.rows - 1)];
    }
#pragma unroll
    for (int j = 0; j < TOKENS / 2; j++)
      shared.sums[8 * (j / 4) + 2 * q + j % 2][row + 8 * (j / 2 % 2)] =
          sums[unit][j] * scale[j / 2 % 2];
  }
}

__device__ __forceinline__ float4 read_four(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

__device__ __forceinline__ float4 read_four(const f16* from) {
  const uint2 halves = *reinterpret_cast<const uint2*>(from);
  const float2 first = unpack(halves.x), second = unpack(halves.y);
  return make_float4(first.x, first.y, second.x, second.y);
}

__device__ __forceinline__ void write_four(float* to, const float4& y) {
  *reinterpret_cast<float4*>(to) = y;
}

__device__ __forceinline__ void write_four(f16* to, const float4& y) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack(y.x, y.y), pack(y.z, y.w));
}

/** Some tokens of the tile. */
struct Tokens {
  int begin, end;
};

/** Those that a share stores: an equal part of those that are not padding. */
__device__ __forceinline__ Tokens tokens_of(const Tile& tile, int share, int num_tokens) {
  const int count = min(TOKENS, num_tokens - tile.first_token);
  return {count * share / tile.shares, count * (share + 1) / tile.shares};
}

/** Prefetches the outputs that the share's sums will be added to, while the last sums are
 * computed. */
__device__ __forceinline__ void fetch_outputs(const TileJob& job, const Tile& tile,
                                              int num_tokens) {
  if (job.epilogue != kAdd) return;
  constexpr int kLineBytes = 128;
  const int line_rows = kLineBytes / (job.is_f32 ? 4 : 2), lines = kRows / line_rows;
  const Tokens tokens = tokens_of(tile, tile.share, num_tokens);
  const int thread = threadIdx.x - kMultiplying;
  for (int n = tokens.begin * lines + thread; n < tokens.end * lines; n += kLoading) {
    const int row = tile.first_row + n % lines * line_rows;
    const long long at = (long long)(tile.first_token + n / lines) * job.rows + row;
    if (row < job.rows) fetch_line(static_cast<const char*>(job.y) + at * (kLineBytes / line_rows));
  }
}

/** Threads that have a token's rows, four each, and how many tokens the block has at once. */
constexpr int kQuads = kRows / 4, kStep = kMultiplying / kQuads;
static_assert(kMultiplying % kQuads == 0);

/** The sums of a share's block in memory, by token. */
__device__ __forceinline__ float4* partials_of(const TileJobs& jobs, const Tile& tile, int share) {
  return jobs.partials + ((2ll * tile.number + tile.side) * tile.shares + share) * TOKENS * kQuads;
}

/** Gives the other shares the sums of their tokens, and waits for theirs. Their blocks run at the
 * same time: their numbers are adjacent, blocks start in order on all devices so far, and the device
 * has room for all of them. */
__device__ __forceinline__ void exchange(const Shared& shared, const TileJobs& jobs,
                                         const Tile& tile, int num_tokens) {
  float4* const own = partials_of(jobs, tile, tile.share);
  const Tokens kept = tokens_of(tile, tile.share, num_tokens);
  const int count = tokens_of(tile, tile.shares - 1, num_tokens).end;
  const int quad = threadIdx.x % kQuads, gap = kept.end - kept.begin;
#pragma unroll 4
  for (int n = threadIdx.x / kQuads; n < count - gap; n += kStep) {
    const int token = n < kept.begin ? n : n + gap;
    __stcg(own + token * kQuads + quad, read_four(&shared.sums[token][4 * quad]));
  }
  u32* const arrived = jobs.arrived + 2 * tile.number + tile.side;
  __threadfence();
  meet();
  if (threadIdx.x == 0) {
    const u32 all = tile.shares;
    atomicAdd(arrived, 1);
    while (*(volatile u32*)arrived < all) {
    }
    __threadfence();
    // The last one that has seen them leaves 0 behind.
    if (atomicAdd(arrived, 1) == 2 * all - 1) *arrived = 0;
  }
  meet();
}

__device__ __forceinline__ void add_to(float4& sum, const float4& x) {
  sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
}

/** Tokens that a thread stores at once. */
constexpr int kAtOnce = 8;

template <int Epilogue>
__device__ __forceinline__ void finish(float4 (&sums)[kAtOnce], const float4& bias) {
#pragma unroll
  for (float4& sum : sums)
    sum = make_float4(apply_epilogue(sum.x + bias.x, Epilogue),
                      apply_epilogue(sum.y + bias.y, Epilogue),
                      apply_epilogue(sum.z + bias.z, Epilogue),
                      apply_epilogue(sum.w + bias.w, Epilogue));
}

/** Adds up what all shares have of the share's tokens, in the order of the columns, finishes and
 * stores them. All loads for kAtOnce tokens are issued before the first is used. */
template <class T>
__device__ __forceinline__ void store_outputs(const Shared& shared, const TileJobs& jobs,
                                              const TileJob& job, const Tile& tile,
                                              int num_tokens) {
  const int quad = threadIdx.x % kQuads, row = tile.first_row + 4 * quad;
  if (row >= job.rows) return;
  const float4 zeros = make_float4(0, 0, 0, 0);
  const float4 bias = job.bias == nullptr ? zeros : read_four(job.bias + row);
  const Tokens tokens = tokens_of(tile, tile.share, num_tokens);
  for (int first = tokens.begin + threadIdx.x / kQuads; first < tokens.end;
       first += kAtOnce * kStep) {
    const int count = (tokens.end - first + kStep - 1) / kStep;
    T* const y = static_cast<T*>(job.y) + (long long)(tile.first_token + first) * job.rows + row;
    const long long stride = (long long)kStep * job.rows;
    float4 sums[kAtOnce] = {}, others[kAtOnce];
#pragma unroll 1
    for (int share = 0; share < tile.shares; share++) {
      const float4* const from = partials_of(jobs, tile, share) + first * kQuads + quad;
      // Reads beyond the last token too; those sums are not stored. What others have comes from L2:
      // L1 does not know of stores by other blocks.
      if (share == tile.share) {
#pragma unroll
        for (int n = 0; n < kAtOnce; n++)
          others[n] = read_four(&shared.sums[min(first + n * kStep, TOKENS - 1)][4 * quad]);
      } else {
#pragma unroll
        for (int n = 0; n < kAtOnce; n++)
          others[n] = n < count ? __ldcg(from + n * kStep * kQuads) : zeros;
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; n++) add_to(sums[n], others[n]);
    }
    switch (job.epilogue) {
      case kTanh:
        finish<kTanh>(sums, bias);
        break;
      case kSigmoid:
        finish<kSigmoid>(sums, bias);
        break;
      case kRelu2:
        finish<kRelu2>(sums, bias);
        break;
      case kAdd:
        finish<kNone>(sums, bias);
#pragma unroll
        for (int n = 0; n < kAtOnce; n++) others[n] = n < count ? read_four(y + n * stride) : zeros;
#pragma unroll
        for (int n = 0; n < kAtOnce; n++) add_to(sums[n], others[n]);
        break;
      default:
        finish<kNone>(sums, bias);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; n++)
      if (n < count) write_four(y + n * stride, sums[n]);
  }
}
