/**
 * Talks to the Hugging Face hub, or to the mirror that HF_ENDPOINT names: lists a repository and opens files. It
 * follows redirects only to the hub's own hosts, and sends the token only to the endpoint. Names come from the
 * operator's command line or an admin's key (host/checkpoints/model-jobs.ts).
 */

import { SkeinError } from '../errors.ts'
import { isObject, parsedJson } from '../files/bytes.ts'

export interface Hub {
  readonly endpoint: URL
  readonly token: string | undefined
  readonly fetch: typeof fetch
}

export interface HubFile {
  /** Path in the repository, with slashes. */
  readonly path: string
  readonly size: number
  /** For large files the sha256 of the content, for small ones git's sha1. */
  readonly digest: { readonly kind: 'sha256' | 'git'; readonly hex: string }
}

type Environment = Readonly<Record<string, string | undefined>>

const DEFAULT_ENDPOINT = 'https://huggingface.co'
/** Domains of the hub's files: its own, and the short one of its CDN. */
const HUB_DOMAINS = ['huggingface.co', 'hf.co']
const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/
/** Error codes of connections that the other side has closed. */
const ENDED: ReadonlySet<unknown> = new Set(['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET'])
const MAX_REDIRECTS = 5
const MAX_LIST_BYTES = 16 * 1024 * 1024
const MAX_PAGES = 100

export function openHub(environment: Environment = process.env): Hub {
  const given = environment.HF_ENDPOINT || DEFAULT_ENDPOINT
  const endpoint = parseUrl(given)
  const isPlain = endpoint && !endpoint.username && !endpoint.password && !endpoint.search
  if (!isPlain || !/^https?:$/.test(endpoint.protocol)) {
    const message = `HF_ENDPOINT is "${given}"; an address such as ${DEFAULT_ENDPOINT} was expected`
    throw new SkeinError('invalid_request', message)
  }
  return { endpoint, token: environment.HF_TOKEN || undefined, fetch: globalThis.fetch }
}

/** For somebody who waits: a request fails after `ms`. */
export function impatientHub(ms: number, environment?: Environment): Hub {
  const hub = openHub(environment)
  return { ...hub, fetch: (url, init) => hub.fetch(url, { ...init, signal: AbortSignal.timeout(ms) }) }
}

/** HF_HUB_OFFLINE, as other tools read it. */
export function isOffline(environment: Environment = process.env): boolean {
  return /^(1|true|yes|on)$/i.test(environment.HF_HUB_OFFLINE ?? '')
}

export async function listFiles(hub: Hub, repository: string): Promise<HubFile[]> {
  const files: HubFile[] = []
  let url: URL | null = hubUrl(hub, `api/models/${repository}/tree/main?recursive=true`)
  for (let page = 0; url; page++) {
    if (page === MAX_PAGES) throw unexpected(url, `lists more than ${MAX_PAGES} pages of files`)
    const response = await request(hub, url)
    const entries = parseList(await limitedText(response, url), url)
    files.push(...entries.flatMap((entry: unknown) => parseFile(entry)))
    url = nextPage(response, url)
  }
  return files
}

/** A JSON answer of its API, of any shape. */
export async function readJson(hub: Hub, path: string): Promise<unknown> {
  const url = hubUrl(hub, path)
  const value = parsedJson(await limitedText(await request(hub, url), url))
  if (value === undefined) throw unexpected(url, 'answered with something that is not JSON')
  return value
}

export async function licenceOf(hub: Hub, repository: string): Promise<string | null> {
  const url = hubUrl(hub, `api/models/${repository}`)
  const found = /"license:([\w.-]{1,64})"/.exec(await limitedText(await request(hub, url), url))
  return found?.[1] ?? null
}

export function fileUrl(hub: Hub, repository: string, path: string): URL {
  return hubUrl(hub, `${repository}/resolve/main/${path}`)
}

/**
 * A response with status 200 or 206; others become errors that say what to do. `offset` asks for the rest of the file.
 */
export async function request(hub: Hub, url: URL, offset = 0): Promise<Response> {
  let at = url
  for (let hop = 0; hop <= MAX_REDIRECTS; hop++) {
    const response = await fetchOnce(hub, at, offset)
    const location = response.headers.get('location')
    if (response.status < 300 || response.status >= 400 || location === null) return checked(response, at, offset)
    await response.body?.cancel()
    at = nextHop(hub.endpoint, at, location)
  }
  throw unexpected(url, `redirects more than ${MAX_REDIRECTS} times`)
}

export function nextHop(endpoint: URL, from: URL, location: string): URL {
  const url = parseUrl(location, from)
  const isAllowed =
    url &&
    !url.username &&
    !url.password &&
    (url.origin === endpoint.origin ||
      (url.protocol === 'https:' && url.port === '' && isHubHost(endpoint, url.hostname)))
  if (isAllowed) return url
  const target = url ? url.origin : 'an invalid address'
  throw unexpected(from, `redirects to ${target}, which is not one of its own hosts`)
}

function isHubHost(endpoint: URL, host: string): boolean {
  const domains = [...HUB_DOMAINS, endpoint.hostname]
  return domains.some((domain) => host === domain || host.endsWith(`.${domain}`))
}

/** The token goes only to the endpoint, and only over an encrypted or local connection. */
export function headersFor({ endpoint, token }: Hub, url: URL, offset: number): Headers {
  const headers = new Headers({ 'user-agent': 'skein' })
  if (offset > 0) headers.set('range', `bytes=${offset}-`)
  const isPrivate = url.protocol === 'https:' || LOOPBACK.test(url.hostname)
  if (token !== undefined && url.origin === endpoint.origin && isPrivate)
    headers.set('authorization', `Bearer ${token}`)
  return headers
}

/** Fetches once. Retries if the connection had ended: an idle one may do so just as it is reused. */
async function fetchOnce(hub: Hub, url: URL, offset: number): Promise<Response> {
  const ask = () => hub.fetch(url, { headers: headersFor(hub, url, offset), redirect: 'manual' })
  try {
    return await ask().catch((error: unknown) => {
      if (ENDED.has((causeOf(error) as { code?: unknown } | null | undefined)?.code)) return ask()
      throw error
    })
  } catch (error) {
    throw unreachable(url, error)
  }
}

/** The actual error, which fetch hides in `cause`. */
function causeOf(error: unknown): unknown {
  return error instanceof Error && error.cause instanceof Error ? error.cause : error
}

export function unreachable(url: URL, error: unknown, environment: Environment = process.env): SkeinError {
  const cause = causeOf(error)
  const reason = cause instanceof Error ? cause.message : String(cause)
  const { HTTPS_PROXY, https_proxy: proxy = HTTPS_PROXY, NODE_USE_ENV_PROXY } = environment
  // Node's own way to a proxy, which it does not take unasked.
  const isUnasked = Boolean(proxy) && NODE_USE_ENV_PROXY !== '1'
  const asked = isUnasked ? '; for your proxy set NODE_USE_ENV_PROXY=1, too (Node 22.21 or 24 and later)' : ''
  const message = `could not read from ${url.host}: ${reason}; check the network, or name a mirror with HF_ENDPOINT${asked}`
  return new SkeinError('timeout', message, { cause: error })
}

async function checked(response: Response, url: URL, offset: number): Promise<Response> {
  const { status } = response
  if (status === 200 || (status === 206 && offset > 0)) return response
  await response.body?.cancel()
  if (status === 401 || status === 403) {
    throw new SkeinError(
      'unauthorized',
      `${url.host} refuses ${url.pathname} (${status}): no such repository, or a private one; set HF_TOKEN to a token that may read it`,
    )
  }
  if (status === 404) throw new SkeinError('not_found', `${url.host} has no ${url.pathname}; check the name`)
  throw new SkeinError('timeout', `${url.host} answered ${status} to ${url.pathname}; try later`)
}

function hubUrl({ endpoint }: Hub, path: string): URL {
  const base = endpoint.href.endsWith('/') ? endpoint.href : `${endpoint.href}/`
  return new URL(path, base)
}

function parseUrl(text: string, base?: URL): URL | null {
  return URL.canParse(text, base?.href) ? new URL(text, base) : null
}

async function limitedText(response: Response, url: URL): Promise<string> {
  const chunks: Uint8Array[] = []
  let size = 0
  for await (const chunk of response.body ?? []) {
    size += chunk.byteLength
    if (size > MAX_LIST_BYTES) throw unexpected(url, `lists more than ${MAX_LIST_BYTES} bytes`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString()
}

function parseList(text: string, url: URL): readonly unknown[] {
  const entries = parsedJson(text)
  if (Array.isArray(entries)) return entries
  throw unexpected(url, 'answered with something that is not a list of files')
}

function parseFile(entry: unknown): HubFile[] {
  if (!isObject(entry) || entry.type !== 'file') return []
  const { path, oid, size, lfs } = entry
  if (typeof path !== 'string' || typeof oid !== 'string' || !isSize(size)) return []
  if (!isObject(lfs)) return [{ path, size, digest: { kind: 'git', hex: oid } }]
  if (typeof lfs.oid !== 'string' || !isSize(lfs.size)) return []
  return [{ path, size: lfs.size, digest: { kind: 'sha256', hex: lfs.oid } }]
}

function nextPage(response: Response, from: URL): URL | null {
  const link = /<([^>]+)>\s*;\s*rel="?next"?/.exec(response.headers.get('link') ?? '')?.[1]
  if (link === undefined) return null
  const url = parseUrl(link, from)
  if (url?.origin === from.origin) return url
  throw unexpected(from, 'continues its list on another host')
}

function unexpected(url: URL, problem: string): SkeinError {
  return new SkeinError('unsupported_weights', `${url.host} ${problem}; nothing was fetched`)
}

function isSize(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0
}
