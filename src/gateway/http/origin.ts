/**
 * Which web pages and host names may reach the gateway. A browser on the operator's machine can be made to send
 * requests to 127.0.0.1 by any page (Origin gives it away) or by a name that resolves there (Host gives it away).
 */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { SkeinError } from '../../errors.ts'
import { isLoopback } from '../access/auth.ts'

interface OriginOptions {
  /** The address that is listened on. */
  readonly host: string
  /** Origins allowed besides loopback ones; '*' allows all. */
  readonly allowedOrigins: readonly string[]
  /** Host names allowed besides loopback ones while bound to loopback (a reverse proxy's name). */
  readonly allowedHosts: readonly string[]
}

export interface OriginPolicy {
  /** Throws `forbidden` for a foreign Host or Origin. */
  check(headers: IncomingHttpHeaders): void
  /** Headers that let an allowed page read the reply; none for a request without Origin. */
  corsHeaders(headers: IncomingHttpHeaders): Readonly<Record<string, string>>
}

/** Node takes the first of several, a proxy before it perhaps the last. */
export function checkOneHost({ rawHeaders }: IncomingMessage): void {
  const names = rawHeaders.filter((_, i) => i % 2 === 0)
  if (names.filter((name) => name.toLowerCase() === 'host').length <= 1) return
  throw new SkeinError('invalid_request', 'the request has two headers Host; expected one')
}

export function createOriginPolicy(options: OriginOptions): OriginPolicy {
  const { host, allowedOrigins, allowedHosts } = options
  const anyHost = !isLoopback(host)
  const isAllowedHost = (name: string) => anyHost || isLoopback(name) || allowedHosts.includes(name.toLowerCase())
  const isAllowedOrigin = (origin: string) =>
    allowedOrigins.includes('*') ||
    (!anyHost && OF_APPS.test(origin)) ||
    allowedOrigins.includes(origin) ||
    isLoopback(addressOf(origin)?.hostname ?? '')

  return {
    check({ host: name, origin }) {
      // HTTP/1.0 has no Host; a browser always sends one.
      if (name !== undefined && !isAllowedHost(withoutPort(name))) {
        throw new SkeinError(
          'forbidden',
          'this host name is not allowed here; the operator can allow it with --allow-host',
        )
      }
      if (origin !== undefined && !isAllowedOrigin(origin) && !isOwn(origin, name)) {
        throw new SkeinError(
          'forbidden',
          'web pages of this origin are not allowed here; the operator can allow it with --allow-origin',
        )
      }
    },
    corsHeaders({ origin }) {
      if (origin === undefined) return {}
      return {
        'access-control-allow-origin': origin,
        'access-control-expose-headers': EXPOSED_HEADERS,
        vary: 'origin',
      }
    },
  }
}

/** Programs with pages of their own, as editors have them. No site on the web has such an origin. */
const OF_APPS = /^(?:app|file|tauri|vscode-webview|vscode-file):\/\//

const RATE_HEADERS = ['limit', 'remaining', 'reset'].flatMap((figure) => [
  `x-ratelimit-${figure}-requests`,
  `x-ratelimit-${figure}-tokens`,
])
/** What clients in a page read of a reply, retrying among it. */
const EXPOSED_HEADERS = ['x-request-id', 'retry-after', 'x-should-retry', 'warnings', ...RATE_HEADERS].join(', ')

/**
 * What a preflight is answered besides the origin. No credentials: keys travel in a header, never in a cookie. Any header
 * may come: clients have their own (openai-node a dozen of them), and an origin that may send a key may send those.
 */
export function preflightHeaders(headers: IncomingHttpHeaders): Readonly<Record<string, string>> {
  return {
    'access-control-allow-methods': 'GET, POST, DELETE',
    'access-control-allow-headers': headers['access-control-request-headers'] ?? 'authorization',
    'access-control-max-age': '600',
  }
}

/**
 * A page that this server itself sent (the dashboard), under the name that the request is for. A name that only resolves here
 * gains nothing by it: on loopback such names are refused, and elsewhere a page of another name has no key.
 */
function isOwn(origin: string, host: string | undefined): boolean {
  return host !== undefined && addressOf(origin)?.host === host.toLowerCase()
}

function addressOf(origin: string): URL | null {
  try {
    const address = new URL(origin)
    return address.protocol === 'http:' || address.protocol === 'https:' ? address : null
  } catch {
    return null
  }
}

function withoutPort(host: string): string {
  return host.replace(/:\d+$/, '')
}
