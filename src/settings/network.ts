/** The settings of a server's front end: where it listens, who may call it, and which cluster it belongs to. */
import { SkeinError } from '../errors.ts'
import type { ClusterChoice } from '../host/model-choice.ts'
import type { SETTINGS } from './table.ts'
import { type RawValues, refusal, type Values } from './values.ts'

/** Settings that need no model: those of `skein gateway`. */
export const NETWORK_NAMES = [
  'host',
  'port',
  'api-key',
  'password',
  'no-auth',
  'allow-origin',
  'allow-host',
  'open-translate',
  'cluster',
  'cluster-key',
  'log-level',
  'drain-seconds',
] as const satisfies readonly (keyof typeof SETTINGS)[]

type NetworkValues = Values<Pick<typeof SETTINGS, (typeof NETWORK_NAMES)[number]>>

export function networkChoice(given: NetworkValues) {
  const { host, port, password } = given
  return {
    options: {
      ...{ host, port },
      openTranslate: given['open-translate'],
      allowedOrigins: given['allow-origin'] ?? [],
      allowedHosts: given['allow-host'] ?? [],
    },
    access: {
      ...{ host, password, allowedHosts: given['allow-host'] },
      ...{ apiKey: given['api-key']?.join(','), noAuth: given['no-auth'] },
    },
    logLevel: given['log-level'],
    drainSeconds: given['drain-seconds'],
  }
}

/** An empty key is usually an unset shell variable; starting without a key would open a server meant to be closed. */
export function refuseEmptyKeys(raw: RawValues): void {
  for (const name of ['api-key', 'password'])
    if (raw[name] !== undefined && !/[^\s,]/.test(String(raw[name])))
      throw new SkeinError('invalid_request', `--${name} is empty; give a key, or leave it out`, { param: name })
}

/** The cluster's database and the key its members trust each other by. Null for a single server. */
export function membershipChoice({
  cluster: database,
  ...given
}: Pick<NetworkValues, 'cluster' | 'cluster-key'>): Pick<ClusterChoice, 'database' | 'key'> | null {
  return database === undefined ? null : { database, key: given['cluster-key'] }
}

/** Undefined for a single server. */
export function clusterChoice(given: Values<typeof SETTINGS>): ClusterChoice | undefined {
  const { blobs } = given
  const membership = membershipChoice(given)
  if (membership === null) {
    const other = (['blobs', 'node-name', 'node-url', 'cluster-key'] as const).find((name) => given[name] !== undefined)
    if (other !== undefined) throw new SkeinError('invalid_request', `--${other} needs --cluster`, { param: other })
    return undefined
  }
  if (blobs === undefined) throw refusal('blobs', 'where states are kept, s3://BUCKET/PREFIX or file:///DIR')
  if (given['no-store'])
    throw new SkeinError(
      'invalid_request',
      '--no-store and --cluster exclude each other: a cluster stores its sessions',
      { param: 'no-store' },
    )
  return { ...membership, blobs, node: given['node-name'] ?? '', url: nodeUrl(given) }
}

/** The address that other nodes use. Empty: the address it listens on. */
function nodeUrl({ host, 'node-url': url }: Values<typeof SETTINGS>): string {
  if (url !== undefined) {
    if (!/^https?:\/\//.test(url) || !URL.canParse(url)) throw refusal('node-url', `http://HOST:PORT, not "${url}"`)
    return url.replace(/\/$/, '')
  }
  if (host === '0.0.0.0' || host === '::')
    throw refusal('node-url', `where others reach this server: it listens on ${host}, which is no address of it`)
  return ''
}
