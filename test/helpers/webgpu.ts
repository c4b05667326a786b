/** Whether tests can use WebGPU here, and one device for a whole process if it computes on the processor. */
/// <reference types="@webgpu/types" />
import { existsSync } from 'node:fs'
import { openDevice, webgpuReport } from '../../src/backend/webgpu/adapter.ts'

/** Debian's Chromium brings a Vulkan driver that computes on the processor. */
const SWIFTSHADER = '/usr/lib/chromium/vk_swiftshader_icd.json'

if (process.env.VK_DRIVER_FILES === undefined && existsSync(SWIFTSHADER)) process.env.VK_DRIVER_FILES = SWIFTSHADER

const { adapters, problem } = await webgpuReport()
/** Why not; null if an adapter was found. */
export const WEBGPU_PROBLEM = problem
if (WEBGPU_PROBLEM !== null) console.log(`tests of webgpu are skipped: ${WEBGPU_PROBLEM}`)

/** Where a processor computes in the GPU's place, which takes seconds to compile each kernel. */
export const IS_SOFTWARE_GPU = adapters[0]?.isSoftware === true

const ownDevice = IS_SOFTWARE_GPU ? await shareDevice() : null

/**
 * From here on all backends of the process share one Dawn device, which compiles each kernel once: a processor takes seconds
 * for each. Each backend keeps its own buffers, tensors and errors, but does not end the device.
 */
async function shareDevice(): Promise<() => void> {
  const { adapter, device } = await openDevice(0)
  const prototype = Object.getPrototypeOf(adapter) as GPUAdapter
  const { requestDevice } = prototype
  const compile = device.createComputePipeline.bind(device)
  // Dawn returns the same pipeline while a reference to it exists.
  const compiled: GPUComputePipeline[] = []
  device.createComputePipeline = (descriptor) => {
    const pipeline = compile(descriptor)
    compiled.push(pipeline)
    return pipeline
  }
  device.destroy = () => {}
  const share = () => {
    prototype.requestDevice = async () => device
  }
  share()
  return () => {
    prototype.requestDevice = async function (this: GPUAdapter, descriptor) {
      share()
      return requestDevice.call(this, descriptor)
    }
  }
}

/** Backends that are opened meanwhile bind no more of a buffer at once. */
export async function withBinding(bytes: number, open: () => Promise<void>): Promise<void> {
  const { adapter, device } = await openDevice(0)
  const { limits } = device
  if (ownDevice === null) device.destroy()
  const prototype = Object.getPrototypeOf(adapter) as GPUAdapter
  const { requestDevice } = prototype
  prototype.requestDevice = async function (this: GPUAdapter, descriptor) {
    const own = await requestDevice.call(this, descriptor)
    const get = (_: object, name: keyof GPUSupportedLimits) =>
      name === 'maxStorageBufferBindingSize' ? bytes : limits[name]
    Object.defineProperty(own, 'limits', { configurable: true, value: new Proxy({}, { get } as ProxyHandler<object>) })
    return own
  }
  try {
    await open()
  } finally {
    prototype.requestDevice = requestDevice
    // The one that all share is as it was.
    Object.defineProperty(device, 'limits', { configurable: true, value: limits })
  }
}

/** Opens the next backend on its own device, for tests that lose it. */
export function nextDeviceIsOwn(): void {
  ownDevice?.()
}

/** From here on devices have no matrix units: steps of all sizes have the same bits. */
export async function openWithoutMatrices(): Promise<void> {
  if (WEBGPU_PROBLEM !== null || IS_SOFTWARE_GPU) return
  const { adapter, device } = await openDevice(0)
  device.destroy()
  const prototype = Object.getPrototypeOf(adapter) as GPUAdapter
  const { requestDevice } = prototype
  prototype.requestDevice = function (this: GPUAdapter, { requiredFeatures = [], ...descriptor } = {}) {
    const others = [...requiredFeatures].filter((name) => !name.endsWith('subgroup-matrix'))
    return requestDevice.call(this, { ...descriptor, requiredFeatures: others })
  }
}
