/**
 * The prompts of a load: random words of given lengths, or prompts of a file (ShareGPT's JSON, JSON lines, or text with
 * one prompt per line). It knows neither the API nor when a prompt is sent.
 */

import { SkeinError } from '../../errors.ts'
import { parsedJson } from '../../files/bytes.ts'
import { integerBetween, type Random, shuffled } from './random.ts'
import { type CountTokens, estimateTokens } from './token-counter.ts'

export interface Prompt {
  readonly text: string
  /** Maximum tokens of the answer. */
  readonly maxTokens: number
}

/** Common words; nearly all, with the space before them, are one token in usual vocabularies. */
const WORDS = `about above after again air all along also always and animal another answer any around ask away back
  been before began below between big book both boy but call came can car carry change children city close come
  could country cut day did different does down each early earth eat end enough even every example eye face family far
  father feet few find first follow food for form found four from get girl give good great group grow had hand
  hard has have head hear help her here high him his home house how idea important into just keep kind know land
  large last later learn leave left letter life light line list little live long look made make man many may mean
  might mile more most mother mountain move much must name near need never new next night not now number off often
  old once one only open other our out over own page paper part people place plant play point put question quick
  read really right river run said same saw say school second see seem sentence set she should show side small
  some something song soon sound spell stand start state still stop story study such take talk tell than that their
  them then there these they thing think this those thought three through time together too took tree try turn two
  under until use very walk want was watch water way well went were what when where which while white who why will
  with without word work world would write year you young your`.split(/\s+/)

export interface RandomLengths {
  readonly inputTokens: number
  readonly outputTokens: number
  /** Each length is drawn between this share of the lengths above and the full lengths. */
  readonly rangeRatio: number
}

/** Prompts of random words. Their token lengths are as exact as the counter; the server's usage gives the real ones. */
export async function randomPrompts(
  count: number,
  lengths: RandomLengths,
  random: Random,
  countTokens: CountTokens,
): Promise<Prompt[]> {
  const sample = wordsOf(random, 256)
  const tokensPerWord = ((await countTokens(sample)) ?? 256) / 256
  const draw = (full: number) => integerBetween(random, Math.max(1, Math.floor(full * lengths.rangeRatio)), full)
  return Array.from({ length: count }, () => {
    const numWords = Math.max(1, Math.round(draw(lengths.inputTokens) / tokensPerWord))
    return { text: wordsOf(random, numWords), maxTokens: draw(lengths.outputTokens) }
  })
}

function wordsOf(random: Random, count: number): string {
  const word = () => WORDS[integerBetween(random, 0, WORDS.length - 1)]!
  return Array.from({ length: count }, word).join(' ')
}

/** A prompt of a file, with the recorded `answer` and the file's own `maxTokens`. */
export interface FilePrompt {
  readonly text: string
  readonly answer?: string
  readonly maxTokens?: number
}

/** By suffix: .json is ShareGPT, .jsonl has a prompt or an object with one per line, others are text lines. */
export function parsePromptFile(name: string, content: string): FilePrompt[] {
  const prompts = name.endsWith('.json')
    ? parseShareGpt(name, content)
    : linesOf(content).map(({ line, number }) =>
        name.endsWith('.jsonl') ? parseJsonLine(name, number, line) : { text: line },
      )
  if (prompts.length === 0) throw new SkeinError('invalid_request', `${name} holds no prompt`)
  return prompts
}

function linesOf(content: string): { line: string; number: number }[] {
  return content
    .split(/\r?\n/)
    .map((line, i) => ({ line, number: i + 1 }))
    .filter(({ line }) => line.trim() !== '')
}

/**
 * `[{"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]}]`; uses the first pair of turns.
 */
function parseShareGpt(name: string, content: string): FilePrompt[] {
  const expected = `${name}: expected ShareGPT's JSON, a list of {"conversations": [{"value": …}, …]}`
  const file = parsedJson(content)
  if (!Array.isArray(file)) throw new SkeinError('invalid_request', expected)
  const prompts = file.flatMap((entry): FilePrompt[] => {
    const turns: unknown = entry?.conversations ?? entry?.conversation
    if (!Array.isArray(turns)) throw new SkeinError('invalid_request', expected)
    const [text, answer] = turns.map((turn) => turn?.value)
    // The collection has many conversations of one turn, which give no answer length.
    if (typeof text !== 'string' || typeof answer !== 'string' || text.trim() === '') return []
    return [{ text, answer }]
  })
  return prompts
}

function parseJsonLine(name: string, number: number, line: string): FilePrompt {
  const value = parsedJson(line)
  if (typeof value === 'string') return { text: value }
  // A JSON value without the field gives undefined.
  const { prompt, max_tokens } = Object(value) as { prompt?: unknown; max_tokens?: unknown }
  const isLength = max_tokens === undefined || (Number.isInteger(max_tokens) && Number(max_tokens) > 0)
  if (typeof prompt !== 'string' || !isLength)
    throw new SkeinError(
      'invalid_request',
      `${name}, line ${number}: expected a JSON string, or {"prompt": TEXT, "max_tokens": N}`,
    )
  return max_tokens === undefined ? { text: prompt } : { text: prompt, maxTokens: Number(max_tokens) }
}

/**
 * Prompts of a file in random order, repeated if there are too few. The length of each answer is `outputTokens` if
 * given, else the file's, else that of the recorded answer, else `otherwise`.
 */
export async function pickPrompts(
  count: number,
  prompts: readonly FilePrompt[],
  lengths: { readonly outputTokens: number | undefined; readonly otherwise: number },
  random: Random,
  countTokens: CountTokens,
): Promise<Prompt[]> {
  const order = shuffled(random, prompts).slice(0, count)
  const picked: Prompt[] = []
  for (const { text, answer, maxTokens } of order) {
    const asked = lengths.outputTokens ?? maxTokens
    const recorded = answer === undefined || asked !== undefined ? undefined : answer
    picked.push({ text, maxTokens: asked ?? (recorded === undefined ? lengths.otherwise : await lengthOf(recorded)) })
  }
  return Array.from({ length: count }, (_, i) => picked[i % picked.length]!)

  async function lengthOf(text: string): Promise<number> {
    return Math.max(1, (await countTokens(text)) ?? estimateTokens(text))
  }
}
