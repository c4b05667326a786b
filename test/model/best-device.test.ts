/** What `--device auto` takes, and what is said of it, on machines that are made up. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { WebgpuBackend, WebgpuOptions } from '../../src/backend/webgpu/webgpu.ts'
import { doctor } from '../../src/cli/doctor.ts'
import { openBackend, prepareDevice } from '../../src/host/device-choice.ts'

const machine = vi.hoisted(() => ({
  cuda: 'none' as 'none' | 'broken' | 'usable',
  /** Whether each is a processor in a GPU's place. */
  adapters: [] as boolean[],
  isRight: true,
  matrices: null as null | 'wrong',
}))

vi.mock('node:fs', async (original) => {
  const fs = await original<typeof import('node:fs')>()
  return { ...fs, existsSync: (path: string) => path === '/dev/dri' || fs.existsSync(path) }
})
vi.mock('../../src/backend/cuda/report.ts', () => ({
  cudaReport: () => ({
    devices: [],
    hasCard: machine.cuda !== 'none',
    problems: machine.cuda === 'usable' ? [] : [{ part: 'driver', message: 'no driver' }],
  }),
  hasUsableCuda: () => machine.cuda === 'usable',
}))
vi.mock('../../src/backend/cuda/cuda.ts', () => ({ createCudaBackend: () => ({ name: 'cuda' }) }))
vi.mock('../../src/backend/webgpu/adapter.ts', () => ({
  webgpuReport: async () => ({
    adapters: machine.adapters.map((isSoftware, index) => {
      return { name: `adapter ${index}`, isSoftware, features: ['subgroups'], maxBindingBytes: 2 ** 30 }
    }),
    problem: machine.adapters.length === 0 ? 'no WebGPU adapter' : null,
  }),
}))
vi.mock('../../src/backend/webgpu/webgpu.ts', () => ({
  openWebgpuBackend: async (index: number, { without = [] }: WebgpuOptions) => ({
    name: 'webgpu',
    index,
    device: { maxBinding: 2 ** 30, arenaBytes: 0, matrices: without.length === 0 ? machine.matrices : null },
    dispose() {},
  }),
}))
vi.mock('../../src/backend/webgpu/self-test.ts', () => ({
  testBackend: async ({ device }: WebgpuBackend) => {
    if (!machine.isRight || (device.matrices as unknown) === 'wrong') throw new Error('it computes wrong answers')
  },
}))
vi.mock('../../src/backend/cpu/cpu.ts', async (original) => ({
  ...(await original<object>()),
  createCpuBackend: () => ({ name: 'cpu' }),
}))

let said = ''
let printed = ''

beforeEach(() => {
  Object.assign(machine, { cuda: 'none', adapters: [], isRight: true, matrices: null })
  said = ''
  printed = ''
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    said += text
    return true
  })
  vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
    printed += text
    return true
  })
})

afterEach(() => vi.restoreAllMocks())

async function best(): Promise<object> {
  await prepareDevice({})
  return openBackend({}, { numParameters: 1e6 }).backend
}

test('auto takes cuda first', async () => {
  Object.assign(machine, { cuda: 'usable', adapters: [false] })
  expect(await best()).toEqual({ name: 'cuda' })
  expect(said).toBe('')
})

test('then the first adapter of WebGPU that is a GPU', async () => {
  machine.adapters = [true, false]
  expect(await best()).toMatchObject({ name: 'webgpu', index: 1 })
  expect(said).toBe('')
})

test('then the CPU, rather than an adapter that is a processor', async () => {
  machine.adapters = [true]
  expect(await best()).toEqual({ name: 'cpu' })
  expect(said).toBe('')
})

test('where CUDA cannot be used, what is taken instead is said', async () => {
  Object.assign(machine, { cuda: 'broken', adapters: [false] })
  expect(await best()).toMatchObject({ name: 'webgpu' })
  expect(said).toBe('skein: no driver; using WebGPU\n')
  said = ''
  machine.adapters = []
  expect(await best()).toEqual({ name: 'cpu' })
  expect(said).toBe('skein: no driver; using the CPU\n')
})

test('a GPU whose matrix units compute wrong answers does without them', async () => {
  Object.assign(machine, { adapters: [false], matrices: 'wrong' })
  expect(await best()).toMatchObject({ name: 'webgpu', device: { matrices: null } })
  expect(said).toBe('skein: with matrix units it computes wrong answers; trying without them\n')
})

test('a GPU that computes wrong answers is not taken', async () => {
  Object.assign(machine, { adapters: [false], isRight: false })
  expect(await best()).toEqual({ name: 'cpu' })
  expect(said).toBe('skein: it computes wrong answers; using the CPU\n')
})

test.each([
  [[], 'no WebGPU adapter', true],
  [
    [false, true],
    'webgpu:0 adapter 0 (bindings of 1.07 GB, subgroups), webgpu:1 adapter 1 (software, for tests)',
    false,
  ],
])('doctor lists the adapters %j', async (adapters, found, isOptional) => {
  machine.adapters = adapters
  await doctor.run?.({ args: { json: true }, words: [], given: new Map() } as never)
  const { findings } = JSON.parse(printed)
  expect(findings).toContainEqual({ what: 'webgpu', found, fix: null, isOptional })
})
