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
