/**
 * Matrix products: jobs whose weights are of one type and in one buffer go in one launch. How many tokens a weight is read
 * for at once depends on the step; the order in which an output is summed does not.
 */
/// <reference types="@webgpu/types" />
import { assert } from '../../errors.ts'
import type { Epilogue, LinearJob } from '../backend.ts'
import type { Access } from './device.ts'
import type { Launch, Planned, Recorder, StepShape } from './launch.ts'
import { BLOCK_ROWS, type HeldType, type Part, tensorOf, UNIT, WebgpuMatrix } from './resources.ts'

/** Jobs that the parameters of a launch have room for. */
const MAX_JOBS = 8
/** Jobs begin at multiples of so many blocks: as many as a workgroup has at most. */
const MOST_BLOCKS = 16

/** What a launch multiplies by: blocks of all its jobs, inputs of the longest rows. */
interface Work {
  readonly blocks: number
  readonly columns: number
  readonly type: HeldType
  readonly isSoftware: boolean
}

/** A kernel, and the constants that it is compiled with. All but those of matrices give the same bits. */
interface Form {
  readonly file: 'linear' | 'linear-one' | 'linear-wide' | 'linear-matrix'
  readonly constants: Readonly<Record<string, number>>
  /** Tokens and blocks of outputs of a workgroup. */
  readonly tokens: number
  readonly blocks: number
}

/** NT tokens by R blocks; UNROLL units are on their way to a thread meanwhile. */
function narrow(NT: number, R: number, UNROLL: number, LANES = 32): Form {
  return { file: 'linear', constants: { NT, R, UNROLL, LANES }, tokens: NT, blocks: R }
}

/** Threads of a workgroup, and the runs that it makes of a row. */
const THREADS = 256
const RUNS = 32

/** A token by R blocks; CHUNK units of each run at a time. */
function ofOne(R: number, CHUNK: number, type: HeldType): Form {
  const LOADS = Math.ceil((CHUNK * (UNIT[type] / 4) * RUNS) / THREADS)
  return { file: 'linear-one', constants: { R, CHUNK, LOADS }, tokens: 1, blocks: R }
}

/** A processor switches between threads at every barrier: few of them. */
function narrowInSoftware(tokens: number): Form {
  return narrow([1, 2, 4].find((most) => tokens <= most) ?? 8, 1, 1, 4)
}

/** 256 threads, of 8 outputs by 8 tokens each; KQ quads of inputs at a time, of which each brings as many. */
const WIDE: Form = {
  file: 'linear-wide',
  constants: { R: 8, FOURS: 2, KQ: 2, INPUTS: 1, WEIGHTS_EACH: 1 },
  tokens: 128,
  blocks: 16,
}

const SUBGROUP = 32
/** Inputs that come into shared memory at a time, for teams of subgroups that have a part of them each. */
const STEP_INPUTS = 64
const TEAMS = 2

/** A tile of tokens by outputs, by matrices of so many a side; a team's subgroups are HIGH by BROAD of it. */
function byMatrices(side: number, tokens: number, outputs: number, HIGH: number, BROAD: number): Form {
  const threads = TEAMS * HIGH * BROAD * SUBGROUP
  const constants = {
    SIDE: side,
    LANES: SUBGROUP,
    TEAMS,
    HIGH,
    BROAD,
    DOWN: tokens / HIGH / side,
    ACROSS: outputs / BROAD / side,
    STEP: STEP_INPUTS / TEAMS / side,
    INPUTS_EACH: (tokens * STEP_INPUTS) / 8 / threads,
    WEIGHTS_EACH: (outputs * STEP_INPUTS) / 8 / threads,
  }
  return { file: 'linear-matrix', constants, tokens, blocks: outputs / BLOCK_ROWS }
}

/** Larger tiles read less; more of them keep more of the GPU busy. All make the same sums in the same order. */
function matrixForm(side: number, sharedBytes: number, tokens: number, blocks: number): Form {
  const large = byMatrices(side, 128, 128, 2, 2)
  const isLarge = numGroups(large, tokens, blocks) >= MANY_GROUPS && sharedOf(large) <= sharedBytes
  return isLarge ? large : byMatrices(side, 64, 64, 2, 1)
}

/** Bytes of shared memory: rows of f16 with eight more to each, and a matrix of sums for each subgroup. */
function sharedOf({ tokens, blocks, constants }: Form): number {
  const { SIDE = 0, HIGH = 0, BROAD = 0 } = constants
  return 2 * (tokens + BLOCK_ROWS * blocks) * (STEP_INPUTS + 8) + 4 * TEAMS * HIGH * BROAD * SIDE ** 2
}

/** Workgroups that keep a large GPU busy. Fewer of more work each read less, but only where there are as many. */
const MANY_GROUPS = 128
/** Of a launch that goes over vectors, in x; the API allows 65,535. */
const MOST_GROUPS = 16_384
/** Inputs of a row from which on more of its weights are asked for at a time. */
const LONG_ROW = 4096
/** Tokens from which on inputs and weights are shared in tiles. */
export const LEAST_WIDE = 65

/** Found by measuring on an H200 (docs/dev/webgpu.md); a small GPU is busy with any of them. */
function formFor(work: Work, tokens: number): Form {
  const { blocks, isSoftware } = work
  const isMany = tokens >= LEAST_WIDE
  if (isMany && (isSoftware || numGroups(WIDE, tokens, blocks) >= MANY_GROUPS)) return WIDE
  if (isSoftware) return narrowInSoftware(tokens)
  if (tokens === 1) return formForOne(work)
  const eight = narrow(8, 4, 1)
  return tokens > 4 && numGroups(eight, tokens, blocks) >= MANY_GROUPS ? eight : narrow(4, 2, 2)
}

function formForOne({ blocks, columns, type }: Work): Form {
  if (type === 'i8') return blocks >= 512 ? ofOne(2, 2, type) : ofOne(1, 2, type)
  if (type === 'q4' || type === 'nf4') return blocks >= 512 ? ofOne(2, 1, type) : ofOne(1, 2, type)
  if (columns >= LONG_ROW) return blocks >= 1024 ? ofOne(2, 4, type) : ofOne(1, 4, type)
  return blocks >= 768 ? ofOne(2, 2, type) : ofOne(1, 4, type)
}

/** Workgroups that read the same weights follow each other. */
function gridOf(form: Form, tokens: number, blocks: number) {
  return { x: Math.ceil(tokens / form.tokens), y: Math.ceil(blocks / form.blocks) }
}

function numGroups(form: Form, tokens: number, blocks: number): number {
  const { x, y } = gridOf(form, tokens, blocks)
  return x * y
}

const EPILOGUES: Readonly<Record<Epilogue, number>> = {
  none: 0,
  tanh: 1,
  sigmoid: 2,
  relu2: 3,
  add: 4,
}
const NO_BIAS = 0xffffffff

interface Product {
  readonly job: LinearJob
  readonly matrix: WebgpuMatrix
  readonly part: Part
}

export function recordLinear(recording: Recorder, jobs: readonly LinearJob[], ofLogits: boolean) {
  const products = jobs.flatMap((job): Product[] => {
    const { weight } = job
    assert(weight instanceof WebgpuMatrix, 'a matrix of another backend')
    return weight.parts.map((part) => ({ job, matrix: weight, part }))
  })
  for (const group of together(products)) recordGroup(recording, group, ofLogits)
}

/** Products of one type and one buffer, and of whole vectors or not. */
function together(products: readonly Product[]): Product[][] {
  const groups: Product[][] = []
  for (const product of products) {
    const group = groups.find(
      (other) =>
        other.length < MAX_JOBS &&
        other[0]!.matrix.type === product.matrix.type &&
        other[0]!.part.buffer === product.part.buffer &&
        isOfVectors(other[0]!) === isOfVectors(product),
    )
    if (group) group.push(product)
    else groups.push([product])
  }
  return groups
}

function isOfVectors({ matrix }: Product): boolean {
  return matrix.columns % UNIT[matrix.type] === 0 && matrix.rows % 4 === 0
}

/** Products of many tokens are made by matrices where the device has some: a launch before them rounds their inputs. */
function recordGroup(recording: Recorder, group: Product[], ofLogits: boolean): void {
  const { type } = group[0]!.matrix
  // f32 is for who wants every bit; rows that are no whole vectors are rare.
  const side = type !== 'f32' && isOfVectors(group[0]!) ? recording.device.matrixSide : null
  const sources = side === null ? [] : sourcesOf(recording, group, ofLogits)
  const { words, blocks } = jobWords(recording, group, sources, ofLogits)
  const params = recording.params(words)
  const { buffer } = group[0]!.part
  const work = {
    blocks,
    columns: Math.max(...group.map(({ matrix }) => matrix.columns)),
    type,
    isSoftware: recording.device.isSoftware,
  }
  const isByMatrices = (count: number) => side !== null && count >= LEAST_WIDE
  if (side !== null) {
    recordHalves(recording, sources, ofLogits, isByMatrices)
    const access = ['read', 'read', 'read'] as const
    const kernels = kernelsOf(recording, group, access)
    const { maxComputeWorkgroupStorageSize: shared } = recording.device.gpu.limits
    const plan = planner(ofLogits, (count) => {
      if (!isByMatrices(count)) return null
      const form = matrixForm(side, shared, count, blocks)
      return { pipeline: kernels(form), ...gridOf(form, count, blocks) }
    })
    const bind = () => recording.bind(access, params, [buffer, buffer, recording.halves.buffer])
    recording.launches.push(boundLater(bind, plan))
  }
  const access = ['read', 'read'] as const
  const kernels = kernelsOf(recording, group, access)
  recording.launches.push({
    bindings: recording.bind(access, params, [buffer, buffer]),
    plan: planner(ofLogits, (count) => {
      if (count === 0 || isByMatrices(count)) return null
      const form = formFor(work, count)
      return { pipeline: kernels(form), ...gridOf(form, count, blocks) }
    }),
  })
}

/** The buffer of halves is made when it is first bound: by then all products have said how large it must be. */
function boundLater(bind: () => GPUBindGroup, plan: Launch['plan']): Launch {
  let bindings: GPUBindGroup | undefined
  return {
    get bindings() {
      bindings ??= bind()
      return bindings
    },
    plan,
  }
}

/** Keeps the plan as long as the number of tokens is the same. */
function planner(ofLogits: boolean, planFor: (count: number) => Planned | null): Launch['plan'] {
  let planned: Planned | null = null
  let plannedFor = 0
  return (step: StepShape) => {
    const count = ofLogits ? step.numLogits : step.numTokens
    if (count !== plannedFor) {
      planned = planFor(count)
      plannedFor = count
    }
    return planned
  }
}

/** Parameters of a launch, and its blocks; those of a job begin at a whole workgroup's. */
function jobWords(recording: Recorder, group: readonly Product[], sources: readonly Source[], ofLogits: boolean) {
  const room = roomOf(recording, ofLogits)
  let blocks = 0
  const words: number[] = [group.length, Number(ofLogits), 0, 0]
  for (const { job, matrix, part } of group) {
    const x = tensorOf(job.x, room * matrix.columns)
    words.push(
      x,
      tensorOf(job.y, room * matrix.rows) + part.first,
      job.bias ? tensorOf(job.bias, matrix.rows) + part.first : NO_BIAS,
      part.values / 16,
      part.scales / 4,
      part.rows,
      matrix.columns,
      matrix.units,
      blocks,
      EPILOGUES[job.epilogue ?? 'none'],
      matrix.rows,
      sources.find((source) => source.x === x)?.to ?? 0,
    )
    blocks += Math.ceil(part.rows / (MOST_BLOCKS * BLOCK_ROWS)) * MOST_BLOCKS
  }
  // The parameters end with the room for MAX_JOBS.
  return { words: [...words, ...new Array<number>(4 + 12 * MAX_JOBS - words.length).fill(0)], blocks }
}

function roomOf({ capacity }: Recorder, ofLogits: boolean): number {
  return ofLogits ? capacity.logits : capacity.tokens
}

/** Inputs of a launch, and where they are as f16, in vectors of eight. A token has whole steps of linear-matrix.wgsl. */
interface Source {
  readonly x: number
  readonly columns: number
  readonly to: number
  readonly eights: number
}

/** Jobs that have the same inputs share a source. */
function sourcesOf(recording: Recorder, group: readonly Product[], ofLogits: boolean): Source[] {
  const room = roomOf(recording, ofLogits)
  const sources: Source[] = []
  let end = 0
  for (const { job, matrix } of group) {
    const x = tensorOf(job.x, room * matrix.columns)
    if (sources.some((source) => source.x === x)) continue
    const eights = (Math.ceil(matrix.columns / STEP_INPUTS) * STEP_INPUTS) / 8
    sources.push({ x, columns: matrix.columns, to: end, eights })
    end += room * eights
  }
  recording.halves.reserve(end)
  return sources
}

/** A launch of linear-halves.wgsl. */
function recordHalves(
  recording: Recorder,
  sources: readonly Source[],
  ofLogits: boolean,
  isByMatrices: (count: number) => boolean,
): void {
  const access = ['write'] as const
  const words = sources.flatMap(({ x, columns, to, eights }) => [x, columns, to, eights])
  const all = [Number(ofLogits), 0, 0, 0, ...words, ...new Array<number>(4 * (MAX_JOBS - sources.length)).fill(0)]
  const params = recording.params(all)
  const most = Math.max(...sources.map(({ eights }) => eights))
  const { threads } = recording.device
  let pipeline: GPUComputePipeline | undefined
  const plan = planner(ofLogits, (count) => {
    if (!isByMatrices(count)) return null
    pipeline ??= recording.kernel('linear-halves', access)
    return { pipeline, x: Math.min(MOST_GROUPS, Math.ceil((count * most) / threads)), y: sources.length }
  })
  recording.launches.push(boundLater(() => recording.bind(access, params, [recording.halves.buffer]), plan))
}

function kernelsOf(recording: Recorder, group: readonly Product[], access: readonly Access[]) {
  const files = {
    OPERANDS: isOfVectors(group[0]!) ? 'linear-vectors' : 'linear-numbers',
    WEIGHTS: `weights-${group[0]!.matrix.type}`,
  }
  const made = new Map<string, GPUComputePipeline>()
  return ({ file, constants }: Form): GPUComputePipeline => {
    const name = `${file} ${Object.values(constants).join()}`
    let pipeline = made.get(name)
    if (pipeline === undefined) {
      pipeline = recording.kernel(file, access, { constants, files })
      made.set(name, pipeline)
    }
    return pipeline
  }
}
