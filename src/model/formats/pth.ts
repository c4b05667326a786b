/**
 * Reads a `.pth` as current torch saves it: a zip of one pickle, which describes the tensors, and one stored entry
 * per storage. Tensors are read straight from the file at their place; only a tensor that is a permuted or strided
 * view of its storage is gathered in memory. Every size is checked against the bytes that are there.
 */
import type { SourceType } from '../../backend/backend.ts'
import type { Checkpoint, TensorEntry } from '../checkpoint.ts'
import { type ByteSource, corrupt, quote, readBytes, unsupported } from './byte-source.ts'
import { BYTES_PER_ELEMENT, elementBits } from './half.ts'
import { unpickle } from './pickle.ts'
import { contiguousStrides } from './pth-writer.ts'
import { isKind, type PickleDict, type PickleTensor, type PickleValue } from './torch-objects.ts'
import { readZip, type ZipEntry } from './zip.ts'

const MAX_PICKLE_BYTES = 100 * 1024 * 1024
/** A view that has to be gathered lies within this much of its storage. */
const MAX_GATHER_BYTES = 2 ** 31 - 1
/** What training scripts call the model among the other things they save. */
const ROOT_KEYS = ['model', 'state_dict', 'module']
/** torch.compile puts it before every name. */
const COMPILED_PREFIX = '_orig_mod.'

/** Takes over the source: `close` of the checkpoint closes it. If this throws, the caller still owns it. */
export function openPth(source: ByteSource): Checkpoint {
  const entries = readZip(source)
  const root = findRoot(source, entries)
  checkByteOrder(source, entries, root)
  const pickle = readPickle(source, entries, root)
  const reader = new StorageReader(source)
  const tensors = new Map<string, TensorEntry>()
  for (const [key, tensor] of findTensors(source, unpickle(pickle, source))) {
    const name = key.startsWith(COMPILED_PREFIX) ? key.slice(COMPILED_PREFIX.length) : key
    if (tensors.has(name)) throw corrupt(source, `it holds ${quote(name)} twice`)
    const storage = entries.get(`${root}data/${tensor.storage.key}`)
    tensors.set(name, tensorEntry(reader, name, tensor, checkTensor(source, name, tensor, storage)))
  }
  const { path, size } = source
  return { path, format: 'pth', tensors, fileBytes: size, close: () => source.close() }
}

/** The folder of data.pkl, with its slash. */
function findRoot(source: ByteSource, entries: ReadonlyMap<string, ZipEntry>): string {
  const suffix = '/data.pkl'
  const pickles = [...entries.keys()].filter((name) => name.endsWith(suffix))
  const [found] = pickles
  if (found === undefined) {
    throw unsupported(source, 'is a zip without data.pkl, so not a file that torch.save wrote')
  }
  if (pickles.length > 1) throw unsupported(source, `has ${pickles.length} data.pkl, not one`)
  return found.slice(0, 1 - suffix.length)
}

function checkByteOrder(
  source: ByteSource,
  entries: ReadonlyMap<string, ZipEntry>,
  root: string,
): void {
  const entry = entries.get(`${root}byteorder`)
  if (!entry) return // older files have none and are little-endian
  const order = Buffer.from(readBytes(source, entry.offset, Math.min(entry.size, 16), entry.name))
  if (order.toString() === 'little') return
  throw unsupported(
    source,
    `its byte order is "${quote(order.toString())}"; re-save it as "little"`,
  )
}

function readPickle(
  source: ByteSource,
  entries: ReadonlyMap<string, ZipEntry>,
  root: string,
): Uint8Array {
  const { offset, size, name } = entries.get(`${root}data.pkl`)! // root was made from this name
  if (size > MAX_PICKLE_BYTES) {
    throw unsupported(source, `its data.pkl is ${size} bytes; at most ${MAX_PICKLE_BYTES} are read`)
  }
  return readBytes(source, offset, size, name)
}

/** The tensors of a dict, or of the model inside a training checkpoint. What is not a tensor is not a weight. */
function findTensors(source: ByteSource, root: PickleValue): [string, PickleTensor][] {
  if (!isKind(root, 'dict')) throw unsupported(source, 'its pickle is not a dict of tensors')
  const own = tensorsOf(root)
  if (own.length > 0) return own
  const nested = ROOT_KEYS.map((key) => root.items.get(key)).filter((value) =>
    isKind(value, 'dict'),
  )
  const candidates = nested.map(tensorsOf).filter((tensors) => tensors.length > 0)
  if (candidates.length === 1) return candidates[0]!
  const keys = [...root.items.keys()].slice(0, 8).map((key) => quote(String(key)))
  throw unsupported(source, `holds no dict of tensors; its keys are: ${keys.join(', ') || 'none'}`)
}

function tensorsOf(dict: PickleDict): [string, PickleTensor][] {
  const tensors: [string, PickleTensor][] = []
  for (const [key, value] of dict.items) {
    if (isKind(value, 'tensor')) tensors.push([String(key), value])
  }
  return tensors
}

/** Where a tensor lies in the file, all of it verified. */
interface Placed {
  readonly dtype: SourceType
  /** Of the tensor's element 0. */
  readonly fileOffset: number
  readonly numElements: number
  /** Elements from the first to the last that the tensor touches, both included. */
  readonly span: number
}

function checkTensor(
  source: ByteSource,
  name: string,
  tensor: PickleTensor,
  entry: ZipEntry | undefined,
): Placed {
  const { storage, offset, shape, strides } = tensor
  const what = `tensor ${quote(name)}`
  const { type } = storage
  if (type !== 'f32' && type !== 'f16' && type !== 'bf16') {
    throw unsupported(source, `${what} is of type ${type}; weights are f32, f16 or bf16`)
  }
  if (!entry)
    throw corrupt(source, `${what} lies in storage ${quote(storage.key)}, which is missing`)
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

function tensorEntry(
  reader: StorageReader,
  name: string,
  { shape, strides }: PickleTensor,
  placed: Placed,
): TensorEntry {
  const { dtype, fileOffset, numElements } = placed
  const size = BYTES_PER_ELEMENT[dtype]
  const plain = contiguousStrides(shape)
  const isContiguous = shape.every((length, axis) => length <= 1 || strides[axis] === plain[axis])
  const read = (start: number, end: number) => {
    if (!(start >= 0 && start <= end && end <= numElements)) {
      throw new RangeError(`${name}: elements ${start} to ${end} of ${numElements}`)
    }
    if (isContiguous) return reader.read(fileOffset + start * size, (end - start) * size)
    return reader.gather(name, shape, strides, placed).subarray(start * size, end * size)
  }
  return { name, shape, dtype, read }
}

/** The one buffer behind all tensors of a file, and the last tensor that had to be gathered. */
class StorageReader {
  readonly #source: ByteSource
  #buffer = new Uint8Array(0)
  #gathered: { readonly name: string; readonly bytes: Uint8Array } | undefined

  constructor(source: ByteSource) {
    this.#source = source
  }

  /** The range is inside the file: checkTensor has seen to it. */
  read(offset: number, length: number): Uint8Array {
    if (this.#buffer.byteLength < length) this.#buffer = new Uint8Array(length)
    const view = this.#buffer.subarray(0, length)
    this.#source.readInto(view, offset)
    return view
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
  const to =
    from.BYTES_PER_ELEMENT === 4 ? new Uint32Array(numElements) : new Uint16Array(numElements)
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
