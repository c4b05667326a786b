/**
 * Reads the files that torch.save wrote before they were zips: pickles of a magic number, a version, facts about the
 * machine, the object and the list of storage keys, then the storages, each with its length before it. The same
 * restricted machine reads all the pickles.
 */

import { compareBytes, viewOf } from '../../../files/bytes.ts'
import { type ByteSource, corrupt, quote, readBytes, unsupported } from '../byte-source.ts'
import type { Checkpoint } from '../format.ts'
import { isKind, type PickleStorage, type PickleValue, STORAGE_BYTES, storagesIn } from './objects.ts'
import { unpickleFirst } from './pickle.ts'
import { type StoragePlace, torchTensors } from './tensors.ts'

/** The magic number 0x1950a86a20f9469cfc6c as a pickle of its own, after the byte that says which protocol. */
const MAGIC = Uint8Array.of(...[0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e])
const MAGIC_OFFSET = 2
const PROTOCOL = 1001
/** Names and shapes of the largest model are about 1 MB. */
const MAX_PICKLE_BYTES = 32 * 1024 * 1024
const LENGTH_BYTES = 8

export function isLegacyTorch(head: Uint8Array): boolean {
  const magic = head.subarray(MAGIC_OFFSET, MAGIC_OFFSET + MAGIC.length)
  return head[0] === 0x80 && compareBytes(MAGIC, magic) === 0
}

/** Takes over the source: `close` of the checkpoint closes it. If this throws, the caller still owns it. */
export function openLegacyTorch(source: ByteSource): Checkpoint {
  const pickles = new PickleReader(source, MAGIC_OFFSET + MAGIC.length)
  const protocol = pickles.next()
  if (protocol !== PROTOCOL)
    throw unsupported(source, `is of torch's file protocol ${describe(protocol)}, not ${PROTOCOL}`)
  checkByteOrder(source, pickles.next())
  const root = pickles.next()
  const places = placeStorages(source, storagesIn(root), pickles.next(), pickles.position)
  const tensors = torchTensors(source, root, (key) => places.get(key))
  const { path, size } = source
  return { path, format: 'legacy-pth', tensors, fileBytes: size, close: () => source.close() }
}

/** Pickles that follow each other from an offset on. */
class PickleReader {
  readonly #source: ByteSource
  readonly #bytes: Uint8Array
  readonly #start: number
  #at = 0

  constructor(source: ByteSource, start: number) {
    const length = Math.min(source.size - start, MAX_PICKLE_BYTES)
    this.#source = source
    this.#start = start
    this.#bytes = readBytes(source, start, length, 'the pickles')
  }

  get position(): number {
    return this.#start + this.#at
  }

  next(): PickleValue {
    const { value, length } = unpickleFirst(this.#bytes.subarray(this.#at), this.#source)
    this.#at += length
    return value
  }
}

function checkByteOrder(source: ByteSource, facts: PickleValue): void {
  const isLittle = isKind(facts, 'dict') ? facts.items.get('little_endian') : undefined
  if (isLittle === true) return
  throw unsupported(source, 'does not say that its numbers are little-endian; re-save it')
}

/** The storages lie in the order of the list of keys, each after its number of elements. */
function placeStorages(
  source: ByteSource,
  storages: ReadonlyMap<string, PickleStorage>,
  keys: PickleValue,
  start: number,
): ReadonlyMap<string, StoragePlace> {
  if (!isKind(keys, 'list')) throw corrupt(source, 'has no list of its storages')
  const places = new Map<string, StoragePlace>()
  let at = start
  for (const key of keys.items) {
    const storage = typeof key === 'string' ? storages.get(key) : undefined
    if (!storage || places.has(storage.key))
      throw corrupt(source, `lists the storage ${describe(key)}, which no tensor has, or twice`)
    const size = storage.numElements * STORAGE_BYTES[storage.type]
    const what = `storage ${quote(storage.key)}`
    const length = viewOf(readBytes(source, at, LENGTH_BYTES, what)).getBigInt64(0, true)
    if (length !== BigInt(storage.numElements))
      throw corrupt(source, `${what} has ${length} elements, not ${storage.numElements}`)
    places.set(storage.key, { offset: at + LENGTH_BYTES, size })
    at += LENGTH_BYTES + size
    if (at > source.size) throw corrupt(source, `${what} ends after the file; it is truncated`)
  }
  return places
}

function describe(value: PickleValue): string {
  const isPlain = typeof value === 'string' || typeof value === 'number'
  return isPlain ? quote(String(value)) : 'that is no name or number'
}
