// y = epilogue(x·Wᵀ + bias) for several independent jobs at once: the threads share the tiles of
// all jobs. For i8, q4, nf4 and GGUF weights a command before this one quantises each distinct
// input once.
#include <algorithm>
#include <limits>
#include <utility>

#include "packed-tile.h"
#include "program.h"
#include "split.h"
#include "tile-products.h"

namespace skein {

namespace {

struct Job {
  float* y;        // [T, W.rows]
  const float* x;  // [T, W.columns]
  const sk_matrix* weight;
  const float* bias;  // [W.rows] or null
  int32_t epilogue;
  const Rounded* rounded;  // x as rounded by the command before; null: it is in scratch
  int64_t quantised_at;    // offset of the quantised or split x there, if the weights need one
  bool skips_zeros;      // of x, at few tokens
  int64_t blocks_at = 0;  // offset of x there in blocks of tokens, for tile products
};

int32_t tokens_of(const Batch& batch, bool of_logits) {
  return of_logits ? batch.num_logits : batch.num_tokens;
}

/// Bytes of one token in the form that weights of this type are multiplied with.
int64_t token_bytes(int32_t type, int64_t columns) {
  if (is_packed(type)) return FineLayout(columns).stride;
  return is_quantised(type) ? ActivationLayout(columns).stride : columns * 4;
}

/// Quantises the distinct inputs of a linear command. One token is one item.
struct Quantise final : Command {
  struct Input {
    const float* x;
    int64_t columns;
    bool is_fine;
    int64_t at;
  };
  sk_program* program;
  bool of_logits;
  std::vector<Input> inputs;

  int64_t items(const Batch& batch, int) const override {
    return static_cast<int64_t>(inputs.size()) * tokens_of(batch, of_logits);
  }

  void run(const Batch& batch, int64_t item, int, int) override {
    const int64_t tokens = tokens_of(batch, of_logits);
    const Input& input = inputs[item / tokens];
    const int64_t t = item % tokens;
    const float* x = input.x + t * input.columns;
    uint8_t* to = program->scratch.as<uint8_t>() + input.at;
    if (input.is_fine) {
      const FineLayout layout(input.columns);
      quantise_fine(x, layout, 0, layout.groups, to + t * layout.stride);
    } else {
      const ActivationLayout layout(input.columns);
      quantise(x, input.columns, layout, 0, layout.groups, to + t * layout.stride);
    }
  }
};

bool is_integer(int32_t type) { return is_quantised(type) || is_packed(type); }

/// Whether a linear command multiplies quantised weights by tile registers.
bool is_by_tiles(int64_t tokens) { return kHasTiles && tokens >= kLeastTokens; }

/// Split tokens and packed ones have blocks of this size.
static_assert(SplitLayout::kMostRows == kBlockTokens);

/// Makes blocks of tokens, for tile registers, of the distinct inputs of a linear command. An item is
/// a part of a block: kPart groups of one input.
template <class Input>
struct MakeBlocks final : Command {
  sk_program* program;
  bool of_logits;
  std::vector<Input> inputs;
  int64_t parts = 0;  // of a block of all inputs

  int64_t items(const Batch& batch, int) const override {
    const int64_t tokens = tokens_of(batch, of_logits);
    return Input::is_used(tokens) ? parts * div_up(tokens, kBlockTokens) : 0;
  }

  void run(const Batch& batch, int64_t item, int, int) override {
    if constexpr (kHasTiles) {
      int64_t part = item % parts;
      const Input* input = inputs.data();
      for (; part >= parts_of(*input); input++) part -= parts_of(*input);
      const int64_t first = part * Input::kPart, groups = div_up(input->columns, kGroup);
      input->make(program->scratch.as<uint8_t>(), item / parts, tokens_of(batch, of_logits), first,
                  std::min(first + Input::kPart, groups));
    }
  }

  static int64_t parts_of(const Input& input) {
    return div_up(input.columns, Input::kPart * kGroup);
  }
};

/// For bf16 weights.
struct SplitInput {
  static constexpr int64_t kPart = 16;
  const float* x;
  int64_t columns;
  int64_t at;

  static bool is_used(int64_t tokens) { return is_split(SK_BF16, tokens); }

  void make(uint8_t* scratch, int64_t block, int64_t tokens, int64_t first, int64_t end) const {
    const SplitLayout layout(columns, tokens);
    const int64_t token = block * layout.rows;
    split_block(x + token * columns, columns, layout, std::min(layout.rows, tokens - token), first,
                end, scratch + at + block * layout.block);
  }
};

/// For quantised weights.
struct PackInput {
  static constexpr int64_t kPart = 32;
  const float* x;
  int64_t columns;
  TokenForm form;
  const Rounded* rounded;  // null: it is in scratch, at
  int64_t quantised_at;
  int64_t at;

  static bool is_used(int64_t tokens) { return is_by_tiles(tokens); }

  void make(uint8_t* scratch, int64_t block, int64_t tokens, int64_t first, int64_t end) const {
    const int64_t stride = form == TokenForm::kBytes ? ActivationLayout(columns).stride
                                                     : FineLayout(columns).stride;
    const uint8_t* from = rounded != nullptr ? rounded->to.as<uint8_t>() : scratch + quantised_at;
    pack_tokens(form, columns, from + block * kBlockTokens * stride, stride,
                std::min(kBlockTokens, tokens - block * kBlockTokens), first, end,
                scratch + at + block * token_block_bytes(form, columns));
  }
};

using Split = MakeBlocks<SplitInput>;
using PackTokens = MakeBlocks<PackInput>;

vf activate(int32_t epilogue, vf y) {
  switch (epilogue) {
    case SK_TANH:
      return tanh(y);
    case SK_SIGMOID:
      return sigmoid(y);
    case SK_RELU2: {
      const vf positive = select(y < 0.0f, vf{}, y);  // NaN is not < 0, so it is kept
      return positive * positive;
    }
    default:
      return y;
  }
}

/// Finishes kLanes outputs of one token, from `output` on. Outputs beyond the matrix's rows are
/// padding and are not stored.
void finish(const Job& job, vf y, int64_t token, int64_t output) {
  const int64_t rows = job.weight->rows;
  float* to = job.y + token * rows + output;
  if (output + kLanes <= rows) {
    if (job.bias != nullptr) y += load(job.bias + output);
    y = activate(job.epilogue, y);
    store(to, job.epilogue == SK_ADD ? load(to) + y : y);
    return;
  }
  float padded[kLanes] = {};
  const int64_t count = std::max<int64_t>(rows - output, 0);
  if (job.bias != nullptr) std::copy_n(job.bias + output, count, padded);
  store(padded, activate(job.epilogue, y + load(padded)));
  for (int64_t i = 0; i < count; i++)
    to[i] = job.epilogue == SK_ADD ? to[i] + padded[i] : padded[i];
}

/// Computes all outputs of a tile, whose weights are at `weights`, for Rows tokens. Between passes
/// the sums are spilled to memory, which keeps their bits.
template <class Weights, int Rows>
void multiply_block(const Job& job, int64_t tile, const uint8_t* weights, const Inputs& inputs,
                    int64_t token) {
  constexpr int kVectors = vectors_for<Weights>(Rows);
  constexpr int kParts = kTileVectors / kVectors;
  const int64_t step = kParts == 1 ? inputs.columns : kPassInputs;
  Sums<Rows, kVectors> parts[kParts];
  for (int64_t from = 0; from < inputs.columns; from += step) {
    const int64_t to = std::min(from + step, inputs.columns);
    for (int part = 0; part < kParts; part++) {
      Sums<Rows, kVectors> sums = parts[part];
      Weights::multiply(weights, part * kVectors * kLanes, inputs, from, to, sums);
      parts[part] = sums;
    }
  }
  for (int row = 0; row < Rows; row++) {
    for (int n = 0; n < kTileVectors; n++) {
      finish(job, parts[n / kVectors].at[row][n % kVectors], token + row,
             tile * kTileRows + n * kLanes);
    }
  }
}

using Block = void (*)(const Job& job, int64_t tile, const uint8_t* weights, const Inputs& inputs,
                       int64_t token);

/// Like multiply_block, for inputs that are mostly zero: reads only the weights of non-zero inputs.
template <class Weights, int Rows, Block Dense = multiply_block<Weights, Rows>>
void multiply_sparse(const Job& job, int64_t tile, const uint8_t* weights, const Inputs& inputs,
                     int64_t token) {
  constexpr int kVectors = vectors_for<Weights>(Rows);
  UsedUnits used;
  used.list<Weights::kUnitWords, Rows>(inputs.first, inputs.stride,
                                       inputs.columns / Weights::kUnitInputs);
  // If too few inputs are zero, streaming all weights is faster.
  if (used.count * Weights::kUnitInputs > inputs.columns * 3 / 4) {
    Dense(job, tile, weights, inputs, token);
    return;
  }
  for (int first = 0; first < kTileVectors; first += kVectors) {
    Sums<Rows, kVectors> sums;
    Weights::multiply_used(weights, first * kLanes, inputs, used, sums);
    for (int row = 0; row < Rows; row++) {
      for (int n = 0; n < kVectors; n++) {
        const int64_t output = tile * kTileRows + (first + n) * kLanes;
        finish(job, sums.at[row][n], token + row, output);
      }
    }
  }
}

/// The kernels of one weight type, indexed by the number of tokens − 1.
struct Kernels {
  int64_t max_rows;
  const Block* blocks;  // [max_rows]
  int64_t sparse_rows;  // most tokens for which skipping common zeros pays
  const Block* sparse;  // [sparse_rows]
};

template <class Weights, int... Rows, int... SparseRows>
Kernels kernels_of(std::integer_sequence<int, Rows...>, std::integer_sequence<int, SparseRows...>) {
  static constexpr Block kBlocks[] = {multiply_block<Weights, Rows + 1>...};
  static constexpr Block kSparse[] = {multiply_sparse<Weights, SparseRows + 1>..., nullptr};
  return {sizeof...(Rows), kBlocks, sizeof...(SparseRows), kSparse};
}

template <class Weights>
Kernels kernels_of() {
  return kernels_of<Weights>(std::make_integer_sequence<int, Weights::kMaxRows>{},
                             std::make_integer_sequence<int, Weights::kSparseRows>{});
}

/// Finishes the outputs of a tile for split tokens, whose sums are [kTileVectors][16][kLanes].
void finish_rows(const Job& job, const float* sums, int64_t tile, int64_t token, int64_t count) {
  for (int64_t row = 0; row < count; row++, sums += kLanes) {
    for (int n = 0; n < kTileVectors; n++) {
      finish(job, load(sums + n * SplitLayout::kMostRows * kLanes), token + row,
             tile * kTileRows + n * kLanes);
    }
  }
}

#if defined(SKEIN_TILES)
template <int Rows>
void multiply_split_row(const Job& job, int64_t tile, const uint8_t* weights, const Inputs& inputs,
                        int64_t token) {
  if (Rows == 1 && inputs.columns % kGroup == 0)
    return multiply_block<SplitBf16Weights, 1>(job, tile, weights, inputs, token);
  alignas(64) float sums[kTileVectors * SplitLayout::kMostRows * kLanes];
  multiply_few<Rows>(weights, inputs, sums);
  finish_rows(job, sums, tile, token, Rows);
}

Kernels split_kernels() {
  static constexpr Block kBlocks[] = {multiply_split_row<1>, multiply_split_row<2>};
  static constexpr Block kSparse[] = {
      multiply_sparse<SplitBf16Weights, 1, multiply_split_row<1>>,
      multiply_sparse<SplitBf16Weights, 2, multiply_split_row<2>>};
  return {2, kBlocks, 2, kSparse};
}
#endif

Kernels kernels_for(int32_t type) {
  switch (type) {
    case SK_F32:
      return kernels_of<F32Weights>();
    case SK_F16:
      return kernels_of<F16Weights>();
    case SK_BF16:
#if defined(SKEIN_TILES)
      return split_kernels();
#else
      return kernels_of<Bf16Weights>();
#endif
    case SK_I8:
      return kernels_of<I8Weights>();
    case SK_Q4:
      return kernels_of<Q4Weights>();
    case SK_NF4:
      return kernels_of<Nf4Weights>();
    case SK_Q4_0:
      return kernels_of<PackedWeights<SK_Q4_0>>();
    case SK_Q4_1:
      return kernels_of<PackedWeights<SK_Q4_1>>();
    case SK_Q5_0:
      return kernels_of<PackedWeights<SK_Q5_0>>();
    case SK_Q5_1:
      return kernels_of<PackedWeights<SK_Q5_1>>();
    case SK_Q8_0:
      return kernels_of<PackedWeights<SK_Q8_0>>();
    case SK_Q4_K:
      return kernels_of<PackedWeights<SK_Q4_K>>();
    case SK_Q5_K:
      return kernels_of<PackedWeights<SK_Q5_K>>();
    default:
      return kernels_of<PackedWeights<SK_Q6_K>>();
  }
}

/// From so many tokens on, a tile is unpacked once for all blocks of tokens, if it then fits half
/// of a small L2 cache. Neither changes a bit.
constexpr int64_t kUnpackedBytes = 512 << 10;

/// Unpacking 16 weights of 16 bits takes two instructions of the units that multiply. GGUF's codes
/// of 8 bits are bytes already. The other types keep their form.
constexpr int64_t unpacked_from(int32_t type) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
#if defined(SK_DOTS)
  constexpr int64_t kPackedTokens = 16;
#else
  constexpr int64_t kPackedTokens = 32;
#endif
  if (type == SK_F16 || (type == SK_BF16 && !kSplits)) return 24;
  return is_packed(type) && type != SK_Q8_0 ? kPackedTokens : kNever;
}

/// Calls `what` with the form of unpacked weights: F32Weights, or DecodedWeights of GGUF's types.
template <class What>
auto with_unpacked(int32_t type, What&& what) {
  if (!is_packed(type)) return what(F32Weights{});
  const PackedFormat format = packed_format(type);
  if (format.group_scales == 2) return what(DecodedWeights<2, false>{});
  if (format.minimum != 0) return what(DecodedWeights<1, true>{});
  return what(DecodedWeights<1, false>{});
}

int64_t unpacked_bytes(const sk_matrix& weight) {
  return with_unpacked(weight.type, [&](auto form) { return form.tile_bytes(weight.columns); });
}

bool is_unpacked(const sk_matrix& weight, int64_t tokens) {
  return tokens >= unpacked_from(weight.type) && unpacked_bytes(weight) <= kUnpackedBytes;
}

void unpack_tile(int32_t type, const uint8_t* tile, int64_t columns, uint8_t* to) {
  switch (type) {
    case SK_Q4_0:
      return PackedWeights<SK_Q4_0>::decode(tile, columns, to);
    case SK_Q4_1:
      return PackedWeights<SK_Q4_1>::decode(tile, columns, to);
    case SK_Q5_0:
      return PackedWeights<SK_Q5_0>::decode(tile, columns, to);
    case SK_Q5_1:
      return PackedWeights<SK_Q5_1>::decode(tile, columns, to);
    case SK_Q4_K:
      return PackedWeights<SK_Q4_K>::decode(tile, columns, to);
    case SK_Q5_K:
      return PackedWeights<SK_Q5_K>::decode(tile, columns, to);
    case SK_Q6_K:
      return PackedWeights<SK_Q6_K>::decode(tile, columns, to);
    default: {
      const uint16_t* from = reinterpret_cast<const uint16_t*>(tile);
      float* floats = reinterpret_cast<float*>(to);
      for (int64_t i = 0; i < columns * kTileRows; i += kLanes)
        store(floats + i, type == SK_F16 ? load_f16(from + i) : load_bf16(from + i));
    }
  }
}

/// The tile in its unpacked form, in memory of this thread.
const uint8_t* unpack(const sk_matrix& weight, int64_t tile) {
  static thread_local Buffer room;
  const int64_t bytes = unpacked_bytes(weight);
  if (static_cast<int64_t>(room.size()) < bytes) room = Buffer(static_cast<size_t>(bytes));
  unpack_tile(weight.type, weight.tile(tile), weight.columns, room.as<uint8_t>());
  return room.as<uint8_t>();
}

/// With fewer tokens per chunk the threads would spend more time reading weights than multiplying.
constexpr int64_t kMinChunk = 24;
/// Split tokens of a chunk, and weight tiles of an item: a panel of both, and their sums, fit the
/// L2 cache.
constexpr int64_t kMostSplit = 256, kMostTiles = 4;

struct Linear final : Command {
  sk_program* program;
  bool of_logits;
  std::vector<Job> jobs;
  int64_t tiles = 0;       // of all jobs
  bool has_split = false;  // jobs with bf16 weights that are multiplied by tiles of AMX
  bool has_packed = false;  // jobs whose tokens PackTokens packs
  std::vector<const Rounded*> rounded;

  bool rounds(const Rounded& one) override {
    const auto job = std::find_if(jobs.begin(), jobs.end(),
                                  [&](const Job& any) { return any.y == one.values; });
    if (job == jobs.end() || job->weight->rows != one.columns || one.columns % kGroup != 0)
      return false;
    rounded.push_back(&one);
    return true;
  }

  /// Tokens are split into chunks as well if there are too few tiles to keep all threads busy.
  int64_t chunks(const Batch& batch, int threads) const {
    const int64_t tokens = tokens_of(batch, of_logits);
    const int64_t least = splits(tokens) ? div_up(tokens, kMostSplit) : 1;
    return std::clamp<int64_t>(div_up(4 * threads, tiles), least,
                               std::max(least, div_up(tokens, kMinChunk)));
  }

  bool splits(int64_t tokens) const { return has_split && tokens > 1; }

  /// Split tokens are read once for all tiles of an item.
  int64_t tiles_of_item(int64_t tokens, int threads) const {
    if (!splits(tokens) || tokens <= SplitLayout::kMostRows) return 1;
    return std::clamp<int64_t>(tiles / (4 * threads), 1, kMostTiles);
  }

  int64_t items(const Batch& batch, int threads) const override {
    const int64_t tokens = tokens_of(batch, of_logits);
    if (tokens == 0) return 0;
    return div_up(tiles, tiles_of_item(tokens, threads)) * chunks(batch, threads);
  }

  /// The job of a tile, and the tile's index in its matrix.
  std::pair<const Job*, int64_t> job_of(int64_t tile) const {
    const Job* job = jobs.data();
    for (; tile >= job->weight->tiles(); job++) tile -= job->weight->tiles();
    return {job, tile};
  }

  /// Only at few tokens, where a product is bound by memory. Which weights a product with a sparse
  /// input reads is not known before.
  Soon first_read(const Batch& batch, int thread, int threads) const override {
    constexpr int64_t kMostTokens = 8, kMostBytes = 128 << 10;
    const int64_t tokens = tokens_of(batch, of_logits), first = tiles * thread / threads;
    if (tokens == 0 || tokens > kMostTokens || first == tiles) return {};
    const auto [job, tile] = job_of(first);
    const sk_matrix& weight = *job->weight;
    if (job->skips_zeros && tokens <= kernels_for(weight.type).sparse_rows) return {};
    const int64_t own = std::min(weight.tiles(), tile + tiles * (thread + 1) / threads - first);
    const int64_t bytes = std::min((own - tile) * weight.tile_stride, kMostBytes);
    return {weight.tile(tile), weight.tile(tile) + bytes};
  }

  void run(const Batch& batch, int64_t item, int, int threads) override {
    const int64_t count = chunks(batch, threads), tokens = tokens_of(batch, of_logits);
    const int64_t chunk = item % count, width = tiles_of_item(tokens, threads);
    const bool is_last_chunk = chunk + 1 == count;
    // Blocks of tokens for tiles stay whole.
    const bool in_blocks = splits(tokens) || (has_packed && is_by_tiles(tokens));
    const int64_t unit = in_blocks ? kBlockTokens : 1;
    const auto start = [&](int64_t of) {
      return std::min(div_up(tokens, unit) * of / count * unit, tokens);
    };
    const int64_t from = start(chunk), to = start(chunk + 1);
    if (from == to) return;
    const int64_t end = std::min(tiles, (item / count + 1) * width);
    for (int64_t next = item / count * width; next < end;) {
      const auto [job, tile] = job_of(next);
      if (is_split(job->weight->type, tokens) && !(job->skips_zeros && to - from <= 2)) {
        const int64_t wide = std::min(end - next, job->weight->tiles() - tile);
        multiply_pieces(*job, tile, wide, tokens, from, to);
        next += wide;
      } else if (is_by_tiles(tokens) && is_integer(job->weight->type)) {
        multiply_by_tiles(*job, tile, from, to);
        next++;
      } else {
        multiply(*job, tile, from, to, is_last_chunk);
        next++;
      }
    }
    for (const Rounded* one : rounded) {
      for (int64_t next = item / count * width; next < end; next++) {
        const auto [job, tile] = job_of(next);
        if (one->values == job->y) round_tile(*one, tile, from, to);
      }
    }
  }

  void multiply_pieces(const Job& job, int64_t first, int64_t count, int64_t tokens, int64_t from,
                       int64_t to) const {
    if constexpr (kSplits) {
      const SplitLayout layout(job.weight->columns, tokens);
      const auto take = [](const void* of, const float* sums, int64_t tile, int64_t token,
                           int64_t rows) {
        finish_rows(*static_cast<const Job*>(of), sums, tile, token, rows);
      };
      multiply_split(*job.weight, first, count, layout,
                     program->scratch.as<uint8_t>() + job.quantised_at, from, to, {&job, take});
    }
  }

  void round_tile(const Rounded& y, int64_t tile, int64_t from, int64_t to) const {
    static_assert(kTileRows % kGroup == 0, "a tile rounds whole groups");
    const int64_t first = tile * kTileRows, count = std::min(kTileRows, y.columns - first);
    for (int64_t t = from; t < to; t++) y.round(t, first, count);
  }

  void multiply_by_tiles(const Job& job, int64_t tile, int64_t from, int64_t to) const {
    if constexpr (kHasTiles) {
      const sk_matrix& weight = *job.weight;
      const int64_t block_bytes = token_block_bytes(token_form(weight.type), weight.columns);
      const uint8_t* blocks = program->scratch.as<uint8_t>() + job.blocks_at;
      const float* sums =
          multiply_tile(weight, tile, blocks + from / kBlockTokens * block_bytes, to - from);
      for (int64_t t = from; t < to; t += kBlockTokens) {
        for (int n = 0; n < kTileVectors; n++, sums += kBlockTokens * kLanes) {
          for (int64_t i = 0; i < std::min(kBlockTokens, to - t); i++)
            finish(job, load(sums + i * kLanes), t + i, tile * kTileRows + n * kLanes);
        }
      }
    }
  }

  void multiply(const Job& job, int64_t tile, int64_t from, int64_t to, bool is_last_chunk) const {
    const int32_t type = job.weight->type;
    Inputs inputs = {reinterpret_cast<const uint8_t*>(job.x),
                     token_bytes(type, job.weight->columns), job.weight->columns};
    if (job.rounded != nullptr) {
      inputs.first = job.rounded->to.as<uint8_t>();
    } else if (is_integer(type)) {
      inputs.first = program->scratch.as<uint8_t>() + job.quantised_at;
    }
    const uint8_t* base = inputs.first;
    const bool unpacks = is_unpacked(*job.weight, to - from);
    const uint8_t* weights = unpacks ? unpack(*job.weight, tile) : job.weight->tile(tile);
    const Kernels kernels =
        unpacks ? with_unpacked(type, [](auto form) { return kernels_of<decltype(form)>(); })
                : kernels_for(type);
    inputs.streams = !unpacks;
    if (job.skips_zeros && to - from <= kernels.sparse_rows) {
      inputs.first = base + from * inputs.stride;
      kernels.sparse[to - from - 1](job, tile, weights, inputs, from);
      return;
    }
    const int64_t blocks = div_up(to - from, kernels.max_rows);
    // By the products of the tile before.
    const bool is_fetched = blocks > 1 && ahead(job, tile, 1, blocks).bytes > 0;
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t first = from + (to - from) * b / blocks,
                    end = from + (to - from) * (b + 1) / blocks;
      inputs.first = base + first * inputs.stride;
      inputs.ahead = is_last_chunk ? ahead(job, tile, b, blocks) : Ahead{};
      inputs.streams = !unpacks && b == 0 && !is_fetched;
      kernels.blocks[end - first - 1](job, tile, weights, inputs, first);
    }
  }

  /// Part b of the next tile to prefetch. The first block of tokens is bound by memory. The other
  /// blocks leave memory idle, so they prefetch the next tile between them, unless the share of
  /// each is so large that its products would wait for it.
  static Ahead ahead(const Job& job, int64_t tile, int64_t b, int64_t blocks) {
    constexpr int64_t kMostBytes = 1152;  // per group: 18 cache lines
    const sk_matrix& weight = *job.weight;
    const bool is_float = !is_quantised(weight.type) && !is_packed(weight.type);
    if (b == 0 || is_float || tile + 1 == weight.tiles()) return {};
    const int64_t group = weight.tile_stride / div_up(weight.columns, kGroup);
    const int64_t part = round_up(div_up(group, blocks - 1), 64);
    if (part > kMostBytes) return {};
    const int64_t start = (b - 1) * part;
    return {weight.tile(tile + 1) + start, group, std::clamp<int64_t>(group - start, 0, part)};
  }
};

/// Skipping is right if 0·w = 0 for every weight; list() needs a multiple of 64 columns.
bool can_skip_zeros(const sk_matrix& weight) {
  return weight.is_finite && weight.columns % 64 == 0 && weight.columns <= UsedUnits::kMost;
}

/// x in the integers of its weights, if the command that computes it is the last one. From now on
/// that command rounds it.
const Rounded* rounded_before(sk_program* program, const float* x, int64_t columns, bool is_fine) {
  auto& all = program->rounded;
  auto one = std::find_if(all.begin(), all.end(), [&](const auto& any) {
    return any->values == x && any->columns == columns && any->is_fine == is_fine;
  });
  if (one == all.end()) {
    all.push_back(std::make_unique<Rounded>(Rounded{x, columns, is_fine, {}}));
    one = all.end() - 1;
  }
  if (program->commands.empty() || !program->commands.back()->rounds(**one)) return nullptr;
  Buffer& to = (*one)->to;
  if (to.size() == 0) to = Buffer(static_cast<size_t>((*one)->stride() * program->max_tokens));
  return one->get();
}

void record(sk_program* program, bool of_logits, std::vector<Job> jobs) {
  const int64_t capacity = of_logits ? program->max_logits : program->max_tokens;
  auto linear = std::make_unique<Linear>();
  auto prepare = std::make_unique<Quantise>();
  auto split = std::make_unique<Split>();
  int64_t scratch = 0;
  auto& sparse = program->sparse;
  // The largest tiles first: if the last item were large, the other threads would wait for it.
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return a.weight->tile_stride > b.weight->tile_stride;
  });
  for (Job& job : jobs) {
    linear->tiles += job.weight->tiles();
    job.skips_zeros = std::find(sparse.begin(), sparse.end(), job.x) != sparse.end() &&
                      can_skip_zeros(*job.weight);
    const int32_t type = job.weight->type;
    const bool is_fine = is_packed(type);
    const int64_t columns = job.weight->columns;
    if (is_split(type, capacity)) {
      auto& inputs = split->inputs;
      auto known = std::find_if(inputs.begin(), inputs.end(), [&](const auto& input) {
        return input.x == job.x && input.columns == columns;
      });
      if (known == inputs.end()) {
        known = inputs.insert(inputs.end(), {job.x, columns, scratch});
        split->parts += Split::parts_of(*known);
        scratch += SplitLayout::most(columns, capacity);
      }
      job.quantised_at = known->at;
    }
    if (!is_integer(type)) continue;
    const auto twin = std::find_if(jobs.data(), &job, [&](const Job& other) {
      return other.rounded && other.x == job.x && other.rounded->is_fine == is_fine;
    });
    job.rounded = twin == &job ? rounded_before(program, job.x, columns, is_fine) : twin->rounded;
    if (job.rounded != nullptr) continue;
    auto& inputs = prepare->inputs;
    auto known = std::find_if(inputs.begin(), inputs.end(), [&](const auto& input) {
      return input.x == job.x && input.columns == columns && input.is_fine == is_fine;
    });
    if (known == inputs.end()) {
      known = inputs.insert(inputs.end(), {job.x, columns, is_fine, scratch});
      scratch += token_bytes(type, columns) * capacity;
    }
    job.quantised_at = known->at;
  }
  auto pack = std::make_unique<PackTokens>();
  for (Job& job : jobs) {
    const TokenForm form = token_form(job.weight->type);
    const int64_t columns = job.weight->columns;
    if (!is_by_tiles(capacity) || !is_integer(job.weight->type)) continue;
    auto known = std::find_if(pack->inputs.begin(), pack->inputs.end(), [&](const auto& input) {
      return input.x == job.x && input.columns == columns && input.form == form;
    });
    if (known == pack->inputs.end()) {
      scratch = round_up(scratch, 64);
      known = pack->inputs.insert(
          known, {job.x, columns, form, job.rounded, job.quantised_at, scratch});
      scratch += token_block_bytes(form, columns) * div_up(capacity, kBlockTokens);
      pack->parts += PackTokens::parts_of(*known);
    }
    job.blocks_at = known->at;
  }
  program->reserve_scratch(scratch);
  prepare->program = pack->program = split->program = linear->program = program;
  prepare->of_logits = pack->of_logits = split->of_logits = linear->of_logits = of_logits;
  linear->jobs = std::move(jobs);
  if (!prepare->inputs.empty()) program->commands.push_back(std::move(prepare));
  linear->has_packed = !pack->inputs.empty();
  if (linear->has_packed) program->commands.push_back(std::move(pack));
  linear->has_split = !split->inputs.empty();
  if (linear->has_split) program->commands.push_back(std::move(split));
  program->commands.push_back(std::move(linear));
}

}  // namespace

}  // namespace skein

using namespace skein;

extern "C" {

int32_t sk_record_linear(sk_program* program, int32_t num_jobs, float* const* y,
                         const float* const* x, const sk_matrix* const* weight,
                         const float* const* bias, const int32_t* epilogue) {
  return guard([&] {
    require(num_jobs > 0, "linear needs a job");
    std::vector<Job> jobs;
    for (int32_t i = 0; i < num_jobs; i++) {
      require(epilogue[i] >= SK_NONE && epilogue[i] <= SK_ADD, "unknown epilogue");
      jobs.push_back({y[i], x[i], weight[i], bias[i], epilogue[i], nullptr, 0, false});
    }
    for (const Job& job : jobs) {
      if (job.epilogue == SK_RELU2) program->sparse.push_back(job.y);
    }
    record(program, false, std::move(jobs));
  });
}

int32_t sk_record_logits(sk_program* program, float* y, const float* x, const sk_matrix* weight) {
  return guard(
      [&] { record(program, true, {{y, x, weight, nullptr, SK_NONE, nullptr, 0, false}}); });
}

}  // extern "C"
