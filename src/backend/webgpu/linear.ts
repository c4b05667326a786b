/**
 * Matrix products: jobs whose weights are of one type and in one buffer go in one launch. How many tokens a weight is read
 * for at once depends on the step; the order in which an output is summed does not.
 */
/// <reference types="@webgpu/types" />
import { assert } from '../../errors.ts'
import type { Epilogue, LinearJob } from '../backend.ts'
import type { Launch, Recorder, StepShape } from './launch.ts'
import { CHUNK, type HeldType, type Part, tensorOf, WebgpuMatrix } from './resources.ts'

/** Outputs of a workgroup; see linear.wgsl. */
const OUTPUTS = 8
/** Jobs that the parameters of a launch have room for. */
const MAX_JOBS = 8
/** Tokens that a weight is read for at once, and chunks on their way to each lane meanwhile. */
export const VARIANTS = [
  { tokens: 1, unroll: 4 },
  { tokens: 4, unroll: 2 },
  { tokens: 8, unroll: 1 },
] as const

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
  return matrix.columns % CHUNK[matrix.type] === 0 && matrix.rows % 4 === 0
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
      matrix.chunks,
      first,
      EPILOGUES[job.epilogue ?? 'none'],
      matrix.rows,
      0,
    )
    first += Math.ceil(part.rows / OUTPUTS)
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
      const variant = VARIANTS.find(({ tokens }) => tokens >= count) ?? VARIANTS.at(-1)!
      return { pipeline: pipelineFor(variant), x: first, y: Math.ceil(count / variant.tokens) }
    },
  }
}

function kernelsOf(recording: Recorder, type: HeldType, isOfVectors: boolean) {
  const files = {
    OPERANDS: isOfVectors ? 'linear-vectors' : 'linear-numbers',
    WEIGHTS: `weights-${type}`,
  }
  const made = new Map<number, GPUComputePipeline>()
  return ({ tokens, unroll }: (typeof VARIANTS)[number]): GPUComputePipeline => {
    let pipeline = made.get(tokens)
    if (pipeline === undefined) {
      const constants = { NT: tokens, UNROLL: unroll }
      pipeline = recording.kernel('linear', ['read', 'read'], { constants, files })
      made.set(tokens, pipeline)
    }
    return pipeline
  }
}
