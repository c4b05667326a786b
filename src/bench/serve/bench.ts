/**
 * A whole run of the load generator: asks the server for its model, makes the prompts, sends one request ahead as a
 * check, sends the load, and counts. It knows nothing of flags, files and pages.
 */

import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as delay } from 'node:timers/promises'
import { SkeinError } from '../../errors.ts'
import { type AskSettings, type Endpoint, type EndpointName, endpointOf } from './endpoints.ts'
import { type AnswerTimes, type Exchange, exchange } from './exchange.ts'
import { ExchangeError, HttpClient, readJson } from './http-client.ts'
import { type FilePrompt, type Prompt, pickPrompts, type RandomLengths, randomPrompts } from './prompts.ts'
import { type Random, seededRandom } from './random.ts'
import { type AnswerResult, type RequestResult, type Summary, summarise } from './statistics.ts'
import { type CountTokens, tokenCounter } from './token-counter.ts'

/** Length of an answer if neither the plan nor the file gives one. */
const DEFAULT_OUTPUT_TOKENS = 128

export type Dataset =
  | { readonly kind: 'random'; readonly lengths: RandomLengths }
  | {
      readonly kind: 'file'
      readonly prompts: readonly FilePrompt[]
      /** Undefined: as in the file. */
      readonly outputTokens: number | undefined
    }

export interface ServeBenchPlan {
  readonly url: string
  readonly apiKey: string | undefined
  readonly endpoint: EndpointName
  /** Undefined: the first model that the server lists. */
  readonly model: string | undefined
  readonly settings: Pick<AskSettings, 'isStream' | 'ignoreEos' | 'temperature' | 'extra'>
  readonly dataset: Dataset
  readonly numPrompts: number
  /** Prompts per request. */
  readonly batch: number
  /** Requests per second; infinite: all at once. */
  readonly requestRate: number
  readonly concurrency: number
  readonly timeoutMs: number
  readonly seed: number
  readonly onProgress: (numEnded: number, numRequests: number) => void
  /** When aborted, the load ends, and the results so far are reported. */
  readonly signal: AbortSignal
}

export interface ServeBench {
  readonly model: string | undefined
  readonly numPlanned: number
  readonly summary: Summary
  readonly eventLoopDelayMs: EventLoopDelay
  readonly outputTokensFrom: readonly TokenSource[]
  /** In the order in which they ended. */
  readonly requests: readonly CountedResult[]
}

export async function benchServe(plan: ServeBenchPlan): Promise<ServeBench> {
  const client = new HttpClient(plan.url, plan.apiKey, plan.timeoutMs)
  try {
    return await bench(client, plan)
  } catch (thrown) {
    if (thrown instanceof ExchangeError) throw explained(thrown, plan)
    throw thrown
  } finally {
    client.dispose()
  }
}

async function bench(client: HttpClient, plan: ServeBenchPlan): Promise<ServeBench> {
  const endpoint = endpointOf(plan.endpoint)
  const model = plan.model ?? (endpoint.takesBatch ? undefined : await firstModel(client))
  const countTokens = await tokenCounter(client, model)
  // One additional request goes ahead of the load.
  const numRequests = Math.ceil(plan.numPrompts / plan.batch)
  const [ahead, ...groups] = groupsOf(await promptsOf(plan, countTokens), plan.batch)
  const ask = (prompts: readonly Prompt[]) =>
    exchange(client, askOf(endpoint, prompts, { ...plan.settings, model, password: plan.apiKey }))
  const { failure } = await ask(ahead!)
  if (failure !== null) throw new ExchangeError(failure.reason, failure.message)

  const stop = () => client.dispose()
  plan.signal.addEventListener('abort', stop)
  const load = await runLoad({
    arrivalsMs: arrivalTimes(numRequests, plan.requestRate, seededRandom(plan.seed + 1)),
    concurrency: plan.concurrency,
    send: async (i) => {
      const prompts = groups[i]!
      const ended = await ask(prompts)
      // A request that stop() cut off is no failure of the server.
      return { prompts, ...(plan.signal.aborted && ended.failure ? interrupted(ended) : ended) }
    },
    onEnd: (numEnded) => plan.onProgress(numEnded, numRequests),
    signal: plan.signal,
  })
  plan.signal.removeEventListener('abort', stop)

  const requests: CountedResult[] = []
  for (const sent of load.requests) requests.push(await withTokens(sent, countTokens))
  return {
    model,
    numPlanned: numRequests,
    summary: summarise(requests, load.durationMs),
    eventLoopDelayMs: load.eventLoopDelayMs,
    outputTokensFrom: [...new Set(requests.flatMap(({ tokensFrom }) => tokensFrom ?? []))],
    requests,
  }
}

/** The prompts of the load, preceded by those of the request that goes ahead. */
function promptsOf(plan: ServeBenchPlan, countTokens: CountTokens): Promise<Prompt[]> {
  const { dataset, numPrompts, batch } = plan
  const random = seededRandom(plan.seed)
  const count = numPrompts + batch
  if (dataset.kind === 'random') return randomPrompts(count, dataset.lengths, random, countTokens)
  const lengths = { outputTokens: dataset.outputTokens, otherwise: DEFAULT_OUTPUT_TOKENS }
  return pickPrompts(count, dataset.prompts, lengths, random, countTokens)
}

function groupsOf(prompts: readonly Prompt[], size: number): (readonly Prompt[])[] {
  const count = Math.ceil(prompts.length / size)
  return Array.from({ length: count }, (_, i) => prompts.slice(i * size, (i + 1) * size))
}

function askOf(endpoint: Endpoint, prompts: readonly Prompt[], settings: AskSettings) {
  return {
    path: endpoint.path,
    body: endpoint.body(prompts, settings),
    isStream: settings.isStream,
    numAnswers: prompts.length,
  }
}

function interrupted(ended: Exchange): Exchange {
  return { ...ended, failure: { reason: 'interrupted', message: 'the load was interrupted' } }
}

/** From GET /v1/models: `{data: [{id}]}`, or RWKV-Infer's bare list. */
async function firstModel(client: HttpClient): Promise<string> {
  const reply = await client.send('/v1/models')
  const body = await readJson(reply)
  if (reply.status === 401) throw new ExchangeError('http 401', 'the server requires a key')
  // A JSON value without the field gives undefined.
  const list: unknown = Array.isArray(body) ? body : (Object(body) as { data?: unknown }).data
  const id: unknown = Array.isArray(list) ? list[0]?.id : undefined
  if (typeof id === 'string') return id
  throw new SkeinError(
    'invalid_request',
    `GET /v1/models names no model (it answered ${reply.status}); say which with --model`,
  )
}

/** The error of a failure before the load, which ends the run. */
function explained({ reason, message }: ExchangeError, { url }: ServeBenchPlan): SkeinError {
  if (reason === 'connection') return new SkeinError('model_not_loaded', `no server answers at ${url}: ${message}`)
  if (reason === 'http 401' || reason === 'http 403')
    return new SkeinError('unauthorized', `${url} refuses: ${message} (give its key)`)
  return new SkeinError('invalid_request', `the request sent ahead of the load failed (${reason}): ${message}`)
}

/**
 * Milliseconds from the start: a Poisson process of `rate` requests per second whose first request is due at once, or
 * all at once for an infinite rate.
 */
export function arrivalTimes(count: number, rate: number, random: Random): number[] {
  let due = 0
  return Array.from({ length: count }, (_, i) => {
    // Gaps are exponential; 1 − random() is never 0, so none is infinite.
    if (i > 0 && rate !== Number.POSITIVE_INFINITY) due -= (Math.log(1 - random()) / rate) * 1000
    return due
  })
}

/** Source of an answer's token count: usage, the stream's events (one per token), or /tokenize of the answer. */
type TokenSource = 'usage' | 'events' | 'tokenize'

export interface CountedResult extends RequestResult {
  /** Null for a failed request, whose tokens are in no figure. */
  readonly tokensFrom: TokenSource | null
}

/**
 * Adds the tokens that each request took and gave: from the server's usage, else from its events or /tokenize, else
 * unknown.
 */
async function withTokens(
  { dueMs, sentMs, value }: Timed<Exchange & { readonly prompts: readonly Prompt[] }>,
  countTokens: CountTokens,
): Promise<CountedResult> {
  const { failure, endMs, prompts } = value
  const base = { dueMs, sentMs, e2eMs: endMs, failure }
  if (failure !== null) {
    const answers = value.answers.map((times) => answerOf(times, null, times.lastMs))
    return { ...base, answers, inputTokens: null, cachedTokens: null, tokensFrom: null }
  }
  // With several answers the usage gives only the sum.
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
 * The end must match the count: usage also counts tokens without text, which may be the last, so it goes with the end
 * of the reply; events count pieces of text, so they go with the last piece.
 */
function answerOf({ firstMs, gapsMs }: AnswerTimes, outputTokens: number | null, endMs: number | null): AnswerResult {
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

/** How often the event loop's delay is measured. */
const DELAY_RESOLUTION_MS = 10

/** Milliseconds since the start of the load. */
interface Timed<T> {
  readonly dueMs: number
  readonly sentMs: number
  readonly value: T
}

interface LoadPlan<T> {
  /** When each request is due, ascending. */
  readonly arrivalsMs: readonly number[]
  /** Maximum requests in flight. */
  readonly concurrency: number
  /** Sends request i. It does not reject if the request fails. */
  readonly send: (i: number) => Promise<T>
  readonly onEnd: (numEnded: number) => void
  /** When aborted, no further request is sent. */
  readonly signal: AbortSignal
}

interface Load<T> {
  /** In the order in which they ended; fewer than planned if the load was interrupted. */
  readonly requests: readonly Timed<T>[]
  readonly durationMs: number
  readonly eventLoopDelayMs: EventLoopDelay
}

/** How late this process was at its own timers: above a few milliseconds it may be the limit, not the server. */
interface EventLoopDelay {
  readonly p99: number
  /** A single long stop of the process or the machine shows only here. */
  readonly max: number
}

/**
 * The clock of a load: starts each request when it is due, or as soon as the limit on requests in flight allows, and
 * collects the results. It knows no HTTP; sending is a function.
 */
export async function runLoad<T>(plan: LoadPlan<T>): Promise<Load<T>> {
  const { arrivalsMs, concurrency, send, onEnd, signal } = plan
  const eventLoop = monitorEventLoopDelay({ resolution: DELAY_RESOLUTION_MS })
  eventLoop.enable()
  const startedAt = performance.now()
  const requests: Timed<T>[] = []
  const started: Promise<void>[] = []
  let wake = () => {}
  const start = async (i: number, dueMs: number) => {
    const sentMs = performance.now() - startedAt
    requests.push({ dueMs, sentMs, value: await send(i) })
    onEnd(requests.length)
    wake()
  }
  for (const [i, dueMs] of arrivalsMs.entries()) {
    await waitUntil(startedAt + dueMs, signal)
    while (started.length - requests.length >= concurrency)
      await new Promise<void>((resolve) => {
        wake = resolve
      })
    if (signal.aborted) break
    started.push(start(i, dueMs))
  }
  await Promise.all(started)
  eventLoop.disable()
  return {
    requests,
    durationMs: performance.now() - startedAt,
    eventLoopDelayMs: { p99: lateness(eventLoop.percentile(99)), max: lateness(eventLoop.max) },
  }
}

/** The measurement includes the timer's period, in nanoseconds; without measurements it is negative. */
function lateness(measured: number): number {
  return Math.max(0, measured / 1e6 - DELAY_RESOLUTION_MS)
}

async function waitUntil(time: number, signal: AbortSignal): Promise<void> {
  // Repeats, because timers may fire a fraction of a millisecond early.
  while (!signal.aborted) {
    const wait = time - performance.now()
    if (wait <= 0) return
    // An interrupted wait is no error: the loop checks the signal.
    await delay(Math.ceil(wait), undefined, { signal }).catch(() => {})
  }
}
