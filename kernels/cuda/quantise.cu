// Rounds weights to 8 and 4 bits at load, exactly as backend/reference/quantise.ts defines it, and
// repacks weights that a file holds already rounded. Both write the layout of quant.cuh. Every step
// of the rounding is one f32 or f64 operation that the compiler must not fuse.
#include "lay-out.cuh"

/** Groups whose largest weight is smaller become zeros. */
#define MIN_LARGEST 7.8886090522101181e-31f

#if SOURCE == 0
using source_t = float;
__device__ __forceinline__ float read_weight(float x) { return x; }
#elif SOURCE == 1
using source_t = f16;
__device__ __forceinline__ float read_weight(f16 x) { return to_float(x); }
#else
using source_t = u16;
__device__ __forceinline__ float read_weight(u16 x) { return bf16_to_float(x); }
#endif

/** The smallest bf16 that is not below x, for x ≥ 0. */
__device__ __forceinline__ u16 bf16_above(float x) { return (__float_as_uint(x) + 0xffff) >> 16; }

__device__ __forceinline__ u16 bf16_nearest(float x) {
  const u32 bits = __float_as_uint(x);
  return bits + 0x7fff + (bits >> 16 & 1) >> 16;
}

__device__ __forceinline__ float level(int i) {
  const int levels[16] = {-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127};
  return (float)levels[i];
}

/** The integer (nf4: the index of the level) that is nearest to a weight. */
__device__ __forceinline__ int code_of(float w, float scale) {
  const float scaled = scale == 0.0f || isnan(scale) ? 0.0f : __fdiv_rn(w, scale);
  if constexpr (QUANT == kI8) return (int)rintf(scaled);
  if constexpr (QUANT == kQ4) return (int)fminf(7.0f, fmaxf(-8.0f, rintf(scaled)));
  int index = 0;
#pragma unroll
  for (int i = 1; i < 16; i++) index += scaled > 0.5f * (level(i) + level(i - 1));
  return index;
}

/** The best of eight scales for q4, by squared error. */
__device__ __forceinline__ u16 best_q4_scale(const source_t* group, int count, float largest) {
  const float divisors[8] = {8.0f, 7.7f, 7.4f, 7.1f, 6.8f, 8.3f, 8.6f, 9.0f};
  u16 best = 0;
  double least = __longlong_as_double(0x7ff0000000000000ll);
#pragma unroll 1
  for (int d = 0; d < 8; d++) {
    const u16 bits = bf16_nearest(__fdiv_rn(largest, -divisors[d]));
    const float scale = bf16_to_float(bits);
    double error = 0;
    for (int i = 0; i < count; i++) {
      const float w = read_weight(group[i]);
      const double difference = __dadd_rn(w, -__dmul_rn((double)code_of(w, scale), scale));
      error = __dadd_rn(error, __dmul_rn(difference, difference));
    }
    if (error < least) least = error, best = bits;
  }
  return best;
}

/** The bits of the bf16 scale of a group. */
__device__ __forceinline__ u16 scale_bits(const source_t* group, int count) {
  float largest = 0;
  bool is_finite = true;
  for (int i = 0; i < count; i++) {
    const float w = read_weight(group[i]);
    is_finite = is_finite && isfinite(w);
    if (fabsf(w) > fabsf(largest)) largest = w;
  }
  if (!is_finite) return 0x7fc0;
  if (fabsf(largest) < MIN_LARGEST) return 0;
  if constexpr (QUANT == kQ4) return best_q4_scale(group, count, largest);
  return bf16_above(__fdiv_rn(fabsf(largest), 127.0f));
}

// in [rows, columns] → values, scales. A thread has 64 inputs. columns is a multiple of 8.
extern "C" __global__ void __launch_bounds__(256)
    quantise(u32* values, f16* scales, const source_t* in, int rows, int columns) {
  const Place at = place_of(rows, columns);
  if (!at.exists) return;
  Codes codes;
  for (int group = at.first_group; group < at.end_group; group++) {
    const int first = group * kGroup, count = min(kGroup, columns - first);
    const source_t* const from = in + (long long)at.row * columns + first;
    const u16 bits = scale_bits(from, count);
    const float scale = bf16_to_float(bits);
    for (int i = 0; i < count; i++) {
      const int code = code_of(read_weight(from[i]), scale);
      u64& eight = codes.of[(first + i) % kThreadInputs / 8];
      if constexpr (QUANT == kI8) eight |= (u64)(code & 255) << i % 8 * 8;
      if constexpr (QUANT == kQ4) eight |= (u64)(code + 8) << i % 8 * 4;
      if constexpr (QUANT == kNf4) eight |= (u64)code << i % 8 * 4;
    }
    scales[scale_at(at.row, group, columns)] = device_scale(scale);
  }
  store_codes(values, at.row, at.index, columns, codes);
}

// Rows in the format of backend.ts's QuantisedRows → values, scales. A thread has 64 inputs.
extern "C" __global__ void __launch_bounds__(256)
    lay_out(u32* values, f16* scales, const u32* in, const u16* bits, int rows, int columns) {
  const Place at = place_of(rows, columns);
  if (!at.exists) return;
  const int first = at.index * kThreadInputs / 8,
            count = min(kThreadInputs / 8, columns / 8 - first);
  const long long eight = (long long)at.row * (columns / 8) + first;
  Codes codes;
#pragma unroll
  for (int i = 0; i < kThreadInputs / 8; i++) {
    if (i >= count) break;
    if constexpr (kIsNibbles)
      codes.of[i] = in[eight + i];
    else
      codes.of[i] = in[2 * (eight + i)] | (u64)in[2 * (eight + i) + 1] << 32;
  }
  store_codes(values, at.row, at.index, columns, codes);
  for (int group = at.first_group; group < at.end_group; group++)
    scales[scale_at(at.row, group, columns)] =
        device_scale(bf16_to_float(bits[(long long)at.row * groups_of(columns) + group]));
}

// out f16 [rows, columns], for the library's products. A thread takes a lane's 16 bytes of a part,
// like linear-quant.cu; a warp loads and stores whole sectors. A weight, integer times scale, is
// rounded once. Of e4m3 (a lane has 16 inputs in order) `scales` are f32 [rows]. Bound by memory.
extern "C" __global__ void __launch_bounds__(256)
    dequantise(Step, uint4* out, const u8* values, const void* scales, int rows, int columns) {
  let_next_start();
  wait_for_previous();
  const int lanes = parts_of(columns) * 4;
  const DecodeConstants constants(true);
  // A launch has only a part of a matrix, so an int is large enough.
  const int count = rows * lanes;
#pragma unroll 2
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += 256 * gridDim.x) {
    const int row = i / lanes, part = i % lanes / 4, lane = i % 4;
    const u8* const of_part = values + (long long)(i / 4) * kPartBytes;
    const uint4 v = *reinterpret_cast<const uint4*>(of_part + 16 * lane);
    const u32 words[4] = {v.x, v.y, v.z, v.w};
    uint4 above = make_uint4(0, 0, 0, 0);
    if constexpr (kHighBits > 0) above = *reinterpret_cast<const uint4*>(of_part + high_at(lane));
    const High<false> high = high_of_lane(above, lane);
#pragma unroll
    for (int slice = 0; slice < kPartSlices; slice++) {
      constexpr bool kIsE4m3 = QUANT == kE4m3;
      const int column = kIsE4m3 ? part * kPartInputs + lane * 16 + slice * 8
                                 : (part * kPartSlices + slice) * 32 + lane * 8;
      if (column >= columns) break;
      const f16* const of_group = static_cast<const f16*>(scales) +
                                  (kIsE4m3 ? 0 : scale_at(row, column / kGroup, columns));
      const float scale = kIsE4m3 ? static_cast<const float*>(scales)[row]
                                  : to_float(of_group[0]) * UNSCALE;
      const float minimum = kHasMinimum ? to_float(of_group[1]) * UNSCALE : 0.0f;
      u32 ready[4], h[4];
      prepare_slices(ready, words, slice / 2 * 2, constants);
      slice_to_f16(h, ready, high, slice, constants);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 pair = unpack(h[j]);
        h[j] = pack(fmaf(pair.x, scale, minimum), fmaf(pair.y, scale, minimum));
      }
      out[((long long)row * columns + column) / 8] = make_uint4(h[0], h[1], h[2], h[3]);
    }
  }
}
