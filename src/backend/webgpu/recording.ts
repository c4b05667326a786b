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
import { type KernelVariant, USAGE, type WebgpuDevice } from './device.ts'
import { eight, hasPrompts, type StepShape, scanConstants, statesVariant, type Word, wkvWords } from './launch.ts'
import { GROUP, type KeptAs, LEAST_BY_MATRICES, NOT_KEPT } from './products/halves.ts'
import { recordLinear } from './products/linear.ts'
import { Launches } from './recorder.ts'
import { tensorOf, WebgpuHostTable, WebgpuTable } from './resources.ts'
import { WebgpuPenaltyPool, WebgpuStatePool } from './states.ts'
import type { StepLimits } from './step-buffer.ts'

/** Words of a sample's outputs: token, its log-probability, the best ids, theirs. */
export const OUTPUT_WORDS = 42

/** Of RWKV-7. */
const MIXES_OF_TIME = 6

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
const SAMPLE_SHARED = 32 + 4 * BIN_WORDS + 8 * 2 * 32
const SAMPLE_SHARED_A_THREAD = 24

export class Recording extends Launches {
  /** What was drawn. u32 [samples, OUTPUT_WORDS] */
  readonly outputs: GPUBuffer
  /** Tables of the host, and where the rows of a step's tokens are put before it. */
  readonly hostRows: { readonly table: WebgpuHostTable; readonly buffer: GPUBuffer }[] = []
  #scratchStart: number | undefined
  #slots = Number.POSITIVE_INFINITY
  #vocabulary = Number.POSITIVE_INFINITY
  #penaltySlots = Number.POSITIVE_INFINITY
  #logitVocabulary = Number.POSITIVE_INFINITY

  constructor(device: WebgpuDevice, capacity: Capacity) {
    super(device, capacity)
    const usage = USAGE.storage | USAGE.copySrc
    this.outputs = device.buffer(4 * OUTPUT_WORDS * Math.max(1, capacity.samples), usage)
    this.own.push(this.outputs)
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
        const mixes = mix.map((one) => this.#of(one, tokens * C))
        const words = [this.#of(h, tokens * C), this.#of(prev, tokens * C), C, 0]
        const bases = base.map((one) => this.#of(one, C))
        const all = [...words, ...eight(mixes), ...eight(bases)]
        for (const start of mixes) this.keepers.delete(start)
        this.launch('ddlerp', all, [], (step) => [elements(C)(step)[0], mix.length])
      },

      gatedAdd: (x, gate, value) => {
        const C = x.shape[1]!
        const words = [x, gate, value].map((one) => this.#of(one, tokens * C))
        this.keepers.delete(words[0]!)
        this.launch('gated-add', [...words, C], [], elements(C))
      },

      gatherNorm: (out, x, norm) => {
        const C = norm.weight.shape[0]!
        const [start, from] = [this.#of(out, logits * C), this.#of(x, tokens * C)]
        const keeper = this.keeper([start], C)
        const words = (as: KeptAs) => [start, from, C, ...normWords(norm, C), keeper.wordOf(start, as)]
        const rows = ({ numLogits }: StepShape) => numLogits
        const grid = ({ numLogits }: StepShape) => [numLogits, this.#parts(numLogits, C)] as const
        this.launchKept(keeper, 'gather-norm', words, [], grid, { ...this.#norm(C, 4), rows })
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
    this.keepers.delete(this.#of(x, this.capacity.tokens * C))
    for (const { first, rows, buffer, values } of table.parts) {
      const place = this.#of(x, this.capacity.tokens * C)
      const words = [place, C, first, rows, ...normWords(norm, C), values / 4]
      const grid = ({ numTokens }: StepShape) => [numTokens, 1] as const
      const { constants, files } = this.#norm(C, 1)
      this.launch('embed', words, [['read', buffer]], grid, { constants: { DTYPE: dtype, ...constants }, files })
    }
  }

  #deepEmbed(u: Tensor, low: Tensor, own: Tensor, { s_emb, s2, s0 }: DeepEmbedWeights): void {
    assert(s_emb instanceof WebgpuHostTable, 'a table of another backend')
    const { tokens } = this.capacity
    const SIDE = Math.sqrt(s_emb.columns)
    const F = s0.shape[0]!
    const words = [
      this.#of(u, tokens * F),
      this.#of(low, tokens * SIDE),
      this.#of(own, tokens * SIDE * SIDE),
      this.#of(s2, SIDE * F),
      this.#of(s0, F),
      F,
    ]
    const buffer = this.device.buffer(tokens * s_emb.rowBytes, USAGE.storage | USAGE.copyDst)
    this.own.push(buffer)
    this.hostRows.push({ table: s_emb, buffer })
    this.keepers.delete(words[0]!)
    const parts = Math.ceil(F / this.device.threads)
    const grid = ({ numTokens }: StepShape) => [numTokens, numTokens < FEW_TOKENS ? parts : 1] as const
    const DTYPE = DTYPES[s_emb.type]
    this.launch('deep-embed', words, [['read', buffer]], grid, { constants: { SIDE, DTYPE } })
  }

  /** Where a tensor begins that an op reads as f32. Outputs of which that is never said may be written as f16 alone. */
  #of(tensor: Tensor, count: number): number {
    assert(!this.isRecorded, 'an op that reads a tensor after all was recorded')
    const start = tensorOf(tensor, count)
    this.whole.add(start)
    return start
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
    const starts = out.map((one) => tensorOf(one, tokens * C))
    const from = this.#of(x, tokens * C)
    const mixes = mix.map((one) => this.#of(one, C))
    const keeper = this.keeper(starts, C)
    const words = (as: KeptAs) => [
      from,
      C,
      ...normWords(norm, C),
      0,
      pool.startOf('shift') + which * C,
      pool.slotSize,
      pool.numSlots,
      out.length,
      0,
      0,
      ...eight(starts),
      ...eight(mixes),
      ...eight(
        starts.map((start) => keeper.wordOf(start, as)),
        NOT_KEPT,
      ),
    ]
    const grid = ({ numTokens }: StepShape) => [numTokens, this.#parts(numTokens, C)] as const
    const slots = [['write', pool.layer(layer)]] as const
    const { constants, files } = this.#norm(C, 4)
    this.launchKept(keeper, 'shift-mix', words, slots, grid, {
      constants: { OUTPUTS: out.length, ...constants },
      files,
      // One kernel of few rows for both halves of a layer, whose code a launch does not wait for.
      ofStep: ({ numTokens, numRows }, isFew) => ({
        ...(isFew && !this.device.isSoftware && { OUTPUTS: Math.max(MIXES_OF_TIME, out.length) }),
        SINGLE: Number(isFew && numTokens === numRows),
      }),
    })
  }

  /** Workgroups of a row: few rows do not keep a GPU busy; of many, each is normed once. */
  #parts(rows: number, channels: number): number {
    return rows < FEW_TOKENS ? Math.ceil(channels / this.device.threads) : 1
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
    const start = this.#of(out, this.capacity.tokens * C)
    const { heads, headSize: N } = pool.shape
    const keeper = this.keeper([start], C, N % GROUP === 0 && N <= this.device.threads)
    const scratch = this.#scratch(C)
    const operands = [
      ...[out, r, k, v, w, a, g, vGate ?? vFirst, vFirst].map((one) => this.#of(one, this.capacity.tokens * C)),
      ...[k_k, k_a, r_k].map((one) => this.#of(one, C)),
    ]
    const words = (as: KeptAs) => [
      ...operands,
      ...normWords(ln_x, C),
      ...wkvWords(pool),
      vGate === undefined ? 0 : 1,
      scratch,
      keeper.wordOf(start, as),
      ...[0, 0],
    ]
    // Pairs of f16 are shared out whole.
    const parts = this.device.hasSubgroups && N % 32 === 0 ? 4 : 1
    const slots = [['write', pool.layer(layer)]] as const
    // Many have a kernel that reads shared memory less, and keeps nothing as bytes. Its bits are the same.
    const isMany = ({ numTokens }: StepShape) => parts === 4 && numTokens >= LEAST_BY_MATRICES
    const few = (step: StepShape) => [heads, hasPrompts(step) || isMany(step) ? 0 : step.numRows] as const
    this.launchKept(keeper, 'wkv7', words, slots, few, statesVariant(pool, { N }, parts))
    const many = (step: StepShape) => [heads, isMany(step) && !hasPrompts(step) ? step.numRows : 0] as const
    const ofMany = statesVariant(pool, { N, EACH_ROWS: 2 }, parts)
    if (parts === 4) this.launchKept(keeper, 'wkv7-rows', words, slots, many, ofMany)
    const byFours = { N, N4: N / 4, HEADS: Math.floor(this.device.threads / (N / 4)) }
    const ofTokens = (step: StepShape) => {
      const all = hasPrompts(step) ? heads * step.numTokens : 0
      return [Math.ceil(all / byFours.HEADS), 1] as const
    }
    this.launch('wkv7-prepare', words('halves'), [], ofTokens, { constants: byFours })
    const scanParts = parts === 4 && N % 64 === 0 && this.device.lanes >= 8 ? 8 : parts
    const scan = scanConstants(this.device, heads, N, scanParts)
    const ofRows = (step: StepShape) => [(heads * N) / (4 * scan.ROWS4), hasPrompts(step) ? step.numRows : 0] as const
    this.launch('wkv7-scan', words('halves'), slots, ofRows, statesVariant(pool, scan, scanParts))
    this.launchKept(keeper, 'wkv7-finish', words, [], ofTokens, { constants: byFours })
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
      ...[out, r, k, v, w, g].map((one) => this.#of(one, this.capacity.tokens * C)),
      this.#of(u, C),
      ...normWords(ln_x, C),
      ...wkvWords(pool),
    ]
    this.keepers.delete(this.#of(out, 1))
    // A workgroup for each head of each row.
    const { heads, headSize: N } = pool.shape
    const grid = ({ numRows }: StepShape) => [heads, numRows] as const
    this.launch('wkv6', words, [['write', pool.layer(layer)]], grid, statesVariant(pool, { N }, 1))
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
    this.own.push(bins)
    const words = [this.#of(y, logits * V), scores, V, groups]
    const buffers = [seen, this.outputs, bins].map((buffer) => ['write', buffer] as const)
    const byGroups = ({ numSamples }: StepShape) => [groups, numSamples] as const
    const READS = this.device.isSoftware ? SAMPLE_READS_IN_SOFTWARE : SAMPLE_READS
    this.launch('sample-scores', words, buffers, byGroups, { constants: { READS } })
    this.launch('sample-bins', words, buffers, byGroups, { constants: { READS } })
    const WG = this.#sampleThreads()
    const constants = { WG, READS, WORDS: Math.ceil(V / (32 * WG)) }
    this.launch('sample', words, buffers, ({ numSamples }) => [numSamples, 1], { constants })
  }

  /** How a workgroup norms a row, of which a thread takes `width` numbers at a time: it keeps them. */
  #norm(CHANNELS: number, width: 1 | 4): Required<KernelVariant> {
    const EACH = Math.ceil(CHANNELS / width / this.device.threads)
    return { constants: { CHANNELS, EACH }, files: { SUMS: this.device.hasSubgroups ? 'sums-subgroups' : 'sums' } }
  }

  /** As many as there is room for: one workgroup looks for the members of a bin in the whole vocabulary. */
  #sampleThreads(): number {
    const { isSoftware, threads, gpu } = this.device
    if (isSoftware) return threads
    const { maxComputeInvocationsPerWorkgroup: most, maxComputeWorkgroupStorageSize: bytes } = gpu.limits
    const room = Math.min(most, Math.floor((bytes - SAMPLE_SHARED) / SAMPLE_SHARED_A_THREAD))
    return 2 ** Math.floor(Math.log2(room))
  }
}

function normWords({ weight, bias, eps }: Norm, channels: number): Word[] {
  return [tensorOf(weight, channels), tensorOf(bias, channels), { f32: eps }]
}
