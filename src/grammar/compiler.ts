/**
 * Compiles constraints to grammars over the tokens of one vocabulary, with a cache by their text. It does not follow
 * answers: matcher-rows.ts does.
 */
import { SkeinError } from '../errors.ts'
import type { Constraint, JsonSchema } from './constraint.ts'
import { narrowed } from './json-schema.ts'
import type { Vocabulary } from './vocabulary.ts'
import type { Binding, CompilerHandle, GrammarHandle, Handle } from './xgrammar.ts'

/** Maximum cached grammars, and the memory at which the whole instance is replaced. */
const MAX_KEPT = 64
const MAX_HEAP_BYTES = 768 * 2 ** 20

/** At most one space wherever JSON allows white space, so that no answer is filled with it. */
const SPACE = '" "?'
const ANY_WHITE_SPACE = /(?<!\(= )\[ \\n\\t\]\*/g

export class GrammarCompiler {
  readonly binding: Binding
  readonly #compiler: CompilerHandle
  /** Least recently used first. */
  readonly #kept = new Map<string, Handle>()

  constructor(binding: Binding, { strings, stopToken }: Vocabulary) {
    this.binding = binding
    const vocabulary = binding.vecStringFromJSArray(strings)
    const stops = binding.vecIntFromJSArray([stopToken])
    const info = new binding.TokenizerInfo(vocabulary, 'BYTE_LEVEL', strings.length, stops, false)
    this.#compiler = new binding.GrammarCompiler(info, 1, false)
    for (const handle of [vocabulary, info]) handle.delete()
  }

  /** Whether this instance has grown so much that it should be replaced. */
  get isBloated(): boolean {
    return this.binding.HEAP8.length > MAX_HEAP_BYTES
  }

  /** Throws invalid_request for an invalid constraint. */
  compile(key: string, constraint: Constraint): Handle {
    const known = this.#kept.get(key)
    if (known !== undefined) this.#kept.delete(key)
    const compiled = known ?? this.#compile(constraint)
    this.#kept.set(key, compiled)
    if (this.#kept.size > MAX_KEPT) {
      const [oldest, handle] = [...this.#kept][0]!
      this.#kept.delete(oldest)
      // Matchers keep what they need of it.
      handle.delete()
    }
    return compiled
  }

  #compile(constraint: Constraint): Handle {
    const compiled = this.#understood(constraint)
    const grammar = compiled.GetGrammar()
    const printed = grammar.ToString()
    grammar.delete()
    checkShortest(printed)
    return compiled
  }

  #understood(constraint: Constraint): GrammarHandle {
    try {
      const format = this.#formatOf(constraint)
      return this.#compiler.CompileStructuralTag(JSON.stringify({ type: 'structural_tag', format }))
    } catch (error) {
      // A trap of the engine, which recurses into what is nested.
      const isTrap = error instanceof WebAssembly.RuntimeError
      const message = error instanceof Error && !isTrap ? error.message : null
      const reason = isTrap ? 'it is nested too deeply; make it simpler' : 'it is not understood'
      throw notUnderstood(this.binding.lastComplaint() ?? message ?? reason)
    }
  }

  #formatOf(constraint: Constraint): object {
    switch (constraint.type) {
      case 'text':
        return { type: 'const_string', value: constraint.text }
      case 'schema':
        return { type: 'grammar', grammar: this.#grammarOf(constraint.schema) }
      case 'regex':
        return { type: 'regex', pattern: constraint.pattern }
      case 'grammar':
        return { type: 'grammar', grammar: constraint.ebnf }
      case 'sequence':
        return { type: 'sequence', elements: constraint.parts.map((part) => this.#formatOf(part)) }
      case 'choice':
        return { type: 'or', elements: constraint.options.map((one) => this.#formatOf(one)) }
      case 'until':
        return { type: 'tag', begin: '', content: { type: 'any_text' }, end: constraint.end }
      case 'triggered': {
        const { triggers, isLast } = constraint
        const tags = constraint.tags.map(({ begin, content, end }) => {
          return { type: 'tag', begin, content: this.#formatOf(content), end }
        })
        return { type: 'triggered_tags', triggers, tags, at_least_one: false, stop_after_first: isLast }
      }
    }
  }

  #grammarOf(schema: JsonSchema): string {
    const json = JSON.stringify(narrowed(schema))
    const { kJSON } = this.binding.JSONFormat
    const none = undefined
    const ebnf = this.binding._JSONSchemaToEBNF(json, true, none, none, true, none, kJSON)
    return ebnf.replaceAll(ANY_WHITE_SPACE, SPACE)
  }
}

function notUnderstood(complaint: string): SkeinError {
  const reason = complaint.replace(/but got$/, 'but it ends there')
  return wrong(reason.slice(0, 500))
}

/** The shortest text that a grammar requires is searched for at each token. */
const MAX_SHORTEST = 64 * 1024

/** A rule. One that waits for tags may be empty, and what its tags lead to are separate rules. */
const RULE = /^(\w+) ::= (?!TagDispatch\()(.*)$/gm
/** Strings, sets, names with their repetition, lookaheads, and bars between choices. */
const PARTS = /"((?:\\.|[^"\\])*)"|\[(?:\\.|[^\]\\])*\]|(\w+)(?:\{(\d+),[^}]*\})?|\(=|\|/g
const ESCAPE = /\\(?:x..|u.{4}|U.{8}|.)/g

interface Choice {
  /** Characters that it requires besides its rules. */
  readonly length: number
  readonly rules: readonly { readonly name: string; readonly times: number }[]
}

/** Throws invalid_request. */
function checkShortest(printed: string): void {
  const rules = [...printed.matchAll(RULE)].map(([, name, body]) => [name!, choicesOf(body!)] as const)
  const lengths = new Map(rules.map(([name]) => [name, Number.POSITIVE_INFINITY]))
  const lengthOf = ({ length, rules: parts }: Choice) =>
    parts.reduce((sum, { name, times }) => sum + (times && times * (lengths.get(name) ?? 0)), length)
  // Each round settles at least one rule; rules that others use are usually printed first.
  for (let hasChanged = true; hasChanged; ) {
    hasChanged = false
    for (const [name, choices] of rules) {
      const length = Math.min(...choices.map(lengthOf))
      hasChanged ||= length < lengths.get(name)!
      lengths.set(name, length)
    }
  }
  for (const [name, choices] of rules) {
    const longest = Math.max(...choices.map(lengthOf))
    if (longest === Number.POSITIVE_INFINITY)
      throw wrong(`no text of its rule ${name} has an end; give it a choice that does not use itself`)
    if (longest > MAX_SHORTEST) {
      const most = `expected at most ${MAX_SHORTEST}`
      throw wrong(`a choice of its rule ${name} has ${longest} characters at least; ${most}`)
    }
  }
}

function choicesOf(body: string): readonly Choice[] {
  const choices = [{ length: 0, rules: [] as { name: string; times: number }[] }]
  for (const [part, text, name, times] of body.matchAll(PARTS)) {
    const choice = choices.at(-1)!
    if (part === '(=') break
    if (part === '|') choices.push({ length: 0, rules: [] })
    else if (name !== undefined) choice.rules.push({ name, times: Number(times ?? 1) })
    else choice.length += text === undefined ? 1 : text.replaceAll(ESCAPE, '.').length
  }
  return choices
}

function wrong(what: string): SkeinError {
  return new SkeinError('invalid_request', `the grammar of the answer: ${what}`)
}
