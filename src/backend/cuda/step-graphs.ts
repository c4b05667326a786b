/**
 * The captured steps of a program: of steps whose rows each feed one token one for every bucket of rows, and of other
 * steps those whose shape, rounded up to buckets, has come before. Owns their buffers. Knows nothing of what a step
 * computes, only that padding does nothing.
 */
import { SkeinError } from '../../errors.ts'
import type { Batch, Capacity } from '../backend.ts'
import type { StepShape } from './command.ts'
import { bucketOf } from './gemm.ts'
import type { CudaGraph } from './graph.ts'
import { numEntries, type StepBuffer } from './step-buffer.ts'

/** Decode steps of more rows are launched one kernel at a time: they are long enough not to notice. */
export const MAX_GRAPH_ROWS = 1024
/** Shapes of other steps that are remembered, the last to come. */
const MAX_SHAPES = 32

export interface CapturedStep {
  readonly buffer: StepBuffer
  readonly graph: CudaGraph
}

/** Captures a step of this shape, with room for lists of so many entries at least. */
export type CaptureStep = (shape: StepShape, label: string, entries?: number) => CapturedStep

export class StepGraphs {
  readonly #capacity: Capacity
  readonly #capture: CaptureStep
  /** By rows. */
  readonly #decode = new Map<number, CapturedStep>()
  /** By shape, the last to come last; null: it came once. */
  readonly #others = new Map<string, CapturedStep | null>()
  /** Of the device: one capture found no memory, and none was given back since. */
  #isFull = false

  constructor(capacity: Capacity, capture: CaptureStep) {
    this.#capacity = capacity
    this.#capture = capture
  }

  /** The graph for a batch of that shape, or null where it is launched kernel by kernel. */
  for(batch: Batch, shape: StepShape): CapturedStep | null {
    return shape.isDecode ? this.#decodeFor(batch) : this.#otherFor(batch, shape)
  }

  /** Makes the graph of a bucket of rows beforehand; throws where there is no room for it. */
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
    const shape = { ...cappedShape(size, this.#capacity), isDecode: true, longRows: 0 }
    return [shape, `decode of ${size} rows`, entries]
  }

  /** The first of a shape is not captured: most never come again. Longer lists than before make the graph anew. */
  #otherFor(batch: Batch, shape: StepShape): CapturedStep | null {
    const padded = paddedShape(shape, this.#capacity)
    const { tokens, rows, logits, samples, longRows } = padded
    const key = [tokens, rows, logits, samples, longRows].join()
    const known = this.#others.get(key)
    this.#others.delete(key)
    if (known === undefined) {
      this.#others.set(key, null)
      this.#forgetOldest()
      return null
    }
    if (known?.buffer.holds(batch)) {
      this.#others.set(key, known)
      return known
    }
    if (known !== null) this.#dispose(known)
    const label = `step of ${tokens} tokens in ${rows} rows`
    const captured = this.#captureIfRoom(padded, label, 2 * numEntries(batch))
    if (captured !== null) this.#others.set(key, captured)
    return captured
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

  #forgetOldest(): void {
    const [oldest] = this.#others
    if (this.#others.size <= MAX_SHAPES || oldest === undefined) return
    const [key, captured] = oldest
    this.#others.delete(key)
    if (captured !== null) this.#dispose(captured)
  }

  /** The buffer first: giving its memory back waits for a replay that is on its way. */
  #dispose({ graph, buffer }: CapturedStep): void {
    buffer.dispose()
    graph.dispose()
    this.#isFull = false
  }

  dispose(): void {
    for (const captured of [...this.#decode.values(), ...this.#others.values()])
      if (captured !== null) this.#dispose(captured)
    this.#decode.clear()
    this.#others.clear()
  }
}

function cappedShape(size: number, { tokens, rows, logits, samples }: Capacity) {
  const [numTokens, numRows] = [Math.min(size, tokens), Math.min(size, rows)]
  return {
    ...{ tokens: numTokens, rows: numRows },
    ...{ logits: Math.min(size, logits), samples: Math.min(size, samples) },
  }
}

/** A shape that stands for all of its buckets. What a step has none of it has none of, rows that are not long included. */
export function paddedShape(shape: StepShape, capacity: Capacity): StepShape {
  const padded = (of: keyof Capacity & keyof StepShape) =>
    shape[of] === 0 ? 0 : Math.min(bucketOf(shape[of]), capacity[of])
  const rows = padded('rows')
  const shortRows = Number(shape.rows > shape.longRows)
  const longRows = shape.longRows === 0 ? 0 : Math.min(bucketOf(shape.longRows), rows - shortRows)
  return {
    ...{ tokens: padded('tokens'), rows, logits: padded('logits'), samples: padded('samples') },
    ...{ isDecode: false, longRows },
  }
}
