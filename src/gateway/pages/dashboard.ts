/**
 * Serves the dashboard's files: the build output in `dist/web`, read once and served from memory, so that no request
 * path ever reaches the file system. The demo model for the page `/browser/` and the pages of docs/ are read on
 * request. No key is needed, because the page holds no data: each of its calls carries the user's key.
 */
import { createHash } from 'node:crypto'
import { createReadStream, existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { basename, extname, join, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { SkeinError } from '../../errors.ts'

/** Relative to the compiled gateway; from the sources, the build's folder is one level higher. */
const FOLDERS = ['../../web', '../../../dist/web'].map((path) => fileURLToPath(new URL(path, import.meta.url)))

const MODELS = fileURLToPath(new URL('../../../models', import.meta.url))
const DOCS = fileURLToPath(new URL('../../../docs', import.meta.url))
/** Path of the page that runs a model in the browser. */
const BROWSER_PAGE = '/browser/'
const DEMO_FILES = ['demo.pth', 'demo.vocab.txt']

const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.ico': 'image/x-icon',
  '.webmanifest': 'application/manifest+json',
}

/** Only files of this server, no inline code, no framing, and no string ever becomes markup. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "manifest-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  // Only for the URL of the service worker.
  'trusted-types skein-worker',
].join('; ')

/** A worker and a service worker, whose URLs pass the page's single trusted-types policy. */
const BROWSER_POLICY = POLICY.replace('trusted-types skein-worker', 'trusted-types skein-browser')

const HEADERS: Readonly<Record<string, string>> = {
  'content-security-policy': POLICY,
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'permissions-policy': 'camera=(), microphone=(), geolocation=()',
  vary: 'accept-encoding',
}

interface WebFile {
  readonly headers: Readonly<Record<string, string>>
  readonly etag: string
  /** In memory, or read from a path at each request. */
  readonly bytes: Buffer | { readonly path: string }
  /** Null if compression does not pay. */
  readonly packed: Buffer | null
}

/** File by URL path. */
export type WebFiles = ReadonlyMap<string, WebFile>

let ownFiles: WebFiles | null = null

/** The files of this package, read once for all apps of the process. */
export function ownWebFiles(): WebFiles {
  ownFiles ??= readWebFiles(FOLDERS)
  return ownFiles
}

/** Empty if the dashboard has not been built. */
export function readWebFiles(folders: readonly string[]): WebFiles {
  const folder = folders.find((candidate) => existsSync(join(candidate, 'index.html')))
  if (folder === undefined) return new Map()
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true })
  const built = new Map(
    entries
      .filter((entry) => entry.isFile() && extname(entry.name) in TYPES)
      .map((entry) => {
        const file = join(entry.parentPath, entry.name)
        const path = file.slice(folder.replace(/[/\\]$/, '').length).replaceAll(sep, '/')
        return [path.replace(/\/index\.html$/, '/'), readWebFile(file, path)] as const
      }),
  )
  return new Map([...built, ...(built.has(BROWSER_PAGE) ? demoFiles() : []), ...docFiles()])
}

function demoFiles(): [path: string, file: WebFile][] {
  return DEMO_FILES.map((name) => join(MODELS, name))
    .filter((path) => existsSync(path))
    .map((path) => {
      const { size, mtimeMs } = statSync(path)
      const headers = {
        ...HEADERS,
        'content-type': 'application/octet-stream',
        'content-length': String(size),
        'cache-control': 'no-cache',
      }
      const file = { headers, etag: `"${size}-${mtimeMs}"`, bytes: { path }, packed: null }
      return [`${BROWSER_PAGE}${basename(path)}`, file]
    })
}

/** For the dashboard's docs page, in English and Chinese, with a page per client. */
function docFiles(): [path: string, file: WebFile][] {
  return ['', 'zh/', 'clients/'].flatMap((folder) => {
    const place = join(DOCS, folder)
    const names = existsSync(place) ? readdirSync(place).filter((name) => name.endsWith('.md')) : []
    return names.map((name): [string, WebFile] => {
      const { size, mtimeMs } = statSync(join(place, name))
      const headers = { ...HEADERS, 'content-type': 'text/markdown; charset=utf-8', 'cache-control': 'no-cache' }
      const bytes = { path: join(place, name) }
      return [`/docs/${folder}${name}`, { headers, etag: `"${size}-${mtimeMs}"`, bytes, packed: null }]
    })
  })
}

function readWebFile(file: string, path: string): WebFile {
  const bytes = readFileSync(file)
  let packed: Buffer | null | undefined
  // The build puts a hash of the content into these names.
  const isHashed = /-[\w-]{8}\.(js|css)$/.test(file)
  return {
    bytes,
    // Compressed on first request: compressing all files would delay the start by 60 ms.
    get packed() {
      packed ??= bytes.length < 1024 ? null : gzipSync(bytes, { level: 9 })
      return packed
    },
    etag: `"${createHash('sha256').update(bytes).digest('base64url').slice(0, 22)}"`,
    headers: {
      ...HEADERS,
      ...(path.startsWith(BROWSER_PAGE) && { 'content-security-policy': BROWSER_POLICY }),
      'content-type': TYPES[extname(file)]!,
      'cache-control': isHashed ? 'public, max-age=31536000, immutable' : 'no-cache',
    },
  }
}

/** Common paths of API descriptions; they lead to the dashboard's page of routes. */
const API_PAGES = ['/docs', '/docs/']

/** Whether the raw path of a request is for one of the files, which need no key. */
export function isForWeb(files: WebFiles, method: string | undefined, url?: string): boolean {
  const path = pathOf(url)
  return (method === 'GET' || method === 'HEAD') && (files.has(path) || API_PAGES.includes(path))
}

function pathOf(url = ''): string {
  return url.split('?', 1)[0]!
}

export function mountWeb(app: FastifyInstance, files: WebFiles): void {
  app.get('/', (request, reply) => {
    const page = files.get('/')
    if (page !== undefined) return send(page, request, reply)
    throw new SkeinError('not_found', 'the dashboard is not built; run `npm run build`')
  })
  const asset = (request: FastifyRequest, reply: FastifyReply) => {
    const file = files.get(pathOf(request.raw.url))
    if (file !== undefined) return send(file, request, reply)
    throw new SkeinError('not_found', 'no such file of the dashboard')
  }
  for (const path of API_PAGES) app.get(path, (_request, reply) => reply.redirect('/#/api'))
  app.get('/docs/*', asset)
  app.get('/assets/*', asset)
  app.get('/browser', (_request, reply) => reply.redirect(BROWSER_PAGE, 308))
  app.get('/browser/*', asset)
  // Browsers request it on their own, whatever the page says.
  app.get('/favicon.ico', asset)
  // At the root, because it covers the whole page.
  app.get('/sw.js', asset)
}

function send(file: WebFile, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  reply.headers(file.headers).header('etag', file.etag)
  if (request.headers['if-none-match'] === file.etag) return reply.code(304).send()
  const { packed, bytes } = file
  if ('path' in bytes) return reply.send(createReadStream(bytes.path))
  const takesGzip = /\bgzip\b/.test(request.headers['accept-encoding'] ?? '')
  if (packed === null || !takesGzip) return reply.send(bytes)
  return reply.header('content-encoding', 'gzip').send(packed)
}
