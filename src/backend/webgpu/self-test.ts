/**
 * Whether a device computes what the reference does: a small step through the kernels that every model uses. Some drivers
 * give wrong answers without an error; such a device is refused before it answers anybody.
 */
import { SkeinError } from '../../errors.ts'
import type { Backend, Tensor } from '../backend.ts'
import { createBatch } from '../batch.ts'
import { landed } from '../flight.ts'
import { createReferenceBackend } from '../reference/reference.ts'
import type { MatrixSource, WeightType } from '../weight-types.ts'
import { LEAST_COLUMNS, LEAST_WIDE } from './products/forms.ts'
import { LEAST_BY_MATRICES } from './products/halves.ts'
import type { WebgpuBackend } from './webgpu.ts'

const HEADS = 2
const CHANNELS = 64 * HEADS
/** Of a step; products of few tokens and of a prompt are computed in different ways. */
const STEPS = [1, 3, LEAST_BY_MATRICES, LEAST_WIDE]
/** A processor that plays a GPU computes one token as it does few. */
const STEPS_IN_SOFTWARE = [3, LEAST_WIDE]
const VOCABULARY = 96
/** Root of the mean square of the difference, in units of that of the expected; the second where anything is held in f16. */
const TOLERANCE = 1e-4
const TOLERANCE_OF_F16 = 2e-3

/** Throws backend_unavailable where the answers differ. */
export async function testBackend(backend: WebgpuBackend): Promise<void> {
  const steps = backend.device.isSoftware ? STEPS_IN_SOFTWARE : STEPS
  for (const tokens of steps) await testStep(backend, tokens)
  backend.reset()
}

async function testStep(backend: WebgpuBackend, numTokens: number): Promise<void> {
  const reference = createReferenceBackend()
  const { matrices, dots } = backend.device
  const weights: Weights = {
    // Few tokens are multiplied by matrices only where rows are long.
    hasLong: matrices !== null && numTokens === LEAST_BY_MATRICES,
    output: dots ? 'i8' : 'f16',
    head: dots ? 'q4' : 'f16',
  }
  const [expected, actual] = [await play(reference, numTokens, weights), await play(backend, numTokens, weights)]
  const { length } = expected.values
  let difference = 0
  let size = 0
  for (let i = 0; i < length; i++) {
    difference += (actual.values[i]! - expected.values[i]!) ** 2
    size += expected.values[i]! ** 2
  }
  const error = Math.sqrt(difference / size)
  const usesMatrices = matrices !== null && numTokens >= LEAST_BY_MATRICES
  const tolerance = backend.wkv === 'f16' || usesMatrices ? TOLERANCE_OF_F16 : TOLERANCE
  // Not greater: NaN is wrong, too.
  if (error < tolerance && actual.tokens.join() === expected.tokens.join()) return
  backend.dispose()
  throw new SkeinError(
    'backend_unavailable',
    `${backend.description} computes wrong answers (error ${error.toExponential(1)}, tokens ${actual.tokens} instead of ${expected.tokens}); update its driver, or use --device cpu`,
  )
}

interface Weights {
  /** Whether there are products of long rows, too. */
  readonly hasLong: boolean
  /** Types. */
  readonly output: WeightType
  readonly head: WeightType
}

/** A step of one row: embedding, shift, products, time mixing, logits and two draws. */
async function play(backend: Backend, numTokens: number, weights: Weights) {
  const capacity = { tokens: numTokens, rows: 1, logits: 1, samples: 2 }
  const states = backend.statePool({ layers: 1, channels: CHANNELS, heads: HEADS, headSize: 64 }, 1)
  const penalties = backend.penaltyPool(VOCABULARY, 2)
  const table = backend.table(source(VOCABULARY, CHANNELS, 1))
  const vector = (seed: number) => backend.tensor([CHANNELS], numbers(CHANNELS, seed))
  const activation = () => backend.activation([numTokens, CHANNELS])
  const norm = { weight: vector(2), bias: vector(3), eps: 1e-5 }
  const [x, y, hidden] = [activation(), activation(), backend.activation([1, CHANNELS])]
  const logits = backend.tensor([1, VOCABULARY])
  const [r, k, v, w, a, g] = Array.from({ length: 6 }, activation) as Six
  const mixed = Array.from({ length: 6 }, activation) as Six
  const long = backend.activation([numTokens, LEAST_COLUMNS])
  const program = backend.record(capacity, (ops) => {
    ops.embed(x, table, norm)
    const mixes = mixed.map((_, i) => vector(10 + i))
    ops.shiftMix(mixed, x, norm, mixes, states, 0, 0)
    const outputs = [r, k, v, w, a, g]
    ops.linear(
      outputs.map((out, i) => ({
        y: out,
        x: mixed[i]!,
        weight: backend.matrix(source(CHANNELS, CHANNELS, 20 + i), 'f16'),
        epilogue: i === 4 ? ('sigmoid' as const) : ('none' as const),
      })),
    )
    const mixing = { k_k: vector(30), k_a: vector(31), r_k: vector(32), ln_x: norm }
    ops.wkv7(y, { r, k, v, w, a, g, vFirst: activation() }, mixing, states, 0)
    const output = backend.matrix(source(CHANNELS, CHANNELS, 40), weights.output)
    ops.linear([{ y: x, x: y, weight: output, epilogue: 'add' }])
    if (weights.hasLong) {
      const key = backend.matrix(source(LEAST_COLUMNS, CHANNELS, 60), 'f16')
      ops.linear([{ y: long, x: y, weight: key, epilogue: 'relu2' }])
      const value = backend.matrix(source(CHANNELS, LEAST_COLUMNS, 64), 'f16')
      ops.linear([{ y: x, x: long, weight: value, epilogue: 'add' }])
    }
    ops.gatherNorm(hidden, x, norm)
    ops.logits(logits, hidden, backend.matrix(source(VOCABULARY, CHANNELS, 50), weights.head))
    ops.sample(logits, penalties)
  })
  const batch = createBatch(capacity)
  batch.numTokens = numTokens
  batch.numRows = 1
  batch.tokens.set(Int32Array.from({ length: numTokens }, (_, i) => (5 + 85 * i) % VOCABULARY))
  batch.starts[1] = numTokens
  batch.numLogits = 1
  batch.logitRows[0] = numTokens - 1
  batch.numSamples = 2
  batch.sampleSlot.set([0, 1])
  // Temperature, top-p, min-p, three penalties, repetition, noise; top-k, seed, position, stream, logprobs, mask.
  batch.sampleFloats.set([0, 1, 0, 0, 0, 1, 1, 0, 1, 0.9, 0, 0, 0, 1, 1, 0])
  batch.sampleInts.set([0, 1, 2, 0, 0, -1, 0, 0, 0, 1, 2, 0, 0, -1, 0, 0])
  const flight = program.flights?.launch(batch)
  if (flight === undefined) program.run(batch)
  else {
    await landed({
      get isDone() {
        return flight.isDone
      },
      result: () => flight.wait(),
    })
  }
  const values = await Promise.all([x, y, logits].map((one) => landed(backend.readTensor(one))))
  const state = await landed(states.read(0))
  program.dispose()
  return {
    values: [...values, ...state].flatMap((array) => [...array]),
    tokens: [...batch.sampled.subarray(0, 2)],
  }
}

type Six = [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

/** Numbers between −1 and 1, the same for the same seed. */
function numbers(count: number, seed: number): Float32Array {
  let state = (seed * 2_654_435_761) >>> 0
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 31 - 1
  })
}

function source(rows: number, columns: number, seed: number): MatrixSource {
  const values = numbers(rows * columns, seed).map((w) => w / Math.sqrt(columns))
  const readRows = (start: number, end: number) =>
    new Uint8Array(values.buffer, 4 * start * columns, 4 * (end - start) * columns)
  return { name: `self-test ${seed}`, rows, columns, dtype: 'f32', readRows }
}
