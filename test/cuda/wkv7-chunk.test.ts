/** Long rows of wkv7 on cuda, which are computed in chunks of 16 tokens, among short rows, which are not. */
import { expect, test } from 'vitest'
import type { Backend, StatePool, StateShape, Tensor } from '../../src/backend/backend.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { roundToF16 } from '../../src/backend/reference/tensors.ts'
import { capacityFor, normals, raggedBatch, rmsRatio, runOnce, wkv7Weights } from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { compare, expectUnwritten, poisonedHalves, randomStates, readStates } from './ops-kit.ts'

const shapeOf = (heads: number) => ({ layers: 2, channels: 64 * heads, heads, headSize: 64 })
const SHAPE = shapeOf(3)
const C = SHAPE.channels

/** Tokens of the longest test, plus two. */
const MOST = 2102

/** One after another and together, with the slots they run in. */
const ROWS: readonly (readonly [lengths: readonly number[], slots: readonly number[]])[] = [
  ...[31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 1024].map((length) => [[length], [3]] as const),
  [
    [1, 7, 32, 48, 65],
    [0, 1, 4, 3, 2],
  ],
  [
    [2, 31, 33, 129],
    [1, 0, 2, 4],
  ],
]

interface Inputs {
  readonly tokens: number
  /** Mean and spread of the decay's logit: −8 forgets slowly, 8 as fast as possible. */
  readonly decay: readonly [mean: number, spread: number]
  readonly isFirst: boolean
  /** The token of the whole sequence that this step starts with. */
  readonly from?: number
  readonly shape?: StateShape
  /** Outputs of the whole sequence, with two as guard. */
  readonly most?: number
}

/** Each operand, drawn once: the numbers of the longest test. */
const drawn = new Map<string, Float32Array>()

function draw(count: number, seed: number, of: (x: number) => number): Float32Array {
  const key = `${count} ${seed} ${of(0)} ${of(1)}`
  const known = drawn.get(key) ?? normals(count, seed).map((x) => roundToF16(of(x)))
  drawn.set(key, known)
  return known
}

/** Runs wkv7 over rows of the given lengths; all inputs are those of one long sequence from `from` on. */
function run(
  backend: Backend,
  states: StatePool,
  lengths: readonly number[],
  slots: readonly number[],
  { tokens, decay, isFirst, from = 0, shape = SHAPE, most = MOST }: Inputs,
): { out: Tensor; vFirst: Tensor } {
  const C = shape.channels
  const activation = (values: Float32Array) =>
    backend.activation([tokens + 2, C], values.subarray(from * C, (from + tokens + 2) * C))
  const operand = (seed: number, scale = 1, mean = 0) => activation(draw(most * C, seed, (x) => mean + scale * x))
  const rate = (seed: number) => activation(draw(most * C, seed, (x) => 1 / (1 + Math.exp(-x))))
  const out = poisonedHalves(backend, [tokens + 2, C])
  const vFirst = isFirst ? poisonedHalves(backend, [tokens + 2, C]) : operand(8)
  const operands = {
    ...{ r: operand(1), k: operand(2), v: operand(3), w: operand(4, decay[1], decay[0]) },
    ...{ a: rate(5), g: operand(6), vFirst },
    ...(isFirst ? {} : { vGate: rate(7) }),
  }
  const weights = wkv7Weights(backend, C)
  const capacity = capacityFor(tokens, lengths.length)
  const batch = raggedBatch(capacity, lengths, slots, 1)
  runOnce(backend, capacity, batch, (ops) => ops.wkv7(out, operands, weights, states, 1))
  for (const tensor of isFirst ? [out, vFirst] : [out]) expectUnwritten(backend, tensor, tokens * C)
  return { out, vFirst }
}

for (const wkv of ['f32', 'f16'] as const) {
  describeCuda(`wkv7 in chunks with ${wkv} states`, () => {
    const cuda = backendOfGroup({ wkv })

    test.each([true, false])('rows of many lengths, first layer: %s', (isFirst) => {
      for (const [lengths, slots] of ROWS) {
        const tokens = lengths.reduce((a, b) => a + b, 0)
        compare(cuda(), wkv === 'f32' ? 1e-3 : 3e-3, `rows ${lengths}`, (backend) => {
          const states = randomStates(backend, SHAPE)
          const inputs = { tokens, decay: [0, 3], isFirst } as const
          const { out, vFirst } = run(backend, states, lengths, slots, inputs)
          return [
            backend.readTensor(out, 0, tokens * C).result(),
            backend.readTensor(vFirst, 0, tokens * C).result(),
            readStates(states, 'wkv'),
          ]
        })
      }
    })

    // The number of blocks that share a head depends on the number of heads: on 132 multiprocessors two above, here
    // one, which in the last case has several heads one after another.
    test.each([
      [70, [65]],
      [40, [33, 83]],
      [70, [1, 49]],
      [145, [33, 47]],
    ])('%i heads, rows %j', (heads, lengths) => {
      const shape = shapeOf(heads)
      const tokens = lengths.reduce((a, b) => a + b, 0)
      compare(cuda(), wkv === 'f32' ? 1e-3 : 3e-3, `rows ${lengths}`, (backend) => {
        const states = randomStates(backend, shape)
        const inputs = { tokens, decay: [0, 3], isFirst: false, shape, most: tokens + 2 } as const
        const { out } = run(backend, states, lengths, [3, 1], inputs)
        return [backend.readTensor(out, 0, tokens * 64 * heads).result(), readStates(states, 'wkv')]
      })
    })

    test.each([
      ['slow', -8],
      ['mixed', -2],
      ['the fastest', 8],
    ] as const)('2,100 tokens of %s decay, in one step and in two', (_, mean) => {
      const of = (tokens: number, from: number) => ({ tokens, from, decay: [mean, 1.5], isFirst: false }) as const
      const whole = (backend: Backend) => {
        const states = randomStates(backend, SHAPE)
        const { out } = run(backend, states, [2100], [2], of(2100, 0))
        return [readStates(states, 'wkv'), backend.readTensor(out, 0, 2100 * C).result()] as const
      }
      const split = (at: number) => {
        const states = randomStates(cuda(), SHAPE)
        const outs = [of(at, 0), of(2100 - at, at)].map((inputs) => {
          const { out } = run(cuda(), states, [inputs.tokens], [2], inputs)
          return [
            ...cuda()
              .readTensor(out, 0, inputs.tokens * C)
              .result(),
          ]
        })
        return [readStates(states, 'wkv'), Float32Array.from(outs.flat())] as const
      }
      const [reference, expected] = [whole(createReferenceBackend()), whole(cuda())]
      // f32 states keep the precision of f32; y is rounded to f16.
      const bounds = wkv === 'f32' ? [3e-5, 1e-3] : [6e-3, 6e-3]
      for (const [i, bound] of bounds.entries()) expect(rmsRatio(expected[i]!, reference[i]!)).toBeLessThan(bound)
      // Two steps divided between chunks compute the same as one; other divisions round differently.
      for (const [at, bound] of [
        [1024, wkv === 'f32' ? 1e-30 : 6e-3],
        [1001, wkv === 'f32' ? 1e-3 : 6e-3],
      ] as const)
        for (const [i, actual] of split(at).entries())
          expect(rmsRatio(actual, expected[i]!), `split at ${at}`).toBeLessThan(bound)
    })
  })
}
