import { expect, test } from 'vitest'
import { chooseDevice, type DeviceInfo, formatUuid } from '../../../src/backend/cuda/driver/device-info.ts'
import { type DriverFunctions, describeFailure } from '../../../src/backend/cuda/driver/driver.ts'
import { CUDA_WORDS } from '../../../src/backend/cuda/kinds/cuda.ts'
import { allocateMemory, freeMemory, viewMemory } from '../../../src/backend/ffi.ts'

const gpu = (ordinal: number, uuid: string, capability: readonly [number, number]): DeviceInfo => ({
  ordinal,
  name: `GPU ${ordinal}`,
  uuid,
  computeCapability: capability,
  chip: `sm_${capability.join('')}`,
  numSms: 1,
  totalBytes: 1,
  l2Bytes: 1,
  sharedBytesPerBlock: 1,
  driverVersion: 13000,
  driverRelease: '580.1',
  isSimulated: false,
})
const MACHINE = [gpu(0, 'GPU-aa11', [6, 1]), gpu(1, 'GPU-bb22', [9, 0]), gpu(2, 'GPU-bb33', [8, 0])]

test('a device is named by index or by UUID', () => {
  expect(chooseDevice(MACHINE, 1, 'cuda').ordinal).toBe(1)
  expect(chooseDevice(MACHINE, 'GPU-bb33', 'cuda').ordinal).toBe(2)
  expect(chooseDevice(MACHINE, 'gpu-BB2', 'cuda').ordinal).toBe(1)
  expect(() => chooseDevice(MACHINE, 'GPU-bb', 'cuda')).toThrow('cuda:GPU-bb fits several GPUs')
  expect(() => chooseDevice(MACHINE, 7, 'cuda')).toThrow(/cuda:7 is not here; found: 0 = GPU 0 GPU-aa11, 1 = /)
  expect(() => chooseDevice([], 0, 'cuda')).toThrow('found: no GPU')
  expect(() => chooseDevice(MACHINE, 0, 'cuda')).toThrow(
    'GPU 0 has compute capability 6.1; 7.5 (Turing) or later is needed',
  )
})

test('UUIDs as nvidia-smi prints them', () => {
  const bytes = Uint8Array.from({ length: 16 }, (_, i) => i * 17)
  expect(formatUuid(bytes)).toBe('GPU-00112233-4455-6677-8899-aabbccddeeff')
})

/** Returns a fixed text for a code, like cuGetErrorName. */
function lookUp(texts: Record<number, string>): DriverFunctions['cuGetErrorName'] {
  return (status, out) => {
    const text = texts[status]
    if (text === undefined || !(out instanceof BigUint64Array)) return 1
    out[0] = addressOf(text)
    return 0
  }
}

const kept: bigint[] = []
function addressOf(text: string): bigint {
  const bytes = Buffer.from(`${text}\0`)
  const address = allocateMemory(bytes.length)
  new Uint8Array(viewMemory(address, bytes.length)).set(bytes)
  kept.push(address)
  return address
}

test('errors have the name and text of the driver, and a code of their own', () => {
  const functions = {
    cuGetErrorName: lookUp({ 1: 'CUDA_ERROR_INVALID_VALUE', 2: 'CUDA_ERROR_OUT_OF_MEMORY', 700: 'ILLEGAL' }),
    cuGetErrorString: lookUp({ 1: 'invalid argument', 2: 'out of memory', 700: 'illegal address' }),
  }
  const failure = (status: number, last: string | null = null) =>
    describeFailure(functions, CUDA_WORDS, status, 'cuMemAlloc', last)
  expect(failure(1)).toMatchObject({
    code: 'internal',
    message: 'cuda backend, cuMemAlloc: CUDA_ERROR_INVALID_VALUE (invalid argument)',
  })
  expect(failure(2).code).toBe('out_of_memory')
  // NVLink errors and contained errors end the context like an invalid address.
  for (const status of [220, 226, 700]) expect(failure(status).code).toBe('kernel_failed')
  expect(failure(700, 'wkv7.cu: wkv7_decode')).toMatchObject({ code: 'kernel_failed' })
  expect(failure(700, 'wkv7.cu: wkv7_decode').message).toMatch(
    /^cuda backend, cuMemAlloc: ILLEGAL \(illegal address\); last launched: wkv7\.cu: wkv7_decode\. .*CUDA_LAUNCH_BLOCKING=1/,
  )
  expect(failure(700).message).toContain('nothing was launched yet')
  expect(failure(9999).message).toContain('CUDA error 9999 (no text)')
  for (const address of kept) freeMemory(address)
})
