/** Checks whether an answer can be constrained as requested: schemas, expressions and sizes. Compiles nothing. */
import { invalid } from '../errors.ts'
import type { Constraint } from './constraint.ts'
import { checkSchema } from './json-schema.ts'
import { checkPattern } from './pattern.ts'

const MAX_GRAMMAR = 64 * 1024
const MAX_OPTIONS = 2000
/** Maximum depth of brackets, because the grammar engine recurses into each. */
const MAX_NESTED = 64
/**
 * Strings, sets and comments of EBNF, in which brackets do not count; and brackets. What has no end is passed over as a whole:
 * looked through again from each of its characters, 64 KB would take seconds.
 */
const NESTING = /"(?:\\.|[^"\\\n])*"?|\[(?:\\[\s\S]?|[^\]\\])*\]?|#[^\n]*|[()]/g

/** Throws invalid_request or unsupported_parameter; `param` is the field of the constraint. */
export function checkConstraint(constraint: Constraint, param: string): void {
  switch (constraint.type) {
    case 'text':
    case 'until':
      return
    case 'schema':
      checkSchema(constraint.schema, param)
      return
    case 'regex':
      checkPattern(constraint.pattern, param)
      return
    case 'grammar':
      checkCount(constraint.ebnf.length, MAX_GRAMMAR, 'characters', param)
      checkNesting(constraint.ebnf, param)
      return
    case 'sequence':
      for (const part of constraint.parts) checkConstraint(part, param)
      return
    case 'choice':
      checkCount(constraint.options.length, MAX_OPTIONS, 'choices', param)
      for (const option of constraint.options) checkConstraint(option, param)
      return
    case 'triggered':
      checkCount(constraint.tags.length, MAX_OPTIONS, 'tags', param)
      for (const { content } of constraint.tags) checkConstraint(content, param)
  }
}

function checkNesting(ebnf: string, param: string): void {
  let depth = 0
  for (const { 0: part, index } of ebnf.matchAll(NESTING)) {
    if (part === '(') depth++
    else if (part === ')') depth--
    if (depth <= MAX_NESTED) continue
    const line = ebnf.slice(0, index).split('\n')
    const place = `line ${line.length}, column ${line.at(-1)!.length + 1}`
    throw invalid(param, `more than ${MAX_NESTED} open brackets at ${place}; name parts of it as rules`)
  }
}

function checkCount(count: number, most: number, what: string, param: string): void {
  if (count >= 1 && count <= most) return
  throw invalid(param, `${count} ${what}; expected 1 to ${most}`)
}

/** Strings, sets and comments, which stay unchanged; names, and dots. */
const PARTS = /"(?:\\.|[^"\\\n])*"?|\[(?:\\[\s\S]?|[^\]\\])*\]?|#[^\n]*|[A-Za-z][A-Za-z0-9_-]*|\./g
const ANY = '[\\u0001-\\U0010FFFF]'

/** Converts llama.cpp's grammars for the grammar engine, which knows no "." and no "-" in names. */
export function fromGbnf(grammar: string): string {
  return grammar.replaceAll(PARTS, (part) => {
    if (part === '.') return ANY
    return /^[A-Za-z]/.test(part) ? part.replaceAll('-', '_') : part
  })
}
