/**
 * Decides which web pages and host names may reach the gateway. Any page can make a browser on the operator's machine
 * send requests to 127.0.0.1; Origin reveals that. So can a host name that resolves to 127.0.0.1; Host reveals that.
 */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { SkeinError } from '../../errors.ts'
import { isLoopback } from '../access/auth.ts'

interface OriginOptions {
  /** The address that the server listens on. */
  readonly host: string
  /** Allowed origins besides loopback ones; '*' allows all. */
  readonly allowedOrigins: readonly string[]
  /** Allowed host names besides loopback ones if the server listens on loopback, such as that of a reverse proxy. */
  readonly allowedHosts: readonly string[]
}

export interface OriginPolicy {
  /**
   * Throws `forbidden` for a foreign Host or Origin. The dashboard's files are for pages of any origin: they are
   * public, and a page that a proxy has given another origin can only say so if it loads.
   */
  check(headers: IncomingHttpHeaders, isForFile?: boolean): void
  /** Headers that let an allowed page read the reply; none for a request without Origin. */
  corsHeaders(headers: IncomingHttpHeaders): Readonly<Record<string, string>>
}

/** Node would take the first of several Host headers, but a proxy in front may have taken the last. */
export function checkOneHost({ rawHeaders }: IncomingMessage): void {
  const names = rawHeaders.filter((_, i) => i % 2 === 0)
  if (names.filter((name) => name.toLowerCase() === 'host').length <= 1) return
  throw new SkeinError('invalid_request', 'the request has two Host headers; expected one')
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
  const isForeign = (origin: string, name: string | undefined) => !isAllowedOrigin(origin) && !isOwn(origin, name)

  return {
    check({ host: name, origin }, isForFile = false) {
      // HTTP/1.0 has no Host; a browser always sends one.
      if (name !== undefined && !isAllowedHost(name.replace(/:\d+$/, ''))) {
        const bare = shown(name.replace(/:\d+$/, ''))
        const message = `the host name ${bare} is not allowed here; the operator can allow it with --allow-host ${bare}`
        throw new SkeinError('forbidden', message)
      }
      if (origin !== undefined && !isForFile && isForeign(origin, name)) {
        const page = shown(origin)
        const message = `web pages of ${page} are not allowed here; the operator can allow them with --allow-origin ${page}`
        throw new SkeinError('forbidden', message)
      }
    },
    corsHeaders({ host: name, origin }) {
      if (origin === undefined || isForeign(origin, name)) return {}
      return { 'access-control-allow-origin': origin, 'access-control-expose-headers': EXPOSED_HEADERS, vary: 'origin' }
    },
  }
}

/** A header may have kilobytes. */
const shown = (name: string) => name.slice(0, 100)

/** Origins of apps with built-in pages, such as editors. No web site has such an origin. */
const OF_APPS = /^(?:app|file|tauri|vscode-webview|vscode-file):\/\//

const RATE_HEADERS = ['limit', 'remaining', 'reset'].flatMap((figure) => [
  `x-ratelimit-${figure}-requests`,
  `x-ratelimit-${figure}-tokens`,
])
/** Reply headers that a page's client reads, for example to retry. */
const EXPOSED_HEADERS = ['x-request-id', 'retry-after', 'x-should-retry', 'warnings', ...RATE_HEADERS].join(', ')

/**
 * Headers of a preflight's reply besides the origin. No credentials: keys travel in a header, never in a cookie. Any
 * header is allowed: clients have headers of their own (openai-node a dozen), and an origin that may send a key may
 * send those too.
 */
export function preflightHeaders(headers: IncomingHttpHeaders): Readonly<Record<string, string>> {
  return {
    'access-control-allow-methods': 'GET, POST, DELETE',
    'access-control-allow-headers': headers['access-control-request-headers'] ?? 'authorization',
    'access-control-max-age': '600',
  }
}

/**
 * A page that this server itself sent (the dashboard), under the host name of the request. A foreign name that resolves
 * to this address gains nothing: on loopback such names are refused, and elsewhere its page has no key.
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
