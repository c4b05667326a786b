// y = epilogue(y + bias) in place, after products that a library computed.  y f16 [T, rows] · bias
// f32 [rows] or null. One launch serves several products; blockIdx.y is the job. `rows` is a
// multiple of 8.
#include "epilogue.cuh"

#define MAX_JOBS 8

struct EpilogueJob {
  f16* y;
  const float* bias;
  int rows;
  int epilogue;
};

struct EpilogueJobs {
  EpilogueJob job[MAX_JOBS];
};

extern "C" __global__ void __launch_bounds__(256) linear_epilogue(Step step, EpilogueJobs jobs) {
  let_next_start();
  wait_for_previous();
  const EpilogueJob job = jobs.job[blockIdx.y];
  const int groups = job.rows / 8;
  const long long count = (long long)step.num_tokens() * groups;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += 256ll * gridDim.x) {
    uint4 packed = reinterpret_cast<uint4*>(job.y)[i];
    u32* const words = reinterpret_cast<u32*>(&packed);
    const float* const bias = job.bias == nullptr ? nullptr : job.bias + i % groups * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 value = unpack(words[j]);
      if (bias != nullptr) value.x += bias[2 * j], value.y += bias[2 * j + 1];
      words[j] = pack(apply_epilogue(value.x, job.epilogue), apply_epilogue(value.y, job.epilogue));
    }
    reinterpret_cast<uint4*>(job.y)[i] = packed;
  }
}
