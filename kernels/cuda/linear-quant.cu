// y = epilogue(x·Wᵀ + bias) for few tokens and weights of 8 bits or fewer (quant.cuh), with all
// jobs of one `linear` in one launch. Some of the jobs may have f16 weights.
// x f16 [T, columns] · bias f32 [rows] · y f16 or f32 [T, rows] · columns a multiple of 32 (f16
// weights: of 8).
// TOKENS (8, 16 or 32) per block; blockIdx.y is the block of tokens. The scheme is that of
// linear-few.cu: rows of W are the columns of the tensor cores' tiles; a lane loads 16 bytes of W
// and the matching inputs; the first weights are loaded before the kernel waits for the previous
// one; an output is summed in the same order for any T. Integers become f16 and are multiplied by
// their scale before the product; that weight is rounded to f16, like a weight of an f16 model.
// Tolerance: 1e-3 RMS against reference/ops.ts with weights of the same type.
#include "few-tokens.cuh"
#include "quant.cuh"

struct QuantJob {
  void* y;
  const f16* x;
  const void* weight;
  /** Scales of the groups in the layout of quant.cuh; null if there are none. */
  const f16* scales;
  /** f32 [rows]; if null, every row uses `factor`. */
  const float* row_scales;
  const float* bias;
  int rows;
  int columns;
  int epilogue;
  /** Whether y is f32. */
  int is_f32;
  /** The first block of the job, and the number of warps that share rows: 1, 2, 4 or 8. */
  int first_block;
  int split;
  /** Whether W is f16. */
  int is_plain;
  float factor;
};

struct QuantJobs {
  QuantJob job[MAX_JOBS];
  int count;
  /** The index of T in the step's counts: 0 tokens, 2 logits rows. */
  int count_index;
};

/** Treats f16 weights as parts of one slice, with 8 inputs per lane. */
struct Plain {
  static constexpr int kSlices = 1;
  static constexpr int kScales = 0;
};

struct Quantised {
  static constexpr int kSlices = kPartSlices;
  static constexpr int kScales = kPartScales;
};

/** Long products of 8 bits and up to 8 tokens, the head among them: they have more in flight, and
 * their loads bring the surrounding 256 bytes into L2. */
constexpr bool kIsLong = QUANT == kI8 && TOKENS == 8 && ROW_TILES == 4;
/** Parts of W in flight. More would wait less, but take more code, which short products have to
 * fetch. */
constexpr int kDepth = ROW_TILES == 4 && !kIsLong || ROW_TILES == 2 && kIsNibbles ? 1 : 2;

/** One part of a lane's rows of W: 16 bytes each, the bits above four, and the scales, two per
 * word. */
struct Part {
  uint4 of[ROW_TILES];
  uint4 high[ROW_TILES];
  Scales scales[ROW_TILES];
};

/** The addresses a lane reads, clamped into range. Results that are out of range are not stored. */
struct Sources {
  const u8* weight[ROW_TILES];
  const f16* scales[ROW_TILES];
  const f16* x[kTokenGroups];
  int columns;
};

/** Loads 8 bytes of W, or zeros. */
__device__ __forceinline__ uint2 load_half_weight(const u8* w, bool inside) {
  uint2 v;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
      " @p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(w), "r"((int)inside));
  return v;
}

/** Loads a lane's 16 bytes of a part. e4m3 is in the order that the library reads, so its two
 * slices are not adjacent. */
template <class Format>
__device__ __forceinline__ uint4 load_lane(const u8* row, int p, int q, int columns) {
  const int at = p * 32 * Format::kSlices + 8 * q;
  if constexpr (Format::kSlices > 1 && QUANT == kE4m3) {
    const uint2 lo = load_half_weight(row + at, at < columns);
    const uint2 hi = load_half_weight(row + at + 32, at + 32 < columns);
    return make_uint4(lo.x, lo.y, hi.x, hi.y);
  }
  const int part_bytes = Format::kSlices == 1 ? 64 : kPartBytes;
  return load_once<kIsLong>(row + p * part_bytes + 16 * q, at < columns);
}

/** Loads the 2, 4 or 8 (Count) scales of a part. */
template <int Count>
__device__ __forceinline__ void load_scales(u32* to, const f16* scales, bool inside) {
  if constexpr (Count == 2)
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc.u32 %0, [%1]; }"
        : "=&r"(to[0])
        : "l"(scales), "r"((int)inside));
  else if constexpr (Count == 8)
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0;"
        " mov.u32 %3, 0; @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
        : "l"(scales), "r"((int)inside));
  else
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
        " @p ld.global.nc.v2.u32 {%0, %1}, [%2]; }"
        : "=&r"(to[0]), "=&r"(to[1])
        : "l"(scales), "r"((int)inside));
}

/** Loads part `p` of a lane's rows. */
template <class Format>
__device__ __forceinline__ void load_part(Part& part, const Sources& from, int p, int q) {
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++) {
    part.of[n] = load_lane<Format>(from.weight[n], p, q, from.columns);
    if constexpr (Format::kSlices > 1 && kHighBits > 0)
      part.high[n] = load_once<false>(from.weight[n] + p * kPartBytes + high_at(q),
                                      p * 32 * Format::kSlices < from.columns);
    if constexpr (Format::kScales > 0)
      load_scales<Format::kScales>(part.scales[n].of, from.scales[n] + p * Format::kScales,
                                   p * 32 * Format::kSlices < from.columns);
  }
}

/** Loads the inputs of slice `s` of part `p` for a lane's tokens. */
template <class Format>
__device__ __forceinline__ void load_slice(Inputs& slice, const Sources& from, int p, int s,
                                           int q) {
  const int at = (p * Format::kSlices + s) * 32 + 8 * q;
#pragma unroll
  for (int m = 0; m < kTokenGroups; m++)
    slice.of[m] = load_inputs(from.x[m] + at, at < from.columns);
}

/** Decodes slice `s` of row n of a part to eight f16 weights, scaled if the format has groups. */
template <class Format>
__device__ __forceinline__ void decode(u32 (&h)[4], const Part& part, int n, int s,
                                       const DecodeConstants& constants) {
  const uint4& v = part.of[n];
  const u32 words[4] = {v.x, v.y, v.z, v.w};
  if constexpr (Format::kSlices == 1) {
    h[0] = words[0], h[1] = words[1], h[2] = words[2], h[3] = words[3];
  } else {
    u32 ready[4];
    prepare_slices(ready, words, s / 2 * 2, constants);
    const High<false> high = high_of_lane(part.high[n], threadIdx.x & 3);
    if constexpr (Format::kScales > 0)
      decode(h, ready, high, part.scales[n], s, constants);
    else
      slice_to_f16(h, ready, high, s, constants);
  }
}

template <class Format>
__device__ __forceinline__ void multiply_slice(Sums& sums, const Part& part, const Inputs& x, int s,
                                               const DecodeConstants& constants) {
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++) {
    u32 h[4];
    decode<Format>(h, part, n, s, constants);
#pragma unroll
    for (int m = 0; m < kTokenTiles; m++) multiply_tile(sums, m, n, x, h[0], h[1], h[2], h[3]);
  }
}

/** Sets the addresses of the rows of a job. */
template <class Format>
__device__ __forceinline__ void find_rows(Sources& from, const QuantJob& job, int row) {
  const int parts = parts_of(job.columns);
  const long long row_bytes = Format::kSlices == 1 ? 2 * job.columns
                              : QUANT == kE4m3     ? job.columns
                                                   : parts * kPartBytes;
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++) {
    const int at = min(row + 8 * n, job.rows - 1);
    from.weight[n] = static_cast<const u8*>(job.weight) + at * row_bytes;
    from.scales[n] =
        Format::kScales > 0 ? job.scales + (long long)at * parts * Format::kScales : nullptr;
  }
}

/** The warp's share of its rows: parts first, first + split, … */
template <class Format>
__device__ __forceinline__ void multiply(Sums& sums, const QuantJob& job, const int* count, int row,
                                         int first_token, int first) {
  constexpr int kSlices = Format::kSlices;
  const int g = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3;
  const int split = job.split;
  const DecodeConstants constants(TOKENS < 32);
  Sources from;
  from.columns = job.columns;
  find_rows<Format>(from, job, row + g);
  Part ring[kDepth];
#pragma unroll
  for (int d = 0; d < kDepth; d++) load_part<Format>(ring[d], from, first + d * split, q);
  wait_for_previous();

  const int last = max(*count, 1) - 1;
#pragma unroll
  for (int m = 0; m < kTokenGroups; m++)
    from.x[m] = job.x + (long long)min(first_token + 8 * m + g, last) * job.columns;
  Inputs next;
  load_slice<Format>(next, from, first, 0, q);
  const int parts = (job.columns + 32 * kSlices - 1) / (32 * kSlices);
  for (int base = first; base < parts; base += kDepth * split) {
#pragma unroll
    for (int d = 0; d < kDepth; d++) {
      const int p = base + d * split;
#pragma unroll
      for (int s = 0; s < kSlices; s++) {
        const Inputs x = next;
        const bool is_last = s == kSlices - 1;
        load_slice<Format>(next, from, is_last ? p + split : p, is_last ? 0 : s + 1, q);
        multiply_slice<Format>(sums, ring[d], x, s, constants);
      }
      load_part<Format>(ring[d], from, p + kDepth * split, q);
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    linear_quant(Step step, const __grid_constant__ QuantJobs jobs) {
  let_next_start();
  const QuantJob& job = find_job(jobs);
  const Place at = place_of(job);
  const int* const count = step.counts + jobs.count_index;
  Sums sums = {};
  if (job.is_plain)
    multiply<Plain>(sums, job, count, at.row, at.first_token, at.part);
  else
    multiply<Quantised>(sums, job, count, at.row, at.first_token, at.part);
  store_sums(sums, job, at, *count, [&](int row, float sum) {
    return sum * (job.row_scales == nullptr ? job.factor : job.row_scales[row]);
  });
}
