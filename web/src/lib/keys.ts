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

/** Null: never, or no limit. */
export interface KeyTerms {
  readonly role: OwnKey['role']
  readonly expires_in_seconds?: number | null
  readonly limits: Partial<WireLimits>
}

export function listKeys(signal: AbortSignal): Promise<readonly NamedKey[]> {
  return call('/api/keys', { signal })
}

export function addKey(name: string, terms: KeyTerms): Promise<IssuedKey> {
  return call('/api/keys', { body: { name, ...terms } })
}

/** What is absent stays as it is. */
export function changeKey(name: string, terms: KeyTerms): Promise<NamedKey> {
  return call(`/api/keys/${encodeURIComponent(name)}`, { body: terms })
}

export function rotateKey(name: string, graceSeconds: number): Promise<IssuedKey> {
  return call(`/api/keys/${encodeURIComponent(name)}/rotate`, { body: { grace_seconds: graceSeconds } })
}

export async function revokeKey(name: string): Promise<void> {
  await call(`/api/keys/${encodeURIComponent(name)}`, { method: 'DELETE' })
}
