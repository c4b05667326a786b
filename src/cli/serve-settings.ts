/**
 * The settings of `serve`: its flags, each also a field of skein.config.json and a variable. The flags are the list; here is
 * only what a flag's value is, where it is not just text, so that a new flag is a setting by itself.
 */
import type { ArgsDef } from 'citty'
import { type ConfigFile, DEFAULT_FILE, fileSchema, readConfig } from '../config/file.ts'
import { type Resolution, resolveSettings } from '../config/resolve.ts'
import {
  fieldOf,
  type Given,
  type Kind,
  type Setting,
  unknownVariables,
  variableOf,
} from '../config/setting.ts'
import { WKV_CHOICES } from '../device-choice.ts'
import { SkeinError } from '../errors.ts'
import { DEFAULT_LIMITS } from '../gateway/limits.ts'
import { findModel, modelsFolder } from '../hub/model-cache.ts'
import { QUANT_CHOICES } from '../load.ts'
import { LOG_LEVELS } from './log.ts'

/** The configuration is not a setting of itself, and an older name of a flag needs no field. */
const NO_SETTINGS = ['config', 'backend']

const MAX = Number.MAX_SAFE_INTEGER
const whole = (min: number, max: number): Kind => ({ type: 'integer', min, max })

const KINDS: Readonly<Record<string, Kind>> = {
  wkv: { type: 'choice', of: WKV_CHOICES },
  quant: { type: 'choice', of: QUANT_CHOICES },
  'log-level': { type: 'choice', of: LOG_LEVELS },
  threads: whole(1, 1024),
  slots: whole(1, 65_536),
  'step-tokens': whole(1, 1_000_000),
  'max-waiting': whole(1, 10_000_000),
  'max-prompt-tokens': whole(1, 1_000_000_000),
  'slot-states': whole(0, 65_536),
  'memory-states': whole(0, MAX),
  'memory-states-mb': whole(0, 2 ** 30),
  'prefix-cache-mb': whole(0, 2 ** 30),
  'max-sessions': whole(0, MAX),
  'max-sessions-mb': whole(0, 2 ** 30),
  'max-turns': whole(1, MAX),
  'session-ttl': whole(1, MAX),
  'drain-seconds': whole(0, 86_400),
  port: whole(0, 65_535),
  'metrics-port': whole(0, 65_535),
  replicas: whole(1, 256),
  gpus: { type: 'integers' },
  'pp-devices': { type: 'list' },
  'memory-gb': { type: 'number', min: 0.001, max: 1_000_000 },
  'max-worker-mb': whole(1, 2 ** 30),
  vocab: { type: 'path' },
  keys: { type: 'path' },
  'data-dir': { type: 'path' },
  'model-dir': { type: 'path' },
  'lora-init': { type: 'path' },
  lora: { type: 'list', ofPaths: true },
  state: { type: 'paths' },
  'api-key': { type: 'list' },
  'allow-origin': { type: 'list' },
  'allow-host': { type: 'list' },
}

const SECRETS = ['api-key', 'password']

export function settingsOf(args: ArgsDef): readonly Setting[] {
  return Object.entries(args)
    .filter(([flag, { type }]) => type !== 'positional' && !NO_SETTINGS.includes(flag))
    .map(([flag, { type, description = '', default: given }]) => ({
      flag,
      kind: KINDS[flag] ?? { type: type === 'boolean' ? 'switch' : 'text' },
      description,
      default: given === undefined ? undefined : String(given),
      isSecret: SECRETS.includes(flag),
    }))
}

export interface ServeSettings extends Resolution {
  readonly settings: readonly Setting[]
  readonly file: ConfigFile | null
  /** What is about the environment, and changes nothing. */
  readonly notes: readonly string[]
  /** As if every value had been a flag. */
  readonly args: Readonly<Record<string, unknown>>
}

/** A command line as citty parsed it, and as it was. */
export interface CommandLine {
  readonly args: Readonly<Record<string, unknown>>
  readonly words: readonly string[]
}

export function settleServe(
  definition: ArgsDef,
  { args, words }: CommandLine,
  path: string | null,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): ServeSettings {
  const settings = settingsOf(definition)
  const file = path === null ? null : readConfig(path, serveSchema(definition))
  const flags = givenFlags(definition, args, words)
  const isPulled = (name: string) => findModel(modelsFolder(environment), name) !== undefined
  const resolution = resolveSettings(settings, { flags, environment, file, isPulled })
  const { values, model, models } = resolution
  const settled: Record<string, unknown> = { ...args }
  for (const { flag } of settings) settled[flag] = values.get(flag)?.value
  // The words that are no flags: FILE, or NAME=FILE, several times.
  const first = model?.path ?? models[0]?.file
  if (model?.origin !== 'flag') settled._ = first === undefined ? [] : [first]
  const notes = unknownVariables(settings, environment).map(
    (name) => `${name} is no setting and changes nothing; docs/configuration.md lists them`,
  )
  return { settings, file, notes, args: settled, ...resolution }
}

/** An error names a flag; whoever wrote the value into a file or a variable looks for that. */
export function withFields<T>({ values, model, file }: ServeSettings, work: () => T): T {
  try {
    return work()
  } catch (thrown) {
    const error = SkeinError.from(thrown)
    const { param = '' } = error
    const origin = param === 'model' ? model?.origin : values.get(param)?.origin
    if (origin === 'environment') throw placed(error, variableOf(param))
    const isFileField = origin === 'file' || param.startsWith('models[')
    if (!isFileField || file === null) throw error
    throw placed(error, `${file.path}: ${fieldOf(param)}`)
  }
}

function placed(error: SkeinError, where: string): SkeinError {
  return new SkeinError(error.code, `${where}: ${error.message}`, { cause: error })
}

/** As it is published: docs/skein.schema.json, and what `skein config schema` prints. */
export function publishedSchema(definition: ArgsDef) {
  const head = {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    title: 'skein.config.json',
  }
  return { ...head, ...serveSchema(definition) }
}

export function serveSchema(definition: ArgsDef) {
  return fileSchema(settingsOf(definition), DEFAULT_LIMITS)
}

/** The file that --config names, or the one that lies here; null where there is none, and after --no-config. */
export function configPath(
  args: Readonly<Record<string, unknown>>,
  exists: (path: string) => boolean,
): string | null {
  if (args.config === false) return null
  const named = args.config ?? process.env.SKEIN_CONFIG
  if (typeof named === 'string' && named !== '') return named
  return exists(DEFAULT_FILE) ? DEFAULT_FILE : null
}

/** citty fills in defaults, which are weaker than a file: what was really written counts. */
function givenFlags(
  definition: ArgsDef,
  args: Readonly<Record<string, unknown>>,
  words: readonly string[],
): ReadonlyMap<string, Given> {
  const given = new Map<string, Given>()
  for (const word of words) {
    if (word === '--') break
    const [, name] = /^--([^=]+)/.exec(word) ?? []
    if (name === undefined) continue
    // citty reads --no-store as the negation of a flag `store`.
    if (name.startsWith('no-') && name in definition) given.set(name, true)
    else if (name.startsWith('no-')) given.set(name.slice(3), false)
    else given.set(name, typeof args[name] === 'boolean' ? args[name] : String(args[name]))
  }
  const [first] = (args._ as readonly string[] | undefined) ?? []
  if (first !== undefined) given.set('model', first)
  return given
}
