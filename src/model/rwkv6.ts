/**
 * RWKV-6 "Finch" (x060) over the ops of the backend: its weights under the letters of the checkpoint, and one forward
 * pass. Maths: Peng et al., "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence", 2024. Knows
 * nothing of requests, slots' owners or schedules.
 */
import type { Backend, Norm, Ops, StatePool, Table } from '../backend/backend.ts'
import type { Capacity } from '../backend/batch.ts'
import { describeCheckpoint, rwkv6Dimensions } from './formats/describe.ts'
import type { Checkpoint } from './formats/format.ts'
import { BONUS, BONUS_ALIAS, RWKV6_MIXES } from './formats/rwkv6-layout.ts'
import type { Carried, LayerRange, Model } from './model.ts'
import { WeightLoader, type WeightOptions } from './weights.ts'

/** Epsilon of the per-head group norm, at every width. */
const GROUP_NORM_EPS = 64e-5

export function loadRwkv6(checkpoint: Checkpoint, backend: Backend, options: WeightOptions, part?: LayerRange): Model {
  const { layers, channels, heads, headSize, vocabSize } = rwkv6Dimensions(checkpoint)
  const { from, to } = part ?? { from: 0, to: layers }
  const load = new WeightLoader(checkpoint, backend, options)
  const input = from === 0 ? load.input() : null
  const blocks = Array.from({ length: to - from }, (_, i) => loadBlock(load, from + i))
  const output = to === layers ? load.output() : null
  return {
    architecture: 'rwkv6',
    vocabSize,
    numParameters: describeCheckpoint(checkpoint).numParameters,
    weightType: blocks[0]!.ffn.key.type,
    weightBytes: load.deviceBytes,
    tableBytes: input?.emb.bytes ?? 0,
    stateShape: { layers: to - from, channels, heads, headSize },
    output,
    forward: (ops, states, capacity) => forward(ops, backend, { input, blocks }, states, capacity),
  }
}

function loadBlock(load: WeightLoader, i: number) {
  const att = `blocks.${i}.att.`
  const ffn = `blocks.${i}.ffn.`
  const bonus = load.has(`${att}${BONUS}`) ? BONUS : BONUS_ALIAS
  return {
    ln1: load.norm(`blocks.${i}.ln1`),
    att: {
      maa_x: load.vector(`${att}time_maa_x`),
      /** Each five, in the order of RWKV6_MIXES: the fixed mix, and the low-rank pair of the part that the data decides. */
      maa: RWKV6_MIXES.map((letter) => load.vector(`${att}time_maa_${letter}`)),
      maa_w1: load.lowRankColumns(`${att}time_maa_w1`, RWKV6_MIXES.length),
      maa_w2: load.lowRankStack(`${att}time_maa_w2`),
      decay: load.vector(`${att}time_decay`),
      decay_w1: load.lowRank(`${att}time_decay_w1`),
      decay_w2: load.lowRank(`${att}time_decay_w2`),
      u: load.vector(`${att}${bonus}`),
      receptance: load.matrix(`${att}receptance.weight`),
      key: load.matrix(`${att}key.weight`),
      value: load.matrix(`${att}value.weight`),
      gate: load.matrix(`${att}gate.weight`),
      output: load.matrix(`${att}output.weight`),
      ln_x: load.norm(`${att}ln_x`, GROUP_NORM_EPS),
    },
    ln2: load.norm(`blocks.${i}.ln2`),
    ffn: {
      maa_k: load.vector(`${ffn}time_maa_k`),
      maa_r: load.vector(`${ffn}time_maa_r`),
      key: load.matrix(`${ffn}key.weight`),
      receptance: load.matrix(`${ffn}receptance.weight`),
      value: load.matrix(`${ffn}value.weight`),
    },
  }
}

type Block = ReturnType<typeof loadBlock>

interface Rwkv6 {
  /** Absent where the first layer is on another device. */
  readonly input: { readonly emb: Table; readonly ln0: Norm } | null
  readonly blocks: readonly Block[]
}

/** The buffers every layer reuses; [T, C] unless said otherwise. */
function createBuffers(backend: Backend, blocks: readonly Block[], T: number, C: number) {
  const channels = () => backend.activation([T, C])
  /** [T, D], D = the widest rank of that kind: ranks are the file's choice, layer by layer. */
  const rank = (of: (block: Block) => number) => backend.activation([T, Math.max(...blocks.map((block) => of(block)))])
  return {
    /** The residual stream is kept in f32 on every backend, and so is what is added to it. */
    x: backend.tensor([T, C]),
    value: backend.tensor([T, C]),
    h: channels(),
    prev: channels(),
    xxx: channels(),
    low: RWKV6_MIXES.map(() => rank(({ att }) => att.maa_w1[0]!.rows)),
    mixed: { w: channels(), k: channels(), v: channels(), r: channels(), g: channels() },
    low_w: rank(({ att }) => att.decay_w1.rows),
    r: channels(),
    w: channels(),
    k: channels(),
    v: channels(),
    g: channels(),
    y: channels(),
    /** [T, F] */
    u: backend.activation([T, blocks[0]!.ffn.key.rows]),
  }
}

function forward(ops: Ops, backend: Backend, { input, blocks }: Rwkv6, states: StatePool, capacity: Capacity): Carried {
  const { channels } = states.shape
  const buffers = createBuffers(backend, blocks, capacity.tokens, channels)
  const { x, value, h, prev, xxx, low, mixed, low_w, r, w, k, v, g, y, u } = buffers
  const mixes = RWKV6_MIXES.map((letter) => mixed[letter])
  const zeros = backend.tensor([channels])
  const ones = backend.tensor([channels], new Float32Array(channels).fill(1))
  if (input) ops.embed(x, input.emb, input.ln0)
  for (const [i, { ln1, att, ln2, ffn }] of blocks.entries()) {
    const { maa_x, maa, maa_w1, maa_w2 } = att
    ops.shiftMix([h, prev, xxx], x, ln1, [zeros, ones, maa_x], states, i, 0)
    ops.linear(maa_w1.map((weight, c) => ({ y: low[c]!, x: xxx, weight, epilogue: 'tanh' })))
    ops.linear(maa_w2.map((weight, c) => ({ y: mixes[c]!, x: low[c]!, weight })))
    ops.ddlerp(mixes, h, prev, maa)

    ops.linear([
      { y: r, x: mixed.r, weight: att.receptance },
      { y: k, x: mixed.k, weight: att.key },
      { y: v, x: mixed.v, weight: att.value },
      { y: g, x: mixed.g, weight: att.gate },
      { y: low_w, x: mixed.w, weight: att.decay_w1, epilogue: 'tanh' },
    ])
    ops.linear([{ y: w, x: low_w, weight: att.decay_w2, bias: att.decay }])
    ops.wkv6(y, { r, k, v, w, g }, att, states, i)
    ops.linear([{ y: x, x: y, weight: att.output, epilogue: 'add' }])

    ops.shiftMix([mixed.k, mixed.r], x, ln2, [ffn.maa_k, ffn.maa_r], states, i, 1)
    ops.linear([
      { y: u, x: mixed.k, weight: ffn.key, epilogue: 'relu2' },
      { y: r, x: mixed.r, weight: ffn.receptance, epilogue: 'sigmoid' },
    ])
    ops.linear([{ y: value, x: u, weight: ffn.value }])
    ops.gatedAdd(x, r, value)
  }
  return [x]
}
