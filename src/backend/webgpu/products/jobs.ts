/** What a launch multiplies, and its parameters. */
/// <reference types="@webgpu/types" />
import type { Epilogue, LinearJob } from '../../backend.ts'
import type { Launch, Planned, Recorder, Word } from '../launch.ts'
import { BLOCK_ROWS, type Part, tensorOf, UNIT, type WebgpuMatrix } from '../resources.ts'
import type { ByDots, Keeper, KeptAs } from './halves.ts'

/** Jobs that the parameters of a launch have room for. */
export const MAX_JOBS = 8
/** Jobs begin at multiples of so many blocks: as many as a workgroup has at most. */
const MOST_BLOCKS = 16

const EPILOGUES: Readonly<Record<Epilogue, number>> = {
  none: 0,
  tanh: 1,
  sigmoid: 2,
  relu2: 3,
  add: 4,
}
const NO_BIAS = 0xffffffff
const NO_BLOCK = 0xffffffff

export interface Product {
  readonly job: LinearJob
  readonly matrix: WebgpuMatrix
  readonly part: Part
}

/** The type of a group's weights if they are integers of which f16 and bytes can be made. */
export function integersOf(group: readonly Product[]): ByDots | null {
  const { type } = group[0]!.matrix
  return (type === 'i8' || type === 'q4') && isOfVectors(group[0]!) ? type : null
}

/** The same if few tokens are multiplied by them as bytes. */
export function dotsOf({ device }: Recorder, group: readonly Product[]): ByDots | null {
  return device.dots ? integersOf(group) : null
}

/** The type of a group's weights if it can be beside products by integers. */
export function pairsOf(group: readonly Product[]): 'bf16' | 'f16' | null {
  const { type } = group[0]!.matrix
  return (type === 'bf16' || type === 'f16') && isOfVectors(group[0]!) ? type : null
}

/** Products of one type and one buffer, and of whole vectors or not. */
export function together(products: readonly Product[]): Product[][] {
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

export function isOfVectors({ matrix }: Product): boolean {
  return matrix.columns % UNIT[matrix.type] === 0 && matrix.rows % 4 === 0
}

export function planner(ofLogits: boolean, planFor: (count: number) => Planned | null): Launch['plan'] {
  return ({ numLogits, numTokens }) => planFor(ofLogits ? numLogits : numTokens)
}

/** Of a launch; those of a job begin at a whole workgroup's. */
export function blocksOf(group: readonly Product[]): number {
  return group.reduce((sum, { part }) => sum + blocksOfPart(part), 0)
}

function blocksOfPart({ rows }: Part): number {
  return Math.ceil(rows / (MOST_BLOCKS * BLOCK_ROWS)) * MOST_BLOCKS
}

const JOB_WORDS = 16
interface Words {
  /** Inputs that are rounded. */
  readonly sources?: readonly Source[]
  readonly keeper?: Keeper
  readonly as?: KeptAs
  /** The first products are beside the others. Beside dot products, a workgroup of theirs counts as so many blocks. */
  readonly beside?: { readonly products: number; readonly blocks?: number }
}

/** Parameters of a launch. */
export function jobWords(
  recording: Recorder,
  group: readonly Product[],
  ofLogits: boolean,
  { sources = [], keeper, as = 'halves', beside = { products: 0 } }: Words = {},
): Word[] {
  const room = roomOf(recording, ofLogits)
  let blocks = 0
  const firsts: number[] = []
  const words: Word[] = []
  for (const [i, { job, matrix, part }] of group.entries()) {
    const isBeside = i < beside.products
    const x = tensorOf(job.x, room * matrix.columns)
    const y = tensorOf(job.y, room * matrix.rows)
    firsts.push(blocks)
    words.push(
      x,
      y + part.first,
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
      isBeside && as === 'bytes' ? 0 : (keeper?.wordOf(y, as) ?? 0),
      Number(isBeside),
      ...[{ f32: matrix.factor }, { f32: 1 / matrix.factor }],
    )
    const each = isBeside ? beside.blocks : undefined
    blocks += each === undefined ? blocksOfPart(part) : each * Math.ceil(part.rows / BLOCK_ROWS)
  }
  const noFirsts = new Array<number>(MAX_JOBS - group.length).fill(NO_BLOCK)
  const noJobs = new Array<number>(JOB_WORDS * MAX_JOBS - words.length).fill(0)
  return [Number(ofLogits), 0, 0, 0, ...firsts, ...noFirsts, ...words, ...noJobs]
}

export function roomOf({ capacity }: Recorder, ofLogits: boolean): number {
  return ofLogits ? capacity.logits : capacity.tokens
}

/** Inputs of a launch, and where they are as f16, in vectors of eight; `eights` of a token, with its zeros. */
export interface Source {
  readonly x: number
  readonly columns: number
  readonly to: number
  readonly eights: number
}
