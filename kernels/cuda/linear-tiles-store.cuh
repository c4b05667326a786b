// The end of linear-tiles.cu: adds the partial sums of all shares of the columns through the shared
// memory of the cluster, and stores them or adds them to y. Does not know how the sums were
// computed.
#pragma once
#include "epilogue.cuh"
#include "linear-tiles.cuh"

/** Prefetches a line of 128 bytes into L2. */
__device__ __forceinline__ void fetch_line(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/** Writes the block's partial sums to shared memory, by token, for the other blocks of the
 * cluster. */
__device__ __forceinline__ void share(Shared& shared, const float (&sums)[TOKENS / 2]) {
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, row = threadIdx.x / 32 * 16 + g;
#pragma unroll
  for (int j = 0; j < TOKENS / 2; j++)
    shared.sums[8 * (j / 4) + 2 * q + j % 2][row + 8 * (j / 2 % 2)] = sums[j];
}

/** The number of tokens of the tile that are not padding. */
__device__ __forceinline__ int tokens_of(const Tile& tile, int num_tokens) {
  return min(TOKENS, num_tokens - tile.first_token);
}

/** Prefetches the outputs that the tile's sums will be added to, while the last sums are
 * computed. */
__device__ __forceinline__ void fetch_outputs(const TileJob& job, const Tile& tile, int shares,
                                              int num_tokens) {
  if (job.epilogue != kAdd) return;
  constexpr int kLineBytes = 128;
  const int line_rows = kLineBytes / (job.is_f32 ? 4 : 2), lines = kRows / line_rows;
  const int count = tokens_of(tile, num_tokens) * lines, thread = threadIdx.x - kMultiplying;
  for (int n = tile.share * 128 + thread; n < count; n += shares * 128) {
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
    sum = make_float4(apply_epilogue(sum.x * UNSCALE + bias.x, Epilogue),
                      apply_epilogue(sum.y * UNSCALE + bias.y, Epilogue),
                      apply_epilogue(sum.z * UNSCALE + bias.z, Epilogue),
                      apply_epilogue(sum.w * UNSCALE + bias.w, Epilogue));
}

/** Adds a lane's four sums over all shares, for at most `count` tokens: first, first + step, … */
__device__ __forceinline__ void add_shares(float4 (&sums)[kAtOnce], const Shared& shared,
                                           const Tile& tile, int shares, int first, int step,
                                           int count) {
  const int r = 4 * (threadIdx.x & 31);
  // Reads beyond the last token too. Those sums are not stored.
  auto at = [&](int n) { return &shared.sums[min(first + n * step, TOKENS - 1)][r]; };
#pragma unroll
  for (int n = 0; n < kAtOnce; n++)
    sums[n] = shares == 1 ? read_four(at(n)) : make_float4(0, 0, 0, 0);
  if (shares == 1) return;
  for (int other = 0; other < shares; other++) {
    float4 parts[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; n++)
      parts[n] = read_shared_in(shared_address(at(n)), 2 * other + tile.side, n < count);
#pragma unroll
    for (int n = 0; n < kAtOnce; n++) add_to(sums[n], parts[n]);
  }
}

/** Adds up all shares for every `step`-th token. A warp has all rows of a token, a lane four of
 * them. All loads for kAtOnce tokens are issued before the first is used. */
template <class T>
__device__ __forceinline__ void store_outputs(const Shared& shared, const TileJob& job,
                                              const Tile& tile, int shares, int num_tokens) {
  constexpr int kWarps = kMultiplying / 32;
  const int row = tile.first_row + 4 * (threadIdx.x & 31);
  if (row >= job.rows) return;
  const float4 zeros = make_float4(0, 0, 0, 0);
  const float4 bias = job.bias == nullptr ? zeros : read_four(job.bias + row);
  const int tokens = tokens_of(tile, num_tokens), step = shares * kWarps;
  for (int first = tile.share * kWarps + (int)threadIdx.x / 32; first < tokens;
       first += kAtOnce * step) {
    const int count = (tokens - first + step - 1) / step;
    T* const y = static_cast<T*>(job.y) + (long long)(tile.first_token + first) * job.rows + row;
    const long long stride = (long long)step * job.rows;
    float4 olds[kAtOnce], sums[kAtOnce];
    if (job.epilogue == kAdd) {
#pragma unroll
      for (int n = 0; n < kAtOnce; n++) olds[n] = n < count ? read_four(y + n * stride) : zeros;
    }
    add_shares(sums, shared, tile, shares, first, step, count);
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
