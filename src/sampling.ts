/**
 * The numbers by which a token is drawn, a row each. Everything else follows from the rows: fields of requests and their
 * ranges, the engine's and the runner's types, the columns that a device reads, flags, the dashboard's form, docs/api.md.
 * What a number does to the scores is defined by backend/reference/sample.ts.
 */

export interface SamplingParameter {
  /** Fields of a request that set it, the usual name first. None: dialects set it under names of their own. */
  readonly fields: readonly string[]
  readonly min: number
  readonly max: number
  /** Without effect at this value: what a request has that does not name it. */
  readonly off: number
  /** Its column in `Batch.sampleFloats` or, a whole number, in `Batch.sampleInts`. The kernels' enums have the same order. */
  readonly float?: number
  readonly int?: number
  /** For docs/api.md. */
  readonly about: string
  /** On the dashboard; absent: not there. */
  readonly label?: string
  readonly step?: number
  /** Description of the flag of `skein generate` and `skein chat`, and what they take without it, if not `off`. */
  readonly flag?: string
  readonly ownDefault?: number
}

export const SAMPLING = {
  temperature: {
    fields: ['temperature'],
    min: 0,
    max: 1000,
    off: 1,
    float: 0,
    about: '0 is greedy',
    label: 'Temperature',
    step: 0.1,
    flag: '0 is greedy',
  },
  topP: {
    fields: ['top_p'],
    min: 0,
    max: 1,
    off: 1,
    float: 1,
    about: 'keeps the likeliest tokens of this mass; 0 is greedy',
    label: 'Top p',
    step: 0.05,
    flag: 'Keep the likeliest tokens of this mass',
    ownDefault: 0.5,
  },
  topK: {
    fields: ['top_k'],
    min: -1,
    max: 2 ** 31 - 1,
    off: 0,
    int: 0,
    about: 'keeps the k likeliest tokens; 1 is greedy; 0 and −1 are off',
    label: 'Top k',
    step: 1,
    flag: 'Keep the k likeliest tokens; 0 keeps all',
  },
  minP: {
    fields: ['min_p'],
    min: 0,
    max: 1,
    off: 0,
    float: 2,
    about: 'keeps tokens with at least this part of the best one’s probability',
    label: 'Min p',
    step: 0.01,
    flag: "Keep tokens of at least this part of the best one's probability",
  },
  presencePenalty: {
    fields: ['presence_penalty', 'alpha_presence'],
    min: -100,
    max: 100,
    off: 0,
    float: 3,
    about: 'taken off the score of each token that the answer has',
    label: 'Presence',
    step: 0.1,
    flag: 'Against tokens already used',
  },
  frequencyPenalty: {
    fields: ['frequency_penalty', 'alpha_frequency'],
    min: -100,
    max: 100,
    off: 0,
    float: 4,
    about: 'the same, times how often the answer has the token',
    label: 'Frequency',
    step: 0.1,
    flag: 'Against frequent tokens',
  },
  penaltyDecay: {
    fields: ['penalty_decay', 'alpha_decay'],
    min: 0,
    max: 1,
    off: 1,
    float: 5,
    about:
      'the counts behind the frequency penalty are multiplied by it at every token; the presence penalty stays. 0.996 where a request uses an RWKV name',
    label: 'Penalty decay',
    step: 0.001,
    flag: 'Factor on the counts behind --frequency-penalty at every token',
  },
  /** Tokens seen in prompt or answer: logit /= it if positive, *= if negative. */
  repetitionPenalty: {
    fields: ['repetition_penalty'],
    min: 0.01,
    max: 100,
    off: 1,
    float: 6,
    about: 'divides the scores of tokens of prompt and answer',
    label: 'Repetition',
    step: 0.05,
    flag: 'Divides the scores of tokens already there, those of the prompt too',
  },
  /**
   * Above 0 and not greedy, the draw is another: the best of logit/temperature + noise·u, u uniform in [0, 1) for each token
   * by itself (word i%4 of Philox with counter (position, stream, 1 + ⌊i/4⌋, 0)). top-k, top-p and min-p are not looked at.
   */
  noise: {
    fields: [],
    min: 0,
    max: 1e6,
    off: 0,
    float: 7,
    about: 'uniform noise on the scores; top_k, top_p and min_p are then not looked at',
  },
} as const satisfies Readonly<Record<string, SamplingParameter>>

export type SamplingName = keyof typeof SAMPLING

/** A value of every row. */
export type SamplingNumbers = { readonly [K in SamplingName]: number }

/** Fields of requests that are such numbers. */
export type SamplingField = (typeof SAMPLING)[SamplingName]['fields'][number]

/** The usual name of each. */
export type SamplingUsualField = {
  [K in SamplingName]: (typeof SAMPLING)[K]['fields'] extends readonly [infer F extends string, ...unknown[]]
    ? F
    : never
}[SamplingName]

/** The rows with their names; the type is that of any row. */
export const SAMPLING_ROWS: readonly (readonly [SamplingName, SamplingParameter])[] =
  // Its keys are the names.
  Object.entries(SAMPLING) as [SamplingName, SamplingParameter][]

/** One number for every row. */
export function samplingNumbers(numberOf: (name: SamplingName, row: SamplingParameter) => number): SamplingNumbers {
  // An entry for each name.
  return Object.fromEntries(
    SAMPLING_ROWS.map(([name, row]) => [name, numberOf(name, row)]),
  ) as unknown as SamplingNumbers
}

type ColumnNames<Kind extends 'float' | 'int'> = {
  [K in SamplingName]: (typeof SAMPLING)[K] extends { readonly [C in Kind]: number } ? K : never
}[SamplingName]

/** Columns of one kind by name. */
export function samplingColumns<Kind extends 'float' | 'int'>(
  kind: Kind,
): { readonly [K in ColumnNames<Kind>]: number } {
  const rows = SAMPLING_ROWS.filter(([, row]) => row[kind] !== undefined)
  // The filter is the one that the type makes.
  return Object.fromEntries(rows.map(([name, row]) => [name, row[kind]])) as {
    readonly [K in ColumnNames<Kind>]: number
  }
}
