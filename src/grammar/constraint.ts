/**
 * What an answer may be, as plain data that crosses from a dialect to the engine. A token after which no allowed text could
 * follow is never drawn, and the answer ends where nothing more may come. What of JSON Schema is understood: json-schema.ts.
 */
export type Constraint =
  | { readonly type: 'text'; readonly text: string }
  /** One line of JSON, with a space or none where JSON may have some. */
  | { readonly type: 'schema'; readonly schema: JsonSchema }
  | { readonly type: 'regex'; readonly pattern: string }
  /** Rules of EBNF, from the one called `root`. */
  | { readonly type: 'grammar'; readonly ebnf: string }
  | { readonly type: 'sequence'; readonly parts: readonly Constraint[] }
  | { readonly type: 'choice'; readonly options: readonly Constraint[] }
  /** Anything up to the first `end`, which is part of it. */
  | { readonly type: 'until'; readonly end: string }
  /** Free text, until a trigger is written: what goes on from there is one of the tags that begin with it. */
  | {
      readonly type: 'triggered'
      readonly triggers: readonly string[]
      readonly tags: readonly Tag[]
      readonly isLast: boolean
    }

interface Tag {
  readonly begin: string
  readonly content: Constraint
  readonly end: string
}

export type JsonSchema = boolean | { readonly [keyword: string]: unknown }

/** Any JSON object. */
export const ANY_OBJECT: Constraint = { type: 'schema', schema: { type: 'object' } }

export function oneOf(texts: readonly string[]): Constraint {
  return { type: 'choice', options: texts.map((text) => ({ type: 'text', text })) }
}
