/**
 * Replaying a recording. A step whose rows each feed one token is a captured graph for the next larger bucket of rows;
 * every other step launches its kernels one by one. Either way: copies up, kernels, one copy down, and a mark on the
 * stream; nothing waits until the results are asked for. What can be made before the first request is a preparation.
 */
import { assert } from '../../errors.ts'
import type {
  Batch,
  Capacity,
  Ops,
  Preparation,
  Program,
  ProgramFlight,
  ProgramFlights,
} from '../backend.ts'
import { NativeArena } from './arena.ts'
import { type Command, LONG_ROW, type StepShape, StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import { CudaEvent } from './event.ts'
import { bucketOf, type Gemm } from './gemm.ts'
import type { CudaGraph } from './graph.ts'
import { wayFor } from './one-row-plan.ts'
import { Recording } from './ops.ts'
import { TakeDraws } from './ops-take-draws.ts'
import { numEntries, StepBuffer } from './step-buffer.ts'
import { StepOutputs } from './step-outputs.ts'

/** Decode steps of more rows are launched one kernel at a time: they are long enough not to notice. */
const MAX_GRAPH_ROWS = 1024
/** The next step is launched before the last is looked at; a third would wait for nothing but the second. */
const FLIGHTS = 2

interface Captured {
  readonly buffer: StepBuffer
  readonly graph: CudaGraph
}

/** Launches outside graphs, with room for the whole capacity. */
interface Eager {
  readonly buffer: StepBuffer
  readonly stream: StepStream
  readonly arena: NativeArena
}

export class CudaProgram implements Program {
  readonly flights: ProgramFlights
  usesGraphs: boolean
  readonly #device: CudaDevice
  readonly #gemm: Gemm
  readonly #capacity: Capacity
  readonly #recording: Recording
  readonly #commands: readonly Command[]
  /** Null where nothing is drawn. */
  readonly #takeDraws: TakeDraws | null
  readonly #outputs: StepOutputs
  /** Recorded behind each step, in turn. */
  readonly #ends: readonly CudaEvent[]
  readonly #graphs = new Map<number, Captured>()
  #numLaunched = 0
  #eager: Eager | null

  constructor(
    device: CudaDevice,
    gemm: Gemm,
    capacity: Capacity,
    build: (ops: Ops) => void,
    usesGraphs: boolean,
    chooseWay = wayFor,
  ) {
    const { samples, flights: max = FLIGHTS } = capacity
    this.#device = device
    this.#gemm = gemm
    this.#capacity = capacity
    this.usesGraphs = usesGraphs
    this.flights = { max, feedsDraws: true, launch: (batch) => this.#launch(batch) }
    this.#ends = Array.from({ length: max }, () => new CudaEvent(device))
    this.#outputs = new StepOutputs(device, samples, max)
    this.#takeDraws = samples > 0 ? new TakeDraws(device) : null
    this.#recording = new Recording(device, capacity, chooseWay)
    this.#commands = this.#recording.commands
    this.#eager = this.#createEager()
    build(this.#recording.ops())
  }

  #createEager(entries?: number): Eager {
    const buffer = this.#createBuffer(this.#capacity, entries)
    const arena = new NativeArena()
    return { buffer, arena, stream: new StepStream(this.#device, this.#gemm, buffer, arena) }
  }

  #createBuffer(capacity: Capacity, entries = 0): StepBuffer {
    const outputs = this.#outputs
    return new StepBuffer(this.#device, capacity, { outputs, entries, flights: this.#ends.length })
  }

  run(batch: Batch): void {
    this.#launch(batch).wait()
  }

  #launch(batch: Batch): ProgramFlight {
    assert(this.#eager !== null, 'a program run after dispose()')
    const isDecode = batch.numTokens === batch.numRows
    const captured = isDecode && this.usesGraphs ? this.#captured(batch) : null
    if (captured !== null) {
      captured.buffer.upload(batch)
      captured.graph.launch()
    } else {
      const { buffer, stream } = this.#eagerFor(batch)
      buffer.upload(batch)
      this.#launchKernels(stream, shapeOf(batch, isDecode))
    }
    const image = this.#numLaunched++ % this.#ends.length
    const end = this.#ends[image]!
    this.#outputs.download(batch, image)
    end.record()
    return {
      get isDone() {
        return end.isOver
      },
      wait: () => {
        end.wait()
        this.#outputs.unpack(batch, image)
      },
    }
  }

  #launchKernels(stream: StepStream, shape: StepShape): void {
    this.#takeDraws?.run(stream)
    for (const command of this.#commands) command.run(stream, shape)
  }

  /** The graph of the batch's bucket, or null where there is none so large. Longer lists than before make it anew. */
  #captured(batch: Batch): Captured | null {
    const { numTokens, numLogits, numSamples } = batch
    const size = bucketOf(Math.max(1, numTokens, numLogits, numSamples))
    if (size > MAX_GRAPH_ROWS) return null
    const captured = this.#graphs.get(size)
    if (captured === undefined) return this.#capture(size, numEntries(batch))
    if (captured.buffer.holds(batch)) return captured
    captured.graph.dispose()
    captured.buffer.dispose()
    return this.#capture(size, 2 * numEntries(batch))
  }

  #capture(size: number, entries?: number): Captured {
    const capacity = this.#capacityOf(size)
    const shape: StepShape = { ...capacity, isDecode: true, longRows: 0 }
    for (const command of this.#commands) command.prepare?.(this.#gemm, shape)
    const buffer = this.#createBuffer(capacity, entries)
    // A graph keeps its own copies of the arguments it was captured with.
    const arena = new NativeArena()
    const stream = new StepStream(this.#device, this.#gemm, buffer, arena)
    const record = () => this.#launchKernels(stream, shape)
    const graph = this.#device.capture(record, `decode of ${size} rows`)
    arena.dispose()
    const captured = { buffer, graph }
    this.#graphs.set(size, captured)
    return captured
  }

  #capacityOf(size: number): Capacity {
    const { tokens, rows, logits, samples } = this.#capacity
    return {
      tokens: Math.min(size, tokens),
      rows: Math.min(size, rows),
      logits: Math.min(size, logits),
      samples: Math.min(size, samples),
    }
  }

  /** Room for a batch's lists is made when one needs more than any before. Memory in use is waited for. */
  #eagerFor(batch: Batch): Eager {
    const eager = this.#eager!
    if (eager.buffer.holds(batch)) return eager
    eager.buffer.dispose()
    eager.arena.dispose()
    this.#eager = this.#createEager(2 * numEntries(batch))
    return this.#eager
  }

  /** The graphs of all buckets of rows, and the plans of all buckets of prompt tokens. */
  preparations(): Preparation[] {
    const { tokens, rows } = this.#capacity
    const decode = bucketsTo(Math.min(rows, MAX_GRAPH_ROWS)).map((size) => ({
      rows: Math.min(size, rows),
      run: () => {
        if (this.usesGraphs && !this.#graphs.has(size)) this.#capture(size)
      },
    }))
    const prompts = bucketsTo(tokens).map((size) => ({
      rows: 0,
      run: () => this.#plan(Math.min(size, tokens)),
    }))
    return [...decode, ...prompts]
  }

  /** Products of one prompt of so many tokens. */
  #plan(tokens: number): void {
    const longRows = Number(tokens >= LONG_ROW)
    const one = { rows: 1, logits: 1, samples: 1, isDecode: false, longRows }
    for (const command of this.#commands) command.prepare?.(this.#gemm, { tokens, ...one })
  }

  dispose(): void {
    if (this.#eager === null) return
    this.#device.synchronize()
    for (const { graph, buffer } of this.#graphs.values()) {
      graph.dispose()
      buffer.dispose()
    }
    this.#graphs.clear()
    this.#eager.buffer.dispose()
    this.#eager.arena.dispose()
    this.#eager = null
    this.#outputs.dispose()
    for (const end of this.#ends) end.dispose()
    this.#recording.dispose()
  }
}

function shapeOf(batch: Batch, isDecode: boolean): StepShape {
  const { numTokens: tokens, numRows: rows, numLogits: logits, numSamples: samples } = batch
  let longRows = 0
  for (let b = 0; b < rows; b++) if (batch.starts[b + 1]! - batch.starts[b]! >= LONG_ROW) longRows++
  return { tokens, rows, logits, samples, isDecode, longRows }
}

/** The buckets that numbers up to `last` fall into. */
function bucketsTo(last: number): number[] {
  const sizes: number[] = []
  for (let n = 1; n <= last; n = sizes.at(-1)! + 1) sizes.push(bucketOf(n))
  return sizes
}
