import { expect, test } from 'vitest'
import type { CudaDevice } from '../../../src/backend/cuda/device.ts'
import { StateSender } from '../../../src/backend/cuda/state-sender.ts'

test("a sender's event goes with its device", () => {
  const calls: string[] = []
  const ends: (() => void)[] = []
  const device = {
    pinned: () => ({}),
    driver: { call: (name: string) => calls.push(name) },
    atEnd: (destroy: () => void) => ends.push(destroy),
  }
  new StateSender(device as unknown as CudaDevice, 8)
  expect(calls).toEqual(['cuEventCreate'])
  for (const destroy of ends) destroy()
  expect(calls).toEqual(['cuEventCreate', 'cuEventDestroy_v2'])
})
