/** A local Hugging Face hub with the parts that pulling needs: lists, redirects, ranges, and faults on request. */
import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Hub } from '../../src/hub/hub.ts'

export interface FakeHub {
  readonly hub: Hub
  readonly url: string
  /** "GET /path range" of every request, in order. */
  readonly requests: string[]
  /** The authorization headers that came with them. */
  readonly tokens: (string | undefined)[]
  /** Replies that replace the normal ones, one per request, by path. */
  readonly faults: Map<string, Fault[]>
  close(): Promise<void>
}

export type Fault =
  | { readonly kind: 'status'; readonly status: number }
  | { readonly kind: 'redirect'; readonly location: string }
  /** The connection ends after this many bytes of the body. */
  | { readonly kind: 'cut'; readonly bytes: number }
  /** The body stalls after this many bytes. */
  | { readonly kind: 'stall'; readonly bytes: number }
  /** The connection ends before the reply. */
  | { readonly kind: 'reset' }
  /** Sends the whole file although a range was requested. */
  | { readonly kind: 'no range' }
  | { readonly kind: 'body'; readonly body: string | Buffer }

export interface FakeFile {
  readonly content: Buffer
  /** Large files have a sha256, small ones git's digest. */
  readonly isLarge?: boolean
  /** A false digest for the list. */
  readonly digest?: string
}

const PAGE = 3

/** `repositories`: "owner/name" → path → file. */
export async function startFakeHub(
  repositories: Readonly<Record<string, Readonly<Record<string, FakeFile>>>>,
  token?: string,
): Promise<FakeHub> {
  const requests: string[] = []
  const tokens: (string | undefined)[] = []
  const faults = new Map<string, Fault[]>()
  const server = createServer((request, response) => {
    const url = new URL(request.url!, 'http://hub')
    requests.push([request.method, url.pathname, request.headers.range].filter(Boolean).join(' '))
    tokens.push(request.headers.authorization)
    const fault = faults.get(url.pathname)?.shift()
    answer(repositories, url, request, response, fault)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  // A listening TCP server has an address object.
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return {
    hub: { endpoint: new URL(url), token, fetch: globalThis.fetch },
    url,
    requests,
    tokens,
    faults,
    close: () => {
      server.closeAllConnections()
      return new Promise((resolve) => server.close(() => resolve()))
    },
  }
}

function answer(
  repositories: Readonly<Record<string, Readonly<Record<string, FakeFile>>>>,
  url: URL,
  request: IncomingMessage,
  response: ServerResponse,
  fault: Fault | undefined,
) {
  if (fault?.kind === 'reset') return void request.socket.resetAndDestroy()
  if (fault?.kind === 'status') return end(response, fault.status, 'no')
  if (fault?.kind === 'redirect') return redirect(response, fault.location)
  if (fault?.kind === 'body') return end(response, 200, fault.body)
  if (url.pathname === '/api/models') return end(response, 200, JSON.stringify(found(repositories, url.searchParams)))
  const list = /^\/api\/models\/([^/]+\/[^/]+)\/tree\/main$/.exec(url.pathname)
  if (list) return sendList(repositories[list[1]!], url, response)
  if (/^\/api\/models\/[^/]+\/[^/]+$/.test(url.pathname))
    return end(response, 200, JSON.stringify({ tags: ['rwkv', 'license:apache-2.0'] }))
  const [, stage, repository = '', path = ''] =
    /^\/(cdn\/)?([^/]+\/[^/]+)\/(?:resolve\/main\/)?(.+)$/.exec(url.pathname) ?? []
  const file = repositories[repository]?.[path]
  if (!file) return end(response, 404, 'not here')
  if (!stage) return redirect(response, `/cdn/${repository}/${path}?signature=x`)
  sendFile(file, request, response, fault)
}

/** A search result as the hub sends it, with unused fields. */
function found(repositories: Readonly<Record<string, unknown>>, query: URLSearchParams): readonly object[] {
  return Object.keys(repositories)
    .filter((id) => id.toLowerCase().includes(query.get('search')!.toLowerCase()))
    .slice(0, Number(query.get('limit')))
    .map((id, i) => ({ _id: `${i}`, id, modelId: id, likes: i, downloads: 1000 - i, tags: [] }))
}

function sendList(files: Readonly<Record<string, FakeFile>> | undefined, url: URL, response: ServerResponse) {
  if (!files) return end(response, 401, 'no such repository')
  const start = Number(url.searchParams.get('cursor') ?? 0)
  const all = Object.entries(files)
  const page = all.slice(start, start + PAGE).map(([path, file]) => {
    const { content, isLarge = true, digest } = file
    const sha256 = digest ?? createHash('sha256').update(content).digest('hex')
    const git = digest ?? gitDigest(content)
    const lfs = isLarge ? { lfs: { oid: sha256, size: content.length, pointerSize: 130 } } : {}
    return { type: 'file', oid: git, size: isLarge ? 130 : content.length, path, ...lfs }
  })
  const next = start + PAGE
  if (next < all.length) response.setHeader('link', `<${url.pathname}?cursor=${next}>; rel="next"`)
  end(response, 200, JSON.stringify([{ type: 'directory', path: 'sub', oid: 'x', size: 0 }, ...page]))
}

function gitDigest(content: Buffer): string {
  return createHash('sha1').update(`blob ${content.length}\0`).update(content).digest('hex')
}

function sendFile(
  { content }: FakeFile,
  request: IncomingMessage,
  response: ServerResponse,
  fault: Fault | undefined,
): void {
  const asked = /^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1]
  const start = asked === undefined || fault?.kind === 'no range' ? 0 : Number(asked)
  if (start > 0) response.setHeader('content-range', `bytes ${start}-${content.length - 1}/${content.length}`)
  response.writeHead(start > 0 ? 206 : 200, { 'content-length': content.length - start })
  if (fault?.kind !== 'cut' && fault?.kind !== 'stall') {
    response.end(content.subarray(start))
    return
  }
  const { kind, bytes } = fault
  const end = () => kind === 'cut' && response.destroy()
  response.write(content.subarray(start, start + bytes), end)
}

function redirect(response: ServerResponse, location: string): void {
  response.setHeader('location', location)
  end(response, 302, '')
}

function end(response: ServerResponse, status: number, body: string | Buffer): void {
  response.writeHead(status)
  response.end(body)
}
