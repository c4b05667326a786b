import { describe, expect, test } from 'vitest'
import { readZip } from '../../../src/model/formats/torch/zip.ts'
import { memorySource } from '../../helpers/memory-source.ts'

interface Entry {
  readonly name: string
  readonly content: string
  readonly flags?: number
  readonly method?: number
  readonly size?: number
  readonly packedSize?: number
  readonly headerOffset?: number
  /** The zip64 field: 64-bit values of the saturated fields only. */
  readonly zip64?: readonly number[]
}

interface End {
  readonly count?: number
  readonly size?: number
  readonly offset?: number
  readonly comment?: string
}

/** A zip of 32-bit records with fields that can be false. Local headers have no sizes, as torch writes them. */
function zipOf(entries: readonly Entry[], end: End = {}): Buffer {
  const parts: Buffer[] = []
  const central: Buffer[] = []
  let position = 0
  for (const { name, content, flags = 8, method = 0, ...fields } of entries) {
    const local = Buffer.alloc(30)
    local.write('PK\x03\x04', 'latin1')
    local.writeUInt16LE(name.length, 26)
    local.writeUInt16LE(5, 28)
    parts.push(local, Buffer.from(name), Buffer.from('extra'), Buffer.from(content))
    const record = Buffer.alloc(46)
    record.write('PK\x01\x02', 'latin1')
    record.writeUInt16LE(flags, 8)
    record.writeUInt16LE(method, 10)
    const size = fields.size ?? content.length
    record.writeUInt32LE(fields.packedSize ?? size, 20)
    record.writeUInt32LE(size, 24)
    record.writeUInt16LE(name.length, 28)
    record.writeUInt32LE(fields.headerOffset ?? position, 42)
    const extra = Buffer.alloc(fields.zip64 ? 4 + 8 * fields.zip64.length : 0)
    for (const [i, value] of (fields.zip64 ?? []).entries()) {
      extra.writeUInt32LE(0x0001 + 0x10000 * (extra.length - 4), 0)
      extra.writeBigUInt64LE(BigInt(value), 4 + 8 * i)
    }
    record.writeUInt16LE(extra.length, 30)
    central.push(record, Buffer.from(name), extra)
    position += 35 + name.length + content.length
  }
  const directory = Buffer.concat(central)
  const tail = Buffer.alloc(22)
  tail.write('PK\x05\x06', 'latin1')
  tail.writeUInt16LE(end.count ?? entries.length, 10)
  tail.writeUInt32LE(end.size ?? directory.length, 12)
  tail.writeUInt32LE(end.offset ?? position, 16)
  tail.writeUInt16LE(end.comment?.length ?? 0, 20)
  return Buffer.concat([...parts, directory, tail, Buffer.from(end.comment ?? '')])
}

const read = (bytes: Uint8Array) => readZip(memorySource(bytes))
const A = { name: 'a', content: 'hello' }
const B = { name: 'b/c', content: 'world!' }

test('entries start after their local headers', () => {
  const bytes = zipOf([A, B, { name: 'empty', content: '' }])
  const contents = [...read(bytes)].map(([name, { offset, size }]) => [
    name,
    bytes.toString('latin1', offset, offset + size),
  ])
  expect(contents).toEqual([
    ['a', 'hello'],
    ['b/c', 'world!'],
    ['empty', ''],
  ])
})

test('a zip64 field has only the values that exceed 32 bits', () => {
  const far = { ...B, headerOffset: 0xffffffff, zip64: [41] }
  const large = { ...B, size: 0xffffffff, zip64: [6, 6] }
  const plain = read(zipOf([A, B])).get('b/c')
  expect(read(zipOf([A, far])).get('b/c')).toEqual(plain)
  expect(read(zipOf([A, large])).get('b/c')).toEqual(plain)
})

test('a comment may follow, even one that looks like an end record', () => {
  expect(read(zipOf([A], { comment: `PK\x05\x06${'x'.repeat(40)}` })).size).toBe(1)
  expect(read(zipOf([A], { comment: 'x'.repeat(65535) })).size).toBe(1)
})

describe('unsupported features are refused', () => {
  test.each([
    ['zip entry a is compressed (deflate)', zipOf([{ ...A, method: 8 }])],
    ['zip entry a is compressed (method 77)', zipOf([{ ...A, method: 77 }])],
    ['zip entry a is encrypted', zipOf([{ ...A, flags: 1 }])],
  ])('%s', (problem, bytes) => {
    expect(() => read(bytes)).toThrow(
      expect.objectContaining({ code: 'unsupported_weights', message: expect.stringContaining(problem) }),
    )
  })
})

describe('damaged files are refused', () => {
  const whole = zipOf([A, B])
  test.each([
    ['no zip directory at its end', whole.subarray(0, -1)],
    ['no zip directory at its end', Buffer.concat([whole, Buffer.from('x')])],
    ['no zip directory at its end', Buffer.alloc(10)],
    ['no zip directory at its end', Buffer.alloc(0)],
    ['overlaps its end record', zipOf([A], { size: 60 })],
    ['the zip directory should be', zipOf([A], { size: 0x7fffffff })],
    ['the zip directory should be', zipOf([A], { offset: 0x7fffffff })],
    ['entry 1 of the zip directory is damaged', zipOf([A], { count: 2 })],
    ['entry 0 of the zip directory is damaged', zipOf([A], { offset: 1 })],
    ['zip entry a has two different sizes', zipOf([{ ...A, packedSize: 4 }])],
    ['zip entry a has no header at its offset', zipOf([{ ...A, headerOffset: 3 }])],
    ['zip entry a should be 30 bytes', zipOf([{ ...A, headerOffset: 0x7fffffff }])],
    ['zip entry a lacks its zip64 sizes', zipOf([{ ...A, headerOffset: 0xffffffff }])],
    ['lists a twice', zipOf([A, A])],
    ['zip entries a and b/c overlap', zipOf([A, { ...B, headerOffset: 0 }])],
    ['zip entry a overlaps the zip directory', zipOf([{ ...A, size: 6 }])],
    ['zip entry a should be 4294967294 bytes', zipOf([{ ...A, size: 0xfffffffe }])],
    ['the zip64 locator is missing', zipOf([A], { count: 0xffff })],
  ])('%s', (problem, bytes) => {
    expect(() => read(bytes)).toThrow(
      expect.objectContaining({ code: 'corrupt_weights', message: expect.stringContaining(problem) }),
    )
  })
})
