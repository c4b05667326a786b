/**
 * Reads the configuration file and makes its schema from the settings. The whole file is valid, or it is refused with
 * the name of the wrong field; no field is ignored. This module knows neither flags nor variables (serve-settings.ts).
 */
import { readFileSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { SkeinError } from '../errors.ts'
import { closest } from '../files/closest.ts'
import { type Problem, problemsOf } from '../files/problems.ts'
import { type Static, type TSchema, Type } from '../files/schema-types.ts'
import { DEVICES_TAKEN } from '../host/device-choice.ts'
import type { Kind } from './flags.ts'
import { fieldOf, type Setting, schemaOf } from './setting.ts'

export const DEFAULT_FILE = 'skein.config.json'

const Name = Type.String({ pattern: '^[^\\u0000-\\u001f\\u007f@]{1,128}$' })
const Text = (description: string) => Type.Optional(Type.String({ minLength: 1, description }))
const Count = (description: string) => Type.Optional(Type.Integer({ minimum: 1, description }))
const Indices = (description: string) =>
  Type.Optional(Type.Array(Type.Integer({ minimum: 0, maximum: 1023 }), { minItems: 1, description }))

/** One of several models. Fields that are left out have the value that the file or the flags give for all models. */
const ModelEntrySchema = Type.Object(
  {
    file: Type.String({ minLength: 1, description: 'Checkpoint, or the name of a pulled model' }),
    name: Type.Optional({ ...Name, description: 'Name in the API; default: name of the file' }),
    aliases: Type.Optional(Type.Array(Name, { maxItems: 32, description: 'Further names in the API' })),
    device: Text(DEVICES_TAKEN),
    gpus: Indices('Run a worker on each of these GPUs'),
    ppDevices: Indices('Run one worker that splits the layers over these GPUs'),
    replicas: Count('Workers on each of its devices'),
    quant: Text('Weight format'),
    wkv: Text('Recurrent states on a GPU: fp32 or fp16'),
    toolTemplate: Text('Format of tool definitions and calls that the model was trained on'),
    speculate: Text('Speculative decoding: source of the guesses'),
    draft: Text('Draft model for speculative decoding: a file, or the name of a pulled model'),
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

/** A model's field has the choices and bounds of the server's setting of the same name. */
function modelSchema(settings: readonly Setting[]): TSchema {
  const { properties, ...rest } = ModelEntrySchema
  const own: Readonly<Record<string, object>> = properties
  const chosen = settings
    .filter(({ flag, kind }) => BOUNDED.includes(kind.type) && fieldOf(flag) in properties)
    .map((setting) => {
      const { default: _, ...plain } = setting
      const field = fieldOf(setting.flag)
      const schema = schemaOf(plain)
      // Numbers keep their own description: the server's is about all models.
      const isChoice = setting.kind.type === 'choice'
      return [field, Type.Optional(isChoice ? schema : { ...schema, ...own[field] })]
    })
  return Type.Object({ ...properties, ...Object.fromEntries(chosen) }, rest)
}

/** `limits`: the default limits of a server, by name. */
export function fileSchema(settings: readonly Setting[], limits: Readonly<Record<string, number>>): TSchema {
  const fields = settings.map((setting) => [fieldOf(setting.flag), Type.Optional(schemaOf(setting))])
  const bounds = Object.entries(limits).map(([name, value]) => [
    name,
    Type.Optional(Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER, default: value })),
  ])
  return Type.Object(
    {
      $schema: Type.Optional(Type.String({ description: 'Address of this schema, for editors' })),
      model: Type.Optional(Type.String({ minLength: 1, description: 'The model, if there is only one' })),
      models: Type.Optional(Type.Array(modelSchema(settings), { minItems: 1, description: 'Several models' })),
      ...Object.fromEntries(fields),
      limits: Type.Optional(
        Type.Object(Object.fromEntries(bounds), {
          additionalProperties: false,
          description: 'Limits on the size of requests (docs/api.md)',
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
  /** Whether other users of this machine can read it. */
  readonly isShared: boolean
}

/** Throws `invalid_request`, with the field as param. */
export function readConfig(given: string, schema: TSchema): ConfigFile {
  const path = resolve(given)
  const value = parse(read(path), path)
  const problems = problemsOf(schema, value)
  if (problems.length > 0) throw refusal(path, schema, problems)
  // The value has just been checked against the schema, which has these fields.
  const {
    $schema: _,
    model,
    models = [],
    limits = {},
    ...values
  } = value as Record<string, unknown> & Partial<Pick<ConfigFile, 'model' | 'models' | 'limits'>>
  if (model !== undefined && models.length > 0) throw wrong(path, 'model', 'excludes `models`; give one of them')
  const folder = dirname(path)
  const isShared = (statSync(path).mode & 0o044) !== 0
  return { path, folder, values, model, models, limits, isShared }
}

function read(path: string): string {
  try {
    // Editors on Windows may write a byte order mark first.
    return readFileSync(path, 'utf8').replace(/^\uFEFF/, '')
  } catch (error) {
    const { message } = SkeinError.from(error)
    throw new SkeinError('invalid_request', `cannot read the configuration: ${message}`, { cause: error })
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
  // A schema with neither is no object or list, so it has no fields.
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
  // Ajv reports an unknown field twice; the other report says less.
  const first = unknown ?? errors[0]!
  const at = first.instancePath.split('/').slice(1)
  const params = first.params as { additionalProperty?: string; allowedValues?: readonly string[] }
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
