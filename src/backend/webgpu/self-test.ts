/**
 * Whether a device computes what the reference does: small steps of several rows through the kernels of a model's
 * architecture and types. Some drivers give wrong answers without an error; such a device is refused before it answers
 * anybody.
 */
import { SkeinError } from '../../errors.ts'
import type { Backend, Matrix, Norm, Ops, StatePool, Tensor } from '../backend.ts'
import { type Batch, createBatch, maskWords } from '../batch.ts'
import { landed } from '../flight.ts'
import { decodeRows } from '../quantised.ts'
import { quantiseRows } from '../reference/quantise.ts'
import { createReferenceBackend } from '../reference/reference.ts'
import { isPacked, isQuantised, type MatrixSource, type WeightType } from '../weight-types.ts'
import { LEAST_COLUMNS, LEAST_WIDE } from './products/forms.ts'
import { LEAST_BY_MATRICES } from './products/halves.ts'
import type { WebgpuBackend } from './webgpu.ts'

const HEAD = 64
const HEADS = 2
const CHANNELS = HEADS * HEAD
/** Tokens of each row, by steps; products of few tokens and of a prompt, and few logits and more, are computed in different ways. */
const STEPS: readonly (readonly number[])[] = [
  [1],
  [1, 2],
  [2, ...new Array<number>(LEAST_BY_MATRICES - 1).fill(1)],
  [1, 2, LEAST_WIDE - 3],
]
/** A processor that plays a GPU computes one token as it does few, and few logits as it does more. */
const STEPS_IN_SOFTWARE = [STEPS[1]!, STEPS[3]!]
/** The least that a GPU multiplies the tokens of a prompt's step with in tiles, and by matrices in the large ones. */
const TILES = { wide: 16_384, given: 32 } as const
const LARGE_TILES = { wide: 3104, given: 544 } as const
/** Outputs of the product that reads these. */
const NARROW = 16
const VOCABULARY = 96
/** Of a token's matrix in RWKV-7a. */
const SIDE = 8
/**
 * Root of the mean square of the difference, in units of that of the expected; the second where inputs are rounded to 16
 * bits, the third where anything is held in f16. An H200 has at most 2.5e-6, 1.9e-4 and 2.8e-3 (docs/dev/webgpu.md).
 */
const TOLERANCE = 1e-4
const TOLERANCE_OF_BYTES = 1e-3
const TOLERANCE_OF_F16 = 1e-2

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
  for (const rows of steps) await testStep(backend, tested, rows)
  backend.reset()
}

async function testStep(backend: WebgpuBackend, tested: Tested, rows: readonly number[]): Promise<void> {
  const reference = createReferenceBackend()
  const { matrices, dots } = backend.device
  const numTokens = sum(rows)
  // This backend has no kernels for the others: they become f16, or are refused when the model is loaded.
  const large = isPacked(tested.large) || tested.large === 'fp8' ? 'f16' : tested.large
  const weights = {
    ...tested,
    large,
    head: isQuantised(large) ? 'i8' : large,
    ...sizesFor(backend, numTokens),
  } as const
  const [expected, actual] = [await play(reference, rows, weights), await play(backend, rows, weights)]
  const { length } = expected.values
  let difference = 0
  let size = 0
  for (let i = 0; i < length; i++) {
    difference += (actual.values[i]! - expected.values[i]!) ** 2
    size += expected.values[i]! ** 2
  }
  const error = Math.sqrt(difference / size)
  const usesMatrices = matrices !== null && numTokens >= LEAST_BY_MATRICES
  const usesBytes = dots && isQuantised(large)
  const tolerance =
    backend.wkv === 'f16' || usesMatrices ? TOLERANCE_OF_F16 : usesBytes ? TOLERANCE_OF_BYTES : TOLERANCE
  // Not greater: NaN is wrong, too.
  if (error < tolerance && actual.tokens.join() === expected.tokens.join()) return
  throw new SkeinError(
    'backend_unavailable',
    `${backend.description} computes wrong answers (error ${error.toExponential(1)}, tokens ${actual.tokens} instead of ${expected.tokens}); update its driver, or use --device cpu`,
  )
}

interface Sizes {
  /** Outputs of the large products. */
  readonly wide: number
  /** Their inputs; 0: those that the states wrote. */
  readonly given: number
}

interface Weights extends Tested, Sizes {
  readonly head: WeightType
}

/** Products differ by the lengths of rows and by how many outputs there are; a processor makes all in one way. */
function sizesFor({ device: { isSoftware, matrices } }: WebgpuBackend, numTokens: number): Sizes {
  if (isSoftware) return { wide: 2 * CHANNELS, given: 0 }
  if (numTokens < LEAST_WIDE) return { wide: LEAST_COLUMNS, given: 0 }
  return matrices === null ? TILES : LARGE_TILES
}

function sum(counts: readonly number[]): number {
  return counts.reduce((a, b) => a + b, 0)
}

/** Two steps of a layer, the second from the states and counts of the first; of many tokens one. */
async function play(backend: Backend, rows: readonly number[], weights: Weights) {
  const { wide, given, large, plain } = weights
  const numTokens = sum(rows)
  const capacity = { tokens: numTokens, rows: rows.length, logits: rows.length, samples: DRAWS }
  const states = backend.statePool({ layers: 1, channels: CHANNELS, heads: HEADS, headSize: HEAD }, rows.length)
  const penalties = backend.penaltyPool(VOCABULARY, DRAWS)
  penalties.reset(3, Int32Array.of(SEEN))
  const table = backend.table(source(VOCABULARY, CHANNELS, 1, plain === 'bf16' ? 'bf16' : 'f32'))
  const vector = (seed: number) => backend.tensor([CHANNELS], numbers(CHANNELS, seed))
  const norm = { weight: vector(2), bias: vector(3), eps: 1e-5 }
  const activation = (width = CHANNELS) => backend.activation([numTokens, width])
  const [x, y, hidden] = [activation(), activation(), backend.activation([rows.length, CHANNELS])]
  const [key, alone, narrow] = [activation(wide), activation(wide), activation(NARROW)]
  const input = given === 0 ? y : backend.activation([numTokens, given], numbers(numTokens * given, 76))
  const columns = given || CHANNELS
  const logits = backend.tensor([rows.length, VOCABULARY])
  const mixed = Array.from({ length: 6 }, () => activation()) as Six
  const matrix = (seed: number, type: WeightType, outputs = CHANNELS, columns = CHANNELS) =>
    backend.matrix(source(outputs, columns, seed, 'f32', type), type)
  const program = backend.record(capacity, (ops) => {
    ops.embed(x, table, norm)
    mixTime({ ops, x, y, mixed, states, norm, activation, matrix, vector }, weights)
    ops.linear([{ y: x, x: y, weight: matrix(40, large), epilogue: 'add' }])
    // What another product reads is written in another way than what none does.
    ops.linear([{ y: key, x: input, weight: matrix(60, large, wide, columns), epilogue: 'relu2' }])
    ops.linear([{ y: narrow, x: key, weight: matrix(61, large, NARROW, wide) }])
    ops.linear([{ y: alone, x: input, weight: matrix(62, large, wide, columns), epilogue: 'tanh' }])
    if (weights.architecture === 'rwkv7a') {
      const [low, own] = [activation(SIDE), activation(SIDE * SIDE)]
      ops.linear([
        { y: low, x: y, weight: matrix(70, plain, SIDE) },
        { y: own, x, weight: matrix(71, plain, SIDE * SIDE) },
      ])
      const s2 = backend.tensor([SIDE * CHANNELS], numbers(SIDE * CHANNELS, 73))
      const s_emb = backend.hostTable(source(VOCABULARY, SIDE * SIDE, 72))
      ops.deepEmbed(x, low, own, { s_emb, s2, s0: vector(75) })
    }
    ops.gatherNorm(hidden, x, norm)
    ops.logits(logits, hidden, matrix(50, weights.head, VOCABULARY))
    ops.sample(logits, penalties)
  })
  const batch = batchOf(capacity, rows)
  await program.compile?.(batch)
  const tokens: number[] = []
  for (let step = 0; step < (numTokens < LEAST_WIDE ? 2 : 1); step++) {
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
  const values = await Promise.all([x, y, narrow, alone, logits].map((one) => landed(backend.readTensor(one))))
  for (const slot of rows.keys()) values.push(...(await landed(states.read(slot))))
  program.dispose()
  return { values: values.flatMap((array) => [...array]), tokens }
}

interface TimeMixing {
  readonly ops: Ops
  readonly x: Tensor
  readonly y: Tensor
  readonly mixed: Six
  readonly states: StatePool
  readonly norm: Norm
  vector(seed: number): Tensor
  activation(): Tensor
  matrix(seed: number, type: WeightType): Matrix
}

/** Shift, products and states. */
function mixTime(of: TimeMixing, { architecture, large, plain }: Weights): void {
  const { ops, x, y, mixed, states, norm, vector, activation, matrix } = of
  const outputs = Array.from({ length: 6 }, () => activation()) as Six
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

type Six = [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

/** Numbers between −1 and 1, the same for the same seed. */
function numbers(count: number, seed: number): Float32Array {
  let state = (seed * 2_654_435_761) >>> 0
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 31 - 1
  })
}

/** Rows that a source has; then they come again, as making them takes time. */
const ROWS = 61

/** Outputs are about as large as inputs. */
function source(
  rows: number,
  columns: number,
  seed: number,
  dtype: 'f32' | 'bf16' = 'f32',
  type: WeightType = dtype,
): MatrixSource {
  const values = numbers(ROWS * columns, seed).map((w) => w * Math.sqrt(3 / columns))
  // The upper half of an f32 is a bf16.
  const elements = dtype === 'f32' ? values : Uint16Array.from(new Uint32Array(values.buffer), (bits) => bits >>> 16)
  const plain = { name: `self-test ${seed}`, rows, columns, dtype, readRows: repeated(bytesOf(elements)) }
  if (!isQuantised(type)) return plain
  const rounded = quantiseRows(type, values, columns)
  const [ofValues, ofScales] = [repeated(rounded.values), repeated(rounded.scales)]
  const readRows = (start: number, end: number) => ({ values: ofValues(start, end), scales: ofScales(start, end) })
  return { ...plain, readRows: repeated(bytesOf(decodeRows(type, rounded, columns))), quantised: { type, readRows } }
}

function bytesOf(elements: Float32Array | Uint16Array): Uint8Array {
  return new Uint8Array(elements.buffer, elements.byteOffset, elements.byteLength)
}

function repeated(bytes: Uint8Array): (start: number, end: number) => Uint8Array {
  const size = bytes.length / ROWS
  return (start, end) => {
    const out = new Uint8Array((end - start) * size)
    for (let row = start; row < end; row++) {
      const from = (row % ROWS) * size
      out.set(bytes.subarray(from, from + size), (row - start) * size)
    }
    return out
  }
}
