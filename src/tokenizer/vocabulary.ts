/**
 * Reads the RWKV vocabulary format: each line is `<id> <Python literal> <length in bytes>`. The literal is a str, whose
 * UTF-8 is the token, or bytes; it may contain spaces. Id 0, the end of text, is never in the file. Literals are
 * parsed, not evaluated, and a wrong line is refused with its number.
 */
import { SkeinError } from '../errors.ts'
import { utf8 } from '../files/bytes.ts'

export interface VocabularyToken {
  readonly id: number
  readonly bytes: Uint8Array
}

const MAX_ID = 1_000_000
const MAX_TOKEN_BYTES = 1024
/** The longest notation of a byte is \U and eight digits. */
const MAX_LITERAL = 10 * MAX_TOKEN_BYTES + 3

/** In file order. `name` is the file's name in error messages. */
export function parseVocabulary(text: string, name: string): VocabularyToken[] {
  const lines = text.split('\n')
  if (lines.at(-1) === '') lines.pop()
  const seen = new Set<number>()
  const tokens = lines.map((line, index) => {
    const fail = (problem: string) => vocabularyError(name, `line ${index + 1} ${problem}`)
    const token = parseLine(line.endsWith('\r') ? line.slice(0, -1) : line, fail)
    if (seen.has(token.id)) throw fail(`gives id ${token.id} a second time`)
    seen.add(token.id)
    return token
  })
  if (tokens.length === 0) throw vocabularyError(name, 'is empty')
  return tokens
}

/** Writes one line per token, with every byte escaped. */
export function formatVocabulary(tokens: readonly VocabularyToken[]): string {
  const lines = tokens.map(({ id, bytes }) => {
    const escapes = Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`)
    return `${id} b'${escapes.join('')}' ${bytes.length}\n`
  })
  return lines.join('')
}

export function vocabularyError(name: string, problem: string): SkeinError {
  return new SkeinError('corrupt_weights', `${name}: ${problem}; a vocabulary in the RWKV World format was expected`)
}

type Fail = (problem: string) => SkeinError

function parseLine(line: string, fail: Fail): VocabularyToken {
  const first = line.indexOf(' ')
  const last = line.lastIndexOf(' ')
  if (first < 0 || first === last) throw fail('is not "<id> <literal> <length>"')
  const id = parseInteger(line.slice(0, first))
  if (id === null || id < 1 || id > MAX_ID) throw fail(`has an id that is not 1 to ${MAX_ID}`)
  const bytes = parseLiteral(line.slice(first + 1, last), fail)
  const length = parseInteger(line.slice(last + 1))
  if (length !== bytes.length) throw fail(`says ${line.slice(last + 1)} bytes, but its literal has ${bytes.length}`)
  if (length < 1 || length > MAX_TOKEN_BYTES)
    throw fail(`has a token of ${length} bytes; 1 to ${MAX_TOKEN_BYTES} are allowed`)
  return { id, bytes }
}

function parseInteger(text: string): number | null {
  return /^\d{1,9}$/.test(text) ? Number(text) : null
}

/** 'str', "str", b'bytes' or b"bytes", with Python's escapes. */
function parseLiteral(literal: string, fail: Fail): Uint8Array {
  if (literal.length > MAX_LITERAL) throw fail(`has a literal of ${literal.length} characters`)
  const isBytes = literal.startsWith('b')
  const start = isBytes ? 1 : 0
  const quote = literal[start]
  if ((quote !== "'" && quote !== '"') || literal.length < start + 2 || !literal.endsWith(quote))
    throw fail("has no literal of the form '…' or b'…'")
  const body = literal.slice(start + 1, -1)
  const isPlain = !isBytes && !body.includes('\\') && !body.includes(quote)
  if (isPlain) return utf8(body)
  const codes = [...codePoints(body, quote, isBytes, fail)]
  if (!isBytes) return utf8(String.fromCodePoint(...codes))
  return Uint8Array.from(codes)
}

const SIMPLE_ESCAPES: Readonly<Record<string, number>> = {
  '\\': 0x5c,
  "'": 0x27,
  '"': 0x22,
  a: 7,
  b: 8,
  t: 9,
  n: 10,
  v: 11,
  f: 12,
  r: 13,
}

/** Number of digits after the escape's letter. \u and \U occur only in str. */
const HEX_DIGITS: Readonly<Record<string, number>> = { x: 2, u: 4, U: 8 }

function* codePoints(body: string, quote: string, isBytes: boolean, fail: Fail): Generator<number> {
  for (let at = 0; at < body.length; ) {
    const code = body.codePointAt(at)! // at is inside the body
    if (code !== 0x5c) {
      if (body[at] === quote) throw fail('has a quote inside its literal that is not escaped')
      if (isBytes && code > 127) throw fail('has a character in its bytes that is not ASCII')
      yield code
      at += code > 0xffff ? 2 : 1
      continue
    }
    const escaped = parseEscape(body.slice(at + 1, at + 10), isBytes)
    if (!escaped) throw fail(`has an escape that is not Python's: ${body.slice(at, at + 2)}`)
    yield escaped.code
    at += 1 + escaped.length
  }
}

interface Escape {
  readonly code: number
  /** Characters after the backslash. */
  readonly length: number
}

function parseEscape(text: string, isBytes: boolean): Escape | null {
  const letter = text[0] ?? ''
  const simple = SIMPLE_ESCAPES[letter]
  if (simple !== undefined) return { code: simple, length: 1 }
  const octal = /^[0-7]{1,3}/.exec(text)?.[0]
  if (octal !== undefined) {
    const code = Number.parseInt(octal, 8)
    return isBytes && code > 255 ? null : { code, length: octal.length }
  }
  const numDigits = HEX_DIGITS[letter]
  if (numDigits === undefined || (isBytes && letter !== 'x')) return null
  const digits = text.slice(1, 1 + numDigits)
  if (digits.length !== numDigits || !/^[0-9a-fA-F]+$/.test(digits)) return null
  const code = Number.parseInt(digits, 16)
  return code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? null : { code, length: 1 + numDigits }
}
