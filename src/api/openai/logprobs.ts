/**
 * The shapes in which log-probabilities are reported, as JSON. A few are written at once; more than take a millisecond are
 * packed, 32 tokens at a time, and written in a thread. What is written goes into a reply as it is.
 */
import { TokenReader, tokensAsBytes } from '../../engine/client/token-bytes.ts'
import type { TokenText } from '../../engine/messages.ts'
import { joinBytes, textOf } from '../../files/bytes.ts'
import { movedTask } from '../../threads/moved-task.ts'
import { runTask, taskPlace } from '../../threads/pool.ts'
import { turns } from '../../threads/turns.ts'

/** Log-probabilities that are written on the event loop. */
const INLINE = 1024
/** Tokens that are packed at once. */
const AT_ONCE = 32
const WRITE = taskPlace(import.meta.url, './logprobs.js', 'writeTask')

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
/** Ready for another text after each `decode()`. */
const lenient = new TextDecoder('utf-8', { ignoreBOM: true })

/** A token as replies show it. */
interface ShownToken {
  readonly text: string
  readonly json: string
  readonly bytes: readonly number[]
  /** Unicode code points; null where it is not whole characters. */
  readonly characters: number | null
}

/** By their bytes: a token that comes often comes as the same bytes. */
const shown = new WeakMap<Uint8Array, ShownToken>()

function shownOf(bytes: Uint8Array): ShownToken {
  const known = shown.get(bytes)
  if (known !== undefined) return known
  const text = wholeText(bytes)
  // As OpenAI writes them, so that different tokens never look the same (the completions shape keys an object by them).
  const token = text ?? `bytes:${Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`).join('')}`
  const characters = text === null ? null : countCharacters(text)
  const made = { text: token, json: JSON.stringify(token), bytes: [...bytes], characters }
  shown.set(bytes, made)
  return made
}

/** Null: tokens need not be whole characters. */
function wholeText(bytes: Uint8Array): string | null {
  try {
    return utf8.decode(bytes)
  } catch {
    return null
  }
}

/** JSON has no −Infinity, which is what a banned token's log-probability is; OpenAI and vLLM floor it here. */
function finite(logprob: number): number {
  return Math.max(logprob, -9999)
}

/** An entry of chats. */
export function chatLogprob(token: TokenText): object {
  return {
    ...entry(token.bytes, token.logprob),
    top_logprobs: token.top.map((top, i) => entry(token.topBytes[i]!, top.logprob)),
  }
}

function entry(own: Uint8Array, logprob: number) {
  const { text, bytes } = shownOf(own)
  return { token: text, logprob: finite(logprob), bytes }
}

/** Where in a text the bytes so far end. Those that are no character count as the U+FFFD that the text has for them. */
interface TextPlace {
  /** Characters (Unicode code points) that have begun. */
  readonly characters: number
  /** Bytes of a character that is not whole yet; it is counted. */
  readonly unfinished: Uint8Array
}

const BEGINNING: TextPlace = { characters: 0, unfinished: new Uint8Array(0) }

function placeAfter({ characters, unfinished }: TextPlace, bytes: Uint8Array): TextPlace {
  const { characters: own } = shownOf(bytes)
  if (own !== null && unfinished.length === 0) return { characters: characters + own, unfinished }
  const all = Buffer.concat([unfinished, bytes])
  const before = unfinished.length > 0 ? characters - 1 : characters
  const now = before + countCharacters(lenient.decode(all, { stream: true }))
  if (lenient.decode() === '') return { characters: now, unfinished: BEGINNING.unfinished }
  // A character begins at the last byte that can begin one.
  return { characters: now + 1, unfinished: all.subarray(all.findLastIndex((byte) => (byte & 0xc0) !== 0x80)) }
}

function countCharacters(text: string): number {
  let count = 0
  for (const _ of text) count++
  return count
}

/** The k best, and the drawn token too where it is not among them: a JSON object. */
function topJson({ bytes, logprob, top, topBytes }: TokenText): string {
  const own = shownOf(bytes)
  let json = ''
  let isAmong = false
  for (let i = 0; i < top.length; i++) {
    const one = shownOf(topBytes[i]!)
    if (one.json === own.json) isAmong = true
    json += `${i === 0 ? '' : ','}${one.json}:${finite(top[i]!.logprob)}`
  }
  if (!isAmong) json += `${json === '' ? '' : ','}${own.json}:${finite(logprob)}`
  return `{${json}}`
}

/** Tokens of an answer or of an echoed prompt. */
interface Run {
  readonly tokens: Iterable<TokenText | null>
  /** Bytes of the first token, where nothing came before it and it has no log-probability. */
  readonly first: Uint8Array | null
  /** The text up to here is a whole, as an echoed prompt is: no character goes on behind it. */
  readonly isWhole: boolean
}

/** As bytes; a short one as text. */
type Json = Uint8Array<ArrayBuffer> | string

interface Written<J extends Json = Uint8Array<ArrayBuffer>> {
  readonly json: J
  /** Where the text ends. */
  readonly place: TextPlace
}

const COLUMNS = ['tokens', 'token_logprobs', 'top_logprobs', 'text_offset']
/** Encoded at once: a thread's heap does not hold all of a long list, nor may a string be as long. */
const CHUNK_CHARS = 64 * 1024
const utf8Of = new TextEncoder()
const ascii = (text: string): Uint8Array => utf8Of.encode(text)

/** A JSON list that is kept as bytes. */
class JsonList {
  readonly #chunks: Uint8Array[] = []
  #text = '['
  #isEmpty = true

  push(json: string): void {
    this.#text += this.#isEmpty ? json : `,${json}`
    this.#isEmpty = false
    if (this.#text.length < CHUNK_CHARS) return
    this.#chunks.push(utf8Of.encode(this.#text))
    this.#text = ''
  }

  bytes(): Uint8Array<ArrayBuffer> {
    return joinBytes([...this.#chunks, utf8Of.encode(`${this.#text}]`)])
  }

  /** Of a short list. */
  text(): string {
    return this.#chunks.length > 0 ? textOf(this.bytes()) : `${this.#text}]`
  }
}

/** The shape of completions: columns. */
function columnsOf(runs: readonly Run[], from: TextPlace): { columns: readonly JsonList[]; place: TextPlace } {
  const [tokens, values, tops, offsets] = [new JsonList(), new JsonList(), new JsonList(), new JsonList()]
  let place = from
  for (const { tokens: own, first, isWhole } of runs) {
    for (const token of own) {
      const bytes = token?.bytes ?? first!
      tokens.push(shownOf(bytes).json)
      values.push(token === null ? 'null' : `${finite(token.logprob)}`)
      tops.push(token === null ? 'null' : topJson(token))
      offsets.push(`${place.characters}`)
      place = placeAfter(place, bytes)
    }
    if (isWhole) place = { ...place, unfinished: BEGINNING.unfinished }
  }
  return { columns: [tokens, values, tops, offsets], place }
}

const nameOf = (i: number): string => `${i === 0 ? '{' : ','}"${COLUMNS[i]}":`

/** A list of entries; those of llama.cpp have the token's id, too. */
function entriesOf(runs: readonly Run[], withIds: boolean): JsonList {
  const entries = new JsonList()
  for (const { tokens } of runs) {
    for (const token of tokens) {
      // Only prompts, which are not reported so, have a token without a log-probability.
      const one = chatLogprob(token!)
      entries.push(JSON.stringify(withIds ? { id: token!.token, ...one } : one))
    }
  }
  return entries
}

type Shape = 'completion' | 'chat' | 'llama'

function write(runs: readonly Run[], shape: Shape, from: TextPlace): Written {
  if (shape !== 'completion') return { json: entriesOf(runs, shape === 'llama').bytes(), place: from }
  const { columns, place } = columnsOf(runs, from)
  const parts = columns.flatMap((column, i) => [ascii(nameOf(i)), column.bytes()])
  return { json: joinBytes([...parts, ascii('}')]), place }
}

/** Of few tokens, as a stream has them in each piece: bytes of each part would be garbage that takes longer than the rest. */
function writeText(runs: readonly Run[], shape: Shape, from: TextPlace): Written<string> {
  if (shape !== 'completion') return { json: entriesOf(runs, shape === 'llama').text(), place: from }
  const { columns, place } = columnsOf(runs, from)
  return { json: `${columns.map((column, i) => `${nameOf(i)}${column.text()}`).join('')}}`, place }
}

interface PackedRun extends Pick<Run, 'first' | 'isWhole'> {
  readonly packed: Uint8Array
}

interface WriteInput {
  readonly runs: readonly PackedRun[]
  readonly shape: Shape
  readonly from: TextPlace
}

function unpacked({ packed, ...run }: PackedRun): Run {
  return { ...run, tokens: tokensIn(packed) }
}

function* tokensIn(packed: Uint8Array): Generator<TokenText | null> {
  for (const reader = new TokenReader(packed); reader.hasMore; ) yield reader.token()
}

function writePacked({ runs, shape, from }: WriteInput): Written {
  return write(runs.map(unpacked), shape, from)
}

export const writeTask = movedTask(writePacked, ({ json }) => [json.buffer])

/** Log-probabilities of tokens. */
function numIn(tokens: readonly (TokenText | null)[]): number {
  return tokens.length * (1 + (tokens.at(-1)?.top.length ?? 0))
}

/**
 * The log-probabilities of one answer that wait to be written: packed they take a tenth of what they take as objects.
 */
export class Scores {
  readonly #shape: Shape
  #place = BEGINNING
  #loose: (TokenText | null)[] = []
  /** Of `#loose`. */
  #first: Uint8Array | null = null
  #packed: PackedRun[] = []
  #count = 0

  constructor(shape: Shape) {
    this.#shape = shape
  }

  /** The next tokens. `first`: the bytes of the first one, where it has no log-probability. */
  async add(tokens: readonly (TokenText | null)[], first: Uint8Array | null = null, isWhole = false): Promise<void> {
    this.#count += numIn(tokens)
    if (first !== null) this.#first = first
    for (const token of tokens) {
      this.#loose.push(token)
      if (this.#loose.length >= AT_ONCE) await turns.do(() => this.#pack(false))
    }
    if (isWhole) this.#pack(true)
  }

  /** The JSON of a piece of a stream. */
  async piece(tokens: readonly (TokenText | null)[], first: Uint8Array | null = null, isWhole = false) {
    if (numIn(tokens) > INLINE) {
      await this.add(tokens, first, isWhole)
      return textOf(await this.json())
    }
    const { json, place } = await turns.do(() => writeText([{ tokens, first, isWhole }], this.#shape, this.#place))
    this.#place = place
    return json
  }

  #pack(isWhole: boolean): void {
    this.#packed.push({ packed: tokensAsBytes([this.#loose]), first: this.#first, isWhole })
    this.#loose = []
    this.#first = null
  }

  /** The JSON of what was added since the last time; text goes on from call to call. */
  async json(): Promise<Uint8Array> {
    this.#pack(false)
    const input = { runs: this.#packed, shape: this.#shape, from: this.#place }
    const isFew = this.#count <= INLINE
    ;[this.#packed, this.#count] = [[], 0]
    const { json, place } = isFew
      ? await turns.do(() => writePacked(input))
      : await runTask<WriteInput, Written>(WRITE, input)
    this.#place = place
    return json
  }
}
