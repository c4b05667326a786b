// What runs ahead of wkv7-chunk.cu's chain: a chunk of 16 tokens of one head, from the projections
// to the operands that the chain takes. The names are those of its formulas. A group of four warps
// makes a chunk: four tokens to a warp, two channels to a lane; then AB, AK, RB and RK, one to a
// warp; then W and X by forward substitution in f32.
#pragma once
#include "bf16-pairs.cuh"
#include "mbarrier.cuh"
#include "wkv7.cuh"

constexpr int kTokens = 16;
/** Groups in a block that prepare. */
constexpr int kGroups = 2;
/** Chunks in the ring. */
constexpr int kStages = STAGES;
constexpr int kPart = kTokens / 4;
/** Warps of the chain in a block. */
constexpr int kChain = 4 / CLUSTER;
constexpr int kThreads = 32 * kChain + 128 * kGroups;
// In a cluster a place of the ring is always filled by the same group of the same block; a block
// alone has at most one chunk more than its ring in work, which its barriers can tell apart.
static_assert(CLUSTER == 1 ? kStages >= kGroups : kStages % (CLUSTER * kGroups) == 0, "ring");

/** What the chain takes of a chunk. Small matrices are one unit for 8 rows, g counting rows. */
struct Chunk {
  uint4 w[kMatrix], r[kMatrix];
  uint4 b[kMatrix], k[kMatrix], v[kMatrix];
  uint4 x[64], rb[64], rk[64];
  float decay[64];
};

/** What a group needs besides. */
struct Desk {
  uint4 a[kMatrix], b[kMatrix], k[kMatrix];
  /** AB and AK by columns. */
  float ab[kTokens][20], ak[kTokens][20];
  /** Of each warp's tokens: Σ log2 w. */
  float2 decays[4][32];
};

struct Shared {
  Chunk ring[kStages];
  Desk desks[kGroups];
  /** A chunk is there; all four warps of the chain are done with it, told to the block that fills
   * it. */
  Barrier full[kStages], free[kStages];
};

// Named barriers of a group: all of it, and what the first warp waits for before it hands over.
__device__ __forceinline__ void meet(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void await_written(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + kGroups + group) : "memory");
}

__device__ __forceinline__ void tell_written(int group) {
  asm volatile("bar.arrive %0, 128;" ::"r"(1 + kGroups + group) : "memory");
}

__device__ __forceinline__ float2 scale(float2 x, float2 y) {
  return make_float2(x.x * y.x, x.y * y.y);
}

__device__ __forceinline__ float2 power(float2 x) { return make_float2(power(x.x), power(x.y)); }

/** A warp's four tokens of a chunk from memory; beyond the row's end the last again. */
__device__ __forceinline__ void load_part(Raw (&raw)[kPart], const Wkv7& op, int first, int end,
                                          int head) {
#pragma unroll
  for (int i = 0; i < kPart; i++) raw[i] = load_raw(op, min(first + i, end - 1), head);
}

/** A warp's four tokens: the operands of products over channels and over tokens. The decays come
 * first, for the others' tokens need them too. */
__device__ __forceinline__ void prepare_part(const Wkv7& op, const Raw (&raw)[kPart],
                                             const Constants& constants, Chunk& chunk, Desk& desk,
                                             int first, int end, int part, int group, Barrier& free,
                                             int round) {
  const int lane = threadIdx.x & 31;
  Prepared p[kPart];
  float2 log[kPart], sum = make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < kPart; i++) {
    // A token that does not exist brings nothing: no k, hence no kk and no b, and no decay.
    const bool exists = first + i < end;
    Raw one = raw[i];
    one.k = exists ? one.k : 0;
    p[i] = prepare(op, one, constants);
    const float2 w = unpack(one.w);
    sum.x += exists ? log_decay(w.x + constants.w_bias.x) : 0;
    sum.y += exists ? log_decay(w.y + constants.w_bias.y) : 0;
    log[i] = sum;
  }
  desk.decays[part][lane] = sum;
  meet(group);
  float2 before = make_float2(0, 0), all = make_float2(0, 0);
#pragma unroll
  for (int other = 0; other < 4; other++) {
    const float2 one = desk.decays[other][lane];
    all = make_float2(all.x + one.x, all.y + one.y);
    if (other < part) before = make_float2(before.x + one.x, before.y + one.y);
  }
  if (round > 0) wait(free, (round - 1) & 1);
  const float2 decay = power(all);
  if (part == 0) *reinterpret_cast<float2*>(chunk.decay + 2 * lane) = decay;
  float2 b[kPart], k[kPart], v[kPart], last = power(before);
#pragma unroll
  for (int i = 0; i < kPart; i++) {
    const int token = part * kPart + i;
    const float2 sum = make_float2(before.x + log[i].x, before.y + log[i].y);
    const float2 a = scale(p[i].kk, last), inverse = power(make_float2(-sum.x, -sum.y));
    last = power(sum);
    const float2 r = scale(p[i].r, last);
    b[i] = scale(p[i].b, inverse), k[i] = scale(p[i].k, inverse), v[i] = p[i].v;
    put_right(desk.a, token, lane, split(-a.x, -a.y));
    put_left(desk.b, token, lane, split(b[i].x, b[i].y));
    put_left(desk.k, token, lane, split(k[i].x, k[i].y));
    put_right(chunk.r, token, lane, split(r.x, r.y));
    b[i] = scale(b[i], decay), k[i] = scale(k[i], decay);
  }
#pragma unroll
  for (int i = 0; i < kPart; i += 2) {
    const int pair = (part * kPart + i) / 2, channel = 2 * lane;
    put_tokens_right(chunk.b, channel, pair, split(b[i].x, b[i + 1].x));
    put_tokens_right(chunk.b, channel + 1, pair, split(b[i].y, b[i + 1].y));
    put_tokens_right(chunk.k, channel, pair, split(k[i].x, k[i + 1].x));
    put_tokens_right(chunk.k, channel + 1, pair, split(k[i].y, k[i + 1].y));
    put_tokens_left(chunk.v, channel, pair, split(v[i].x, v[i + 1].x));
    put_tokens_left(chunk.v, channel + 1, pair, split(v[i].y, v[i + 1].y));
  }
}

/** The transpose of one of AB, AK, RB, RK to each warp of a group. */
__device__ __forceinline__ void multiply_tokens(Chunk& chunk, Desk& desk, int part) {
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
  uint4* const from = (part & 1) == 0 ? desk.b : desk.k;
  uint4* const to = part < 2 ? desk.a : chunk.r;
  Sums sums;
  sums.clear();
#pragma unroll
  for (int n = 0; n < 4; n++)
    multiply(sums, load_left(left(from, n, lane)), *right(to, 0, n, lane), *right(to, 1, n, lane));
  // Rows are the tokens that bring, columns those that take.
  float kept[2][4];
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int row = g + (e >> 1) * 8, column = 8 * n + 2 * q + (e & 1);
      kept[n][e] = row < column + (part >= 2) ? sums.of(n, e) : 0;
    }
  uint4* const small = part == 2 ? chunk.rb : chunk.rk;
#pragma unroll
  for (int n = 0; n < 2; n++) {
    if (part < 2) {
      float (*const table)[20] = part == 0 ? desk.ab : desk.ak;
      *reinterpret_cast<float2*>(&table[g][8 * n + 2 * q]) = make_float2(kept[n][0], kept[n][1]);
      *reinterpret_cast<float2*>(&table[g + 8][8 * n + 2 * q]) =
          make_float2(kept[n][2], kept[n][3]);
    } else {
      const uint2 first = split(kept[n][0], kept[n][1]), second = split(kept[n][2], kept[n][3]);
      small[n * kUnit + lane] = make_uint4(transposed(first.x), transposed(second.x),
                                           transposed(first.y), transposed(second.y));
    }
  }
}

/** x ← (I − AB)⁻¹·x, two columns a lane. */
__device__ __forceinline__ void substitute(float2 (&x)[kTokens], const float (&ab)[kTokens][20]) {
#pragma unroll
  for (int m = 0; m + 1 < kTokens; m++) {
    float column[kTokens];
#pragma unroll
    for (int i = (m + 1) / 4 * 4; i < kTokens; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(ab[m] + i);
      column[i] = four.x, column[i + 1] = four.y, column[i + 2] = four.z, column[i + 3] = four.w;
    }
#pragma unroll
    for (int i = m + 1; i < kTokens; i++)
      x[i].x += column[i] * x[m].x, x[i].y += column[i] * x[m].y;
  }
}

/** W by the first warp of a group, X by 8 lanes of the second. */
__device__ __forceinline__ void solve(Chunk& chunk, Desk& desk, int part) {
  const int lane = threadIdx.x & 31;
  float2 x[kTokens];
  if (part == 0) {
#pragma unroll
    for (int t = 0; t < kTokens; t++) x[t] = join(get_right(desk.a, t, lane));
    substitute(x, desk.ab);
#pragma unroll
    for (int t = 0; t < kTokens; t++) put_right(chunk.w, t, lane, split(x[t].x, x[t].y));
  } else if (part == 1 && lane < 8) {
#pragma unroll
    for (int t = 0; t < kTokens; t++)
      x[t] = make_float2(desk.ak[2 * lane][t], desk.ak[2 * lane + 1][t]);
    substitute(x, desk.ab);
#pragma unroll
    for (int t = 0; t < kTokens; t++) {
      const uint2 pair = split(x[t].x, x[t].y);
      uint4* const at = chunk.x + (t >> 3) * kUnit + (t & 7) * 4 + (lane & 3);
      u32* const word = reinterpret_cast<u32*>(at) + (lane >> 2);
      word[0] = pair.x, word[2] = pair.y;
    }
  }
}

/** The first warp of a group, which is the last to write, gives the chunk to the chains of all
 * blocks. */
__device__ __forceinline__ void hand_over(Chunk& chunk, Barrier& full, int group, int part,
                                          int rank) {
  if (CLUSTER > 1) fence_for_copies();
  if (part != 0) {
    tell_written(group);
    return;
  }
  await_written(group);
  if ((threadIdx.x & 31) != 0) return;
#pragma unroll
  for (int other = 1; other < CLUSTER; other++)
    copy_to((rank + other) % CLUSTER, &chunk, sizeof(Chunk), full);
  arrive(full);
}

/** The warps that run ahead: every (CLUSTER · kGroups)-th chunk, its inputs asked for a turn
 * before. */
__device__ __forceinline__ void prepare_chunks(const Wkv7& op, Shared& shared, int start, int end,
                                               int head, int rank) {
  constexpr int kTurn = CLUSTER * kGroups;
  const int warp = (threadIdx.x >> 5) - kChain, group = warp >> 2, part = warp & 3;
  const int chunks = (end - start + kTokens - 1) / kTokens;
  const Constants constants = load_constants(op, head);
  Desk& desk = shared.desks[group];
  Raw raw[kPart];
  int c = rank + CLUSTER * group, first = start + c * kTokens + part * kPart;
  load_part(raw, op, first, end, head);
  for (; c < chunks; c += kTurn) {
    const int stage = c % kStages;
    Chunk& chunk = shared.ring[stage];
    if (op.v_gate == nullptr) {
#pragma unroll
      for (int i = 0; i < kPart; i++)
        if (first + i < end) keep_first_value(op, raw[i], first + i, head);
    }
    prepare_part(op, raw, constants, chunk, desk, first, end, part, group, shared.free[stage],
                 c / kStages);
    first += kTurn * kTokens;
    load_part(raw, op, first, end, head);
    meet(group);
    multiply_tokens(chunk, desk, part);
    meet(group);
    solve(chunk, desk, part);
    hand_over(chunk, shared.full[stage], group, part, rank);
  }
}
