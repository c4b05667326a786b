/**
 * Tuned start states: `blocks.N.att.time_state` tensors [H, N, N], alone in a file or inside a model, as the state a
 * sequence begins from instead of zero. On disk a row is a value channel and a column a key channel, for RWKV-6 and
 * RWKV-7 alike, which is also the layout of StateData. Knows nothing of slots or of who asks for a state.
 */
import type { StateData, StateShape } from '../backend/backend.ts'
import { arraysOf, createState } from '../backend/state-shape.ts'
import { SkeinError } from '../errors.ts'
import { type Checkpoint, numElements } from './formats/format.ts'
import { readFloats } from './formats/tensor-values.ts'

export const TIME_STATE = /^blocks\.(\d+)\.att\.time_state$/

/** The tuned state among a checkpoint's tensors; null when there is none. The token shift of such a state is zero. */
export function readTunedState(checkpoint: Checkpoint, shape: StateShape): StateData | null {
  const { path, tensors } = checkpoint
  const entries = [...tensors.values()].filter(({ name }) => TIME_STATE.test(name))
  if (entries.length === 0) return null
  const { layers, heads, headSize } = shape
  const isFitting = entries.every(({ shape: [h, rows, columns, ...more] }) => {
    return h === heads && rows === headSize && columns === headSize && more.length === 0
  })
  if (entries.length !== layers || !isFitting) throw misfit(path, entries, shape)
  const size = heads * headSize * headSize
  const state = createState(shape)
  const wkv = state[arraysOf(shape).findIndex(({ name }) => name === 'wkv')]!
  for (let layer = 0; layer < layers; layer++) {
    const entry = tensors.get(`blocks.${layer}.att.time_state`)
    if (!entry) throw incompatible(`${path} has no blocks.${layer}.att.time_state`)
    const values = readFloats(entry)
    if (!values.every(Number.isFinite))
      throw incompatible(`${path}: ${entry.name} has values that are not finite numbers`)
    wkv.set(values, layer * size)
  }
  return state
}

function misfit(
  path: string,
  entries: readonly { readonly shape: readonly number[] }[],
  { layers, heads, headSize }: StateShape,
): SkeinError {
  const shapes = new Set(entries.map(({ shape }) => shape.join(', ')))
  const [first] = entries
  const [h = 0, rows, columns] = first!.shape
  const isPlain = shapes.size === 1 && first!.shape.length === 3 && rows === columns
  if (!isPlain || numElements(first!) === 0)
    return incompatible(
      `${path} has tuned states of shape [${[...shapes].join('] and [')}], expected [${heads}, ${headSize}, ${headSize}] in each of ${layers} layers`,
    )
  const size = rows === headSize ? '' : ` of size ${rows}`
  const ownSize = rows === headSize ? '' : ` of size ${headSize}`
  return incompatible(
    `${path} is for ${counted(entries.length, 'layer')} of ${counted(h, 'head')}${size}; the model has ${counted(layers, 'layer')} of ${counted(heads, 'head')}${ownSize}`,
  )
}

function counted(n: number, noun: string): string {
  return `${n} ${noun}${n === 1 ? '' : 's'}`
}

export function incompatible(message: string): SkeinError {
  return new SkeinError('state_incompatible', message)
}
