/**
 * Skein in a page or a worker of a browser: a model from an address, on the visitor's own GPU.
 *
 *   import { load } from 'skein/browser'
 *   const llm = await load('/models/model.pth', { onProgress: ({ doneBytes }) => show(doneBytes) })
 *   for await (const text of llm.generate('Once upon a time')) append(text)
 *   llm.close()
 *
 * The same model code, tokenizer, sampler and WebGPU kernels as on a server; nothing of Node is in the bundle.
 */
/// <reference lib="dom" />
import { CHAT_STOPS, renderChat, type ThinkMode, type Turn } from '../api/template.ts'
import { testBackend } from '../backend/webgpu/self-test.ts'
import { openWebgpuBackend, type WebgpuBackend } from '../backend/webgpu/webgpu.ts'
import { identityOf } from '../engine/kept/identity.ts'
import { SkeinError } from '../errors.ts'
import { fingerprint } from '../model/formats/fingerprint.ts'
import type { Checkpoint } from '../model/formats/format.ts'
import { openSource } from '../model/formats/open-source.ts'
import { loadModel, testedOf } from '../model/run/load-model.ts'
import { ModelRunner } from '../model/run/model-runner.ts'
import type { ModelInfo } from '../model/runner.ts'
import { readTunedState } from '../model/tuned-state.ts'
import { weightTypeOf } from '../model/weights.ts'
import { stopsOf, type TextOptions } from '../sampling.ts'
import { TokenCodec } from '../tokenizer/codec.ts'
import { parseVocabulary } from '../tokenizer/vocabulary.ts'
import { Slots } from './slots.ts'
import { LlmState, type StateHome } from './state.ts'
import { Steps } from './steps.ts'
import { openStored } from './stored-file.ts'

export { CHAT_STOPS, renderChat, type ThinkMode, type Turn } from '../api/template.ts'
export { SkeinError } from '../errors.ts'
export type { ModelInfo } from '../model/runner.ts'
export type { SamplingOptions, TextOptions as GenerateOptions } from '../sampling.ts'
export type { TokenCodec } from '../tokenizer/codec.ts'
export type { LlmState } from './state.ts'
export { forgetStored } from './stored-file.ts'

/** Format of the large matrices; 'file' keeps the checkpoint's type. */
export type Quant = 'file' | 'f32' | 'f16' | 'bf16' | 'int8' | 'q4' | 'nf4'

export interface Progress {
  /** `download` if the file is not stored yet, then `weights` while it is loaded onto the device. */
  readonly stage: 'download' | 'weights'
  readonly doneBytes: number
  /** Null if the server does not report it. */
  readonly totalBytes: number | null
}

export interface LoadOptions {
  /** URL of the vocabulary. Default: beside the model, "model.vocab.txt" for "model.pth". A GGUF contains its own. */
  readonly vocabulary?: string | undefined
  /** Default: 'file'. */
  readonly quant?: Quant | undefined
  /** Number of states; default 4. */
  readonly slots?: number | undefined
  /** Maximum tokens per step; default 64. */
  readonly stepTokens?: number | undefined
  /** Keep the files in the browser, so that the next load needs no network; default true. */
  readonly keep?: boolean | undefined
  readonly onProgress?: ((progress: Progress) => void) | undefined
  readonly signal?: AbortSignal | undefined
}

export interface ChatOptions extends TextOptions {
  readonly think?: ThinkMode | undefined
}

export interface Llm {
  readonly info: ModelInfo
  readonly tokenizer: TokenCodec
  /** Continues a text; yields pieces of whole characters as they come. */
  generate(prompt: string, options?: TextOptions): AsyncGenerator<string, void>
  /** Answers a conversation, in the template that RWKV models are trained on. */
  chat(turns: readonly Turn[], options?: ChatOptions): AsyncGenerator<string, void>
  /** A state before any text, which can read, write, fork and save. */
  begin(): LlmState
  /** A state from a file of `save`. */
  restore(file: Uint8Array): Promise<LlmState>
  close(): void
}

/** Throws backend_unavailable if the browser has no WebGPU, or if its results are wrong. */
export async function load(url: string, options: LoadOptions = {}): Promise<Llm> {
  checkGpu()
  const checkpoint = openSource(await stored(url, options))
  let backend: WebgpuBackend | null = null
  try {
    const tokenizer = await loadTokenizer(checkpoint, url, options)
    backend = await openWebgpuBackend()
    await testBackend(backend, testedOf(checkpoint, weightTypeOf(options.quant)))
    const runner = createRunner(checkpoint, backend, options)
    const { info } = runner
    if (tokenizer.vocabSize > info.vocabSize)
      throw new SkeinError(
        'unsupported_weights',
        `the vocabulary has ${tokenizer.vocabSize} ids but ${url} has ${info.vocabSize} embedding rows; give the model's own vocabulary`,
      )
    const identity = identityOf(info, tokenizer.hash)
    const home = { runner, steps: new Steps(runner), slots: new Slots(runner), tokenizer, identity }
    return llmOf(home, () => runner.dispose())
  } catch (error) {
    backend?.dispose()
    throw error
  } finally {
    checkpoint.close()
  }
}

function checkGpu(): void {
  // In Node, the package webgpu provides the device.
  if (typeof window === 'undefined' && typeof self === 'undefined') return
  if (navigator.gpu) return
  throw new SkeinError(
    'backend_unavailable',
    isSecureContext
      ? 'this browser has no WebGPU; Chrome, Edge, Safari 26 and Firefox 141 on Windows have it'
      : 'WebGPU works only on pages from https or localhost',
  )
}

function stored(url: string, { keep, onProgress, signal }: LoadOptions) {
  return openStored(url, {
    keep,
    signal,
    onProgress: (doneBytes, totalBytes) => onProgress?.({ stage: 'download', doneBytes, totalBytes }),
  })
}

async function loadTokenizer(checkpoint: Checkpoint, url: string, options: LoadOptions): Promise<TokenCodec> {
  const own = options.vocabulary === undefined ? checkpoint.vocabulary?.() : undefined
  if (own) return new TokenCodec(own, url)
  const place = options.vocabulary ?? url.replace(/\.(pth|safetensors|st|gguf)(?=$|\?)/, '.vocab.txt')
  const source = await openStored(place, { keep: options.keep, signal: options.signal })
  try {
    const bytes = new Uint8Array(source.size)
    source.readInto(bytes, 0)
    return new TokenCodec(parseVocabulary(new TextDecoder().decode(bytes), place), place)
  } finally {
    source.close()
  }
}

function createRunner(
  checkpoint: Checkpoint,
  backend: WebgpuBackend,
  { quant = 'file', slots = 4, stepTokens = 64, onProgress }: LoadOptions,
): ModelRunner {
  const model = loadModel(checkpoint, backend, {
    weightType: weightTypeOf(quant),
    onProgress: (doneBytes, totalBytes) => onProgress?.({ stage: 'weights', doneBytes, totalBytes }),
  })
  return new ModelRunner(model, backend, {
    // Each state has a spare slot; see slots.ts.
    numSlots: 2 * slots,
    maxTokens: Math.max(stepTokens, 2 * slots),
    fingerprint: fingerprint(checkpoint),
    startState: readTunedState(checkpoint, model.stateShape),
  })
}

function llmOf(home: StateHome, close: () => void): Llm {
  async function* generate(prompt: string, options: TextOptions = {}) {
    const state = LlmState.begin(home)
    try {
      yield* state.generate(prompt, options)
    } finally {
      state.close()
    }
  }
  return {
    info: home.runner.info,
    tokenizer: home.tokenizer,
    generate,
    chat: (turns, { think = 'none', ...options } = {}) =>
      generate(renderChat(turns, think), { ...options, stop: [...CHAT_STOPS, ...stopsOf(options)] }),
    begin: () => LlmState.begin(home),
    restore: (file) => LlmState.restore(home, file),
    close,
  }
}
