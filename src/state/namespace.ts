/**
 * Namespaces keep states apart. A namespace is a keyed hash of what a state must not be shared across, so that names of
 * tenants, which may be their keys, are in no file and cannot be guessed from one.
 */
import { createHmac } from 'node:crypto'

export const SECRET_BYTES = 32

export function sessionNamespace(secret: Uint8Array, tenant: string): string {
  return namespaceOf(secret, 'session', tenant)
}

/** Hex. `parts` is the tenant and, for prefixes, the start state; the encoding keeps the two apart. */
export function namespaceOf(secret: Uint8Array, ...parts: readonly string[]): string {
  return createHmac('sha256', secret).update(JSON.stringify(parts)).digest('hex')
}
