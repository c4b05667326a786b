/** Which storage of blobs an address names. */
import { randomBytes } from 'node:crypto'
import { type FileHandle, open, readdir, rename, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { AwsClient } from 'aws4fetch'
import { SkeinError } from '../../errors.ts'
import { joinBytes } from '../../files/bytes.ts'
import { makeFolder } from '../../files/make-folder.ts'
import type { BlobInfo, Blobs } from './blobs.ts'

/** Throws invalid_request for what names no storage. */
export function openBlobs(url: string, environment: NodeJS.ProcessEnv = process.env): Blobs {
  const found = URL.canParse(url) ? new URL(url) : null
  if (found?.protocol === 'file:' && found.host === '') return new FolderBlobs(decodeURIComponent(found.pathname))
  if (found?.protocol === 's3:' && found.host !== '') return S3Blobs.at(found.host, found.pathname, environment)
  const message = `${url} names no storage of states: give file:///FOLDER (of a file system that all nodes share) or s3://BUCKET/PREFIX`
  throw new SkeinError('invalid_request', message)
}

/** Its first letters are the folder that a blob is in: some file systems are slow with many names in one. */
const FOLDER_LETTERS = 2

/** Blobs as files of a file system that all nodes share. */
export class FolderBlobs implements Blobs {
  readonly #folder: string

  constructor(folder: string) {
    this.#folder = folder
    makeFolder(folder, 0o700)
  }

  async put(name: string, parts: readonly Uint8Array[]): Promise<void> {
    const folder = this.#folderOf(name)
    makeFolder(folder, 0o700)
    const temporary = join(folder, `${name}.${randomBytes(4).toString('hex')}.tmp`)
    try {
      await withFile(temporary, 'wx', async (file) => {
        // On a disk that is nearly full the system takes a part of what it is given, and refuses only the next.
        for (const part of parts) for (let at = 0; at < part.length; ) at += (await file.write(part, at)).bytesWritten
        await file.sync()
      })
      await rename(temporary, this.#path(name))
    } catch (error) {
      await rm(temporary, { force: true }).catch(() => {})
      throw error
    }
    await withFile(folder, 'r', (handle) => handle.sync())
    await withFile(this.#folder, 'r', (handle) => handle.sync())
  }

  async get(name: string): Promise<Uint8Array> {
    return withFile(this.#path(name), 'r', async (file) => {
      const { size } = await file.stat()
      const bytes = new Uint8Array(size)
      let at = 0
      while (at < size) {
        const { bytesRead } = await file.read(bytes, at, size - at, at)
        if (bytesRead === 0) break
        at += bytesRead
      }
      return bytes.subarray(0, at)
    })
  }

  async remove(name: string): Promise<void> {
    await rm(this.#path(name), { force: true })
  }

  /** What was never finished is among them. */
  async *list(): AsyncIterable<BlobInfo> {
    for (const entry of await readdir(this.#folder, { withFileTypes: true })) {
      if (!entry.isDirectory()) continue
      const folder = join(this.#folder, entry.name)
      for (const name of await readdir(folder)) {
        const found = await stat(join(folder, name)).catch(() => null)
        if (found !== null) yield { name, changedAt: found.mtimeMs }
      }
    }
  }

  #folderOf(name: string): string {
    return join(this.#folder, name.slice(0, FOLDER_LETTERS))
  }

  #path(name: string): string {
    return join(this.#folderOf(name), name)
  }
}

async function withFile<T>(path: string, flags: string, work: (file: FileHandle) => Promise<T>): Promise<T> {
  const file = await open(path, flags, 0o600)
  try {
    return await work(file)
  } finally {
    await file.close()
  }
}

/** For an object of some tens of megabytes. */
const TIMEOUT_MS = 30_000
/** Tries after the first when the server is busy. After that the writer of states tries again. */
const RETRIES = 2
const REGION = 'us-east-1'

/**
 * Blobs as objects of a bucket, of any server that speaks S3. Nothing is asked of it but to put, get, list and delete whole
 * objects: conditions on them are not to be had everywhere. The only file that knows the client.
 */
class S3Blobs implements Blobs {
  readonly #client: AwsClient
  /** URL of the bucket, without a slash at the end. */
  readonly #bucket: string
  /** Empty, or ends with a slash. */
  readonly #prefix: string

  private constructor(client: AwsClient, bucket: string, prefix: string) {
    this.#client = client
    this.#bucket = bucket
    this.#prefix = prefix
  }

  /** Server and keys are those of the usual variables. Throws invalid_request without keys. */
  static at(bucket: string, path: string, environment: NodeJS.ProcessEnv): S3Blobs {
    const { AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN } = environment
    if (!AWS_ACCESS_KEY_ID || !AWS_SECRET_ACCESS_KEY) {
      const message = `s3://${bucket} needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_REGION, AWS_ENDPOINT_URL where it is not Amazon's)`
      throw new SkeinError('invalid_request', message)
    }
    const region = environment.AWS_REGION ?? environment.AWS_DEFAULT_REGION ?? REGION
    const server = environment.AWS_ENDPOINT_URL_S3 ?? environment.AWS_ENDPOINT_URL
    const client = new AwsClient({
      accessKeyId: AWS_ACCESS_KEY_ID,
      secretAccessKey: AWS_SECRET_ACCESS_KEY,
      ...(AWS_SESSION_TOKEN ? { sessionToken: AWS_SESSION_TOKEN } : {}),
      service: 's3',
      region,
      retries: RETRIES,
    })
    const url = server ? `${server.replace(/\/$/, '')}/${bucket}` : `https://${bucket}.s3.${region}.amazonaws.com`
    const prefix = path.replace(/^\/|\/$/g, '')
    return new S3Blobs(client, url, prefix === '' ? '' : `${prefix}/`)
  }

  async put(name: string, parts: readonly Uint8Array[]): Promise<void> {
    await this.#ask(this.#url(name), { method: 'PUT', body: joinBytes(parts) })
  }

  async get(name: string): Promise<Uint8Array> {
    const answer = await this.#ask(this.#url(name), { method: 'GET' })
    return new Uint8Array(await answer.arrayBuffer())
  }

  async remove(name: string): Promise<void> {
    await this.#ask(this.#url(name), { method: 'DELETE' }, [404])
  }

  async *list(): AsyncIterable<BlobInfo> {
    let token: string | null = null
    do {
      const query: URLSearchParams = new URLSearchParams({
        'list-type': '2',
        prefix: this.#prefix,
        ...(token === null ? {} : { 'continuation-token': token }),
      })
      const page = await (await this.#ask(`${this.#bucket}?${query}`, { method: 'GET' })).text()
      for (const entry of page.split('<Contents>').slice(1)) {
        const key = textOf(entry, 'Key') ?? ''
        const changedAt = Date.parse(textOf(entry, 'LastModified') ?? '')
        const name = key.slice(this.#prefix.length)
        if (key.startsWith(this.#prefix) && /^[\w-]+$/.test(name) && changedAt > 0) yield { name, changedAt }
      }
      token = textOf(page, 'NextContinuationToken')
    } while (token !== null)
  }

  async #ask(url: string, request: { method: string; body?: Uint8Array<ArrayBuffer> }, fine: readonly number[] = []) {
    const signal = AbortSignal.timeout(TIMEOUT_MS)
    const answer = await this.#client.fetch(url, { ...request, signal })
    if (answer.ok || fine.includes(answer.status)) return answer
    const reason = textOf(await answer.text(), 'Code') ?? answer.statusText
    if (answer.status === 413 || reason === 'EntityTooLarge')
      throw new SkeinError('state_refused', `the storage of states takes none of that size (${reason})`)
    throw new Error(`the storage of states answered ${answer.status} (${reason})`)
  }

  #url(name: string): string {
    return `${this.#bucket}/${this.#prefix}${name}`
  }
}

/** Text of the first such element. Names and times need no more XML than that. */
function textOf(xml: string, element: string): string | null {
  const [, after] = xml.split(`<${element}>`, 2)
  const text = after?.split('<', 1)[0]
  return text === undefined ? null : text.replaceAll('&quot;', '"').replaceAll('&amp;', '&')
}
