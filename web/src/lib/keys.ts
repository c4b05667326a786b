/** Named keys over HTTP (docs/api.md): for admins. */
import type { OwnKey, WireLimits } from '../../../src/gateway/contract.ts'
import { call } from './api.ts'

export interface NamedKey {
  readonly name: string
  readonly role: OwnKey['role']
  readonly created_at: number
  readonly expires_at: number | null
  readonly limits: WireLimits
  /** When earlier secrets stop working. */
  readonly grace_until: readonly number[]
}

/** The secret; only this reply contains it. */
export interface IssuedKey extends NamedKey {
  readonly secret: string
}

export interface NewKey {
  readonly name: string
  readonly role: OwnKey['role']
  readonly expires_in_seconds?: number
  readonly limits?: Partial<Record<keyof WireLimits, number>>
}

export function listKeys(signal: AbortSignal): Promise<readonly NamedKey[]> {
  return call('/api/keys', { signal })
}

export function addKey(key: NewKey): Promise<IssuedKey> {
  return call('/api/keys', { body: key })
}

export function rotateKey(name: string, graceSeconds: number): Promise<IssuedKey> {
  return call(`/api/keys/${encodeURIComponent(name)}/rotate`, { body: { grace_seconds: graceSeconds } })
}

export async function revokeKey(name: string): Promise<void> {
  await call(`/api/keys/${encodeURIComponent(name)}`, { method: 'DELETE' })
}
