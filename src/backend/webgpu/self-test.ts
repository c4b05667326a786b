/**
 * Whether a device computes what the reference does: small steps of several rows through the kernels of a model's
 * architecture and types. Some drivers give wrong answers without an error; such a device is refused before it answers
 * anybody.
 */
import { SkeinError } from '../../errors.ts'
import type { Backend, Matrix, Ops, StatePool, Tensor } from '../backend.ts'
import { type Batch, createBatch, maskWords } from '../batch.ts'
import { landed } from '../flight.ts'
import { createReferenceBackend } from '../reference/reference.ts'
import { isPacked, type MatrixSource, type WeightType } from '../weight-types.ts'
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
/** Of a token's matrix in RWKV-7a. */
const SIDE = 8
/**
 * Root of the mean square of the difference, in units of that of the expected; the second where inputs are rounded to 16
 * bits (a product is then 4e-5 off), the third where anything is held in f16.
 */
const TOLERANCE = 1e-4
const TOLERANCE_OF_BYTES = 5e-4
const TOLERANCE_OF_F16 = 2e-3

/** What is to be computed: the architecture, and the types of large matrices, and of the table and low ranks, of a model. */
export interface Tested {
  readonly architecture: 'rwkv7' | 'rwkv7a' | 'rwkv6'
  readonly large: WeightType
  readonly plain: 'f32' | 'f16' | 'bf16'
}

/** What most files hold. */
const USUAL: Tested = { architecture: 'rwkv7', large: 'bf16', plain: 'bf16' }

/** Throws backend_unavailable where the answers differ. */
export async function testBackend(backend: WebgpuBackend, tested: Tested = USUAL): Promise<void> {
  const steps = backend.device.isSoftware ? STEPS_IN_SOFTWARE : STEPS
  for (const tokens of steps) await testStep(backend, tested, tokens)
}

async function testStep(backend: WebgpuBackend, tested: Tested, numTokens: number): Promise<void> {
  const reference = createReferenceBackend()
  const { matrices, dots } = backend.device
  // This backend has no kernels for the others: they become f16, or are refused when the model is loaded.
  const large = isPacked(tested.large) || tested.large === 'fp8' ? 'f16' : tested.large
  const weights: Weights = {
    ...tested,
    large,
    // Few tokens are multiplied by matrices only where rows are long.
    hasLong: matrices !== null && numTokens === LEAST_BY_MATRICES,
    output: dots ? 'i8' : large,
    head: dots ? 'q4' : large,
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
  const tolerance = backend.wkv === 'f16' || usesMatrices ? TOLERANCE_OF_F16 : dots ? TOLERANCE_OF_BYTES : TOLERANCE
  // Not greater: NaN is wrong, too.
  if (error < tolerance && actual.tokens.join() === expected.tokens.join()) return
  backend.dispose()
  throw new SkeinError(
    'backend_unavailable',
    `${backend.description} computes wrong answers (error ${error.toExponential(1)}, tokens ${actual.tokens} instead of ${expected.tokens}); update its driver, or use --device cpu`,
  )
}

interface Weights extends Tested {
  /** Whether there are products of long rows, too. */
  readonly hasLong: boolean
  /** Types. */
  readonly output: WeightType
  readonly head: WeightType
}

/** Tokens of each row: single ones, and behind them longer ones. */
function rowsOf(numTokens: number): readonly number[] {
  return numTokens <= 3 ? Array<number>(numTokens).fill(1) : [1, 2, numTokens - 3]
}

/** Two steps of a layer, the second from the states and counts of the first. */
async function play(backend: Backend, numTokens: number, weights: Weights) {
  const rows = rowsOf(numTokens)
  const capacity = { tokens: numTokens, rows: rows.length, logits: rows.length, samples: DRAWS }
  const states = backend.statePool({ layers: 1, channels: CHANNELS, heads: HEADS, headSize: 64 }, rows.length)
  const penalties = backend.penaltyPool(VOCABULARY, DRAWS)
  penalties.reset(3, Int32Array.of(SEEN))
  const table = backend.table(source(VOCABULARY, CHANNELS, 1, weights.plain === 'bf16' ? 'bf16' : 'f32'))
  const norm = normOf(backend)
  const activation = () => backend.activation([numTokens, CHANNELS])
  const [x, y, hidden] = [activation(), activation(), backend.activation([rows.length, CHANNELS])]
  const logits = backend.tensor([rows.length, VOCABULARY])
  const mixed = Array.from({ length: 6 }, activation) as Six
  const long = backend.activation([numTokens, LEAST_COLUMNS])
  const matrix = (seed: number, type: WeightType, outputs = CHANNELS, columns = CHANNELS) =>
    backend.matrix(source(outputs, columns, seed), type)
  const program = backend.record(capacity, (ops) => {
    ops.embed(x, table, norm)
    mixTime({ backend, ops, x, y, mixed, states, activation, matrix }, weights)
    ops.linear([{ y: x, x: y, weight: matrix(40, weights.output), epilogue: 'add' }])
    if (weights.hasLong) {
      ops.linear([{ y: long, x: y, weight: matrix(60, weights.large, LEAST_COLUMNS), epilogue: 'relu2' }])
      ops.linear([{ y: x, x: long, weight: matrix(64, weights.large, CHANNELS, LEAST_COLUMNS), epilogue: 'add' }])
    }
    if (weights.architecture === 'rwkv7a') {
      const [low, own] = [SIDE, SIDE * SIDE].map((width) => backend.activation([numTokens, width])) as [Tensor, Tensor]
      ops.linear([
        { y: low, x: y, weight: matrix(70, weights.plain, SIDE) },
        { y: own, x, weight: matrix(71, weights.plain, SIDE * SIDE) },
      ])
      const s2 = backend.tensor([SIDE * CHANNELS], numbers(SIDE * CHANNELS, 73))
      const s_emb = backend.hostTable(source(VOCABULARY, SIDE * SIDE, 72))
      ops.deepEmbed(x, low, own, { s_emb, s2, s0: vectorOf(backend, 75) })
    }
    ops.gatherNorm(hidden, x, norm)
    ops.logits(logits, hidden, matrix(50, weights.head, VOCABULARY))
    ops.sample(logits, penalties)
  })
  const batch = batchOf(capacity, rows)
  const tokens: number[] = []
  for (let step = 0; step < 2; step++) {
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
    tokens.push(...batch.sampled.subarray(0, DRAWS))
  }
  const values = await Promise.all([x, y, logits].map((one) => landed(backend.readTensor(one))))
  for (const slot of rows.keys()) values.push(...(await landed(states.read(slot))))
  program.dispose()
  return { values: values.flatMap((array) => [...array]), tokens }
}

interface TimeMixing {
  readonly backend: Backend
  readonly ops: Ops
  readonly x: Tensor
  readonly y: Tensor
  readonly mixed: Six
  readonly states: StatePool
  activation(): Tensor
  matrix(seed: number, type: WeightType): Matrix
}

/** Shift, products and states. */
function mixTime(of: TimeMixing, { architecture, large, plain }: Weights): void {
  const { backend, ops, x, y, mixed, states, activation, matrix } = of
  const vector = (seed: number) => vectorOf(backend, seed)
  const norm = normOf(backend)
  const outputs = Array.from({ length: 6 }, activation) as Six
  const [r, k, v, w, a, g] = outputs
  const mixes = mixed.map((_, i) => vector(10 + i))
  ops.shiftMix(mixed, x, norm, mixes, states, 0, 0)
  // Of RWKV-6 these are what depends on the data.
  if (architecture === 'rwkv6') ops.ddlerp(mixed.slice(2), mixed[0], mixed[1], mixes.slice(2))
  ops.linear(
    outputs.map((out, i) => ({
      y: out,
      x: mixed[i]!,
      weight: matrix(20 + i, i < 3 ? large : plain),
      epilogue: i === 4 ? ('sigmoid' as const) : ('none' as const),
    })),
  )
  if (architecture === 'rwkv6') {
    ops.wkv6(y, { r, k, v, w, g }, { u: vector(32), ln_x: norm }, states, 0)
    ops.gatedAdd(x, a, v)
    return
  }
  const mixing = { k_k: vector(30), k_a: vector(31), r_k: vector(32), ln_x: norm }
  ops.wkv7(y, { r, k, v, w, a, g, vFirst: activation() }, mixing, states, 0)
}

const DRAWS = 4
/** Tokens of draws: seen in the prompt, beside it in a mask, banned by that mask, and wished for. */
const SEEN = 20
const BESIDE = 21
const BANNED = 22
const WISHED = 9

/** The best; one at random; the best where what was drawn is penalised; the best of a mask where a prompt's token is penalised. */
function batchOf(capacity: Parameters<typeof createBatch>[0], rows: readonly number[]): Batch {
  const batch = createBatch(capacity)
  const last = rows.length - 1
  batch.numTokens = capacity.tokens
  batch.numRows = rows.length
  batch.tokens.set(Int32Array.from({ length: capacity.tokens }, (_, i) => (5 + 85 * i) % VOCABULARY))
  for (const [b, count] of rows.entries()) {
    batch.slots[b] = b
    batch.starts[b + 1] = batch.starts[b]! + count
    batch.logitRows[b] = batch.starts[b + 1]! - 1
  }
  batch.numLogits = rows.length
  batch.numSamples = DRAWS
  batch.sampleRow.set([0, last, last, last])
  batch.sampleSlot.set([0, 1, 2, 3])
  // Temperature, top-p, min-p, presence, frequency and decay of penalties, repetition, noise.
  batch.sampleFloats.set([0, 1, 0, 0, 0, 1, 1, 0, 1, 0.9, 0, 0, 0, 1, 1, 0])
  batch.sampleFloats.set([0, 1, 0, 50, 50, 1, 1, 0, 0, 1, 0, 0, 0, 1, 2, 0], 16)
  // Top-k, seed, position, stream, logprobs, mask, after.
  batch.sampleInts.set([0, 1, 2, 0, 0, -1, 0, 0, 0, 1, 2, 0, 0, -1, 0, 0])
  batch.sampleInts.set([0, 1, 2, 0, 0, -1, 0, 0, 0, 1, 2, 0, 0, -1, 1, 0], 16)
  batch.biasStarts.set([0, 0, 0, 1, 4])
  batch.biasIds = Int32Array.of(WISHED, SEEN, BESIDE, BANNED)
  batch.biasValues = Float32Array.of(50, 40, 30, 100)
  batch.numMasks = 1
  batch.masks = new Uint32Array(maskWords(VOCABULARY))
  batch.masks[0] = (1 << SEEN) | (1 << BESIDE)
  return batch
}

function vectorOf(backend: Backend, seed: number): Tensor {
  return backend.tensor([CHANNELS], numbers(CHANNELS, seed))
}

function normOf(backend: Backend) {
  return { weight: vectorOf(backend, 2), bias: vectorOf(backend, 3), eps: 1e-5 }
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

function source(rows: number, columns: number, seed: number, dtype: 'f32' | 'bf16' = 'f32'): MatrixSource {
  const values = numbers(rows * columns, seed).map((w) => w / Math.sqrt(columns))
  // The upper half of an f32 is a bf16.
  const elements = dtype === 'f32' ? values : Uint16Array.from(new Uint32Array(values.buffer), (bits) => bits >>> 16)
  const rowBytes = elements.BYTES_PER_ELEMENT * columns
  const readRows = (start: number, end: number) =>
    new Uint8Array(elements.buffer, start * rowBytes, (end - start) * rowBytes)
  return { name: `self-test ${seed}`, rows, columns, dtype, readRows }
}
