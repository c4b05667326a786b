/**
 * Finds a model's vocabulary file: the one given, one beside the model, one from the environment, or one in the cache
 * folder. It looks only at file names.
 */
import { existsSync, readdirSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { SkeinError } from '../errors.ts'
import { hasCheckpointSuffix, withoutCheckpointSuffix } from '../files/checkpoint-suffix.ts'

/** The World vocabulary of all released RWKV-5, -6 and -7 models. */
export const WORLD_VOCABULARY = {
  fileName: 'rwkv_vocab_v20230424.txt',
  sha256: 'e6dee3d4e31b4d5c40ac99508ac6c701ceef4bed681bf2167ce9a908552bca89',
} as const

const OWN_SUFFIX = '.vocab.txt'

interface VocabularySearch {
  /** Path of the checkpoint, with or without its suffix, or of a checkpoint directory. */
  readonly model: string
  /** The file that the caller gave; then nothing else is searched. */
  readonly explicit?: string
  /** Default: the environment of the process. */
  readonly environment?: Readonly<Record<string, string | undefined>>
}

export function findVocabulary(search: VocabularySearch): string {
  const { model, explicit, environment = process.env } = search
  if (explicit !== undefined) return existing(explicit, '--vocab')
  const own = ownVocabularyPath(model)
  if (existsSync(own)) return own
  const beside = vocabulariesIn(isDirectory(model) ? model : dirname(model))
  const world = beside.find((path) => basename(path) === WORLD_VOCABULARY.fileName)
  if (world !== undefined) return world
  if (beside.length === 1) return beside[0]!
  const { SKEIN_VOCAB: named } = environment
  if (named) return existing(named, 'SKEIN_VOCAB')
  const cached = join(cacheFolder(environment), WORLD_VOCABULARY.fileName)
  if (existsSync(cached)) return cached
  throw notFound(model, own, cached, beside)
}

/** Path of a model's own vocabulary: "models/demo.pth" → "models/demo.vocab.txt". */
export function ownVocabularyPath(model: string): string {
  return `${withoutCheckpointSuffix(model)}${OWN_SUFFIX}`
}

function existing(path: string, from: string): string {
  if (existsSync(path)) return path
  throw new SkeinError('not_found', `${path}: no such vocabulary file (named by ${from})`)
}

function isDirectory(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
}

/** Vocabularies of the folder, without those named after another model. */
function vocabulariesIn(folder: string): string[] {
  if (!existsSync(folder)) return []
  const names = readdirSync(folder).sort()
  const models = new Set(names.filter((name) => hasCheckpointSuffix(name)).map((name) => withoutCheckpointSuffix(name)))
  const isOthers = (name: string) => name.endsWith(OWN_SUFFIX) && models.has(name.slice(0, -OWN_SUFFIX.length))
  return names
    .filter((name) => /vocab/i.test(name) && /\.txt$/i.test(name) && !isOthers(name))
    .map((name) => join(folder, name))
}

/** Folder of downloads. */
export function cacheFolder(environment: Readonly<Record<string, string | undefined>>): string {
  return join(environment.XDG_CACHE_HOME || join(homedir(), '.cache'), 'skein')
}

function notFound(model: string, own: string, cached: string, beside: readonly string[]): SkeinError {
  const { fileName } = WORLD_VOCABULARY
  const several =
    beside.length > 1 ? ` (its folder has several: ${beside.map((path) => basename(path)).join(', ')})` : ''
  return new SkeinError(
    'not_found',
    `no vocabulary found for ${model}${several}; run \`skein pull vocabulary\`, or put ${fileName} beside the model or into ${dirname(cached)}; a vocabulary of the model's own is ${basename(own)} beside it, or named with --vocab`,
  )
}
