/**
 * Properties of cards that kernels are sized by, for cards that are not in this machine: to compile kernels ahead, to
 * check them without a GPU, and to run on another card within the limits of one. Figures: NVIDIA's programming guide,
 * compute capabilities.
 */
import { SkeinError } from '../../../errors.ts'
import type { DeviceInfo } from './device-info.ts'

interface Card {
  readonly name: string
  readonly capability: readonly [number, number]
  readonly numSms: number
  readonly sharedKib: number
  readonly l2Mib: number
  readonly gib: number
}

export const CARDS = {
  '2080ti': card('NVIDIA GeForce RTX 2080 Ti', [7, 5], 68, 64, 5.5, 11),
  '3060': card('NVIDIA GeForce RTX 3060', [8, 6], 28, 99, 3, 12),
  '3090': card('NVIDIA GeForce RTX 3090', [8, 6], 82, 99, 6, 24),
  a100: card('NVIDIA A100-SXM4-80GB', [8, 0], 108, 163, 40, 80),
  '4060': card('NVIDIA GeForce RTX 4060', [8, 9], 24, 99, 24, 8),
  '4090': card('NVIDIA GeForce RTX 4090', [8, 9], 128, 99, 72, 24),
  h100: card('NVIDIA H100 80GB HBM3', [9, 0], 132, 227, 50, 80),
  h200: card('NVIDIA H200', [9, 0], 132, 227, 50, 141),
  b200: card('NVIDIA B200', [10, 0], 148, 227, 126, 180),
  '5090': card('NVIDIA GeForce RTX 5090', [12, 0], 170, 99, 96, 32),
} as const satisfies Record<string, Card>

function card(
  name: string,
  capability: readonly [number, number],
  numSms: number,
  sharedKib: number,
  l2Mib: number,
  gib: number,
): Card {
  return { name, capability, numSms, sharedKib, l2Mib, gib }
}

/** Capabilities whose own instructions (wgmma, setmaxnreg) need the suffixed target. */
const SUFFIXED = new Set([90])

/** Of NVIDIA's chips. */
export function chipName([major, minor]: readonly [number, number]): string {
  const capability = 10 * major + minor
  return `sm_${capability}${SUFFIXED.has(capability) ? 'a' : ''}`
}

/** The card as a driver of CUDA 13.0 would describe it. */
export function infoOf({ name, capability, numSms, sharedKib, l2Mib, gib }: Card): DeviceInfo {
  return {
    ordinal: 0,
    name,
    uuid: 'GPU-00000000-0000-0000-0000-000000000000',
    computeCapability: capability,
    chip: chipName(capability),
    numSms,
    totalBytes: gib * 2 ** 30,
    l2Bytes: l2Mib * 2 ** 20,
    sharedBytesPerBlock: sharedKib << 10,
    driverVersion: 13_000,
    driverRelease: 'unknown',
    isSimulated: true,
  }
}

/** A card of this machine within the limits of the one that SKEIN_SIMULATE_CARD names; as it is without one. */
export function simulated(real: DeviceInfo, wanted = process.env.SKEIN_SIMULATE_CARD): DeviceInfo {
  if (!wanted) return real
  // A name that is not there is undefined.
  const known = (CARDS as Record<string, Card>)[wanted.toLowerCase()]
  if (known === undefined)
    throw new SkeinError('invalid_request', `SKEIN_SIMULATE_CARD takes ${Object.keys(CARDS).join(', ')}, not ${wanted}`)
  const { name, computeCapability, chip, numSms, sharedBytesPerBlock, l2Bytes, totalBytes } = infoOf(known)
  const isNewer = orderOf(computeCapability) > orderOf(real.computeCapability)
  return {
    ...real,
    name: `${real.name} as ${name}`,
    computeCapability,
    chip,
    // The host chooses as for the newer card, and the code is what every chip since the local one runs.
    codeCapability: isNewer ? real.computeCapability : computeCapability,
    numSms: Math.min(numSms, real.numSms),
    sharedBytesPerBlock: Math.min(sharedBytesPerBlock, real.sharedBytesPerBlock),
    l2Bytes,
    totalBytes: Math.min(totalBytes, real.totalBytes),
    // Where the capability is the card's own, so is its code.
    isSimulated: orderOf(computeCapability) !== orderOf(real.computeCapability),
  }
}

function orderOf([major, minor]: readonly [number, number]): number {
  return 10 * major + minor
}
