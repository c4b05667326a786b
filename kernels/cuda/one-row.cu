// All layers of an RWKV-7 step of one token in one cooperative launch. A step of one token is
// reading the weights; what keeps a chain of launches from doing that at the memory's rate is the
// beginning and the end of each. Here every block knows its rows of all matrices, every warp its
// columns of them, layer after layer, and asks for them far ahead, in order, into a ring of its own
// in shared memory, whatever the layers before still compute.
//
// A layer is five phases with a barrier over the grid after each:
//   in      norm and mixes (by each block, of the whole row) → r, k, v and the inner low ranks
//   heads   a block a head: outer low ranks, gates, state, group norm, bonus → out
//   output  x += out·Wᵀ
//   key     norm and mix → u = relu²(…); the rows of value that it meets on their way to L2
//   value   x += u·value: a block some columns, over the u that are not zero
// Nothing is added across blocks in an order that can change. Matrices f16 [rows, columns], value
// transposed, vectors f32, x f32. Tolerance: that of the ops it stands for (wkv7.cu, linear-few.cu,
// linear-sparse.cu, shift-mix.cu).
//
// BLOCKS, WARPS · CHANNELS (a multiple of 64, up to 4096) · KEYS: rows of key (a multiple of 8) ·
// RING: units of 2 KB a warp has room for · MIXES: products of `in` that a block has rows of at
// most · IN_ROWS: rows of `in` in a block at most · LOW_UNITS: units of 64 columns of all outer low
// ranks · LIST: active u listed at a time · REGION: bytes of shared memory that the phases use in
// turn
#include "one-row-heads.cuh"

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

/** Of a row of `in`: tanh for the inner rank of w, sigmoid for that of g. */
__device__ __forceinline__ int in_epilogue(const OneRow& op, int row) {
  const int w = kFirstLow, g = kFirstLow + 2;
  return row >= op.first[g] && row < op.first[g + 1]   ? kSigmoid
         : row >= op.first[w] && row < op.first[w + 1] ? kTanh
                                                       : kNone;
}

/** in: returns h. */
__device__ __forceinline__ Row in_phase(const OneRow& op, Block& b, Stream& s, int l,
                                        bool is_first) {
  const Layer& layer = b.sh.layers[l & 1];
  const Place rows = b.in;
  const int end = min(rows.end, in_rows(op, layer.matrices));
  f16* const inputs = reinterpret_cast<f16*>(b.region);
  const NormOperands n = load_norm(op, b, layer, 0);
  Row mixes[MIXES];
  bool has[MIXES];
#pragma unroll
  for (int i = 0; i < MIXES; i++) {
    has[i] = i == 0 ? rows.begin < end : b.bounds[i - 1] < end;
    if (has[i]) mixes[i] = load_row(layer.vectors[kMix + b.first_job + i]);
  }
  if (!is_first) b.barrier.wait();
  const Row h = norm_of_x(op, b, n);
#pragma unroll
  for (int i = 0; i < MIXES; i++)
    if (has[i])
      mix_input(inputs + i * CHANNELS, h, n.previous, mixes[i]);
  __syncthreads();
  if (threadIdx.x >= kWorkers) return h;
  float* const sums = b.sh.sums + kSumRows * (threadIdx.x >> 5);
#pragma unroll
  for (int i = 0; i < MIXES; i++) {
    if (!has[i]) continue;
    const int begin = i == 0 ? rows.begin : b.bounds[i - 1];
    multiply_rows(s, inputs + i * CHANNELS, sums + begin - rows.begin,
                  min(end, b.bounds[i]) - begin);
  }
  sync_workers();
  for (int i = threadIdx.x; i < end - rows.begin; i += kWorkers) {
    const int row = rows.begin + i;
    const float y = sum_slices(b.sh, i);
    op.y[row] = to_f16(apply_epilogue(y, in_epilogue(op, row)));
  }
  return h;
}

/** output */
__device__ __forceinline__ void output_phase(const OneRow& op, Block& b, Stream& s, int l) {
  const Layer& layer = b.sh.layers[l & 1];
  f16* const input = reinterpret_cast<f16*>(b.region);
  static_assert(kOutputRows <= kWorkers, "a row a thread");
  const Place rows = share_of(CHANNELS);
  const int count = rows.end - rows.begin;
  float* const x = op.x + rows.begin + threadIdx.x;
  const bool adds = (int)threadIdx.x < count;
  // Unchanged since `in`.
  const float old = adds ? __ldcg(x) : 0.0f;
  const uint4* const from = reinterpret_cast<const uint4*>(layer.mixing.out);
  b.barrier.wait();
  for (int i = threadIdx.x; i < CHANNELS / kVector; i += THREADS)
    reinterpret_cast<uint4*>(input)[i] = as_input(__ldcg(from + i));
  __syncthreads();
  if (threadIdx.x >= kWorkers) return;
  multiply_rows(s, input, b.sh.sums + kSumRows * (threadIdx.x >> 5), count);
  sync_workers();
  if (adds) *x = old + sum_slices(b.sh, threadIdx.x);
}

/** Rows of key whose sums are finished while the next are multiplied: at most 4 times, with a barrier
 * of the block for each. */
constexpr int kKeyPart = (kKeyRows + 4 * kTileRows - 1) / (4 * kTileRows) * kTileRows;

__device__ __forceinline__ int key_barrier(int part) { return 2 + part / kKeyPart; }

/** By the warp that multiplies nothing: u of the block's rows, and the rows of value that it meets on
 * their way to L2. */
__device__ __forceinline__ void finish_keys(const OneRow& op, const Shared& sh, const f16* value,
                                            Place rows) {
  const int lane = threadIdx.x & 31, count = rows.end - rows.begin;
#pragma unroll 1
  for (int part = 0; part < count; part += kKeyPart) {
    asm volatile("barrier.sync %0, %1;" ::"r"(key_barrier(part)), "n"(THREADS) : "memory");
#pragma unroll 1
    for (int base = part; base < min(part + kKeyPart, count); base += 32) {
      const int i = base + lane;
      bool is_active = false;
      if (i < min(part + kKeyPart, count)) {
        const f16 u = to_f16(apply_epilogue(sum_slices(sh, i), kRelu2));
        op.u[rows.begin + i] = u;
        // Not zero, or NaN.
        is_active = (u.bits & 0x7fff) != 0;
      }
      for (u32 left = __ballot_sync(~0u, is_active); left != 0; left &= left - 1)
        prefetch_row(value + (long long)(rows.begin + base + __ffs(left) - 1) * CHANNELS);
    }
  }
}

/** key: returns h. */
__device__ __forceinline__ Row key_phase(const OneRow& op, Block& b, Stream& s, int l) {
  const Layer& layer = b.sh.layers[l & 1];
  f16* const input = reinterpret_cast<f16*>(b.region);
  const NormOperands n = load_norm(op, b, layer, 1);
  const Row mix = load_row(layer.vectors[kKeyMix]);
  b.barrier.wait();
  const Row h = norm_of_x(op, b, n);
  mix_input(input, h, n.previous, mix);
  __syncthreads();
  const Place rows = share_of(KEYS);
  if (threadIdx.x >= kWorkers) {
    fetch_layer(op, b, l + 1);
    finish_keys(op, b.sh, layer.value, rows);
    return h;
  }
  float* const sums = b.sh.sums + kSumRows * (threadIdx.x >> 5);
  const int count = rows.end - rows.begin;
#pragma unroll 1
  for (int part = 0; part < count; part += kKeyPart) {
    multiply_rows(s, input, sums + part, min(kKeyPart, count - part));
    asm volatile("barrier.arrive %0, %1;" ::"r"(key_barrier(part)), "n"(THREADS) : "memory");
  }
  return h;
}

constexpr int kColumns = value_columns();
/** Lanes to a row of these columns, and rows that a warp and that the workers read at a time. */
constexpr int kRowLanes = kColumns / kVector;
constexpr int kRowsAtOnce = kWorkers / kRowLanes;
/** Vectors of u that a worker has. */
constexpr int kActiveVectors = (KEYS + kVector * kWorkers - 1) / (kVector * kWorkers);
constexpr int kFlight = 8;

/** A worker's u, and where its active ones stand among all. */
struct ActiveList {
  uint4 u[kActiveVectors];
  int begin, total;
};

__device__ __forceinline__ bool is_active(const uint4& v, int i) {
  const u32 word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
  return (word >> 16 * (i & 1) & 0x7fff) != 0;
}

/** Reads u and counts. */
__device__ __forceinline__ ActiveList read_active(const OneRow& op, Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  ActiveList list;
#pragma unroll
  for (int k = 0; k < kActiveVectors; k++) {
    const int at = threadIdx.x + k * kWorkers;
    list.u[k] = make_uint4(0, 0, 0, 0);
    if (kVector * at < KEYS)
      list.u[k] = __ldcg(reinterpret_cast<const uint4*>(op.u) + at);
  }
  int count = 0;
#pragma unroll
  for (int k = 0; k < kActiveVectors; k++)
#pragma unroll
    for (int i = 0; i < kVector; i++) count += is_active(list.u[k], i);
  int sum = count;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += before;
  }
  if (lane == 31) sh.counts[warp] = sum;
  sync_workers();
  const int others = lane < WARPS ? sh.counts[lane] : 0;
  list.total = warp_sum(others);
  list.begin = warp_sum(lane < warp ? others : 0) + sum - count;
  return list;
}

/** Those of the list from `base` on, as many as there is room for: its row and u. */
__device__ __forceinline__ void write_active(const ActiveList& list, int base, u32* to) {
  int at = list.begin - base;
#pragma unroll
  for (int k = 0; k < kActiveVectors; k++)
#pragma unroll
    for (int i = 0; i < kVector; i++) {
      const uint4& v = list.u[k];
      const u32 word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
      const u32 bits = word >> 16 * (i & 1) & 0xffff;
      const u32 row = kVector * (threadIdx.x + k * kWorkers) + i;
      const bool is_one = (bits & 0x7fff) != 0;
      if (is_one && (u32)at < LIST) to[at] = row << 16 | bits;
      at += is_one;
    }
}

/** acc += u·value over the list, on a lane's 8 columns; every kRowsAtOnce-th of it. */
__device__ __forceinline__ void add_active(float (&acc)[kVector], const u32* list, int count,
                                           const f16* value) {
  for (int base = threadIdx.x / kRowLanes; base < count; base += kFlight * kRowsAtOnce) {
    uint4 rows[kFlight];
    float u[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; i++) {
      const int at = base + i * kRowsAtOnce;
      const u32 one = at < count ? list[at] : 0;
      u[i] = to_float({(u16)one});
      rows[i] = make_uint4(0, 0, 0, 0);
      if (at < count)
        rows[i] = __ldg(reinterpret_cast<const uint4*>(value + (long long)(one >> 16) * CHANNELS));
    }
#pragma unroll
    for (int i = 0; i < kFlight; i++) {
      const u32 words[4] = {rows[i].x, rows[i].y, rows[i].z, rows[i].w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 pair = unpack(words[j]);
        acc[2 * j] += u[i] * pair.x, acc[2 * j + 1] += u[i] * pair.y;
      }
    }
  }
}

/** Adds what the lane `offset` away has of half of the numbers, and keeps that half. */
template <int Half>
__device__ __forceinline__ void fold(float (&x)[kVector], int offset) {
  const bool upper = (threadIdx.x & offset) != 0;
#pragma unroll
  for (int i = 0; i < Half; i++) {
    const float give = upper ? x[i] : x[i + Half];
    x[i] = (upper ? x[i + Half] : x[i]) + __shfl_xor_sync(~0u, give, offset);
  }
}

/** The warp's sums of its columns into `sums`. */
__device__ __forceinline__ void keep_sums(float (&acc)[kVector], float* sums) {
  const int lane = threadIdx.x & 31;
  fold<4>(acc, 16);
  static_assert(kRowLanes >= 2 && kRowLanes <= 16, "between 2 and 16 rows a warp");
  int column = kVector * (lane % kRowLanes) + (lane & 16 ? 4 : 0);
  if constexpr (kRowLanes <= 8) fold<2>(acc, 8), column += lane & 8 ? 2 : 0;
  if constexpr (kRowLanes <= 4) fold<1>(acc, 4), column += lane & 4 ? 1 : 0;
  if constexpr (kRowLanes == 2) acc[0] += __shfl_xor_sync(~0u, acc[0], 2);
  constexpr int kKept = kRowLanes <= 4 ? 1 : kRowLanes == 8 ? 2 : 4;
#pragma unroll
  for (int i = 0; i < kKept; i++) sums[column + i] = acc[i];
}

/** value: x += u·value on the block's columns. */
__device__ __forceinline__ void value_phase(const OneRow& op, Block& b, int l, const Row& shift) {
  const Layer& layer = b.sh.layers[l & 1];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  u32* const entries = reinterpret_cast<u32*>(b.region);
  float* const sums = b.sh.sums;
  b.barrier.wait();
  keep_shift(op, b, layer, 1, shift);
  if (warp >= WARPS) return;
  for (int begin = blockIdx.x * kColumns; begin < CHANNELS; begin += BLOCKS * kColumns) {
    const int c = begin + threadIdx.x;
    const bool adds = threadIdx.x < kColumns && c < CHANNELS;
    float total = adds ? __ldcg(op.x + c) : 0.0f;
    const ActiveList list = read_active(op, b.sh);
    const int column = begin + kVector * (lane % kRowLanes);
    // Past the end of a width that is no multiple: the last columns once more, for nobody.
    const f16* const value = layer.value + min(column, CHANNELS - kVector);
    float acc[kVector] = {};
    for (int base = 0; base < list.total; base += LIST) {
      write_active(list, base, entries);
      sync_workers();
      add_active(acc, entries, min(LIST, list.total - base), value);
      if (base + LIST < list.total) sync_workers();
    }
    keep_sums(acc, sums + warp * kColumns);
    sync_workers();
    if (adds) {
#pragma unroll
      for (int w = 0; w < WARPS; w++) total += sums[w * kColumns + threadIdx.x];
      op.x[c] = total;
    }
    if (BLOCKS * kColumns < CHANNELS) sync_workers();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    one_row(Step step, const __grid_constant__ OneRow op) {
  __shared__ Shared sh;
  // The ring's lines lie as those of global memory: 16 bytes beside, and copies take a tenth longer.
  alignas(128) extern __shared__ uint4 dynamic[];
  u8* const region = reinterpret_cast<u8*>(dynamic) + WARPS * kRing;
  Matrices* const matrices = reinterpret_cast<Matrices*>(region + REGION);
  const int warp = threadIdx.x >> 5;
  wait_for_previous();
  if (step.num_tokens() == 0) return;

  constexpr int kWords = sizeof(Matrices) / 8;
  for (int i = threadIdx.x; i < op.num_layers * kWords; i += THREADS)
    reinterpret_cast<u64*>(matrices)[i] =
        reinterpret_cast<const u64*>(&op.layers[i / kWords].matrices)[i % kWords];
  Block b = {sh, region, {op.arrivals, 0}, step.slots[0], share_of(op.first[kIn])};
  b.first_job = job_of(op, b.in.begin);
#pragma unroll
  for (int i = 0; i < MIXES; i++) b.bounds[i] = op.first[min(b.first_job + i + 1, kIn)];
  b.barrier.sense = b.barrier.read() & 0x80000000u;
  if (threadIdx.x < kWorkers && (threadIdx.x & 31) == 0) list_runs(op, sh);
  if (threadIdx.x < LOW_UNITS) {
    const LowUnit unit = low_unit(op, threadIdx.x);
    sh.low_inputs[threadIdx.x] = {(u16)unit.input, (u16)(rank_of(op, unit.low) - unit.column)};
  }
  __syncthreads();
  Stream s = {};
  s.layer = matrices, s.end = matrices + op.num_layers;
  if (threadIdx.x < kWorkers)
    s.run = sh.runs[warp], s.num_runs = sh.num_runs[warp];
  s.ring = reinterpret_cast<u8*>(dynamic) + warp * kRing;
  s.free = kRing - kSlot, s.policy = evict_first();
  if (threadIdx.x < kWorkers)
#pragma unroll 1
    for (int i = 0; i < RING - 1; i++) ask(s, i * kSlot);
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
    value_phase(op, b, l, h);
    if (l == op.num_layers - 1) break;
    b.barrier.arrive();
  }
  let_next_start();
}
