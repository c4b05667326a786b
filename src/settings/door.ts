/** What settings say of a server's door: where it listens, for whom, and to which cluster it belongs. */
import { SkeinError } from '../errors.ts'
import type { ClusterChoice } from '../host/model-choice.ts'
import type { SETTINGS } from './table.ts'
import { type RawValues, refusal, type Values } from './values.ts'

/** Settings that mean something without a model: those of `skein gateway`. */
export const DOOR_NAMES = [
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

type DoorValues = Values<Pick<typeof SETTINGS, (typeof DOOR_NAMES)[number]>>

export function doorChoice(given: DoorValues) {
  const { host, port, password } = given
  return {
    options: {
      ...{ host, port },
      openTranslate: given['open-translate'],
      allowedOrigins: given['allow-origin'] ?? [],
      allowedHosts: given['allow-host'] ?? [],
    },
    access: {
      ...{ host, password },
      apiKey: given['api-key']?.join(','),
      noAuth: given['no-auth'],
    },
    logLevel: given['log-level'],
    drainSeconds: given['drain-seconds'],
  }
}

/** Empty is most often a variable of the shell that is not set; to serve without a key for that would open what was meant closed. */
export function refuseEmptyKeys(raw: RawValues): void {
  for (const name of ['api-key', 'password'])
    if (raw[name] !== undefined && !/[^\s,]/.test(String(raw[name])))
      throw new SkeinError('invalid_request', `--${name} is empty; give a key, or leave it out`, {
        param: name,
      })
}

/** The database of the cluster and what its members trust each other by. Null for a server of one machine. */
export function membershipChoice({
  cluster: database,
  ...given
}: Pick<DoorValues, 'cluster' | 'cluster-key'>): Pick<ClusterChoice, 'database' | 'key'> | null {
  return database === undefined ? null : { database, key: given['cluster-key'] }
}

/** Undefined for a server of one machine. */
export function clusterChoice(given: Values<typeof SETTINGS>): ClusterChoice | undefined {
  const { blobs } = given
  const membership = membershipChoice(given)
  if (membership === null) {
    const other = (['blobs', 'node-name', 'node-url', 'cluster-key'] as const).find((name) => given[name] !== undefined)
    if (other !== undefined) throw refusal(other, 'to be given together with --cluster')
    return undefined
  }
  if (blobs === undefined) throw refusal('blobs', 'where states are kept, s3://BUCKET/PREFIX or file:///DIR')
  if (given['no-store']) throw refusal('no-store', 'nothing: a cluster keeps what its sessions are')
  return { ...membership, blobs, node: given['node-name'] ?? '', url: nodeUrl(given) }
}

/** Empty: as it listens, which others reach only where that is an address of its own. */
function nodeUrl({ host, 'node-url': url }: Values<typeof SETTINGS>): string {
  if (url !== undefined) {
    if (!/^https?:\/\//.test(url) || !URL.canParse(url)) throw refusal('node-url', `http://HOST:PORT, not "${url}"`)
    return url.replace(/\/$/, '')
  }
  if (host === '0.0.0.0' || host === '::')
    throw refusal('node-url', `where others reach this server: it listens on ${host}, which is no address of it`)
  return ''
}
