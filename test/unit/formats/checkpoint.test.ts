import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { decodeFloats } from '../../../src/backend/half.ts'
import { openCheckpoint } from '../../../src/model/checkpoint.ts'
import { fingerprint } from '../../../src/model/formats/fingerprint.ts'
import { matrixSource, readFloats, transposedSource } from '../../../src/model/formats/tensor-values.ts'
import { type PthTensorValues, writePth, writeRandomRwkv7, writeZip } from '../../helpers/pth.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-checkpoint-'))
afterAll(() => rmSync(folder, { recursive: true }))
const file = (name: string) => join(folder, name)

describe('files of other formats are named', () => {
  const tar = Buffer.alloc(512)
  tar.write('ustar', 257)
  test.each<[string, Uint8Array | string]>([
    ['a Python pickle; it may run any code', Buffer.from('80049500', 'hex')],
    ['an empty file', ''],
    ['an empty zip', `PK\x05\x06${'\0'.repeat(18)}`],
    ['a Git LFS pointer', 'version https://git-lfs.github.com/spec/v1\noid sha256:0\n'],
    ['a web page; the download went wrong', '\n<!DOCTYPE html><html>'],
    ['a gzip archive; unpack it', Buffer.from('1f8b0800', 'hex')],
    ['a tar archive', tar],
    ['of no format known here', Buffer.concat([Buffer.alloc(8, 0xff), Buffer.from('{}')])],
    ['of no format known here (it begins with "hello?")', 'hello\n'],
  ])('%s', (found, content) => {
    writeFileSync(file('other'), content)
    expect(() => openCheckpoint(file('other'))).toThrow(
      expect.objectContaining({
        code: 'unsupported_weights',
        message: expect.stringContaining(`${file('other')} is ${found}`),
      }),
    )
  })

  /** 0x80 and a small number begin a pickle too; 0x1f8b begins a gzip. */
  test.each([0x80, 0x380, 0x580, 0x8b1f])('safetensors with a header of %d bytes', (length) => {
    const header = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.padEnd(length)
    const size = Buffer.alloc(8)
    size.writeBigUInt64LE(BigInt(length))
    writeFileSync(file('header'), Buffer.concat([size, Buffer.from(header), Buffer.alloc(4)]))
    const checkpoint = openCheckpoint(file('header'))
    expect([...checkpoint.tensors.keys()]).toEqual(['a'])
    checkpoint.close()
  })

  test('a directory', () => {
    mkdirSync(file('directory'))
    expect(() => openCheckpoint(file('directory'))).toThrow(
      'is a directory without config.json; give the checkpoint file in it',
    )
  })

  test('a zip without tensors', () => {
    writeZip(file('other'), { 'word/document.xml': '<x/>' })
    expect(() => openCheckpoint(file('other'))).toThrow('is a zip without data.pkl')
  })

  test('a missing path', () => {
    expect(() => openCheckpoint(file('absent'))).toThrow(expect.objectContaining({ code: 'not_found' }))
  })
})

describe('matrices', () => {
  const values = [1, 2, 3, 4, 5, 6]
  const open = (tensor: Partial<PthTensorValues>) => {
    writePth(file('matrix.pth'), [{ name: 'w', shape: [2, 3], values, ...tensor }])
    return openCheckpoint(file('matrix.pth')).tensors.get('w')!
  }

  test.each(['f32', 'f16', 'bf16'] as const)('by rows and transposed, %s', (dtype) => {
    const entry = open({ dtype })
    const matrix = matrixSource(entry)
    expect(matrix).toMatchObject({ name: 'w', rows: 2, columns: 3, dtype })
    expect(Array.from(decodeFloats(matrix.readRows(1, 2), dtype))).toEqual([4, 5, 6])
    const transposed = transposedSource(entry)
    expect(transposed).toMatchObject({ name: 'w', rows: 3, columns: 2, dtype })
    expect(Array.from(decodeFloats(transposed.turned!.readRows(1, 2), dtype))).toEqual([4, 5, 6])
    matrix.readRows(0, 2) // the transpose does not live in the shared buffer
    expect(Array.from(decodeFloats(transposed.readRows(1, 3), dtype))).toEqual([2, 5, 3, 6])
  })

  test('a vector is not a matrix', () => {
    expect(() => matrixSource(open({ shape: [6] }))).toThrow('w has shape [6]; a matrix was expected')
  })
})

describe('fingerprint', () => {
  const of = (path: string) => {
    const checkpoint = openCheckpoint(path)
    try {
      return fingerprint(checkpoint)
    } finally {
      checkpoint.close()
    }
  }
  const large = Float32Array.from({ length: 20_000 }, (_, i) => i)
  const print = (tensors: PthTensorValues[], options = {}) => {
    writePth(file('print.pth'), tensors, options)
    return of(file('print.pth'))
  }
  const tensors: PthTensorValues[] = [
    { name: 'a', shape: [1, 1, 4], values: [1, 2, 3, 4] },
    { name: 'b', shape: [100, 200], values: large },
  ]
  const [a, b] = [tensors[0]!, tensors[1]!]
  const whole = print(tensors)

  test('does not depend on order, packing, strides or axes of size 1', () => {
    expect(whole).toMatch(/^[0-9a-f]{64}$/)
    expect(print([b, a], { zip64: true, namePrefix: '_orig_mod.' })).toBe(whole)
    expect(print([{ ...a, shape: [4] }, b])).toBe(whole)
    const columns = Float32Array.from(large, (_, i) => large[(i % 100) * 200 + Math.floor(i / 100)]!)
    expect(print([a, { ...b, values: columns, strides: [1, 100] }])).toBe(whole)
  })

  test('depends on names, types, shapes and values', () => {
    expect(print([{ ...a, name: 'c' }, b])).not.toBe(whole)
    expect(print([{ ...a, dtype: 'f16' }, b])).not.toBe(whole)
    expect(print([a, { ...b, shape: [200, 100] }])).not.toBe(whole)
    expect(print([{ ...a, values: [1, 2, 3, 5] }, b])).not.toBe(whole)
    expect(print([a, { ...b, values: large.with(19_999, 7) }])).not.toBe(whole)
  })

  test('two random models differ, the same seed does not', () => {
    const first = of(writeRandomRwkv7(file('r.pth'), { seed: 1 }))
    expect(of(writeRandomRwkv7(file('r.pth'), { seed: 2 }))).not.toBe(first)
    expect(of(writeRandomRwkv7(file('r.pth'), { seed: 1 }))).toBe(first)
  })
})

test('a random model has the documented spreads', () => {
  const { tensors } = openCheckpoint(writeRandomRwkv7(file('spread.pth'), { channels: 256, vocab: 4096 }))
  const moments = (name: string) => {
    const values = readFloats(tensors.get(name)!)
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length
    return [mean, Math.sqrt(variance)]
  }
  const close = (name: string, mean: number, deviation: number) => {
    const [m, d] = moments(name)
    expect(m).toBeCloseTo(mean, 1)
    expect(d! / deviation).toBeCloseTo(1, 1)
  }
  close('emb.weight', 0, 0.5)
  close('head.weight', 0, 1 / 16)
  close('blocks.1.att.value.weight', 0, 0.5 / 16)
  close('blocks.0.att.w0', -2, 1.5)
  expect(moments('blocks.0.att.ln_x.weight')).toEqual([1, 0])
})
