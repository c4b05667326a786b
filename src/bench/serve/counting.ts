/**
 * How many tokens each request took and gave: as the server's usage says, else as its events or its /tokenize do, else
 * unknown. Knows no connection but the counter's.
 */
import type { AnswerTimes, Exchange } from './exchange.ts'
import type { Timed } from './load.ts'
import type { Prompt } from './prompts.ts'
import type { AnswerResult, RequestResult } from './statistics.ts'
import type { CountTokens } from './token-counter.ts'

/** Who said how many tokens an answer has: usage, the stream's events (one a token), or /tokenize of the answer. */
export type TokenSource = 'usage' | 'events' | 'tokenize'

export interface CountedResult extends RequestResult {
  /** Null for a request that failed, whose tokens are in no figure. */
  readonly tokensFrom: TokenSource | null
}

export async function withTokens(
  { dueMs, sentMs, value }: Timed<Exchange & { readonly prompts: readonly Prompt[] }>,
  countTokens: CountTokens,
): Promise<CountedResult> {
  const { failure, endMs, prompts } = value
  const base = { dueMs, sentMs, e2eMs: endMs, failure }
  if (failure !== null) {
    const answers = value.answers.map((times) => answerOf(times, null, times.lastMs))
    return { ...base, answers, inputTokens: null, cachedTokens: null, tokensFrom: null }
  }
  // Of several answers the usage only tells the sum.
  const usage = value.answers.length === 1 ? value.usage : null
  const isStreamed = value.answers.some(({ pieces }) => pieces > 0)
  const answers: AnswerResult[] = []
  for (const times of value.answers) {
    if (usage) answers.push(answerOf(times, usage.outputTokens, endMs))
    else if (times.pieces > 0) answers.push(answerOf(times, times.pieces, times.lastMs))
    else answers.push(answerOf(times, await countTokens(times.text), null))
  }
  return {
    ...base,
    answers,
    inputTokens: usage?.inputTokens ?? (await sumOf(prompts, countTokens)),
    cachedTokens: usage?.cachedTokens ?? null,
    tokensFrom: usage ? 'usage' : isStreamed ? 'events' : 'tokenize',
  }
}

/**
 * The end goes with the count: a usage counts tokens without text too, which may be an answer's last, so it goes with
 * the end of the reply; events count pieces of text, so they go with the last piece.
 */
function answerOf(
  { firstMs, gapsMs }: AnswerTimes,
  outputTokens: number | null,
  endMs: number | null,
): AnswerResult {
  return { outputTokens, firstMs, endMs, gapsMs }
}

async function sumOf(prompts: readonly Prompt[], countTokens: CountTokens): Promise<number | null> {
  let sum = 0
  for (const { text } of prompts) {
    const count = await countTokens(text)
    if (count === null) return null
    sum += count
  }
  return sum
}
