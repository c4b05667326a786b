/**
 * Stores files of the web in the browser: in its private file system if that can be read in place (in a worker), else
 * in its cache, else as long as the page lives. A URL's content is assumed never to change. It knows nothing of models.
 */
/// <reference lib="dom" />
import { SkeinError } from '../errors.ts'
import { utf8 } from '../files/bytes.ts'
import { hexOf, sha256 } from '../files/digest.ts'
import type { ByteSource } from '../model/formats/byte-source.ts'

type DownloadProgress = (doneBytes: number, totalBytes: number | null) => void

interface StoreOptions {
  /** False: the file is fetched and not stored. */
  readonly keep?: boolean | undefined
  readonly onProgress?: DownloadProgress | undefined
  readonly signal?: AbortSignal | undefined
}

const FOLDER = 'skein'

/** A file of the browser's private file system, open in a worker. Node's types lack it. */
interface OpenFile {
  getSize(): number
  truncate(size: number): void
  read(into: Uint8Array, options: { readonly at: number }): number
  write(bytes: Uint8Array, options: { readonly at: number }): number
  flush(): void
  close(): void
}

interface OpenableFile {
  createSyncAccessHandle(): Promise<OpenFile>
}

/** The bytes of a file, which is fetched only if it is not stored. */
export async function openStored(url: string, options: StoreOptions = {}): Promise<ByteSource> {
  if (options.keep === false) return inMemory(url, await fetchPieces(url, options))
  if (hasFiles()) return await openInFiles(url, options)
  if (typeof caches !== 'undefined') return await openInCache(url, options)
  return inMemory(url, await fetchPieces(url, options))
}

export async function forgetStored(): Promise<void> {
  if (typeof caches !== 'undefined') await caches.delete(FOLDER)
  if (typeof navigator === 'undefined' || !navigator.storage?.getDirectory) return
  const root = await navigator.storage.getDirectory()
  await root.removeEntry(FOLDER, { recursive: true }).catch((error: DOMException) => {
    if (error.name !== 'NotFoundError') throw error
  })
}

/** Synchronous file access exists only in workers. */
function hasFiles(): boolean {
  return (
    typeof FileSystemFileHandle !== 'undefined' &&
    'createSyncAccessHandle' in FileSystemFileHandle.prototype &&
    typeof navigator.storage?.getDirectory === 'function'
  )
}

async function openInFiles(url: string, options: StoreOptions): Promise<ByteSource> {
  const root = await navigator.storage.getDirectory()
  const folder = await root.getDirectoryHandle(FOLDER, { create: true })
  const name = hexOf(sha256().update(utf8(url)).digest())
  // hasFiles() has checked that it exists.
  const file = (await folder.getFileHandle(name, { create: true })) as unknown as OpenableFile
  let handle: OpenFile
  try {
    handle = await file.createSyncAccessHandle()
  } catch (error) {
    // Another tab has it open. It closes the file after loading its model, but there is no event for that.
    if (!(error instanceof DOMException)) throw error
    return inMemory(url, await fetchPieces(url, options))
  }
  try {
    const whole = await folder.getFileHandle(`${name}.whole`).catch(() => null)
    if (whole === null) {
      await download(url, handle, options)
      await folder.getFileHandle(`${name}.whole`, { create: true })
    }
    return sourceOf(url, handle)
  } catch (error) {
    handle.close()
    throw error
  }
}

async function download(url: string, handle: OpenFile, options: StoreOptions): Promise<void> {
  handle.truncate(0)
  let at = 0
  await fetchEach(url, options, (piece) => {
    if (handle.write(piece, { at }) !== piece.length)
      throw new SkeinError(
        'state_unavailable',
        'the browser has no room to store this model; load it with keep: false, or free some space',
      )
    at += piece.length
  })
  handle.flush()
}

function sourceOf(path: string, handle: OpenFile): ByteSource {
  return {
    path,
    size: handle.getSize(),
    readInto(target, offset) {
      const count = handle.read(target, { at: offset })
      if (count !== target.length) throw new SkeinError('corrupt_weights', `${path}: what was kept of it is too short`)
    },
    close: () => handle.close(),
  }
}

async function openInCache(url: string, options: StoreOptions): Promise<ByteSource> {
  const cache = await caches.open(FOLDER)
  const kept = await cache.match(url)
  if (kept) return inMemory(url, [new Uint8Array(await kept.arrayBuffer())])
  const pieces = await fetchPieces(url, options)
  try {
    await cache.put(url, new Response(new Blob(pieces)))
  } catch (error) {
    // The file is here, and will be fetched again next time.
    if (!(error instanceof DOMException && error.name === 'QuotaExceededError')) throw error
  }
  return inMemory(url, pieces)
}

type Piece = Uint8Array<ArrayBuffer>

async function fetchPieces(url: string, options: StoreOptions): Promise<Piece[]> {
  const pieces: Piece[] = []
  await fetchEach(url, options, (piece) => pieces.push(piece))
  return pieces
}

async function fetchEach(url: string, { onProgress, signal }: StoreOptions, take: (piece: Piece) => void) {
  const reply = await fetch(url, signal ? { signal } : {})
  if (!reply.ok || reply.body === null)
    throw new SkeinError('not_found', `${url} cannot be fetched: HTTP ${reply.status}`)
  // For a compressed reply this is the compressed size.
  const isPacked = reply.headers.has('content-encoding')
  const length = isPacked ? null : reply.headers.get('content-length')
  const total = length === null ? null : Number(length)
  let done = 0
  const reader = reply.body.getReader()
  for (;;) {
    const { value } = await reader.read()
    if (value === undefined) break
    take(value)
    done += value.length
    onProgress?.(done, total)
  }
  if (total !== null && done !== total)
    throw new SkeinError('corrupt_weights', `${url}: ${done} of ${total} bytes came; try again`)
}

function inMemory(path: string, pieces: readonly Uint8Array[]): ByteSource {
  const starts: number[] = []
  let size = 0
  for (const { length } of pieces) {
    starts.push(size)
    size += length
  }
  return {
    path,
    size,
    readInto(target, offset) {
      let i = starts.findLastIndex((start) => start <= offset)
      for (let done = 0; done < target.length; i++) {
        const from = offset + done - starts[i]!
        const part = pieces[i]!.subarray(from, from + target.length - done)
        target.set(part, done)
        done += part.length
      }
    },
    close() {},
  }
}
