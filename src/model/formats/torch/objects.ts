/**
 * The values a torch pickle may build, and the only three functions it may call: an empty OrderedDict, a tensor over
 * a storage, a parameter around a tensor. A tensor here is a description: no byte of it has been read, and its sizes
 * are not yet checked against its storage.
 */
import type { SourceType } from '../../../backend/weight-types.ts'

export type PickleValue =
  | null
  | boolean
  | number
  | string
  | PickleTuple
  | { readonly kind: 'list'; readonly items: PickleValue[] }
  | PickleDict
  | PickleName
  | PickleStorage
  | PickleTensor

export interface PickleTuple {
  readonly kind: 'tuple'
  readonly items: readonly PickleValue[]
}

export interface PickleDict {
  readonly kind: 'dict'
  readonly items: Map<string | number, PickleValue>
}

/** One of NAMES: a function or storage type before it is applied. */
interface PickleName {
  readonly kind: 'name'
  readonly name: string
}

export interface PickleStorage {
  readonly kind: 'storage'
  readonly type: StorageType
  /** Names the zip entry `data/<key>`, or a storage of a file older than that. */
  readonly key: string
  readonly numElements: number
}

/** Sizes as the pickle gives them: non-negative safe integers, not yet checked against the storage. */
export interface PickleTensor {
  readonly kind: 'tensor'
  readonly storage: PickleStorage
  readonly offset: number
  readonly shape: readonly number[]
  readonly strides: readonly number[]
}

/** Element types torch can name; only those of SourceType are weights of ours. */
type StorageType = SourceType | 'f64' | 'i64' | 'i32' | 'i16' | 'i8' | 'u8' | 'bool'

const STORAGE_TYPES: ReadonlyMap<string, StorageType> = new Map([
  ['torch.FloatStorage', 'f32'],
  ['torch.HalfStorage', 'f16'],
  ['torch.BFloat16Storage', 'bf16'],
  ['torch.DoubleStorage', 'f64'],
  ['torch.LongStorage', 'i64'],
  ['torch.IntStorage', 'i32'],
  ['torch.ShortStorage', 'i16'],
  ['torch.CharStorage', 'i8'],
  ['torch.ByteStorage', 'u8'],
  ['torch.BoolStorage', 'bool'],
])

export const STORAGE_BYTES: Readonly<Record<StorageType, number>> = {
  f64: 8,
  f32: 4,
  f16: 2,
  bf16: 2,
  i64: 8,
  i32: 4,
  i16: 2,
  i8: 1,
  u8: 1,
  bool: 1,
}

const ORDERED_DICT = 'collections.OrderedDict'
const REBUILD_TENSOR = 'torch._utils._rebuild_tensor_v2'
const REBUILD_PARAMETER = 'torch._utils._rebuild_parameter'
/** Everything a pickle may name. */
export const NAMES: ReadonlySet<string> = new Set([
  ORDERED_DICT,
  REBUILD_TENSOR,
  REBUILD_PARAMETER,
  ...STORAGE_TYPES.keys(),
])

const MAX_RANK = 8

/** How the machine that runs the pickle words its complaints. */
interface Complaints {
  damaged(problem: string): Error
  refuse(problem: string): Error
}

/** callee(*args), for a callee of NAMES. */
export function applyName(callee: PickleValue, args: PickleValue, complaints: Complaints): PickleValue {
  if (!isKind(args, 'tuple') || !isKind(callee, 'name')) throw complaints.damaged('calls what is not a function')
  switch (callee.name) {
    case ORDERED_DICT:
      if (args.items.length > 0) throw complaints.refuse('builds an OrderedDict from arguments')
      return { kind: 'dict', items: new Map() }
    case REBUILD_TENSOR:
      return buildTensor(args.items, complaints)
    case REBUILD_PARAMETER: {
      const tensor = args.items[0]
      if (!isKind(tensor, 'tensor')) throw complaints.damaged('makes a parameter of no tensor')
      return tensor
    }
  }
  throw complaints.refuse(`calls ${callee.name}`)
}

/**
 * The persistent id ('storage', type, key, location, number of elements). Files that are no zips add whether the
 * storage is a view of another.
 */
export function resolveStorage(id: PickleValue, complaints: Complaints): PickleStorage {
  const [tag, type, key, , numElements, view = null] = isKind(id, 'tuple') ? id.items : []
  if (view !== null) throw complaints.refuse('has a storage that is a view of another')
  if (tag !== 'storage' || !isKind(type, 'name') || typeof key !== 'string')
    throw complaints.damaged('refers to an object that is not a storage')
  const elementType = STORAGE_TYPES.get(type.name)
  if (elementType === undefined || !isSize(numElements))
    throw complaints.damaged('has a storage without a type or size')
  return { kind: 'storage', type: elementType, key, numElements }
}

/** _rebuild_tensor_v2(storage, offset, shape, strides, …); what follows concerns training. */
function buildTensor(args: readonly PickleValue[], complaints: Complaints): PickleTensor {
  const [storage, offset, shape, strides] = args
  if (!isKind(storage, 'storage') || !isSize(offset)) throw complaints.damaged('has a tensor without a storage')
  if (!isKind(shape, 'tuple') || !isKind(strides, 'tuple')) throw complaints.damaged('has a tensor without a shape')
  const rank = shape.items.length
  if (rank > MAX_RANK) throw complaints.refuse(`has a tensor of ${rank} dimensions`)
  const sizes = shape.items.filter(isSize)
  const steps = strides.items.filter(isSize)
  if (sizes.length !== rank || steps.length !== rank || strides.items.length !== rank)
    throw complaints.damaged('has a tensor whose shape or strides are not sizes')
  return { kind: 'tensor', storage, offset, shape: sizes, strides: steps }
}

/** Every storage inside a value, by key. Values may share parts, so each is entered once. */
export function storagesIn(root: PickleValue): ReadonlyMap<string, PickleStorage> {
  const storages = new Map<string, PickleStorage>()
  const seen = new Set<PickleValue>()
  const queue: PickleValue[] = [root]
  for (const value of queue) {
    if (typeof value !== 'object' || value === null || seen.has(value)) continue
    seen.add(value)
    if (value.kind === 'tensor') storages.set(value.storage.key, value.storage)
    if (value.kind === 'storage') storages.set(value.key, value)
    if (value.kind === 'tuple' || value.kind === 'list' || value.kind === 'dict') {
      for (const item of value.items.values()) queue.push(item)
    }
  }
  return storages
}

type Kind = 'tuple' | 'list' | 'dict' | 'name' | 'storage' | 'tensor'

export function isKind<K extends Kind>(
  value: PickleValue | undefined,
  kind: K,
): value is Extract<PickleValue, { kind: K }> {
  return typeof value === 'object' && value !== null && value.kind === kind
}

function isSize(value: PickleValue | undefined): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0
}
