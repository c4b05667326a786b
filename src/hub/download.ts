/**
 * Downloads one file into a partial file, resumes where the last attempt stopped, and renames it when its digest is
 * right. So a file under its final name is always whole. It knows nothing of models.
 */
import { createHash, type Hash } from 'node:crypto'
import { createReadStream, existsSync, rmSync, statfsSync, statSync } from 'node:fs'
import { constants, type FileHandle, open, rename } from 'node:fs/promises'
import { dirname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { SkeinError } from '../errors.ts'
import { makeFolder } from '../files/make-folder.ts'
import { type Hub, type HubFile, request, unreachable } from './hub.ts'

interface Download {
  readonly url: URL
  readonly file: HubFile
  /** Where the file goes. */
  readonly path: string
  readonly onProgress?: ((doneBytes: number, totalBytes: number) => void) | undefined
  /** Pause before the first retry; it doubles each time. */
  readonly retryMs?: number | undefined
}

const ATTEMPTS = 5
const RETRY_MS = 1000

/** Whether the file was fetched, or was already there and whole. */
export async function download(hub: Hub, job: Download): Promise<'fetched' | 'present'> {
  const { file, path } = job
  if (await isWhole(path, file)) return 'present'
  try {
    makeFolder(dirname(path))
  } catch (error) {
    throw unwritable(path, error)
  }
  const partial = partialPath(path, file)
  checkSpace(path, file.size - sizeOf(partial))
  for (let attempt = 1; ; attempt++) {
    try {
      await fetchRest(hub, job, partial)
      break
    } catch (error) {
      const isPassing = error instanceof SkeinError && error.code === 'timeout'
      if (!isPassing || attempt === ATTEMPTS) throw error
      await sleep((job.retryMs ?? RETRY_MS) * 2 ** (attempt - 1))
    }
  }
  try {
    await verify(partial, file, path)
    await rename(partial, path)
  } catch (error) {
    // Another process that downloaded the same file was faster and has renamed it.
    if (!existsSync(partial) && (await isWhole(path, file))) return 'present'
    throw error
  }
  return 'fetched'
}

async function isWhole(path: string, file: HubFile): Promise<boolean> {
  return sizeOf(path) === file.size && (await digestOf(path, file)) === file.digest.hex
}

/** Named after the content, so that a newer version never continues an older one. */
function partialPath(path: string, { digest }: HubFile): string {
  return `${path}.${digest.hex.slice(0, 16)}.partial`
}

async function fetchRest(hub: Hub, { url, file, onProgress }: Download, partial: string) {
  // A link in place of the partial file would make us write elsewhere.
  const flags = constants.O_WRONLY | constants.O_CREAT | (constants.O_NOFOLLOW ?? 0)
  const handle = await open(partial, flags, 0o644).catch((error: unknown) => {
    throw unwritable(partial, error)
  })
  try {
    let done = (await handle.stat()).size
    if (done > file.size) done = await restart(handle)
    onProgress?.(done, file.size)
    if (done === file.size) return
    const response = await request(hub, url, done)
    if (done > 0 && !continues(response, done)) done = await restart(handle)
    for await (const chunk of bodyOf(response, url)) {
      if (done + chunk.byteLength > file.size) {
        throw new SkeinError('corrupt_weights', `${url.host} sent more than ${file.size} bytes`)
      }
      await writeAll(handle, chunk, done)
      done += chunk.byteLength
      onProgress?.(done, file.size)
    }
    if (done < file.size) throw unreachable(url, new Error('the connection ended early'))
    await handle.sync()
  } finally {
    await handle.close()
  }
}

function unwritable(path: string, cause: unknown): SkeinError {
  const { message } = SkeinError.from(cause)
  return new SkeinError(
    'forbidden',
    `cannot write ${path}: ${message}; make its folder this user's own, or name another cache folder with XDG_CACHE_HOME`,
    { cause },
  )
}

async function restart(handle: FileHandle): Promise<number> {
  await handle.truncate(0)
  return 0
}

/** A server may ignore the range and send everything. */
function continues(response: Response, offset: number): boolean {
  const range = response.headers.get('content-range') ?? ''
  return response.status === 206 && range.startsWith(`bytes ${offset}-`)
}

async function* bodyOf(response: Response, url: URL): AsyncIterable<Uint8Array> {
  try {
    yield* response.body ?? []
  } catch (error) {
    throw unreachable(url, error)
  }
}

async function writeAll(handle: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  let done = 0
  while (done < bytes.byteLength) {
    const { bytesWritten } = await handle.write(bytes, done, undefined, position + done)
    done += bytesWritten
  }
}

async function verify(partial: string, file: HubFile, path: string): Promise<void> {
  const found = await digestOf(partial, file)
  if (found === file.digest.hex) return
  rmSync(partial, { force: true })
  throw new SkeinError(
    'corrupt_weights',
    `${path} arrived with digest ${found}, not ${file.digest.hex}; it was thrown away, pull it again`,
  )
}

async function digestOf(path: string, file: HubFile): Promise<string> {
  const hash = startHash(file)
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) hash.update(chunk)
  return hash.digest('hex')
}

/** Git's own digest is a sha1 of a header and the content. */
function startHash({ digest, size }: HubFile): Hash {
  if (digest.kind === 'sha256') return createHash('sha256')
  return createHash('sha1').update(`blob ${size}\0`)
}

function checkSpace(path: string, neededBytes: number): void {
  const { bavail, bsize } = statfsSync(dirname(path))
  const free = bavail * bsize
  if (free >= neededBytes) return
  throw new SkeinError(
    'too_large',
    `${path} needs ${neededBytes} more bytes and its disk has ${free}; free some or set XDG_CACHE_HOME`,
  )
}

function sizeOf(path: string): number {
  try {
    return statSync(path, { throwIfNoEntry: false })?.size ?? 0
  } catch (error) {
    throw unwritable(path, error)
  }
}
