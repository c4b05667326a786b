/** A growing answer: collects its parts and shows them at a limited rate. */
import { Paced } from '../lib/paced.ts'
import type { AnswerTimes } from '../lib/stats.ts'
import { type Part, type TokenView, type ToolCall, type Usage, withToolCalls } from '../lib/wire.ts'

export interface Answer {
  readonly state: 'reading' | 'writing' | 'done' | 'stopped' | 'failed'
  readonly thought: string
  readonly text: string
  readonly toolCalls: readonly ToolCall[]
  readonly tokens: readonly TokenView[]
  readonly times: AnswerTimes
  readonly usage: Usage | null
  readonly finish: string | null
  readonly error: string | null
  /** The server's turn number, while the server has its state. */
  readonly turn: number | null
}

/** Before the first piece. */
export const NO_ANSWER: Answer = {
  state: 'reading',
  thought: '',
  text: '',
  toolCalls: [],
  tokens: [],
  times: { sent: 0, first: null, last: null },
  usage: null,
  finish: null,
  error: null,
  turn: null,
}

/** Runs to the end of the answer or to an error; everything received so far is shown. */
export async function receive(
  parts: AsyncIterable<Part>,
  begun: Answer,
  show: (answer: Answer) => void,
): Promise<void> {
  const answer = new Paced(begun, show)
  try {
    for await (const part of parts) answer.set(withPart(answer.value, part, performance.now()))
  } finally {
    answer.flush()
  }
}

function withPart(answer: Answer, part: Part, now: number): Answer {
  const { content = '', reasoning = '', toolCalls = [], tokens, usage, finish, turn } = part
  const isText = content !== '' || reasoning !== '' || toolCalls.length > 0
  const { times } = answer
  return {
    ...answer,
    state: isText ? 'writing' : answer.state,
    text: answer.text + content,
    thought: answer.thought + reasoning,
    toolCalls: withToolCalls(answer.toolCalls, toolCalls),
    tokens: tokens === undefined ? answer.tokens : [...answer.tokens, ...tokens],
    times: isText ? { ...times, first: times.first ?? now, last: now } : times,
    usage: usage ?? answer.usage,
    finish: finish ?? answer.finish,
    turn: turn ?? answer.turn,
  }
}
