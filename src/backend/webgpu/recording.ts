/**
 * What a program records: each op, checked against its shapes once, as launches whose pipelines, parameters and bindings
 * are made here and replayed for every step. Only how many workgroups run depends on the step. Knows no queue.
 */
/// <reference types="@webgpu/types" />
import { assert } from '../../errors.ts'
import type {
  DeepEmbedWeights,
  Norm,
  Ops,
  PenaltyPool,
  StatePool,
  Table,
  Tensor,
  Wkv6Operands,
  Wkv6Weights,
  Wkv7Operands,
  Wkv7Weights,
} from '../backend.ts'
import type { Capacity } from '../batch.ts'
import { type Access, type KernelVariant, USAGE, type WebgpuDevice } from './device.ts'
import {
  eight,
  Halves,
  hasPrompts,
  type Launch,
  type Recorder,
  SCAN_ROWS,
  type StepShape,
  scanConstants,
  statesVariant,
  type Word,
  wkvWords,
} from './launch.ts'
import { recordLinear } from './linear.ts'
import { tensorOf, WebgpuHostTable, WebgpuTable } from './resources.ts'
import { WebgpuPenaltyPool, WebgpuStatePool } from './states.ts'
import type { StepLimits } from './step-buffer.ts'

/** Of every kernel: the arena and the step. */
export const COMMON: readonly Access[] = ['write', 'read']
const PARAMS: Access = 'uniform'
/** Bind groups name ranges of the buffer of parameters; they begin at multiples of this. */
const PARAMS_UNIT = 256
const FIRST_PARAMS_BYTES = 1 << 16
/** Words of a sample's outputs: token, its log-probability, the best ids, theirs. */
export const OUTPUT_WORDS = 42

/** Steps of fewer have several workgroups for a token's channels. */
const FEW_TOKENS = 64

/** DTYPE of embed.wgsl and deep-embed.wgsl. */
const DTYPES = { f32: 0, f16: 1, bf16: 2 } as const

/** READS of draw.wgsl: lines are written out as often, and a processor compiles each. */
const SAMPLE_READS = 8
const SAMPLE_READS_IN_SOFTWARE = 2
/** BINS, and the words before the bests in draw.wgsl. */
const BINS = 512
const BIN_WORDS = 5 * BINS + 1
/** Shared memory of sample.wgsl. */
const SAMPLE_SHARED = 16 + 4 * BIN_WORDS
const SAMPLE_SHARED_A_THREAD = 32

export class Recording implements Recorder {
  readonly launches: Launch[] = []
  readonly device: WebgpuDevice
  readonly capacity: Capacity
  /** What was drawn. u32 [samples, OUTPUT_WORDS] */
  readonly outputs: GPUBuffer
  readonly halves: Halves
  /** Tables of the host, and where the rows of a step's tokens are put before it. */
  readonly hostRows: { readonly table: WebgpuHostTable; readonly buffer: GPUBuffer }[] = []
  #params: GPUBuffer
  #paramsEnd = 0
  readonly #own: GPUBuffer[] = []
  #scratchStart: number | undefined
  #slots = Number.POSITIVE_INFINITY
  #vocabulary = Number.POSITIVE_INFINITY
  #penaltySlots = Number.POSITIVE_INFINITY
  #logitVocabulary = Number.POSITIVE_INFINITY

  constructor(device: WebgpuDevice, capacity: Capacity) {
    this.device = device
    this.capacity = capacity
    this.halves = new Halves(device)
    this.#params = this.#createParams()
    const usage = USAGE.storage | USAGE.copySrc
    this.outputs = device.buffer(4 * OUTPUT_WORDS * Math.max(1, capacity.samples), usage)
    this.#own.push(this.outputs)
  }

  /** What the numbers of a batch must stay below. */
  get limits(): StepLimits {
    return {
      vocabulary: this.#vocabulary,
      slots: this.#slots,
      penaltySlots: this.#penaltySlots,
      logitVocabulary: this.#logitVocabulary,
    }
  }

  #createParams(): GPUBuffer {
    const buffer = this.device.buffer(FIRST_PARAMS_BYTES, USAGE.uniform | USAGE.copyDst)
    this.#own.push(buffer)
    return buffer
  }

  /** Parameters of one launch, in the order of the kernel's struct. */
  params(words: readonly Word[]): GPUBufferBinding {
    const data = new Uint32Array(Math.ceil(words.length / 4) * 4)
    const floats = new Float32Array(data.buffer)
    for (const [i, word] of words.entries())
      if (typeof word === 'number') data[i] = word
      else floats[i] = word.f32
    if (this.#paramsEnd + data.byteLength > this.#params.size) {
      this.#params = this.#createParams()
      this.#paramsEnd = 0
    }
    const offset = this.#paramsEnd
    this.#paramsEnd = Math.ceil((offset + data.byteLength) / PARAMS_UNIT) * PARAMS_UNIT
    this.device.write(this.#params, offset, data)
    return { buffer: this.#params, offset, size: data.byteLength }
  }

  bind(access: readonly Access[], params: GPUBufferBinding, buffers: readonly GPUBuffer[]): GPUBindGroup {
    return this.device.bindGroup([PARAMS, ...access], [params, ...buffers])
  }

  kernel(file: string, access: readonly Access[], variant?: KernelVariant): GPUComputePipeline {
    return this.device.pipeline(file, [COMMON, [PARAMS, ...access]], variant)
  }

  /** One kernel, whose workgroups are counted per step. */
  launch(
    file: string,
    words: readonly Word[],
    buffers: readonly (readonly [Access, GPUBuffer])[],
    grid: (step: StepShape) => readonly [x: number, y: number],
    variant: KernelVariant = {},
  ): void {
    const access = buffers.map(([one]) => one)
    const pipeline = this.kernel(file, access, variant)
    const bindings = this.bind(
      access,
      this.params(words),
      buffers.map(([, buffer]) => buffer),
    )
    this.launches.push({
      bindings,
      plan(step) {
        const [x, y] = grid(step)
        return x > 0 && y > 0 ? { pipeline, x, y } : null
      },
    })
  }

  ops(): Ops {
    const { tokens, logits } = this.capacity
    const elements = (channels: number) => (step: StepShape) =>
      [Math.ceil((step.numTokens * channels) / this.device.threads), 1] as const
    return {
      embed: (x, table, norm) => this.#embed(x, table, norm),
      shiftMix: (...args) => this.#shiftMix(...args),
      linear: (jobs) => recordLinear(this, jobs, false),
      wkv7: (...args) => this.#wkv7(...args),
      wkv6: (...args) => this.#wkv6(...args),

      deepEmbed: (...args) => this.#deepEmbed(...args),

      ddlerp: (mix, h, prev, base) => {
        assert(mix.length === base.length && mix.length > 0, 'ddlerp: as many mixes as bases')
        const C = base[0]!.shape[0]!
        const mixes = mix.map((one) => tensorOf(one, tokens * C))
        const words = [tensorOf(h, tokens * C), tensorOf(prev, tokens * C), C, 0]
        const bases = base.map((one) => tensorOf(one, C))
        const all = [...words, ...eight(mixes), ...eight(bases)]
        this.launch('ddlerp', all, [], (step) => [elements(C)(step)[0], mix.length])
      },

      gatedAdd: (x, gate, value) => {
        const C = x.shape[1]!
        const words = [x, gate, value].map((one) => tensorOf(one, tokens * C))
        this.launch('gated-add', [...words, C], [], elements(C))
      },

      gatherNorm: (out, x, norm) => {
        const C = norm.weight.shape[0]!
        const words = [tensorOf(out, logits * C), tensorOf(x, tokens * C), C, ...normWords(norm, C)]
        this.launch('gather-norm', words, [], ({ numLogits }) => [numLogits, 1], this.#sums())
      },

      logits: (y, x, weight) => recordLinear(this, [{ y, x, weight }], true),
      sample: (y, penalties) => this.#sample(y, penalties),
    }
  }

  #embed(x: Tensor, table: Table, norm: Norm): void {
    assert(table instanceof WebgpuTable, 'a table of another backend')
    const C = table.columns
    this.#vocabulary = Math.min(this.#vocabulary, table.rows)
    const dtype = DTYPES[table.type]
    for (const { first, rows, buffer, values } of table.parts) {
      const place = tensorOf(x, this.capacity.tokens * C)
      const words = [place, C, first, rows, ...normWords(norm, C), values / 4]
      const grid = ({ numTokens }: StepShape) => [numTokens, 1] as const
      this.launch('embed', words, [['read', buffer]], grid, {
        constants: { DTYPE: dtype },
        ...this.#sums(),
      })
    }
  }

  #deepEmbed(u: Tensor, low: Tensor, own: Tensor, { s_emb, s2, s0 }: DeepEmbedWeights): void {
    assert(s_emb instanceof WebgpuHostTable, 'a table of another backend')
    const { tokens } = this.capacity
    const SIDE = Math.sqrt(s_emb.columns)
    const F = s0.shape[0]!
    const words = [
      tensorOf(u, tokens * F),
      tensorOf(low, tokens * SIDE),
      tensorOf(own, tokens * SIDE * SIDE),
      tensorOf(s2, SIDE * F),
      tensorOf(s0, F),
      F,
    ]
    const buffer = this.device.buffer(tokens * s_emb.rowBytes, USAGE.storage | USAGE.copyDst)
    this.#own.push(buffer)
    this.hostRows.push({ table: s_emb, buffer })
    const parts = Math.ceil(F / this.device.threads)
    const grid = ({ numTokens }: StepShape) => [numTokens, numTokens < FEW_TOKENS ? parts : 1] as const
    const DTYPE = DTYPES[s_emb.type]
    this.launch('deep-embed', words, [['read', buffer]], grid, { constants: { SIDE, DTYPE } })
  }

  #states(states: StatePool): WebgpuStatePool {
    assert(states instanceof WebgpuStatePool, 'a state pool of another backend')
    this.#slots = Math.min(this.#slots, states.numSlots)
    return states
  }

  #shiftMix(
    out: readonly Tensor[],
    x: Tensor,
    norm: Norm,
    mix: readonly Tensor[],
    states: StatePool,
    layer: number,
    which: 0 | 1,
  ): void {
    const { tokens } = this.capacity
    const pool = this.#states(states)
    const C = pool.shape.channels
    assert(out.length === mix.length && out.length <= 8, 'shiftMix: as many outputs as mixes')
    const words = [
      tensorOf(x, tokens * C),
      C,
      ...normWords(norm, C),
      0,
      pool.startOf('shift') + which * C,
      pool.slotSize,
      pool.numSlots,
      0,
      0,
      0,
      ...eight(out.map((one) => tensorOf(one, tokens * C))),
      ...eight(mix.map((one) => tensorOf(one, C))),
    ]
    // Few tokens do not keep a GPU busy; of many, each norms its row once.
    const parts = Math.ceil(C / this.device.threads)
    const grid = ({ numTokens }: StepShape) => [numTokens, numTokens < FEW_TOKENS ? parts : 1] as const
    const slots = [['write', pool.layer(layer)]] as const
    this.launch('shift-mix', words, slots, grid, {
      constants: { OUTPUTS: out.length },
      ...this.#sums(),
    })
  }

  #wkv7(
    out: Tensor,
    { r, k, v, w, a, g, vGate, vFirst }: Wkv7Operands,
    { k_k, k_a, r_k, ln_x }: Wkv7Weights,
    states: StatePool,
    layer: number,
  ): void {
    const pool = this.#states(states)
    const C = pool.shape.channels
    const words = [
      ...[out, r, k, v, w, a, g, vGate ?? vFirst, vFirst].map((one) => tensorOf(one, this.capacity.tokens * C)),
      ...[k_k, k_a, r_k].map((one) => tensorOf(one, C)),
      ...normWords(ln_x, C),
      ...wkvWords(pool),
      vGate === undefined ? 0 : 1,
      this.#scratch(C),
      ...[0, 0, 0],
    ]
    const { heads, headSize: N } = pool.shape
    // Pairs of f16 are shared out whole.
    const parts = this.device.hasSubgroups && N % 32 === 0 ? 4 : 1
    this.#launchHeads('wkv7', words, pool, layer, parts, (step) => !hasPrompts(step))
    const ofTokens = (step: StepShape) => [heads, hasPrompts(step) ? step.numTokens : 0] as const
    this.launch('wkv7-prepare', words, [], ofTokens, { constants: { N } })
    const rows = N % SCAN_ROWS === 0 ? SCAN_ROWS : SCAN_ROWS / 2
    const ofRows = (step: StepShape) => [(heads * N) / rows, hasPrompts(step) ? step.numRows : 0] as const
    const slots = [['write', pool.layer(layer)]] as const
    const scan = statesVariant(pool, scanConstants(N, rows, parts), parts)
    this.launch('wkv7-scan', words, slots, ofRows, scan)
    this.launch('wkv7-finish', words, [], ofTokens, { constants: { N } })
  }

  /** [T, C], for one op at a time. */
  #scratch(channels: number): number {
    this.#scratchStart ??= this.device.allocate(this.capacity.tokens * channels)
    return this.#scratchStart
  }

  #wkv6(
    out: Tensor,
    { r, k, v, w, g }: Wkv6Operands,
    { u, ln_x }: Wkv6Weights,
    states: StatePool,
    layer: number,
  ): void {
    const pool = this.#states(states)
    const C = pool.shape.channels
    const words = [
      ...[out, r, k, v, w, g].map((one) => tensorOf(one, this.capacity.tokens * C)),
      tensorOf(u, C),
      ...normWords(ln_x, C),
      ...wkvWords(pool),
    ]
    this.#launchHeads('wkv6', words, pool, layer, 1)
  }

  /** A workgroup for each head of each row. */
  #launchHeads(
    file: string,
    words: readonly Word[],
    pool: WebgpuStatePool,
    layer: number,
    parts: 1 | 4,
    isFor: (step: StepShape) => boolean = () => true,
  ): void {
    const { heads, headSize: N } = pool.shape
    const grid = (step: StepShape) => [heads, isFor(step) ? step.numRows : 0] as const
    this.launch(file, words, [['write', pool.layer(layer)]], grid, statesVariant(pool, { N }, parts))
  }

  #sample(y: Tensor, penalties: PenaltyPool): void {
    assert(penalties instanceof WebgpuPenaltyPool, 'a penalty pool of another backend')
    const { vocabSize: V, seen, numSlots } = penalties
    const { logits, samples } = this.capacity
    this.#penaltySlots = numSlots
    this.#logitVocabulary = V
    const scores = this.device.allocate(samples * V)
    const groups = Math.ceil(V / (SAMPLE_READS * this.device.threads))
    const bins = this.device.buffer(4 * samples * (BIN_WORDS + 2 * groups), USAGE.storage)
    this.#own.push(bins)
    const words = [tensorOf(y, logits * V), scores, V, groups]
    const buffers = [seen, this.outputs, bins].map((buffer) => ['write', buffer] as const)
    const byGroups = ({ numSamples }: StepShape) => [groups, numSamples] as const
    const READS = this.device.isSoftware ? SAMPLE_READS_IN_SOFTWARE : SAMPLE_READS
    this.launch('sample-scores', words, buffers, byGroups, { constants: { READS } })
    this.launch('sample-bins', words, buffers, byGroups, { constants: { READS } })
    const WG = this.#sampleThreads()
    const constants = { WG, READS, WORDS: Math.ceil(V / (32 * WG)) }
    this.launch('sample', words, buffers, ({ numSamples }) => [numSamples, 1], { constants })
  }

  /** How a workgroup adds up. */
  #sums(): KernelVariant {
    return { files: { SUMS: this.device.hasSubgroups ? 'sums-subgroups' : 'sums' } }
  }

  /** As many as there is room for: one workgroup looks for the members of a bin in the whole vocabulary. */
  #sampleThreads(): number {
    const { isSoftware, threads, gpu } = this.device
    if (isSoftware) return threads
    const { maxComputeInvocationsPerWorkgroup: most, maxComputeWorkgroupStorageSize: bytes } = gpu.limits
    const room = Math.min(most, Math.floor((bytes - SAMPLE_SHARED) / SAMPLE_SHARED_A_THREAD))
    return 2 ** Math.floor(Math.log2(room))
  }

  dispose(): void {
    this.halves.dispose()
    for (const buffer of this.#own) this.device.free(buffer)
  }
}

function normWords({ weight, bias, eps }: Norm, channels: number): Word[] {
  return [tensorOf(weight, channels), tensorOf(bias, channels), { f32: eps }]
}
