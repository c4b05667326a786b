// y = epilogue(x·Wᵀ + bias) for up to 8 tokens, all jobs of one `linear` in one launch.
// W f16 [rows, columns] · x f16 [T, columns] · bias f32 [rows] · y f16 or f32 [T, rows] · columns a multiple of 8
// The work is reading W once: the tensor cores take 16 rows of W as their rows and the tokens as their 8 columns, so
// any T ≤ 8 costs the same and an output is summed in the same order for each. The order of k is free as long as both
// operands agree on it, so every thread loads 16 bytes of each in place of the fragments' 4.
// A warp owns 16 rows and every `split`-th run of 64 columns; the warps of a block add up in shared memory.
// Tolerance: 1e-3 RMS against reference/ops.ts (outputs are rounded to f16).
#include "epilogue.cuh"

#define MAX_JOBS 8
#define WARPS 8

struct LinearJob {
  void* y;
  const f16* x;
  const f16* weight;
  const float* bias;
  int rows;
  int columns;
  int epilogue;
  /** Whether y is f32. */
  int is_f32;
  /** The first block of the job, and the warps that share 16 rows: 1, 2, 4 or 8. */
  int first_block;
  int split;
};

struct LinearJobs {
  LinearJob job[MAX_JOBS];
  int count;
  /** Which of the step's counts is T: 0 tokens, 2 logits rows. */
  int count_index;
};

/** Streamed once: kept out of L1. */
__device__ __forceinline__ uint4 load_weight(const f16* w) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(w));
  return v;
}

/** d += A·B with A [16, 16], B [16, 8]; both from words of two neighbouring k. */
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(b0));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a2), "r"(a3), "r"(b1));
#endif
}

__device__ __forceinline__ void store_output(const LinearJob& job, int t, int row, float value) {
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

constexpr int kUnroll = 4;

/** Where a thread reads: two rows of W and one token's x, clamped into range (what is out of range is not stored). */
struct Sources {
  const f16* low;
  const f16* high;
  const f16* x;
};

/** Adds `Runs` runs of 64 columns, `stride` apart, all loads before the first product. */
template <int Runs, bool IsTail>
__device__ __forceinline__ void multiply_runs(float (&acc)[2][4], const Sources& from, int base, int stride, int columns) {
  uint4 a[Runs][2][2], b[Runs][2];
#pragma unroll
  for (int u = 0; u < Runs; u++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int k = base + u * stride + half * 32;
      const bool inside = !IsTail || k < columns;
      k = inside ? k : 0;
      a[u][half][0] = load_weight(from.low + k);
      a[u][half][1] = load_weight(from.high + k);
      b[u][half] = *reinterpret_cast<const uint4*>(from.x + k);
      if (!inside) a[u][half][0] = a[u][half][1] = b[u][half] = make_uint4(0, 0, 0, 0);
    }
  }
#pragma unroll
  for (int u = 0; u < Runs; u++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint4 w0 = a[u][half][0], w1 = a[u][half][1], v = b[u][half];
      mma(acc[half], w0.x, w1.x, w0.y, w1.y, v.x, v.y);
      mma(acc[half], w0.z, w1.z, w0.w, w1.w, v.z, v.w);
    }
  }
}

/** Adds the warp's share of 16 rows: runs of 64 columns part, part + split, … */
__device__ __forceinline__ void multiply(float (&acc)[2][4], const LinearJob& job, int row, int part, int num_tokens) {
  const int lane = threadIdx.x & 31;
  const int g = lane >> 2, q = lane & 3;
  const int columns = job.columns, stride = 64 * job.split;
  const Sources from = {job.weight + (long long)min(row + g, job.rows - 1) * columns,
                        job.weight + (long long)min(row + g + 8, job.rows - 1) * columns,
                        job.x + (long long)min(g, num_tokens - 1) * columns};
  int start = part * 64;
  for (; start + (kUnroll - 1) * stride + 64 <= columns; start += kUnroll * stride)
    multiply_runs<kUnroll, false>(acc, from, start + q * 8, stride, columns);
  for (; start < columns; start += stride) multiply_runs<1, true>(acc, from, start + q * 8, stride, columns);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_few(Step step, LinearJobs jobs) {
  __shared__ float partial[WARPS][8][16];  // [warp][token][row]
  int j = 0;
  while (j + 1 < jobs.count && (int)blockIdx.x >= jobs.job[j + 1].first_block) j++;
  const LinearJob& job = jobs.job[j];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int split = job.split, tiles = WARPS / split;
  const int block_row = (blockIdx.x - job.first_block) * tiles * 16;
  const int num_tokens = min(8, step.counts[jobs.count_index]);
  if (num_tokens == 0) return;

  // Two chains of products, so that one does not wait for the other.
  float acc[2][4] = {};
  const int row = block_row + warp / split * 16;
  if (row < job.rows) multiply(acc, job, row, warp % split, num_tokens);
  const int g = lane >> 2, q = lane & 3;
  partial[warp][2 * q][g] = acc[0][0] + acc[1][0];
  partial[warp][2 * q + 1][g] = acc[0][1] + acc[1][1];
  partial[warp][2 * q][g + 8] = acc[0][2] + acc[1][2];
  partial[warp][2 * q + 1][g + 8] = acc[0][3] + acc[1][3];
  __syncthreads();

  const int width = tiles * 16;
  for (int i = threadIdx.x; i < width * num_tokens; i += 32 * WARPS) {
    const int t = i / width, r = i % width;
    if (block_row + r >= job.rows) continue;
    float sum = 0;
    for (int s = 0; s < split; s++) sum += partial[r / 16 * split + s][t][r % 16];
    store_output(job, t, block_row + r, sum);
  }
}
