/**
 * The tensors that a torch pickle describes, each found in its storage: the part of reading a `.pth` that is the same
 * for zips and for the files torch wrote before. Tensors are read straight from the file at their place; only one that
 * is a permuted or strided view of its storage is gathered in memory. Every size is checked against the bytes there.
 */

import { BYTES_PER_ELEMENT, elementBits } from '../../../backend/half.ts'
import type { SourceType } from '../../../backend/weight-types.ts'
import { type ByteSource, corrupt, quote, unsupported } from '../byte-source.ts'
import type { TensorEntry } from '../format.ts'
import { checkElements, ReadBuffer } from '../read-buffer.ts'
import { isKind, type PickleDict, type PickleTensor, type PickleValue } from './objects.ts'

/** A view that has to be gathered lies within this much of its storage. */
const MAX_GATHER_BYTES = 2 ** 31 - 1
/** Names of the model among the other things that training scripts save. */
const ROOT_KEYS = ['model', 'state_dict', 'module']
/** Before every name: of torch.compile, DataParallel, and Lightning with DeepSpeed. */
const PREFIXES = /^(?:_orig_mod|module|_forward_module)\./

/** Where the bytes of a storage lie: a range inside the file. */
export interface StoragePlace {
  readonly offset: number
  readonly size: number
}

/** Entries by name. `storages` finds a storage by the key that the pickle calls it. */
export function torchTensors(
  source: ByteSource,
  root: PickleValue,
  storages: (key: string) => StoragePlace | undefined,
): ReadonlyMap<string, TensorEntry> {
  const reader = new StorageReader(source)
  const tensors = new Map<string, TensorEntry>()
  for (const [key, tensor] of findTensors(source, root)) {
    const name = key.replace(PREFIXES, '')
    if (tensors.has(name)) throw corrupt(source, `it holds ${quote(name)} twice`)
    const placed = checkTensor(source, name, tensor, storages(tensor.storage.key))
    tensors.set(name, tensorEntry(reader, name, tensor, placed))
  }
  return tensors
}

/** The tensors of a dict, or of the model inside a training checkpoint. What is not a tensor is not a weight. */
function findTensors(source: ByteSource, root: PickleValue): [string, PickleTensor][] {
  if (!isKind(root, 'dict')) throw unsupported(source, 'its pickle is not a dict of tensors')
  const own = tensorsOf(root)
  if (own.length > 0) return own
  const nested = ROOT_KEYS.map((key) => root.items.get(key)).filter((value) => isKind(value, 'dict'))
  const candidates = nested.map(tensorsOf).filter((tensors) => tensors.length > 0)
  if (candidates.length === 1) return candidates[0]!
  const keys = [...root.items.keys()].slice(0, 8).map((key) => quote(String(key)))
  throw unsupported(source, `holds no dict of tensors; its keys are: ${keys.join(', ') || 'none'}`)
}

function tensorsOf(dict: PickleDict): [string, PickleTensor][] {
  const tensors: [string, PickleTensor][] = []
  for (const [key, value] of dict.items) if (isKind(value, 'tensor')) tensors.push([String(key), value])
  return tensors
}

/** Where a tensor lies in the file, all of it verified. */
interface Placed {
  readonly dtype: SourceType
  /** Offset of the tensor's element 0. */
  readonly fileOffset: number
  readonly numElements: number
  /** Elements from the first to the last that the tensor touches, both included. */
  readonly span: number
}

function checkTensor(source: ByteSource, name: string, tensor: PickleTensor, entry: StoragePlace | undefined): Placed {
  const { storage, offset, shape, strides } = tensor
  const what = `tensor ${quote(name)}`
  const { type } = storage
  if (type !== 'f32' && type !== 'f16' && type !== 'bf16')
    throw unsupported(source, `${what} is of type ${type}; weights are f32, f16 or bf16`)
  if (!entry) throw corrupt(source, `${what} lies in storage ${quote(storage.key)}, which is missing`)
  const size = BYTES_PER_ELEMENT[type]
  if (entry.size !== storage.numElements * size) {
    throw corrupt(
      source,
      `storage ${quote(storage.key)} of ${what} has ${entry.size} bytes, not ${storage.numElements} × ${size}`,
    )
  }
  // Not one of the products below can pass 2^53 unnoticed: the file's own size is the bound of each.
  let numElements = shape.includes(0) ? 0 : 1
  let span = numElements
  for (const [axis, length] of shape.entries()) {
    numElements *= length
    span += numElements === 0 ? 0 : (length - 1) * strides[axis]!
    if (numElements > storage.numElements || offset + span > storage.numElements) {
      throw corrupt(
        source,
        `${what} of shape [${shape.join(', ')}] does not fit its storage of ${storage.numElements} elements`,
      )
    }
  }
  if (offset + span > storage.numElements) throw corrupt(source, `${what} begins after its storage`)
  return { dtype: type, fileOffset: entry.offset + offset * size, numElements, span }
}

function tensorEntry(reader: StorageReader, name: string, { shape, strides }: PickleTensor, placed: Placed) {
  const { dtype, fileOffset, numElements } = placed
  const size = BYTES_PER_ELEMENT[dtype]
  const plain = contiguousStrides(shape)
  const isContiguous = shape.every((length, axis) => length <= 1 || strides[axis] === plain[axis])
  const read = (start: number, end: number) => {
    checkElements(name, start, end, numElements)
    if (isContiguous) return reader.read(fileOffset + start * size, (end - start) * size)
    return reader.gather(name, shape, strides, placed).subarray(start * size, end * size)
  }
  return { name, shape, dtype, read }
}

/** The file's buffer, and the last tensor that had to be gathered. */
class StorageReader {
  readonly #source: ByteSource
  readonly #buffer: ReadBuffer
  #gathered: { readonly name: string; readonly bytes: Uint8Array } | undefined

  constructor(source: ByteSource) {
    this.#source = source
    this.#buffer = new ReadBuffer(source)
  }

  /** The range is inside the file: checkTensor has seen to it. */
  read(offset: number, length: number): Uint8Array {
    return this.#buffer.read(offset, length)
  }

  /** A strided view of a storage, as a row-major tensor. */
  gather(
    name: string,
    shape: readonly number[],
    strides: readonly number[],
    { dtype, fileOffset, numElements, span }: Placed,
  ): Uint8Array {
    if (this.#gathered?.name === name) return this.#gathered.bytes
    const size = BYTES_PER_ELEMENT[dtype]
    if (span * size > MAX_GATHER_BYTES) {
      throw unsupported(
        this.#source,
        `tensor ${quote(name)} is a strided view of ${span * size} bytes; save it with .contiguous()`,
      )
    }
    const from = elementBits(this.read(fileOffset, span * size), dtype)
    const to = gatherElements(from, shape, strides, numElements)
    this.#gathered = { name, bytes: new Uint8Array(to.buffer) }
    return this.#gathered.bytes
  }
}

function gatherElements(
  from: Uint16Array | Uint32Array,
  shape: readonly number[],
  strides: readonly number[],
  numElements: number,
): Uint16Array | Uint32Array {
  const to = from.BYTES_PER_ELEMENT === 4 ? new Uint32Array(numElements) : new Uint16Array(numElements)
  const index = new Array<number>(shape.length).fill(0)
  let at = 0
  for (let i = 0; i < numElements; i++) {
    to[i] = from[at]!
    // Step the index like an odometer: the last axis first, carrying to the left.
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      at += strides[axis]!
      index[axis]!++
      if (index[axis]! < shape[axis]!) break
      at -= strides[axis]! * shape[axis]!
      index[axis] = 0
    }
  }
  return to
}

/** Strides, in elements, of a row-major tensor. */
export function contiguousStrides(shape: readonly number[]): number[] {
  const strides: number[] = []
  let stride = 1
  for (const size of shape.toReversed()) {
    strides.unshift(stride)
    stride *= Math.max(size, 1)
  }
  return strides
}
