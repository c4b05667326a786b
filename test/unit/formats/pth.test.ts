import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { afterAll, describe, expect, test } from 'vitest'
import { encodeFloats } from '../../../src/backend/half.ts'
import type { SourceType } from '../../../src/backend/weight-types.ts'
import { openCheckpoint } from '../../../src/model/checkpoint.ts'
import { readFloats } from '../../../src/model/formats/tensor-values.ts'
import { writePth as writePthStream } from '../../../src/model/formats/torch/pth-writer.ts'
import { writePth, writeRandomRwkv7, writeZip } from '../../helpers/pth.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-pth-'))
afterAll(() => rmSync(folder, { recursive: true }))
const file = (name: string) => join(folder, name)

function floatsOf(path: string, name: string): number[] {
  const checkpoint = openCheckpoint(path)
  try {
    return Array.from(readFloats(checkpoint.tensors.get(name)!))
  } finally {
    checkpoint.close()
  }
}

const range = (count: number) => Array.from({ length: count }, (_, i) => i)

describe('written and read again', () => {
  test.each<[SourceType, boolean]>([
    ['f32', false],
    ['f16', false],
    ['bf16', true],
  ])('%s, zip64 %s', (dtype, zip64) => {
    const path = file(`round-${dtype}.pth`)
    writePth(
      path,
      [
        { name: 'a', shape: [2, 3], values: range(6), dtype },
        { name: 'scalar', shape: [], values: [-0.5], dtype },
        { name: 'empty', shape: [0, 4], values: [], dtype },
        { name: 'block.µ', shape: [1, 1, 4], values: [1, -2, 4, 0.25], dtype },
      ],
      { zip64 },
    )
    const checkpoint = openCheckpoint(path)
    const seen = [...checkpoint.tensors.values()].map((entry) => [
      entry.name,
      entry.dtype,
      entry.shape,
      Array.from(readFloats(entry)),
    ])
    checkpoint.close()
    expect(seen).toEqual([
      ['a', dtype, [2, 3], range(6)],
      ['scalar', dtype, [], [-0.5]],
      ['empty', dtype, [0, 4], []],
      ['block.µ', dtype, [1, 1, 4], [1, -2, 4, 0.25]],
    ])
  })

  test('part of a tensor', () => {
    const path = file('part.pth')
    writePth(path, [{ name: 'a', shape: [4, 2], values: range(8), dtype: 'bf16' }])
    const entry = openCheckpoint(path).tensors.get('a')!
    expect(Buffer.from(entry.read(2, 4)).equals(encodeFloats(Float32Array.of(2, 3), 'bf16'))).toBe(true)
    expect(entry.read(3, 3).byteLength).toBe(0)
    expect(() => entry.read(0, 9)).toThrow(RangeError)
  })

  test.each(['_orig_mod.', 'module.', '_forward_module.'])(
    'parameters of a wrapped model (%s) inside a training checkpoint',
    (namePrefix) => {
      const path = file('wrapped.pth')
      const tensors = [{ name: 'emb.weight', shape: [2], values: [1, 2] }]
      const options = { namePrefix, asParameters: true, rootKey: 'state_dict' }
      writePth(path, tensors, options)
      expect(floatsOf(path, 'emb.weight')).toEqual([1, 2])
    },
  )

  test('the suffix .pth may be omitted', () => {
    writeRandomRwkv7(file('named.pth'))
    const checkpoint = openCheckpoint(file('named'))
    expect(checkpoint.path).toBe(file('named.pth'))
    checkpoint.close()
  })

  test('a failed write leaves nothing behind', () => {
    const tensor = { name: 'a', shape: [4], dtype: 'f32' as const, chunks: () => [new Uint8Array(15)] }
    expect(() => writePthStream(file('short.pth'), [tensor])).toThrow('15 bytes given, 16 announced')
    expect(readdirSync(folder).filter((name) => name.startsWith('short'))).toEqual([])
  })
})

describe('views of a storage', () => {
  const values = range(24)
  test.each([
    { what: 'offset', shape: [2, 3], strides: [3, 1], storageOffset: 5, expected: [5, 6, 7, 8, 9, 10] },
    { what: 'transposed', shape: [3, 2], strides: [1, 3], storageOffset: 0, expected: [0, 3, 1, 4, 2, 5] },
    { what: 'columns', shape: [3, 2], strides: [8, 1], storageOffset: 2, expected: [2, 3, 10, 11, 18, 19] },
    { what: 'every other', shape: [4], strides: [6], storageOffset: 1, expected: [1, 7, 13, 19] },
    {
      what: 'odd strides on axes of one',
      shape: [1, 4, 1],
      strides: [99, 1, 77],
      storageOffset: 20,
      expected: [20, 21, 22, 23],
    },
    {
      what: 'three axes permuted',
      shape: [2, 2, 3],
      strides: [1, 12, 4],
      storageOffset: 0,
      expected: [0, 4, 8, 12, 16, 20, 1, 5, 9, 13, 17, 21],
    },
  ])('$what', ({ expected, ...view }) => {
    const path = file('view.pth')
    for (const dtype of ['f32', 'bf16'] as const) {
      const other = { name: 'other', shape: [2, 2], strides: [1, 2], values: range(4), dtype }
      writePth(path, [{ name: 'a', values, dtype, ...view }, other])
      expect(floatsOf(path, 'a')).toEqual(expected)
      const { tensors } = openCheckpoint(path)
      // Two gathered tensors alternately, in parts.
      tensors.get('other')!.read(0, 1)
      const part = tensors.get('a')!.read(1, 3)
      expect(Buffer.from(part).equals(encodeFloats(Float32Array.from(expected.slice(1, 3)), dtype))).toBe(true)
    }
  })

  test.each([
    ['past the end', { shape: [2, 3], strides: [3, 1], storageOffset: 19 }],
    ['long strides', { shape: [2, 2], strides: [23, 1] }],
    ['far offset of nothing', { shape: [0], strides: [1], storageOffset: 25 }],
    ['far offset of a scalar', { shape: [], strides: [], storageOffset: 24 }],
    ['an expanded view, larger than its storage', { shape: [5, 5], strides: [0, 0] }],
    ['dimensions whose product overflows', { shape: [2 ** 31, 2 ** 31, 2 ** 31], strides: [0, 0, 0] }],
    ['strides whose product overflows', { shape: [2], strides: [2 ** 53 - 1], storageOffset: 2 ** 53 - 1 }],
  ])('%s is refused before anything is allocated', (_what, view) => {
    const path = file('outside.pth')
    writePth(path, [{ name: 'a', values, ...view }])
    expect(() => openCheckpoint(path)).toThrow(
      expect.objectContaining({ code: 'corrupt_weights', message: expect.stringContaining('tensor a') }),
    )
  })
})

/** The output of CPython's pickler for a training checkpoint like torch's, by protocol. */
const CPYTHON_PICKLES = {
  2: 'gAJ9cQAoWAUAAABtb2RlbHEBY2NvbGxlY3Rpb25zCk9yZGVyZWREaWN0CnECKVJxAyhYAQAAAGFxBGN0b3JjaC5fdXRpbHMKX3JlYnVpbGRfdGVuc29yX3YyCnEFKChYBwAAAHN0b3JhZ2VxBmN0b3JjaApGbG9hdFN0b3JhZ2UKcQdYAQAAADBxCFgDAAAAY3B1cQlLBnRxClFLAEsCSwOGcQtLA0sBhnEMiWgCKVJxDXRxDlJxD1gBAAAAYnEQY3RvcmNoLl91dGlscwpfcmVidWlsZF9wYXJhbWV0ZXIKcRFoBSgoaAZoB2gIaAlLBnRxElFLAEsDSwKGcRNLAUsDhnEUiWgCKVJxFXRxFlJxF4hoAilScRiHcRlScRpYAQAAAGNxG2gFKChoBmN0b3JjaApCRmxvYXQxNlN0b3JhZ2UKcRxYAQAAADFxHWgJSwR0cR5RSwFLA4VxH0sBhXEgiWgCKVJxIXRxIlJxI3V9cSRYCQAAAF9tZXRhZGF0YXElaAIpUnEmWAAAAABxJ31xKFgHAAAAdmVyc2lvbnEpSwFzc3NiWAUAAABlcG9jaHEqSwdYBAAAAGxvc3NxK0c/4AAAAAAAAFgEAAAAYXJnc3EsfXEtWAIAAABscnEuXXEvKEc/UGJN0vGp/E6IZXNYAwAAAGJpZ3EwigYAAAAAAAF1Lg==',
  4: 'gASVowEAAAAAAAB9lCiMBW1vZGVslIwLY29sbGVjdGlvbnOUjAtPcmRlcmVkRGljdJSTlClSlCiMAWGUjAx0b3JjaC5fdXRpbHOUjBJfcmVidWlsZF90ZW5zb3JfdjKUk5QoKIwHc3RvcmFnZZSMBXRvcmNolIwMRmxvYXRTdG9yYWdllJOUjAEwlIwDY3B1lEsGdJRRSwBLAksDhpRLA0sBhpSJaAQpUpR0lFKUjAFilGgHjBJfcmVidWlsZF9wYXJhbWV0ZXKUk5RoCSgoaApoDWgOaA9LBnSUUUsASwNLAoaUSwFLA4aUiWgEKVKUdJRSlIhoBClSlIeUUpSMAWOUaAkoKGgKaAuMD0JGbG9hdDE2U3RvcmFnZZSTlIwBMZRoD0sEdJRRSwFLA4WUSwGFlIloBClSlHSUUpR1fZSMCV9tZXRhZGF0YZRoBClSlIwAlH2UjAd2ZXJzaW9ulEsBc3NzYowFZXBvY2iUSweMBGxvc3OURz/gAAAAAAAAjARhcmdzlH2UjAJscpRdlChHP1BiTdLxqfxOiGVzjANiaWeUigYAAAAAAAF1Lg==',
} as const

/**
 * Saved by torch 2.11, gzipped: a = arange(24).reshape(4, 6), b = a.t(), c = a[1:3, 2:5], d = a.bfloat16(), e =
 * a.half()[:, ::2], f = Parameter(a + 1), s = tensor(3.5), z = empty(0, 4), p = a.reshape(2, 3, 4).permute(2, 0, 1).
 */
const TORCH_FILE =
  'H4sIAAAAAAACA7VWTUzbZhj+8kPIws8opaUdW8vWbQ2jgJ0fp7QFbJe6gGFLPW1C1aQQEkOiBZI3+ejUSpOsTQV6mTqp6nqauEzqsbftNHHatdqpFw6Tdtpp6mHSjns/fyGzTVLKqhkeIqL3+Xn95X3jtB4IEhIOkwNXFzlB8sUcHctnaXa08nlJU4+Rm97L8n8JJLroQ0IWfDlaruYKo5kNWizVIpmqubxRLOUz1FyvlauZW7EI+KPRxXYsrmFldtWEAKdEtFI5Sz/mb0YgaAsK0LYYwNdcZQNC+ikK7Td0ogf10CaE9ZDu24TX7uVy5VLJzNFieb0W+aiaN6tmfhpTRyAyZEAHhU4Dumy1ZeguoHshUAgW2gq23utML6QHN6FH9zHZY/cKjNZL4bgBfTYtBye8tJM39LDu1wOb0M9jnOK00xTeMGDApuXhTU6r96faDYpSo8W37DIRznDNs43WBrnm21zzHQrnDHjXLjbhPZfmTLa00tB73y6JwXmuF+V6mHEI9fyb8AHXG6ZwwYARu3gFRlscWCVbza6Z1KxGYGy/e5sSB4Hri428MZ43zvUTFJIGSNv2P6ktuGjAuM2swSWXUgIuo5KPwhVUGhri7AkKkwZM2QV3QHYRkqAggVBQmTVhp3YVE6D1NCdfo6AZcN0ursCM99RmeWI8ty2Yw+Pu1INboHPqPIUFAz7cGE3r7eHF559999RPCEO65Xj0kTE+HqMr5epalmZumdUafgo1dfjglLS+ROb44597X7PUDK0d+8mlumN9eDLZUnF1fc1cp5oqHcXUcUkJFmDqC/gDuyX+FwboJioPsHybmmU2a5o6+R99969SkdKSyTLcnfj9dAhdQi/M0EGUf7fSmKCpE68WgKtaU/hHxl+EhdhB7CJ+Q6Ah6UEMIgSEjEgjlhAVhIXYRtxHPELsIB4jniB+UlhnXyl760sotHRIZ+cdnYmaeo68VH7MLsuyJe/IuzLmVXqUQUVQZCWtLCkVxVK2lfvKI2VHeaw8UXien/d++UFg+/WQPP2OPDFNPU6a378reOdUMk2uEY1cJzPWDJm1ZsmcNUd0Syfz8rw1vztPFuQFa2F3gflPfvr82VH94y39/7+zQx37fl2++/D2Uc8v8dLntyQzj+G/zBgKk2DDgzT1uOrwSGrq1CuO383W/XSSk9yrsdh6m5jFIyz9r9+vfnL4/hggyfoCs+PXzGoRN9idLPvyzhTzmioevRsxJl1MSqn4uDQuJfAnJomimBRTkpQS4mJSEgQhFY+nJJbymxH/ahRzRO2UPha2kdO59LsOJHc9B3mpzu3d56KdDZCm3xFeBef67XcpfNtQOLDzvSLO/dntEukNEs/e9nKdG6rDxX0YJM596yU6V4mbWGlzEkUv0bkD3ETWgGPveInOYXQTLRcx7iU6J8xNFNqdxMQ+sfkAOq8HLmLS6+icik63Tpi4ZsvLdH5SB1xEY5/ZfIbSeih0oV56JjDiGGb36zPeIfm7bog89lROntYb5E8ibSHO6bTree0/gMwsGzEMAAA='

describe('files of other programs', () => {
  test('torch itself: views that share a storage, a parameter, a scalar, an empty tensor', () => {
    writeFileSync(file('torch.pth'), gunzipSync(Buffer.from(TORCH_FILE, 'base64')))
    const { tensors } = openCheckpoint(file('torch.pth'))
    const seen = Object.fromEntries([...tensors].map(([name, entry]) => [name, Array.from(readFloats(entry))]))
    const a = range(24)
    expect(seen).toEqual({
      a,
      b: a.map((i) => (i % 4) * 6 + Math.floor(i / 4)),
      c: [8, 9, 10, 14, 15, 16],
      d: a,
      e: range(12).map((i) => 2 * i),
      f: range(24).map((i) => i + 1),
      s: [3.5],
      z: [],
      p: a.map((i) => (i % 6) * 4 + Math.floor(i / 6)),
    })
    expect(tensors.get('p')).toMatchObject({ shape: [4, 2, 3], dtype: 'f32' })
    expect(tensors.get('e')).toMatchObject({ shape: [4, 3], dtype: 'f16' })
    expect(tensors.get('d')).toMatchObject({ shape: [4, 6], dtype: 'bf16' })
  })

  test.each([2, 4] as const)('a CPython pickle of protocol %s', (protocol) => {
    const path = writeZip(file(`cpython-${protocol}.pth`), {
      'x/data.pkl': Buffer.from(CPYTHON_PICKLES[protocol], 'base64'),
      'x/data/0': encodeFloats(Float32Array.from(range(6)), 'f32'),
      'x/data/1': encodeFloats(Float32Array.from([9, 8, 7, 6]), 'bf16'),
    })
    expect(floatsOf(path, 'a')).toEqual(range(6))
    expect(floatsOf(path, 'b')).toEqual([0, 3, 1, 4, 2, 5]) // the same storage, transposed
    expect(floatsOf(path, 'c')).toEqual([8, 7, 6])
  })

  test('Python reads our zip and accepts its checksums', (context) => {
    for (const zip64 of [false, true]) {
      const path = writeRandomRwkv7(file('python.pth'), { zip64 })
      const script =
        'import sys,zipfile;z=zipfile.ZipFile(sys.argv[1]);assert z.testzip() is None;print(len(z.namelist()))'
      try {
        const count = execFileSync('python3', ['-c', script, path], { encoding: 'utf8' })
        expect(Number(count)).toBe(openCheckpoint(path).tensors.size + 3)
      } catch (error) {
        if (error instanceof Error && 'code' in error && error.code === 'ENOENT') context.skip('no python3')
        throw error
      }
    }
  })
})

describe('inconsistent files are refused', () => {
  const good = () => ({
    'x/data.pkl': Buffer.from(CPYTHON_PICKLES[2], 'base64'),
    'x/byteorder': 'little',
    'x/data/0': new Uint8Array(24),
    'x/data/1': new Uint8Array(8),
  })
  test.each([
    ['a big-endian file', { 'x/byteorder': 'big' }, 'unsupported_weights', 'byte order is "big"'],
    ['a storage of another size', { 'x/data/1': new Uint8Array(7) }, 'corrupt_weights', 'has 7 bytes, not 4 × 2'],
    ['two pickles', { 'y/data.pkl': 'x' }, 'unsupported_weights', 'has 2 data.pkl'],
  ])('%s', (_what, changes, code, message) => {
    const path = writeZip(file('unfit.pth'), { ...good(), ...changes })
    expect(() => openCheckpoint(path)).toThrow(
      expect.objectContaining({ code, message: expect.stringContaining(message) }),
    )
  })

  test('a missing storage', () => {
    const { 'x/data/1': _, ...rest } = good()
    const path = writeZip(file('unfit.pth'), rest)
    expect(() => openCheckpoint(path)).toThrow('tensor c lies in storage 1, which is missing')
  })

  test('an integer tensor', () => {
    const pickle = Buffer.from(CPYTHON_PICKLES[2], 'base64').toString('latin1')
    const path = writeZip(file('unfit.pth'), {
      ...good(),
      'x/data.pkl': Buffer.from(pickle.replaceAll('torch\nFloatStorage', 'torch\nLongStorage'), 'latin1'),
    })
    expect(() => openCheckpoint(path)).toThrow('tensor a is of type i64; weights are f32, f16 or bf16')
  })

  test('two names that differ only in _orig_mod.', () => {
    const path = file('unfit.pth')
    const tensor = { shape: [1], values: [1] }
    writePth(path, [
      { name: 'a', ...tensor },
      { name: '_orig_mod.a', ...tensor },
    ])
    expect(() => openCheckpoint(path)).toThrow('holds a twice')
  })

  test('a dict without tensors', () => {
    const path = writeZip(file('unfit.pth'), { 'x/data.pkl': Buffer.from('\x80\x02}X\x01\0\0\0eK\x07s.', 'latin1') })
    expect(() => openCheckpoint(path)).toThrow('holds no dict of tensors; its keys are: e')
  })
})
