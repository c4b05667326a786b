// The `value` phase of eight-rows.cu for a transposed matrix of f16: each block has some of the
// columns, and reads only the rows that are active for some token. A row has its place among the
// products whether it is active or not, so a token's sums do not depend on the other tokens.
#pragma once
#include "eight-rows.cuh"

/** Rows of value that a warp multiplies at once. A lane has u of 8 of them. */
constexpr int kGroupRows = 32, kValueGroups = KEYS / kGroupRows;
/** Columns that a lane has of each of its 8 rows. */
constexpr int kColumns = value_columns();
constexpr int kOwnColumns = kColumns / 8, kOwnWords = kOwnColumns / 2;
static_assert(KEYS % kGroupRows == 0 && CHANNELS % kColumns == 0 && kOwnWords <= 2);
/** Groups whose rows are in flight, and groups whose u is. */
constexpr int kFlight = 2, kAheadGroups = 2;

/** Loads a lane's columns of row I of `from`, or zeros, bypassing L1. The predicate is in the
 * assembly, because with a branch only one load would be in flight. So is the row's offset, because
 * eight addresses would take 16 registers. */
template <int I>
__device__ __forceinline__ void load_row_words(u32 (&v)[1], const f16* from, bool inside) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %2, 0; mov.u32 %0, 0;\n"
      " @p ld.global.nc.L1::no_allocate.L2::256B.u32 %0, [%1 + %3]; }"
      : "=&r"(v[0])
      : "l"(from), "r"((int)inside), "n"(2 * I * CHANNELS));
#endif
}

template <int I>
__device__ __forceinline__ void load_row_words(u32 (&v)[2], const f16* from, bool inside) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;\n"
      " @p ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0, %1}, [%2 + %4]; }"
      : "=&r"(v[0]), "=&r"(v[1])
      : "l"(from), "r"((int)inside), "n"(2 * I * CHANNELS));
#endif
}

/** Sets bit 15 if the lower half of a word is not zero, and bit 31 if the upper half is not. */
__device__ __forceinline__ u32 active_halves(u32 pair) {
  return (pair & 0x7fff7fff) + 0x7fff7fff & 0x80008000;
}

/** Which of the lane's 8 rows are active for some token: bit i for row 2·i, bit 16 + i for row
 * 2·i + 1. */
__device__ __forceinline__ u32 active_rows(const uint4& u) {
  u32 active = active_halves(u.x) >> 15 | active_halves(u.y) >> 14 | active_halves(u.z) >> 13 |
               active_halves(u.w) >> 12;
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) active |= __shfl_xor_sync(~0u, active, offset);
  return active;
}

/** What a lane has of a group: u of its token, and its columns of 8 rows. */
struct Group {
  uint4 u;
  u32 rows[8][kOwnWords];
};

/** Requests the two rows of a word of u. */
template <int I>
__device__ __forceinline__ void ask_pair(Group& group, const f16* from, u32 active) {
  load_row_words<2 * I>(group.rows[2 * I], from, active >> I & 1);
  load_row_words<2 * I + 1>(group.rows[2 * I + 1], from, active >> (16 + I) & 1);
}

__device__ __forceinline__ void ask_rows(Group& group, const f16* from) {
  const u32 active = active_rows(group.u);
  ask_pair<0>(group, from, active), ask_pair<1>(group, from, active);
  ask_pair<2>(group, from, active), ask_pair<3>(group, from, active);
}

/** Rows i and i + 8 of a product are neighbouring columns of value. */
__device__ __forceinline__ void add_group(float (&sums)[kOwnWords][4], const Group& group) {
  const u32 u[4] = {group.u.x, group.u.y, group.u.z, group.u.w};
  __syncwarp();
#pragma unroll
  for (int step = 0; step < 2; step++)
#pragma unroll
    for (int word = 0; word < kOwnWords; word++) {
      const u32 a = group.rows[4 * step][word], b = group.rows[4 * step + 1][word],
                c = group.rows[4 * step + 2][word], d = group.rows[4 * step + 3][word];
      mma(sums[word], select_bytes(a, b, 0x5410), select_bytes(a, b, 0x7632),
          select_bytes(c, d, 0x5410), select_bytes(c, d, 0x7632), u[2 * step], u[2 * step + 1]);
    }
}

/** Sums the warp's groups of u·value on the block's columns. `value`: the first of them. */
__device__ __forceinline__ void multiply_active(float (&sums)[kOwnWords][4], const FewRows& op,
                                                const Block& b, const f16* value) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = lane & 3;
  const f16* const u = op.u + own_token(b) * KEYS + kVector * part;
  value += kVector * part * CHANNELS + kOwnColumns * (lane >> 2);
  const auto load = [&](int group) {
    const uint4 own = __ldcg(
        reinterpret_cast<const uint4*>(u + min(group, kValueGroups - 1) * kGroupRows));
    const u32 mask = group < kValueGroups ? ~0u : 0;
    return make_uint4(own.x & mask, own.y & mask, own.z & mask, own.w & mask);
  };
  // Beyond the last group, no row is active.
  constexpr int kStride = WARPS * kGroupRows * CHANNELS;
  const f16* from = value + warp * (kGroupRows * CHANNELS);
  Group groups[kFlight];
  uint4 ahead[kAheadGroups];
#pragma unroll
  for (int i = 0; i < kFlight; i++) groups[i].u = load(warp + i * WARPS);
#pragma unroll
  for (int i = 0; i < kAheadGroups; i++) ahead[i] = load(warp + (kFlight + i) * WARPS);
#pragma unroll
  for (int i = 0; i < kFlight; i++, from += kStride) ask_rows(groups[i], from);
#pragma unroll 1
  for (int base = warp; base < kValueGroups; base += kFlight * WARPS)
#pragma unroll
    for (int i = 0; i < kFlight; i++, from += kStride) {
      add_group(sums, groups[i]);
      groups[i].u = ahead[0];
#pragma unroll
      for (int n = 1; n < kAheadGroups; n++) ahead[n - 1] = ahead[n];
      ahead[kAheadGroups - 1] = load(base + (kFlight + i + kAheadGroups) * WARPS);
      ask_rows(groups[i], from);
    }
}

/** Run by the warps that multiply: x += u·value on the block's columns. */
__device__ __forceinline__ void add_value(const FewRows& op, Block& b, const f16* value) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = lane & 3;
  constexpr int kOutputs = kColumns * TOKENS;
  static_assert(kOutputs <= kWorkers, "one column of a token per thread");
  const int column = threadIdx.x / TOKENS, token = threadIdx.x % TOKENS;
  const bool adds = threadIdx.x < kOutputs && token < b.num_tokens;
#pragma unroll 1
  for (int begin = blockIdx.x * kColumns; begin < CHANNELS; begin += BLOCKS * kColumns) {
    float* const x = op.x + token * CHANNELS + begin + column;
    const float old = adds ? __ldcg(x) : 0.0f;
    float sums[kOwnWords][4] = {};
    multiply_active(sums, op, b, value + begin);
    float* const to = b.sh.sums + warp * kOutputs;
#pragma unroll
    for (int word = 0; word < kOwnWords; word++) {
      float* const own = to + (kOwnColumns * (lane >> 2) + 2 * word) * TOKENS + 2 * part;
      *reinterpret_cast<float2*>(own) = make_float2(sums[word][0], sums[word][1]);
      *reinterpret_cast<float2*>(own + TOKENS) = make_float2(sums[word][2], sums[word][3]);
    }
    sync_workers();
    if (adds) {
      float sum = old;
#pragma unroll
      for (int w = 0; w < WARPS; w++) sum += b.sh.sums[w * kOutputs + threadIdx.x];
      *x = sum;
    }
    if (BLOCKS * kColumns < CHANNELS) sync_workers();
  }
}
