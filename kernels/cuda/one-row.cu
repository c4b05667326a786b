// All layers of an RWKV-7 step of one token in one cooperative launch. A step of one token is
// reading the weights; what keeps a chain of launches from doing that at the memory's rate is the
// beginning and the end of each. Here every warp knows the rows of all matrices that it will
// multiply, layer after layer, and asks for them far ahead, in order, into a ring of its own in
// shared memory, whatever the layers before still compute: the memory never waits.
//
// A layer is five phases with a barrier over the grid after each:
//   in      norm and mixes (by each block, of the whole row) → r, k, v and the inner low ranks
//   heads   a block a head: outer low ranks, gates, state, group norm, bonus → out
//   output  x += out·Wᵀ
//   key     norm and mix → u = relu²(…), and at once u·value over the block's own u: a sum a block
//   add     x += the blocks' sums, in their order
// Nothing is added across blocks in an order that can change. Matrices f16 [rows, columns], value
// transposed, vectors f32, x f32. Tolerance: that of the ops it stands for (wkv7.cu, linear-few.cu,
// linear-sparse.cu, shift-mix.cu).
//
// WARPS · CHANNELS (a multiple of 64, up to 4096) · RING: pieces of 512 bytes a warp has room for ·
// MIXES: products of `in` that a block has rows of at most · KEY_ROWS: rows of key in a block at
// most · REGION: bytes of shared memory that the phases use in turn
#include "epilogue.cuh"
#define THREADS (32 * (WARPS + 1))
#include "norm.cuh"
#include "wkv7.cuh"

constexpr int kWorkers = 32 * WARPS;
/** Halves of a piece, and of its 32 lanes each. */
constexpr int kPiece = 256, kVector = 8;
constexpr int kRowPieces = (CHANNELS + kPiece - 1) / kPiece;
/** An input with zeros up to a whole piece. */
constexpr int kInput = kRowPieces * kPiece;
constexpr int kHeads = CHANNELS / 64;
/** r, k, v, then the inner matrices of w, a, g and v's gate; and the outer ones. */
constexpr int kIn = 7, kLow = 4, kFirstLow = kIn - kLow;

enum Vector { kNorm1, kNorm2 = 2, kKeyMix = 4, kMix = 5, kOwn = kMix + kIn, kVectors = kOwn + 8 };

/** Matrices in the order in which they are read. */
struct Matrices {
  const f16* in[kIn];
  const f16* low[kLow];
  const f16* output;
  const f16* key;
};

struct Layer {
  /** Everything of [C]: weight and bias of both norms, the mixes, those of `mixing` once more. */
  const float* vectors[kVectors];
  Matrices matrices;
  /** [F, C] */
  const f16* value;
  float* shift[2];
  /** w, a, g and v_gate stay in shared memory; v_gate says whether there is one. */
  Wkv7 mixing;
  u64 unused;
};

struct OneRow {
  const Layer* layers;
  float* x;
  /** Outputs of `in`, f16. */
  f16* y[kIn];
  /** f32 [blocks, C] */
  float* partial;
  /** Of the barrier: zero at first. */
  u32* arrivals;
  long long shift_stride;
  /** The first row of each matrix of `in` in all its rows, and their number. */
  int first[kIn + 1];
  int num_layers;
  int key_rows;
  float eps;
};

struct Active {
  float value;
  int row;
};

struct Shared {
  alignas(16) Layer layers[2];
  Operands operands;
  float logits[kLow][64];
  float outputs[64];
  float scratch[64];
  float u[KEY_ROWS];
  Active active[KEY_ROWS];
  int num_active;
};

struct Place {
  int begin, end;
};

/** The block's rows of so many. */
__device__ __forceinline__ Place share_of(int rows) {
  return {(int)((long long)rows * blockIdx.x / gridDim.x),
          (int)((long long)rows * (blockIdx.x + 1) / gridDim.x)};
}

__device__ __forceinline__ int in_rows(const OneRow& op, const Matrices& m) {
  return op.first[m.in[kIn - 1] == nullptr ? kIn - 1 : kIn];
}

__device__ __forceinline__ int num_low(const Matrices& m) {
  return m.low[kLow - 1] == nullptr ? kLow - 1 : kLow;
}

/** Rows a warp takes of each outer matrix of a head. */
constexpr int kLowRows = 64 / WARPS;

__device__ __forceinline__ int rank_of(const OneRow& op, int low) {
  return op.first[kFirstLow + low + 1] - op.first[kFirstLow + low];
}

/** What a warp reads next, far ahead of what it multiplies. */
struct Stream {
  const Matrices* layer;
  const Matrices* end;
  /** Of the lane: its next 8 numbers, and those left in the run from there on. */
  const f16* from;
  int left;
  /** Pieces left in the run. */
  int pieces;
  int phase, index;
  /** The next piece to take, of the ring. */
  int slot;
};

enum Phase { kInPhase, kHeadsPhase, kOutputPhase, kKeyPhase, kPhases };

/** The matrix of `in` with this row. */
__device__ __forceinline__ int job_of(const OneRow& op, int row) {
  int j = 0;
  while (j < kIn - 1 && row >= op.first[j + 1]) j++;
  return j;
}

/** Begins the warp's next run of the phase; false after its last. */
__device__ __forceinline__ bool open_run(Stream& s, const OneRow& op) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const Matrices& m = *s.layer;
  const f16* run;
  int length = CHANNELS;
  if (s.phase == kHeadsPhase) {
    const int lows = num_low(m), low = s.index % lows,
              head = blockIdx.x + s.index / lows * gridDim.x;
    if (head >= kHeads) return false;
    const int rank = rank_of(op, low);
    length = kLowRows * rank;
    run = m.low[low] + (long long)(64 * head + kLowRows * warp) * rank;
  } else {
    const bool is_in = s.phase == kInPhase, is_key = s.phase == kKeyPhase;
    const Place rows = share_of(is_in ? in_rows(op, m) : is_key ? op.key_rows : CHANNELS);
    int row = rows.begin + warp + WARPS * s.index;
    if (row >= rows.end) return false;
    run = is_key ? m.key : m.output;
    if (is_in) {
      const int j = job_of(op, row);
      run = m.in[j];
      row -= op.first[j];
    }
    run += (long long)row * CHANNELS;
  }
  s.from = run + kVector * lane;
  s.left = length - kVector * lane;
  s.pieces = (length + kPiece - 1) / kPiece;
  s.index++;
  return true;
}

/** 16 bytes into shared memory, zeros where there are none; done when its group is. */
__device__ __forceinline__ void copy_ahead(uint4* to, const f16* from, bool inside) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   (u32)__cvta_generic_to_shared(to)),
               "l"(from), "r"(inside ? 16 : 0)
               : "memory");
#endif
}

__device__ __forceinline__ void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/** Until all groups but the last RING − 2 are done. */
__device__ __forceinline__ void wait_for_piece() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(RING - 2) : "memory");
#endif
}

/** Asks for the next piece of the stream. A group each, also after the end. */
__device__ __forceinline__ void ask(Stream& s, const OneRow& op, uint4* to) {
  while (s.pieces == 0 && s.layer < s.end) {
    if (open_run(s, op)) break;
    s.index = 0;
    if (++s.phase == kPhases) s.phase = kInPhase, s.layer++;
  }
  if (s.pieces > 0) {
    copy_ahead(to, s.from, s.left > 0);
    s.from += kPiece, s.left -= kPiece, s.pieces--;
  }
  end_group();
}

/** The lane's own ring: only what a lane copied itself does it read. */
__device__ __forceinline__ uint4* ring_of(uint4* rings) {
  return rings + (threadIdx.x >> 5) * (RING * 32) + (threadIdx.x & 31);
}

/** The next piece, and the one after all that are on their way is asked for: into the place of the
 * piece that was taken before. */
__device__ __forceinline__ uint4 take(Stream& s, const OneRow& op, uint4* ring) {
  wait_for_piece();
  const uint4 piece = ring[32 * s.slot];
  ask(s, op, ring + 32 * (s.slot == 0 ? RING - 1 : s.slot - 1));
  s.slot = s.slot == RING - 1 ? 0 : s.slot + 1;
  return piece;
}

__device__ __forceinline__ void add_products(float2& sum, const uint4& w, const uint4& x) {
  const u32 ws[4] = {w.x, w.y, w.z, w.w}, xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 a = unpack(ws[i]), b = unpack(xs[i]);
    sum.x += a.x * b.x, sum.y += a.y * b.y;
  }
}

/** The stream's next row times an input of CHANNELS. */
__device__ __forceinline__ float row_product(Stream& s, const OneRow& op, uint4* ring,
                                             const f16* input) {
  const uint4* const x = reinterpret_cast<const uint4*>(input) + (threadIdx.x & 31);
  float2 sum = make_float2(0, 0);
#pragma unroll 1
  for (int p = 0; p < kRowPieces; p++) {
    const uint4 w = take(s, op, ring);
    add_products(sum, w, x[32 * p]);
  }
  return warp_sum(sum.x + sum.y);
}

/** A barrier over the grid in two halves. One thread of a warp without copies on their way speaks
 * for the block. */
struct Barrier {
  u32* arrivals;
  u32 sense;

  __device__ void arrive() const {
    __syncthreads();
    if (threadIdx.x == kWorkers) {
      __threadfence();
      // The top bit turns when all have come.
      atomicAdd(arrivals, blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u);
    }
  }

  __device__ u32 read() const {
    u32 value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(arrivals) : "memory");
    return value;
  }

  __device__ void wait() {
    if (threadIdx.x == kWorkers)
      while (((read() ^ sense) & 0x80000000u) == 0) {
      }
    sense ^= 0x80000000u;
    __syncthreads();
  }
};

/** What other blocks wrote in this launch is read past L1. */
__device__ __forceinline__ Row load_fresh(const float* x) {
  Row row;
#pragma unroll
  for (int i = 0; i < kPer; i++)
    row.part[i] =
        owns(i) ? __ldcg(reinterpret_cast<const float4*>(x) + group(i)) : make_float4(0, 0, 0, 0);
  return row;
}

__device__ __forceinline__ u32 fresh_word(const f16* x, int at) {
  return __ldcg(reinterpret_cast<const u32*>(x + at));
}

/** Zeros after an input, up to a whole piece. */
__device__ __forceinline__ void pad_input(f16* input) {
  if constexpr (kInput > CHANNELS)
    for (int i = CHANNELS + threadIdx.x; i < kInput; i += THREADS) input[i] = f16{0};
}

/** h + (previous − h)·mix, as an input. */
__device__ __forceinline__ void mix_input(f16* input, const Row& h, const Row& previous,
                                          const Row& mix) {
  Row y;
#pragma unroll
  for (int i = 0; i < kPer; i++) {
    const float4 c = h.part[i], p = previous.part[i], m = mix.part[i];
    y.part[i] = make_float4(c.x + (p.x - c.x) * m.x, c.y + (p.y - c.y) * m.y,
                            c.z + (p.z - c.z) * m.z, c.w + (p.w - c.w) * m.w);
  }
  store_row(input, y);
  pad_input(input);
}

__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/** Everything a block has beside its place in the stream. */
struct Block {
  Shared& sh;
  u8* region;
  uint4* ring;
  Barrier barrier;
  int slot;
};

/** By the warp that multiplies nothing: the next layer's addresses, and its numbers into L2. */
__device__ __forceinline__ void fetch_layer(const OneRow& op, Block& b, int l) {
  const int lane = threadIdx.x & 31;
  if (l >= op.num_layers) return;
  const Layer* const from = op.layers + l;
  Layer& layer = b.sh.layers[l & 1];
  static_assert(sizeof(Layer) % 16 == 0 && sizeof(Layer) <= 32 * 16, "one load a lane");
  if (lane < sizeof(Layer) / 16)
    reinterpret_cast<uint4*>(&layer)[lane] = reinterpret_cast<const uint4*>(from)[lane];
  __syncwarp();
  for (int line = blockIdx.x; line < CHANNELS / 32; line += gridDim.x) {
    if (lane < kVectors && layer.vectors[lane] != nullptr) prefetch(layer.vectors[lane] + 32 * line);
    if (lane >= 30) prefetch(layer.shift[lane - 30] + b.slot * op.shift_stride + 32 * line);
  }
  const Wkv7& mixing = layer.mixing;
  const state_t* const state =
      static_cast<const state_t*>(mixing.state) + b.slot * mixing.slot_stride;
  constexpr int kLine = 128 / sizeof(state_t), kLines = 4096 / kLine;
  for (int head = blockIdx.x; head < kHeads; head += gridDim.x)
    for (int line = lane; line < kLines; line += 32)
      prefetch(state + head * 4096 + line * kLine);
}

/** What the norm of a phase needs, asked for before the barrier. */
struct NormOperands {
  Row weight, bias, previous;
};

__device__ __forceinline__ NormOperands load_norm(const OneRow& op, const Block& b,
                                                  const Layer& layer, int which) {
  const float* const* const norm = layer.vectors + (which == 0 ? kNorm1 : kNorm2);
  return {load_row(norm[0]), load_row(norm[1]),
          load_row(layer.shift[which] + b.slot * op.shift_stride)};
}

__device__ __forceinline__ Row norm_of_x(const OneRow& op, Block& b, const NormOperands& n) {
  return affine(normalise(load_fresh(op.x), op.eps, b.sh.scratch), n.weight, n.bias);
}

/** The shift vector becomes h: by one block, after all have read it. */
__device__ __forceinline__ void keep_shift(const OneRow& op, const Block& b, const Layer& layer,
                                           int which, const Row& h) {
  if (blockIdx.x == gridDim.x - 1) store_row(layer.shift[which] + b.slot * op.shift_stride, h);
}

__device__ __forceinline__ int in_epilogue(int j) {
  return j == kFirstLow ? kTanh : j == kFirstLow + 2 ? kSigmoid : kNone;
}

/** in: returns h. */
__device__ __forceinline__ Row in_phase(const OneRow& op, Block& b, Stream& s, int l,
                                        bool is_first) {
  const Layer& layer = b.sh.layers[l & 1];
  const Place rows = share_of(in_rows(op, layer.matrices));
  const int first_job = job_of(op, rows.begin);
  f16* const inputs = reinterpret_cast<f16*>(b.region);
  const NormOperands n = load_norm(op, b, layer, 0);
  Row mixes[MIXES];
#pragma unroll
  for (int i = 0; i < MIXES; i++)
    if (first_job + i < kIn && op.first[first_job + i] < rows.end)
      mixes[i] = load_row(layer.vectors[kMix + first_job + i]);
  if (!is_first) b.barrier.wait();
  const Row h = norm_of_x(op, b, n);
#pragma unroll
  for (int i = 0; i < MIXES; i++)
    if (first_job + i < kIn && op.first[first_job + i] < rows.end)
      mix_input(inputs + i * kInput, h, n.previous, mixes[i]);
  __syncthreads();

  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (warp == WARPS) {
    fetch_layer(op, b, l + 1);
    return h;
  }
  int j = first_job;
  for (int row = rows.begin + warp; row < rows.end; row += WARPS) {
    while (row >= op.first[j + 1]) j++;
    const float y = row_product(s, op, b.ring, inputs + (j - first_job) * kInput);
    if (lane == 0) op.y[j][row - op.first[j]] = to_f16(apply_epilogue(y, in_epilogue(j)));
  }
  return h;
}

/** What is asked for of a head before the barrier. */
struct HeadOperands {
  Eight state;
  Constants constants;
  float2 r_k, gain, bias;
};

__device__ __forceinline__ state_t* state_row(const Block& b, const Wkv7& mixing, int head) {
  return static_cast<state_t*>(mixing.state) + b.slot * mixing.slot_stride +
         (head * 64 + (int)(threadIdx.x >> 3)) * 64;
}

__device__ __forceinline__ HeadOperands load_head(const Block& b, const Wkv7& mixing, int head) {
  HeadOperands h = {};
  if (head >= kHeads || threadIdx.x >= kWorkers) return h;
  if constexpr (kWorkers == 512) h.state = load_state(state_row(b, mixing, head), threadIdx.x & 7);
  if (threadIdx.x >= 32) return h;
  const int channel = head * 64 + 2 * (threadIdx.x & 31);
  h.constants = load_constants(mixing, head);
  h.r_k = load_pair(mixing.r_k, channel);
  h.gain = load_pair(mixing.ln_weight, channel);
  h.bias = load_pair(mixing.ln_bias, channel);
  return h;
}

/** The head's outer low ranks, one after the other: logits[low][channel]. */
__device__ __forceinline__ void low_products(const OneRow& op, Block& b, Stream& s, int lows) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const f16* x = reinterpret_cast<const f16*>(b.region);
  for (int low = 0; low < lows; low++) {
    const int rank = rank_of(op, low), length = kLowRows * rank;
    float2 sums[kLowRows] = {};
    for (int at = kVector * lane; at - kVector * lane < length; at += kPiece) {
      const uint4 w = take(s, op, b.ring);
      int row = 0, column = at;
#pragma unroll
      for (int i = 1; i < kLowRows; i++)
        if (column >= rank) column -= rank, row++;
      if (at >= length) column = 0, row = -1;
      float2 sum = make_float2(0, 0);
      add_products(sum, w, *reinterpret_cast<const uint4*>(x + column));
#pragma unroll
      for (int i = 0; i < kLowRows; i++)
        if (row == i) sums[i].x += sum.x, sums[i].y += sum.y;
    }
#pragma unroll
    for (int i = 0; i < kLowRows; i++) {
      const float sum = warp_sum(sums[i].x + sums[i].y);
      if (lane == 0) b.sh.logits[low][kLowRows * warp + i] = sum;
    }
    x += rank;
  }
}

__device__ __forceinline__ u32 logit_word(const Block& b, int low) {
  const float2 pair = load_pair(b.sh.logits[low], 2 * (threadIdx.x & 31));
  return pack(pair.x, pair.y);
}

/** One head from its low ranks to its part of out. */
__device__ __forceinline__ void run_head(const OneRow& op, Block& b, Stream& s, const Layer& layer,
                                         int head, HeadOperands& h) {
  static_assert(kWorkers == 512, "8 lanes to each of the 64 rows of a state");
  const Wkv7& mixing = layer.mixing;
  const int lane = threadIdx.x & 31, lows = num_low(layer.matrices);
  const int at = head * 64 + 2 * lane;
  Raw raw = {};
  if (threadIdx.x < 32) {
    raw.r = fresh_word(mixing.r, at), raw.k = fresh_word(mixing.k, at);
    raw.v = fresh_word(mixing.v, at);
    if (mixing.v_gate != nullptr) raw.first = fresh_word(mixing.v_first, at);
  }
  const bool is_worker = threadIdx.x < kWorkers;
  if (is_worker) low_products(op, b, s, lows);
  __syncthreads();
  Prepared p;
  if (threadIdx.x < 32) {
    raw.w = logit_word(b, 0), raw.a = logit_word(b, 1);
    if (mixing.v_gate != nullptr) raw.gate = logit_word(b, kLow - 1);
    keep_first_value(mixing, raw, 0, head);
    p = prepare(mixing, raw, h.constants);
    share(b.sh.operands, p);
  }
  __syncthreads();
  const Operands& o = b.sh.operands;
  if (is_worker) {
    const int q = threadIdx.x & 7, row = threadIdx.x >> 3;
    const Eight k = eight(o.k, q);
    const float v = o.v[row], sa = -sum8(dot(h.state, eight(o.kk, q)));
    update(h.state, sa, v, eight(o.w, q), eight(o.b, q), k);
    const float y = sum8(dot(h.state, eight(o.r, q)));
    if (q == 0) b.sh.outputs[row] = y;
    state_t* const to = state_row(b, mixing, head);
    store4(to + 4 * q, h.state.lo, row_noise(v, k.lo[0], row * 16 + 2 * q));
    store4(to + 32 + 4 * q, h.state.hi, row_noise(v, k.hi[0], row * 16 + 2 * q + 1));
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const float bonus = warp_sum(p.r.x * p.k.x * h.r_k.x + p.r.y * p.k.y * h.r_k.y);
  const Finish f = {unpack(logit_word(b, 2)), h.r_k, h.gain, h.bias};
  finish(mixing, 0, head, load_pair(b.sh.outputs, 2 * lane), bonus, p.v, f);
}

/** heads */
__device__ __forceinline__ void heads_phase(const OneRow& op, Block& b, Stream& s, int l,
                                            const Row& shift) {
  const Layer& layer = b.sh.layers[l & 1];
  HeadOperands h = load_head(b, layer.mixing, blockIdx.x);
  b.barrier.wait();
  keep_shift(op, b, layer, 0, shift);
  if (blockIdx.x >= kHeads) return;
  f16* const x = reinterpret_cast<f16*>(b.region);
  int begin = 0;
  for (int low = 0; low < num_low(layer.matrices); low++) {
    const int rank = rank_of(op, low);
    const int i = kVector * threadIdx.x;
    if (i < rank)
      *reinterpret_cast<uint4*>(x + begin + i) =
          __ldcg(reinterpret_cast<const uint4*>(op.y[kFirstLow + low] + i));
    begin += rank;
  }
  __syncthreads();
  for (int head = blockIdx.x; head < kHeads; head += gridDim.x) {
    run_head(op, b, s, layer, head, h);
    if (head + gridDim.x < kHeads) {
      h = load_head(b, layer.mixing, head + gridDim.x);
      __syncthreads();
    }
  }
}

/** output */
__device__ __forceinline__ void output_phase(const OneRow& op, Block& b, Stream& s, int l) {
  const Layer& layer = b.sh.layers[l & 1];
  f16* const input = reinterpret_cast<f16*>(b.region);
  b.barrier.wait();
  for (int i = threadIdx.x; i < CHANNELS / kVector; i += THREADS)
    reinterpret_cast<uint4*>(input)[i] =
        __ldcg(reinterpret_cast<const uint4*>(layer.mixing.out) + i);
  pad_input(input);
  __syncthreads();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const Place rows = share_of(CHANNELS);
  if (warp == WARPS) return;
  for (int row = rows.begin + warp; row < rows.end; row += WARPS) {
    const float old = lane == 0 ? __ldcg(op.x + row) : 0.0f;
    const float y = row_product(s, op, b.ring, input);
    if (lane == 0) op.x[row] = old + y;
  }
}

/** Vectors of a row of value, and the groups of workers that share the active rows. */
constexpr int kRowVectors = CHANNELS / kVector;
constexpr int kShares = kWorkers / kRowVectors;
constexpr int kFlight = 8;

/** Lists the block's u that are not zero, in their order; by one warp. */
__device__ __forceinline__ void list_active(Shared& sh, Place rows) {
  const int lane = threadIdx.x & 31;
  int count = 0;
  for (int base = 0; base < rows.end - rows.begin; base += 32) {
    const int i = base + lane;
    const float u = i < rows.end - rows.begin ? sh.u[i] : 0.0f;
    const u32 mask = __ballot_sync(~0u, u != 0.0f);
    if (u != 0.0f) sh.active[count + __popc(mask & ((1u << lane) - 1))] = {u, rows.begin + i};
    count += __popc(mask);
  }
  if (lane == 0) sh.num_active = count;
}

/** The block's sum: partial[block] = Σ u·value over its active rows. */
__device__ __forceinline__ void add_active(const OneRow& op, Block& b, const f16* value) {
  const Shared& sh = b.sh;
  const int vector = threadIdx.x % kRowVectors, part = threadIdx.x / kRowVectors;
  const int count = sh.num_active;
  float acc[kVector] = {};
  if (part < kShares) {
    const f16* const w = value + kVector * vector;
    for (int base = part; base < count; base += kFlight * kShares) {
      uint4 rows[kFlight];
      float values[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; i++) {
        const int at = base + i * kShares;
        const Active one = sh.active[min(at, count - 1)];
        values[i] = at < count ? one.value : 0.0f;
        rows[i] = make_uint4(0, 0, 0, 0);
        if (at < count)
          rows[i] = __ldg(reinterpret_cast<const uint4*>(w + (long long)one.row * CHANNELS));
      }
#pragma unroll
      for (int i = 0; i < kFlight; i++) {
        const u32 words[4] = {rows[i].x, rows[i].y, rows[i].z, rows[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float2 pair = unpack(words[j]);
          acc[2 * j] += values[i] * pair.x, acc[2 * j + 1] += values[i] * pair.y;
        }
      }
    }
  }
  float4 lo = make_float4(acc[0], acc[1], acc[2], acc[3]),
         hi = make_float4(acc[4], acc[5], acc[6], acc[7]);
  if constexpr (kShares > 1) {
    float4* const sums = reinterpret_cast<float4*>(b.region);
    if (part < kShares && part > 0) {
      sums[2 * ((part - 1) * kRowVectors + vector)] = lo;
      sums[2 * ((part - 1) * kRowVectors + vector) + 1] = hi;
    }
    __syncthreads();
    if (part == 0)
      for (int i = 0; i < kShares - 1; i++) {
        const float4 l = sums[2 * (i * kRowVectors + vector)],
                     h = sums[2 * (i * kRowVectors + vector) + 1];
        lo.x += l.x, lo.y += l.y, lo.z += l.z, lo.w += l.w;
        hi.x += h.x, hi.y += h.y, hi.z += h.z, hi.w += h.w;
      }
  }
  if (part == 0) {
    float4* const to = reinterpret_cast<float4*>(op.partial + (long long)blockIdx.x * CHANNELS);
    __stcg(to + 2 * vector, lo);
    __stcg(to + 2 * vector + 1, hi);
  }
}

/** key, and value over the block's own u: returns h. */
__device__ __forceinline__ Row key_phase(const OneRow& op, Block& b, Stream& s, int l) {
  const Layer& layer = b.sh.layers[l & 1];
  f16* const input = reinterpret_cast<f16*>(b.region);
  const NormOperands n = load_norm(op, b, layer, 1);
  const Row mix = load_row(layer.vectors[kKeyMix]);
  b.barrier.wait();
  const Row h = norm_of_x(op, b, n);
  mix_input(input, h, n.previous, mix);
  __syncthreads();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const Place rows = share_of(op.key_rows);
  for (int row = rows.begin + warp; warp < WARPS && row < rows.end; row += WARPS) {
    const float y = row_product(s, op, b.ring, input);
    const float u = to_float(to_f16(apply_epilogue(y, kRelu2)));
    if (lane == 0) b.sh.u[row - rows.begin] = u;
    // Not zero, or NaN: its row of value is on its way while the others are multiplied.
    if (u != 0.0f)
      for (int at = 64 * lane; at < CHANNELS; at += 64 * 32)
        prefetch(layer.value + (long long)row * CHANNELS + at);
  }
  __syncthreads();
  if (warp == WARPS) list_active(b.sh, rows);
  __syncthreads();
  add_active(op, b, layer.value);
  return h;
}

/** Channels a block adds at a time: a power of two, so that a warp holds whole rows of them. */
__device__ __forceinline__ int add_channels(int blocks) {
  int channels = 4;
  while (channels < 128 && channels * blocks < CHANNELS) channels *= 2;
  return channels;
}

/** add */
__device__ __forceinline__ void add_phase(const OneRow& op, Block& b, int l, const Row& shift) {
  b.barrier.wait();
  keep_shift(op, b, b.sh.layers[l & 1], 1, shift);
  const int channels = add_channels(gridDim.x), columns = channels / 4;
  const int column = threadIdx.x % columns, part = threadIdx.x / columns,
            parts = kWorkers / columns;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float* const sums = reinterpret_cast<float*>(b.region);
  for (int begin = blockIdx.x * channels; begin < CHANNELS; begin += gridDim.x * channels) {
    float4 sum = make_float4(0, 0, 0, 0);
    // A width that is no multiple: the last block adds fewer.
    const bool inside = begin + 4 * column < CHANNELS && warp < WARPS;
    for (int block = part; inside && block < gridDim.x; block += parts) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(
          op.partial + (long long)block * CHANNELS + begin + 4 * column));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    for (int offset = 16; offset >= columns; offset >>= 1) {
      sum.x += __shfl_xor_sync(~0u, sum.x, offset), sum.y += __shfl_xor_sync(~0u, sum.y, offset);
      sum.z += __shfl_xor_sync(~0u, sum.z, offset), sum.w += __shfl_xor_sync(~0u, sum.w, offset);
    }
    if (lane < columns && warp < WARPS)
      *reinterpret_cast<float4*>(sums + warp * channels + 4 * lane) = sum;
    __syncthreads();
    const int c = begin + threadIdx.x;
    if (threadIdx.x < channels && c < CHANNELS) {
      float total = __ldcg(op.x + c);
      for (int w = 0; w < WARPS; w++) total += sums[w * channels + threadIdx.x];
      op.x[c] = total;
    }
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    one_row(Step step, const __grid_constant__ OneRow op) {
  __shared__ Shared sh;
  extern __shared__ uint4 dynamic[];
  uint4* const rings = dynamic;
  u8* const region = reinterpret_cast<u8*>(dynamic + WARPS * RING * 32);
  Matrices* const matrices = reinterpret_cast<Matrices*>(region + REGION);
  wait_for_previous();
  if (step.num_tokens() == 0) return;

  constexpr int kWords = sizeof(Matrices) / 8;
  for (int i = threadIdx.x; i < op.num_layers * kWords; i += THREADS)
    reinterpret_cast<u64*>(matrices)[i] =
        reinterpret_cast<const u64*>(&op.layers[i / kWords].matrices)[i % kWords];
  Block b = {sh, region, ring_of(rings), {op.arrivals, 0}, step.slots[0]};
  b.barrier.sense = b.barrier.read() & 0x80000000u;
  __syncthreads();
  Stream s = {matrices, matrices + op.num_layers, nullptr, 0, 0, kInPhase, 0, 0};
  if (threadIdx.x < kWorkers)
    for (int i = 0; i < RING - 1; i++) ask(s, op, b.ring + 32 * i);
  else
    fetch_layer(op, b, 0);
  __syncthreads();

  for (int l = 0; l < op.num_layers; l++) {
    Row h = in_phase(op, b, s, l, l == 0);
    b.barrier.arrive();
    heads_phase(op, b, s, l, h);
    b.barrier.arrive();
    output_phase(op, b, s, l);
    b.barrier.arrive();
    h = key_phase(op, b, s, l);
    b.barrier.arrive();
    add_phase(op, b, l, h);
    if (l == op.num_layers - 1) break;
    b.barrier.arrive();
  }
  let_next_start();
}
