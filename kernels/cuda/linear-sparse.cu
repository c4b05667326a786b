// y += u·Wᵀ for one token whose u = relu² is mostly zero: reads only the columns of W that meet a
// non-zero u.
// u f16 [K] · W transposed, f16 [K, M] · y f32 [M] · K and M multiples of 8
// A block owns COLUMNS outputs for all of K, so nothing is added across blocks. A warp takes every
// 8th run of K, lists its non-zero u in shared memory, and reads each of those rows with LANES
// lanes. The order of a sum depends only on which u are zero. Tolerance: 1e-3 RMS against
// reference/ops.ts.
#include "common.cuh"

#define WARPS 8
#define LANES (COLUMNS / 8)

/** Runs of 8 numbers of u that a lane looks at per round. */
constexpr int kRuns = 4;
constexpr int kRound = kRuns * 32 * 8;
/** Rows of W that a lane has in flight. */
constexpr int kFlight = 8;
constexpr int kRowsAtOnce = 32 / LANES;

/** Lists the non-zero numbers as index << 16 | value, in a fixed order. Returns how many there
 * are. */
__device__ __forceinline__ int list_active(u32 (&list)[kRound], const f16* u, int count,
                                           int first) {
  const int lane = threadIdx.x & 31;
  uint4 runs[kRuns];
#pragma unroll
  for (int i = 0; i < kRuns; i++) {
    const int k = first + (i * 32 + lane) * 8;
    runs[i] = k < count ? *reinterpret_cast<const uint4*>(u + k) : make_uint4(0, 0, 0, 0);
  }
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kRuns; i++) {
    const u32 words[4] = {runs[i].x, runs[i].y, runs[i].z, runs[i].w};
#pragma unroll
    for (int j = 0; j < 4; j++)
      mine += ((words[j] & 0x7fffu) != 0) + ((words[j] & 0x7fff0000u) != 0);
  }
  int end = mine;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(~0u, end, offset);
    if (lane >= offset) end += before;
  }
  int at = end - mine;
#pragma unroll
  for (int i = 0; i < kRuns; i++) {
    const u32 words[4] = {runs[i].x, runs[i].y, runs[i].z, runs[i].w};
    const u32 k = (i * 32 + lane) * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (words[j] & 0x7fffu) list[at++] = (k + 2 * j) << 16 | (words[j] & 0xffffu);
      if (words[j] & 0x7fff0000u) list[at++] = (k + 2 * j + 1) << 16 | words[j] >> 16;
    }
  }
  __syncwarp();
  return __shfl_sync(~0u, end, 31);
}

/** acc += u[k]·W[k, 8 columns] over the lane's share of the list. */
__device__ __forceinline__ void add_rows(float (&acc)[8], const u32 (&list)[kRound], int length,
                                         const f16* w, int columns) {
  for (int base = (threadIdx.x & 31) / LANES; base < length; base += kFlight * kRowsAtOnce) {
    uint4 rows[kFlight];
    float values[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; i++) {
      const int at = base + i * kRowsAtOnce;
      const u32 entry = list[min(at, length - 1)];
      values[i] = at < length ? to_float(f16{(u16)entry}) : 0.0f;
      rows[i] = *reinterpret_cast<const uint4*>(w + (long long)(entry >> 16) * columns);
    }
#pragma unroll
    for (int i = 0; i < kFlight; i++) add_scaled(acc, values[i], rows[i]);
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    linear_sparse(Step step, float* y, const f16* u, const f16* weight, int inputs, int columns) {
  __shared__ u32 lists[WARPS][kRound];
  __shared__ float partial[WARPS][COLUMNS];
  let_next_start();
  wait_for_previous();
  if (step.num_tokens() == 0) return;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int column = blockIdx.x * COLUMNS + lane % LANES * 8;
  // The last block may reach beyond the matrix. Then it reads the last columns and does not store
  // them.
  const f16* const w = weight + min(column, columns - 8);
  float acc[8] = {};
  for (int first = warp * kRound; first < inputs; first += WARPS * kRound) {
    const int length = list_active(lists[warp], u, inputs, first);
    add_rows(acc, lists[warp], length, w + (long long)first * columns, columns);
    __syncwarp();
  }
#pragma unroll
  for (int j = 0; j < 8; j++) {
#pragma unroll
    for (int offset = 16; offset >= LANES; offset >>= 1)
      acc[j] += __shfl_xor_sync(~0u, acc[j], offset);
    if (lane < LANES) partial[warp][lane * 8 + j] = acc[j];
  }
  __syncthreads();
  const int at = blockIdx.x * COLUMNS + threadIdx.x;
  if (threadIdx.x >= COLUMNS || at >= columns) return;
  float sum = 0;
  for (int i = 0; i < WARPS; i++) sum += partial[i][threadIdx.x];
  y[at] += sum;
}
