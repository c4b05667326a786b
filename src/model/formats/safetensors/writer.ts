/**
 * Writes safetensors, streamed: the header is known from names and shapes, so a checkpoint larger than memory can be
 * written. Knows nothing of what the tensors mean.
 */
import { closeSync, rmSync } from 'node:fs'
import type { SourceType } from '../../../backend/weight-types.ts'
import { SkeinError } from '../../../errors.ts'
import { quote } from '../byte-source.ts'
import { openToWrite, putInPlace, writeFully } from '../open-file.ts'

export interface WrittenTensor {
  readonly name: string
  readonly shape: readonly number[]
  readonly dtype: SourceType
  /** Row-major little-endian elements, in pieces. Each piece is used before the next is asked for. */
  readonly chunks: () => Iterable<Uint8Array>
}

/** Quantised weights, a byte an element. */
export interface WrittenBytes extends Omit<WrittenTensor, 'dtype'> {
  readonly dtype: 'i8' | 'u8'
}

type Written = WrittenTensor | WrittenBytes

const DTYPES: Readonly<Record<Written['dtype'], { name: string; bytes: number }>> = {
  f32: { name: 'F32', bytes: 4 },
  f16: { name: 'F16', bytes: 2 },
  bf16: { name: 'BF16', bytes: 2 },
  i8: { name: 'I8', bytes: 1 },
  u8: { name: 'U8', bytes: 1 },
}
/** Readers map the file into memory; the data begins where every element type may. */
const ALIGNMENT = 8

/** The file appears at `path` when it is complete; on an error there is none. */
export function writeSafetensors(
  path: string,
  tensors: readonly Written[],
  metadata: Readonly<Record<string, string>> = {},
): void {
  const partialPath = `${path}.${process.pid}.partial`
  const file = openToWrite(partialPath)
  try {
    writeFully(file, headerBytes(tensors, metadata))
    for (const tensor of tensors) appendTensor(file, tensor)
  } catch (error) {
    closeSync(file)
    rmSync(partialPath, { force: true })
    throw error
  }
  putInPlace(file, partialPath, path)
}

function headerBytes(tensors: readonly Written[], metadata: Readonly<Record<string, string>>): Buffer {
  // Without a prototype, so that "__proto__" is a name like any other.
  const header: Record<string, unknown> = Object.assign(Object.create(null), { __metadata__: metadata })
  let start = 0
  for (const tensor of tensors) {
    const end = start + byteLength(tensor)
    const { name, dtype, shape } = tensor
    if (name in header)
      throw new SkeinError('unsupported_weights', `no safetensors file can hold a tensor ${quote(name)}`)
    header[name] = { dtype: DTYPES[dtype].name, shape, data_offsets: [start, end] }
    start = end
  }
  const json = Buffer.from(JSON.stringify(header))
  const padded = Math.ceil(json.length / ALIGNMENT) * ALIGNMENT
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(padded))
  return Buffer.concat([length, json, Buffer.alloc(padded - json.length, ' ')])
}

function appendTensor(file: number, tensor: Written): void {
  let written = 0
  for (const chunk of tensor.chunks()) {
    writeFully(file, chunk)
    written += chunk.byteLength
  }
  const expected = byteLength(tensor)
  if (written === expected) return
  throw new RangeError(`${tensor.name}: ${written} bytes given, ${expected} announced`)
}

function byteLength({ shape, dtype }: Written): number {
  return shape.reduce((product, size) => product * size, DTYPES[dtype].bytes)
}
