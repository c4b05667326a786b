/**
 * How long the shortest text of each rule of a compiled grammar is, read from the grammar as xgrammar prints it. One whose rule
 * has no end would leave an answer without a next token, or force text upon it for ever. Compiles nothing.
 */
import { SkeinError } from '../errors.ts'

/** What must come is looked for as a whole, at each token. */
const MAX_SHORTEST = 64 * 1024

/** A rule; one that waits for tags may be empty, and what its tags lead to are rules of their own. */
const RULE = /^(\w+) ::= (?!TagDispatch\()(.*)$/gm
/** Strings, sets, names with how often they come, what may only follow, and bars between choices. */
const PARTS = /"((?:\\.|[^"\\])*)"|\[(?:\\.|[^\]\\])*\]|(\w+)(?:\{(\d+),[^}]*\})?|\(=|\|/g
const ESCAPE = /\\(?:x..|u.{4}|U.{8}|.)/g

interface Choice {
  /** Characters beside the rules that are part of it. */
  readonly length: number
  readonly rules: readonly { readonly name: string; readonly times: number }[]
}

/** Throws invalid_request. */
export function checkShortest(printed: string): void {
  const rules = [...printed.matchAll(RULE)].map(
    ([, name, body]) => [name!, choicesOf(body!)] as const,
  )
  const lengths = new Map(rules.map(([name]) => [name, Number.POSITIVE_INFINITY]))
  const lengthOf = ({ length, rules: parts }: Choice) =>
    parts.reduce(
      (sum, { name, times }) => sum + (times && times * (lengths.get(name) ?? 0)),
      length,
    )
  // Each round settles one rule at least; those that others use are mostly printed first.
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
    if (longest === Number.POSITIVE_INFINITY) {
      throw wrong(
        `no text of its rule ${name} has an end; give it a choice that does not use itself`,
      )
    }
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
