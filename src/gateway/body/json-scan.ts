/**
 * Scans JSON text as its bytes arrive, before parsing: depth, number of values, and the one string of the outermost
 * object that may hold a caller's key. It keeps no text and does not validate.
 */
import { SkeinError } from '../../errors.ts'
import { withStatus } from './body-memory.ts'

export interface JsonBounds {
  readonly jsonDepth: number
  /** Fields of the outermost object. */
  readonly jsonFields: number
  /** Objects, lists and strings, including names of fields: values that take memory of their own. */
  readonly jsonNodes: number
  /** Values that follow a comma, mostly numbers. */
  readonly jsonValues: number
}

const QUOTE = 0x22
const BACKSLASH = 0x5c
const COMMA = 0x2c
const COLON = 0x3a
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d]

const KEY_FIELD = Buffer.from('password')
/** No key is longer. */
const MAX_KEY_BYTES = 1024
const NONE = new Uint8Array(0)
const NODES = 'objects, lists and strings'
/** Bytes of a string that are read one by one, from its beginning and from each escape, before the next such byte is searched for. */
const PLAIN_BYTES = 16

export class JsonScan {
  nodes = 0
  #values = 0
  #fields = 0
  #depth = 0
  #isInString = false
  /** In the bytes that are scanned; found once, and searched for again behind it. */
  #nextQuote = -1
  #nextEscape = -1
  #isEscaped = false
  /** In the outermost object: whether the next string is a value, and whether it is that of the key's field. */
  #isValue = false
  #isKeys = false
  /** How many bytes of the current name match the field's name; negative: it is another name. */
  #nameBytes = -1
  /** Bytes of the key so far; null outside of the key. */
  #key: Uint8Array | null = null
  #password: Uint8Array | null = null
  readonly #bounds: JsonBounds

  constructor(bounds: JsonBounds) {
    this.#bounds = bounds
  }

  /** The last value of that name, as parsers take it; null if there is none. */
  get password(): string | null {
    return this.#password === null ? null : textOf(this.#password)
  }

  /** Throws as soon as a limit is exceeded. */
  write(bytes: Uint8Array): void {
    let at = 0
    this.#nextQuote = this.#nextEscape = -1
    while (at < bytes.length) at = this.#isInString ? this.#inString(bytes, at) + 1 : this.#between(bytes, at)
  }

  /**
   * Scans from `start` to behind the next quote, or to the end of the bytes; returns that position. Its counters are local
   * variables: a million commas as fields of the object take three times as long.
   */
  #between(bytes: Uint8Array, start: number): number {
    const { jsonDepth, jsonNodes, jsonValues } = this.#bounds
    const end = bytes.length
    let [depth, nodes, values] = [this.#depth, this.nodes, this.#values]
    let at = start
    for (; at < end; at++) {
      const byte = bytes[at]!
      // Most of the rest is digits.
      if (byte > COMMA && byte < COLON) continue
      if (byte === COMMA) {
        if (++values > jsonValues) throw tooMany(jsonValues, 'values')
        if (depth === 1) this.#isValue = this.#isKeys = false
      } else if (byte === QUOTE) break
      else if (byte === OPEN_OBJECT || byte === OPEN_LIST) {
        if (++nodes > jsonNodes) throw tooMany(jsonNodes, NODES)
        if (++depth > jsonDepth) throw tooDeep(jsonDepth)
        this.#isKeys = false
      } else if (byte === CLOSE_OBJECT || byte === CLOSE_LIST) depth--
      else if (byte === COLON && depth === 1) this.#colon()
    }
    this.#depth = depth
    this.nodes = nodes
    this.#values = values
    if (at === end) return at
    this.#beginString()
    return at + 1
  }

  /** Scans from `start` to the end of the string or of the bytes; returns that position. */
  #inString(bytes: Uint8Array, start: number): number {
    const end = bytes.length
    let isEscaped = this.#isEscaped
    let at = start
    // Where bytes one by one make way for a search.
    let searchAt = start + PLAIN_BYTES
    for (; at < end; at++) {
      const byte = bytes[at]!
      if (isEscaped) isEscaped = false
      else if (byte === BACKSLASH) {
        isEscaped = true
        searchAt = at + PLAIN_BYTES
      } else if (byte === QUOTE) break
      else if (at >= searchAt) {
        if (this.#nextQuote < at) this.#nextQuote = indexOf(bytes, QUOTE, at)
        if (this.#nextEscape < at) this.#nextEscape = indexOf(bytes, BACKSLASH, at)
        at = Math.min(this.#nextQuote, this.#nextEscape) - 1
        searchAt = end
      }
    }
    this.#isEscaped = isEscaped
    if (this.#nameBytes >= 0) this.#compare(bytes, start, at)
    if (this.#key !== null) this.#keep(bytes.subarray(start, at))
    if (at < bytes.length) this.#endString()
    return at
  }

  #compare(bytes: Uint8Array, start: number, end: number): void {
    for (let at = start; at < end; at++) {
      if (bytes[at] === KEY_FIELD[this.#nameBytes]) this.#nameBytes++
      else {
        this.#nameBytes = -1
        return
      }
    }
  }

  #keep(bytes: Uint8Array): void {
    const isShort = this.#key!.length + bytes.length <= MAX_KEY_BYTES
    this.#key = isShort ? Buffer.concat([this.#key!, bytes]) : null
  }

  #beginString(): void {
    const { jsonNodes } = this.#bounds
    if (++this.nodes > jsonNodes) throw tooMany(jsonNodes, NODES)
    this.#isInString = true
    this.#nameBytes = this.#depth === 1 && !this.#isValue ? 0 : -1
    this.#key = this.#isKeys ? NONE : null
  }

  #endString(): void {
    this.#isInString = false
    if (this.#isKeys) this.#password = this.#key
    this.#key = null
    this.#isKeys = this.#nameBytes === KEY_FIELD.length
    this.#nameBytes = -1
  }

  #colon(): void {
    this.#isValue = true
    const { jsonFields } = this.#bounds
    if (++this.#fields > jsonFields) throw tooMany(jsonFields, 'fields')
  }
}

/** Where the byte is; the length where it is not. */
function indexOf(bytes: Uint8Array, byte: number, from: number): number {
  const at = bytes.indexOf(byte, from)
  return at === -1 ? bytes.length : at
}

/** Decodes the bytes between the quotes; null if they are no valid string. */
function textOf(bytes: Uint8Array): string | null {
  try {
    // Text between quotes without another quote parses to a string.
    return JSON.parse(`"${Buffer.from(bytes).toString()}"`) as string
  } catch {
    return null
  }
}

function tooDeep(most: number): Error {
  return withStatus(new SkeinError('invalid_request', `the body nests deeper than ${most} levels`))
}

function tooMany(most: number, what: string): Error {
  const message = `the body holds more than ${most} ${what}; send it in several requests`
  return withStatus(new SkeinError('too_large', message))
}
