/** Whole documents and schemas: the grammar agrees with a JSON Schema validator. */
import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
import { expect, test, vi } from 'vitest'
import { checkConstraint, fromGbnf } from '../../src/grammar/check.ts'
import { GrammarCompiler } from '../../src/grammar/compiler.ts'
import type { Constraint, JsonSchema } from '../../src/grammar/constraint.ts'
import { checkSchema } from '../../src/grammar/json-schema.ts'
import { type Compiled, MatcherRows } from '../../src/grammar/matcher-rows.ts'
import { SharedMasks } from '../../src/grammar/shared-masks.ts'
import { tokenTable, Vocabulary } from '../../src/grammar/vocabulary.ts'
import { openXgrammar } from '../../src/grammar/xgrammar.ts'
import { JSON_V, jsonTokens } from '../helpers/grammars.ts'
import { documentOf, schemas } from '../helpers/schemas.ts'

const binding = await openXgrammar()
const vocabulary = new Vocabulary(tokenTable(jsonTokens.bytesOf, JSON_V))
const compiler = new GrammarCompiler(binding, vocabulary)

/** Which of the texts a grammar accepts from start to end. */
function accepted(constraint: Constraint, texts: readonly string[]): boolean[] {
  const grammar = compiler.compile(JSON.stringify(constraint), constraint)
  return texts.map((text) => {
    const matcher = new binding.GrammarMatcher(grammar, undefined, false, -1)
    const tokens = [...jsonTokens.encode(text), 0]
    const isAccepted = tokens.every((token) => matcher.AcceptToken(token, false))
    matcher.delete()
    return isAccepted
  })
}

/**
 * The limits of the grammars: no additional properties among named ones, and a string with a length limit has no
 * characters that JSON escapes.
 */
function narrower(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(narrower)
  if (typeof schema !== 'object' || schema === null) return schema
  const inner = Object.fromEntries(Object.entries(schema).map(([name, one]) => [name, narrower(one)]))
  const hasNames = Object.keys(inner.properties ?? {}).length > 0
  if (hasNames) return { ...inner, additionalProperties: false }
  return 'maxLength' in inner ? { ...inner, pattern: '^[^"]*$' } : inner
}

test('the grammar of a schema accepts a document exactly if it is valid, within the documented limits', async () => {
  const ajv = new Ajv2020({ strict: false })
  const numRuns = process.env.SKEIN_SLOW ? 500 : 20
  const counts = { valid: 0, invalid: 0 }
  const check = (schema: JsonSchema, seed: number) => {
    checkSchema(schema, 'schema')
    const draws = fc.sample(fc.nat(), { seed, numRuns: 4000 })
    const pick = (count: number) => (draws.pop() ?? 0) % count
    const documents = Array.from({ length: 20 }, () => documentOf(schema, pick))
    const rule = narrower(schema) as JsonSchema // the same except for two keywords
    const verdicts = accepted(
      { type: 'schema', schema },
      documents.map((one) => JSON.stringify(one)),
    )
    for (const [i, one] of documents.entries()) {
      const said = `${JSON.stringify(schema)}: ${JSON.stringify(one)}`
      const isValid = ajv.validate(rule, one)
      expect(verdicts[i], said).toBe(isValid)
      if (isValid) expect(ajv.validate(schema, one), said).toBe(true)
      counts[isValid ? 'valid' : 'invalid']++
    }
    // It caches compiled grammars.
    for (const one of [schema, rule]) if (typeof one === 'object') ajv.removeSchema(one)
  }
  fc.assert(fc.property(schemas(2), fc.nat(), check), { numRuns })
  if (process.env.SKEIN_SLOW) process.stdout.write(`${JSON.stringify(counts)}\n`)
  expect(Math.min(counts.valid, counts.invalid)).toBeGreaterThan(numRuns)
}, 600_000)

test('an error that ends the grammar instance is reported where it was caused, and nothing is logged', async () => {
  // Before the instance exists, which keeps its output.
  const written = [vi.spyOn(console, 'error'), vi.spyOn(console, 'log')]
  const broken = new GrammarCompiler(await openXgrammar(), vocabulary)
  // checkPattern refuses it earlier.
  const ask = () => broken.compile('k', { type: 'regex', pattern: '(?=a)b' })
  expect(ask).toThrow(/the grammar of the answer/)
  for (const spy of written) expect(spy).not.toHaveBeenCalled()
  vi.restoreAllMocks()
})

test.each([
  ['root ::= ((', 'line 1, column 12: Expect element, but it ends there'],
  ['root ::= x', 'line 1, column 10: Rule "x" is not defined'],
])('an error in the grammar %s is reported by line and column', async (ebnf, said) => {
  const broken = new GrammarCompiler(await openXgrammar(), vocabulary)
  expect(() => broken.compile('k', { type: 'grammar', ebnf })).toThrow(said)
})

test('unclosed brackets are reported by position; brackets in strings are not', () => {
  const check = (ebnf: string) => checkConstraint({ type: 'grammar', ebnf }, 'grammar')
  const brackets = '('.repeat(70)
  check(`root ::= "${brackets}" [${brackets}] ("a") # ${brackets}`)
  check(`root ::= ${'('.repeat(64)}"a"${')'.repeat(64)}`)
  expect(() => check(`root ::= a\na ::= ${brackets}"a"`)).toThrow(
    'grammar: more than 64 open brackets at line 2, column 71; name parts of it as rules',
  )
})

test.each(['#/%', '#/$defs/%E0%A4', '#/$defs/a'])('a reference that leads nowhere is refused: %s', ($ref) => {
  expect(() => checkSchema({ $ref, $defs: {} }, 'schema')).toThrow(expect.objectContaining({ code: 'invalid_request' }))
})

test.each(['[', '"\\', '[\\\n'])('a grammar of nothing but %j is looked through once', (part) => {
  const ebnf = part.repeat(2 ** 17 / part.length)
  const began = performance.now()
  expect(fromGbnf(ebnf)).toHaveLength(ebnf.length)
  checkConstraint({ type: 'grammar', ebnf: ebnf.slice(0, 2 ** 16) }, 'grammar')
  // From each of its characters on it would be ten to a hundred seconds.
  expect(performance.now() - began).toBeLessThan(3000)
})

test('a regular expression with more open groups than the engine should recurse into is refused', () => {
  const check = (depth: number) =>
    checkConstraint({ type: 'regex', pattern: `${'(?:a'.repeat(depth)}${')'.repeat(depth)}[(]\\(` }, 'guided_regex')
  check(64)
  expect(() => check(65)).toThrow('guided_regex: more than 64 groups are open at once')
})

test('a trial includes the first mask, which may take far longer than compiling', () => {
  const lengths: number[] = []
  let breaks = false
  // A function that returns an object makes that object, also with `new`.
  function GrammarMatcher(...args: ConstructorParameters<typeof binding.GrammarMatcher>) {
    const matcher = new binding.GrammarMatcher(...args)
    return Object.assign(Object.create(matcher), {
      GetNextTokenBitmask(length: number) {
        lengths.push(length)
        if (breaks) throw new WebAssembly.RuntimeError('unreachable')
        return matcher.GetNextTokenBitmask(length)
      },
      delete: () => matcher.delete(),
    })
  }
  const watched = Object.assign(Object.create(binding), { GrammarMatcher })
  const seen: Compiled[] = []
  const memory = new SharedMasks(1, Math.ceil(JSON_V / 32)).memory
  const options = { tokens: tokenTable(jsonTokens.bytesOf, JSON_V), vocabSize: JSON_V, numRows: 1, memory, thread: 0 }
  const rows = new MatcherRows(watched, options, (compiled) => seen.push(compiled))
  const compile = (pattern: string) =>
    rows.handle({ type: 'compile', key: pattern, constraint: { type: 'regex', pattern } })
  compile('a+')
  expect(lengths).toEqual([JSON_V])
  breaks = true
  compile('b+')
  const refused = { code: 'invalid_request', message: expect.stringContaining('too complicated for its first token') }
  expect(seen.map(({ error }) => error)).toEqual([null, expect.objectContaining(refused)])
})

test('a schema that is nested too deeply for the grammar engine is refused in words', async () => {
  const nested = Array.from({ length: 60 }, (_, i) => {
    const inner = { $ref: `#/$defs/a${i}` }
    return [`a${i + 1}`, { type: 'object', properties: { x: inner, y: inner }, required: ['x', 'y'] }] as const
  })
  const $defs = { a0: { type: 'string' }, ...Object.fromEntries(nested) }
  // An instance that has failed is not used again.
  const own = new GrammarCompiler(await openXgrammar(), vocabulary)
  const compile = () => own.compile('nested', { type: 'schema', schema: { $defs, $ref: '#/$defs/a60' } })
  expect(compile).toThrow('the grammar of the answer: it is nested too deeply; make it simpler')
})
