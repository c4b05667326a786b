/**
 * Decides which value of a setting counts and where it came from: flag, then variable, then file, then default. A
 * setting overrides conflicting settings of weaker sources, so that a flag can always be added to a command line.
 */
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { CHECKPOINT_SUFFIXES, hasCheckpointSuffix } from '../files/checkpoint-suffix.ts'
import type { ConfigFile, ModelEntry } from './config-file.ts'
import type { Flags } from './flags.ts'
import { fieldOf, fromFile, fromVariable, type Setting, variableOf } from './setting.ts'
import { SETTINGS } from './table.ts'
import type { Raw } from './values.ts'

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

export interface Resolution {
  /** Settings that have a value, by flag. */
  readonly values: ReadonlyMap<string, Resolved>
  /** Null: the bundled model, or none. */
  readonly model: { readonly path: string; readonly origin: Origin } | null
  /** The models of the file; empty if a stronger source names the model. */
  readonly models: readonly ModelEntry[]
}

export function resolveSettings(settings: readonly Setting[], sources: Sources): Resolution {
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
    if (origin === 'file' && model === null && !silenced.has('models')) {
      models = file?.models ?? []
    }
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
    {
      origin: 'flag',
      of: ({ flag }) => flags.get(flag),
      modelPath: model === undefined ? undefined : String(model),
    },
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
      : {
          states: Object.fromEntries(Object.entries(states).map(([name, path]) => [name, resolve(folder, path)])),
        }),
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
