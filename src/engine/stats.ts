/**
 * What an engine counts, a row each. The types, the figures of several engines together, those of one that does nothing, the
 * metrics (gateway/figures/metrics.ts) and the dashboard's samples follow from the rows.
 */

interface Row {
  /** What it is, as a metric says it. */
  readonly help: string
  /** Name of its metric after "skein_"; absent: it has none of its own. */
  readonly metric?: string
  readonly isTotal?: never
}

/** It only grows while the worker lives; others say how things are now. */
interface TotalRow {
  readonly help: string
  readonly metric?: `${string}_total`
  readonly isTotal: true
}

function total(help: string, metric?: TotalRow['metric']): TotalRow {
  return { help, isTotal: true, ...(metric === undefined ? {} : { metric }) }
}

const ENGINE_ROWS = {
  waiting: { help: 'Requests in the queue', metric: 'num_requests_waiting' },
  running: { help: 'Requests with a slot', metric: 'num_requests_running' },
  prefilling: { help: 'Running requests whose prompt is still being read' },
  preempted: { help: 'Answers whose slots other requests have for a while', metric: 'num_answers_preempted' },
  preemptions: total('Times that an answer gave up its slot to another request', 'preemptions_total'),
  numSlots: { help: 'States the device has room for', metric: 'num_slots' },
  freeSlots: { help: 'States not in use', metric: 'num_slots_free' },
  steps: total('Steps since the worker started', 'engine_steps_total'),
  promptTokens: total('Prompt tokens read'),
  generatedTokens: total('Tokens drawn'),
  guessedTokens: total('Tokens guessed before they were drawn', 'guessed_tokens_total'),
  acceptedTokens: total('Guessed tokens that were drawn', 'accepted_tokens_total'),
  grammarGuessed: total(
    'Tokens that a grammar left no choice about, which were not drawn',
    'grammar_guessed_tokens_total',
  ),
  // They are always accepted, so the metric above says it.
  grammarAccepted: total('Tokens that a grammar left no choice about'),
  predictionGuessed: total('Guessed tokens from predictions in requests', 'prediction_guessed_tokens_total'),
  predictionAccepted: total('Guessed tokens from predictions that were drawn', 'prediction_accepted_tokens_total'),
  lookupGuessed: total(
    'Guessed tokens that followed the same tokens earlier in the text',
    'lookup_guessed_tokens_total',
  ),
  lookupAccepted: total('Guessed tokens from the text before that were drawn', 'lookup_accepted_tokens_total'),
  draftGuessed: total('Guessed tokens from the draft model', 'draft_guessed_tokens_total'),
  draftAccepted: total('Guessed tokens from the draft model that were drawn', 'draft_accepted_tokens_total'),
  finishedStop: total('Answers that a stop ended'),
  finishedLength: total('Answers that reached their length'),
  aborted: total('Requests cancelled'),
  failed: total('Requests that ended in an error'),
  lastBatchTokens: { help: 'Tokens of the last step', metric: 'last_batch_tokens' },
  deviceBytes: {
    help: "Bytes of a GPU's memory that the model has taken: weights, states and work space; 0 on a CPU",
    metric: 'device_memory_bytes',
  },
  busySeconds: total('Seconds inside steps since the worker started', 'engine_busy_seconds_total'),
} as const satisfies Rows

/** Counters and gauges of kept states. */
const STATE_ROWS = {
  sessions: { help: 'Sessions used since the workers started', metric: 'sessions' },
  inSlots: { help: 'Session states in slots', metric: 'session_states_device' },
  inMemory: { help: 'Session states in memory only', metric: 'session_states_memory' },
  onDisk: { help: 'Session states on disk only', metric: 'session_states_disk' },
  unsaved: { help: 'Session states still to be written', metric: 'session_states_unsaved' },
  prefixes: { help: 'Prompt prefixes whose state is kept', metric: 'prefixes' },
  prefixBytes: { help: 'Bytes of the states of prompt prefixes', metric: 'prefix_bytes' },
  cachedTokens: total('Prompt tokens not computed, thanks to kept states'),
  prefixHits: total('Prompts that continued from a kept prefix', 'prefix_hits_total'),
  prefixMisses: total('Prompts that found no kept prefix, except short ones', 'prefix_misses_total'),
  prefixFetches: total('Prefixes read by another worker and fetched from there', 'prefix_fetches_total'),
  prefixesPublished: total('Prefixes offered to other workers', 'prefixes_published_total'),
  saves: total('States written to disk', 'state_saves_total'),
  failedSaves: total('States that could not be written', 'state_save_failures_total'),
  loads: total('States read back from disk', 'state_loads_total'),
  storeFailing: { help: 'Workers that cannot write states at present', metric: 'store_failing' },
} as const satisfies Rows

/** Tokens that were guessed before they were drawn: those that were drawn then, and those that were not. */
export interface GuessCounts {
  readonly accepted: number
  readonly rejected: number
}

/** Who guesses tokens: the answer's grammar, the request's prediction, the text before, a draft model. */
export const PROPOSERS = ['grammar', 'prediction', 'lookup', 'draft'] as const
export type ProposerName = (typeof PROPOSERS)[number]

export type GuessesBy = { readonly [name in ProposerName]?: GuessCounts }

type Rows = Readonly<Record<string, Row | TotalRow>>

type Counts<R extends Rows> = { readonly [K in keyof R]: number }

export type StateStats = Counts<typeof STATE_ROWS>

/** `states` is absent where no states are kept. */
export type EngineStats = Counts<typeof ENGINE_ROWS> & { readonly states?: StateStats }

/** Every row that has a metric, and how to read it; undefined where no states are kept. */
export const METRICS: readonly EngineMetric[] = [
  ...metricsOf(ENGINE_ROWS, (stats) => stats),
  ...metricsOf(STATE_ROWS, (stats) => stats.states),
]

export interface EngineMetric {
  readonly name: string
  readonly help: string
  read(stats: EngineStats): number | undefined
}

function metricsOf<R extends Rows>(rows: R, part: (stats: EngineStats) => Counts<R> | undefined): EngineMetric[] {
  return entriesOf(rows).flatMap(([key, { metric: name, help }]) =>
    name === undefined ? [] : [{ name, help, read: (stats) => part(stats)?.[key] }],
  )
}

export function summedStats(all: readonly EngineStats[]): EngineStats {
  if (all.length === 1) return all[0]!
  const states = all.flatMap(({ states: own }) => (own === undefined ? [] : [own]))
  return { ...summed(ENGINE_ROWS, all), ...(states.length === 0 ? {} : { states: summed(STATE_ROWS, states) }) }
}

export function idleStats(numSlots: number): EngineStats {
  return { ...summed(ENGINE_ROWS, []), numSlots, freeSlots: numSlots }
}

function summed<R extends Rows>(rows: R, all: readonly Counts<R>[]): Counts<R> {
  const sums = entriesOf(rows).map(([name]) => [name, all.reduce((total, own) => total + own[name], 0)])
  // An entry for each name.
  return Object.fromEntries(sums) as Counts<R>
}

function entriesOf<R extends Rows>(rows: R): [keyof R, Row][] {
  // Object.entries forgets what the names are.
  return Object.entries(rows) as [keyof R, Row][]
}

/** "prefix_hits" */
type Snake<Text extends string> = Text extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${Snake<Rest>}`
  : Text

type NowNames = {
  [K in keyof StateStats]: (typeof STATE_ROWS)[K] extends { readonly isTotal: true } ? never : K
}[keyof StateStats]

/** Counts of kept states as APIs name them. */
type WireStateStats = { readonly [K in keyof StateStats as Snake<K>]: number }

/** The gauges among the rows of kept states, by their wire names. */
export type WireStatesNow = { readonly [K in NowNames as Snake<K>]: number }

export function wireStates(states: StateStats): WireStateStats {
  const entries = entriesOf(STATE_ROWS).map(([name]) => [snake(name), states[name]])
  // Snake<K> is what snake() makes.
  return Object.fromEntries(entries) as WireStateStats
}

export function wireStatesNow(states: StateStats): WireStatesNow {
  const now = entriesOf(STATE_ROWS).filter(([, { isTotal }]) => isTotal !== true)
  // As above, of the names in NowNames.
  return Object.fromEntries(now.map(([name]) => [snake(name), states[name]])) as WireStatesNow
}

function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}
