/**
 * The sampling parameters, one per row. The rest is derived from the rows: request fields and ranges, types of engine
 * and runner, columns for the device, flags, the dashboard's form, docs/api.md. backend/reference/sample.ts defines the
 * effect of each.
 */

export interface SamplingParameter {
  /** Request fields that set it, the usual name first. Empty: dialects use names of their own. */
  readonly fields: readonly string[]
  readonly min: number
  readonly max: number
  /** The value without effect, which is the default of requests. */
  readonly off: number
  /**
   * Its column in `Batch.sampleFloats` or, for integers, in `Batch.sampleInts`. The kernels' enums use the same order.
   */
  readonly float?: number
  readonly int?: number
  /** Text for docs/api.md. */
  readonly about: string
  /** Label on the dashboard; absent: not shown. */
  readonly label?: string
  readonly step?: number
  /** Description of the flag of `skein generate` and `skein chat`, and their default if it is not `off`. */
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
    flag: 'Penalty for tokens already used',
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
    flag: 'Penalty for frequent tokens, per use',
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
    flag: 'Factor applied to the counts of --frequency-penalty at every token',
  },
  /** For tokens seen in prompt or answer: logit /= it if positive, *= it if negative. */
  repetitionPenalty: {
    fields: ['repetition_penalty'],
    min: 0.01,
    max: 100,
    off: 1,
    float: 6,
    about: 'divides the scores of tokens of prompt and answer',
    label: 'Repetition',
    step: 0.05,
    flag: 'Divide the scores of tokens that already occur, including in the prompt',
  },
  /**
   * Above 0 and unless greedy, a token is drawn as the best of logit/temperature + noise·u, with u uniform in [0, 1)
   * per token (word i%4 of Philox with counter (position, stream, 1 + ⌊i/4⌋, 0)). top-k, top-p and min-p are ignored.
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

/** As the libraries are given them. The default is no effect, except for `topP`, which is 0.5. */
export type SamplingOptions = Readonly<Partial<Record<SamplingName, number | undefined>>>

export interface TextOptions extends SamplingOptions {
  /** Same seed and prompt, same text, whatever else runs. */
  readonly seed?: number | bigint | undefined
  /** Default 512. */
  readonly maxTokens?: number | undefined
  /** Texts that end the answer and are not part of it. */
  readonly stop?: string | readonly string[] | undefined
  readonly signal?: AbortSignal | undefined
}

export function stopsOf({ stop = [] }: Pick<TextOptions, 'stop'>): readonly string[] {
  return typeof stop === 'string' ? [stop] : stop
}

/** A value for every row. */
export type SamplingNumbers = { readonly [K in SamplingName]: number }

/** Request fields of sampling parameters. */
export type SamplingField = (typeof SAMPLING)[SamplingName]['fields'][number]

/** The usual field of each parameter. */
export type SamplingUsualField = {
  [K in SamplingName]: (typeof SAMPLING)[K]['fields'] extends readonly [infer F extends string, ...unknown[]]
    ? F
    : never
}[SamplingName]

/** The rows with their names, in the general type of a row. */
export const SAMPLING_ROWS: readonly (readonly [SamplingName, SamplingParameter])[] =
  // Its keys are the names.
  Object.entries(SAMPLING) as [SamplingName, SamplingParameter][]

export function samplingNumbers(numberOf: (name: SamplingName, row: SamplingParameter) => number): SamplingNumbers {
  // One entry per name.
  return Object.fromEntries(
    SAMPLING_ROWS.map(([name, row]) => [name, numberOf(name, row)]),
  ) as unknown as SamplingNumbers
}

type ColumnNames<Kind extends 'float' | 'int'> = {
  [K in SamplingName]: (typeof SAMPLING)[K] extends { readonly [C in Kind]: number } ? K : never
}[SamplingName]

/** Columns of one kind, by name. */
export function samplingColumns<Kind extends 'float' | 'int'>(
  kind: Kind,
): { readonly [K in ColumnNames<Kind>]: number } {
  const rows = SAMPLING_ROWS.filter(([, row]) => row[kind] !== undefined)
  // The type is what the filter selects.
  return Object.fromEntries(rows.map(([name, row]) => [name, row[kind]])) as {
    readonly [K in ColumnNames<Kind>]: number
  }
}
