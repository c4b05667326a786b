/**
 * The resolved settings of `serve`: command line, variables, configuration file and defaults merged into one set of
 * values.
 */

import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { SkeinError } from '../errors.ts'
import { CHECKPOINT_SUFFIXES, hasCheckpointSuffix } from '../files/checkpoint-suffix.ts'
import { DEFAULT_LIMITS } from '../gateway/http/limits.ts'
import { findModel, modelsFolder } from '../hub/model-cache.ts'
import { type ConfigFile, DEFAULT_FILE, fileSchema, type ModelEntry, readConfig } from './config-file.ts'
import type { Flags } from './flags.ts'
import { fieldOf, fromFile, fromVariable, SETTING_ROWS, type Setting, unknownVariables, variableOf } from './setting.ts'
import { SETTINGS, settingsCalled } from './table.ts'
import { parseValues, type Raw, type RawValues, type Values } from './values.ts'

export interface ServeSettings extends Resolution {
  readonly file: ConfigFile | null
  /** Remarks on the environment that change nothing. */
  readonly notes: readonly string[]
  /** By flag, as if each value had been given as a flag. */
  readonly raw: RawValues
  /** Models, each FILE or NAME=FILE. */
  readonly words: readonly string[]
}

interface CommandLine {
  readonly given: ReadonlyMap<string, Raw>
  readonly words: readonly string[]
}

export const NO_COMMAND_LINE: CommandLine = { given: new Map(), words: [] }

export function settleServe(
  { given, words }: CommandLine,
  path: string | null,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): ServeSettings {
  const file = path === null ? null : readConfig(path, serveSchema())
  const flags = new Map(given)
  if (words[0] !== undefined) flags.set('model', words[0])
  const isPulled = (name: string) => findModel(modelsFolder(environment), name) !== undefined
  const resolution = resolveSettings(SETTING_ROWS, { flags, environment, file, isPulled })
  const { values, model, models } = resolution
  const first = model?.path ?? models[0]?.file
  const notes = unknownVariables(environment).map(
    (name) => `${name} is no setting and changes nothing; docs/configuration.md lists them`,
  )
  return {
    file,
    notes,
    raw: Object.fromEntries([...values].map(([flag, { value }]) => [flag, value])),
    words: model?.origin === 'flag' ? words : first === undefined ? [] : [first],
    ...resolution,
  }
}

/** The values of all or some settings. Throws for the first wrong one. */
export function valuesOf<const N extends keyof typeof SETTINGS = keyof typeof SETTINGS>(
  { raw }: Pick<ServeSettings, 'raw'>,
  // Object.keys loses the types of the names.
  names: readonly N[] = Object.keys(SETTINGS) as N[],
): Values<Pick<typeof SETTINGS, N>> {
  return parseValues(settingsCalled(...names), raw)
}

/** Errors name flags. This names the field or variable instead if the value came from there. */
export function withFields<T>({ values, model, file }: ServeSettings, work: () => T): T {
  try {
    return work()
  } catch (thrown) {
    const error = SkeinError.from(thrown)
    const { param = '' } = error
    const origin = param === 'model' ? model?.origin : values.get(param)?.origin
    if (origin === 'environment') throw at(error, variableOf(param))
    const isFileField = origin === 'file' || param.startsWith('models[')
    if (!isFileField || file === null) throw error
    throw at(error, `${file.path}: ${fieldOf(param)}`)
  }
}

function at(error: SkeinError, where: string): SkeinError {
  return new SkeinError(error.code, `${where}: ${error.message}`, { cause: error })
}

/** The schema as it is published: docs/skein.schema.json, and the output of `skein config schema`. */
export function publishedSchema() {
  const head = { $schema: 'https://json-schema.org/draft/2020-12/schema', title: 'skein.config.json' }
  return { ...head, ...serveSchema() }
}

let schema: ReturnType<typeof fileSchema> | null = null

export function serveSchema() {
  schema ??= fileSchema(SETTING_ROWS, DEFAULT_LIMITS)
  return schema
}

/**
 * The file that --config names, or the default one in the current folder. Null if there is none, or after --no-config.
 */
export function configPath(given: Raw | undefined, exists: (path: string) => boolean): string | null {
  if (given === false) return null
  const named = given ?? process.env.SKEIN_CONFIG
  if (typeof named === 'string' && named !== '') return named
  return exists(DEFAULT_FILE) ? DEFAULT_FILE : null
}

type Origin = 'flag' | 'environment' | 'file' | 'default'

interface Resolved {
  readonly setting: Setting
  readonly value: Raw
  readonly origin: Origin
}

interface Sources {
  /** The flags that were given. The model is "model". */
  readonly flags: ReadonlyMap<string, Raw>
  readonly environment: Readonly<Record<string, string | undefined>>
  readonly file: ConfigFile | null
  /** Whether a model of that name was pulled; names may include the suffix. */
  readonly isPulled: (name: string) => boolean
}

interface Resolution {
  /** Settings that have a value, by flag. */
  readonly values: ReadonlyMap<string, Resolved>
  /** Null: the bundled model, or none. */
  readonly model: { readonly path: string; readonly origin: Origin } | null
  /** The models of the file; empty if a stronger source names the model. */
  readonly models: readonly ModelEntry[]
}

/**
 * Decides which value of a setting counts and where it came from: flag, then variable, then file, then default. A
 * setting overrides conflicting settings of weaker sources, so that a flag can always be added to a command line.
 */
function resolveSettings(settings: readonly Setting[], sources: Sources): Resolution {
  const { file } = sources
  const values = new Map<string, Resolved>()
  const silenced = new Set<string>()
  let model: Resolution['model'] = null
  let models: readonly ModelEntry[] = []
  for (const { origin, of, modelPath } of strongestFirst(sources)) {
    const found: string[] = []
    for (const setting of settings) {
      const { flag } = setting
      const value = values.has(flag) || silenced.has(flag) ? undefined : of(setting)
      if (value === undefined) continue
      values.set(flag, { setting, value, origin })
      found.push(flag)
    }
    if (origin === 'flag') found.push(...sources.flags.keys())
    if (modelPath !== undefined && model === null && !silenced.has('model')) {
      model = { path: modelPath, origin }
      found.push('model')
    }
    if (origin === 'file' && model === null && !silenced.has('models')) models = file?.models ?? []
    for (const flag of found) for (const other of silencedBy(flag)) silenced.add(other)
  }
  const entries = models.map((entry) => placed(entry, file!, sources.isPulled))
  return { values, model, models: entries }
}

/** The settings that this one overrides when it comes from a stronger source. */
function silencedBy(flag: string): readonly string[] {
  if (flag === 'model') return ['model', 'models', 'model-name', 'without-model']
  const rows: Flags = SETTINGS
  return rows[flag]?.silences ?? []
}

interface Source {
  readonly origin: Origin
  of(setting: Setting): Raw | undefined
  readonly modelPath?: string | undefined
}

function strongestFirst({ flags, environment, file, isPulled }: Sources): readonly Source[] {
  const model = flags.get('model')
  return [
    { origin: 'flag', of: ({ flag }) => flags.get(flag), modelPath: model === undefined ? undefined : String(model) },
    {
      origin: 'environment',
      of: (setting) => {
        const value = environment[variableOf(setting.flag)]
        return value === undefined || value === '' ? undefined : fromVariable(setting, value)
      },
      modelPath: environment.SKEIN_MODEL || undefined,
    },
    {
      origin: 'file',
      of: (setting) => {
        const value = file?.values[fieldOf(setting.flag)]
        if (value === undefined) return undefined
        const raw = fromFile(setting, value, file!.folder)
        // A draft is named as `model` is: a file or a pulled model.
        return setting.flag === 'draft' && typeof raw === 'string' ? fileOrName(raw, file!.folder, isPulled) : raw
      },
      modelPath: file?.model === undefined ? undefined : fileOrName(file.model, file.folder, isPulled),
    },
    { origin: 'default', of: (setting) => setting.default },
  ]
}

function placed(entry: ModelEntry, { folder }: ConfigFile, isPulled: Sources['isPulled']): ModelEntry {
  const { file, vocab, draft, states } = entry
  return {
    ...entry,
    file: fileOrName(file, folder, isPulled),
    ...(vocab === undefined ? {} : { vocab: resolve(folder, vocab) }),
    ...(draft === undefined ? {} : { draft: fileOrName(draft, folder, isPulled) }),
    ...(states === undefined
      ? {}
      : { states: Object.fromEntries(Object.entries(states).map(([name, path]) => [name, resolve(folder, path)])) }),
  }
}

/**
 * Resolves a name to a file of the configuration's folder if one is there (the suffix may be left out) or if the name
 * has a checkpoint's suffix. Any other name may be a pulled model, including owner/repository:file.gguf.
 */
function fileOrName(given: string, folder: string, isPulled: Sources['isPulled']): string {
  const path = resolve(folder, given)
  const isThere = ['', ...CHECKPOINT_SUFFIXES].some((suffix) => existsSync(path + suffix))
  const isFile = hasCheckpointSuffix(given) && !given.includes(':')
  return isThere || (isFile && !isPulled(given)) ? path : given
}
