/**
 * Small schema helpers of the wire dialects. OpenAI clients send null for every field they leave alone, so every
 * optional field is nullable; a field at fault must yield one clear complaint, so unions carry a description that
 * the gateway quotes ("expected …") in place of one complaint per branch.
 */
import { type Static, type TSchema, Type } from '../files/schema-types.ts'

/** `schema` or null, as one type list where possible: the validator then complains once. */
function nullable<T extends TSchema>(schema: T): TSchema {
  const type = (schema as { type?: unknown }).type
  if (typeof type === 'string') return { ...schema, type: [type, 'null'] }
  return { anyOf: [schema, { type: 'null' }], description: descriptionOf(schema) }
}

function descriptionOf(schema: TSchema): string {
  return (schema as { description?: string }).description ?? 'a value of the documented form'
}

/** An optional field that may also be null; both mean absent. */
export function Maybe<T extends TSchema>(schema: T) {
  return Type.Optional(Type.Unsafe<Static<T> | null>(nullable(schema)))
}

/** One of several forms with one common error: `description` completes "expected …". */
export function OneOf<T extends TSchema[]>(description: string, ...forms: [...T]) {
  return Type.Union(forms, { description })
}

/** Text of one form, which `description` says: it completes "expected …". */
export function Matching(pattern: string, description: string) {
  return Type.String({ pattern, description })
}

/** A name that fits a request, a list and a log; "@" separates start states. */
export const ModelName = Matching(
  '^[^\\u0000-\\u001f\\u007f@]{1,128}$',
  '1 to 128 characters, none of them "@" or a control character',
)
export const TokenId = Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1 })

export function Bounded(minimum: number, maximum: number) {
  return Type.Number({ minimum, maximum })
}

export function BoundedInteger(minimum: number, maximum: number) {
  return Type.Integer({ minimum, maximum })
}

/** An object of whatever its sender puts into it. */
export const AnyObject = Type.Record(Type.String(), Type.Unknown(), { type: 'object' })

/** Least and greatest; a higher one is served before a lower one. */
export const PRIORITIES = [-100, 100] as const

/** Seconds, greater than 0. */
export const LONGEST_TIMEOUT = 86_400

export function urgencyFields() {
  return {
    priority: Maybe(BoundedInteger(...PRIORITIES)),
    timeout: Maybe(Type.Number({ exclusiveMinimum: 0, maximum: LONGEST_TIMEOUT })),
  }
}

export type UrgencyFields = Static<ReturnType<typeof Type.Object<ReturnType<typeof urgencyFields>>>>
