/**
 * Assembles an engine: file → checkpoint → backend → model → runner → engine. Used by worker processes, the library,
 * commands and benches.
 */
import { randomBytes } from 'node:crypto'
import { freemem } from 'node:os'
import { LocalEngineClient } from '../engine/client/local-client.ts'
import type { EngineClient } from '../engine/client.ts'
import { Engine } from '../engine/engine.ts'
import { identityOf } from '../engine/kept/identity.ts'
import { LateStore, NO_DISK } from '../engine/kept/late-store.ts'
import { DEFAULT_LIMITS as DEFAULT_ENGINE_LIMITS, type EngineLimits, lineLength } from '../engine/limits.ts'
import { Draft } from '../engine/speculation/draft.ts'
import { LOOKUP, PREDICTION } from '../engine/speculation/lookup.ts'
import type { ProposerSource } from '../engine/speculation/proposer.ts'
import { DEFAULT_STATE_OPTIONS, type StateOptions } from '../engine/states.ts'
import { SkeinError } from '../errors.ts'
import { onlyGiven } from '../files/given.ts'
import { packageVersion } from '../files/version.ts'
import { existsCheckpoint, openCheckpoint } from '../model/checkpoint.ts'
import { loadableArchitecture, rwkv6Dimensions, rwkv7Dimensions } from '../model/formats/describe.ts'
import { fingerprint } from '../model/formats/fingerprint.ts'
import { rerankerParts } from '../model/formats/native-names.ts'
import { testedOf } from '../model/run/load-model.ts'
import { ModelRunner } from '../model/run/model-runner.ts'
import { type Reranker, readEmbeddingHeads, rerankerOver } from '../model/run/reranker.ts'
import { sparesOf } from '../model/run/speculate-choice.ts'
import type { WarmUp } from '../model/run/warm-up.ts'
import type { Runner } from '../model/runner.ts'
import { readTunedState } from '../model/tuned-state.ts'
import { openTunedState, readTunedStateAside } from '../model/tuned-state-file.ts'
import { type LoadProgress, weightTypeOf } from '../model/weights.ts'
import type { MemberFacts } from '../state/shared/shared-store.ts'
import { warn } from '../state/store/failures.ts'
import type { Store } from '../state/store/store.ts'
import { openClusterStore, openStore } from '../state/store/store-thread.ts'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'
import { DEMO_NAME } from './checkpoints/model-path.ts'
import { checkModelFile, loadTokenizer, openModel } from './checkpoints/open-model.ts'
import { adapterChosen, prepareDevice, scoresOf } from './device-choice.ts'
import type { ClusterChoice, EngineChoice, RunnerChoice } from './model-choice.ts'
import { placeModel } from './placement.ts'

/** Share of free memory for cached prefixes if no size was given, and its limit. */
const PREFIX_MEMORY_SHARE = 0.1

const MAX_DEFAULT_PREFIX_BYTES = 2 ** 31

/** The same for the states of preempted answers. */
const PREEMPT_MEMORY_SHARE = 0.05

const MAX_DEFAULT_PREEMPT_BYTES = 2 ** 30

/** Called with the stages before the first request, as short sentences. */
interface LoadReport extends WarmUp {
  readonly onStage?: (text: string) => void
}

export function loadRunner(choice: RunnerChoice, onProgress?: LoadProgress, { onStage }: LoadReport = {}): ModelRunner {
  const checkpoint = openModel(choice)
  try {
    const weightType = weightTypeOf(choice.quant)
    const onCompiling = (numKernels: number) =>
      onStage?.(`compiling ${numKernels} kernels for this device while the weights are read`)
    const onTuning = (numProducts: number) => onStage?.(`tuning ${numProducts} matrix products for this device`)
    const options = { weightType, onProgress, onCompiling, onTuning }
    const { model, backend, size } = placeModel(checkpoint, choice, options)
    onStage?.('recording the model')
    try {
      return new ModelRunner(model, backend, {
        ...size,
        fingerprint: fingerprint(checkpoint),
        startState: readTunedState(checkpoint, model.stateShape),
        numSpares: sparesOf(choice, size.numSlots, backend),
      })
    } catch (error) {
      backend.dispose()
      throw error
    }
  } finally {
    checkpoint.close()
  }
}

/** What a device is tested with before it gets a model. */
export function testedFor(choice: RunnerChoice) {
  const checkpoint = openModel(choice)
  try {
    return testedOf(checkpoint, weightTypeOf(choice.quant))
  } finally {
    checkpoint.close()
  }
}

/** An engine over a runner whose answers are only tokens, for benches. Closing it disposes of the runner. */
export function clientOver(runner: Runner, proposers: readonly ProposerSource[]): EngineClient {
  const tokenBytes = { bytesOf: () => Uint8Array.of(0x61) }
  return new LocalEngineClient(new Engine(runner, tokenBytes, { proposers }))
}

/** With `warmUp`, everything is ready for the first request when this returns. */
export async function loadEngine(choice: EngineChoice, onProgress?: LoadProgress, warmUp?: LoadReport) {
  // If the model's file is missing, report that, not the missing vocabulary beside it.
  if (!existsCheckpoint(choice.model)) checkModelFile(choice)
  const tokenizer = loadTokenizer(choice)
  const startStates = openStartStates(choice)
  const limits = { ...limitsOf(choice), ...embeddingsOf(choice) }
  refuseBeside(choice)
  await prepareDevice(choice, () => testedFor(choice))
  // `auto` may have become webgpu.
  refuseBeside(choice)
  const { reranker, draft, runner } = loadTogether(choice, onProgress, warmUp)
  try {
    if (draft !== null) checkDraft(draft, runner)
    const scoreRows = scoresOf(choice)
    const scoring = scoreRows === undefined ? {} : { scoreRows }
    const given = { ...limits, ...scoring, reranker, proposers: proposersOf(choice, draft) }
    return { engine: await engineOver(runner, choice, given, tokenizer, startStates, warmUp), tokenizer }
  } catch (error) {
    // After kernel_failed no call on the device succeeds any more.
    if (SkeinError.from(error).code !== 'kernel_failed') runner.dispose()
    throw error
  }
}

async function engineOver(
  runner: ModelRunner,
  choice: EngineChoice,
  limits: Partial<EngineLimits>,
  tokenizer: Tokenizer,
  startStates: ReturnType<typeof openStartStates>,
  warmUp: WarmUp | undefined,
): Promise<Engine> {
  if (tokenizer.vocabSize > runner.info.vocabSize)
    throw new SkeinError(
      'unsupported_weights',
      `the vocabulary has ${tokenizer.vocabSize} ids but ${choice.model} has ${runner.info.vocabSize} embedding rows; give the model's own vocabulary with --vocab`,
    )
  if (warmUp !== undefined) {
    await runner.compile()
    runner.warmUp(warmUp)
  }
  const numInFlight = new Int32Array(new SharedArrayBuffer(4))
  const store = await openStoreOf(choice, runner, tokenizer, numInFlight)
  try {
    const states = statesOf(choice, tokenizer, store)
    const engine = new Engine(runner, tokenizer, limits, states)
    for (const { name, state } of startStates) engine.startStates.add(name, state)
    engine.startStates.readFile = (path) => readTunedStateAside(path, runner.info.stateShape)
    if (choice.cluster !== undefined)
      setInterval(() => {
        const { running, waiting } = engine.stats
        Atomics.store(numInFlight, 0, running + waiting)
      }, IN_FLIGHT_MS).unref()
    return engine
  } catch (error) {
    // Its threads would keep the process alive.
    await store?.close()
    throw error
  }
}

/** How often the number of requests in flight is read; others are told every two seconds. */
const IN_FLIGHT_MS = 250

/** Opened before the weights are loaded, so that a wrong file is reported at once. */
function openStartStates({ model, startStates = [] }: EngineChoice) {
  if (startStates.length === 0) return []
  const checkpoint = openCheckpoint(model)
  try {
    const isRwkv6 = loadableArchitecture(checkpoint) === 'rwkv6'
    const shape = isRwkv6 ? rwkv6Dimensions(checkpoint) : rwkv7Dimensions(checkpoint)
    return startStates.map(({ name, path }) => ({ name, state: openTunedState(path, shape) }))
  } finally {
    checkpoint.close()
  }
}

/** On webgpu a device is opened for one model, and nothing waits for what another has computed. */
export function refuseBeside(choice: Pick<EngineChoice, 'device' | 'draft' | 'reranker'>): void {
  if (adapterChosen(choice) === null) return
  const flag = (['draft', 'reranker'] as const).find((one) => choice[one] !== undefined)
  if (flag === undefined) return
  const message = `--${flag} is for models on a CPU or on CUDA; on webgpu leave it out`
  throw new SkeinError('invalid_request', message, { param: flag })
}

/** The reranker and the draft before the model, which keeps them and takes the remaining memory. */
function loadTogether(choice: EngineChoice, onProgress: LoadProgress | undefined, warmUp: LoadReport | undefined) {
  const beside: { dispose(): void }[] = []
  try {
    const reranker = choice.reranker === undefined ? null : openReranker(choice, choice.reranker)
    if (reranker !== null) beside.push(reranker)
    const draft = choice.draft === undefined ? null : loadDraft(choice, choice.draft, warmUp)
    if (draft !== null) beside.push(draft)
    const runner = loadRunner(choice, onProgress, warmUp)
    for (const one of beside) runner.keep(one)
    return { reranker, draft, runner }
  } catch (error) {
    for (const one of beside) one.dispose()
    throw error
  }
}

/** Answers that a draft model follows at once, and tokens per step of it. */
const DRAFTED_ANSWERS = 32
const DRAFT_STEP_TOKENS = 256

/** Loads it on the model's device, in the same precision. */
export function loadDraft(choice: RunnerChoice, path: string, warmUp?: WarmUp): ModelRunner {
  // One state follows the answer, one runs ahead of it.
  const slots = 2 * Math.min(choice.slots ?? DRAFTED_ANSWERS, DRAFTED_ANSWERS)
  const size = { slots, maxTokens: DRAFT_STEP_TOKENS }
  const none = { adapters: undefined, speculate: undefined, draft: undefined }
  const runner = loadRunner({ ...choice, ...none, ...size, model: path })
  if (warmUp !== undefined) runner.warmUp({})
  return runner
}

/** Answers at once on a GPU: eight gain nothing (docs/dev/measurements.md). */
const DRAFTED_ON_GPU = 4

export function draftOver(runner: Runner): Draft {
  return new Draft(runner, runner.maxFlights > 1 ? DRAFTED_ON_GPU : undefined)
}

function checkDraft({ info: { vocabSize } }: Runner, { info }: Runner): void {
  if (vocabSize === info.vocabSize) return
  const message = `--draft: the draft model has ${vocabSize} tokens, and the model ${info.vocabSize}; give one with the same vocabulary`
  throw new SkeinError('unsupported_weights', message, { param: 'draft' })
}

/** In the order in which they are asked: cheap and reliable ones first. */
function proposersOf({ speculate = 'off' }: EngineChoice, draft: ModelRunner | null): ProposerSource[] {
  return [
    ...(speculate === 'off' ? [] : [PREDICTION]),
    ...(speculate === 'lookup' ? [LOOKUP] : []),
    ...(draft === null ? [] : [draftOver(draft)]),
  ]
}

/** Opened on the model's device, whose states it reads; with several devices on the last. */
function openReranker(choice: EngineChoice, path: string): Reranker {
  const { ppDevices = [], device = ppDevices.at(-1) } = choice
  const place = { ...choice, device, ppDevices: [], slots: 1, maxTokens: 2, speculate: undefined, draft: undefined }
  const opened = [openCheckpoint(choice.model)]
  try {
    const { layers, channels, heads, headSize } = rwkv7Dimensions(opened[0]!)
    const checkpoint = openCheckpoint(path)
    opened.push(checkpoint)
    const { model: own, head } = rerankerParts(checkpoint)
    const { model, backend, size } = placeModel(own, place, {})
    const runner = new ModelRunner(model, backend, { ...size, fingerprint: '' })
    return rerankerOver(runner, head, { layers, channels, heads, headSize }, path)
  } finally {
    for (const one of opened) one.close()
  }
}

/** The checkpoint's own embedding heads if it has any, else the chosen method. */
function embeddingsOf({ model, embeddings = 'off' }: EngineChoice): Partial<EngineLimits> {
  const checkpoint = openCheckpoint(model)
  try {
    const embeddingHeads = readEmbeddingHeads(checkpoint)
    if (embeddingHeads.size === 0) return { embeddings: embeddings === 'off' ? null : embeddings }
    if (embeddings === 'off') return { embeddings: 'last', embeddingHeads }
    const message = `${model} was trained to give embeddings by heads of its own; leave --embeddings ${embeddings} out`
    throw new SkeinError('invalid_request', message, { param: 'embeddings' })
  } finally {
    checkpoint.close()
  }
}

function limitsOf(choice: EngineChoice) {
  const { maxWaiting, maxPromptTokens, itlTargetMs, prefillChunk, toolTemplate } = choice
  const preemptBytes = Math.min(MAX_DEFAULT_PREEMPT_BYTES, Math.floor(PREEMPT_MEMORY_SHARE * freemem()))
  return {
    preemptBytes: choice.preemptBytes ?? preemptBytes,
    ...onlyGiven({ itlTargetMs, prefillChunk, maxWaiting, maxPromptTokens, toolTemplate }),
  }
}

/** How often a store is opened again after its disk was full. */
const REOPEN_MS = 2000

async function openStoreOf(choice: EngineChoice, runner: ModelRunner, { hash }: Tokenizer, numInFlight: Int32Array) {
  const { dataDir, durable = false, cluster } = choice
  const identity = identityOf(runner.info, hash)
  if (cluster !== undefined) {
    const { database, blobs, key, maxInlineBytes } = cluster
    const worker = memberOf(cluster, choice, runner)
    return openClusterStore({
      ...{ database, blobs, key, maxInlineBytes, identity, worker, numInFlight },
      isToldFirst: !durable,
    })
  }
  if (dataDir === undefined) return null
  const open = () => openStore({ dataFolder: dataDir, identity, isDurable: durable })
  try {
    return await open()
  } catch (thrown) {
    const problem = SkeinError.from(thrown)
    if (!NO_DISK.test(problem.message) || problem.code === 'invalid_request') throw problem
    warn('sessions are unavailable until the store can be opened', problem)
    const onOpen = () => process.stderr.write('skein: the store is open; sessions are available again\n')
    return new LateStore(problem, { open, onOpen, retryMs: REOPEN_MS, secret: randomBytes(32) })
  }
}

/** What the other members are told about a worker. */
function memberOf(
  { node, url, model = DEMO_NAME, aliases = [] }: ClusterChoice,
  choice: EngineChoice,
  { info, numSlots }: ModelRunner,
): MemberFacts {
  const limits = { ...DEFAULT_ENGINE_LIMITS, ...limitsOf(choice) }
  const { maxPromptTokens } = limits
  const maxWaiting = lineLength(limits.maxWaiting, numSlots)
  const startStates = (choice.startStates ?? []).map(({ name }) => name)
  const { pid } = process
  const facts = { pid, model: info, numSlots, maxWaiting, maxPromptTokens, startStates, aliases }
  return { node, url, model, slots: numSlots, info: { ...facts, version: packageVersion() } }
}

function statesOf(choice: EngineChoice, { hash }: Tokenizer, store: Store | null): StateOptions {
  const { sizes, limits, ...defaults } = DEFAULT_STATE_OPTIONS
  const share = Math.floor(PREFIX_MEMORY_SHARE * freemem())
  const { memoryStateBytes, sessionTtlSeconds } = choice
  // The default number does not apply if a limit in bytes is given.
  const unnamed = memoryStateBytes === undefined ? sizes.memory.count : Number.POSITIVE_INFINITY
  return {
    ...defaults,
    vocabulary: hash,
    store,
    isDurable: choice.durable === true,
    // Without a store nothing survives a restart, so there is no seal to check.
    acceptsForeign: store === null || choice.importForeign === true,
    prefixBytes: choice.prefixCacheBytes ?? Math.min(MAX_DEFAULT_PREFIX_BYTES, share),
    sizes: {
      slots: choice.slotStates ?? sizes.slots,
      memory: { count: choice.memoryStates ?? unnamed, bytes: memoryStateBytes ?? sizes.memory.bytes },
    },
    limits: {
      maxSessions: choice.maxSessions ?? limits.maxSessions,
      maxBytes: choice.maxSessionBytes ?? limits.maxBytes,
      maxTurns: choice.maxTurns ?? limits.maxTurns,
      ttlMs: sessionTtlSeconds === undefined ? limits.ttlMs : 1000 * sessionTtlSeconds,
    },
  }
}
