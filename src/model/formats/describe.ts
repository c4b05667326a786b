/**
 * Says what a checkpoint holds, from the names and shapes of its tensors alone: which RWKV it is, its sizes, and what
 * is missing or does not fit. File names are never consulted. Reads no weights.
 */

import { BYTES_PER_ELEMENT } from '../../backend/half.ts'
import { SkeinError } from '../../errors.ts'
import { type Checkpoint, numElements, type TensorEntry } from './format.ts'
import { isReranker } from './native-names.ts'
import { BONUS, BONUS_ALIAS, RWKV6_MIXES, type Rwkv6Dimensions, rwkv6Tensors } from './rwkv6-layout.ts'
import {
  isHostTable,
  isUnusedRwkv7Tensor,
  type NamedShape,
  type Rwkv7Dimensions,
  rwkv7Tensors,
} from './rwkv7-layout.ts'

interface WrongShape extends NamedShape {
  readonly expected: readonly number[]
}

export interface CheckpointSummary {
  readonly architecture: Architecture
  /** Sizes are null where the tensors do not tell. */
  readonly layers: number
  readonly channels: number | null
  readonly heads: number | null
  readonly headSize: number | null
  readonly ffnSize: number | null
  readonly vocabSize: number | null
  /** Low-rank inner sizes: w, a, v, g for RWKV-7, and s for 7a; mix and decay for RWKV-6. */
  readonly ranks: Readonly<Record<string, number>>
  readonly numParameters: number
  /** `dtype` is how the file stores them: f32, f16, bf16, or a packed type such as Q4_K. */
  readonly dtypes: readonly { readonly dtype: string; readonly tensors: number }[]
  /** Bytes of all tensors in the file. */
  readonly tensorBytes: number
  readonly fileBytes: number
  /** The tensors hold a tuned start state, alone or with a model. */
  readonly hasTunedState: boolean
  /** The three below are known for RWKV-6 and the RWKV-7 family only. */
  readonly missing: readonly string[]
  readonly unexpected: readonly string[]
  readonly wrongShapes: readonly WrongShape[]
}

export function describeCheckpoint(checkpoint: Checkpoint): CheckpointSummary {
  const { tensors, fileBytes } = checkpoint
  const architecture = detectArchitecture(tensors)
  const entries = [...tensors.values()]
  const bytesOf = (entry: TensorEntry) => entry.packed?.bytes ?? numElements(entry) * BYTES_PER_ELEMENT[entry.dtype]
  return {
    architecture,
    ...readSizes(tensors),
    ranks: readRanks(tensors, architecture),
    numParameters: entries.reduce((sum, entry) => sum + numElements(entry), 0),
    dtypes: countTypes(entries),
    tensorBytes: entries.reduce((sum, entry) => sum + bytesOf(entry), 0),
    fileBytes,
    hasTunedState: entries.some(({ name }) => TUNED_STATE.test(name)),
    ...compare(tensors, architecture),
  }
}

/** The sizes of an RWKV-7 or RWKV-7a model that has every tensor in its right shape; otherwise a sentence that lists the faults. */
export function rwkv7Dimensions(checkpoint: Checkpoint): Rwkv7Dimensions {
  demandComplete(checkpoint, ['rwkv7', 'rwkv7a'], 'RWKV-7')
  return rwkv7Sizes(checkpoint.tensors)
}

/** The same for RWKV-6. */
export function rwkv6Dimensions(checkpoint: Checkpoint): Rwkv6Dimensions {
  demandComplete(checkpoint, ['rwkv6'], 'RWKV-6')
  return rwkv6Sizes(checkpoint.tensors)
}

const LOADABLE = ['rwkv6', 'rwkv7', 'rwkv7a'] as const
export type LoadableArchitecture = (typeof LOADABLE)[number]

/** Which model to load; a sentence that names what was found for everything that is none. */
export function loadableArchitecture({ path, tensors }: Checkpoint): LoadableArchitecture {
  const architecture = detectArchitecture(tensors)
  const loadable = LOADABLE.find((one) => one === architecture)
  if (loadable) return loadable
  const message = `${path} holds ${ARCHITECTURE_PHRASES[architecture]}; an RWKV-7 or RWKV-6 model was expected`
  throw new SkeinError('unsupported_weights', message)
}

function demandComplete(checkpoint: Checkpoint, wanted: readonly Architecture[], title: string): void {
  const { path, tensors } = checkpoint
  const architecture = detectArchitecture(tensors)
  if (!wanted.includes(architecture)) {
    const message = `${path} holds ${ARCHITECTURE_PHRASES[architecture]}; ${title} was expected`
    throw new SkeinError('unsupported_weights', message)
  }
  const { missing, wrongShapes } = compare(tensors, architecture)
  if (missing.length === 0 && wrongShapes.length === 0) return
  const faults = [
    ...missing.map((name) => `${name} is missing`),
    ...wrongShapes.map(
      ({ name, shape, expected }) => `${name} has shape [${shape.join(', ')}], expected [${expected.join(', ')}]`,
    ),
  ]
  const more = faults.length > MAX_FAULTS ? `; and ${faults.length - MAX_FAULTS} more` : ''
  const message = `${path} is not a complete ${title} model: ${faults.slice(0, MAX_FAULTS).join('; ')}${more}`
  throw new SkeinError('unsupported_weights', message)
}

type Tensors = ReadonlyMap<string, TensorEntry>

const MAX_FAULTS = 5
const TUNED_STATE = /^blocks\.\d+\.att\.time_state$/
const NOT_COMPARED = { missing: [], unexpected: [], wrongShapes: [] }

/**
 * rwkv7a is RWKV-7 with DeepEmbed tables in the channel mixing, rwkv7b one with attention besides; `state` is a tuned
 * initial state and `lora` an adapter, both without a model.
 */
const ARCHITECTURE_PHRASES = {
  rwkv7: 'an RWKV-7 model',
  rwkv7a: 'an RWKV-7a model',
  rwkv7b:
    'an RWKV-7b model, whose attention (DEA, qkv) keeps something of every token: its memory grows with the text, and states here have one size',
  rwkv6: 'an RWKV-6 model',
  'rwkv5.2': 'an RWKV-5.2 model',
  'rwkv5.1': 'an RWKV-5.1 model',
  rwkv5: 'an RWKV-5 model',
  rwkv4: 'an RWKV-4 model',
  hybrid: 'a hybrid of RWKV and attention (self_attn), whose cache grows with the text, and states here have one size',
  reranker: 'a reranker, which reads the states of another model; give it as --reranker beside that',
  state: 'a tuned initial state (time_state), not a model',
  lora: 'a LoRA adapter, not a model',
  unknown: 'tensors that are no known RWKV model',
} as const

type Architecture = keyof typeof ARCHITECTURE_PHRASES

function detectArchitecture(tensors: Tensors): Architecture {
  const names = [...tensors.keys()]
  const has = (pattern: RegExp) => names.some((name) => pattern.test(name))
  if (isReranker(tensors)) return 'reranker'
  if (has(/\.lora_[AB]$|\.bone$/)) return 'lora'
  if (has(/\.self_attn\./)) return 'hybrid'
  if (has(/\.att\.r_k$/)) {
    if (has(/^blocks\.\d+\.qkv\./)) return 'rwkv7b'
    return names.some(isHostTable) ? 'rwkv7a' : 'rwkv7'
  }
  if (has(/\.att\.time_maa_|\.att\.\w+_maa$/)) return 'rwkv6'
  const decay = tensors.get('blocks.0.att.time_decay')
  if (decay) {
    if ((decay.shape[1] ?? 1) > 1) return 'rwkv5.2'
    if (has(/\.att\.gate\.weight$/)) return 'rwkv5.1'
    return has(/\.att\.ln_x\./) ? 'rwkv5' : 'rwkv4'
  }
  return has(/\.att\.time_state$/) ? 'state' : 'unknown'
}

function readSizes(tensors: Tensors) {
  const shapeOf = (name: string): readonly number[] => tensors.get(name)?.shape ?? []
  // Heads and head size: r_k of RWKV-7, the per-head bonus of 5.2 and 6.
  const perHead = ['r_k', 'time_faaaa', 'time_first', 'time_state']
    .map((name) => shapeOf(`blocks.0.att.${name}`))
    .find((shape) => shape.length >= 2)
  return {
    layers: countLayers(tensors),
    channels: shapeOf('emb.weight')[1] ?? shapeOf('ln_out.weight')[0] ?? null,
    heads: perHead?.[0] ?? null,
    headSize: perHead?.[1] ?? null,
    ffnSize: shapeOf('blocks.0.ffn.key.weight')[0] ?? null,
    vocabSize: shapeOf('emb.weight')[0] ?? null,
  }
}

/** Distinct blocks, not the largest index: a name may claim any number. */
function countLayers(tensors: Tensors): number {
  const blocks = new Set<string>()
  for (const name of tensors.keys()) {
    const block = /^blocks\.(\d+)\./.exec(name)?.[1]
    if (block !== undefined) blocks.add(block)
  }
  return blocks.size
}

function readRanks(tensors: Tensors, architecture: Architecture): Record<string, number> {
  if (architecture === 'rwkv6') return { ...rwkv6Sizes(tensors).ranks }
  return architecture.startsWith('rwkv7') ? { ...rwkv7Sizes(tensors).ranks } : {}
}

function countTypes(entries: readonly TensorEntry[]) {
  const counts = new Map<string, number>()
  for (const { dtype, packed } of entries) {
    const type = packed?.type ?? dtype
    counts.set(type, (counts.get(type) ?? 0) + 1)
  }
  return [...counts].map(([dtype, tensors]) => ({ dtype, tensors }))
}

/** Zero where a tensor that would tell is missing. */
function knownSizes(tensors: Tensors) {
  const { layers, channels, heads, headSize, ffnSize, vocabSize } = readSizes(tensors)
  return {
    layers,
    channels: channels ?? 0,
    heads: heads ?? 0,
    headSize: headSize ?? 0,
    ffnSize: ffnSize ?? 0,
    vocabSize: vocabSize ?? 0,
  }
}

function rwkv7Sizes(tensors: Tensors): Rwkv7Dimensions {
  const rank = (name: string) => tensors.get(name)?.shape[1] ?? 0
  const table = [...tensors.values()].find(({ name }) => isHostTable(name))
  return {
    ...knownSizes(tensors),
    ranks: {
      w: rank('blocks.0.att.w1'),
      a: rank('blocks.0.att.a1'),
      v: rank('blocks.1.att.v1'),
      g: rank('blocks.0.att.g1'),
      ...(table && { s: Math.floor(Math.sqrt(table.shape[1] ?? 0)) }),
    },
  }
}

function rwkv6Sizes(tensors: Tensors): Rwkv6Dimensions {
  return {
    ...knownSizes(tensors),
    ranks: {
      mix: Math.floor((tensors.get('blocks.0.att.time_maa_w1')?.shape[1] ?? 0) / RWKV6_MIXES.length),
      decay: tensors.get('blocks.0.att.time_decay_w1')?.shape[1] ?? 0,
    },
  }
}

/** Compares the tensors with those that a model of that architecture and these sizes has. */
function compare(tensors: Tensors, architecture: Architecture) {
  if (architecture === 'rwkv6') {
    const sizes = rwkv6Sizes(tensors)
    const expected = rwkv6Tensors(sizes).map((tensor) => underItsAlias(tensor, tensors))
    return compareTo(expected, tensors, sizes, bonusName(tensors))
  }
  if (!architecture.startsWith('rwkv7')) return NOT_COMPARED
  const sizes = rwkv7Sizes(tensors)
  const expected = rwkv7Tensors(sizes).map((tensor) => withOwnRank(tensor, tensors))
  return compareTo(expected, tensors, sizes, 'blocks.0.att.r_k')
}

/** `perHead` is the tensor that told heads and head size, so it is held against the channels. */
function compareTo(
  expected: readonly NamedShape[],
  tensors: Tensors,
  sizes: { readonly channels: number; readonly heads: number; readonly headSize: number },
  perHead: string,
) {
  const names = new Set(expected.map(({ name }) => name))
  const wrongShapes: WrongShape[] = []
  for (const { name, shape } of expected) {
    const found = tensors.get(name)?.shape
    if (found && !fits(found, shape)) wrongShapes.push({ name, shape: found, expected: shape })
  }
  const headSizes = tensors.get(perHead)
  if (headSizes && sizes.heads * sizes.headSize !== sizes.channels && sizes.channels > 0) {
    const { name, shape } = headSizes
    const headSize = sizes.headSize || 64
    wrongShapes.push({ name, shape, expected: [sizes.channels / headSize, headSize] })
  }
  return {
    missing: [...names].filter((name) => !tensors.has(name)),
    unexpected: [...tensors.keys()].filter(
      (name) => !names.has(name) && !isUnusedRwkv7Tensor(name) && !TUNED_STATE.test(name),
    ),
    wrongShapes,
  }
}

function bonusName(tensors: Tensors): string {
  const named = (name: string) => `blocks.0.att.${name}`
  return tensors.has(named(BONUS)) ? named(BONUS) : named(BONUS_ALIAS)
}

function underItsAlias({ name, shape }: NamedShape, tensors: Tensors): NamedShape {
  const alias = name.replace(BONUS, BONUS_ALIAS)
  return tensors.has(name) || !tensors.has(alias) ? { name, shape } : { name: alias, shape }
}

/** A layer may have low-rank sizes of its own, as long as the two factors of a pair agree. */
function withOwnRank({ name, shape }: NamedShape, tensors: Tensors): NamedShape {
  const pair = /^(blocks\.\d+\.att\.[wavg])([12])$/.exec(name)
  const rank = tensors.get(`${pair?.[1]}1`)?.shape[1]
  if (!pair || rank === undefined || rank === 0) return { name, shape }
  return { name, shape: pair[2] === '1' ? [shape[0]!, rank] : [rank, shape[1]!] }
}

/**
 * Vectors are stored as [1, 1, C] or [C]; everything else is exact. An empty tensor never fits. A size that could not
 * be known, because the tensor that tells is missing or wrong, is not held against the others.
 */
function fits(found: readonly number[], expected: readonly number[]): boolean {
  if (found.includes(0)) return false
  if (expected.includes(0)) return true
  const isMatrix = expected.length === 2
  const [a, b] = [found, expected].map((shape) => (isMatrix ? shape : shape.filter((n) => n !== 1)))
  return a!.length === b!.length && a!.every((size, axis) => size === b![axis])
}
