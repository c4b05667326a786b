import { expect, test } from 'vitest'
import { CudaDriver, CudaGraph, type DriverFunctions } from '../../../src/backend/cuda/driver/driver.ts'
import { CUDA_WORDS } from '../../../src/backend/cuda/kinds/cuda.ts'

/** A driver in which one function fails; records the names of the others. */
function driverWith(failing: string) {
  const calls: string[] = []
  const functions = new Proxy({} as DriverFunctions, {
    get: (_, name: string) => () => {
      if (name.startsWith('cuGetError')) return 1
      if (name !== failing) calls.push(name)
      return Number(name === failing)
    },
  })
  return { calls, driver: new CudaDriver(functions, CUDA_WORDS) }
}

test.each([
  ['cuGraphGetNodes', ['cuGraphDestroy']],
  ['cuGraphInstantiateWithFlags', ['cuGraphGetNodes', 'cuGraphDestroy']],
  ['cuGraphUpload', ['cuGraphGetNodes', 'cuGraphInstantiateWithFlags', 'cuGraphExecDestroy', 'cuGraphDestroy']],
])('a graph that %s fails of leaves nothing behind', (failing, expected) => {
  const { calls, driver } = driverWith(failing)
  expect(() => new CudaGraph(driver, 1n, 2n, 'decode', () => {})).toThrow(failing)
  expect(calls).toEqual(expected)
})
