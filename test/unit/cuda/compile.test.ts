import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { findLibrary, findNvcc } from '../../../src/backend/cuda/driver/libraries.ts'
import { compileOptions, openNvcc, openNvrtc } from '../../../src/backend/cuda/kernel/compiler.ts'
import { chooseTarget } from '../../../src/backend/cuda/kernel/cuda-target.ts'
import { cacheFolder, writeCached } from '../../../src/backend/cuda/kernel/image.ts'
import { imageKey, seal, unseal } from '../../../src/backend/cuda/kernel/seal.ts'
import { KERNEL_DIR, readKernelSource } from '../../../src/backend/cuda/kernel/source.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-kernels-'))
afterAll(() => rmSync(folder, { recursive: true }))

const write = (name: string, text: string) => writeFileSync(join(folder, name), text)

function keyNow(defines = {}, arch: readonly [number, number] = [9, 0], compiler = 'NVRTC 13.0') {
  const source = readKernelSource('one', folder)
  return imageKey(source, chooseTarget(arch, [75, 80, 90]), compileOptions('', defines), compiler)
}

test('a cubin is reused only for the same source and options', () => {
  write('one.cu', '#include "a.cuh"\n#include <cuda_fp16.h>\n')
  write('a.cuh', '  #  include "b.cuh"\n')
  write('b.cuh', '#include "a.cuh"\n')
  write('unused.cuh', '')
  expect(readKernelSource('one', folder).headers.map(([name]) => name)).toEqual(['a.cuh', 'b.cuh'])
  const first = keyNow()
  expect(keyNow()).toBe(first)
  write('unused.cuh', 'changed')
  expect(keyNow()).toBe(first)
  write('b.cuh', '// changed\n')
  const keys = [
    first,
    keyNow(),
    keyNow({ N: 64 }),
    keyNow({ N: 65 }),
    keyNow({}, [8, 0]),
    keyNow({}, [8, 6]),
    keyNow({}, [9, 0], 'NVRTC 13.1'),
  ]
  expect(new Set(keys).size).toBe(keys.length)
  expect(keyNow({ A: 1, B: 2 })).toBe(keyNow({ B: 2, A: 1 }))
  expect(() => readKernelSource('two', folder)).toThrow(/two\.cu is missing/)
})

test('the target is the chip, or the newest older one that the compiler knows', () => {
  expect(chooseTarget([9, 0], [75, 90])).toEqual({ name: 'sm_90a', kind: 'cubin' })
  expect(chooseTarget([8, 6], [75, 86])).toEqual({ name: 'sm_86', kind: 'cubin' })
  expect(chooseTarget([12, 0], [75, 80, 90])).toEqual({ name: 'compute_90', kind: 'ptx' })
  expect(() => chooseTarget([7, 5], [80, 90])).toThrow(/no chip of capability 7\.5 or earlier/)
  for (const chip of [
    [9, 0],
    [12, 0],
  ] as const)
    expect(() => chooseTarget(chip, [75, 86])).toThrow(/down to 9\.0 \(it knows 75, 86\); install CUDA 12\.1/)
})

test('the cache folder follows XDG; an unwritable one is no error', () => {
  expect(cacheFolder('cubin', { XDG_CACHE_HOME: '/x' })).toBe('/x/skein/cubin')
  expect(cacheFolder('cubin', { XDG_CACHE_HOME: '' })).toMatch(/\.cache\/skein\/cubin$/)
  const inside = join(folder, 'cache')
  expect(writeCached(inside, join(inside, 'x'), 'text')).toBe(true)
  expect(existsSync(join(inside, 'x'))).toBe(true)
  expect(writeCached(join(folder, 'one.cu'), join(folder, 'one.cu/x'), 'text')).toBe(false)
})

test('an incomplete image is never passed to the driver', () => {
  const image = Uint8Array.from({ length: 500 }, (_, i) => i)
  const sealed = seal(image)
  expect(new Uint8Array(unseal(sealed)!)).toEqual(image)
  for (const length of [0, 10, 32, 40, sealed.length - 1]) expect(unseal(sealed.subarray(0, length))).toBeNull()
  sealed[100]! ^= 1
  expect(unseal(sealed)).toBeNull()
})

const nvcc = findNvcc()

test.skipIf(nvcc === null)('nvcc compiles, and its errors are reported', () => {
  const compiler = openNvcc(nvcc!)
  expect(compiler.description).toMatch(/^nvcc V\d+\.\d+/)
  write('good.cu', '#include "a.cuh"\nextern "C" __global__ void good(float *y) { *y = VALUE; }\n')
  write('bad.cu', 'nonsense')
  const target = chooseTarget([9, 0], compiler.capabilities)
  const options = compileOptions(folder, { VALUE: 3 })
  const image = compiler.compile({ source: readKernelSource('good', folder), target, options })
  expect(Buffer.from(image.subarray(0, 4)).toString('latin1')).toBe('\x7fELF')
  const ptx = { name: 'compute_90', kind: 'ptx' } as const
  const text = compiler.compile({ source: readKernelSource('good', folder), target: ptx, options })
  expect(Buffer.from(text).toString('latin1')).toMatch(/\.target sm_90[\s\S]*}\s*\0$/)
  const bad = { source: readKernelSource('bad', folder), target, options }
  expect(() => compiler.compile(bad)).toThrow(/nvcc cannot compile .*bad\.cu for sm_90a:[\s\S]*error/)
})

const nvrtc = findLibrary('nvrtc', Number.POSITIVE_INFINITY).found

test.skipIf(nvrtc === null)('NVRTC compiles a kernel without headers, from a wheel too', () => {
  const compiler = openNvrtc(nvrtc!.path, [])
  const target = chooseTarget([9, 0], compiler.capabilities)
  const input = { source: readKernelSource('penalties'), target }
  const image = compiler.compile({ ...input, options: compileOptions(KERNEL_DIR, {}) })
  expect(Buffer.from(image.subarray(0, 4)).toString('latin1')).toBe('\x7fELF')
})
