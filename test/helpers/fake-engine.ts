/**
 * An EngineClient that plays a script instead of running a model, and records its calls. Its codec has one token per
 * byte, so every expected token can be read off the text.
 */
import type { ModelRegistry, ServedModel, TextCodec } from '../../src/api/models.ts'
import type { EngineClient } from '../../src/engine/client.ts'
import type {
  EngineCall,
  EngineCalls,
  EngineEvent,
  EngineInfo,
  FinishReason,
  GenerateRequest,
  TokenText,
} from '../../src/engine/messages.ts'
import { type EngineStats, idleStats } from '../../src/engine/stats.ts'
import { SkeinError } from '../../src/errors.ts'
import { type EngineSource, GENERIC_NAMES } from '../../src/gateway/routing/registry.ts'

/** Token b + 1 is byte b; token 0 is the end of text. */
export const byteCodec: TextCodec = {
  vocabSize: 257,
  encode: (text) => Int32Array.from(Buffer.from(text), (byte) => byte + 1),
  encodeAside: async (texts) => texts.map((text) => byteCodec.encode(text)),
  decode: (tokens) => Buffer.from([...tokens].filter((t) => t > 0).map((t) => t - 1)).toString(),
  bytesOf: (token) => (token === 0 ? new Uint8Array(0) : Uint8Array.of(token - 1)),
}

/** The text that a request's model reads. */
export function promptOf({ prompt }: Pick<GenerateRequest, 'prompt'>): string {
  return byteCodec.decode(prompt)
}

export const FAKE_INFO: EngineInfo = {
  model: {
    architecture: 'rwkv7',
    vocabSize: 257,
    numParameters: 1000,
    stateShape: { layers: 1, channels: 64, heads: 1, headSize: 64 },
    weightType: 'f32',
    weightBytes: 4000,
    tableBytes: 0,
    stateBytes: 1000,
    fingerprint: 'feedc0ffee00112233',
    device: 'none',
  },
  numSlots: 16,
  maxWaiting: 64,
  maxPromptTokens: 5000,
}

/** What the fake does with a request: events to yield, or an error to throw at its position. */
export type Script = (
  request: GenerateRequest,
  signal: AbortSignal | undefined,
) => AsyncIterable<EngineEvent> | Iterable<EngineEvent>

export class FakeEngineClient implements EngineClient {
  readonly #info: EngineInfo
  readonly requests: GenerateRequest[] = []
  /** Ids of requests whose consumer left or aborted before the end. */
  readonly cancelled: string[] = []
  script: Script
  /** Queued requests, for the counters. */
  waiting = 3

  constructor(script: Script = (request) => answer(request, 'Hello, world.'), info = FAKE_INFO) {
    this.script = script
    this.#info = info
  }

  get info(): EngineInfo {
    return this.#info
  }

  get stats(): EngineStats {
    const idle = idleStats(this.info.numSlots)
    const lines = { waiting: this.waiting, running: 2, prefilling: 1, freeSlots: 14 }
    return { ...idle, ...lines, steps: 10, lastBatchTokens: 5, busySeconds: 1.5 }
  }

  /** What every request would be refused with. */
  refusal: SkeinError | null = null

  refusalOf(): SkeinError | null {
    return this.refusal
  }

  async *generate(request: GenerateRequest, signal?: AbortSignal): AsyncGenerator<EngineEvent> {
    this.requests.push(request)
    let isComplete = false
    try {
      for await (const event of this.script(request, signal)) {
        if (signal?.aborted) break
        yield event
      }
      isComplete = signal?.aborted !== true
    } finally {
      if (!isComplete) this.cancelled.push(request.id)
    }
  }

  /** Recorded calls; `answerCall` returns the replies. */
  readonly calls: { readonly method: EngineCall; readonly params: unknown }[] = []
  answerCall: (method: EngineCall, params: unknown) => unknown = () => null

  async call<M extends EngineCall>(method: M, params: EngineCalls[M]['params']): Promise<EngineCalls[M]['result']> {
    this.calls.push({ method, params })
    // The test that set the script knows the type of its reply.
    return this.answerCall(method, params) as EngineCalls[M]['result']
  }

  async close(): Promise<void> {}
}

/** One answer per choice, a token per byte. Text events hold only whole characters, as the engine's do. */
export function* answer(
  request: GenerateRequest,
  text: string | ((index: number) => string),
  reason: FinishReason = 'stop',
): Generator<EngineEvent> {
  const { id, prompt } = request
  const wantsPrompt = request.promptLogprobs !== null
  yield {
    type: 'prompt',
    id,
    ...(request.embedding === undefined ? {} : { embedding: countsOf(prompt) }),
    logprobs: wantsPrompt
      ? [...prompt].map((token, i) => (i === 0 ? null : tokenText(token, request.promptLogprobs!)))
      : null,
  }
  for (let index = 0; index < request.n; index++) {
    const own = typeof text === 'string' ? text : text(index)
    let completionTokens = 1
    for (const character of own) {
      const tokens = [...byteCodec.encode(character)]
      completionTokens += tokens.length
      const logprobs = request.logprobs === null ? null : tokens.map((t) => tokenText(t, request.logprobs!))
      yield { type: 'text', id, index, text: character, tokens, logprobs }
    }
    const matched = reason === 'stop' ? 0 : null
    yield { type: 'finish', id, index, reason, matched, completionTokens }
  }
}

/** [64]: counts of the tokens modulo 64. Texts with the same letters have the same vector. */
function countsOf(prompt: Int32Array): Float32Array {
  const counts = new Float32Array(64)
  for (const token of prompt) counts[token % 64]!++
  return counts
}

/** Log-probability −token/1000; alternatives are the tokens that follow. */
export function tokenText(token: number, k: number): TokenText {
  const top = Array.from({ length: k }, (_, i) => ({ token: token + i, logprob: -(token + i) / 1000 }))
  return {
    token,
    logprob: -token / 1000,
    bytes: byteCodec.bytesOf(token),
    top,
    topBytes: top.map((entry) => byteCodec.bytesOf(entry.token)),
  }
}

/** A script that yields the prompt event and then a word per millisecond, until cancelled. */
export async function* endless(
  request: GenerateRequest,
  signal: AbortSignal | undefined,
  text = 'word ',
): AsyncGenerator<EngineEvent> {
  yield { type: 'prompt', id: request.id, logprobs: null }
  while (signal?.aborted !== true) {
    await new Promise((resolve) => setTimeout(resolve, 1))
    yield { type: 'text', id: request.id, index: 0, text, tokens: [1], logprobs: null }
  }
}

export function fakeRegistry(client: EngineClient, id = 'goose', tokenizer: TextCodec = byteCodec): ModelRegistry {
  const model: ServedModel = { id, created: 1_700_000_000, client, tokenizer }
  return {
    list: () => [{ id, created: model.created, state: 'ready', reason: null, client }],
    get(name) {
      if (!name || name === id || GENERIC_NAMES.includes(name)) return model
      throw new SkeinError('not_found', 'no model of that name', { param: 'model' })
    },
  }
}

/** An engine that is ready, as a source of a registry. */
export function localSource(client: EngineClient): EngineSource {
  return { state: 'ready', reason: null, client }
}
