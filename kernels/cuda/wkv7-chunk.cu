// RWKV-7 time mixing of long rows (wkv7 in backend.ts), 16 tokens at a time on the tensor cores,
// from the projections to the gated head outputs, with the state updated in place. Per head, with a
// = −kk, b = kk∘rate, Γ_t = w_1∘…∘w_t within the chunk, and S the state [value, key] before it:
//
//   u_t = S_{t−1}·a_t     S_t = S_{t−1}·diag(w_t) + u_t·b_tᵀ + v_t·k_tᵀ     y_t = S_t·r_t
//
// Substituted over the chunk, with one row per token in U, V, …:
//
//   ã_t = a_t∘Γ_{t−1}   r̃_t = r_t∘Γ_t   b̃_t = b_t/Γ_t   k̃_t = k_t/Γ_t
//   AB = strictly lower ã·b̃ᵀ   AK = the same of ã·k̃ᵀ   RB = lower r̃·b̃ᵀ   RK = lower r̃·k̃ᵀ
//   W = (I − AB)⁻¹·ã   X = (I − AB)⁻¹·AK                    do not depend on the state
//   U = W·Sᵀ + X·V     Y = r̃·Sᵀ + RB·U + RK·V     S ← S·diag(Γ) + Uᵀ·(b̃∘Γ) + Vᵀ·(k̃∘Γ)
//
// So only two products per chunk form the chain from chunk to chunk; the rest runs ahead of it. The
// chain is four warps with 16 value rows of S each. Their accumulators are, without a move, the
// left operands of the next product. Groups of eight warps take turns to prepare chunks, and hand
// them over in a ring in shared memory (wkv7-chunk-prepare.cuh). Other warps finish the chunks
// after the chain (wkv7-chunk-finish.cuh). A head of a row has a cluster of CLUSTER blocks (2 if
// there are enough multiprocessors, else 1), which share the warps of the chain and the chunks, and
// copy chunks to each other.
//
// Numbers are pairs of bf16 (bf16-pairs.cuh), which keeps the chain accurate to 5e-6. w ≥ 0.545
// keeps 1/Γ below 2^14, far inside their range. Operands rounded once, to f16, would leave an error
// of 4e-4, twice that of rounding y. Tokens beyond the row's end have w = 1 and zeros, which
// changes nothing. Chunks are counted from the row's first token of the step. Tolerance: 1e-3 RMS
// against reference/ops.ts.
#include "wkv7-chunk-finish.cuh"
#include "wkv7-chunk-prepare.cuh"

__device__ __forceinline__ void load_two(float& x, float& y, const float* from) {
  const float2 v = *reinterpret_cast<const float2*>(from);
  x = v.x, y = v.y;
}

__device__ __forceinline__ void load_two(float& x, float& y, const f16* from) {
  const float2 v = unpack(*reinterpret_cast<const u32*>(from));
  x = v.x, y = v.y;
}

__device__ __forceinline__ void store_two(float* to, float x, float y, u32) {
  *reinterpret_cast<float2*>(to) = make_float2(x, y);
}

__device__ __forceinline__ void store_two(f16* to, float x, float y, u32 noise) {
  *reinterpret_cast<u32*>(to) =
      pack(__uint_as_float(dithered(x, noise)), __uint_as_float(dithered(y, noise >> 13)));
}

/** A warp's part of S, and S before the chunk as the left operand of products over keys. */
struct State {
  float of[8][4];
  Left before[4];
};

/** Computes U, the new S and Y of a chunk; Y last, because the chain does not wait for it. Y is
 * transposed, because the rows of S are values. */
__device__ __forceinline__ void advance(State& s, Sums& y, Chunk& chunk, int part) {
  const int lane = threadIdx.x & 31, q = lane & 3;
  const Left v = load_left(left_of_tokens(chunk.v, part, lane));
  Sums u;
  u.clear();
  multiply(u, v, chunk.x[lane], chunk.x[32 + lane]);
#pragma unroll
  for (int n = 0; n < 4; n++) {
    s.before[n] = left_of(s.of[2 * n], s.of[2 * n + 1]);
    multiply(u, s.before[n], load_right(chunk.w, 0, n, lane), load_right(chunk.w, 1, n, lane));
  }
#pragma unroll
  for (int j = 0; j < 8; j++) {
    float2 decay = *reinterpret_cast<const float2*>(chunk.decay + 8 * j + 2 * q);
    s.of[j][0] *= decay.x, s.of[j][1] *= decay.y, s.of[j][2] *= decay.x, s.of[j][3] *= decay.y;
  }
  const auto add = [&](const Left& a, const uint4* m) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint4 b[4];
#pragma unroll
      for (int j = 0; j < 4; j++) b[j] = load_right_of_tokens(m, 4 * half + j, lane);
      multiply_add(s.of + 4 * half, a, b);
    }
  };
  add(v, chunk.k);
  float sums[2][4];
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) sums[n][e] = u.of(n, e);
  const Left brought = left_of(sums[0], sums[1]);
  add(brought, chunk.b);
  y.clear();
#pragma unroll
  for (int n = 0; n < 4; n++)
    multiply(y, s.before[n], load_right(chunk.r, 0, n, lane), load_right(chunk.r, 1, n, lane));
  multiply(y, v, chunk.rk[lane], chunk.rk[32 + lane]);
  multiply(y, brought, chunk.rb[lane], chunk.rb[32 + lane]);
}

/** Sends a warp's values of Y to the block that finishes the chunk. */
__device__ __forceinline__ void tell(Shared& shared, const Sums& y, const int (&places)[2], int c) {
  const int stage = c % kStages;
  Barrier& told = shared.told[stage / CLUSTER];
  float* const to = shared.outcomes[stage / CLUSTER].y;
#if CLUSTER > 1
  const u32 there = address_in(c % CLUSTER, to), barrier = address_in(c % CLUSTER, &told);
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int n = 0; n < 2; n++)
      store_telling(there + 4 * (places[half] ^ 8 * n), y.of(n, 2 * half), y.of(n, 2 * half + 1),
                    barrier);
#else
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int n = 0; n < 2; n++)
      *reinterpret_cast<float2*>(to + (places[half] ^ 8 * n)) =
          make_float2(y.of(n, 2 * half), y.of(n, 2 * half + 1));
  __syncwarp();
  if ((threadIdx.x & 31) == 0) arrive(told), arrive(shared.free[stage]);
#endif
}

/** The loop of the chain's warps, 16 value rows each. Returns the number of chunks so far. */
__device__ __forceinline__ int recur(const Wkv7& op, Shared& shared, const Sequence& sequence,
                                     int part, int before) {
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, value = 16 * part + g;
  const int last = before + sequence.num_chunks();
  state_t* const state =
      static_cast<state_t*>(op.state) + sequence.slot * op.slot_stride + sequence.head * 64LL * 64;
  State s;
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      load_two(s.of[j][2 * half], s.of[j][2 * half + 1],
               state + (value + 8 * half) * 64 + 8 * j + 2 * q);
  int places[2];
#pragma unroll
  for (int half = 0; half < 2; half++)
    places[half] = place_of_high(2 * part + half, 2 * q) ^ place_of_low(g);
  for (int c = before; c < last; c++) {
    const int stage = c % kStages;
    wait(shared.full[stage], c / kStages & 1);
    Sums y;
    advance(s, y, shared.ring[stage], part);
    __syncwarp();
    if (CLUSTER > 1 && lane == 0) arrive_in(c % CLUSTER, shared.free[stage]);
    tell(shared, y, places, c);
  }
  // The noise is derived from the last token, so that it depends on nothing outside the sequence.
  const long long end = (sequence.end - 1LL) * op.channels + sequence.head * 64;
  const f16 *const brought = op.k + end, *const values = op.v + end;
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int row = value + 8 * half, key = 8 * j + 2 * q;
      const u32 noise =
          row_noise(to_float(values[row]), to_float(brought[key]), row * 32 + key / 2);
      store_two(state + row * 64 + key, s.of[j][2 * half], s.of[j][2 * half + 1], noise);
    }
  return last;
}

// The long rows of a step. A cluster takes heads of long rows one after another. Its chunks are
// counted over all of them, so those of the next head are prepared while the chain is at the last
// one's.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    wkv7_chunk(Step step, const __grid_constant__ Wkv7 op) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x < kStages) {
    init(shared.full[threadIdx.x], 1);
    init(shared.free[threadIdx.x], 4);
  }
  if (threadIdx.x < kPlaces) {
    init(shared.told[threadIdx.x], CLUSTER > 1 ? 1 : kChain);
    init(shared.done[threadIdx.x], kFinishers);
  }
  if (CLUSTER > 1)
    cluster_meet();
  else
    __syncthreads();
  wait_for_previous();
  // The kernels of the other rows run beside this one.
  let_next_start();
  const int rank = CLUSTER > 1 ? rank_in_cluster() : 0;
  const int warp = same(threadIdx.x >> 5);
  Sequences sequences(step, op);
  const auto finish = [&](const Sequence& sequence, int chunks) {
    return finish_chunks(op, shared, sequence, rank, warp - kChain, chunks);
  };
  if (warp >= kChain + kFinishers) {
    leave_registers<kPreparing>();
    for_each(sequences, [&](const Sequence& sequence, int chunks) {
      return prepare_chunks(op, shared, sequence, rank, warp - kChain - kFinishers, chunks);
    });
  } else if (CLUSTER > 1 || warp < kChain) {
    take_registers<kChaining>();
    if (warp < kChain)
      for_each(sequences, [&](const Sequence& sequence, int chunks) {
        return recur(op, shared, sequence, rank * kChain + warp, chunks);
      });
    else
      for_each(sequences, finish);
  } else {
    leave_registers<kFinishing>();
    for_each(sequences, finish);
  }
  // No block may exit while another can still copy to it.
  if (CLUSTER > 1) cluster_meet();
#endif
}
