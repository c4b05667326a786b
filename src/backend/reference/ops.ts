/**
 * The ops in float64, written as the formulas of backend.ts with one loop per index. This file is the documentation of
 * the maths and the oracle of every other backend; nothing here is fast and nothing here should be.
 */
import { assert } from '../../errors.ts'
import { countPiece } from '../../threads/work-done.ts'
import type {
  DeepEmbedWeights,
  Epilogue,
  LinearJob,
  Matrix,
  Norm,
  StatePool,
  Table,
  Tensor,
  Wkv6Operands,
  Wkv6Weights,
  Wkv7Operands,
  Wkv7Weights,
} from '../backend.ts'
import type { Batch } from '../batch.ts'
import { RefStatePool } from './states.ts'
import { normOf, valuesOf, weightsOf } from './tensors.ts'

/** e^(−½): the largest decay exponent of RWKV-7. */
const MAX_DECAY = Math.exp(-0.5)

export function embed(batch: Batch, x: Tensor, table: Table, norm: Norm): void {
  const C = table.columns
  const out = valuesOf(x)
  const weights = weightsOf(table)
  for (let t = 0; t < batch.numTokens; t++) {
    const token = batch.tokens[t]!
    assert(token >= 0 && token < table.rows, `token ${token} outside the vocabulary`)
    const row = Float64Array.from(weights.subarray(token * C, (token + 1) * C))
    out.set(layerNorm(row, norm), t * C)
  }
}

export function shiftMix(
  batch: Batch,
  out: readonly Tensor[],
  x: Tensor,
  norm: Norm,
  mix: readonly Tensor[],
  states: StatePool,
  layer: number,
  which: 0 | 1,
): void {
  const C = states.shape.channels
  const input = valuesOf(x)
  for (let b = 0; b < batch.numRows; b++) {
    const shift = stateArrayOf(states, batch.slots[b]!, 'shift')
    const previous = shift.subarray((layer * 2 + which) * C, (layer * 2 + which + 1) * C)
    for (let t = batch.starts[b]!; t < batch.starts[b + 1]!; t++) {
      const h = layerNorm(input.subarray(t * C, (t + 1) * C), norm)
      for (const [i, target] of out.entries()) {
        const m = valuesOf(mix[i]!)
        const y = valuesOf(target)
        for (let c = 0; c < C; c++) y[t * C + c] = h[c]! + (previous[c]! - h[c]!) * m[c]!
      }
      previous.set(h)
    }
  }
}

export function linear(rows: number, jobs: readonly LinearJob[]): void {
  for (const { y, x, weight, bias, epilogue } of jobs) {
    const apply = EPILOGUES[epilogue ?? 'none']
    const out = valuesOf(y)
    product(rows, valuesOf(x), weight, (index, value, o) => {
      out[index] = apply(value + (bias ? valuesOf(bias)[o]! : 0), out[index]!)
    })
  }
}

const EPILOGUES: Record<Epilogue, (value: number, old: number) => number> = {
  none: (value) => value,
  tanh: (value) => Math.tanh(value),
  sigmoid: (value) => sigmoid(value),
  relu2: (value) => Math.max(0, value) ** 2,
  add: (value, old) => old + value,
}

/** Hands every element of x·Wᵀ to `store` with its index in y and its output channel. */
function product(
  rows: number,
  x: Float64Array,
  weight: Matrix,
  store: (index: number, value: number, output: number) => void,
): void {
  const { rows: outputs, columns } = weight
  const w = weightsOf(weight)
  for (let t = 0; t < rows; t++) {
    countPiece()
    for (let o = 0; o < outputs; o++) {
      let sum = 0
      for (let i = 0; i < columns; i++) sum += x[t * columns + i]! * w[o * columns + i]!
      store(t * outputs + o, sum, o)
    }
  }
}

export function wkv7(
  batch: Batch,
  out: Tensor,
  operands: Wkv7Operands,
  weights: Wkv7Weights,
  states: StatePool,
  layer: number,
): void {
  eachHead(batch, states, layer, (S, at, channel, N) => wkv7Token(S, at, channel, N, valuesOf(out), operands, weights))
}

/** Each head of each token. S: the head's state, [N value, N key]; `at`: the head's first element in [T, C], `channel`: in [C]. */
function eachHead(
  batch: Batch,
  states: StatePool,
  layer: number,
  token: (S: Float64Array, at: number, channel: number, N: number) => void,
): void {
  const { heads: H, headSize: N } = states.shape
  for (let b = 0; b < batch.numRows; b++) {
    const wkv = stateArrayOf(states, batch.slots[b]!, 'wkv')
    for (let h = 0; h < H; h++) {
      const S = wkv.subarray((layer * H + h) * N * N, (layer * H + h + 1) * N * N)
      for (let t = batch.starts[b]!; t < batch.starts[b + 1]!; t++) token(S, t * H * N + h * N, h * N, N)
    }
  }
}

function wkv7Token(
  S: Float64Array,
  at: number,
  channel: number,
  N: number,
  out: Float64Array,
  operands: Wkv7Operands,
  weights: Wkv7Weights,
): void {
  const slice = (tensor: Tensor) => valuesOf(tensor).subarray(at, at + N)
  const constant = (tensor: Tensor) => valuesOf(tensor).subarray(channel, channel + N)
  const [r, a, g] = [slice(operands.r), slice(operands.a), slice(operands.g)]
  const k_a = constant(weights.k_a)
  const v = mixValue(slice(operands.v), slice(operands.vFirst), operands.vGate && slice(operands.vGate))
  const w = slice(operands.w).map((logit) => Math.exp(-MAX_DECAY * sigmoid(logit)))
  const kk = unit(slice(operands.k).map((k, j) => k * constant(weights.k_k)[j]!))
  const k = slice(operands.k).map((k, j) => k * (1 + (a[j]! - 1) * k_a[j]!))

  const y = new Float64Array(N)
  for (let i = 0; i < N; i++) {
    const row = S.subarray(i * N, (i + 1) * N)
    const sa = -dot(row, kk)
    for (let j = 0; j < N; j++) row[j] = row[j]! * w[j]! + sa * kk[j]! * a[j]! + v[i]! * k[j]!
    y[i] = dot(row, r)
  }

  const normed = normalise(y, weights.ln_x.eps)
  const bonus = dot(
    r,
    k.map((kj, j) => kj * constant(weights.r_k)[j]!),
  )
  const [gain, bias] = [constant(weights.ln_x.weight), constant(weights.ln_x.bias)]
  for (let i = 0; i < N; i++) out[at + i] = (normed[i]! * gain[i]! + bias[i]! + bonus * v[i]!) * g[i]!
}

/** Layer 0 keeps its v for the others; they move towards it by their gate. */
function mixValue(v: Float64Array, vFirst: Float64Array, gate: Float64Array | undefined): Float64Array {
  if (gate) return v.map((vi, i) => vi + (vFirst[i]! - vi) * gate[i]!)
  vFirst.set(v)
  return v
}

export function deepEmbed(
  batch: Batch,
  u: Tensor,
  low: Tensor,
  own: Tensor,
  { s_emb, s2, s0 }: DeepEmbedWeights,
): void {
  const S = Math.sqrt(s_emb.columns)
  const F = s0.shape[0]!
  const [table, factors, base] = [weightsOf(s_emb), valuesOf(s2), valuesOf(s0)]
  for (let t = 0; t < batch.numTokens; t++) {
    const from = valuesOf(low).subarray(t * S, (t + 1) * S)
    const at = batch.tokens[t]! * S * S
    const M = valuesOf(own)
      .slice(t * S * S, (t + 1) * S * S)
      .map((value, i) => value + table[at + i]!)
    const by = Float64Array.from({ length: S }, (_, j) => {
      return dot(
        from,
        from.map((_, i) => M[i * S + j]!),
      )
    })
    const channels = valuesOf(u).subarray(t * F, (t + 1) * F)
    for (let f = 0; f < F; f++) {
      let factor = base[f]!
      for (let j = 0; j < S; j++) factor += by[j]! * factors[j * F + f]!
      channels[f] = channels[f]! * factor
    }
  }
}

export function gatherNorm(batch: Batch, out: Tensor, x: Tensor, norm: Norm, kept?: Tensor): void {
  const C = norm.weight.shape[0]!
  const rowsKept = kept === undefined ? new Float64Array(0) : valuesOf(kept)
  const rowOf = (r: number): Float64Array => {
    const t = batch.logitRows[r]!
    return layerNorm(valuesOf(x).subarray(t * C, (t + 1) * C), norm)
  }
  for (let r = 0; r < batch.numLogits; r++) {
    const count = batch.blendCounts[r]!
    const place = -1 - batch.logitRows[r]!
    const row = place >= 0 ? rowsKept.slice(place * C, (place + 1) * C) : new Float64Array(C)
    if (place < 0 && count <= 1) row.set(rowOf(r))
    for (let i = r; i < r + count && count > 1; i++)
      for (const [c, value] of rowOf(i).entries()) row[c]! += batch.blendWeights[i]! * value
    valuesOf(out).set(row, r * C)
    const keptAs = batch.keptAs[r]!
    if (keptAs > 0) rowsKept.set(row, (keptAs - 1) * C)
  }
}

function layerNorm(x: Float64Array, norm: Norm): Float64Array {
  const { weight, bias, eps } = normOf(norm)
  return normalise(x, eps).map((value, c) => value * weight[c]! + bias[c]!)
}

/** (x − mean) / √(variance + eps) */
function normalise(x: Float64Array, eps: number): Float64Array {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length
  const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length
  return x.map((value) => (value - mean) / Math.sqrt(variance + eps))
}

function unit(x: Float64Array): Float64Array {
  const length = Math.max(Math.sqrt(dot(x, x)), 1e-12)
  return x.map((value) => value / length)
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!
  return sum
}

function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(-x))
}

/** An array of a slot's state. */
function stateArrayOf(states: StatePool, slot: number, name: string): Float64Array {
  assert(states instanceof RefStatePool, 'a state pool of another backend')
  return states.array(slot, name)
}

/** From here on: the ops that only RWKV-6 uses. */
export function ddlerp(batch: Batch, mix: readonly Tensor[], h: Tensor, prev: Tensor, base: readonly Tensor[]): void {
  const [now, before] = [valuesOf(h), valuesOf(prev)]
  for (const [i, target] of mix.entries()) {
    const [y, b] = [valuesOf(target), valuesOf(base[i]!)]
    const C = b.length
    for (let t = 0; t < batch.numTokens * C; t++) y[t] = now[t]! + (before[t]! - now[t]!) * (b[t % C]! + y[t]!)
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
  eachHead(batch, states, layer, (S, at, channel, N) => wkv6Token(S, at, channel, N, valuesOf(out), operands, weights))
}

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
  for (let i = 0; i < N; i++) out[at + i] = (normed[i]! * gain[i]! + bias[i]!) * g[i]! * sigmoid(g[i]!)
}

export function gatedAdd(batch: Batch, x: Tensor, gate: Tensor, value: Tensor): void {
  const [sum, factor, term] = [valuesOf(x), valuesOf(gate), valuesOf(value)]
  const count = batch.numTokens * x.shape[1]!
  for (let i = 0; i < count; i++) sum[i] = sum[i]! + factor[i]! * term[i]!
}
