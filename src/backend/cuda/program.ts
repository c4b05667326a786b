/**
 * Replaying a recording. A step whose rows each feed one token is a captured graph for the next larger bucket of rows;
 * every other step launches its kernels one by one. Either way: one copy up, one down, one wait. Graphs are captured
 * when a bucket is first needed. Several steps are on their way at once where the capacity asks for that.
 */
import { assert } from '../../errors.ts'
import type { Batch, Capacity, Ops, Program, ProgramFlight, ProgramFlights } from '../backend.ts'
import { NativeArena } from './arena.ts'
import { type Command, type StepShape, StepStream } from './command.ts'
import type { CudaDevice } from './device.ts'
import { CudaEvent } from './event.ts'
import { bucketOf, type Gemm } from './gemm.ts'
import type { CudaGraph } from './graph.ts'
import { Recording } from './ops.ts'
import { StepBuffer } from './step-buffer.ts'

/** Decode steps of more rows are launched one kernel at a time: they are long enough not to notice. */
const MAX_GRAPH_ROWS = 1024

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
  readonly flights?: ProgramFlights
  readonly #device: CudaDevice
  readonly #gemm: Gemm
  readonly #capacity: Capacity
  readonly #recording: Recording
  readonly #commands: readonly Command[]
  readonly #graphs = new Map<number, Captured>()
  readonly #usesGraphs: boolean
  /** Recorded behind each step, in turn. */
  readonly #ends: readonly CudaEvent[]
  #numLaunched = 0
  #eager: Eager | null
  /** Grown out of; steps on their way may still use them. */
  readonly #outgrown: Eager[] = []

  constructor(
    device: CudaDevice,
    gemm: Gemm,
    capacity: Capacity,
    build: (ops: Ops) => void,
    usesGraphs: boolean,
  ) {
    this.#device = device
    this.#gemm = gemm
    this.#capacity = capacity
    this.#usesGraphs = usesGraphs
    const { flights: max = 1 } = capacity
    this.#ends = Array.from({ length: max }, () => new CudaEvent(device))
    if (max > 1) this.flights = { max, feedsDraws: false, launch: (batch) => this.#launch(batch) }
    this.#recording = new Recording(device, capacity)
    this.#commands = this.#recording.commands
    this.#eager = this.#createEager()
    build(this.#recording.ops())
  }

  #createEager(maxBiases?: number): Eager {
    const buffer = new StepBuffer(this.#device, this.#capacity, maxBiases, this.#ends.length)
    const arena = new NativeArena()
    return { buffer, arena, stream: new StepStream(this.#device, this.#gemm, buffer, arena) }
  }

  run(batch: Batch): void {
    this.#launch(batch).wait()
  }

  #launch(batch: Batch): ProgramFlight {
    assert(this.#eager !== null, 'a program run after dispose()')
    const isDecode = batch.numTokens === batch.numRows
    const captured = isDecode && this.#usesGraphs ? this.#captured(batch) : null
    const buffer = captured?.buffer ?? this.#eagerFor(batch).buffer
    const image = buffer.upload(batch)
    if (captured !== null) captured.graph.launch()
    else this.#launchEach(batch, isDecode)
    buffer.download(batch, image)
    const end = this.#ends[this.#numLaunched++ % this.#ends.length]!
    end.record()
    return {
      get isDone() {
        return end.isOver
      },
      wait() {
        end.wait()
        buffer.unpack(batch, image)
      },
    }
  }

  #launchEach(batch: Batch, isDecode: boolean): void {
    const shape: StepShape = {
      tokens: batch.numTokens,
      rows: batch.numRows,
      logits: batch.numLogits,
      samples: batch.numSamples,
      isDecode,
    }
    for (const command of this.#commands) command.run(this.#eager!.stream, shape)
  }

  /** The graph of the batch's bucket, or null where it does not fit one. */
  #captured(batch: Batch): Captured | null {
    const { numTokens, numLogits, numSamples } = batch
    const size = bucketOf(Math.max(1, numTokens, numLogits, numSamples))
    if (size > MAX_GRAPH_ROWS || batch.biasStarts[numSamples]! > 0) return null
    const captured = this.#graphs.get(size) ?? this.#capture(size)
    return captured.buffer.holds(batch) ? captured : null
  }

  #capture(size: number): Captured {
    const { tokens, rows, logits, samples } = this.#capacity
    const capacity = {
      tokens: Math.min(size, tokens),
      rows: Math.min(size, rows),
      logits: Math.min(size, logits),
      samples: Math.min(size, samples),
    }
    const shape: StepShape = { ...capacity, isDecode: true }
    for (const command of this.#commands) command.prepare?.(this.#gemm, shape)
    const buffer = new StepBuffer(this.#device, capacity, 1, this.#ends.length)
    // A graph keeps its own copies of the arguments it was captured with.
    const arena = new NativeArena()
    const stream = new StepStream(this.#device, this.#gemm, buffer, arena)
    const graph = this.#device.capture(() => {
      for (const command of this.#commands) command.run(stream, shape)
    }, `decode of ${size} rows`)
    arena.dispose()
    const captured = { buffer, graph }
    this.#graphs.set(size, captured)
    return captured
  }

  /** Room for a batch's biases is made when one needs more than any before. */
  #eagerFor(batch: Batch): Eager {
    const eager = this.#eager!
    const numBiases = batch.biasStarts[batch.numSamples]!
    if (numBiases <= eager.buffer.maxBiases) return eager
    this.#outgrown.push(eager)
    this.#eager = this.#createEager(2 * numBiases)
    return this.#eager
  }

  dispose(): void {
    if (this.#eager === null) return
    this.#device.synchronize()
    for (const { graph, buffer } of this.#graphs.values()) {
      graph.dispose()
      buffer.dispose()
    }
    this.#graphs.clear()
    for (const { buffer, arena } of [this.#eager, ...this.#outgrown]) {
      buffer.dispose()
      arena.dispose()
    }
    this.#eager = null
    for (const end of this.#ends) end.dispose()
    this.#recording.dispose()
  }
}
