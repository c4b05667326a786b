/** Turns samples of the event stream into chart columns and single figures; also computes the figures of one answer. */
import type { Sample, WorkerSample } from '../../../src/gateway/contract.ts'

/** Length of the kept history. */
export const HISTORY_SECONDS = 600
/** A longer pause between samples appears as a gap. */
const GAP_SECONDS = 3.5

export type Column = (number | null)[]

/** Returns a new array without old samples and with the new one last. Drops a sample that is not newer. */
export function withSample(samples: readonly Sample[], sample: Sample): readonly Sample[] {
  const last = samples.at(-1)
  if (last !== undefined && sample.at <= last.at) return samples
  const oldest = sample.at - HISTORY_SECONDS
  return [...samples.filter(({ at }) => at >= oldest), sample]
}

/** One worker's part of a sample, or the sum of all; null if absent. */
export function partOf(sample: Sample, worker: string | null): WorkerSample | null {
  if (worker !== null) return sample.workers[worker] ?? null
  const all = Object.values(sample.workers)
  return all.length === 0 ? null : all.reduce(sum)
}

const COUNTS = [
  'running',
  'waiting',
  'slots',
  'free_slots',
  'batch_tokens',
  'prompt_tokens_per_second',
  'generated_tokens_per_second',
] as const

const GUESS_RATES = ['guessed_per_second', 'accepted_per_second'] as const

function added<Name extends string>(
  a: Readonly<Record<Name, number>>,
  b: Readonly<Record<Name, number>>,
  names: readonly Name[],
): Record<Name, number> {
  // Every name has an entry.
  return Object.fromEntries(names.map((name) => [name, a[name] + b[name]])) as Record<Name, number>
}

function sum(a: WorkerSample, b: WorkerSample): WorkerSample {
  return {
    ...added(a, b, COUNTS),
    busy: Math.max(a.busy, b.busy),
    guesses: {
      grammar: added(a.guesses.grammar, b.guesses.grammar, GUESS_RATES),
      prediction: added(a.guesses.prediction, b.guesses.prediction, GUESS_RATES),
      lookup: added(a.guesses.lookup, b.guesses.lookup, GUESS_RATES),
      draft: added(a.guesses.draft, b.guesses.draft, GUESS_RATES),
    },
    rss_bytes: addKnown(a.rss_bytes, b.rss_bytes),
    states: sumStates(a.states, b.states),
  }
}

function addKnown(a: number | null, b: number | null): number | null {
  return a === null || b === null ? (a ?? b) : a + b
}

function sumStates(a: WorkerSample['states'], b: WorkerSample['states']): WorkerSample['states'] {
  if (a === null || b === null) return a ?? b
  const { prefix_hit_rate: _rate, ...counts } = a
  const rates = [a.prefix_hit_rate, b.prefix_hit_rate].filter((rate) => rate !== null)
  return {
    // The names are those of `counts`.
    ...added(counts, b, Object.keys(counts) as (keyof typeof counts)[]),
    // A sample does not say how many prompts each rate counts.
    prefix_hit_rate: rates.length === 0 ? null : rates.reduce((x, rate) => x + rate, 0) / rates.length,
  }
}

/** Columns of a chart: times, then one column per line. A gap in time becomes a row of nulls. */
export function columns(
  samples: readonly Sample[],
  readers: readonly ((sample: Sample) => number | null | undefined)[],
): [number[], ...Column[]] {
  const times: number[] = []
  const values: Column[] = readers.map(() => [])
  let before: number | null = null
  for (const sample of samples) {
    if (before !== null && sample.at - before > GAP_SECONDS) {
      times.push(before + 1)
      for (const column of values) column.push(null)
    }
    times.push(sample.at)
    values.forEach((column, i) => {
      column.push(readers[i]!(sample) ?? null)
    })
    before = sample.at
  }
  return [times, ...values]
}

/** Times of an answer's events, in milliseconds of one clock. */
export interface AnswerTimes {
  readonly sent: number
  readonly first: number | null
  readonly last: number | null
}

interface AnswerFigures {
  readonly ttftMs: number | null
  /** For the tokens after the first; null with too few tokens. */
  readonly tokensPerSecond: number | null
}

/** Pieces that arrive together, as in short answers, say nothing about speed. */
const SHORTEST_MS = 10

export function answerFigures({ sent, first, last }: AnswerTimes, tokens: number): AnswerFigures {
  const ttftMs = first === null ? null : first - sent
  if (first === null || last === null || tokens < 2 || last - first < SHORTEST_MS) {
    return { ttftMs, tokensPerSecond: null }
  }
  return { ttftMs, tokensPerSecond: ((tokens - 1) / (last - first)) * 1000 }
}
