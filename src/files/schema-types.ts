/**
 * Builders of JSON Schema with typebox's types. Typebox's own builders load 679 files, a third of the processor time at
 * the start of `serve`; these are the ones in use. `test/unit/schema-types.test.ts` compares both.
 */
import type Typebox from 'typebox'

export type { Static, TSchema } from 'typebox'

type Options = Readonly<Record<string, unknown>>
type Schema = Record<string, unknown>

/** Key that marks an optional field in typebox's types. It is not part of the JSON. */
const OPTIONAL = '~optional'

const of =
  (type: string) =>
  (options: Options = {}): Schema => ({ type, ...options })

const MAKERS = {
  String: of('string'),
  Number: of('number'),
  Integer: of('integer'),
  Boolean: of('boolean'),
  Null: of('null'),
  Unknown: (options: Options = {}): Schema => ({ ...options }),
  Unsafe: (schema: Schema): Schema => ({ ...schema }),
  Literal: (value: unknown, options: Options = {}): Schema => ({ type: typeof value, const: value, ...options }),
  Enum: (values: readonly unknown[], options: Options = {}): Schema => ({ enum: [...values], ...options }),
  Union: (anyOf: readonly Schema[], options: Options = {}): Schema => ({ anyOf, ...options }),
  Array: (items: Schema, options: Options = {}): Schema => ({ type: 'array', items, ...options }),
  Record: (key: Schema, value: Schema, options: Options = {}): Schema => ({
    type: 'object',
    patternProperties: { [String(key.pattern ?? '^.*$')]: value },
    ...options,
  }),
  Optional: (schema: Schema): Schema => Object.defineProperty({ ...schema }, OPTIONAL, { value: true }),
  Object: (properties: Readonly<Record<string, Schema>>, options: Options = {}): Schema => {
    const required = Object.keys(properties).filter((name) => !(OPTIONAL in properties[name]!))
    return { type: 'object', ...(required.length === 0 ? {} : { required }), properties, ...options }
  },
}

export const Type = MAKERS as unknown as Pick<typeof Typebox, keyof typeof MAKERS>
