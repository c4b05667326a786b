// Transposes a quantised matrix once at load, for products whose inputs are mostly zero: the
// weights of one input become contiguous, so the weights of zero inputs need not be read
// (few-rows-value.cuh). Reads the layout of quant.cuh. Bound by memory.
//   to      u8 [columns, rows]: integer + 128 (nf4: level + 128), the code if the type has a
//           minimum, e4m3 unchanged
//   scales  f16 [groups, 1 or 2, rows]: for each group of columns the scales, then the minimums;
//           none for e4m3
#include "lay-out.cuh"

/** A thread transposes the 16 bytes of one lane and part of a row. Neighbouring threads have
 * neighbouring rows. */
extern "C" __global__ void __launch_bounds__(256)
    turn_codes(u8* to, const u8* values, int rows, int columns) {
  const int parts = parts_of(columns);
  const int i = blockIdx.x * 256 + threadIdx.x;
  const int row = i % rows, part = i / rows / 4, lane = i / rows % 4;
  if (part >= parts) return;
  const u8* const of_part = values + ((long long)row * parts + part) * kPartBytes;
  const auto store = [&](int column, int code) {
    if (column < columns) to[(long long)column * rows + row] = code;
  };
  if constexpr (QUANT == kE4m3) {
    for (int k = 0; k < 16; k++)
      store(part * kPartInputs + 16 * lane + k, of_part[16 * lane + k]);
    return;
  }
  const DecodeConstants constants(true);
  const uint4 v = *reinterpret_cast<const uint4*>(of_part + 16 * lane);
  const u32 words[4] = {v.x, v.y, v.z, v.w};
  uint4 above = make_uint4(0, 0, 0, 0);
  if constexpr (kHighBits > 0) above = *reinterpret_cast<const uint4*>(of_part + high_at(lane));
  const High<false> high = high_of_lane(above, lane);
#pragma unroll
  for (int slice = 0; slice < kPartSlices; slice++) {
    u32 ready[4], h[4];
    prepare_slices(ready, words, slice / 2 * 2, constants);
    slice_to_f16(h, ready, high, slice, constants);
    const int column = (part * kPartSlices + slice) * 32 + lane * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 pair = unpack(h[j]);
      store(column + 2 * j, (int)pair.x + kTurnedZero);
      store(column + 2 * j + 1, (int)pair.y + kTurnedZero);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256)
    turn_scales(f16* to, const f16* scales, int rows, int columns) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  const int row = i % rows, at = i / rows;
  if (at >= groups_of(columns) * kGroupScales) return;
  to[i] = scales[scale_at(row, 0, columns) + at];
}
