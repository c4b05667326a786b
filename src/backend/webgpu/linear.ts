/**
 * Matrix products: jobs whose weights are of one type and in one buffer go in one launch. How many tokens a weight is read
 * for at once depends on the step; the order in which an output is summed does not.
 */
/// <reference types="@webgpu/types" />
import { assert } from '../../errors.ts'
import type { Epilogue, LinearJob } from '../backend.ts'
import type { Launch, Recorder, StepShape } from './launch.ts'
import { BLOCK_ROWS, type HeldType, type Part, tensorOf, UNIT, WebgpuMatrix } from './resources.ts'

/** Jobs that the parameters of a launch have room for. */
const MAX_JOBS = 8
/** Jobs begin at multiples of so many blocks: as many as a workgroup has at most. */
const MOST_BLOCKS = 4

/** Forms of linear.wgsl: what a thread sums at once, and how many units are on their way to it meanwhile. */
interface Form {
  /** Tokens, and blocks of outputs. */
  readonly NT: number
  readonly R: number
  readonly UNROLL: number
  /** Teams that share the inputs of an output; with one, each has tokens of its own. */
  readonly LANES: 16 | 1
}

/** Of a workgroup. */
const TEAMS = 16

/** By the most tokens of a step that each is for. */
const FORMS: readonly (readonly [tokens: number, form: Form])[] = [
  [1, { NT: 1, R: 1, UNROLL: 4, LANES: 16 }],
  [2, { NT: 2, R: 2, UNROLL: 2, LANES: 16 }],
  [4, { NT: 4, R: 2, UNROLL: 2, LANES: 16 }],
  [64, { NT: 8, R: 4, UNROLL: 1, LANES: 16 }],
  [Number.POSITIVE_INFINITY, { NT: 8, R: 4, UNROLL: 1, LANES: 1 }],
]

function formFor(tokens: number): Form {
  return FORMS.find(([most]) => tokens <= most)![1]
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
  for (const group of together(products))
    recording.launches.push(createLaunch(recording, group, ofLogits))
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
  const params = recording.params([
    ...words,
    ...new Array<number>(4 + 12 * MAX_JOBS - words.length).fill(0),
  ])
  const { type } = group[0]!.matrix
  const { buffer } = group[0]!.part
  const pipelineFor = kernelsOf(recording, type, isOfVectors(group[0]!))
  return {
    bindings: recording.bind(['read', 'read'], params, [buffer, buffer]),
    plan(step: StepShape) {
      const count = ofLogits ? step.numLogits : step.numTokens
      if (count === 0) return null
      const form = formFor(count)
      const tokens = (form.NT * TEAMS) / form.LANES
      return { pipeline: pipelineFor(form), x: first / form.R, y: Math.ceil(count / tokens) }
    },
  }
}

function kernelsOf(recording: Recorder, type: HeldType, isOfVectors: boolean) {
  const files = {
    OPERANDS: isOfVectors ? 'linear-vectors' : 'linear-numbers',
    WEIGHTS: `weights-${type}`,
  }
  const made = new Map<Form, GPUComputePipeline>()
  return (form: Form): GPUComputePipeline => {
    let pipeline = made.get(form)
    if (pipeline === undefined) {
      const constants = { ...form }
      pipeline = recording.kernel('linear', ['read', 'read'], { constants, files })
      made.set(form, pipeline)
    }
    return pipeline
  }
}
