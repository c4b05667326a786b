/** The GPUs that the driver shows and what they are. Opens no context. */
import { readFileSync } from 'node:fs'
import { SkeinError } from '../../../errors.ts'
import type { Chip, CudaDriver } from './driver.ts'

export interface DeviceInfo extends Chip {
  /** Index as the driver counts. */
  readonly ordinal: number
  readonly name: string
  /** "GPU-…", as nvidia-smi -L prints it. */
  readonly uuid: string
  readonly numSms: number
  readonly totalBytes: number
  readonly l2Bytes: number
  /** Most dynamic shared memory a block may ask for. */
  readonly sharedBytesPerBlock: number
  /** 13000 for CUDA 13.0: what the driver can run. */
  readonly driverVersion: number
  /** "580.159.04", of the kernel module; 'unknown' where the system does not say. */
  readonly driverRelease: string
  /** Not what the card is, or not here: see cards.ts. */
  readonly isSimulated: boolean
  /** Of the code for a simulated card, where it is not the card's: the local one's. */
  readonly codeCapability?: Chip['computeCapability']
}

/** The oldest capability that the kernels are written for: fp16 matrix units with m16n8k8. */
export const MIN_CAPABILITY: readonly [number, number] = [7, 5]

export function listDevices(driver: CudaDriver): readonly DeviceInfo[] {
  const count = new Int32Array(1)
  driver.call('cuDeviceGetCount', count)
  return Array.from({ length: count[0]! }, (_, ordinal) => describeDevice(driver, ordinal))
}

export function describeDevice(driver: CudaDriver, ordinal: number): DeviceInfo {
  const number = new Int32Array(1)
  driver.call('cuDeviceGet', number, ordinal)
  const device = number[0]!
  const attribute = (id: number): number => {
    driver.call('cuDeviceGetAttribute', number, id, device)
    return number[0]!
  }
  const name = new Uint8Array(256)
  driver.call('cuDeviceGetName', name, name.length, device)
  const uuid = new Uint8Array(16)
  driver.call('cuDeviceGetUuid_v2', uuid, device)
  const totalBytes = new BigUint64Array(1)
  driver.call('cuDeviceTotalMem_v2', totalBytes, device)
  const { attributes } = driver.words
  driver.call('cuDriverGetVersion', number)
  const driverVersion = number[0]!
  return {
    ordinal,
    name: new TextDecoder().decode(name.subarray(0, name.indexOf(0))),
    uuid: formatUuid(uuid),
    ...driver.words.chipOf(attribute, driver, device),
    numSms: attribute(attributes.numSms),
    totalBytes: Number(totalBytes[0]),
    l2Bytes: attribute(attributes.l2Bytes),
    sharedBytesPerBlock: attribute(attributes.sharedBytes),
    driverVersion,
    driverRelease: driverRelease(),
    isSimulated: false,
  }
}

function driverRelease(): string {
  try {
    const text = readFileSync('/proc/driver/nvidia/version', 'utf8')
    return /Module .*?\s(\d+\.[\d.]+)/.exec(text)?.[1] ?? 'unknown'
  } catch {
    return 'unknown'
  }
}

/** "GPU-8f3c…" in the grouping of nvidia-smi. */
export function formatUuid(bytes: Uint8Array): string {
  const hex = Buffer.from(bytes).toString('hex')
  const groups = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20)]
  return `GPU-${groups.join('-')}-${hex.slice(20)}`
}

/** The ordinal of the device named by index or UUID, refused when it is missing or too old. */
export function findDevice(driver: CudaDriver, device: number | string): number {
  return chooseDevice(listDevices(driver), device, driver.words.name).ordinal
}

/** As findDevice, over a given list. A UUID may be shortened to a prefix that only one device has. */
export function chooseDevice(devices: readonly DeviceInfo[], device: number | string, kind: string): DeviceInfo {
  const matches = devices.filter(({ ordinal, uuid }) =>
    typeof device === 'number' ? ordinal === device : uuid.toLowerCase().startsWith(device.toLowerCase()),
  )
  const [found] = matches
  const list = devices.map((one) => `${one.ordinal} = ${one.name} ${one.uuid}`).join(', ')
  if (found === undefined || matches.length > 1)
    throw new SkeinError(
      'backend_unavailable',
      `${kind}:${device} ${found === undefined ? 'is not here' : 'fits several GPUs'}; found: ${list || 'no GPU'}`,
    )
  if (!isCapable(found))
    throw new SkeinError(
      'backend_unavailable',
      `${found.name} has compute capability ${found.computeCapability.join('.')}; ${MIN_CAPABILITY.join('.')} (Turing) or later is needed`,
    )
  return found
}

export function isCapable({ computeCapability: [major, minor] }: DeviceInfo): boolean {
  const [minMajor, minMinor] = MIN_CAPABILITY
  return major > minMajor || (major === minMajor && minor >= minMinor)
}
