/**
 * Matrix products: jobs whose weights are of one type and in one buffer go in one launch. How many tokens a weight is read
 * for at once depends on the step; the order in which an output is summed does not.
 */
/// <reference types="@webgpu/types" />
import { assert } from '../../../errors.ts'
import type { LinearJob } from '../../backend.ts'
import type { Matrices } from '../adapter.ts'
import type { Recorder } from '../launch.ts'
import { BLOCK_ROWS, tensorOf, WebgpuMatrix } from '../resources.ts'
import type { Kernel } from '../source.ts'
import {
  besideForm,
  formFor,
  gridOf,
  LEAST_COLUMNS,
  LEAST_WIDE,
  matricesBeside,
  matrixForm,
  type Work,
} from './forms.ts'
import {
  eightsOf,
  type HalvesOf,
  Keeper,
  type KeptAs,
  keepingNone,
  LEAST_BY_MATRICES,
  roundedVectors,
} from './halves.ts'
import {
  blocksOf,
  dotsOf,
  integersOf,
  isOfVectors,
  jobWords,
  MAX_JOBS,
  type Product,
  pairsOf,
  planner,
  roomOf,
  type Source,
  together,
} from './jobs.ts'
import { kernelsOf } from './kernels.ts'

export function recordLinear(recording: Recorder, jobs: readonly LinearJob[], ofLogits: boolean) {
  const products = jobs.flatMap((job): Product[] => {
    const { weight } = job
    assert(weight instanceof WebgpuMatrix, 'a matrix of another backend')
    return weight.parts.map((part) => ({ job, matrix: weight, part }))
  })
  const groups = together(products)
  const byIntegers = recording.device.matrices === null ? [] : groups.filter((group) => integersOf(group) !== null)
  // Those come first, because launches of theirs may take others along.
  const taken = new Map<Product[], Taken>()
  for (const group of byIntegers) {
    const canBe = (other: Product[]) => pairsOf(other) !== null && group.length + other.length <= MAX_JOBS
    const beside = groups.find((other) => !taken.has(other) && canBe(other)) ?? []
    const own = recordGroup(recording, group, ofLogits, { beside })
    if (own.one || own.few) taken.set(beside, own)
  }
  for (const group of groups)
    if (!byIntegers.includes(group)) recordGroup(recording, group, ofLogits, { taken: taken.get(group) ?? NOT_TAKEN })
}

/** Which steps of a group are in launches of another. */
interface Taken {
  /** Those of one token. */
  readonly one: boolean
  /** Those of few by matrices: what keeps the outputs of both. */
  readonly few: Keeper | null
}
const NOT_TAKEN: Taken = { one: false, few: null }

interface Beside {
  /** A group that launches may take along. */
  readonly beside?: readonly Product[]
  readonly taken?: Taken
}

/** Products of more than a few tokens are made by matrices, where the device has some. Returns what it takes along. */
function recordGroup(
  recording: Recorder,
  group: Product[],
  ofLogits: boolean,
  { beside = [], taken = NOT_TAKEN }: Beside,
): Taken {
  const { type } = group[0]!.matrix
  const { buffer } = group[0]!.part
  const byDots = dotsOf(recording, group)
  const work = {
    blocks: blocksOf(group),
    columns: Math.max(...group.map(({ matrix }) => matrix.columns)),
    isEven: [...group, ...beside].every(({ matrix }) => matrix.columns % LEAST_COLUMNS === 0),
    type,
    isSoftware: recording.device.isSoftware,
    sharedBytes: recording.device.gpu.limits.maxComputeWorkgroupStorageSize,
    isByDots: byDots !== null,
  }
  // f32 is for who wants every bit; rows that are no whole vectors are rare.
  const matrices = type !== 'f32' && isOfVectors(group[0]!) ? recording.device.matrices : null
  const isByMatrices = (count: number) => matrices !== null && count >= LEAST_BY_MATRICES
  const by = { ofLogits, work }
  const { maxStorageBuffersPerShaderStage: most } = recording.device.gpu.limits
  const canTake = beside.length > 0 && most >= BUFFERS_BESIDE
  const together = matrices && canTake ? sourcesKept(recording, [...beside, ...group], by, 'halves') : null
  const halves = together ?? (matrices && sourcesKept(recording, group, by, 'halves'))
  const bytes = byDots && sourcesKept(recording, group, by, 'bytes')
  for (const { job } of group) {
    recording.keepers.delete(tensorOf(job.y, 1))
    if (halves === null || ofLogits) recording.whole.add(tensorOf(job.x, 1))
    if (job.epilogue === 'add') recording.whole.add(tensorOf(job.y, 1))
  }
  // No launch writes the buffer that it reads.
  const into = {
    halves: matrices !== null && halves?.of !== 'products' ? 'products' : null,
    bytes: bytes?.of === 'bytesOfOthers' ? 'bytesOfProducts' : null,
  } as const
  // Its kernels have the order of their own type of weights.
  const keeper = taken.few ?? new Keeper(recording, into, byDots)
  for (const { job, matrix } of group) if (matrix.parts.length === 1) keeper.writes(tensorOf(job.y, 1), matrix.rows)
  if (matrices !== null) {
    const own = { ...by, kept: halves, keeper }
    const isElsewhere = together !== null || taken.few !== null
    recordByMatrices(
      recording,
      matrices,
      group,
      own,
      (count) => isByMatrices(count) && !(isElsewhere && count < LEAST_WIDE),
    )
    if (together)
      recordByMatrices(recording, matrices, group, own, (count) => isByMatrices(count) && count < LEAST_WIDE, beside)
  }
  // Where ops before have rounded the inputs, all is known that the launch needs.
  const along = bytes === null || !canTake ? null : beside
  const isDots =
    byDots === null ? () => false : recordByDots(recording, group, { ...by, kept: bytes, keeper, beside: along })
  const access = ['read', 'read'] as const
  const kernels = kernelsOf(recording, group, access)
  recording.launches.push({
    bindings: recording.bind(access, recording.params(jobWords(recording, group, ofLogits)), [buffer, buffer]),
    plan: planner(ofLogits, (count) => {
      if (count === 0 || isByMatrices(count) || isDots(count) || (taken.one && count === 1)) return null
      const form = formFor(work, count)
      return { kernel: kernels(form), ...gridOf(form, count, work.blocks) }
    }),
  })
  return { one: along !== null && along.length > 0, few: together && keeper }
}

interface By {
  readonly ofLogits: boolean
  readonly work: Work
}

interface Kept {
  readonly of: HalvesOf
  readonly sources: readonly Source[]
}

interface ByRounded extends By {
  /** Inputs that the ops before keep. */
  readonly kept: Kept | null
  /** Of the outputs. */
  readonly keeper: Keeper
}

interface ByDotProducts extends ByRounded {
  /** Products that the launch of one token takes along; null where it cannot. */
  readonly beside: readonly Product[] | null
}

/** Inputs are as f16 where the op before has kept them, or a launch of its own rounds them. Others may be beside few tokens. */
function recordByMatrices(
  recording: Recorder,
  matrices: Matrices,
  group: readonly Product[],
  by: ByRounded,
  isFor: (count: number) => boolean,
  beside: readonly Product[] = [],
): void {
  const { ofLogits, work, kept, keeper } = by
  const { buffer } = group[0]!.part
  const room = roomOf(recording, ofLogits)
  const sizeOf = (columns: number) => [eightsOf(1, columns, 1), eightsOf(room, columns, matrices.side)] as const
  const { of, sources } = kept ?? { of: 'rounded', sources: sourcesOf(recording, group, ofLogits, sizeOf) }
  if (kept === null) recordHalves(recording, matrices, sources, by)
  const others = beside.slice(0, 1).map(({ part }) => part.buffer)
  const access = ['read', 'read', 'read', ...others.map(() => 'read' as const)] as const
  const kernels = kernelsOf(recording, group, access, beside)
  const all = [...beside, ...group]
  recording.addLater(() => {
    const words = { sources, keeper, beside: { products: beside.length } }
    const bound = keeper.bound('halves')
    return {
      bindings: recording.bind(access, recording.params(jobWords(recording, all, ofLogits, words)), [
        ...[buffer, buffer, recording.halves[of].buffer],
        ...others,
      ]),
      plan: planner(ofLogits, (count) => {
        if (!isFor(count)) return null
        const own = matrixForm(matrices, work, count)
        const form = beside.length > 0 ? matricesBeside(own) : own
        const kernel = kernels(form, keeper.keeps('halves') ? keeper : null)
        return { kernel, ...gridOf(form, count, blocksOf(all)), ...bound }
      }),
    }
  })
}

/** Tokens up to which each workgroup rounds the inputs of its dot products, where no op before has. */
const MOST_WITHIN = 2

/** Dot products of few tokens: of those whose inputs are rounded beforehand. Returns of how many tokens that is so. */
function recordByDots(recording: Recorder, group: Product[], by: ByDotProducts): (count: number) => boolean {
  const { kept } = by
  const isFew = (count: number) => count > (kept === null ? MOST_WITHIN : 0) && count < LEAST_BY_MATRICES
  const from = kept ?? { of: 'rounded' as const, sources: recordRounding(recording, group, by, isFew) }
  const { beside } = by
  const takesOthers = beside !== null && beside.length > 0
  recordDots(recording, group, by, from, (count) => isFew(count) && !(takesOthers && count === 1))
  if (takesOthers) recordBeside(recording, group, by, from, beside)
  return isFew
}

function recordDots(
  recording: Recorder,
  group: Product[],
  { ofLogits, work, keeper }: ByRounded,
  { of, sources }: Kept,
  isFor: (count: number) => boolean,
): void {
  const { buffer } = group[0]!.part
  const access = ['read', 'read', 'read', 'read'] as const
  const kernels = kernelsOf(recording, group, access)
  recording.addLater(() => {
    const rounded = recording.halves[of].buffer
    const params = recording.params(jobWords(recording, group, ofLogits, { sources, keeper, as: 'bytes' }))
    const bound = keeper.bound('bytes')
    return {
      bindings: recording.bind(access, params, [buffer, buffer, rounded, rounded]),
      plan: planner(ofLogits, (count) => {
        if (!isFor(count)) return null
        const isKeeping = keeper.keeps('bytes')
        const form = formFor(work, count, isKeeping)
        return { kernel: kernels(form, isKeeping ? keeper : null), ...gridOf(form, count, work.blocks), ...bound }
      }),
    }
  })
}

/** Storage buffers of a kernel of dot products that may have others beside them. */
const BUFFERS_BESIDE = 8

/** Dot products of one token, and those beside them: their workgroups come first, as each has more to do. */
function recordBeside(
  recording: Recorder,
  group: Product[],
  { ofLogits, work, keeper }: ByRounded,
  { of, sources }: Kept,
  beside: readonly Product[],
): void {
  const { type } = group[0]!.matrix
  const [{ buffer }, { buffer: others }] = [group[0]!.part, beside[0]!.part]
  const access = ['read', 'read', 'read', 'read', 'read'] as const
  recording.addLater(() => {
    const rounded = recording.halves[of].buffer
    const isKeeping = keeper.keeps('bytes')
    const { file, constants, blocks } = besideForm(formFor(work, 1, isKeeping))
    const words = jobWords(recording, [...beside, ...group], ofLogits, {
      sources,
      keeper,
      as: 'bytes',
      beside: { products: beside.length, blocks },
    })
    const kinds = { WEIGHTS: `dots-${type}`, PAIRS: `pairs-${pairsOf(beside)}` }
    const files = { OPERANDS: 'linear-vectors', INPUTS: 'dots-ahead', BESIDE: 'beside-one', ...kinds }
    const variant = isKeeping ? keeper.variant({ constants, files }, 'bytes') : keepingNone({ constants, files })
    const own = beside.reduce((sum, { part }) => sum + Math.ceil(part.rows / BLOCK_ROWS), 0)
    const y = own + Math.ceil(work.blocks / blocks)
    const bound = keeper.bound('bytes')
    let kernel: Kernel | undefined
    return {
      bindings: recording.bind(access, recording.params(words), [buffer, buffer, rounded, rounded, others]),
      plan: planner(ofLogits, (count) => {
        if (count !== 1) return null
        kernel ??= recording.kernel(file, access, variant)
        return { kernel, x: 1, y, ...bound }
      }),
    }
  })
}

/** A launch of linear-round.wgsl. */
function recordRounding(
  recording: Recorder,
  group: Product[],
  { ofLogits, work }: By,
  isRounded: (count: number) => boolean,
): Source[] {
  const room = Math.min(LEAST_BY_MATRICES - 1, roomOf(recording, ofLogits))
  const sources = sourcesOf(recording, group, ofLogits, (columns) => [0, room * roundedVectors(columns)])
  const groupsEach = Math.ceil(work.columns / 8 / recording.device.threads)
  const words = [Number(ofLogits), groupsEach, 0, 0, ...sourceWords(sources)]
  let kernel: Kernel | undefined
  recording.addLater(() => ({
    bindings: recording.bind(['write'], recording.params(words), [recording.halves.rounded.buffer]),
    plan: planner(ofLogits, (count) => {
      if (!isRounded(count)) return null
      kernel ??= recording.kernel('linear-round', ['write'], { files: { ORDER: `dots-${work.type}-order` } })
      return { kernel, x: groupsEach * sources.length, y: count }
    }),
  }))
  return sources
}

/** Of a launch that goes over vectors, in x; the API allows 65,535. */
const MOST_GROUPS = 16_384

/** Where the ops before keep all inputs of a group; null if they do not, or not in one buffer. */
function sourcesKept(
  recording: Recorder,
  group: readonly Product[],
  { ofLogits, work: { type } }: By,
  as: KeptAs,
): Kept | null {
  const room = roomOf(recording, ofLogits)
  const inputs = group.map(({ job, matrix: { columns } }) => {
    const x = tensorOf(job.x, room * columns)
    const keeper = recording.keepers.get(x)
    return { x, columns, keeper: keeper?.has(x, columns) ? keeper : undefined }
  })
  const of = inputs[0]!.keeper?.into(as, type) ?? null
  if (of === null || inputs.some(({ keeper }) => keeper?.into(as, type) !== of)) return null
  const keep = ({ x, columns, keeper }: (typeof inputs)[number]) => ({
    x,
    columns,
    to: keeper!.keep(x, room, as, type),
    eights: 0,
  })
  return { of, sources: inputs.map(keep) }
}

/** Where a launch of its own puts them; jobs that have the same inputs share a source. */
function sourcesOf(
  recording: Recorder,
  group: readonly Product[],
  ofLogits: boolean,
  sizeOf: (columns: number) => readonly [eights: number, all: number],
): Source[] {
  const room = roomOf(recording, ofLogits)
  const sources: Source[] = []
  let end = 0
  for (const { job, matrix } of group) {
    const x = tensorOf(job.x, room * matrix.columns)
    if (sources.some((source) => source.x === x)) continue
    const [eights, all] = sizeOf(matrix.columns)
    sources.push({ x, columns: matrix.columns, to: end, eights })
    end += all
  }
  recording.halves.rounded.reserve(end)
  return sources
}

function sourceWords(sources: readonly Source[]): number[] {
  const words = sources.flatMap(({ x, columns, to, eights }) => [x, columns, to, eights])
  return [...words, ...new Array<number>(4 * (MAX_JOBS - sources.length)).fill(0)]
}

/** A launch of linear-halves.wgsl. */
function recordHalves(recording: Recorder, { side }: Matrices, sources: readonly Source[], by: By): void {
  const { ofLogits } = by
  const access = ['write'] as const
  const all = [Number(ofLogits), 0, 0, 0, ...sourceWords(sources)]
  const most = Math.max(...sources.map(({ eights }) => eights))
  const { threads } = recording.device
  let kernel: Kernel | undefined
  recording.addLater(() => ({
    bindings: recording.bind(access, recording.params(all), [recording.halves.rounded.buffer]),
    plan: planner(ofLogits, (count) => {
      if (count < LEAST_BY_MATRICES) return null
      kernel ??= recording.kernel('linear-halves', access, { constants: { SIDE: side } })
      const eights = Math.ceil(count / side) * side * most
      return { kernel, x: Math.min(MOST_GROUPS, Math.ceil(eights / threads)), y: sources.length }
    }),
  }))
}
