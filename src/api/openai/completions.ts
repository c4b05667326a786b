/**
 * POST /v1/completions: raw prompts in, raw text out, no template. Several prompts run side by side; choice p·n + i is
 * answer i of prompt p.
 */
import type { FinishReason, GenerateRequest, SessionPosition } from '../../engine/messages.ts'
import type { GuessesBy } from '../../engine/stats.ts'
import { type Answered, runAll } from '../answers.ts'
import { WRITTEN } from '../json-around.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls, LiveHandle } from '../live-calls.ts'
import type { ServedModel } from '../models.ts'
import { numPrompts } from '../prompt-list.ts'
import { type Call, json, longJson, post, type Reply, type Route } from '../route.ts'
import { wirePosition } from '../sessions/use.ts'
import { eventAround, writerOf } from '../stream-form.ts'
import { constraintOf } from './asks/formats.ts'
import {
  type CompletionBody,
  checkEcho,
  checkFanOut,
  completionBody,
  completionMaxTokens,
  type PromptText,
  sessionOf,
  toPrompts,
} from './completions-schema.ts'
import { Scores } from './logprobs.ts'
import { UNREAD } from './parameters.ts'
import { cacheOf, checkCombinations, checkLogprobs, toSampling, toStop } from './sampling.ts'
import { allGuesses, systemFingerprint, usageOf } from './usage.ts'

const PATH = '/v1/completions'

export function completionsRoute(limits: RequestLimits, live: LiveCalls): Route {
  const summary = 'Continue one or more prompts'
  const handle = async (call: Call<CompletionBody>): Promise<Reply> => {
    const completion = await prepare(call, live)
    if (call.body.stream === true) return { kind: 'events', events: streamed(completion) }
    return await whole(completion)
  }
  return post(PATH, summary, completionBody(limits), handle, UNREAD)
}

interface Completion {
  readonly live: LiveCalls
  readonly id: string
  readonly tenant: string
  readonly model: ServedModel
  readonly prompts: readonly PromptText[]
  readonly requests: readonly GenerateRequest[]
  readonly n: number
  readonly echo: boolean
  readonly withLogprobs: boolean
  readonly includeUsage: boolean
  readonly created: number
  readonly signal: AbortSignal
}

async function prepare(call: Call<CompletionBody>, live: LiveCalls): Promise<Completion> {
  const { body, limits, signal } = call
  checkCombinations(body, true)
  checkFanOut(body, limits)
  const session = sessionOf(body)
  const model = call.models.get(body.model)
  const id = `cmpl-${call.id}`
  const n = body.n ?? 1
  const echo = body.echo === true
  const logprobs = body.logprobs ?? null
  const constraint = constraintOf(body)
  const settings = {
    n,
    maxTokens: completionMaxTokens(body, limits),
    sampling: toSampling(body, model),
    stop: toStop(body, [], model, limits),
    logprobs,
    promptLogprobs: echo ? logprobs : null,
    isGathered: body.stream !== true,
    tenant: call.tenant,
    ...(session === null ? {} : { session }),
    cache: cacheOf(body),
    ...(constraint === null ? {} : { constraint }),
  }
  checkLogprobs(body, { ...settings, numAnswers: n * numPrompts(body.prompt) }, limits)
  const prompts = await toPrompts(body, model, session !== null, signal)
  checkEcho(body, model, prompts, limits)
  return {
    live,
    id,
    tenant: call.tenant,
    model,
    prompts,
    requests: prompts.map(({ tokens }, p) => ({ id: `${id}-${p}`, prompt: tokens, ...settings })),
    n,
    echo,
    withLogprobs: logprobs !== null,
    includeUsage: body.stream_options?.include_usage === true,
    created: call.now,
    signal,
  }
}

function enter({ live, id, tenant, model, requests, n, signal }: Completion): LiveHandle {
  const call = { id, tenant, path: PATH, model: model.id, numRows: n * requests.length }
  return live.enter({ ...call, canPause: false, startedAt: Date.now() }, signal)
}

async function whole(completion: Completion): Promise<Reply> {
  const { model, requests, n } = completion
  const choices = choicesOf(completion, true)
  const read = new Read()
  const handle = enter(completion)
  try {
    for await (const answered of runAll(model.client, requests, handle.signal)) {
      read.take(answered, completion)
      for (const choice of concerned(choices, answered, n)) await choice.take(answered.event)
    }
  } catch (thrown) {
    throw handle.failureOf(thrown)
  } finally {
    handle.leave()
  }
  const reply = {
    ...headOf(completion),
    choices: choices.map((choice) => choice.whole()),
    usage: usageOfAll(read, choices),
    ...sessionField(choices[0]!),
  }
  if (!completion.withLogprobs) return json(reply)
  return longJson(reply, await Promise.all(choices.map(({ scores }) => scores.json())))
}

async function* streamed(completion: Completion): AsyncGenerator<object> {
  const { model, requests, n, includeUsage } = completion
  const choices = choicesOf(completion, false)
  const head = headOf(completion)
  const chunk = (piece: object) => ({ ...head, choices: [piece], ...(includeUsage ? { usage: null } : {}) })
  const writers = choices.map((choice) => writerOf((text) => chunk(choice.textPiece(text))))
  const read = new Read()
  const handle = enter(completion)
  try {
    for await (const answered of runAll(model.client, requests, handle.signal)) {
      const { prompt, event } = answered
      if (event.type === 'text' && event.logprobs === null) {
        if (event.text !== '') yield writers[prompt * n + event.index]!(event.text)
        continue
      }
      read.take(answered, completion)
      for (const choice of concerned(choices, answered, n)) {
        const told = await choice.take(event)
        if (told !== null) yield eventAround({ ...chunk(told.entry), ...sessionField(choice) }, told.json)
      }
    }
  } catch (thrown) {
    throw handle.failureOf(thrown)
  } finally {
    handle.leave()
  }
  if (includeUsage) yield { ...head, choices: [], usage: usageOfAll(read, choices) }
}

function choicesOf(completion: Completion, isKept: boolean): Choice[] {
  const { prompts, n } = completion
  return prompts.flatMap((prompt, p) =>
    Array.from({ length: n }, (_, i) => new Choice(p * n + i, prompt, completion, isKept)),
  )
}

/** Once the answer has become a turn. */
function sessionField({ session }: Choice): object {
  return session === null ? {} : { session: wirePosition(session) }
}

/** The tokens of all prompts. Each is read once however many answers it gets, and counted once. */
class Read {
  tokens = 0
  /** Prompt tokens that a kept state had already read. */
  cached = 0

  take({ prompt, event }: Answered, { prompts }: Completion): void {
    if (event.type !== 'prompt') return
    // In a session what was read before is part of the prompt.
    this.tokens += event.contextTokens ?? prompts[prompt]!.tokens.length
    this.cached += event.cachedTokens ?? 0
  }
}

function usageOfAll({ tokens, cached }: Read, choices: readonly Choice[]): object {
  const completionTokens = choices.reduce((sum, choice) => sum + choice.completionTokens, 0)
  return usageOf(tokens, completionTokens, null, cached, allGuesses(choices))
}

/** The choices an event is about: all of the prompt's for the prompt itself, else one. */
function concerned(choices: readonly Choice[], { prompt, event }: Answered, n: number) {
  if (event.type === 'prompt') return choices.slice(prompt * n, (prompt + 1) * n)
  return [choices[prompt * n + event.index]!]
}

function headOf({ id, created, model }: Completion) {
  const fingerprint = systemFingerprint(model.client.info.model.fingerprint)
  return { id, object: 'text_completion', created, model: model.id, system_fingerprint: fingerprint }
}

interface Told {
  /** An entry of `choices`. */
  readonly entry: object
  /** Of its log-probabilities. */
  readonly json: string | null
}

/** One answer while it grows. Stream and whole reply are made of the same pieces. */
class Choice {
  completionTokens = 0
  guesses: GuessesBy = {}
  /** The turn of a session that it became. */
  session: SessionPosition | null = null
  readonly #index: number
  readonly #prompt: PromptText
  readonly #completion: Completion
  readonly scores = new Scores('completion')
  readonly #texts: string[] = []
  readonly #isKept: boolean
  #reason: FinishReason | null = null

  /** Not kept: a stream has given its pieces away, and does not ask for the whole. */
  constructor(index: number, prompt: PromptText, completion: Completion, isKept: boolean) {
    this.#index = index
    this.#prompt = prompt
    this.#completion = completion
    this.#isKept = isKept
  }

  /** What a stream says of this event; null where that is nothing. */
  async take(event: Answered['event']): Promise<Told | null> {
    if (event.type === 'finish') {
      this.completionTokens = event.completionTokens
      this.guesses = event.guesses ?? {}
      this.#reason = event.reason
      this.session = event.session ?? null
      return { entry: this.#entry('', null), json: null }
    }
    const isEcho = event.type === 'prompt'
    if (isEcho && !this.#completion.echo) return null
    const text = isEcho ? this.#prompt.text : event.text
    const { logprobs } = event
    if (text === '' && logprobs === null && !isEcho) return null
    const first = isEcho ? this.#completion.model.tokenizer.bytesOf(this.#prompt.tokens[0]!) : null
    if (this.#isKept) {
      this.#texts.push(text)
      if (logprobs !== null) await this.scores.add(logprobs, first, isEcho)
      return null
    }
    if (logprobs === null) return { entry: this.#entry(text, null), json: null }
    return { entry: this.#entry(text, WRITTEN), json: await this.scores.piece(logprobs, first, isEcho) }
  }

  /** The entry of a stream's `choices` for text alone, before the end. */
  textPiece(text: string): object {
    return { index: this.#index, text, logprobs: null, finish_reason: null }
  }

  whole(): object {
    return this.#entry(this.#texts.join(''), this.#completion.withLogprobs ? WRITTEN : null)
  }

  #entry(text: string, logprobs: string | null): object {
    return { index: this.#index, text, logprobs, finish_reason: this.#reason }
  }
}
