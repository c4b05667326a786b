import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { brotliCompressSync } from 'node:zlib'
import { afterAll, expect, test, vi } from 'vitest'
import { findNvcc } from '../../../src/backend/cuda/driver/libraries.ts'
import { createKernelImages, ShippedImages, shippedName } from '../../../src/backend/cuda/kernel/image.ts'
import { seal } from '../../../src/backend/cuda/kernel/seal.ts'
import { readKernelSource } from '../../../src/backend/cuda/kernel/source.ts'
import { CUDA } from '../../../src/backend/cuda/kinds/cuda.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-ahead-'))
afterAll(() => rmSync(folder, { recursive: true }))

const H200 = { computeCapability: [9, 0], chip: 'sm_90a', driverVersion: 13_000, isSimulated: false } as const
const write = (name: string, text: string) => writeFileSync(join(folder, name), text)
write('a.cuh', '// text')
write('good.cu', '#include "a.cuh"\nextern "C" __global__ void good(float *y) { *y = VALUE; }\n')
write('bad.cu', 'nonsense')

test.skipIf(findNvcc() === null)('kernels are compiled on other threads, once', () => {
  const cache = join(folder, 'cache')
  vi.stubEnv('XDG_CACHE_HOME', cache)
  const images = createKernelImages(H200, CUDA, folder)
  const wanted = [
    ['good', { VALUE: 1 }],
    ['bad', {}],
    ['good', { VALUE: 2 }],
  ] as const
  const numBegun = images.compileAhead(wanted)
  expect([0, 3]).toContain(numBegun)
  // A caller that needs a kernel nobody has started compiles it; errors are reported as usual.
  expect(() => images.image('bad', {})).toThrow(/bad\.cu for sm_90a/)
  const found = [1, 2].map((VALUE) => Buffer.from(images.image('good', { VALUE })))
  expect(found.map((one) => one.subarray(1, 4).toString('latin1'))).toEqual(['ELF', 'ELF'])
  expect(found[0]!.equals(found[1]!)).toBe(false)
  expect(readdirSync(join(cache, 'skein/cubin')).length).toBe(2)
  // Kernels on the disk are not compiled again.
  expect(createKernelImages(H200, CUDA, folder).compileAhead(wanted.slice(2))).toBe(0)
  vi.unstubAllEnvs()
})

test('kernels that ship with Skein are used if the driver supports them and their source has not changed', () => {
  const shipped = join(folder, 'shipped')
  const source = readKernelSource('good', folder)
  const name = shippedName(source, 'sm_90a', { VALUE: 3 })
  const image = Uint8Array.of(1, 2, 3)
  rmSync(shipped, { recursive: true, force: true })
  mkdirSync(join(shipped, 'cuda-13'), { recursive: true })
  writeFileSync(join(shipped, 'cuda-13', name), brotliCompressSync(seal(image)))
  const taken = (machine: typeof H200, major: number, macros = { VALUE: 3 }, of = source) =>
    new ShippedImages(machine, major, shipped).image(of, macros)
  expect(taken(H200, 13)).toEqual(image)
  expect(taken(H200, 14)).toEqual(image)
  expect(taken(H200, 12)).toBeNull()
  expect(taken(H200, 13, { VALUE: 4 })).toBeNull()
  expect(taken({ ...H200, chip: 'sm_80' } as never, 13)).toBeNull()
  expect(taken({ ...H200, isSimulated: true } as never, 13)).toBeNull()
  write('a.cuh', '// other text')
  expect(taken(H200, 13, { VALUE: 3 }, readKernelSource('good', folder))).toBeNull()
  const images = new ShippedImages(H200, 13, shipped)
  expect(images.refuse(source, { VALUE: 4 })).toBe(false)
  expect(images.refuse(source, { VALUE: 3 })).toBe(true)
  expect(images.image(source, { VALUE: 3 })).toBeNull()
  // A damaged one counts as missing.
  writeFileSync(join(shipped, 'cuda-13', name), 'damaged')
  expect(taken(H200, 13)).toBeNull()
})
