/**
 * Takes sessions over from other nodes: if a request needs a session of another node, this node asks that one to
 * release it, and then owns it. Requests from gateways are told where the session is instead, unless they say that this
 * node should take it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { ModelRegistry, ServedModel } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import type { EngineCalls, SessionRef } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import { wrapClient } from '../routing/wrap-client.ts'

/** Asks the node at `location` to release sessions of a model. Rejects with conflict while one is in use. */
export type LetGo = (location: string, model: string, sessions: readonly SessionRef[]) => Promise<void>

/** Longer than a lease: a node that does not answer has lost its sessions by then. */
const MAX_WAIT_MS = 15_000
/** Each try queries the database twice, so pauses grow: after a rack has failed, many requests wait for its leases. */
const MIN_PAUSE_MS = 50
const MAX_PAUSE_MS = 500
const PAUSE_SHARE = 0.2
/** Time after which a session that stays in use elsewhere is refused. */
const MAX_BUSY_MS = 60_000

/** Pause before the next try. */
export function pauseAfter(waitedMs: number): number {
  return Math.min(MAX_PAUSE_MS, Math.max(MIN_PAUSE_MS, PAUSE_SHARE * waitedMs))
}

export function takingModels(models: ModelRegistry, letGo: LetGo): ModelRegistry {
  return { list: () => models.list(), get: (name) => taking(models.get(name), letGo) }
}

function taking(model: ServedModel, letGo: LetGo): ServedModel {
  const { client, id } = model
  const generate: EngineClient['generate'] = (request, signal) => {
    const { session, tenant = '' } = request
    if (session === undefined) return client.generate(request, signal)
    const move = new Taking(id, letGo, [{ tenant, id: session.id }], signal, session.ifBusy)
    return (async function* () {
      for (;;) {
        let hasBegun = false
        try {
          for await (const event of client.generate(request, signal)) {
            hasBegun = true
            yield event
          }
          return
        } catch (thrown) {
          if (hasBegun) throw thrown
          await move.after(thrown)
        }
      }
    })()
  }
  const call: EngineClient['call'] = async (method, params) => {
    const move = new Taking(id, letGo, sessionsOf(params))
    for (;;) {
      try {
        return await client.call(method, params)
      } catch (thrown) {
        await move.after(thrown)
      }
    }
  }
  return wrapClient(model, { generate, call })
}

/** The sessions that a call is about; a fork has two. */
function sessionsOf(params: EngineCalls[keyof EngineCalls]['params']): SessionRef[] {
  const { tenant, id, newId } = params as Partial<SessionRef> & { readonly newId?: unknown }
  if (tenant === undefined || id === undefined) return []
  return [id, newId].flatMap((one) => (typeof one === 'string' ? [{ tenant, id: one }] : []))
}

/** The tries of one request to get its session here. */
class Taking {
  readonly #model: string
  readonly #letGo: LetGo
  readonly #sessions: readonly SessionRef[]
  readonly #signal: AbortSignal | undefined
  readonly #ifBusy: 'wait' | 'conflict'
  readonly #begun = performance.now()
  #numLetGo = 0

  constructor(
    model: string,
    letGo: LetGo,
    sessions: readonly SessionRef[],
    signal?: AbortSignal,
    ifBusy: 'wait' | 'conflict' = 'wait',
  ) {
    // "model@state" is the same model with another start state.
    this.#model = model.split('@')[0] ?? model
    this.#letGo = letGo
    this.#sessions = sessions
    this.#signal = signal
    this.#ifBusy = ifBusy
  }

  /** Resolves when the next try may succeed; rejects with the client's error. */
  async after(thrown: unknown): Promise<void> {
    const error = SkeinError.from(thrown)
    if (error.code !== 'misdirected' || error.location === undefined) throw thrown
    try {
      await this.#letGo(error.location, this.#model, this.#sessions)
    } catch (refusal) {
      const { code } = SkeinError.from(refusal)
      const isBusy = code === 'conflict'
      if (isBusy && this.#ifBusy === 'conflict') throw refusal
      // An unreachable node loses its lease, and with it the session.
      if (this.#waitedMs > (isBusy ? MAX_BUSY_MS : MAX_WAIT_MS)) throw refusal
      await this.#pause()
      return
    }
    if (this.#waitedMs > MAX_BUSY_MS) throw thrown
    // Another node took the session first.
    if (this.#numLetGo++ > 0) await this.#pause()
  }

  get #waitedMs(): number {
    return performance.now() - this.#begun
  }

  async #pause(): Promise<void> {
    const signal = this.#signal
    const ms = pauseAfter(this.#waitedMs)
    await delay(ms, undefined, signal === undefined ? {} : { signal }).catch(() => {})
    if (signal?.aborted === true) throw new SkeinError('aborted', 'the request was cancelled')
  }
}
