/**
 * The folder of pulled models: `models/<owner>--<repository>/<file>` below the cache folder. Finds, lists and deletes
 * them by name. Every path that it returns or deletes lies inside the folder and leads through no link.
 */
import { existsSync, lstatSync, readdirSync, realpathSync, rmSync } from 'node:fs'
import { dirname, join, relative, sep } from 'node:path'
import { SkeinError } from '../errors.ts'
import { hasCheckpointSuffix, withoutCheckpointSuffix } from '../files/checkpoint-suffix.ts'
import { cacheFolder } from '../tokenizer/find-vocabulary.ts'
import { findModelName, isSafePath, newestNamed } from './model-names.ts'

interface CachedModel {
  /** The name for `serve` and `rm`: the file without its suffix, or owner/repository for a directory. */
  readonly name: string
  readonly repository: string
  /** A checkpoint file, or a directory with config.json. */
  readonly path: string
  readonly bytes: number
  /** Whether it is an unfinished download. */
  readonly isPartial: boolean
}

type Environment = Readonly<Record<string, string | undefined>>

const SEPARATOR = '--'
const CONFIG = 'config.json'
const PARTIAL = /\.[0-9a-f]{16}\.partial$/

export function modelsFolder(environment: Environment = process.env): string {
  return join(cacheFolder(environment), 'models')
}

/** The path of a repository's file, or of the repository for "". Throws unless both names are safe. */
export function cachePath(folder: string, repository: string, file: string): string {
  if (!isSafePath(repository) || (file !== '' && !isSafePath(file)))
    throw new SkeinError('invalid_request', `${repository}/${file} is no plain file name; it would not be kept safely`)
  return join(folder, repository.replace('/', SEPARATOR), ...file.split('/'))
}

export function listModels(folder: string): CachedModel[] {
  if (!existsSync(folder)) return []
  return readdirSync(folder, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && entry.name.includes(SEPARATOR))
    .map((entry) => entry.name)
    .sort()
    .flatMap((name) => modelsOf(join(folder, name), name.replace(SEPARATOR, '/')))
}

export function findModel(folder: string, name: string): CachedModel | undefined {
  const models = listModels(folder).filter(({ isPartial }) => !isPartial)
  const reference = findModelName(name)
  const [repository, file] = name.split(':')
  if (reference && repository === reference.repository) {
    const own = models.filter((model) => model.repository === repository)
    if (file !== undefined) return own.find(({ path }) => path === cachePath(folder, repository, file))
    // "deep/m" may also be a file in a folder of a repository.
    if (own.length > 0) return own.length === 1 ? own[0] : own.find(({ name: n }) => n === name)
  }
  const files = new Map(models.map((model) => [relative(folder, model.path).split(sep).slice(1).join('/'), model]))
  const chosen = newestNamed(name, [...files.keys()])
  return chosen === undefined ? undefined : files.get(chosen)
}

/** Deletes a model and its partial downloads; returns the bytes freed. */
export function removeModel(folder: string, { path, bytes }: CachedModel): number {
  checkInside(folder, path)
  rmSync(path, { recursive: true })
  const parent = dirname(path)
  if (parent !== folder && existsSync(parent) && readdirSync(parent).length === 0) rmSync(parent, { recursive: true })
  return bytes
}

function modelsOf(directory: string, repository: string): CachedModel[] {
  const files = filesIn(directory)
  if (files.some(({ path }) => path === join(directory, CONFIG))) {
    const bytes = files.reduce((sum, file) => sum + file.bytes, 0)
    const isPartial = files.some(({ path }) => PARTIAL.test(path))
    return [{ name: repository, repository, path: directory, bytes, isPartial }]
  }
  return files.flatMap(({ path, bytes }) => {
    const isPartial = PARTIAL.test(path)
    const file = relative(directory, path).replace(PARTIAL, '')
    if (!hasCheckpointSuffix(file)) return []
    const name = withoutCheckpointSuffix(file.split(sep).join('/'))
    return [{ name, repository, path, bytes, isPartial }]
  })
}

/** Regular files only: links are not ours. */
function filesIn(directory: string): { readonly path: string; readonly bytes: number }[] {
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .sort()
    .map((path) => ({ path, bytes: lstatSync(path).size }))
}

function checkInside(folder: string, path: string): void {
  const inside = relative(realpathSync(folder), realpathSync(path))
  const isLink = lstatSync(path).isSymbolicLink()
  if (!isLink && inside !== '' && !inside.startsWith('..') && join(folder, inside) === path) return
  throw new SkeinError('forbidden', `${path} is not a file of ${folder}; it was not touched`)
}
