// y = epilogue(x·Wᵀ + bias), or y + x·Wᵀ, for many tokens and weights of 8 bits and fewer
// (quant.cuh), with all jobs in one launch.
// x f16 [T, columns] · y f16 or f32 [T, rows] · bias f32 [rows] or null · columns a multiple of 32.
// No f16 copy of W is written. A block has 128 rows of W and TOKENS (64, 128, 160 or 256) tokens.
// Two warpgroups hold 64 rows each and decode them in registers as the left operand of wgmma, one
// slice ahead of the tensor cores, which are thus never idle. A third warpgroup, the loader, copies
// parts of W, their scales and x into a ring in shared memory. The two blocks of a pair (256 rows)
// load half of x each, for both. Several pairs may have shares of a tile's columns; the one that is
// done last adds up their sums, in a fixed order (linear-tiles-store.cuh). Needs capability 9.0 with
// its own instructions (sm_90a).
// Tolerance: 1e-3 RMS against reference/ops.ts with weights of the same type.
#include "linear-tiles-store.cuh"
#include "tensor-cores.cuh"

/** A stage of the ring, and the parity of the current round. */
struct Turn {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

/** Each thread starts with 168 registers. The loader gives most of its registers back, and the
 * warpgroups that multiply take them. */
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

/** Loads one part: W for this block, and this block's half of the tokens of x for both blocks of
 * the pair. */
__device__ __forceinline__ void ask_part(Shared& shared, const Tile& tile, const TileMaps& maps,
                                         int stage, int part) {
  const int half = tile.side * TOKENS / 2;
  Barrier& full = shared.full[stage];
  arrive_expecting(full, (int)sizeof(shared.inputs[0]) + kPartBytesOfRows);
#pragma unroll
  for (int box = 0; box < kBoxes; box++)
    load_box_to(3, shared.inputs[stage][box] + 8 * half, maps.inputs[tile.job],
                part * kPartInputs + box * kBoxInputs, tile.first_token + half, full);
  load_box(shared.values[stage], maps.values[tile.job], part * kPartBytes, tile.first_row, full);
#if HIGH_BITS
  load_box(shared.high[stage], maps.high[tile.job], part * kPartBytes + kLanesBytes, tile.first_row,
           full);
#endif
}

/** Starts an asynchronous copy of 4, 8 or 16 bytes. */
template <int Bytes>
__device__ __forceinline__ void copy_scales(Scales* to, const Scales* from) {
#if HAS_WGMMA
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from),
               "n"(Bytes)
               : "memory");
#endif
}

/** Loads a row's scales: those of `part` and of the other parts in the same 16 bytes. */
__device__ __forceinline__ void ask_scales(Shared& shared, const Scales* row, int part, int parts) {
  const int first = part / kScaleParts * kScaleParts;
  Scales* const to = shared.scales[part / kScaleParts % kScaleStages][threadIdx.x - kMultiplying];
  // Only then does every row start at a multiple of 16 bytes.
  if (parts % kScaleParts == 0) return copy_scales<16>(to, row + first);
#pragma unroll
  for (int n = 0; n < kScaleParts; n++)
    if (first + n < parts) copy_scales<(int)sizeof(Scales)>(to + n, row + first + n);
}

/** The loop of the loader: each thread loads the scales of a row, the first thread everything else.
 * Scales are loaded with the first part that uses some of them. By then all parts that used the
 * old scales in that place have been read. */
__device__ __forceinline__ void ask(Shared& shared, const TileJob& job, const Tile& tile,
                                    const TileMaps& maps) {
  const int thread = threadIdx.x - kMultiplying, row = min(tile.first_row + thread, job.rows - 1);
  const int parts = parts_of(job.columns);
  const Scales* const scales = static_cast<const Scales*>(job.scales) + (long long)row * parts;
  Turn turn;
  for (int part = tile.begin; part < tile.end; part++, turn.next()) {
    wait(shared.free[turn.stage], turn.parity ^ 1);
    if (thread == 0) ask_part(shared, tile, maps, turn.stage, part);
    if (kPartScales > 0 && (part == tile.begin || part % kScaleParts == 0))
      ask_scales(shared, scales, part, parts);
    arrive_after_copies(shared.full[turn.stage]);
  }
}

/** One part of a lane's two rows, g and g + 8 of the warp's: word `lane % 4` of each of the four
 * lanes (quant.cuh). */
struct Words {
  u32 of[2][4];
  High<true> high[2];
  Scales scales[2];

  __device__ __forceinline__ void take(const Shared& shared, int stage, int part) {
    if constexpr (QUANT == kE4m3)
      take_bytes(shared, stage);
    else
      take_words(shared, stage, part);
  }

  __device__ __forceinline__ void take_words(const Shared& shared, int stage, int part) {
    const int lane = threadIdx.x & 31, first = threadIdx.x / 32 * 16;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      // The copy engine has swizzled the 16-byte units of the rows, so that those of eight rows are
      // in different banks.
      const int row = first + 8 * n + lane % 8;
      load_matrices(of[n], shared_address(&shared.values[stage][row][lane / 8 ^ row / 2 % 4]));
      scales[n] = shared.scales[part / kScaleParts % kScaleStages][first + 8 * n + lane / 4]
                               [part % kScaleParts];
    }
#if HIGH_BITS
    // The 16 bytes of the high bits of a row (two such units in q6), for eight rows and the next
    // eight.
    constexpr int kMatrices = 2 * kHighBits;
    const int matrix = lane / 8 % kMatrices, row = first + matrix / kHighBits * 8 + lane % 8;
    u32 all[4];
    load_matrices(all, shared_address(&shared.high[stage][row][matrix % kHighBits]));
#pragma unroll
    for (int i = 0; i < kMatrices; i++) high[i / kHighBits].of[i % kHighBits] = all[i];
#endif
  }

  /** e4m3, whose rows are in order: word j has what lane q needs for product j, inputs 2q, 2q + 1,
   * 2q + 8 and 2q + 9 of its 16. */
  __device__ __forceinline__ void take_bytes(const Shared& shared, int stage) {
    const int lane = threadIdx.x & 31, q = lane & 3;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int row = threadIdx.x / 32 * 16 + 8 * n + lane / 4;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const u16* const unit =
            reinterpret_cast<const u16*>(&shared.values[stage][row][j ^ row / 2 % 4]);
        of[n][j] = unit[q] | (u32)unit[q + 4] << 16;
      }
    }
  }
};

/** The words from which the next two slices of a part are decoded. */
struct Ready {
  u32 of[2][4];

  __device__ __forceinline__ void prepare(const Words& words, int slice,
                                          const DecodeConstants& constants) {
    prepare_slices(of[0], words.of[0], slice, constants);
    prepare_slices(of[1], words.of[1], slice, constants);
  }
};

/** One slice of a thread's two rows: the left operands of two products. */
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
  // Addresses in a descriptor count 16 bytes.
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

/** Tells both blocks of the pair that a stage has been read. One lane per block is enough: a warp
 * starts its products together, and they have been waited for. */
__device__ __forceinline__ void release(Shared& shared, int stage) {
  const int lane = threadIdx.x & 31;
  if (lane < 2) arrive_in(lane, shared.free[stage]);
}

/** All products of the share with the thread's rows. While the products of one slice run, those of
 * the previous slice are waited for, and the next slice is decoded into their registers. The next
 * part is read from shared memory one slice earlier. */
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
      if (slice == 0 && part > tile.begin) release(shared, before);
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
    // full: the loader's first thread arrives for the copies of W and x, and each of its threads
    // when its scales are there. free: every warp that multiplies, of both blocks.
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
    if (tile.share == 0) fetch_outputs(job, tile, num_tokens);
  } else {
    take_registers();
    float sums[TOKENS / 2];
    work(sums, shared, tile);
    if (gather(sums, jobs, tile)) {
      // All threads have multiplied, so the ring is no longer read and its memory can hold the sums.
      meet();
      lay_out(shared, sums, job, tile);
      meet();
      if (job.is_f32)
        store_outputs<float>(shared, job, tile, num_tokens);
      else
        store_outputs<f16>(shared, job, tile, num_tokens);
    }
  }
  // No block may exit while the other can still arrive at its barriers.
  cluster_meet();
#endif
}
