/** What a GPU binds at once need not be whole units of a buffer. */
import { expect, test } from 'vitest'
import type { OpenedDevice } from '../../src/backend/webgpu/adapter.ts'
import { WebgpuDevice } from '../../src/backend/webgpu/device.ts'

test('tensors grow to all that a GPU binds at once, where that is four bytes less than 2 GiB', () => {
  const limits = {
    maxStorageBufferBindingSize: 2 ** 31 - 4,
    maxBufferSize: 2 ** 32,
    maxComputeInvocationsPerWorkgroup: 256,
    maxComputeWorkgroupSizeX: 256,
    maxStorageBuffersPerShaderStage: 8,
  }
  const device = {
    limits,
    features: new Set(),
    addEventListener() {},
    lost: new Promise(() => {}),
    createBuffer: ({ size }: { size: number }) => ({ size, destroy() {} }),
    createCommandEncoder: () => ({ copyBufferToBuffer() {}, finish() {} }),
    queue: { submit() {} },
  }
  const adapter = { limits, info: {}, features: new Set() }
  const opened = new WebgpuDevice({ adapter, device } as unknown as OpenedDevice)
  for (let i = 0; i < 256; i++) opened.allocate(2 ** 20)
  opened.allocate(2 ** 24)
  expect(opened.arena.size).toBe(2 ** 31 - 16)
})
