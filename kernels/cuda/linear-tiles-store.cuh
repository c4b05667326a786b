// The end of linear-tiles.cu: adds up the sums of all shares of the columns, and stores them or adds
// them to y. Does not know how the sums were computed.
#pragma once
#include "epilogue.cuh"
#include "linear-tiles.cuh"

/** Prefetches a line of 128 bytes into L2. */
__device__ __forceinline__ void fetch_line(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/** A barrier of the threads that multiply. Returns whether `is` holds for one of them. */
__device__ __forceinline__ bool meet(bool is = false) {
  int any = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p, q; setp.ne.s32 p, %1, 0; bar.red.or.pred q, 1, %2, p; selp.s32 %0, 1, 0, q; }"
      : "=r"(any)
      : "r"((int)is), "n"(kMultiplying)
      : "memory");
#endif
  return any != 0;
}

/** Adds sums of another pair, or takes them. They are read from L2: L1 does not know of stores by
 * others. */
__device__ __forceinline__ void add_partial(float (&sums)[TOKENS / 2], const float4* from,
                                            bool is_added) {
#pragma unroll
  for (int k = 0; k < TOKENS / 8; k++) {
    const float4 v = __ldcg(from + k * kMultiplying);
    float* const s = sums + 4 * k;
    s[0] = is_added ? s[0] + v.x : v.x, s[1] = is_added ? s[1] + v.y : v.y;
    s[2] = is_added ? s[2] + v.z : v.z, s[3] = is_added ? s[3] + v.w : v.w;
  }
}

/** Brings the sums of all shares of the tile together, always in the order of the columns. The pair
 * that comes last does so; no pair waits for another. Returns whether these threads now have all
 * sums. */
__device__ __forceinline__ bool gather(float (&sums)[TOKENS / 2], const TileJobs& jobs,
                                       const Tile& tile) {
  if (jobs.shares == 1) return true;
  constexpr int kBlock = TOKENS / 8 * kMultiplying;
  float4* const first = jobs.partials + threadIdx.x +
                        (2ll * tile.number * jobs.shares + tile.side) * kBlock;
  float4* const own = first + 2ll * tile.share * kBlock;
#pragma unroll
  for (int k = 0; k < TOKENS / 8; k++)
    __stcg(own + k * kMultiplying,
           make_float4(sums[4 * k], sums[4 * k + 1], sums[4 * k + 2], sums[4 * k + 3]));
  u32* const arrived = jobs.arrived + 2 * tile.number + tile.side;
  __threadfence();
  meet();
  if (!meet(threadIdx.x == 0 && atomicAdd(arrived, 1) == (u32)jobs.shares - 1)) return false;
  __threadfence();
  if (threadIdx.x == 0) *arrived = 0;
  // Of two numbers the order does not matter.
  if (jobs.shares == 2) {
    add_partial(sums, first + 2ll * (1 - tile.share) * kBlock, true);
    return true;
  }
  add_partial(sums, first, false);
#pragma unroll 1
  for (int share = 1; share < jobs.shares; share++)
    add_partial(sums, first + 2ll * share * kBlock, true);
  return true;
}

/** Writes the sums to shared memory, by token, times the factor of their scales. */
__device__ __forceinline__ void lay_out(Shared& shared, const float (&sums)[TOKENS / 2],
                                        const TileJob& job, const Tile& tile) {
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, row = threadIdx.x / 32 * 16 + g;
  float scale[2] = {UNSCALE, UNSCALE};
  if constexpr (QUANT == kE4m3) {
#pragma unroll
    for (int half = 0; half < 2; half++)
      scale[half] = static_cast<const float*>(
          job.scales)[min(tile.first_row + row + 8 * half, job.rows - 1)];
  }
#pragma unroll
  for (int j = 0; j < TOKENS / 2; j++)
    shared.sums[8 * (j / 4) + 2 * q + j % 2][row + 8 * (j / 2 % 2)] = sums[j] * scale[j / 2 % 2];
}

/** The number of tokens of the tile that are not padding. */
__device__ __forceinline__ int tokens_of(const Tile& tile, int num_tokens) {
  return min(TOKENS, num_tokens - tile.first_token);
}

/** Prefetches the outputs that the tile's sums will be added to, while the last sums are
 * computed. */
__device__ __forceinline__ void fetch_outputs(const TileJob& job, const Tile& tile,
                                              int num_tokens) {
  if (job.epilogue != kAdd) return;
  constexpr int kLineBytes = 128;
  const int line_rows = kLineBytes / (job.is_f32 ? 4 : 2), lines = kRows / line_rows;
  const int count = tokens_of(tile, num_tokens) * lines, thread = threadIdx.x - kMultiplying;
  for (int n = thread; n < count; n += 128) {
    const int row = tile.first_row + n % lines * line_rows;
    const long long at = (long long)(tile.first_token + n / lines) * job.rows + row;
    if (row < job.rows) fetch_line(static_cast<const char*>(job.y) + at * (kLineBytes / line_rows));
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

__device__ __forceinline__ void add_to(float4& sum, const float4& x) {
  sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
}

/** Tokens that a warp stores at once. */
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

/** Finishes and stores the sums. A warp has all rows of a token, a lane four of them. All loads for
 * kAtOnce tokens are issued before the first is used. */
template <class T>
__device__ __forceinline__ void store_outputs(const Shared& shared, const TileJob& job,
                                              const Tile& tile, int num_tokens) {
  constexpr int kWarps = kMultiplying / 32;
  const int row = tile.first_row + 4 * (threadIdx.x & 31);
  if (row >= job.rows) return;
  const float4 zeros = make_float4(0, 0, 0, 0);
  const float4 bias = job.bias == nullptr ? zeros : read_four(job.bias + row);
  const int tokens = tokens_of(tile, num_tokens), step = kWarps;
  for (int first = threadIdx.x / 32; first < tokens;
       first += kAtOnce * step) {
    const int count = (tokens - first + step - 1) / step;
    T* const y = static_cast<T*>(job.y) + (long long)(tile.first_token + first) * job.rows + row;
    const long long stride = (long long)step * job.rows;
    float4 olds[kAtOnce], sums[kAtOnce];
    if (job.epilogue == kAdd) {
#pragma unroll
      for (int n = 0; n < kAtOnce; n++) olds[n] = n < count ? read_four(y + n * stride) : zeros;
    }
    // Reads beyond the last token too. Those sums are not stored.
#pragma unroll
    for (int n = 0; n < kAtOnce; n++)
      sums[n] = read_four(
          &shared.sums[min(first + n * step, TOKENS - 1)][4 * (int)(threadIdx.x & 31)]);
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
        for (int n = 0; n < kAtOnce; n++) add_to(sums[n], olds[n]);
        break;
      default:
        finish<kNone>(sums, bias);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; n++)
      if (n < count) write_four(y + n * stride, sums[n]);
  }
}
