// The first stage of wkv7-chunk.cu, which runs ahead of the chain: prepares a chunk of 16 tokens of
// one head, from the projections to the operands of the chain. Names are those of the formulas in
// wkv7-chunk.cu. A group of eight warps prepares a chunk: first two tokens per warp, two channels
// per lane; then half of AB, AK, RB or RK per warp; then W and X by forward substitution in f32,
// one column per lane.
#pragma once
#include "wkv7-chunk-sequences.cuh"
#include "wkv7-chunk-solve.cuh"

// Named barriers of a group: one of all its warps, and one that the first warp waits at before it
// hands over.
__device__ __forceinline__ void meet(int group) {
  asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void await_solved(int group) {
  asm volatile("bar.sync %0, 96;" ::"r"(1 + kGroups + group) : "memory");
}

__device__ __forceinline__ void tell_solved(int group) {
  asm volatile("bar.arrive %0, 96;" ::"r"(1 + kGroups + group) : "memory");
}

__device__ __forceinline__ float2 scale(float2 x, float2 y) {
  return make_float2(x.x * y.x, x.y * y.y);
}

__device__ __forceinline__ float2 power(float2 x) { return make_float2(power(x.x), power(x.y)); }

__device__ __forceinline__ const f16* operand_of(const Wkv7& op, int operand) {
  switch (operand) {
    case kR:
      return op.r;
    case kW:
      return op.w;
    case kK:
      return op.k;
    case kV:
      return op.v;
    case kA:
      return op.a;
    case kGate:
      return op.v_gate;
    // Layer 0 has no gate; it writes v_first.
    case kFirst:
      return op.v_gate == nullptr ? nullptr : op.v_first;
    default:
      return nullptr;
  }
}

/** Copies one operand of a chunk into shared memory; `from` is at the head and the lane's channels.
 * Beyond the row's end it copies the last token again. */
__device__ __forceinline__ void fetch(Desk& desk, const f16* from, int part, int first, int end,
                                      int channels) {
  if (from == nullptr) return;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < kTokens; i += 4) {
    const int token = i + (lane >> 3);
    copy_16(&desk.raw[part][token][8 * (lane & 7)],
            from + (long long)min(first + token, end - 1) * channels);
  }
}

__device__ __forceinline__ Raw raw_of(const Desk& desk, int token) {
  const auto word = [&](Operand operand) {
    return load_word(desk.raw[operand][token], 2 * (threadIdx.x & 31));
  };
  return {word(kR), word(kW), word(kK), word(kV), word(kA), word(kGate), word(kFirst)};
}

/** Where a lane stores the pairs of its first token or channel. */
struct Words {
  int right, left, right_of_tokens, left_of_tokens;
};

/** Prepares a warp's two tokens: the operands of products over channels and over tokens. Decays
 * come first, because the other warps need them too. Calls `fetch_next` when all warps have read
 * their raw operands. */
template <class FetchNext, class AwaitPlace>
__device__ __forceinline__ void prepare_part(const Wkv7& op, const Constants& constants, float2 r_k,
                                             const Words& words, Chunk& chunk, Outcome& outcome,
                                             Desk& desk, int first, int end, int head, int part,
                                             int group, const FetchNext& fetch_next,
                                             const AwaitPlace& await_place) {
  const int lane = threadIdx.x & 31;
  Prepared p[kPart];
  // The squares of kk, then the bonuses.
  float sums[2 * kPart];
  float2 log[kPart], sum = make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < kPart; i++) {
    // A token beyond the end must change nothing: its k is 0, and so its kk and b, and it does not
    // decay.
    const int token = part * kPart + i;
    const bool exists = first + token < end;
    const Raw raw = raw_of(desk, token);
    if (exists) keep_first_value(op, raw, first + token, head);
    const float2 k = unpack(exists ? raw.k : 0), w = unpack(raw.w);
    sum.x += exists ? log_decay(w.x + constants.w_bias.x) : 0;
    sum.y += exists ? log_decay(w.y + constants.w_bias.y) : 0;
    log[i] = sum;
    p[i].r = unpack(raw.r);
    p[i].v = mixed_value(op, raw, constants);
    // b holds the learning rate until kk has been scaled to length 1.
    p[i].b = learning_rate(op, raw, constants);
    p[i].kk = removal_key(k, constants);
    p[i].k = scaled_key(k, p[i].b, constants);
    sums[i] = p[i].kk.x * p[i].kk.x + p[i].kk.y * p[i].kk.y;
    sums[kPart + i] = p[i].r.x * p[i].k.x * r_k.x + p[i].r.y * p[i].k.y * r_k.y;
  }
  desk.decays[part][lane] = sum;
  warp_sum_four(sums);
#pragma unroll
  for (int i = 0; i < kPart; i++) {
    const float one = scale_to_one(sums[i]);
    p[i].kk = make_float2(p[i].kk.x * one, p[i].kk.y * one);
    p[i].b = scale(p[i].kk, p[i].b);
  }
  meet(group);
  fetch_next();
  float2 before = make_float2(0, 0), all = make_float2(0, 0);
#pragma unroll
  for (int other = 0; other < kParts; other++) {
    const float2 one = desk.decays[other][lane];
    if (other == part) before = all;
    all = make_float2(all.x + one.x, all.y + one.y);
  }
  await_place();
  const float2 decay = power(all);
  if (part == 0) *reinterpret_cast<float2*>(chunk.decay + 2 * lane) = decay;
  float2 b[kPart], k[kPart], last = power(before);
#pragma unroll
  for (int i = 0; i < kPart; i++) {
    const int token = part * kPart + i;
    const float2 sum = make_float2(before.x + log[i].x, before.y + log[i].y);
    const float2 a = scale(p[i].kk, last), inverse = power(make_float2(-sum.x, -sum.y));
    last = power(sum);
    const float2 r = scale(p[i].r, last), v = p[i].v;
    const float bonus = sums[kPart + i];
    b[i] = scale(p[i].b, inverse), k[i] = scale(p[i].k, inverse);
    const int right = words.right ^ i * kNext, left = words.left ^ i * kNext;
    put_right(desk.a, right, split(-a.x, -a.y));
    put_left(desk.b, left, split(b[i].x, b[i].y));
    put_left(desk.k, left, split(k[i].x, k[i].y));
    put_right(chunk.r, right, split(r.x, r.y));
    *reinterpret_cast<float2*>(outcome.bonus + place_of_bonus(token, lane >> 1) + 2 * (lane & 1)) =
        make_float2(bonus * v.x, bonus * v.y);
    b[i] = scale(b[i], decay), k[i] = scale(k[i], decay);
  }
  const int right = words.right_of_tokens, left = words.left_of_tokens;
  put_right(chunk.b, right, split(b[0].x, b[1].x));
  put_right(chunk.b, right ^ kNext, split(b[0].y, b[1].y));
  put_right(chunk.k, right, split(k[0].x, k[1].x));
  put_right(chunk.k, right ^ kNext, split(k[0].y, k[1].y));
  put_left(chunk.v, left, split(p[0].v.x, p[1].v.x));
  put_left(chunk.v, left ^ kNext, split(p[0].v.y, p[1].v.y));
}

/** Each warp of a group computes eight columns of the transpose of AB, AK, RB or RK. */
__device__ __forceinline__ void multiply_tokens(Chunk& chunk, Desk& desk, int part) {
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, which = part >> 1, n = part & 1;
  const uint4* const from = (which & 1) == 0 ? desk.b : desk.k;
  const uint4* const to = which < 2 ? desk.a : chunk.r;
  float large[4] = {0, 0, 0, 0}, left_rest[4] = {0, 0, 0, 0}, right_rest[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const Left a = load_left(left(from, i, lane));
    const uint4 b = load_right(to, n, i, lane);
    mma(large, a.rounded, b.x, b.y);
    mma(left_rest, a.rest, b.x, b.y);
    mma(right_rest, a.rounded, b.z, b.w);
  }
  // Rows are the tokens that write to the state, columns those that read it.
  float kept[4];
#pragma unroll
  for (int e = 0; e < 4; e++) {
    const int row = g + (e >> 1) * 8, column = 8 * n + 2 * q + (e & 1);
    kept[e] = row < column + (which >= 2) ? large[e] + (left_rest[e] + right_rest[e]) : 0;
  }
  if (which < 2) {
    float (*const table)[20] = which == 0 ? desk.ab : desk.ak;
    *reinterpret_cast<float2*>(&table[g][8 * n + 2 * q]) = make_float2(kept[0], kept[1]);
    *reinterpret_cast<float2*>(&table[g + 8][8 * n + 2 * q]) = make_float2(kept[2], kept[3]);
  } else {
    uint4* const small = which == 2 ? chunk.rb : chunk.rk;
    const uint2 first = split(kept[0], kept[1]), second = split(kept[2], kept[3]);
    small[n * kUnit + lane] = make_uint4(transposed(first.x), transposed(second.x),
                                         transposed(first.y), transposed(second.y));
  }
}

/** The first warp of a group gives the chunk to the chains of all blocks, once the other two warps
 * that write it last are done. */
__device__ __forceinline__ void hand_over(Chunk& chunk, Barrier& full, Barrier& told, int group,
                                          int part, int rank) {
  if (part > 2) return;
  if (CLUSTER > 1) fence_for_copies();
  if (part != 0) {
    tell_solved(group);
    return;
  }
  await_solved(group);
  if ((threadIdx.x & 31) != 0) return;
  if (CLUSTER > 1) arrive_expecting(told, kBytesOfY);
#pragma unroll
  for (int other = 1; other < CLUSTER; other++)
    copy_to((rank + other) % CLUSTER, &chunk, sizeof(Chunk), full);
  arrive(full);
}

/** The loop of the warps that run ahead: a group prepares every (CLUSTER · kGroups)-th chunk.
 * Returns the number of chunks so far. */
__device__ __forceinline__ int prepare_chunks(const Wkv7& op, Shared& shared,
                                              const Sequence& sequence, int rank, int warp,
                                              int before) {
  constexpr int kTurn = CLUSTER * kGroups;
  const int lane = threadIdx.x & 31, group = warp / kParts, part = warp % kParts;
  const int head = sequence.head, end = sequence.end, last = before + sequence.num_chunks();
  Desk& desk = shared.desks[group];
  const f16* from = operand_of(op, part);
  if (from != nullptr) from += head * 64 + 8 * (lane & 7);
  int c = before + (rank + CLUSTER * group + kTurn - before % kTurn) % kTurn;
  int first = sequence.start + (c - before) * kTokens;
  if (c >= last) return last;
  fetch(desk, from, part, first, end, op.channels);
  const Constants constants = load_constants(op, head);
  const float2 r_k = load_pair(op.r_k, head * 64 + 2 * lane);
  const Words words = {right_word(part * kPart, lane), left_word(part * kPart, lane),
                       right_word_of_tokens(2 * lane, part), left_word_of_tokens(2 * lane, part)};
  await_copies();
  meet(group);
  for (; c < last; c += kTurn, first += kTurn * kTokens) {
    const int stage = c % kStages, round = c / kStages;
    Chunk& chunk = shared.ring[stage];
    const auto fetch_next = [&] {
      if (c + kTurn < last) fetch(desk, from, part, first + kTurn * kTokens, end, op.channels);
    };
    const auto await_place = [&] {
      if (round == 0) return;
      wait(shared.free[stage], (round - 1) & 1);
      wait(shared.done[stage / CLUSTER], (round - 1) & 1);
    };
    prepare_part(op, constants, r_k, words, chunk, shared.outcomes[stage / CLUSTER], desk, first,
                 end, head, part, group, fetch_next, await_place);
    meet(group);
    multiply_tokens(chunk, desk, part);
    await_copies();
    if (CLUSTER > 1) fence_for_copies();
    meet(group);
    solve(chunk, desk, part);
    hand_over(chunk, shared.full[stage], shared.told[stage / CLUSTER], group, part, rank);
  }
  return last;
}
