/**
 * Pulls a model: from a name to verified files in the cache, plus the World vocabulary that released models need.
 * Offline, it answers only from the cache.
 */

import { createHash, type Hash } from 'node:crypto'
import { createReadStream, existsSync, rmSync, statfsSync, statSync } from 'node:fs'
import { constants, type FileHandle, open, rename } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { SkeinError } from '../errors.ts'
import { hasCheckpointSuffix } from '../files/checkpoint-suffix.ts'
import { makeFolder } from '../files/make-folder.ts'
import { cacheFolder, WORLD_VOCABULARY } from '../tokenizer/find-vocabulary.ts'
import { fileUrl, type Hub, type HubFile, listFiles, request, unreachable } from './hub.ts'
import { cachePath, findModel, modelsFolder } from './model-cache.ts'
import { type ModelReference, parseModelName } from './model-names.ts'

export interface PullOptions {
  readonly hub: Hub
  readonly isOffline: boolean
  readonly environment?: Readonly<Record<string, string | undefined>>
  /** Called before each file; the returned function is called with its progress. */
  readonly onFile?: (name: string) => (doneBytes: number, totalBytes: number) => void
  readonly retryMs?: number
}

export interface Pulled {
  /** A path for `skein serve`: a file or a directory. */
  readonly path: string
  readonly fetched: readonly string[]
}

export async function pullModel(name: string, options: PullOptions): Promise<Pulled> {
  const reference = parseModelName(name)
  const folder = modelsFolder(options.environment)
  if (options.isOffline) return { path: inCache(folder, name), fetched: [] }
  const files = await listFiles(options.hub, reference.repository)
  const wanted = chooseFiles(name, reference, files)
  const { repository } = reference
  const fetched: string[] = []
  for (const file of wanted.files) {
    const path = cachePath(folder, repository, file.path)
    const url = fileUrl(options.hub, repository, file.path)
    if ((await fetchFile(options, url, file, path)) === 'fetched') fetched.push(file.path)
  }
  return { path: cachePath(folder, repository, wanted.path), fetched }
}

/** Any of them will do, because the digest is checked. */
const VOCABULARY_REPOSITORIES = ['fla-hub/rwkv7-1.5B-world', 'fla-hub/rwkv7-0.4B-world']
const VOCABULARY_BYTES = 1_093_733

/** Into the cache folder, where every model finds it. */
export async function pullVocabulary(options: PullOptions): Promise<Pulled> {
  const { fileName, sha256 } = WORLD_VOCABULARY
  const path = join(cacheFolder(options.environment ?? process.env), fileName)
  const digest = { kind: 'sha256', hex: sha256 } as const
  const file: HubFile = { path: fileName, size: VOCABULARY_BYTES, digest }
  if (options.isOffline) {
    if (existsSync(path)) return { path, fetched: [] }
    throw offline('the World vocabulary')
  }
  let failure: unknown
  for (const repository of VOCABULARY_REPOSITORIES) {
    try {
      const url = fileUrl(options.hub, repository, fileName)
      const outcome = await fetchFile(options, url, file, path)
      return { path, fetched: outcome === 'fetched' ? [fileName] : [] }
    } catch (error) {
      failure = error
    }
  }
  throw failure
}

function fetchFile(options: PullOptions, url: URL, file: HubFile, path: string) {
  const { hub, onFile, retryMs } = options
  return download(hub, { url, file, path, onProgress: onFile?.(file.path), retryMs })
}

function inCache(folder: string, name: string): string {
  const model = findModel(folder, name)
  if (model) return model.path
  throw offline(name)
}

function offline(what: string): SkeinError {
  const message = `${what} is not in the cache, and downloads are off (--offline or HF_HUB_OFFLINE); pull it while online`
  return new SkeinError('not_found', message)
}

interface Choice {
  /** Path that names the model: its file, or "" for the directory of config.json. */
  readonly path: string
  readonly files: readonly HubFile[]
}

function chooseFiles(name: string, reference: ModelReference, files: readonly HubFile[]): Choice {
  const checkpoints = files.filter(({ path }) => hasCheckpointSuffix(path))
  if (!reference.choose) return wholeRepository(reference.repository, files, checkpoints)
  const path = reference.choose(checkpoints.map((file) => file.path))
  const file = checkpoints.find((candidate) => candidate.path === path)
  if (file) return { path: file.path, files: [file] }
  throw new SkeinError('not_found', `${reference.repository} has no model "${name}"; it has ${listed(checkpoints)}`)
}

/** The files of a directory in the layout of transformers, without code and notes. */
const DIRECTORY_FILE = /^(config\.json|model.*\.safetensors(\.index\.json)?|.*vocab.*\.txt)$/

/** The files of the model if the whole repository is one; else null. */
export function directoryModel(files: readonly HubFile[]): readonly HubFile[] | null {
  const names = new Set(files.map(({ path }) => path))
  const hasWeights = ['model.safetensors', 'model.safetensors.index.json'].some((n) => names.has(n))
  if (!names.has('config.json') || !hasWeights) return null
  return files.filter(({ path }) => DIRECTORY_FILE.test(path))
}

function wholeRepository(repository: string, files: readonly HubFile[], checkpoints: readonly HubFile[]): Choice {
  const whole = directoryModel(files)
  if (whole !== null) return { path: '', files: whole }
  const [only, ...others] = checkpoints
  if (only && others.length === 0) return { path: only.path, files: [only] }
  const message = `${repository} is not one model; name its file as ${repository}:FILE. It has ${listed(checkpoints)}`
  throw new SkeinError('not_found', message)
}

const MAX_LISTED = 20

function listed(files: readonly HubFile[]): string {
  const names = files.slice(0, MAX_LISTED).map(({ path }) => path)
  const more = files.length - names.length
  if (names.length === 0) return 'no checkpoints'
  return more > 0 ? `${names.join(', ')} and ${more} more` : names.join(', ')
}

/**
 * Downloads one file into a partial file, resumes where the last attempt stopped, and renames it when its digest is
 * right. So a file under its final name is always whole. It knows nothing of models.
 */

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
async function download(hub: Hub, job: Download): Promise<'fetched' | 'present'> {
  const { file, path } = job
  if (await isWhole(path, file)) return 'present'
  try {
    makeFolder(dirname(path))
  } catch (error) {
    throw unwritable(path, error)
  }
  // Named after the content, so that a newer version never continues an older one.
  const partial = `${path}.${file.digest.hex.slice(0, 16)}.partial`
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
      if (done + chunk.byteLength > file.size)
        throw new SkeinError('corrupt_weights', `${url.host} sent more than ${file.size} bytes`)
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
  const message = `${path} arrived with digest ${found}, not ${file.digest.hex}; it was thrown away, pull it again`
  throw new SkeinError('corrupt_weights', message)
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
  const message = `${path} needs ${neededBytes} more bytes and its disk has ${free}; free some or set XDG_CACHE_HOME`
  throw new SkeinError('too_large', message)
}

function sizeOf(path: string): number {
  try {
    return statSync(path, { throwIfNoEntry: false })?.size ?? 0
  } catch (error) {
    throw unwritable(path, error)
  }
}
