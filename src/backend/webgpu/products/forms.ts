/** Which kernel multiplies, in which tiles: found by measuring (docs/dev/webgpu.md). */
import { assert } from '../../../errors.ts'
import type { Matrices } from '../adapter.ts'
import { BLOCK_ROWS, type HeldType, UNIT } from '../resources.ts'
import { GROUP, LEAST_BY_MATRICES, PADDED } from './halves.ts'

/** What a launch multiplies by: blocks of all its jobs, inputs of the longest rows. */
export interface Work {
  readonly blocks: number
  readonly columns: number
  /** Whether all rows have multiples of LEAST_COLUMNS inputs. */
  readonly isEven: boolean
  readonly type: HeldType
  readonly isSoftware: boolean
  /** Of a workgroup. */
  readonly sharedBytes: number
  /** Whether weights are multiplied as bytes. */
  readonly isByDots: boolean
}

/** A kernel, and the constants that it is compiled with. All but those of matrices give the same bits. */
export interface Form {
  readonly file: 'linear' | 'linear-one' | 'linear-dots' | 'linear-wide' | 'linear-matrix'
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

/** NT tokens by R blocks, TURNS times; EACH groups of inputs of a lane at a time. */
function byDots(NT: number, R: number, TURNS: number, EACH: number): Form {
  const LOADS = Math.ceil((NT * EACH * RUNS * (GROUP / 8)) / THREADS)
  const blocks = R * TURNS
  const TOGETHER = NT === 1 ? blocks : 1
  // Of what is kept as bytes: four channels, of each token.
  const kept = { OUTPUTS: NT, KEPT_FOURS: (BLOCK_ROWS * blocks) / 4 }
  return { file: 'linear-dots', constants: { NT, R, TURNS, EACH, LOADS, TOGETHER, ...kept }, tokens: NT, blocks }
}

/** Units of a run at a time, of products beside dot products. */
const UNITS_BESIDE = 8

/** The form of dot products that have others beside them. */
export function besideForm(form: Form): Form {
  const LOADS_BESIDE = (UNITS_BESIDE * 2 * RUNS) / THREADS
  return { ...form, constants: { ...form.constants, UNITS_BESIDE, LOADS_BESIDE } }
}

/** The form of few tokens by matrices that have others, of 16 bits, beside them. */
export function matricesBeside(form: Form): Form {
  const { PIECE = 1, WEIGHTS_EACH = 0 } = form.constants
  return { ...form, constants: { ...form.constants, OTHERS_EACH: PIECE * WEIGHTS_EACH } }
}

/** 16 by 16 threads, of 4 outputs by 4 tokens each; KQ quads of inputs at a time. Shared memory of 16 KB has no room for padding. */
function tiles(type: HeldType, sharedBytes: number): Form {
  const [NT, R, ACROSS, DEEP, KQ] = [4, 4, 16, 16, 4]
  const [tokens, rows] = [NT * DEEP, R * ACROSS]
  const PADDING = sharedBytes > 16_384 ? 2 : 0
  const pieces = (rows * KQ) / (type === 'f32' ? 1 : 2)
  const each = { INPUTS: (tokens * KQ) / THREADS, WEIGHTS_EACH: Math.ceil(pieces / THREADS) }
  const constants = { NT, R, NT4: NT / 4, FOURS: R / 4, ACROSS, DEEP, KQ, PADDING, ...each }
  return { file: 'linear-wide', constants, tokens, blocks: rows / BLOCK_ROWS }
}

interface MatrixShape {
  /** Subgroups of a team: so many below each other, and so many side by side. */
  readonly high: number
  readonly broad: number
  /** Matrices of a subgroup: likewise. */
  readonly down: number
  readonly across: number
  /** Each team multiplies `step` matrices' inputs of every `teams` times as many. */
  readonly teams: number
  readonly step: number
  /** One saves shared memory; with two, weights are decoded while others are multiplied. */
  readonly buffers: number
  /** With one buffer: steps that weights are asked for ahead, in registers of their own. */
  readonly sets?: number
}

/** A tile of tokens by outputs, by matrices of so many a side. */
function byMatrices({ side, lanes }: Matrices, type: HeldType, shape: MatrixShape): Form {
  const { high, broad, down, across, teams, step, buffers, sets = 1 } = shape
  const threads = teams * high * broad * lanes
  const outputs = broad * across * side
  const tokens = high * down * side
  const eights = (outputs * teams * step * side) / 8 / threads
  // Whole units, where each thread has one and it belongs to one team.
  const isFitting = (n: number) => 8 * n <= UNIT[type] && 8 * n <= step * side && Number.isInteger(eights / n)
  const piece = [4, 2].find(isFitting) ?? 1
  assert(Number.isInteger(eights), `${outputs} outputs by ${threads} threads`)
  const constants = {
    SIDE: side,
    LANES: lanes,
    PADDED,
    TEAMS: teams,
    HIGH: high,
    BROAD: broad,
    DOWN: down,
    ACROSS: across,
    STEP: step,
    BUFFERS: buffers,
    LEFTS: buffers === 2 ? step : 1,
    SETS: sets,
    PIECE: piece,
    WEIGHTS_EACH: eights / piece,
    OTHERS_EACH: 0,
    SUMS_EACH: Math.ceil((across * side ** 2) / 4 / (teams * lanes)),
  }
  return { file: 'linear-matrix', constants, tokens, blocks: outputs / BLOCK_ROWS }
}

/** Workgroups that keep a large GPU busy. Fewer of more work each read less, but only where there are as many. */
const MANY_GROUPS = 128
/** Inputs of a row from which on more of its weights are asked for at a time. */
const LONG_ROW = 4096
const LONGEST_ROW = 8192
/** Inputs up to which a row has so few that most of a workgroup's time is its begin and end: it has more rows. */
const SHORT_ROW = 512
/** Tokens from which on inputs and weights are shared in tiles. */
export const LEAST_WIDE = 65
/** Inputs from which on the eight subgroups of a workgroup share a row. */
export const LEAST_COLUMNS = 1024
/** Blocks from which on a workgroup has more of them, and reads the inputs less often. */
const MANY_BLOCKS = 1024
/** Likewise, of rows that are not long. */
const SOME_BLOCKS = 512
/** Blocks up to which the GPU has so few workgroups that each asks for more at a time. */
const FEWEST_BLOCKS = 256

/** Teams and steps decide the order of sums, so they depend on a product's shape, never on the number of tokens. */
function fewForm(matrices: Matrices, { type, blocks, columns, isEven }: Work, tokens: number): Form {
  const { side } = matrices
  const down = [1, 2].find((most) => tokens <= most * side) ?? 4
  const of = (teams: number, across: number, inputs: number, sets: number, broad = 1) =>
    byMatrices(matrices, type, { high: 1, broad, down, across, teams, step: inputs / side, buffers: 1, sets })
  // Of more rows, registers for another set would leave room for fewer workgroups.
  const sets = down === 1 ? 2 : 1
  if (columns < LEAST_COLUMNS) return of(2, 1, 32, sets, 4)
  if (columns < LONG_ROW && blocks >= SOME_BLOCKS) return of(8, 2, 32, 1)
  const few = of(8, 1, LEAST_COLUMNS / 8, 1)
  if (blocks <= FEWEST_BLOCKS && isEven && sharedOf(few) <= matrices.sharedBytes) return few
  return blocks < MANY_BLOCKS ? of(8, 1, 64, sets) : of(4, 2, 32, sets)
}

/** Beside the tiles: a number, in the unit of shared memory. */
const OWN_BLOCK = 16

/** Bytes of shared memory: weights with eight more to each row, or the sums of a row of matrices; see linear-matrix.wgsl. */
function sharedOf({ blocks, constants }: Form): number {
  const { SIDE = 0, STEP = 0, TEAMS = 0, BUFFERS = 0, HIGH = 0, BROAD = 0, ACROSS = 0 } = constants
  const rows = TEAMS * Math.max(BUFFERS * BLOCK_ROWS * blocks, HIGH * BROAD * ACROSS * SIDE)
  return 2 * (STEP * SIDE + 8) * rows + OWN_BLOCK
}

/** Blocks up to which a prompt of some hundred tokens has so few tiles that more subgroups share each. */
const FEW_BLOCKS = 384

/** Larger tiles read less; more of them keep more of the GPU busy. Both make the same sums in the same order. */
function wideForm(matrices: Matrices, { type, blocks, columns }: Work, tokens: number): Form {
  const of = (down: number, teams: number) =>
    byMatrices(matrices, type, { high: 2, broad: 1, down, across: 4, teams, step: 2, buffers: 2 })
  const ofShort = (down: number) =>
    byMatrices(matrices, type, { high: 2, broad: 2, down, across: 2, teams: 1, step: 32 / matrices.side, buffers: 1 })
  if (columns <= SHORT_ROW) return numGroups(ofShort(4), tokens, blocks) >= MANY_GROUPS ? ofShort(4) : ofShort(2)
  const teams = blocks <= FEW_BLOCKS && sharedOf(of(4, 4)) <= matrices.sharedBytes ? 4 : 2
  const [large, small] = [of(4, teams), of(2, teams)]
  return numGroups(large, tokens, blocks) >= MANY_GROUPS ? large : small
}

export function matrixForm(matrices: Matrices, work: Work, tokens: number): Form {
  return tokens < LEAST_WIDE ? fewForm(matrices, work, tokens) : wideForm(matrices, work, tokens)
}

/** Found by measuring on an H200 (docs/dev/webgpu.md); a small GPU is busy with any of them. `isKeeping`: outputs, as bytes. */
export function formFor(work: Work, tokens: number, isKeeping = false): Form {
  const { blocks, isSoftware, type, sharedBytes } = work
  if (work.isByDots && tokens < LEAST_BY_MATRICES) return formByDots(work, tokens, isKeeping)
  if (tokens >= LEAST_WIDE) {
    const wide = tiles(type, sharedBytes)
    if (isSoftware || numGroups(wide, tokens, blocks) >= MANY_GROUPS) return wide
  }
  // It switches between threads at every barrier: few of them.
  if (isSoftware) return narrow([1, 2, 4].find((most) => tokens <= most) ?? 8, 1, 1, 4)
  if (tokens === 1) return formForOne(work)
  const eight = narrow(8, 4, 1)
  return tokens > 4 && numGroups(eight, tokens, blocks) >= MANY_GROUPS ? eight : narrow(4, 2, 2)
}

function formByDots({ blocks }: Work, tokens: number, isKeeping: boolean): Form {
  // Whole groups of outputs are four blocks; where there are fewer workgroups, more would not run at once.
  if (tokens > 1) return byDots(tokens === 2 ? 2 : 4, 2, isKeeping ? 2 : 1, 1)
  if (isKeeping || blocks >= MANY_BLOCKS) return byDots(1, 2, 2, 1)
  return blocks > SOME_BLOCKS ? byDots(1, 2, 2, 2) : byDots(1, 1, 1, 2)
}

function formForOne({ blocks, columns, type }: Work): Form {
  if (type === 'i8') return blocks >= 512 ? ofOne(2, 2, type) : ofOne(1, 2, type)
  if (type === 'q4' || type === 'nf4') return blocks >= 512 ? ofOne(2, 1, type) : ofOne(1, 2, type)
  if (columns <= SHORT_ROW && blocks >= 768) return ofOne(8, 1, type)
  if (columns >= LONG_ROW && blocks >= 512) return ofOne(2, 8, type)
  if (columns >= LONG_ROW) return ofOne(1, columns >= LONGEST_ROW ? 8 : 4, type)
  return blocks >= 768 ? ofOne(2, 2, type) : ofOne(1, 4, type)
}

/** Workgroups that read the same weights follow each other. */
export function gridOf(form: Form, tokens: number, blocks: number) {
  return { x: Math.ceil(tokens / form.tokens), y: Math.ceil(blocks / form.blocks) }
}

function numGroups(form: Form, tokens: number, blocks: number): number {
  const { x, y } = gridOf(form, tokens, blocks)
  return x * y
}
