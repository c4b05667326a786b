// All layers of an RWKV-7 step of a few tokens in one cooperative launch. Each token is of a
// different sequence, or all are of the same one. The time of such a step is the time to read the
// weights. A chain of launches does not read them at the full rate of the memory, because each
// launch has to start and to end. Here every block knows its rows of all matrices in all layers. It
// prefetches them in order into shared memory, far ahead of the layer that is being computed: each
// warp for itself (few-rows-warps.cuh), or one or two warps for the whole block
// (few-rows-feed.cuh).
//
// A layer has five phases, with a grid barrier after each, or with words that are polled (WORDS):
//   in      norm and mixes (each block computes the whole row) → r, k, v and the inner low ranks
//   heads   one head of a token per block: outer low ranks, gates, state, group norm, bonus → out
//   output  x += out·Wᵀ
//   key     norm and mix → u = relu²(…)
//   value   x += u·value: some columns per block, only rows whose u is not zero; with WORDS some
//           rows of the other layout, all of them
// Narrow models may end with the norm and the head (few-rows-logits.cuh).
// Blocks never add to one sum in an order that can change, and a token's sums are the same to the
// bit for any TOKENS. Matrices are f16 [rows, columns], value transposed, vectors and x f32. r, k,
// v, output, key and value may be quantised (QUANT, as in quant.cuh). Then value either has the
// layout of active-rows.cu (ACTIVE), or that of the other matrices; a block then has rows of it and
// reads all of them. Tolerance: that of the ops that it replaces (wkv7-decode.cu, linear-few.cu or
// linear-quant.cu, linear-sparse.cu, shift-mix.cu).
//
// TOKENS: at most, 1 or 2 · BLOCKS · WARPS: those that multiply; one more warp handles the barrier,
// and FEED more (0 to 2) load weights · CHANNELS (a multiple of 64, up to 4096) · KEYS: rows of key
// (a multiple of 8) · MIXES: products of `in` of which a block has rows, at most · IN_ROWS: rows of
// `in` per block, at most · LIST: active u listed at a time · REGION: bytes of shared memory that
// the phases use in turn · FIXED: bytes of Shared, at most · the parameters of few-rows-warps.cuh
// or few-rows-feed.cuh · QUANT, if it is not f16; then ACTIVE (0 or 1), and IN_WEIGHT, the size of
// a row of r, k or v in units of 16 bytes. With QUANT, FEED is at least 1, and KEYS is a multiple
// of CHANNELS
#include "few-rows-heads.cuh"
#if HAS_LOGITS
#include "few-rows-logits.cuh"
#endif
#if ACTIVE
#include "few-rows-value.cuh"
#endif

/** Run by the warp that does not multiply: loads the next layer's addresses, and prefetches its
 * vectors and states into L2. */
__device__ __forceinline__ void fetch_layer(const FewRows& op, Block& b, int l) {
  const int lane = threadIdx.x & 31;
  if (l >= op.num_layers) return;
  const Layer* const from = op.layers + l;
  Layer& layer = b.sh.layers[l & 1];
  static_assert(sizeof(Layer) % 16 == 0 && sizeof(Layer) <= 32 * 16, "one load a lane");
  if (lane < sizeof(Layer) / 16)
    reinterpret_cast<uint4*>(&layer)[lane] = reinterpret_cast<const uint4*>(from)[lane];
  __syncwarp();
  for (int line = blockIdx.x; line < CHANNELS / 32; line += BLOCKS) {
    if (lane < kVectors && layer.vectors[lane] != nullptr)
      prefetch(layer.vectors[lane] + 32 * line);
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
      if (lane >= 30) prefetch(layer.shift[lane - 30] + b.slots[t] * op.shift_stride + 32 * line);
  }
  const Wkv7& mixing = layer.mixing;
  constexpr int kLine = 128 / sizeof(state_t), kLines = 4096 / kLine;
  for (int i = 0; b.tasks.has(b.tasks.at(i)); i++) {
    const HeadTask task = b.tasks.at(i);
    const state_t* const state = static_cast<const state_t*>(mixing.state) +
                                 slot_of(b, task.token) * mixing.slot_stride + task.head * 4096;
    for (int line = lane; line < kLines; line += 32) prefetch(state + line * kLine);
  }
}

/** Operands of a phase's norm, loaded before the barrier. */
struct NormOperands {
  Row weight, bias;
  Rows previous;
};

__device__ __forceinline__ NormOperands load_norm(const FewRows& op, const Block& b,
                                                  const Layer& layer, int which) {
  const float* const* const norm = layer.vectors + (which == 0 ? kNorm1 : kNorm2);
  NormOperands n = {load_row(norm[0]), load_row(norm[1])};
#pragma unroll
  for (int t = 0; t < TOKENS; t++)
    n.previous.of[t] = load_row(layer.shift[which] + b.slots[t] * op.shift_stride);
  return n;
}

/** x in memory. */
__device__ __forceinline__ Rows load_x(const FewRows& op, const Block& b) {
  Rows x;
#pragma unroll
  for (int t = 0; t < TOKENS; t++) x.of[t] = load_fresh(op.x + min(t, b.num_tokens - 1) * CHANNELS);
  return x;
}

__device__ __forceinline__ Rows norm_of(Rows h, const FewRows& op, Block& b,
                                        const NormOperands& n) {
  normalise(h.of, op.eps, b.sh.scratch);
#pragma unroll
  for (int t = 0; t < TOKENS; t++) h.of[t] = affine(h.of[t], n.weight, n.bias);
  return h;
}

/** What each token is mixed with: its row's shift vector, or h of the token before. */
__device__ __forceinline__ void find_previous(Rows& previous, const Rows& h, const Block& b) {
#pragma unroll
  for (int t = 1; t < TOKENS; t++)
    if (b.tasks.is_one_row) previous.of[t] = h.of[t - 1];
}

/** Epilogue of a row of `in`: tanh for the inner rank of w, sigmoid for that of g. */
__device__ __forceinline__ int in_epilogue(const FewRows& op, int row) {
  const int w = kFirstLow, g = kFirstLow + 2;
  return row >= op.first[g] && row < op.first[g + 1]   ? kSigmoid
         : row >= op.first[w] && row < op.first[w + 1] ? kTanh
                                                       : kNone;
}

/** Scale of a row of `in`: 1 for the low ranks, and from `end` on. */
__device__ __forceinline__ float in_scale(const FewRows& op, const Matrices& m, int row, int end) {
  if (row >= min(end, op.first[kFirstLow])) return 1.0f;
  const int j = job_of(op, row);
  return row_scale(m, j, row - op.first[j]);
}

/** The `in` phase. Returns the part of h that the block keeps. */
__device__ __forceinline__ Row in_phase(const FewRows& op, Block& b, Stream& s, int l,
                                        bool is_first) {
  const Layer& layer = b.sh.layers[l & 1];
  const Place rows = b.in;
  const int end = min(rows.end, in_rows(op, layer.matrices));
  f16* const inputs = reinterpret_cast<f16*>(b.region);
  NormOperands n = load_norm(op, b, layer, 0);
  Row mixes[MIXES];
  bool has[MIXES];
#pragma unroll
  for (int i = 0; i < MIXES; i++) {
    has[i] = i == 0 ? rows.begin < end : b.bounds[i - 1] < end;
    if (has[i]) mixes[i] = load_row(layer.vectors[kMix + b.first_job + i]);
  }
  if (!WORDS && !is_first) b.barrier.wait();
  const Rows h = norm_of(WORDS && !is_first ? take_x(b, kAfterValue) : load_x(op, b), op, b, n);
  b.words.epoch++;
  find_previous(n.previous, h, b);
#pragma unroll
  for (int i = 0; i < MIXES; i++)
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
      if (has[i])
        mix_input(inputs + (i * TOKENS + t) * CHANNELS, h.of[t], n.previous.of[t], mixes[i]);
  const Row own = own_shift(h);
  sync_threads();
  if (threadIdx.x >= kWorkers) return own;
  // All row scales are loaded before the sums are complete.
  const float first = in_scale(op, layer.matrices, rows.begin + (int)threadIdx.x, end);
#pragma unroll
  for (int i = 0; i < MIXES; i++) {
    if (!has[i]) continue;
    const int begin = i == 0 ? rows.begin : b.bounds[i - 1];
    const int count = min(end, b.bounds[i]) - begin;
    const f16* const input = inputs + i * TOKENS * CHANNELS;
    if (b.first_job + i < kFirstLow)
      multiply_large(b.sh, s, input, begin - rows.begin, count);
    else
      multiply_small(b.sh, s, input, begin - rows.begin, count);
  }
  sync_workers();
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
    if (t >= b.num_tokens) break;
    float scale = first;
    for (int i = threadIdx.x; i < end - rows.begin; i += kWorkers) {
      const int row = rows.begin + i;
      const float y = row < op.first[kFirstLow] ? sum_slices(b.sh, t, i) * scale
                                                : sum_slices<kSlices>(b.sh, t, i);
      const auto out = [&] { return to_f16(apply_epilogue(y, in_epilogue(op, row))); };
      if constexpr (WORDS)
        b.words.give(kOfIn + t * op.first[kIn] + row, out().bits);
      else
        op.y[t * op.first[kIn] + row] = out();
      scale = in_scale(op, layer.matrices, row + kWorkers, end);
    }
  }
  return own;
}

/** x += W·input on the block's rows. Copies the input from `from`, or takes its words at `at`, and
 * gives x at `to`. Calls `begin` when all blocks have done the phase before, then `multiply`.
 * `scales` is the matrix's index among those with scales. */
template <int Columns, class Begin, class Multiply>
__device__ __forceinline__ void add_phase(const FewRows& op, Block& b, const Matrices& matrices,
                                          int scales, const f16* from, int at, int to, Begin begin,
                                          Multiply multiply) {
  constexpr int kOwnSlices = QUANT ? kLargeSlices : kInTurns ? kSlices : slices_of(Columns);
  f16* const input = reinterpret_cast<f16*>(b.region);
  static_assert(TOKENS * kOutputRows <= kWorkers, "a row of a token a thread");
  const Place rows = share_of(CHANNELS);
  const int count = rows.end - rows.begin;
  const int token = threadIdx.x / kOutputRows, row = threadIdx.x % kOutputRows;
  float* const x = op.x + token * CHANNELS + rows.begin + row;
  const bool adds = token < b.num_tokens && row < count;
  // With words, other blocks may read x in memory until `value` of the first layer.
  const bool is_kept = WORDS && to == kAfterOutput;
  // No other block writes these values.
  const float old = WORDS && !is_kept ? b.kept_x : adds ? __ldcg(x) : 0.0f;
  const float scale = adds ? row_scale(matrices, scales, rows.begin + row) : 1.0f;
  begin_phase(b);
  if constexpr (!WORDS) begin();
  for (int i = threadIdx.x; i < b.num_tokens * (Columns / kVector); i += THREADS)
    reinterpret_cast<uint4*>(input)[i] = as_input(
        WORDS ? b.words.take_four(at + 4 * i) : __ldcg(reinterpret_cast<const uint4*>(from) + i));
  sync_threads();
  if constexpr (WORDS) begin();
  if (threadIdx.x >= kWorkers) return;
  multiply(input, count);
  sync_workers();
  if (!adds) return;
  const float sum = old + sum_slices<kOwnSlices>(b.sh, token, row) * scale;
  if (is_kept)
    b.kept_x = sum;
  else
    *x = sum;
  if constexpr (WORDS) b.words.give(to + (int)(x - op.x), __float_as_uint(sum));
}

/** The `output` phase. */
__device__ __forceinline__ void output_phase(const FewRows& op, Block& b, Stream& s, int l) {
  const Layer& layer = b.sh.layers[l & 1];
  const auto multiply = [&](const f16* input, int rows) {
    multiply_large(b.sh, s, input, 0, rows);
  };
  add_phase<CHANNELS>(
      op, b, layer.matrices, kFirstLow, layer.mixing.out, kOfHeads, kAfterOutput, [] {}, multiply);
}

#if !ACTIVE
/** The `value` phase of a matrix that is not transposed: all of its rows. */
__device__ __forceinline__ void whole_value_phase(const FewRows& op, Block& b, Stream& s, int l,
                                                  const Row& shift) {
  const Layer& layer = b.sh.layers[l & 1];
  const auto begin = [&] { keep_shift(op, b, layer, 1, shift); };
  const auto multiply = [&](const f16* input, int rows) {
#if QUANT
    multiply_rounded<kValueChunks>(s, input, b.sh.sums, rows);
#else
    multiply_rows<KEYS>(s, input, b.sh.sums + kSumRows * (threadIdx.x >> 5), rows);
#endif
  };
  add_phase<KEYS>(op, b, layer.matrices, kFirstLow + 2, op.u, kOfKey, kAfterValue, begin, multiply);
}
#endif

/** Rows of key whose sums are finished while the next rows are multiplied. There are at most
 * kKeyParts such parts, each with its own barrier of the block. */
constexpr int kKeyPart =
    (kKeyRows + kKeyParts * kLargeStep - 1) / (kKeyParts * kLargeStep) * kLargeStep;

__device__ __forceinline__ int key_barrier(int part) { return 2 + part / kKeyPart; }

/** Run by the warp that does not multiply: computes u of the block's rows from their sums. */
__device__ __forceinline__ void finish_keys(const FewRows& op, const Block& b,
                                            const Matrices& matrices, Place rows) {
  const int lane = threadIdx.x & 31, count = rows.end - rows.begin;
#pragma unroll 1
  for (int part = 0; part < count; part += kKeyPart) {
    const int end = min(part + kKeyPart, count);
    const auto scale_of_row = [&](int i) {
      return i < end ? row_scale(matrices, kFirstLow + 1, rows.begin + i) : 1.0f;
    };
    const float first = scale_of_row(part + lane);
    sync_some(key_barrier(part), THREADS);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      if (t >= b.num_tokens) break;
      float scale = first;
#pragma unroll 1
      for (int i = part + kTogether * lane; i < end; i += 32 * kTogether) {
        if constexpr (WORDS)
          b.words.give(kOfKey + (t * KEYS + rows.begin + i) / 2,
                       pack(apply_epilogue(sum_slices(b.sh, t, i), kRelu2),
                            apply_epilogue(sum_slices(b.sh, t, i + 1), kRelu2)));
        else
          op.u[t * KEYS + rows.begin + i] =
              to_f16(apply_epilogue(sum_slices(b.sh, t, i) * scale, kRelu2));
        scale = scale_of_row(i + 32);
      }
    }
  }
}

/** The `key` phase. Returns the part of h that the block keeps. */
__device__ __forceinline__ Row key_phase(const FewRows& op, Block& b, Stream& s, int l) {
  const Layer& layer = b.sh.layers[l & 1];
  f16* const input = reinterpret_cast<f16*>(b.region);
  NormOperands n = load_norm(op, b, layer, 1);
  const Row mix = load_row(layer.vectors[kKeyMix]);
  if constexpr (!WORDS) b.barrier.wait();
  const Rows h = norm_of(WORDS ? take_x(b, kAfterOutput) : load_x(op, b), op, b, n);
#if WORDS
  keep_shift(op, b, layer, 0, load_row(b.sh.shift));
#endif
  find_previous(n.previous, h, b);
#pragma unroll
  for (int t = 0; t < TOKENS; t++) mix_input(input + t * CHANNELS, h.of[t], n.previous.of[t], mix);
  const Row own = own_shift(h);
  sync_threads();
  const Place rows = share_of_keys();
  if (threadIdx.x >= kWorkers) {
    fetch_layer(op, b, l + 1);
    finish_keys(op, b, layer.matrices, rows);
    return own;
  }
  const int count = rows.end - rows.begin;
#pragma unroll 1
  for (int part = 0; part < count; part += kKeyPart) {
    multiply_large(b.sh, s, input, part, min(kKeyPart, count - part));
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(key_barrier(part)), "n"(THREADS) : "memory");
  }
  return own;
}

extern "C" __global__ void __launch_bounds__(THREADS + OTHER_THREADS, 1)
    few_rows(Step step, const __grid_constant__ FewRows op, const __grid_constant__ Logits logits) {
  __shared__ Shared sh;
  // Aligned to 128 bytes, as the lines of global memory are. With an offset of 16 bytes, copies
  // take a tenth longer.
  alignas(128) extern __shared__ uint4 dynamic[];
  u8* const ring = reinterpret_cast<u8*>(dynamic);
  u8* const region = ring + kRingBytes;
  Matrices* const matrices = reinterpret_cast<Matrices*>(region + REGION);
  wait_for_previous();
  const int num_tokens = step.num_tokens();
  // Logits may be of kept rows alone.
  const bool makes_logits = HAS_LOGITS && logits.head != nullptr;
  if (num_tokens == 0 && !makes_logits) return;
  const int num_layers = num_tokens == 0 ? 0 : op.num_layers;

  copy_matrices(matrices, op);
  Block b = {sh, region, {op.arrivals, 0}, {}, 0, num_tokens};
  b.in = share_of_in(op);
#pragma unroll
  for (int t = 0; t < TOKENS; t++) b.slots[t] = step.slots[max(min(t, step.num_rows() - 1), 0)];
  b.tasks = {num_tokens, step.num_rows() < num_tokens};
  if (TOKENS == 2 && b.tasks.is_one_row && step.keeps[0] != kNowhere) b.slots[1] = step.keeps[0];
  b.first_job = job_of(op, b.in.begin);
#pragma unroll
  for (int i = 0; i < MIXES; i++) b.bounds[i] = op.first[min(b.first_job + i + 1, kIn)];
  b.barrier.sense = b.barrier.read() & 0x80000000u;
  if constexpr (WORDS) b.words = open_words(op, b.barrier);
  prepare_stream(op, sh.stream, b.tasks);
  __syncthreads();
#if FEED
  if (threadIdx.x >= THREADS) {
    feed_layers(op, sh.stream, matrices, ring, b.tasks);
    return;
  }
#endif
  Stream s = start_stream(sh.stream, matrices, num_layers, ring);
  if (threadIdx.x >= kWorkers && num_layers > 0) fetch_layer(op, b, 0);
  sync_threads();

  for (int l = 0; l < num_layers; l++) {
    Row kept = in_phase(op, b, s, l, l == 0);
    end_phase(b);
    heads_phase(op, b, s, l, kept);
    end_phase(b);
    output_phase(op, b, s, l);
    end_phase(b);
    kept = key_phase(op, b, s, l);
    end_phase(b);
#if !ACTIVE
    whole_value_phase(op, b, s, l, kept);
#else
    value_phase(op, b, s, l, kept);
#endif
    if (l == op.num_layers - 1) break;
    end_phase(b);
  }
#if HAS_LOGITS
  if (makes_logits) logits_phase(step, logits, b, s);
#endif
  // All blocks had read it before they gave anything.
  if (WORDS && blockIdx.x == 0 && threadIdx.x == 0) op.arrivals[1] = b.words.epoch;
  let_next_start();
}
