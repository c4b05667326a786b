/**
 * Writes tensors as torch.save does: a stored zip with `<name>/data.pkl` (a protocol 2 pickle of a dict of tensors),
 * `<name>/byteorder` and one `<name>/data/<n>` per storage. The bytes are streamed, so a checkpoint larger than
 * memory can be written. Knows nothing of what the tensors mean.
 */

import { BYTES_PER_ELEMENT } from '../../../backend/half.ts'
import type { SourceType } from '../../../backend/weight-types.ts'
import { contiguousStrides } from './tensors.ts'
import { ZipWriter } from './zip-writer.ts'

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
  return tensor.storageElements ?? tensor.shape.reduce((product, size) => product * size, 1)
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
  const numElements = integer(storageElements(tensor))
  const strides = tensor.strides ?? contiguousStrides(tensor.shape)
  return [
    global('torch._utils', '_rebuild_tensor_v2'),
    MARK,
    ...[MARK, text('storage'), storage, text(String(index)), text('cpu'), numElements, TUPLE],
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
