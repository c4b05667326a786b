/**
 * Skein as a library: a model in this process, without HTTP.
 *
 *   import { load } from 'skein'
 *   const llm = await load('model.pth')
 *   for await (const text of llm.generate('Once upon a time')) process.stdout.write(text)
 *   await llm.close()
 *
 * Many `generate` calls may run at once; they share one batch.
 */
import { randomUUID } from 'node:crypto'
import { LocalEngineClient } from './engine/client/local-client.ts'
import type { EngineClient } from './engine/client.ts'
import type { EngineInfo, GenerateRequest } from './engine/messages.ts'
import { type EngineChoice, loadEngine } from './host/load.ts'
import type { LoadProgress } from './model/weights.ts'
import { type SamplingName, samplingNumbers } from './sampling.ts'
import type { Tokenizer } from './tokenizer/tokenizer.ts'

export { SkeinError } from './errors.ts'
export type { EngineChoice } from './host/load.ts'

/** The numbers of sampling.ts; one that is left out changes nothing, but `topP`, which is 0.5 then. */
export interface GenerateOptions extends SamplingOptions {
  /** Same seed and prompt, same text, whatever else runs. */
  readonly seed?: number | bigint | undefined
  /** Default 512. */
  readonly maxTokens?: number | undefined
  /** Texts that end the answer; never part of it. */
  readonly stop?: readonly string[] | undefined
  /** A name of `EngineChoice.startStates`. */
  readonly startState?: string | undefined
  readonly signal?: AbortSignal | undefined
  /** Told how many tokens each piece took. */
  readonly onTokens?: ((count: number) => void) | undefined
}

export type SamplingOptions = { readonly [K in SamplingName]?: number | undefined }

export interface Llm {
  readonly info: EngineInfo
  readonly tokenizer: Tokenizer
  /** The engine itself, for callers that want tokens, log-probabilities or several answers. */
  readonly client: EngineClient
  /** Continues a text; yields pieces of whole characters as they come. */
  generate(prompt: string, options?: GenerateOptions): AsyncIterable<string>
  close(): Promise<void>
}

export async function load(
  choice: string | EngineChoice,
  options: { readonly onProgress?: LoadProgress | undefined } = {},
): Promise<Llm> {
  const { engine, tokenizer } = await loadEngine(
    typeof choice === 'string' ? { model: choice } : choice,
    options.onProgress,
  )
  const client = new LocalEngineClient(engine)
  return {
    info: client.info,
    tokenizer,
    client,
    generate: (prompt, given = {}) => pieces(client, requestOf(tokenizer, prompt, given), given),
    close: () => client.close(),
  }
}

async function* pieces(
  client: EngineClient,
  request: GenerateRequest,
  { signal, onTokens }: GenerateOptions,
): AsyncIterable<string> {
  for await (const event of client.generate(request, signal)) {
    if (event.type !== 'text') continue
    onTokens?.(event.tokens.length)
    if (event.text !== '') yield event.text
  }
}

function requestOf(
  tokenizer: Tokenizer,
  prompt: string,
  options: GenerateOptions,
): GenerateRequest {
  return {
    id: randomUUID(),
    startState: options.startState,
    prompt: tokenizer.encode(prompt),
    n: 1,
    maxTokens: options.maxTokens ?? 512,
    sampling: {
      ...samplingNumbers((name, row) => options[name] ?? row.ownDefault ?? row.off),
      seed: options.seed === undefined ? null : BigInt(options.seed),
      logitBias: [],
      bannedTokens: [],
    },
    stop: { strings: options.stop ?? [], tokens: [], ignoreEos: false },
    logprobs: null,
    promptLogprobs: null,
  }
}
