#include "tile-products.h"

#if defined(SKEIN_TILES)
#include <algorithm>

#include "convert.h"
#include "packed-tile.h"

namespace skein {

namespace {

/// The bytes times factors as bf16, those of `low` first.
vi words_of(__m128i low, __m128i high, float low_factor, float high_factor) {
  const auto scaled = [](__m128i bytes, float factor) {
    return to_float(reinterpret_cast<vi>(_mm512_cvtepi8_epi32(bytes))) * factor;
  };
  return reinterpret_cast<vi>(
      _mm512_cvtne2ps_pbh(scaled(high, high_factor), scaled(low, low_factor)));
}

/// Of each four bytes 0, 2, 1, 3.
__m256i in_tile_order(__m256i bytes) {
  const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  return _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order));
}

__m128i half_of(__m256i bytes, int half) {
  return half == 0 ? _mm256_castsi256_si128(bytes) : _mm256_extracti128_si256(bytes, 1);
}

void pack_fine(const uint8_t* quads, bool is_by_halves, uint8_t* row) {
  constexpr float kLower = 0x1p104f, kUpper = 256 * kLower;
  const __m512i even_first =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  const __m512i all = _mm512_permutexvar_epi32(even_first, _mm512_loadu_si512(quads));
  const __m256i upper = in_tile_order(_mm512_castsi512_si256(all));
  const __m256i lower = in_tile_order(_mm512_extracti64x4_epi64(all, 1));
  for (int plane = 0; plane < 2; plane++) {
    const __m256i whole = plane == 0 ? upper : lower;
    const float factor = plane == 0 ? kUpper : kLower;
    const vi words =
        is_by_halves ? words_of(half_of(upper, plane), half_of(lower, plane), kUpper, kLower)
                     : words_of(half_of(whole, 0), half_of(whole, 1), factor, factor);
    std::memcpy(row + plane * kBlockTokens * kGroup * 2, &words, sizeof words);
  }
}

/// A bf16 for each value of a code: (code − offset)·2^−104.
struct WordTable {
  alignas(64) uint16_t at[64];

  template <class Value>
  explicit WordTable(int count, Value&& value) {
    for (int i = 0; i < 64; i++)
      at[i] = static_cast<uint16_t>(
          float_bits(static_cast<float>(value(i % count)) * 0x1p-104f) >> 16);
  }
};

/// The words of the even and of the odd bytes of a vector of codes.
struct Pair {
  vi even, odd;
};

/// Codes of up to 4, 5 or 6 bits.
template <int Bits>
struct CodeWords {
  WordTable table;

  Pair of(vi codes) const { return {look(codes), look(shift_right(codes, 8))}; }

 private:
  /// The upper bits of a word do not matter, unless they are bits of the index.
  vi look(vi words) const {
    const __m512i index = reinterpret_cast<__m512i>(words);
    const __m512i low = _mm512_load_si512(table.at);
    if constexpr (Bits < 6) return reinterpret_cast<vi>(_mm512_permutexvar_epi16(index, low));
    return reinterpret_cast<vi>(
        _mm512_permutex2var_epi16(low, index, _mm512_load_si512(table.at + 32)));
  }
};

/// Bytes with an offset of 128.
struct ByteWords {
  static vi values(vi bytes) { return bytes ^ splat_int(static_cast<int32_t>(0x80808080)); }

  static Pair of(vi bytes) {
    const vi values = ByteWords::values(bytes);
    const __m512i even = _mm512_slli_epi16(reinterpret_cast<__m512i>(values), 8);
    return {word(even), word(reinterpret_cast<__m512i>(values & splat_int(0xff00ff00)))};
  }

 private:
  /// 256·value as an f16 has three zeros at its end. Without them its bits are those of a bf16,
  /// 2^112 times smaller, if the sign is in its place.
  static vi word(__m512i words) {
    __m512i halves;
    asm("vcvtw2ph %1, %0" : "=v"(halves) : "v"(words));
    const vi bits = reinterpret_cast<vi>(_mm512_srai_epi16(halves, 3));
    return bits & splat_int(static_cast<int32_t>(0x8fff8fff));
  }
};

/// Weights of 64 rows and 32 inputs, or 16 twice.
struct WeightGroup {
  alignas(64) float scales[kTileRows], minimums[kTileRows];
  vi rows[kTileVectors][16];  // two inputs of 16 outputs each; of signed bytes four, in 8 rows
};

/// The signed bytes of a type's codes.
template <int32_t Type>
vi signed_bytes(vi codes) {
  if constexpr (Type == SK_I8) return ByteWords::values(codes);
  typedef int8_t vb __attribute__((vector_size(64)));
  if constexpr (Type == SK_Q4)
    return reinterpret_cast<vi>(reinterpret_cast<vb>(codes) - static_cast<int8_t>(kQ4Offset));
  static constexpr ByteTable kLevels = [] {
    ByteTable table = {};
    for (int i = 0; i < 16; i++) table.at[i] = static_cast<uint8_t>(kNf4Levels[i]);
    return table;
  }();
  return look_up(kLevels, codes);
}

/// Receives a tile's codes and scales, and writes groups from `first` on.
template <int32_t Type>
struct ByteWriter {
  int64_t first;
  WeightGroup* to;

  void scale(int64_t g, int, int n, vf scale) const {
    store(to[g - first].scales + n * kLanes, scale);
  }
  void codes(int64_t g, int quad, const vi (&codes)[kTileVectors]) const {
#pragma GCC unroll 4
    for (int n = 0; n < kTileVectors; n++)
      to[g - first].rows[n][quad] = signed_bytes<Type>(codes[n]);
  }
};

/// The same, as bf16.
template <class Words, bool IsByHalves>
struct WordWriter {
  const Words& table;
  int64_t first;
  WeightGroup* to;

  WeightGroup& group(int64_t g, int part) const {
    return IsByHalves ? to[2 * (g - first) + part] : to[g - first];
  }
  void scale(int64_t g, int part, int n, vf scale) const {
    store(group(g, part).scales + n * kLanes, scale);
  }
  void minimum(int64_t g, int n, vf minimum) const {
    store(group(g, 0).minimums + n * kLanes, minimum);
  }
  void codes(int64_t g, int quad, const vi (&bytes)[kTileVectors]) const {
    constexpr int kQuads = kGroup / 4, kPartQuads = IsByHalves ? kQuads / 2 : kQuads;
    auto& rows = group(g, quad / kPartQuads).rows;
    const int row = 2 * (quad % kPartQuads);
#pragma GCC unroll 4
    for (int n = 0; n < kTileVectors; n++) {
      const Pair pair = table.of(bytes[n]);
      for (int copy = 0; copy < (IsByHalves ? 2 : 1); copy++) {
        rows[n][row + 8 * copy] = pair.even;
        rows[n][row + 8 * copy + 1] = pair.odd;
      }
    }
  }
};

template <class Weights, class Words>
void write_words(const Words& words, const uint8_t* tile, int64_t first, int64_t end,
                 WeightGroup* to) {
  Weights::unpack(tile, first, end, WordWriter<Words, false>{words, first, to});
}

template <int Bits>
CodeWords<Bits> codes_from(int offset) {
  return {WordTable(1 << Bits, [&](int code) { return code - offset; })};
}

/// The offset is that of the codes; unsigned codes of five bits have one of 16, so that their sums
/// stay exact, which the product makes up for.
void unpack_groups(int32_t type, const uint8_t* tile, int64_t first, int64_t end,
                   WeightGroup* to) {
  static const auto kFrom0 = codes_from<4>(0), kFrom8 = codes_from<4>(8);
  static const auto kFrom16 = codes_from<5>(16);
  static const auto kFrom32 = codes_from<6>(32);
  switch (type) {
    case SK_I8:
      return I8Weights::unpack(tile, first, end, ByteWriter<SK_I8>{first, to});
    case SK_Q4:
      return Q4Weights::unpack(tile, first, end, ByteWriter<SK_Q4>{first, to});
    case SK_NF4:
      return Nf4Weights::unpack(tile, first, end, ByteWriter<SK_NF4>{first, to});
    case SK_Q4_0:
      return write_words<PackedWeights<SK_Q4_0>>(kFrom8, tile, first, end, to);
    case SK_Q4_1:
      return write_words<PackedWeights<SK_Q4_1>>(kFrom0, tile, first, end, to);
    case SK_Q5_0:
      return write_words<PackedWeights<SK_Q5_0>>(kFrom16, tile, first, end, to);
    case SK_Q5_1:
      return write_words<PackedWeights<SK_Q5_1>>(kFrom16, tile, first, end, to);
    case SK_Q8_0:
      return write_words<PackedWeights<SK_Q8_0>>(ByteWords{}, tile, first, end, to);
    case SK_Q4_K:
      return write_words<PackedWeights<SK_Q4_K>>(kFrom0, tile, first, end, to);
    case SK_Q5_K:
      return write_words<PackedWeights<SK_Q5_K>>(kFrom16, tile, first, end, to);
    default:
      return PackedWeights<SK_Q6_K>::unpack(
          tile, first, end, WordWriter<CodeWords<6>, true>{kFrom32, first, to});
  }
}

/// Products of bytes have eight rows of weights.
constexpr TileConfig kByteTiles = [] {
  TileConfig config = kWholeTiles;
  for (int tile = 2; tile < 4; tile++) config.set(tile, kGroup / 4, 64);
  for (int tile = 4; tile < 8; tile++) config.set(tile, kBlockTokens, kGroup);
  return config;
}();

/// A slot is one product of 16 tokens, 64 outputs and 16 or 32 inputs.
enum class Sum {
  kBytes,   // a group is a slot
  kHalves,  // a group is two slots with their own scales
  kFine,    // a group is a slot; its planes are added
  kSplit,   // a group is two slots, whose sums are added, because together they are not exact
};

template <Sum Kind, bool HasMinimum = false, int Offset = 0>
struct Form {
  static constexpr Sum kKind = Kind;
  static constexpr bool kHasMinimum = HasMinimum;
  static constexpr int kOffset = Offset;  // of the codes as they are multiplied
  static constexpr int kGroupSlots = Kind == Sum::kHalves || Kind == Sum::kSplit ? 2 : 1;
  static constexpr int kSlots = Kind == Sum::kFine ? 2 : 4;  // of a block
  static constexpr int64_t kGroups = kSlots / kGroupSlots;
  static constexpr int64_t kTokenBytes = token_group_bytes(
      Kind == Sum::kBytes ? TokenForm::kBytes : TokenForm::kFine);
  static constexpr bool kIsBytes = Kind == Sum::kBytes;
  static constexpr int64_t kPlaneBytes = kBlockTokens * kGroup * 2;
  static constexpr int64_t kRowBytes = kIsBytes ? kGroup : 2 * kGroup;  // of a plane

  static const WeightGroup& weights(const WeightGroup* first, int slot) {
    return first[Kind == Sum::kSplit ? slot / 2 : slot];
  }
  static const uint8_t* plane(const uint8_t* tokens, int slot) {
    return tokens + slot / kGroupSlots * kTokenBytes + slot % kGroupSlots * kPlaneBytes;
  }
  static const float* scales(const uint8_t* tokens, int slot) {
    return reinterpret_cast<const float*>(tokens + (slot / kGroupSlots + 1) * kTokenBytes) -
           2 * kBlockTokens;
  }
};

/// The products of a unit.
using Products = vf[4][kBlockTokens];
/// A unit is finished so many units after it was begun: then its products have left the store
/// buffer.
constexpr int kLag = 1, kRing = 2 * kLag;

/// The slots that tile registers hold for 16 tokens. A unit is that times 16 outputs.
struct Block {
  const WeightGroup* weights = nullptr;
  const uint8_t* tokens = nullptr;
  float* sums = nullptr;     // [kTileVectors][kBlockTokens][kLanes]
  int slots = 0, count = 0;  // of tokens; 0: nothing
};

/// Bytes to fetch into L2 in even parts.
struct Fetcher {
  const uint8_t *at = nullptr, *end = nullptr;
  int64_t part = 0;  // bytes

  void fetch() {
    const uint8_t* to = std::min(at + part, end);
    for (; at < to; at += 64) __builtin_prefetch(at, 0, 2);
  }
};

/// Tiles 0 and 1 have products, 2 and 3 weights, 4 to 7 the tokens of the slots.
template <class F, int N, int Slot>
[[gnu::always_inline]] inline void multiply_slot(const Block& block) {
  constexpr int kTo = Slot % 2, kWeights = 2 + Slot % 2;
  const int slot = Slot < block.slots ? Slot : 0;  // the products of others are not used
  constexpr int kTokens = F::kKind == Sum::kFine ? 4 + 2 * Slot : 4 + Slot;
  if constexpr (N == 0) {
    const uint8_t* plane = F::plane(block.tokens, slot);
    load_tile<kTokens>(plane, F::kRowBytes);
    if constexpr (F::kKind == Sum::kFine) load_tile<kTokens + 1>(plane + F::kPlaneBytes);
  }
  load_tile<kWeights>(F::weights(block.weights, slot).rows[N]);
  zero_tile<kTo>();
  if constexpr (F::kIsBytes)
    add_i8_products<kTo, kTokens, kWeights>();
  else
    add_bf16_products<kTo, kTokens, kWeights>();
  if constexpr (F::kKind == Sum::kFine) add_bf16_products<kTo, kTokens + 1, kWeights>();
}

/// Scales the products of a slot and adds them.
template <class F, int N, int Slot>
[[gnu::always_inline]] inline void add_scaled(const Block& block, const Products& products,
                                              vf (&sums)[kBlockTokens]) {
  if (Slot >= block.slots || (F::kKind == Sum::kSplit && Slot % 2 == 0)) return;
  const WeightGroup& weights = F::weights(block.weights, Slot);
  const float* scales = F::scales(block.tokens, Slot);
  const vf weight_scales = load(weights.scales + N * kLanes);
  const vf minimums = load(weights.minimums + N * kLanes);
#pragma GCC unroll 4
  for (int first = 0; first < kBlockTokens; first += 4) {
    if (first >= block.count) return;
#pragma GCC unroll 4
    for (int t = first; t < first + 4; t++) {
      vf total = products[Slot][t];
      if constexpr (F::kIsBytes) total = to_float(as_int(total));
      if constexpr (F::kKind == Sum::kSplit) total += products[Slot - 1][t];
      if constexpr (F::kOffset != 0)
        total += splat(scales[kBlockTokens + t]) * static_cast<float>(F::kOffset);
      sums[t] = fma(total, weight_scales * splat(scales[t]), sums[t]);
      if constexpr (F::kHasMinimum)
        sums[t] = fma(minimums, splat(scales[kBlockTokens + t] * scales[t]), sums[t]);
    }
  }
}

/// Begins unit N of a block, and finishes an earlier one: scales its products and adds them, while
/// tiles compute. A product is stored one slot later, so that the store does not wait.
template <class F, int N>
[[gnu::always_inline]] inline void run_unit(const Block& before, const Block& now,
                                            Products (&ring)[kRing]) {
  constexpr int kEnded = (N + kTileVectors - kLag) % kTileVectors, kLast = F::kSlots - 1;
  const Block& ended = N < kLag ? before : now;
  const Products& ready = ring[kEnded % kRing];
  Products& to = ring[N % kRing];
  const bool begins = now.count > 0, ends = ended.count > 0;
  vf sums[kBlockTokens] = {};
  float* at = ended.sums + kEnded * kBlockTokens * kLanes;
  if (ends) {
#pragma GCC unroll 16
    for (int t = 0; t < kBlockTokens; t++) sums[t] = load(at + t * kLanes);
  }
  if (begins) multiply_slot<F, N, 0>(now);
  if (N > 0 || before.count > 0) store_tile<1>(ring[(N + kTileVectors - 1) % kRing][kLast]);
  if (ends) add_scaled<F, kEnded, 0>(ended, ready, sums);
  if (begins) {
    multiply_slot<F, N, 1>(now);
    store_tile<0>(to[0]);
  }
  if (ends) add_scaled<F, kEnded, 1>(ended, ready, sums);
  if constexpr (F::kSlots == 4) {
    if (begins) {
      multiply_slot<F, N, 2>(now);
      store_tile<1>(to[1]);
    }
    if (ends) add_scaled<F, kEnded, 2>(ended, ready, sums);
    if (begins) {
      multiply_slot<F, N, 3>(now);
      store_tile<0>(to[2]);
    }
    if (ends) add_scaled<F, kEnded, 3>(ended, ready, sums);
  }
  if (ends) {
#pragma GCC unroll 16
    for (int t = 0; t < kBlockTokens; t++) store(at + t * kLanes, sums[t]);
  }
}

template <class F>
void run_block(const Block& before, const Block& now, Products (&ring)[kRing]) {
  run_unit<F, 0>(before, now, ring);
  if (kLag == 1 && now.count == 0) return;
  run_unit<F, 1>(before, now, ring);
  if (now.count == 0) return;
  run_unit<F, 2>(before, now, ring);
  run_unit<F, 3>(before, now, ring);
}

/// Memory of a thread: the weights of a block's slots and products, which stay in the L1 cache, even
/// in half of it.
struct Room {
  WeightGroup weights[4];
  Products products[kRing];
};

/// Adds the products of the unpacked groups for all blocks of tokens.
template <class F>
void add_groups(Room& room, int64_t groups, const uint8_t* tokens, int64_t stride, int64_t count,
                float* sums, Fetcher fetcher) {
  const int64_t all = div_up(count, kBlockTokens);
  fetcher.part = round_up(div_up(fetcher.end - fetcher.at, all), 64);
  Block two[2];
  for (int64_t block = 0; block < all; block++) {
    Block& now = two[block % 2];
    now.weights = room.weights;
    now.tokens = tokens + block * stride;
    now.sums = sums + block * kBlockTokens * kTileRows;
    now.slots = static_cast<int>(groups * F::kGroupSlots);
    now.count = static_cast<int>(std::min(count - block * kBlockTokens, kBlockTokens));
    fetcher.fetch();
    run_block<F>(two[(block + 1) % 2], now, room.products);
  }
  run_block<F>(two[(all + 1) % 2], {}, room.products);
}

/// How a type's groups are added, and how many at a time.
struct Adder {
  void (*add)(Room& room, int64_t groups, const uint8_t* tokens, int64_t stride, int64_t count,
              float* sums, Fetcher fetcher);
  int64_t groups;
};

template <class F>
constexpr Adder adder() {
  return {add_groups<F>, F::kGroups};
}

Adder adder_of(int32_t type) {
  switch (type) {
    case SK_I8:
    case SK_Q4:
    case SK_NF4:
      return adder<Form<Sum::kBytes>>();
    case SK_Q6_K:
      return adder<Form<Sum::kHalves>>();
    case SK_Q8_0:
      return adder<Form<Sum::kSplit>>();
    case SK_Q4_1:
    case SK_Q4_K:
      return adder<Form<Sum::kFine, true>>();
    case SK_Q5_1:
    case SK_Q5_K:
      return adder<Form<Sum::kFine, true, 16>>();
    default:
      return adder<Form<Sum::kFine>>();
  }
}

}  // namespace

void pack_tokens(TokenForm form, int64_t columns, const uint8_t* tokens, int64_t stride,
                 int64_t count, int64_t first, int64_t end, uint8_t* block) {
  const bool is_fine = form != TokenForm::kBytes;
  const ActivationLayout bytes(columns);
  const FineLayout fine(columns);
  for (int64_t g = first; g < end; g++) {
    uint8_t* group = block + g * token_group_bytes(form);
    float* scales = reinterpret_cast<float*>(group + token_group_bytes(form)) - 2 * kBlockTokens;
    if (count < kBlockTokens) std::memset(group, 0, token_group_bytes(form));
    for (int64_t t = 0; t < count; t++) {
      const uint8_t* token = tokens + t * stride;
      uint8_t* row = group + t * kGroup * 2;
      if (!is_fine) {
        std::memcpy(group + t * kGroup, token + g * kGroup, kGroup);
        scales[t] = reinterpret_cast<const float*>(token + bytes.scales_at)[g];
        continue;
      }
      pack_fine(token + g * kGroup * 2, form == TokenForm::kHalves, row);
      const int32_t* sums = reinterpret_cast<const int32_t*>(token + fine.sums_at) + 2 * g;
      scales[t] = reinterpret_cast<const float*>(token + fine.scales_at)[g];
      scales[kBlockTokens + t] = static_cast<float>(sums[0] + sums[1]);
    }
  }
}

const float* multiply_tile(const sk_matrix& weight, int64_t index, const uint8_t* blocks,
                           int64_t count) {
  const uint8_t* tile = weight.tile(index);
  const bool has_next = index + 1 < weight.tiles();
  static thread_local Buffer rooms, all_sums;
  if (rooms.size() == 0) rooms = Buffer(sizeof(Room));
  const int64_t bytes = round_up(count, kBlockTokens) * kTileRows * 4;
  if (static_cast<int64_t>(all_sums.size()) < bytes) all_sums = Buffer(static_cast<size_t>(bytes));
  float* sums = all_sums.as<float>();
  std::memset(sums, 0, static_cast<size_t>(bytes));
  Room& room = *rooms.as<Room>();
  use_tiles(is_packed(weight.type) ? kWholeTiles : kByteTiles);
  const TokenForm form = token_form(weight.type);
  const int64_t groups = div_up(weight.columns, kGroup);
  const auto [add, step] = adder_of(weight.type);
  for (int64_t g = 0; g < groups; g += step) {
    const int64_t end = std::min(g + step, groups);
    unpack_groups(weight.type, tile, g, end, room.weights);
    // What is unpacked after the next groups; the next tile follows this one.
    const auto place = [&](int64_t from) {
      const int64_t at = weight.tile_stride * from / groups;
      return tile + std::min(at, weight.tile_stride * (has_next ? 2 : 1));
    };
    const Fetcher fetcher = {place(g + 2 * step), place(g + 3 * step), 0};
    add(room, end - g, blocks + g * token_group_bytes(form),
        token_block_bytes(form, weight.columns), count, sums, fetcher);
  }
  return sums;
}

}  // namespace skein
#endif
