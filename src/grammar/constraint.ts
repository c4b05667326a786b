/**
 * A constraint on an answer, as plain data that a dialect passes to the engine. A token that no allowed text continues
 * is never drawn, and the answer ends where nothing more may follow. json-schema.ts says which JSON Schemas are
 * supported.
 */
export type Constraint =
  | { readonly type: 'text'; readonly text: string }
  /** JSON on one line, with at most one space where JSON allows white space. */
  | { readonly type: 'schema'; readonly schema: JsonSchema }
  | { readonly type: 'regex'; readonly pattern: string }
  /** EBNF rules, starting from `root`. */
  | { readonly type: 'grammar'; readonly ebnf: string }
  | { readonly type: 'sequence'; readonly parts: readonly Constraint[] }
  | { readonly type: 'choice'; readonly options: readonly Constraint[] }
  /** Anything up to and including the first `end`. */
  | { readonly type: 'until'; readonly end: string }
  /** Free text until a trigger is written; from there on, one of the tags that start with it. */
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
