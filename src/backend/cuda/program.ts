/**
 * Replaying a recording, as a captured graph where there is one for the step (step-graphs.ts), else kernel by kernel.
 * Either way: copies up, kernels, one copy down, and a mark on the stream; nothing waits until the results are asked
 * for. What can be made before the first request is a preparation.
 */
import { assert } from '../../errors.ts'
import type { Ops, Preparation, Program, ProgramFlight, ProgramFlights } from '../backend.ts'
import type { Batch, Capacity } from '../batch.ts'
import type { CudaDevice } from './device/device.ts'
import { CudaEvent } from './device/event.ts'
import { NativeArena } from './driver/arena.ts'
import type { CudaGraph } from './driver/driver.ts'
import { bucketOf, type Gemm } from './gemm/gemm.ts'
import { wayFor } from './ops/fused-layers-plan.ts'
import { Recording } from './ops/recording.ts'
import { waitsOf } from './ops/sample.ts'
import { TakeDraws } from './ops/take-draws.ts'
import { numEntries, StepBuffer, StepOutputs } from './step/buffer.ts'
import { type Command, LONG_ROW, type StepShape, StepStream } from './step/command.ts'
import { type CapturedStep, decodeShape, MAX_GRAPH_ROWS, StepGraphs } from './step-graphs.ts'

/** The next step is launched before the last is looked at; a third would wait for nothing but the second. */
const FLIGHTS = 2

/** Launch sizes of a step that only draws, from kept logits. */
const ONE_ROW = { tokens: 1, rows: 1, singles: 1 }

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
  /** Behind all of the last step but the draws that are made later. */
  readonly #computed: CudaEvent
  /** The last step, while such draws of it are left; it is the only one. */
  #undrawn: { readonly step: CapturedStep | StepStream } | null = null
  readonly #graphs: StepGraphs
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
    this.flights = {
      max,
      feedsDraws: true,
      launch: (batch) => this.#launch(batch),
      drawLater: (batch) => this.#drawLater(batch),
    }
    this.#computed = new CudaEvent(device)
    this.#ends = Array.from({ length: max }, () => new CudaEvent(device))
    this.#outputs = new StepOutputs(device, samples, max)
    this.#takeDraws = samples > 0 ? new TakeDraws(device) : null
    this.#graphs = new StepGraphs(capacity, (...step) => this.#capture(...step))
    this.#recording = new Recording(device, capacity, max, chooseWay)
    this.#commands = this.#recording.commands
    this.#eager = this.#createEager()
    build(this.#recording.ops())
    if (device.isAbsent) this.#nameAll()
  }

  /** Asks for the kernels, or the products, of every size of step, which else are asked for at the first of it. */
  #nameAll(): void {
    const { tokens, rows } = this.#capacity
    this.#recording.prepareFewRows(rows)
    const sizesTo = this.#gemm.isListing ? bucketsTo : roundSizesTo
    for (const size of sizesTo(Math.min(rows, MAX_GRAPH_ROWS))) this.#prepare(decodeShape(size, this.#capacity))
    for (const size of sizesTo(tokens)) this.#plan(Math.min(size, tokens))
  }

  #createEager(entries?: number): Eager {
    const buffer = this.#createBuffer(this.#capacity, entries)
    const arena = new NativeArena()
    return { buffer, arena, stream: new StepStream(this.#device, this.#gemm, buffer, arena) }
  }

  #createBuffer(capacity: Capacity, entries = 0): StepBuffer {
    const outputs = this.#outputs
    const isFetched = this.#takeDraws !== null
    return new StepBuffer(this.#device, capacity, { outputs, entries, flights: this.#ends.length, isFetched })
  }

  stepSize(tokens: number): number {
    return bucketOf(tokens)
  }

  run(batch: Batch): void {
    this.#launch(batch).wait()
  }

  #launch(batch: Batch): ProgramFlight {
    assert(this.#eager !== null, 'a program run after dispose()')
    assert(this.#undrawn === null, 'a step launched before the draws of the last')
    const shape = shapeOf(batch)
    const captured = this.usesGraphs ? this.#graphs.for(batch, shape) : null
    for (const command of this.#commands) command.upload?.(batch)
    const image = this.#numLaunched % this.#ends.length
    let launched: CapturedStep | StepStream
    if (captured !== null) {
      launched = captured
      captured.buffer.upload(batch, shape, image)
      captured.graph.launch()
    } else {
      const { buffer, stream } = this.#eagerFor(batch)
      launched = stream
      buffer.upload(batch, shape, image)
      this.#launchKernels(stream, shape.rows === 0 ? { ...shape, ...ONE_ROW } : shape)
    }
    this.#numLaunched++
    const end = this.#ends[image]!
    const undrawn = batch.numLater > 0 ? { step: launched } : null
    if (undrawn === null) this.#finish(batch)
    else this.#computed.record()
    this.#undrawn = undrawn
    const isUndrawn = () => undrawn !== null && this.#undrawn === undrawn
    const computed = this.#computed
    return {
      get isDone() {
        return !isUndrawn() && end.isOver
      },
      get isComputed() {
        return computed.isOver
      },
      wait: () => {
        assert(!isUndrawn(), 'a step waited for before its draws')
        end.wait()
        this.#outputs.unpack(batch, image)
      },
    }
  }

  #drawLater(batch: Batch): void {
    assert(this.#undrawn !== null, 'draws of a step that has none left')
    const { step } = this.#undrawn
    this.#undrawn = null
    for (const command of this.#commands) command.uploadLater?.(batch)
    if (step instanceof StepStream) this.#launchLater(step, batch.numSamples)
    else {
      step.later ??= this.#captureLater(step)
      step.later.launch()
    }
    this.#finish(batch)
  }

  #launchLater(stream: StepStream, samples: number): void {
    for (const command of this.#commands) command.runLater?.(stream, samples)
  }

  /** The copy of what was drawn, and the mark behind it. */
  #finish(batch: Batch): void {
    this.#outputs.download(batch, this.#lastImage)
    this.#ends[this.#lastImage]!.record()
  }

  get #lastImage(): number {
    return (this.#numLaunched - 1) % this.#ends.length
  }

  #launchKernels(stream: StepStream, shape: StepShape): void {
    this.#takeDraws?.run(stream)
    for (const command of this.#commands) command.run(stream, shape)
  }

  #capture(shape: StepShape, label: string, entries?: number): CapturedStep {
    this.#prepare(shape)
    const buffer = this.#createBuffer(shape, entries)
    // A graph keeps its own copies of the arguments it was captured with.
    const arena = new NativeArena()
    const stream = new StepStream(this.#device, this.#gemm, buffer, arena)
    try {
      const graph = this.#device.capture(() => this.#launchKernels(stream, shape), label)
      return { buffer, graph, later: null }
    } catch (error) {
      buffer.dispose()
      throw error
    } finally {
      arena.dispose()
    }
  }

  #captureLater({ buffer }: CapturedStep): CudaGraph {
    const arena = new NativeArena()
    const stream = new StepStream(this.#device, this.#gemm, buffer, arena)
    const { samples } = buffer.capacity
    try {
      return this.#device.capture(() => this.#launchLater(stream, samples), `${samples} later draws`)
    } finally {
      arena.dispose()
    }
  }

  /** Room for a batch's lists is made when one needs more than any before. Memory in use is waited for. */
  #eagerFor(batch: Batch): Eager {
    const eager = this.#eager!
    if (eager.buffer.holds(batch)) return eager
    // Without room for the next, this one is still whole.
    const larger = this.#createEager(2 * numEntries(batch))
    this.#eager = larger
    eager.buffer.dispose()
    eager.arena.dispose()
    return larger
  }

  /** The graphs of all buckets of rows, and the plans of all buckets of prompt tokens. */
  preparations(): Preparation[] {
    const { tokens, rows } = this.#capacity
    const decode = bucketsTo(Math.min(rows, MAX_GRAPH_ROWS)).map((size) => ({
      rows: Math.min(size, rows),
      run: () => {
        if (this.usesGraphs) this.#graphs.prepareDecode(size)
      },
    }))
    const prompts = bucketsTo(tokens).map((size) => ({ rows: 0, run: () => this.#plan(Math.min(size, tokens)) }))
    return [...decode, ...prompts]
  }

  /** Plans the products of one prompt of `tokens` tokens. */
  #plan(tokens: number): void {
    const longRows = Number(tokens >= LONG_ROW)
    const draws = { logits: 1, samples: 1, waits: 0 }
    const one = { rows: 1, ...draws, singles: Number(tokens === 1), longRows }
    this.#prepare({ tokens, ...one })
  }

  #prepare(shape: StepShape): void {
    for (const command of this.#commands) command.prepare?.(this.#gemm, shape)
  }

  dispose(): void {
    if (this.#eager === null) return
    this.#device.synchronize()
    this.#graphs.dispose()
    this.#eager.buffer.dispose()
    this.#eager.arena.dispose()
    this.#eager = null
    this.#outputs.dispose()
    for (const end of this.#ends) end.dispose()
    this.#computed.dispose()
    this.#recording.dispose()
  }
}

function shapeOf(batch: Batch): StepShape {
  const { numTokens: tokens, numRows: rows, numLogits: logits, numSamples: samples } = batch
  let [singles, longRows, before] = [0, 0, 1]
  for (let b = 0; b < rows; b++) {
    const length = batch.starts[b + 1]! - batch.starts[b]!
    assert(length >= before, 'rows of a step that do not come shortest first')
    before = length
    if (length === 1) singles++
    else if (length >= LONG_ROW) longRows++
  }
  return { tokens, rows, logits, samples, singles, longRows, waits: waitsOf(batch) }
}

/** The buckets that numbers up to `last` fall into. */
function bucketsTo(last: number): number[] {
  const sizes: number[] = []
  for (let n = 1; n <= last; n = sizes.at(-1)! + 1) sizes.push(bucketOf(n))
  return sizes
}

/** Products have plans for each bucket; kernels serve ranges that one of these lies in. */
function roundSizesTo(last: number): number[] {
  const sizes: number[] = []
  for (let n = 1; n <= last; n *= 2) sizes.push(...[n, (5 * n) / 4, (3 * n) / 2].filter(Number.isInteger))
  return sizes.filter((n) => n <= last)
}
