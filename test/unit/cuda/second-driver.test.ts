/**
 * A driver of another vendor is one object. This one has different attribute numbers and statuses, a chip with a name
 * of its own, a compiler for it and another way to launch. A model is loaded, recorded and launched with it, and no
 * part of CUDA is used.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test, vi } from 'vitest'
import { createCudaBackend } from '../../../src/backend/cuda/cuda.ts'
import { CudaDriver, type DriverFunctions, type DriverWords } from '../../../src/backend/cuda/driver/driver.ts'
import { absentFunctions } from '../../../src/backend/cuda/kinds/absent.ts'
import { CUDA } from '../../../src/backend/cuda/kinds/cuda.ts'
import type { DriverKind } from '../../../src/backend/cuda/kinds/kind.ts'
import { KINDS, kindOf } from '../../../src/backend/cuda/kinds/kinds.ts'
import { landed } from '../../../src/backend/flight.ts'
import { shapesOnly } from '../../../src/bench/random-model.ts'
import { SkeinError } from '../../../src/errors.ts'
import { parseDevice } from '../../../src/host/device-choice.ts'
import { ModelRunner } from '../../../src/model/run/model-runner.ts'
import { loadRwkv7 } from '../../../src/model/rwkv7.ts'
import { draw } from '../../helpers/runner.ts'

const cache = mkdtempSync(join(tmpdir(), 'skein-second-driver-'))
vi.stubEnv('XDG_CACHE_HOME', cache)
afterAll(() => {
  vi.unstubAllEnvs()
  rmSync(cache, { recursive: true })
})

/** None of these numbers is one of CUDA's. */
const ATTRIBUTES = { numSms: 1063, l2Bytes: 1019, sharedBytes: 1074 }
const VALUES: Readonly<Record<number, number>> = { 1063: 304, 1019: 4 << 20, 1074: 64 << 10 }
const KERNEL_ATTRIBUTES = { sharedBytes: 41, registers: 44, mostSharedBytes: 48 }
const OUT_OF_MEMORY = 7002
const NOT_READY = 7600

/** A second driver, and a record of its calls. */
function secondDriver() {
  const asked = new Set<number>()
  const targets = new Set<string>()
  const launched: string[] = []
  const failing = new Map<string, number>()
  let numWaits = 0
  const base = absentFunctions(2 ** 36)
  const own: Partial<DriverFunctions> = {
    cuDeviceGetCount: (out) => put(out, 1),
    cuDeviceTotalMem_v2(out) {
      ;(out as BigUint64Array)[0] = 2n ** 36n
      return 0
    },
    cuDeviceGetAttribute(out, id) {
      asked.add(id)
      return put(out, VALUES[id] ?? -1)
    },
    cuFuncGetAttribute(out, id) {
      asked.add(id)
      return put(out, 64)
    },
    cuFuncSetAttribute(_kernel, id) {
      asked.add(id)
      return 0
    },
    // The first poll of an event comes too early.
    cuEventQuery: () => (numWaits++ % 2 === 0 ? NOT_READY : 0),
    cuGetErrorName: () => 1,
    cuGetErrorString: () => 1,
    cuLaunchKernelEx: () => {
      throw new Error('a launch in CUDA’s form')
    },
  }
  const functions = new Proxy(base, {
    get(target, name: string) {
      const status = failing.get(name)
      return status === undefined ? (Reflect.get(own, name) ?? Reflect.get(target, name)) : () => status
    },
  })
  const words: DriverWords = {
    name: 'second',
    attributes: ATTRIBUTES,
    kernelAttributes: KERNEL_ATTRIBUTES,
    statuses: {
      outOfMemory: OUT_OF_MEMORY,
      notReady: NOT_READY,
      isReached: 7704,
      isLocked: 7712,
      sticky: new Set([7700]),
      badImage: new Set([7200]),
      newerImage: 7222,
    },
    blockingHint: 'SERIAL=1 makes the error surface',
    // No kernel knows what its matrix units can do.
    chipOf: () => ({ chip: 'gfx942', computeCapability: [7, 5] }),
  }
  const kind: DriverKind = {
    name: 'second',
    runs: true,
    hasCublasLt: false,
    open: () => new CudaDriver(functions, words),
    openCompiler: () => ({
      description: 'a second compiler',
      path: '',
      targetOf: ({ chip }) => ({ name: chip, kind: 'cubin' }),
      compile({ target, source }) {
        targets.add(target.name)
        return Buffer.from(source.text)
      },
    }),
    launchForm: () => ({
      launch(kernel, grid, block) {
        expect([...grid, ...block].every((size) => size > 0)).toBe(true)
        launched.push(kernel.label)
        return 0
      },
      clustersAtOnce: () => 0,
    }),
  }
  return {
    kind,
    asked,
    targets,
    launched,
    fail: (name: keyof DriverFunctions, status: number) => failing.set(name, status),
  }
}

function put(out: unknown, value: number): number {
  ;(out as Int32Array)[0] = value // these functions return an int
  return 0
}

test('a model is recorded and launched with a second driver', async () => {
  const { kind, asked, targets, launched } = secondDriver()
  const openCuda = vi.spyOn(CUDA, 'open')
  const backend = createCudaBackend({ kind, graphs: false })
  expect(backend.device.description).toBe('second:0  (7.5, 304 SMs, 64 GiB)')
  const runner = new ModelRunner(loadRwkv7(shapesOnly('0.1b'), backend, {}), backend, {
    numSlots: 2,
    maxTokens: 4,
    fingerprint: '',
  })
  launched.length = 0
  await landed(runner.launch([row(0), row(1)]))
  // Twelve layers, two mixes each, and a recurrence, all launched in this driver's way.
  const count = (file: string) => launched.filter((label) => label.startsWith(`${file}.cu`)).length
  expect([count('embed'), count('wkv7-decode')]).toEqual([1, 12])
  expect(count('shift-mix')).toBe(24)
  expect(count('sample')).toBe(1)
  expect([...targets]).toEqual(['gfx942'])
  const numbers = [...Object.values(ATTRIBUTES), ...Object.values(KERNEL_ATTRIBUTES)]
  expect([...asked].filter((id) => !numbers.includes(id))).toEqual([])
  expect(asked.size).toBeGreaterThanOrEqual(4)
  backend.dispose()
  expect(openCuda).not.toHaveBeenCalled()
})

function row(slot: number) {
  return { slot, tokens: Int32Array.of(slot + 1), samples: [draw(slot)] }
}

test('its status codes become errors of its own', () => {
  const { kind, fail } = secondDriver()
  const { device } = createCudaBackend({ kind })
  const errorOf = (run: () => unknown) => {
    try {
      run()
    } catch (error) {
      return SkeinError.from(error)
    }
  }
  fail('cuMemAlloc_v2', OUT_OF_MEMORY)
  expect(errorOf(() => device.alloc(1 << 20))).toMatchObject({ code: 'out_of_memory' })
  fail('cuStreamSynchronize', 7700)
  const gone = errorOf(() => device.synchronize())
  expect(gone).toMatchObject({ code: 'kernel_failed' })
  expect(gone!.message).toMatch(/^second backend, waiting .*: SECOND error 7700 .*SERIAL=1/)
  // CUDA's code for a lost context means nothing here.
  fail('cuStreamSynchronize', 700)
  expect(errorOf(() => device.synchronize())).toMatchObject({ code: 'internal' })
})

test('a kind in the table is a device that can be named', () => {
  expect(Object.keys(KINDS)).toEqual(['absent', 'cuda'])
  for (const [name, { name: own }] of Object.entries(KINDS)) expect(own).toBe(name)
  expect(kindOf('cuda:1')).toBe(CUDA)
  expect(parseDevice('cuda')).toBe('cuda')
  expect(parseDevice('CUDA:1')).toBe('cuda:1')
  expect(parseDevice('cuda:GPU-ab')).toBe('cuda:GPU-ab')
  // Nothing can run without the device.
  for (const text of ['absent', 'absent:0', 'cuda:', 'cuda:x', 'cuda:1:2', 'hip:0'])
    expect(parseDevice(text)).toBeUndefined()
})
