/** Rows of a step together and alone: states have a kernel for few rows and one for many, with the same bits. */
import { afterAll, expect, test } from 'vitest'
import { landed } from '../../src/backend/flight.ts'
import { openWebgpuBackend, type WebgpuBackend } from '../../src/backend/webgpu/webgpu.ts'
import { WEBGPU_PROBLEM } from '../helpers/webgpu.ts'
import { capacityFor, normals, raggedBatch, randomStates, read, readStates, runStep, wkv7Weights } from './kit.ts'

type Backends = Readonly<Record<'f32' | 'f16', WebgpuBackend>>
const opened: Backends | null =
  WEBGPU_PROBLEM === null ? { f32: await openWebgpuBackend(), f16: await openWebgpuBackend(0, { wkv: 'f16' }) } : null
afterAll(() => {
  for (const backend of Object.values(opened ?? {})) backend.dispose()
})

const HEADS = 2
const C = 64 * HEADS
const LENGTHS = [1, 3, 1, 2]
const SLOTS = [2, 0, 4, 1]

interface Rows {
  readonly first: number
  readonly count: number
}

/** Outputs, first values and states of some of the rows. */
async function mixTime(backend: WebgpuBackend, isFirst: boolean, { first, count }: Rows) {
  const lengths = LENGTHS.slice(first, first + count)
  const start = LENGTHS.slice(0, first).reduce((sum, length) => sum + length, 0)
  const tokens = lengths.reduce((sum, length) => sum + length, 0)
  const capacity = capacityFor(tokens, count)
  const batch = raggedBatch(capacity, lengths, SLOTS.slice(first, first + count), 1)
  const states = await randomStates(backend, { layers: 1, channels: C, heads: HEADS, headSize: 64 })
  const operand = (seed: number, map = (x: number) => x) =>
    backend.tensor(
      [tokens + 2, C],
      normals(9 * C, seed)
        .map(map)
        .slice(start * C, (start + tokens + 2) * C),
    )
  const rate = (x: number) => 1 / (1 + Math.exp(-x))
  const room = () => backend.tensor([tokens + 2, C])
  const [out, vFirst] = [room(), isFirst ? room() : operand(8)]
  const gate = isFirst ? {} : { vGate: operand(7, rate) }
  const operands = { r: operand(1), k: operand(2), v: operand(3), w: operand(4), a: operand(5, rate), g: operand(6) }
  const weights = wkv7Weights(backend, C)
  await runStep(backend, capacity, batch, (ops) => ops.wkv7(out, { ...operands, vFirst, ...gate }, weights, states, 0))
  const all = await readStates(states)
  const own = SLOTS.slice(first, first + count).map((slot) =>
    all.slice((slot * all.length) / 5, ((slot + 1) * all.length) / 5),
  )
  return {
    outputs: [...(await read(backend, out, 0, tokens * C))],
    values: [...(await read(backend, vFirst, 0, tokens * C))],
    own,
  }
}

test.skipIf(opened === null).each([
  ['f32', 'the first layer', true],
  ['f32', 'a later layer', false],
  ['f16', 'a later layer', false],
] as const)('rows of %s states in %s have the same bits together as each alone', async (type, _, isFirst) => {
  const backend = opened![type]
  const together = await mixTime(backend, isFirst, { first: 0, count: 4 })
  const alone = []
  for (let first = 0; first < 4; first++) alone.push(await mixTime(backend, isFirst, { first, count: 1 }))
  expect(together.outputs.some((y) => y !== 0)).toBe(true)
  expect(alone.flatMap(({ outputs }) => outputs)).toEqual(together.outputs)
  expect(alone.flatMap(({ values }) => values)).toEqual(together.values)
  expect(alone.flatMap(({ own }) => own)).toEqual(together.own)
})

const MANY_HEADS = 64

/** Outputs and states of the first two heads of prompts, of so many. */
async function readPrompts(backend: WebgpuBackend, heads: number) {
  const lengths = [40, 25]
  const tokens = 65
  const room = tokens + 2
  const [own, all] = [64 * heads, 64 * MANY_HEADS]
  const capacity = capacityFor(tokens, 2)
  const states = backend.statePool({ layers: 1, channels: own, heads, headSize: 64 }, 2)
  const rate = (x: number) => 1 / (1 + Math.exp(-x))
  const operand = (seed: number, map = (x: number) => x) => {
    const values = normals(room * all, seed).map(map)
    return backend.tensor(
      [room, own],
      values.filter((_, i) => i % all < own),
    )
  }
  const constant = (seed: number) => backend.tensor([own], normals(all, seed).slice(0, own))
  const out = backend.tensor([room, own])
  const operands = { r: operand(1), k: operand(2), v: operand(3), w: operand(4), a: operand(5, rate), g: operand(6) }
  const ln_x = { weight: constant(14), bias: constant(15), eps: 64e-5 }
  const weights = { k_k: constant(11), k_a: constant(12), r_k: constant(13), ln_x }
  const more = { vFirst: operand(8), vGate: operand(7, rate) }
  await runStep(backend, capacity, raggedBatch(capacity, lengths, [1, 0], 1), (ops) =>
    ops.wkv7(out, { ...operands, ...more }, weights, states, 0),
  )
  const outputs = (await read(backend, out, 0, tokens * own)).filter((_, i) => i % own < C)
  const matrices = await Promise.all([0, 1].map(async (slot) => (await landed(states.read(slot)))[1]!.slice(0, 64 * C)))
  return { outputs, matrices }
}

// GPUs with many state rows share them out in another way.
test.skipIf(opened === null).each(['f32', 'f16'] as const)(
  'heads of prompts have the same bits with %s states, however many there are',
  async (type) => {
    const many = await readPrompts(opened![type], MANY_HEADS)
    expect(many.outputs.every((y) => Number.isFinite(y) && y !== 0)).toBe(true)
    expect(await readPrompts(opened![type], HEADS)).toEqual(many)
  },
)
