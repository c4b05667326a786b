// The `value` phase of few-rows.cu for a transposed matrix: each block has some of the columns, and
// reads only the rows for which a token's u is not zero. A quantised matrix has the layout of
// active-rows.cu.
#pragma once
#include "few-rows-block.cuh"

constexpr int kColumns = value_columns();
/** Lanes per row of these columns, and rows that all workers together read at a time. */
constexpr int kRowLanes = kColumns / kVector;
constexpr int kRowsAtOnce = kWorkers / kRowLanes;
/** Vectors of u per worker. */
constexpr int kActiveVectors = (KEYS + kVector * kWorkers - 1) / (kVector * kWorkers);
/** Rows in flight per lane and token. */
constexpr int kFlight = 8 / TOKENS;
static_assert(TOKENS * kColumns <= kWorkers, "a column of a token a worker");

/** A worker's u of a token, and the position of its active ones among all of that token. */
struct ActiveList {
  uint4 u[kActiveVectors];
  int begin, total;
};

/** One list per token. The lists of absent tokens are empty. */
struct ActiveLists {
  ActiveList of[TOKENS];
};

__device__ __forceinline__ bool is_active(const uint4& v, int i) {
  const u32 word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
  return (word >> 16 * (i & 1) & 0x7fff) != 0;
}

/** Counts a token's active u: the lane's position within the warp, and the total of each warp. */
__device__ __forceinline__ void count_active(ActiveList& list, int (&counts)[WARPS]) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
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
  if (lane == 31) counts[warp] = sum;
  list.begin = sum - count;
}

/** Reads u and counts its active values. */
__device__ __forceinline__ ActiveLists read_active(const FewRows& op, Shared& sh, int num_tokens) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  ActiveLists lists;
#pragma unroll
  for (int t = 0; t < TOKENS; t++)
#pragma unroll
    for (int k = 0; k < kActiveVectors; k++) {
      const int at = threadIdx.x + k * kWorkers;
      lists.of[t].u[k] = make_uint4(0, 0, 0, 0);
      if (t < num_tokens && kVector * at < KEYS)
        lists.of[t].u[k] = __ldcg(reinterpret_cast<const uint4*>(op.u + t * KEYS) + at);
    }
#pragma unroll
  for (int t = 0; t < TOKENS; t++) count_active(lists.of[t], sh.counts[t]);
  sync_workers();
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
    const int others = lane < WARPS ? sh.counts[t][lane] : 0;
    lists.of[t].total = warp_sum(others);
    lists.of[t].begin += warp_sum(lane < warp ? others : 0);
  }
  return lists;
}

/** Writes the entries of the list from `base` on, up to LIST of them: each has its row and u. */
__device__ __forceinline__ void write_active(const ActiveList& list, int base, u32* to) {
  int at = list.begin - base;
  const u32 first = shared_address(to);
#pragma unroll
  for (int k = 0; k < kActiveVectors; k++)
#pragma unroll
    for (int i = 0; i < kVector; i++) {
      const uint4& v = list.u[k];
      const u32 word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
      const u32 bits = word >> 16 * (i & 1) & 0xffff;
      const u32 row = kVector * (threadIdx.x + k * kWorkers) + i;
      const bool is_one = (bits & 0x7fff) != 0;
      // A predicate, not a branch: 1.5B is 1.6 % faster.
      asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p st.shared.u32 [%0], %1; }" ::"r"(
                       first + 4 * at),
                   "r"(row << 16 | bits), "r"((int)(is_one && (u32)at < LIST))
                   : "memory");
      at += is_one;
    }
}

/** A lane's columns of value: a pointer to its first row, and for a quantised matrix to its scales,
 * which are kStride apart from group to group. */
struct ValuePart {
#if QUANT
  const u8* codes;
  const f16* scales;
  static constexpr int kStride = (kStagesScales ? kColumns : CHANNELS) * kGroupScales;
#else
  const f16* rows;
#endif
};

/** The lane's columns of one row; if quantised, its codes, and the scales and minimums of its
 * group. */
struct ValueRow {
#if QUANT
  uint2 codes;
  uint4 scales, minimums;
#else
  uint4 halves;
#endif
};

#if QUANT
/** Like load_once, for 8 bytes. */
__device__ __forceinline__ uint2 load_codes(const u8* from, bool inside) {
  uint2 v = make_uint2(0, 0);
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0;\n"
      " mov.u32 %0, 0; mov.u32 %1, 0;\n"
      " @p ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0, %1}, [%2]; }"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(from), "r"((int)inside));
#endif
  return v;
}

/** Code i of the four in a word. */
__device__ __forceinline__ float code_of(u32 word, int i) {
  // The lowest byte of 2^23 + n, as f32, is n.
  constexpr float kBase = 8388608 + kTurnedZero;
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650 + i)) - kBase;
}
#endif

__device__ __forceinline__ ValueRow load_value(const ValuePart& value, u32 row, bool is_one) {
  ValueRow v;
#if QUANT
  v.codes = load_codes(value.codes + (long long)row * CHANNELS, is_one);
  if constexpr (kStagesScales || kHasRowScales) return v;
  const f16* const scales = value.scales + (long long)(row / kGroup) * ValuePart::kStride;
  v.scales = load_once<true>(scales, is_one);
  if constexpr (kHasMinimum) v.minimums = load_once<true>(scales + CHANNELS, is_one);
#else
  v.halves = load_once<true>(value.rows + (long long)row * CHANNELS, is_one);
#endif
  return v;
}

/** What is kept of a list's entry until its row is loaded: u, and the row for integers. */
struct Entry {
#if QUANT && QUANT != 4
  u32 both;
  __device__ __forceinline__ explicit Entry(u32 one) : both(one) {}
  __device__ __forceinline__ float u() const { return to_float({(u16)both}); }
#else
  float value;
  __device__ __forceinline__ explicit Entry(u32 one) : value(to_float({(u16)one})) {}
  __device__ __forceinline__ float u() const { return value; }
#endif
  Entry() = default;
};

__device__ __forceinline__ void add_value(float (&acc)[kVector], const Entry& entry, ValueRow v,
                                          const ValuePart& value) {
  const float u = entry.u();
#if QUANT == 4
  const u32 ready[4] = {v.codes.x, v.codes.y};
  u32 h[4];
  slice_to_f16(h, ready, High<false>{}, 0, DecodeConstants(false));
  add_scaled(acc, u, make_uint4(h[0], h[1], h[2], h[3]));
#elif QUANT
  if constexpr (kStagesScales) {
    const f16* const scales = value.scales + (entry.both >> 16) / kGroup * ValuePart::kStride;
    v.scales = *reinterpret_cast<const uint4*>(scales);
    if constexpr (kHasMinimum) v.minimums = *reinterpret_cast<const uint4*>(scales + kColumns);
  }
  const u32 words[4] = {v.scales.x, v.scales.y, v.scales.z, v.scales.w};
  const float factor = u * UNSCALE;
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    const float2 scale = unpack(words[i / 2]);
    const u32 codes = i < 4 ? v.codes.x : v.codes.y;
    acc[i] += factor * scale.x * code_of(codes, i % 4);
    acc[i + 1] += factor * scale.y * code_of(codes, i % 4 + 1);
  }
  if constexpr (kHasMinimum) add_scaled(acc, factor, v.minimums);
#else
  add_scaled(acc, u, v.halves);
#endif
}

/** acc += u·value over the lists of all tokens, on a lane's 8 columns, taking every kRowsAtOnce-th
 * entry. The lanes of a warp end at different entries, so nothing here may synchronise the
 * warp. */
__device__ __forceinline__ void add_active(float (&acc)[TOKENS][kVector], const u32* entries,
                                           const int (&counts)[TOKENS], int longest,
                                           const ValuePart& value) {
#pragma unroll 1
  for (int base = threadIdx.x / kRowLanes; base < longest; base += kFlight * kRowsAtOnce) {
    ValueRow rows[TOKENS][kFlight];
    Entry list[TOKENS][kFlight];
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
#pragma unroll
      for (int i = 0; i < kFlight; i++) {
        const int at = base + i * kRowsAtOnce;
        const bool is_one = at < counts[t];
        const u32 one = is_one ? entries[t * LIST + at] : 0;
        list[t][i] = Entry(one);
        rows[t][i] = load_value(value, one >> 16, is_one);
      }
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
#pragma unroll
      for (int i = 0; i < kFlight; i++) add_value(acc[t], list[t][i], rows[t][i], value);
  }
}

/** Exchanges half of the numbers with the lane `offset` away, and adds the half that this lane
 * keeps. */
template <int Half>
__device__ __forceinline__ void fold(float (&x)[kVector], int offset) {
  const bool upper = (threadIdx.x & offset) != 0;
#pragma unroll
  for (int i = 0; i < Half; i++) {
    const float give = upper ? x[i] : x[i + Half];
    x[i] = (upper ? x[i + Half] : x[i]) + __shfl_xor_sync(~0u, give, offset);
  }
}

/** Sums the warp's columns and stores them in `sums`. */
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

/** acc = u·value of each token on a lane's 8 columns. If the active values do not fit in the list,
 * u is read again for the rest. */
__device__ __forceinline__ void multiply_active(float (&acc)[TOKENS][kVector], const FewRows& op,
                                                Block& b, const ValuePart& value) {
  u32* const entries = reinterpret_cast<u32*>(b.region);
  int longest = 0, base = 0;
#pragma unroll 1
  do {
    if (base > 0) sync_workers();
    int counts[TOKENS];
    const ActiveLists lists = read_active(op, b.sh, b.num_tokens);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      longest = most(longest, lists.of[t].total);
      counts[t] = least(LIST, lists.of[t].total - base);
      write_active(lists.of[t], base, entries + t * LIST);
    }
    sync_workers();
    add_active(acc, entries, counts, least(LIST, longest - base), value);
    base += LIST;
  } while (base < longest);
}

__device__ __forceinline__ ValuePart value_part(const Matrices& m, int column) {
#if QUANT
  const u8* const codes = reinterpret_cast<const u8*>(m.of[kValueMatrix]);
  return {codes + column, m.scales[kFirstLow + 2] + column};
#else
  return {m.of[kValueMatrix] + column};
#endif
}

/** The `value` phase: x += u·value on the block's columns. */
__device__ __forceinline__ void value_phase(const FewRows& op, Block& b, Stream& s, int l,
                                            const Row& shift) {
  const Layer& layer = b.sh.layers[l & 1];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float* const sums = b.sh.sums;
  b.barrier.wait();
  keep_shift(op, b, layer, 1, shift);
  if (warp >= WARPS) return;
  for (int begin = blockIdx.x * kColumns; begin < CHANNELS; begin += BLOCKS * kColumns) {
    const int token = threadIdx.x / kColumns, own = threadIdx.x % kColumns;
    const bool adds = token < b.num_tokens && begin + own < CHANNELS;
    float* const x = op.x + token * CHANNELS + begin + own;
    float total = adds ? __ldcg(x) : 0.0f;
    const int column = begin + kVector * (lane % kRowLanes);
    // Lanes beyond the last column read the last columns again, and their sums are discarded.
    ValuePart value = value_part(layer.matrices, min(column, CHANNELS - kVector));
#if QUANT
    if constexpr (kStagesScales) value.scales = open_stage(s) + column - begin;
#endif
    const float scale = adds ? row_scale(layer.matrices, kFirstLow + 2, begin + own) : 1.0f;
    float acc[TOKENS][kVector] = {};
    multiply_active(acc, op, b, value);
#if QUANT
    if constexpr (kStagesScales) close_stage(s);
#endif
#pragma unroll
    for (int t = 0; t < TOKENS; t++) keep_sums(acc[t], sums + (t * WARPS + warp) * kColumns);
    sync_workers();
    if (adds) {
#pragma unroll
      for (int w = 0; w < WARPS; w++) total += sums[(token * WARPS + w) * kColumns + own] * scale;
      *x = total;
    }
    if (BLOCKS * kColumns < CHANNELS) sync_workers();
  }
}
