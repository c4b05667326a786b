/**
 * Pulls a model: from a name to verified files in the cache, plus the World vocabulary that released models need.
 * Offline, it answers only from the cache.
 */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { SkeinError } from '../errors.ts'
import { hasCheckpointSuffix } from '../files/checkpoint-suffix.ts'
import { cacheFolder, WORLD_VOCABULARY } from '../tokenizer/find-vocabulary.ts'
import { download } from './download.ts'
import { fileUrl, type Hub, type HubFile, listFiles } from './hub.ts'
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
  return new SkeinError(
    'not_found',
    `${what} is not in the cache, and downloads are off (--offline or HF_HUB_OFFLINE); pull it while online`,
  )
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
  throw new SkeinError(
    'not_found',
    `${repository} is not one model; name its file as ${repository}:FILE. It has ${listed(checkpoints)}`,
  )
}

const MAX_LISTED = 20

function listed(files: readonly HubFile[]): string {
  const names = files.slice(0, MAX_LISTED).map(({ path }) => path)
  const more = files.length - names.length
  if (names.length === 0) return 'no checkpoints'
  return more > 0 ? `${names.join(', ')} and ${more} more` : names.join(', ')
}
