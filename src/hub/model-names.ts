/**
 * Names of models: `owner/repository`, `owner/repository:file`, file names of released models, and short names such as
 * `rwkv7-g1-0.4b`, which mean the newest file of a line and size. It knows no network and no disk.
 */

import { SkeinError } from '../errors.ts'
import { hasCheckpointSuffix, withoutCheckpointSuffix } from '../files/checkpoint-suffix.ts'

export interface ModelReference {
  /** owner/name */
  readonly repository: string
  /** Chooses one of the repository's files; undefined if the repository is one model. */
  readonly choose: ((paths: readonly string[]) => string | undefined) | undefined
}

const PART = '[A-Za-z0-9_][A-Za-z0-9._-]{0,127}'
const REPOSITORY = new RegExp(`^(${PART}/${PART})(?::(.+))?$`)
const SAFE_PART = new RegExp(`^${PART}$`)

/** Repositories of the released models. */
const LINES: readonly { readonly name: RegExp; readonly repository: string }[] = [
  { name: /^rwkv(7a?)?-g\d/i, repository: 'BlinkDL/rwkv7-g1' },
  { name: /^rwkv7-world-|^rwkv-x070-world-/i, repository: 'BlinkDL/rwkv-7-world' },
  { name: /^rwkv6-world-|^rwkv-x060-world-/i, repository: 'BlinkDL/rwkv-6-world' },
]

/** Throws for any other name. */
export function parseModelName(name: string): ModelReference {
  const reference = findModelName(name)
  if (reference) return reference
  if (/^rwkv7b-/i.test(name))
    throw new SkeinError(
      'invalid_request',
      `"${name}" is an RWKV-7b model, whose attention keeps something of every token: its memory grows with the text, and Skein's states have one size; rwkv7a-g1-0.1b is the like without attention`,
    )
  const message = `"${name}" is no model name; expected one such as rwkv7-g1-0.4b, owner/repository or owner/repository:file`
  throw new SkeinError('invalid_request', message)
}

export function findModelName(name: string): ModelReference | undefined {
  const [, repository, file] = REPOSITORY.exec(name) ?? []
  // "models/demo.pth" is a missing file, not a repository.
  if (repository !== undefined && !name.includes('..') && !hasCheckpointSuffix(repository)) {
    if (file === undefined) return { repository, choose: undefined }
    if (!isSafePath(file)) return undefined
    return { repository, choose: (paths) => paths.find((path) => path === file) }
  }
  const line = LINES.find((candidate) => candidate.name.test(name))
  if (!line || !SAFE_PART.test(name)) return undefined
  return { repository: line.repository, choose: (paths) => newestNamed(name, paths) }
}

/** Whether it looks like a release's name: a line and size, or a file. */
export function isReleaseName(name: string): boolean {
  return (parseShortName(name) ?? parseRelease(`${withoutCheckpointSuffix(name)}.pth`)) !== undefined
}

/** Parts consist of letters, digits, dots, dashes and underscores, and do not start with a dot. */
export function isSafePath(path: string): boolean {
  return path.length < 512 && path.split('/').every((part) => SAFE_PART.test(part))
}

/** The file of that name, with or without suffix, or the newest file of a line and size. */
export function newestNamed(name: string, paths: readonly string[]): string | undefined {
  const exact = paths.find((path) => path === name || withoutCheckpointSuffix(path) === name)
  if (exact !== undefined) return exact
  const wanted = parseShortName(name)
  if (!wanted) return undefined
  const released = paths.flatMap((path) => {
    const release = parseRelease(path)
    const fits = release && release.line === wanted.line && release.size === wanted.size
    return fits && (wanted.letter === '' || release.letter === wanted.letter) ? [release] : []
  })
  const [newest] = released.sort(newestFirst)
  return newest?.path
}

/** By date; without dates, by the letter of the training data, later letters first. */
function newestFirst(a: Release, b: Release): number {
  const byDate = a.date > 0 && b.date > 0 ? b.date - a.date : b.letter.localeCompare(a.letter)
  return byDate || b.context - a.context
}

interface ShortName {
  /** "g1", "7a-g1", "x070", "x060" */
  readonly line: string
  /** Training data: "a", "a3"; empty for any. */
  readonly letter: string
  readonly size: number
}

function parseShortName(name: string): ShortName | undefined {
  const [, deep, line, letter = '', size] = /^rwkv7(a?)-(g\d)([a-z]\d?)?-(\d+(?:\.\d+)?b\d?)$/i.exec(name) ?? []
  if (line !== undefined) return { line: lineOf(deep, line), letter: letter.toLowerCase(), size: billions(size!) }
  const [, version, worldSize] = /^rwkv([67])-world-(\d+(?:\.\d+)?b\d?)$/i.exec(name) ?? []
  if (version === undefined) return undefined
  return { line: `x0${version}0`, letter: '', size: billions(worldSize!) }
}

function lineOf(deep: string | undefined, line: string): string {
  return `${deep ? '7a-' : ''}${line.toLowerCase()}`
}

interface Release extends ShortName {
  readonly path: string
  /** 20250905; 0 if the name has none. */
  readonly date: number
  /** Tokens of context, or another final number. */
  readonly context: number
}

/** rwkv7-g1a-0.4b-20250905-ctx4096.pth, rwkv7a-g1d-0.1b-20260212-ctx8192.pth, RWKV-x070-World-0.4B-v2.9-20250107-ctx4096.pth */
const G_RELEASE = /^rwkv7(a?)-(g\d)([a-z]\d?)?-(\d+(?:\.\d+)?b)-(\d{8})-ctx(\d+)\.pth$/i
const WORLD_RELEASE = /^rwkv-(x0[67]0)-world-(\d+(?:\.\d+)?b\d?)-v[\d.]+-(\d{8})-ctx(\d+)\.pth$/i

/** rwkv-g1k-7b-3563.pth: without "7", date and context, and with a rounded size. */
const SHORT_RELEASE = /^rwkv-(g\d)([a-z]\d?)-(1b|3b|7b|13b)-(\d+)\.pth$/i
const SHORT_SIZES: Readonly<Record<string, string>> = { '1b': '1.5b', '3b': '2.9b', '7b': '7.2b', '13b': '13.3b' }

function parseRelease(path: string): Release | undefined {
  const short = SHORT_RELEASE.exec(path)
  if (short) {
    const size = SHORT_SIZES[short[3]!.toLowerCase()]!
    return release(path, short[1]!, short[2]!, size, '0', short[4]!)
  }
  const g = G_RELEASE.exec(path)
  if (g) return release(path, lineOf(g[1], g[2]!), g[3] ?? '', g[4]!, g[5]!, g[6]!)
  const world = WORLD_RELEASE.exec(path)
  return world ? release(path, world[1]!, '', world[2]!, world[3]!, world[4]!) : undefined
}

function release(path: string, line: string, letter: string, size: string, date: string, context: string): Release {
  return {
    path,
    line: line.toLowerCase(),
    letter: letter.toLowerCase(),
    size: billions(size),
    date: Number(date),
    context: Number(context),
  }
}

/** "0.4b" and "1B6" both have a b, in place of the point in the second. */
function billions(size: string): number {
  return Number(size.toLowerCase().replace(/b$/, '').replace('b', '.'))
}
