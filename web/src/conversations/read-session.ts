/** The exchanges that a session's words are. Knows no server. */
import type { Session } from '../lib/sessions.ts'

export interface TranscriptMessage {
  readonly role: 'system' | 'user' | 'assistant'
  readonly content: string
  readonly reasoning_content?: string
}

export interface TranscriptTurn {
  readonly turn: number
  readonly parent: number
  readonly tokens: number
  readonly text: string
  /** Null where it is not the chat template. */
  readonly messages: readonly TranscriptMessage[] | null
}

export interface Transcript {
  readonly title: string
  readonly skipped_tokens: number
  readonly turns: readonly TranscriptTurn[]
}

/** One exchange that is over. */
export interface Said {
  readonly id: number
  /** 0: the beginning. */
  readonly parent: number
  /** Null where the words are not known, or are no exchange. */
  readonly question: string | null
  readonly thought: string
  readonly text: string
  /** Null in the middle of a turn, where the server has no state. */
  readonly turn: number | null
}

export interface ReadSession {
  readonly system: string
  readonly said: readonly Said[]
  /** The exchange at the head. */
  readonly head: number
}

/** All branches, from the transcripts of their ends. */
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
  return { system, said, head: ends.get(head) ?? 0 }
}

type Exchange = Pick<Said, 'question' | 'thought' | 'text'>

function pairsOf(known: TranscriptTurn | undefined): {
  readonly system: string
  readonly exchanges: readonly Exchange[]
} {
  if (!known?.messages) {
    return { system: '', exchanges: [{ question: null, thought: '', text: known?.text ?? '' }] }
  }
  let system = ''
  const exchanges: Exchange[] = []
  for (const { role, content, reasoning_content: thought = '' } of known.messages) {
    const last = exchanges.at(-1)
    if (role === 'system') system = content
    else if (role === 'user') exchanges.push({ question: content, thought: '', text: '' })
    else if (last === undefined || last.text !== '') {
      exchanges.push({ question: null, thought, text: content })
    } else exchanges[exchanges.length - 1] = { ...last, thought, text: content }
  }
  if (exchanges.length === 0) exchanges.push({ question: null, thought: '', text: known.text })
  return { system, exchanges }
}
