// y = epilogue(x·Wᵀ + bias), or y + x·Wᵀ, for many tokens and weights of 8 bits and fewer
// (quant.cuh), with all jobs in one launch.
// x f16 [T, columns] · y f16 or f32 [T, rows] · bias f32 [rows] or null · columns a multiple of 32.
// No f16 copy of W is written. A block has TOKENS tokens and WARPGROUPS·UNITS·64 rows of W: each of
// its WARPGROUPS (2 or 3) multiplies UNITS (1 or 2) times 64 rows. It decodes them in registers as
// the left operand of wgmma, one step ahead of the tensor cores, which are thus never idle. One more
// warpgroup, the loader, copies parts of W, their scales and x into a ring in shared memory. The two
// blocks of a pair (other rows, the same tokens) load half of x each, for both. Several pairs may
// have shares of a tile's columns; each then adds up the sums of some tokens, in a fixed order
// (linear-tiles-store.cuh). Needs capability 9.0 with its own instructions (sm_90a).
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

/** Registers of a thread of the loader and of one that multiplies. All threads start with the same
 * number; the loader gives most of its registers back, and the others take them. */
constexpr int kLoadingRegisters = UNITS == 2 ? 40 : 56;
constexpr int kMultiplyingRegisters = WARPGROUPS == 3 ? 152 : UNITS == 2 ? 232 : 224;

__device__ __forceinline__ void take_registers() {
#if HAS_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplyingRegisters));
#endif
}

__device__ __forceinline__ void leave_registers() {
#if HAS_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLoadingRegisters));
#endif
}

/** Loads a stage of W for this block, and announces its x as well. `number`: the stage's among all
 * of the columns. */
__device__ __forceinline__ void ask_values(Shared& shared, const Tile& tile, const TileMaps& maps,
                                           int stage, int number) {
  Barrier& full = shared.full[stage];
  const int first = number * kStageParts * kPartBytes;
  arrive_expecting(full, (int)sizeof(shared.inputs[0]) + kStageBytesOfRows);
  load_box(shared.values[stage], maps.values[tile.job], first, tile.first_row, full);
#if HIGH_BITS
  load_box(shared.high[stage], maps.high[tile.job], first + kLanesBytes, tile.first_row, full);
#endif
}

/** Loads a stage of this block's half of the tokens of x, for both blocks of the pair. */
__device__ __forceinline__ void ask_inputs(Shared& shared, const Tile& tile, const TileMaps& maps,
                                           int stage, int number) {
  const int half = tile.side * TOKENS / 2;
#pragma unroll
  for (int box = 0; box < kStageBoxes; box++)
    load_box_to(3, shared.inputs[stage][box] + 8 * half, maps.inputs[tile.job],
                (number * kStageBoxes + box) * kBoxInputs, tile.first_token + half,
                shared.full[stage]);
}

/** Starts an asynchronous copy of 4, 8 or 16 bytes, or of zeros. */
template <int Bytes>
__device__ __forceinline__ void copy_scales(Scales* to, const Scales* from, bool exists = true) {
#if HAS_WGMMA
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from),
               "n"(Bytes), "r"(exists ? Bytes : 0)
               : "memory");
#endif
}

/** Loads a row's scales: those of `part` and of the other parts in the same 16 bytes. Beyond the
 * columns they are zero, as x is: the sums of a stage's second part may begin there. */
__device__ __forceinline__ void ask_scales(Scales* to, const Scales* row, int part, int parts) {
  const int first = part / kScaleParts * kScaleParts;
  // Only then does every row start at a multiple of 16 bytes.
  if (parts % kScaleParts == 0) return copy_scales<16>(to, row + first);
#pragma unroll
  for (int n = 0; n < kScaleParts; n++) {
    const bool exists = first + n < parts;
    copy_scales<(int)sizeof(Scales)>(to + n, row + (exists ? first + n : 0), exists);
  }
}

/** Loads the scales of a stage, and of the parts that come with them, each thread for some rows.
 * The first part that uses some of them brings them. By then all parts that used the old scales in
 * that place have been read. */
__device__ __forceinline__ void ask_scales_of(Shared& shared, const TileJob& job, const Tile& tile,
                                              int stage, int number) {
  const int parts = parts_of(job.columns), part = number * kStageParts;
  const Scales* const scales = static_cast<const Scales*>(job.scales);
  if (kPartScales > 0 && (number == tile.begin || part % kScaleParts == 0))
#pragma unroll
    for (int n = threadIdx.x - kMultiplying; n < kRows; n += kLoading)
      ask_scales(shared.scales[part / kScaleParts % kScaleStages][n],
                 scales + (long long)min(tile.first_row + n, job.rows - 1) * parts, part, parts);
  arrive_after_copies(shared.full[stage]);
}

/** The loop of the loader, whose first thread loads everything but scales. The weights that have
 * room in the ring are loaded before what was launched before has ended; x is made by that. */
__device__ __forceinline__ void ask(Shared& shared, const TileJob& job, const Tile& tile,
                                    const TileMaps& maps) {
  const bool is_first = threadIdx.x == kMultiplying;
  const int early = min(STAGES, tile.end - tile.begin);
  if (is_first) fetch_map(maps.inputs[tile.job]);
  for (int n = 0; n < early; n++) {
    if (is_first) ask_values(shared, tile, maps, n, tile.begin + n);
    ask_scales_of(shared, job, tile, n, tile.begin + n);
  }
  wait_for_previous();
  if (is_first)
    for (int n = 0; n < early; n++) ask_inputs(shared, tile, maps, n, tile.begin + n);
  Turn turn;
  for (int number = tile.begin + STAGES; number < tile.end; number++, turn.next()) {
    wait(shared.free[turn.stage], turn.parity);
    if (is_first) {
      ask_values(shared, tile, maps, turn.stage, number);
      ask_inputs(shared, tile, maps, turn.stage, number);
    }
    ask_scales_of(shared, job, tile, turn.stage, number);
  }
}

/** One part of a lane's two rows of a unit, g and g + 8 of the warp's: word `lane % 4` of each of the four
 * lanes (quant.cuh). */
struct Words {
  u32 of[2][4];
  High<true> high[2];
  Scales scales[2];

  /** Of a unit, part `part` of the stage with this number. */
  __device__ __forceinline__ void take(const Shared& shared, int stage, int number, int part,
                                       int unit) {
    const int first = unit * kUnitRows + threadIdx.x / 32 * 16;
    if constexpr (QUANT == kE4m3)
      take_bytes(shared, stage, part, first);
    else
      take_words(shared, stage, part, number * kStageParts + part, first);
  }

  /** Where the copy engine has put 16 bytes of a row of W, so that those of eight rows are in
   * different banks. */
  static __device__ __forceinline__ int place_of(int row, int part, int unit) {
    return kStageParts == 1 ? unit ^ row / 2 % 4 : (4 * part + unit) ^ row % 8;
  }

  __device__ __forceinline__ void take_words(const Shared& shared, int stage, int part, int of_all,
                                             int first) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int row = first + 8 * n + lane % 8;
      load_matrices(of[n], shared_address(&shared.values[stage][row][place_of(row, part, lane / 8)]));
      scales[n] = shared.scales[of_all / kScaleParts % kScaleStages][first + 8 * n + lane / 4]
                               [of_all % kScaleParts];
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
  __device__ __forceinline__ void take_bytes(const Shared& shared, int stage, int part, int first) {
    const int lane = threadIdx.x & 31, q = lane & 3;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int row = first + 8 * n + lane / 4;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const u16* const unit =
            reinterpret_cast<const u16*>(&shared.values[stage][row][place_of(row, part, j)]);
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

/** Starts the products of a unit with the 32 inputs of a slice. */
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

/** All products of the share with the thread's rows. A step is a slice of a unit. While its products
 * run, those of the step before are waited for, and the next step is decoded into their registers.
 * The next part is read from shared memory while a step is left that was decoded before: with one
 * unit into registers of its own. */
__device__ __forceinline__ void work(float (&sums)[UNITS][TOKENS / 2], Shared& shared,
                                     const Tile& tile) {
  constexpr int kPartSteps = kPartSlices * UNITS, kSteps = kStageParts * kPartSteps;
  const DecodeConstants constants(true);
  Turn turn;
  Words words[UNITS], next;
  Ready ready[UNITS];
  Left left[2];
  wait(shared.full[0], 0);
#pragma unroll
  for (int unit = 0; unit < UNITS; unit++) words[unit].take(shared, 0, tile.begin, 0, unit);
  ready[0].prepare(words[0], 0, constants);
  left[0].decode_slice(ready[0], words[0], 0, constants);
  for (int number = tile.begin; number < tile.end; number++) {
    const int stage = turn.stage, before = (stage == 0 ? STAGES : stage) - 1;
    const bool is_last = number + 1 == tile.end;
    turn.next();
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      const int slice = step / UNITS;
      start(sums[step % UNITS], left[step % 2], shared.inputs[stage][slice / 2], slice % 2,
            slice == 0 && number == tile.begin);
      wait_for_products<1>();
      if (step == 0 && number > tile.begin) release(shared, before);
      const int in_part = step % kPartSteps, part = step / kPartSteps + 1;
      if (in_part == kPartSteps - 2 || (UNITS == 2 && in_part == kPartSteps - 1)) {
        Words& to = UNITS == 2 ? words[step % 2] : next;
        if (part < kStageParts) {
          to.take(shared, stage, number, part, step % UNITS);
        } else if (!is_last) {
          if (in_part == kPartSteps - 2) wait(shared.full[turn.stage], turn.parity);
          to.take(shared, turn.stage, number + 1, 0, step % UNITS);
        }
      }
      const int then = (step + 1) % kSteps, unit = then % UNITS;
      const int then_slice = then / UNITS % kPartSlices;
      if (UNITS == 1 && then_slice == 0) words[0] = next;
      if (then_slice % 2 == 0) ready[unit].prepare(words[unit], then_slice, constants);
      left[then % 2].decode_slice(ready[unit], words[unit], then_slice, constants);
    }
  }
  wait_for_products<0>();
#pragma unroll
  for (float(&unit)[TOKENS / 2] : sums) keep_behind(unit);
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
  const int num_tokens = step.counts[jobs.count_index];
  if (tile.first_token >= num_tokens) {
    wait_for_previous();
    return;
  }
  if (threadIdx.x >= kMultiplying) {
    leave_registers();
    ask(shared, job, tile, maps);
    tell_cluster();
    fetch_outputs(job, tile, num_tokens);
  } else {
    take_registers();
    wait_for_previous();
    float sums[UNITS][TOKENS / 2];
    work(sums, shared, tile);
    tell_cluster();
    // All threads have multiplied, so the ring is no longer read and its memory can hold the sums.
    meet();
    lay_out(shared, sums, job, tile);
    meet();
    if (tile.shares > 1) exchange(shared, jobs, tile, num_tokens);
    if (job.is_f32)
      store_outputs<float>(shared, jobs, job, tile, num_tokens);
    else
      store_outputs<f16>(shared, jobs, job, tile, num_tokens);
  }
  // No block may exit while the other can still arrive at its barriers.
  await_cluster();
#endif
}
