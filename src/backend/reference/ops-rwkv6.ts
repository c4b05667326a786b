/**
 * The ops that only RWKV-6 uses, in float64, written as the formulas of backend.ts with one loop per index. Together
 * with ops.ts the oracle of every other backend.
 */
import type { StatePool, Tensor, Wkv6Operands, Wkv6Weights } from '../backend.ts'
import type { Batch } from '../batch.ts'
import { dot, normalise, sigmoid, stateArrayOf } from './ops.ts'
import { valuesOf } from './tensors.ts'

export function ddlerp(
  batch: Batch,
  mix: readonly Tensor[],
  h: Tensor,
  prev: Tensor,
  base: readonly Tensor[],
): void {
  const [now, before] = [valuesOf(h), valuesOf(prev)]
  for (const [i, target] of mix.entries()) {
    const [y, b] = [valuesOf(target), valuesOf(base[i]!)]
    const C = b.length
    for (let t = 0; t < batch.numTokens * C; t++)
      y[t] = now[t]! + (before[t]! - now[t]!) * (b[t % C]! + y[t]!)
  }
}

export function wkv6(
  batch: Batch,
  out: Tensor,
  operands: Wkv6Operands,
  weights: Wkv6Weights,
  states: StatePool,
  layer: number,
): void {
  const { heads: H, headSize: N } = states.shape
  for (let b = 0; b < batch.numRows; b++) {
    const wkv = stateArrayOf(states, batch.slots[b]!, 'wkv')
    for (let h = 0; h < H; h++) {
      const S = wkv.subarray((layer * H + h) * N * N, (layer * H + h + 1) * N * N)
      for (let t = batch.starts[b]!; t < batch.starts[b + 1]!; t++)
        wkv6Token(S, t * H * N + h * N, h * N, N, valuesOf(out), operands, weights)
    }
  }
}

/** One head of one token. `at` = first element of the head in [T, C], `channel` = in [C]. S: [N value, N key] */
function wkv6Token(
  S: Float64Array,
  at: number,
  channel: number,
  N: number,
  out: Float64Array,
  operands: Wkv6Operands,
  weights: Wkv6Weights,
): void {
  const slice = (tensor: Tensor) => valuesOf(tensor).subarray(at, at + N)
  const constant = (tensor: Tensor) => valuesOf(tensor).subarray(channel, channel + N)
  const [r, k, v, g] = [slice(operands.r), slice(operands.k), slice(operands.v), slice(operands.g)]
  const w = slice(operands.w).map((logit) => Math.exp(-Math.exp(logit)))
  const u = constant(weights.u)

  const bonus = dot(
    r,
    k.map((kj, j) => kj * u[j]!),
  )
  const y = new Float64Array(N)
  for (let i = 0; i < N; i++) {
    const row = S.subarray(i * N, (i + 1) * N)
    y[i] = dot(row, r) + bonus * v[i]!
    for (let j = 0; j < N; j++) row[j] = row[j]! * w[j]! + v[i]! * k[j]!
  }

  const normed = normalise(y, weights.ln_x.eps)
  const [gain, bias] = [constant(weights.ln_x.weight), constant(weights.ln_x.bias)]
  for (let i = 0; i < N; i++)
    out[at + i] = (normed[i]! * gain[i]! + bias[i]!) * g[i]! * sigmoid(g[i]!)
}

export function gatedAdd(batch: Batch, x: Tensor, gate: Tensor, value: Tensor): void {
  const [sum, factor, term] = [valuesOf(x), valuesOf(gate), valuesOf(value)]
  const count = batch.numTokens * x.shape[1]!
  for (let i = 0; i < count; i++) sum[i] = sum[i]! + factor[i]! * term[i]!
}
