/**
 * The resolved settings of `serve`: command line, variables, configuration file and defaults merged into one set of
 * values.
 */
import { SkeinError } from '../errors.ts'
import { DEFAULT_LIMITS } from '../gateway/http/limits.ts'
import { findModel, modelsFolder } from '../hub/model-cache.ts'
import { type ConfigFile, DEFAULT_FILE, fileSchema, readConfig } from './config-file.ts'
import { type Resolution, resolveSettings } from './resolve.ts'
import { fieldOf, SETTING_ROWS, unknownVariables, variableOf } from './setting.ts'
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

/** The flags and arguments of a command line. */
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
    if (origin === 'environment') throw placed(error, variableOf(param))
    const isFileField = origin === 'file' || param.startsWith('models[')
    if (!isFileField || file === null) throw error
    throw placed(error, `${file.path}: ${fieldOf(param)}`)
  }
}

function placed(error: SkeinError, where: string): SkeinError {
  return new SkeinError(error.code, `${where}: ${error.message}`, { cause: error })
}

/** The schema as it is published: docs/skein.schema.json, and the output of `skein config schema`. */
export function publishedSchema() {
  const head = {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    title: 'skein.config.json',
  }
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
