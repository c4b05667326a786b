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
// BLOCKS, WARPS · CHANNELS (a multiple of 64, up to 4096) · RING: pieces of 1 KB a warp has room
// for · MIXES: products of `in` that a block has rows of at most · KEY_ROWS: rows of key in a
// block at most · FRAGMENTS: rows that a warp has pieces of at most · REGION: bytes of shared memory
// that the phases use in turn
#include "epilogue.cuh"
#define THREADS (32 * (WARPS + 1))
#include "norm.cuh"
#include "wkv7.cuh"

constexpr int kWorkers = 32 * WARPS;
/** Halves of a piece; a lane has 8 in each half of it. */
constexpr int kPiece = 512, kHalf = kPiece / 2, kVector = 8;
constexpr int kRowPieces = (CHANNELS + kPiece - 1) / kPiece;
/** An input with zeros up to a whole piece. */
constexpr int kInput = kRowPieces * kPiece;
constexpr int kHeads = CHANNELS / 64;
/** r, k, v, then the inner matrices of w, a, g and v's gate; and the outer ones. */
constexpr int kIn = 7, kLow = 4, kFirstLow = kIn - kLow;

enum Vector { kNorm1, kNorm2 = 2, kKeyMix = 4, kMix = 5, kOwn = kMix + kIn, kVectors = kOwn + 8 };

/** Matrices in the order in which they are read; the gate of v has none in a model's first layer. */
struct Matrices {
  const f16* of[kIn + kLow + 2];
};
constexpr int kLowMatrix = kIn, kOutputMatrix = kIn + kLow, kKeyMatrix = kOutputMatrix + 1;

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

/** Neighbouring pieces of one matrix that a warp reads, the same in every layer. */
struct alignas(16) Run {
  /** Of the first lane, in numbers from the matrix's beginning. */
  int offset;
  /** From there to the end of the row, or of the run where rows do not matter. */
  int length;
  /** Pieces, and the row's piece that is the first. */
  u16 pieces, piece;
  int matrix;
};
constexpr int kHeadsEach = (kHeads + BLOCKS - 1) / BLOCKS;
constexpr int kRuns = kIn + kLow * kHeadsEach + 2;

struct Shared {
  alignas(16) Layer layers[2];
  Run runs[WARPS][kRuns];
  int num_runs[WARPS];
  Operands operands;
  /** Of a head: its vectors of `mixing` in the order of kOwn, and its r, k, v and first v. */
  alignas(16) float constants[8][64];
  u32 words[4][32];
  float logits[kLow][64];
  float outputs[64];
  float scratch[64];
  float u[KEY_ROWS];
  /** Sums of the rows that a warp has pieces of. */
  float fragments[WARPS][FRAGMENTS];
  Active active[KEY_ROWS];
  int num_active;
};

struct Place {
  int begin, end;
};

/** Part `index` of `parts` of so many. */
__device__ __forceinline__ Place part_of(int count, int index, int parts) {
  return {(int)((u32)count * index / parts), (int)((u32)count * (index + 1) / parts)};
}

/** The block's rows of so many. */
__device__ __forceinline__ Place share_of(int rows) { return part_of(rows, blockIdx.x, BLOCKS); }

/** The warp's pieces of so many rows: whole rows and the ends of others. */
__device__ __forceinline__ Place pieces_of(Place rows) {
  return part_of((rows.end - rows.begin) * kRowPieces, threadIdx.x >> 5, WARPS);
}

__device__ __forceinline__ int num_low(const Matrices& m) {
  return m.of[kLowMatrix + kLow - 1] == nullptr ? kLow - 1 : kLow;
}

/** Rows that a layer has of `in`: the gate's are the last. */
__device__ __forceinline__ int in_rows(const OneRow& op, const Matrices& m) {
  return op.first[m.of[kIn - 1] == nullptr ? kIn - 1 : kIn];
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
  /** Of the lane: its next 8 numbers, and those left in the row from there on. */
  const f16* from;
  int left;
  /** Pieces left in the run, and the next of its row. */
  int pieces, piece;
  bool is_row;
  /** The next run, and how many there are. */
  const Run* run;
  int index, num_runs;
  /** Of the ring: the next piece to take, and the one taken before. */
  int slot, free;
  /** Evict first: what is read once should not drive out what is not. */
  u64 policy;
};

/** The matrix of `in` with this row. */
__device__ __forceinline__ int job_of(const OneRow& op, int row) {
  int j = 0;
  while (j < kIn - 1 && row >= op.first[j + 1]) j++;
  return j;
}

/** The runs of a warp's pieces of some rows: `matrix` with `rows` of which the first is `first`. */
__device__ __forceinline__ int list_rows(Run* runs, int count, int matrix, int first, int end,
                                         Place share) {
  const Place pieces = pieces_of(share);
  const int from = max(pieces.begin, (first - share.begin) * kRowPieces);
  const int to = min(pieces.end, (end - share.begin) * kRowPieces);
  if (from >= to) return count;
  const int row = share.begin + from / kRowPieces - first, piece = from % kRowPieces;
  runs[count] = {row * CHANNELS + piece * kPiece, CHANNELS - piece * kPiece, (u16)(to - from),
                 (u16)piece, matrix};
  return count + 1;
}

/** Lists all that the warp reads of a layer, in order. */
__device__ __forceinline__ void list_runs(const OneRow& op, Shared& sh) {
  const int warp = threadIdx.x >> 5;
  Run* const runs = sh.runs[warp];
  int count = 0;
  for (int j = 0; j < kIn; j++)
    count = list_rows(runs, count, j, op.first[j], op.first[j + 1], share_of(op.first[kIn]));
  for (int head = blockIdx.x; head < kHeads; head += BLOCKS)
    for (int low = 0; low < kLow; low++) {
      const int rank = rank_of(op, low), length = kLowRows * rank;
      // A row without end.
      runs[count++] = {(64 * head + kLowRows * warp) * rank, length,
                       (u16)((length + kPiece - 1) / kPiece), (u16)kRowPieces, kLowMatrix + low};
    }
  count = list_rows(runs, count, kOutputMatrix, 0, CHANNELS, share_of(CHANNELS));
  count = list_rows(runs, count, kKeyMatrix, 0, op.key_rows, share_of(op.key_rows));
  sh.num_runs[warp] = count;
}

/** Begins the next run that its layer has. */
__device__ __forceinline__ void open_run(Stream& s) {
  const int first = kVector * (threadIdx.x & 31);
  while (s.pieces == 0 && s.layer < s.end && s.num_runs > 0) {
    const Run run = s.run[s.index];
    const f16* const matrix = s.layer->of[run.matrix];
    if (++s.index == s.num_runs) s.index = 0, s.layer++;
    if (matrix == nullptr) continue;
    s.from = matrix + run.offset + first;
    s.left = run.length - first;
    s.pieces = run.pieces, s.piece = run.piece, s.is_row = run.piece < kRowPieces;
  }
}

/** 16 bytes into shared memory, zeros where there are none; done when its group is. */
__device__ __forceinline__ void copy_ahead(uint4* to, const f16* from, bool inside, u64 policy) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(
                   (u32)__cvta_generic_to_shared(to)),
               "l"(from), "r"(inside ? 16 : 0), "l"(policy)
               : "memory");
#endif
}

__device__ __forceinline__ u64 evict_first() {
  u64 policy = 0;
#if __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
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
__device__ __forceinline__ void ask(Stream& s, uint4* to) {
  if (s.pieces == 0) open_run(s);
  if (s.pieces > 0) {
    copy_ahead(to, s.from, s.left > 0, s.policy);
    copy_ahead(to + 32, s.from + kHalf, s.left > kHalf, s.policy);
    s.from += kPiece, s.left -= kPiece, s.pieces--;
    if constexpr (kInput > CHANNELS) {
      // Back over the padding of the row's last piece.
      if (++s.piece == kRowPieces) s.piece = 0, s.from += CHANNELS - kInput, s.left += kInput;
    } else {
      s.left += s.is_row ? kPiece : 0;
    }
  }
  end_group();
}

/** A lane's numbers of a piece. */
struct Piece {
  uint4 half[2];
};
constexpr int kSlot = kPiece / kVector;

/** The lane's own ring: only what a lane copied itself does it read. */
__device__ __forceinline__ uint4* ring_of(uint4* rings) {
  return rings + (threadIdx.x >> 5) * (RING * kSlot) + (threadIdx.x & 31);
}

/** The next piece, and the one after all that are on their way is asked for: into the place of the
 * piece that was taken before. */
__device__ __forceinline__ Piece take(Stream& s, uint4* ring) {
  wait_for_piece();
  const Piece piece = {{ring[s.slot], ring[s.slot + 32]}};
  ask(s, ring + s.free);
  s.free = s.slot;
  s.slot = s.slot == (RING - 1) * kSlot ? 0 : s.slot + kSlot;
  return piece;
}

/**
 * Sums of products on the tensor cores, of 32 neighbouring numbers (4 lanes' 8) each: the lanes' own
 * weights are the 16 rows of A, their own inputs the columns of B, and what is wanted lies on the
 * diagonals; the rest of the 16 × 8 is not looked at.
 */
struct Products {
  float lo[4], hi[4];
};

__device__ __forceinline__ void multiply(float (&d)[4], const uint4& w, u32 x0, u32 x1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(w.x), "r"(w.z), "r"(w.y), "r"(w.w), "r"(x0), "r"(x1));
#endif
}

__device__ __forceinline__ void add_products(Products& sums, const uint4& w, const uint4& x) {
  multiply(sums.lo, w, x.x, x.y);
  multiply(sums.hi, w, x.z, x.w);
}

/** The sum of 4 lanes (lane / 4) in one of them, 0 in the others. */
__device__ __forceinline__ float diagonal(const Products& sums) {
  const int group = (threadIdx.x & 31) >> 2;
  const float even = sums.lo[0] + sums.hi[2], odd = sums.lo[1] + sums.hi[3];
  return (threadIdx.x & 3) != group >> 1 ? 0.0f : group & 1 ? odd : even;
}

__device__ __forceinline__ void sync_workers() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kWorkers) : "memory");
}

/**
 * The warp's pieces of the block's rows, as far as `stop`, times their inputs, into its fragments.
 * `input(row)`: the input of a row; `whole(row, sum)`: of each row that is all the warp's, in all
 * lanes.
 */
template <class Input, class Whole>
__device__ __forceinline__ void multiply_rows(Stream& s, Shared& sh, uint4* ring,
                                              Place rows, int stop, Input input, Whole whole) {
  const int lane = threadIdx.x & 31;
  Place pieces = pieces_of(rows);
  pieces.end = min(pieces.end, (stop - rows.begin) * kRowPieces);
  float* fragment = sh.fragments[threadIdx.x >> 5];
  int row = rows.begin + pieces.begin / kRowPieces, piece = pieces.begin % kRowPieces;
  bool is_whole = piece == 0;
  int i = pieces.begin;
  while (i < pieces.end) {
    const uint4* const x = reinterpret_cast<const uint4*>(input(row)) + lane;
    const int end = min(kRowPieces, piece + pieces.end - i);
    Products sums = {};
    i += end - piece;
#pragma unroll 1
    for (; piece < end; piece++) {
      const Piece w = take(s, ring);
      add_products(sums, w.half[0], x[kSlot * piece]);
      add_products(sums, w.half[1], x[kSlot * piece + 32]);
    }
    const float total = warp_sum(diagonal(sums));
    if (lane == 0) *fragment = total;
    if (is_whole && end == kRowPieces) whole(row, total);
    fragment++, row++, piece = 0, is_whole = true;
  }
}

/** The warp that has a piece, of so many pieces; `inverse` is 1 / pieces. */
__device__ __forceinline__ int owner_of(int piece, float inverse) {
  // (WARPS·(piece + 1) − 1) / pieces: the half keeps it clear of rounding.
  return (int)((WARPS * (piece + 1) - 0.5f) * inverse);
}

/** The sum of the block's row `i` of so many, from the fragments of all warps. */
__device__ __forceinline__ float sum_fragments(const Shared& sh, int rows, int i) {
  const int pieces = rows * kRowPieces, first = i * kRowPieces;
  const float inverse = __frcp_rn((float)pieces);
  const int last = owner_of(first + kRowPieces - 1, inverse);
  float sum = 0;
  for (int w = owner_of(first, inverse); w <= last; w++) {
    const Place own = part_of(pieces, w, WARPS);
    if (own.begin < own.end) sum += sh.fragments[w][i - own.begin / kRowPieces];
  }
  return sum;
}

/** A barrier over the grid in two halves. One thread of a warp without copies on their way speaks
 * for the block. */
struct Barrier {
  u32* arrivals;
  u32 sense;

  __device__ void arrive() const {
    __syncthreads();
    if (threadIdx.x == kWorkers) {
      // The top bit turns when all have come.
      const u32 one = blockIdx.x == 0 ? 0x80000000u - (BLOCKS - 1) : 1u;
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(arrivals), "r"(one) : "memory");
    }
    __syncwarp();
  }

  __device__ u32 read() const {
    u32 value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(arrivals) : "memory");
    return value;
  }

  __device__ void wait() {
    // All lanes, so that they stay together.
    if (threadIdx.x >= kWorkers)
      while (((read() ^ sense) & 0x80000000u) == 0) {
      }
    __syncwarp();
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
  for (int line = blockIdx.x; line < CHANNELS / 32; line += BLOCKS) {
    if (lane < kVectors && layer.vectors[lane] != nullptr) prefetch(layer.vectors[lane] + 32 * line);
    if (lane >= 30) prefetch(layer.shift[lane - 30] + b.slot * op.shift_stride + 32 * line);
  }
  const Wkv7& mixing = layer.mixing;
  const state_t* const state =
      static_cast<const state_t*>(mixing.state) + b.slot * mixing.slot_stride;
  constexpr int kLine = 128 / sizeof(state_t), kLines = 4096 / kLine;
  for (int head = blockIdx.x; head < kHeads; head += BLOCKS)
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
  if (blockIdx.x == BLOCKS - 1) store_row(layer.shift[which] + b.slot * op.shift_stride, h);
}

__device__ __forceinline__ int in_epilogue(int j) {
  return j == kFirstLow ? kTanh : j == kFirstLow + 2 ? kSigmoid : kNone;
}

/** in: returns h. */
__device__ __forceinline__ Row in_phase(const OneRow& op, Block& b, Stream& s, int l,
                                        bool is_first) {
  const Layer& layer = b.sh.layers[l & 1];
  const Place rows = share_of(op.first[kIn]);
  const int end = min(rows.end, in_rows(op, layer.matrices));
  const int first_job = job_of(op, rows.begin);
  f16* const inputs = reinterpret_cast<f16*>(b.region);
  const NormOperands n = load_norm(op, b, layer, 0);
  Row mixes[MIXES];
#pragma unroll
  for (int i = 0; i < MIXES; i++)
    if (first_job + i < kIn && op.first[first_job + i] < end)
      mixes[i] = load_row(layer.vectors[kMix + first_job + i]);
  if (!is_first) b.barrier.wait();
  const Row h = norm_of_x(op, b, n);
#pragma unroll
  for (int i = 0; i < MIXES; i++)
    if (first_job + i < kIn && op.first[first_job + i] < end)
      mix_input(inputs + i * kInput, h, n.previous, mixes[i]);
  __syncthreads();

  if (threadIdx.x >= kWorkers) return h;
  int j = first_job;
  multiply_rows(
      s, b.sh, b.ring, rows, end,
      [&](int row) {
        while (row >= op.first[j + 1]) j++;
        return inputs + (j - first_job) * kInput;
      },
      [](int, float) {});
  sync_workers();
  for (int i = threadIdx.x; i < end - rows.begin; i += kWorkers) {
    const int row = rows.begin + i, job = job_of(op, row);
    const float y = sum_fragments(b.sh, rows.end - rows.begin, i);
    op.y[job][row - op.first[job]] = to_f16(apply_epilogue(y, in_epilogue(job)));
  }
  return h;
}

__device__ __forceinline__ state_t* state_row(const Block& b, const Wkv7& mixing, int head) {
  return static_cast<state_t*>(mixing.state) + b.slot * mixing.slot_stride +
         (head * 64 + (int)(threadIdx.x >> 3)) * 64;
}

/** What is asked for of a head before the barrier: its constants into shared memory, its state into
 * registers. */
__device__ __forceinline__ Eight load_head(Block& b, const Layer& layer, int head) {
  if (head >= kHeads || threadIdx.x >= kWorkers) return {};
  const int vector = (int)threadIdx.x / 16, part = threadIdx.x % 16;
  if (vector < 8 && layer.vectors[kOwn + vector] != nullptr)
    reinterpret_cast<float4*>(b.sh.constants[vector])[part] =
        reinterpret_cast<const float4*>(layer.vectors[kOwn + vector] + 64 * head)[part];
  return load_state(state_row(b, layer.mixing, head), threadIdx.x & 7);
}

/** The head's outer low ranks, one after the other: logits[low][channel]. Ranks are multiples of 32,
 * so that 4 lanes' numbers are of one row. */
__device__ __forceinline__ void low_products(const OneRow& op, Block& b, Stream& s, int lows) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const f16* x = reinterpret_cast<const f16*>(b.region);
#pragma unroll 1
  for (int low = 0; low < lows; low++) {
    const int rank = rank_of(op, low), length = kLowRows * rank;
    float rows[kLowRows] = {};
#pragma unroll 1
    for (int begin = 0; begin < length; begin += kPiece) {
      const Piece w = take(s, b.ring);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int row = 0, column = begin + kHalf * half + kVector * lane;
        const bool inside = column < length;
#pragma unroll
        for (int i = 1; i < kLowRows; i++)
          if (column >= rank) column -= rank, row++;
        Products sums = {};
        add_products(sums, w.half[half],
                     *reinterpret_cast<const uint4*>(x + (inside ? column : 0)));
        const float sum = inside ? diagonal(sums) : 0.0f;
#pragma unroll
        for (int i = 0; i < kLowRows; i++) rows[i] += row == i ? sum : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kLowRows; i++) {
      const float sum = warp_sum(rows[i]);
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
                                         int head, Eight& state) {
  static_assert(kWorkers == 512, "8 lanes to each of the 64 rows of a state");
  const Wkv7& mixing = layer.mixing;
  const int lane = threadIdx.x & 31, lows = num_low(layer.matrices);
  if (threadIdx.x < 4 * 32) {
    const int which = threadIdx.x >> 5;
    const f16* const x = which == 0   ? mixing.r
                         : which == 1 ? mixing.k
                         : which == 2 ? mixing.v
                                      : mixing.v_first;
    if (which < 3 || mixing.v_gate != nullptr)
      b.sh.words[which][lane] = fresh_word(x, head * 64 + 2 * lane);
  }
  const bool is_worker = threadIdx.x < kWorkers;
  if (is_worker) low_products(op, b, s, lows);
  __syncthreads();
  if (threadIdx.x < 32) {
    const float(&c)[8][64] = b.sh.constants;
    const Constants constants = {load_pair(c[3], 2 * lane), load_pair(c[4], 2 * lane),
                                 load_pair(c[0], 2 * lane), load_pair(c[1], 2 * lane),
                                 load_pair(c[2], 2 * lane)};
    const u32(&words)[4][32] = b.sh.words;
    const Raw raw = {words[0][lane],
                     logit_word(b, 0),
                     words[1][lane],
                     words[2][lane],
                     logit_word(b, 1),
                     mixing.v_gate == nullptr ? 0 : logit_word(b, kLow - 1),
                     words[3][lane]};
    keep_first_value(mixing, raw, 0, head);
    share(b.sh.operands, prepare(mixing, raw, constants));
  }
  __syncthreads();
  const Operands& o = b.sh.operands;
  if (is_worker) {
    const int q = threadIdx.x & 7, row = threadIdx.x >> 3;
    const Eight k = eight(o.k, q);
    const float v = o.v[row], sa = -sum8(dot(state, eight(o.kk, q)));
    update(state, sa, v, eight(o.w, q), eight(o.b, q), k);
    const float y = sum8(dot(state, eight(o.r, q)));
    if (q == 0) b.sh.outputs[row] = y;
    state_t* const to = state_row(b, mixing, head);
    store4(to + 4 * q, state.lo, row_noise(v, k.lo[0], row * 16 + 2 * q));
    store4(to + 32 + 4 * q, state.hi, row_noise(v, k.hi[0], row * 16 + 2 * q + 1));
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const float(&c)[8][64] = b.sh.constants;
  const float2 r = load_pair(o.r, 2 * lane), k = load_pair(o.k, 2 * lane),
               r_k = load_pair(c[5], 2 * lane);
  const float bonus = warp_sum(r.x * k.x * r_k.x + r.y * k.y * r_k.y);
  const Finish f = {unpack(logit_word(b, 2)), r_k, load_pair(c[6], 2 * lane),
                    load_pair(c[7], 2 * lane)};
  finish(mixing, 0, head, load_pair(b.sh.outputs, 2 * lane), bonus, load_pair(o.v, 2 * lane), f);
}

/** heads */
__device__ __forceinline__ void heads_phase(const OneRow& op, Block& b, Stream& s, int l,
                                            const Row& shift) {
  const Layer& layer = b.sh.layers[l & 1];
  Eight state = load_head(b, layer, blockIdx.x);
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
  for (int head = blockIdx.x; head < kHeads; head += BLOCKS) {
    run_head(op, b, s, layer, head, state);
    if (head + BLOCKS < kHeads) {
      __syncthreads();
      state = load_head(b, layer, head + BLOCKS);
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
  if (threadIdx.x >= kWorkers) return;
  static_assert((CHANNELS + BLOCKS - 1) / BLOCKS <= kWorkers, "a row a thread");
  const Place rows = share_of(CHANNELS);
  const int i = threadIdx.x, count = rows.end - rows.begin;
  float* const x = op.x + rows.begin + i;
  const float old = i < count ? __ldcg(x) : 0.0f;
  multiply_rows(
      s, b.sh, b.ring, rows, rows.end, [&](int) { return input; }, [](int, float) {});
  sync_workers();
  if (i < count) *x = old + sum_fragments(b.sh, count, i);
}

/** Vectors of a row of value, and the groups of workers that share the active rows. */
constexpr int kRowVectors = CHANNELS / kVector;
constexpr int kShares = kWorkers / kRowVectors;
constexpr int kFlight = kShares == 1 ? 16 : 8;

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
  const auto activate = [](float y) { return to_float(to_f16(apply_epilogue(y, kRelu2))); };
  if (warp < WARPS) {
    multiply_rows(
        s, b.sh, b.ring, rows, rows.end, [&](int) { return input; },
        [&](int row, float y) {
          // Not zero, or NaN: its row of value is on its way while the others are multiplied.
          if (activate(y) != 0.0f)
            for (int at = 64 * lane; at < CHANNELS; at += 64 * 32)
              prefetch(layer.value + (long long)row * CHANNELS + at);
        });
    sync_workers();
    for (int i = threadIdx.x; i < rows.end - rows.begin; i += kWorkers)
      b.sh.u[i] = activate(sum_fragments(b.sh, rows.end - rows.begin, i));
    sync_workers();
  } else {
    fetch_layer(op, b, l + 1);
  }
  if (warp == 0) list_active(b.sh, rows);
  __syncthreads();
  add_active(op, b, layer.value);
  return h;
}

/** Channels a block adds at a time: a power of two, so that a warp holds whole rows of them. */
__device__ constexpr int add_channels() {
  int channels = 4;
  while (channels < 128 && channels * BLOCKS < CHANNELS) channels *= 2;
  return channels;
}

/** add */
__device__ __forceinline__ void add_phase(const OneRow& op, Block& b, int l, const Row& shift) {
  constexpr int kChannels = add_channels(), kColumns = kChannels / 4;
  constexpr int kParts = kWorkers / kColumns, kEach = (BLOCKS + kParts - 1) / kParts;
  b.barrier.wait();
  keep_shift(op, b, b.sh.layers[l & 1], 1, shift);
  const int column = threadIdx.x % kColumns, part = threadIdx.x / kColumns;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float* const sums = reinterpret_cast<float*>(b.region);
  for (int begin = blockIdx.x * kChannels; begin < CHANNELS; begin += BLOCKS * kChannels) {
    float4 sum = make_float4(0, 0, 0, 0);
    // A width that is no multiple: the last block adds fewer.
    const bool inside = begin + 4 * column < CHANNELS && warp < WARPS;
    const int c = begin + threadIdx.x;
    const bool adds = threadIdx.x < kChannels && c < CHANNELS;
    float total = adds ? __ldcg(op.x + c) : 0.0f;
    float4 values[kEach];
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const int block = part + i * kParts;
      values[i] = make_float4(0, 0, 0, 0);
      if (inside && block < BLOCKS)
        values[i] = __ldcg(reinterpret_cast<const float4*>(
            op.partial + (long long)block * CHANNELS + begin + 4 * column));
    }
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const float4 v = values[i];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
#pragma unroll
    for (int offset = 16; offset >= kColumns; offset >>= 1) {
      sum.x += __shfl_xor_sync(~0u, sum.x, offset), sum.y += __shfl_xor_sync(~0u, sum.y, offset);
      sum.z += __shfl_xor_sync(~0u, sum.z, offset), sum.w += __shfl_xor_sync(~0u, sum.w, offset);
    }
    if (lane < kColumns && warp < WARPS)
      *reinterpret_cast<float4*>(sums + warp * kChannels + 4 * lane) = sum;
    __syncthreads();
    if (adds) {
#pragma unroll
      for (int w = 0; w < WARPS; w++) total += sums[w * kChannels + threadIdx.x];
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
  u8* const region = reinterpret_cast<u8*>(dynamic + WARPS * RING * kSlot);
  Matrices* const matrices = reinterpret_cast<Matrices*>(region + REGION);
  wait_for_previous();
  if (step.num_tokens() == 0) return;

  constexpr int kWords = sizeof(Matrices) / 8;
  for (int i = threadIdx.x; i < op.num_layers * kWords; i += THREADS)
    reinterpret_cast<u64*>(matrices)[i] =
        reinterpret_cast<const u64*>(&op.layers[i / kWords].matrices)[i % kWords];
  Block b = {sh, region, ring_of(rings), {op.arrivals, 0}, step.slots[0]};
  b.barrier.sense = b.barrier.read() & 0x80000000u;
  if (threadIdx.x < kWorkers && (threadIdx.x & 31) == 0) list_runs(op, sh);
  __syncthreads();
  Stream s = {};
  s.layer = matrices, s.end = matrices + op.num_layers;
  if (threadIdx.x < kWorkers)
    s.run = sh.runs[threadIdx.x >> 5], s.num_runs = sh.num_runs[threadIdx.x >> 5];
  s.free = (RING - 1) * kSlot, s.policy = evict_first();
  if (threadIdx.x < kWorkers)
    for (int i = 0; i < RING - 1; i++) ask(s, b.ring + kSlot * i);
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
