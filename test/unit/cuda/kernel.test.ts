import { expect, test } from 'vitest'
import { CudaDriver, type DriverFunctions } from '../../../src/backend/cuda/driver/driver.ts'
import { KernelStore } from '../../../src/backend/cuda/kernel/kernel.ts'
import { CUDA_WORDS } from '../../../src/backend/cuda/kinds/cuda.ts'
import { SkeinError } from '../../../src/errors.ts'

/** A store over a driver that answers loads with these statuses, then always with the last one. */
function store(...statuses: number[]) {
  const calls: string[] = []
  const functions = {
    cuGetErrorName: () => 1,
    cuGetErrorString: () => 1,
    cuModuleLoadData: () => {
      calls.push('load')
      return statuses.length > 1 ? statuses.shift() : statuses[0]
    },
    cuModuleGetFunction: () => 0,
    cuFuncGetAttribute: () => 0,
  } as unknown as DriverFunctions
  const image = () => new Uint8Array(1)
  const images = { image, compileAhead: () => 0, discard: () => calls.push('discard') }
  const kernels = new KernelStore(new CudaDriver(functions, CUDA_WORDS), images)
  return { calls, load: () => kernels.kernel('wkv7', 'wkv7') }
}

test('a cached image that the driver refuses is recompiled', () => {
  const { calls, load } = store(209, 0)
  expect(load().label).toBe('wkv7.cu: wkv7')
  expect(calls).toEqual(['load', 'discard', 'load'])
})

test.each([200, 209, 218, 222])('an image that is refused permanently (%i) is not retried', (status) => {
  const { load } = store(status)
  let caught: unknown
  try {
    load()
  } catch (error) {
    caught = error
  }
  expect(SkeinError.from(caught).code).toBe('backend_unavailable')
  expect(SkeinError.from(caught).message).toContain(`CUDA error ${status}`)
  expect(SkeinError.from(caught).message).toContain('update the NVIDIA driver')
})

test('other errors keep their code', () => {
  expect(store(2).load).toThrow(expect.objectContaining({ code: 'out_of_memory' }))
  expect(store(700).load).toThrow(expect.objectContaining({ code: 'kernel_failed' }))
})
