import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { encodeFloats } from '../../../src/backend/half.ts'
import { openSafetensors } from '../../../src/model/formats/safetensors/safetensors.ts'
import { writeSafetensors } from '../../../src/model/formats/safetensors/writer.ts'
import { readFloats } from '../../../src/model/formats/tensor-values.ts'
import { memorySource } from '../../helpers/memory-source.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-safetensors-'))
afterAll(() => rmSync(folder, { recursive: true }))

function fileOf(header: unknown, data: number | Uint8Array = 0): Buffer {
  const json = Buffer.from(typeof header === 'string' ? header : JSON.stringify(header))
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(json.length))
  return Buffer.concat([length, json, typeof data === 'number' ? Buffer.alloc(data) : data])
}

const open = (header: unknown, data: number | Uint8Array = 0) => openSafetensors(memorySource(fileOf(header, data)))

/** safetensors 0.8.0 (Python): save({'a': float32 [[1, 2, 3], [4, 5, 6]], 'h': float16 [0.5, −2]}, {'format': 'pt'}) */
const PYTHON_FILE =
  'kAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJwdCJ9LCJhIjp7ImR0eXBlIjoiRjMyIiwic2hhcGUiOlsyLDNdLCJkYXRhX29mZnNldHMiOlswLDI0XX0sImgiOnsiZHR5cGUiOiJGMTYiLCJzaGFwZSI6WzJdLCJkYXRhX29mZnNldHMiOlsyNCwyOF19fSAAAIA/AAAAQAAAQEAAAIBAAACgQAAAwEAAOADA'

test('a file written by the Python library', () => {
  const { tensors, metadata } = openSafetensors(memorySource(Buffer.from(PYTHON_FILE, 'base64')))
  expect(Object.fromEntries(metadata!)).toEqual({ format: 'pt' })
  expect(tensors.get('a')).toMatchObject({ shape: [2, 3], dtype: 'f32' })
  expect(Array.from(readFloats(tensors.get('a')!))).toEqual([1, 2, 3, 4, 5, 6])
  expect(Array.from(readFloats(tensors.get('h')!))).toEqual([0.5, -2])
})

test('written and read again', () => {
  const path = join(folder, 'model.safetensors')
  const tensor = (name: string, dtype: 'f32' | 'f16' | 'bf16', values: number[], shape: number[]) => {
    const bytes = encodeFloats(Float32Array.from(values), dtype)
    return { name, shape, dtype, chunks: () => [bytes.subarray(0, 2), bytes.subarray(2)] }
  }
  const written = [
    tensor('odd', 'f16', [1, 2, 3], [3]),
    tensor('w', 'f32', [1.5, -2, 3, 4], [2, 2]),
    tensor('é', 'bf16', [0.5], []),
  ]
  writeSafetensors(path, written, { note: 'made here' })
  const bytes = readFileSync(path)
  expect((8 + Number(bytes.readBigUInt64LE())) % 8).toBe(0)
  const { tensors, metadata, format } = openSafetensors(memorySource(bytes))
  expect(format).toBe('safetensors')
  expect(metadata?.get('note')).toBe('made here')
  expect([...tensors.keys()]).toEqual(['odd', 'w', 'é'])
  expect(Array.from(readFloats(tensors.get('w')!))).toEqual([1.5, -2, 3, 4])
  expect(Array.from(readFloats(tensors.get('odd')!))).toEqual([1, 2, 3])
  expect(tensors.get('é')!.shape).toEqual([])
  expect(() => tensors.get('w')!.read(0, 5)).toThrow('w: elements 0 to 5 of 4')
})

test('a failed write leaves no file', () => {
  const path = join(folder, 'never.safetensors')
  const short = { name: 'a', shape: [4], dtype: 'f32', chunks: () => [new Uint8Array(8)] } as const
  expect(() => writeSafetensors(path, [short])).toThrow('a: 8 bytes given, 16 announced')
  expect(readdirSync(folder)).toEqual(['model.safetensors'])
})

test('names that are special in JavaScript or in the format', () => {
  const tensor = (name: string) => ({ name, shape: [1], dtype: 'f32', chunks: () => [new Uint8Array(4)] }) as const
  const path = join(folder, 'names.safetensors')
  writeSafetensors(path, [tensor('__proto__'), tensor('constructor')])
  const { tensors } = openSafetensors(memorySource(readFileSync(path)))
  expect([...tensors.keys()]).toEqual(['__proto__', 'constructor'])
  rmSync(path)
  expect(() => writeSafetensors(path, [tensor('__metadata__')])).toThrow('tensor __metadata__')
  expect(readdirSync(folder)).toEqual(['model.safetensors'])
})

describe('files that the format forbids are refused', () => {
  const a = { dtype: 'F32', shape: [2], data_offsets: [0, 8] }
  test.each<[string, unknown, number, string]>([
    ['a hole', { a: { ...a, data_offsets: [8, 16] } }, 16, 'tensor a begins after a hole'],
    ['an overlap', { a, b: { ...a, data_offsets: [4, 12] } }, 12, 'tensor b overlaps'],
    ['the same bytes twice', { a, b: a }, 8, 'tensor b overlaps the one before it'],
    ['bytes of no tensor', { a }, 12, '4 bytes at its end belong to no tensor'],
    ['a truncated file', { a }, 4, 'the data should be 8 bytes'],
    ['a size that is not the shape’s', { a: { ...a, shape: [3] } }, 8, 'has 8 bytes'],
    ['a negative size', { a: { ...a, shape: [-2] } }, 8, 'lacks a dtype, a shape or'],
    ['a fraction', { a: { ...a, data_offsets: [0, 8.5] } }, 8, 'lacks a dtype, a shape or'],
    ['three offsets', { a: { ...a, data_offsets: [0, 4, 8] } }, 8, 'lacks a dtype'],
    ['an end before the start', { a: { ...a, data_offsets: [8, 0] } }, 8, 'has -8 bytes'],
    ['sizes whose product overflows', { a: { ...a, shape: [2 ** 52, 2 ** 52, 2 ** 52] } }, 8, 'of shape'],
    ['a list', [], 0, 'its header is not a JSON object'],
    ['no JSON', '{"a":', 0, 'its header is not JSON'],
    ['a tensor that is a number', { a: 1 }, 0, 'tensor a is not described by an object'],
    ['metadata that is no text', { __metadata__: { a: 1 } }, 0, 'something that is not text'],
  ])('%s', (_what, header, data, message) => {
    expect(() => open(header, data)).toThrow(
      expect.objectContaining({ code: 'corrupt_weights', message: expect.stringContaining(message) }),
    )
  })

  test.each([
    ['another element type', { dtype: 'I64', shape: [1], data_offsets: [0, 8] }, 'of type "?I64'],
    ['nine dimensions', { dtype: 'F32', shape: [...Array(8).fill(1), 2], data_offsets: [0, 8] }, '9 dim'],
  ])('%s', (_what, tensor, message) => {
    expect(() => open({ t: tensor }, 8)).toThrow(
      expect.objectContaining({ code: 'unsupported_weights', message: expect.stringMatching(message) }),
    )
  })

  test('a header that claims more than the file has allocates nothing', () => {
    const source = memorySource(Buffer.concat([Buffer.from('ffffff0400000000', 'hex'), Buffer.from('{}')]))
    expect(() => openSafetensors(source)).toThrow('the header should be 83886079 bytes')
    expect(source.largestRead).toBe(8)
    expect(() => openSafetensors(memorySource(Buffer.from('ffffffffffffff7f7b7d', 'hex')))).toThrow(
      'at most 100000000 are read',
    )
  })

  test('names that are special in JavaScript are ordinary names', () => {
    const header = '{"__proto__":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    const { tensors } = open(header, Buffer.from(Float32Array.of(7).buffer))
    expect(Array.from(readFloats(tensors.get('__proto__')!))).toEqual([7])
  })
})
