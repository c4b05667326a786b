// Products of many tokens with int8, q4, nf4 and GGUF's blocks by tile registers (amx.h). A tile
// product ends every 16 or 32 inputs, because their sums are exact integers that are then scaled
// and added in the order of tile.h and packed-tile.h. So every bit is that of AVX-512's kernels.
//
// With tokens of 8 bits these are products of bytes. Those of 16 bits are split in two bytes, which
// are multiplied as bf16: it holds such integers exactly, f32 their sums up to 2^24, and a tile can
// add the products of both bytes. Weights are multiplied by 2^−104 and tokens by 2^104, because then
// bf16 is quickly made of bytes.
//
// Tokens are packed in blocks of 16. A block has per group of 32 inputs:
//   [16][32] bytes; or [2][16][32] bf16, of each four inputs 0, 2, 1, 3: the upper and the lower
//                   bytes, or, if 16 weights share a scale, the first and the last 16 inputs, upper
//                   bytes before lower ones
//   [16] f32 scales, [16] f32 sums of the integers (of 16 bits)
#pragma once

#include "amx.h"
#include "matrix.h"

namespace skein {

#if defined(SKEIN_TILES)
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;  // then nothing else of this header is used
#endif

constexpr int64_t kBlockTokens = 16;

/// Tokens from which products by tiles are faster.
constexpr int64_t kLeastTokens = 32;

/// How weights of a type want the tokens.
enum class TokenForm { kBytes, kFine, kHalves };

inline TokenForm token_form(int32_t type) {
  if (!is_packed(type)) return TokenForm::kBytes;
  return type == SK_Q6_K ? TokenForm::kHalves : TokenForm::kFine;
}

constexpr int64_t token_group_bytes(TokenForm form) {
  return kBlockTokens * (kGroup * (form == TokenForm::kBytes ? 1 : 4) + 2 * 4);
}

inline int64_t token_block_bytes(TokenForm form, int64_t columns) {
  return div_up(columns, kGroup) * token_group_bytes(form);
}

/// Packs groups [first, end) of `count` tokens, as activations.h lays them out, into a block.
void pack_tokens(TokenForm form, int64_t columns, const uint8_t* tokens, int64_t stride,
                 int64_t count, int64_t first, int64_t end, uint8_t* block);

/// x·Wᵀ of a weight tile and `count` tokens: [count / 16][4][16 tokens][16 outputs], in memory
/// of this thread.
/// `blocks`: that of the first token, and so on.
const float* multiply_tile(const sk_matrix& weight, int64_t index, const uint8_t* blocks,
                           int64_t count);

}  // namespace skein
