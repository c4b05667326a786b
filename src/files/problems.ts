/** Validates a value of a small file against a JSON schema. Request bodies have cached validators instead. */
import { Ajv, type ErrorObject } from 'ajv'
import type { TSchema } from './schema-types.ts'

export type Problem = ErrorObject

const ajv = new Ajv({ allErrors: true, strict: false })

/** Empty if the value is valid. Each schema object is compiled once, which takes longer than a check. */
export function problemsOf(schema: TSchema, value: unknown): readonly Problem[] {
  const check = ajv.compile(schema)
  return check(value) ? [] : (check.errors ?? [])
}
