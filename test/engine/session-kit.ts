/**
 * Shared by the tests of sessions: an engine that keeps states, turns of a conversation, and their expected answers.
 */
import { expect } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import type { EngineLimits } from '../../src/engine/limits.ts'
import type {
  EngineCall,
  EngineCalls,
  GenerateRequest,
  SessionPosition,
  SessionUse,
} from '../../src/engine/messages.ts'
import { DEFAULT_STATE_OPTIONS, type StateOptions } from '../../src/engine/states.ts'
import { type ModelIdentity, transcriptOf } from '../../src/state/snapshot.ts'
import { decodeSnapshot } from '../../src/state/snapshot-file.ts'
import { type DirectStore, openDirectStore } from '../helpers/direct-store.ts'
import { type FakeOptions, FakeRunner, stateAfter } from '../helpers/fake-runner.ts'
import { Collected, engineOver, type Loop, requestOf, soloAnswer, textOf, V } from './kit.ts'

export const IDENTITY: ModelIdentity = {
  architecture: 'fake',
  layers: 1,
  channels: 2,
  heads: 1,
  headSize: 2,
  vocabulary: '',
  weights: 'fake as f32',
}

export const USE: SessionUse = {
  id: 's',
  ifMissing: 'create',
  ifBusy: 'wait',
  onCancel: 'drop',
}

export interface SetUp {
  readonly fake?: FakeOptions
  readonly limits?: Partial<EngineLimits>
  readonly states?: Partial<StateOptions>
  readonly loop?: Loop
}

export function setUp({ fake = {}, limits = {}, states = {}, loop }: SetUp = {}) {
  const runner = new FakeRunner({ vocabSize: V, maxTokens: 512, ...fake })
  const engine = engineOver(
    runner,
    { poisonFreedSlots: true, ...limits },
    { ...DEFAULT_STATE_OPTIONS, ...states },
    loop,
  )
  return { runner, engine }
}

/** A request that continues session `s`, or the one named in `use`. */
export function turnOf(parts: Partial<GenerateRequest> = {}, use: Partial<SessionUse> = {}): GenerateRequest {
  return requestOf({ ...parts, session: { ...USE, ...use } })
}

/** Steps, and lets the store answer, until nothing is left to do. */
export async function settle(engine: Engine, collected = new Collected()): Promise<Collected> {
  const deadline = performance.now() + 120_000
  for (;;) {
    while (engine.hasWork) collected.add(engine.step())
    if (engine.isIdle && (engine.stats.states?.unsaved ?? 0) === 0) return collected
    if (performance.now() > deadline) throw new Error('not idle after two minutes')
    await new Promise((resolve) => setTimeout(resolve, 1))
  }
}

export interface Told {
  readonly collected: Collected
  readonly position: SessionPosition | undefined
  readonly cachedTokens: number | undefined
}

/** Runs a turn until it has ended and is saved. */
export async function tell(engine: Engine, request: GenerateRequest): Promise<Told> {
  engine.submit(request)
  return toldOf(await settle(engine), request.id)
}

export function toldOf(collected: Collected, id: string): Told {
  const events = collected.of(id)
  const finish = events.find((event) => event.type === 'finish')
  const prompt = events.find((event) => event.type === 'prompt')
  return {
    collected,
    position: finish?.type === 'finish' ? finish.session : undefined,
    cachedTokens: prompt?.type === 'prompt' ? prompt.cachedTokens : undefined,
  }
}

/** Makes a call, and the steps that it needs. */
export async function call<M extends EngineCall>(
  engine: Engine,
  method: M,
  params: EngineCalls[M]['params'],
): Promise<EngineCalls[M]['result']> {
  return withSteps(engine, engine.call(method, params))
}

/** Steps until a promise is settled, then until the engine is idle. */
export async function withSteps<T>(engine: Engine, promise: Promise<T>): Promise<T> {
  let isSettled = false
  const settled = promise.finally(() => {
    isSettled = true
  })
  settled.catch(() => {})
  while (!isSettled) {
    while (engine.hasWork) engine.step()
    await new Promise((resolve) => setTimeout(resolve, 0))
  }
  await settle(engine)
  return settled
}

/** The error code of a refused call. */
export async function refusal<M extends EngineCall>(
  engine: Engine,
  method: M,
  params: EngineCalls[M]['params'],
): Promise<unknown> {
  return call(engine, method, params).then(
    () => 'accepted',
    (error) => error.code,
  )
}

/**
 * The tokens of a conversation according to what is kept; its state must be the one after exactly the consumed tokens.
 */
export async function transcript(engine: Engine, id = 's', turn?: number): Promise<Int32Array> {
  const ref = { tenant: '', id }
  const { head } = await call(engine, 'sessions.get', ref)
  const range = { turn: turn ?? head, start: 0, end: 1e9 }
  // Before the export, which moves a state from the store to memory.
  const tokens = await call(engine, 'sessions.tokens', { ...ref, ...range })
  const bytes = await call(engine, 'sessions.export', { ...ref, turn })
  const { layers } = engine.info.model.stateShape
  const { snapshot } = decodeSnapshot(withoutSeal(bytes), { ...IDENTITY, layers })
  expect(snapshot.state).toEqual(stateAfter(snapshot.tokens, layers))
  expect(tokens).toEqual(transcriptOf(snapshot))
  return tokens
}

/** The expected answer of the turn after that conversation: that of one long, uninterrupted prompt. */
export function answerAfter(history: Int32Array, request: GenerateRequest) {
  const prompt = Int32Array.of(...history, ...request.prompt)
  const answer = soloAnswer({ ...request, prompt })
  return { answer, text: textOf([...prompt], false) + answer.text }
}

/** A number of slots and of states in memory, without a limit in bytes. */
export const sizesOf = (slots: number, count: number) => ({
  slots,
  memory: { count, bytes: Number.POSITIVE_INFINITY },
})

/** An engine over the store in a folder; opening the same folder again is a restart. */
export function openAt(folder: string, states: Partial<StateOptions> = {}, numSlots = 8) {
  const store = openDirectStore(folder, IDENTITY, { now: states.now })
  return { store, ...setUp({ fake: { numSlots }, states: { store, ...states } }) }
}

/** Makes commits fail while it is set. */
export function breakDisk(store: DirectStore): () => void {
  store.onCommit = () => {
    throw new Error('ENOSPC: no space left on device')
  }
  return () => {
    store.onCommit = () => {}
  }
}

/** After the file of an export: eight bytes of a magic, and 32 of an HMAC. */
export function withoutSeal(bytes: Uint8Array): Uint8Array {
  return bytes.subarray(0, bytes.length - 40)
}
