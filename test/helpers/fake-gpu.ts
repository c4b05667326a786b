/** A GPU in the form of an H200 that computes nothing: what a step asks of the API can be counted, without any driver. */
import { vi } from 'vitest'

const LIMITS = {
  maxStorageBufferBindingSize: 2 ** 31 - 4,
  maxBufferSize: 2 ** 40,
  maxStorageBuffersPerShaderStage: 16,
  maxComputeInvocationsPerWorkgroup: 1024,
  maxComputeWorkgroupSizeX: 1024,
  maxComputeWorkgroupStorageSize: 49_152,
}
const FEATURES = new Set(['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'])
const LANGUAGE = new Set(['subgroup_id', 'packed_4x8_integer_dot_product'])
const MATRICES = [{ componentType: 'f16', resultComponentType: 'f32', M: 16, N: 16, K: 16 }]

/** Backends of the file are opened on it. Returns how often each function of the API was called since this was last asked. */
export function useFakeGpu(): () => Readonly<Record<string, number>> {
  let counts: Record<string, number> = {}
  const counted =
    <A extends unknown[], R>(name: string, call: (...args: A) => R) =>
    (...args: A): R => {
      counts[name] = (counts[name] ?? 0) + 1
      return call(...args)
    }
  /** Functions of these names that return nothing of use. */
  const all = (...names: string[]) => Object.fromEntries(names.map((name) => [name, counted(name, () => ({}))]))
  const buffer = (size: number) => ({
    ...all('destroy', 'unmap'),
    size,
    mapAsync: async () => {},
    getMappedRange: (_: number, bytes: number) => new ArrayBuffer(bytes),
  })
  const pass = all('setPipeline', 'setBindGroup', 'dispatchWorkgroups', 'end')
  const encoder = { ...all('copyBufferToBuffer', 'clearBuffer', 'finish'), beginComputePass: () => pass }
  const device = {
    ...all('createBindGroup', 'createBindGroupLayout', 'createPipelineLayout', 'createShaderModule'),
    ...all('createComputePipeline', 'addEventListener', 'removeEventListener'),
    limits: LIMITS,
    features: FEATURES,
    lost: new Promise(() => {}),
    destroy() {},
    queue: all('writeBuffer', 'submit'),
    createBuffer: counted('createBuffer', ({ size }: { size: number }) => buffer(size)),
    createComputePipelineAsync: counted('createComputePipelineAsync', async () => ({})),
    createCommandEncoder: counted('createCommandEncoder', () => encoder),
  }
  const info = { vendor: 'nvidia', subgroupMinSize: 32, subgroupMaxSize: 32, subgroupMatrixConfigs: MATRICES }
  const adapter = { info, limits: LIMITS, features: FEATURES, requestDevice: async () => device }
  vi.stubGlobal('navigator', { gpu: { requestAdapter: async () => adapter, wgslLanguageFeatures: LANGUAGE } })
  return () => {
    const before = counts
    counts = {}
    return before
  }
}
