// All layers of an RWKV-7 step of up to eight tokens, of any rows, in one cooperative launch.
// Blocks, their rows, and the ring are those of few-rows.cu. But here tokens are the columns of the
// tensor cores, so a step of eight tokens has the code and registers of a step of three. In
// few-rows.cu each block computes the norm and mixes of the whole row for itself. Here one block
// does it for all others, because each block would have to read 256 KB for eight tokens.
//
// A layer has seven phases, with a grid barrier after each:
//   mix     one mix of a token per block: norm and mix → mixed
//   in      → r, k, v and the inner low ranks
//   heads   one head of some rows per block: outer low ranks, gates, state, group norm, bonus → out
//   output  x += out·Wᵀ
//   mix     one token per block: norm and mix → mixed
//   key     u = relu²(…)
//   value   x += u·value. f16: some columns per block, only rows whose u is not zero for a token.
//           Quantised: some rows per block of the matrix as it is, all of their columns
// A token's sums do not depend on the tokens beside it, nor on their number. Their order differs
// from that of few-rows.cu and of the ops. Tolerance: that of the ops (few-rows.cu).
//
// TOKENS: 8 · BLOCKS, at least 7 for each token · WARPS, FEED, SPLIT, STAGE_ROWS (16), RING,
// REGION, FIXED, IN_ROWS: as few-rows.cu has them · CHANNELS: a multiple of 512 · KEYS: a multiple
// of 32 · QUANT, if it is not f16; then IN_WEIGHT as few-rows.cu has it, the parameters of
// eight-rows-rounded.cuh, and KEYS is a multiple of CHANNELS
#include "eight-rows-feed.cuh"
#include "eight-rows-heads.cuh"
#if !QUANT
#include "eight-rows-value.cuh"
#endif

static_assert(BLOCKS >= kIn * TOKENS, "one mix of a token per block");

/** Run by the warp that does not multiply: loads the next layer's addresses, and prefetches its
 * vectors and states into L2. */
__device__ __forceinline__ void fetch_layer(const FewRows& op, Block& b, int l) {
  const int lane = threadIdx.x & 31;
  if (l >= op.num_layers) return;
  Layer& layer = b.sh.layers[l & 1];
  static_assert(sizeof(Layer) % 16 == 0 && sizeof(Layer) <= 32 * 16, "one load a lane");
  if (lane < sizeof(Layer) / 16)
    reinterpret_cast<uint4*>(&layer)[lane] = reinterpret_cast<const uint4*>(op.layers + l)[lane];
  __syncwarp();
  for (int line = blockIdx.x; line < CHANNELS / 32; line += BLOCKS) {
    if (lane < kVectors && layer.vectors[lane] != nullptr)
      prefetch(layer.vectors[lane] + 32 * line);
    if (lane < 2 * b.num_tokens && b.sh.tokens[lane >> 1].is_first)
      prefetch(layer.shift[lane & 1] + b.sh.tokens[lane >> 1].slot * op.shift_stride + 32 * line);
  }
  constexpr int kLine = 128 / sizeof(state_t), kLines = 4096 / kLine;
  const HeadShare& heads = b.sh.heads;
  for (int head = heads.head; head < kHeads; head += BLOCKS)
    for (int t = heads.begin; t < heads.end; t++) {
      if (!b.sh.tokens[t].is_first) continue;
      const state_t* const state = static_cast<const state_t*>(layer.mixing.state) +
                                   b.sh.tokens[t].slot * layer.mixing.slot_stride + head * 4096;
      for (int line = lane; line < kLines; line += 32) prefetch(state + line * kLine);
    }
}

/** What a block computes in a `mix` phase. If the token is −1, nothing. */
struct MixTask {
  int token;
  const float* mix;
  f16* to;
};

/** The `mix` phase. `which`: the first norm or the second. Returns h of the token. */
__device__ __forceinline__ Row mix_phase(const FewRows& op, Block& b, const Layer& layer, int which,
                                         const MixTask& task, bool waits) {
  const bool is_task = task.token >= 0;
  const float* const* const norm = layer.vectors + (which == 0 ? kNorm1 : kNorm2);
  bool is_first = true;
  Row weight = {}, bias = {}, mix = {}, previous = {};
  if (is_task) {
    const Token token = b.sh.tokens[task.token];
    is_first = token.is_first;
    weight = load_row(norm[0]), bias = load_row(norm[1]), mix = load_row(task.mix);
    if (is_first) previous = load_row(layer.shift[which] + token.slot * op.shift_stride);
  }
  if (waits) b.barrier.wait();
  Row own = {};
  if (is_task) {
    const float* const x = op.x + task.token * CHANNELS;
    Row h[2] = {load_fresh(x), load_fresh(is_first ? x : x - CHANNELS)};
    normalise(h, op.eps, b.sh.scratch);
    own = affine(h[0], weight, bias);
    if (!is_first) previous = affine(h[1], weight, bias);
    Row y;
#pragma unroll
    for (int i = 0; i < kPer; i++) {
      const float4 c = own.part[i], p = previous.part[i], m = mix.part[i];
      y.part[i] = make_float4(c.x + (p.x - c.x) * m.x, c.y + (p.y - c.y) * m.y,
                              c.z + (p.z - c.z) * m.z, c.w + (p.w - c.w) * m.w);
    }
    store_row(task.to, y);
  }
  b.barrier.arrive();
  return own;
}

/** Stores h of a row's last token as its shift vector, and that of others where their states are
 * kept. All blocks have read the previous one by then. */
__device__ __forceinline__ void keep_shift(const FewRows& op, const Block& b, const Layer& layer,
                                           int which, int token, const Row& h) {
  if (token >= 0 && b.sh.tokens[token].keep != kNowhere)
    store_row(layer.shift[which] + b.sh.tokens[token].keep * op.shift_stride, h);
}

/** Epilogue of a row of `in`: tanh for the inner rank of w, sigmoid for that of g. */
__device__ __forceinline__ int in_epilogue(const FewRows& op, int row) {
  const int w = kFirstLow, g = kFirstLow + 2;
  return row >= op.first[g] && row < op.first[g + 1]   ? kSigmoid
         : row >= op.first[w] && row < op.first[w + 1] ? kTanh
                                                       : kNone;
}

/** The `in` phase. */
__device__ __forceinline__ void in_phase(const FewRows& op, Block& b, const Layer& layer,
                                         const f16* mixed) {
  const Place in = share_of_in(op);
  const Matrices& m = layer.matrices;
#pragma unroll 1
  for (int j = 0; j < kIn; j++) {
    const Place own = rows_of(op, in, j);
    if (m.of[j] == nullptr || own.begin >= own.end) continue;
    const int count = own.end - own.begin, first = op.first[j] + own.begin;
    const bool is_large = j < kFirstLow;
    if (threadIdx.x < kWorkers) {
      const f16* const from = mixed + (j * TOKENS + own_token(b)) * CHANNELS;
      if (!QUANT || is_large)
        multiply_tiles(b, LargeInputs(from), count);
      else
        multiply_tiles(b, Inputs(from), count);
    } else {
      const int epilogue = in_epilogue(op, first);
      finish_tiles(
          b, count,
          [&](int row) { return is_large ? large_scale(m, j, own.begin + row) : 1.0f; },
          [](int, int) { return 0.0f; },
          [&](int row, int token, float sum, float) {
            op.y[token * op.first[kIn] + first + row] = to_f16(apply_epilogue(sum, epilogue));
          });
    }
  }
}

/** The `key` phase. */
__device__ __forceinline__ void key_phase(const FewRows& op, Block& b, const Layer& layer,
                                          const f16* mixed, int l) {
  const Place rows = share_of(KEYS);
  const int count = rows.end - rows.begin;
  if (threadIdx.x < kWorkers)
    return multiply_tiles(b, LargeInputs(mixed + own_token(b) * CHANNELS), count);
  fetch_layer(op, b, l + 1);
  finish_tiles(
      b, count,
      [&](int row) { return large_scale(layer.matrices, kFirstLow + 1, rows.begin + row); },
      [](int, int) { return 0.0f; },
      [&](int row, int token, float sum, float) {
        op.u[token * KEYS + rows.begin + row] = to_f16(apply_epilogue(sum, kRelu2));
      });
}

#if QUANT
/** The `value` phase of a quantised matrix: chunks of CHANNELS columns are added to x one after the
 * other. */
__device__ __forceinline__ void value_phase(const FewRows& op, Block& b, const Layer& layer) {
  static_assert(KEYS % CHANNELS == 0, "whole chunks");
#pragma unroll 1
  for (int begin = 0; begin < KEYS; begin += CHANNELS)
    add_tiles(op, b, layer.matrices, kFirstLow + 2, op.u + begin, KEYS);
}
#endif

/** The `heads` phase. */
__device__ __forceinline__ void heads_phase(const FewRows& op, Block& b, const Layer& layer,
                                            int token, const Row& h) {
  const Wkv7& mixing = layer.mixing;
  const HeadShare& heads = b.sh.heads;
  const bool is_worker = threadIdx.x < kWorkers;
  Constants constants = {};
  Eight state = {};
  const auto load = [&](int head) {
    if (!is_worker || head >= kHeads) return;
    if (threadIdx.x >> 5 < heads.end - heads.begin) constants = load_constants(mixing, head);
    state = load_state(state_row(mixing, b.sh.tokens[heads.begin].slot, head), threadIdx.x & 7);
  };
  load(heads.head);
  b.barrier.wait();
#pragma unroll 1
  for (int head = heads.head; head < kHeads; head += BLOCKS) {
    if (is_worker) run_head(op, b, mixing, head, constants, state);
    if (head + BLOCKS >= kHeads) break;
    if (is_worker) sync_workers();
    load(head + BLOCKS);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + OTHER_THREADS, 1)
    eight_rows(Step step, const __grid_constant__ FewRows op, f16* mixed) {
  __shared__ Shared sh;
  alignas(128) extern __shared__ uint4 dynamic[];
  u8* const ring = reinterpret_cast<u8*>(dynamic);
  u8* const region = ring + kRingBytes;
  Matrices* const matrices = reinterpret_cast<Matrices*>(region + REGION);
  wait_for_previous();
  const int num_tokens = step.num_tokens();
  if (num_tokens == 0) return;

  copy_matrices(matrices, op);
  if (threadIdx.x < num_tokens) {
    const int t = threadIdx.x, row = step.token_rows[t];
    const int slot = step.slots[row], keep = step.starts[row + 1] == t + 1 ? slot : step.keeps[t];
    sh.tokens[t] = {slot, keep, step.starts[row] == t};
  }
  if (threadIdx.x == 0) sh.heads = share_of_heads(step);
  if (threadIdx.x < 2) init(sh.full[threadIdx.x], WARPS), init(sh.empty[threadIdx.x], 1);
  if (threadIdx.x < RING)
    init(sh.stream.full[threadIdx.x], FEED), init(sh.stream.empty[threadIdx.x], WARPS);
  if (threadIdx.x < kLow) {
    const int rank = rank_of(op, threadIdx.x);
    sh.stream.low_step[threadIdx.x] =
        rank == 0 ? 64 : min(64, kStageBytes / (2 * rank) / kTileRows * kTileRows);
  }
  Block b = {sh, region, {op.arrivals, 0}, {sh.stream, ring, {0, 0}}, {}, num_tokens};
  b.barrier.sense = b.barrier.read() & 0x80000000u;
  __syncthreads();
  if (threadIdx.x >= THREADS) {
    feed_all(op, sh.stream, matrices, ring, sh.heads.head);
    return;
  }
  const bool is_worker = threadIdx.x < kWorkers;
  // Where only the warp that does not multiply has written, it signals without waiting for others.
  const auto signal = [&] {
    if (!is_worker) __syncwarp(), b.barrier.signal();
  };
  if (!is_worker) fetch_layer(op, b, 0);
  sync_threads();

  const int block = blockIdx.x, mixing_token = block < kIn * num_tokens ? block / kIn : -1;
  const int key_token = block < num_tokens ? block : -1, j = block % kIn;
#pragma unroll 1
  for (int l = 0; l < op.num_layers; l++) {
    const Layer& layer = sh.layers[l & 1];
    const bool is_mixing = layer.matrices.of[j] != nullptr;
    const MixTask mixing = {is_mixing ? mixing_token : -1, layer.vectors[kMix + j],
                            mixed + (j * TOKENS + mixing_token) * CHANNELS};
    const int keeps = j == 0 ? mixing_token : -1;
    const Row h = mix_phase(op, b, layer, 0, mixing, l > 0);
    b.barrier.wait();
    keep_shift(op, b, layer, 0, keeps, h);
    in_phase(op, b, layer, mixed);
    signal();
    heads_phase(op, b, layer, keeps, h);
    b.barrier.arrive();
    b.barrier.wait();
    add_tiles(op, b, layer.matrices, kFirstLow, layer.mixing.out, CHANNELS);
    signal();
    const MixTask keys = {key_token, layer.vectors[kKeyMix], mixed + key_token * CHANNELS};
    const Row g = mix_phase(op, b, layer, 1, keys, true);
    b.barrier.wait();
    keep_shift(op, b, layer, 1, key_token, g);
    key_phase(op, b, layer, mixed, l);
    signal();
    b.barrier.wait();
#if QUANT
    value_phase(op, b, layer);
    if (l == op.num_layers - 1) break;
    signal();
#else
    if (is_worker) add_value(op, b, layer.matrices.of[kValueMatrix]);
    if (l == op.num_layers - 1) break;
    b.barrier.arrive();
#endif
  }
  let_next_start();
}
