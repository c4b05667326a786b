/** The kinds of driver by name. */
import { ABSENT } from './absent.ts'
import { CUDA } from './cuda.ts'
import type { DriverKind } from './kind.ts'

export const KINDS: Readonly<Record<string, DriverKind>> = { absent: ABSENT, cuda: CUDA }

/** The kind of a device's name, "cuda" or "cuda:1", among those that run kernels. */
export function kindOf(device: string): DriverKind | null {
  const kind = KINDS[device.split(':')[0]!]
  return kind?.runs ? kind : null
}
