/**
 * An S3 test server: one bucket in memory, with put, read, list and delete of whole objects. It checks signatures by
 * the rules of AWS4-HMAC-SHA256, implemented here again. The registries that tests use have no S3 server.
 */
import { createHash, createHmac, timingSafeEqual } from 'node:crypto'
import { createServer, type IncomingMessage } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'

export const S3_KEYS = { AWS_ACCESS_KEY_ID: 'AKIATEST', AWS_SECRET_ACCESS_KEY: 'test/secret+key' }
/** Small, so that lists have pages. */
const PAGE = 3
const SLOW_MS = 300

export interface S3Double {
  readonly url: string
  readonly objects: Map<string, Buffer>
  /** Statuses of the next replies, one each. */
  readonly failures: number[]
  /** Faults per request: late, refused, out of space, or cut in the middle. */
  mood: 'well' | 'slow' | 'failing' | 'full' | 'cut'
  close(): Promise<void>
}

export async function startS3Double(host = '127.0.0.1'): Promise<S3Double> {
  const objects = new Map<string, Buffer>()
  const failures: number[] = []
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    const { mood } = double
    if (mood === 'slow') await delay(SLOW_MS)
    const isRefused = mood === 'failing' || (mood === 'full' && request.method === 'PUT')
    if (isRefused) failures.push(mood === 'full' ? 507 : 503)
    const [status, body] = failures.length > 0 ? fail(failures.shift()!) : answer(request, Buffer.concat(chunks))
    if (mood !== 'cut' || request.method !== 'GET') response.writeHead(status).end(body)
    else {
      response.writeHead(status, { 'content-length': body.length })
      response.write(body.slice(0, body.length / 2), () => response.destroy())
    }
  })
  const fail = (status: number): [number, string] => [status, '<Error><Code>SlowDown</Code></Error>']

  function answer(request: IncomingMessage, body: Buffer): [number, string | Buffer] {
    if (!isSigned(request)) return [403, '<Error><Code>SignatureDoesNotMatch</Code></Error>']
    const url = new URL(request.url!, 'http://s3')
    const [, bucket, ...rest] = decodeURIComponent(url.pathname).split('/')
    const key = rest.join('/')
    if (bucket !== 'bucket') return [404, '<Error><Code>NoSuchBucket</Code></Error>']
    if (key === '' && request.method === 'GET') return [200, page(url.searchParams)]
    if (request.method === 'PUT') objects.set(key, body)
    else if (request.method === 'DELETE') return [objects.delete(key) ? 204 : 204, '']
    else if (!objects.has(key)) return [404, '<Error><Code>NoSuchKey</Code></Error>']
    else return [200, objects.get(key)!]
    return [200, '']
  }

  function page(query: URLSearchParams): string {
    const after = query.get('continuation-token') ?? ''
    const all = [...objects.keys()].sort().filter((key) => key.startsWith(query.get('prefix') ?? ''))
    const coming = all.filter((key) => key > after)
    const entries = coming.slice(0, PAGE)
    const contents = entries.map(
      (key) => `<Contents><Key>${key}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>`,
    )
    const next = coming.length > PAGE ? `<NextContinuationToken>${entries.at(-1)}</NextContinuationToken>` : ''
    return `<?xml version="1.0"?><ListBucketResult>${contents.join('')}${next}</ListBucketResult>`
  }

  await new Promise<void>((resolve) => server.listen(0, host, resolve))
  const address = server.address()
  const port = typeof address === 'object' ? address!.port : 0
  const double: S3Double = {
    mood: 'well',
    url: `http://${host}:${port}`,
    objects,
    failures,
    close: () => new Promise((resolve) => server.close(() => resolve())),
  }
  return double
}

const hmac = (key: string | Buffer, text: string) => createHmac('sha256', key).update(text).digest()

function isSigned({ method, url, headers }: IncomingMessage): boolean {
  const form =
    /^AWS4-HMAC-SHA256 Credential=([^/]+)\/(\d+)\/([^/]+)\/s3\/aws4_request, SignedHeaders=([^,]+), Signature=([0-9a-f]{64})$/
  const parts = form.exec(headers.authorization ?? '')
  if (parts === null || parts[1] !== S3_KEYS.AWS_ACCESS_KEY_ID) return false
  const [, , day, region, names, signature] = parts as unknown as string[]
  const { pathname, searchParams } = new URL(url!, 'http://s3')
  const encode = (text: string) =>
    encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`)
  const query = [...searchParams].map(([name, value]) => `${encode(name)}=${encode(value)}`).sort()
  const signed = names!.split(';').map((name) => `${name}:${String(headers[name]).trim()}\n`)
  const canonical = [
    ...[method, pathname, query.join('&'), signed.join(''), names],
    headers['x-amz-content-sha256'],
  ].join('\n')
  const digest = createHash('sha256').update(canonical).digest('hex')
  const scope = `${day}/${region}/s3/aws4_request`
  const text = ['AWS4-HMAC-SHA256', headers['x-amz-date'], scope, digest].join('\n')
  const key = [region!, 's3', 'aws4_request'].reduce(hmac, hmac(`AWS4${S3_KEYS.AWS_SECRET_ACCESS_KEY}`, day!))
  return timingSafeEqual(hmac(key, text), Buffer.from(signature!, 'hex'))
}
