/** What is wrong with a value of a small file, by a JSON schema. The bodies of requests have validators that are kept. */
import { Ajv, type ErrorObject } from 'ajv'
import type { TSchema } from './schema-types.ts'

export type Problem = ErrorObject

/** None when it is right. */
export function problemsOf(schema: TSchema, value: unknown): readonly Problem[] {
  const check = new Ajv({ allErrors: true, strict: false }).compile(schema)
  return check(value) ? [] : (check.errors ?? [])
}
