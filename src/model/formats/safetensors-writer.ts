/**
 * Writes safetensors, streamed: the header is known from names and shapes, so a checkpoint larger than memory can be
 * written. Knows nothing of what the tensors mean.
 */
import { closeSync, openSync, renameSync, rmSync, writeSync } from 'node:fs'
import type { SourceType } from '../../backend/backend.ts'
import { BYTES_PER_ELEMENT } from './half.ts'

export interface WrittenTensor {
  readonly name: string
  readonly shape: readonly number[]
  readonly dtype: SourceType
  /** Row-major little-endian elements, in pieces. Each piece is used before the next is asked for. */
  readonly chunks: () => Iterable<Uint8Array>
}

const DTYPE_NAMES: Readonly<Record<SourceType, string>> = { f32: 'F32', f16: 'F16', bf16: 'BF16' }
/** Readers map the file into memory; the data begins where every element type may. */
const ALIGNMENT = 8

/** The file appears at `path` when it is complete; on an error there is none. */
export function writeSafetensors(
  path: string,
  tensors: readonly WrittenTensor[],
  metadata: Readonly<Record<string, string>> = {},
): void {
  const partialPath = `${path}.${process.pid}.partial`
  const file = openSync(partialPath, 'w')
  try {
    append(file, headerBytes(tensors, metadata))
    for (const tensor of tensors) appendTensor(file, tensor)
  } catch (error) {
    closeSync(file)
    rmSync(partialPath, { force: true })
    throw error
  }
  closeSync(file)
  renameSync(partialPath, path)
}

function headerBytes(
  tensors: readonly WrittenTensor[],
  metadata: Readonly<Record<string, string>>,
): Buffer {
  const header: Record<string, unknown> = { __metadata__: metadata }
  let start = 0
  for (const tensor of tensors) {
    const end = start + byteLength(tensor)
    const { name, dtype, shape } = tensor
    header[name] = { dtype: DTYPE_NAMES[dtype], shape, data_offsets: [start, end] }
    start = end
  }
  const json = Buffer.from(JSON.stringify(header))
  const padded = Math.ceil(json.length / ALIGNMENT) * ALIGNMENT
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(padded))
  return Buffer.concat([length, json, Buffer.alloc(padded - json.length, ' ')])
}

function appendTensor(file: number, tensor: WrittenTensor): void {
  let written = 0
  for (const chunk of tensor.chunks()) {
    append(file, chunk)
    written += chunk.byteLength
  }
  const expected = byteLength(tensor)
  if (written === expected) return
  throw new RangeError(`${tensor.name}: ${written} bytes given, ${expected} announced`)
}

function byteLength({ shape, dtype }: WrittenTensor): number {
  return shape.reduce((product, size) => product * size, BYTES_PER_ELEMENT[dtype])
}

function append(file: number, bytes: Uint8Array): void {
  let done = 0
  while (done < bytes.byteLength) done += writeSync(file, bytes, done)
}
