/**
 * The captured steps of a program: of steps whose rows each feed one token one for every size, and of other steps those
 * whose shape, rounded up, has come before. Owns their buffers. Knows nothing of what a step
 * computes, only that padding does nothing.
 */
import { SkeinError } from '../../errors.ts'
import type { Batch, Capacity } from '../batch.ts'
import type { CudaGraph } from './driver/driver.ts'
import { bucketOf } from './gemm/gemm.ts'
import { numEntries, type StepBuffer } from './step/buffer.ts'
import { FEW_TOKENS, isDecode, type StepShape } from './step/command.ts'

/** Decode steps of more rows are launched one kernel at a time: they are long enough not to notice. */
export const MAX_GRAPH_ROWS = 1024
/**
 * Graphs of other steps that are kept, and shapes that came once. To forget a graph waits for the device, so one gives way
 * only to a shape that has come twice since it was used. A server under prompts and answers meets some 200 shapes, 110 of
 * them twice (docs/dev/kernels-log.md 80).
 */
const MAX_SHAPES = 128
const MAX_ONCE = 1024
/** Rows of neither one token nor many that a step is captured for at least. */
const MIN_SHORT_ROWS = 4
/** Numbers of answers beside prompts, and of what is drawn, are rounded up to this from so many on. */
const ANSWERS_GRAIN = 64
const FEW_ANSWERS = 16
/** Rows of steps in which some may have guesses. */
export const MAX_GUESSING_ROWS = 32

export interface CapturedStep {
  readonly buffer: StepBuffer
  readonly graph: CudaGraph
  /** The draws that are made later; null until there were some. */
  later: CudaGraph | null
}

/** Captures a step of this shape, with room for lists of at least `entries` entries. */
export type CaptureStep = (shape: StepShape, label: string, entries?: number) => CapturedStep

export class StepGraphs {
  readonly #capacity: Capacity
  readonly #capture: CaptureStep
  /** By rows. */
  readonly #decode = new Map<number, CapturedStep>()
  /** By shape, the last to come last; and at which step that was. */
  readonly #others = new Map<string, { readonly captured: CapturedStep; readonly at: number }>()
  /** Shapes that came without a graph, the last to come last: at which step. */
  readonly #once = new Map<string, number>()
  #steps = 0
  /** The device is full: a capture found no memory, and none was freed since. */
  #isFull = false

  constructor(capacity: Capacity, capture: CaptureStep) {
    this.#capacity = capacity
    this.#capture = capture
  }

  /** The graph for a batch of that shape, or null where it is launched kernel by kernel. */
  for(batch: Batch, shape: StepShape): CapturedStep | null {
    return isDecode(shape) ? this.#decodeFor(batch) : this.#otherFor(batch, shape)
  }

  /** Makes the graph of a size beforehand; throws where there is no room for it. */
  prepareDecode(size: number): void {
    if (!this.#decode.has(size)) this.#decode.set(size, this.#capture(...this.#decodeStep(size)))
  }

  #decodeFor(batch: Batch): CapturedStep | null {
    const { numTokens, numLogits, numSamples } = batch
    const size = bucketOf(Math.max(1, numTokens, numLogits, numSamples))
    if (size > MAX_GRAPH_ROWS) return null
    const known = this.#decode.get(size)
    if (known?.buffer.holds(batch)) return known
    const entries = (known === undefined ? 1 : 2) * numEntries(batch)
    const captured = this.#captureIfRoom(...this.#decodeStep(size, entries))
    // The one before goes on serving shorter lists.
    if (captured === null) return null
    this.#decode.set(size, captured)
    if (known !== undefined) this.#dispose(known)
    return captured
  }

  #decodeStep(size: number, entries?: number): Parameters<CaptureStep> {
    return [decodeShape(size, this.#capacity), `decode of ${size} rows`, entries]
  }

  /** Longer lists than before make the graph anew. */
  #otherFor(batch: Batch, shape: StepShape): CapturedStep | null {
    const padded = paddedShape(shape, this.#capacity)
    const { tokens, rows, logits, samples, singles, longRows, waits } = padded
    const key = [tokens, rows, logits, samples, singles, longRows, waits].join()
    const at = ++this.#steps
    const known = this.#others.get(key)?.captured
    this.#others.delete(key)
    if (known?.buffer.holds(batch)) {
      this.#others.set(key, { captured: known, at })
      return known
    }
    if (known !== undefined) this.#dispose(known)
    else if (!this.#makeRoomFor(key, at)) return null
    const label = `step of ${tokens} tokens in ${rows} rows`
    const captured = this.#captureIfRoom(padded, label, 2 * numEntries(batch))
    if (captured !== null) this.#others.set(key, { captured, at })
    return captured
  }

  /** The first of a shape is not captured: most never come again. Where it must, the oldest graph gives way to what came twice since. */
  #makeRoomFor(key: string, at: number): boolean {
    const before = this.#once.get(key)
    this.#once.delete(key)
    const [oldest] = this.#others
    const mustForget = this.#isFull || this.#others.size >= MAX_SHAPES
    if (before !== undefined && (!mustForget || (oldest !== undefined && oldest[1].at < before))) {
      if (mustForget) {
        this.#others.delete(oldest![0])
        this.#dispose(oldest![1].captured)
      }
      return true
    }
    this.#once.set(key, at)
    const [first] = this.#once.keys()
    if (this.#once.size > MAX_ONCE) this.#once.delete(first!)
    return false
  }

  /** Without room for one more, steps go on kernel by kernel. */
  #captureIfRoom(...step: Parameters<CaptureStep>): CapturedStep | null {
    if (this.#isFull) return null
    try {
      return this.#capture(...step)
    } catch (error) {
      this.#isFull = error instanceof SkeinError && error.code === 'out_of_memory'
      if (this.#isFull) return null
      throw error
    }
  }

  /** The buffer first: giving its memory back waits for a replay that is on its way. */
  #dispose({ graph, buffer, later }: CapturedStep): void {
    buffer.dispose()
    graph.dispose()
    later?.dispose()
    this.#isFull = false
  }

  dispose(): void {
    const others = [...this.#others.values()].map(({ captured }) => captured)
    for (const captured of [...this.#decode.values(), ...others]) this.#dispose(captured)
    this.#decode.clear()
    this.#others.clear()
  }
}

export function decodeShape(size: number, { tokens, rows, logits, samples }: Capacity): StepShape {
  const numRows = Math.min(size, rows)
  return {
    ...{ tokens: Math.min(size, tokens), rows: numRows, singles: numRows, longRows: 0 },
    ...{ logits: Math.min(size, logits), samples: Math.min(size, samples), waits: 0 },
  }
}

/**
 * A shape that stands for all that are rounded up to it; none of something stays none. Its rows may be more than the
 * capacity has: those of each kind are rounded up apart. A few rows of few tokens are as good as one.
 */
export function paddedShape(shape: StepShape, capacity: Capacity): StepShape {
  const numShort = shape.rows - shape.singles - shape.longRows
  const isFew = shape.longRows === 0 && shape.rows <= MAX_GUESSING_ROWS
  if (isFew && numShort > 0) return shapeOfFew(shape, numShort, capacity)
  const [singles, longRows] = [manyOf(shape.singles), powerOf(shape.longRows)]
  const shortRows = numShort === 0 ? 0 : bucketOf(Math.max(numShort, MIN_SHORT_ROWS))
  return {
    tokens: Math.min(bucketOf(shape.tokens), capacity.tokens),
    rows: singles + shortRows + longRows,
    ...{ singles, longRows },
    logits: Math.min(manyOf(shape.logits), capacity.logits),
    samples: Math.min(manyOf(shape.samples), capacity.samples),
    waits: Math.min(manyOf(shape.waits), capacity.samples),
  }
}

function powerOf(n: number): number {
  return n === 0 ? 0 : 2 ** Math.ceil(Math.log2(n))
}

/** Answers come and go with every step, and one more or less of them is not to be another shape. Few stay as they would be alone. */
function manyOf(n: number): number {
  if (n <= FEW_ANSWERS) return n === 0 ? 0 : bucketOf(n)
  return ANSWERS_GRAIN * Math.ceil(n / ANSWERS_GRAIN)
}

/**
 * How many answers have guesses or feed tokens again, and how many, changes with every step, and to capture a shape takes as
 * long as several steps. So their shapes are few: half or all of the rows of each kind, and with guesses tokens by powers of
 * two, as their costs are known.
 */
function shapeOfFew(shape: StepShape, numShort: number, capacity: Capacity): StepShape {
  const { logits, samples, waits } = shape
  const all = bucketOf(Math.max(shape.rows, MIN_SHORT_ROWS))
  const part = (n: number) => (n === 0 || n > all / 2 ? Math.min(n, 1) * all : Math.ceil(all / 2))
  const [singles, shortRows] = [part(shape.singles), part(numShort)]
  const hasGuesses = samples > shape.rows
  const rounded = hasGuesses ? powerOf(shape.tokens) : bucketOf(shape.tokens)
  const tokens = Math.min(rounded, capacity.tokens)
  const padded = (n: number) => {
    if (n === 0) return 0
    return Math.max(bucketOf(n), n <= FEW_TOKENS ? 0 : n <= all ? all : tokens)
  }
  return {
    ...{ tokens, rows: singles + shortRows, singles, longRows: 0 },
    logits: Math.min(padded(logits), capacity.logits),
    samples: Math.min(padded(samples), capacity.samples),
    waits: waits === 0 ? 0 : Math.min(bucketOf(waits), capacity.samples),
  }
}
