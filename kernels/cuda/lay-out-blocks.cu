// Repacks GGUF's blocks (gguf-blocks.cuh) into the layout of quant.cuh. Codes keep their values;
// scales and minimums are rounded to f16. QUANT is the type of layout that can hold them.
#include "gguf-blocks.cuh"
#include "lay-out.cuh"

__device__ __forceinline__ f16 device_minimum(float minimum) {
  minimum *= SCALE_FACTOR;
  minimum = minimum > 65504.0f ? 65504.0f : minimum;
  return to_f16(minimum < -65504.0f ? -65504.0f : minimum);
}

// Rows of blocks → values, scales. A thread has kThreadInputs inputs. `columns` is a multiple of
// the block size.
extern "C" __global__ void __launch_bounds__(256)
    lay_out_blocks(u32* values, f16* scales, const u8* blocks, int rows, int columns) {
  const Place at = place_of(rows, columns);
  if (!at.exists) return;
  const u8* const row = blocks + (long long)at.row * (columns / kBlockInputs) * kBlockBytes;
  Codes codes;
  const int first = at.index * kThreadInputs, end = min(first + kThreadInputs, columns);
  for (int input = first; input < end; input++) {
    const u8* const block = block_of(row, input);
    const int code = block_code(block, input % kBlockInputs / 32, input % 32), i = input - first;
    if constexpr (kIsNibbles && kHighBits == 0)
      codes.of[i / 8] |= (u64)code << i % 8 * 4;
    else
      codes.of[i / 8] |= (u64)(code & 255) << i % 8 * 8;
  }
  store_codes(values, at.row, at.index, columns, codes);
  for (int group = at.first_group; group < at.end_group; group++) {
    const int input = group * kGroup;
    const u8* const block = block_of(row, input);
    const int g = input % kBlockInputs / kGroup;
    static_assert(kGroup == kScaleInputs && kHasMinimum == kBlockHasMinimum,
                  "layout of the blocks");
    f16* const to = scales + scale_at(at.row, group, columns);
    to[0] = device_scale(block_scale(block, g));
    if constexpr (kHasMinimum) to[1] = device_minimum(block_minimum(block, g));
  }
}
