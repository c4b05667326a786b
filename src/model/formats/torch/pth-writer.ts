/**
 * Writes tensors as torch.save does: a stored zip with `<name>/data.pkl` (a protocol 2 pickle of a dict of tensors),
 * `<name>/byteorder` and one `<name>/data/<n>` per storage. The bytes are streamed, so a checkpoint larger than
 * memory can be written. Knows nothing of what the tensors mean.
 */

import { closeSync, rmSync, writeSync } from 'node:fs'
import { crc32 } from 'node:zlib'
import { BYTES_PER_ELEMENT } from '../../../backend/half.ts'
import type { SourceType } from '../../../backend/weight-types.ts'
import { numElements } from '../format.ts'
import { openToWrite, putInPlace, writeFully } from '../open-file.ts'
import { contiguousStrides } from './tensors.ts'

export interface PthTensor {
  readonly name: string
  readonly shape: readonly number[]
  readonly dtype: SourceType
  /** The bytes of the tensor's storage, little-endian, in pieces. Each piece is used before the next is asked for. */
  readonly chunks: () => Iterable<Uint8Array>
  /** Below, in elements. Default: a storage that holds exactly the tensor, row-major. */
  readonly strides?: readonly number[]
  readonly storageOffset?: number
  readonly storageElements?: number
}

export interface PthOptions {
  /** Put before every tensor name, as torch.compile does with `_orig_mod.`. */
  readonly namePrefix?: string
  /** Use zip64 records even where the sizes do not need them. */
  readonly zip64?: boolean
  /** Wrap the dict: `{ [rootKey]: { … } }`. */
  readonly rootKey?: string
  /** Save each tensor as a torch.nn.Parameter. */
  readonly asParameters?: boolean
}

/** The file appears at `path` when it is complete; on an error there is none. */
export function writePth(path: string, tensors: readonly PthTensor[], options: PthOptions = {}): void {
  const zip = new ZipWriter(path, options.zip64 === undefined ? {} : { zip64: options.zip64 })
  try {
    const pickle = pickleTensors(tensors, options)
    zip.add('archive/data.pkl', pickle.length, [pickle])
    zip.add('archive/byteorder', 6, [Buffer.from('little')])
    for (const [index, tensor] of tensors.entries()) {
      const size = storageElements(tensor) * BYTES_PER_ELEMENT[tensor.dtype]
      zip.add(`archive/data/${index}`, size, tensor.chunks())
    }
    zip.add('archive/version', 2, [Buffer.from('3\n')])
  } catch (error) {
    zip.abandon()
    throw error
  }
  zip.close()
}

const STORAGE_NAMES: Readonly<Record<SourceType, string>> = {
  f32: 'FloatStorage',
  f16: 'HalfStorage',
  bf16: 'BFloat16Storage',
}

const EMPTY_TUPLE = op(')')
const MARK = op('(')
const TUPLE = op('t')
const REDUCE = op('R')
const FALSE = Buffer.of(0x89)
const EMPTY_ORDERED_DICT = [global('collections', 'OrderedDict'), EMPTY_TUPLE, REDUCE]

function storageElements(tensor: PthTensor): number {
  return tensor.storageElements ?? numElements(tensor)
}

function pickleTensors(tensors: readonly PthTensor[], options: PthOptions): Buffer {
  const items = tensors.flatMap((tensor, index) => [
    text((options.namePrefix ?? '') + tensor.name),
    ...(options.asParameters ? pickleParameter(tensor, index) : pickleTensor(tensor, index)),
  ])
  const dict = [op('}'), MARK, ...items, op('u')]
  const { rootKey } = options
  const root = rootKey === undefined ? dict : [op('}'), text(rootKey), ...dict, op('s')]
  return Buffer.concat([Buffer.of(0x80, 2), ...root, op('.')])
}

function pickleParameter(tensor: PthTensor, index: number): Buffer[] {
  const rebuild = global('torch._utils', '_rebuild_parameter')
  const data = pickleTensor(tensor, index)
  return [rebuild, MARK, ...data, FALSE, ...EMPTY_ORDERED_DICT, TUPLE, REDUCE]
}

function pickleTensor(tensor: PthTensor, index: number): Buffer[] {
  const storage = global('torch', STORAGE_NAMES[tensor.dtype])
  const count = integer(storageElements(tensor))
  const strides = tensor.strides ?? contiguousStrides(tensor.shape)
  return [
    global('torch._utils', '_rebuild_tensor_v2'),
    MARK,
    ...[MARK, text('storage'), storage, text(String(index)), text('cpu'), count, TUPLE],
    op('Q'),
    integer(tensor.storageOffset ?? 0),
    ...[MARK, ...tensor.shape.map(integer), TUPLE],
    ...[MARK, ...strides.map(integer), TUPLE],
    ...[FALSE, ...EMPTY_ORDERED_DICT],
    TUPLE,
    REDUCE,
  ]
}

function op(character: string): Buffer {
  return Buffer.from(character, 'latin1')
}

function global(module: string, name: string): Buffer {
  return Buffer.from(`c${module}\n${name}\n`, 'latin1')
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value)
  const head = Buffer.alloc(5)
  head.write('X', 'latin1')
  head.writeUInt32LE(bytes.length, 1)
  return Buffer.concat([head, bytes])
}

function integer(value: number): Buffer {
  if (value >= 0 && value < 0x80000000) {
    const bytes = Buffer.alloc(5)
    bytes.write('J', 'latin1')
    bytes.writeInt32LE(value, 1)
    return bytes
  }
  const bytes = Buffer.alloc(10)
  bytes.writeUInt16LE(0x088a) // LONG1 of 8 bytes
  bytes.writeBigInt64LE(BigInt(value), 2)
  return bytes
}

/**
 * Writes a zip of stored (uncompressed) entries to a file, in pieces, each entry's bytes at a multiple of 64 as
 * torch aligns them. Zip64 records appear where a size or offset needs them, or everywhere on request. Knows nothing
 * of what the entries mean.
 */

const ALIGNMENT = 64
const UINT32_MAX = 0xffffffff
const FLAG_UTF8_NAME = 0x800
/** 1980-01-01: equal contents give equal files. */
const DOS_DATE = 0x21

interface WrittenEntry {
  readonly name: Buffer
  readonly size: number
  readonly checksum: number
  readonly offset: number
}

/** Writes beside the wanted path; `close` puts the complete file there or leaves nothing, as `abandon` does. */
export class ZipWriter {
  readonly #path: string
  readonly #partialPath: string
  readonly #file: number
  readonly #forceZip64: boolean
  readonly #entries: WrittenEntry[] = []
  #position = 0

  constructor(path: string, options: { readonly zip64?: boolean } = {}) {
    this.#path = path
    this.#partialPath = `${path}.${process.pid}.partial`
    this.#file = openToWrite(this.#partialPath)
    this.#forceZip64 = options.zip64 ?? false
  }

  /** `size` is known beforehand because the header precedes the bytes; the checksum is filled in afterwards. */
  add(name: string, size: number, chunks: Iterable<Uint8Array>): void {
    const entry = { name: Buffer.from(name), size, checksum: 0, offset: this.#position }
    this.#append(this.#localHeader(entry))
    let checksum = 0
    let written = 0
    for (const chunk of chunks) {
      checksum = crc32(chunk, checksum)
      written += chunk.byteLength
      this.#append(chunk)
    }
    if (written !== size) throw new RangeError(`${name}: ${written} bytes given, ${size} announced`)
    const crcField = Buffer.alloc(4)
    crcField.writeUInt32LE(checksum)
    writeSync(this.#file, crcField, 0, 4, entry.offset + 14)
    this.#entries.push({ ...entry, checksum })
  }

  close(): void {
    try {
      const start = this.#position
      for (const entry of this.#entries) this.#append(this.#centralHeader(entry))
      this.#append(this.#endRecords(start, this.#position - start))
    } catch (error) {
      this.abandon()
      throw error
    }
    putInPlace(this.#file, this.#partialPath, this.#path)
  }

  abandon(): void {
    closeSync(this.#file)
    rmSync(this.#partialPath, { force: true })
  }

  #append(bytes: Uint8Array): void {
    writeFully(this.#file, bytes)
    this.#position += bytes.byteLength
  }

  #isLarge(value: number): boolean {
    return this.#forceZip64 || value >= UINT32_MAX
  }

  #localHeader(entry: WrittenEntry): Buffer {
    const large = this.#isLarge(entry.size)
    const zip64 = large ? extraField(0x0001, [entry.size, entry.size]) : Buffer.alloc(0)
    const unpadded = entry.offset + 30 + entry.name.length + zip64.length + 4
    const padding = Buffer.alloc(4 + ((ALIGNMENT - (unpadded % ALIGNMENT)) % ALIGNMENT))
    padding.write('FB', 'latin1') // the extra field id that torch pads with
    padding.writeUInt16LE(padding.length - 4, 2)
    const header = Buffer.alloc(30)
    header.writeUInt32LE(0x04034b50, 0)
    header.writeUInt16LE(large ? 45 : 20, 4)
    header.writeUInt16LE(FLAG_UTF8_NAME, 6)
    header.writeUInt16LE(DOS_DATE, 12)
    header.writeUInt32LE(large ? UINT32_MAX : entry.size, 18)
    header.writeUInt32LE(large ? UINT32_MAX : entry.size, 22)
    header.writeUInt16LE(entry.name.length, 26)
    header.writeUInt16LE(zip64.length + padding.length, 28)
    return Buffer.concat([header, entry.name, zip64, padding])
  }

  #centralHeader(entry: WrittenEntry): Buffer {
    const largeSize = this.#isLarge(entry.size)
    const largeOffset = this.#isLarge(entry.offset)
    const fields = [...(largeSize ? [entry.size, entry.size] : []), ...(largeOffset ? [entry.offset] : [])]
    const zip64 = fields.length > 0 ? extraField(0x0001, fields) : Buffer.alloc(0)
    const header = Buffer.alloc(46)
    header.writeUInt32LE(0x02014b50, 0)
    header.writeUInt16LE(45, 4)
    header.writeUInt16LE(fields.length > 0 ? 45 : 20, 6)
    header.writeUInt16LE(FLAG_UTF8_NAME, 8)
    header.writeUInt16LE(DOS_DATE, 14)
    header.writeUInt32LE(entry.checksum, 16)
    header.writeUInt32LE(largeSize ? UINT32_MAX : entry.size, 20)
    header.writeUInt32LE(largeSize ? UINT32_MAX : entry.size, 24)
    header.writeUInt16LE(entry.name.length, 28)
    header.writeUInt16LE(zip64.length, 30)
    header.writeUInt32LE(largeOffset ? UINT32_MAX : entry.offset, 42)
    return Buffer.concat([header, entry.name, zip64])
  }

  #endRecords(start: number, size: number): Buffer {
    const count = this.#entries.length
    const end = Buffer.alloc(22)
    end.writeUInt32LE(0x06054b50, 0)
    if (!this.#isLarge(start + size) && count < 0xffff) {
      end.writeUInt16LE(count, 8)
      end.writeUInt16LE(count, 10)
      end.writeUInt32LE(size, 12)
      end.writeUInt32LE(start, 16)
      return end
    }
    end.fill(0xff, 8, 20)
    const record = Buffer.alloc(56)
    record.writeUInt32LE(0x06064b50, 0)
    record.writeBigUInt64LE(44n, 4)
    record.writeUInt16LE(45, 12)
    record.writeUInt16LE(45, 14)
    record.writeBigUInt64LE(BigInt(count), 24)
    record.writeBigUInt64LE(BigInt(count), 32)
    record.writeBigUInt64LE(BigInt(size), 40)
    record.writeBigUInt64LE(BigInt(start), 48)
    const locator = Buffer.alloc(20)
    locator.writeUInt32LE(0x07064b50, 0)
    locator.writeBigUInt64LE(BigInt(start + size), 8)
    locator.writeUInt32LE(1, 16)
    return Buffer.concat([record, locator, end])
  }
}

function extraField(id: number, values: readonly number[]): Buffer {
  const field = Buffer.alloc(4 + 8 * values.length)
  field.writeUInt16LE(id, 0)
  field.writeUInt16LE(8 * values.length, 2)
  for (const [i, value] of values.entries()) field.writeBigUInt64LE(BigInt(value), 4 + 8 * i)
  return field
}
