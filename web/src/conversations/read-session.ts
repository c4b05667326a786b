/** Splits a session's text into exchanges, without contacting the server. */
import type { Session } from '../lib/sessions.ts'
import type { ToolCall } from '../lib/wire.ts'

export interface TranscriptMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string
  readonly reasoning_content?: string
  readonly tool_calls?: readonly {
    readonly function: { readonly name: string; readonly arguments: string }
  }[]
}

export interface TranscriptTurn {
  readonly turn: number
  readonly parent: number
  readonly tokens: number
  readonly text: string
  /** Null if the text does not follow the chat template. */
  readonly messages: readonly TranscriptMessage[] | null
  /** The tools it offered, in OpenAI's form. */
  readonly tools?: readonly object[]
}

export interface Transcript {
  readonly title: string
  readonly skipped_tokens: number
  readonly turns: readonly TranscriptTurn[]
}

/** A finished exchange. */
export interface Said {
  readonly id: number
  /** 0: the beginning. */
  readonly parent: number
  /** Null if the text is unknown or is not an exchange. */
  readonly question: string | null
  /** Results of the tools that the previous answer called, in place of a question. */
  readonly results: readonly string[] | null
  readonly thought: string
  readonly text: string
  readonly toolCalls: readonly ToolCall[]
  /** Null inside a turn, where the server has no state. */
  readonly turn: number | null
}

export interface ReadSession {
  readonly system: string
  readonly said: readonly Said[]
  /** The exchange at the head. */
  readonly head: number
  /** The tools that the turn at the head offered. */
  readonly tools: readonly object[]
}

/** All branches, from the transcripts of their last turns. */
export function readSession(
  { turns, head }: Pick<Session, 'turns' | 'head'>,
  transcripts: readonly Transcript[],
): ReadSession {
  const words = new Map(transcripts.flatMap((one) => one.turns).map((one) => [one.turn, one]))
  const said: Said[] = []
  /** The last exchange of each turn. */
  const ends = new Map<number, number>()
  let system = ''
  for (const { turn, parent } of [...turns].sort((a, b) => a.turn - b.turn)) {
    const known = words.get(turn)
    const pairs = pairsOf(known)
    if (pairs.system !== '' && !ends.has(parent)) system = pairs.system
    pairs.exchanges.forEach((exchange, i) => {
      const isLast = i === pairs.exchanges.length - 1
      const id = said.length + 1
      const before = i === 0 ? (ends.get(parent) ?? 0) : id - 1
      said.push({ id, parent: before, turn: isLast ? turn : null, ...exchange })
      if (isLast) ends.set(turn, id)
    })
  }
  return { system, said, head: ends.get(head) ?? 0, tools: words.get(head)?.tools ?? [] }
}

type Exchange = Omit<Said, 'id' | 'parent' | 'turn'>

const NOTHING: Exchange = { question: null, results: null, thought: '', text: '', toolCalls: [] }

function pairsOf(known: TranscriptTurn | undefined): {
  readonly system: string
  readonly exchanges: readonly Exchange[]
} {
  if (!known?.messages) return { system: '', exchanges: [{ ...NOTHING, text: known?.text ?? '' }] }
  let system = ''
  const exchanges: Exchange[] = []
  /** The last one has its answer. */
  let isAnswered = true
  const begin = (exchange: Partial<Exchange>) => {
    exchanges.push({ ...NOTHING, ...exchange })
    isAnswered = false
  }
  for (const message of known.messages) {
    const { role, content } = message
    if (role === 'system') system = content
    else if (role === 'user') begin({ question: content })
    else if (role === 'tool') {
      const before = isAnswered ? null : (exchanges.at(-1)?.results ?? null)
      if (before !== null) exchanges.pop()
      const results = [...(before ?? []), content]
      begin({ results, question: results.join('\n') })
    } else {
      if (isAnswered) begin({})
      exchanges.push({ ...exchanges.pop()!, ...answerOf(message) })
      isAnswered = true
    }
  }
  if (exchanges.length === 0) exchanges.push({ ...NOTHING, text: known.text })
  return { system, exchanges }
}

function answerOf({
  content,
  reasoning_content: thought = '',
  tool_calls: calls = [],
}: TranscriptMessage): Pick<Exchange, 'thought' | 'text' | 'toolCalls'> {
  const toolCalls = calls.map(({ function: called }, index) => ({ index, ...called }))
  return { thought, text: content, toolCalls }
}
