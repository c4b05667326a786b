/**
 * Replaying a recording: the batch up, one pass of all its launches (of a prompt two), the draws down. Nothing waits; a flight is
 * over when its draws can be read. Knows no ops.
 */
/// <reference types="@webgpu/types" />
import { assert } from '../../errors.ts'
import type { Ops, Preparation, Program, ProgramFlights } from '../backend.ts'
import { type Batch, type Capacity, MAX_TOP_LOGPROBS } from '../batch.ts'
import { type Flight, flightOf } from '../flight.ts'
import { USAGE, type WebgpuDevice } from './device.ts'
import type { Launch, Planned, StepShape } from './launch.ts'
import { LEAST_WIDE } from './products/forms.ts'
import { COMMON } from './recorder.ts'
import { OUTPUT_WORDS, Recording } from './recording.ts'
import type { Kernel } from './source.ts'
import { StepBuffer } from './step-buffer.ts'

/** Launches of a prompt's step after which the device begins with them, while the host records the rest. */
const FIRST_LAUNCHES = 24
/** The next step is launched before the last is looked at. */
const FLIGHTS = 2
/** Numbers of tokens that may have kernels of their own: all up to a matrix, then its multiples, then powers of two. */
const MATRIX = 8
const MOST_APART = 128
/** Scores and the like that are read at once, without a buffer to make. */
const READS_AT_ONCE = 8
/** Sizes of steps whose plans are kept. */
const MOST_PLANS = 64

/** What a step runs, in order. */
type Plan = readonly (readonly [Launch, Planned])[]

export class WebgpuProgram implements Program {
  readonly flights: ProgramFlights
  readonly #capacity: Capacity
  readonly #device: WebgpuDevice
  readonly #recording: Recording
  readonly #step: StepBuffer
  /** Where each flight's draws come down, in turn. */
  readonly #images: readonly GPUBuffer[]
  readonly #takeDraws: Kernel
  /** By the sizes of the step. */
  readonly #plans = new Map<number, Plan>()
  #common: {
    readonly key: string
    readonly kernels: GPUBindGroup
    readonly draws: GPUBindGroup
  } | null = null
  #numLaunched = 0
  #isDisposed = false

  constructor(device: WebgpuDevice, capacity: Capacity, build: (ops: Ops) => void) {
    const { samples, flights = FLIGHTS } = capacity
    this.#capacity = capacity
    this.#device = device
    this.#recording = new Recording(device, capacity)
    build(this.#recording.ops())
    this.#recording.finish()
    // Rows of the host's tables are looked up by tokens that the host knows: the next step waits for what this one draws.
    const isFed = this.#recording.hostRows.length === 0
    const max = isFed ? flights : 1
    this.#step = new StepBuffer(device, capacity)
    this.#images = Array.from({ length: max }, () =>
      device.buffer(4 * OUTPUT_WORDS * Math.max(1, samples), USAGE.mapRead | USAGE.copyDst),
    )
    device.reserveStaging(0, READS_AT_ONCE)
    this.#takeDraws = device.kernel('take-draws', [COMMON])
    this.flights = { max, feedsDraws: isFed, launch: (batch) => this.#launch(batch) }
  }

  /** Decode steps and prompts, of sizes that together have every kernel. */
  #steps(): StepShape[] {
    const { tokens, rows, logits, samples } = this.#capacity
    const of = (numTokens: number, numRows: number): StepShape => ({
      ...{ numTokens, numRows },
      numLogits: Math.min(numTokens, logits),
      numSamples: Math.min(numTokens, samples),
    })
    return [...sizesTo(rows).map((size) => of(size, size)), ...sizesTo(tokens).map((size) => of(size, 1))]
  }

  #kernelsOf(steps: readonly StepShape[]): Set<Kernel> {
    return new Set([this.#takeDraws, ...steps.flatMap((step) => this.#planOf(step).map(([, { kernel }]) => kernel))])
  }

  async compile(step?: StepShape): Promise<void> {
    // SwiftShader compiles one at a time, and asking whether it has done so takes a core from it.
    if (this.#device.isSoftware) return
    const kernels = this.#kernelsOf(step === undefined ? this.#steps() : [step])
    await Promise.all([...kernels].map((kernel) => kernel.compile()))
  }

  /** A kernel that a step is the first to need holds that step and all behind it. */
  preparations(): Preparation[] {
    return this.#steps().map((step) => ({
      rows: step.numRows === step.numTokens ? step.numRows : 0,
      run: () => {
        for (const { pipeline } of this.#kernelsOf([step])) assert(pipeline, 'a kernel')
      },
    }))
  }

  #planOf(step: StepShape): Plan {
    const { rows, logits, samples } = this.#capacity
    const key =
      ((step.numTokens * (rows + 1) + step.numRows) * (logits + 1) + step.numLogits) * (samples + 1) + step.numSamples
    let plan = this.#plans.get(key)
    if (plan === undefined) {
      plan = this.#recording.launches.flatMap((launch) => {
        const planned = launch.plan(step)
        return planned === null ? [] : [[launch, planned] as const]
      })
      if (this.#plans.size >= MOST_PLANS) this.#plans.clear()
      this.#plans.set(key, plan)
    }
    return plan
  }

  run(): void {
    assert(false, 'a webgpu program cannot be waited for: launch it and look again later')
  }

  #launch(batch: Batch) {
    assert(!this.#isDisposed, 'a program run after dispose()')
    const { outputs, limits, hostRows } = this.#recording
    this.#step.upload(batch, limits)
    const tokens = batch.tokens.subarray(0, batch.numTokens)
    for (const { table, buffer } of hostRows) this.#device.write(buffer, 0, table.copyRows(tokens))
    const { kernels, draws } = this.#bindings()
    let pass = this.#device.encoder.beginComputePass()
    if (feedsDraws(batch)) {
      pass.setPipeline(this.#takeDraws.pipeline)
      pass.setBindGroup(0, draws)
      pass.dispatchWorkgroups(1)
    }
    pass.setBindGroup(0, kernels)
    let last: Kernel | null = null
    let kept: GPUBindGroup | undefined
    let left = batch.numTokens < LEAST_WIDE ? Number.POSITIVE_INFINITY : FIRST_LAUNCHES
    for (const [{ bindings }, { kernel, x, y, kept: keptIn }] of this.#planOf(batch)) {
      if (left-- === 0) {
        pass.end()
        this.#device.flush()
        pass = this.#device.encoder.beginComputePass()
        pass.setBindGroup(0, kernels)
        last = null
        kept = undefined
      }
      if (kernel !== last) pass.setPipeline(kernel.pipeline)
      last = kernel
      pass.setBindGroup(1, bindings)
      if (keptIn && keptIn !== kept) pass.setBindGroup(2, keptIn)
      kept = keptIn ?? kept
      pass.dispatchWorkgroups(x, y)
    }
    pass.end()
    const image = this.#images[this.#numLaunched++ % this.#images.length]!
    const bytes = 4 * OUTPUT_WORDS * Math.max(1, batch.numSamples)
    this.#device.encoder.copyBufferToBuffer(outputs, 0, image, 0, bytes)
    this.#device.flush()
    const { numSamples } = batch
    const landing: Flight<ArrayBuffer> = flightOf(this.#device.mapped(image, bytes))
    return {
      ...(landing.landing && { landing: landing.landing }),
      get isDone() {
        return landing.isDone
      },
      wait: () => unpack(batch, numSamples, landing.result()),
    }
  }

  /** What all kernels are bound to; made anew when a buffer was replaced by a larger one. */
  #bindings() {
    const key = `${this.#device.arenaMoves}/${this.#step.moves}`
    if (this.#common?.key !== key) {
      const { buffer } = this.#step
      this.#common = {
        key,
        kernels: this.#device.bindGroup(COMMON, [this.#device.arena, buffer]),
        draws: this.#device.bindGroup(COMMON, [buffer, this.#recording.outputs]),
      }
    }
    return this.#common
  }

  dispose(): void {
    if (this.#isDisposed) return
    this.#isDisposed = true
    this.#recording.dispose()
    this.#step.dispose()
    for (const image of this.#images) this.#device.free(image)
  }
}

function sizesTo(most: number): number[] {
  return Array.from({ length: most }, (_, i) => i + 1).filter(
    (size) =>
      size <= MATRIX || (size <= MOST_APART ? size % MATRIX === 0 : Number.isInteger(Math.log2(size))) || size === most,
  )
}

function feedsDraws({ numRows, starts, tokens }: Batch): boolean {
  for (let b = 0; b < numRows; b++) if (tokens[starts[b]!]! < 0) return true
  return false
}

function unpack(batch: Batch, count: number, buffer: ArrayBuffer): void {
  const ints = new Int32Array(buffer)
  const floats = new Float32Array(buffer)
  for (let s = 0; s < count; s++) {
    const at = s * OUTPUT_WORDS
    const top = at + 2
    batch.sampled[s] = ints[at]!
    batch.sampledLogprob[s] = floats[at + 1]!
    const end = top + MAX_TOP_LOGPROBS
    batch.topIds.set(ints.subarray(top, end), s * MAX_TOP_LOGPROBS)
    batch.topLogprobs.set(floats.subarray(end, end + MAX_TOP_LOGPROBS), s * MAX_TOP_LOGPROBS)
  }
}
