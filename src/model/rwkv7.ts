/**
 * RWKV-7 "Goose" (x070), and RWKV-7a, which is that with DeepEmbed in the channel mixing, over the ops of the backend: its weights under the letters of the checkpoint, and one forward
 * pass. Maths: Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution", 2025. Knows nothing of requests,
 * slots' owners or schedules.
 */
import type { Backend, LinearJob, Matrix, Norm, Ops, StatePool, Table } from '../backend/backend.ts'
import type { Capacity } from '../backend/batch.ts'
import { describeCheckpoint, rwkv7Dimensions } from './formats/describe.ts'
import type { Checkpoint } from './formats/format.ts'
import type { Carried, LayerRange, Model } from './model.ts'
import { WeightLoader, type WeightOptions } from './weights.ts'

/** Epsilon of the per-head group norm, at every width. */
const GROUP_NORM_EPS = 64e-5

export function loadRwkv7(checkpoint: Checkpoint, backend: Backend, options: WeightOptions, part?: LayerRange): Model {
  const { layers, channels, heads, headSize, vocabSize, ranks } = rwkv7Dimensions(checkpoint)
  const isDeep = ranks.s !== undefined
  const { from, to } = part ?? { from: 0, to: layers }
  const load = new WeightLoader(checkpoint, backend, options)
  const input = from === 0 ? load.input() : null
  const blocks = Array.from({ length: to - from }, (_, i) => loadBlock(load, from + i, isDeep))
  const output = to === layers ? load.output() : null
  return {
    architecture: isDeep ? 'rwkv7a' : 'rwkv7',
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

function loadBlock(load: WeightLoader, i: number, isDeep: boolean) {
  const att = `blocks.${i}.att.`
  const ffn = `blocks.${i}.ffn.`
  return {
    ln1: load.norm(`blocks.${i}.ln1`),
    att: {
      x_r: load.vector(`${att}x_r`),
      x_w: load.vector(`${att}x_w`),
      x_k: load.vector(`${att}x_k`),
      x_v: load.vector(`${att}x_v`),
      x_a: load.vector(`${att}x_a`),
      x_g: load.vector(`${att}x_g`),
      w0: load.vector(`${att}w0`),
      w1: load.lowRank(`${att}w1`),
      w2: load.lowRank(`${att}w2`),
      a0: load.vector(`${att}a0`),
      a1: load.lowRank(`${att}a1`),
      a2: load.lowRank(`${att}a2`),
      g1: load.lowRank(`${att}g1`),
      g2: load.lowRank(`${att}g2`),
      /** Absent in layer 0, whose v is the one the others move to. */
      value_residual:
        i === 0 ? null : { v0: load.vector(`${att}v0`), v1: load.lowRank(`${att}v1`), v2: load.lowRank(`${att}v2`) },
      k_k: load.vector(`${att}k_k`),
      k_a: load.vector(`${att}k_a`),
      r_k: load.vector(`${att}r_k`),
      ...load.matrices(att, ['receptance', 'key', 'value']),
      output: load.matrix(`${att}output.weight`),
      ln_x: load.norm(`${att}ln_x`, GROUP_NORM_EPS),
    },
    ln2: load.norm(`blocks.${i}.ln2`),
    ffn: {
      x_k: load.vector(`${ffn}x_k`),
      key: load.matrix(`${ffn}key.weight`),
      value: load.matrix(`${ffn}value.weight`),
      /** RWKV-7a only. */
      deepEmbed: isDeep
        ? {
            s_emb: load.hostTable(`${ffn}s_emb.weight`),
            s_emb_x: load.plainMatrix(`${ffn}s_emb_x.weight`),
            s0: load.vector(`${ffn}s0`),
            s1: load.lowRank(`${ffn}s1`),
            s2: load.vector(`${ffn}s2`),
          }
        : null,
    },
  }
}

type Block = ReturnType<typeof loadBlock>

interface Rwkv7 {
  /** Absent where the first layer is on another device. */
  readonly input: { readonly emb: Table; readonly ln0: Norm } | null
  readonly blocks: readonly Block[]
}

/** The buffers every layer reuses; [T, C] unless said otherwise. */
function createBuffers(backend: Backend, blocks: readonly Block[], T: number, C: number) {
  const channels = () => backend.activation([T, C])
  /** A backend can make the three products of one. */
  const three = () => {
    backend.sideBySide?.(3, T * C)
    return { r: channels(), k: channels(), v: channels() }
  }
  /** [T, D], D = the widest rank of that kind: ranks are the file's choice, layer by layer. */
  const rank = (of: (block: Block) => Matrix | undefined) =>
    backend.activation([T, Math.max(1, ...blocks.map((block) => of(block)?.rows ?? 0))])
  return {
    /** The residual stream is kept in f32 on every backend. */
    x: backend.tensor([T, C]),
    mixed: { ...three(), w: channels(), a: channels(), g: channels() },
    low: {
      w: rank(({ att }) => att.w1),
      a: rank(({ att }) => att.a1),
      g: rank(({ att }) => att.g1),
      v: rank(({ att }) => att.value_residual?.v1),
    },
    ...three(),
    w: channels(),
    a: channels(),
    g: channels(),
    vGate: channels(),
    vFirst: channels(),
    y: channels(),
    /** [T, F] */
    u: backend.activation([T, blocks[0]!.ffn.key.rows]),
    deep: createDeepBuffers(backend, blocks[0]!.ffn.deepEmbed, T, C),
  }
}

function createDeepBuffers(backend: Backend, deepEmbed: Block['ffn']['deepEmbed'], T: number, C: number) {
  if (deepEmbed === null) return null
  const { s1, s_emb_x } = deepEmbed
  return {
    /** The model's input, which every layer reads again. */
    embedding: backend.activation([T, C]),
    h: backend.activation([T, C]),
    low: backend.activation([T, s1.rows]),
    own: backend.activation([T, s_emb_x.rows]),
    /** A mix that leaves a token as it is. [C] */
    x_h: backend.tensor([C]),
  }
}

function forward(ops: Ops, backend: Backend, { input, blocks }: Rwkv7, states: StatePool, capacity: Capacity): Carried {
  const buffers = createBuffers(backend, blocks, capacity.tokens, states.shape.channels)
  const { x, mixed, low, r, w, k, v, a, g, vGate, vFirst, y, u, deep } = buffers
  if (input) ops.embed(x, input.emb, input.ln0)
  if (input && deep) ops.embed(deep.embedding, input.emb, input.ln0)
  for (const [i, { ln1, att, ln2, ffn }] of blocks.entries()) {
    const { x_r, x_w, x_k, x_v, x_a, x_g, value_residual } = att
    const mixes = [mixed.r, mixed.w, mixed.k, mixed.v, mixed.a, mixed.g]
    ops.shiftMix(mixes, x, ln1, [x_r, x_w, x_k, x_v, x_a, x_g], states, i, 0)

    const inward: LinearJob[] = [
      { y: r, x: mixed.r, weight: att.receptance },
      { y: k, x: mixed.k, weight: att.key },
      { y: v, x: mixed.v, weight: att.value },
      { y: low.w, x: mixed.w, weight: att.w1, epilogue: 'tanh' },
      { y: low.a, x: mixed.a, weight: att.a1 },
      { y: low.g, x: mixed.g, weight: att.g1, epilogue: 'sigmoid' },
    ]
    const outward: LinearJob[] = [
      { y: w, x: low.w, weight: att.w2, bias: att.w0 },
      { y: a, x: low.a, weight: att.a2, bias: att.a0, epilogue: 'sigmoid' },
      { y: g, x: low.g, weight: att.g2 },
    ]
    if (value_residual) {
      const { v0, v1, v2 } = value_residual
      inward.push({ y: low.v, x: mixed.v, weight: v1 })
      outward.push({ y: vGate, x: low.v, weight: v2, bias: v0, epilogue: 'sigmoid' })
    }
    ops.linear(inward)
    ops.linear(outward)

    const operands = { r, k, v, w, a, g, vFirst }
    ops.wkv7(y, value_residual ? { ...operands, vGate } : operands, att, states, i)
    ops.linear([{ y: x, x: y, weight: att.output, epilogue: 'add' }])

    const key: LinearJob = { y: u, x: mixed.k, weight: ffn.key, epilogue: 'relu2' }
    const { deepEmbed } = ffn
    if (deep && deepEmbed) {
      const { embedding, h, low, own, x_h } = deep
      ops.shiftMix([mixed.k, h], x, ln2, [ffn.x_k, x_h], states, i, 1)
      const { s1, s_emb_x } = deepEmbed
      ops.linear([key, { y: low, x: h, weight: s1 }, { y: own, x: embedding, weight: s_emb_x }])
      ops.deepEmbed(u, low, own, deepEmbed)
    } else {
      ops.shiftMix([mixed.k], x, ln2, [ffn.x_k], states, i, 1)
      ops.linear([key])
    }
    ops.linear([{ y: x, x: u, weight: ffn.value, epilogue: 'add' }])
  }
  return deep ? [x, vFirst, deep.embedding] : [x, vFirst]
}
