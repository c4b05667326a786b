// The end of few-rows.cu: the norm of the last layer's x, and the head, with the bits of
// gather-norm.cu and linear-few.cu. Each block norms for itself and has some rows of the head, which
// its warps request as soon as they have done the last layer.
#pragma once
#include "few-rows-block.cuh"

/** Warps that share rows of the head, as in linear-few.cu: each has the runs of 64 columns `part`
 * and `part + kParts`. Half of the warps has 8 of a tile's rows, the others have the next 8. */
constexpr int kParts = 8;
static_assert(WARPS == 2 * kParts && kUnits >= kParts && kUnits <= 2 * kParts, "two runs a warp");

/** The head's rows that a warp requests: its runs of 8 rows are the two halves of a unit. */
struct HeadRows {
  const f16* of;
  int next, end;

  __device__ __forceinline__ void ask(const Stream& s, u32 place) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = next + warp / kParts * 8 + i % 2 * 4 + lane / 8;
      const int run = warp % kParts + i / 2 * kParts;
      const f16* const from =
          of + (long long)row * CHANNELS + run * kUnitColumns + kVector * (lane & 7);
      copy_ahead(s.own + place + 512 * i, from, row < end && run < kUnits, s.policy);
    }
    end_group();
    next += kTileRows;
  }
};

/** The normed row, or the weighted sum of several, that logits row r reads. */
__device__ __forceinline__ Row blended_row(const Step& step, const Rows& normed, int r) {
  const auto row_of = [&](int from) {
    Row row = normed.of[0];
#pragma unroll
    for (int t = 1; t < TOKENS; t++)
      if (step.logit_rows[from] == t) row = normed.of[t];
    return row;
  };
  Row row = row_of(r);
  const int count = step.blend_counts[r];
  if (count <= 1) return row;
  row = times(row, step.blend_weights[r]);
  for (int i = 1; i < count; i++) row = plus(row, times(row_of(r + i), step.blend_weights[r + i]));
  return row;
}

/** Stores what the head multiplies for logits row r: in `hidden`, and by one block also in memory. */
__device__ __forceinline__ void store_hidden(f16* hidden, const Step& step, const Logits& to,
                                             const Rows& normed, int r) {
  const int token = step.logit_rows[r];
  f16* const out = to.hidden + (long long)r * CHANNELS;
  if (token < 0) {
    const f16* const from = to.kept + (long long)(-1 - token) * CHANNELS;
    const uint2 four = owns(0) ? reinterpret_cast<const uint2*>(from)[group(0)] : make_uint2(0, 0);
    if (owns(0)) reinterpret_cast<uint2*>(hidden)[group(0)] = four;
    if (owns(0) && blockIdx.x == 0) reinterpret_cast<uint2*>(out)[group(0)] = four;
    return;
  }
  const Row row = blended_row(step, normed, r);
  store_row(hidden, row);
  if (blockIdx.x > 0) return;
  store_row(out, row);
  if (to.kept_as[r] > 0) store_row(to.kept + (long long)(to.kept_as[r] - 1) * CHANNELS, row);
}

/** Logits of as many rows as there are, at most TOKENS. */
__device__ __forceinline__ void logits_phase(const Step& step, const Logits& to, Block& b,
                                             Stream& s) {
  static_assert(kPer == 1, "a thread has one group of channels");
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = warp % kParts;
  const Place rows = share_of(to.vocab);
  HeadRows head = {to.head, rows.begin, rows.end};
  if (threadIdx.x < kWorkers) {
    // All that was requested of the layers has been multiplied.
    __syncwarp();
    s.slot = 0, s.free = kRing - kSlot;
#pragma unroll 1
    for (int i = 0; i < RING - 1; i++) head.ask(s, i * kSlot);
  }
  const int num_rows = min(step.num_logits(), TOKENS);
  f16* const hidden = reinterpret_cast<f16*>(b.region);
  // Sums by parts, two tiles' in turns.
  using Sums = float[TOKENS][kParts][kTileRows];
  Sums* const sums = reinterpret_cast<Sums*>(b.region + 2 * TOKENS * CHANNELS);
  static_assert(2 * TOKENS * CHANNELS + 2 * sizeof(Sums) <= REGION, "room for the sums");
  const Row weight = load_row(to.weight), bias = load_row(to.bias);
  Rows x = {};
  if (b.num_tokens > 0) x = take_x(b, kAfterValue);
  normalise(x.of, to.eps, b.sh.scratch);
#pragma unroll
  for (int t = 0; t < TOKENS; t++) x.of[t] = affine(x.of[t], weight, bias);
#pragma unroll
  for (int r = 0; r < TOKENS; r++)
    if (r < num_rows) store_hidden(hidden + r * CHANNELS, step, to, x, r);
  sync_threads();
  if (threadIdx.x >= kWorkers || num_rows == 0) return;

  // Lanes have rows and tokens as in linear-few.cu; of the eight tokens only num_rows are there.
  const int row = lane >> 2, q = lane & 3;
  const f16* const own =
      hidden + min(row, num_rows - 1) * CHANNELS + kUnitColumns * part + kVector * q;
  const auto input = [&](int run, int half) {
    return *reinterpret_cast<const uint4*>(own + run * kParts * kUnitColumns + 32 * half);
  };
  const bool has_second = part + kParts < kUnits;
  uint4 inputs[2][2] = {{input(0, 0), input(0, 1)}};
  if (has_second) inputs[1][0] = input(1, 0), inputs[1][1] = input(1, 1);
  const int at0 = 128 * row + 16 * (q ^ (row & 1) << 2), at1 = at0 ^ 64;
  const int token = threadIdx.x / kTileRows, own_row = threadIdx.x % kTileRows;
  int turn = 0;
#pragma unroll 1
  for (int first = rows.begin; first < rows.end; first += kTileRows, turn ^= 1) {
    wait_for_groups<RING - 2>();
    __syncwarp();
    head.ask(s, s.free);
    float d[4] = {};
#pragma unroll
    for (int run = 0; run < 2; run++) {
      if (run == 1 && !has_second) break;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u8* const from = s.ring + s.slot + 1024 * run + (half == 0 ? at0 : at1);
        const uint4 w = *reinterpret_cast<const uint4*>(from), x = inputs[run][half];
        mma(d, x.x, 0, x.y, 0, w.x, w.y);
        mma(d, x.z, 0, x.w, 0, w.z, w.w);
      }
    }
    s.free = s.slot;
    s.slot = s.slot == kRing - kSlot ? 0 : s.slot + kSlot;
    if (row < num_rows)
      *reinterpret_cast<float2*>(sums[turn][row][part] + warp / kParts * 8 + 2 * q) =
          make_float2(d[0], d[1]);
    sync_workers();
    if (token >= num_rows || first + own_row >= rows.end) continue;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kParts; i++) sum += sums[turn][token][i][own_row];
    to.of[(long long)token * to.vocab + first + own_row] = sum;
  }
}
