/** Validates a value of a small file against a JSON schema. Request bodies have cached validators instead. */
import { Ajv, type ErrorObject } from 'ajv'
import type { TSchema } from './schema-types.ts'

export type Problem = ErrorObject

/** Empty if the value is valid. */
export function problemsOf(schema: TSchema, value: unknown): readonly Problem[] {
  const check = new Ajv({ allErrors: true, strict: false }).compile(schema)
  return check(value) ? [] : (check.errors ?? [])
}
