// Matrices of integers (quant.cuh) → f16 [rows, columns] for the library's products, several in one
// launch. The weight is rounded once, integer times scale, and brought to its size by a power of
// two. Bound by memory: a thread asks for 16 bytes of a row and their scales kDepth items before it
// needs them, in a ring in shared memory of its own, so that few threads keep memory busy.
#include "copy-ahead.cuh"
#include "quant.cuh"

#define MAX_JOBS 8

struct CopyJob {
  uint4* out;
  const uint4* values;
  const f16* scales;
  int columns;
  /** 16 bytes of `values` are one. */
  int items;
  int first_block;
  int blocks;
};

struct CopyJobs {
  CopyJob job[MAX_JOBS];
  int count;
};

/** Items on their way, a power of two, and blocks to a multiprocessor, which bound the registers.
 * Where nothing can be asked for ahead, threads have to do. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kDepth = 1, kBlocks = 1024 / THREADS;
#else
constexpr int kDepth = 8, kBlocks = 1536 / THREADS;
#endif

struct Ring {
  uint4 values[kDepth][THREADS];
  Scales scales[kDepth][THREADS];
};

/** Item `i` of the job into a place of the thread's ring, if there is such an item. */
__device__ __forceinline__ void ask_item(Ring& ring, int place, const CopyJob& job, int i,
                                         u64 policy) {
  if (i < job.items) {
    copy_ahead(ring.values[place][threadIdx.x], job.values + i, policy);
    copy_ahead(ring.scales[place][threadIdx.x],
               reinterpret_cast<const Scales*>(job.scales) + i / 4, policy);
  }
  end_group();
}

/** The 8 inputs of each slice of a lane's item. */
__device__ __forceinline__ void copy_item(const CopyJob& job, int i, const uint4& v,
                                          const Scales& scales) {
  const int part = i / 4, lane = i % 4;
  // Eights of inputs, in `out` and from the part's first to the row's end.
  int to = part * (kPartInputs / 8), left = kPartInputs / 8;
  if (job.columns % kPartInputs != 0) {
    const int row = part / parts_of(job.columns), first = part % parts_of(job.columns);
    to = (row * job.columns + first * kPartInputs) / 8;
    left = (job.columns - first * kPartInputs) / 8;
  }
#pragma unroll
  for (int slice = 0; slice < kPartSlices; slice++) {
    const int eight = 4 * slice + lane;
    if (eight >= left) break;
    u32 h[4];
    decode(h, v, scales, slice);
#pragma unroll
    for (int j = 0; j < 4; j++) h[j] = mul2(h[j], UNSCALE_PAIR);
    job.out[to + eight] = make_uint4(h[0], h[1], h[2], h[3]);
  }
}

__device__ __forceinline__ const CopyJob& find_job(const CopyJobs& jobs) {
  int j = 0;
  while (j + 1 < jobs.count && (int)blockIdx.x >= jobs.job[j + 1].first_block) j++;
  return jobs.job[j];
}

extern "C" __global__ void __launch_bounds__(THREADS, kBlocks)
    dequantise(Step, const __grid_constant__ CopyJobs jobs) {
  __shared__ Ring ring;
  let_next_start();
  const CopyJob& job = find_job(jobs);
  const u64 policy = evict_first();
  const int step = THREADS * job.blocks;
  int i = (blockIdx.x - job.first_block) * THREADS + threadIdx.x;
#pragma unroll
  for (int d = 0; d < kDepth; d++) ask_item(ring, d, job, i + d * step, policy);
  wait_for_previous();
  for (int place = 0; i < job.items; i += step, place = (place + 1) % kDepth) {
    wait_for_group<kDepth - 1>();
    copy_item(job, i, ring.values[place][threadIdx.x], ring.scales[place][threadIdx.x]);
    ask_item(ring, place, job, i + kDepth * step, policy);
  }
}
