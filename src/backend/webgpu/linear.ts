/**
 * Matrix products: jobs whose weights are of one type and in one buffer go in one launch. How many tokens a weight is read
 * for at once depends on the step; the order in which an output is summed does not.
 */
/// <reference types="@webgpu/types" />
import { assert } from '../../errors.ts'
import type { Epilogue, LinearJob } from '../backend.ts'
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
  /** Of a subgroup's matrices; null where they are not used. */
  readonly matrixSide: number | null
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
/** Subgroups of a workgroup, across its tokens and its outputs. */
const HIGH = 2
const BROAD = 2
const SUBGROUPS = HIGH * BROAD

/** A tile of tokens by outputs, by matrices of so many a side; `inputs` come into shared memory at a time. */
function byMatrices(side: number, tokens: number, outputs: number, inputs: number): Form {
  const threads = SUBGROUPS * SUBGROUP
  const constants = {
    SIDE: side,
    LANES: SUBGROUP,
    HIGH,
    BROAD,
    THREADS: threads,
    DOWN: tokens / HIGH / side,
    ACROSS: outputs / BROAD / side,
    STEP: inputs / side,
    INPUTS_EACH: (tokens * inputs) / 4 / threads,
    WEIGHTS_EACH: (outputs * inputs) / 4 / threads,
  }
  return { file: 'linear-matrix', constants, tokens, blocks: outputs / BLOCK_ROWS }
}

/** Larger tiles read less; more of them keep more of the GPU busy. */
function matrixForm(side: number, tokens: number, blocks: number): Form {
  const large = byMatrices(side, 128, 128, 32)
  return numGroups(large, tokens, blocks) >= MANY_GROUPS ? large : byMatrices(side, 64, 128, 64)
}

/** Workgroups that keep a large GPU busy. Fewer of more work each read less, but only where there are as many. */
const MANY_GROUPS = 128
/** Inputs of a row from which on more of its weights are asked for at a time. */
const LONG_ROW = 4096
/** Tokens from which on inputs and weights are shared in tiles. */
export const LEAST_WIDE = 65

/** Found by measuring on an H200 (docs/dev/webgpu.md); a small GPU is busy with any of them. */
function formFor(work: Work, tokens: number): Form {
  const { blocks, isSoftware, matrixSide } = work
  const isMany = tokens >= LEAST_WIDE
  if (isMany && matrixSide !== null) return matrixForm(matrixSide, tokens, blocks)
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
  for (const group of together(products)) recording.launches.push(createLaunch(recording, group, ofLogits))
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

function createLaunch(recording: Recorder, group: Product[], ofLogits: boolean): Launch {
  const { capacity } = recording
  const room = ofLogits ? capacity.logits : capacity.tokens
  let first = 0
  const words: number[] = [group.length, Number(ofLogits), 0, 0]
  for (const { job, matrix, part } of group) {
    words.push(
      tensorOf(job.x, room * matrix.columns),
      tensorOf(job.y, room * matrix.rows) + part.first,
      job.bias ? tensorOf(job.bias, matrix.rows) + part.first : NO_BIAS,
      part.values / 16,
      part.scales / 4,
      part.rows,
      matrix.columns,
      matrix.units,
      first,
      EPILOGUES[job.epilogue ?? 'none'],
      matrix.rows,
      0,
    )
    first += Math.ceil(part.rows / (MOST_BLOCKS * BLOCK_ROWS)) * MOST_BLOCKS
  }
  // The parameters end with the room for MAX_JOBS.
  const params = recording.params([...words, ...new Array<number>(4 + 12 * MAX_JOBS - words.length).fill(0)])
  const { type } = group[0]!.matrix
  const { buffer } = group[0]!.part
  const pipelineFor = kernelsOf(recording, type, isOfVectors(group[0]!))
  // f32 is for who wants every bit; rows that are no whole vectors are rare.
  const canRound = type !== 'f32' && isOfVectors(group[0]!)
  const work = {
    blocks: first,
    columns: Math.max(...group.map(({ matrix }) => matrix.columns)),
    type,
    isSoftware: recording.device.isSoftware,
    matrixSide: canRound ? recording.device.matrixSide : null,
  }
  let planned: Planned | null = null
  let plannedFor = 0
  return {
    bindings: recording.bind(['read', 'read'], params, [buffer, buffer]),
    plan(step: StepShape) {
      const count = ofLogits ? step.numLogits : step.numTokens
      if (count !== plannedFor) {
        const form = formFor(work, count)
        planned = count === 0 ? null : { pipeline: pipelineFor(form), ...gridOf(form, count, first) }
        plannedFor = count
      }
      return planned
    },
  }
}

function kernelsOf(recording: Recorder, type: HeldType, isOfVectors: boolean) {
  const files = {
    OPERANDS: isOfVectors ? 'linear-vectors' : 'linear-numbers',
    WEIGHTS: `weights-${type}`,
  }
  const made = new Map<string, GPUComputePipeline>()
  return (form: Form): GPUComputePipeline => {
    const { file, constants } = form
    const name = `${file} ${Object.values(constants).join()}`
    let pipeline = made.get(name)
    if (pipeline === undefined) {
      pipeline = recording.kernel(file, ['read', 'read'], { constants, files })
      made.set(name, pipeline)
    }
    return pipeline
  }
}
