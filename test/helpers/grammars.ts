/** Grammars without a thread: every call completes at once, in this process. */
import { MatcherRows } from '../../src/grammar/matcher-rows.ts'
import type { StartThread } from '../../src/grammar/matchers.ts'
import { type Binding, openXgrammar } from '../../src/grammar/xgrammar.ts'

let binding: Promise<Binding> | null = null

export async function directGrammars(): Promise<StartThread> {
  binding ??= openXgrammar()
  const opened = await binding
  return (options, events) => {
    const rows = new MatcherRows(opened, options, (compiled) => events.compiled(compiled))
    return { post: (message) => rows.handle(message), end: () => {} }
  }
}

/** A vocabulary whose random tokens make short JSON. */
const PIECES = [
  '',
  ...'{}[]":,.-+eE0123456789abcxyz truefalsnué世\\/'.split(''),
  ...['{"', '":', '",', '"}', '":"', '","', '}]', 'true', 'null', 'abc', '12', '\n', '```', '世界', 'json', 'name'],
]
const BYTES = [...new Set(PIECES)].map((piece) => new TextEncoder().encode(piece))

export const JSON_V = BYTES.length

function encode(text: string): Int32Array {
  const rest = Buffer.from(text)
  const tokens: number[] = []
  for (let at = 0; at < rest.length; ) {
    const fits = (id: number) => rest.subarray(at, at + BYTES[id]!.length).equals(BYTES[id]!)
    const ids = [...BYTES.keys()].filter((id) => id > 0 && fits(id))
    const best = ids.sort((a, b) => BYTES[b]!.length - BYTES[a]!.length)[0]
    // Bytes that no token has.
    tokens.push(best ?? 1)
    at += best === undefined ? 1 : BYTES[best]!.length
  }
  return Int32Array.from(tokens)
}

export const jsonTokens = { bytesOf: (token: number) => BYTES[token]!, encode }
