// A matrix of fewer bits turned round at load, for products whose inputs are mostly zero: what an
// input is multiplied with lies side by side, so that the rest need not be read (few-rows-value.cuh).
// to u8 [columns, rows]: code + 128 of integers (of nf4 the level), and with a minimum the code; e4m3
// as it is. scales f16 [groups, 1 or 2, rows]: of each group of columns its scales, then its
// minimums; e4m3 has none here. From the layout of quant.cuh. Bound by memory, once.
#include "lay-out.cuh"

/** The 16 bytes of a lane, of one part of a row: its inputs' codes. Rows are what neighbours have. */
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
