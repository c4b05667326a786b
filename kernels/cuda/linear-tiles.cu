// y = epilogue(x·Wᵀ + bias), or y + x·Wᵀ, for many tokens where W is of integers (quant.cuh): all
// jobs of one launch. x f16 [T, columns] · y f16 or f32 [T, rows] · bias f32 [rows] or null ·
// columns a multiple of 32. No copy of W is written: a block has 128 rows of it and TOKENS (64, 128,
// 160 or 256) tokens; two warpgroups hold 64 rows each and decode them in registers, as the left
// operand of wgmma, a slice ahead of what the tensor cores multiply, so that these always have
// something to do. A third warpgroup asks for parts of W, their scales and x ahead, in a ring in
// shared memory; the two blocks of a pair (256 rows) bring each other half of x. The pairs of a
// cluster have a share of the columns each and add up through their shared memories, in one order.
// Needs capability 9.0 and its own instructions (sm_90a).
// Tolerance: 1e-3 RMS against reference/ops.ts with weights of the same type.
#include "linear-tiles-store.cuh"
#include "tensor-cores.cuh"

/** A place in the ring, and the parity of its turn. */
struct Turn {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

/** Of the 168 registers that each thread has at the start those that ask leave most; these get
 * them.
 */
__device__ __forceinline__ void take_registers() {
#if HAS_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif
}

__device__ __forceinline__ void leave_registers() {
#if HAS_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
}

/** x of a part for both blocks of the pair, half of the tokens, and W for this one. */
__device__ __forceinline__ void ask_part(Shared& shared, const Tile& tile, const TileMaps& maps,
                                         int stage, int part) {
  const int half = tile.side * TOKENS / 2;
  Barrier& full = shared.full[stage];
  arrive_expecting(full, (int)sizeof(shared.inputs[0]) + kPartBytesOfRows);
#pragma unroll
  for (int box = 0; box < kBoxes; box++)
    load_box_to(3 << 2 * tile.share, shared.inputs[stage][box] + 8 * half, maps.inputs[tile.job],
                part * kPartInputs + box * kBoxInputs, tile.first_token + half, full);
  load_box(shared.values[stage], maps.values[tile.job], part * kPartBytes, tile.first_row, full);
#if HIGH_BITS
  load_box(shared.high[stage], maps.high[tile.job], part * kPartBytes + kLanesBytes, tile.first_row,
           full);
#endif
}

/** By a copy that is not waited for: 4, 8 or 16 bytes. */
template <int Bytes>
__device__ __forceinline__ void copy_scales(Scales* to, const Scales* from) {
#if HAS_WGMMA
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from),
               "n"(Bytes)
               : "memory");
#endif
}

/** A row's scales of the parts from `part` to the end of their 16 bytes. */
__device__ __forceinline__ void ask_scales(Shared& shared, const Scales* row, int part, int parts) {
  const int first = part / kScaleParts * kScaleParts;
  Scales* const to = shared.scales[part / kScaleParts % kScaleStages][threadIdx.x - kMultiplying];
  // Only then do all rows begin at a multiple of 16 bytes.
  if (parts % kScaleParts == 0) return copy_scales<16>(to, row + first);
#pragma unroll
  for (int n = 0; n < kScaleParts; n++)
    if (first + n < parts) copy_scales<(int)sizeof(Scales)>(to + n, row + first + n);
}

/** The warpgroup that asks: each thread for the scales of a row, the first for the rest. Scales
 * come with the first part that takes some of them, when all parts that took those in their place
 * are read. */
__device__ __forceinline__ void ask(Shared& shared, const TileJob& job, const Tile& tile,
                                    const TileMaps& maps) {
  const int thread = threadIdx.x - kMultiplying, row = min(tile.first_row + thread, job.rows - 1);
  const int parts = parts_of(job.columns);
  const Scales* const scales = reinterpret_cast<const Scales*>(job.scales) + (long long)row * parts;
  Turn turn;
  for (int part = tile.begin; part < tile.end; part++, turn.next()) {
    wait(shared.free[turn.stage], turn.parity ^ 1);
    if (thread == 0) ask_part(shared, tile, maps, turn.stage, part);
    if (part == tile.begin || part % kScaleParts == 0) ask_scales(shared, scales, part, parts);
    arrive_after_copies(shared.full[turn.stage]);
  }
}

/** Of a lane's two rows of a part, g and g + 8 of the warp's, its word of each lane's (quant.cuh).
 */
struct Words {
  u32 of[2][4];
  High<true> high[2];
  Scales scales[2];

  __device__ __forceinline__ void take(const Shared& shared, int stage, int part) {
    const int lane = threadIdx.x & 31, first = threadIdx.x / 32 * 16;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      // The copy engine has exchanged 16 bytes of a row with others, so that those of eight rows
      // are in different banks.
      const int row = first + 8 * n + lane % 8;
      load_matrices(of[n], shared_address(&shared.values[stage][row][lane / 8 ^ row / 2 % 4]));
      scales[n] = shared.scales[part / kScaleParts % kScaleStages][first + 8 * n + lane / 4]
                               [part % kScaleParts];
    }
#if HIGH_BITS
    // A row's 16 bytes, or both of them, of eight rows and the other eight.
    constexpr int kMatrices = 2 * kHighBits;
    const int matrix = lane / 8 % kMatrices, row = first + matrix / kHighBits * 8 + lane % 8;
    u32 all[4];
    load_matrices(all, shared_address(&shared.high[stage][row][matrix % kHighBits]));
#pragma unroll
    for (int i = 0; i < kMatrices; i++) high[i / kHighBits].of[i % kHighBits] = all[i];
#endif
  }
};

/** What of a part two slices are decoded from. */
struct Ready {
  u32 of[2][4];

  __device__ __forceinline__ void prepare(const Words& words, int slice,
                                          const DecodeConstants& constants) {
    prepare_slices(of[0], words.of[0], slice, constants);
    prepare_slices(of[1], words.of[1], slice, constants);
  }
};

/** Of a thread's two rows the left operands of two products: a slice. */
struct Left {
  u32 row[4], other[4];

  __device__ __forceinline__ void decode_slice(const Ready& ready, const Words& words, int slice,
                                               const DecodeConstants& constants) {
    decode(row, ready.of[0], words.high[0], words.scales[0], slice, constants);
    decode(other, ready.of[1], words.high[1], words.scales[1], slice, constants);
  }
};

/** Starts the products with the 32 inputs of a slice. */
__device__ __forceinline__ void start(float (&sums)[TOKENS / 2], const Left& left,
                                      const uint4* inputs, int half, bool is_first) {
  // In 16 bytes, as addresses are in it.
  const u64 first = describe(inputs) + 4 * half;
  begin_products();
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const u32 a[4] = {left.row[2 * k], left.other[2 * k], left.row[2 * k + 1],
                      left.other[2 * k + 1]};
    multiply(sums, a, first + 2 * k, k > 0 || !is_first);
  }
  end_products();
}

/** One lane of each warp tells both blocks of the pair that a stage is read: by all lanes, for the
 * products of what they read, which a warp starts as one, have been waited for. */
__device__ __forceinline__ void release(Shared& shared, const Tile& tile, int stage) {
  const int lane = threadIdx.x & 31;
  if (lane < 2) arrive_in(2 * tile.share + lane, shared.free[stage]);
}

/** All products of the share with the thread's rows. While a slice is multiplied the one before it
 * is waited for, whose registers the next is then decoded into; a part is taken from shared memory
 * a slice before that. */
__device__ __forceinline__ void work(float (&sums)[TOKENS / 2], Shared& shared, const Tile& tile) {
  const DecodeConstants constants(true);
  Turn turn;
  Words words, next;
  Ready ready;
  Left left[2];
  wait(shared.full[0], 0);
  words.take(shared, 0, tile.begin);
  next = words;
  ready.prepare(words, 0, constants);
  left[0].decode_slice(ready, words, 0, constants);
  for (int part = tile.begin; part < tile.end; part++) {
    const int stage = turn.stage, before = (stage == 0 ? STAGES : stage) - 1;
    const bool is_last = part + 1 == tile.end;
    turn.next();
#pragma unroll
    for (int slice = 0; slice < kPartSlices; slice++) {
      start(sums, left[slice % 2], shared.inputs[stage][slice / 2], slice % 2,
            slice == 0 && part == tile.begin);
      wait_for_products<1>();
      if (slice == 0 && part > tile.begin) release(shared, tile, before);
      if (slice == kPartSlices - 2 && !is_last) {
        wait(shared.full[turn.stage], turn.parity);
        next.take(shared, turn.stage, part + 1);
      }
      const int then = (slice + 1) % kPartSlices;
      if (then == 0) words = next;
      if (then % 2 == 0) ready.prepare(words, then, constants);
      left[then % 2].decode_slice(ready, words, then, constants);
    }
  }
  wait_for_products<0>();
}

/** Between the threads that multiply. */
__device__ __forceinline__ void meet() {
#if __CUDA_ARCH__ >= 900
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiplying) : "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    linear_tiles(Step step, const __grid_constant__ TileJobs jobs,
                 const __grid_constant__ TileMaps maps) {
#if HAS_WGMMA
  alignas(1024) extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  const Tile tile = find_tile(jobs);
  const TileJob& job = jobs.job[tile.job];
  if (threadIdx.x < STAGES) {
    // The first of those that ask, and each when its scales have come; the warps of both blocks.
    init(shared.full[threadIdx.x], 1 + kThreads - kMultiplying);
    init(shared.free[threadIdx.x], 2 * kMultiplying / 32);
  }
  cluster_meet();
  wait_for_previous();
  const int num_tokens = step.counts[jobs.count_index];
  if (tile.first_token >= num_tokens) return;
  if (threadIdx.x >= kMultiplying) {
    leave_registers();
    ask(shared, job, tile, maps);
    fetch_outputs(job, tile, jobs.shares, num_tokens);
    cluster_meet();
  } else {
    take_registers();
    float sums[TOKENS / 2];
    work(sums, shared, tile);
    // All have multiplied: what was brought is read no more.
    meet();
    share(shared, sums);
    cluster_meet();
    if (job.is_f32)
      store_outputs<float>(shared, job, tile, jobs.shares, num_tokens);
    else
      store_outputs<f16>(shared, job, tile, jobs.shares, num_tokens);
  }
  // No block goes while another may still read its sums, or tell it what is free.
  cluster_part();
#endif
}
