/**
 * The configuration file: its schema, made from the settings, and how it is read. A file is right as a whole or refused with
 * the field that is wrong; no field is ignored. It knows neither flags nor variables (resolve.ts).
 */
import { readFileSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { SkeinError } from '../errors.ts'
import { closest } from '../files/closest.ts'
import { type Problem, problemsOf } from '../files/problems.ts'
import { type Static, type TSchema, Type } from '../files/schema-types.ts'
import type { Kind } from './flags.ts'
import { fieldOf, type Setting, schemaOf } from './setting.ts'

export const DEFAULT_FILE = 'skein.config.json'

const Name = Type.String({ pattern: '^[^\\u0000-\\u001f\\u007f@]{1,128}$' })
const Text = (description: string) => Type.Optional(Type.String({ minLength: 1, description }))
const Count = (description: string) => Type.Optional(Type.Integer({ minimum: 1, description }))
const Indices = (description: string) =>
  Type.Optional(Type.Array(Type.Integer({ minimum: 0, maximum: 1023 }), { minItems: 1, description }))

/** One of several models. What it leaves out is as the file or the flags say for all. */
const ModelEntrySchema = Type.Object(
  {
    file: Type.String({ minLength: 1, description: 'Checkpoint, or the name of a pulled model' }),
    name: Type.Optional({ ...Name, description: 'Name in the API; default: name of the file' }),
    aliases: Type.Optional(Type.Array(Name, { maxItems: 32, description: 'More names' })),
    device: Text('auto, cpu, cuda, cuda:N, webgpu, webgpu:N or reference'),
    gpus: Indices('A worker on each of these'),
    ppDevices: Indices('One worker over these GPUs, by layers'),
    replicas: Count('Workers, on each of its devices'),
    quant: Text('How matrices are held'),
    wkv: Text('Recurrent states on a GPU: fp32 or fp16'),
    toolTemplate: Text('How the model was taught to read of tools and to call them'),
    speculate: Text('From what the next tokens of answers are guessed'),
    draft: Text('Draft model that guesses them, too: a file, or the name of a pulled model'),
    threads: Count('CPU threads'),
    slots: Count('Sequences that run at once'),
    vocab: Text('Vocabulary file'),
    states: Type.Optional(
      Type.Record(Type.String(), Type.String(), { description: 'Tuned start states: name → file' }),
    ),
  },
  { additionalProperties: false, description: 'A model to serve' },
)

export type ModelEntry = Static<typeof ModelEntrySchema>

const BOUNDED: readonly Kind['type'][] = ['choice', 'integer']

/** Where a setting of the server has choices or bounds, a model has the same. */
function modelSchema(settings: readonly Setting[]): TSchema {
  const { properties, ...rest } = ModelEntrySchema
  const own: Readonly<Record<string, object>> = properties
  const chosen = settings
    .filter(({ flag, kind }) => BOUNDED.includes(kind.type) && fieldOf(flag) in properties)
    .map((setting) => {
      const { default: _, ...plain } = setting
      const field = fieldOf(setting.flag)
      const schema = schemaOf(plain)
      // A number of one model is described as that: the server's speaks of all.
      const isChoice = setting.kind.type === 'choice'
      return [field, Type.Optional(isChoice ? schema : { ...schema, ...own[field] })]
    })
  return Type.Object({ ...properties, ...Object.fromEntries(chosen) }, rest)
}

/** `limits`: the bounds that a server has by default, by name. */
export function fileSchema(settings: readonly Setting[], limits: Readonly<Record<string, number>>): TSchema {
  const fields = settings.map((setting) => [fieldOf(setting.flag), Type.Optional(schemaOf(setting))])
  const bounds = Object.entries(limits).map(([name, value]) => [
    name,
    Type.Optional(Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER, default: value })),
  ])
  return Type.Object(
    {
      $schema: Type.Optional(Type.String({ description: 'Where this schema is, for editors' })),
      model: Type.Optional(Type.String({ minLength: 1, description: 'The model, where there is one' })),
      models: Type.Optional(Type.Array(modelSchema(settings), { minItems: 1, description: 'Several models' })),
      ...Object.fromEntries(fields),
      limits: Type.Optional(
        Type.Object(Object.fromEntries(bounds), {
          additionalProperties: false,
          description: 'The largest request that is accepted; a bound of docs/api.md each',
        }),
      ),
    },
    { additionalProperties: false },
  )
}

export interface ConfigFile {
  readonly path: string
  readonly folder: string
  readonly values: Readonly<Record<string, unknown>>
  readonly model: string | undefined
  readonly models: readonly ModelEntry[]
  readonly limits: Readonly<Record<string, number>>
  /** Whether others on this machine can read it. */
  readonly isShared: boolean
}

/** Throws `invalid_request`, with the field as param. */
export function readConfig(given: string, schema: TSchema): ConfigFile {
  const path = resolve(given)
  const value = parse(read(path), path)
  const problems = problemsOf(schema, value)
  if (problems.length > 0) throw refusal(path, schema, problems)
  // It has just been checked against the schema that has these fields.
  const {
    $schema: _,
    model,
    models = [],
    limits = {},
    ...values
  } = value as Record<string, unknown> & Partial<Pick<ConfigFile, 'model' | 'models' | 'limits'>>
  if (model !== undefined && models.length > 0) {
    throw wrong(path, 'model', 'excludes `models`; give one of them')
  }
  const folder = dirname(path)
  const isShared = (statSync(path).mode & 0o044) !== 0
  return { path, folder, values, model, models, limits, isShared }
}

function read(path: string): string {
  try {
    // Editors of Windows begin a file with a byte order mark.
    return readFileSync(path, 'utf8').replace(/^\uFEFF/, '')
  } catch (error) {
    const { message } = SkeinError.from(error)
    throw new SkeinError('invalid_request', `cannot read the configuration: ${message}`, {
      cause: error,
    })
  }
}

function parse(text: string, path: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    const { message } = SkeinError.from(error)
    throw new SkeinError('invalid_request', `${path} is not JSON: ${message}`, { cause: error })
  }
}

function wrong(path: string, field: string, expected: string): SkeinError {
  return new SkeinError('invalid_request', `${path}: ${field} ${expected}`, { param: field })
}

/** Names of the fields of an object within the file. */
function fieldsAt(schema: TSchema, at: readonly string[]): string[] {
  // What has neither is no object or list, and has no fields.
  const { properties = {}, items } = schema as {
    readonly properties?: Readonly<Record<string, TSchema>>
    readonly items?: TSchema
  }
  const [first, ...rest] = at
  if (first === undefined) return Object.keys(properties)
  const inner = properties[first] ?? items
  return inner === undefined ? [] : fieldsAt(inner, rest)
}

function refusal(path: string, schema: TSchema, errors: readonly Problem[]): SkeinError {
  const unknown = errors.find(({ keyword }) => keyword === 'additionalProperties')
  // Of an unknown field there is a second complaint, which says less.
  const first = unknown ?? errors[0]!
  const at = first.instancePath.split('/').slice(1)
  const params = first.params as {
    additionalProperty?: string
    allowedValues?: readonly string[]
  }
  const extra = params.additionalProperty
  if (extra !== undefined) {
    const meant = closest(extra, fieldsAt(schema, at))
    const hint = meant === null ? '' : `; did you mean ${meant}?`
    return wrong(path, fieldAt([...at, extra]), `is no field of it${hint}`)
  }
  const field = at.length === 0 ? 'the whole' : fieldAt(at)
  const choices = params.allowedValues?.join(', ')
  return wrong(path, field, choices === undefined ? first.message! : `must be one of ${choices}`)
}

/** "models[1].quant" */
function fieldAt(parts: readonly string[]): string {
  return parts.map((part, i) => (/^\d+$/.test(part) ? `[${part}]` : i === 0 ? part : `.${part}`)).join('')
}
